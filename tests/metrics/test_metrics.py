"""Definitions on frames small enough to work out by hand."""

import pandas as pd
import pytest

from profiler_job.analysis.metrics import kernel_time, per_rank, run_grid, timing
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests.synthetic import NUM_LAYERS, recording


def kernels(*spans, phase="forward", step=0, rank=0, device=0):
    rows = [{"run_id": "r", "step": step, "phase": phase, "start_ns": start, "end_ns": end} for start, end in spans]
    return pd.DataFrame(rows).assign(rank=rank, device=device)


def times(frame, phase="forward"):
    table = timing.gpu_times(frame, frame.head(0))
    return table[table["phase"] == phase].iloc[0]


def test_busy_time_counts_overlap_once_and_gaps_not_at_all():
    found = times(kernels((0, 10), (5, 20), (6, 8), (30, 35)))
    assert (found["kernel_ns"], found["busy_ns"], found["projected_ns"]) == (32, 25, 35)


def test_copies_and_fills_keep_the_gpu_busy_and_are_no_kernels():
    found = timing.gpu_times(kernels((0, 10), (20, 30)), kernels((5, 15), (40, 45)))
    found = found[found["phase"] == "step"].iloc[0]
    assert (found["launches"], found["kernel_ns"], found["operation_ns"]) == (2, 20, 35)
    assert (found["busy_ns"], found["projected_ns"]) == (30, 45)


def test_busy_time_does_not_depend_on_the_order_of_rows():
    shuffled = times(kernels((30, 35), (6, 8), (0, 10), (5, 20)))
    assert shuffled["busy_ns"] == 25


def test_the_step_is_timed_across_its_phases():
    frame = pd.concat([kernels((0, 10)), kernels((20, 30), phase="backward")])
    assert times(frame, "step")["projected_ns"] == 30
    assert times(frame, "step")["busy_ns"] == 20


def test_kernels_outside_steps_and_phases_do_not_count_to_any():
    frame = pd.concat([kernels((0, 10)), kernels((20, 30), phase=""), kernels((40, 90), step=-1)])
    assert times(frame)["kernel_ns"] == 10
    assert times(frame, "step")["kernel_ns"] == 20


def test_intervals_that_touch_are_not_a_difference():
    rows = pd.DataFrame({"a_min_ns": [1, 1], "a_max_ns": [5, 5], "b_min_ns": [5, 6], "b_max_ns": [9, 9]})
    assert list(timing.differ(rows, "a", "b")) == [False, True]


def test_spread_is_median_minimum_maximum_and_count():
    samples = pd.DataFrame({"run_id": ["r"] * 4, "wall_ns": [4, 1, 3, 100]})
    row = timing.spread(samples, ["run_id"], "wall_ns", "t").iloc[0]
    assert (row["t_ns"], row["t_min_ns"], row["t_max_ns"], row["t_n"]) == (3.5, 1, 100, 4)


def test_calls_are_per_step_and_modules_lose_their_block_number():
    totals = kernel_time.kernel_totals(recording(("small",), (128,), ("forward",), num_profiled=4).kernels)
    gemms = totals[totals["module"] == "block/attention/qkv_proj"]
    assert gemms["calls"].sum() == 3 * NUM_LAYERS


def test_a_kernel_before_its_launch_shows_that_the_clocks_differ():
    frame = pd.DataFrame(
        {
            "run_id": ["a", "a", "a", "b"],
            "rank": 0,
            "step": [0, 0, 1, 0],
            "launch_ns": [100, 200, 300, 10],
            "start_ns": [90, 205, 270, 15],
            "end_ns": [100, 235, 280, 45],
        }
    )
    assert timing.clock_lead(frame) == {"share": 0.5, "time_share": 0.25, "lead_ns": 30.0, "drift_ns": 20.0}
    assert timing.clock_lead(frame.head(0)) == {"share": 0.0, "time_share": 0.0, "lead_ns": 0.0, "drift_ns": 0.0}


def test_a_rank_has_a_clock_of_its_own():
    frame = pd.DataFrame({"run_id": "a", "rank": [0, 1], "step": 0, "launch_ns": 100, "start_ns": [90, 50]})
    frame["end_ns"] = 120
    assert timing.clock_lead(frame) == {"share": 1.0, "time_share": 1.0, "lead_ns": 50.0, "drift_ns": 0.0}


def test_two_gpus_of_a_process_are_busy_for_the_sum_of_both():
    frame = pd.concat([kernels((0, 100)), kernels((0, 60), (50, 100), device=1)])
    assert (times(frame)["kernel_ns"], times(frame)["busy_ns"], times(frame)["projected_ns"]) == (210, 200, 100)
    table = timing.gpu_times(frame, frame.head(0)).assign(timer_ns=100)
    assert timing.busy_share(table, frame).tolist() == [1.0, 1.0]


