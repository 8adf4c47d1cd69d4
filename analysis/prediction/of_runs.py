"""The predictions of all runs of a recording, as a table."""

import pandas as pd

from analysis.prediction import changes
from analysis.prediction.baseline import Tables, baselines
from analysis.prediction.predict import Abstention, predict
from analysis.prediction.rates import Rates

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
    "reason",
)


def predictions(recording: Tables, rates: Rates) -> pd.DataFrame:
    """Each of `changes.USUAL` for each run that was timed and profiled: COLUMNS; changes is a tuple of names, do how
    they are made. Where there is no prediction, `reason` says why and times are NaN."""
    rows = []
    for baseline in baselines(recording):
        for names in changes.USUAL:
            said = predict(baseline, names, rates)
            row = {"run_id": str(baseline.run["run_id"]), "baseline_ns": baseline.step_ns}
            row["do"] = "; ".join(changes.CHANGES[name].how for name in names)
            rows.append(row | ({"reason": ""} if not isinstance(said, Abstention) else {}) | vars(said))
    return pd.DataFrame(rows, columns=list(COLUMNS))
