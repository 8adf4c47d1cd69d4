"""The front page: key numbers, a heat map of forward time, and what could not be measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid, step_parts, timing
from profiler_job.analysis.pages import environment
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.questions import beyond_gemm, top_kernel
from profiler_job.analysis.pages.titles import title_of
from profiler_job.analysis.recording.run_table import count_rows, measure_by_run
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract.words import NOT_MEASURED

SLUG = "overview"
SHAPE = ("d_model", "d_ff", "num_layers", "num_heads")


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    manifest: Mapping[str, Any],
    leading: Answer | None = None,
    deciding: Answer | None = None,
    twin: Any = None,
    run_pages: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Answer:
    """Runs finished, unfinished and never run, kernels recorded, machine and dates; forward time (timer, median) by
    size and context length; the parts of every training step, and of the `twin` recording. leading: what changes in
    BF16, and deciding: what each change gives, whose sentences come first where they are known. run_pages: as in
    `run_grid.page_by_id`."""
    frames = _frames(runs, steps, manifest)
    claims, tables, charts = _claims(frames), _tables(frames), _charts(runs, kernels)
    main = _Main(runs=runs, steps=steps, kernels=kernels)
    recorded = [main, *[twin] * (twin is not None)]
    tables.append(_step_table(step_parts.parts_of_steps(recorded), run_grid.page_by_id(recorded, run_pages)))
    if leading:
        claims += [leading.claims[key] for key in ("gemm", "busy")]
        tables.append(leading.tables["longest"])
    if deciding and len(deciding.tables["first"].rows):
        claims += [deciding.claims[key] for key in ("together", "decided", "launches")]
        tables.append(_sort_own_first(deciding.tables["first"], runs))
    return assemble(_facts(runs, kernels, manifest, frames), claims, tables, charts)


@dataclass(frozen=True, kw_only=True)
class _Main:
    """The tables of the main recording that `step_parts` reads."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    kernels: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class OverviewData:
    """`runs` in model order, the runs that did not finish (`unfinished`) and the runs of the sweep that were never
    started (`not_run`); `heat`: forward time by case; `sizes`: one run of each size of each workload, NaN for what is
    not known of it. `by` names a case."""

    by: list[str]
    runs: pd.DataFrame
    unfinished: pd.DataFrame
    not_run: pd.DataFrame
    heat: pd.DataFrame
    sizes: pd.DataFrame


def _frames(runs: pd.DataFrame, steps: pd.DataFrame, manifest: Mapping[str, Any]) -> OverviewData:
    ordered = run_grid.sort_runs(runs)
    unfinished = ordered[ordered["status"].astype(str) != "ok"].reset_index(drop=True)
    times = timing.host_times(steps, "timer", "timer")
    forward = times[times["phase"] == "forward"].drop(columns="phase")
    heat = run_grid.cases(runs, "forward").merge(forward, how="left", on="run_id")
    heat.loc[heat[NOT_MEASURED] != "", ["timer_ns", "timer_min_ns", "timer_max_ns"]] = float("nan")
    return OverviewData(
        by=run_grid.case_columns(runs),
        runs=ordered,
        unfinished=unfinished.assign(
            run=[title_of(row) for row in unfinished.to_dict("records")],
            why=[run_grid.explain_unmeasured(row) for _, row in unfinished.iterrows()],
        ),
        not_run=pd.DataFrame({"run_id": pd.Series(manifest.get("not_run") or [], dtype=str)}),
        heat=heat,
        sizes=_sizes(ordered),
    )


def _sizes(ordered: pd.DataFrame) -> pd.DataFrame:
    by = [name for name in ("workload", "size", "workload_options") if name in ordered]
    # Of another workload than the reference only a run that was measured knows its parameters.
    counted = ordered.groupby(by, sort=False, observed=True)["num_parameters"].transform("max")
    sizes = ordered.assign(num_parameters=counted.where(counted > 0)).drop_duplicates(by).reset_index(drop=True)
    if "workload_options" in sizes:  # a model of somebody's own has other sizes with other options
        named = sizes["size"].astype(str) + ", " + sizes["workload_options"].astype(str)
        sizes["size"] = named.str.removesuffix(", ")
    known = sizes["run_id"].isin(run_grid.select_known_shapes(sizes)["run_id"])
    shape = sizes[list(SHAPE)]
    return sizes.assign(**shape if known.all() else shape.where(known))


