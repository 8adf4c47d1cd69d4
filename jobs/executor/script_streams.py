"""What a script prints goes where this program's output goes, while the messages and progress bars of nsys, which
starts the script, go to a log."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

RESTORE = """
import os, sys
for number, kept, append in ((1, int(sys.argv[1]), sys.argv[3]), (2, int(sys.argv[2]), sys.argv[4])):
    try:
        os.dup2(kept, number)
        os.close(kept)
    except OSError:
        os.dup2(os.open(append, os.O_WRONLY | os.O_APPEND), number)
try:
    os.execvp(sys.argv[5], sys.argv[5:])
except OSError as error:
    sys.exit(f"{sys.argv[5]}: {error.strerror}")
"""
"""Program that gives a script the outputs of `profile` again, then becomes the script. They are open as two further
files; where nsys has closed these, they are opened anew."""


def start_under_nsys(
    nsys: Sequence[str], command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start `command` under nsys in a session of its own. log: file for what nsys itself prints."""
    sys.stdout.flush()
    kept = [os.dup(stream) for stream in (1, 2)]
    anew = [f"/proc/{os.getpid()}/fd/{stream}" for stream in (1, 2)]
    python = [sys.executable, "-I", "-S", "-c", RESTORE]
    try:
        with open(log, "wb") as printed:
            return subprocess.Popen(
                [*nsys, *python, *map(str, kept), *anew, *command],
                env=environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                pass_fds=kept,
                start_new_session=True,
            )
    finally:
        for stream in kept:
            os.close(stream)
