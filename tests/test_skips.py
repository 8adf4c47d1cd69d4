"""What continuous integration makes of tests that skip."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

def test_that_misses_something():
    pytest.importorskip("nothing_of_this_name", reason="pip install nothing")

@pytest.mark.skipif(True, reason="not installed: sbatch")
def test_with_a_mark():
    pass

def test_that_may_skip():
    pytest.skip("no real export small.sqlite: set SHARED_PROFILES")

@pytest.mark.xfail(reason="is not so yet")
def test_that_is_known_to_fail():
    assert False
"""


@pytest.mark.parametrize(
    ("ci", "summary"), [("", "3 skipped, 1 xfailed"), ("true", "1 failed, 1 skipped, 1 xfailed, 1 error")]
)
def test_in_continuous_integration_an_unexpected_skip_fails_with_its_reason(tmp_path, ci, summary):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rfs", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, tmp_path], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == bool(ci)
    assert done.stdout.splitlines()[-1].startswith(summary), done.stdout + done.stderr
    for reason in ("pip install nothing", "not installed: sbatch"):
        assert (f"tests/allowed_skips.py does not allow: {reason}" in done.stdout) == bool(ci)
