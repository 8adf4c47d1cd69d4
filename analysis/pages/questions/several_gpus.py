"""(w) What does a second GPU give, and what does communication cost?"""

import math
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, many, noise_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.pages.questions.several_gpus_data import AS_UNPROFILED, SeveralGpusData, collect_data
from profiler_job.analysis.pages.questions.several_gpus_tables import build_charts, build_tables
from profiler_job.analysis.render.answer import Answer, Claim, assemble
from profiler_job.jobs.contract.axes import find_value_label, find_value_name
from profiler_job.jobs.contract.step_limit import PARTS
from profiler_job.jobs.contract.studies import GPUS

STUDY = GPUS

ENDS = ("first", "last")
HIDES_WELL = 0.05
"""Exposed communication below this part of a step is called hidden."""
EXPLAINS = 0.05
"""Part of the step by which the two may differ."""
NEAR_SILENT = 0.03
"""Part of the step by which exposed communication and the measured cost of exchanges may differ."""
NEARLY_ALL = 0.9
"""Part of the rate of the largest message that a message must reach to count as large enough."""


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
    frames = collect_data(
        given.runs,
        given.steps,
        given.kernels,
        given.memops,
        given.memory,
        given.figures,
        given.processes,
        given.bands,
    )
    charts = build_charts(frames)
    names = {chart.key for chart in charts}
    facts: dict[str, Any] = {"noise": noise_of(given.bands), "explains": EXPLAINS}
    facts |= {"has_lines": "scaling" in names, "has_grid": "grid" in names}
    facts["has_tp"] = bool((frames.cases["parallel"] == "tp").any())
    claims = _claims(frames)
    advised = next(claim for claim in claims if claim.key == "way")
    facts["advised"] = advised.values["value"] if advised.holds else ""
    return assemble(facts, claims, build_tables(frames), charts)


QUESTION = Question(
    letter="w",
    slug="several-gpus",
    title="What does a second GPU give, and what does communication cost?",
    needs=("runs", "steps", "kernels", "memops", "memory", "figures", "processes", "bands"),
    answer=answer,
    section=Section.CHANGE,
    place=5,
    study=STUDY,
    searched=("two GPUs", "DDP", "FSDP", "NCCL", "multi-GPU", "scaling efficiency"),
)


def _claims(frames: SeveralGpusData) -> list[Claim]:
    parts = (_claim_speed, _claim_more, _claim_exposed, _claim_critical, _claim_parts, _claim_link)
    return [claim for part in parts for claim in part(frames)]


def _claim_speed(frames: SeveralGpusData) -> list[Claim]:
    """What several GPUs give: tokens per second and efficiency, and when that is less than one GPU."""
    several = frames.several
    most = several[several["gpus"] == several["gpus"].max()]
    shown = ("gpus", "parallel", "tokens_per_s_1", "tokens_per_s", "speedup", "efficiency")
    return [
        Claim("gives", _only(most[most["quotable"]], *shown), facts=_gives),
        Claim("not_quoted", several[~several["quotable"]], lambda rows: len(rows) == len(several), facts=_give_roughly),
        *_claim_advice(several),
        Claim("range", _only(several, *shown, "step_ns", "step_band_ns"), facts=extremes("efficiency")),
        Claim(
            "fewer",
            _only(several[several["speedup"] < 1], "gpus", "parallel", "speedup", "step_ns", "computing_share"),
            facts=lambda rows: _find_fewer(rows, several),
        ),
    ]


def _claim_advice(several: pd.DataFrame) -> list[Claim]:
    """Which way to share the work leaves less communication exposed, and whether more tokens for each GPU do, which
    is no gain unless efficiency rises with them."""
    case = [name for name in run_grid.CASE_AXES if name in several]
    known = several.dropna(subset=["exposed_share"])
    best = known.sort_values("exposed_share", kind="stable").drop_duplicates(case)
    both = best[best.set_index(case).index.isin(known[known.duplicated(case)].set_index(case).index)]
    leading = both["parallel"].astype(str).mode().head(1)
    lead = both[both["parallel"].astype(str).isin(leading)]
    ends = known.sort_values("context_length", kind="stable").groupby(["size", "parallel"], sort=False, observed=True)
    values = {"exposed_share": ("first", "last"), "efficiency": ("efficiency_first", "efficiency_last")}
    contexts = pd.DataFrame(
        {label: getattr(ends[name], end)() for name, labels in values.items() for label, end in zip(labels, ENDS)}
    )
    contexts = contexts[ends["context_length"].nunique() > 1].reset_index()
    return [
        Claim(
            "way",
            _only(lead, "gpus", "parallel", "exposed_share"),
            lambda rows: len(rows) > len(both) / 2,
            facts=lambda rows: {
                "value": str(leading.iloc[0]),
                "way": find_value_label("parallel", str(leading.iloc[0])),
                "num_all": len(both),
            },
        ),
        Claim("more_tokens", contexts, _do_more_tokens_help),
    ]


