"""Find when the start-up of a program ends: kernels' code was loaded, and warm-up ranges are over."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.chosen_part import STEADY_SHARE
from profiler_job.analysis.capture.phase_names import is_warm_up

LONG_PAUSE = 0.5
"""Part of the time from first to last operation without loads, after which loads are not of start-up."""
_LOADS = r"^cu(?:da)?(?:Library|Module)Load"


def find_loading_end(capture: Capture) -> int | None:
    """Find until when kernels' code is loaded while GPUs work, ns on the clock of the capture; None if it is not. Loads
    after a long pause are of something else, such as an evaluation."""
    times = _find_work_time(capture)
    if times is None or not len(capture.api):
        return None
    begin, end = times
    loads = np.asarray(capture.api["name"].cat.categories.str.contains(_LOADS, regex=True), bool)
    calls = capture.api[loads[capture.api["name"].cat.codes]]
    calls = calls[(calls["end_ns"] > begin) & (calls["end_ns"] < end)].sort_values("start_ns")
    until: int | None = None
    for start, finish in zip(calls["start_ns"], calls["end_ns"]):
        if until is not None and start - until > LONG_PAUSE * (end - begin):
            break
        until = max(until or begin, int(finish))
    return until


def find_startup_end(capture: Capture, attribution: Attribution) -> int | None:
    """Find when start-up ends, ns on the clock of the capture; None if the capture has none, or nothing after it. If
    steps are marked, it ends where the next of them starts."""
    times = _find_work_time(capture)
    if times is None:
        return None
    begin, end = times
    ranges = attribution.ranges
    warm_ups = np.array([is_warm_up(str(name)) for name in ranges["plain_name"].cat.categories], bool)
    warm = ranges["end_ns"].to_numpy()[warm_ups[ranges["plain_name"].cat.codes]] if len(ranges) else np.empty(0)
    ends = [*([loaded] if (loaded := find_loading_end(capture)) else []), *([int(warm.max())] if len(warm) else [])]
    if not ends or not STEADY_SHARE <= (end - max(ends)) / max(end - begin, 1) <= 1 - STEADY_SHARE:
        return None
    startup = max(ends)
    steps = ranges["start_ns"].to_numpy()[ranges["is_step"].to_numpy(bool)] if len(ranges) else np.empty(0)
    later = steps[steps >= startup]
    return int(later.min()) if len(later) and later.min() < (startup + end) / 2 else startup


def _find_work_time(capture: Capture) -> tuple[int, int] | None:
    """Find when the work of the GPUs begins and ends; None if they do none."""
    frames: list[pd.DataFrame] = [frame for frame in (capture.kernels, capture.graphs, capture.memops) if len(frame)]
    if not frames:
        return None
    return min(int(frame["start_ns"].min()) for frame in frames), max(int(frame["end_ns"].max()) for frame in frames)
