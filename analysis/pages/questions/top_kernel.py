"""(b) Which kernel takes the most GPU time, and is it the same one in training?"""

from dataclasses import dataclass

import pandas as pd

from analysis.answer import NOT_MEASURED, Answer, Chart, Claim, Column, Table, assemble
from analysis.metrics import kernel_time, run_grid
from analysis.metrics.ordering import seen, sorted_by
from analysis.pages.columns import case_headings
from analysis.pages.facts import extremes
from jobs.contract import modes

SLUG = "top-kernel"
TITLE = "Which kernel takes the most GPU time?"

SCOPES = {"forward": "forward", "forward_backward": "forward + backward", "train_step": "training step"}
TOP_OF_EACH = 3


def answer(runs: pd.DataFrame, kernels: pd.DataFrame) -> Answer:
    """The kernel with the largest total GPU time in a forward pass, a forward and backward pass, and a training step,
    for every case.

    Kernels are grouped by their full demangled name, never a shortened one. Each has its calls in a single step, its
    time in a step (mean over the profiled steps), its share of all kernel time of that step, and the modules that
    launch it, by falling time. `same` says whether the kernel is also the top one of the forward pass of that case.
    """
    frames = _frames(runs, kernels)
    return assemble({"scopes": SCOPES}, _claims(frames), _tables(frames), _charts(frames))


@dataclass(frozen=True, kw_only=True)
class Frames:
    by: list[str]
    """Columns that name a case."""
    top: pd.DataFrame
    """The top kernel of every case and mode, with that of the forward pass beside it."""
    leaders: pd.DataFrame
    """The top kernels of each forward pass."""


def _frames(runs: pd.DataFrame, kernels: pd.DataFrame) -> Frames:
    by = run_grid.case_columns(runs)
    totals = kernel_time.by_kernel(kernel_time.kernel_totals(kernels), ["run_id"])
    leaders = run_grid.cases(runs, "forward").merge(totals, on="run_id")
    return Frames(
        by=by,
        top=_top(runs, totals.drop_duplicates("run_id"), by),
        leaders=leaders.groupby("run_id", sort=False).head(TOP_OF_EACH),
    )


def _top(runs: pd.DataFrame, top: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    table = pd.concat([run_grid.cases(runs, mode).assign(mode=mode) for mode in modes.MODES])
    table = table.merge(top, how="left", on="run_id")
    table = sorted_by(table, seen(table, by))
    forward = table[table["mode"] == "forward"][[*by, "kernel_name"]]
    table = table.merge(forward.rename(columns={"kernel_name": "forward_kernel"}), how="left", on=by)
    both = table["kernel_name"].notna() & table["forward_kernel"].notna()
    table["same"] = (table["kernel_name"] == table["forward_kernel"]).astype(object).where(both, None)
    return table.assign(scope=table["mode"].map(SCOPES))


def _claims(frames: Frames) -> list[Claim]:
    measured = _measured(frames.top)
    forward = measured[measured["mode"] == "forward"]
    training = measured[measured["forward_kernel"].notna() & (measured["mode"] == "train_step")]
    others = measured[measured["family"] != "gemm"]
    return [
        Claim("most_frequent", forward, facts=_most_frequent),
        Claim("share", forward, facts=extremes("share")),
        Claim("same", training, lambda rows: _is_same(rows).all(), _same),
        Claim("partly_same", training, lambda rows: _is_same(rows).any() and not _is_same(rows).all(), _same),
        Claim("other", training, lambda rows: not _is_same(rows).any(), _same),
        Claim("leads_training", training, facts=lambda rows: _leading(forward, rows)),
        Claim("gemm", measured, lambda rows: (rows["family"] == "gemm").all()),
        Claim(
            "not_gemm",
            others,
            facts=lambda rows: {"families": list(dict.fromkeys(rows["family"])), "num_all": len(measured)},
        ),
    ]


def _tables(frames: Frames) -> list[Table]:
    case = case_headings(frames.by)
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
    ]


def _charts(frames: Frames) -> list[Chart]:
    options = {"by": frames.by, "order": list(SCOPES.values())}
    return [Chart("shares", "grouped_bars", "Share of the top kernel", _measured(frames.top), options)]


def _measured(top: pd.DataFrame) -> pd.DataFrame:
    return top[(top[NOT_MEASURED] == "") & top["kernel_name"].notna()]


def _most_frequent(rows: pd.DataFrame) -> dict:
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


def _leading(forward: pd.DataFrame, training: pd.DataFrame) -> dict:
    """How many training steps the kernel leads that leads most forward passes."""
    leader = _most_frequent(forward)["kernel_name"]
    return {"kernel_name": leader, "num_led": int((training["kernel_name"] == leader).sum())}


def _is_same(rows: pd.DataFrame) -> pd.Series:
    return rows["same"].astype(bool)


def _same(rows: pd.DataFrame) -> dict:
    return {"num_same": int(rows["same"].sum())}
