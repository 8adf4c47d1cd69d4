"""How a recording by turns is compared with its repetition: with itself, and with mistakes planted in a copy."""

import dataclasses
import json

import pytest

from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.recording import store
from profiler_job.analysis.site.methods_page import _summarize_repetition
from tests.bench.repeated_recordings import add_up, judge
from tests.shipped.recordings import DATA, locate

LARGE = "large-ctx1024-bf16-sdpa-train_step-adamw_fused"
COMPILED = "large-ctx1024-bf16-sdpa-train_step-compile_default-adamw_fused"
RATIOS, KERNELS = "ratios where the GPU limits", "kernel times"


@pytest.fixture(scope="module")
def recorded():
    return store.load(locate("trained_1"))


def scale_steps(rec, run_id: str, factor: float):
    steps = rec.steps.copy()
    chosen = steps["run_id"].astype(str) == run_id
    steps["wall_ns"] = steps["wall_ns"].where(~chosen, steps["wall_ns"] * factor)
    return dataclasses.replace(rec, steps=steps)


def scale_kernels(rec, factor: float):
    kernels = rec.kernels.copy()
    kernels["end_ns"] = kernels["start_ns"] + (kernels["end_ns"] - kernels["start_ns"]) * factor
    return dataclasses.replace(rec, kernels=kernels)


def count_within(first, second) -> dict[str, tuple[int, int]]:
    return {row["compared"]: (row["within"], row["of"]) for row in add_up(list(judge(first, second)))}


def test_a_recording_repeats_itself(recorded):
    rows = list(judge(recorded, recorded))
    assert all(row["away"] == 0 and row["within"] for row in rows)
    assert [row["runs"] for row in rows if LARGE in row.get("runs", ())] == [(LARGE, COMPILED)]
    assert count_within(recorded, recorded) == {RATIOS: (2, 2), KERNELS: (4, 4)}


@pytest.mark.parametrize(("factor", "within"), [(1.02, 2), (1.05, 1), (0.95, 1)])
def test_a_step_that_takes_longer_than_its_partner_by_more_than_3_percent_is_found(recorded, factor, within):
    assert count_within(recorded, scale_steps(recorded, COMPILED, factor))[RATIOS] == (within, 2)


@pytest.mark.parametrize(("factor", "within"), [(1.01, 4), (1.02, 0)])
def test_kernels_that_take_longer_by_more_than_1_5_percent_are_found(recorded, factor, within):
    assert count_within(recorded, scale_kernels(recorded, factor))[KERNELS] == (within, 4)


def test_another_kind_of_gpu_and_other_runs_are_refused(recorded):
    other = dataclasses.replace(recorded, runs=recorded.runs.assign(gpu_name="NVIDIA H100 80GB HBM3"))
    with pytest.raises(SystemExit, match="do not repeat each other"):
        list(judge(recorded, other))
    with pytest.raises(SystemExit, match="no two runs took turns"):
        list(judge(recorded, store.load(locate("trained_2"))))


def test_ratios_that_the_cpu_limits_are_counted_by_whether_hosts_had_one_speed():
    """In three pairs of the second recording the CPU limits a run."""
    recorded = store.load(locate("trained_2"))
    loops = recorded.processes["host_loop_ns"]
    slower = dataclasses.replace(recorded, processes=recorded.processes.assign(host_loop_ns=1.3 * loops))
    assert count_within(recorded, recorded)["ratios where the CPU limits, hosts of one speed"] == (3, 3)
    assert count_within(recorded, slower)["ratios where the CPU limits, hosts of two speeds"] == (3, 3)


def test_a_gain_that_the_cpu_limits_says_if_it_was_measured_on_a_slow_host():
    """CUDA graphs were 3.4 times as fast as eager at a loop of 62 ms, and 2.8 times at 41 ms on another machine."""
    recorded = store.load(locate("trained_2"))
    even = dataclasses.replace(recorded, processes=recorded.processes.assign(host_loop_ns=40_000_000))
    slow, fast = (measure_gains({"trained": rec}, None).set_index(["run_id", "changes"]) for rec in (recorded, even))
    small = "small-ctx1024-bf16-sdpa-train_step-adamw_fused"
    assert slow["on_slow_host"][small, ("cuda_graphs",)] and slow["times_as_fast"][small, ("cuda_graphs",)] > 3
    assert not slow["on_slow_host"][small.replace("small", "xl"), ("compile",)], "the GPU limits both"
    assert not fast["on_slow_host"].any()


def test_the_methods_page_counts_what_repeats():
    """Rows of the shipped file: what is far is either at the card's power limit or from hosts of two speeds."""
    repeated = json.loads((DATA / "benchmarks" / "repeated.json").read_text())
    counted = _summarize_repetition(repeated)
    assert [(row["most"], row["within"], row["of"]) for row in counted["rows"]] == [
        (0.06, 6, 8),
        (0.03, 9, 11),
        (0.015, 26, 32),
    ]
    assert counted["num_meeting"] == counted["num_ratios"] == 19 and counted["num_two_speeds"] == 2
    assert (counted["num_recordings"], counted["num_sweeps"], counted["num_steps"]) == (5, 4, 25)
    assert counted["power_w"] == (684, 710) and _summarize_repetition({}) == {}
    cool = repeated | {"kernels": [row | {"is_capped": False} for row in repeated["kernels"]]}
    assert _summarize_repetition(cool)["power_w"] is None, "another cause is not known"
