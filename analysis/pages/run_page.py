"""One run: its timings by every clock, phases, kernel families, kernels, modules, memory and API calls."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.capture.fused_kernels import divide_fused
from profiler_job.analysis.insight import run_advice, run_limit, step_parts
from profiler_job.analysis.insight.broken_lines import list_recorded
from profiler_job.analysis.insight.communication_lines import NO_CAUSES
from profiler_job.analysis.insight.insight import interpret_run
from profiler_job.analysis.insight.results import Insight
from profiler_job.analysis.insight.wait_lines import find_causes, fit_to_compiled, select_scalars
from profiler_job.analysis.metrics import (
    differences,
    kernel_time,
    run_grid,
    step_clocks,
    step_limits,
    timing,
    utilisation,
)
from profiler_job.analysis.metrics import gpu_samples as machine
from profiler_job.analysis.metrics.exchange import list_late_kernels, sum_by_gpu
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.metrics.turns import find_turned_runs
from profiler_job.analysis.pages.case_columns import spread_column, step_columns
from profiler_job.analysis.pages.first_screen import describe_screen
from profiler_job.analysis.pages.measured_elsewhere import find_elsewhere
from profiler_job.analysis.pages.module_costs import module_table, module_tree
from profiler_job.analysis.pages.telemetry import Price
from profiler_job.analysis.pages.titles import attention_of, name_gpus
from profiler_job.analysis.prediction.measured import COLUMNS, name_same_step
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.analysis.reference.gpu_prices import GpuPrice, find_price
from profiler_job.analysis.render.answer import Answer, Column, Table, assemble
from profiler_job.analysis.render.tables import label_value
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import (
    find_default,
    find_label,
    find_value_name,
)
from profiler_job.jobs.contract.step_limit import StepLimit

TABLES = (
    *("runs", "steps", "kernels", "api", "memops", "memory", "processes", "telemetry", "waits", "figures"),
    "compile_notes",
)
"""The tables of a recording that `answers` takes."""
TOP_KERNELS = 12
AXES = (*run_grid.CASE_AXES, "mode", *run_grid.VARIANT_AXES)
ORDER = (*ranges.ALL_PHASES, ranges.STEP)


def answers(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    api: pd.DataFrame,
    memops: pd.DataFrame,
    memory: pd.DataFrame,
    processes: pd.DataFrame,
    telemetry: pd.DataFrame,
    checks: pd.DataFrame,
    measured: pd.DataFrame | None = None,
    waits: pd.DataFrame | None = None,
    figures: pd.DataFrame | None = None,
    compile_notes: pd.DataFrame | None = None,
    price: Price | None = None,
) -> Iterator[tuple[str, Answer]]:
    """(run_id, Answer) of every run in model order; one that did not finish has its status and message and no numbers.

    `checks` is the table of that name of the reconciliation; measured: as in `prediction.measured`. Times and calls are
    per step: medians over steps where a spread is given, means otherwise. waits,
    figures, compile_notes: the tables of these names. price: of the GPUs of a run, where given.
    """
    ordered = run_grid.sort_runs(runs)
    num_steps = kernel_time.num_profiled_steps(kernels)
    totals = kernel_time.kernel_totals(kernels)
    elapsed = run_limit.split_steps(kernels, memops)
    of_run = {
        name: _group_by_run(rows)
        for name, rows in {
            "elapsed": elapsed,
            "findings": run_limit.find(kernels, memops),
            "times": _times(steps, kernels, memops),
            "totals": totals,
            "api": _per_step(api, ["phase", "name"], {"calls": "calls", "total_ns": "time_ns"}, num_steps),
            "memops": _memops(memops, num_steps),
            "memory": memory,
            "communication": sum_by_gpu(kernels, runs),
            "late_kernels": list_late_kernels(kernels, runs),
            "checks": checks,
        }.items()
    }
    all_limits = step_limits.measure_limits(steps, kernels, memops)
    limits = step_limits.select_step_limits(all_limits)
    parts_of = _group_by_run(step_parts.measure_step_parts(all_limits, elapsed, kernels, memops))
    in_processes = timing.measure_processes(steps).set_index("run_id")
    timed = step_clocks.clocks(steps)
    turned = find_turned_runs(steps)
    measured = pd.DataFrame(columns=[*COLUMNS]) if measured is None else measured
    measured_of, by_step = _group_by_run(measured), dict(iter(measured.groupby("same_step")))
    beside = machine.summarise_runs(runs, steps, processes, telemetry, price.per_hour if price else None).set_index(
        "run_id"
    )
    waits_of = _group_by_run(pd.DataFrame(columns=["run_id"]) if waits is None else waits)
    scalars_of = _group_by_run(pd.DataFrame(columns=["run_id"]) if figures is None else figures)
    notes_of = _group_by_run(pd.DataFrame(columns=["run_id"]) if compile_notes is None else compile_notes)
    axes_of = _list_axes(ordered)
    for (_, run), tokens in zip(ordered.iterrows(), run_grid.tokens_of(ordered), strict=True):
        rows = {name: rows_of(run) for name, rows_of in of_run.items()}
        frames = _frames(**rows)
        used = {name: rows[name] for name in ("elapsed", "findings", "totals", "api")}
        run_id = str(run["run_id"])
        noted_scalars, notes = scalars_of(run), notes_of(run)
        scalars = select_scalars(noted_scalars) if len(noted_scalars) else {}
        lines, limit = fit_to_compiled(waits_of(run), run_advice.is_compiled(run, scalars)), limits.get(run_id)
        limit = find_causes(limit, lines) if limit is not None and len(lines) else limit
        noted = {"waits": lines, "scalars": scalars, "breaks": list_recorded(notes, scalars) if len(notes) else None}
        advised = run_advice.advise(run, **used, timed=timed.get(run_id, {}), limit=limit, **noted)
        gains = measured_of(run)
        elsewhere = find_elsewhere(run, by_step.get(name_same_step(run), measured.head(0)))
        first = run_advice.rank_changes(advised, gains[gains["gpu_name"] == run["gpu_name"]], elsewhere)
        facts = (
            _facts(run, axes_of[run_id], frames)
            | {"first": first, "price": price}
            | {"insight": _interpret(frames, first, limit, tokens)}
            | _state_of_machine(beside, str(run["run_id"]))
        )
        numbers = _collect_numbers(facts, tokens, in_processes, scalars) | {"is_by_turns": run_id in turned}
        facts["screen"] = describe_screen(facts["run"], parts_of(run), limit, first, numbers)
        answer = assemble(facts, [], _tables(frames), [])
        yield str(run["run_id"]), answer


def _collect_numbers(
    facts: Mapping[str, Any], tokens: float, in_processes: pd.DataFrame, scalars: Mapping[str, float]
) -> dict[str, Any]:
    """The key numbers of a run, as `describe_screen` takes them. tokens: of a step, NaN if not known; in_processes: of
    `timing.measure_processes`. scalars: of the run; those of a script have its FLOPs, if they are known."""
    run, of_machine = facts["run"], facts["machine"]
    is_timed = facts["step_ns"] is not None
    of_processes = in_processes.loc[run["run_id"]].to_dict() if is_timed else {}
    tokens_per_s = tokens / facts["step_ns"] * 1e9 if is_timed and not pd.isna(tokens) else None
    return {
        "step_ns": facts["step_ns"],
        "phases": facts["phases_ns"],
        "tokens_per_s": tokens_per_s,
        "mfu": facts["mfu"] or _measure_mfu_of_script(run, facts["step_ns"], scalars),
        "peak_bytes": run["peak_memory_bytes"] or None,
        **_find_cost(run, of_machine, tokens_per_s, facts["price"]),
        "num_steps": run["measured_steps"] if is_timed else 0,
        "num_slow": of_machine["num_slow"] or 0,
        **of_processes,
    }


def _measure_mfu_of_script(run: Mapping[str, Any], step_ns: float | None, scalars: Mapping[str, float]) -> float | None:
    num_flops = scalars.get("flops_per_step")
    if not step_ns or not num_flops:
        return None
    return utilisation.measure_mfu(num_flops, step_ns, str(run["gpu_name"]), str(run["precision"]))


def _find_cost(
    run: Mapping[str, Any], of_machine: Mapping[str, Any], tokens_per_s: float | None, price: Price | None
) -> dict[str, Any]:
    """What a million tokens cost: at the `price` that a user gave, or else at the list price of the GPU."""
    if price is not None:
        given = f"{price.per_hour:g} an hour, as given on {price.on}"
        return {"cost": of_machine.get("cost_per_million"), "currency": "", "price": given}
    listed = find_price(str(run["gpu_name"]))
    if listed is None or not tokens_per_s:
        return {"cost": None, "currency": "", "price": ""}
    num_gpus = int(run.get("gpus") or 1)
    cost = listed.compute_usd_per_million(tokens_per_s) * num_gpus
    return {"cost": cost, "currency": "$", "price": listed.describe()}


def describe_rate(run: Mapping[str, Any], tokens_per_s: float, price: Price | None) -> dict[str, Any]:
    """Return the tokens a second of each GPU of a run and what they cost, as key numbers. price: of all its GPUs."""
    given = {}
    if price is not None:
        of_one = GpuPrice(price.per_hour / int(run.get("gpus") or 1))
        given["cost_per_million"] = of_one.compute_usd_per_million(tokens_per_s)
    return {"tokens_per_s": tokens_per_s, **_find_cost({**run, "gpus": 1}, given, tokens_per_s, price)}


def _interpret(frames: "RunData", first: list[dict[str, Any]], limit: StepLimit | None, tokens: float) -> Insight:
    """tokens: of a step, NaN if not known."""
    causes = NO_CAUSES._replace(late_kernels=frames.late_kernels)
    return interpret_run(
        frames.elapsed, frames.communication, frames.findings, first, limit, causes, None if pd.isna(tokens) else tokens
    )


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One run: what a step's time is made of by GPU and phase (`elapsed`), what communication costs each GPU, what
    GPUs that others waited for run longer (`late_kernels`), what stands out (`findings`), `times` by phase and
    clock, kernel time by phase and family (`families`), by kernel and by module, and its memory by rank, API
    calls, copies and checks."""

    elapsed: pd.DataFrame
    communication: pd.DataFrame
    late_kernels: pd.DataFrame
    findings: pd.DataFrame
    times: pd.DataFrame
    families: pd.DataFrame
    kernels: pd.DataFrame
    modules: pd.DataFrame
    tree: pd.DataFrame
    memory: pd.DataFrame
    api: pd.DataFrame
    memops: pd.DataFrame
    checks: pd.DataFrame


