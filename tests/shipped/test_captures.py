"""Gains predicted from captures against what the shipped recordings measured afterwards."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.prediction import ledger
from profiler_job.analysis.prediction.captures import summarise_with_gains
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.layout import name_changed
from tests.prediction.rebuilt import capture_of
from tests.prediction.test_captures import XL, rows_of, summary_of_steps, unpack_run
from tests.shipped.recordings import DATA, RECORDINGS, load_timed, locate


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "sweep", "after"),
    [
        ("tf32", "ladder_precision", "xl-ctx256-tf32-naive-train_step"),
        ("bf16", "ladder_precision", "xl-ctx256-bf16-naive-train_step"),
        ("fused_adamw", "ladder_optimizer", f"{XL}-adamw_fused"),
    ],
)
def test_in_hindsight_what_was_measured_lies_in_the_interval_of_a_capture(tmp_path, change, sweep, after):
    """The rates were fitted to these runs, too."""
    medians = {
        name: ledger.spans_of_steps(load_timed(locate(name)).steps)["measured_ns"] for name in (sweep, "h200-fp32")
    }
    measured = 1 - medians[sweep][after] / medians["h200-fp32"][XL]
    summary = summary_of_steps(unpack_run(XL, tmp_path))
    row = rows_of(summary).loc[change]
    captured_ns = summary.capture["work_end_ns"] - summary.capture["work_start_ns"]
    assert row["gain_least_ns"] / captured_ns < measured < row["gain_most_ns"] / captured_ns
    assert row["gain_ns"] / captured_ns == pytest.approx(measured, abs=0.06)
    assert row["gain_ns"] <= row["gain_most_ns"] <= row["ceiling_ns"]


def predict_measured(recording, run_id, measured, after) -> pd.DataFrame:
    """Of each predicted gain whose change was measured: change, error of the step, and whether it lies inside. Both as
    parts of the time before, which is longer in a capture. after: run id with a change."""
    summary = summarise_with_gains(capture_of(recording, run_id))
    captured_ns = summary.capture["work_end_ns"] - summary.capture["work_start_ns"]
    table = summary.sections["advice"].dropna(subset=["gain_ns"])
    known = [after(change) in measured and after(change) != run_id for change in table["change"]]
    table = table[np.array(known, bool)]
    step = np.array([measured[after(change)] / measured[run_id] for change in table["change"]])
    said, least, most = (
        1 - table[name].to_numpy(float) / captured_ns for name in ("gain_ns", "gain_least_ns", "gain_most_ns")
    )
    inside = (most <= step) & (step <= least)
    return pd.DataFrame({"change": table["change"], "error": said / step - 1, "inside": inside})


@pytest.mark.nightly
def test_in_hindsight_captures_of_recorded_runs_tell_what_was_measured():
    """The guide gives these figures. The rates were fitted to most of these runs."""
    recordings = {folder.name: store.load(folder) for folder in RECORDINGS}
    not_alike = ("again", "warm_up", "gpus", "memory")
    rows = [
        ledger.spans_of_steps(rec.steps)["measured_ns"] for name, rec in recordings.items() if name not in not_alike
    ]
    measured = pd.concat(rows).groupby(level=0).median().to_dict()
    tables = []
    for name in ("h200-fp32", "precision", "optimizer", "h200-bf16", "compile"):
        runs = recordings[name].runs.astype({"run_id": str, "mode": str, "status": str})
        for run in runs[(runs["mode"] == "train_step") & (runs["status"] == "ok")].to_dict("records"):
            after = partial(lambda run, change: ledger.run_id_after(run, (change,)), run)
            tables.append(predict_measured(recordings[name], run["run_id"], measured, after))
    table = pd.concat(tables)
    assert len(table) == 43 and table["inside"].all()
    assert table["error"].abs().median() == pytest.approx(0.018, abs=0.001)


@pytest.mark.long
def test_in_hindsight_captures_of_scripts_tell_what_was_measured():
    recording = store.load(DATA / ledger.FOLDER / "run-clm")
    measured = ledger.spans_of_steps(recording.steps)["measured_ns"].to_dict()
    tables = [
        predict_measured(recording, run_id, measured, lambda change, run_id=run_id: name_changed(run_id, (change,)))
        for run_id in ("run-clm", "run-clm-adamw", "run-clm-eager")
    ]
    table = pd.concat(tables).set_index("change")
    assert set(table.index) == {"bf16", "tf32"} and table["inside"].all()
    assert table["error"].round(2).to_dict() == {"bf16": -0.17, "tf32": -0.07}
