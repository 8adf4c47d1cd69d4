"""Ledgers: what is written is read, nothing is changed, and what is damaged says so in one line."""

import json
from datetime import timedelta
from types import SimpleNamespace

import pandas as pd
import pytest

from profiler_job.analysis.prediction import ledger, predict, rates
from profiler_job.analysis.prediction.ledger import LedgerError
from profiler_job.jobs.contract.integrity import add_digest

BEFORE = "small-ctx512-fp32-naive-train_step"


@pytest.fixture
def made(run, shipped):
    before = run("default", BEFORE)
    said = [predict.predict(before, names, shipped) for names in (["fused_adamw"], ["compile"])]
    entries = [ledger.entry(before.run, before.step_ns, one_said) for one_said in said]
    return ledger.made_now({"name": "default", "gpu": shipped.gpu}, [rates.FILE], entries)


def test_a_ledger_is_read_as_it_was_written(tmp_path, made):
    ledger.write(tmp_path / "new" / "a.json", made)
    assert ledger.read(tmp_path / "new" / "a.json") == made
    assert ledger.read_all(tmp_path / "new") == [made]
    assert ledger.read_all(tmp_path / "none") == []


def test_a_ledger_names_the_commit_of_the_program(shipped, monkeypatch):
    monkeypatch.setenv("PROFILER_COMMIT", "0123456789ab")
    assert ledger.made_now({"gpu": shipped.gpu}, [rates.FILE], []).program == "0123456789ab"


def test_a_prediction_names_the_run_that_tests_it(made):
    assert [entry.tested_by for entry in made.predictions] == [
        "small-ctx512-fp32-naive-train_step-adamw_fused",
        "small-ctx512-fp32-naive-train_step-compile_default",
    ]
    assert made.predictions[0].predicted_ns and not made.predictions[0].reason
    assert made.predictions[1].predicted_ns is None and made.predictions[1].reason


def make_prediction(limited_by, low_ns, high_ns):
    return predict.Prediction(
        changes=("tf32",), baseline_ns=50e6, step_ns=40e6, low_ns=low_ns, high_ns=high_ns, ceiling_ns=1e6,
        gpu_ns=10e6, limited_by=limited_by, reasons=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limited_by", "low_ns", "high_ns", "has_time"),
    [("host", 36e6, 44e6, True), ("host", 30e6, 44e6, False), ("host", 36e6, 60e6, False), ("GPU", 30e6, 60e6, True)],
)
def test_what_another_host_would_change_is_kept_without_its_time(run, limited_by, low_ns, high_ns, has_time):
    """Whoever tests it may have another host than the one that was recorded."""
    before = run("default", BEFORE)
    kept = ledger.entry(before.run, before.step_ns, make_prediction(limited_by, low_ns, high_ns))
    assert (kept.predicted_ns is not None) == has_time
    assert ("hosts differ by more than 20%" in kept.reason) == (not has_time)


def test_a_larger_batch_is_tested_by_a_run_with_twice_the_sequences(run):
    before = run("default", BEFORE).run
    assert ledger.run_id_after(before, ["larger_batch"]) == f"{BEFORE}-batch8"


def test_no_run_tests_the_prediction_of_a_run_that_no_sweep_can_have(run):
    before = dict(run("default", BEFORE).run) | {"size": "medium<img src=x>"}
    assert ledger.run_id_after(before, ["tf32"]) == ""


def test_what_was_predicted_is_never_changed(tmp_path, made):
    ledger.write(tmp_path / "a.json", made)
    with pytest.raises(LedgerError, match="is there already, and predictions are never changed"):
        ledger.write(tmp_path / "a.json", made)


def test_a_ledger_that_is_there_twice_is_refused(tmp_path, made):
    """Its predictions would count twice."""
    ledger.write(tmp_path / "a.json", made)
    ledger.write(tmp_path / "b.json", made)
    with pytest.raises(LedgerError, match=r"b\.json holds the same predictions as a\.json: leave one out"):
        ledger.read_all(tmp_path)