def _frames(
    elapsed: pd.DataFrame,
    findings: pd.DataFrame,
    times: pd.DataFrame,
    totals: pd.DataFrame,
    api: pd.DataFrame,
    memops: pd.DataFrame,
    memory: pd.DataFrame,
    communication: pd.DataFrame,
    late_kernels: pd.DataFrame,
    checks: pd.DataFrame,
) -> RunData:
    in_step = totals.assign(scope=ranges.STEP)
    of_step = kernel_time.sum_by_family(in_step, ["scope"]).rename(columns={"scope": "phase"})
    families = pd.concat([kernel_time.sum_by_family(totals, ["phase"]), of_step], ignore_index=True)
    return RunData(
        elapsed=elapsed.drop(columns="run_id"),
        findings=findings.drop(columns="run_id"),
        times=times.drop(columns="run_id"),
        families=sort_stably(families, place(families["phase"], ORDER), -families["time_ns"]),
        kernels=kernel_time.sum_by_kernel(in_step, ["scope"]).drop(columns="scope"),
        modules=_modules(totals),
        tree=module_tree(totals).drop(columns="run_id"),
        communication=communication.drop(columns="run_id"),
        late_kernels=late_kernels.drop(columns="run_id"),
        memory=memory.drop(columns="run_id"),
        api=api.drop(columns="run_id"),
        memops=memops.drop(columns="run_id"),
        checks=checks,
    )


