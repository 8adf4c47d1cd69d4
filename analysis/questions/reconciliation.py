"""Where numbers that must agree are held against each other, for every run."""

import pandas as pd

from analysis import metrics
from analysis.answer import Answer, Claim, Column, Table, assemble
from analysis.knowledge import flops, kernel_families
from jobs import ranges

SLUG = "reconciliation"
TITLE = "Do the numbers agree?"

PHASE_SUM_TOLERANCE = 0.03
"""Phases may miss this part of the step that holds them: the clock is read, and the device synchronised, between them.
"""
PROFILER_RANGE = (0.9, 3.0)
"""NVTX host range of a step over its unprofiled time: the profiler slows the host, and never speeds it up."""
MODULE_COVERAGE = 0.99
"""Least share of forward kernel time that a module must account for."""


def answer(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame) -> Answer:
    """Checks of every finished run. Each gives what was found, the bounds it must keep to, and whether it does.

    timed_steps, profiled_steps: as many as the run was to measure. phase_sum: the phases of a step against the step,
    unprofiled, worst step. forward_products, backward_products: matrix products of each step, 9L+1 and 18L+2 with
    attention written out, 7L+1 and 14L+2 with fused attention; split-K and epilogue kernels belong to their product.
    profiler: NVTX host range of the step over the unprofiled step, medians. in_phase: share of the steps' kernel time
    with a phase. in_module: share of forward kernel time with a module. busy: GPU busy time of a step over its kernel
    time (at most 1).
    """
    ordered = metrics.measured_runs(runs)
    info = ordered.astype({"run_id": str, "mode": str, "attention": str}).set_index("run_id")
    gpu = metrics.gpu_times(kernels)
    checks = [
        _counts(info, steps, gpu),
        _phase_sum(steps),
        _products(info, kernels),
        _profiler(steps),
        _coverage(kernels),
        _busy(gpu),
    ]
    table = pd.concat(checks, ignore_index=True)
    table = table[table["run_id"].isin(info.index)]
    table = _with_missing(table, info)
    table["passed"] = (table["found"] >= table["at_least"]) & (table["found"] <= table["at_most"])
    rank = {run: position for position, run in enumerate(info.index)}
    table = table.assign(_rank=table["run_id"].map(rank)).sort_values(["_rank", "check"]).drop(columns="_rank")
    table = table.reset_index(drop=True)
    table["run"] = table["run_id"]
    breaches = table[~table["passed"]].reset_index(drop=True)
    summary = table.groupby("check", sort=True).agg(
        num_runs=("passed", "size"), num_passed=("passed", "sum"), lowest=("found", "min"), highest=("found", "max")
    )
    summary = summary.reset_index().assign(passed=lambda rows: rows["num_runs"] == rows["num_passed"])
    summary.insert(1, "meaning", summary["check"].map(MEANING))
    claims = [
        Claim("all_agree", table, lambda rows: rows["passed"].all(), _count),
        Claim("breaches", breaches, lambda rows: not rows["passed"].all(), _count),
    ]
    columns = (
        Column("run", "run", "run"),
        Column("check", "check"),
        Column("found", "found", "number"),
        Column("at_least", "at least", "number"),
        Column("at_most", "at most", "number"),
        Column("passed", "result", "check"),
    )
    tables = [
        Table(
            "summary",
            "Checks",
            (
                Column("check", "check"),
                Column("meaning", "what is compared", "prose"),
                Column("num_runs", "runs", "count"),
                Column("num_passed", "agree", "count"),
                Column("lowest", "lowest", "number"),
                Column("highest", "highest", "number"),
                Column("passed", "result", "check"),
            ),
            summary,
        ),
        Table("breaches", "Breaches", columns, breaches),
        Table("checks", "Every check of every run", columns, table),
    ]
    return assemble({"num_breaches": len(breaches)}, claims, tables, [])


MEANING = {
    "timed_steps": "steps timed, against steps to time",
    "profiled_steps": "steps with kernels in the profile, against steps to profile",
    "phase_sum": "phases of a step added up, over the step (unprofiled, worst step)",
    "forward_products": "matrix products in each forward pass, against the architecture",
    "backward_products": "matrix products in each backward pass, against the architecture",
    "profiler": "NVTX range of the step under nsys, over the unprofiled step",
    "in_phase": "share of kernel time inside steps that has a phase",
    "in_module": "share of forward kernel time that has a module",
    "busy": "GPU busy time of a step, over its kernel time",
}


def _rows(check: str, found: pd.Series, at_least, at_most) -> pd.DataFrame:
    """One row per run; `found` is indexed by run_id."""
    rows = pd.DataFrame({"run_id": found.index.astype(str), "check": check, "found": found.to_numpy(float)})
    return rows.assign(at_least=_bound(at_least, found), at_most=_bound(at_most, found))


