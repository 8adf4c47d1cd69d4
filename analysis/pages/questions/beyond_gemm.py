"""(c) What does a forward pass do besides matrix products?"""

import pandas as pd

from analysis.answer import NOT_MEASURED, Answer, Chart, Claim, Column, Table, assemble
from analysis.metrics import kernel_time, run_grid
from analysis.metrics.ordering import place, sorted_by
from analysis.pages.columns import case_headings
from analysis.pages.facts import extremes, out_of
from analysis.reference import kernel_families

SLUG = "beyond-gemm"
TITLE = "What does a forward pass do besides matrix products?"

GEMM = "gemm"


def answer(runs: pd.DataFrame, kernels: pd.DataFrame) -> Answer:
    """Share of forward kernel time of every kernel family but gemm, with its top kernel, for every case (mode
    `forward`).

    gemm contains split-K and epilogue kernels: they are part of a product. Shares are of the kernel time of the whole
    forward pass, so that gemm and the rest add up to 100%.
    """
    by = run_grid.case_columns(runs)
    totals = kernel_time.kernel_totals(kernels)
    grid = run_grid.cases(runs, "forward")
    totals = totals[totals["run_id"].isin(grid["run_id"])]
    families = kernel_time.by_family(totals, ["run_id"])
    names = kernel_time.by_kernel(totals, ["run_id"])
    top = names.drop_duplicates(["run_id", "family"])[["run_id", "family", "kernel_name", "share", "modules"]]
    top = top.rename(columns={"share": "kernel_share"})
    long = grid.merge(families, how="left", on="run_id").merge(top, how="left", on=["run_id", "family"])
    rest = long[(long["family"] != GEMM) & ~((long[NOT_MEASURED] == "") & long["family"].isna())]
    wide = _wide(grid, families)
    measured = wide[(wide[NOT_MEASURED] == "") & wide["rest"].notna()]
    per_family = long[long["family"].notna() & (long["family"] != GEMM) & (long[NOT_MEASURED] == "")]
    order = families.groupby("family")["time_ns"].sum().sort_values(ascending=False).index.tolist()
    everywhere = _kernels_everywhere(names[names["family"] != GEMM], order)
    claims = [
        Claim("rest", measured, facts=extremes("rest")),
        Claim(
            "rest_leads",
            measured[measured["rest"] > measured["gemm"]],
            facts=out_of(measured),
        ),
        Claim(
            "gemm_leads",
            measured,
            lambda rows: (rows["gemm"] >= rows["rest"]).all(),
            extremes("rest"),
        ),
        Claim("leading_family", per_family, facts=_leading_family),
        Claim(
            "grows",
            _growth(measured, by),
            lambda rows: (rows["longest"] > rows["shortest"]).all(),
            _growth_facts,
        ),
        Claim(
            "shrinks",
            _growth(measured, by),
            lambda rows: (rows["longest"] < rows["shortest"]).all(),
            _growth_facts,
        ),
    ]
    tables = [
        Table(
            "wide",
            "Shares of forward kernel time by family",
            (
                *case_headings(by),
                Column("kernel_ns", "kernel time", "ms"),
                Column("gemm", "matrix products", "share"),
                Column("rest", "all the rest", "share", bar=True),
                *(Column(f"share_{family}", _label(family), "share") for family in order if family != GEMM),
            ),
            wide,
        ),
        Table(
            "families",
            "Every family and its top kernel",
            (
                *case_headings(by),
                Column("family", "family", "family"),
                Column("share", "of kernel time", "share", bar=True),
                Column("time_ns", "time per forward", "ms"),
                Column("calls", "calls per forward", "count"),
                Column("kernel_name", "top kernel of the family", "kernel"),
                Column("kernel_share", "its share", "share"),
                Column("modules", "launched by", "modules"),
            ),
            rest,
        ),
        Table(
            "kernels",
            "Top kernels of each family over all cases",
            (
                Column("family", "family", "family"),
                Column("kernel_name", "kernel", "kernel"),
                Column("num_runs", "cases", "count"),
                Column("low", "share, lowest", "share"),
                Column("high", "share, highest", "share", bar=True),
                Column("modules", "launched by", "modules"),
            ),
            everywhere,
        ),
    ]
    chart_rows = long[long["family"].notna() & (long[NOT_MEASURED] == "")]
    charts = [
        Chart(
            "families",
            "stacked_shares",
            "Forward kernel time by family",
            chart_rows,
            {"by": by, "order": order},
        )
    ]
    return assemble({"families": order}, claims, tables, charts)


def _label(family: str) -> str:
    return kernel_families.FAMILIES[family].label if family in kernel_families.FAMILIES else family


def _wide(grid: pd.DataFrame, families: pd.DataFrame) -> pd.DataFrame:
    """One row per case: kernel_ns, gemm, rest, share_<family>... (a family that a measured case never launched has
    share 0)."""
    shares = families.pivot(index="run_id", columns="family", values="share").fillna(0.0)
    if GEMM not in shares:
        shares[GEMM] = 0.0
    gemm = shares.pop(GEMM)
    wide = pd.DataFrame(
        {
            "kernel_ns": families.groupby("run_id")["time_ns"].sum(),
            "gemm": gemm,
            "rest": 1 - gemm,
        }
    )
    return grid.merge(wide.join(shares.add_prefix("share_")).reset_index(), how="left", on="run_id")


def _kernels_everywhere(names: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """The three kernels of each family that reach the highest share in any case."""
    table = names.groupby(["family", "kernel_name"], sort=False).agg(
        num_runs=("run_id", "nunique"),
        low=("share", "min"),
        high=("share", "max"),
        modules=("modules", "first"),
    )
    table = table.reset_index().sort_values(["high", "kernel_name"], ascending=[False, True])
    table = table.groupby("family", sort=False).head(3)
    return sorted_by(table, place(table["family"], order), -table["high"])


def _leading_family(rows: pd.DataFrame) -> dict:
    leaders = rows.sort_values("share", ascending=False, kind="stable").drop_duplicates("run_id")
    counts = leaders["family"].value_counts()
    family = min(counts[counts == counts.max()].index)
    of_family = rows[rows["family"] == family]
    return {
        "family": family,
        "num_cases": int(counts.max()),
        "num_all": rows["run_id"].nunique(),
        "low": of_family["share"].min(),
        "high": of_family["share"].max(),
    }


def _growth(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Share of the rest at the shortest and the longest measured context, for each model measured at two or more."""
    others = [name for name in by if name != "context_length"]
    ordered = rows.sort_values("context_length", kind="stable")
    ends = ordered.groupby(others, sort=False).agg(
        from_context=("context_length", "first"),
        to_context=("context_length", "last"),
        shortest=("rest", "first"),
        longest=("rest", "last"),
    )
    return ends[ends["from_context"] < ends["to_context"]].reset_index()


def _growth_facts(rows: pd.DataFrame) -> dict:
    steepest = rows.loc[(rows["longest"] - rows["shortest"]).abs().idxmax()]
    return {"steepest": steepest.to_dict()}
