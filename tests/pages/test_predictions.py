"""The page of predictions: misses show, and an estimate is never called a measurement."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.pages import predictions
from profiler_job.analysis.prediction import ledger, of_runs, predict, rates
from profiler_job.analysis.site.site_writer import Site

ROW = {"run_id": "a", "tested_by": "b", "size": "small", "context_length": 128, "mode": "train_step", "reason": ""}
ROW |= {"changes": "bf16+fused_attention", "baseline_ns": 40e6, "predicted_ns": 20e6, "low_ns": 18e6, "high_ns": 22e6}
ROW |= {"ceiling_ns": 10e6, "limited_by": "GPU", "made_at": pd.Timestamp("2026-01-02T03:04:05Z")}
ROW |= {"loop_ns": 30e6, "baseline_loop_ns": 40e6, "source": "default", "of_one_host": False, "measured_limit": "GPU"}
ROW |= {
    "gpus_at_once": 1,
    "kind": "sweep",
    "is_reference": True,
    "again_ns": 16e6,
    "work": 1,
    "baseline_min_ns": 38e6,
    "baseline_max_ns": 44e6,
}
LATER = pd.Timestamp("2026-01-03T03:04:05Z")
NONE = dict.fromkeys(("predicted_ns", "low_ns", "high_ns", "ceiling_ns"), float("nan"))


def predicted(*measured_ms, **facts):
    rows = pd.DataFrame([ROW | facts | {"measured_ns": measured * 1e6} for measured in measured_ms])
    rows["error"] = rows["predicted_ns"] / rows["measured_ns"] - 1
    rows["inside"] = rows["measured_ns"].between(rows["low_ns"], rows["high_ns"])
    rows["measured_min_ns"], rows["measured_max_ns"] = 0.9 * rows["measured_ns"], 1.1 * rows["measured_ns"]
    return rows.assign(beaten=rows["measured_ns"] < rows["ceiling_ns"])


@pytest.fixture(scope="module")
def developed():
    return predict.predict_development(rates.load())


@pytest.fixture
def written(tmp_path, developed):
    def write(rows):
        site = Site(tmp_path, (), {}, ())
        site.write("report/predictions.md", "predictions.md", predictions.answer(rows, developed))
        return (tmp_path / "report" / "predictions.md").read_text()

    return write


def test_outcomes_are_said_misses_too(written):
    text = written(predicted(21, 30, 9, float("nan")))
    for outcome in ("inside the interval", "outside the interval", "below the ceiling", "not measured"):
        assert re.search(f"<td[^>]*>{outcome}", text)
    assert "3 runs that test them were measured since" in text
    assert "1 step took less than was said to be possible" in text


def test_an_aim_that_is_missed_is_named(written):
    assert "All is reached." in written(predicted(20.1, 20.2))
    text = written(predicted(20.1, 30, 31))
    assert "Missed: the median error, the 90th percentile and the share of intervals." in text


def test_each_test_is_judged_alone(written, developed):
    rows = pd.concat([predicted(30, 31), predicted(20.1, made_at=LATER), predicted(20, float("nan"), source="")])
    text = written(rows)
    first, second, scripts = re.findall(r"- \*\*([A-Z].*)", text)
    assert first.startswith("First test**, predicted") and second.startswith("Second test**, predicted")
    assert "Missed: " in first and "All is reached" in second and "Scripts of others" in scripts
    assert predictions.answer(rows, developed).tables["tests"].rows["measured"].to_list() == [2, 1, 1]


def test_steps_that_the_host_limits_are_told_apart(written, developed):
    rows = pd.concat([predicted(20.1, 19), predicted(16, 17, limited_by="host")])
    limits = predictions.answer(rows, developed).tables["limits"].rows.set_index("limited_by")
    assert limits["measured"].to_dict() == {"GPU": 2, "host": 2}
    assert limits["inside"].to_dict() == {"GPU": 1, "host": 0}
    text = written(rows)
    assert "Of the 2 steps that the host was to limit, 2 were predicted too long." in text
    assert re.search("A loop of plain Python took 0.750?\\D+ the time on the hosts of these tests", text)


def test_the_page_says_that_later_tests_were_measured_twice(written):
    """The first measurement of the third test missed an aim that the second reached, and the page did not say so."""
    later = [predicted(20, made_at=ROW["made_at"] + pd.Timedelta(days=days)) for days in range(4)]
    assert "measured twice" in written(pd.concat(later)) and "measured twice" not in written(later[0])


def test_tests_of_one_day_are_told_apart(developed):
    rows = pd.concat([predicted(20), predicted(21, made_at=ROW["made_at"] + pd.Timedelta(hours=5))])
    assert predictions.answer(rows, developed).tables["tests"].rows["test"].to_list() == ["first test", "second test"]


def test_predictions_of_two_models_at_one_time_are_one_test(developed):
    """Each has rates of its own. Rates that are new a quarter of an hour later were fitted meanwhile."""
    minutes = [(0, "a"), (0.1, "b"), (15, "c"), (15.1, "b"), (15.2, "c")]
    rows = pd.concat(
        predicted(20, made_at=ROW["made_at"] + pd.Timedelta(minutes=later), rates=rates) for later, rates in minutes
    )
    tests = predictions.answer(rows, developed).tables["tests"].rows
    assert tests[["test", "number"]].to_numpy().tolist() == [["first test", 2], ["second test", 3]]


def test_a_test_has_one_name_in_every_table(developed):
    """Without what abstained, rates looked new that had been used before: there was an eighth test of seven."""
    now = ROW["made_at"]
    abstained = predicted(
        float("nan"), **NONE, reason="it is not known", rates="b", made_at=now + 0.1 * predictions.SOON
    )
    rows = pd.concat(
        [predicted(20, rates="a"), abstained, predicted(20, rates="b", made_at=now + 3 * predictions.SOON)]
    )
    tables = predictions.answer(rows, developed).tables
    assert {*tables["measured_limits"].rows["test"]} == {*tables["tests"].rows["test"]} == {"first test"}


def test_the_reference_is_no_other_model_however_it_was_predicted(developed):
    rows = predicted(20, kind="script", size="medium")
    assert predictions.answer(rows, developed).tables["tests"].rows["test"].tolist() == ["first test"]


def test_what_a_later_rule_would_have_shown_is_no_test(written, developed):
    """The host limits it and the interval is wide: it would have been an abstention. What was measured stays a miss."""
    wide = predicted(30, limited_by="host", high_ns=28e6, of_one_host=True)
    answer = predictions.answer(pd.concat([predicted(20.1), wide]), developed)
    hindsight, tests = (answer.tables[name].rows.iloc[0] for name in ("hindsight", "tests"))
    assert hindsight[["number", "abstained", "measured", "inside"]].tolist() == [2, 1, 1, 1.0]
    assert tests[["number", "abstained", "measured", "inside"]].tolist() == [2, 0, 2, 0.5]
    text = written(pd.concat([predicted(20.1), wide]))
    assert "**The next table is no test**" in text and "1 of 2 in the first test" in text
    assert "The next table is no test" not in written(predicted(20.1))


def test_a_test_that_is_measured_in_part_says_what_awaits(written):
    """A run of an abstention was measured, too: it tests nothing. What a script cannot be given awaits nothing."""
    abstained = predicted(18, **NONE, reason="it is not known")
    scripts = predicted(20, float("nan"), source="")
    text = written(pd.concat([predicted(20.1, float("nan"), float("nan")), abstained, scripts]))
    first, of_scripts = re.findall(r"- \*\*([A-Z].*)", text)
    assert (
        "**measured in part**. 2 of its 4 runs are measured: 1 tests a prediction, and for 1 it was said only why"
        in first
    )
    assert "2 predictions await measurement. So far the median error is" in first and "All is reached so far." in first
    assert "measured in part" not in of_scripts and "await" not in of_scripts
    assert "measured in part" not in written(predicted(20.1))


def test_what_limited_the_measured_steps_is_said_beside_what_was_to(written, developed):
    """The GPU was to limit all of them."""
    rows = pd.concat([predicted(20.1, 19), predicted(30, 31, 21, measured_limit="host")])
    text = written(rows)
    assert "4 of 5 where the GPU was to limit the step" not in text and "3 of 5 where the GPU was to limit" in text
    assert "the GPU limited 2 steps (2 inside the interval), and the host limited 3 steps (1 inside the" in text
    table = predictions.answer(rows, developed).tables["measured_limits"].rows
    assert table[["measured_limit", "measured"]].to_numpy().tolist() == [["GPU", 2], ["host", 3]]
    assert "When measured, " not in written(predicted(20.1, measured_limit=""))


def test_what_was_timed_beside_runs_on_other_gpus_is_told_apart(written):
    text = written(pd.concat([predicted(20, 25), predicted(30, gpus_at_once=2)]))
    assert "Timed alone on its host, 1 of 2 are inside the interval, with a median error of 10.0%" in text
    assert "Timed while other GPUs of its host were at work, 0 of 1 is inside the interval, with a median" in text
    assert "imed alone" not in written(predicted(20, gpus_at_once=float("nan")))
    assert "Each was timed alone on its host. " in written(predicted(20))


def test_the_outcome_is_told_by_model_and_by_context(developed):
    rows = pd.concat([predicted(25, size="large", context_length=512), predicted(20), predicted(20, context_length=64)])
    tables = predictions.answer(rows, developed).tables
    sizes = tables["sizes"].rows
    assert sizes[["size", "measured"]].values.tolist() == [["large", 1], ["small", 2]]
    assert sizes["median"].tolist() == pytest.approx([0.2, 0])
    assert tables["contexts"].rows["context_length"].tolist() == [64, 128, 512]


def test_before_the_test_nothing_is_said_of_how_good_they_are(written):
    text = written(pd.concat([predicted(float("nan")), predicted(float("nan"), **NONE, reason="it is not known")]))
    assert "2 predictions" in text and "1 of them say only why there is none" in text
    assert "None of the runs that test them is measured yet" in text
    assert "it is not known" in text


def test_without_ledgers_there_is_still_what_they_were_developed_on(written):
    text = written(ledger.compare_with_measured([], []))
    assert "This site holds no predictions." in text
    assert "**This is no test.**" in text


def test_the_summary_counts_each_change_and_all(developed):
    answer = predictions.answer(predicted(21, 30), developed)
    rows = answer.tables["summary"].rows.set_index("changes")
    assert list(rows.index) == ["BF16, fused attention", "all"]
    assert rows.loc["all", ["number", "measured", "inside", "beaten"]].tolist() == [2, 2, 0.5, 0]
    assert answer.tables["development"].rows["number"].iloc[-1] == len(developed)


def test_what_a_change_gave_to_a_script_stands_beside_what_was_predicted(developed):
    rows = pd.concat([predicted(25, float("nan"), source="", run_id="mingpt"), predicted(20)])
    gains = predictions.answer(rows, developed).tables["scripts"].rows
    assert gains["run_id"].tolist() == ["mingpt", "mingpt"]
    assert gains["predicted_gain"].tolist() == [2, 2] and gains["measured_gain"].iloc[0] == 1.6
    assert (gains["least_gain"] < 2).all() and (gains["most_gain"] > 2).all()
    span = gains[["gain_low", "gain_high"]].iloc[0]
    assert span.tolist() == pytest.approx([38 / 27.5, 44 / 22.5]), "of its slowest and fastest steps"
    assert gains["outcome"].tolist() == ["outside the interval", "not measured"]
    assert gains["gain_again"].tolist() == [2.5, 2.5], "what models say today is not what was predicted"


def test_the_gain_of_a_larger_batch_is_for_as_many_tokens(developed):
    """A step of twice the tokens that takes 1.6 times as long was called 0.6 times as fast."""
    rows = predicted(64, source="", changes="bf16+larger_batch", work=2, predicted_ns=50e6, low_ns=40e6, high_ns=80e6)
    gains = predictions.answer(rows, developed).tables["scripts"].rows
    assert gains[["predicted_gain", "measured_gain"]].to_numpy().tolist() == [[1.6, 1.25]]


def test_what_nobody_predicted_stands_beside_what_models_say_today(developed):
    besides = pd.DataFrame(
        [("a", "padding", 1, 40e6, 39e6, 41e6, 32e6, 31e6, 33e6, 31e6)], columns=list(of_runs.BESIDES)
    )
    gains = predictions.answer(predicted(20, source=""), developed, besides).tables["scripts"].rows.iloc[-1]
    assert gains["changes"] == "padded dimensions" and gains["outcome"] == "not predicted before"
    assert pd.isna(gains["predicted_gain"]) and gains["measured_gain"] == 1.25 and gains["gain_again"] > 1.25


def test_scripts_that_were_predicted_on_several_days_are_tests_of_their_own(written):
    text = written(pd.concat([predicted(20, source=""), predicted(30, source="", made_at=LATER)]))
    assert "**First test with scripts of others**" in text and "**Second test with scripts of others**" in text
    assert "**Scripts of others**" in written(predicted(20, source=""))


def test_of_other_models_it_is_said_how_their_steps_are_told(written):
    text = written(predicted(20, size="llama", kind="script", is_reference=False))
    said = r"\*\*First test, of llama\*\*, predicted \S+ as steps of scripts are, with intervals made of earlier runs"
    assert re.search(said, text)
    assert "as steps of scripts" not in written(predicted(20))


def test_tests_are_a_list_however_many_there_are(written):
    """A sentence before them that more than two tests have took the line between: they were one paragraph."""
    days = [pd.Timestamp(f"2026-01-0{day}T03:04:05Z") for day in (3, 4, 5)]
    text = written(pd.concat([predicted(20.1, made_at=day) for day in days]))
    assert "leave out contexts of 128 tokens" in text and len(re.findall(r"(?<=\n)- \*\*", text)) == 3
    assert "\n\n- **First test**" in text


def test_what_models_say_in_hindsight_may_be_further_off(developed):
    """The page said that models of today know of the measurements, as if that made them closer."""
    rows = predicted(20, 16, source="", again_ns=16e6)
    assert predictions.answer(rows, developed).facts["again"] == {
        "measured": 2,
        "closer": 1,
        "median": pytest.approx(0.1),
        "median_before": pytest.approx(0.125),
    }
