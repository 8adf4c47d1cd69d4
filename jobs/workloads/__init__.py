"""What can be measured."""
