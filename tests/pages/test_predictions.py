"""The page of predictions: misses show, and an estimate is never called a measurement."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.pages import predictions
from profiler_job.analysis.prediction import ledger
from profiler_job.analysis.site.site_writer import Site
from tests.page_words import read_shown

ROW = {"run_id": "a", "tested_by": "b", "size": "small", "context_length": 128, "mode": "train_step", "reason": ""}
ROW |= {"changes": "bf16+fused_attention", "baseline_ns": 40e6, "predicted_ns": 20e6, "low_ns": 18e6, "high_ns": 22e6}
ROW |= {"ceiling_ns": 10e6, "limited_by": "GPU", "made_at": pd.Timestamp("2026-01-02T03:04:05Z")}
ROW |= {"source": "default"}
NOTHING = pd.DataFrame(columns=[*ledger.MEASURED_COLUMNS])
NONE = dict.fromkeys(("predicted_ns", "low_ns", "high_ns", "ceiling_ns"), float("nan"))
BOTH = "BF16, fused attention"


def predicted(*measured_ms, **facts):
    rows = pd.DataFrame([ROW | facts | {"measured_ns": measured * 1e6} for measured in measured_ms])
    rows["again_ns"], rows["again_inside"] = float("nan"), False
    rows["error"] = rows["predicted_ns"] / rows["measured_ns"] - 1
    rows["inside"] = rows["measured_ns"].between(rows["low_ns"], rows["high_ns"])
    return rows.assign(beaten=rows["measured_ns"] < rows["ceiling_ns"])


def parts(*times_as_fast, gpu_ns=40e6):
    """A script whose step is predicted to be twice as fast, 1.8 to 2.5 times."""
    said = {"step_ns": 50e6, "low_ns": 40e6, "high_ns": 100e6 / 1.8, "gpu_ns": gpu_ns, "at": 100.0}
    found = {"at": 220.0, "low": 1.7, "high": 2.1, "step_ns": 50e6, "kernels_ns": 44e6}
    cells = [
        {"changes": ["bf16", "padding"], "predicted": said, "measured": found | {"times_as_fast": ratio}}
        for ratio in times_as_fast
    ]
    return {"scripts": [{"title": "GPT-2", "gpu": "NVIDIA H100", "step_ns": 100e6, "cells": cells}]}


@pytest.fixture
def written(tmp_path):
    def write(rows, of_tune=None):
        site = Site(tmp_path, (), {}, ())
        site.write("report/predictions.md", "predictions.md", predictions.answer(of_tune or {}, rows))
        return read_shown(tmp_path, "report/predictions.md")

    return write


def test_predictions_of_tune_have_errors_and_intervals(written):
    answer = predictions.answer(parts(1.9, 3.0), ledger.compare_with_measured([], NOTHING))
    rows = answer.tables["parts"].rows
    assert rows["error"].tolist() == pytest.approx([2 / 1.9 - 1, 2 / 3 - 1])
    assert rows["outcome"].tolist() == ["inside the interval", "outside the interval"]
    assert rows[["expected", "expected_low", "expected_high"]].iloc[0].tolist() == pytest.approx([2, 1.8, 2.5])
    assert rows["kernel_error"].tolist() == pytest.approx([40 / 44 - 1] * 2)
    assert answer.facts["parts"]["apart_ns"] == 120e9
    assert answer.facts["pace"]["gpu"]["number"] == 2 and answer.facts["pace"]["cpu"]["number"] == 0
    text = written(predicted(21), parts(1.9, 3.0))
    assert text.index(f"within **{answer.facts['pace']['gpu']['high']:.1%}**") < text.index("## ")
    assert "2 predictions" in text and "NVIDIA H100" in text and "1 of 2 intervals holds" in text


def test_earlier_predictions_of_tune_are_told_apart(written):
    (first,), (last,) = parts(3.0)["scripts"], parts(1.9, 2.0)["scripts"]
    both = {"scripts": [first | {"commit": "a", "title": "ViT"}, last | {"commit": "b"}]}
    both["changed_after"] = {"a": "the time of the CPU"}
    answer = predictions.answer(both, ledger.compare_with_measured([], NOTHING))
    assert answer.facts["parts"]["number"] == 2 and answer.facts["parts"]["high"] == pytest.approx(2 / 1.9 - 1)
    assert answer.facts["num_earlier"] == 1 and answer.tables["earlier_parts"].rows["script"].tolist() == ["ViT"]
    by_code = answer.tables["by_code"].rows
    assert by_code[["commit", "number", "inside_share", "changed"]].values.tolist() == [
        ["b", 2, 1.0, "nothing"],
        ["a", 1, 0.0, "the time of the CPU"],
    ]
    assert answer.facts["never_inside"] == []
    (together,) = answer.facts["by_part"]
    assert (together["change"], together["number"], together["inside"]) == ("several together", 2, 2)
    text = written(predicted(21), both)
    assert "**2 predictions** of 1 script" in text and "tests today's code" not in text


def test_tests_that_changed_the_predictor_are_no_tests_of_it(written):
    of_tune = parts(1.9) | {"changed_after": {"": "the time of the CPU"}}
    answer = predictions.answer(of_tune, ledger.compare_with_measured([], NOTHING))
    assert answer.facts["changed"] == "the time of the CPU"
    assert "**No prediction tests today's code yet.**" in written(predicted(21), of_tune)


def test_the_page_says_which_predictors_are_gone_and_why(written):
    text = written(predicted(21))
    assert "fitted to recordings of one GPU" in text and "This site holds no test of it." in text


def test_each_outcome_shows_and_so_do_misses(written):
    text = written(predicted(21, 30, 9, float("nan")))
    for outcome in ("inside the interval", "outside the interval", "below the ceiling", "not measured"):
        assert re.search(f"<td[^>]*>{outcome}", text)


def test_each_change_has_its_errors_by_source():
    rows = pd.concat(
        [
            predicted(20, 25, 16),
            predicted(10, **NONE, reason="it is not known"),
            predicted(40, changes="tf32", predicted_ns=40e6, low_ns=30e6, high_ns=50e6),
            predicted(25, source=""),
        ]
    )
    tested = predictions.answer({}, rows).tables["tested"].rows.set_index(["source", "changes"])
    assert [*tested.index] == [
        *(("sweeps", change) for change in (BOTH, "TF32", "all")),
        *(("scripts", change) for change in (BOTH, "all")),
    ]
    assert tested["measured"].tolist() == [3, 1, 4, 1, 1] and tested["abstained"].tolist() == [1, 0, 1, 0, 0]
    assert tested.loc[("sweeps", BOTH), ["median", "high"]].tolist() == pytest.approx([0.2, 0.24])
    assert tested["inside"].tolist() == pytest.approx([1 / 3, 1, 0.5, 0, 0])


def test_before_the_test_nothing_is_known_of_how_good_they_are(written):
    text = written(pd.concat([predicted(float("nan")), predicted(float("nan"), **NONE, reason="it is not known")]))
    assert "not yet" in text and "it is not known" in text
    assert "median error is" not in text


def test_without_ledgers_the_page_holds_none(written):
    rows = ledger.compare_with_measured([], NOTHING)
    assert not predictions.answer({}, rows).tables
    assert "This site holds none of their predictions." in written(rows)


def test_the_summary_counts_each_change_and_all():
    answer = predictions.answer({}, predicted(21, 30))
    rows = answer.tables["tested"].rows.set_index("changes")
    assert list(rows.index) == [BOTH, "all"]
    assert answer.facts["fitted"] | {"median": 0, "high": 0} == {
        "repeated": 0,
        "repeated_inside": 0,
        "number": 2,
        "abstained": 0,
        "measured": 2,
        "median": 0,
        "high": 0,
        "inside": 0.5,
        "beaten": 0,
    }


def test_the_headline_is_by_change(written):
    """One number for a change that is predicted well and one that is not would mislead."""
    good = predicted(*[40.1] * 8, changes="fused_adamw", predicted_ns=40e6, low_ns=39e6, high_ns=41e6)
    bad = predicted(*[30] * 8)
    few = predicted(20, changes="tf32")
    facts = predictions.answer({}, pd.concat([good, bad, few])).facts["by_change"]
    assert [(one["change"], one["inside"]) for one in facts] == [("fused AdamW", 1), ("BF16 with fused attention", 0)]
    text = written(pd.concat([good, bad, few]))
    assert "**fused AdamW**: the median error is" in text and "**TF32**: the median error is" not in text


def test_a_repeat_is_counted_next_to_the_first_measurement(written):
    rows = predicted(21, 22).assign(again_ns=[30e6, float("nan")], again_inside=[False, False])
    assert "1 run was measured again" in written(rows)