def _facts(run: pd.Series, axes: list[dict[str, Any]], frames: RunData) -> dict[str, Any]:
    return {
        "attention": attention_of(str(run["attention"])),
        "settings": [
            find_value_name(axis, run[axis])
            for axis in ("compile", "checkpointing")
            if axis in run and not pd.isna(run[axis]) and run[axis] != find_default(axis)
        ],
        "run": {key: None if pd.isna(value) else value for key, value in run.items()},
        "has_shape": run_grid.has_known_shape(run),
        "why": run_grid.explain_unmeasured(run),
        "axes": axes,
        "num_kernels": len(frames.kernels),
        "num_checks": len(frames.checks),
        "num_gpus": frames.elapsed["gpu"].nunique(),
        "gpus": name_gpus(run),
        "why_no_waiting": "".join(frames.communication["unknown"].unique()),
        "step_ns": _step_ns(frames.times),
        "phases_ns": _phases_ns(frames.times),
        "mfu": _mfu(run, frames.times),
        "log": str(run["log"]).splitlines() if pd.notna(run.get("log")) else [],
        "top": TOP_KERNELS,
    }


def _step_ns(times: pd.DataFrame) -> float | None:
    """Median of the unprofiled step in ns, None where no step was timed."""
    timed = times.loc[times["phase"] == ranges.STEP, "timer_ns"].dropna()
    return float(timed.iloc[0]) if len(timed) else None


