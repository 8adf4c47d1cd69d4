"""Clocks. Times are nanoseconds; a frame is always sorted in model order.

Four clocks, from the outside in:

- timer: Python's clock around a phase, without a profiler, the device synchronised at both ends (`steps`, collector
  `timer`);
- host range: the NVTX range of that phase under nsys, on the host (`steps`, collector `nsys`);
- projected time: on the GPU, from the start of the phase's first kernel to the end of its last;
- busy time: on the GPU, the union of the phase's kernels, so that gaps do not count and overlap counts once.

Kernel time is the sum of kernel durations; without overlap it equals busy time.
"""

import numpy as np
import pandas as pd

from jobs.contract.ranges import STEP

LAUNCH_BOUND_BUSY_SHARE = 0.8
"""A phase is called launch-bound where the GPU is busy for less than this share of its unprofiled wall time."""


def spread(samples: pd.DataFrame, by: list[str], value: str, prefix: str) -> pd.DataFrame:
    """Median, minimum, maximum and number of samples of `value`: by, {prefix}_ns, _min_ns, _max_ns, {prefix}_n."""
    grouped = samples.groupby(by, observed=True, sort=False)[value]
    table = grouped.agg(["median", "min", "max", "count"]).reset_index()
    table.columns = [
        *by,
        f"{prefix}_ns",
        f"{prefix}_min_ns",
        f"{prefix}_max_ns",
        f"{prefix}_n",
    ]
    return table


def host_times(steps: pd.DataFrame, collector: str, prefix: str) -> pd.DataFrame:
    """Spread of wall time over steps, per run and phase (`step` is a phase here), by `timer` or `nsys` (ranges)."""
    rows = steps[steps["collector"].astype(str) == collector].astype({"run_id": str, "phase": str})
    return spread(rows, ["run_id", "phase"], "wall_ns", prefix)


def differ(rows: pd.DataFrame, first: str, second: str) -> pd.Series:
    """True where two times differ by more than their spread: their minimum-to-maximum intervals do not overlap."""
    return (rows[f"{first}_min_ns"] > rows[f"{second}_max_ns"]) | (rows[f"{second}_min_ns"] > rows[f"{first}_max_ns"])


def in_steps(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels launched inside a measured step."""
    return kernels[kernels["step"] >= 0]


def gpu_times(kernels: pd.DataFrame) -> pd.DataFrame:
    """GPU time of each phase of each step, and of the whole step (phase `step`).

    Columns: run_id, step, phase, launches, kernel_ns, busy_ns, projected_ns.
    """
    rows = in_steps(kernels)[["run_id", "step", "phase", "start_ns", "end_ns"]]
    whole = rows.assign(phase=pd.Categorical.from_codes(np.zeros(len(rows), int), [STEP]))
    return pd.concat([_gpu_times(rows[rows["phase"] != ""]), _gpu_times(whole)], ignore_index=True)


def _gpu_times(rows: pd.DataFrame) -> pd.DataFrame:
    by = ["run_id", "step", "phase"]
    group = rows.groupby(by, observed=True, sort=False).ngroup().to_numpy()
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order], end[order]
    by_group = pd.Series(end).groupby(group)
    covered_until = by_group.cummax().groupby(group).shift(1).fillna(0).to_numpy(np.int64)
    first = np.r_[True, group[1:] != group[:-1]] if len(group) else np.zeros(0, bool)
    covered_until = np.where(first, start, covered_until)
    busy = np.maximum(0, end - np.maximum(start, covered_until))
    timed = pd.DataFrame({"start_ns": start, "end_ns": end, "kernel_ns": end - start, "busy_ns": busy})
    totals = timed.groupby(group).agg(
        launches=("kernel_ns", "size"),
        kernel_ns=("kernel_ns", "sum"),
        busy_ns=("busy_ns", "sum"),
        first=("start_ns", "min"),
        last=("end_ns", "max"),
    )
    # Names become text only here: there are a thousand times as many kernels as phases.
    keys = rows.iloc[order[first]][by].reset_index(drop=True).astype({"run_id": str, "phase": str})
    totals["projected_ns"] = totals["last"] - totals["first"]
    return keys.join(totals[["launches", "kernel_ns", "busy_ns", "projected_ns"]])


def clock_lead(kernels: pd.DataFrame) -> dict[str, float]:
    """How far the GPU's times are too early against the host's, as far as it shows: a kernel cannot begin before its
    launch.

    share: of the kernels that seem to; lead_ns: by how much at most; drift_ns: the largest change of a step's lead
    within one run.
    """
    lead = kernels["launch_ns"] - kernels["start_ns"]
    of_step = lead.groupby([kernels["run_id"].astype(str), kernels["step"]]).max().groupby(level=0)
    drift = of_step.max() - of_step.min()
    found = {"share": (lead > 0).mean(), "lead_ns": lead.max(), "drift_ns": drift.max()}
    return {name: float(value) if len(kernels) else 0.0 for name, value in found.items()}
