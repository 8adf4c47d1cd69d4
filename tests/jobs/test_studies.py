"""`make studies`: sweep after sweep, each with its recording. Workers and nsys are fake."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.jobs.conftest import ROOT, TINY
from tests.waiting import HANGS_S

FIRST = "tiny-ctx8-fp32-naive-forward"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def studies(tmp_path, fake_worker):
    """studies(*names): measures a sweep of one run for each name; gives exit code, what was said, and the manifests."""

    def make(*names: str) -> tuple[int, str, dict[str, dict]]:
        files = []
        for name in names:
            files.append(tmp_path / f"{name}.yaml")
            files[-1].write_text(yaml.safe_dump(TINY | {"name": name, "context_length": [8], "mode": ["forward"]}))
        recordings = tmp_path / "recordings"
        settings = {
            "BIN": Path(sys.executable).parent,
            "DEVICE": "cpu",
            "SWEEPS": " ".join(map(str, files)),
            "RESULTS": tmp_path / "results",
            "RECORDINGS": recordings,
        }
        command = ["make", "studies", *(f"{name}={value}" for name, value in settings.items())]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S)
        manifests = {file.parent.name: json.loads(file.read_text()) for file in recordings.glob("*/manifest.json")}
        return done.returncode, done.stdout + done.stderr, manifests

    return make


@pytest.mark.long
def test_every_sweep_becomes_a_recording(studies):
    code, said, manifests = studies("one", "two")
    assert code == 0, said
    assert {name: [run["status"] for run in one["runs"]] for name, one in manifests.items()} == {
        "one": ["ok"],
        "two": ["ok"],
    }


@pytest.mark.long
def test_a_sweep_that_fails_does_not_keep_the_others_from_being_measured(studies, tmp_path, fake_worker):
    """The one that has a failed run is recorded all the same; the one that could not be read is not."""
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "exit")})
    assert studies("failing")[0] != 0
    fake_worker.fail({})
    (tmp_path / "results" / "broken").write_text("in the place of a folder")
    code, said, manifests = studies("failing", "broken", "two")
    assert code != 0
    assert f"not whole: {tmp_path / 'failing.yaml'} {tmp_path / 'broken.yaml'}\n" in said
    assert {name: one["runs"][0]["status"] for name, one in manifests.items()} == {"failing": "failed", "two": "ok"}


def test_a_sweep_of_the_project_is_named_without_its_folder():
    command = ["make", "--dry-run", "studies", "BIN=x", "SWEEPS=precision mine.yaml"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "for sweep in jobs/sweeps/precision.yaml mine.yaml; do" in said
