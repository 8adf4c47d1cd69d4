"""Every kernel family and every kernel name seen: what it computes, how it is classified, where it appears."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid
from profiler_job.analysis.pages.home_cases import STATES
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.analysis.reference import gemm_names, kernel_families
from profiler_job.analysis.reference.rules import OTHER, Classification
from profiler_job.analysis.render.answer import Answer, Chart, Column, Table, assemble
from profiler_job.analysis.render.text import name_model_of
from profiler_job.jobs.contract.modes import MODES

SLUG = "kernels"
CHARTS = dict(zip(STATES, ("families", "families-bf16", "families-compiled")))
"""The chart of the families of each state."""
TITLE = "Kernels"


def answer(recorded: Sequence[pd.DataFrame], states: Mapping[str, Any] = MappingProxyType({})) -> Answer:
    """One table per family that was seen, kernels by falling highest share of a step; `explanation` comes from the rule
    that matched the name. recorded: kernels of recordings that have no run in common. states: a recording of
    each state, whose families in a training step are drawn, if there are several.

    Also the rules with the kernel time that each caught, and the share of all kernel time that no rule caught.
    """
    names = _names(recorded)
    families, rules = _families(names), _rules(names)
    unclassified = rules.loc[rules["family"] == OTHER, "share"].sum()
    facts = {"families": families, "num_names": len(names), "unclassified": float(unclassified)}
    charts = [_chart_families(state, rec) for state, rec in states.items() if len(states) > 1]
    return assemble(facts, [], _tables(names, families, rules), charts)


def _chart_families(state: str, rec: Any) -> Chart:
    """Shares of the families in the training steps of a recording, at the context that most of its models have."""
    runs = run_grid.select_measured_runs(rec.runs).astype({"run_id": str})
    runs = runs[(runs["mode"].astype(str) == MODES[-1]) & (runs["profiled_steps"] > 0)]
    num_models = runs.groupby("context_length")["size"].nunique()
    context = int(num_models[num_models == num_models.max()].index.max()) if len(runs) else 0
    runs = runs[runs["context_length"] == context]
    runs["model"] = [name_model_of(run) for run in runs.to_dict("records")]
    totals = kernel_time.kernel_totals(keep_runs(rec.kernels, {*runs["run_id"]}))
    times = totals.astype({"run_id": str, "family": str}).groupby(["run_id", "family"])["time_ns"].sum().reset_index()
    rows = runs[["model", "run_id"]].merge(times, on="run_id")
    rows["share"] = rows["time_ns"] / rows.groupby("run_id")["time_ns"].transform("sum")
    title = f"Kernel time of a training step at {context:,} tokens"
    options = {"by": ["model"], "order": [*kernel_families.FAMILIES]}
    return Chart(CHARTS[state], "stacked_shares", title, rows, options=options, state=state)


def _names(recorded: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row per kernel name: family, num_runs, high, time_ns, modules, rule, part, name_says, explanation."""
    of_runs = pd.concat([kernel_time.kernel_totals(kernels) for kernels in recorded], ignore_index=True)
    totals = kernel_time.sum_by_kernel(of_runs, ["run_id"])
    names = totals.groupby(["family", "kernel_name"], sort=False).agg(
        num_runs=("run_id", "nunique"),
        high=("share", "max"),
        time_ns=("time_ns", "sum"),
        modules=("modules", _merge_modules),
    )
    names = names.reset_index().sort_values(["high", "kernel_name"], ascending=[False, True])
    classifications = [kernel_families.classify(name) for name in names["kernel_name"]]
    return names.assign(
        rule=[classification.rule for classification in classifications],
        part=[classification.part for classification in classifications],
        name_says=[_name_says(name) for name in names["kernel_name"]],
        explanation=[_explanation(classification) for classification in classifications],
    )


def _rules(names: pd.DataFrame) -> pd.DataFrame:
    """family, rule, num_names, time_ns, share of all kernel time; most time first."""
    rules = names.groupby(["family", "rule"], sort=False).agg(
        num_names=("kernel_name", "size"), time_ns=("time_ns", "sum")
    )
    rules = rules.reset_index().assign(share=lambda rows: rows["time_ns"] / names["time_ns"].sum())
    return rules.sort_values(["share", "rule"], ascending=[False, True], ignore_index=True)


def _families(names: pd.DataFrame) -> list[dict[str, Any]]:
    """The families that were seen, in the order of the taxonomy."""
    counts = names["family"].value_counts()
    return [
        {"key": key, "label": family.label, "explanation": family.explanation, "num_names": int(counts[key])}
        for key, family in kernel_families.FAMILIES.items()
        if key in counts
    ]


def _tables(names: pd.DataFrame, families: list[dict[str, Any]], rules: pd.DataFrame) -> list[Table]:
    columns = (
        Column("family", "family", "family"),
        Column("rule", "rule"),
        Column("num_names", "kernel names", "count"),
        Column("share", "of kernel time", "share", bar=True),
    )
    return [
        *(_family_table(family["key"], family["label"], names) for family in families),
        Table("rules", "Rules by the kernel time that they caught, all runs together", columns, rules),
    ]


def _family_table(key: str, label: str, names: pd.DataFrame) -> Table:
    columns = (
        Column("kernel_name", "kernel", "kernel_entry"),
        Column("explanation", "what it computes", "prose"),
        *((Column("name_says", "name says", "prose"),) if key == "gemm" else ()),
        Column("modules", "launched by", "modules"),
        Column("num_runs", "runs", "count"),
        Column("high", "highest share", "share", bar=True),
    )
    title = f"{label} kernels seen, by their highest share of a step"
    return Table(f"kernels-{key}", title, columns, names[names["family"] == key].reset_index(drop=True))


def _name_says(name: str) -> str:
    """What a GEMM's name shows; fields that no documentation backs end in a question mark."""
    read = gemm_names.parse(name)
    if read is None:
        return ""
    words = {
        "math_path": gemm_names.MATH_PATHS.get(read.math_path or "", ""),
        "layout": f"layout {read.layout}" if read.layout else "",
        "tile": f"tile {'×'.join(str(side) for side in read.tile if side)}" if read.tile else "",
        "stages": f"{read.stages} stages" if read.stages else "",
        "split_k": "split along K" if read.split_k else "",
    }
    said = [word + ("?" if field in read.inferred else "") for field, word in words.items() if word]
    return ", ".join([read.library, *said])


def _merge_modules(modules: pd.Series) -> str:
    """The module lists of a kernel over all runs as one, in the order in which they first appear."""
    return ", ".join(dict.fromkeys(name for names in modules for name in names.split(", ") if name))


def _explanation(classification: Classification) -> str:
    rule = kernel_families.find_rule(classification)
    return rule.explanation if rule else "no rule knows this name"
