"""(c) What does a forward pass do other than matmuls?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.capture.fused_kernels import divide_fused, shorten_fused
from profiler_job.analysis.metrics import kernel_time, run_grid
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, format_percent_span, span
from profiler_job.analysis.pages.module_costs import (
    find_most_frequent_module,
    module_table,
    module_tree,
    select_followed_runs,
    select_longest_context,
    top_modules,
)
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

GEMM = "gemm"


def answer(given: Inputs) -> Answer:
    """Share of forward kernel time of every kernel family but gemm, with its top kernel, for every case (mode
    `forward`).

    gemm contains split-K and epilogue kernels: they are part of a matmul. Shares are of the kernel time of the whole
    forward pass, so that gemm and the rest add up to 100%. Of training steps in which modules were followed, the shares
    of PARTS, forward and backward together, of the kernel time of the whole step, and what each module launches other
    than GEMMs in each phase.
    """
    frames = _frames(given.runs, given.kernels)
    return assemble({"families": frames.order}, _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="c",
    slug="beyond-gemm",
    title="What does a forward pass do other than matmuls?",
    needs=("runs", "kernels"),
    answer=answer,
    section=Section.TIME,
    place=3,
    searched=("elementwise", "pointwise kernels"),
)


PARTS = {
    ranges.SOFTMAX: "softmax",
    ranges.FUSED_ATTENTION: "fused attention",
    ranges.NORM: "norms",
    ranges.ROPE: "RoPE",
    ranges.ACCUMULATION: "sums of gradients",
    ranges.OPTIMIZER: "optimizer",
}
"""What a training step does other than matmuls, by module or phase."""
PART = "part_"


@dataclass(frozen=True, kw_only=True)
class BeyondGemmData:
    by: list[str]
    """Columns that name a case."""
    order: list[str]
    """Families by falling kernel time."""
    long: pd.DataFrame
    """Every family in every case, with its top kernel."""
    wide: pd.DataFrame
    """One row per case, a column for each family."""
    kernels: pd.DataFrame
    """The top kernels of each family over all cases."""
    parts: pd.DataFrame
    """Share of each of PARTS in the kernel time of a training step, a column part_<part> for each that was seen."""
    modules: pd.DataFrame
    """What each module of a training step launches other than GEMMs: `module_tree`, with shares of the whole step."""
    forward_modules: pd.DataFrame
    """The module of each training step that launches most other than GEMMs in forward."""


def _frames(runs: pd.DataFrame, kernels: pd.DataFrame) -> BeyondGemmData:
    grid = run_grid.cases(runs, "forward")
    totals = kernel_time.kernel_totals(kernels)
    parts, modules, forward_modules = _parts(runs, totals), _modules(runs, totals), _forward_modules(runs, totals)
    totals = totals[totals["run_id"].isin(grid["run_id"])]
    families = kernel_time.sum_by_family(totals, ["run_id"])
    names = kernel_time.sum_by_kernel(totals, ["run_id"])
    top = names.drop_duplicates(["run_id", "family"])[["run_id", "family", "kernel_name", "share", "modules"]]
    top = top.rename(columns={"share": "kernel_share"})
    order = families.groupby("family")["time_ns"].sum().sort_values(ascending=False).index.tolist()
    return BeyondGemmData(
        by=run_grid.case_columns(runs),
        order=order,
        long=grid.merge(families, how="left", on="run_id").merge(top, how="left", on=["run_id", "family"]),
        wide=_wide(grid, families),
        kernels=_kernels_everywhere(names[names["family"] != GEMM], order),
        parts=parts,
        modules=modules,
        forward_modules=forward_modules,
    )


def _claims(frames: BeyondGemmData) -> list[Claim]:
    wide = frames.wide
    measured = wide[(wide[NOT_MEASURED] == "") & wide["rest"].notna()]
    families = _find_measured_span(frames.long)
    growth = _growth(measured, frames.by)
    return [
        Claim("rest", measured, facts=extremes("rest")),
        Claim("rest_leads", measured[measured["rest"] > measured["gemm"]], facts=count_all(measured)),
        Claim("gemm_leads", measured, lambda rows: (rows["gemm"] >= rows["rest"]).all(), facts=extremes("rest")),
        Claim("leading_family", families[families["family"] != GEMM], facts=_find_leading_family),
        Claim("grows", growth, lambda rows: (rows["longest"] > rows["shortest"]).all(), facts=_growth_facts),
        Claim("in_training", frames.parts, facts=_find_training_span),
        Claim("rest_module", top_modules(frames.modules), facts=find_most_frequent_module),
        Claim("forward_module", frames.forward_modules, facts=find_most_frequent_module),
        Claim("shrinks", growth, lambda rows: (rows["longest"] < rows["shortest"]).all(), facts=_growth_facts),
    ]


def _tables(frames: BeyondGemmData) -> list[Table]:
    case, long = case_headings(frames.by), frames.long
    launched_nothing = (long[NOT_MEASURED] == "") & long["family"].isna()
    return [
        Table(
            "wide",
            "Shares of forward kernel time by family",
            (
                *case,
                Column("kernel_ns", "kernel time", "ms"),
                Column("gemm", "GEMM", "share"),
                Column("rest", "all the rest", "share", bar=True),
                *(Column(f"share_{family}", _label(family), "share") for family in frames.order if family != GEMM),
            ),
            frames.wide,
        ),
        Table(
            "families",
            "Every family and its top kernel",
            (
                *case,
                Column("family", "family", "family"),
                Column("share", "of kernel time", "share", bar=True),
                Column("time_ns", "time per forward", "ms"),
                Column("calls", "calls per forward", "count"),
                Column("kernel_name", "top kernel of the family", "kernel"),
                Column("kernel_share", "its share", "share"),
                Column("modules", "launched by", "modules"),
            ),
            long[(long["family"] != GEMM) & ~launched_nothing],
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
            frames.kernels,
        ),
        Table(
            "parts",
            "Shares of a training step by module, forward and backward together",
            (*case, *(Column(part, label, "share") for part, label in _parts_in(frames.parts).items())),
            frames.parts,
        ),
        module_table(
            select_longest_context(frames.modules),
            case,
            "rest_modules",
            "What a training step does other than matmuls, by module",
        ),
    ]


def _charts(frames: BeyondGemmData) -> list[Chart]:
    options = {"by": frames.by, "order": frames.order}
    rows = _find_measured_span(frames.long)
    gemm = rows.loc[rows["family"] == GEMM, "share"]
    title = (
        f"GEMMs take {format_percent_span(gemm)} of a forward pass" if len(gemm) else "Forward kernel time by family"
    )
    return [Chart("families", "stacked_shares", title, rows, options=options)]


def _find_measured_span(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["family"].notna() & (rows[NOT_MEASURED] == "")]


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
    return sort_stably(table, place(table["family"], order), -table["high"])


def _parts(runs: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Training steps in which modules were followed: the case, run_id, and the share of each of PARTS in their kernel
    time: part_<part>, since an axis may be called as a part is, such as `optimizer`."""
    grid = run_grid.cases(runs, "train_step")
    rows = divide_fused(select_followed_runs(totals[totals["run_id"].isin(grid["run_id"])]), ["time_ns"])
    inner = rows["module"].str.rsplit("/", n=1).str[-1].where(rows["phase"] != ranges.OPTIMIZER, ranges.OPTIMIZER)
    shares = rows.assign(part=inner).pivot_table(index="run_id", columns="part", values="time_ns", aggfunc="sum")
    shares = shares.div(rows.groupby("run_id")["time_ns"].sum(), axis=0)
    shares = shares[[part for part in PARTS if part in shares]].rename_axis(columns=None).add_prefix(PART)
    return grid.merge(shares.reset_index(), on="run_id")


