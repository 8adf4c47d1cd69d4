"""What a prediction starts from: one run, its operations on the GPU by phase and module, and its unprofiled times."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.metrics.kernel_time import kernel_totals, num_profiled_steps
from profiler_job.analysis.metrics.step_clocks import Clock, clocks
from profiler_job.analysis.prediction import fusion
from profiler_job.analysis.recording.run_table import keep_runs, read_whole, select_by_row
from profiler_job.jobs.contract import ranges

GEMM, ATTENTION, REST = "gemm", "attention", "rest"
KEY = ["phase", "leaf", "kind"]


class Tables(Protocol):
    """The tables of a recording that are read here."""

    manifest: dict[str, Any]
    runs: pd.DataFrame
    steps: pd.DataFrame
    kernels: pd.DataFrame
    memops: pd.DataFrame
    api: pd.DataFrame
    figures: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """run: its row of `runs`. parts: what the GPU does in one step: KEY (leaf: innermost module; kind: GEMM, ATTENTION
    or REST), launches (copies included), time_ns. clocks: by phase, and `step`. passes_ns: as in `fusion.passes_ns`."""

    run: Mapping[str, Any]
    parts: pd.DataFrame
    clocks: Mapping[str, Clock]
    passes_ns: float = math.nan

    @property
    def step_ns(self) -> float:
        return self.clocks[ranges.STEP].wall_ns

    @property
    def phases(self) -> list[str]:
        """Its phases in the order of a step, as far as they were timed."""
        return [phase for phase in ranges.PHASES if phase in self.clocks]


def baselines(recording: Tables) -> Iterator[Baseline]:
    """Every finished run of the recording that was timed and profiled, in its order."""
    runs = run_grid.select_measured_runs(recording.runs).astype({"run_id": str})
    parts, timed = _parts(recording), clocks(recording.steps)
    passes = {name: fusion.passes_ns(rows) for name, rows in kernel_totals(recording.kernels).groupby("run_id")}
    for run in runs.to_dict("records"):
        mine = parts[parts["run_id"] == run["run_id"]]
        if len(mine) and ranges.STEP in timed.get(run["run_id"], {}):
            known = passes.get(run["run_id"], math.nan)
            yield Baseline(run=run, parts=mine.drop(columns="run_id"), clocks=timed[run["run_id"]], passes_ns=known)


def is_of_attention(totals: pd.DataFrame) -> pd.Series:
    """Of each row of `kernel_totals` of a run whether it is a matmul of a module that has modules inside: one of two
    tensors, as attention has."""
    around = {module.rpartition("/")[0] for module in totals["module"].unique()} - {""}
    return (totals["family"] == GEMM) & totals["module"].isin(around)


def read_run(recording: Any, run_id: str) -> Any:
    """What a recording has of one run, in the tables that are read here."""
    tables = {name: getattr(recording, name) for name in ("runs", "steps", "kernels", "memops", "api", "figures")}
    mine = {name: read_whole(keep_runs(rows, {run_id})) for name, rows in tables.items()}
    return replace(recording, **mine)


def _parts(recording: Tables) -> pd.DataFrame:
    """Kernels, copies and fills of a step of one run by KEY: run_id, KEY, launches, time_ns."""
    copies = _name_copies(recording.memops)
    # A run's steps are those with kernels: copies are counted by the same number of them.
    totals = pd.concat(
        [kernel_totals(recording.kernels), _scale_totals(kernel_totals(copies), copies, recording.kernels)]
    )
    totals["leaf"] = totals["module"].str.rsplit("/", n=1).str[-1]
    totals["kind"] = totals["family"].where(totals["family"].isin([GEMM, ATTENTION]), REST)
    sums = totals.groupby(["run_id", *KEY])[["calls", "time_ns"]].sum().reset_index()
    return sums.rename(columns={"calls": "launches"})


@select_by_row
def _name_copies(memops: pd.DataFrame) -> pd.DataFrame:
    return memops.assign(kernel_name="", family="memop")


def _scale_totals(totals: pd.DataFrame, copies: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    if totals.empty:
        return totals
    steps = num_profiled_steps(copies) / num_profiled_steps(kernels)
    factor = steps.reindex(totals["run_id"]).to_numpy()
    return totals.assign(calls=totals["calls"] * factor, time_ns=totals["time_ns"] * factor)
