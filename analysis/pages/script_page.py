"""The first page of the report on somebody's own script: how long a step takes, whether the GPU is busy, and which
phase and module cost most."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.capture.math_paths import sum_math_paths
from profiler_job.analysis.insight import run_advice, run_limit
from profiler_job.analysis.insight.communication_lines import Causes
from profiler_job.analysis.insight.insight import interpret_run
from profiler_job.analysis.insight.module_times import describe_largest, list_modules
from profiler_job.analysis.insight.recorded_compiling import AGAIN, GIVEN_UP, describe_compiling
from profiler_job.analysis.insight.step_parts import sum_drawn_modules
from profiler_job.analysis.insight.wait_causes import name_causes
from profiler_job.analysis.insight.wait_lines import (
    describe_recorded_waits,
    find_causes,
    fit_to_compiled,
    list_loaders,
    list_workers,
    scale_waits,
    select_scalars,
)
from profiler_job.analysis.metrics import kernel_time, step_limits, timing
from profiler_job.analysis.metrics.exchange import list_late_kernels, sum_by_gpu
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.pages.case_columns import spread_column
from profiler_job.analysis.pages.module_costs import module_table
from profiler_job.analysis.pages.script_compiling import build_breaks_table
from profiler_job.analysis.pages.script_memory import (
    build_memory_charts,
    build_memory_tables,
    describe_compiled_activations,
)
from profiler_job.analysis.reference import gemm_names, kernel_families
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.analysis.show.wait_stacks import TITLE, tabulate_stacks
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.messages import NEXT_BATCH, OVER_STEP
from profiler_job.jobs.contract.step_limit import CPU, StepLimit, describe_limit, describe_parts

OUTSIDE_PHASES = "other"


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    figures: pd.DataFrame,
    waits: pd.DataFrame,
    sync_calls: pd.DataFrame,
    wait_stacks: pd.DataFrame,
    compile_notes: pd.DataFrame,
) -> Answer:
    """Of one run: its step by the clock of the GPU's events without a profiler, GPU time by phase and module, and what
    the GPU waited for. Times are per step, and kernel times sums over the ranks."""
    run = runs.iloc[0]
    frames = _frames(steps, kernels, memops)
    scalars = select_scalars(figures)
    waits = fit_to_compiled(waits, run_advice.is_compiled(run, scalars))
    limit = step_limits.find_limits(steps, kernels, memops).get(str(run["run_id"]))
    if limit is not None:
        limit = find_causes(limit, waits)
    communication, findings = sum_by_gpu(kernels, runs), run_limit.find(kernels, memops)
    causes = Causes(list_late_kernels(kernels, runs), waits, len(communication))
    loaders, lines_of_loaders = list_loaders(scalars), _list_loader_lines(sync_calls)
    facts = {
        "run": {key: None if pd.isna(value) else value for key, value in run.items()},
        "insight": interpret_run(frames.parts, communication, findings, [], limit, causes),
        "waits": describe_recorded_waits(waits, scalars, limit, lines_of_loaders),
        "worker_ns": loaders[0].get("worker_ns") if len(loaders) == 1 else None,
        "compiling": describe_compiling(compile_notes, scalars),
        "has_recompiled": bool(compile_notes["kind"].isin([AGAIN, GIVEN_UP]).any()),
        "compiled_activations": describe_compiled_activations(scalars),
        "tokens_per_s": _measure_tokens_per_s(frames, scalars),
        "has_timeline": any(name.startswith(OVER_STEP) for name in scalars),
        "has_modules": len(frames.tree) > 0,
        "drawn_modules": frames.drawn,
        "largest_module": describe_largest(list_modules(kernel_time.kernel_totals(kernels)), frames.drawn),
        "has_fused": bool(frames.tree["is_fused"].any()),
        "replayed": _replayed(kernels),
        "num_ranks": len(frames.ranks),
        "first_rank": int(frames.ranks["rank"].min()) if len(frames.ranks) else 0,
    }
    scaled = scale_waits(waits, scalars, limit)
    stacks = _scale_stacks(wait_stacks, waits, scaled)
    facts["stacks"] = stacks[stacks["wait_ns"] > 0]  # a step without a profiler may wait for nothing
    scaled = scaled[scaled["wait_ns"] > 0]
    waited = [*_wait_tables(scaled, sync_calls), _stack_table(facts["stacks"])]
    waited.append(_workers_table(loaders, lines_of_loaders))
    tables = [*_tables(frames), *waited, *build_memory_tables(scalars)]
    tables.append(build_breaks_table(compile_notes))
    claims = [*_claims(frames, scalars, limit), _claim_waits(scaled)]
    return assemble(facts, claims, tables, [*_charts(frames), *build_memory_charts(scalars)])


def _replayed(kernels: pd.DataFrame) -> float:
    """Part of the kernel time of the steps that CUDA graphs replay."""
    kernels = timing.select_steps(kernels)
    time_ns = kernels["end_ns"] - kernels["start_ns"]
    return float(time_ns[kernels["graph_node"] > 0].sum() / time_ns.sum()) if len(kernels) else 0.0


@dataclass(frozen=True, kw_only=True)
class ScriptData:
    step: pd.DataFrame
    """One row: the unprofiled step (timer_ns, its spread), GPU busy time of a captured one, and its share of that."""
    phases: pd.DataFrame
    """Kernel time and host time of each phase in a captured step."""
    parts: pd.DataFrame
    """What a captured step is made of, by GPU and phase."""
    tree: pd.DataFrame
    drawn: pd.DataFrame
    """The modules as the figure of the step names them, the largest first."""
    ranks: pd.DataFrame
    """One row of each rank: its unprofiled step, GPU busy, kernel time and time of communication in a captured one."""
    families: pd.DataFrame
    kernels: pd.DataFrame
    matmuls: pd.DataFrame
    """What the matmuls ran in, by kernel time, with the label of each math path."""


def _frames(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> ScriptData:
    totals = kernel_time.kernel_totals(kernels)
    in_step = totals.assign(scope=ranges.STEP)
    parts = run_limit.split_steps(kernels, memops)
    families = kernel_time.sum_by_family(totals.assign(phase=totals["phase"].replace("", OUTSIDE_PHASES)), ["phase"])
    return ScriptData(
        step=_step(steps, kernels, memops),
        phases=_phases(totals, steps),
        parts=parts,
        tree=kernel_time.sum_by_module(totals if (totals["module"] != "").any() else totals.head(0)),
        drawn=sum_drawn_modules(totals),
        ranks=_ranks(steps, kernels, memops),
        families=sort_stably(families, place(families["phase"], (*ranges.ALL_PHASES, OUTSIDE_PHASES))),
        kernels=kernel_time.sum_by_kernel(in_step, ["scope"]),
        matmuls=_matmuls(timing.select_steps(kernels)),
    )


def _matmuls(kernels: pd.DataFrame) -> pd.DataFrame:
    paths = sum_math_paths(kernels)
    return paths.assign(label=paths["path"].map(gemm_names.MATH_PATHS).fillna("not shown by the names"))


def _step(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    times = timing.host_times(steps, "timer", "timer")
    gpu = timing.spread(timing.gpu_times(kernels, memops), ["run_id", "phase"], "busy_ns", "busy")
    rows = times.merge(gpu, on=["run_id", "phase"])
    rows = rows[rows["phase"] == ranges.STEP]
    return rows.assign(busy_share=timing.busy_share(rows, kernels))


def _phases(totals: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Phases in the order of a step; `other` is what was launched outside them."""
    rows = totals.groupby("phase", sort=False)[["time_ns", "calls"]].sum()
    rows["share"] = rows["time_ns"] / rows["time_ns"].sum()
    host = timing.host_times(steps, "nsys", "host").set_index("phase")[["host_ns", "host_min_ns", "host_max_ns"]]
    rows = rows.join(host.drop(index=ranges.STEP, errors="ignore"), how="outer").reset_index(names="phase")
    rows = rows.fillna({"time_ns": 0.0, "calls": 0.0, "share": 0.0})
    rows["phase"] = rows["phase"].replace("", OUTSIDE_PHASES)
    return sort_stably(rows, place(rows["phase"], (*ranges.ALL_PHASES, OUTSIDE_PHASES)))


