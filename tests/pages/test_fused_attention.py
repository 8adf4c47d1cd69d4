"""What fused attention saves: on frozen runs, and on changes of them that say something else."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages.questions import fused_attention
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.site import combine, page_context
from profiler_job.analysis.site.site_writer import Site
from tests import frozen, synthetic
from tests.page_words import read_page

NONE = combine.find_rates([])
FAST = pd.DataFrame([{"figure": "gemm_bf16", "unit": "FLOP/s", "value": 1e30, "gpu_name": ""}])


@pytest.fixture(scope="module")
def few():
    """Eager attention and two backends at two contexts of one precision, on an H100."""
    return frozen.load("attention")


def lose_run(rec, run_id, phase="backward"):
    return combine.select_finished_runs(frozen.lose_run(rec, run_id, phase))


def ask(rec, calibration=NONE):
    return page_context.ask(fused_attention.QUESTION, rec, calibration=calibration)


def holding(answer):
    return {key for key, claim in answer.claims.items() if claim.holds}


def rows_of(answer, key):
    return answer.tables[key].rows


def page(answer, rec, tmp_path):
    labels = {key: family.label for key, family in kernel_families.FAMILIES.items()}
    questions = Path(fused_attention.__file__).parent
    site = Site(tmp_path, (questions,), labels, tuple(run_grid.case_columns(rec.runs)))
    site.write("report/f.md", "fused_attention.md", answer, letter="f", title=fused_attention.QUESTION.title)
    return read_page(tmp_path / "report" / "f.md")


def test_rates_of_another_gpu_are_not_held_against_runs(few):
    rates = FAST.assign(gpu_name="NVIDIA H200")
    assert combine.select_rates(few.runs, rates).empty
    assert len(combine.select_rates(few.runs, FAST)), "older recordings do not say which GPU it was"


def test_of_a_gpu_that_is_not_listed_no_limit_is_known(few):
    answer = ask(dataclasses.replace(few, runs=few.runs.assign(gpu_name="NVIDIA Unknown")), NONE)
    assert not len(answer.tables["matmuls"].rows) and not answer.claims["matmuls_memory"].holds


def ends(answer):
    """What the lines of the time chart say at their ends, by form of attention."""
    rows = answer.charts["time"].rows.sort_values("context_length")
    return rows.groupby("clock")["note"].last().to_dict()


def test_nothing_is_said_of_a_peak_that_is_not_known(few, tmp_path):
    few = dataclasses.replace(few, runs=few.runs.assign(gpu_name="NVIDIA Unknown"))
    found = ask(few)
    assert not {"skips", "rate"} & holding(found)
    assert "n/a" in page(found, few, tmp_path)


def test_a_kernel_below_every_measured_rate_is_no_sign_of_skipping(few):
    assert "skips" not in holding(ask(few, FAST))


def test_slower_backends_are_not_called_faster(few):
    kernels = few.kernels.copy()
    fused = ~kernels["run_id"].astype(str).str.contains("naive")
    duration = kernels["end_ns"] - kernels["start_ns"]
    kernels["end_ns"] = kernels["start_ns"] + duration.where(~fused, duration * 50)
    found = ask(dataclasses.replace(few, kernels=kernels))
    assert "never" in holding(found)
    assert not {"always", "partly", "gain", "below_gemms"} & holding(found)
    assert rows_of(found, "crossover")["busy_from"].isna().all()


def test_a_timer_that_agrees_leaves_nothing_unseen(few):
    steps = few.steps.copy()
    fused = ~steps["run_id"].astype(str).str.contains("naive")
    steps["wall_ns"] = steps["wall_ns"].where(~fused, 1)
    assert "unseen" not in holding(ask(dataclasses.replace(few, steps=steps)))


def test_without_eager_attention_nothing_is_compared(few, tmp_path):
    alone = frozen.keep_runs(few, few.runs["attention"].eq("flash"))
    found = ask(alone)
    assert not holding(found) - {"rate"}
    assert rows_of(found, "forward")["speedup"].isna().all()
    assert "No fused run to compare" in page(found, alone, tmp_path)


def test_eager_attention_that_never_fits_has_no_ratio(few, tmp_path):
    found = few
    for run in few.runs.loc[few.runs["attention"].eq("naive"), "run_id"].astype(str):
        found = lose_run(found, run)
    found_answer = ask(found)
    assert "fits" in holding(found_answer)
    assert "gain" not in holding(found_answer) and rows_of(found_answer, "forward_kernels").empty
    assert "OOM in backward" in page(found_answer, found, tmp_path)


@pytest.mark.long
def test_a_run_that_ended_before_its_first_step_is_no_evidence_about_a_step(few, tmp_path):
    lost = few.runs["attention"].eq("naive") & few.runs["mode"].eq("train_step") & few.runs["context_length"].eq(512)
    (run_id,) = few.runs.loc[lost, "run_id"].astype(str)
    assert "fits" in holding(ask(lose_run(few, run_id)))
    found = lose_run(few, run_id, "build")
    assert "fits" not in holding(ask(found))
    assert "says nothing of a step" in page(ask(found), found, tmp_path)


@pytest.mark.parametrize(
    ("context", "phase", "said"),
    [(512, "backward", ", then OOM"), (512, "build", ""), (128, "backward", "")],
    ids=["next in a step", "before the first step", "a shorter one"],
)
def test_a_line_ends_with_out_of_memory_only_where_its_next_longer_context_ran_out_in_a_step(few, context, phase, said):
    runs = few.runs
    lost = runs["attention"].eq("efficient") & runs["mode"].eq("train_step") & runs["context_length"].eq(context)
    (run_id,) = runs.loc[lost, "run_id"].astype(str)
    found = ends(ask(lose_run(few, run_id, phase)))
    assert found == {"eager": "", "flash": "", "efficient": said}


def test_without_training_steps_the_verdict_is_of_forward_passes(few, tmp_path):
    forward = frozen.keep_runs(few, few.runs["mode"].eq("forward"))
    found = ask(forward)
    assert "forward_only" in holding(found) and "forward_only" not in holding(ask(few))
    assert "No training step was compared" in page(found, forward, tmp_path)


def test_a_recording_of_another_kind_has_a_page_all_the_same(tmp_path):
    rec = synthetic.recording(("small", "xl"), (128, 256), num_profiled=2, num_timed=3, oom={})
    rec = recording_with_attention(rec)
    found = ask(rec)
    assert not holding(found)
    assert "No fused run to compare" in page(found, rec, tmp_path)


def recording_with_attention(rec):
    return dataclasses.replace(rec, runs=rec.runs.assign(attention="naive"))
