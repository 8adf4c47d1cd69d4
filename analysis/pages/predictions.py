"""How predictions of changes did: of the predictor of `tune`, and of two fitted predictors that are gone."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.render.answer import Answer, Column, Table, assemble
from profiler_job.jobs.contract import changes

SLUG = "predictions"
TITLE = "How good are the predictions?"
LABELS = {**changes.LABELS, changes.BF16: "BF16", changes.FUSED_ADAMW: "fused AdamW"}
GPU_LIMITED = 0.85
"""Part of a measured step in which the GPU works, from which on it sets the pace."""
LEAST_TESTS = 8
"""Tests of a change from which on its errors are in the headline."""
SWEEPS, SCRIPTS, ALL, TOGETHER = "sweeps", "scripts", "all", "several together"
CHANGES = Column("changes", "change", "words")
OF_PARTS = (
    Column("script", "script", "words"),
    CHANGES,
    Column("expected", "predicted", "ratio", lower="expected_low", upper="expected_high"),
    Column("times_as_fast", "measured", "ratio", lower="low", upper="high"),
    Column("error", "error", "share"),
    Column("kernel_error", "error of kernel time", "share"),
    Column("outcome", "outcome", "prose"),
)
BY_CODE = (
    Column("commit", "code at commit", "prose"),
    Column("number", "predictions", "count"),
    Column("median", "median error", "share"),
    Column("p90", "90th percentile", "share"),
    Column("inside_share", "inside the interval", "share"),
    Column("changed", "changed after it", "prose"),
)
FITTED = (
    CHANGES,
    Column("size", "model"),
    Column("context_length", "context", "count"),
    Column("baseline_ns", "without, measured", "ms"),
    Column("predicted_ns", "with, predicted", "ms", lower="low_ns", upper="high_ns", absent="none"),
    Column("ceiling_ns", "not below", "ms", absent="none"),
    Column("measured_ns", "with, measured", "ms", absent="not yet"),
    Column("again_ns", "measured again", "ms", absent=" "),
    Column("error", "error", "share", absent="not yet"),
    Column("outcome", "outcome", "prose"),
)
BY_CHANGE = (
    Column("source", "runs of"),
    CHANGES,
    Column("measured", "tests", "count"),
    Column("median", "median error", "share", absent="not yet"),
    Column("high", "90th percentile", "share", absent="not yet"),
    Column("inside", "inside the interval", "share", absent="not yet"),
    Column("abstained", "abstained", "count"),
)


def answer(parts: Mapping[str, Any], fitted: pd.DataFrame) -> Answer:
    """parts: the ledger of the predictor of `tune` (site/data/benchmarks/parts.json), empty if there is none. fitted:
    every prediction of the fitted predictors, as `ledger.compare_with_measured` gives them.

    Tables: parts, a row for each prediction of `tune`, as times as fast, by the code that predicted last;
    earlier_parts, by code before it; by_code, errors of each, the newest first, and what was changed after it; tested,
    of the fitted ones by source (sweeps, scripts) and change: tests (predictions whose run was measured), median and
    90th percentile of the absolute error, share inside the interval, abstentions; predictions, a row for each. Facts:
    parts (`number`, `inside`, `median`, `p90` and `high` of the error, `kernels`); changed, what was changed in the
    predictor after these, so that they are no test of it, "" if nothing was; num_earlier; of the first `pace` where the
    GPU sets it or not, and by_part, by change; by_change, the changes with LEAST_TESTS tests at least, the most
    accurate first, since one number for all of them would mislead.
    """
    every = _list_cells(parts)
    is_last = every["commit"] == (every["commit"].iloc[-1] if len(every) else "")
    cells, earlier = every[is_last], every[~is_last]
    is_limited = cells["is_limited"].astype(bool)
    facts: dict[str, Any] = {
        "parts": _summarise_cells(cells),
        "changed": cells["changed"].iloc[0] if len(cells) else "",
        "num_earlier": len(earlier),
        "by_part": _summarise_cells_by_change(cells),
        "pace": {name: _summarise_cells(cells[rows]) for name, rows in (("gpu", is_limited), ("cpu", ~is_limited))},
        "gpus": sorted({*cells["gpu"]}),
        "num_scripts": cells["script"].nunique(),
    }
    facts["never_inside"] = [change["change"] for change in facts["by_part"] if not change["inside"]]
    tables = [Table("parts", "Predictions of tune: times as fast", OF_PARTS, cells)] if len(cells) else []
    if len(earlier):
        tables.append(Table("earlier_parts", "Earlier predictions of tune: times as fast", OF_PARTS, earlier))
        tables.append(Table("by_code", "The predictor of tune by its code", BY_CODE, _summarise_cells_by_code(every)))
    fitted = _label(fitted)
    if len(fitted):
        tables.append(Table("tested", "The fitted predictors by change", BY_CHANGE, _summarise_by_source(fitted)))
        tables.append(Table("predictions", "Every prediction of the fitted predictors", FITTED, fitted))
    facts |= {"fitted": _summarise(fitted), "by_change": _list_errors_by_change(fitted)}
    return assemble(facts, [], tables, [])


def _list_cells(parts: Mapping[str, Any]) -> pd.DataFrame:
    """List the predictions of `tune`: the columns of OF_PARTS, gpu, commit, changed (what was changed in the predictor
    after those of its commit, "" if nothing was), inside, is_limited (by the GPU), apart_s (seconds from the prediction
    to the measurement)."""
    changed = parts.get("changed_after", {})
    rows = []
    for script in parts.get("scripts", ()):
        for cell in script["cells"]:
            said, measured = cell["predicted"], cell["measured"]
            ends = {"expected": "step_ns", "expected_low": "high_ns", "expected_high": "low_ns"}
            row = {name: script["step_ns"] / said[of] for name, of in ends.items()}
            row |= {name: measured[name] for name in ("times_as_fast", "low", "high")}
            row |= {"script": script["title"], "gpu": script["gpu"], "commit": script.get("commit", "")}
            row["changed"] = changed.get(row["commit"], "")
            row |= {"changes": _name_changes(cell["changes"]), "num_changes": len(cell["changes"])}
            row["error"] = row["expected"] / measured["times_as_fast"] - 1
            row["kernel_error"] = said["gpu_ns"] / measured["kernels_ns"] - 1
            row["inside"] = row["expected_low"] <= measured["times_as_fast"] <= row["expected_high"]
            row["apart_s"] = measured["at"] - said["at"]
            row["is_limited"] = measured["kernels_ns"] >= GPU_LIMITED * measured["step_ns"]
            rows.append(row | {"outcome": _name_inside(row["inside"])})
    return pd.DataFrame(rows, columns=[*(column.key for column in OF_PARTS), *_MORE])


_MORE = (
    "expected_low",
    "expected_high",
    "low",
    "high",
    "gpu",
    "commit",
    "changed",
    "num_changes",
    "inside",
    "is_limited",
    "apart_s",
)


def _summarise_cells(cells: pd.DataFrame) -> dict[str, Any]:
    """number, inside (how many), median, p90 and high (the largest error), kernels and kernels_high (the median and the
    largest error of kernel time), apart_ns (the median time from the prediction to the measurement)."""
    error, kernels = (cells[name].astype(float).abs() for name in ("error", "kernel_error"))
    facts = {"number": len(cells), "inside": int(cells["inside"].astype(bool).sum())}
    more = {"p90": error.quantile(0.9, interpolation="nearest"), "kernels_high": kernels.max()}
    more["apart_ns"] = cells["apart_s"].astype(float).median() * 1e9
    return facts | more | {"median": error.median(), "high": error.max(), "kernels": kernels.median()}


def _summarise_cells_by_code(every: pd.DataFrame) -> pd.DataFrame:
    """Summarise the predictions of each commit, the newest first: BY_CODE."""
    rows = []
    for commit, cells in every.groupby("commit", sort=False):
        facts = _summarise_cells(cells) | {"commit": commit, "changed": cells["changed"].iloc[0] or "nothing"}
        rows.append(facts | {"inside_share": facts["inside"] / facts["number"]})
    return pd.DataFrame(rows[::-1])


def _summarise_cells_by_change(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Summarise the predictions of each single change, the most accurate first, and then of several together."""
    is_single = cells["num_changes"] == 1
    groups = [{"change": name, **_summarise_cells(part)} for name, part in cells[is_single].groupby("changes")]
    together = [{"change": TOGETHER, **_summarise_cells(cells[~is_single])}] if (~is_single).any() else []
    return [*sorted(groups, key=lambda facts: facts["median"]), *together]


