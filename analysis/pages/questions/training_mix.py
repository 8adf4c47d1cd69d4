"""(d) How does the mix of kernels change from a forward pass to a training step?"""

import pandas as pd

from analysis.answer import NOT_MEASURED, Answer, Chart, Claim, Column, Table, assemble
from analysis.metrics import kernel_time, run_grid
from analysis.metrics.ordering import place, seen, sorted_by
from analysis.pages.columns import case_headings
from analysis.pages.facts import extremes, highest, largest, span
from jobs.contract import ranges

SLUG = "training-mix"
TITLE = "How does the mix change from forward to training?"

GEMM = "gemm"
SEEN = 0.002
"""A family that takes less than this of every phase has its column in the CSV alone."""


def answer(runs: pd.DataFrame, kernels: pd.DataFrame) -> Answer:
    """Kernel time by family in a forward pass (mode `forward`) against a training step (mode `train_step`), and phase
    by phase within it.

    For every case: each family's share of the kernel time of the forward pass, of the whole training step, and of the
    step's phases forward, loss, backward and optimizer. Every column of shares adds up to 100%. `change` is training
    minus forward, in points. Times are in the CSV.
    """
    by = run_grid.case_columns(runs)
    totals = kernel_time.kernel_totals(kernels)
    order = (
        kernel_time.by_family(totals, ["run_id"])
        .groupby("family")["time_ns"]
        .sum()
        .sort_values(ascending=False)
        .index.tolist()
    )
    scopes = pd.concat(
        [
            _of_mode(runs, totals, "forward").assign(scope="forward"),
            _of_mode(runs, totals, "train_step").assign(scope="train_step"),
        ],
        ignore_index=True,
    )
    compared = _compared(scopes, by)
    phases = _phases(runs, totals, by)
    wide = _wide(phases, by, order)
    both = compared[compared["measured"]]
    gemm = both[both["family"] == GEMM]
    moves = both[both["family"] != GEMM]
    measured_phases = phases[phases["family"].notna() & (phases[NOT_MEASURED] == "")]
    optimizer = measured_phases[measured_phases["phase"] == "optimizer"].drop_duplicates("run_id")
    phase_shares = _phase_shares(runs, totals, by)
    whole = phase_shares.head(0)
    if "in_backward" in phase_shares:
        whole = phase_shares[phase_shares["in_backward"].notna()]
    claims = [
        Claim("gemm_falls", gemm, lambda rows: (rows["change"] < 0).all(), _change),
        Claim("gemm_rises", gemm, lambda rows: (rows["change"] > 0).all(), _change),
        Claim(
            "gemm_mixed",
            gemm,
            lambda rows: (rows["change"] > 0).any() and (rows["change"] < 0).any(),
            _change,
        ),
        Claim("gains", moves[moves["change"] > 0], facts=largest("change")),
        Claim(
            "optimizer",
            optimizer,
            lambda rows: set(rows["family"]) == {"elementwise"},
            _optimizer,
        ),
        Claim("backward", whole, facts=_backward),
    ]
    tables = [
        Table(
            "compared",
            "Share of kernel time: forward pass against training step",
            (
                *case_headings(by),
                Column("family", "family", "family"),
                Column("forward", "forward pass", "share", bar=True),
                Column("train_step", "training step", "share", bar=True),
                Column("change", "change", "points"),
            ),
            compared.drop(columns="measured"),
        ),
        Table(
            "phase_shares",
            "Kernel time of a training step by phase",
            (
                *case_headings(by),
                Column("kernel_ns", "kernel time", "ms"),
                *(Column(f"in_{phase}", phase, "share") for phase in ranges.PHASES if f"in_{phase}" in phase_shares),
            ),
            phase_shares,
        ),
        Table(
            "phases",
            "Families within each phase of a training step",
            (
                *case_headings(by),
                Column("phase", "phase"),
                Column("time_ns", "kernel time", "ms"),
                *(
                    Column(f"share_{family}", family, "share")
                    for family in order
                    if wide[f"share_{family}"].max() >= SEEN
                ),
            ),
            wide,
        ),
    ]
    shown = scopes[scopes["family"].notna() & (scopes[NOT_MEASURED] == "")]
    charts = [
        Chart(
            "scopes",
            "stacked_shares",
            "Forward pass and training step",
            shown,
            {"by": by, "order": order, "row": "scope"},
        ),
        Chart(
            "phases",
            "stacked_shares",
            "Phase by phase",
            _pooled(measured_phases),
            {"by": ["phase"], "order": order},
        ),
    ]
    return assemble(
        {"families": order, "num_pooled": measured_phases["run_id"].nunique()},
        claims,
        tables,
        charts,
    )


