"""One run: its timings by every clock, phases, kernel families, kernels, modules, memory and API calls."""

from collections.abc import Iterator

import pandas as pd

from analysis.answer import Answer, Chart, Column, Table, assemble
from analysis.metrics import kernel_time, run_grid, timing, utilisation
from analysis.metrics.ordering import place, sorted_by
from analysis.pages.columns import spread_column
from jobs.contract import ranges

TOP_KERNELS = 20
AXES = (*run_grid.CASE_AXES, "mode", *run_grid.VARIANT_AXES)
ORDER = (*ranges.PHASES, ranges.STEP)


def answers(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    api: pd.DataFrame,
    memops: pd.DataFrame,
    memory: pd.DataFrame,
    checks: pd.DataFrame,
) -> Iterator[tuple[str, Answer]]:
    """(run_id, Answer) of every run in model order; one that did not finish has its status and message and no numbers.

    `checks` is the table of that name of the reconciliation. Times and calls are per step: medians over steps where a
    spread is given, means otherwise.
    """
    ordered = run_grid.in_model_order(runs)
    frames = {
        "times": _times(steps, kernels),
        "totals": kernel_time.kernel_totals(kernels),
        "api": _per_step(
            api, ["phase", "name"], {"calls": "calls", "total_ns": "time_ns"}, kernel_time.num_profiled_steps(kernels)
        ),
        "memops": _memops(memops, kernel_time.num_profiled_steps(kernels)),
        "memory": memory,
        "checks": checks,
    }
    of_run = {
        name: dict(iter(frame.groupby(frame["run_id"].astype(str), sort=False))) for name, frame in frames.items()
    }
    order = kernel_time.by_family(frames["totals"], ["run_id"]).groupby("family")["time_ns"].sum()
    order = order.sort_values(ascending=False).index.tolist()
    for _, run in ordered.iterrows():
        run_id = str(run["run_id"])
        finished = str(run["status"]) == "ok"
        parts = {
            name: groups.get(run_id, frames[name].head(0)) if finished else frames[name].head(0)
            for name, groups in of_run.items()
        }
        yield run_id, _answer(run, ordered, parts, order)


def _answer(run: pd.Series, runs: pd.DataFrame, parts: dict[str, pd.DataFrame], order: list[str]) -> Answer:
    totals = parts["totals"]
    families = kernel_time.by_family(totals, ["phase"])
    whole = kernel_time.by_family(totals.assign(scope=ranges.STEP), ["scope"])
    per_phase = pd.concat([families, whole.rename(columns={"scope": "phase"})], ignore_index=True)
    per_phase = sorted_by(per_phase, place(per_phase["phase"], ORDER), -per_phase["time_ns"])
    names = kernel_time.by_kernel(totals.assign(scope=ranges.STEP), ["scope"]).drop(columns="scope")
    modules = _modules(totals)
    times = parts["times"]
    facts = {
        "run": {key: None if pd.isna(value) else value for key, value in run.items()},
        "why": run_grid.why_not_measured(run),
        "axes": _axes(run, runs),
        "num_kernels": len(names),
        "mfu": _mfu(run, times),
        "log": str(run["log"]).splitlines() if pd.notna(run.get("log")) else [],
        "top": TOP_KERNELS,
    }
    tables = [
        Table(
            "times",
            "Time by phase and clock: median, and minimum–maximum over steps",
            (
                Column("phase", "phase"),
                spread_column("timer", "Python timer"),
                spread_column("host", "NVTX range"),
                spread_column("projected", "GPU projected"),
                spread_column("busy", "GPU busy"),
                Column("busy_ratio", "busy ÷ timer", "share", bar=True),
                Column("launches", "kernels", "count"),
                Column("timer_n", "steps timed", "count"),
                Column("host_n", "steps profiled", "count"),
            ),
            times.drop(columns="run_id"),
        ),
        Table(
            "families",
            "Kernel families by phase",
            (
                Column("phase", "phase"),
                Column("family", "family", "family"),
                Column("share", "of the phase", "share", bar=True),
                Column("time_ns", "time", "ms"),
                Column("calls", "calls", "count"),
            ),
            per_phase,
        ),
        Table(
            "kernels",
            "Top kernels of the step",
            (
                Column("kernel_name", "kernel", "kernel"),
                Column("family", "family", "family"),
                Column("time_ns", "time", "ms"),
                Column("share", "of the step", "share", bar=True),
                Column("calls", "calls", "count"),
                Column("modules", "launched by", "modules"),
            ),
            names.head(TOP_KERNELS),
        ),
        Table(
            "modules",
            "Kernel time by module, block numbers left out",
            (
                Column("phase", "phase"),
                Column("module", "module"),
                Column("time_ns", "time", "ms"),
                Column("share", "of the step", "share", bar=True),
                Column("calls", "kernels", "count"),
            ),
            modules,
        ),
        Table(
            "memory",
            "Memory of torch's allocator by phase",
            (
                Column("phase", "phase"),
                Column("allocated_before_bytes", "allocated before", "bytes"),
                Column("peak_allocated_bytes", "peak allocated", "bytes"),
                Column("allocated_after_bytes", "allocated after", "bytes"),
                Column("peak_reserved_bytes", "peak reserved", "bytes"),
            ),
            parts["memory"].drop(columns="run_id"),
        ),
        Table(
            "api",
            "CUDA API calls per step, on the host",
            (
                Column("phase", "phase"),
                Column("name", "call"),
                Column("calls", "calls", "count"),
                Column("time_ns", "host time", "ms"),
            ),
            parts["api"].drop(columns="run_id"),
        ),
        Table(
            "memops",
            "Memory copies and sets per step",
            (
                Column("phase", "phase"),
                Column("operation", "operation"),
                Column("calls", "operations", "count"),
                Column("bytes", "size", "mib"),
                Column("time_ns", "GPU time", "ms"),
            ),
            parts["memops"].drop(columns="run_id"),
        ),
        Table(
            "checks",
            "Checks",
            (
                Column("check", "check"),
                Column("found", "found", "number"),
                Column("at_least", "at least", "number"),
                Column("at_most", "at most", "number"),
                Column("passed", "result", "check"),
            ),
            parts["checks"],
        ),
    ]
    charts = [
        Chart("families", "stacked_shares", "Kernel time by family", per_phase, {"by": ["phase"], "order": order})
    ]
    return assemble(facts, [], tables, charts)


