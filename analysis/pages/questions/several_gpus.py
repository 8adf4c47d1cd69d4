"""(w) What does a second GPU give, and what does communication cost?"""

from dataclasses import dataclass
from typing import Any

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
    sum_by_collective,
    sum_by_message,
    sum_computing_times,
)
from profiler_job.analysis.metrics.gpu_samples import gpus_at_once, locate_processes
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, many, noise_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import find_value_label
from profiler_job.jobs.contract.step_limit import PARTS
from profiler_job.jobs.contract.studies import GPUS
from profiler_job.jobs.contract.words import NOT_MEASURED

STUDY = GPUS

MODE = "train_step"
WAYS = ("none", "ddp", "fsdp")
HIDES_WELL = 0.05
"""Exposed communication below this part of a step is called hidden."""
AS_UNPROFILED = 0.1
"""Where a step under nsys differs from the unprofiled one by at most this part, what is exposed in it is compared with
how much longer the unprofiled step is than the same without communication: elsewhere the hosts are slower or faster,
and ranks wait for one another otherwise."""
EXPLAINS = 0.05
"""Part of the step by which the two may differ."""
MOSTLY_ISSUING = 0.5
"""If phases in which the CPU issues work until they end take more of a step than this, the GPUs of the step wait for
launches, and kernels do not run back to back."""


def answer(given: Inputs) -> Answer:
    """A training step on one GPU compared with the same step on several, each with the batch of the one: with
    DistributedDataParallel, and with parameters in parts (FSDP).

    The step is timed by Python without a profiler, and is the slowest rank's; tokens of a step are of all GPUs.
    Efficiency is tokens a second over the tokens of as many single GPUs. Communication is of the captures, mean of
    steps and ranks, split as `collective_time` says. How much longer a step is than on one GPU, and its computing
    kernels run, is said without the optimizer, which FSDP divides.

    The same step without communication has its computing kernels, which take longer than on one GPU (the copies of
    FSDP, and kernels next to communication). So if kernels run back to back, which the CPU issued early, it would be
    as long as on one GPU, plus as much as its computing kernels run longer. How much longer than that it is (rest_ns)
    is compared with what is exposed. If the CPU issues work until the end, GPUs wait for launches: what is exposed
    costs nothing as long as they would: what is critical is compared with the cost by clocks
    (`exchange.estimate_cost`).
    """
    frames = _frames(given.runs, given.steps, given.kernels, given.memops, given.figures, given.processes, given.bands)
    return assemble(
        {"noise": noise_of(given.bands), "explains": EXPLAINS}, _claims(frames), _tables(frames), _charts(frames)
    )


