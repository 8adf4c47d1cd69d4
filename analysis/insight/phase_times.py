"""Times of phases: their kernels and their outermost ranges on the host."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import ATTRIBUTIONS, Attribution
from profiler_job.analysis.capture.blocks import count_by, sum_by
from profiler_job.analysis.capture.kernel_overlaps import KernelOverlaps
from profiler_job.analysis.capture.phase_names import parse_module
from profiler_job.analysis.insight.section_columns import SECTIONS, compute_share, make_frame
from profiler_job.jobs.contract.ranges import ALL_PHASES


def summarise_phases(attribution: Attribution, duration: np.ndarray, overlaps: KernelOverlaps) -> pd.DataFrame:
    place, ranges = attribution.kernels, attribution.ranges
    code, names = place["phase"].cat.codes.to_numpy(), [*ALL_PHASES, ""]
    num = len(names)
    calls = count_by(code, num)
    if not (ranges["phase"] != "").any() and not calls[:-1].any():
        return pd.DataFrame(columns=list(SECTIONS["phases"]))
    time = sum_by(code, duration, num)
    how = place["attribution"].cat.codes.to_numpy()
    parts = sum_by(code * np.int8(len(ATTRIBUTIONS)) + how, duration, num * len(ATTRIBUTIONS))
    shares = parts.reshape(num, -1) / np.where(time > 0, time, np.nan)[:, None]
    busy = time.copy()
    for rows in overlaps.blocks:
        overlaps.discount(busy, code[rows], rows)
    host, known = _measure_host_of_phases(ranges, num)
    columns = {
        "phase": names,
        "kernel_calls": calls,
        "kernel_ns": time,
        "share": compute_share(pd.Series(time)),
        "busy_ns": busy,
        "host_ns": pd.Series(host, dtype="Int64").mask(~known),
    } | {f"{name}_share": shares[:, i] for i, name in enumerate(ATTRIBUTIONS) if name != "none"}
    frame = make_frame("phases", columns)
    return frame[(calls > 0) | (host > 0)].reset_index(drop=True)


def _measure_host_of_phases(ranges: pd.DataFrame, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Measure the CPU time of each phase's outermost ranges, without other phases inside them, and whether the phase
    has any. Among several processes the largest counts: they run at the same time, so a sum has no meaning."""
    phase, parent = ranges["phase"].cat.codes.to_numpy(), ranges["parent_id"].to_numpy()
    own = np.array([parse_module(str(name)) is None for name in ranges["plain_name"].cat.categories], bool)
    around = np.where(parent >= 0, phase[parent], num - 1) if len(ranges) else phase
    root = (phase < num - 1) & own[ranges["plain_name"].cat.codes] & (phase != around)
    wall = (ranges["end_ns"] - ranges["start_ns"]).to_numpy()[root]
    owners, owner = np.unique(ranges["process"].to_numpy()[root], return_inverse=True)
    cells = max(len(owners), 1) * num
    by_owner = np.bincount(owner * num + phase[root], wall, cells) - np.bincount(
        owner * num + around[root], wall, cells
    )
    host = by_owner.reshape(-1, num).max(axis=0)
    return np.where(np.arange(num) < num - 1, host, 0).astype(np.int64), np.bincount(phase[root], minlength=num) > 0