def _list_errors_by_change(labelled: pd.DataFrame) -> list[dict[str, Any]]:
    """List the changes with LEAST_TESTS tests at least, of sweeps and scripts together, the most accurate first: the
    facts of `_summarise`."""
    known = [
        {"change": name.replace(", ", " with ", 1), **_summarise(part)}
        for name, part in labelled.groupby("changes", sort=False)
    ]
    known = [facts for facts in known if facts["measured"] >= LEAST_TESTS]
    return sorted(known, key=lambda facts: facts["median"])


def _label(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with labels of changes, and the outcome in words."""
    labels = [_name_changes(names.split("+")) for names in rows["changes"]]
    return rows.assign(changes=labels, outcome=[_name_outcome(row) for row in rows.to_dict("records")])


def _name_changes(names: list[str]) -> str:
    return ", ".join(LABELS.get(name, name) for name in names)


def _name_outcome(row: dict[str, Any]) -> str:
    if pd.isna(row["predicted_ns"]):
        return str(row.get("reason") or "no prediction")
    if pd.isna(row["measured_ns"]):
        return "not measured"
    return "below the ceiling" if row["beaten"] else _name_inside(row["inside"])


def _name_inside(is_inside: bool) -> str:
    return "inside the interval" if is_inside else "outside the interval"


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
    facts |= {"beaten": int(tested["beaten"].sum()), "repeated": int(tested["again_ns"].notna().sum())}
    return facts | {"repeated_inside": int(tested["again_inside"].astype(bool).sum())}
