"""What changes give: measured by pairs of runs, and as it was once predicted before it was measured."""
