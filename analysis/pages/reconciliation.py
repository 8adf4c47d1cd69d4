"""Numbers that must agree, compared with each other for every run."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.pages.reconciliation_checks import MEANING, checks_of
from profiler_job.analysis.render.answer import Answer, Claim, Column, Table, assemble

SLUG = "reconciliation"

TITLE = "Do the numbers agree?"


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    nsys_sums: pd.DataFrame,
    api: pd.DataFrame,
    processes: pd.DataFrame,
    studies: Mapping[str, Any] = MappingProxyType({}),
) -> Answer:
    """Checks of every finished run, and of each study (`studies`: recordings by name).

    See `checks_of`. Facts count the breaches, of studies too.
    """
    table = checks_of(runs, steps, kernels, memops, nsys_sums, api, processes)
    of_studies = [
        checks_of(rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes).assign(
            study=study
        )
        for study, rec in studies.items()
    ]
    every = pd.concat([table.assign(study=""), *of_studies], ignore_index=True)
    breaches = every[~every["passed"]].reset_index(drop=True)
    claims = [
        Claim("all_agree", every, lambda rows: rows["passed"].all(), facts=_count),
        Claim("breaches", breaches, lambda rows: not rows["passed"].all(), facts=_count),
    ]
    return assemble({"num_breaches": len(breaches)}, claims, _tables(table, every, breaches), [])


def _tables(table: pd.DataFrame, every: pd.DataFrame, breaches: pd.DataFrame) -> list[Table]:
    columns = (
        Column("check", "check"),
        Column("found", "found", "number"),
        Column("at_least", "at least", "number"),
        Column("at_most", "at most", "number"),
        Column("passed", "result", "check"),
    )
    return [
        Table(
            "summary",
            "Checks",
            (
                Column("check", "check"),
                Column("meaning", "what is compared", "prose"),
                Column("num_runs", "runs", "count"),
                Column("num_passed", "agree", "count"),
                Column("at_least", "at least", "number", absent="any"),
                Column("lowest", "lowest", "number"),
                Column("highest", "highest", "number"),
                Column("at_most", "at most", "number", absent="any"),
                Column("passed", "result", "check"),
            ),
            _summary(table),
        ),
        Table(
            "studies",
            "Checks of the studies' runs",
            (
                Column("study", "study"),
                Column("num_runs", "runs", "count"),
                Column("num_checks", "checks", "count"),
                Column("num_passed", "agree", "count"),
                Column("passed", "result", "check"),
            ),
            _count_by_study(every),
        ),
        Table(
            "breaches",
            "Breaches",
            (Column("study", "study", absent="—"), Column("run_id", "run", "code"), *columns),
            breaches,
        ),
        Table("checks", "Every check of every run", (Column("run", "run", "run"), *columns), table),
    ]


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    summary = table.groupby("check", sort=True).agg(
        num_runs=("passed", "size"),
        num_passed=("passed", "sum"),
        at_least=("at_least", "min"),
        lowest=("found", "min"),
        highest=("found", "max"),
        at_most=("at_most", "max"),
    )
    summary = summary.reset_index().assign(passed=lambda rows: rows["num_runs"] == rows["num_passed"])
    summary.insert(1, "meaning", summary["check"].map(MEANING))
    return summary


def _count_by_study(every: pd.DataFrame) -> pd.DataFrame:
    by_study = every[every["study"] != ""].groupby("study", sort=True)
    by_study = by_study.agg(num_runs=("run_id", "nunique"), num_checks=("passed", "size"), num_passed=("passed", "sum"))
    return by_study.assign(passed=by_study["num_checks"] == by_study["num_passed"]).reset_index()


def _count(rows: pd.DataFrame) -> dict[str, Any]:
    return {"num_runs": len(rows[["study", "run_id"]].drop_duplicates())}
