"""All runs of all recordings in one table: to choose from, to compare two, to link to one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import gpu_samples, run_grid, timing, utilisation, waiting
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.pages.case_columns import COUNTS
from profiler_job.analysis.pages.titles import SAID
from profiler_job.analysis.reference.gpu_prices import find_price
from profiler_job.analysis.render.answer import ANCHOR, Answer, Column, Table, assemble
from profiler_job.analysis.render.tables import label_value
from profiler_job.analysis.render.text import name_model_of
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import (
    AXES,
    find_default,
    find_label,
    find_value_label,
    find_value_name,
)
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.words import NOT_MEASURED

SLUG = "explore"
TITLE = "Explore"
METRICS = (
    Column("step_ns", "step", "ms"),
    Column("tokens_per_s", "tokens/s", "count", absent="n/a"),
    Column("mfu", "MFU of sheet peak", "share", absent="n/a"),
    Column("peak_memory_bytes", "peak", "bytes", absent="n/a"),
    Column("idle_share", "GPU idle", "share", absent="n/a"),
    Column("joules", "J a step", "count", absent="n/a"),
    Column("cost", "USD per 1M tokens", "number", absent="n/a"),
)
"""What a reader may sort by and compare two runs in."""
SELDOM = {
    "workload": "{}".format,
    "workload_options": SAID["workload_options"],
    "compile": lambda value: str(find_value_name("compile", value)),
    "memory_limit_gib": SAID["memory_limit_gib"],
    "accumulation": SAID["accumulation"],
    "checkpointing": "checkpoint {}".format,
    "gpus": SAID["gpus"],
    "parallel": lambda value: str(find_value_label("parallel", value)),
}
"""Axes that most runs have at their default, and what the column `others` says about another value: a column for each
made the table a third wider than a page."""
LARGER_IS_BETTER = ("tokens_per_s", "mfu")


@dataclass(frozen=True, kw_only=True)
class Part:
    """The runs of one recording, or of all recordings of a study. name: what its rows are called. page: path below docs
    of the page about it. run_pages: such paths of the page of each run, by (run_id, started_at). rec: its tables."""

    name: str
    page: str
    run_pages: Mapping[tuple[str, str], str]
    rec: Any

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Each run with the METRICS of its step."""
        return _rows(self)

    @cached_property
    def machine_values(self) -> pd.DataFrame:
        """The machine of each run, as `gpu_samples.summarise_runs` gives it."""
        return gpu_samples.summarise_runs(self.rec.runs, self.rec.steps, self.rec.processes, self.rec.telemetry)


def answer(parts: Sequence[Part], band: Band | None) -> Answer:
    """Every run in model order, models that the first part has before others, with the METRICS of its step;
    numbers of finished runs only. band: of wall times."""
    rows = pd.concat([part.rows for part in parts], ignore_index=True)
    gpus = sorted(rows["gpu_name"].unique())
    short = shorten_names(gpus)
    rows["gpu_name"] = rows["gpu_name"].map(short)
    axes = [
        name
        for name in run_grid.VARIANT_AXES
        if name in rows and rows[name].nunique() > 1 and name not in ("repeat", *SELDOM)
    ]
    axes += ["others"] * (rows["others"].nunique() > 1)
    kinds = dict.fromkeys(COUNTS, "count") | {"size": "page", "recording": "page", "others": "words"}
    names = {"gpu_name": "GPU", "others": "other settings"}
    cases = [
        Column(name, names.get(name, find_label(name)), kinds.get(name, "text"))
        for name in ("size", "context_length", "mode", *axes, "recording")
    ]
    if rows["num_parameters"].nunique() > 1:  # an axis of the picture: a model has a name, and no place on one
        cases.insert(-1, Column("num_parameters", "parameters", "billions", absent="n/a"))
    rows = run_grid.sort_runs(rows)
    own = rows["size"].isin(parts[0].rec.runs["size"].astype(str))  # models that studies alone have come last
    rows = pd.concat([rows[own], rows[~own]], ignore_index=True)
    facets = [
        {"key": column.key, "label": column.label, "values": _values(rows, column.key)}
        for column in cases
        if rows[column.key].nunique() > 1 and column.kind != "billions"  # the model chooses the same
    ]
    compiled = set(rows.get("compile", pd.Series(dtype=str)).dropna())
    if len(compiled) > 1:
        facets.insert(len(facets) - 1, _compile_facet(compiled))
    table = Table("explore", "All runs of all recordings", (*cases, *METRICS), rows)
    facts = {
        "num_runs": len(rows),
        "num_finished": int((rows[NOT_MEASURED] == "").sum()),
        "num_studies": len(parts) - 1,
        "facets": facets,
        "metrics": METRICS,
        "counts": [column for column in cases if column.kind in ("count", "billions")],
        "has_costs": bool(rows["cost"].notna().any()),
        "larger_is_better": LARGER_IS_BETTER,
        "best": _find_best_mfu(parts),
        "gpus": [short[gpu] for gpu in gpus],
        "band": band,
        "relative": repr(band.time_half) if band else "",
        "ratio": repr(band.ratio) if band else "",
    }
    return assemble(facts, [], [table], [])


def shorten_names(gpus: Iterable[str]) -> dict[str, str]:
    """Each GPU by the first word of its model, such as H200, where that tells them apart: in full they make the table
    wider than the page."""
    short = {name: (name.removeprefix("NVIDIA ").split() or [name])[0] for name in gpus}
    return short if len(set(short.values())) == len(short) else {name: name for name in gpus}