def harmed(content, harm):
    entry = content["predictions"][0]
    match harm:
        case "edited":
            entry["predicted_ns"] *= 2
            return json.dumps(content)
        case "cut":
            return json.dumps(content)[:200]
        case "list":
            return "[1]"
        case "binary":
            return "\x00\ud7ff"
        case "lower":
            entry["predicted_ns"] = 1.0
        case "no time":
            del entry["low_ns"]
        case "no zone":
            content["made_at"] = "2026-01-02T03:04:05"
        case "text":
            entry["predicted_ns"] = "fast"
        case "other key":
            entry["more"] = 1
        case "no list":
            content["predictions"] = 5
    return json.dumps(add_digest(content))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("edited", "its digest differs"),
        ("cut", "cannot be read as a ledger"),
        ("list", "its digest differs"),
        ("binary", "cannot be read as a ledger"),
        ("lower", "are not in order"),
        ("no time", "a prediction needs"),
        ("no zone", "made_at"),
        ("text", "predicted_ns"),
        ("other key", "more"),
        ("no list", "predictions"),
    ],
)
def test_a_damaged_ledger_says_so_in_one_line(tmp_path, made, harm, said):
    file = tmp_path / "a.json"
    ledger.write(file, made)
    file.write_text(harmed(json.loads(file.read_text()), harm))
    with pytest.raises(LedgerError) as error:
        ledger.read(file)
    assert said in str(error.value) and str(file) in str(error.value)
    assert "\n" not in str(error.value)


def measured(made, days, gpu="NVIDIA H200", wall_ns=60e6, status="ok"):
    """A recording of the run that tests the first prediction, so many days after that was made."""
    at, run_id = (made.made_at + timedelta(days=days)).isoformat(), made.predictions[0].tested_by
    runs = pd.DataFrame([{"run_id": run_id, "status": status, "gpu_name": gpu, "started_at": at}])
    steps = pd.DataFrame([{"run_id": run_id, "collector": "timer", "phase": "step", "wall_ns": wall_ns}])
    return SimpleNamespace(runs=runs, steps=steps)


def test_a_later_measurement_stands_beside_its_prediction(made):
    table = ledger.compare_with_measured([made], [measured(made, days=1)])
    first, second = table.to_dict("records")
    assert first["measured_ns"] == 60e6
    assert first["error"] == pytest.approx(made.predictions[0].predicted_ns / 60e6 - 1)
    assert first["inside"] and not first["beaten"]
    assert pd.isna(second["measured_ns"]) and second["reason"]


def test_a_miss_and_a_beaten_ceiling_show(made):
    table = ledger.compare_with_measured([made], [measured(made, days=1, wall_ns=made.predictions[0].ceiling_ns / 2)])
    assert not table["inside"][0] and table["beaten"][0]


def test_the_first_measurement_counts_and_a_repeat_stands_next_to_it(made):
    """Whatever the order of the recordings."""
    recordings = [measured(made, days=3, wall_ns=50e6), measured(made, days=1), measured(made, days=2, wall_ns=70e6)]
    first = ledger.compare_with_measured([made], recordings).to_dict("records")[0]
    assert (first["measured_ns"], first["again_ns"]) == (60e6, 60e6)
    entry = made.predictions[0]
    beyond = measured(made, days=2, wall_ns=2 * entry.high_ns)
    first = ledger.compare_with_measured([made], [beyond, measured(made, days=1)]).to_dict("records")[0]
    assert first["inside"] and not first["again_inside"]
    assert pd.isna(ledger.compare_with_measured([made], [measured(made, days=1)])["again_ns"][0])


@pytest.mark.parametrize("facts", [{"days": -1}, {"days": 1, "gpu": "NVIDIA A100"}, {"days": 1, "status": "oom"}])
def test_what_is_no_test_of_a_prediction_is_not_held_against_it(made, facts):
    """Measured before it was made, on another GPU, or not to the end."""
    table = ledger.compare_with_measured([made], [measured(made, **facts)])
    assert table["measured_ns"].isna().all()
    assert not table["inside"].any() and not table["beaten"].any()
