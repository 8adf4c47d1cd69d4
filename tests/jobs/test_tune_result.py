"""What `tune` does with a result that is complete: prints it, prices it, and writes the patch."""

import json
import os
import subprocess
import sys

import pytest

from profiler_job.analysis.changes.patch import compute_digests
from profiler_job.analysis.changes.script_code import load_program
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.tuning import read_tuning, write_tuning
from tests.changes.scripts import FLAT
from tests.jobs.conftest import ROOT
from tests.show.tunings import make_tuning


@pytest.fixture
def tuned(tmp_path):
    """A folder with a script and its complete result."""
    (tmp_path / "train.py").write_text(FLAT.replace("\n    ", "\n"))
    digests = compute_digests(load_program(tmp_path / "train.py", tmp_path))
    write_tuning(tmp_path / "results" / "train-tune", make_tuning(digests=digests, patch=None))
    return tmp_path


def tune(folder, *options):
    return subprocess.run(
        [sys.executable, "-m", "profiler_job", "tune", *options, "--", "python", "train.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
def test_a_complete_result_is_printed_with_its_patch(tuned):
    done = tune(tuned)
    assert done.returncode == 0, done.stderr
    assert "8.00 times as fast" in done.stdout and "+    with torch.autocast" in done.stdout
    assert "+model.compile()" in done.stdout and "tuned before" in done.stderr
    page = tuned / "results" / "train-tune" / "tune.html"
    assert str(page) in done.stdout.replace("\n", "") and "8.00 times as fast" in page.read_text()


@pytest.mark.long
def test_a_result_is_printed_for_machines_and_priced(tuned):
    done = tune(tuned, "--format", "json", "--price", "2.49")
    content = json.loads(done.stdout)
    assert content["price"] == {"usd_per_hour": 2.49, "vendor": "", "source": "", "read": None}
    assert read_tuning(tuned / "results" / "train-tune").usd_per_hour == 2.49
    assert "2.49 USD an hour, as given" in tune(tuned, "--format", "md").stdout


@pytest.mark.long
def test_the_patch_is_written_with_a_copy(tuned):
    before = (tuned / "train.py").read_text()
    done = tune(tuned, "--write")
    assert done.returncode == 0 and "Written to train.py" in done.stdout
    after = (tuned / "train.py").read_text()
    assert "model.compile()" in after and "torch.autocast" in after
    assert (tuned / "results" / "train-tune" / "originals" / "train.py").read_text() == before
    assert read_tuning(tuned / "results" / "train-tune").patch.written == ("train.py",)


@pytest.mark.long
def test_a_copy_of_somebody_else_stays(tuned):
    kept = tuned / "results" / "train-tune" / "originals"
    kept.mkdir()
    (kept / "train.py").write_text("mine")
    before = (tuned / "train.py").read_text()
    done = tune(tuned, "--write")
    assert done.returncode == ExitCode.USAGE and "move it away" in " ".join(done.stderr.split())
    assert (tuned / "train.py").read_text() == before and (kept / "train.py").read_text() == "mine"
