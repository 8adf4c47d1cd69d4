"""Predicted memory against every recording that comes with this: its peak, its phases, and where it runs out."""

import os
import subprocess
import sys
from itertools import pairwise

import pandas as pd
import pytest

from profiler_job.analysis.recording import store
from profiler_job.jobs import memory
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from tests import shipped_data
from tests.doses import sampled

STUDY = DEFAULT_SWEEP.parent / "sweeps" / "memory.yaml"
SWEEP = load_sweep(DEFAULT_SWEEP)
RECORDINGS = [folder.name for folder in shipped_data.RECORDINGS]


def table_of(name, table="runs") -> pd.DataFrame:
    """A table of a recording in site/data: all of its tables take far longer."""
    if name not in RECORDINGS:
        pytest.skip(f"the recording {name} is not in site/data")
    return store.load_table(shipped_data.locate(name), table)


def run_of(row) -> Run:
    return Run(**{field: getattr(row, field) for field in Run.model_fields if hasattr(row, field)})


def change(run: Run, **fields) -> Run:
    return Run(**run.model_dump() | fields)


def finished(runs) -> list:
    """Select the runs with a peak to predict: runs of the reference Transformer that are not compiled, and did not
    follow compiled runs in their process."""
    runs = runs[(runs["status"].astype(str) == "ok") & runs["peak_memory_bytes"].notna()]
    if "compile" in runs:
        compiled = runs["compile"].astype(str) != "off"
        runs = runs[~compiled & ~(runs["started_at"] > runs.loc[compiled, "started_at"].min())]
    return [row for row in runs.itertuples() if memory.is_predictable(run_of(row))]


PREDICTED = [name for name in RECORDINGS if len(finished(table_of(name)))]


@pytest.mark.long
@pytest.mark.parametrize("name", PREDICTED)
def test_the_predicted_peak_is_within_one_percent_of_every_finished_run(name):
    rows = finished(table_of(name))
    errors = {row.run_id: memory.predict_peak_bytes(run_of(row)) / row.peak_memory_bytes - 1 for row in rows}
    assert max(map(abs, errors.values())) < 0.01, max(errors.items(), key=lambda item: abs(item[1]))


def test_the_peak_of_a_forward_pass_in_float32_is_predicted_to_the_byte():
    rows = [row for row in finished(table_of("h200-fp32")) if row.mode == "forward"]
    assert len(rows) == 20
    for row in rows:
        assert memory.predict_peak_bytes(run_of(row)) == row.peak_memory_bytes, row.run_id


@pytest.mark.parametrize("name", sampled(PREDICTED, 4))
def test_the_predicted_peak_of_every_phase_is_within_one_percent(name):
    runs = {row.run_id: row for row in finished(table_of(name))}
    for row in table_of(name, "memory").astype({"run_id": str, "phase": str}).itertuples():
        if row.run_id in runs:
            predicted = memory.predict_peaks(run_of(runs[row.run_id]), 1)[row.phase]
            assert predicted == pytest.approx(row.peak_allocated_bytes, rel=0.01), (row.run_id, row.phase)


@pytest.mark.long
def test_what_ran_out_on_a_whole_gpu_was_predicted_to():
    rows = [row for name in RECORDINGS for row in table_of(name).itertuples() if row.status == "oom"]
    rows = [row for row in rows if not row.memory_limit_gib and memory.is_predictable(run_of(row))]
    assert rows
    for row in rows:
        assert memory.predict_failure(row, row.gpu_memory_bytes - memory.CUDA_CONTEXT_BYTES), row.run_id


def test_every_capped_run_fails_in_the_step_and_phase_that_were_predicted():
    runs = [row for row in table_of("memory").itertuples() if row.memory_limit_gib]
    assert len(runs) == 40
    for row in runs:
        failure = memory.predict_failure(row, memory.compute_allocator_limit(row))
        measured = (int(row.status_step), row.status_phase) if row.status == "oom" else None
        assert (failure and tuple(failure)) == measured, row.run_id


