"""What `tune` does with a result that is complete: prints it, prices it, and writes the patch."""

import json
import os
import subprocess
import sys

import pytest
import torch

from profiler_job.analysis.changes.patch import compute_digests
from profiler_job.analysis.changes.script_code import load_program
from profiler_job.jobs.cli import tune_command
from profiler_job.jobs.cli.tune_command import find_begun
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.tuning import read_tuning, write_tuning
from profiler_job.jobs.executor.machine import read_torch_version
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
def test_a_complete_result_says_that_its_patch_is_not_the_measured_one(tuned):
    folder = tuned / "results" / "train-tune"
    tuning = read_tuning(folder)
    tuning.confirmation.is_bare, tuning.confirmation.patch_digest = True, "another"
    write_tuning(folder, tuning)
    assert "This patch was not measured" in tune(tuned).stdout
    tuning.confirmation.patch_digest = read_tuning(folder).patch.digest
    write_tuning(folder, tuning)
    assert "Checked: the patched script ran alone" in " ".join(tune(tuned).stdout.split())


def test_a_result_with_other_steps_is_not_gone_on_with(tmp_path, capsys):
    write_tuning(tmp_path, make_tuning(skip=10, step="auto"))
    command = ("python", "train.py")
    assert find_begun(tmp_path, command, None, {}, 10, "auto") and not capsys.readouterr().err
    for skip, step in ((3, "auto"), (10, "optimizer")):
        assert find_begun(tmp_path, command, None, {}, skip, step) is None and "anew" in capsys.readouterr().err
    write_tuning(tmp_path, make_tuning())
    assert find_begun(tmp_path, command, None, {}, 3, "optimizer")


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize(
    ("noted", "is_kept"),
    [
        ({}, True),
        ({"driver": "550"}, False),
        ({"driver": ""}, True),
        ({"gpu_name": "NVIDIA H100 80GB HBM3"}, False),
        ({"gpu_name": "NVIDIA H200 NVL"}, False),
        ({"gpu_name": "NVIDIA H200 MIG 1g.18gb"}, True),
        ({"torch": "2.8.0+cu128"}, False),
        ({"torch": ""}, True),
        ({"device_type": "cpu", "gpu_name": "CPU (no GPU)"}, True),
        ({"device_type": "cpu", "gpu_name": "CPU (no GPU)", "driver": "550"}, True),
        ({"device_type": "cpu", "gpu_name": "CPU (no GPU)", "driver": ""}, False),
    ],
)
def test_a_result_of_another_machine_is_not_gone_on_with(noted, is_kept, is_complete, tmp_path, monkeypatch, capsys):
    """An H100's was printed as one of this H200, with the same driver."""
    now = {"list_gpu_names": ["NVIDIA H200"], "read_driver_version": "570", "read_torch_version": "2.9.0+cu130"}
    for name, value in now.items():
        monkeypatch.setattr(tune_command, name, lambda *_, value=value: value)
    same = {"driver": "570", "gpu_name": "NVIDIA H200", "torch": "2.9.0+cu130", "is_complete": is_complete}
    write_tuning(tmp_path, make_tuning(**same | noted))
    assert (find_begun(tmp_path, ("python", "train.py"), None, {}, 10, "auto") is not None) == is_kept
    assert ("anew" in capsys.readouterr().err) != is_kept


def test_a_result_is_found_again_where_there_is_no_gpu(tmp_path, monkeypatch):
    for name in ("list_gpu_names", "read_torch_version", "read_driver_version"):
        monkeypatch.setattr(tune_command, name, lambda *_, name=name: [] if "names" in name else "")
    write_tuning(tmp_path, make_tuning(driver="570", torch="2.9.0+cu130"))
    assert find_begun(tmp_path, ("python", "train.py"), None, {}, 10, "auto")


def test_the_version_of_torch_is_read_without_an_import(tmp_path):
    assert read_torch_version(sys.executable) == torch.__version__
    assert not read_torch_version(str(tmp_path / "python"))


@pytest.mark.long
def test_a_copy_of_somebody_else_stays(tuned):
    kept = tuned / "results" / "train-tune" / "originals"
    kept.mkdir()
    (kept / "train.py").write_text("mine")
    before = (tuned / "train.py").read_text()
    done = tune(tuned, "--write")
    assert done.returncode == ExitCode.USAGE and "move it away" in " ".join(done.stderr.split())
    assert (tuned / "train.py").read_text() == before and (kept / "train.py").read_text() == "mine"
