"""Fused attention in the shipped recordings of the study."""

import dataclasses
import json

import pandas as pd
import pytest

from profiler_job.analysis.pages.questions import fused_attention_data
from profiler_job.analysis.recording import store
from profiler_job.analysis.render import chart_parts, charts
from profiler_job.analysis.site import combine
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests.frozen import lose_run
from tests.page_words import read_verdict
from tests.pages.test_fused_attention import NONE, ask, ends, holding, page, rows_of
from tests.shipped.recordings import MANIFESTS, WITH_RATES, locate

pytestmark = pytest.mark.long

FOLDERS = [path.parent for path in MANIFESTS if json.loads(path.read_text()).get("study") == "attention"]


@pytest.fixture(scope="module")
def shipped():
    return combine.select_finished_runs(combine.join_recordings([store.load(folder) for folder in FOLDERS]))


@pytest.fixture(scope="module")
def answer(shipped):
    return ask(shipped, combine.find_rates([store.load(locate(WITH_RATES))]))


@pytest.fixture(scope="module")
def unbuilt(shipped):
    """The recordings, as if what ran out of memory had done so before its first step."""
    for run_id in shipped.runs.loc[shipped.runs["status"].astype(str) == "oom", "run_id"].astype(str):
        shipped = lose_run(shipped, run_id, "build")
    return combine.select_finished_runs(shipped)


def test_every_run_of_the_study_has_its_row(shipped, answer):
    shown = {run for mode in fused_attention_data.MODES for run in rows_of(answer, mode)["run_id"]}
    assert set(shipped.runs["run_id"].astype(str)) <= shown


def test_what_ran_out_of_memory_says_so_and_has_no_number(answer):
    rows = rows_of(answer, "train_step")
    stopped = rows[rows[NOT_MEASURED] != ""]
    assert len(stopped) and stopped[NOT_MEASURED].str.startswith("OOM in").all()
    assert stopped[["busy_ns", "timer_ns", "peak_memory_bytes", "launches", "speedup"]].isna().all().all()
    assert "fits" in holding(answer)


def test_a_crossover_is_where_every_longer_context_is_faster_too(answer):
    steps = pd.concat([rows_of(answer, mode) for mode in fused_attention_data.MODES])
    for one in rows_of(answer, "crossover").to_dict("records"):
        same = steps[(steps["mode"] == one["mode"]) & (steps["attention"] == one["attention"])]
        same = same[(same["precision"] == one["precision"]) & same["speedup"].notna()]
        assert one["context_length"] == same["context_length"].max()
        if pd.notna(one["busy_from"]):
            assert same.loc[same["context_length"] >= one["busy_from"], "faster"].all()


def test_kernels_of_attention_add_up_to_its_forward_time(shipped, answer):
    rows = rows_of(answer, "forward_kernels")
    assert rows.groupby("attention")["share"].sum().round(9).eq(1).all()
    fused = rows[rows["attention"] != "naive"]
    assert set(fused["family"]) == {"attention"} and (fused["per_layer"] == 1).all()
    assert {"gemm", "elementwise", "reduce"} <= set(rows.loc[rows["attention"] == "naive", "family"])


def test_the_matmuls_of_eager_attention_take_longer_than_bytes_and_flops_need(answer):
    rows = answer.tables["matmuls"].rows
    assert list(rows["operation"]) == ["QKᵀ", "AV"]
    assert (rows["time_ns"] > rows["memory_ns"]).all() and (rows["memory_ns"] > rows["compute_ns"]).all()
    assert answer.claims["matmuls_memory"].holds


def test_without_measured_rates_the_limits_are_of_the_datasheet(shipped, tmp_path):
    found = ask(shipped, NONE)
    assert found.claims["matmuls_memory"].holds and not found.facts["are_measured"]
    text = page(found, shipped, tmp_path)
    assert "datasheet of the NVIDIA H100 80GB HBM3" in text and "measured once" not in text


def test_matmuls_that_vanish_are_two_a_layer_in_forward_and_four_in_backward(answer):
    assert answer.claims["inside"].holds


def test_families_of_backward_add_up_to_the_phase(shipped, answer):
    rows = rows_of(answer, "families")
    naive, fused = (answer.tables["forward_kernels"].rows["attention"].unique()[[0, 1]]).tolist()
    steps = rows_of(answer, "train_step")
    title = answer.facts["reference"].split(" · ")
    case = steps[(steps["context_length"].astype(str) == title[1]) & (steps["precision"].str.upper() == title[2])]
    for form in (naive, fused):
        busy = case.loc[case["attention"] == form, "backward_ns"].item()
        run = shipped.memops["run_id"].astype(str) == case.loc[case["attention"] == form, "run_id"].item()
        copies = shipped.memops[run & (shipped.memops["phase"].astype(str) == "backward")]
        copied = (copies["end_ns"] - copies["start_ns"]).groupby(copies["step"]).sum().median() if len(copies) else 0
        assert rows[f"{form}_ns"].sum() + copied == pytest.approx(busy, rel=0.01), "kernels, and copies and fills"
    assert rows.set_index("family").loc["attention", f"{naive}_calls"] == 0


