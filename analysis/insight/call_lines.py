"""Calls of CUDA by the line of the script that makes them: copies from and to the host, and allocations of GPU
memory."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.insight.call_stacks import CallStacks
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.stack_places import Places
from profiler_job.analysis.reference import cuda_api

_BY_LINE = ["where", "function"]


def find_copy_lines(capture: Capture, attribution: Attribution, stacks: CallStacks, places: Places) -> pd.DataFrame:
    """Sum the copies from and to the host by line, most time of the CPU first: the section `copy_lines`."""
    memops, row = capture.memops, attribution.memops["api"].to_numpy()
    copies = np.flatnonzero(memops["operation"].astype(str).isin(cuda_api.HOST_COPIES).to_numpy() & (row >= 0))
    copies = copies[_are_in_steps(attribution.memops["step"].to_numpy()[copies], attribution)]
    calls = capture.api.iloc[row[copies]]
    copied = memops.iloc[copies]
    frame = places.name_lines(stacks.find(row[copies])).assign(
        operation=copied["operation"].astype(str).to_numpy(),
        host_memory=copied["host_memory"].astype(str).to_numpy(),
        is_waited=stacks.is_waited_for(row[copies]),
        bytes=copied["bytes"].to_numpy(),
        copy_ns=(copied["end_ns"] - copied["start_ns"]).to_numpy(),
        time_ns=(calls["end_ns"] - calls["start_ns"]).to_numpy(),
    )
    return _sum_calls(frame, ["operation", "host_memory", "is_waited"], "copy_lines", ["bytes", "copy_ns", "time_ns"])


def find_allocation_lines(
    capture: Capture, attribution: Attribution, stacks: CallStacks, places: Places
) -> pd.DataFrame:
    """Sum the calls that allocate memory or free it by line, most time of the CPU first: the section
    `allocation_lines`. In a capture with steps only calls in them count."""
    api = capture.api
    is_kind = [cuda_api.find_group(str(name)) == cuda_api.ALLOCATION for name in api["name"].cat.categories]
    rows = np.flatnonzero(np.array(is_kind, bool)[api["name"].cat.codes])
    if len(rows):
        rows = rows[_are_in_steps(attribution.api["step"].to_numpy()[rows], attribution)]
    calls = api.iloc[rows]
    frame = places.name_lines(stacks.find(rows)).assign(
        call=calls["name"].astype(str).to_numpy(), time_ns=(calls["end_ns"] - calls["start_ns"]).to_numpy()
    )
    return _sum_calls(frame, ["call"], "allocation_lines", ["time_ns"])


def _are_in_steps(step: np.ndarray, attribution: Attribution) -> np.ndarray:
    """Whether calls are inside steps; all are if the capture has none."""
    return step >= 0 if bool(attribution.ranges["is_step"].any()) else np.ones(len(step), bool)


def _sum_calls(frame: pd.DataFrame, keys: list[str], section: str, values: list[str]) -> pd.DataFrame:
    sums = frame.assign(count=1).groupby([*_BY_LINE, *keys], sort=False)[["count", *values]].sum().reset_index()
    return sums.sort_values("time_ns", ascending=False, kind="stable", ignore_index=True)[list(SECTIONS[section])]