QUESTION = Question(
    letter="w",
    slug="several-gpus",
    title="What does a second GPU give, and what does communication cost?",
    needs=("runs", "steps", "kernels", "memops", "figures", "processes", "bands"),
    answer=answer,
    section=Section.CHANGE,
    place=5,
    study=STUDY,
    searched=("DDP", "FSDP", "NCCL", "multi-GPU", "scaling efficiency"),
)


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
    timed: pd.DataFrame
    """One row per process that timed a case and read its GPU: first_gpu numbers the GPU of its first rank, at_once says
    on how many sets of GPUs runs of several GPUs were timed at the same time (NaN of one GPU)."""

    @property
    def several(self) -> pd.DataFrame:
        """Measured cases of several GPUs that were measured on one GPU, too."""
        rows = self.cases[(self.cases[NOT_MEASURED] == "") & (self.cases["gpus"] > 1)]
        return rows[rows["efficiency"].notna()]

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


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    figures: pd.DataFrame,
    processes: pd.DataFrame,
    bands: Bands | None,
) -> SeveralGpusData:
    cases = run_grid.cases_along(runs, MODE, "parallel", list(WAYS))
    if "gpus" not in cases:
        cases["gpus"] = int(runs["gpus"].iloc[0])
    cases["gpus"] = cases["gpus"].astype(int)
    of_run = runs[["run_id", *sorted({"batch_size", "peak_memory_bytes"} - {*cases})]].astype({"run_id": str})
    alone = drop_communication(kernels)
    parts = differences.times_of_steps(steps, alone, memops)[["run_id", "parts"]]
    parts = parts.rename(columns={"parts": "step_parts"})
    exchanged = communication_of(kernels, runs).drop(columns=["num_steps", *FRAMES])
    computing = sum_computing_times(alone)
    computing_ns = computing.groupby("run_id").sum().reset_index()
    for part in (of_run, _times(steps), parts, exchanged, computing_ns):
        cases = cases.merge(part, how="left", on="run_id")
    cases["tokens_per_s"] = run_grid.tokens_per_s(cases, cases["step_ns"])
    for name in ("waiting", "transfer", "exposed", "hidden"):
        cases[f"{name}_share"] = cases[f"{name}_ns"] / cases["profiled_ns"]
    timed = locate_processes(steps, processes).merge(cases[["run_id", "gpus"]], on="run_id")
    of_several = set(cases.loc[cases["gpus"] > 1, "run_id"])
    first = processes[(processes["rank"] == 0) & processes["run_id"].astype(str).isin(of_several)]
    timed["at_once"] = timed["run_id"].map(gpus_at_once(first))
    cases = _join_one_gpu(cases, bands)
    of_one = cases[(cases["gpus"] > 1) & cases["run_id_1"].notna()].set_index("run_id")["run_id_1"]
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
    ):
        cases[f"{name}_share"] = ns.abs() / cases["step_ns"]
    link = link_rates(figures, cases)
    collectives = _join_link(sum_by_collective(kernels, figures, runs, cases), cases, link)
    messages = _join_link(sum_by_message(kernels, runs, cases), cases, link)
    of_communication = {"link": link, "collectives": collectives, "messages": messages}
    return SeveralGpusData(cases=cases, timed=timed, **of_communication)


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
    """`cases` with the same case on one GPU next to them ({column}_1), efficiency, and what the step takes more."""
    by = [name for name in ("size", "context_length", *run_grid.VARIANT_AXES) if name in cases]
    by = [name for name in by if name not in ("gpus", "parallel", "batch_size")]
    clock = [f"step_{end}" for end in ("ns", "min_ns", "max_ns", "n", "parts")]
    of_one = ["run_id", *clock, "optimizer_ns", "computing_ns", "tokens_per_s", "peak_memory_bytes"]
    single = cases[cases["gpus"] == 1][[*by, *of_one]]
    table = cases.merge(single, how="left", on=by, suffixes=("", "_1"), validate="m:1")
    is_several = table["gpus"] > 1
    table["speedup"] = (table["tokens_per_s"] / table["tokens_per_s_1"]).where(is_several)
    table["efficiency"] = table["speedup"] / table["gpus"]
    longer = table["step_ns"] - table["step_ns_1"] - (table["optimizer_ns"] - table["optimizer_ns_1"])
    table["longer_ns"] = longer.where(is_several)
    table["slower_ns"] = (table["computing_ns"] - table["computing_ns_1"]).where(is_several)
    table["computing_share"] = table["computing_ns"] / table["step_ns"]
    table["rest_ns"] = table["longer_ns"] - table["slower_ns"]
    table["slower_share"] = table["slower_ns"] / table["computing_ns_1"]
    table["memory_ratio"] = (table["peak_memory_bytes"] / table["peak_memory_bytes_1"]).where(is_several)
    renamed = table.rename(columns={f"{name}_1": name.replace("step", "one") for name in clock})
    band = bands.wall if bands else None
    table["step_band_ns"] = differences.half_band_ns(renamed, "step", "one", band).where(is_several)
    # One GPU takes as many steps as these, one after another, to do the same tokens.
    num_steps = table["speedup"] * table["step_ns"] / table["step_ns_1"]
    in_turn = {name: renamed[name] * num_steps for name in ("one_ns", "one_min_ns", "one_max_ns", "one_parts")}
    table["tokens_differ"] = differences.differ(renamed.assign(**in_turn), "step", "one", band)
    return table


