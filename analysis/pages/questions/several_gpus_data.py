"""What page (w) on several GPUs needs: one row per case, with the same case on one GPU next to it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import differences, run_grid, step_clocks, step_limits, timing
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.exchange import (
    FRAMES,
    communication_of,
    drop_communication,
    estimate_cost,
    link_rates,
    silent_times,
    sum_by_collective,
    sum_by_gpu,
    sum_by_message,
    sum_computing_times,
)
from profiler_job.analysis.metrics.gpu_samples import gpus_at_once, locate_processes
from profiler_job.analysis.metrics.steady import MOST_APART, mark_quotable, measure_apart
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.words import NOT_MEASURED

MODE = "train_step"
WAYS = ("none", "ddp", "fsdp", "tp")
WEAK, STRONG = "weak", "strong"
AS_UNPROFILED = 0.1
"""Where a step under nsys differs from the unprofiled one by at most this part, what is exposed in it is compared with
how much longer the unprofiled step is than the same without communication: elsewhere the hosts are slower or faster,
and ranks wait for one another otherwise."""
MOSTLY_ISSUING = 0.5
"""If phases in which the CPU issues work until they end take more of a step than this, the GPUs of the step wait for
launches, and kernels do not run back to back."""


@dataclass(frozen=True, kw_only=True)
class SeveralGpusData:
    cases: pd.DataFrame
    """One row per case, number of GPUs and way to share the work."""
    link: pd.DataFrame
    """One row per collective and number of GPUs: bus_rate, bytes a second over the link of each GPU, median of the
    runs, with bus_rate_low and bus_rate_high."""
    collectives: pd.DataFrame
    """One row per case of several GPUs and collective, as in `by_collective`, with link_share."""
    messages: pd.DataFrame
    """One row per case of several GPUs, collective and size of a message, as in `by_message`, with link_share."""
    ranks: pd.DataFrame
    """One row per rank of a case of several GPUs, as in `exchange.sum_by_gpu`, with its peak of memory."""
    timed: pd.DataFrame
    """One row per process that timed a case and read its GPU: first_gpu numbers the GPU of its first rank, at_once says
    on how many sets of GPUs runs of several GPUs were timed at the same time (NaN of one GPU)."""

    @property
    def measured(self) -> pd.DataFrame:
        """Measured cases of several GPUs that were measured on one GPU, too."""
        rows = self.cases[(self.cases[NOT_MEASURED] == "") & (self.cases["gpus"] > 1)]
        return rows[rows["efficiency"].notna()]

    @property
    def several(self) -> pd.DataFrame:
        """Those with PyTorch's own exchanges in which each GPU has the batch of the one."""
        rows = self.measured
        return rows[(rows["scaling"] == WEAK) & (rows["exchange"] == find_default("exchange"))]

    @property
    def strong(self) -> pd.DataFrame:
        """Those in which all GPUs together have the batch of the one."""
        return self.measured[self.measured["scaling"] == STRONG]

    @property
    def changed(self) -> pd.DataFrame:
        """Those with other exchanges, with gain, the step of the same case with PyTorch's own over theirs."""
        by = [name for name in self.measured if name in (*run_grid.CASE_AXES, *run_grid.VARIANT_AXES)]
        usual = self.several[[*by, "step_ns"]].rename(columns={"step_ns": "usual_ns"}).drop(columns="exchange")
        rows = self.measured[self.measured["exchange"] != find_default("exchange")]
        rows = rows.merge(usual, on=[name for name in by if name != "exchange"])
        return rows.assign(gain=rows["usual_ns"] / rows["step_ns"])

    @property
    def silent(self) -> pd.DataFrame:
        """Cases of `undisturbed` whose steps without any exchange were measured, too."""
        rows = self.undisturbed
        return rows[rows["silent_ns"].notna()]

    @property
    def split(self) -> pd.DataFrame:
        """Those whose communication is split into waiting and transfer."""
        return self.several[self.several["waiting_ns"].notna()]

    @property
    def undisturbed(self) -> pd.DataFrame:
        """Those whose step under nsys is about as long as without."""
        return self.several[(self.several["profiled_ratio"] - 1).abs() <= AS_UNPROFILED]

    @property
    def with_early_issue(self) -> pd.DataFrame:
        """The undisturbed cases whose CPU issues all work early, as far as is known."""
        return self.undisturbed[~(self.undisturbed["issue_share"] > MOSTLY_ISSUING)]


