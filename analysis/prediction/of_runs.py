"""The predictions of all runs of a recording, as a table."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.prediction import changes, rates, script_rates, scripts
from analysis.prediction.baseline import Tables, baselines
from analysis.prediction.ledger import run_id_after
from analysis.prediction.predict import Abstention, Prediction, predict
from jobs.contract.changes import DO
from jobs.contract.layout import SCRIPT

COLUMNS = (
    "run_id",
    "changes",
    "do",
    "baseline_ns",
    "step_ns",
    "low_ns",
    "high_ns",
    "ceiling_ns",
    "limited_by",
    "work",
    "reason",
)


def predictions(recording: Tables) -> pd.DataFrame:
    """Each of the usual sets of changes for each run that was timed and profiled: COLUMNS; changes is a tuple of names,
    do how they are made. Where there is no prediction, `reason` says why and times are NaN."""
    rows = _of_script(recording) if recording.manifest.get(SCRIPT) else _of_sweep(recording)
    return pd.DataFrame(rows, columns=list(COLUMNS))


IN_HINDSIGHT = ("tested_by", "step_ns", "low_ns", "high_ns", "reason")


def in_hindsight(recording: Tables, mode: str) -> pd.DataFrame:
    """What the models say today of the runs of a sweep in this mode with each of the usual sets of changes, whether
    those were measured meanwhile or not: IN_HINDSIGHT; tested_by: the run that it would be. The rates know of pairs
    that were measured since, so this tests no prediction."""
    known = rates.load()
    rows = [
        {"tested_by": run_id_after(baseline.run, names), "reason": ""} | vars(predict(baseline, names, known))
        for baseline in baselines(recording)
        if str(baseline.run["mode"]) == mode
        for names in changes.USUAL
    ]
    return pd.DataFrame(rows, columns=list(IN_HINDSIGHT))


def _of_sweep(recording: Tables) -> list[dict[str, Any]]:
    known = rates.load()
    return [
        _row(str(baseline.run["run_id"]), baseline.step_ns, names, predict(baseline, names, known))
        for baseline in baselines(recording)
        for names in changes.USUAL
    ]


def _of_script(recording: Tables) -> list[dict[str, Any]]:
    known = script_rates.load()
    try:
        step = scripts.step_of(recording, known)
    except changes.Abstains:
        return []
    return [
        _row(str(step.run["run_id"]), step.step_ns, names, scripts.predict_step(step, names, known))
        for names in scripts.USUAL
    ]


def _row(run_id: str, baseline_ns: float, names: Sequence[str], said: Prediction | Abstention) -> dict[str, Any]:
    row = {"run_id": run_id, "baseline_ns": baseline_ns, "do": "; ".join(DO[name] for name in names)}
    return row | ({} if isinstance(said, Abstention) else {"reason": ""}) | vars(said)
