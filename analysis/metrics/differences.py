"""When two times differ: by more than recordings of one and the same run do.

The steps of one process are no independent samples, so that their range says little: between two recordings of the same
runs half of all step times lie outside each other's minimum to maximum. What a difference has to exceed is measured
instead, on recordings of the same runs (the *noise band*), for each kind of time:

- `kernel`: sums of kernel durations. A sum of many kernels repeats better than one kernel, so what a sum varies by is
  made of a part of the time itself and of a part for each kernel, which add up like independent errors.
- `wall`: unprofiled wall time. It varies by a part of the time, and by a part of the time in which the GPU waits for
  the host, which another machine or another minute changes most.

A band holds HELD of the pairs that it was fitted to, so at most 5 of 100 other identical pairs are called different.
How many of many cases may differ by chance is `is_beyond_chance`.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import run_grid, timing
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.recording.run_table import keep_runs, measure_by_run
from profiler_job.jobs.contract import ranges

Kind = Literal["kernel", "wall"]
SAME = ["run_id", "num_parameters", "batch_size", "gpu_name"]
"""What two runs must share to be the same run: the name has every axis of a sweep, but not what a size means, nor the
GPU."""
LEVEL = 0.95
"""Part of identical pairs that are called the same, at least, and of intervals that hold what they are of."""
HELD = 0.975
"""Part of the pairs that a band is fitted to which it holds: more than LEVEL, since it knows these and no others."""
LEAST_PAIRS = 20
"""Pairs of times that a band is fitted to, at least: of fewer, the quantile is the largest, whatever it is."""
_RATIOS: dict[Kind, np.ndarray] = {
    "kernel": np.r_[0.0, np.geomspace(1, 1e6, 121)],
    "wall": np.r_[0.0, np.geomspace(1e-2, 1e2, 81)],
}
"""Tried values of `Band.ratio`. For waiting time they end where the rest of a step still counts: it has a band, too."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Two times of one run differ if they differ by more than `width_ns`.

    relative: what a time varies by, as a part of it. ratio: what its `parts` vary by against that (nanoseconds for a
    kernel; a part of the waiting time for `wall`). factor: half a band in units of the two together. num_pairs: pairs
    of times it was fitted to. source: the recordings they are of.
    """

    kind: Kind
    relative: float
    ratio: float
    factor: float
    num_pairs: int
    source: str = ""

    @property
    def time_half(self) -> float:
        """Half a band as a part of the time, where its parts count for nothing."""
        return self.factor * self.relative

    @property
    def parts_half(self) -> float:
        """Half a band where nothing but its parts counts: nanoseconds of one kernel, or a part of the waiting time."""
        return self.factor * self.relative * self.ratio

    def width_ns(self, time_ns: pd.Series, parts: pd.Series) -> pd.Series:
        """Half width of the band around times of `time_ns`. parts: as in `times_of_kernels` and `times_of_steps`."""
        return self.factor * self.relative * _spread(time_ns, parts, self.ratio)

    def differ(self, pairs: pd.DataFrame) -> pd.Series:
        """Whether the two times of each row differ. pairs: as `pair_times` makes them."""
        return (pairs["second_ns"] - pairs["first_ns"]).abs() > self.width_ns(pairs["mean_ns"], pairs["parts"])


@dataclass(frozen=True, kw_only=True)
class Bands:
    """The noise bands of both kinds of time, fitted to the runs that two recordings have."""

    kernel: Band
    wall: Band
    gpu: str = ""
    """That both recordings were made on."""


def bands_of(first: Any, second: Any) -> Bands | None:
    """The bands of the runs that two recordings (tables runs, steps, kernels, memops) both have; None where these are
    fewer than a band needs."""
    both = set(select_repeated_runs(first.runs, second.runs)["run_id"])
    if len(both) < LEAST_PAIRS:
        return None
    sides = [[keep_runs(frame, both) for frame in (rec.steps, rec.kernels, rec.memops)] for rec in (first, second)]
    kernels = []
    for by in (["run_id"], ["run_id", "family"]):
        before, after = (times_of_kernels(of_kernels, by) for _, of_kernels, _ in sides)
        kernels.append(pair_times(before, after, by))
    first_steps, second_steps = (times_of_steps(*side) for side in sides)
    steps = pair_times(first_steps, second_steps, ["run_id"])
    if len(steps) < LEAST_PAIRS:
        return None
    return Bands(
        kernel=fit_band(pd.concat(kernels, ignore_index=True), "kernel"),
        wall=fit_band(steps, "wall"),
        gpu=", ".join(sorted({*first.runs["gpu_name"].astype(str), *second.runs["gpu_name"].astype(str)})),
    )


def select_repeated_runs(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Finished runs of the second recording that the first has too, from another time, in the order of the first."""
    before, ok = (run_grid.select_measured_runs(runs) for runs in (first, second))
    texts = {name: str for name in ok if ok[name].dtype == "category"} | {"run_id": str}
    before, ok = before.astype({"run_id": str, "gpu_name": str}), ok.astype(texts)
    both = ok.merge(before[[*SAME, "started_at"]], on=SAME, suffixes=("", "_before"))
    both = both[both["started_at"].astype(str) != both["started_at_before"].astype(str)]
    return sort_stably(both, place(both["run_id"], before["run_id"]))


