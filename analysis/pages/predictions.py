"""How predictions of changes did: every prediction of the ledgers with what was measured since, and the pairs that the
rates were fitted to."""

from typing import Any

import pandas as pd

from profiler_job.analysis.render.answer import Answer, Column, Table, assemble
from profiler_job.jobs.contract import changes

SLUG = "predictions"
TITLE = "Predictions"
TARGETS = {"median": 0.08, "high": 0.20, "inside": 0.80, "abstained": 1 / 3}
"""Aims of the predictions: median and 90th percentile of the error, share of the intervals that hold the measured step,
share that may abstain."""
LABELS = {**changes.LABELS, changes.BF16: "BF16", changes.FUSED_ADAMW: "fused AdamW"}
LEAST_TESTS = 8
"""Tests of a change from which on its errors are in the headline."""
SWEEPS, SCRIPTS, ALL = "sweeps", "scripts", "all"
CASE = (
    Column("changes", "change"),
    Column("size", "model"),
    Column("context_length", "context", "count"),
    Column("mode", "mode"),
)
TIMES = (
    Column("baseline_ns", "without, measured", "ms"),
    Column("predicted_ns", "with, predicted", "ms", lower="low_ns", upper="high_ns", absent="none"),
    Column("ceiling_ns", "not below", "ms", absent="none"),
)
CHANGES = Column("changes", "change", "words")
"""In wide tables, where a line does not hold all changes."""
FEW = (CHANGES, *CASE[1:3], *TIMES)
OUTCOME = (
    Column("measured_ns", "with, measured", "ms", absent="not yet"),
    Column("again_ns", "measured again", "ms", absent=" "),
    Column("error", "error", "share", absent="not yet"),
    Column("outcome", "outcome", "prose"),
)
OF_PAIRS = (OUTCOME[0], *OUTCOME[2:])
ERRORS = (
    Column("median", "median error", "share", absent="not yet"),
    Column("high", "90th percentile", "share", absent="not yet"),
    Column("inside", "inside the interval", "share", absent="not yet"),
)


def answer(predicted: pd.DataFrame, developed: pd.DataFrame) -> Answer:
    """predicted: every prediction of the ledgers, as `ledger.compare_with_measured` gives them. developed: the pairs
    that the rates were fitted to, each predicted with the rates of the other sizes.

    Tables: tested, by source (sweeps, scripts) and change: tests (predictions whose run was measured), median and 90th
    percentile of the absolute error, share inside the interval, abstentions; development, the same by change of the
    fitted pairs; predictions and pairs, one row each. Facts: by_change, the changes with LEAST_TESTS tests at least,
    the most accurate first, since one number for all of them would mislead.
    """
    predicted, developed = (_label(rows) for rows in (predicted, developed))
    tables = [
        Table(
            "development",
            "Development: pairs that the rates were fitted to, by change",
            (CHANGES, Column("measured", "pairs", "count"), *ERRORS),
            _summarise_by_change(developed),
        ),
        Table("pairs", "Development: every pair", (CHANGES, *CASE[1:], *TIMES[1:], *OF_PAIRS), developed),
    ]
    if len(predicted):
        columns = (
            Column("source", "runs of"),
            CHANGES,
            Column("measured", "tests", "count"),
            *ERRORS,
            Column("abstained", "abstained", "count"),
        )
        tables += [
            Table("tested", "Tested predictions by change", columns, _summarise_by_source(predicted)),
            Table("predictions", "Every prediction", (*FEW, *OUTCOME), predicted),
        ]
    facts: dict[str, Any] = {"targets": TARGETS, "predicted": _summarise(predicted), "developed": _summarise(developed)}
    facts |= {"least_tests": LEAST_TESTS}
    facts["by_change"] = list_errors_by_change(predicted)
    return assemble(facts, [], tables, [])


def list_errors_by_change(rows: pd.DataFrame | None) -> list[dict[str, Any]]:
    """List the changes with LEAST_TESTS tests at least, of sweeps and scripts together, the most accurate first: the
    facts of `_summarise`, and reaches_aims. None without predictions."""
    if rows is None:
        return []
    labelled = rows if "outcome" in rows else _label(rows)
    known = [
        {"change": name.replace(", ", " with ", 1), **_summarise(part)}
        for name, part in labelled.groupby("changes", sort=False)
    ]
    known = [facts for facts in known if facts["measured"] >= LEAST_TESTS]
    for facts in known:
        good = facts["median"] <= TARGETS["median"] and facts["high"] <= TARGETS["high"]
        facts["reaches_aims"] = bool(good and facts["inside"] >= TARGETS["inside"])
    return sorted(known, key=lambda facts: facts["median"])


def _label(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with labels of changes, and the outcome in words."""
    labels = [", ".join(LABELS.get(name, name) for name in names.split("+")) for names in rows["changes"]]
    return rows.assign(changes=labels, outcome=[_name_outcome(row) for row in rows.to_dict("records")])


def _name_outcome(row: dict[str, Any]) -> str:
    if pd.isna(row["predicted_ns"]):
        return str(row.get("reason") or "no prediction")
    if pd.isna(row["measured_ns"]):
        return "not measured"
    if row["beaten"]:
        return "below the ceiling"
    return "inside the interval" if row["inside"] else "outside the interval"


def _summarise_by_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Predictions of sweeps before predictions of scripts, whose recordings have no name; each with a row for all
    changes."""
    sources = rows["source"].map(lambda name: SWEEPS if name else SCRIPTS)
    parts = [(name, rows[sources == name]) for name in (SWEEPS, SCRIPTS)]
    return pd.concat([_summarise_by_change(part).assign(source=name) for name, part in parts if len(part)])


def _summarise_by_change(rows: pd.DataFrame) -> pd.DataFrame:
    groups = [(name, part) for name, part in rows.groupby("changes", sort=False)]
    return pd.DataFrame([{"changes": name, **_summarise(part)} for name, part in [*groups, (ALL, rows)]])


def _summarise(rows: pd.DataFrame) -> dict[str, Any]:
    """number, abstained, measured, median, high (90th percentile), inside (share), beaten, repeated (measured again),
    repeated_inside."""
    tested = rows[rows["error"].notna()]
    error = tested["error"].abs()
    facts = {"number": len(rows), "abstained": int(rows["predicted_ns"].isna().sum()), "measured": len(tested)}
    facts |= {"median": error.median(), "high": error.quantile(0.9), "inside": tested["inside"].astype(float).mean()}
    facts |= {"beaten": int(tested["beaten"].sum()), "repeated": 0, "repeated_inside": 0}
    if "again_ns" in tested:
        facts |= {"repeated": int(tested["again_ns"].notna().sum())}
        facts |= {"repeated_inside": int(tested["again_inside"].astype(bool).sum())}
    return facts
