"""A fault at each point at which a sweep, its ingest and its publication change files: whole, or told, and done again
it is as if nothing had been."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiler_job.jobs.contract.program import find_commit
from profiler_job.jobs.executor.result_store import read_json, write_json
from tests.jobs.conftest import ROOT

SAMPLE = 12
"""The suite takes one point of so many: all of them take half an hour (make test-faults)."""

OUT = os.environ.get("FAULTS_OUT")
"""File for the counts, such as the faults.json of the benchmarks; it keeps the counts of other steps."""


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc: it builds what lets calls fail")
@pytest.mark.parametrize(
    "step", ["run", *(pytest.param(step, marks=pytest.mark.nightly) for step in ("ingest", "publish-data"))]
)
def test_after_any_fault_it_is_whole_or_told(tiny, tmp_path, fake_worker, monkeypatch, step):
    library, out = tmp_path / "faults.so", tmp_path / "faults.json"
    source = ROOT / "tests" / "faults" / "faults.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "-m", "tests.faults", work, "--sweep", tiny(context_length=[8]), "--step", step]
    command += ["--every", "1" if OUT else str(SAMPLE)]
    monkeypatch.delenv("PROFILER_COMMIT")
    monkeypatch.setenv("PROFILER_COMMIT", find_commit())
    path = f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run([*command, "--out", out], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["steps"][step]["struck"] and not found["steps"][step]["wrong"]
    if OUT:
        others = read_json(Path(OUT), dict) or {"steps": {}}
        write_json(Path(OUT), found | {"steps": others["steps"] | found["steps"]})