def _state_of_machine(beside: pd.DataFrame, run_id: str) -> dict[str, Any]:
    """What was read of the machine of a run: each column of `gpu_samples.summarise_runs`, or None."""
    state: dict[str, Any] = dict.fromkeys(beside)
    if run_id in beside.index:
        state |= beside.loc[run_id].dropna().to_dict()
    return {"machine": state}


def _tables(frames: RunData) -> list[Table]:
    return [
        _elapsed_table(frames.elapsed),
        _communication_table(frames.communication),
        _findings_table(frames.findings),
        *_time_tables(frames),
        *_kernel_tables(frames),
        *_other_tables(frames),
    ]


def _elapsed_table(rows: pd.DataFrame) -> Table:
    """Parts that take no time anywhere have no column."""
    present = [name for name in run_limit.PARTS if rows[name].any()]
    labels = run_limit.BUSY | {name: f"idle, {label}" for name, label in run_limit.IDLE.items()}
    return Table(
        "elapsed",
        "What a step is made of on the GPU",
        (
            *[Column("gpu", "GPU", "number")] * (rows["gpu"].nunique() > 1),
            Column("phase", "phase"),
            Column("elapsed_ns", "elapsed", "ms"),
            *(Column(name, labels[name], "ms") for name in present),
        ),
        rows,
    )


def _communication_table(rows: pd.DataFrame) -> Table:
    return Table(
        "communication",
        "Communication kernels in a step of each rank",
        (
            Column("rank", "rank", "number"),
            Column("calls", "kernels", "count"),
            Column("kernel_ns", "time", "ms"),
            Column("waiting_ns", "waiting", "ms", absent="n/a"),
            Column("transfer_ns", "transfer", "ms", absent="n/a"),
            Column("hidden_ns", "hidden", "ms"),
            Column("exposed_ns", "exposed", "ms"),
            Column("critical_ns", "critical", "ms", absent="n/a"),
            Column("kept_waiting_ns", "kept waiting", "ms", absent="n/a"),
            Column("kept_computing_ns", "computing then", "ms", absent="n/a"),
            Column("kept_late_ns", "launched late then", "ms", absent="n/a"),
        ),
        rows,
    )


