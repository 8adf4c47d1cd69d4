"""What a terminal of 80 columns shows: messages are broken between words, and elsewhere each stays one line."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios

import pytest

from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import fit_terminal
from tests.jobs.conftest import ROOT, command

WIDTH = 80
CAPTURE = ROOT / "tests" / "data" / "h200_parquetdir"


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_is_broken_between_words_and_indented(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    path = "/a/path/that-is-longer/than-a-line"
    shown = fit_terminal(f"error: {path}: does not exist\nsecond", FakeTerminal())
    assert shown == f"error:\n  {path}:\n  does not exist\nsecond"


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["none", "a file"])
def test_elsewhere_a_message_stays_one_line(stream):
    assert fit_terminal("word " * 100, stream) == "word " * 100


def run_in_terminal(arguments: list[str]) -> tuple[int, str]:
    """Run the program in a terminal of 80 columns; return its exit code and what the terminal received."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment | {"TERM": "xterm"}
    )
    os.close(theirs)
    received = b""
    try:
        while block := os.read(ours, 65536):
            received += block
    except OSError:  # all ends of the program are closed
        pass
    os.close(ours)
    return process.wait(), re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", received.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (ExitCode.FAILED, ["profile", "--collector", "events", "-o", "{folder}/results", "python", "-c", "pass"]),
        (ExitCode.USAGE, ["show", "{folder}/absent.sqlite"]),
        (ExitCode.USAGE, ["show", "--frmat", "json"]),
        (ExitCode.USAGE, ["plan", "--only", "size=enormous"]),
        (ExitCode.DAMAGED, ["show", "{folder}/damaged.sqlite"]),
        (ExitCode.MISSING, ["install-nsys", "--to", "{folder}/nsys", "--repository", "http://127.0.0.1:9"]),
        (ExitCode.CANNOT_WRITE, ["show", str(CAPTURE), "--html", "{folder}/damaged.sqlite/page.html"]),
    ],
)
def test_the_message_of_an_exit_code_fits(tmp_path, code, arguments):
    (tmp_path / "damaged.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(200))
    ended, shown = run_in_terminal([each.format(folder=tmp_path) for each in arguments])
    assert ended == code, shown
    assert "rror" in shown or "--only" in shown
    too_long = [line for line in shown.splitlines() if len(line) > WIDTH and len(line.split()) > 1]
    assert not too_long