def _others(runs: pd.DataFrame) -> list[str]:
    """Of each run in words what it says that is not the default of the axes SELDOM; "none" where it is all."""
    words: dict[str, Callable[[Any], str]] = {name: say for name, say in SELDOM.items() if name in runs}

    def others_of(run: pd.Series) -> str:
        different = (name for name in words if not pd.isna(run[name]) and run[name] != find_default(name))
        return ", ".join(words[name](run[name]) for name in different)

    return [others_of(run) or "none" for _, run in runs.iterrows()]


def _find_best_mfu(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The training step with the highest MFU of each precision, as the page on cost has it: `precision`, `mfu`, `words`
    and `anchor`."""
    rows = pd.concat([part.rows for part in parts], ignore_index=True)
    known = rows[(rows["mode"] == MODES[-1]) & rows["mfu"].notna()]
    best = known.sort_values("mfu", kind="stable").drop_duplicates("precision", keep="last")
    return [
        {
            "precision": run["precision"],
            "mfu": run["mfu"],
            "anchor": run[ANCHOR],
            "words": _describe_best(run),
        }
        for run in best.sort_values("precision").to_dict("records")
    ]


def _describe_best(run: Mapping[str, Any]) -> str:
    words = f"{name_model_of(run)}, {run['context_length']:,} tokens, batch {run['batch_size']}"
    return words if run["others"] == "none" else f"{words}, {run['others']}"


def _price_tokens(runs: pd.DataFrame, tokens_per_s: pd.Series) -> pd.Series:
    """What a million tokens of each run cost in USD at the list price of its GPUs; NaN without a price or tokens."""
    prices = runs["gpu_name"].map({name: find_price(name) for name in runs["gpu_name"].unique()})
    per_hour = prices.map(lambda price: price.usd_per_hour if price else float("nan")).astype("float64")
    num_gpus = runs["gpus"].astype("float64") if "gpus" in runs else 1.0
    return per_hour * num_gpus / 3600 / tokens_per_s * 1e6


def anchor_of(part: str, run_id: str) -> str:
    """The row of a run, from the part of this name."""
    return f"{part}-{run_id}"


def _values(rows: pd.DataFrame, key: str) -> list[dict[str, str]]:
    """The values of a column in order, as the page and as the recordings have them."""
    first = rows.drop_duplicates(key)
    if key == "context_length":
        first = first.sort_values(key)
    if key == "mode":
        first = sort_stably(first, place(first[key], MODES))
    return [{"key": str(row[key]), "label": str(label_value(key, row))} for row in first.to_dict("records")]


def _compile_facet(compiled: Iterable[str]) -> dict[str, Any]:
    """A facet without a column: the column `others` says what a value is called, and nothing of the default."""
    default = find_default("compile")
    values = [default, *(value for value in AXES["compile"].names if value in compiled and value != default)]
    named = [{"key": value, "label": str(find_value_name("compile", value))} for value in values]
    return {"key": "compile", "label": find_label("compile"), "values": named, "within": "others"}


def _rows(part: Part) -> pd.DataFrame:
    rec = part.rec
    runs = rec.runs.astype({name: str for name in rec.runs if rec.runs[name].dtype == "category"} | {"run_id": str})
    wanted = ["run_id", "num_parameters", "size", "context_length", "mode", "peak_memory_bytes"]
    rows = runs[[*wanted, *(name for name in run_grid.VARIANT_AXES if name in runs)]].copy()
    rows["peak_memory_bytes"] = run_grid.peak_bytes(runs)
    rows["others"] = _others(runs)
    rows[NOT_MEASURED] = [run_grid.explain_unmeasured(run) for _, run in runs.iterrows()]
    wall = timing.host_times(rec.steps, "timer", "step")
    rows["step_ns"] = rows["run_id"].map(wall[wall["phase"] == ranges.STEP].set_index("run_id")["step_ns"])
    rows["tokens_per_s"] = run_grid.tokens_per_s(runs, rows["step_ns"])
    rows["mfu"] = [utilisation.mfu(run, step) for (_, run), step in zip(runs.iterrows(), rows["step_ns"], strict=True)]
    rows["idle_share"] = rows["run_id"].map(waiting.measure_step_shares(rec.steps, rec.kernels, rec.memops))
    rows["cost"] = _price_tokens(runs, rows["tokens_per_s"])
    rows["joules"] = rows["run_id"].map(part.machine_values.set_index("run_id")["joules"])
    numbers = [column.key for column in METRICS]
    rows[numbers] = rows[numbers].astype("float64")
    rows.loc[rows[NOT_MEASURED] != "", numbers] = float("nan")
    measured_at = zip(runs["run_id"], runs["started_at"].astype(str), strict=True)
    rows["precision"] = rows["precision"].str.upper()
    rows["recording"], rows["recording_leads_to"] = part.name, part.page
    if "repeat" in rows and rows["repeat"].nunique() > 1:  # a column of its own would be empty in all other recordings
        rows["recording"] = [f"{part.name} {number}" for number in rows["repeat"]]
    rows["size_leads_to"] = [part.run_pages[run] for run in measured_at]
    rows[ANCHOR] = [anchor_of(part.name, run) for run in rows["run_id"]]
    return rows
