"""Runs of a study that have no page of their own: a short section for each, with its numbers and their conditions."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid, timing
from profiler_job.analysis.pages.explore import METRICS, Part, anchor_of
from profiler_job.analysis.pages.titles import description_of, title_of
from profiler_job.analysis.render.answer import Answer, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.plain import TRAINED_STEPS
from profiler_job.jobs.contract.studies import NO_PLAIN_STEPS
from profiler_job.jobs.contract.words import NOT_MEASURED

SLUG = "runs-of"
MANY = 50
"""Runs from which on the runs of each model are folded, where there are several: a run takes 40 pixels."""
LOSSES = {"loss_trained": "trained", "loss_trained_plain": "trained_plain"}
"""Figures of a run that compares losses, and what a section calls them."""
LOSS_COLUMNS = (
    Column("trained", "loss after training", "number"),
    Column("trained_plain", "with nothing changed", "number", absent="n/a"),
)


def answer(part: Part, others: Collection[tuple[str, str]], is_of_losses: bool = False) -> Answer:
    """Runs of `part` by model, in its order, without the `others` (run_id, started_at), which have pages. Of each its
    title, what was run, why it has no numbers or else the numbers of its step as Explore has them, medians of its
    phases by the timer, the numbers of processes and steps, and what was read of the machine. is_of_losses: what was
    measured are losses, and no times are shown."""
    runs = run_grid.sort_runs(part.rec.runs).astype({"run_id": str, "started_at": str, "size": str})
    runs = runs[[run not in others for run in zip(runs["run_id"], runs["started_at"], strict=True)]]
    numbers = {} if is_of_losses else _group_by_run(part.rows)
    machines = {} if is_of_losses else _group_by_run(part.machine_values)
    phases = {} if is_of_losses else _phases(part.rec.steps)
    losses = _losses(part.rec.figures) if is_of_losses else {}
    by_model: dict[str, list[dict[str, Any]]] = {}
    for run in runs.to_dict("records"):
        run_id = run["run_id"]
        by_model.setdefault(run["size"], []).append(
            {
                "run_id": run_id,
                "row": anchor_of(part.name, run_id),
                "title": " · ".join([title_of(run), *[run_id] * (run.get("workload") == SCRIPT)]),
                "what": description_of(run, run_grid.has_known_shape(run)),
                "precision": run["precision"],
                "why": run_grid.explain_unmeasured(run),
                "message": run["status_message"] if pd.notna(run["status_message"]) else "",
                "numbers": numbers.get(run_id, {}),
                "phases": phases.get(run_id, []),
                "losses": losses.get(run_id, {}),
                "steps": {
                    "num_processes": (run["processes"],) * 2,
                    "num_steps": (run["measured_steps"],) * 2,
                    "num_profiled": (run["profiled_steps"],) * 2,
                },
                "machine": machines.get(run_id, {}),
            }
        )
    facts = {
        "study": part.name,
        "page": part.page,
        "by_model": by_model,
        "num_runs": len(runs),
        "folds": len(runs) >= MANY and len(by_model) > 1,
        "num_others": len(part.rec.runs) - len(runs),
        "is_of_losses": is_of_losses,
        "is_in_explore": part.name not in NO_PLAIN_STEPS,
        "trained_steps": TRAINED_STEPS,
    }
    return assemble(facts, [], [_make_table(model, of_model, is_of_losses) for model, of_model in by_model.items()], [])


def _make_table(model: str, runs: list[dict[str, Any]], is_of_losses: bool) -> Table:
    """The numbers of the runs of a model, a row for each."""
    measured, columns = ("losses", LOSS_COLUMNS) if is_of_losses else ("numbers", METRICS)
    rows = [
        {name: run[name] for name in ("run_id", "title", "what")}
        | {column.key: run[measured].get(column.key, math.nan) for column in columns}
        | {NOT_MEASURED: run["why"]}
        for run in runs
    ]
    return Table(model, f"Runs of {model}", (Column("title", "run"), *columns), pd.DataFrame(rows))


def _group_by_run(rows: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """The values of each run that are known."""
    known = (
        {key: value for key, value in row.items() if not pd.isna(value) and value != ""}
        for row in rows.drop(columns=NOT_MEASURED, errors="ignore").to_dict("records")
    )
    return {str(row["run_id"]): row for row in known}


def _phases(steps: pd.DataFrame) -> dict[str, list[tuple[str, float]]]:
    """Phases of each run in the order in which they run, with their medians by the timer; none where there is one."""
    times = timing.host_times(steps, "timer", "timer")
    times = times[times["phase"] != ranges.STEP]
    medians = {run: dict(zip(rows["phase"], rows["timer_ns"])) for run, rows in times.groupby("run_id", sort=False)}
    return {
        str(run): [(phase, of_run[phase]) for phase in ranges.ALL_PHASES if phase in of_run]
        for run, of_run in medians.items()
        if len(of_run) > 1
    }


def _losses(figures: pd.DataFrame) -> dict[str, dict[str, float]]:
    rows = figures.astype({"run_id": str, "figure": str})
    rows = rows[rows["figure"].isin(LOSSES) & (rows["rank"] == 0)]
    losses: dict[str, dict[str, float]] = {}
    for run_id, figure, value in rows[["run_id", "figure", "value"]].itertuples(index=False):
        losses.setdefault(run_id, {})[LOSSES[figure]] = value
    return losses