def _claims(frames: SeveralGpusData) -> list[Claim]:
    parts = (_claim_speed, _claim_exposed, _claim_critical, _claim_parts, _claim_link)
    return [claim for part in parts for claim in part(frames)]


def _claim_speed(frames: SeveralGpusData) -> list[Claim]:
    """What several GPUs give: tokens per second and efficiency, and when that is less than one GPU."""
    several = frames.several
    shown = ("gpus", "parallel", "tokens_per_s_1", "tokens_per_s", "speedup", "efficiency")
    return [
        Claim("gives", _only(several, *shown, "limit", "tokens_differ"), facts=_gives),
        Claim("range", _only(several, *shown, "step_ns", "step_band_ns"), facts=extremes("efficiency")),
        Claim(
            "fewer",
            _only(several[several["speedup"] < 1], "gpus", "parallel", "speedup", "step_ns", "computing_share"),
            facts=lambda rows: _find_fewer(rows, several),
        ),
    ]


def _claim_exposed(frames: SeveralGpusData) -> list[Claim]:
    """How much communication no computing hides, and how much of the longer step that explains."""
    several, undisturbed, by_gpu = frames.several, frames.undisturbed, frames.with_early_issue
    of_step = ("gpus", "parallel", "exposed_ns", "profiled_ns", "exposed_share")
    of_longer = ("step_ns", "longer_ns", "slower_ns", "rest_ns")
    by_host = undisturbed.drop(by_gpu.index)
    explained = by_gpu[by_gpu["unexplained_share"] <= EXPLAINS]
    exposed = several[several["exposed_share"] >= HIDES_WELL]
    return [
        Claim("exposed", _only(exposed, *of_step), many(several), facts=count_all(several, _find_most_exposed)),
        Claim(
            "hidden",
            _only(several, *of_step),
            lambda rows: (rows["exposed_share"] < HIDES_WELL).all(),
            facts=extremes("exposed_share"),
        ),
        Claim(
            "explains",
            _only(explained, *of_step, *of_longer, "unexplained_share", "profiled_ratio", "issue_share"),
            many(by_gpu),
            facts=count_all(by_gpu, _is_explained),
        ),
        Claim(
            "unexplained",
            _only(
                by_gpu.drop(explained.index),
                *(*of_step, *of_longer, "step_min_ns", "step_max_ns", "unexplained_share"),
            ),
            facts=count_all(by_gpu, extremes("unexplained_share")),
        ),
        Claim(
            "host",
            _only(by_host, *of_step, "critical_ns", "step_ns", "longer_ns", "clock_cost_ns", "issue_share"),
            facts=count_all(undisturbed, _count_by_host),
        ),
    ]


def _claim_critical(frames: SeveralGpusData) -> list[Claim]:
    """What communication costs the step by another count, and which runs the profiler disturbs."""
    several, undisturbed = frames.several, frames.undisturbed
    known = undisturbed[undisturbed["apart_share"].notna()]
    agrees = known[known["apart_share"] <= EXPLAINS]
    of_step = ("step_ns", "step_min_ns", "step_max_ns")
    of_critical = ("gpus", "parallel", "critical_ns", "clock_cost_ns", *of_step, "apart_share")
    return [
        Claim("critical", _only(agrees, *of_critical), many(known), facts=count_all(known, extremes("apart_share"))),
        Claim(
            "not_critical",
            _only(known.drop(agrees.index), *of_critical),
            facts=count_all(known, extremes("apart_share")),
        ),
        Claim(
            "disturbed",
            _only(several.drop(undisturbed.index), "gpus", "parallel", "step_ns", "profiled_ratio"),
            facts=count_all(several, extremes("profiled_ratio")),
        ),
    ]


