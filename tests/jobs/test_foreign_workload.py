"""A workload that is not the reference Transformer, from the sweep file to the recording, as on the *Extend* page."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from profiler_job.analysis.recording import store
from profiler_job.jobs.workloads import find_build
from tests.jobs.conftest import ROOT
from tests.test_extend import blocks
from tests.waiting import HANGS_S

MODULE = next(block for block in blocks("python") if "def build(run, device" in block)
SWEEP = yaml.safe_load(next(block for block in blocks("yaml") if "workload:" in block))
ONE = {"workload_axes": {"width": [64], "dropout": [0.0]}}
SHORT = ONE | {"context_length": [8], "warmup_steps": 2, "measured_steps": 2, "profiled_steps": 3}
RUN = "base-ctx8-fp32-naive-forward-my_models.build-width64-dropout0.0"


@pytest.fixture
def started_in(tmp_path, fake_nsys):
    """Run a program of the project in a folder that has `my_models.py`, on the sweep with changes."""
    (tmp_path / "my_models.py").write_text(MODULE)

    def start(command, *arguments, **changes):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP | SHORT | changes, sort_keys=False))
        of_sweep = () if command == "ingest" else ("--sweep", "mine.yaml")
        program = [sys.executable, "-m", "profiler_job", command, *arguments, *of_sweep]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANGS_S)

    return start


def measure(started_in, **changes):
    return started_in("run", "--device", "cpu", "--results", "results", **changes)


@pytest.mark.long
def test_it_is_measured_and_ingested(started_in, tmp_path):
    done = measure(started_in)
    assert done.returncode == 0, done.stdout + done.stderr
    done = started_in("ingest", "results/my-models", "--out", "recording")
    assert done.returncode == 0, done.stderr
    runs = store.load(tmp_path / "recording").runs
    assert set(runs["run_id"]) == {RUN, RUN.replace("forward", "train_step")}
    assert set(runs["status"]) == {"ok"} and set(runs["workload"]) == {"my_models:build"}
    assert set(runs["workload_options"]) == {"width=64, dropout=0.0"}
    assert set(runs["num_parameters"]) == {64 * 256 + 256 + 256 * 64 + 64}
    assert set(runs["d_model"]) == set(runs["num_layers"]) == {0}


@pytest.mark.long
def test_the_plan_simulates_its_memory_and_nothing_else_is_predicted(started_in):
    done = started_in("plan", workload_axes={"width": [64, 256]})
    heading, *rows = (line.split() for line in done.stdout.splitlines()[:5])
    assert heading == ["run", "parameters", "batch", "GiB", "time", "(s)"]
    assert [" ".join(row[1:3]) for row in rows] == ["0.033 M", "0.033 M", "0.53 M", "0.53 M"], done.stderr
    assert all(float(row[4]) > 0 and row[5] == "n/a" for row in rows)
    said = " ".join(done.stdout.split())
    assert "memory is the peak allocated of a simulation, without the allocator's rounding" in said
    assert "of workload my_models:build no time is known before" in said
    done = started_in("doctor", "--device", "cpu", "--results", "results")
    assert done.returncode == 0
    assert "nothing is predicted for workload my_models:build" in " ".join(done.stdout.split())
    assert "at most" not in done.stdout


@pytest.mark.nightly
def test_the_plan_says_where_memory_cannot_be_simulated(started_in, tmp_path):
    source = MODULE.replace("output.square().mean()", "output.mean() if output.mean() > 0 else output.sum()")
    (tmp_path / "uneven.py").write_text(source)
    done = started_in("plan", workload="uneven:build", mode=["train_step"])
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split()[1:] == ["n/a", "4", "n/a", "n/a"]
    assert "memory is n/a for 1 run: it needs the values of tensors" in " ".join(done.stdout.split())
    done = started_in("plan", workload="nowhere.models:build")
    said = " ".join(done.stdout.split())
    assert "memory is n/a for 2 runs: workload nowhere.models:build: cannot be imported" in said


@pytest.mark.long
@pytest.mark.parametrize(
    "options, problem",
    [
        ({"widht": [64]}, "workload_axes.widht: my_models:build has no such parameter; it takes width, dropout"),
        ({"width": [64, 0.5]}, "workload_axes.width: should be int, as my_models:build says, not 0.5"),
        pytest.param(
            {"dropout": ["much"]},
            "workload_axes.dropout: should be float, as my_models:build says, not 'much'",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_option_that_it_does_not_take_is_refused(started_in, options, problem):
    done = started_in("plan", workload_axes=options)
    assert done.returncode == 2 and problem in " ".join(done.stderr.split())


@pytest.mark.long
def test_the_doctor_says_so_too(started_in):
    problem = "workload_axes.widht: my_models:build has no such parameter; it takes width, dropout"
    options = ("doctor", "--device", "cpu", "--results", "results")
    done = started_in(*options, workload_axes={"widht": [64]})
    assert done.returncode == 69 and problem in " ".join(done.stdout.split()).replace(" ->", ";")


@pytest.mark.long
@pytest.mark.parametrize(
    "workload, problem",
    [
        ("nowhere.models:build", "ModuleNotFoundError: No module named 'nowhere'"),
        pytest.param(
            "my_models:absent",
            "AttributeError: module 'my_models' has no attribute 'absent'",
            marks=pytest.mark.nightly,
        ),
        pytest.param("broken:build", "ZeroDivisionError: division by zero", marks=pytest.mark.nightly),
    ],
)
def test_one_that_cannot_be_imported_fails_and_says_why(started_in, tmp_path, workload, problem):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    done = measure(started_in, workload=workload, mode=["forward"])
    assert done.returncode == 1, done.stdout + done.stderr
    record = json.loads(next((tmp_path / "results").glob("my-models/*/run.json")).read_text())
    assert record["status"] == "failed" and record["status_detail"]["phase"] == "build"
    message = record["status_detail"]["message"]
    assert f"workload {workload}: cannot be imported ({problem}" in message
    assert "give MODULE:FUNCTION, with the module in the folder where the job is started or on PYTHONPATH" in message


def test_a_module_that_ends_its_process_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("raise SystemExit(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"workload script:build: cannot be imported \(SystemExit: 2\)"):
        find_build("script:build")


@pytest.mark.long
def test_the_doctor_tries_to_import_it_and_says_what_is_missing(started_in):
    doctor = ("doctor", "--device", "cpu", "--results", "results")
    assert "ok       workload: my_models:build" in started_in(*doctor).stdout
    done = started_in(*doctor, workload="nowhere.models:build")
    assert done.returncode == 69
    lines = done.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if "failed" in line)
    problem = "cannot be imported (ModuleNotFoundError: No module named 'nowhere')"
    assert lines[place] == f"failed   workload: nowhere.models:build: {problem}"
    assert lines[place + 1].strip().startswith("-> give MODULE:FUNCTION")


@pytest.mark.parametrize("workload", ["nonsense", "a/b:build", "models:", ":build", "a..b:build", "a.b:c.d", "a:b\n"])
def test_one_that_is_no_path_is_refused_before_anything_runs(started_in, workload):
    done = started_in("plan", workload=workload)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "workload: should be transformer, llama, or MODULE:FUNCTION such as my_models:build, not" in said
