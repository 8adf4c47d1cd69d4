"""Samples of Python stacks as pieces of time: which stack a thread had when."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.capture_data import Capture, get_process_id, get_thread_id
from profiler_job.analysis.insight.garbage_times import list_collections
from profiler_job.analysis.reference.python_libraries import GARBAGE, LOCK, SLEEP

LONGEST_NS = 100_000_000
"""A sample says nothing about later moments than this."""
LONGEST_PERIODS = 4
"""Nor than so many periods, unless the next sample has the same line: Python is not sampled while a library holds its
lock."""
NOT_SAMPLED = -1
"""In place of the number of a stack."""
STATES = ("", GARBAGE, LOCK, SLEEP)
"""What a thread does in place of its own code."""


class _SampledThread(NamedTuple):
    """Samples of a thread by time: start (ns), stack, and until when each counts."""

    start: np.ndarray
    stack: np.ndarray
    until: np.ndarray


class StackSamples:
    """The samples by thread, and which thread of each process counts for those without. lines: number of the line of
    each stack; pauses: of `find_idle_pauses`."""

    def __init__(self, capture: Capture, lines: np.ndarray, pauses: pd.DataFrame):
        frame = capture.samples
        by_thread = {
            int(thread): (rows["start_ns"].to_numpy(), rows["stack"].to_numpy())
            for thread, rows in frame.groupby("thread", sort=False)
        }
        self.process = dict(zip(frame["thread"].tolist(), frame["process"].tolist()))
        periods = [np.diff(start) for start, _ in by_thread.values() if len(start) > 1]
        self.period_ns = int(np.median(np.concatenate(periods))) if periods else 0
        self.by_thread = {
            thread: _SampledThread(start, stack, self._find_ends(start, lines[stack]))
            for thread, (start, stack) in by_thread.items()
        }
        self.main = _find_main_threads(frame, capture.api)
        self._lock_waits = capture.lock_waits
        self._states = (
            ("process", STATES.index(GARBAGE), list_collections(capture.ranges)),
            ("sampled", STATES.index(LOCK), self._lock_waits),
            ("sampled", STATES.index(SLEEP), pauses),
        )

    def _find_ends(self, start: np.ndarray, line: np.ndarray) -> np.ndarray:
        """Find until when each sample of a thread counts."""
        longest = np.r_[np.where(line[1:] == line[:-1], LONGEST_NS, LONGEST_PERIODS * self.period_ns), 0]
        longest[-1] = self.period_ns or LONGEST_NS
        return np.minimum(start + longest, np.r_[start[1:], 2**62])

    def _find_others(self) -> list[int]:
        """Find the threads of processes whose main thread is sampled, too: it has the number of its process."""
        is_main = {thread: get_thread_id(thread) == get_process_id(self.process[thread]) for thread in self.by_thread}
        known = {self.process[thread] for thread, is_it in is_main.items() if is_it}
        return [thread for thread, is_it in is_main.items() if not is_it and self.process[thread] in known]

    def choose_thread(self, thread: np.ndarray, process: np.ndarray) -> np.ndarray:
        """Choose the thread whose Python counts: itself, or else the one of its process that `main` names."""
        pairs = pd.MultiIndex.from_arrays([process, thread])
        codes, unique = pairs.factorize()
        chosen = [int(t) if int(t) in self.by_thread else self.main.get(int(p), -1) for p, t in unique]
        return np.array(chosen, np.int64)[codes] if len(codes) else thread

    def measure_lock_waits(self, thread: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Measure how long a thread waits for Python's lock in each [low, high) (ns, int64)."""
        return intervals.Union(*get_bounds(self._lock_waits[self._lock_waits["thread"] == thread])).measure_covered(
            low, high
        )

    def split(self, pieces: pd.DataFrame) -> pd.DataFrame:
        """Split pieces of time (start, end, thread, process, cause, part (what counts of it), phase, module,
        row, at) by samples: stack, state (place in STATES), ns, cause, phase, module, row, at, and whether the thread
        of the stack is not the main one of its process (is_other)."""
        rows = []
        pieces = pieces.assign(sampled=self.choose_thread(pieces["thread"].to_numpy(), pieces["process"].to_numpy()))
        for number, mine in pieces.groupby("sampled"):
            sampled = self.by_thread.get(int(number))
            rows.append(_cut(mine, sampled) if sampled else mine.assign(stack=NOT_SAMPLED))
        cut = pd.concat(rows, ignore_index=True) if rows else pieces.assign(stack=NOT_SAMPLED)
        cut = cut.assign(ns=(cut["end"] - cut["start"]) * cut["part"], state=0)
        for owner, state, ranges in self._states:
            cut = _split_state(cut, owner, state, ranges)
        cut["is_other"] = cut["sampled"].isin(self._find_others())
        return cut[["stack", "state", "ns", "cause", "phase", "module", "row", "at", "is_other"]]