def _findings_table(rows: pd.DataFrame) -> Table:
    return Table(
        "findings",
        "What stands out",
        (Column("what", "finding"), Column("time_ns", "time a step", "ms"), Column("share", "share", "share")),
        rows.assign(time_ns=rows["time_ns"] / rows["num_steps"]),
    )


def _time_tables(frames: RunData) -> list[Table]:
    return [
        Table(
            "times",
            "Time by phase and clock: median, and minimum–maximum over steps",
            (
                Column("phase", "phase"),
                spread_column("timer", "Python timer"),
                spread_column("host", "NVTX range"),
                spread_column("projected", "GPU span"),
                spread_column("busy", "GPU busy"),
                Column("busy_ratio", "GPU busy ÷ timer", "share", bar=True),
                Column("launches", "kernels", "count"),
                Column("timer_n", "steps timed", "count"),
                Column("host_n", "steps profiled", "count"),
            ),
            frames.times,
        ),
        Table(
            "steps",
            "The timed steps by phase: median, mean and standard deviation",
            (Column("phase", "phase"), *step_columns(frames.times)),
            frames.times[frames.times["timer_ns"].notna()],
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
            frames.families,
        ),
    ]


def _kernel_tables(frames: RunData) -> list[Table]:
    return [
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
            frames.kernels.head(TOP_KERNELS),
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
            frames.modules,
        ),
        module_table(frames.tree),
    ]


def _other_tables(frames: RunData) -> list[Table]:
    return [
        Table(
            "memory",
            "Memory of PyTorch's allocator by phase",
            (
                *[Column("rank", "rank", "number")] * (frames.memory["rank"].nunique() > 1),
                Column("phase", "phase"),
                Column("allocated_before_bytes", "allocated before", "bytes"),
                Column("peak_allocated_bytes", "peak allocated", "bytes"),
                Column("allocated_after_bytes", "allocated after", "bytes"),
                Column("peak_reserved_bytes", "peak reserved", "bytes"),
            ),
            frames.memory,
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
            frames.api,
        ),
        Table(
            "memops",
            "Copies and fills per step",
            (
                Column("phase", "phase"),
                Column("operation", "operation"),
                Column("calls", "operations", "count"),
                Column("bytes", "size", "mib"),
                Column("time_ns", "GPU time", "ms"),
            ),
            frames.memops,
        ),
        Table(
            "checks",
            "Checks that do not hold",
            (
                Column("check", "check"),
                Column("found", "found", "number"),
                Column("at_least", "at least", "number"),
                Column("at_most", "at most", "number"),
                Column("passed", "result", "check"),
            ),
            frames.checks[frames.checks["passed"].eq(False)] if len(frames.checks) else frames.checks,
        ),
    ]


def _group_by_run(rows: pd.DataFrame) -> Callable[[pd.Series], pd.DataFrame]:
    """The part of `rows` that is of a run; none of a run that did not finish, whatever it left behind."""
    groups = dict(iter(rows.groupby(rows["run_id"].astype(str), sort=False)))
    empty = rows.head(0)
    return lambda run: groups.get(str(run["run_id"]), empty) if str(run["status"]) == "ok" else empty


def _phases_ns(times: pd.DataFrame) -> dict[str, float]:
    """Median of the unprofiled phases of a step, in the order in which they run; none where they were not timed."""
    timed = times[(times["phase"] != ranges.STEP) & times["timer_ns"].notna()]
    return dict(zip(timed["phase"].astype(str), timed["timer_ns"]))


def _mfu(run: pd.Series, times: pd.DataFrame) -> float | None:
    """MFU of the unprofiled step, over the data sheet's peak of its precision; None where it was not timed or the GPU
    is unknown."""
    step_ns = _step_ns(times)
    reached = float("nan") if step_ns is None else utilisation.mfu(run, step_ns)
    return None if pd.isna(reached) else reached


