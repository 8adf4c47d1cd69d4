"""Runs recorded on an H200, each as the baseline of predictions: data/h200_baselines, made with `baselines` from the
default sweep, its twin in BF16, the studies of precision, optimizer and compile, and the runs that tested predictions,
without kernels on the site. passes_ns is NaN but in the three that have them."""

import math
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.prediction import rates
from profiler_job.analysis.prediction.baseline import KEY, Baseline, Clock

FOLDER = Path(__file__).parents[1] / "data" / "h200_baselines"


def read() -> dict[str, list[Baseline]]:
    tables = {name: pd.read_parquet(FOLDER / f"{name}.parquet") for name in ("runs", "parts", "clocks")}
    texts = {
        name: frame.astype({c: str for c in frame if frame[c].dtype == "category"}) for name, frame in tables.items()
    }
    key = ["recording", "run_id"]
    parts = {at: part[[*KEY, "launches", "time_ns"]] for at, part in texts["parts"].groupby(key)}
    clocks = {at: part.set_index("phase") for at, part in texts["clocks"].groupby(key)}
    known: dict[str, list[Baseline]] = {}
    for run in texts["runs"].to_dict("records"):
        at = (run["recording"], run["run_id"])
        times = {phase: Clock(row["wall_ns"], row["issue_ns"]) for phase, row in clocks[at].iterrows()}
        passes_ns = run.pop("passes_ns")
        known.setdefault(run["recording"], []).append(
            Baseline(run=run, parts=parts[at], clocks=times, passes_ns=passes_ns)
        )
    return known


@pytest.fixture(scope="session")
def recorded() -> dict[str, list[Baseline]]:
    """Baselines by recording."""
    return read()


@pytest.fixture(scope="session")
def run(recorded):
    """run(recording, run_id): one of them."""
    by_name = {(name, one_run.run["run_id"]): one_run for name, runs in recorded.items() for one_run in runs}
    return lambda recording, run_id: by_name[recording, run_id]


@pytest.fixture(scope="session")
def shipped() -> rates.Rates:
    return rates.load()


def no_host_times(baseline: Baseline) -> Baseline:
    clocks = {phase: Clock(clock.wall_ns, math.nan) for phase, clock in baseline.clocks.items()}
    return Baseline(run=baseline.run, parts=baseline.parts, clocks=clocks)