def _find_main_threads(samples: pd.DataFrame, api: pd.DataFrame) -> dict[int, int]:
    """Find the sampled thread of each process with most calls of CUDA, or else with most samples: another thread may
    run Python without a pause, and launch nothing."""
    counts = samples.groupby(["process", "thread"], sort=False).size().rename("samples").reset_index()
    calls = api.groupby("thread").size()
    counts["calls"] = calls.reindex(counts["thread"], fill_value=0).to_numpy()
    ordered = counts.sort_values(["calls", "samples"], kind="stable")  # the last one of a process stays
    return dict(zip(ordered["process"].tolist(), ordered["thread"].tolist()))


def get_bounds(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()


def _split_state(cut: pd.DataFrame, owner: str, state: int, ranges: pd.DataFrame) -> pd.DataFrame:
    """Split pieces by whether their thread is in `ranges` meanwhile: of its process, or its own (owner)."""
    inside = np.zeros(len(cut))
    for number, mine in ranges.groupby({"sampled": "thread"}.get(owner, owner)):
        rows = np.flatnonzero((cut[owner] == number) & (cut["stack"] != NOT_SAMPLED) & (cut["state"] == 0))
        union = intervals.Union(*get_bounds(mine))
        inside[rows] = union.measure_covered(cut["start"].to_numpy()[rows], cut["end"].to_numpy()[rows])
    part = inside / np.maximum(cut["end"] - cut["start"], 1)
    within = cut.assign(ns=cut["ns"] * part, state=state)[inside > 0]
    return pd.concat([cut.assign(ns=cut["ns"] * (1 - part)), within], ignore_index=True)


def _cut(pieces: pd.DataFrame, sampled: _SampledThread) -> pd.DataFrame:
    """Cut pieces at the samples of a thread. What no sample covers has the stack NOT_SAMPLED."""
    time, stack, until = sampled
    start, end = pieces["start"].to_numpy(), pieces["end"].to_numpy()
    first = np.searchsorted(time, start, side="right") - 1
    count = np.maximum(np.searchsorted(time, end, side="left") - 1 - first, 0) + 1
    row = np.repeat(np.arange(len(start)), count)
    sample = np.repeat(first, count) + np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    is_sampled, sample = sample >= 0, np.maximum(sample, 0)
    following = np.r_[time[1:], 2**62]
    low = np.maximum(start[row], np.where(is_sampled, time[sample], -(2**62)))
    high = np.minimum(end[row], np.where(is_sampled, following[sample], time[0]))
    limit = np.where(is_sampled, np.clip(until[sample], low, np.maximum(low, high)), low)
    cut = pieces.iloc[row]
    if "at_start" in pieces:  # the next sample counts if only that is of the same phase
        next_sample = np.minimum(sample + 1, len(time) - 1)
        is_next = (time[sample] < cut["at_start"].to_numpy()) & (time[next_sample] < cut["at_end"].to_numpy())
        sample, limit = np.where(is_next, next_sample, sample), np.where(is_next, np.maximum(low, high), limit)
    covered = cut.assign(start=low, end=limit, stack=stack[sample])
    both = pd.concat([covered, cut.assign(start=limit, end=high, stack=NOT_SAMPLED)], ignore_index=True)
    return both[both["end"] > both["start"]]
