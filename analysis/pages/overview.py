"""The front page: key figures, a heat map of forward time, and what could not be measured."""

from collections.abc import Mapping

import pandas as pd

from analysis.answer import NOT_MEASURED, Answer, Chart, Claim, Column, Table, assemble
from analysis.metrics import run_grid, timing
from analysis.pages import environment
from analysis.pages.columns import case_headings
from analysis.pages.questions import beyond_gemm, top_kernel

SLUG = "overview"


def answer(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, manifest: Mapping) -> Answer:
    """Runs finished, unfinished and never run, kernels recorded, machine and dates; forward time (timer, median) by
    size and context length."""
    by = run_grid.case_columns(runs)
    times = timing.host_times(steps, "timer", "timer")
    forward = times[times["phase"] == "forward"].drop(columns="phase")
    heat = run_grid.cases(runs, "forward").merge(forward, how="left", on="run_id")
    heat.loc[heat[NOT_MEASURED] != "", ["timer_ns", "timer_min_ns", "timer_max_ns"]] = float("nan")
    status = runs["status"].astype(str)
    ordered = run_grid.in_model_order(runs)
    unfinished = ordered[ordered["status"].astype(str) != "ok"].reset_index(drop=True)
    unfinished = unfinished.assign(why=[run_grid.why_not_measured(row) for _, row in unfinished.iterrows()])
    sizes = ordered.drop_duplicates("size").reset_index(drop=True)
    not_run = pd.DataFrame({"run_id": pd.Series(manifest.get("not_run") or [], dtype=str)})
    where = environment.answer(runs, manifest)
    facts = {
        "num_runs": len(runs),
        "num_planned": len(runs) + len(not_run),
        "num_ok": int((status == "ok").sum()),
        "num_kernels": len(kernels),
        "num_kernel_names": kernels["kernel_name"].nunique(),
        "environment": where.facts,
        "one_environment": where.claims["same"].holds,
        "num_sizes": len(sizes),
        "num_contexts": int(runs["context_length"].nunique()),
        "modes": [label for mode, label in top_kernel.SCOPES.items() if (runs["mode"].astype(str) == mode).any()],
        "by": by,
        "peak": int(runs["peak_memory_bytes"].max()) if len(runs) and runs["peak_memory_bytes"].notna().any() else 0,
    }
    inner = beyond_gemm.answer(runs, kernels)
    claims = [
        Claim(
            "unfinished",
            unfinished,
            lambda rows: (rows["status"].astype(str) != "ok").any(),
        ),
        Claim(
            "all_finished",
            runs,
            lambda rows: (rows["status"].astype(str) == "ok").all() and not len(not_run),
        ),
        Claim("not_run", not_run),
    ]
    tables = [
        Table(
            "heat",
            "Python timer, median over steps, ms; shaded by the logarithm",
            (*case_headings(by), Column("timer_ns", "time", "ms")),
            heat,
        ),
        Table(
            "unfinished",
            "Runs without numbers",
            (
                Column("run_id", "run", "run"),
                Column("why", "what happened"),
                Column("status_message", "message"),
            ),
            unfinished[["run_id", "status", "why", "status_phase", "status_message"]],
        ),
        Table("not_run", "Runs of the sweep that were never run", (Column("run_id", "run"),), not_run),
        Table(
            "models",
            "Models",
            (
                Column("size", "model"),
                Column("d_model", "d_model", "count"),
                Column("d_ff", "d_ff", "count"),
                Column("num_layers", "layers", "count"),
                Column("num_heads", "heads", "count"),
                Column("num_parameters", "parameters", "count"),
            ),
            sizes[["size", "d_model", "d_ff", "num_layers", "num_heads", "num_parameters"]],
        ),
    ]
    charts = [
        Chart("families", *(getattr(inner.charts["families"], part) for part in ("kind", "title", "rows", "options")))
    ]
    return assemble(facts, claims, tables, charts)