def _facts(
    runs: pd.DataFrame, kernels: pd.DataFrame, manifest: Mapping[str, Any], frames: OverviewData
) -> dict[str, Any]:
    where = environment.answer(runs, manifest)
    peak = runs["peak_memory_bytes"].max()
    return {
        "num_runs": len(runs),
        "num_planned": len(runs) + len(frames.not_run),
        "num_ok": len(runs) - len(frames.unfinished),
        "num_kernels": int(count_rows(kernels).sum()),
        "num_kernel_names": _list_kernel_names(kernels).nunique(),
        "environment": where.facts,
        "one_environment": where.claims["same"].holds,
        "num_sizes": len(frames.sizes),
        "num_reference": len(run_grid.select_known_shapes(runs)),
        "num_contexts": int(runs["context_length"].nunique()),
        "modes": [label for mode, label in top_kernel.SCOPES.items() if (runs["mode"].astype(str) == mode).any()],
        "by": frames.by,
        "peak": 0 if pd.isna(peak) else int(peak),
    }


@measure_by_run
def _list_kernel_names(kernels: pd.DataFrame) -> pd.Series:
    return kernels["kernel_name"].drop_duplicates().astype(str)


def _claims(frames: OverviewData) -> list[Claim]:
    return [
        Claim("unfinished", frames.unfinished),
        Claim("all_finished", frames.runs, lambda rows: not len(frames.unfinished) and not len(frames.not_run)),
        Claim("not_run", frames.not_run),
    ]


def _tables(frames: OverviewData) -> list[Table]:
    return [
        Table(
            "heat",
            "Python timer, median over steps, ms; shaded by the logarithm",
            (*case_headings(frames.by), Column("timer_ns", "time", "ms")),
            frames.heat,
        ),
        Table(
            "unfinished",
            "Runs without numbers",
            (
                Column("run", "run", "run"),
                Column("why", "what happened"),
                Column("status_message", "message"),
            ),
            frames.unfinished[["run_id", "run", "status", "why", "status_phase", "status_message"]],
        ),
        Table("not_run", "Runs of the sweep that were never run", (Column("run_id", "run"),), frames.not_run),
        Table(
            "models",
            "Models",
            (
                Column("size", "model"),
                Column("d_model", "d_model", "count", absent="n/a"),
                Column("d_ff", "d_ff", "count", absent="n/a"),
                Column("num_layers", "layers", "count", absent="n/a"),
                Column("num_heads", "heads", "count", absent="n/a"),
                Column("num_parameters", "parameters", "count", absent="not measured"),
            ),
            frames.sizes[["size", *SHAPE, "num_parameters"]],
        ),
    ]


def _sort_own_first(table: Table, runs: pd.DataFrame) -> Table:
    """A table whose rows are models, with models of the main recording before models of studies alone."""
    is_other = ~table.rows["size"].isin(runs["size"].astype(str))
    return replace(table, rows=pd.concat([table.rows[~is_other], table.rows[is_other]], ignore_index=True))


def _step_table(parts: pd.DataFrame, pages: Mapping[str, str]) -> Table:
    """Parts of every training step, with a sentence on each step (`said`) and the page of its run (`leads_to`), ""
    where it has none. pages: by run id."""
    said = {run_id: _word_conditions(rows) for run_id, rows in parts.groupby("run_id", sort=False)}
    rows = parts.assign(said=parts["run_id"].map(said), leads_to=[pages.get(run_id, "") for run_id in parts["run_id"]])
    shown = ("run_id", "phase", "module", "family", "time_ns")
    return Table("step", "A training step", tuple(Column(name, name) for name in shown), rows)


def _word_conditions(rows: pd.DataFrame) -> str:
    longest = step_parts.find_longest_part(rows)
    where = f"{longest['phase']}, {longest['module']}" if longest["module"] else longest["phase"]
    takes = "for" if longest["phase"] == step_parts.WAITING else "takes"
    return f"{where[0].upper()}{where[1:]} {takes} {longest['share']:.0%} of this training step"


def _charts(runs: pd.DataFrame, kernels: pd.DataFrame) -> list[Chart]:
    return beyond_gemm.draw_families(runs, kernels)
