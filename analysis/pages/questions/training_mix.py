"""(d) How does the mix of kernels change from a forward pass to a training step?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid
from profiler_job.analysis.metrics.ordering import place, rank_first_seen, sort_stably
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import extremes, find_highest, give_largest, span
from profiler_job.analysis.pages.module_costs import (
    find_most_frequent_module,
    module_table,
    module_tree,
    select_longest_context,
    top_modules,
)
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

GEMM = "gemm"
ENDS = {"forward": "forward pass", "train_step": "training step"}
"""Of a slope: columns of `compared`, and what they are called."""
SEEN = 0.002
"""A family that takes less than this of every phase has its column in the CSV alone."""
SMALL = 0.01
"""Of a module that takes less of a step than this, no ratio of its passes is shown."""


def answer(given: Inputs) -> Answer:
    """Kernel time by family in a forward pass (mode `forward`) against a training step (mode `train_step`), and phase
    by phase within it.

    For every case: each family's share of the kernel time of the forward pass, of the whole training step, and of the
    step's phases forward, loss, backward and optimizer. Every column of shares adds up to 100%. `change` is training
    minus forward, in points. Times are in the CSV.
    """
    frames = _frames(given.runs, given.kernels)
    return assemble(_facts(frames), _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="d",
    slug="training-mix",
    title="How does the mix of kernels change from forward pass to training step?",
    needs=("runs", "kernels"),
    answer=answer,
    section=Section.TIME,
    place=4,
    searched=("backward pass", "training step"),
)


@dataclass(frozen=True, kw_only=True)
class TrainingMixData:
    by: list[str]
    """Columns that name a case."""
    order: list[str]
    """Families by falling kernel time."""
    scopes: pd.DataFrame
    """Families of a forward pass and of a training step, one below the other."""
    compared: pd.DataFrame
    """The same, side by side."""
    phases: pd.DataFrame
    """Families within each phase of a training step."""
    wide: pd.DataFrame
    """The same, a column for each family."""
    phase_shares: pd.DataFrame
    """Kernel time of a training step by phase."""
    modules: pd.DataFrame
    """What each module costs in a training step in which modules were followed."""


def _frames(runs: pd.DataFrame, kernels: pd.DataFrame) -> TrainingMixData:
    by = run_grid.case_columns(runs)
    totals = kernel_time.kernel_totals(kernels)
    order = _order_families(totals)
    scopes = _scopes(runs, totals)
    phases = _phases(runs, totals)
    return TrainingMixData(
        by=by,
        order=order,
        scopes=scopes,
        compared=_compare_scopes(scopes, by),
        phases=phases,
        wide=_wide(phases, by, order),
        phase_shares=_phase_shares(runs, totals),
        modules=_modules(runs, totals),
    )


def _facts(frames: TrainingMixData) -> dict[str, Any]:
    return {"families": frames.order, "small": SMALL, "num_pooled": _select_measured(frames.phases)["run_id"].nunique()}


def _claims(frames: TrainingMixData) -> list[Claim]:
    both = frames.compared[frames.compared["measured"]]
    gemm, others = both[both["family"] == GEMM], both[both["family"] != GEMM]
    phases = _select_measured(frames.phases)
    optimizer = phases[phases["phase"] == ranges.OPTIMIZER].drop_duplicates("run_id")
    return [
        Claim("gemm_falls", gemm, lambda rows: (rows["change"] < 0).all(), facts=_change),
        Claim("gemm_rises", gemm, lambda rows: (rows["change"] > 0).all(), facts=_change),
        Claim(
            "gemm_mixed", gemm, lambda rows: (rows["change"] > 0).any() and (rows["change"] < 0).any(), facts=_change
        ),
        Claim("gains", others[others["change"] > 0], facts=give_largest("change")),
        Claim("optimizer", optimizer, lambda rows: set(rows["family"]) == {"elementwise"}, facts=_find_optimizer),
        Claim("backward", _select_backward(frames.phase_shares), facts=_backward),
        Claim("top_module", top_modules(frames.modules), facts=find_most_frequent_module),
        Claim("module_ratio", _select_small(frames.modules), facts=extremes("ratio")),
    ]


def _tables(frames: TrainingMixData) -> list[Table]:
    case = case_headings(frames.by)
    shares, wide = frames.phase_shares, frames.wide
    families = [family for family in frames.order if wide[f"share_{family}"].max() >= SEEN]
    return [
        Table(
            "compared",
            "Share of kernel time: forward pass against training step",
            (
                *case,
                Column("family", "family", "family"),
                Column("forward", "forward pass", "share", bar=True),
                Column("train_step", "training step", "share", bar=True),
                Column("change", "change", "points"),
            ),
            frames.compared.drop(columns="measured"),
        ),
        Table(
            "phase_shares",
            "Kernel time of a training step by phase",
            (
                *case,
                Column("kernel_ns", "kernel time", "ms"),
                *(Column(f"in_{phase}", phase, "share") for phase in ranges.PHASES if f"in_{phase}" in shares),
            ),
            shares,
        ),
        Table(
            "phases",
            "Families within each phase of a training step",
            (
                *case,
                Column("phase", "phase"),
                Column("time_ns", "kernel time", "ms"),
                *(Column(f"share_{family}", family, "share") for family in families),
            ),
            wide,
        ),
        module_table(select_longest_context(frames.modules), case),
    ]


def _charts(frames: TrainingMixData) -> list[Chart]:
    pooled = _pool_shares(_select_measured(frames.phases))
    return [
        _slopes(frames),
        Chart(
            "phases",
            "stacked_shares",
            _title_of_phases(pooled),
            pooled,
            options={"by": ["phase"], "order": frames.order},
        ),
    ]


def _title_of_phases(pooled: pd.DataFrame) -> str:
    """The family that leads each phase, and its part of the phase in all cases together."""
    leading = pooled.loc[pooled.groupby("phase", sort=False)["share"].idxmax()]
    names = leading["family"].replace(GEMM, "GEMM")
    parts = [f"{phase} {share:.0%} {name}" for phase, share, name in zip(leading["phase"], leading["share"], names)]
    return f"Kernel time by phase: {', '.join(parts)}" if parts else "Not measured"


def _slopes(frames: TrainingMixData) -> Chart:
    """Of every case the share of GEMMs in a forward pass and in a training step."""
    both = frames.compared[frames.compared["measured"] & (frames.compared["family"] == GEMM)]
    words = [*ENDS.values()]
    rows = both.rename(columns=ENDS).melt([*frames.by, "run_id"], words, "end", "share")
    panel, *rest = frames.by if len(frames.by) > 1 else ["size", *frames.by]
    rows["series"] = [" · ".join(_words(rest, case)) for case in rows[rest].itertuples(index=False)]
    order = list(dict.fromkeys(rows["series"]))
    title = "Share of GEMMs, forward pass to training step"
    options = {
        "panel": panel,
        "order": order,
        "ends": dict(zip(words, ("fwd", "train"))),
        "unit": "% of kernel time",
    }
    return Chart("slopes", "slopes", title, rows, options=options)


def _words(names: list[str], case: tuple[Any, ...]) -> list[str]:
    return [f"{value:,} tokens" if name == "context_length" else str(value) for name, value in zip(names, case)]


# ---------------------------------------------------------------- frames


def _order_families(totals: pd.DataFrame) -> list[str]:
    time = kernel_time.sum_by_family(totals, ["run_id"]).groupby("family")["time_ns"].sum()
    names: list[str] = time.sort_values(ascending=False).index.tolist()
    return names


def _scopes(runs: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    parts = [_list_shares(runs, totals, mode).assign(scope=mode) for mode in ("forward", "train_step")]
    return pd.concat(parts, ignore_index=True)


def _list_shares(runs: pd.DataFrame, totals: pd.DataFrame, mode: str) -> pd.DataFrame:
    return run_grid.cases(runs, mode).merge(kernel_time.sum_by_family(totals, ["run_id"]), how="left", on="run_id")


def _compare_scopes(scopes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Families side by side; a family that one of two measured scopes never launches has share 0 there."""
    cases = scopes[by].drop_duplicates().reset_index(drop=True)
    families = scopes[[*by, "family"]].drop_duplicates().dropna(subset="family")
    table = cases.merge(families, how="left", on=by)
    for name in ("forward", "train_step"):
        table = _join_scope(table, scopes[scopes["scope"] == name], name, by)
    table["change"] = table["train_step"] - table["forward"]
    table["measured"] = table["forward"].notna() & table["train_step"].notna()
    why, training_why = (table[f"{name}_why"].fillna("not measured") for name in ("forward", "train_step"))
    table[NOT_MEASURED] = why.where(why != "", training_why)
    table["run_id"] = table["train_step_run"].where(table["train_step_run"] != "", table["forward_run"])
    table = sort_stably(table, rank_first_seen(table, by), -table[["forward_ns", "train_step_ns"]].max(axis=1))
    return table.drop(columns=["forward_why", "train_step_why", "forward_run", "train_step_run"])


