"""Runs in model order, and the grid of cases that a sweep spans."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics.ordering import place, rank_first_seen, sort_stably
from profiler_job.analysis.reference import flops
from profiler_job.jobs.contract.axes import find_default, list_value_names, order_axes
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.ranges import FORWARD
from profiler_job.jobs.contract.words import NOT_MEASURED

REFERENCE = find_default("workload")
"""The workload whose shape and operations the formulas are of."""
CASE_AXES = ("size", "context_length")
WORKLOAD_AXES = ("workload", "workload_options")
VARIANT_AXES = (*(name for name in order_axes() if name not in (*CASE_AXES, "mode")), "gpu_name")
"""What else tells two runs of one mode apart, in reading order."""

PROPERTIES = ("mode", "precision", "attention", "optimizer", "gpu_name")
"""What a run is looked for by, whether a table has a column of it or not."""


def sort_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs from the smallest model to the largest, then by context length, variant and mode."""
    by = ["num_parameters", "context_length", *(axis for axis in VARIANT_AXES if axis in runs)]
    keys = [runs[name].astype(str) if runs[name].dtype == "category" else runs[name] for name in by]
    return sort_stably(runs, *keys, place(runs["mode"], MODES), runs["run_id"].astype(str))


def list_sizes(runs: pd.DataFrame) -> tuple[str, ...]:
    """Names of the models, the smallest first."""
    return tuple(sort_runs(runs)["size"].astype(str).drop_duplicates())