def _mfu(run: pd.Series, times: pd.DataFrame) -> float | None:
    """MFU of the unprofiled step; None where it was not timed or the GPU's peak is unknown."""
    whole = times.loc[times["phase"] == ranges.STEP, "timer_ns"].dropna()
    reached = utilisation.mfu(run, float(whole.iloc[0])) if len(whole) else float("nan")
    return None if pd.isna(reached) else reached


def _times(steps: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Spread of every clock per run and phase, phases in the order in which they run, the whole step last."""
    gpu = timing.gpu_times(kernels)
    table = timing.host_times(steps, "timer", "timer")
    parts = [timing.host_times(steps, "nsys", "host")]
    parts += [timing.spread(gpu, ["run_id", "phase"], f"{clock}_ns", clock) for clock in ("projected", "busy")]
    parts.append(gpu.groupby(["run_id", "phase"], sort=False)["launches"].mean().reset_index())
    for part in parts:
        table = table.merge(part, how="outer", on=["run_id", "phase"])
    table["busy_ratio"] = table["busy_ns"] / table["timer_ns"]
    return sorted_by(table, table["run_id"], place(table["phase"], ORDER))


def _modules(totals: pd.DataFrame) -> pd.DataFrame:
    rows = totals.groupby(["phase", "module"], sort=False)[["time_ns", "calls"]].sum().reset_index()
    rows["share"] = rows["time_ns"] / rows["time_ns"].sum()
    rows["module"] = rows["module"].where(rows["module"] != "", "(outside modules)")
    return rows.sort_values(["time_ns", "module"], ascending=[False, True], ignore_index=True)


def _per_step(rows: pd.DataFrame, by: list[str], sums: dict[str, str], num_steps: pd.Series) -> pd.DataFrame:
    """Sums per run over its measured steps, divided by their number; largest time first within a phase."""
    inside = rows[rows["phase"].astype(str) != ""].astype({"run_id": str, **dict.fromkeys(by, str)})
    table = inside.groupby(["run_id", *by], sort=False)[list(sums)].sum().rename(columns=sums).reset_index()
    divisor = num_steps.reindex(table["run_id"]).to_numpy()
    for column in sums.values():
        table[column] = table[column] / divisor
    return sorted_by(table, table["run_id"], place(table["phase"], ORDER), -table["time_ns"])


def _memops(memops: pd.DataFrame, num_steps: pd.Series) -> pd.DataFrame:
    rows = memops.assign(calls=1, duration_ns=memops["end_ns"] - memops["start_ns"])
    return _per_step(
        rows, ["phase", "operation"], {"calls": "calls", "bytes": "bytes", "duration_ns": "time_ns"}, num_steps
    )


def _axes(run: pd.Series, runs: pd.DataFrame) -> list[dict]:
    """For each axis with more than one value: its values in order, each with the run that differs from this one in that
    axis alone."""
    axes = []
    varying = [name for name in AXES if name in runs and runs[name].nunique() > 1]
    for axis in varying:
        others = [name for name in varying if name != axis]
        same = runs
        for name in others:
            same = same[same[name].astype(str) == str(run[name])]
        if axis == "context_length":
            same = same.sort_values(axis)
        if len(same) > 1:
            stops = [{"label": str(row[axis]), "run_id": str(row["run_id"])} for _, row in same.iterrows()]
            here = [stop["run_id"] for stop in stops].index(str(run["run_id"]))
            axes.append(
                {
                    "name": axis.replace("context_length", "context").replace("size", "model"),
                    "stops": stops,
                    "here": here,
                    "before": stops[here - 1] if here else None,
                    "after": stops[here + 1] if here + 1 < len(stops) else None,
                }
            )
    return axes
