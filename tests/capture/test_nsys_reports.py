"""Our summaries equal what `nsys stats` prints for the same capture, number by number; only the versions that it prints
in some names of API functions are left out."""

import functools
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.capture import chosen_part, nsys_reports
from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.reference import cuda_api

from .profiles import NAMES, nsys_csv, profile

# Statistics that nsys prints with one decimal; every other number must be equal.
_ROUNDED = ("Avg", "Med", "StdDev", "Time (%)")
_KEYS = ("Name", "Operation", "Range", "Style", "NVTX Range", "PID", "TID", "DevId", "API Name", "Kernel Name")


@functools.cache
def _read(path):
    capture = read(path)
    return capture, attribute(capture)


def _keyed(frame: pd.DataFrame) -> pd.DataFrame:
    keys = [name for name in frame.columns if name in _KEYS]
    frame[keys] = frame[keys].astype(object).fillna("").astype(str)
    assert not frame.duplicated(keys).any()
    return frame.set_index(keys).sort_index()


def _without_versions(printed: pd.DataFrame) -> pd.DataFrame:
    """Return what nsys printed, with its API functions under our names; two rows with other names would have one
    key."""
    of_functions = "Name" if "Num Calls" in printed else "API Name"
    if of_functions not in printed:
        return printed
    return printed.assign(**{of_functions: printed[of_functions].map(cuda_api.strip_version)})


def assert_agrees(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """The same rows, columns and numbers, in any order of rows."""
    ours, theirs = _keyed(ours), _keyed(_without_versions(theirs))
    assert list(ours.columns) == list(theirs.columns)
    assert list(ours.index) == list(theirs.index)
    for column in theirs:
        if "Min" in column or "Max" in column:
            assert "." not in ours[[column]].to_csv(index=False), column
        if any(mark in column for mark in _ROUNDED):
            # One decimal was printed; the last bit of a mean may fall on either side of it.
            np.testing.assert_allclose(ours[column], theirs[column], rtol=0, atol=0.0501, err_msg=column)
        else:
            assert ours[column].astype("float64").equals(theirs[column].astype("float64")), column


@pytest.mark.parametrize("report", nsys_reports.REPORTS)
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_nsys_to_the_nanosecond(name, report):
    path = nsys_csv(name, report)
    capture, attribution = _read(profile(name))
    assert_agrees(nsys_reports.REPORTS[report](capture, attribution), pd.read_csv(path))


def test_the_command_line_offers_every_report():
    assert get_args(chosen_part.ReportName) == tuple(nsys_reports.REPORTS)