def _join_scope(table: pd.DataFrame, rows: pd.DataFrame, name: str, by: list[str]) -> pd.DataFrame:
    """`table` with the shares and times of one scope (`name`, `name`_ns), its run and why that was not measured."""
    values = rows.dropna(subset="family")[[*by, "family", "share", "time_ns"]]
    table = table.merge(values.rename(columns={"share": name, "time_ns": f"{name}_ns"}), how="left", on=[*by, "family"])
    why = rows.drop_duplicates(by)[[*by, "run_id", NOT_MEASURED]]
    table = table.merge(why.rename(columns={"run_id": f"{name}_run", NOT_MEASURED: f"{name}_why"}), how="left", on=by)
    sums = rows.groupby(by, sort=False)["share"].sum(min_count=1).rename("sum").reset_index()
    measured = table[by].merge(sums, how="left", on=by)["sum"].notna().to_numpy()
    table.loc[measured & table[name].isna().to_numpy(), [name, f"{name}_ns"]] = 0.0
    return table


def _phases(runs: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Families within each phase of the training step, phases in the order in which they run."""
    families = kernel_time.sum_by_family(totals, ["run_id", "phase"])
    families = sort_stably(families, families["run_id"], place(families["phase"], ranges.PHASES))
    return run_grid.cases(runs, "train_step").merge(families, how="left", on="run_id")


def _wide(phases: pd.DataFrame, by: list[str], order: list[str]) -> pd.DataFrame:
    """One row per case and phase: time_ns and share_<family>...; a family that a measured phase never launches has
    share 0."""
    keys = [*by, "run_id", NOT_MEASURED, "phase"]
    heads = phases.groupby(keys, sort=False, dropna=False)["time_ns"].sum(min_count=1).reset_index()
    shares = (
        phases.dropna(subset="family").pivot(index=["run_id", "phase"], columns="family", values="share").fillna(0.0)
    )
    shares = shares.reindex(columns=order).fillna(0.0).add_prefix("share_")
    return heads.merge(shares.reset_index(), how="left", on=["run_id", "phase"])


def _phase_shares(runs: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Kernel time of a training step and each phase's part of it: kernel_ns and in_<phase>."""
    time = totals.pivot_table(index="run_id", columns="phase", values="time_ns", aggfunc="sum", fill_value=0.0)
    shares = time.div(time.sum(axis=1), axis=0)
    shares.insert(0, "kernel_ns", time.sum(axis=1))
    present = [phase for phase in ranges.PHASES if phase in shares]
    shares = shares[["kernel_ns", *present]].rename(columns={phase: f"in_{phase}" for phase in present})
    return run_grid.cases(runs, "train_step").merge(shares.reset_index(), how="left", on="run_id")


def _modules(runs: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    cases = run_grid.cases(runs, "train_step")
    return cases[cases[NOT_MEASURED] == ""].merge(module_tree(totals), on="run_id")


def _select_measured(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["family"].notna() & (rows[NOT_MEASURED] == "")]


def _select_backward(phase_shares: pd.DataFrame) -> pd.DataFrame:
    """Steps with the three phases that the claim compares: a step of forward and backward alone has no optimizer."""
    known = {"in_forward", "in_backward", "in_optimizer"} <= {*phase_shares}
    return phase_shares[phase_shares["in_backward"].notna()] if known else phase_shares.head(0)


def _pool_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean share of each family in each phase over the measured cases."""
    shares = rows.pivot_table(index=["run_id", "phase"], columns="family", values="share", fill_value=0.0)
    pooled = shares.groupby("phase").mean().stack().rename("share").reset_index()
    return sort_stably(pooled, place(pooled["phase"], ranges.PHASES), -pooled["share"])


# ---------------------------------------------------------------- facts of claims


def _select_small(modules: pd.DataFrame) -> pd.DataFrame:
    """Modules with none inside that take at least SMALL of the step."""
    return modules[modules["is_leaf"].astype(bool) & modules["ratio"].notna() & (modules["step_share"] >= SMALL)]


def _change(rows: pd.DataFrame) -> dict[str, Any]:
    counts = {"num_falls": int((rows["change"] < 0).sum()), "num_rises": int((rows["change"] > 0).sum())}
    return extremes("change")(rows) | counts


def _find_optimizer(rows: pd.DataFrame) -> dict[str, Any]:
    return {"family": rows["family"].iloc[0], "share": span(rows["share"])}


def _backward(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "ratio": span(rows["in_backward"] / rows["in_forward"]),
        "optimizer": span(rows["in_optimizer"]),
        "most_optimizer": find_highest(rows, "in_optimizer"),
    }
