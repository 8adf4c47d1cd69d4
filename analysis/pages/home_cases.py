"""The steps that the home page lets a reader choose: cases (model, context, batch, GPU) in up to three states."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from profiler_job.analysis.metrics import run_grid, steady
from profiler_job.analysis.metrics.turns import find_turned_runs
from profiler_job.analysis.pages.explore import shorten_names
from profiler_job.analysis.pages.titles import attention_of, name_size
from profiler_job.analysis.render.text import short_parameters
from profiler_job.jobs.contract import modes
from profiler_job.jobs.contract.axes import AXES, find_default, find_value_name
from profiler_job.jobs.contract.layout import SCRIPT

FP32, BF16, COMPILED = "FP32", "BF16", "BF16 compiled"
STATES = (FP32, BF16, COMPILED)
"""As a model is first written, as people train, and compiled."""
FP32_COMPILED = "FP32 compiled"
USUAL = {FP32: {"attention": "naive", "optimizer": "own"}, BF16: {"attention": "sdpa", "optimizer": "fused"}}
USUAL[COMPILED] = USUAL[BF16] | {"compile": "default"}
USUAL[FP32_COMPILED] = USUAL[FP32] | {"compile": "default"}
"""The values of a state, of several runs of a case that are in it."""
KEY = ["size", "context_length", "batch_size", "gpu"]
ALONE = ("workload_options", "memory_limit_gib", "accumulation", "checkpointing", "gpus", "parallel", "repeat")
"""Axes that a case has at their defaults."""


class CaseNumbers(NamedTuple):
    """parameters: 0 if they are not known; gpu_name: as nvidia-smi has it."""

    parameters: float
    context_length: int
    batch_size: int
    gpu_name: str


@dataclass(frozen=True, kw_only=True)
class HomeCase:
    """A case, by KEY as a page shows it, and the run of each state: the index of its recording and its id. numbers: its
    values without words. timed: likewise, of each state that was timed and not captured, so that it has no figure, if
    another state of the case has one. others: of each state whose run has settings other than USUAL, those settings and
    the usual ones in words. apart: how far the processes of one of these runs are apart at most
    (`steady.measure_apart`), 0 if they took turns: their ratios leave out what makes a process slow."""

    at: tuple[str, ...]
    numbers: CaseNumbers
    runs: Mapping[str, tuple[int, str]]
    timed: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    others: Mapping[str, tuple[str, str]]
    apart: float


def list_cases(recordings: Sequence[Any]) -> list[HomeCase]:
    """List the cases in model order. Of several runs of one state, the nearest to USUAL counts, one with kernels
    before one without, one that took turns with others before one that was timed alone, the earlier recording before
    the later. Without training steps, the longest mode counts."""
    runs = list_runs(recordings)
    if not len(runs):
        return []
    longest = max(runs["mode"], key=modes.MODES.index)
    runs = runs[runs["mode"] == longest]
    known = runs[runs["state"].isin(STATES)]
    runs = run_grid.sort_runs(known if len(known) else runs)
    runs["gpu"] = runs["gpu_name"].map(shorten_names(sorted(runs["gpu_name"].unique())))
    runs["model"] = [name_model(*row) for row in zip(map(name_size, runs.to_dict("records")), runs["num_parameters"])]
    runs["apart"] = runs["apart"].mask(runs["is_turned"], 0.0)
    runs["is_alone"] = ~runs["is_turned"]
    cases = []
    for _, rows in runs.groupby(["size", "context_length", "batch_size", "gpu_name"], sort=False):
        best = rows.sort_values(["distance", "is_alone"], kind="stable").drop_duplicates("state")
        is_shown = (best["profiled_steps"] > 0) | (best["profiled_steps"] == 0).all()
        timed, best = best[~is_shown], best[is_shown]
        first = rows.iloc[0]
        context, batch = int(first["context_length"]), int(first["batch_size"])
        parameters = 0 if pd.isna(first["num_parameters"]) else float(first["num_parameters"])
        cases.append(
            HomeCase(
                at=(first["model"], f"{context:,}", str(batch), str(first["gpu"])),
                numbers=CaseNumbers(parameters, context, batch, str(first["gpu_name"])),
                runs={row.state: (row.recording, row.run_id) for row in best.itertuples()},
                timed={row.state: (row.recording, row.run_id) for row in timed.itertuples()},
                others={row["state"]: words for row in best.to_dict("records") if (words := _describe_others(row))},
                apart=float(best["apart"].max()),
            )
        )
    return cases


def choose_case(cases: Sequence[HomeCase]) -> HomeCase:
    """Choose the case that is shown first: of those with most states, and whose processes agree within MOST_APART or
    best, the nearest to the middle of all models and contexts."""
    most = max(len(case.runs) for case in cases)
    fullest = [case for case in cases if len(case.runs) == most]
    apart = max(steady.MOST_APART, min(case.apart for case in fullest))
    known = [case for case in fullest if case.apart <= apart]
    places = [list(dict.fromkeys(case.at[i] for case in cases)) for i in range(2)]
    middle = [len(values) // 2 for values in places]
    return min(known, key=lambda case: sum(abs(places[i].index(case.at[i]) - middle[i]) for i in range(2)))


def find_state(run: Mapping[str, Any]) -> str:
    """Find the state of a run: one of STATES, or else its precision."""
    default = find_default("compile")
    precision, is_compiled = str(run["precision"]), (run.get("compile") or default) != default
    return f"{precision.upper()}{' compiled' if is_compiled else ''}"


def _describe_others(run: Mapping[str, Any]) -> tuple[str, str] | None:
    """Describe the settings of a run that are not the usual ones of its state, and these."""
    usual = USUAL.get(run["state"], {})
    others = {axis: str(run[axis]) for axis, value in usual.items() if axis in run and str(run[axis]) != value}
    sides = (others, {axis: usual[axis] for axis in others})
    both = [" and ".join(_name_setting(*setting) for setting in side.items()) for side in sides]
    return (both[0], both[1]) if others else None


def _name_setting(axis: str, value: str) -> str:
    return attention_of(value) if axis == "attention" else str(find_value_name(axis, value))


def list_runs(recordings: Sequence[Any]) -> pd.DataFrame:
    """List the finished runs that have ALONE at its defaults: the columns of their tables, the index of their
    `recording`, their `state`, how far their processes are `apart`, whether they took turns (`is_turned`), and their
    `distance`: 0 for a run that nsys captured with the usual values of its state."""
    tables = [_list_runs(number, rec) for number, rec in enumerate(recordings)]
    known = [table for table in tables if len(table)]
    return pd.concat(known, ignore_index=True) if known else pd.DataFrame()


def _list_runs(number: int, rec: Any) -> pd.DataFrame:
    ok = run_grid.select_measured_runs(rec.runs)
    ok = ok.astype({name: str for name in ok if ok[name].dtype == "category"} | {"run_id": str})
    plain = pd.Series(True, index=ok.index)
    for name in (name for name in ALONE if name in ok):
        default = find_default(name) if name in AXES else None
        plain &= ok[name].isna() | (ok[name].astype(str) == str(default)) | (ok[name].astype(str) == "")
    if "workload" in ok:
        plain &= ok["workload"] != SCRIPT
    ok = ok[plain & ok["mode"].isin(modes.MODES)]
    profiled = ok["profiled_steps"] > 0
    rows = ok.to_dict("records")
    states = [find_state(run) for run in rows]
    distances = [
        sum(str(run.get(axis)) != value for axis, value in USUAL.get(state, {}).items())
        for run, state in zip(rows, states)
    ]
    apart = steady.measure_apart(rec.steps)
    apart.index = apart.index.astype(str)
    ok = ok.assign(recording=number, state=states, apart=ok["run_id"].map(apart).fillna(math.inf))
    ok = ok.assign(is_turned=ok["run_id"].isin(find_turned_runs(rec.steps)))
    return ok.assign(distance=[2 * n for n in distances] + (~profiled).astype(int))


def name_model(size: str, num_parameters: float) -> str:
    """`large (0.97B)`; `1.3B` if the name has the parameters already."""
    parameters = "" if pd.isna(num_parameters) or not num_parameters else short_parameters(num_parameters)
    return size if not parameters or size.endswith(parameters) else f"{size} ({parameters})"


def iterate_chosen(cases: Sequence[HomeCase]) -> Iterator[tuple[int, set[str]]]:
    """Yield the index of each recording, and the ids of its runs that cases have."""
    chosen: dict[int, set[str]] = {}
    for case in cases:
        for number, run_id in (*case.runs.values(), *case.timed.values()):
            chosen.setdefault(number, set()).add(run_id)
    yield from sorted(chosen.items())