def _claim_parts(frames: SeveralGpusData) -> list[Claim]:
    """How long collectives wait, how much longer kernels run next to them, and how much memory sharding saves."""
    several, split = frames.several, frames.split
    waits = split[split["waiting_ns"] > split["transfer_ns"]]
    slowed = several[several["slowed"].notna()]
    sharded = several[several["parallel"] == "fsdp"]
    return [
        Claim(
            "waiting",
            _only(waits, "gpus", "parallel", "waiting_ns", "transfer_ns"),
            many(split),
            facts=count_all(split, extremes("waiting_ns")),
        ),
        Claim(
            "slower",
            _only(several[several["slower_ns"].notna()], "gpus", "parallel", "slower_ns", "slower_share"),
            lambda rows: (rows["slower_ns"] > 0).all(),
            facts=extremes("slower_ns"),
        ),
        Claim(
            "slowed",
            _only(slowed, "gpus", "parallel", "slowed"),
            lambda rows: (rows["slowed"] > 1).any(),
            facts=extremes("slowed"),
        ),
        Claim(
            "memory",
            _only(sharded, "gpus", "parallel", "peak_memory_bytes_1", "peak_memory_bytes", "memory_ratio"),
            lambda rows: (rows["memory_ratio"] < 1).all(),
            facts=extremes("memory_ratio"),
        ),
    ]


def _claim_link(frames: SeveralGpusData) -> list[Claim]:
    """How near collectives come to the rate of the link alone, and on which GPUs the runs were timed."""
    several = frames.several
    of_collective = ("collective", "bytes", "transfer_ns", "bus_rate", "link_share")
    of_message = ("collective", "message_bytes", "transfer_ns", "bus_rate", "link_share")
    with_sizes = set(frames.messages["run_id"])
    without_sizes = several[~several["run_id"].isin(with_sizes)]
    unknown = _only(frames.collectives[frames.collectives["bytes"].isna()], "gpus", "parallel", "collective")
    return [
        Claim(
            "reaches",
            _only(frames.collectives[frames.collectives["link_share"].notna()], "gpus", "parallel", *of_collective),
            facts=extremes("link_share"),
        ),
        Claim(
            "sizes",
            _only(frames.messages[frames.messages["link_share"].notna()], "gpus", "parallel", *of_message),
            facts=extremes("link_share"),
        ),
        Claim(
            "unknown_sizes",
            _only(without_sizes, "gpus", "parallel"),
            facts=lambda rows: {"num_all": len(several)},
        ),
        Claim("unknown_bytes", unknown, facts=lambda rows: {"num": rows["run_id"].nunique(), "num_all": len(several)}),
        Claim(
            "places",
            frames.timed[frames.timed["gpus"] > 1],
            lambda rows: rows["first_gpu"].nunique() > 1,
            facts=lambda rows: _places(rows, frames.timed[frames.timed["gpus"] == 1]),
        ),
    ]


