"""The sweep files that measure each change alone and on top of each other by turns: what they compare, and that they
fit time and memory."""

import pytest

from profiler_job.jobs.memory import estimate_usable_bytes, predict_failure
from profiler_job.jobs.sweep.batches import predict_sweep_seconds
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep

SWEEPS = [load_sweep(file) for file in sorted((DEFAULT_SWEEP.parent / "sweeps").glob("changes_*.yaml"))]
LONGEST_S = 480
AXES = ("precision", "attention", "optimizer")
BASE = ("fp32", "naive", "own")
ALONE = {("tf32", "naive", "own"), ("bf16", "naive", "own"), ("fp32", "sdpa", "own"), ("fp32", "naive", "fused")}
LADDER = {BASE, ("bf16", "naive", "own"), ("bf16", "sdpa", "own"), ("bf16", "sdpa", "fused")}


def list_groups(*turns: str) -> list:
    """List the groups of runs that take turns over these axes."""
    return [group for sweep in SWEEPS if sweep.turns == turns for group in group_runs(sweep.runs, sweep.protocol)]


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_each_file_takes_at_most_eight_minutes_of_an_h200_and_fits_it(sweep):
    assert 0 < predict_sweep_seconds(sweep.runs, sweep.protocol) <= LONGEST_S
    limit = estimate_usable_bytes(141)
    assert [run.run_id for run in sweep.runs if predict_failure(run, limit)] == []


def test_the_runs_of_a_size_are_one_group_with_each_change_alone_and_the_ladder():
    groups = list_groups(*AXES)
    assert [group[0].size for group in groups] == ["small", "large", "xl"]
    for group in groups:
        variants = {tuple(getattr(run, axis) for axis in AXES) for run in group}
        assert variants >= ALONE | LADDER, group[0].size


def test_every_kind_of_fused_attention_takes_turns_with_the_others():
    for group in list_groups("attention"):
        assert len(group) > 1 and len({run.attention for run in group}) == len(group)


def test_no_run_is_in_two_files():
    ids = [run.run_id for sweep in SWEEPS for run in sweep.runs]
    assert len(ids) == len({*ids})
