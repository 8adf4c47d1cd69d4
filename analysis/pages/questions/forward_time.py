"""(a) How long does a forward pass take, and do the clocks agree?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.changes.evidence import LEAST_IDLE
from profiler_job.analysis.metrics import differences, run_grid, timing, waiting
from profiler_job.analysis.metrics.differences import Band, Bands
from profiler_job.analysis.pages.case_columns import case_headings, spread_column, step_columns
from profiler_job.analysis.pages.extreme_rows import (
    count_all,
    extremes,
    find_highest,
    many,
    noise_of,
    span,
)
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import modes
from profiler_job.jobs.contract.words import NOT_MEASURED

CLOCKS = {
    "busy": "GPU busy",
    "projected": "GPU span",
    "host": "NVTX range (under nsys)",
    "timer": "Python timer",
}
FORWARD = "forward"
UNSTEADY = 0.2
"""Timed steps that spread over more than this part of their median are called unsteady."""


def answer(given: Inputs) -> Answer:
    """Forward time of every model size and context length (mode `forward`) by four clocks, each with its spread over
    steps.

    timer: Python, unprofiled, device synchronised. host: the NVTX range `forward` on the host, under nsys. projected:
    GPU span, from the first operation on the GPU to the end of the last. busy: union of its kernels, copies and
    fills. Ratios are to the timer's median. The timer's steps, of all processes, have a mean and standard
    deviation, too, and of the medians of the processes the 95% interval of their median. A time under nsys and one
    without it, which are of two processes, differ by more than the noise band of wall times (`bands`). How long the GPU
    waits for launches is what `metrics.waiting` says, here and in other recordings (`studies`) of the same runs. The
    last table is the forward phase inside the other modes.
    """
    frames = _frames(given.runs, given.steps, given.kernels, given.memops, given.bands, given.studies)
    return assemble(_facts(frames, given.bands), _claims(frames, given.bands), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="a",
    slug="forward-time",
    title="How long does a forward pass take?",
    needs=("runs", "steps", "kernels", "memops", "bands", "studies"),
    answer=answer,
    section=Section.TIME,
    place=1,
    searched=("forward pass", "latency", "step time"),
    also_as=("clocks",),
)


@dataclass(frozen=True, kw_only=True)
class ForwardTimeData:
    """`cases`: the forward mode, one row per case; `measured`: those that were timed; `inside`: the forward phase of
    the other modes. `by` names a case."""

    by: list[str]
    cases: pd.DataFrame
    measured: pd.DataFrame
    inside: pd.DataFrame


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    bands: Bands | None,
    studies: Mapping[str, Any],
) -> ForwardTimeData:
    band = bands.wall if bands else None
    waits = _select_forward(waiting.launch_waits(steps, kernels, memops, band))
    others = waiting.compute_other_waits(runs[runs["mode"] == FORWARD], studies.values(), band)
    seen = waiting.count_recordings(waits.assign(phase=FORWARD), others).drop(columns="phase")
    every = pd.concat([waits, others[others["phase"] == FORWARD]])
    every["took_ns"] = every["launch_wait_ns"] / every["launch_wait"]
    took = every.groupby("run_id").agg(took_low=("took_ns", "min"), took_high=("took_ns", "max")).reset_index()
    seen = seen.merge(took, on="run_id")
    times = forward_times(steps, kernels, memops).merge(waits.drop(columns="busy_share"), how="left", on="run_id")
    cases = run_grid.cases(runs, FORWARD).merge(times, how="left", on="run_id")
    for part in (seen, _select_forward(differences.timed_steps(steps))):
        cases = cases.merge(part, how="left", on="run_id")
    larger = pd.concat([run_grid.cases(runs, mode).assign(mode=mode) for mode in modes.MODES if mode != FORWARD])
    return ForwardTimeData(
        by=run_grid.case_columns(runs),
        cases=cases,
        measured=cases[(cases[NOT_MEASURED] == "") & cases["timer_ns"].notna()],
        inside=larger.merge(times, how="left", on="run_id").sort_values(by="mode", kind="stable"),
    )


def _facts(frames: ForwardTimeData, bands: Bands | None) -> dict[str, Any]:
    return {
        "noise": noise_of(bands),
        "unsteady": UNSTEADY,
        "least_idle": LEAST_IDLE,
        "num_over": int((frames.measured["busy_ns"] > frames.measured["timer_ns"]).sum()),
        "num_timed": _one_or_range(frames.measured.get("timer_n")),
        "num_profiled": _one_or_range(frames.measured.get("host_n")),
    }


def _claims(frames: ForwardTimeData, bands: Bands | None) -> list[Claim]:
    measured, band = frames.measured, (bands.wall if bands else None)
    profiled = measured.dropna(subset="launch_wait")
    under_nsys = _ratio("host_ratio", measured)
    return [
        Claim("range", measured, lambda rows: rows["timer_ns"].notna().all(), facts=extremes("timer_ns")),
        Claim("waits", profiled, facts=_waits),
        Claim("recordings", profiled[profiled["num_recordings"] > 1], facts=_recordings),
        Claim(
            "profiler_slows", _select_differing(measured, "host", band, longer=True), many(measured), facts=under_nsys
        ),
        Claim(
            "profiler_range_shorter",
            _select_differing(measured, "host", band, longer=False),
            many(measured),
            facts=under_nsys,
        ),
        Claim(
            "profiler_agrees",
            measured.dropna(subset="host_ns"),
            lambda rows: not many(rows)(rows[differences.differ(rows, "host", "timer", band)]),
            facts=lambda rows: {"num_longer": int((rows["host_ratio"] > 1).sum()), "ratio": span(rows["host_ratio"])},
        ),
        Claim(
            "projected_below",
            _select_differing(measured, "projected", band, longer=False),
            many(measured),
            facts=_ratio("projected_ratio", measured),
        ),
        Claim("unsteady", _unsteady(measured), facts=_find_widest(measured)),
        Claim("processes", _measure_width(measured), facts=_describe_processes),
        Claim("flat", _flat(measured, frames.by), facts=lambda rows: rows.iloc[0].to_dict()),
    ]


_STEPS = (
    "timer_n",
    *("timer_ns", "timer_min_ns", "timer_max_ns", "timer_mean_ns", "timer_std_ns", "deviation"),
    *("of_processes_ns", "of_processes_low_ns", "of_processes_high_ns", "num_processes"),
)


def _tables(frames: ForwardTimeData) -> list[Table]:
    case = case_headings(frames.by)
    clocks = (
        spread_column("timer", "Python timer"),
        spread_column("host", "NVTX range"),
        spread_column("projected", "GPU span"),
        spread_column("busy", "GPU busy"),
        Column("host_ratio", "NVTX ÷ timer", "ratio"),
        Column("projected_ratio", "GPU span ÷ timer", "ratio"),
        Column("busy_ratio", "GPU busy ÷ timer", "share"),
    )
    return [
        Table(
            "times",
            "Forward time by four clocks: median, and minimum–maximum over steps",
            (*case, *clocks, Column("launch_wait", "waits for launches", "share")),
            frames.cases,
        ),
        Table(
            "steps",
            "The timed steps of a forward pass: median, mean and standard deviation",
            (*case, *step_columns(frames.cases)),
            frames.cases[[*frames.by, "run_id", NOT_MEASURED, *_STEPS]],
        ),
        Table(
            "inside",
            "The forward phase inside a larger step",
            (*case, Column("mode", "mode"), *clocks),
            frames.inside,
        ),
    ]


def _charts(frames: ForwardTimeData) -> list[Chart]:
    """The other clocks over the timer's time: in ms, cases a hundred times apart would hide how the clocks differ."""
    others = [clock for clock in CLOCKS if clock != "timer"]
    long = frames.measured.melt([*frames.by, "run_id"], [f"{clock}_ns" for clock in others], "clock", "value")
    timer = frames.measured.set_index("run_id")["timer_ns"]
    long["value"] = long["value"] / long["run_id"].map(timer)
    long["clock"] = long["clock"].str.removesuffix("_ns").map(CLOCKS)
    long = long.dropna(subset="value").reset_index(drop=True)
    options: dict[str, Any] = {"order": [CLOCKS[clock] for clock in others], "by": frames.by, "value": "value"}
    options |= {"unit": "time ÷ Python timer", "log": False}
    return [Chart("clocks", "dumbbell", "A forward pass by the other clocks", long, options=options)]


