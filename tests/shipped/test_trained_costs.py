"""What each run of `trained` costs, on the list of runs: none is left out, whatever its workload, mode or batch."""

from datetime import date

import pandas as pd
import pytest

from profiler_job.analysis.pages import run_list
from profiler_job.analysis.pages.telemetry import Price
from profiler_job.analysis.recording import store
from tests.shipped.recordings import RECORDINGS

PRICE = Price(4.59, date(2026, 10, 7))
TRAINED = [path for path in RECORDINGS if path.parent.name == "trained"]


@pytest.mark.parametrize("folder", TRAINED, ids=lambda path: path.name)
def test_every_run_has_time_tokens_mfu_energy_and_a_price(folder):
    rec = store.load(folder)
    tables = (rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry)
    rows = run_list.answer(*tables, PRICE).tables["runs"].rows.set_index("run_id")
    of_tokens = ["timer_ns", "tokens_per_s", "mfu", "joules_per_1k", "cost_per_million"]
    assert len(rows) == len(rec.runs) and (rows[of_tokens] > 0).all(axis=None)
    assert rows["mfu"].between(0.02, 0.6).all()
    runs = rec.runs.astype({"run_id": str}).set_index("run_id").loc[rows.index]
    tokens = runs["batch_size"] * runs["context_length"]  # of all micro-batches
    pd.testing.assert_series_equal(rows["tokens_per_s"], tokens / rows["timer_ns"] * 1e9, check_names=False, atol=1)
    dollars = PRICE.per_hour / 3600 / rows["tokens_per_s"] * 1e6
    pd.testing.assert_series_equal(rows["cost_per_million"], dollars, check_names=False, atol=1e-4, rtol=1e-3)
