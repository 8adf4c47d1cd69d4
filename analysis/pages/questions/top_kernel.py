"""(b) Which kernel takes the most GPU time, and is it the same one in training?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid, tiles
from profiler_job.analysis.metrics.ordering import place, rank_first_seen, sort_stably
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import extremes, find_lowest, span
from profiler_job.analysis.pages.module_costs import select_followed_runs, select_largest_model, select_longest_context
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

SCOPES = {"forward": "forward", "forward_backward": "forward + backward", "train_step": "training step"}
TOP_OF_EACH = 3
SEEN = 0.05
"""Tiles that take less of the GEMM time of a phase are not compared with others."""
SMALL = 0.01
"""Of a module that takes less of a training step in one of its passes, the passes are not compared."""
UNALIGNED = "align1"
IN_MATRIX = ("forward", "forward_backward")


def answer(given: Inputs) -> Answer:
    """The kernel with the largest total GPU time in a forward pass, a forward and backward pass, and a training step,
    for every case.

    Kernels are grouped by their full demangled name, never a shortened one. Each has its calls in a single step, its
    time in a step (mean over the profiled steps), its share of all kernel time of that step, and the modules that
    launch it, by falling time. `same` says whether the kernel is also the top one of the forward pass of that case.
    Tiles and alignment of GEMMs are what their names say (`metrics.tiles`), of the forward and the backward pass of
    training steps. The top kernels of modules come from training steps in which modules were followed.
    """
    frames = _frames(given.runs, given.kernels)
    return assemble({"scopes": SCOPES, "seen": SEEN, "small": SMALL}, _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="b",
    slug="top-kernel",
    title="Which kernel takes the most GPU time?",
    needs=("runs", "kernels"),
    answer=answer,
    section=Section.TIME,
    place=2,
    searched=("hotspot", "slowest kernel"),
)


@dataclass(frozen=True, kw_only=True)
class TopKernelData:
    by: list[str]
    """Columns that name a case."""
    top: pd.DataFrame
    """The top kernel of every case and mode, next to the top kernel of the forward pass."""
    leaders: pd.DataFrame
    """The top kernels of each forward pass."""
    matrix: pd.DataFrame
    """The top kernel by context, a column for each: of forward passes, and of these with backward."""
    tiles: pd.DataFrame
    """GEMM kernels of the training steps by tile and alignment: `tiles.list_matmul_tiles`."""
    modules: pd.DataFrame
    """The top kernel of each module of a training step, in each phase: `kernel_time.top_of_modules`."""


def _frames(runs: pd.DataFrame, kernels: pd.DataFrame) -> TopKernelData:
    by = run_grid.case_columns(runs)
    of_modules = kernel_time.kernel_totals(kernels)
    totals = kernel_time.sum_by_kernel(of_modules, ["run_id"])
    training = run_grid.cases(runs, "train_step")
    followed = select_followed_runs(of_modules[of_modules["run_id"].isin(training["run_id"])])
    leaders = run_grid.cases(runs, "forward").merge(totals, on="run_id")
    top = _top(runs, totals.drop_duplicates("run_id"), by)
    return TopKernelData(
        by=by,
        top=top,
        leaders=leaders.groupby("run_id", sort=False).head(TOP_OF_EACH),
        matrix=_matrix(top[top["mode"].isin(IN_MATRIX)], by, "scope", "kernel_name", list(SCOPES.values())),
        tiles=training.merge(tiles.list_matmul_tiles(runs, kernels), on="run_id"),
        modules=training.merge(kernel_time.top_of_modules(followed), on="run_id"),
    )


def _matrix(rows: pd.DataFrame, by: list[str], of: str, value: str, order: list[str]) -> pd.DataFrame:
    """`value` by context, a column for each (at_<context>), one row for each model and variant and each `of`, in the
    `order` of its values; None where it was not measured."""
    keys = [of, *(name for name in by if name != "context_length")]
    contexts = {int(length): f"at_{length}" for length in sorted(rows["context_length"].unique())}
    cells = [
        dict(zip(keys, key, strict=True))
        | {contexts[int(at)]: cell for at, cell in zip(group["context_length"], group[value], strict=True)}
        for key, group in rows.groupby(keys, sort=False)
    ]
    table = pd.DataFrame(cells, columns=[*keys, *contexts.values()]).astype(object)
    table = table.where(table.notna(), None).assign(**{NOT_MEASURED: ""})
    return sort_stably(table, place(table[of], order))


def _top(runs: pd.DataFrame, top: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    table = pd.concat([run_grid.cases(runs, mode).assign(mode=mode) for mode in modes.MODES])
    table = table.merge(top, how="left", on="run_id")
    table = sort_stably(table, rank_first_seen(table, by))
    forward = table[table["mode"] == "forward"][[*by, "kernel_name"]]
    table = table.merge(forward.rename(columns={"kernel_name": "forward_kernel"}), how="left", on=by)
    both = table["kernel_name"].notna() & table["forward_kernel"].notna()
    table["same"] = (table["kernel_name"] == table["forward_kernel"]).astype(object).where(both, None)
    return table.assign(scope=table["mode"].map(SCOPES))


def _claims(frames: TopKernelData) -> list[Claim]:
    measured = _select_measured(frames.top)
    forward = measured[measured["mode"] == "forward"]
    training = measured[measured["forward_kernel"].notna() & (measured["mode"] == "train_step")]
    others = measured[measured["family"] != "gemm"]
    return [
        Claim("most_frequent", forward, facts=_find_most_frequent),
        Claim("share", forward, facts=extremes("share")),
        Claim("same", training, lambda rows: _is_same(rows).all(), facts=_same),
        Claim("partly_same", training, lambda rows: _is_same(rows).any() and not _is_same(rows).all(), facts=_same),
        Claim("other", training, lambda rows: not _is_same(rows).any(), facts=_same),
        Claim("leads_training", training, facts=lambda rows: _count_leading(forward, rows)),
        Claim("gemm", measured, lambda rows: (rows["family"] == "gemm").all()),
        Claim("of_modules", _both_passes(frames.modules), facts=_count_modules),
        *_claims_of_tiles(frames),
        Claim(
            "not_gemm",
            others,
            facts=lambda rows: {"families": list(dict.fromkeys(rows["family"])), "num_all": len(measured)},
        ),
    ]


def _both_passes(modules: pd.DataFrame) -> pd.DataFrame:
    """Forward and backward of modules that take at least SMALL of a step in either."""
    rows = modules[(modules["step_share"] >= SMALL) & modules["phase"].isin(tiles.PASSES)]
    return rows[rows.groupby(["run_id", "module"])["phase"].transform("size") == len(tiles.PASSES)]


def _count_modules(rows: pd.DataFrame) -> dict[str, Any]:
    """In how many modules backward has another top kernel, and the module that takes most of a step in it."""
    num_kernels = rows.groupby(["run_id", "module"])["kernel_name"].nunique()
    backward = rows[rows["phase"] == ranges.BACKWARD]
    most = backward.loc[backward["step_share"].idxmax()].to_dict()
    return {"num_others": int((num_kernels > 1).sum()), "num_modules": len(num_kernels), "most": most}


def _claims_of_tiles(frames: TopKernelData) -> list[Claim]:
    rows = frames.tiles
    lead, aligned = tiles.select_leading(rows[rows["tile"] != ""]), rows[rows["alignment"] != ""]
    ends = rows.drop_duplicates(["run_id", "phase"])[[*frames.by, "run_id", "phase"]]
    ends = ends.merge(tiles.ends(rows, SEEN), on=["run_id", "phase"])
    return [
        Claim("tile", lead, lambda rows: set(rows["phase"]) == set(tiles.PASSES), facts=_find_leading_tiles),
        Claim("unaligned", aligned, lambda rows: (rows["alignment"] == UNALIGNED).any(), facts=_span_unaligned),
        Claim("small_tiles", ends, lambda rows: (rows["ratio"] < 1).mean() > 0.5, facts=_small_tiles),
    ]


def _find_leading_tiles(rows: pd.DataFrame) -> dict[str, Any]:
    """By phase, the tile that leads most cases, and in how many of them."""
    counts = {phase: of_phase["tile"].value_counts() for phase, of_phase in rows.groupby("phase")}
    most = {phase: min(count[count == count.max()].index) for phase, count in counts.items()}
    num_cases = {phase: int(counts[phase][tile]) for phase, tile in most.items()}
    return {"most": most, "num_cases": num_cases, "num_all": rows["run_id"].nunique()}


def _span_unaligned(rows: pd.DataFrame) -> dict[str, Any]:
    """By phase, lowest and highest part of the GEMM time of a step in kernels that assume no alignment, and the rates
    of these and of the others."""
    parts = rows[rows["alignment"] == UNALIGNED].groupby(["run_id", "phase"])["share"].sum().unstack(fill_value=0.0)
    parts = parts.reindex(index=rows["run_id"].unique(), columns=list(tiles.PASSES)).fillna(0.0)
    back = rows[rows["phase"] == ranges.BACKWARD]
    rates = back.groupby(back["alignment"] == UNALIGNED)["flop_rate"].median() * 1e12
    return {
        "share": {phase: span(parts[phase]) for phase in parts},
        "rates": {"unaligned": rates.get(True), "aligned": rates.get(False)} if rates.notna().sum() == 2 else None,
    }


def _small_tiles(rows: pd.DataFrame) -> dict[str, Any]:
    slower = rows[rows["ratio"] < 1]
    return {"num_slower": len(slower), "least": find_lowest(rows, "ratio")}


def _tables(frames: TopKernelData) -> list[Table]:
    case = case_headings(frames.by)
    of_module = (
        *case,
        Column("module", "module", "code"),
        Column("phase", "phase"),
        Column("step_share", "of the step", "share", bar=True),
        Column("kernel_name", "top kernel", "kernel"),
        Column("calls", "calls per step", "count"),
        Column("time_ns", "time per step", "ms"),
        Column("share", "of the module in the phase", "share"),
    )
    return [
        Table(
            "top",
            "The top kernel of each step",
            (
                *case,
                Column("scope", "scope"),
                Column("kernel_name", "kernel", "kernel"),
                Column("calls", "calls per step", "count"),
                Column("time_ns", "time per step", "ms"),
                Column("share", "of kernel time", "share", bar=True),
                Column("modules", "launched by", "modules"),
                Column("same", "same as forward", "yes_no"),
            ),
            frames.top.drop(columns=["forward_kernel"]),
        ),
        Table(
            "matrix",
            "The top kernel by model and context",
            (Column("scope", "scope", "words"), *_across(frames.matrix, frames.by, "kernel")),
            frames.matrix,
        ),
        Table(
            "leaders",
            "The three top kernels of each forward pass",
            (
                *case,
                Column("kernel_name", "kernel", "kernel"),
                Column("calls", "calls per forward", "count"),
                Column("time_ns", "time per forward", "ms"),
                Column("share", "of kernel time", "share", bar=True),
                Column("modules", "launched by", "modules"),
            ),
            frames.leaders,
        ),
        Table(
            "of_modules",
            "The top kernel of each module of a training step of the largest model, in each phase",
            of_module,
            select_largest_model(select_longest_context(frames.modules)),
        ),
        Table("every_module", "The top kernel of each module of every training step", of_module, frames.modules),
        *_tables_of_tiles(frames),
    ]


def _across(matrix: pd.DataFrame, by: list[str], kind: str) -> tuple[Column, ...]:
    """The columns of a `_matrix`: its model and variant, and each context."""
    case = (column for column in case_headings(by, linked=False) if column.key != "context_length")
    contexts = [name for name in matrix if name.startswith("at_")]
    return (*case, *(Column(name, f"at {name.removeprefix('at_')}", kind) for name in contexts))


def _tables_of_tiles(frames: TopKernelData) -> list[Table]:
    lead = tiles.select_leading(frames.tiles)
    lead = lead.assign(shown=(lead["tile"] + " " + lead["alignment"]).str.strip())
    matrix = _matrix(lead, frames.by, "phase", "shown", list(tiles.PASSES))
    return [
        Table(
            "tile_matrix",
            "The tile that most of the GEMM time of a training step goes to, by model and context",
            (Column("phase", "phase"), *_across(matrix, frames.by, "text")),
            matrix,
        ),
        Table(
            "tiles",
            "Tiles and alignment of the matmuls of training steps",
            (
                Column("phase", "phase"),
                Column("tile", "tile"),
                *([Column("alignment", "alignment")] if (frames.tiles["alignment"] != "").any() else []),
                Column("num_runs", "steps", "count"),
                Column("share", "of GEMM time", "share", bar=True),
                Column("rate_low", "lowest", "tflops", absent="n/a"),
                Column("rate", "median", "tflops", absent="n/a"),
                Column("rate_high", "highest", "tflops", absent="n/a"),
            ),
            _word_kernels(tiles.sum_over_runs(frames.tiles)),
        ),
        Table(
            "every_tile",
            "Tiles of each training step",
            (
                *case_headings(frames.by),
                Column("phase", "phase"),
                Column("tile", "tile"),
                Column("alignment", "alignment"),
                Column("share", "of GEMM time", "share"),
                Column("flop_rate", "rate", "tflops", absent="n/a"),
            ),
            frames.tiles,
        ),
    ]


def _word_kernels(rows: pd.DataFrame) -> pd.DataFrame:
    names = {"tile": "sums of split-K", "alignment": "not named", "layouts": "not named"}
    return rows.assign(**{name: rows[name].where(rows[name] != "", word) for name, word in names.items()})


def _charts(frames: TopKernelData) -> list[Chart]:
    options = {"by": frames.by, "order": list(SCOPES.values())}
    rows = _select_measured(frames.top)
    return [Chart("shares", "grouped_bars", "Share of the top kernel in kernel time", rows, options=options)]


def _select_measured(top: pd.DataFrame) -> pd.DataFrame:
    return top[(top[NOT_MEASURED] == "") & top["kernel_name"].notna()]


def _find_most_frequent(rows: pd.DataFrame) -> dict[str, Any]:
    counts = rows["kernel_name"].value_counts()
    leader = min(counts[counts == counts.max()].index)
    of_leader = rows[rows["kernel_name"] == leader]
    return {
        "kernel_name": leader,
        "family": of_leader["family"].iloc[0],
        "num_cases": len(of_leader),
        "num_kernels": rows["kernel_name"].nunique(),
        "largest": rows.iloc[-1].to_dict(),
    }


def _count_leading(forward: pd.DataFrame, training: pd.DataFrame) -> dict[str, Any]:
    """How many training steps the kernel leads that leads most forward passes."""
    leader = _find_most_frequent(forward)["kernel_name"]
    return {"kernel_name": leader, "num_led": int((training["kernel_name"] == leader).sum())}


def _is_same(rows: pd.DataFrame) -> pd.Series:
    return rows["same"].astype(bool)


def _same(rows: pd.DataFrame) -> dict[str, Any]:
    return {"num_same": int(rows["same"].sum())}