def _do_more_tokens_help(rows: pd.DataFrame) -> bool:
    """Whether less is exposed at the longest context, and efficiency, which no profiler disturbs, is higher there."""
    less_exposed, more_efficient = rows["last"] < rows["first"], rows["efficiency_last"] > rows["efficiency_first"]
    return bool((less_exposed & more_efficient).all())


def _claim_more(frames: SeveralGpusData) -> list[Claim]:
    """What a batch that is divided gives, what other exchanges give, and what steps without exchange show."""
    shown = ("gpus", "parallel", "batch_size", "tokens_per_s_1", "tokens_per_s", "speedup", "efficiency")
    silent = frames.silent
    near = silent[silent["silent_apart_share"] <= NEAR_SILENT]
    of_silent = ("gpus", "parallel", "step_ns", "silent_ns", "slower_ns", "exposed_ns", "silent_apart_share")
    changed = frames.changed
    return [
        Claim("strong", _only(frames.strong, *shown), facts=lambda rows: {"ways": _group_by_way(rows)}),
        Claim(
            "changed",
            _only(changed, "gpus", "parallel", "exchange", "usual_ns", "step_ns", "gain"),
            facts=_list_changes,
        ),
        Claim("silent", _only(near, *of_silent), many(silent), facts=count_all(silent, _span_silent)),
        Claim(
            "not_silent",
            _only(silent.drop(near.index), *of_silent),
            facts=count_all(silent, extremes("silent_apart_share")),
        ),
    ]


def _list_changes(rows: pd.DataFrame) -> dict[str, Any]:
    """What each exchange gives, the best first: way, exchange and gain of its rows."""
    groups = rows.groupby(["parallel", "exchange"], sort=False, observed=True)["gain"]
    changes = [
        {
            "way": find_value_label("parallel", str(way)),
            "exchange": find_value_name("exchange", str(exchange)),
            "gain": span(gain),
            "most": float(gain.max()),
        }
        for (way, exchange), gain in groups
    ]
    return {"changes": sorted(changes, key=lambda change: -change["most"])}


def _span_silent(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "within": NEAR_SILENT,
        "furthest": float(rows["silent_apart_share"].max()),
        "share": span(rows["exposed_ns"] / rows["step_ns"]),
    }


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
        Claim("grid", frames.link[frames.link["collective"] == "AllReduce"], _has_sizes, facts=_span_grid),
        Claim("unknown_bytes", unknown, facts=lambda rows: {"num": rows["run_id"].nunique(), "num_all": len(several)}),
        Claim(
            "places",
            frames.timed[frames.timed["gpus"] > 1],
            lambda rows: rows["first_gpu"].nunique() > 1,
            facts=lambda rows: _places(rows, frames.timed[frames.timed["gpus"] == 1]),
        ),
    ]


def _has_sizes(rows: pd.DataFrame) -> bool:
    return bool(rows["size_bytes"].nunique() > 1)


def _span_grid(rows: pd.DataFrame) -> dict[str, Any]:
    """Between most GPUs the rates of the smallest and the largest message, and the smallest with NEARLY_ALL of that."""
    most = rows[rows["gpus"] == rows["gpus"].max()].sort_values("size_bytes")
    largest = most["bus_rate"].iloc[-1]
    enough = most[most["bus_rate"] >= NEARLY_ALL * largest]
    return {
        "gpus": int(most["gpus"].iloc[0]),
        "low": most.iloc[0].to_dict(),
        "high": most.iloc[-1].to_dict(),
        "nearly": NEARLY_ALL,
        "enough": enough.iloc[0].to_dict(),
    }


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
    case = [
        name
        for name in ("size", "context_length", *run_grid.VARIANT_AXES)
        if name in rows and name not in ("parallel", "exchange")
    ]
    others = several.drop(rows.index).merge(rows[case].drop_duplicates())
    others = others[others["quotable"]]
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
    return {"most": int(rows["gpus"].max()), "ways": _group_by_way(rows)}


def _give_roughly(rows: pd.DataFrame) -> dict[str, Any]:
    """What most GPUs give, how far processes are apart, of those with several (None if there are none), and what is
    exposed."""
    most = rows[rows["gpus"] == rows["gpus"].max()]
    apart = rows[["apart", "apart_1"]].replace(math.inf, math.nan).max(axis=None)
    known = {"apart": None if pd.isna(apart) else float(apart), "share": span(rows["exposed_share"])}
    return _gives(most) | known


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