def _bound(bound: object, found: pd.Series) -> object:
    return bound.reindex(found.index).to_numpy(float) if isinstance(bound, pd.Series) else float(bound)


def _counts(info: pd.DataFrame, steps: pd.DataFrame, gpu: pd.DataFrame) -> pd.DataFrame:
    timed = steps[(steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == ranges.STEP)]
    timed = timed.astype({"run_id": str}).groupby("run_id")["step"].nunique()
    profiled = gpu[gpu["phase"] == ranges.STEP].groupby("run_id")["step"].nunique()
    wanted, wanted_profiled = info["measured_steps"], info["profiled_steps"]
    return pd.concat(
        [
            _rows("timed_steps", timed, wanted, wanted),
            _rows("profiled_steps", profiled, wanted_profiled, wanted_profiled),
        ]
    )


def _phase_sum(steps: pd.DataFrame) -> pd.DataFrame:
    timed = steps[steps["collector"].astype(str) == "timer"].astype({"run_id": str, "phase": str})
    wide = timed.pivot_table(index=["run_id", "step"], columns="phase", values="wall_ns", aggfunc="sum")
    phases = wide[[phase for phase in metrics.PHASES if phase in wide]].sum(axis=1)
    quotient = phases / wide[ranges.STEP]
    worst = quotient.groupby("run_id").agg(lambda values: values.loc[(values - 1).abs().idxmax()])
    return _rows("phase_sum", worst, 1 - PHASE_SUM_TOLERANCE, 1 + PHASE_SUM_TOLERANCE)


def _products(info: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    counted = metrics.matrix_products(kernels, kernel_families.is_matrix_product)
    parts = []
    for phase in (ranges.FORWARD, ranges.BACKWARD):
        of_phase = counted[(counted["phase"] == phase) & counted["run_id"].isin(info.index)]
        want = pd.Series(
            {
                run_id: flops.num_matrix_products(metrics.shape_of(run), phase, run["attention"])
                for run_id, run in info.iterrows()
            },
            dtype=float,
        )
        distance = (of_phase["products"] - want.reindex(of_phase["run_id"]).to_numpy()).abs()
        worst = of_phase.assign(distance=distance).sort_values("distance").drop_duplicates("run_id", keep="last")
        parts.append(_rows(f"{phase}_products", worst.set_index("run_id")["products"], want, want))
    return pd.concat(parts)


def _profiler(steps: pd.DataFrame) -> pd.DataFrame:
    def whole(collector: str) -> pd.Series:
        times = metrics.host_times(steps, collector, "wall")
        return times[times["phase"] == ranges.STEP].set_index("run_id")["wall_ns"]

    quotient = (whole("nsys") / whole("timer")).dropna()
    return _rows("profiler", quotient, *PROFILER_RANGE)


def _coverage(kernels: pd.DataFrame) -> pd.DataFrame:
    rows = metrics.in_steps(kernels)
    time = rows["end_ns"] - rows["start_ns"]
    frame = pd.DataFrame(
        {
            "run_id": rows["run_id"].astype(str),
            "time": time,
            "in_phase": time.where(rows["phase"].astype(str) != "", 0),
            "in_module": time.where(rows["module"].astype(str) != "", 0),
            "forward": rows["phase"].astype(str) == ranges.FORWARD,
        }
    )
    every = frame.groupby("run_id")[["time", "in_phase"]].sum()
    forward = frame[frame["forward"]].groupby("run_id")[["time", "in_module"]].sum()
    return pd.concat(
        [
            _rows("in_phase", every["in_phase"] / every["time"], 1, 1),
            _rows("in_module", forward["in_module"] / forward["time"], MODULE_COVERAGE, 1),
        ]
    )


def _busy(gpu: pd.DataFrame) -> pd.DataFrame:
    whole = gpu[gpu["phase"] == ranges.STEP]
    quotient = (whole["busy_ns"] / whole["kernel_ns"]).groupby(whole["run_id"]).min()
    return _rows("busy", quotient, 0, 1)


def _with_missing(table: pd.DataFrame, info: pd.DataFrame) -> pd.DataFrame:
    """A check that a finished run should have and has not: a row with nothing found, so that it counts as a breach."""
    wanted = []
    for run_id, run in info.iterrows():
        for check in MEANING:
            if check == "backward_products" and "backward" not in metrics.MODE_PHASES.get(run["mode"], ()):
                continue
            wanted.append((run_id, check))
    grid = pd.DataFrame(wanted, columns=["run_id", "check"])
    return grid.merge(table, how="left", on=["run_id", "check"])


def _count(rows: pd.DataFrame) -> dict:
    return {"num_checks": len(rows), "num_runs": rows["run_id"].nunique()}