def half_band_ns(rows: pd.DataFrame, first: str, second: str, band: Band | None) -> pd.Series:
    """Half width of the band around the times {first}_ns and {second}_ns of each row, whose {}_parts are known; NaN
    where no band is."""
    if band is None:
        return pd.Series(math.nan, index=rows.index)
    mean = (rows[f"{first}_ns"] + rows[f"{second}_ns"]).astype(float) / 2
    return band.width_ns(mean, rows[[f"{first}_parts", f"{second}_parts"]].astype(float).max(axis=1))


def differ(rows: pd.DataFrame, first: str, second: str, band: Band | None) -> pd.Series:
    """Whether the times {first}_ns and {second}_ns of each row, which are of two runs, differ by more than the band;
    where none is known, whether their ranges over steps ({}_min_ns to {}_max_ns) do not overlap."""
    if band is None:
        return timing.differ(rows, first, second)
    apart = (rows[f"{second}_ns"] - rows[f"{first}_ns"]).astype(float).abs()
    return apart > half_band_ns(rows, first, second, band)


def bound_ratios(rows: pd.DataFrame, first: str, second: str, band: Band | None) -> pd.DataFrame:
    """Bound how many times as fast the step {second} is as the step {first}, if they took no turns: low and high, by
    row.

    rows, of both: {}_ns, {}_parts, {}_shortest_ns and {}_longest_ns (medians of processes), {}_issued_ns (phases that
    the CPU limits, at most) and {}_loop_ns (a loop of plain Python on its host). The interval holds three ranges: of
    all pairs of processes; of the noise band, as far above the ratio as below; and up to what a slower host explains
    (`_explain_by_host`). The band has other hosts in it already, so the ranges do not add up.
    """
    before, after = (rows[f"{side}_ns"].astype(float) for side in (first, second))
    ratio = before / after
    low = rows[f"{first}_shortest_ns"].astype(float) / rows[f"{second}_longest_ns"]
    high = rows[f"{first}_longest_ns"].astype(float) / rows[f"{second}_shortest_ns"]
    if band is not None:
        wider = 1 + half_band_ns(rows, first, second, band) / after
        low, high = np.fmin(low, ratio / wider), np.fmax(high, ratio * wider)
    slower = (rows[f"{first}_loop_ns"] / rows[f"{second}_loop_ns"]).astype(float)
    low = np.fmin(low, (before - _explain_by_host(rows, first, slower)) / after)
    high = np.fmax(high, before / (after - _explain_by_host(rows, second, 1 / slower)))
    return pd.DataFrame({"low": low, "high": high}, index=rows.index)


def _explain_by_host(rows: pd.DataFrame, side: str, slower: pd.Series) -> pd.Series:
    """Return by how much (ns) a step would be shorter at most on the host of the other one, if its own was `slower` by
    this ratio (NaN: not known): the phases that the CPU limits get shorter by it, and the GPU waits for less. While the
    GPU is busy, the host makes no difference."""
    issued_ns = rows[f"{side}_issued_ns"].astype(float) * (1 - 1 / slower.clip(lower=1)).fillna(0.0)
    return np.fmin(issued_ns, rows[f"{side}_parts"].astype(float)).fillna(0.0)


