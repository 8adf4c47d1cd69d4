"""The predictions of all runs of a recording, as a table."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.prediction import sweep_changes
from profiler_job.analysis.prediction.baseline import Tables
from profiler_job.analysis.prediction.known import Known, list_known_runs, usual_sets
from profiler_job.analysis.prediction.ledger import MEASURED, run_id_after, spans_of_steps
from profiler_job.analysis.prediction.predict import Abstention, Prediction
from profiler_job.jobs.contract.changes import DO, LABELS
from profiler_job.jobs.contract.layout import SCRIPT, name_changed

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
    except sweep_changes.Abstains:  # of a script that tells nothing
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


def predict_again(predicted: pd.DataFrame, recordings: Iterable[Tables]) -> pd.Series:
    """Of each row of `predicted`, as of `ledger.compare_with_measured`, the step in ns that the models of today tell
    from the same run; NaN where no recording has its kernels, or where there is none."""
    known = {str(run.run["run_id"]): run for recording in recordings for run in list_known_runs(recording)}
    times = []
    for run_id, names in zip(predicted["run_id"], predicted["changes"]):
        said = known[run_id].predict(names.split("+")) if run_id in known else None
        times.append(said.step_ns if isinstance(said, Prediction) else float("nan"))
    return pd.Series(times, predicted.index, dtype=float)


BESIDES = ("run_id", "changes", "work", "baseline_ns", "baseline_min_ns", "baseline_max_ns", *MEASURED, "again_ns")


def list_unpredicted(predicted: pd.DataFrame, recordings: Iterable[Tables]) -> pd.DataFrame:
    """Scripts that were measured with changes of which nothing was predicted before: BESIDES, in ns, again_ns as of
    `predict_again`. A run with changes has the name of the one without and the changes behind it."""
    recordings = [*recordings]
    times = {run: span for recording in recordings for run, *span in spans_of_steps(recording.steps).itertuples()}
    sets = {tuple(names.split("+")) for names in predicted["changes"]} | {(name,) for name in LABELS}
    kept = {*zip(predicted["run_id"], predicted["changes"])}
    rows = []
    for known in (run for recording in recordings for run in list_known_runs(recording)):
        run_id = str(known.run["run_id"])
        for names in sorted(sets):
            changed, joined = times.get(name_changed(run_id, names)), "+".join(names)
            if str(known.run.get("workload")) == SCRIPT and changed and (run_id, joined) not in kept:
                said = known.predict(names)
                again_ns = said.step_ns if isinstance(said, Prediction) else float("nan")
                rows.append((run_id, joined, sweep_changes.work_of(names), *times[run_id], *changed, again_ns))
    return pd.DataFrame(rows, columns=list(BESIDES))


def _row(known: Known, names: Sequence[str], said: Prediction | Abstention) -> dict[str, Any]:
    row = {"run_id": str(known.run["run_id"]), "baseline_ns": known.step_ns}
    row |= {"do": "; ".join(DO[name] for name in names)}
    return row | ({} if isinstance(said, Abstention) else {"reason": ""}) | vars(said)
