"""On every shipped run: the first advice has evidence, fits the limit, and no other sentence contradicts it."""

from functools import cache

import pytest

from profiler_job.analysis.insight import run_advice, run_limit
from profiler_job.analysis.metrics import kernel_time, step_clocks, step_limits
from profiler_job.analysis.prediction import recording_predictions
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference.track_record import CLOSE
from tests.insight.contradictions import find_contradictions
from tests.shipped.recordings import DATA, RECORDINGS

pytestmark = pytest.mark.long

SCRIPTS = sorted(path.parent for path in DATA.glob("predictions/*/manifest.json"))
MAIN = [path for path in RECORDINGS if path.name in ("h200-fp32", "h200-bf16", "gpus", "compile")]


@cache
def list_advice(folder):
    """List run_id, limit, advice and ranked changes of each run of a recording."""
    rec = store.load(folder)
    limits = step_limits.find_limits(rec.steps, rec.kernels, rec.memops)
    timed = step_clocks.clocks(rec.steps)
    tables = {
        "elapsed": run_limit.split_steps(rec.kernels, rec.memops),
        "findings": run_limit.find(rec.kernels, rec.memops),
        "totals": kernel_time.kernel_totals(rec.kernels),
        "api": rec.api,
    }
    predicted = recording_predictions.predictions(rec)
    made = []
    for run in rec.runs.to_dict("records"):
        run_id = str(run["run_id"])
        rows = {name: table[table["run_id"].astype(str) == run_id] for name, table in tables.items()}
        advised = run_advice.advise(run, **rows, timed=timed.get(run_id, {}), limit=limits.get(run_id))
        ranked = run_advice.rank_changes(advised, predicted[predicted["run_id"] == run_id], predicted.head(0))
        if len(advised):
            made.append((run_id, limits[run_id], advised, ranked))
    return made


@pytest.mark.parametrize("folder", [*SCRIPTS, *MAIN], ids=lambda path: path.name)
def test_the_first_advice_has_evidence_fits_the_limit_and_nothing_contradicts_it(folder):
    for run_id, limit, table, _ in list_advice(folder):
        assert find_contradictions(limit, table) == [], run_id


@pytest.mark.parametrize("folder", [*SCRIPTS, *MAIN], ids=lambda path: path.name)
def test_predictions_do_not_contradict_the_advice(folder):
    for run_id, _, _, ranked in list_advice(folder):
        names = [entry["changes"] for entry in ranked]
        assert len(names) == len(set(names)), f"{run_id}: a change is listed twice"
        first = next((entry for entry in ranked if not entry["reason"]), None)
        if first and first["gain_ns"] is not None:
            assert first["gain_ns"] > 0 and first["least_ns"] > 0, run_id
            assert first["gain_ns"] <= first["ceiling_ns"] * (1 + CLOSE), run_id
