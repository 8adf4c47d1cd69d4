"""The predictions of all runs of a recording, as a table."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.changes import join_code
from profiler_job.analysis.prediction import sweep_changes
from profiler_job.analysis.prediction.abstentions import AbstentionError
from profiler_job.analysis.prediction.baseline import Tables
from profiler_job.analysis.prediction.known import Known, list_known_runs, usual_sets
from profiler_job.analysis.prediction.ledger import run_id_after
from profiler_job.analysis.prediction.predict import Abstention, Prediction
from profiler_job.jobs.contract.layout import SCRIPT

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
    try:
        rows = [
            _row(known, names, known.predict(names))
            for known in list_known_runs(recording)
            for names in usual_sets(recording)
        ]
    except AbstentionError:  # of a script that tells nothing
        rows = []
    return pd.DataFrame(rows, columns=list(COLUMNS))


IN_HINDSIGHT = ("tested_by", "step_ns", "low_ns", "high_ns", "reason")


def predict_measured(recording: Tables, mode: str) -> pd.DataFrame:
    """What the models say today of the runs of a sweep in this mode with each of the usual sets of changes, whether
    those were measured meanwhile or not: IN_HINDSIGHT; tested_by: the run that it would be. The rates know of pairs
    that were measured since, so this tests no prediction."""
    rows = [
        {"tested_by": run_id_after(known.run, names), "reason": ""} | vars(known.predict(names))
        for known in list_known_runs(recording)
        if str(known.run["mode"]) == mode and str(known.run.get("workload")) != SCRIPT
        for names in sweep_changes.USUAL
    ]
    return pd.DataFrame(rows, columns=list(IN_HINDSIGHT))


def _row(known: Known, names: Sequence[str], said: Prediction | Abstention) -> dict[str, Any]:
    row = {"run_id": str(known.run["run_id"]), "baseline_ns": known.step_ns}
    row |= {"do": join_code(tuple(names))}
    return row | ({} if isinstance(said, Abstention) else {"reason": ""}) | vars(said)
