"""The shipped predictions, made before the runs that tested them."""

import pytest

from profiler_job.analysis.prediction import ledger
from tests.shipped.recordings import DATA
from tests.shipped_sweeps import find_runs

SHIPPED = DATA / ledger.FOLDER


OF_SWEEPS = [file for file in sorted(SHIPPED.glob("*.json")) if not file.stem.startswith("script-")]


@pytest.mark.parametrize("file", OF_SWEEPS, ids=lambda file: file.stem)
def test_the_shipped_predictions_are_of_the_runs_of_their_sweep(file):
    planned = find_runs(file.stem)
    tested_by, runs = {entry.tested_by for entry in ledger.read(file).predictions}, {run.run_id for run in planned}
    # Of a ladder --only chooses the steps.
    chosen = planned[0].workload == "hf" or file.stem == "compile_larger"
    assert tested_by < runs if chosen else tested_by == runs


def test_fewer_than_a_third_of_the_shipped_predictions_are_none():
    entries = [entry for made in ledger.read_all(SHIPPED) for entry in made.predictions]
    assert 0 < sum(bool(entry.reason) for entry in entries) < len(entries) / 3
