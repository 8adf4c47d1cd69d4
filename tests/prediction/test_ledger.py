"""Ledgers: what is written is read, nothing is changed, and what is damaged says so in one line."""

import json
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from profiler_job.analysis.prediction import ledger
from profiler_job.analysis.prediction.ledger import LedgerError
from profiler_job.jobs.contract.integrity import add_digest

BEFORE = "small-ctx512-fp32-naive-train_step"


@pytest.fixture
def made():
    case = {"run_id": BEFORE, "size": "small", "context_length": 512, "mode": "train_step", "baseline_ns": 80e6}
    times = {"ceiling_ns": 40e6, "low_ns": 55e6, "predicted_ns": 62e6, "high_ns": 66e6, "limited_by": "GPU"}
    entries = [
        {"tested_by": f"{BEFORE}-adamw_fused", "changes": ["fused_adamw"], **times},
        {"tested_by": f"{BEFORE}-compile_default", "changes": ["compile"], "reason": "no recorded pair"},
    ]
    return ledger.Ledger(
        made_at=datetime(2026, 11, 20, tzinfo=UTC),
        program="0123456789ab",
        rates="ba9876543210",
        gpu="NVIDIA H200",
        recording={"name": "default"},
        predictions=tuple(ledger.Entry(**case, **entry) for entry in entries),
    )


def write(file, made):
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(add_digest(made.model_dump(mode="json", exclude_defaults=True)), indent=1) + "\n")


def test_a_ledger_is_read_as_it_was_written(tmp_path, made):
    write(tmp_path / "new" / "a.json", made)
    assert ledger.read(tmp_path / "new" / "a.json") == made
    assert ledger.read_all(tmp_path / "new") == [made]
    assert ledger.read_all(tmp_path / "none") == [] and ledger.read_measured(tmp_path / "none").empty


def test_a_ledger_that_is_there_twice_is_refused(tmp_path, made):
    """Its predictions would count twice."""
    write(tmp_path / "a.json", made)
    write(tmp_path / "b.json", made)
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
    write(file, made)
    file.write_text(harmed(json.loads(file.read_text()), harm))
    with pytest.raises(LedgerError) as error:
        ledger.read(file)
    assert said in str(error.value) and str(file) in str(error.value)
    assert "\n" not in str(error.value)


def measured(made, days, gpu="NVIDIA H200", wall_ns=60e6):
    """The run that tests the first prediction, so many days after that was made."""
    at, run_id = (made.made_at + timedelta(days=days)).isoformat(), made.predictions[0].tested_by
    return pd.DataFrame([{"run_id": run_id, "gpu_name": gpu, "started_at": at, "measured_ns": wall_ns}])


def test_measured_runs_are_read_from_the_file_next_to_the_ledgers(tmp_path, made):
    row = measured(made, days=1).assign(measured_min_ns=59e6, measured_max_ns=61e6, recording="a")
    row.to_csv(tmp_path / ledger.MEASURED_FILE, index=False)
    read = ledger.read_measured(tmp_path)
    assert [*read] == [*ledger.MEASURED_COLUMNS]
    assert ledger.compare_with_measured([made], read)["measured_ns"][0] == 60e6


def test_a_later_measurement_stands_beside_its_prediction(made):
    table = ledger.compare_with_measured([made], measured(made, days=1))
    first, second = table.to_dict("records")
    assert first["measured_ns"] == 60e6
    assert first["error"] == pytest.approx(62 / 60 - 1)
    assert first["inside"] and not first["beaten"]
    assert pd.isna(second["measured_ns"]) and second["reason"]


def test_a_miss_and_a_beaten_ceiling_show(made):
    table = ledger.compare_with_measured([made], measured(made, days=1, wall_ns=20e6))
    assert not table["inside"][0] and table["beaten"][0]


def test_the_first_measurement_counts_and_a_repeat_stands_next_to_it(made):
    """Whatever the order of the rows."""

    def compare(*rows):
        return ledger.compare_with_measured([made], pd.concat(rows, ignore_index=True)).to_dict("records")[0]

    once = measured(made, days=1)
    first = compare(measured(made, days=3, wall_ns=50e6), once, measured(made, days=2, wall_ns=70e6))
    assert (first["measured_ns"], first["again_ns"]) == (60e6, 60e6)
    first = compare(measured(made, days=2, wall_ns=200e6), once)
    assert first["inside"] and not first["again_inside"]
    assert pd.isna(compare(once)["again_ns"])


@pytest.mark.parametrize("facts", [{"days": -1}, {"days": 1, "gpu": "NVIDIA A100"}])
def test_what_is_no_test_of_a_prediction_is_not_held_against_it(made, facts):
    """Measured before it was made, or on another GPU."""
    table = ledger.compare_with_measured([made], measured(made, **facts))
    assert table["measured_ns"].isna().all()
    assert not table["inside"].any() and not table["beaten"].any()
