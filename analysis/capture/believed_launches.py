"""Find the API call that launched each GPU operation, and whether that is to be believed."""

import re

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.blocks import split_into_blocks
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.jobs.contract.quantities import format_time

MOST_EARLY_NS, MOST_EARLY_SHARE = 5_000_000, 0.1
"""How long an operation may begin before its launch, and the largest share of the capture that this may be. nsys aligns
the clocks of CPU and GPU only approximately: on H200s, 3.5% of 2.8 M recorded kernels seem to begin before their
launch, by up to 2.23 ms, and by up to 0.5% of the time of their run's events."""
NO_CALL, NOT_BELIEVED = -1, -2
_LAUNCHES_ONE = re.compile(r"cu(da)?Launch(Cooperative)?Kernel(Ex|ExC)?")


def compute_most_early(events_ns: int) -> float:
    """How long before its launch an operation may begin, in a capture whose events last so long."""
    return min(MOST_EARLY_NS, MOST_EARLY_SHARE * events_ns)


def find_believed_launches(
    operations: pd.DataFrame, api: pd.DataFrame, events_ns: int, shown: str, problems: dict[str, str]
) -> np.ndarray:
    """Find the row of `api` that launched each operation; NOT_BELIEVED if not trusted. Add to `problems` how many
    operations (called `shown`) that affects."""
    row = find_launches(operations, api)
    several_calls = row == NOT_BELIEVED
    most = compute_most_early(events_ns)
    early = np.zeros(len(row), bool)
    if len(api):
        begins, start = api["start_ns"].to_numpy(), operations["start_ns"].to_numpy()
        for rows in split_into_blocks(len(row)):
            early[rows] = (row[rows] >= 0) & (begins[np.maximum(row[rows], 0)] - start[rows] > most)
    shares = _is_shared_launch(row, api)
    for doubtful, what in (
        (several_calls, "have the correlation id of several API calls"),
        (shares, "have the correlation id of a call that launches one kernel, as other kernels do"),
        (early & ~shares, f"begin more than {format_time(most)} before the call that launched them"),
    ):
        if num := int(doubtful.sum()):
            problems[f"{num} of {len(row)} {shown} {what}"] = "their launch is not believed: they are not attributed"
    return np.where(several_calls | shares | early, NOT_BELIEVED, row)


def _is_shared_launch(row: np.ndarray, api: pd.DataFrame) -> np.ndarray:
    """Whether the operation's call is one that launches a single kernel, and has several operations."""
    names = api["name"].cat
    shared = have_shared_launch(row, len(api))
    if not shared.any():
        return np.zeros(len(row), bool)
    single = np.array([_LAUNCHES_ONE.fullmatch(str(name)) is not None for name in names.categories], bool)
    call = np.where(row >= 0, row, 0)
    return (row >= 0) & shared[call] & single[names.codes.to_numpy()[call]]


def have_shared_launch(row: np.ndarray, num_calls: int) -> np.ndarray:
    """Whether each of the calls launched several of the operations; `row`: the call of each operation, below 0 none."""
    launched = row[row >= 0]
    once = np.zeros(num_calls, bool)
    once[launched] = True
    if np.count_nonzero(once) == len(launched):  # as in most captures; counting takes eight times the memory
        return np.zeros(num_calls, bool)
    return np.bincount(launched, minlength=num_calls) > 1


def find_launches(operations: pd.DataFrame, api: pd.DataFrame) -> np.ndarray:
    """Find the row of `api` that launched each operation, joined on process and correlation id; NO_CALL if there is
    none, NOT_BELIEVED if there are several (int64)."""
    if not len(api) or not len(operations):
        return np.full(len(operations), NO_CALL, np.int64)
    api_process, process = api["process"].to_numpy(), operations["process"].to_numpy()
    processes = find_distinct(api_process)
    api_correlation, correlation = api["correlation"].to_numpy(), operations["correlation"].to_numpy()
    low, high = int(api_correlation.min()), int(api_correlation.max())
    if (high - low + 1) * len(processes) >= 2**63:
        raise ValueError("correlation ids are out of range")
    span = high - low + 1

    def make_keys(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Compute keys of operations, and whether a call can have each key."""
        code = np.minimum(np.searchsorted(processes, process[rows]), len(processes) - 1)
        wanted = correlation[rows]
        known = (processes[code] == process[rows]) & (wanted >= max(low, 0)) & (wanted <= high)
        return code * span + np.where(known, wanted - low, 0), known

    def make_api_keys(rows: slice) -> np.ndarray:
        return np.searchsorted(processes, api_process[rows]) * span + (api_correlation[rows] - low)

    if span * len(processes) <= 8 * len(api) + 1_000_000:
        # Correlation ids are counted up, so a table of them is small; of equal ids a later one is written over.
        table = np.full(span * len(processes), NO_CALL, np.int32)
        for rows in split_into_blocks(len(api)):
            table[make_api_keys(rows)] = np.arange(rows.start, rows.stop, dtype=np.int32)
        for rows in split_into_blocks(len(api)):
            keys = make_api_keys(rows)
            table[keys[table[keys] != np.arange(rows.start, rows.stop, dtype=np.int32)]] = NOT_BELIEVED
        row = np.empty(len(operations), np.int64)
        for rows in split_into_blocks(len(row)):
            key, known = make_keys(rows)
            row[rows] = np.where(known, table[key], np.int64(NO_CALL))
        return row
    api_key = make_api_keys(slice(None))
    key, known = make_keys(slice(None))
    order = np.argsort(api_key, kind="stable")
    ordered = api_key[order]
    position = np.minimum(np.searchsorted(ordered, key), len(ordered) - 1)
    several = ordered[np.minimum(position + 1, len(ordered) - 1)] == key
    several &= position + 1 < len(ordered)
    api_row = np.where(several, NOT_BELIEVED, order[position])
    return np.where(known & (ordered[position] == key), api_row, NO_CALL)