def test_two_ranks_of_100_ns_are_a_step_of_100_ns_each():
    frame = pd.concat([kernels((0, 100)), kernels((0, 100), rank=1)])
    table = timing.gpu_times(frame, frame.head(0))
    assert table["rank"].tolist() == [0, 1, 0, 1]
    assert table["busy_ns"].tolist() == table["kernel_ns"].tolist() == [100] * 4
    assert timing.busy_share(table.assign(timer_ns=100), frame).tolist() == [1.0] * 4
    assert (kernel_time.num_profiled_steps(frame)["r"], kernel_time.num_steps_of_ranks(frame)["r"]) == (1, 2)


def test_the_slowest_rank_sets_the_wall_time_of_a_step():
    steps = pd.DataFrame({"run_id": "r", "rank": [0, 1, 0, 1], "collector": "timer", "step": [0, 0, 1, 1]})
    found = timing.host_times(steps.assign(phase="step", wall_ns=[100, 90, 80, 120]), "timer", "timer").iloc[0]
    assert (found["timer_n"], found["timer_min_ns"], found["timer_max_ns"]) == (2, 100, 120)


def test_the_fullest_rank_sets_the_memory():
    memory = pd.DataFrame({"run_id": "r", "rank": [0, 1], "phase": "forward", "peak_allocated_bytes": [5, 7]})
    assert per_rank.memory_by_phase(memory)["peak_allocated_bytes"].tolist() == [7]
    kept = pd.DataFrame({"run_id": "r", "rank": [0, 0, 1], "phase": "forward", "module": "norm"})
    assert per_rank.list_kept_by_module(kept.assign(kept_bytes=[3, 4, 6]))["kept_bytes"].tolist() == [7]


@pytest.mark.parametrize("within", [["run_id"], ["run_id", "phase"]])
def test_family_shares_add_up_to_one(within):
    table = kernel_time.sum_by_family(
        kernel_time.kernel_totals(recording(("small", "xl"), (128, 1024)).kernels), within
    )
    assert table.groupby(within)["share"].sum().to_numpy() == pytest.approx(1.0)


def test_a_split_k_part_is_not_a_gemm_of_its_own():
    rec = recording(("small",), (128,), ("train_step",))
    counted = kernel_time.count_gemms(rec.kernels, kernel_families.is_main_gemm)
    per_phase = counted.groupby("phase")["gemms"].unique().map(list).to_dict()
    assert per_phase["forward"] == [9 * NUM_LAYERS + 1]
    assert per_phase["backward"] == [18 * NUM_LAYERS + 2]
    assert per_phase["optimizer"] == [0]


def test_cases_keep_their_place_when_nothing_was_measured_there():
    runs = recording().runs
    cases = run_grid.cases(runs, "train_step").set_index(["size", "context_length"])
    assert len(cases) == 20
    assert cases.loc[("2.7B", 512), NOT_MEASURED] == "OOM in backward"
    deleted = runs[runs["run_id"] != "small-ctx128-fp32-naive-train_step"]
    cases = run_grid.cases(deleted, "train_step").set_index(["size", "context_length"])
    assert cases.loc[("small", 128), NOT_MEASURED] == "not measured"
    assert cases.loc[("small", 128), "run_id"] == ""


def test_sizes_stand_in_the_order_of_their_parameters():
    shuffled = recording().runs.sample(frac=1, random_state=1)
    assert list(run_grid.cases(shuffled, "forward")["size"].drop_duplicates()) == [
        "small",
        "medium",
        "large",
        "xl",
        "2.7B",
    ]


def test_a_varying_precision_becomes_an_axis():
    rec = recording(("small",), (128,), ("forward",), precisions=("fp32", "bf16"))
    assert run_grid.case_columns(rec.runs) == ["size", "context_length", "precision"]
    assert len(run_grid.cases(rec.runs, "forward")) == 2


def test_a_workload_that_follows_from_the_size_is_no_axis():
    runs = recording(("small", "medium"), (128,), ("forward",)).runs
    is_small = runs["size"].astype(str) == "small"
    assert run_grid.case_columns(runs.assign(workload=is_small.map({True: "transformer", False: "hf"}))) == [
        "size",
        "context_length",
    ]
    both = pd.concat([runs.assign(workload="transformer"), runs.assign(workload="hf")])
    assert run_grid.case_columns(both) == ["size", "context_length", "workload"]