def test_backward_of_eager_attention_is_between_its_bounds(answer):
    rows = rows_of(answer, "rates")
    known = rows[(rows["attention"] == "naive") & rows["backward_ns"].notna()]
    assert len(known)
    assert (known["backward_low_ns"] <= known["backward_ns"]).all()
    assert (known["backward_ns"] <= known["backward_high_ns"]).all()


def test_a_fused_step_executes_seven_half_matmuls_for_six(answer):
    rows = rows_of(answer, "work")
    assert (rows["executed_ratio"] > 7 / 12).all() and (rows["executed_ratio"] < 7 / 12 * (1 + 2 / 128)).all()
    assert rows["of_step"].is_monotonic_increasing


def test_no_rate_is_above_the_peak_once_masked_scores_are_skipped(answer):
    rows = rows_of(answer, "rates")
    assert rows["forward_of_peak"].max() < 1 and rows["backward_of_peak"].max() < 1
    assert rows.loc[rows["precision"].eq("fp32") & rows["attention"].ne("naive"), "forward_of_peak"].isna().all()


def test_its_drawings_keep_to_the_schema(answer):
    for chart in answer.charts.values():
        assert len(chart.rows)
        assert charts.specification(chart.kind, chart.rows, chart_parts.Drawing(), chart_parts.WIDE, **chart.options)


def test_a_line_ends_with_a_word_where_memory_ran_out_in_a_step(answer):
    assert ends(answer)["eager"] == ", then OOM"


def test_no_line_ends_with_a_word_about_a_run_that_ended_before_its_first_step(unbuilt):
    answer = ask(unbuilt)
    steps = rows_of(answer, "train_step")
    assert steps[NOT_MEASURED].eq("OOM in build").any()
    assert set(ends(answer).values()) == {""}


def test_a_step_that_was_never_reached_is_said_to_be_predicted_where_it_would_not_fit(unbuilt, tmp_path):
    answer = ask(unbuilt)
    before = answer.claims["before"]
    assert before.holds and before.values["mode"] == "train_step" and before.values["attention"] == "naive"
    assert before.values["predicted_bytes"] > before.values["gpu_memory_bytes"]
    assert "Predicted from the shapes, the step itself would not fit" in page(answer, unbuilt, tmp_path)
    larger = unbuilt.runs.assign(gpu_memory_bytes=2 * int(before.values["predicted_bytes"]))
    assert "before" not in holding(ask(dataclasses.replace(unbuilt, runs=larger)))


def test_the_page_says_every_finding(shipped, answer, tmp_path):
    text = page(answer, shipped, tmp_path)
    assert "runs out of memory" in text and "What would prove this wrong" in text
    assert "(runs/" not in text


def test_the_verdict_names_the_backend_of_each_number_and_no_step_whose_processes_disagree(answer, shipped, tmp_path):
    steps = rows_of(answer, "train_step")
    fastest, smallest = (steps.loc[steps[value].idxmax()] for value in ("speedup", "memory_ratio"))
    verdict = read_verdict(page(answer, shipped, tmp_path))
    assert "GPU work" in verdict and f"**{fastest['speedup']:.2f}" in verdict
    assert (f"{fastest['timer_speedup']:.2f}" in verdict) == bool(fastest["quotable"]) == False  # noqa: E712
    assert f"**{1 - 1 / smallest['memory_ratio']:.0%}" in verdict and f"({smallest['attention']})" in verdict
    assert "BF16" in verdict and "bf16" not in verdict


def test_the_verdict_has_the_crossover_of_the_step_and_not_that_of_the_gpu(answer):
    """It was `from 128 tokens on`, by GPU busy: by the noise band the step is faster from 512, 1,024 and 2,048 on."""
    facts = answer.claims["always"].values
    assert facts["timed_in"] == "BF16"
    rows = rows_of(answer, "crossover")
    rows = rows[(rows["mode"] == "train_step") & (rows["precision"] == "bf16")]
    timed = {name: one["from"] for one in facts["timed"] for name in one["attentions"]}
    assert timed == rows.set_index("attention")["timer_from"].to_dict()
    assert all(timed[name] > busy_from for name, busy_from in rows.set_index("attention")["busy_from"].items())
    assert answer.claims["memory"].values["memory_saved"] == pytest.approx(0.66, abs=0.005)
