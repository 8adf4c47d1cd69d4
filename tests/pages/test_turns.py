"""Pages take ratios of steps within rounds where runs took turns, however far their processes differ."""

import dataclasses
import math

import pandas as pd
import pytest

from profiler_job.analysis.pages.questions import host_data, ladder, optimizer_cost, precision
from profiler_job.analysis.pages.questions.fused_attention_data import _join_naive
from profiler_job.analysis.site import combine, question_pages
from profiler_job.jobs.contract.paired_ratio import SPREAD_OF_RATIOS
from tests import frozen
from tests.pages.question_page import only_questions
from tests.synthetic import recording, take_turns

NO_RATES = combine.find_rates([])


def turn(study: str, times: dict[str, float]):
    return combine.select_finished_runs(take_turns(frozen.load_study(study), times))


def list_precisions(rec) -> pd.DataFrame:
    tables = (rec.runs, rec.steps, rec.processes, rec.kernels, rec.memops, rec.figures)
    return precision._frames(*tables, NO_RATES, None).cases.set_index("precision")


def list_optimizers(rec) -> pd.DataFrame:
    tables = (rec.runs, rec.steps, rec.processes, rec.kernels, rec.memops, rec.memory)
    return optimizer_cost._frames(*tables, NO_RATES, None).cases.set_index("optimizer")


def test_a_speed_up_of_a_precision_is_taken_within_rounds():
    rec = turn("precision", {"bf16-naive-train_step": 0.8})
    cases = list_precisions(rec)
    assert cases.loc["bf16", "step_speedup"] == pytest.approx(1.25)
    assert cases.loc["bf16", "quotable"] and not cases.loc["bf16", "steady"]
    assert cases.loc["tf32", "step_speedup"] == pytest.approx(1.0)
    assert not cases.loc["tf32", "step_apart"] and not cases.loc["tf32", "quotable"]


def test_the_band_next_to_a_speed_up_is_its_interval_and_times_are_those_of_the_table():
    cases = list_precisions(turn("precision", {"bf16-naive-train_step": 0.8}))
    bands = cases.loc[["bf16", "tf32"], "step_band_ns"] / cases.loc["fp32", "step_ns"]
    # All rounds have one ratio, so the interval is what processes may differ by.
    assert bands.between(SPREAD_OF_RATIOS / 2, 1.96 * SPREAD_OF_RATIOS / math.sqrt(3)).all()
    assert set(cases["step_ns_fp32"]) == {cases.loc["fp32", "step_ns"]}


def test_runs_of_different_processes_have_no_ratio_that_is_quoted():
    rec = turn("precision", {"bf16-naive-train_step": 0.8})
    groups = rec.processes["group"].astype(str) + rec.processes["run_id"].astype(str)
    cases = list_precisions(dataclasses.replace(rec, processes=rec.processes.assign(group=groups)))
    assert not cases.loc["bf16", "quotable"]


def test_a_speed_up_of_an_optimizer_is_taken_within_rounds():
    cases = list_optimizers(turn("optimizer", {"adamw_fused": 0.9, "adamw_loop": 1.1}))
    assert cases.loc["fused", "step_speedup"] == pytest.approx(1 / 0.9)
    assert cases.loc["loop", "step_speedup"] == pytest.approx(1 / 1.1)
    assert cases.loc[["fused", "loop"], ["quotable", "step_apart"]].all(axis=None)


def test_a_speed_up_of_compile_is_taken_within_rounds():
    rec = turn("host", {"compile_default": 0.5})
    pairs = host_data.gather_data(
        rec.runs, rec.steps, rec.processes, rec.kernels, rec.memops, rec.api, rec, None
    ).pairs.set_index("compile")
    assert pairs.loc["default", "speedup"].tolist() == pytest.approx([2.0, 2.0])
    assert pairs.loc["default", "quotable"].all() and pairs.loc["default", "differs"].all()
    assert pairs.loc["cudagraphs", "speedup"] == pytest.approx(1.0)
    assert not pairs.loc["cudagraphs", "differs"]


def test_a_speed_up_of_attention_is_taken_within_rounds():
    clock = {f"{name}_{end}": 100.0 for name in ("busy", "timer") for end in ("ns", "min_ns", "max_ns", "parts")}
    row = {"size": "a", "context_length": 8, "mode": "forward", "launches": 1, "peak_memory_bytes": 1, "steady": False}
    rows = [clock | row | {"run_id": run, "attention": run, "not_measured": ""} for run in ("naive", "flash")]
    rounds = [(run, "one", number, ns) for run, ns in (("naive", 300), ("flash", 100)) for number in range(6)]
    rounds = pd.DataFrame(rounds, columns=["run_id", "group", "round", "wall_ns"])
    fused = _join_naive(pd.DataFrame(rows), ["size", "context_length"], None, rounds).set_index("run_id").loc["flash"]
    assert fused["timer_speedup"] == pytest.approx(3.0) and fused["speedup"] == 1.0
    assert fused["timer_faster"] and fused["quotable"]


def test_the_steps_of_the_ladder_are_compared_within_rounds():
    """The main recording has the same base, which no process shared."""

    def record(*precisions: str):
        rec = recording(("small",), (512,), ("train_step",), precisions=precisions, num_profiled=1, num_timed=3)
        return dataclasses.replace(rec, runs=rec.runs.assign(workload="transformer", workload_options=""))

    study = take_turns(record("fp32", "tf32", "bf16"), {"bf16-naive-train_step": 0.5})
    data = ladder._frames(record("fp32"), {ladder.STUDY: study}, None, None)
    ladder_steps = data.ladder_steps.set_index("precision")
    assert ladder_steps.loc[["tf32", "bf16"], "gain"].tolist() == pytest.approx([1.0, 2.0])
    assert (
        ladder_steps["quotable"].to_dict()
        == ladder_steps["differs"].to_dict()
        == {"fp32": False, "tf32": False, "bf16": True}
    )
    bf16 = data.alone.set_index("precision").loc["bf16"]
    assert (bf16["speedup"], bf16["gains"]) == (pytest.approx(2), True)
    within = 1.96 * SPREAD_OF_RATIOS / math.sqrt(3)
    assert (bf16["least"], bf16["most"]) == pytest.approx((2 * (1 - within), 2 * (1 + within)), rel=1e-3)


def test_a_page_says_that_ratios_are_within_rounds(tmp_path):
    studies = {"old": frozen.load_study("precision"), "new": turn("precision", {"bf16-naive-train_step": 0.8})}
    with only_questions(precision.QUESTION):
        for name, study in studies.items():
            question_pages.write_questions(frozen.load_study(""), tmp_path / name, {"precision": study})
    old, new = ((tmp_path / name / "report" / "precision.md").read_text() for name in studies)
    assert "within rounds" in new and "whose processes agree, or which took turns" in new
    assert "within rounds" not in old and "took turns" not in old