def collect_data(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    memory: pd.DataFrame,
    figures: pd.DataFrame,
    processes: pd.DataFrame,
    bands: Bands | None,
) -> SeveralGpusData:
    """Collect the data of the page from the tables of a recording."""
    cases = run_grid.cases_along(runs, MODE, "parallel", list(WAYS))
    if "gpus" not in cases:
        cases["gpus"] = int(runs["gpus"].iloc[0])
    cases["gpus"] = cases["gpus"].astype(int)
    if "exchange" not in cases:
        cases["exchange"] = find_default("exchange")
    of_run = runs[["run_id", *sorted({"batch_size", "peak_memory_bytes"} - {*cases})]].astype({"run_id": str})
    alone = drop_communication(kernels)
    parts = differences.times_of_steps(steps, alone, memops)[["run_id", "parts"]]
    parts = parts.rename(columns={"parts": "step_parts"})
    exchanged = communication_of(kernels, runs).drop(columns=["num_steps", *FRAMES])
    computing = sum_computing_times(alone)
    computing_ns = computing.groupby("run_id").sum().reset_index()
    for part in (of_run, _times(steps), parts, exchanged, computing_ns, silent_times(figures)):
        cases = cases.merge(part, how="left", on="run_id")
    cases["apart"] = cases["run_id"].map(measure_apart(steps))
    cases["steady"] = cases["apart"] <= MOST_APART
    cases["tokens_per_s"] = run_grid.tokens_per_s(cases, cases["step_ns"])
    for name in ("waiting", "transfer", "exposed", "hidden"):
        cases[f"{name}_share"] = cases[f"{name}_ns"] / cases["profiled_ns"]
    timed = locate_processes(steps, processes).merge(cases[["run_id", "gpus"]], on="run_id")
    of_several = set(cases.loc[cases["gpus"] > 1, "run_id"])
    first = processes[(processes["rank"] == 0) & processes["run_id"].astype(str).isin(of_several)]
    timed["at_once"] = timed["run_id"].map(gpus_at_once(first))
    cases = _join_one_gpu(cases, bands)
    of_one = cases[cases["scaling"] == WEAK].set_index("run_id")["run_id_1"]
    of_phases = computing.unstack(fill_value=0)
    slower = of_phases.reindex(of_one.index) - of_phases.reindex(of_one).set_axis(of_one.index)
    cases["clock_cost_ns"] = cases["run_id"].map(estimate_cost(steps, of_one, slower))
    is_split = cases["clock_cost_ns"].notna() & cases["critical_ns"].notna()
    limits = step_limits.find_limits(steps, kernels, memops)
    cases["limit"] = cases["run_id"].map({run_id: limit.name for run_id, limit in limits.items()})
    cases["issue_share"] = (cases["run_id"].map(step_clocks.measure_host_limited(steps)) / cases["step_ns"]).where(
        is_split
    )
    for name, ns in (
        ("unexplained", cases["rest_ns"] - cases["exposed_ns"]),
        ("apart", cases["clock_cost_ns"] - cases["critical_ns"]),
        ("silent_apart", cases["silent_rest_ns"] - cases["exposed_ns"]),
    ):
        cases[f"{name}_share"] = ns.abs() / cases["step_ns"]
    link = link_rates(figures, cases)
    collectives = _join_link(sum_by_collective(kernels, figures, runs, cases), cases, link)
    messages = _join_link(sum_by_message(kernels, runs, cases), cases, link)
    of_communication = {"link": link, "collectives": collectives, "messages": messages}
    of_communication["ranks"] = _list_ranks(kernels, runs, memory, cases)
    return SeveralGpusData(cases=cases, timed=timed, **of_communication)


