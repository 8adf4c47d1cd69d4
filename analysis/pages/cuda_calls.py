"""The CUDA API calls of the recording: what each is, how often it comes, and what it costs the host."""

from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid, timing
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.recording.run_table import count_rows, measure_by_run
from profiler_job.analysis.reference import cuda_api
from profiler_job.analysis.render.answer import Answer, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges

SLUG = "cuda-calls"
TITLE = "CUDA API calls"

QUEUE_FULL = 4
"""A launch counts as having waited if its mean over a run is this many times the mean of the cheapest run."""
COPY = "memcpy "
"""How the names of copies begin in `memops`."""


def answer(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame, memops: pd.DataFrame
) -> Answer:
    """Calls by name, with the number of runs that have it, calls in all, and mean host time of a call over all of them
    and in the cheapest and the most expensive run.

    Also, for each finished run and per profiled step: launches, host time in them, their mean, host time waiting in
    synchronisation, and both as shares of the step's NVTX range.
    """
    calls = calls_of_steps(api)
    table, host = _sum_by_name(calls), _sum_by_run(runs, steps, kernels, calls)
    tables = [*_tables_of_calls(table), _table_of_runs(host, run_grid.case_columns(runs))]
    facts = {"tables": [part.key for part in tables[:-1]], "num_calls": int(table["calls"].sum())}
    return assemble(facts, _claims(calls, table, host, kernels, memops), tables, [])


def calls_of_steps(api: pd.DataFrame) -> pd.DataFrame:
    """Calls of the steps by their names without version, with their groups."""
    calls = api[api["phase"].astype(str) != ""].astype({"run_id": str, "name": str})
    groups = {name: cuda_api.find_group(name) or "" for name in calls["name"].unique()}
    return calls.assign(group=calls["name"].map(groups))


def _claims(
    calls: pd.DataFrame, table: pd.DataFrame, host: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame
) -> list[Claim]:
    launching = host[host["launches"] > 0].sort_values("each_ns", kind="stable")
    waiting = host.dropna(subset=["wait_share"]).sort_values("wait_share", kind="stable")
    num_launches = int(calls.loc[calls["group"] == "launch", "calls"].sum())
    pairs = pd.DataFrame(
        {"launch_calls": [num_launches], "kernels": [int(count_rows(timing.select_steps(kernels)).sum())]}
    )
    graphs = table[table["name"].isin(["cudaGraphLaunch", "cuGraphLaunch"])]
    return [
        Claim(
            "queue",
            launching,
            lambda rows: rows["each_ns"].iloc[-1] > QUEUE_FULL * rows["each_ns"].iloc[0],
            facts=_ends,
        ),
        Claim(
            "one_each",
            pairs,
            lambda rows: (rows["launch_calls"] == rows["kernels"]).all() and rows["kernels"].iloc[0] > 0,
            facts=lambda rows: rows.iloc[0].to_dict(),
        ),
        Claim("waiting", waiting, lambda rows: rows["wait_share"].iloc[-1] > 0, facts=_ends),
        Claim("copies", _copies(memops), facts=_directions),
        Claim("graphs", graphs, facts=lambda rows: {"calls": int(rows["calls"].sum())}),
        Claim("no_graphs", table, lambda rows: not len(graphs)),
    ]


def _copies(memops: pd.DataFrame) -> pd.DataFrame:
    """Copies of the measured steps by direction, the most first: direction, copies."""
    counts = _count_directions(memops).groupby(level=0, sort=False).sum().sort_values(ascending=False, kind="stable")
    return counts.rename_axis("direction").rename("copies").reset_index()


@measure_by_run
def _count_directions(memops: pd.DataFrame) -> pd.Series:
    names = timing.select_steps(memops)["operation"].astype(str)
    return names[names.str.startswith(COPY)].str.removeprefix(COPY).value_counts()


def _directions(rows: pd.DataFrame) -> dict[str, Any]:
    return {"num_copies": int(rows["copies"].sum()), "of": rows.to_dict("records")}


def _ends(rows: pd.DataFrame) -> dict[str, Any]:
    """The first and the last of rows in rising order."""
    return {"low": rows.iloc[0].to_dict(), "high": rows.iloc[-1].to_dict()}


def _tables_of_calls(table: pd.DataFrame) -> list[Table]:
    columns = (
        Column("name", "call", "code"),
        Column("calls", "calls", "count"),
        Column("each_ns", "host time per call", "us", lower="low_ns", upper="high_ns"),
        Column("total_ns", "in all", "ms"),
        Column("num_runs", "runs", "count"),
        Column("explanation", "what it does and why it is there", "prose"),
    )
    present = set(table["group"])
    return [
        Table(
            f"calls-{group}",
            cuda_api.GROUPS.get(group, "Not described yet"),
            columns,
            table[table["group"] == group].reset_index(drop=True),
        )
        for group in [*cuda_api.GROUPS, ""]
        if group in present
    ]


def _table_of_runs(host: pd.DataFrame, by: list[str]) -> Table:
    columns = (
        *case_headings(by),
        Column("mode", "mode"),
        Column("launches", "launches", "count"),
        Column("each_ns", "host time per launch", "us"),
        Column("launch_share", "launching, of the step", "share", bar=True),
        Column("wait_share", "waiting, of the step", "share", bar=True),
    )
    return Table("host", "Host time in launches and in waiting, per profiled step", columns, host)


def _sum_by_name(calls: pd.DataFrame) -> pd.DataFrame:
    """Calls of all runs by name, most host time first; `low_ns` and `high_ns` are means of a call in a single run."""
    of_run = calls.groupby(["group", "name", "run_id"], sort=False)[["calls", "total_ns"]].sum().reset_index()
    of_run["mean_ns"] = of_run["total_ns"] / of_run["calls"]
    table = of_run.groupby(["group", "name"], sort=False).agg(
        num_runs=("run_id", "nunique"),
        calls=("calls", "sum"),
        total_ns=("total_ns", "sum"),
        low_ns=("mean_ns", "min"),
        high_ns=("mean_ns", "max"),
    )
    table = table.reset_index().sort_values(["total_ns", "name"], ascending=[False, True], ignore_index=True)
    entries = [cuda_api.explain(name) for name in table["name"]]
    table["explanation"] = [entry.explanation if entry else "not described yet" for entry in entries]
    return table.assign(each_ns=table["total_ns"] / table["calls"])


def _sum_by_run(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Every finished run in model order with its launches and waits per profiled step of a rank."""
    num_steps = kernel_time.num_steps_of_ranks(kernels)
    table = run_grid.select_measured_runs(runs).astype({"run_id": str, "mode": str})
    table = table[["run_id", *run_grid.case_columns(runs), "mode"]]
    for group, number, time in (("launch", "launches", "launch_ns"), ("synchronisation", "waits", "wait_ns")):
        sums = calls[calls["group"] == group].groupby("run_id")[["calls", "total_ns"]].sum()
        sums = sums.rename(columns={"calls": number, "total_ns": time}).div(num_steps, axis=0)
        table = table.merge(sums, how="left", left_on="run_id", right_index=True)
    host = steps[(steps["collector"].astype(str) == "nsys") & (steps["phase"].astype(str) == ranges.STEP)]
    step_ns = table["run_id"].map(host.groupby(host["run_id"].astype(str))["wall_ns"].mean())
    table["step_ns"] = step_ns.astype(float)  # where no run was measured, `map` gives strings
    table["each_ns"] = table["launch_ns"] / table["launches"]
    for share, time in (("launch_share", "launch_ns"), ("wait_share", "wait_ns")):
        table[share] = table[time] / table["step_ns"]
    return table.reset_index(drop=True)
