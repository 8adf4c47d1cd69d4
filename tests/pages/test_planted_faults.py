"""A recording whose tables were exchanged, scaled, doubled or lost breaches a check: on two runs of the shipped one."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from analysis.pages import reconciliation
from analysis.recording import store

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[2] / "site" / "data"
MEASURED = ("steps", "ranges", "kernels", "api", "memops", "memory", "nsys_sums")
SHORT, LONG = (f"medium-ctx{context}-fp32-naive-train_step" for context in (512, 1024))


@pytest.fixture(scope="module")
def two():
    rec = store.load(DATA / "h200-fp32")
    tables = {name: getattr(rec, name) for name in (*MEASURED, "runs")}
    tables = {name: frame[frame["run_id"].isin([SHORT, LONG])] for name, frame in tables.items()}
    return dataclasses.replace(
        rec, **{name: frame.astype({"run_id": str}).reset_index(drop=True) for name, frame in tables.items()}
    )


def breaches(rec):
    table = reconciliation.checks_of(rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums)
    return set(table.loc[~table["passed"], "check"])


def changed(rec, change):
    return dataclasses.replace(rec, **{name: change(getattr(rec, name)) for name in MEASURED})


def scaled(rec, factor, *names):
    """Times of the tables `names` multiplied, and nsys's own sums with them, so that these do not tell."""
    tables = {}
    for name in names:
        columns = [column for column in ("start_ns", "end_ns", "wall_ns") if column in getattr(rec, name)]
        tables[name] = getattr(rec, name).assign(
            **{column: (getattr(rec, name)[column] * factor).astype("int64") for column in columns}
        )
    return dataclasses.replace(rec, nsys_sums=rec.nsys_sums.head(0), **tables)


def test_two_runs_of_a_recording_hold_all_checks(two):
    assert not breaches(two)


def test_exchanged_tables_of_two_runs_are_faster_than_the_gpu(two):
    other = {SHORT: LONG, LONG: SHORT}
    found = changed(two, lambda frame: frame.assign(run_id=frame["run_id"].map(other)))
    assert "gemm_rate" in breaches(found)


def test_times_that_are_too_short_are_faster_than_the_gpu(two):
    found = breaches(scaled(two, 0.4, "steps", "kernels", "memops"))
    assert {"gemm_rate", "mfu", "copy_rate"} <= found


def test_matmuls_that_move_bytes_faster_than_memory_are_seen(two):
    assert "gemm_bytes" in breaches(scaled(two, 0.05, "kernels"))


def test_kernels_that_take_longer_than_their_step_are_seen(two):
    assert "span" in breaches(scaled(two, 1.1, "kernels", "memops"))


def test_doubled_rows_are_seen(two):
    found = breaches(dataclasses.replace(two, kernels=pd.concat([two.kernels, two.kernels], ignore_index=True)))
    assert {"forward_matmuls", "backward_matmuls", "busy"} & found and "nsys_sums" in found


def test_a_run_whose_measurements_are_gone_is_seen(two):
    found = changed(two, lambda frame: frame[frame["run_id"] != LONG])
    assert {"timed_steps", "profiled_steps"} <= breaches(found)
