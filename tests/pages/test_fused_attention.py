"""What fused attention saves: on the recordings of the study, and on parts of them that say something else."""

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages.questions import fused_attention, fused_attention_data
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.render import chart_parts, charts
from profiler_job.analysis.site import combine, page_context
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests import synthetic
from tests.page_words import read_page
from tests.shipped.recordings import MANIFESTS, locate

FOLDERS = [path.parent for path in MANIFESTS if json.loads(path.read_text()).get("study") == "attention"]
NONE = combine.find_rates([])
FAST = pd.DataFrame([{"figure": "gemm_bf16", "unit": "FLOP/s", "value": 1e30, "gpu_name": ""}])

shipped_only = pytest.mark.skipif(not FOLDERS, reason="no recording of the study in site/data")


@pytest.fixture(scope="module")
def shipped():
    if not FOLDERS:
        pytest.skip("no recording of the study in site/data")
    return combine.select_finished_runs(combine.join_recordings([store.load(folder) for folder in FOLDERS]))


@pytest.fixture(scope="module")
def few(shipped):
    """Eager and two backends at two contexts of one precision, without the forward runs of one context."""
    runs = shipped.runs
    chosen = runs["precision"].eq("bf16") & runs["context_length"].isin([128, 512])
    return with_runs(shipped, chosen & runs["attention"].isin(["naive", "flash", "efficient"]))


@pytest.fixture(scope="module")
def answer(shipped):
    return ask(shipped, combine.find_rates([store.load(locate("precision"))]))


@pytest.fixture(scope="module")
def unbuilt(shipped):
    """The recordings, as if what ran out of memory had done so before its first step."""
    for run_id in shipped.runs.loc[shipped.runs["status"].astype(str) == "oom", "run_id"].astype(str):
        shipped = out_of_memory(shipped, run_id, phase="build")
    return shipped


def with_runs(rec, chosen):
    """`rec` with the chosen runs only."""
    kept = set(rec.runs.loc[chosen, "run_id"].astype(str))
    tables = ("runs", "steps", "kernels")
    frames = {name: getattr(rec, name) for name in tables}
    return dataclasses.replace(
        rec, **{name: one[one["run_id"].astype(str).isin(kept)].reset_index(drop=True) for name, one in frames.items()}
    )


def out_of_memory(rec, run_id, phase="backward"):
    runs = rec.runs.astype({"status": str, "status_phase": object})
    runs.loc[runs["run_id"].astype(str) == run_id, ["status", "status_phase"]] = ["oom", phase]
    return combine.select_finished_runs(dataclasses.replace(rec, runs=runs))


def ask(rec, calibration=NONE):
    return page_context.ask(fused_attention, rec, calibration=calibration)


def holding(answer):
    return {key for key, claim in answer.claims.items() if claim.holds}


def rows_of(answer, key):
    return answer.tables[key].rows


def page(answer, rec, tmp_path):
    labels = {key: family.label for key, family in kernel_families.FAMILIES.items()}
    questions = Path(fused_attention.__file__).parent
    site = Site(tmp_path, (questions,), labels, tuple(run_grid.case_columns(rec.runs)))
    site.write("report/f.md", "fused_attention.md", answer, letter="f", title=fused_attention.TITLE)
    return read_page(tmp_path / "report" / "f.md")


# ---------------------------------------------------------------- the recordings of the study


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


def test_rates_of_another_gpu_are_not_held_against_runs(shipped):
    rates = FAST.assign(gpu_name="NVIDIA H200")
    assert combine.select_rates(shipped.runs, rates).empty
    assert len(combine.select_rates(shipped.runs, FAST)), "older recordings do not say which GPU it was"


def test_of_a_gpu_that_is_not_listed_no_limit_is_known(shipped):
    answer = ask(dataclasses.replace(shipped, runs=shipped.runs.assign(gpu_name="NVIDIA Unknown")), NONE)
    assert not len(answer.tables["matmuls"].rows) and not answer.claims["matmuls_memory"].holds


def test_matmuls_that_vanish_are_two_a_layer_in_forward_and_four_in_backward(answer):
    assert answer.claims["inside"].holds


def test_families_of_backward_add_up_to_the_phase(shipped, answer):
    rows = rows_of(answer, "families")
    naive, fused = (answer.tables["forward_kernels"].rows["attention"].unique()[[0, 1]]).tolist()
    steps = rows_of(answer, "train_step")
    title = answer.facts["reference"].split(" · ")
    case = steps[(steps["context_length"].astype(str) == title[1]) & (steps["precision"] == title[2])]
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


def ends(answer):
    """What the lines of the time chart say at their ends, by form of attention."""
    rows = answer.charts["time"].rows.sort_values("context_length")
    return rows.groupby("clock")["note"].last().to_dict()


def test_a_line_ends_with_a_word_where_memory_ran_out_in_a_step(answer):
    assert ends(answer)["eager"] == ", then OOM"


def test_no_line_ends_with_a_word_about_a_run_that_ended_before_its_first_step(unbuilt):
    answer = ask(unbuilt)
    steps = rows_of(answer, "train_step")
    assert steps[NOT_MEASURED].eq("OOM in build").any()
    assert set(ends(answer).values()) == {""}


