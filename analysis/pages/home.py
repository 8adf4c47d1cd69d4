"""The home page: what was recorded, and what has no numbers. Its first screen is of `home_cases`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages import environment
from profiler_job.analysis.pages.questions import top_kernel
from profiler_job.analysis.pages.titles import title_of
from profiler_job.analysis.render.answer import Answer, Claim, Column, Table, assemble

SHAPE = ("d_model", "d_ff", "num_layers", "num_heads")


def answer(runs: pd.DataFrame, manifest: Mapping[str, Any]) -> Answer:
    """Runs that finished, that did not, and that were never started, with the models and the machine."""
    ordered = run_grid.sort_runs(runs)
    unfinished = ordered[ordered["status"].astype(str) != "ok"].reset_index(drop=True)
    unfinished = unfinished.assign(
        run=[title_of(row) for row in unfinished.to_dict("records")],
        why=[run_grid.explain_unmeasured(row) for _, row in unfinished.iterrows()],
    )
    not_run = pd.DataFrame({"run_id": pd.Series(manifest.get("not_run") or [], dtype=str)})
    sizes = _list_sizes(ordered)
    where = environment.answer(runs, manifest)
    facts = {
        "num_runs": len(runs),
        "num_planned": len(runs) + len(not_run),
        "num_ok": len(runs) - len(unfinished),
        "num_sizes": len(sizes),
        "num_contexts": int(runs["context_length"].nunique()),
        "modes": [label for mode, label in top_kernel.SCOPES.items() if (runs["mode"].astype(str) == mode).any()],
        "environment": where.facts,
        "one_environment": where.claims["same"].holds,
        "num_reference": len(run_grid.select_known_shapes(runs)),
    }
    claims = [
        Claim("unfinished", unfinished),
        Claim("not_run", not_run),
    ]
    return assemble(facts, claims, _make_tables(unfinished, not_run, sizes), [])


def _list_sizes(ordered: pd.DataFrame) -> pd.DataFrame:
    """One run of each size of each workload, NaN for what is not known of it."""
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


def _make_tables(unfinished: pd.DataFrame, not_run: pd.DataFrame, sizes: pd.DataFrame) -> list[Table]:
    return [
        Table(
            "unfinished",
            "Runs without numbers",
            (
                Column("run", "run", "run"),
                Column("why", "what happened"),
                Column("status_message", "message"),
            ),
            unfinished[["run_id", "run", "status", "why", "status_phase", "status_message"]],
        ),
        Table("not_run", "Runs of the sweep that were never run", (Column("run_id", "run"),), not_run),
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
            sizes[["size", *SHAPE, "num_parameters"]],
        ),
    ]
