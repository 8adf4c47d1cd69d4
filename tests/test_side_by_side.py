"""Parts of the report are written by forks, each of which knows what was loaded before it.

The forks are made by a process of its own: one with threads, such as drawing leaves behind, must not fork."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GIVES = """
import os
from functools import partial
from analysis.side_by_side import run_all
loaded = {"a": 3}
given = run_all([partial(lambda n: (n * loaded["a"], os.getpid()), n) for n in range(6)], 2)
assert [number for number, _ in given] == [0, 3, 6, 9, 12, 15], given
assert os.getpid() not in {pid for _, pid in given}
"""
FAILS = """
from analysis.recording.store import RecordingError
from analysis.side_by_side import run_all
def fail():
    raise RecordingError("no such table")
try:
    run_all([lambda: 1, fail], 2)
except RecordingError as error:
    assert str(error) == "no such table"
else:
    raise AssertionError("the error of a fork is lost")
"""
WRITES = """
import sys
from pathlib import Path
from analysis import write_site
from tests.synthetic import recording
rec = recording(("small",), (128, 512))
first, second = Path(sys.argv[1], "one"), Path(sys.argv[1], "two")
together = write_site.write(rec, second, {"memory": rec}, processes=2)
assert write_site.write(rec, first, {"memory": rec}) == together
files = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
assert files == {path.relative_to(second): path.read_bytes() for path in second.rglob("*") if path.is_file()}
assert len(files) > 50
"""


@pytest.mark.parametrize(
    "program", [GIVES, FAILS, pytest.param(WRITES, marks=pytest.mark.long)], ids=["gives", "fails", "writes"]
)
def test_several_processes_give_what_one_gives(program, tmp_path):
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