def _times(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Spread of every clock per run and phase, phases in the order in which they run, the whole step last."""
    gpu = timing.gpu_times(kernels, memops)
    table = timing.host_times(steps, "timer", "timer")
    parts = [timing.host_times(steps, "nsys", "host"), differences.timed_steps(steps)]
    parts += [timing.spread(gpu, ["run_id", "phase"], f"{clock}_ns", clock) for clock in ("projected", "busy")]
    parts.append(gpu.groupby(["run_id", "phase"], sort=False)["launches"].mean().reset_index())
    for part in parts:
        table = table.merge(part, how="outer", on=["run_id", "phase"])
    table["busy_ratio"] = timing.busy_share(table, kernels)
    return sort_stably(table, table["run_id"], place(table["phase"], ORDER))


def _modules(totals: pd.DataFrame) -> pd.DataFrame:
    totals = divide_fused(totals, ["time_ns"])
    rows = totals.groupby(["phase", "module"], sort=False)[["time_ns", "calls"]].sum().reset_index()
    rows["share"] = rows["time_ns"] / rows["time_ns"].sum()
    rows["module"] = rows["module"].where(rows["module"] != "", kernel_time.OUTSIDE)
    return rows.sort_values(["time_ns", "module"], ascending=[False, True], ignore_index=True)


def _per_step(rows: pd.DataFrame, by: list[str], sums: dict[str, str], num_steps: pd.Series) -> pd.DataFrame:
    """Sums per run over its measured steps, divided by their number; largest time first within a phase."""
    inside = rows[rows["phase"].astype(str) != ""].astype({"run_id": str, **dict.fromkeys(by, str)})
    table = inside.groupby(["run_id", *by], sort=False)[list(sums)].sum().rename(columns=sums).reset_index()
    divisor = num_steps.reindex(table["run_id"]).to_numpy()
    for column in sums.values():
        table[column] = table[column] / divisor
    return sort_stably(table, table["run_id"], place(table["phase"], ORDER), -table["time_ns"])


@measure_by_run
def _memops(memops: pd.DataFrame, num_steps: pd.Series) -> pd.DataFrame:
    rows = memops.assign(calls=1, duration_ns=memops["end_ns"] - memops["start_ns"])
    return _per_step(
        rows, ["phase", "operation"], {"calls": "calls", "bytes": "bytes", "duration_ns": "time_ns"}, num_steps
    )


def _list_axes(runs: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """By run_id, for each axis with more than one value: its values in order, each with the run that differs from this
    one in that axis alone."""
    varying = [name for name in AXES if name in runs and runs[name].nunique() > 1]
    rows = runs.to_dict("records")
    values = [[None if pd.isna(row[name]) else str(row[name]) for name in varying] for row in rows]
    axes_of: dict[str, list[dict[str, Any]]] = {str(row["run_id"]): [] for row in rows}
    for at, axis in enumerate(varying):
        alike: dict[tuple[str | None, ...], list[dict[str, Any]]] = {}
        for row, texts in zip(rows, values):
            alike.setdefault((*texts[:at], *texts[at + 1 :]), []).append(row)
        for others, same in alike.items():
            if None in others or len(same) < 2:
                continue
            if axis == "context_length":
                same.sort(key=lambda row: (pd.isna(row["context_length"]), row["context_length"]))
            stops = [{"label": _label(axis, row), "run_id": str(row["run_id"])} for row in same]
            for here, stop in enumerate(stops):
                axes_of[stop["run_id"]].append({"name": find_label(axis), "stops": stops, "here": here})
    return axes_of


def _label(axis: str, run: Mapping[str, Any]) -> str:
    """Name the value of a run next to the name of its axis. Counts have the commas of home's."""
    return f"{run[axis]:,}" if axis == "context_length" else str(label_value(axis, run))
