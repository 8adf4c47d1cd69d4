"""The sweep files that measure by turns what people train with: what they cover, and that they fit time and memory."""

import pytest

from profiler_job.jobs.memory import estimate_usable_bytes, find_failure, infer_shape, is_predictable
from profiler_job.jobs.sweep.batches import predict_sweep_seconds
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from profiler_job.jobs.sweep.prediction import predict_seconds

SWEEPS = [load_sweep(file) for file in (DEFAULT_SWEEP.parent / "sweeps").glob("trained_*.yaml")]
GROUPS = [group for sweep in SWEEPS for group in group_runs(sweep.runs, sweep.protocol)]
LONGEST_S = 480
MOST_PROCESSES = 60
MEASURED_S = {"trained_1": 338.4, "equal": 121.8}
"""What the stages of all runs took together, on one H200 with torch 2.11, one process after the other."""
TOGETHER_S = {
    **{"trained_2": 346.0, "trained_3": 346.0, "trained_4": 389.0, "trained_6": 418.0, "trained_8": 351.0},
    **{"trained_5": 302.0, "trained_7": 330.0},  # each in two pieces
}
"""What a whole file took on such a GPU, where processes compile side by side."""
CONTEXTS = {512, 1024, 2048, 4096, 8192}


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_each_file_takes_at_most_eight_minutes_of_an_h200(sweep):
    assert 0 < predict_sweep_seconds(sweep.runs, sweep.protocol) <= LONGEST_S


def test_compiling_side_by_side_saves_a_third_of_the_time():
    together = sum(predict_sweep_seconds(sweep.runs, sweep.protocol) for sweep in SWEEPS)
    assert together < 2 / 3 * sum(predict_seconds(run, sweep.protocol) for sweep in SWEEPS for run in sweep.runs)


@pytest.mark.parametrize("name", MEASURED_S)
def test_the_plan_is_near_what_was_measured(name):
    sweep = load_sweep(DEFAULT_SWEEP.parent / "sweeps" / f"{name}.yaml")
    assert sum(predict_seconds(run, sweep.protocol) for run in sweep.runs) == pytest.approx(MEASURED_S[name], rel=0.2)


@pytest.mark.parametrize("name", TOGETHER_S)
def test_the_plan_of_processes_side_by_side_is_near_what_was_measured(name):
    sweep = load_sweep(DEFAULT_SWEEP.parent / "sweeps" / f"{name}.yaml")
    assert predict_sweep_seconds(sweep.runs, sweep.protocol) == pytest.approx(TOGETHER_S[name], rel=0.2)


def test_all_groups_together_share_at_most_sixty_processes():
    shared = sum((sweep.processes - 1) * len(group_runs(sweep.runs, sweep.protocol)) for sweep in SWEEPS)
    assert len(GROUPS) == 29 and shared <= MOST_PROCESSES


def test_every_group_compares_variants_and_no_run_is_in_two_files():
    ids = [run.run_id for sweep in SWEEPS for run in sweep.runs]
    assert len(ids) == len({*ids}) and all(len(group) > 1 for group in GROUPS)


def test_the_first_file_has_the_case_that_people_ask_for_most():
    (first,) = (sweep for sweep in SWEEPS if sweep.name == "trained_1")
    assert any((run.size, run.context_length, run.mode) == ("1.3B", 2048, "train_step") for run in first.runs)


def test_each_scan_varies_one_axis():
    eager = [group[0] for group in GROUPS if group[0].mode == "train_step" and group[0].accumulation == 1]
    contexts = {
        size: {run.context_length for run in eager if (run.size, run.batch_size) == (size, 4)}
        for size in ("small", "large")
    }
    assert contexts == {"small": CONTEXTS, "large": CONTEXTS}
    batches = {
        size: {run.batch_size for run in eager if (run.size, run.context_length) == (size, 1024)}
        for size in ("small", "2.7B")
    }
    assert batches == {"small": {1, 2, 4, 8, 16, 32, 64, 128}, "2.7B": {1, 2, 4, 8}}


@pytest.mark.long
def test_all_runs_whose_memory_is_predicted_fit_and_the_next_larger_batch_of_2_7b_does_not():
    limit = estimate_usable_bytes(141)
    shapes = {infer_shape(run) for sweep in SWEEPS for run in sweep.runs if is_predictable(run)}
    assert len(shapes) > 20 and [shape for shape in shapes if find_failure(shape, limit)] == []
    of_2_7b = (shape for shape in shapes if (shape.d_model, shape.num_layers) == (2560, 32))
    largest = max(of_2_7b, key=lambda shape: shape.batch_size)
    assert find_failure(largest._replace(batch_size=2 * largest.batch_size), limit)
