"""The parts of a step add up to it, and to the time of each limit."""

import dataclasses

import pytest

from profiler_job.analysis.insight import run_limit, step_parts
from profiler_job.analysis.insight.step_parts import BETWEEN, KINDS, REST, WAIT
from profiler_job.analysis.metrics import step_limits
from profiler_job.jobs.contract import ranges
from tests import frozen
from tests.synthetic import recording


def measure(rec):
    """Return the limits of all runs, and their parts."""
    limits = step_limits.measure_limits(rec.steps, rec.kernels, rec.memops)
    elapsed = run_limit.split_steps(rec.kernels, rec.memops)
    return limits, step_parts.measure_step_parts(limits, elapsed, rec.kernels, rec.memops)


def stretch(rec, factor):
    """Return the recording with steps that took so many times as long by the timer."""
    timed = rec.steps["collector"].astype(str) == "timer"
    return dataclasses.replace(
        rec, steps=rec.steps.assign(wall_ns=rec.steps["wall_ns"].where(~timed, rec.steps["wall_ns"] * factor))
    )


def drop_phases(rec):
    """Return the recording as if the timer knew whole steps alone, as of a script."""
    is_phase = (rec.steps["collector"].astype(str) == "timer") & (rec.steps["phase"].astype(str) != ranges.STEP)
    return dataclasses.replace(rec, steps=rec.steps[~is_phase].drop(columns="issue_ns", errors="ignore"))


@pytest.fixture(scope="module")
def frozen_rec():
    return frozen.load("one_gpu")


@pytest.mark.parametrize("change", [lambda rec: rec, drop_phases, lambda rec: stretch(rec, 3)])
def test_parts_add_up_to_the_unprofiled_step(frozen_rec, change):
    limits, parts = measure(change(frozen_rec))
    sums = parts.groupby("run_id").agg(step=("step_ns", "first"), sum=("time_ns", "sum"))
    assert len(sums) == limits["run_id"].nunique() > 5
    assert sums["sum"].tolist() == pytest.approx(sums["step"].tolist(), rel=1e-9)
    assert (parts["time_ns"] > 0).all()


def test_kinds_add_up_to_the_limits(frozen_rec):
    limits, parts = measure(drop_phases(frozen_rec))
    steps = limits[limits["phase"] == ranges.STEP].set_index("run_id")
    for run_id, of_run in parts.groupby("run_id"):
        sums = dict.fromkeys(step_limits.PARTS, 0.0)
        for kind, time_ns in step_parts.sum_by_kind(of_run).items():
            sums[KINDS[kind]] += time_ns
        expected = {name: steps.loc[run_id, column] for name, column in step_limits.PARTS.items()}
        assert sums == pytest.approx(expected, rel=1e-6, abs=10), run_id


def test_phases_come_in_order_and_in_each_the_longest_module_first(frozen_rec):
    _, parts = measure(frozen_rec)
    of_step = parts[parts["run_id"] == next(run for run in parts["run_id"] if "train_step" in run)]
    phases = list(dict.fromkeys(of_step["phase"]))
    assert phases == [phase for phase in (*ranges.ALL_PHASES, BETWEEN) if phase in phases]
    backward = of_step[of_step["phase"] == "backward"]
    assert list(backward["kind"])[-1] == WAIT
    times = backward[~backward["module"].isin([REST, ""])].groupby("module", sort=False)["time_ns"].sum().tolist()
    assert len(times) > 2 and times == sorted(times, reverse=True)


def test_a_step_shorter_than_its_kernels_has_no_waiting():
    _, parts = measure(stretch(recording(("small",), (128,)), 0.01))
    sums = parts.groupby("run_id").agg(step=("step_ns", "first"), sum=("time_ns", "sum"))
    assert sums["sum"].tolist() == pytest.approx(sums["step"].tolist(), rel=1e-9)


@pytest.mark.parametrize(
    "phase, path, name",
    [
        ("forward", "block/attention/rope", "RoPE"),
        ("forward", "block/attention/o_proj", "QKV, out"),
        ("forward", "block/attention/softmax", "attention"),
        ("forward", "block/ffn", "FFN"),
        ("forward", "block", "block"),
        ("forward", "norm", "norms"),
        ("forward", "lm_head", "lm_head"),
        ("forward", "embedding/cub::DeviceRadixSort", "embedding"),
        ("backward", "(gradient accumulation)/ncclAllReduce", "gradient sums"),
        ("backward", "(recomputed)/GPT/h.*/mlp", "recomputed"),
        ("backward", "", "other"),
        ("forward", "GPT2LMHeadModel/transformer/h.*/attn/c_attn", "attn"),
        ("forward", "GPT2LMHeadModel/transformer/h.*", "h"),
        ("forward", "GPT2LMHeadModel", "GPT2LMHeadModel"),
        ("forward", "GPT2LMHeadModel/lm_head", "lm_head"),
        ("forward", "GPT (compiled)", "GPT (compiled)"),
        ("backward", "(gradients)", "gradients"),
        ("forward", "Task/blocks/21/attn", "attn"),
        ("forward", "Swin/stages/0/blocks/3/mlp", "mlp"),
        ("forward", "MoE/layers.*/mlp/experts.*/w1", "mlp"),
        ("optimizer", "block/ffn", "update"),
    ],
)
def test_a_module_has_one_short_name_in_all_blocks(phase, path, name):
    assert step_parts.name_module(phase, path) == name
