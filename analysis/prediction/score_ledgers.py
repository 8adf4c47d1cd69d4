"""Makes the track record that advice is said with, from the ledgers and recordings in a folder.

python -m profiler_job.analysis.prediction.score_ledgers site/data
"""

import json
import sys
from pathlib import Path

import pandas as pd

from profiler_job.analysis.prediction import ledger, predict, rates, script_rates
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference.track_record import AS_SCRIPT, CLOSE, FILE, SWEEP, Record
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.studies import find_recordings


def records(predicted: pd.DataFrame, developed: pd.DataFrame) -> dict[str, Record]:
    """By change. predicted: as in `ledger.compare_with_measured`; developed: as in `predict.predict_development`."""
    pairs = developed[developed["error"].notna()]
    made = {}
    for names in dict.fromkeys([*predicted["changes"], *pairs["changes"]]):
        rows = predicted[predicted["changes"] == names]
        kept = rows[rows["predicted_ns"].notna()]
        tested = kept["error"].dropna().abs()
        errors = pairs.loc[pairs["changes"] == names, "error"].abs()
        close = (int((values <= CLOSE).sum()) for values in (tested, errors))
        made[names] = Record(len(kept), len(rows) - len(kept), len(tested), next(close), len(errors), next(close))
    return made


def score_folder(data: Path) -> dict[str, dict[str, Record]]:
    recordings = [store.load(folder) for folder in find_recordings(data)] + ledger.recordings(data)
    predicted = ledger.compare_with_measured(ledger.read_all(data / ledger.FOLDER), recordings)
    of_kind = {kind: predicted[predicted["kind"] == kind] for kind in (SWEEP, AS_SCRIPT, SCRIPT)}
    scripts = pd.DataFrame(script_rates.load().errors).assign(error=lambda pairs: 1 / pairs["ratio"] - 1)
    return {
        SWEEP: records(of_kind[SWEEP], predict.predict_development(rates.load())),
        AS_SCRIPT: records(of_kind[AS_SCRIPT], scripts.head(0)),
        SCRIPT: records(of_kind[SCRIPT], scripts),
    }


if __name__ == "__main__":
    made = score_folder(Path(sys.argv[1]))
    rows = {of: {names: record._asdict() for names, record in part.items()} for of, part in made.items()}
    FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