def plan(*arguments) -> list[str]:
    command = [sys.executable, "-m", "profiler_job", "plan", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize(("sold_gb", "cap"), [(24, 21.9), (80, 78.5)])
def test_the_plan_for_a_gpu_marks_the_runs_that_a_cap_of_its_size_stopped(sold_gb, cap):
    lines = plan("--sweep", STUDY, "--only", "memory_limit_gib=0.0", "--gpu-memory", sold_gb)
    capped = table_of("memory").query("memory_limit_gib == @cap").astype({"status_phase": str})
    assert len(capped) == 20
    for row in capped.itertuples():
        (line,) = (line for line in lines if line.startswith(row.run_id.removesuffix(f"-limit{cap:g}") + " "))
        wanted = f"{('first', 'second')[int(row.status_step)]} step, {row.status_phase}" if row.status == "oom" else ""
        assert line.rstrip().endswith(wanted) if wanted else " step, " not in line, line
    stopped = (capped["status"].astype(str) == "oom").sum()
    assert lines[-1] == f"{stopped} of 20 runs will not fit a GPU sold with {sold_gb} GB"


@pytest.mark.long
def test_the_plan_of_a_capped_sweep_marks_what_its_caps_will_stop():
    lines = plan("--sweep", STUDY)
    stopped = table_of("memory")["status"].astype(str).eq("oom").sum()
    assert lines[-1] == f"{stopped} of 60 runs will not fit the memory limit of the sweep"


def test_a_plan_without_a_limit_marks_nothing():
    assert not any("will not fit" in line for line in plan("--only", "size=small"))


def test_adams_state_is_there_from_the_second_step_on():
    run = next(run for run in SWEEP.runs if run.mode == "train_step")
    first, second, third = (memory.predict_peaks(run, step) for step in range(3))
    assert first["forward"] + 8 * run.num_parameters < second["forward"] * 1.01
    assert second == third


def test_what_does_not_fit_at_all_fails_while_it_is_built():
    run = SWEEP.runs[0]
    assert memory.predict_failure(run, 100 * memory.MIB) == (0, "build")
    assert memory.predict_failure(run, memory.GIB) is None


def test_a_run_fits_what_it_reserves_and_not_less_than_its_peak():
    run = next(run for run in SWEEP.runs if run.mode == "train_step")
    reserved = memory.predict_outcome(memory.infer_shape(run)).reserved
    assert memory.predict_failure(run, reserved) is None
    assert memory.predict_failure(run, memory.predict_peak_bytes(run) - 1) is not None


def test_runs_that_need_the_same_are_predicted_once():
    run = next(run for run in SWEEP.runs if run.mode == "forward_backward")
    for fields in ({"precision": "tf32"}, {"optimizer": "fused"}, {"repeat": 1}, {"compile": "default"}):
        assert memory.infer_shape(change(run, **fields)) == memory.infer_shape(run)
    of_bf16 = {a: memory.infer_shape(change(run, precision="bf16", attention=a)) for a in ("sdpa", "flash", "cudnn")}
    assert len(set(of_bf16.values())) == 1
    fused = [memory.infer_shape(change(run, attention=attention)) for attention in ("sdpa", "efficient")]
    assert fused[0] == fused[1] != of_bf16["flash"]


def test_the_runs_that_need_most_are_predicted_first():
    shapes = [memory.infer_shape(run) for run in SWEEP.runs]
    first = memory.find_most_demanding(shapes)
    assert set(first) == set(shapes)
    assert first[0] == shapes[-1]
    needed = [max(memory.predict_outcome(shape).peaks[1].values()) for shape in first]
    larger = [before / now for before, now in pairwise(needed)]
    assert min(larger) > 0.5, "the order is about the order by memory"


@pytest.mark.parametrize("run", SWEEP.runs[2::9], ids=lambda run: run.run_id)
def test_more_work_is_predicted_to_need_more(run):
    for bigger in (
        change(run, context_length=2 * run.context_length),
        change(run, num_layers=2 * run.num_layers),
        change(run, batch_size=2 * run.batch_size),
    ):
        assert memory.predict_memory_bytes(bigger) > memory.predict_memory_bytes(run) * 0.999
    assert memory.predict_memory_bytes(change(run, attention="sdpa")) <= memory.predict_memory_bytes(run)