def _ranks(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """rank, timer_ns, busy_ns, kernel_ns, communication_ns: medians over the steps."""
    timed = steps[(steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == ranges.STEP)]
    gpu = timing.gpu_times(kernels, memops)
    gpu = gpu[gpu["phase"].astype(str) == ranges.STEP].groupby("rank")[["busy_ns", "kernel_ns"]].median()
    exchanged = timing.select_steps(kernels)
    exchanged = exchanged[exchanged["family"].astype(str) == kernel_families.COMMUNICATION]
    of_step = (exchanged["end_ns"] - exchanged["start_ns"]).groupby([exchanged["rank"], exchanged["step"]]).sum()
    rows = gpu.join(timed.groupby("rank")["wall_ns"].median().rename("timer_ns"))
    rows = rows.join(of_step.groupby("rank").median().rename("communication_ns")).fillna({"communication_ns": 0.0})
    return rows.reset_index()


def _make_facts(limit: StepLimit | None) -> dict[str, Any]:
    assert limit is not None
    return {"line": describe_limit(limit), "parts": describe_parts(limit), "cpu_share": limit.measure_share(CPU)}


def _claims(frames: ScriptData, scalars: dict[str, float], limit: StepLimit | None) -> list[Claim]:
    phases = frames.phases[frames.phases["time_ns"] > 0].sort_values("time_ns", ascending=False)
    return [
        Claim("step", frames.step, facts=lambda rows: rows.iloc[0].to_dict()),
        Claim("tokens", frames.step[[bool(scalars.get("tokens_per_step"))] * len(frames.step)], facts=_rate(scalars)),
        *_generation_claims(frames, scalars),
        Claim("matmuls", frames.matmuls, facts=lambda rows: {"paths": rows.to_dict("records")}),
        Claim("busy", frames.step, facts=lambda rows: rows.iloc[0].to_dict()),
        Claim("limit", frames.step.head(int(limit is not None)), facts=lambda _: _make_facts(limit)),
        Claim("phases", phases, facts=lambda rows: {"phases": rows[["phase", "share"]].to_dict("records")}),
        Claim("module", frames.drawn.head(1), facts=lambda rows: rows.iloc[0].to_dict()),
        Claim("kernel", frames.kernels.head(1), facts=lambda rows: rows.iloc[0].to_dict()),
    ]


def _claim_waits(waits: pd.DataFrame) -> Claim:
    """Claim on the line that the GPU waits for most."""
    return Claim(
        "waits", waits.sort_values("share", ascending=False).head(1), facts=lambda rows: rows.iloc[0].to_dict()
    )


def _generation_claims(frames: ScriptData, scalars: dict[str, float]) -> list[Claim]:
    """Claims on the prefill and the decode steps of a script that generates text."""

    def describe(kind: str) -> Callable[[pd.DataFrame], dict[str, Any]]:
        return lambda rows: {"ns": scalars[f"{kind}_ns"], "rate": scalars[f"{kind}_tokens_per_s"]}

    return [
        Claim(kind, frames.step[[f"{kind}_ns" in scalars] * len(frames.step)], facts=describe(kind))
        for kind in (ranges.PREFILL, ranges.DECODE)
    ]


def _measure_tokens_per_s(frames: ScriptData, scalars: dict[str, float]) -> float | None:
    """Tokens of a second of unprofiled steps; None if they are not known."""
    if not len(frames.step) or not scalars.get("tokens_per_step"):
        return None
    return scalars["tokens_per_step"] / (float(frames.step["timer_ns"].iloc[0]) / 1e9)


def _rate(scalars: dict[str, float]) -> Callable[[pd.DataFrame], dict[str, Any]]:
    """Facts of a claim: tokens of a second of unprofiled steps."""
    return lambda rows: {"tokens": scalars["tokens_per_step"] / (float(rows["timer_ns"].iloc[0]) / 1e9)}


def _tables(frames: ScriptData) -> list[Table]:
    return [
        Table(
            "phases",
            "Phases of a captured step",
            (
                Column("phase", "phase"),
                Column("time_ns", "kernel time", "ms"),
                Column("share", "of kernel time", "share", bar=True),
                Column("calls", "kernels", "count"),
                spread_column("host", "host, under nsys"),
            ),
            frames.phases.assign(not_measured="no range of its own"),
        ),
        module_table(frames.tree),
        *([_ranks_table(frames.ranks)] if len(frames.ranks) > 1 else []),
    ]


def _wait_tables(waits: pd.DataFrame, calls: pd.DataFrame) -> list[Table]:
    """The lines that the GPU waits for, and the calls that make the CPU wait."""
    return [
        Table(
            "waits",
            "Lines that the GPU waits for",
            (
                Column("where", "line", "code"),
                Column("function", "function", "code"),
                Column("wait_ns", "waits", "ms"),
                Column("share", "of the waiting", "share", bar=True),
                Column("ceiling_ns", "could save up to", "ms", absent="n/a"),
                Column("do", "what to do", "prose", absent="n/a"),
                Column("cause", "for", "prose"),
                Column("below", "in", "prose"),
                Column("phase", "phase", "prose", absent="n/a"),
                Column("module", "module", "code", absent="n/a"),
            ),
            waits.drop(columns="run_id")
            .assign(cause=name_causes(waits))
            .sort_values("share", ascending=False, kind="stable"),
        ),
        *_call_tables(calls),
    ]


def _call_tables(calls: pd.DataFrame) -> list[Table]:
    """The calls that make the CPU wait, the other copies, and allocations."""
    is_copy, is_cuda, is_batch = (
        calls["call"].astype(str).str.startswith(start) for start in ("memcpy ", "cuda", NEXT_BATCH)
    )
    parts = (
        ("sync_calls", "Calls that make the CPU wait, in a step", calls[~is_copy & ~is_cuda & ~is_batch]),
        ("copy_calls", "Other copies from and to the CPU's memory, in a step", calls[is_copy]),
        ("allocation_calls", "Allocations of GPU memory, in a step", calls[is_cuda]),
        ("batch_calls", "Batches of a DataLoader, in a step", calls[is_batch]),
    )
    return [
        Table(
            name,
            title,
            (
                *[Column("rank", "rank")] * (rows["rank"].nunique() > 1),
                Column("where", "line", "code", absent="not known"),
                Column("function", "function", "code", absent="n/a"),
                Column("call", "call"),
                Column("count", "calls", "number"),
                Column("time_ns", "CPU in them", "ms", absent="n/a"),
            ),
            rows.drop(columns="run_id").assign(time_ns=rows["time_ns"].where(rows["time_ns"] >= 0)),
        )
        for name, title, rows in parts
    ]


def _list_loader_lines(calls: pd.DataFrame) -> list[str]:
    """List the lines of the first rank that take batches of a DataLoader."""
    rows = calls[(calls["call"].astype(str) == NEXT_BATCH) & (calls["rank"] == calls["rank"].min())]
    return [str(where) for where in rows["where"]]


def _workers_table(loaders: list[dict[str, float]], lines: list[str]) -> Table:
    is_known = len(lines) == len(loaders) > 1
    rows = [
        {"where": lines[place] if is_known else "", "worker": worker, "batch_ns": ns}
        for place, loader in enumerate(loaders)
        for worker, ns in sorted(list_workers(loader).items())
    ]
    return Table(
        "workers",
        "Workers of a DataLoader",
        (
            *[Column("where", "line", "code")] * is_known,
            Column("worker", "worker"),
            Column("batch_ns", "a batch", "ms"),
        ),
        pd.DataFrame(rows, columns=["where", "worker", "batch_ns"]),
    )


def _scale_stacks(stacks: pd.DataFrame, waits: pd.DataFrame, scaled: pd.DataFrame) -> pd.DataFrame:
    """Scale stacks as the lines were, from `waits` to `scaled`."""
    factor = scaled["wait_ns"].sum() / waits["wait_ns"].sum() if len(waits) else 1.0
    return stacks.assign(stack=stacks["stack"].astype(str), wait_ns=stacks["wait_ns"] * factor)


def _stack_table(stacks: pd.DataFrame) -> Table:
    return Table(
        "stacks",
        TITLE,
        (
            Column("depth", "depth", "count"),
            Column("frame", "frame", "code"),
            Column("wait_ns", "waits", "ms"),
            Column("share", "of the sampled", "share"),
        ),
        tabulate_stacks(stacks),
    )


def _ranks_table(rows: pd.DataFrame) -> Table:
    return Table(
        "ranks",
        "A step of each rank",
        (
            Column("rank", "rank"),
            Column("timer_ns", "step", "ms"),
            Column("busy_ns", "GPU busy", "ms"),
            Column("kernel_ns", "kernel time", "ms"),
            Column("communication_ns", "of it communication", "ms"),
        ),
        rows,
    )


def _charts(frames: ScriptData) -> list[Chart]:
    order = frames.families.groupby("family")["time_ns"].sum().sort_values(ascending=False).index.tolist()
    return [
        Chart(
            "families",
            "stacked_shares",
            "Kernel time by family",
            frames.families,
            options={"by": ["phase"], "order": order},
        )
    ]
