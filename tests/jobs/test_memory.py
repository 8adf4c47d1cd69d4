"""Predicted memory: what needs more, what a step of a run needs, and what a plan prints."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from profiler_job.jobs import memory
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from tests import frozen

SWEEP = load_sweep(DEFAULT_SWEEP)


def change(run: Run, **fields) -> Run:
    return Run(**run.model_dump() | fields)


def plan(*arguments) -> list[str]:
    command = [sys.executable, "-m", "profiler_job", "plan", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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


@pytest.mark.long
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


def test_the_peaks_of_recorded_runs_are_predicted():
    """Within one percent, and to the byte for forward passes. Compiled runs are not predicted."""
    runs = frozen.load("one_gpu").runs.query("compile == 'off'")
    errors = {}
    for row in runs.itertuples():
        run = Run(**{field: getattr(row, field) for field in Run.model_fields})
        errors[row.run_id] = memory.predict_peak_bytes(run) / row.peak_memory_bytes - 1
    assert len(errors) == 12 and max(map(abs, errors.values())) < 0.01
    of_forward = [error for run_id, error in errors.items() if run_id.endswith("-forward")]
    assert of_forward == [0, 0, 0]


def test_the_trace_of_a_step_peaks_in_each_phase_where_the_prediction_does():
    run = next(run for run in SWEEP.runs if run.mode == "train_step")
    peaks: dict[str, int] = {}
    for phase, allocated in memory.trace_second_step(memory.infer_shape(run)):
        peaks[phase] = max(allocated, peaks.get(phase, 0))
    assert peaks == memory.predict_peaks(run, 1)
