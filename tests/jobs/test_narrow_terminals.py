"""What a terminal of 80 columns shows: messages are broken between words, and elsewhere each stays one line."""

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios

import pytest

from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import fit_terminal
from profiler_job.jobs.executor.result_store import Results
from tests.jobs.conftest import ROOT, command
from tests.jobs.profiled_scripts import TRAIN

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


def run_in_terminal(arguments: list[str], columns: int = WIDTH, **variables: str) -> tuple[int, str]:
    """Run the program in a terminal, with more environment variables; return its exit code and what the terminal
    received."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm"} | variables
    process = subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment
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


BROKEN = """
from profiler_job.jobs.cli import status_command
def choose_runs(*arguments): raise ZeroDivisionError("a mistake " * 20)
status_command.choose_runs = choose_runs
"""
"""A module that Python imports when it starts: `status` has a mistake then."""


def find_too_long(shown: str) -> list[str]:
    """Return the lines that are too long, except a single word, such as a path, and without what a bar left there."""
    lines = [line.rpartition("\r")[2] for line in shown.splitlines()]
    return [line for line in lines if len(line) > WIDTH and len(line.split()) > 1]


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
        (ExitCode.CANNOT_WRITE, ["install-nsys", "--to", "/proc/a-folder-that-nobody-can-make"]),
        (ExitCode.UNKNOWN, ["compare", str(CAPTURE), "{folder}/copy", "--fail-if", "step > 5%"]),
        (ExitCode.LOCKED, ["profile", "--collector", "events", "-o", "{folder}", "-n", "held", "python", "-c", "pass"]),
        (ExitCode.BUG, ["status", "--sweep", "{folder}/bug.yaml"]),
    ],
)
def test_the_message_of_an_exit_code_fits(tmp_path, code, arguments):
    (tmp_path / "damaged.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(200))
    shutil.copytree(CAPTURE, tmp_path / "copy")
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    with Results(tmp_path, ".held").lock():
        ended, shown = run_in_terminal(
            [each.format(folder=tmp_path) for each in arguments],
            **({"PYTHONPATH": str(tmp_path)} if code == ExitCode.BUG else {}),
        )
    assert ended == code, shown
    assert "rror" in shown or "--only" in shown or "not enough data" in shown
    assert not find_too_long(shown)


def test_each_code_of_an_error_has_a_message_that_fits():
    (marked,) = (each for each in test_the_message_of_an_exit_code_fits.pytestmark if each.name == "parametrize")
    ends = {ExitCode.OK, ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    assert {code for code, _ in marked.args[1]} == set(ExitCode) - ends


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of a script that trains on the CPU, and what a terminal showed of it."""
    folder = tmp_path_factory.mktemp("results")
    script = folder / "train.py"
    script.write_text(TRAIN.replace("WORKERS", "0"))
    (folder / "nsys").write_text("#!/bin/sh\necho 0\n")
    (folder / "nsys").chmod(0o755)
    profiled = ["profile", "--collector", "events", "-o", str(folder / "results"), "--skip", "3", "--steps", "3"]
    code, shown = run_in_terminal([*profiled, sys.executable, str(script)])
    assert code == ExitCode.OK, shown
    return folder, shown


@pytest.mark.long
def test_the_summary_of_events_fits(results):
    assert not find_too_long(results[1]) and "Not shown" in results[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "{folder}/results"],
        ["plan"],
        ["plan", "--gpu-memory", "80", "--only", "size=small"],
        ["install-nsys"],
        pytest.param(["site", "--results", "{folder}/results"], marks=pytest.mark.long),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_what_a_command_prints_fits(results, arguments):
    folder, _ = results
    variables = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    code, shown = run_in_terminal([each.format(folder=folder) for each in arguments], **variables)
    assert code == ExitCode.OK, shown
    assert shown and not find_too_long(shown)


def test_on_a_wide_terminal_a_run_of_a_plan_is_one_line():
    _, shown = run_in_terminal(["plan", "--gpu-memory", "80", "--only", "size=small"], columns=120)
    assert any("-forward " in line and line.split()[-1].isdigit() for line in shown.splitlines())