def _only(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """As `run_grid.only`, each column once."""
    case = [name for name in ("size", "context_length", *run_grid.VARIANT_AXES, "run_id") if name in rows]
    return rows[list(dict.fromkeys([*case, *names]))]


def _find_most_exposed(rows: pd.DataFrame) -> dict[str, Any]:
    return {"least": HIDES_WELL, **extremes("exposed_share")(rows)}


def _is_explained(rows: pd.DataFrame) -> dict[str, Any]:
    longer = rows[rows["longer_ns"] > 0]
    parts = {
        name: span(longer[f"{name}_ns"] / longer["longer_ns"]) if len(longer) else None
        for name in ("exposed", "slower")
    }
    furthest = float(rows["unexplained_share"].max())
    return {"as_unprofiled": AS_UNPROFILED, "furthest": furthest, "share": span(rows["exposed_share"]), **parts}


def _count_by_host(rows: pd.DataFrame) -> dict[str, Any]:
    return {"as_unprofiled": AS_UNPROFILED, **extremes("exposed_ns")(rows)}


def _find_fewer(rows: pd.DataFrame, several: pd.DataFrame) -> dict[str, Any]:
    """num_all: cases of the same ways; others: what the same cases do when the work is shared another way."""
    ways = [find_value_label("parallel", str(way)) for way in rows["parallel"].unique()]
    case = [name for name in ("size", "context_length", *run_grid.VARIANT_AXES) if name in rows and name != "parallel"]
    others = several.drop(rows.index).merge(rows[case].drop_duplicates())
    return {
        "ways": ways,
        "num_all": int(several["parallel"].isin(rows["parallel"].unique()).sum()),
        "limits": _list_common_limits(several.loc[rows.index, "limit"]),
        "num_beyond": int(several.loc[rows.index, "tokens_differ"].sum()),
        "others": _group_by_way(others),
        **extremes("computing_share")(rows),
    }


def _list_common_limits(limits: pd.Series) -> list[str]:
    """List what limits most of these steps, alone or as one of two, the most frequent first."""
    known = limits.dropna().astype(str)
    counts = {name: int(known.str.contains(name, regex=False).sum()) for name in PARTS}
    most = sorted((name for name in PARTS if counts[name] > len(known) / 2), key=lambda name: -counts[name])
    return most


def _gives(rows: pd.DataFrame) -> dict[str, Any]:
    fewer = rows[rows["speedup"] < 1]
    in_noise = not fewer["tokens_differ"].any()
    return {
        "most": int(rows["gpus"].max()),
        "ways": _group_by_way(rows),
        "limits": _list_common_limits(fewer["limit"]),
        "in_noise": in_noise,
    }


def _group_by_way(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {"way": find_value_label("parallel", str(way)), "speedup": span(mine["speedup"])}
        for way, mine in rows.groupby("parallel", sort=False, observed=True)
    ]


def _places(rows: pd.DataFrame, of_one: pd.DataFrame) -> dict[str, Any]:
    """Of processes that timed several GPUs: how many there are by their first GPU, most first; in how many cases these
    differ, and how long the step is there on other GPUs, over that on those which timed most. at_once: on how many sets
    of GPUs at the same time. num_one: processes that timed one GPU alone; num_elsewhere: how many of them did so on one
    of the other GPUs."""
    counts = rows["first_gpu"].value_counts()
    steps = rows.assign(usual=rows["first_gpu"] == counts.index[0]).groupby(["run_id", "usual"])["step_ns"].median()
    both = steps.unstack("usual").reindex(columns=[True, False]).dropna()
    ratios = both[False] / both[True]
    elsewhere = of_one["first_gpu"].isin(counts.index[1:])
    return {
        "num_gpus": len(counts),
        "counts": counts.tolist(),
        "at_once": int(rows["at_once"].max()),
        "num_all": rows["run_id"].nunique(),
        "num_both": len(both),
        "ratios": span(ratios) if len(both) else None,
        "num_one": len(of_one),
        "num_elsewhere": int(elsewhere.sum()),
    }


def _tables(frames: SeveralGpusData) -> list[Table]:
    others = [name for name in ("precision", "attention", "optimizer") if name in frames.cases]
    case = case_headings(["size", "context_length", *others, "gpus", "parallel"], linked=False)
    of_several = frames.cases[frames.cases["gpus"] > 1]
    return [
        Table(
            "steps",
            "A training step on one GPU and on several",
            (
                *case,
                spread_column("step", "step, unprofiled"),
                band_column("step_band_ns"),
                Column("tokens_per_s", "tokens/s", "count"),
                Column("speedup", "÷ one GPU", "ratio", absent="base"),
                Column("efficiency", "efficiency", "share", bar=True, absent="base"),
                Column("longer_ns", "longer, without optimizer", "ms", absent="base"),
                Column("slower_ns", "computing kernels, longer", "ms", absent="base"),
                Column("rest_ns", "the rest of that", "ms", absent="base"),
                Column("peak_memory_bytes", "peak allocated, of a GPU", "bytes"),
            ),
            frames.cases,
        ),
        Table(
            "communication",
            "Communication in a step of one GPU",
            (
                *case,
                Column("waiting_ns", "waiting", "ms", absent="n/a"),
                Column("transfer_ns", "transfer", "ms", absent="n/a"),
                Column("hidden_ns", "hidden", "ms"),
                Column("exposed_ns", "exposed", "ms"),
                Column("critical_ns", "critical", "ms", absent="n/a"),
                Column("exposed_share", "exposed ÷ step under nsys", "share", bar=True),
                Column("issue_share", "CPU issues work", "share", absent="n/a"),
                Column("limit", "limited by", absent="n/a"),
                Column("profiled_ratio", "nsys ÷ timer", "ratio"),
                Column("slowed", "matmuls, beside ÷ alone", "ratio", absent="n/a"),
            ),
            of_several,
        ),
        *_tables_of_link(frames, case),
    ]


def _tables_of_link(frames: SeveralGpusData, case: tuple[Column, ...]) -> list[Table]:
    """Collectives, their messages, and what the link gives alone."""
    return [
        Table(
            "collectives",
            "Collectives in a step of one GPU, and the link",
            (
                *case,
                Column("collective", "collective", "code"),
                Column("calls", "calls", "count"),
                Column("bytes", "messages", "bytes", absent="not recorded"),
                Column("transfer_ns", "transfer", "ms", absent="n/a"),
                Column("bus_rate", "rate over the link", "byte_rate", absent="n/a"),
                Column("link_share", "÷ alone", "share", bar=True, absent="n/a"),
            ),
            frames.collectives,
        ),
        Table(
            "messages",
            "Collectives by size of the message, in a step of one GPU",
            (
                *case,
                Column("collective", "collective", "code"),
                Column("message_bytes", "message", "mib"),
                Column("calls", "calls", "count"),
                Column("waiting_ns", "waiting", "ms", absent="n/a"),
                Column("transfer_ns", "transfer", "ms", absent="n/a"),
                Column("bus_rate", "rate over the link", "byte_rate", absent="n/a"),
                Column("link_share", "÷ alone", "share", bar=True, absent="n/a"),
            ),
            frames.messages,
        ),
        Table(
            "link",
            "The link between the GPUs, a collective alone",
            (
                Column("collective", "collective", "code"),
                Column("gpus", "GPUs", "count"),
                Column("size_bytes", "of all GPUs together", "bytes"),
                Column("bus_rate", "rate over the link of each GPU", "byte_rate"),
                Column("bus_rate_low", "lowest", "byte_rate"),
                Column("bus_rate_high", "highest", "byte_rate"),
                Column("num_runs", "runs", "count"),
            ),
            frames.link,
        ),
    ]


def _charts(frames: SeveralGpusData) -> list[Chart]:
    split = frames.several
    parts = {"exposed_ns": "exposed", "hidden_ns": "hidden"}
    rows = pd.concat(
        [
            split.assign(
                scope=name,
                ms=split[column],
                way=[find_value_label("parallel", way) for way in split["parallel"]],
                share=split[column] / split["profiled_ns"],
            )
            for column, name in parts.items()
        ]
        if len(split)
        else [split.assign(scope="", share=np.nan)]
    )
    options = {
        "order": list(dict.fromkeys(rows["scope"])),
        "by": [name for name in ("size", "context_length", "precision", "parallel") if name in rows],
        "unit": "% of the step under nsys",
    }
    return [
        Chart("parts", "grouped_bars", "Communication, exposed and hidden, in a training step", rows, options=options)
    ]