@measure_by_run
def times_of_kernels(kernels: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Kernel time of a step in each group, the median over steps and ranks: by, time_ns, parts (the square root of the
    number of kernels). `by` begins with run_id."""
    rows = timing.select_steps(kernels)
    rows = rows[[*by, *(name for name in ("rank", "step") if name not in by), "start_ns", "end_ns"]]
    rows = rows.assign(time_ns=rows["end_ns"] - rows["start_ns"])
    of_step = rows.groupby([*by, "rank", "step"], observed=True, sort=False)["time_ns"].agg(["sum", "size"])
    of_step = of_step.reset_index().astype(dict.fromkeys(by, str))
    groups = of_step.groupby(by, sort=False)[["sum", "size"]].median().reset_index()
    return groups.assign(time_ns=groups["sum"], parts=np.sqrt(groups["size"]))[[*by, "time_ns", "parts"]]


def times_of_steps(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Unprofiled wall time of a step of each run: run_id, time_ns (the median over steps), parts (how long the GPU
    waits in it: what is left of it without GPU busy, at least 0)."""
    wall = timing.host_times(steps, "timer", "wall")
    wall = wall[wall["phase"] == ranges.STEP][["run_id", "wall_ns"]]
    gpu = timing.gpu_times(kernels, memops)
    busy = gpu[gpu["phase"] == ranges.STEP].groupby("run_id")["busy_ns"].median() / timing.num_devices(kernels)
    waits = wall["wall_ns"] - busy.reindex(wall["run_id"]).to_numpy()
    return pd.DataFrame({"run_id": wall["run_id"], "time_ns": wall["wall_ns"], "parts": waits.clip(lower=0)})


def pair_times(first: pd.DataFrame, second: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Times that both have, side by side: by, first_ns, second_ns, mean_ns, parts (the larger of both)."""
    both = first.merge(second, on=by, suffixes=("_first", "_second"))
    return both[by].assign(
        first_ns=both["time_ns_first"],
        second_ns=both["time_ns_second"],
        mean_ns=(both["time_ns_first"] + both["time_ns_second"]) / 2,
        parts=both[["parts_first", "parts_second"]].max(axis=1),
    )


def fit_band(pairs: pd.DataFrame, kind: Kind, source: str = "") -> Band:
    """The noise band of pairs of times of the same runs, as `pair_times` makes them.

    Of two parameters the ratio is the likeliest one for errors that are normal at each time; the width comes from the
    quantile of what is seen, whatever their distribution. Raises ValueError below LEAST_PAIRS pairs.
    """
    pairs = pairs[pairs["mean_ns"] > 0]
    if len(pairs) < LEAST_PAIRS:
        raise ValueError(
            f"a noise band needs {LEAST_PAIRS} pairs of times of the same runs, and there are {len(pairs)}"
        )
    apart = (pairs["second_ns"] - pairs["first_ns"]).abs()
    fits = []
    for ratio in _RATIOS[kind]:
        spread = _spread(pairs["mean_ns"], pairs["parts"], ratio)
        relative = math.sqrt(float(((apart / spread) ** 2).mean())) or 1e-9  # 0 where every pair is the same
        fits.append((float(np.log(relative * spread).sum()), ratio, relative))
    _, ratio, relative = min(fits)
    off = np.sort(apart / (relative * _spread(pairs["mean_ns"], pairs["parts"], ratio)))
    factor = float(off[min(math.ceil((len(off) + 1) * HELD), len(off)) - 1])
    return Band(kind=kind, relative=relative, ratio=float(ratio), factor=factor, num_pairs=len(pairs), source=source)


def _spread(time_ns: pd.Series, parts: pd.Series, ratio: float) -> pd.Series:
    return np.hypot(time_ns, ratio * parts)


def is_beyond_chance(num_different: int, num_pairs: int) -> bool:
    """Whether so many of `num_pairs` pairs are called different as chance makes at most once in twenty times, where
    all are the same and each is called different with a probability of 5%."""
    level = 1 - LEVEL
    fewer = sum(
        math.comb(num_pairs, count) * level**count * (1 - level) ** (num_pairs - count)
        for count in range(num_different)
    )
    return 1 - fewer <= level


def median_interval(samples: pd.DataFrame, by: list[str], value: str, seed: int = 0) -> pd.DataFrame:
    """Median over processes of each process's median, with a bootstrap interval over processes.

    Columns: by, {value} , {value}_low and {value}_high (the 95% interval; NaN below three processes, whose medians say
    nothing of it), num_processes, num_steps (of all of them). samples: by, process, value. `seed` fixes the draws, the
    same for every group.
    """
    of_process = (
        samples.groupby([*by, "process"], observed=True, sort=False)[value].agg(["median", "size"]).reset_index()
    )
    rows = []
    for key, group in of_process.groupby(by, observed=True, sort=False):
        medians = group["median"].to_numpy(float)
        low = high = math.nan
        if len(medians) >= 3:
            drawn = np.random.default_rng(seed).integers(0, len(medians), (2000, len(medians)))
            low, high = np.quantile(np.median(medians[drawn], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        summary = {value: float(np.median(medians)), f"{value}_low": low, f"{value}_high": high}
        counts = {"num_processes": len(medians), "num_steps": int(group["size"].sum())}
        rows.append(dict(zip(by, key, strict=True)) | summary | counts)
    return pd.DataFrame(rows)


def process_intervals(steps: pd.DataFrame) -> pd.DataFrame:
    """`median_interval` of the unprofiled time of each phase of each run, and of the step: run_id, phase,
    of_processes_ns with _low_ns and _high_ns, num_processes; NaN where fewer than three processes timed the run. A
    table without the column `process` is of one process a run."""
    by = ["run_id", "phase"]
    columns = [*by, "of_processes_ns", "of_processes_low_ns", "of_processes_high_ns", "num_processes"]
    rows = timing.wall_times(steps, "timer")
    rows = rows if "process" in rows else rows.assign(process=0)
    if not len(rows):
        return pd.DataFrame(columns=columns)
    table = median_interval(rows, by, "wall_ns").drop(columns="num_steps").set_axis(columns, axis=1)
    return table.assign(of_processes_ns=table["of_processes_ns"].where(table["of_processes_low_ns"].notna()))


def timed_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Statistics of the unprofiled steps of all processes, by phase and run, other than the median: run_id, phase,
    timer_mean_ns, timer_std_ns, deviation (as a part of the mean), and `process_intervals`."""
    table = timing.moments(timing.wall_times(steps, "timer"), ["run_id", "phase"], "wall_ns", "timer")
    table = table.assign(deviation=table["timer_std_ns"] / table["timer_mean_ns"])
    return table.merge(process_intervals(steps), how="left", on=["run_id", "phase"])
