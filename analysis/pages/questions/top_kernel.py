"""(b) Which kernel takes the most GPU time, and is it the same one in training?"""

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
    by = run_grid.case_columns(runs)
    totals = kernel_time.by_kernel(kernel_time.kernel_totals(kernels), ["run_id"])
    top = totals.drop_duplicates("run_id")
    table = pd.concat([run_grid.cases(runs, mode).assign(mode=mode) for mode in modes.MODES])
    table = table.merge(top, how="left", on="run_id")
    table = sorted_by(table, seen(table, by))
    forward = table[table["mode"] == "forward"]
    table = table.merge(
        forward[[*by, "kernel_name"]].rename(columns={"kernel_name": "forward_kernel"}),
        how="left",
        on=by,
    )
    both = table["kernel_name"].notna() & table["forward_kernel"].notna()
    table["same"] = (table["kernel_name"] == table["forward_kernel"]).astype(object).where(both, None)
    table["scope"] = table["mode"].map(SCOPES)
    measured = table[(table[NOT_MEASURED] == "") & table["kernel_name"].notna()]
    comparable = measured[measured["forward_kernel"].notna()]
    in_training = comparable[comparable["mode"] == "train_step"]
    leaders = run_grid.cases(runs, "forward").merge(totals, on="run_id")
    leaders = leaders.groupby("run_id", sort=False).head(TOP_OF_EACH)
    claims = [
        Claim(
            "most_frequent",
            measured[measured["mode"] == "forward"],
            facts=_most_frequent,
        ),
        Claim("share", measured[measured["mode"] == "forward"], facts=extremes("share")),
        Claim("same", in_training, lambda rows: rows["same"].astype(bool).all(), _same),
        Claim(
            "partly_same",
            in_training,
            lambda rows: rows["same"].astype(bool).any() and not rows["same"].astype(bool).all(),
            _same,
        ),
        Claim("other", in_training, lambda rows: not rows["same"].astype(bool).any(), _same),
        Claim("gemm", measured, lambda rows: (rows["family"] == "gemm").all()),
        Claim(
            "not_gemm",
            measured[measured["family"] != "gemm"],
            facts=lambda rows: {"families": list(dict.fromkeys(rows["family"])), "num_all": len(measured)},
        ),
    ]
    tables = [
        Table(
            "top",
            "The top kernel of each step",
            (
                *case_headings(by),
                Column("scope", "scope"),
                Column("kernel_name", "kernel", "kernel"),
                Column("calls", "calls per step", "count"),
                Column("time_ns", "time per step", "ms"),
                Column("share", "of kernel time", "share", bar=True),
                Column("modules", "launched by", "modules"),
                Column("same", "same as forward", "yes_no"),
            ),
            table.drop(columns=["forward_kernel"]),
        ),
        Table(
            "leaders",
            "The three top kernels of each forward pass",
            (
                *case_headings(by),
                Column("kernel_name", "kernel", "kernel"),
                Column("calls", "calls per forward", "count"),
                Column("time_ns", "time per forward", "ms"),
                Column("share", "of kernel time", "share", bar=True),
                Column("modules", "launched by", "modules"),
            ),
            leaders,
        ),
    ]
    charts = [
        Chart(
            "shares",
            "grouped_bars",
            "Share of the top kernel",
            measured,
            {"by": by, "order": list(SCOPES.values())},
        )
    ]
    return assemble({"scopes": SCOPES}, claims, tables, charts)


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


def _same(rows: pd.DataFrame) -> dict:
    return {
        "num_same": int(rows["same"].sum()),
    }
