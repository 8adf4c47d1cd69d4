"""Changes to a script: one module a change, by its name in `jobs.contract.changes`. `CHANGE` in it is the class that
applies the change."""
