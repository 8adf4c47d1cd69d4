"""On every shipped run: the first advice has evidence, fits the limit, and no other sentence contradicts it."""

from functools import cache

import pandas as pd
import pytest

from profiler_job.analysis.insight import run_advice, run_limit
from profiler_job.analysis.insight.advice_lines import MOST_BOUND
from profiler_job.analysis.metrics import kernel_time, step_clocks, step_limits
from profiler_job.analysis.prediction.measured import COLUMNS, measure_gains
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.changes import SYNCHRONISATIONS
from tests.insight.contradictions import find_contradictions
from tests.shipped.recordings import RECORDINGS

pytestmark = pytest.mark.long

MAIN = [path for path in RECORDINGS if path.name in ("h200-fp32", "trained_2", "gpus", "compile")]
CHANGED = [
    path
    for path in RECORDINGS
    if path.name in ("h200-fp32", "compile", "compile_gpt2", "changes_1", "changes_2", "gpus")
]


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
    made = []
    for run in rec.runs.to_dict("records"):
        run_id = str(run["run_id"])
        rows = {name: table[table["run_id"].astype(str) == run_id] for name, table in tables.items()}
        advised = run_advice.advise(run, **rows, timed=timed.get(run_id, {}), limit=limits.get(run_id))
        ranked = run_advice.rank_changes(advised, pd.DataFrame(columns=[*COLUMNS]))
        if len(advised):
            made.append((run_id, limits[run_id], advised, ranked))
    return made


@pytest.mark.parametrize("folder", MAIN, ids=lambda path: path.name)
def test_the_first_advice_has_evidence_fits_the_limit_and_nothing_contradicts_it(folder):
    for run_id, limit, table, _ in list_advice(folder):
        assert find_contradictions(limit, table) == [], run_id


@pytest.mark.parametrize("folder", MAIN, ids=lambda path: path.name)
def test_a_change_is_listed_once_and_without_a_measurement_as_a_bound(folder):
    for run_id, _, _, ranked in list_advice(folder):
        names = [entry["changes"] for entry in ranked]
        assert len(names) == len(set(names)), f"{run_id}: a change is listed twice"
        assert all(entry["gain_ns"] is None for entry in ranked), run_id


def test_no_measured_gain_is_above_its_bound():
    """Of steps whose processes agree. A gain that two hosts explain is none."""
    gains = measure_gains({path.name: store.load(path) for path in RECORDINGS}, None)
    gains = gains[(gains["changes"].map(len) == 1) & (gains["apart"] < 0.1)]
    is_other = ~gains["changes"].isin([("bf16",), ("tf32",)])
    assert 4 < gains.loc[is_other, "times_as_fast"].max() < MOST_BOUND, "a larger bound says nothing"
    held = []
    for run_id, limit, table, _ in (row for folder in CHANGED for row in list_advice(folder)):
        bounds = table[table["reason"] == ""].set_index("change")["ceiling_ns"]
        for gain in gains[gains["run_id"] == run_id].to_dict("records"):
            (change,) = gain["changes"]
            is_same = abs(gain["before_ns"] / limit.step_ns - 1) < 0.02
            if is_same and change in bounds:
                saved_ns = gain["before_ns"] * (1 - gain["apart"]) - gain["after_ns"]
                assert saved_ns <= bounds[change], f"{run_id}: {change}"
                held.append(change)
    assert len(held) >= 50 and len(set(held)) == 6, held


@pytest.mark.parametrize("folder", MAIN, ids=lambda path: path.name)
def test_nobody_is_advised_to_leave_out_the_synchronisations_of_our_timer(folder):
    for run_id, _, table, _ in list_advice(folder):
        assert SYNCHRONISATIONS not in set(table["change"]), run_id
