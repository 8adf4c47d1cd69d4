"""What AdamW costs: on frozen runs, and on changes of them that say something else."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.pages.questions import optimizer_cost
from profiler_job.analysis.reference import flops
from profiler_job.analysis.site import combine, page_context
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests import frozen
from tests.page_words import read_page


@pytest.fixture(scope="module")
def recorded():
    """One training step of the small model with each implementation."""
    return frozen.load_study("optimizer")


@pytest.fixture(scope="module")
def rates(recorded):
    return combine.find_rates([recorded])


@pytest.fixture(scope="module")
def answer(recorded, rates):
    return ask(recorded, rates)


def ask(rec, rates):
    return page_context.ask(optimizer_cost.QUESTION, combine.select_finished_runs(rec), main=rec, calibration=rates)


def timed(rec, words, factor):
    """`rec` with the unprofiled times of some runs `factor` times as long."""
    steps = rec.steps.copy()
    those = steps["run_id"].astype(str).str.contains(words)
    steps["wall_ns"] = steps["wall_ns"].where(~those, (steps["wall_ns"] * factor).astype("int64"))
    return dataclasses.replace(rec, steps=steps)


def stretched(rec, words, factor):
    """`rec` with all instants of the kernels of some runs `factor` times as far apart."""
    kernels = rec.kernels.copy()
    those = kernels["run_id"].astype(str).str.contains(words)
    for end in ("start_ns", "end_ns"):
        kernels[end] = kernels[end].where(~those, (kernels[end] * factor).astype("int64"))
    return dataclasses.replace(rec, kernels=kernels)


def page(tmp_path, answer):
    folder = Path(optimizer_cost.__file__).parent
    site = Site(tmp_path, (folder,), {}, ("size", "context_length", "optimizer"))
    site.write("report/optimizer-cost.md", "optimizer_cost.md", answer, letter="l", title=optimizer_cost.QUESTION.title)
    return read_page(tmp_path / "report" / "optimizer-cost.md")


def list_holding(answer):
    return {key for key, claim in answer.claims.items() if claim.holds}


@pytest.mark.parametrize(
    "name, cost",
    [
        ("own", flops.adamw_unfused),
        ("loop", flops.adamw_unfused),
        ("foreach", flops.adamw_unfused),
        ("fused", flops.adamw),
    ],
)
def test_accesses_of_the_operations_are_the_bytes_of_the_formula(name, cost):
    assert sum(flops.ADAMW_ACCESSES[name].values()) * flops.FP32_BYTES * 1000 == cost(1000).bytes


def test_the_kernels_are_the_operations_that_the_bytes_are_counted_from(answer):
    rows = answer.tables["operations"].rows
    for optimizer, part in rows.groupby("optimizer"):
        counted = part[part["operation"] != optimizer_cost.COUNTERS]
        assert dict(zip(counted["operation"], counted["accesses"], strict=True)) == flops.ADAMW_ACCESSES[optimizer]


def test_operations_add_up_to_the_phase(answer):
    rows = answer.tables["operations"].rows
    costs = answer.tables["cost"].rows
    costs = costs[costs["size"] == rows["size"].iloc[0]].set_index("optimizer")
    for name in ("kernel_ns", "launches"):
        sums = rows.groupby("optimizer")[name].sum()
        np.testing.assert_allclose(sums, costs.loc[sums.index, name], rtol=0.01)


def test_reference_adamw_launches_eight_kernels_for_each_tensor(recorded, answer):
    rows = answer.tables["cost"].rows.set_index("run_id")
    layers = recorded.runs.astype({"run_id": str}).set_index("run_id")["num_layers"]
    for run_id, row in rows[rows["optimizer"].isin(["own", "loop"])].iterrows():
        assert row["launches"] == 8 * (9 * layers[run_id] + 3)


def test_no_kernel_outruns_memory(answer):
    assert answer.tables["cost"].rows["of_copy"].between(0.5, 1.05).all()


def test_foreach_holds_one_more_copy_of_the_weights_and_fused_none(answer):
    extra = answer.tables["whole"].rows.groupby("optimizer")["extra_copies"]
    assert extra.min()["foreach"] > 0.99 and extra.max()["foreach"] < 1.1
    assert extra.max()["fused"] == 0
    assert extra.max()["own"] < 0.2


def test_the_page_says_what_was_measured(tmp_path, answer):
    words = page(tmp_path, answer)
    assert "Not measured." not in words
    assert len(words) < 250_000


def test_implementations_stand_in_one_order(answer):
    assert list(answer.tables["cost"].rows["optimizer"].head(4)) == list(optimizer_cost.LABELS)


def test_a_fused_step_that_is_not_faster_is_not_called_so(recorded, rates):
    slow = ask(stretched(recorded, "fused", 100), rates)
    assert "fused" not in list_holding(slow) and "fused_not_always" in list_holding(slow)


def test_the_verdict_is_of_kernels_and_not_of_a_timer_that_the_host_sets(recorded, rates):
    late = ask(timed(recorded, "fused", 100), rates)
    assert "fused" in list_holding(late) and not {"timer", "step"} & list_holding(late)


def test_an_optimizer_of_nine_launches_is_not_blamed_for_launches(answer):
    rows = answer.tables["host"].rows.set_index("run_id")
    fused = rows.loc["small-ctx128-fp32-naive-train_step-adamw_fused"]
    assert fused["launches"] == 9 and fused["busy_share"] < 0.8
    assert fused["launch_wait"] < 0.05 < fused["boundary_wait"]
    loop = rows.loc["small-ctx128-fp32-naive-train_step-adamw_loop"]
    assert loop["launch_wait"] > 0.4 > loop["boundary_wait"]
    assert "fused_prepares" in list_holding(answer)


def test_loop_is_called_slower_only_beyond_the_spread(recorded, rates):
    kernels = recorded.kernels.astype({"run_id": str})
    own = kernels[kernels["run_id"].str.endswith("train_step")]
    loop = own.assign(run_id=own["run_id"] + "-adamw_loop")
    others = kernels[~kernels["run_id"].str.endswith("loop")]
    same = dataclasses.replace(recorded, kernels=pd.concat([others, loop], ignore_index=True))
    assert not {"loop_slower", "loop_faster"} & list_holding(ask(same, rates))
    assert "loop_slower" in list_holding(ask(stretched(same, "loop", 10), rates))
    assert "loop_faster" in list_holding(ask(stretched(same, "loop", 0.1), rates))


def test_memory_that_is_not_taken_is_not_spoken_of(recorded, rates):
    memory = recorded.memory.copy()
    memory["peak_allocated_bytes"] = memory["allocated_before_bytes"]
    assert "foreach_memory" not in list_holding(ask(dataclasses.replace(recorded, memory=memory), rates))


def test_without_measured_rates_nothing_is_said_of_them(tmp_path, recorded):
    answer = ask(recorded, combine.find_rates([]))
    assert "rate" not in list_holding(answer)
    assert answer.tables["cost"].rows["rate"].notna().all()
    assert "n/a: not calibrated" in page(tmp_path, answer)


@pytest.mark.long
def test_a_run_out_of_memory_keeps_its_place_and_gives_no_number(tmp_path, recorded, rates):
    gone = "small-ctx128-fp32-naive-train_step-adamw_foreach"
    answer = ask(frozen.lose_run(recorded, gone, "optimizer"), rates)
    row = answer.tables["whole"].rows.set_index("run_id").loc[gone]
    assert row[NOT_MEASURED] == "OOM in optimizer"
    assert row[["time_ns", "step_ns", "kernel_ns", "moved_bytes", "rate", "extra_bytes"]].isna().all()
    assert "OOM in optimizer" in page(tmp_path, answer)


def test_without_reference_adamw_there_is_nothing_to_compare(tmp_path, recorded, rates):
    answer = ask(frozen.keep_runs(recorded, recorded.runs["optimizer"].astype(str) == "fused"), rates)
    assert not {"fused", "fused_not_always", "step", "share", "bytes"} & list_holding(answer)
    page(tmp_path, answer)
