"""The exit codes of all commands, after sysexits.h where it has one. The page of commands is made from them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    DAMAGED = 65
    MISSING = 69
    BUG = 70
    CANNOT_WRITE = 74
    LOCKED = 75
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done; every run is ok, or out of memory",
    ExitCode.FAILED: "a run or a script failed, or the command found what it looks for: damage (`verify`, `ingest`, "
    "`answers`), missing runs (`merge`), something private or a broken link (`check-public`), a failed check "
    "(`site --strict`), a limit that is exceeded (`compare --fail-if`); or a question was answered with no "
    "(`publish-data`)",
    ExitCode.USAGE: "a command, an option, a path or a file that you wrote is wrong, or these cannot be compared, "
    "merged or published",
    ExitCode.UNKNOWN: "there is not enough data to tell whether a limit is exceeded (`compare --fail-if`)",
    ExitCode.DAMAGED: "a capture, a recording or a result is damaged, or holds nothing to use",
    ExitCode.MISSING: "something is missing: a GPU, nsys, another machine, an extra (a line names the command that "
    "installs it); or the machine failed three runs in a row",
    ExitCode.BUG: "a mistake of this program: one line names the file that keeps the traceback; or the recording or "
    "the site could not be made for another reason than those below",
    ExitCode.CANNOT_WRITE: "an output cannot be written (disk full, permissions); what was measured is kept",
    ExitCode.LOCKED: "another job writes into the same folder",
    ExitCode.HUNG_UP: "hung up (unless under `nohup`)",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.TERMINATED: "terminated; runs in flight are marked, the others are kept",
}
"""Meaning of each exit code, as Markdown."""
