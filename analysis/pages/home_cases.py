"""The steps that the home page lets a reader choose: cases (model, context, batch, GPU) in up to three states."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pandas as pd

from profiler_job.analysis.metrics import run_grid, steady, timing
from profiler_job.analysis.metrics.turns import find_turned_runs
from profiler_job.analysis.pages.explore import shorten_names
from profiler_job.analysis.pages.titles import name_setting
from profiler_job.analysis.render import text
from profiler_job.jobs.contract import modes
from profiler_job.jobs.contract.axes import AXES, find_default
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.studies import TRAINED

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


class OtherSettings(NamedTuple):
    """In words: what differs from USUAL, what is usual there, and how the step was timed, "" if as usual."""

    here: str
    usual: str
    timed: str


@dataclass(frozen=True, kw_only=True)
class HomeCase:
    """A case, by KEY as a page shows it, and the run of each state: the index of its recording and its id. numbers: its
    values without words. timed: likewise, of each state that was timed and not captured, so that it has no figure, if
    another state of the case has one. others: of each state whose run has settings other than USUAL, or a step that is
    the median of processes that differ. apart: how far the processes of one of these runs are apart at most
    (`steady.measure_apart`), 0 if they took turns: their ratios leave out what makes a process slow."""

    at: tuple[str, ...]
    numbers: CaseNumbers
    runs: Mapping[str, tuple[int, str]]
    timed: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    others: Mapping[str, OtherSettings]
    apart: float


def list_cases(recordings: Sequence[Any]) -> list[HomeCase]:
    """List the cases in model order. Of several runs of one state, the nearest to USUAL counts, one with kernels
    before one without, one that took turns with others before one that was timed alone, one of the study TRAINED, whose
    runs have pages, before others, and the earlier recording before the later. Without training steps, the longest mode
    counts."""
    runs = list_runs(recordings)
    if not len(runs):
        return []
    longest = max(runs["mode"], key=modes.MODES.index)
    runs = runs[runs["mode"] == longest]
    known = runs[runs["state"].isin(STATES)]
    runs = run_grid.sort_runs(known if len(known) else runs)
    runs["gpu"] = runs["gpu_name"].map(shorten_names(sorted(runs["gpu_name"].unique())))
    runs["model"] = [text.name_model_of(run) for run in runs.to_dict("records")]
    runs["apart"] = runs["apart"].mask(runs["is_turned"], 0.0)
    runs["is_alone"] = ~runs["is_turned"]
    some_turned = bool(runs["is_turned"].any())
    cases = []
    for _, rows in runs.groupby(["size", "context_length", "batch_size", "gpu_name"], sort=False):
        best = rows.sort_values(["distance", "is_alone", "is_other"], kind="stable").drop_duplicates("state")
        is_shown = (best["profiled_steps"] > 0) | (best["profiled_steps"] == 0).all()
        timed, best = best[~is_shown], best[is_shown]
        others = {row["state"]: _describe_others(row, some_turned) for row in best.to_dict("records")}
        first = rows.iloc[0]
        context, batch = int(first["context_length"]), int(first["batch_size"])
        parameters = 0 if pd.isna(first["num_parameters"]) else float(first["num_parameters"])
        cases.append(
            HomeCase(
                at=(first["model"], f"{context:,}", str(batch), str(first["gpu"])),
                numbers=CaseNumbers(parameters, context, batch, str(first["gpu_name"])),
                runs={row.state: (row.recording, row.run_id) for row in best.itertuples()},
                timed={row.state: (row.recording, row.run_id) for row in timed.itertuples()},
                others={state: words for state, words in others.items() if words},
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


def select_state(rec: Any, state: str, batches: Any) -> Any:
    """Select the runs of the reference Transformer in a state with its usual values, which have one of these batches:
    a recording with these rows of `runs` alone."""
    rows = run_grid.select_known_shapes(rec.runs[rec.runs["batch_size"].isin(batches)])
    is_usual = [
        run_grid.is_plain(run)
        and find_state(run) == state
        and all(run.get(axis, value) == value for axis, value in USUAL[state].items())
        for run in rows.to_dict("records")
    ]
    return replace(rec, runs=rows[pd.Series(is_usual, index=rows.index, dtype=bool)])


def _describe_others(run: Mapping[str, Any], some_turned: bool) -> OtherSettings | None:
    """Describe where a run differs from the usual ones of its state. If other steps took turns and show the fastest
    process, the median of processes that differ is such a setting: a slow CPU may lengthen it. Small in BF16 took 65 ms
    on an H100 at 128 tokens, and 50 ms at 512."""
    usual = USUAL.get(run["state"], {})
    others = {axis: str(run[axis]) for axis, value in usual.items() if axis in run and str(run[axis]) != value}
    sides = [[name_setting(axis, side[axis]) for axis in others] for side in (others, usual)]
    timed = ""
    if some_turned and steady.MOST_APART < run["apart"] < math.inf:
        times = [text.rounded(run[f"{end}_ns"], "ns") for end in ("shortest", "longest")]
        timed = f"the median of {run['num_processes']:.0f} processes ({times[0]} to {times[1]})"
        sides[0].append(timed)
        sides[1].append("the fastest process")
    return OtherSettings(_join_words(sides[0]), _join_words(sides[1]), timed) if sides[0] else None


def _join_words(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


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
    ok = ok.merge(timing.measure_processes(rec.steps).astype({"run_id": str}), how="left", on="run_id")
    is_other = rec.manifest.get("study", "") != TRAINED
    ok = ok.assign(is_turned=ok["run_id"].isin(find_turned_runs(rec.steps)), is_other=is_other)
    return ok.assign(distance=[2 * n for n in distances] + (~profiled.to_numpy()).astype(int))


def iterate_chosen(cases: Sequence[HomeCase]) -> Iterator[tuple[int, set[str]]]:
    """Yield the index of each recording, and the ids of its runs that cases have."""
    chosen: dict[int, set[str]] = {}
    for case in cases:
        for number, run_id in (*case.runs.values(), *case.timed.values()):
            chosen.setdefault(number, set()).add(run_id)
    yield from sorted(chosen.items())
