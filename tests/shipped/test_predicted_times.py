"""Predicted time and output of sweeps against the shipped recordings."""

from itertools import accumulate
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import SCRIPT, Protocol
from profiler_job.jobs.executor.events import Estimate
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from profiler_job.jobs.sweep.prediction import compute_timeout, predict_seconds
from profiler_job.jobs.workloads.transformer.costs import EVENTS_PER_LAYER, step_events
from tests.jobs.test_events import at  # noqa: F401
from tests.shipped.recordings import RECORDINGS, locate

SWEEP = load_sweep(DEFAULT_SWEEP)
IN_PIECES = "trained_5"
"""A recording whose sweep was stopped and went on: the time of its runs has seven stages that were measured twice."""
WITHOUT_THEIR_CAPTURES = ("optimizer_128", "precision_512")
"""Recordings of runs whose captures were left out, and took part of the measured time."""
TABLES_OF_EVENTS = ("kernels", "memops", "ranges")


@pytest.fixture(scope="module")
def walls():
    """Seconds that each run of the default sweep took."""
    return store.load_table(locate("h200-fp32"), "runs").set_index("run_id")["wall_s"]


def test_no_run_came_near_its_timeout_and_no_timeout_is_longer_than_an_hour(walls):
    for run in SWEEP.runs:
        timeout = compute_timeout(run, SWEEP.protocol)
        assert 5 * walls[run.run_id] < timeout < 3600


def find_predicted_and_measured(folder: Path) -> tuple[float, float]:
    """Return the seconds that were predicted for the runs of a recording that ended well, and that they took; 0 of
    workloads without predictions."""
    runs = store.load_table(folder, "runs")
    predicted = measured = 0.0
    of_sweeps = runs[(runs["status"] == "ok") & (runs["workload"].astype(str) != SCRIPT)]
    for row in of_sweeps.to_dict("records"):
        run = Run(**{name: row[name] for name in Run.model_fields if name in row})
        protocol = Protocol(**{name: row[name] for name in Protocol.model_fields if name in row})
        seconds = predict_seconds(run, protocol)
        if seconds is not None and row["gpu_name"] == "NVIDIA H200":
            predicted, measured = predicted + seconds, measured + row["wall_s"]
    return predicted, measured


def test_the_time_of_each_recording_is_predicted_within_30_percent():
    ratios = {}
    for folder in RECORDINGS:
        if (folder / "runs.parquet").is_file() and folder.name not in WITHOUT_THEIR_CAPTURES:
            predicted, measured = find_predicted_and_measured(folder)
            ratios |= {folder.name: predicted / measured} if measured else {}
    assert len(ratios) > 25
    assert {name: ratio for name, ratio in ratios.items() if not 1 / 1.3 < ratio < 1.3 and name != IN_PIECES} == {}
    assert 0.7 < ratios[IN_PIECES] < 1.3


def largest_part_of_predicted(folder: Path) -> dict[str, float]:
    """Return, by mode, the largest ratio of measured to predicted events in one profiled step of a recording."""
    runs = parquet.read_table(folder / "runs.parquet").to_pandas().astype({"run_id": str}).set_index("run_id")
    runs = run_grid.select_known_shapes(runs[(runs["status"] == "ok") & (runs["profiled_steps"] > 0)])
    rows = {
        name: parquet.read_table(folder / f"{name}.parquet", columns=["run_id"])
        for name in TABLES_OF_EVENTS
        if (folder / f"{name}.parquet").is_file()  # a table without rows has no file
    }
    counts = [table.to_pandas()["run_id"].astype(str).value_counts() for table in rows.values()]
    if (folder / "api.parquet").is_file():
        calls = parquet.read_table(folder / "api.parquet", columns=["run_id", "calls"]).to_pandas()
        counts.append(calls.astype({"run_id": str}).groupby("run_id")["calls"].sum())
    if not counts:
        return {}
    events = sum(count.reindex(runs.index, fill_value=0) for count in counts)
    fields = [name for name in Run.model_fields if name in runs]
    predicted = [step_events(Run(**run)) for run in runs[fields].to_dict("records")]
    return (events / runs["profiled_steps"] / predicted).groupby(runs["mode"].astype(str)).max().to_dict()


@pytest.mark.long
def test_no_recorded_step_has_more_events_than_predicted_and_some_has_nearly_as_many():
    """The number of layers is known before only for the reference Transformer."""
    found = [largest_part_of_predicted(folder) for folder in RECORDINGS]
    for mode in EVENTS_PER_LAYER:
        assert 0.9 < max(one.get(mode, 0) for one in found) <= 1, mode


def test_the_estimate_is_within_a_fifth_from_the_tenth_run_of_the_shipped_recording(at, walls):  # noqa: F811
    estimate = Estimate({run.run_id: predict_seconds(run, SWEEP.protocol) for run in SWEEP.runs})
    total = walls.sum()
    for number, (run, elapsed) in enumerate(zip(SWEEP.runs, accumulate(walls[run.run_id] for run in SWEEP.runs)), 1):
        at(elapsed)
        estimate.finish(run.run_id, walls[run.run_id])
        if 10 <= number < 60:
            assert estimate.remaining_s == pytest.approx(total - elapsed, rel=0.2)
