"""Exit codes of the commands, after sysexits.h where it has one."""

SOME_RUNS_FAILED = 1
USAGE = 2
CANNOT_MEASURE = 69
CANNOT_REPORT = 70
CANNOT_WRITE = 74
LOCKED = 75
