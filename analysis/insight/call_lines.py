"""Calls of CUDA by the line of the script that makes them: copies from and to the host, and allocations of GPU
memory."""

import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.insight.call_stacks import CallStacks
from profiler_job.analysis.insight.clean_calls import CleanCalls, list_allocations, list_copies
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.stack_places import Places

_BY_LINE = ["where", "function"]


def find_copy_lines(
    capture: Capture, attribution: Attribution, stacks: CallStacks, places: Places, clean: CleanCalls | None
) -> pd.DataFrame:
    """Sum the copies from and to the host by line, most time of the CPU first: the section `copy_lines`. clean: of
    steps without samples, in which the CPU's time counts, NaN if it is not known there."""
    calls = _select_steps(list_copies(capture, attribution), attribution)
    copied, rows = capture.memops.iloc[calls["memop"]], calls["api"].to_numpy()
    frame = places.name_lines(stacks.find(rows)).assign(
        operation=copied["operation"].astype(str).to_numpy(),
        host_memory=copied["host_memory"].astype(str).to_numpy(),
        is_waited=stacks.is_waited_for(rows),
        bytes=copied["bytes"].to_numpy(),
        copy_ns=(copied["end_ns"] - copied["start_ns"]).to_numpy(),
        time_ns=calls["wait_ns"].to_numpy() if clean is None else clean.find_times(calls),
    )
    return _sum_calls(frame, ["operation", "host_memory", "is_waited"], "copy_lines", ["bytes", "copy_ns", "time_ns"])


def find_allocation_lines(
    capture: Capture, attribution: Attribution, stacks: CallStacks, places: Places, clean: CleanCalls | None
) -> pd.DataFrame:
    """Sum the calls that allocate memory or free it by line, most time of the CPU first: the section
    `allocation_lines`. In a capture with steps only calls in them count. clean: as for copies."""
    calls = _select_steps(list_allocations(capture, attribution), attribution)
    frame = places.name_lines(stacks.find(calls["api"].to_numpy())).assign(
        call=calls["name"].to_numpy(),
        time_ns=calls["wait_ns"].to_numpy() if clean is None else clean.find_times(calls),
    )
    return _sum_calls(frame, ["call"], "allocation_lines", ["time_ns"])


def _select_steps(calls: pd.DataFrame, attribution: Attribution) -> pd.DataFrame:
    """Select the calls inside steps; all are if the capture has none."""
    return calls[calls["step"] >= 0] if bool(attribution.ranges["is_step"].any()) else calls


def _sum_calls(frame: pd.DataFrame, keys: list[str], section: str, values: list[str]) -> pd.DataFrame:
    groups = frame.assign(count=1).groupby([*_BY_LINE, *keys], sort=False)
    sums = groups[["count", *values]].sum().assign(time_ns=groups["time_ns"].agg(lambda times: times.sum(skipna=False)))
    sums = sums.reset_index().sort_values("time_ns", ascending=False, kind="stable", ignore_index=True)
    return sums[list(SECTIONS[section])]
