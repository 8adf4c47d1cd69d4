"""Two recordings of the same runs: what they share, what they do not, and that none is compared with itself."""

import dataclasses

import pytest

from profiler_job.analysis.comparison.judge import compare
from profiler_job.analysis.comparison.noise import SHIPPED
from profiler_job.analysis.comparison.sides import make_recording_side
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages.questions import second_recording
from profiler_job.analysis.site import page_context, question_pages
from tests import frozen
from tests.page_words import read_page

ONE = "small-ctx128-fp32-naive-train_step"


@pytest.fixture(scope="module")
def first():
    return select_runs(frozen.load_study(""), "small")


@pytest.fixture(scope="module")
def second(first):
    return frozen.measure_again(first)


def select_runs(rec, beginning):
    """Return a recording with the runs whose names begin so, and no others."""
    return frozen.keep_runs(rec, rec.runs["run_id"].astype(str).str.startswith(beginning))


def compared(first, second):
    return page_context.ask(second_recording.QUESTION, second, main=first)


def row_of(answer, run_id=ONE):
    rows = answer.tables["gpu"].rows
    return rows[rows["run_id"] == run_id].iloc[0]


def test_every_number_is_that_of_its_own_recording(first, second):
    row = row_of(compared(first, second))
    for side, rec in (("first", first), ("second", second)):
        kernels = rec.kernels[(rec.kernels["run_id"] == ONE) & (rec.kernels["step"] >= 0)]
        time_ns = kernels["end_ns"] - kernels["start_ns"]
        assert row[f"{side}_kernel_ns"] == time_ns.groupby(kernels["step"]).sum().median()
        assert row[f"{side}_launches"] == len(kernels) / kernels["step"].nunique()
        assert row[f"{side}_top"] == time_ns.groupby(kernels["kernel_name"].astype(str)).sum().idxmax()
        gemm = time_ns[kernels["family"] == "gemm"].sum() / time_ns.sum()
        assert row[f"{side}_gemm"] == pytest.approx(gemm)
        steps = rec.steps[(rec.steps["run_id"] == ONE) & (rec.steps["collector"] == "timer")]
        steps = steps.loc[steps["phase"] == "step", "wall_ns"]
        assert (row[f"{side}_step_ns"], row[f"{side}_step_max_ns"]) == (steps.median(), steps.max())
        assert row[f"{side}_busy_share"] == row[f"{side}_busy_ns"] / steps.median()
    assert row["step_ratio"] == row["second_step_ns"] / row["first_step_ns"]
    assert row["kernel_change"] == pytest.approx(row["second_kernel_ns"] / row["first_kernel_ns"] - 1)


def test_a_bound_is_never_below_what_it_bounds(first, second):
    claims = compared(first, second).claims
    for key, value in (("same", "kernel_apart"), ("gemm", "gemm_apart")):
        assert claims[key].values["at_most"] >= claims[key].rows[value].max()


def test_a_recording_is_not_held_against_itself(first):
    answer = compared(first, first)
    assert answer.facts["num_runs"] == 0
    assert not [key for key, claim in answer.claims.items() if claim.holds]


@pytest.mark.nightly
@pytest.mark.parametrize("others", [[], ["h200-fp32"]], ids=["alone", "with the first"])
def test_a_page_with_nothing_to_compare_shows_nothing(tmp_path, others, first):
    """A second recording alone, or with no capture."""
    rec = dataclasses.replace(first, manifest=first.manifest | {"study": "again"})
    if others:
        none = {name: getattr(rec, name).head(0) for name in ("kernels", "memops", "api", "ranges", "nsys_sums")}
        rec = dataclasses.replace(rec, runs=rec.runs.assign(started_at="2027"), **none)
    question_pages.write_questions(first if others else rec, tmp_path, {"again": rec})
    page = read_page(tmp_path / "report" / "second-recording.md")
    assert "Nobody knows yet" in page
    assert "<table" not in page and "is of the same runs" not in page


def test_runs_of_only_one_recording_and_sizes_that_mean_another_model_are_left_out(first, second):
    runs = first.runs.assign(num_parameters=first.runs["num_parameters"] + (first.runs["run_id"] == ONE))
    answer = compared(dataclasses.replace(first, runs=runs), select_runs(second, "small-ctx128"))
    assert set(answer.tables["gpu"].rows["run_id"]) == {
        "small-ctx128-fp32-naive-forward",
        "small-ctx128-fp32-naive-forward_backward",
    }


def test_a_kernel_under_another_name_is_launched_otherwise(first, second):
    kernels = second.kernels.astype({"kernel_name": str})
    last = kernels.index[kernels["run_id"] == ONE][-1]
    kernels.loc[last, "kernel_name"] = "another"
    answer = compared(first, dataclasses.replace(second, kernels=kernels))
    assert row_of(answer)["unlike"] == pytest.approx(2 / frozen.NUM_STEPS)  # in one step: one is missing, one too many
    assert not answer.claims["same"].holds
    assert answer.claims["not_same"].values["num_unlike"] == 1


def test_kernels_that_take_longer_are_not_the_same(first, second):
    kernels = second.kernels.assign(end_ns=second.kernels["end_ns"] + (second.kernels["run_id"] == ONE) * 10**6)
    claims = compared(first, dataclasses.replace(second, kernels=kernels)).claims
    assert not claims["same"].holds
    assert claims["not_same"].values["run_id"] == ONE


def test_steps_within_the_spread_of_both_do_not_differ(first, second):
    answer = compared(first, dataclasses.replace(second, steps=first.steps))
    assert not answer.claims["apart"].holds and not answer.claims["step_differs"].holds
    assert set(answer.tables["host"].rows["step_ratio"]) == {1}


BANDS = Bands(kernel=SHIPPED.kernel, wall=SHIPPED.wall)


def test_metrics_and_verdicts_are_those_of_compare(first, second):
    found = page_context.ask(second_recording.QUESTION, second, main=first, bands=BANDS).tables["host"].rows
    noise = dataclasses.replace(SHIPPED, num_timed=(3, 3), is_of_these=True)  # as the page takes its bands
    made = compare(make_recording_side(first), make_recording_side(second), noise)
    assert len(found) == len(made.pairs)
    for row, pair in zip(found.to_dict("records"), made.pairs, strict=True):
        assert row["run_id"] == pair.case.second[0]
        for metric in ("kernel", "busy", "step", "idle"):
            judged = pair.judgements[metric]
            assert (row[f"first_{metric}_ns"], row[f"second_{metric}_ns"]) == (judged.first, judged.second)
            assert (row[f"{metric}_band_ns"], row[f"{metric}_verdict"]) == (judged.band, judged.verdict)


def test_runs_of_another_precision_are_not_the_same_runs(first, second):
    other = second.runs.assign(precision="bf16")
    assert compared(first, dataclasses.replace(second, runs=other)).facts["num_runs"] == 0


@pytest.mark.long
def test_what_differs_is_told_from_what_the_recordings_say(first, second):
    assert compared(first, second).facts["changed"] == ["day", "commit of this program"]
    runs = second.runs.assign(torch="9.9", started_at="2027-01-01T00:00:00+00:00")
    changed = compared(first, dataclasses.replace(second, runs=runs)).facts["changed"]
    assert changed == ["day", "torch", "commit of this program"]
