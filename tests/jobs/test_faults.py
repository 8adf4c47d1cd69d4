"""A fault at each point at which a sweep, its ingest and its publication change files: whole, or told, and done again
it is as if nothing had been."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from jobs.executor.machine import commit
from tests.jobs.conftest import ROOT

OUT = os.environ.get("FAULTS_OUT")
"""Where the counts go, such as site/data/benchmarks/faults.json."""


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc: it builds what lets calls fail")
@pytest.mark.parametrize(
    ("steps", "every"),
    [
        (os.environ.get("FS", "ingest"), int(os.environ.get("FE", "25"))),
        pytest.param("run,ingest,publish-data", 1, marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_after_any_fault_it_is_whole_or_told(tiny, tmp_path, fake_worker, monkeypatch, steps, every):
    library, out = tmp_path / "faults.so", tmp_path / "faults.json"
    source = ROOT / "tests" / "faults" / "faults.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    work = tmp_path / "work"
    work.mkdir()
    sweep = tiny(context_length=[8])
    command = [sys.executable, "-m", "tests.faults", work, "--sweep", sweep, "--steps", steps, "--out", out]
    path = f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"
    monkeypatch.delenv("PROFILER_COMMIT")
    monkeypatch.setenv("PROFILER_COMMIT", commit())
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run([*command, "--every", str(every)], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["steps"]
    assert all(one["struck"] and not one["wrong"] for one in found.values())
    if OUT:
        shutil.copy(out, OUT)
    print(done.stdout, out.read_text())