def _parts_in(rows: pd.DataFrame) -> dict[str, str]:
    """Label of each column of `_parts` that there is, by its name."""
    return {f"{PART}{part}": label for part, label in PARTS.items() if f"{PART}{part}" in rows}


def _modules(runs: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Training steps in which modules were followed: the case, and the tree of everything but GEMMs in them."""
    grid = run_grid.cases(runs, "train_step")
    of_runs = totals[totals["run_id"].isin(grid["run_id"])]
    tree = module_tree(of_runs[of_runs["family"] != GEMM])
    of_step = of_runs.groupby("run_id")["time_ns"].sum()
    return grid.merge(tree.assign(step_share=tree["total_ns"] / tree["run_id"].map(of_step)), on="run_id")


def _forward_modules(runs: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Training steps in which modules were followed: the case, and the module that launches most other than GEMMs in
    forward, fused kernels by their short names; step_share: of the kernel time of forward."""
    grid = run_grid.cases(runs, "train_step")
    followed = select_followed_runs(totals[totals["run_id"].isin(grid["run_id"])])
    forward = followed[followed["phase"] == ranges.FORWARD]
    rest = forward[(forward["family"] != GEMM) & (forward["module"] != "")]
    rest = rest.assign(module=rest["module"].map(shorten_fused))
    rest = rest.groupby(["run_id", "module"])["time_ns"].sum().reset_index()
    rest["step_share"] = rest["time_ns"] / rest["run_id"].map(forward.groupby("run_id")["time_ns"].sum())
    rest = rest.sort_values("step_share", ascending=False, kind="stable").drop_duplicates("run_id")
    return grid.merge(rest, on="run_id")


def _find_training_span(rows: pd.DataFrame) -> dict[str, Any]:
    return {"parts": [{"label": label, "share": span(rows[part])} for part, label in _parts_in(rows).items()]}


def _find_leading_family(rows: pd.DataFrame) -> dict[str, Any]:
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


def _growth_facts(rows: pd.DataFrame) -> dict[str, Any]:
    steepest = rows.loc[(rows["longest"] - rows["shortest"]).abs().idxmax()]
    return {"steepest": steepest.to_dict()}