def _of_mode(runs: pd.DataFrame, totals: pd.DataFrame, mode: str) -> pd.DataFrame:
    return run_grid.cases(runs, mode).merge(kernel_time.by_family(totals, ["run_id"]), how="left", on="run_id")


def _compared(scopes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Families side by side; a family that one of two measured scopes never launches has share 0 there."""
    first, second = (scopes[scopes["scope"] == scope] for scope in ("forward", "train_step"))
    keys = scopes[[*by, "family"]].drop_duplicates()
    cases = scopes[by].drop_duplicates().reset_index(drop=True)
    families = keys.dropna(subset="family")
    without = cases.merge(families, how="left", on=by)
    columns = ["share", "time_ns"]
    table = without
    for name, rows in (("forward", first), ("train_step", second)):
        values = rows.dropna(subset="family")[[*by, "family", *columns]]
        table = table.merge(
            values.rename(columns={"share": name, "time_ns": f"{name}_ns"}),
            how="left",
            on=[*by, "family"],
        )
        why = rows.drop_duplicates(by)[[*by, "run_id", NOT_MEASURED]]
        table = table.merge(
            why.rename(columns={"run_id": f"{name}_run", NOT_MEASURED: f"{name}_why"}),
            how="left",
            on=by,
        )
        sums = table[by].merge(
            rows.groupby(by, sort=False)["share"].sum(min_count=1).rename("sum").reset_index(),
            how="left",
            on=by,
        )
        zero = sums["sum"].notna().to_numpy() & table[name].isna().to_numpy()
        table.loc[zero, [name, f"{name}_ns"]] = 0.0
    table["change"] = table["train_step"] - table["forward"]
    table["measured"] = table["forward"].notna() & table["train_step"].notna()
    forward_why, training_why = (
        table["forward_why"].fillna("not measured"),
        table["train_step_why"].fillna("not measured"),
    )
    table[NOT_MEASURED] = forward_why.where(forward_why != "", training_why)
    table["run_id"] = table["train_step_run"].where(table["train_step_run"] != "", table["forward_run"])
    table = sorted_by(table, seen(table, by), -table[["forward_ns", "train_step_ns"]].max(axis=1))
    return table.drop(columns=["forward_why", "train_step_why", "forward_run", "train_step_run"])


def _phases(runs: pd.DataFrame, totals: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Families within each phase of the training step, phases in the order in which they run."""
    families = kernel_time.by_family(totals, ["run_id", "phase"])
    families = sorted_by(families, families["run_id"], place(families["phase"], ranges.PHASES))
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


def _phase_shares(runs: pd.DataFrame, totals: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Kernel time of a training step and each phase's part of it: kernel_ns and in_<phase>."""
    time = totals.pivot_table(index="run_id", columns="phase", values="time_ns", aggfunc="sum", fill_value=0.0)
    shares = time.div(time.sum(axis=1), axis=0)
    shares.insert(0, "kernel_ns", time.sum(axis=1))
    present = [phase for phase in ranges.PHASES if phase in shares]
    shares = shares[["kernel_ns", *present]].rename(columns={phase: f"in_{phase}" for phase in present})
    return run_grid.cases(runs, "train_step").merge(shares.reset_index(), how="left", on="run_id")


def _pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean share of each family in each phase over the measured cases."""
    shares = rows.pivot_table(index=["run_id", "phase"], columns="family", values="share", fill_value=0.0)
    pooled = shares.groupby("phase").mean().stack().rename("share").reset_index()
    return sorted_by(pooled, place(pooled["phase"], ranges.PHASES), -pooled["share"])


def _change(rows: pd.DataFrame) -> dict:
    counts = {"num_falls": int((rows["change"] < 0).sum()), "num_rises": int((rows["change"] > 0).sum())}
    return extremes("change")(rows) | counts


def _optimizer(rows: pd.DataFrame) -> dict:
    return {"family": rows["family"].iloc[0], "share": span(rows["share"])}


def _backward(rows: pd.DataFrame) -> dict:
    return {
        "ratio": span(rows["in_backward"] / rows["in_forward"]),
        "optimizer": span(rows["in_optimizer"]),
        "most_optimizer": highest(rows, "in_optimizer"),
    }