@pytest.mark.long
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
    assert 'href="runs/' not in text


# ---------------------------------------------------------------- what else could have been measured


def test_nothing_is_said_of_a_peak_that_is_not_known(few, tmp_path):
    few = dataclasses.replace(few, runs=few.runs.assign(gpu_name="NVIDIA Unknown"))
    found = ask(few)
    assert not {"skips", "rate"} & holding(found)
    assert "n/a" in page(found, few, tmp_path)


def test_a_kernel_below_every_measured_rate_is_no_sign_of_skipping(few):
    assert "skips" not in holding(ask(few, FAST))


@shipped_only
def test_slower_backends_are_not_called_faster(few):
    kernels = few.kernels.copy()
    fused = ~kernels["run_id"].astype(str).str.contains("naive")
    duration = kernels["end_ns"] - kernels["start_ns"]
    kernels["end_ns"] = kernels["start_ns"] + duration.where(~fused, duration * 50)
    found = ask(dataclasses.replace(few, kernels=kernels))
    assert "never" in holding(found)
    assert not {"always", "partly", "gain", "below_gemms"} & holding(found)
    assert rows_of(found, "crossover")["busy_from"].isna().all()


@shipped_only
def test_a_timer_that_agrees_leaves_nothing_unseen(few):
    steps = few.steps.copy()
    fused = ~steps["run_id"].astype(str).str.contains("naive")
    steps["wall_ns"] = steps["wall_ns"].where(~fused, 1)
    assert "unseen" not in holding(ask(dataclasses.replace(few, steps=steps)))


@shipped_only
def test_without_eager_attention_nothing_is_compared(few, tmp_path):
    alone = with_runs(few, few.runs["attention"].eq("flash"))
    found = ask(alone)
    assert not holding(found) - {"rate"}
    assert rows_of(found, "forward")["speedup"].isna().all()
    assert "No fused run to compare" in page(found, alone, tmp_path)


@shipped_only
def test_eager_attention_that_never_fits_has_no_ratio(few, tmp_path):
    found = few
    for run in few.runs.loc[few.runs["attention"].eq("naive"), "run_id"].astype(str):
        found = out_of_memory(found, run)
    found_answer = ask(found)
    assert "fits" in holding(found_answer)
    assert "gain" not in holding(found_answer) and rows_of(found_answer, "forward_kernels").empty
    assert "OOM in backward" in page(found_answer, found, tmp_path)


@pytest.mark.long
@shipped_only
def test_a_run_that_ended_before_its_first_step_is_no_evidence_about_a_step(few, tmp_path):
    lost = few.runs["attention"].eq("naive") & few.runs["mode"].eq("train_step") & few.runs["context_length"].eq(512)
    (run_id,) = few.runs.loc[lost, "run_id"].astype(str)
    assert "fits" in holding(ask(out_of_memory(few, run_id)))
    found = out_of_memory(few, run_id, "build")
    assert "fits" not in holding(ask(found))
    assert "says nothing of a step" in page(ask(found), found, tmp_path)


@shipped_only
@pytest.mark.parametrize(
    ("context", "phase", "said"),
    [(512, "backward", ", then OOM"), (512, "build", ""), (128, "backward", "")],
    ids=["next in a step", "before the first step", "a shorter one"],
)
def test_a_line_ends_with_out_of_memory_only_where_its_next_longer_context_ran_out_in_a_step(few, context, phase, said):
    runs = few.runs
    lost = runs["attention"].eq("efficient") & runs["mode"].eq("train_step") & runs["context_length"].eq(context)
    (run_id,) = runs.loc[lost, "run_id"].astype(str)
    found = ends(ask(out_of_memory(few, run_id, phase)))
    assert found == {"eager": "", "flash": "", "efficient": said}


@shipped_only
def test_without_training_steps_the_verdict_is_of_forward_passes(few, tmp_path):
    forward = with_runs(few, few.runs["mode"].eq("forward"))
    found = ask(forward)
    assert "forward_only" in holding(found) and "forward_only" not in holding(ask(few))
    assert "no training step has its counterpart" in page(found, forward, tmp_path)


def test_the_verdict_names_the_backend_of_each_number_and_the_step_beside_the_gpu(answer, shipped, tmp_path):
    steps = rows_of(answer, "train_step")
    fastest, smallest = (steps.loc[steps[value].idxmax()] for value in ("speedup", "memory_ratio"))
    verdict = page(answer, shipped, tmp_path).split('<div class="verdict"')[1].split("</div>")[0]
    assert f"**{fastest['speedup']:.2f}" in verdict and f"({fastest['attention']}; the step itself" in verdict
    assert f"{fastest['timer_speedup']:.2f}" in verdict
    assert f"**{smallest['memory_ratio']:.2f}" in verdict and f"({smallest['attention']})" in verdict


def test_a_recording_of_another_kind_has_a_page_all_the_same(tmp_path):
    rec = synthetic.recording(("small", "xl"), (128, 256), num_profiled=2, num_timed=3, oom={})
    rec = recording_with_attention(rec)
    found = ask(rec)
    assert not holding(found)
    assert "No fused run to compare" in page(found, rec, tmp_path)


def recording_with_attention(rec):
    return dataclasses.replace(rec, runs=rec.runs.assign(attention="naive"))