def _list_ranks(kernels: pd.DataFrame, runs: pd.DataFrame, memory: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """What communication costs each rank of the `cases` in a step, and peak_bytes, its peak of allocated memory."""
    about = [name for name in cases if name in (*run_grid.CASE_AXES, *run_grid.VARIANT_AXES, "run_id")]
    peaks = memory.astype({"run_id": str}).groupby(["run_id", "rank"])["peak_allocated_bytes"].max()
    rows = cases[about].merge(sum_by_gpu(kernels, runs), on="run_id")
    return rows.join(peaks.astype("float64").rename("peak_bytes"), on=["run_id", "rank"])


def _join_link(collectives: pd.DataFrame, cases: pd.DataFrame, link: pd.DataFrame) -> pd.DataFrame:
    """`collectives` of the `cases` with link_share: bus_rate over what the largest of the same collective gives alone
    between as many GPUs (NaN where that was not measured)."""
    alone = link.sort_values("size_bytes").drop_duplicates(["collective", "gpus"], keep="last")
    alone = alone.rename(columns={"bus_rate": "alone_rate"})[["collective", "gpus", "alone_rate"]]
    about = [name for name in cases if name in (*run_grid.CASE_AXES, *run_grid.VARIANT_AXES, "run_id", NOT_MEASURED)]
    table = cases[about].merge(collectives, on="run_id").merge(alone, "left", ["collective", "gpus"])
    return table.assign(link_share=table["bus_rate"] / table["alone_rate"])


def _times(steps: pd.DataFrame) -> pd.DataFrame:
    """Of each run the unprofiled step, optimizer_ns of it, profiled_ns (the step under nsys) and profiled_ratio (that
    over the unprofiled one)."""
    unprofiled = timing.host_times(steps, "timer", "step").set_index("run_id")
    profiled = timing.host_times(steps, "nsys", "profiled").set_index("run_id")
    times = unprofiled[unprofiled["phase"] == ranges.STEP].drop(columns="phase")
    times["optimizer_ns"] = unprofiled.loc[unprofiled["phase"] == ranges.OPTIMIZER, "step_ns"]
    profiled_ns = profiled.loc[profiled["phase"] == ranges.STEP, "profiled_ns"]
    return times.assign(profiled_ns=profiled_ns, profiled_ratio=profiled_ns / times["step_ns"]).reset_index()


def _join_one_gpu(cases: pd.DataFrame, bands: Bands | None) -> pd.DataFrame:
    """`cases` with the same case on one GPU next to them ({column}_1), efficiency, and what the step takes more.
    scaling: WEAK if the one GPU has the batch of each, STRONG if it has the batch of all together; "" if neither was
    measured, and for one GPU."""
    by = [name for name in ("size", "context_length", *run_grid.VARIANT_AXES) if name in cases]
    by = [name for name in by if name not in ("gpus", "parallel", "exchange", "batch_size")]
    clock = [f"step_{end}" for end in ("ns", "min_ns", "max_ns", "n", "parts")]
    of_one = ["run_id", "apart", "steady", *clock, "optimizer_ns", "computing_ns", "tokens_per_s", "peak_memory_bytes"]
    single = cases[cases["gpus"] == 1][[*by, "batch_size", *of_one]]
    keys = single[[*by, "batch_size"]].assign(is_there=True)
    same = cases.merge(keys, "left", [*by, "batch_size"])["is_there"].notna().to_numpy()
    together = cases["batch_size"] * cases["gpus"]
    cases = cases.assign(base_batch=cases["batch_size"].where(same, together))
    single = single.rename(columns={"batch_size": "base_batch"})
    table = cases.merge(single, how="left", on=[*by, "base_batch"], suffixes=("", "_1"), validate="m:1")
    is_joined = (table["gpus"] > 1) & table["run_id_1"].notna()
    table["scaling"] = np.where(is_joined, np.where(same, WEAK, STRONG), "")
    is_several = table["gpus"] > 1
    table["speedup"] = (table["tokens_per_s"] / table["tokens_per_s_1"]).where(is_several)
    table["efficiency"] = table["speedup"] / table["gpus"]
    longer = table["step_ns"] - table["step_ns_1"] - (table["optimizer_ns"] - table["optimizer_ns_1"])
    is_weak = table["scaling"] == WEAK
    table["longer_ns"] = longer.where(is_weak)
    table["slower_ns"] = (table["computing_ns"] - table["computing_ns_1"]).where(is_weak)
    table["computing_share"] = table["computing_ns"] / table["step_ns"]
    table["rest_ns"] = table["longer_ns"] - table["slower_ns"]
    table["exchange_cost_ns"] = table["step_ns"] - table["optimizer_ns"] - table["silent_ns"]
    table["silent_rest_ns"] = table["exchange_cost_ns"] - table["slower_ns"]
    table["slower_share"] = table["slower_ns"] / table["computing_ns_1"]
    table["memory_ratio"] = (table["peak_memory_bytes"] / table["peak_memory_bytes_1"]).where(is_several)
    renamed = table.rename(columns={f"{name}_1": name.replace("step", "one") for name in clock})
    band = bands.wall if bands else None
    table["step_band_ns"] = differences.half_band_ns(renamed, "step", "one", band).where(is_several)
    # One GPU takes as many steps as these, one after another, to do the same tokens.
    num_steps = table["speedup"] * table["step_ns"] / table["step_ns_1"]
    in_turn = {name: renamed[name] * num_steps for name in ("one_ns", "one_min_ns", "one_max_ns", "one_parts")}
    table["tokens_differ"] = differences.differ(renamed.assign(**in_turn), "step", "one", band)
    table["quotable"] = mark_quotable(table["tokens_differ"], table["steady"], table["steady_1"])
    return table