def page_by_id(recordings: Sequence[Any], run_pages: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """The pages of the runs of `recordings` by run id: if several have an id, of the first. run_pages: paths
    below docs, without suffix, of the runs that have pages, by run id and start."""
    pages = {}
    for rec in reversed(recordings):
        for run in zip(rec.runs["run_id"].astype(str), rec.runs["started_at"].astype(str)):
            pages[run[0]] = run_pages.get(run, "")
    return pages


def property_names(runs: pd.DataFrame) -> dict[str, dict[str, str]]:
    """By run id, then by axis of PROPERTIES, what a run may be looked for by: "naive; eager; eager attention"."""
    known = [name for name in PROPERTIES if name in runs]
    names = {
        name: {value: "; ".join(list_value_names(name, value)) for value in runs[name].astype(str).unique()}
        for name in known
    }
    rows = runs[["run_id", *known]].astype(str).itertuples(index=False)
    return {run_id: {name: names[name][value] for name, value in zip(known, values)} for run_id, *values in rows}


def case_columns(runs: pd.DataFrame) -> list[str]:
    """The axes that tell two runs of one mode apart: size and context length, and each variant axis that varies; of a
    workload's own not those that follow from the name of its size."""
    varying = [axis for axis in VARIANT_AXES if axis in runs and runs[axis].nunique() > 1]
    of_size = [axis for axis in WORKLOAD_AXES if axis in varying and _follows_from_size(runs, axis)]
    return ["size", "context_length", *(axis for axis in varying if axis not in of_size)]


def _follows_from_size(runs: pd.DataFrame, axis: str) -> bool:
    return bool((runs.groupby("size", observed=True)[axis].nunique() == 1).all())


def explain_unmeasured(run: pd.Series) -> str:
    """Why a run has no numbers: "" for a finished one, otherwise its status and the phase that it reached."""
    status = run.get("status")
    if not isinstance(status, str):
        return "not measured"
    words = {
        "ok": "",
        "oom": "OOM",
        "timeout": "timed out",
        "failed": "failed",
        "no_kernels": "no kernels captured",
        "machine": "the machine failed",
    }[status]
    phase = run.get("status_phase")
    return f"{words} in {phase}" if words and isinstance(phase, str) and phase else words


def cases(runs: pd.DataFrame, mode: str) -> pd.DataFrame:
    """The whole grid of one mode: for each variant, every size x context length that its runs have, in any mode.

    Columns: case_columns, run_id ("" where there was no such run), not_measured ("" where the run finished).
    """
    by = case_columns(runs)
    ordered = sort_runs(runs).astype({column: str for column in by if runs[column].dtype == "category"})
    parts = [_product(part) for _, part in ordered.groupby(by[2:], sort=False)] if by[2:] else [_product(ordered)]
    grid = pd.concat(parts, ignore_index=True)[by]
    grid = sort_stably(grid, place(grid["size"], ordered["size"].drop_duplicates()), grid["context_length"])
    of_mode = ordered[ordered["mode"].astype(str) == mode].astype({"run_id": str, "status": str, "status_phase": str})
    of_mode = of_mode.drop_duplicates(by)[[*by, "run_id", "status", "status_phase"]]
    grid = grid.merge(of_mode, how="left", on=by)
    grid[NOT_MEASURED] = [explain_unmeasured(row) for _, row in grid.iterrows()]
    grid["run_id"] = grid["run_id"].fillna("")
    return grid[[*by, "run_id", NOT_MEASURED]]


def _product(runs: pd.DataFrame) -> pd.DataFrame:
    """Every size with every context length that runs of one variant have."""
    contexts = runs[["context_length"]].drop_duplicates()
    variant = runs[[axis for axis in VARIANT_AXES if axis in runs]].head(1)
    return runs[["size"]].drop_duplicates().merge(contexts, how="cross").merge(variant, how="cross")


def cases_along(runs: pd.DataFrame, mode: str, axis: str, order: list[str]) -> pd.DataFrame:
    """`cases` with a column `axis` even where it does not vary, the rows of one case in the `order` of its values."""
    table = cases(runs, mode)
    if axis not in table:
        table[axis] = str(runs[axis].iloc[0])
    others = [name for name in ("size", "context_length", *VARIANT_AXES) if name in table and name != axis]
    return sort_stably(table, rank_first_seen(table, others), place(table[axis], order))


def join_base(rows: pd.DataFrame, axis: str, base: str, values: list[str]) -> pd.DataFrame:
    """`rows` with the `values` of the same case at `base` on `axis` next to them, as {value}_{base}; NaN where there
    are none."""
    by = [name for name in ("size", "context_length", *VARIANT_AXES) if name in rows and name != axis]
    base_rows = rows[rows[axis].astype(str) == base][[*by, *values]]
    base_rows = base_rows.rename(columns={value: f"{value}_{base}" for value in values})
    return rows.merge(base_rows, how="left", on=by, validate="m:1")


def only(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Rows behind a claim without what it does not speak of: their case, run_id and the columns `names`."""
    case = [name for name in ("size", "context_length", *VARIANT_AXES, "run_id") if name in rows]
    return rows[[*case, *names]]


def select_measured_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Finished runs only: a run that ran out of memory shows no derived number, even for the phases it reached."""
    return sort_runs(runs[runs["status"].astype(str) == "ok"])


def has_known_shape(run: Mapping[str, Any]) -> bool:
    """Whether a run is one of the reference Transformer: of any other workload, parameters are counted and nothing else
    is known, so that no formula holds. A run without a workload is older than the axis."""
    return bool(run.get("workload", REFERENCE) == REFERENCE)


def select_known_shapes(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that `has_known_shape`."""
    return runs[pd.Series([has_known_shape(run) for run in runs.to_dict("records")], index=runs.index, dtype=bool)]


def select_eager(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that `is_eager`."""
    return runs[pd.Series([is_eager(run) for run in runs.to_dict("records")], index=runs.index, dtype=bool)]


def is_eager(run: Mapping[str, Any]) -> bool:
    """Whether a run is of the reference Transformer as it is written, not compiled."""
    return has_known_shape(run) and is_plain(run) and run.get("compile", find_default("compile")) == "off"


def is_plain(run: Mapping[str, Any]) -> bool:
    """Whether a run is on one GPU, with the batch in one piece and all activations kept."""
    axes = ("accumulation", "checkpointing", "gpus")
    return all(run.get(axis, find_default(axis)) == find_default(axis) for axis in axes)


def shape_of(run: Mapping[str, Any]) -> flops.StepShape:
    """The sizes of a run's model and batch, for the formulas; only for a run that `has_known_shape`."""
    return flops.StepShape(**{name.name: int(run[name.name]) for name in dataclasses.fields(flops.StepShape)})


def peak_bytes(runs: pd.DataFrame) -> pd.Series:
    """Peak allocated of each run; NaN under CUDA graphs: what they hold is taken while they are captured, and the peak
    of a step that replays them leaves it out."""
    peak = runs["peak_memory_bytes"].astype("float64")
    return peak.mask(runs["compile"].astype(str) == "cudagraphs") if "compile" in runs else peak


def tokens_of(runs: pd.DataFrame) -> pd.Series:
    """Tokens of one step of each run, on all its GPUs; NaN if they are not known: a script that only calls its model
    may generate text, a token of each sequence in a step, or a whole text."""
    tokens = runs["context_length"].astype("float64") * runs["batch_size"].astype("float64")
    if "gpus" in runs:
        tokens = tokens * runs["gpus"].astype("float64")
    if {"workload", "mode"} <= {*runs}:
        tokens = tokens.mask((runs["workload"].astype(str) == SCRIPT) & (runs["mode"].astype(str) == FORWARD))
    return tokens.where(tokens > 0)


def tokens_per_s(runs: pd.DataFrame, step_ns: pd.Series) -> pd.Series:
    """Tokens a second of each run, from the time of its step, which has the same index; NaN without tokens."""
    return tokens_of(runs) / step_ns * 1e9


def micro_batches_of(run: Mapping[str, Any]) -> int:
    """Micro-batches of one step: how often it runs what the model does once."""
    return int(run.get("accumulation", find_default("accumulation")))


def micro_batch_of(run: Mapping[str, Any]) -> flops.StepShape:
    """`shape_of` one micro-batch: the sizes that a kernel sees."""
    shape = shape_of(run)
    return dataclasses.replace(shape, batch_size=shape.batch_size // micro_batches_of(run))


def checkpointing_of(run: Mapping[str, Any]) -> str:
    """Which activations a run computes again in backward. A run without the axis is older than it."""
    return str(run.get("checkpointing", find_default("checkpointing")))


def count_matmuls(run: Mapping[str, Any], phase: str) -> int:
    """Matmuls that a phase of one step of a run launches."""
    once = flops.num_matmuls(shape_of(run), phase, str(run["attention"]), checkpointing_of(run))
    return micro_batches_of(run) * once