def forward_times(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Forward phase of each run by the four clocks, with ratios to the timer: one row per run_id."""

    gpu = timing.gpu_times(kernels, memops)
    table = _select_forward(timing.host_times(steps, "timer", "timer"))
    parts = [timing.host_times(steps, "nsys", "host")]
    parts += [timing.spread(gpu, ["run_id", "phase"], f"{clock}_ns", clock) for clock in ("projected", "busy")]
    for part in parts:
        table = table.merge(_select_forward(part), how="outer", on="run_id")
    for clock in ("host", "projected"):
        table[f"{clock}_ratio"] = table[f"{clock}_ns"] / table["timer_ns"]
    table["busy_ratio"] = timing.busy_share(table, kernels)
    waits = (table["timer_ns"] * (1 - table["busy_ratio"])).clip(lower=0).fillna(table["timer_ns"])
    return table.assign(**{f"{clock}_parts": waits for clock in ("timer", "host", "projected")})


def _select_forward(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["phase"] == FORWARD].drop(columns="phase")


def _waits(rows: pd.DataFrame) -> dict[str, Any]:
    num_late = int((rows["launch_wait"] >= LEAST_IDLE).sum())
    facts = extremes("launch_wait")(rows)
    longest = facts["high"]
    waited = longest["wait_high"] if longest["num_recordings"] > 1 else None
    return {**facts, "waited": waited, "num_waiting": int(rows["waits"].sum()), "num_late": num_late}


def _recordings(rows: pd.DataFrame) -> dict[str, Any]:
    """Of cases that several recordings have: the one whose GPU waits for launches most differently, and how many wait
    in all recordings, and in some."""
    always = rows["num_claimed"] == rows["num_recordings"]
    return {
        "widest": find_highest(rows.assign(width=rows["wait_high"] - rows["wait_low"]), "width"),
        "num_always": int(always.sum()),
        "num_sometimes": int((rows["num_claimed"] > 0).sum() - always.sum()),
    }


def _select_differing(rows: pd.DataFrame, clock: str, band: Band | None, longer: bool) -> pd.DataFrame:
    """Rows whose `clock` differs from the timer, on the longer or the shorter side."""
    beyond = differences.differ(rows, clock, "timer", band) & ((rows[f"{clock}_ns"] > rows["timer_ns"]) == longer)
    return rows[beyond]


def _ratio(value: str, every: pd.DataFrame) -> Callable[[pd.DataFrame], dict[str, Any]]:
    return lambda rows: {"ratio": span(rows[value]), **count_all(every)(rows)}


def _find_widest(every: pd.DataFrame) -> Callable[[pd.DataFrame], dict[str, Any]]:
    return lambda rows: {"widest": find_highest(rows, "width"), **count_all(every)(rows)}


def _flat(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Pairs of runs of one model that both wait for launches, whose forward time stays within 1.25x while context
    doubles."""
    others = [name for name in by if name != "context_length"]
    pairs = rows.merge(rows, on=others, suffixes=("", "_longer"))
    pairs["context_ratio"] = pairs["context_length_longer"] / pairs["context_length"]
    pairs["time_ratio"] = pairs["timer_ns_longer"] / pairs["timer_ns"]
    both = (pairs["waits"] == True) & (pairs["waits_longer"] == True)  # noqa: E712 (missing without a capture)
    keep = pairs[both & (pairs["context_ratio"] >= 2) & (pairs["time_ratio"] < 1.25)]
    shown = [
        *by,
        "run_id",
        "context_length_longer",
        "context_ratio",
        "time_ratio",
        "timer_ns",
        "timer_ns_longer",
        "launch_wait",
        "launch_wait_longer",
    ]
    return keep[shown].sort_values("context_ratio", ascending=False, kind="stable", ignore_index=True)


def _unsteady(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose timed steps spread, from minimum to maximum, over more than UNSTEADY of their median."""
    width = (rows["timer_max_ns"] - rows["timer_min_ns"]) / rows["timer_ns"]
    return rows.assign(width=width)[width > UNSTEADY]


def _measure_width(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with an interval over processes; width: of it, as a part of the median."""
    rows = rows.dropna(subset="of_processes_ns")
    width = (rows["of_processes_high_ns"] - rows["of_processes_low_ns"]) / rows["of_processes_ns"]
    return rows.assign(width=width)


def _describe_processes(rows: pd.DataFrame) -> dict[str, Any]:
    return {**extremes("width")(rows), "num_processes": _one_or_range(rows["num_processes"])}


def _one_or_range(counts: pd.Series | None) -> tuple[int, int]:
    return (int(counts.min()), int(counts.max())) if counts is not None and len(counts.dropna()) else (0, 0)
