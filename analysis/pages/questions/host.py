"""(i) When does the GPU wait for the host, and what do torch.compile and CUDA graphs change?"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import depth, differences, kernel_time, per_rank, queue, run_grid, timing, waiting
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.ordering import place, rank_first_seen, sort_stably
from profiler_job.analysis.metrics.queue import CAUSES
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, format_percent_span, many, noise_of
from profiler_job.analysis.reference import cuda_api
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.studies import BF16, HOST
from profiler_job.jobs.contract.words import NOT_MEASURED

SLUG = "host"
TITLE = "When does the GPU wait for the host?"
STUDY = HOST

OFF, DEFAULT, GRAPHS = "off", "default", "cudagraphs"
SERIES = (OFF, DEFAULT, GRAPHS)
TRAIN = "train_step"
BASE = "the step without compile"
"""What bars are parts of, where there is one in each case."""


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    api: pd.DataFrame,
    main: Any,
    bands: Bands | None = None,
    studies: Mapping[str, Any] = MappingProxyType({}),
) -> Answer:
    """What the GPU does in a step by cause, how far the host is ahead of it, and step times by `compile`.

    A step under nsys is cut into time in which the GPU is busy (union of kernels, copies and fills) and idle time by
    cause (`metrics.queue` says how): it waits for a launch, it is idle between two phases, where the host
    synchronises, or it takes up work that was there already. The four add up to the NVTX range of the step. The
    unprofiled step is the timer's; its idle share is 1 - busy / timer. Times saved are to the run without compile of
    the same case; a variant is faster or slower only beyond the noise band of wall times (`bands`). What graphs
    add to compile is judged by forward and backward together, without the optimizer: only the model is compiled. `main`
    is asked for the same causes in every training step of the grid, and, as its twin in BF16 among the `studies`, for
    deeper models of fewer parameters that are slower than wider ones (`metrics.depth`).
    """
    frames = _frames(runs, steps, kernels, memops, api, main, bands, studies)
    charts = _charts(frames)
    facts = _facts(frames, runs, kernels, charts[1:], bands)
    return assemble(facts, _claims(frames, kernels, api), _tables(frames), charts)


@dataclass(frozen=True, kw_only=True)
class HostData:
    by: list[str]
    """Columns that name a case, without `compile`."""
    queued: pd.DataFrame
    """Operations of the GPU, each with the queue that it waits in."""
    table: pd.DataFrame
    """Every run: see `_summarise_runs`."""
    measured: pd.DataFrame
    """The runs with a time of the unprofiled step."""
    captured: pd.DataFrame
    """Those of them that have steps under nsys, too."""
    pairs: pd.DataFrame
    """Each variant beside the run of the same case without compile."""
    over_default: pd.DataFrame
    """CUDA graphs beside compile without them."""
    phases: pd.DataFrame
    """Phases of the training steps."""
    grid_by: list[str]
    grid: pd.DataFrame
    """The training steps of the main recording, and the columns that name a case there."""
    depth: pd.DataFrame
    """Models with more layers and fewer parameters beside others: `depth.pairs` of the main recording and its twin."""
    models: pd.DataFrame
    """The runs of these pairs: `depth.list_steps_by_depth`."""


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    api: pd.DataFrame,
    main: Any,
    bands: Bands | None,
    studies: Mapping[str, Any],
) -> HostData:
    band = bands.wall if bands else None
    models = [
        depth.list_steps_by_depth(rec, band) for rec in (main, studies.get(BF16)) if rec is not None and len(rec.runs)
    ]
    paired = [depth.pairs(rows, band) for rows in models]
    by = [name for name in run_grid.case_columns(runs) if name != "compile"]
    queued = queue.place_operations(queue.operations(kernels, memops))
    table = _every_mode(runs, by).merge(_summarise_runs(runs, steps, kernels, api, queued), how="left", on="run_id")
    measured = table[(table[NOT_MEASURED] == "") & table["timer_ns"].notna()]
    captured = measured[measured["wall_ns"].notna()]
    return HostData(
        by=by,
        queued=queued,
        table=table,
        measured=measured,
        captured=captured,
        pairs=_pairs(measured, [*by, "mode"], OFF, bands),
        over_default=_compare_with_default(measured, _list_compiled(steps, kernels, memops), [*by, "mode"], bands),
        phases=_phases(captured, steps, kernels, memops, by),
        grid_by=_case_columns(main),
        grid=_grid(main),
        depth=pd.concat(paired, ignore_index=True) if paired else pd.DataFrame(columns=["slower", "apart"]),
        models=_list_slower_cases(models, paired),
    )


def _facts(
    frames: HostData, runs: pd.DataFrame, kernels: pd.DataFrame, queues: list[Chart], bands: Bands | None
) -> dict:
    clock = timing.clock_lead(timing.select_steps(kernels))
    return {
        "noise": noise_of(bands),
        "queues": [chart.key for chart in queues],
        "known": bool((frames.captured["compile"] == OFF).any()),
        "batch_sizes": sorted(set(runs["batch_size"].astype(str))),
        "clock_lead_ns": max(0.0, clock["lead_ns"]),
        "clock_drift_ns": clock["drift_ns"],
    }


# ---------------------------------------------------------------- claims


def _claims(frames: HostData, kernels: pd.DataFrame, api: pd.DataFrame) -> list[Claim]:
    return [
        *_claims_of_compile(frames),
        *_claim_waiting(frames),
        *_claim_profiling(frames.captured, kernels, api),
        Claim("grid", frames.grid, lambda rows: (rows["waits_share"] > 0).any(), facts=extremes("waits_share")),
        *_claims_of_depth(frames.depth),
        Claim(
            "full", _full_queues(frames.grid), lambda rows: rows["operations"].nunique() > 2, facts=_full(frames.grid)
        ),
    ]


def _claims_of_compile(frames: HostData) -> list[Claim]:
    pairs, over_default = frames.pairs, frames.over_default
    return [
        Claim("helped", _select_helped(pairs), facts=lambda rows: rows.iloc[0].to_dict()),
        Claim("faster", pairs[_are_faster(pairs)], many(pairs), facts=_describe_speed(pairs)),
        Claim("work", _select_less_work(pairs), facts=extremes("speedup")),
        Claim("slower", pairs[pairs["differs"] & (pairs["ratio"] > 1)], many(pairs), facts=_describe_speed(pairs)),
        Claim("same", pairs[~pairs["differs"]], facts=_describe_speed(pairs)),
        Claim("saved", _select_saved(pairs), lambda rows: len(rows) > 1, facts=extremes("host_part")),
        Claim("graphs_add", over_default, _graphs_help, facts=_graphs_add),
        Claim("graphs_add_nothing", over_default, lambda rows: not _graphs_help(rows), facts=_num_faster),
        Claim("launches", _launches(frames.captured, frames.by), facts=_find_fewer_calls),
        Claim(
            "left",
            _left(frames.phases, _select_helped(pairs)),
            lambda rows: rows["part"].min() > 0.5,
            facts=extremes("part"),
        ),
    ]


def _claim_waiting(frames: HostData) -> list[Claim]:
    captured = frames.captured
    off = captured[captured["compile"] == OFF]
    return [
        Claim("idle", off, facts=extremes("idle_share")),
        Claim("idle_only", off, lambda rows: not len(_select_helped(frames.pairs)), facts=extremes("idle_share")),
        Claim("cause", off, lambda rows: rows["launch_share"].max() > 0, facts=extremes("launch_share")),
        Claim("ahead", captured, lambda rows: rows["ahead_ns"].max() > 0, facts=extremes("ahead_ns")),
    ]


def _claims_of_depth(pairs: pd.DataFrame) -> list[Claim]:
    slower = pairs[pairs["apart"].astype(bool)]
    precisions = pairs.groupby("precision", sort=False) if len(pairs) else []
    tried = pairs[pairs["precision"].isin(slower["precision"])] if len(slower) else slower
    never = [of_one for _, of_one in precisions if not of_one["slower"].any()]
    return [
        Claim("deeper_slower", slower, many(tried), facts=lambda rows: _find_deeper_slower(rows, tried)),
        Claim(
            "deeper_never",
            pd.concat(never) if len(slower) and never else pairs.head(0),
            facts=lambda rows: {"precisions": [name.upper() for name in rows["precision"].unique()]},
        ),
    ]


def _claim_profiling(captured: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame) -> list[Claim]:
    allocations = _allocations(api, captured)
    return [
        Claim("no_allocation", allocations, lambda rows: not rows["calls"].sum(), facts=_describe_allocations),
        Claim("allocation", allocations, lambda rows: rows["calls"].sum() > 0, facts=_describe_allocations),
        Claim("profiler", captured, lambda rows: rows["profiler_ratio"].max() > 1, facts=extremes("profiler_ratio")),
        Claim("no_modules", _modules(kernels, captured), _describe_losses, facts=lambda rows: {}),
    ]


# ---------------------------------------------------------------- tables


def _tables(frames: HostData) -> list[Table]:
    case = (Column("mode", "mode"), *case_headings(frames.by, linked=False), Column("compile", "compile"))
    return [
        *_tables_of_steps(frames, case),
        *_tabulate_nsys(frames, case),
        Table(
            "phases",
            "Training step by phase, without the profiler",
            (
                *case[1:],
                Column("phase", "phase"),
                Column("timer_ns", "time", "ms"),
                Column("busy_ns", "GPU busy", "ms"),
                Column("idle_ns", "GPU idle", "ms"),
                Column("launches", "kernels", "count"),
            ),
            frames.phases,
        ),
        Table(
            "grid",
            "Every training step of the main recording, under nsys",
            (*case_headings(frames.grid_by, linked=False), *_SHARES, *_AHEAD[:3]),
            frames.grid,
        ),
        *_tables_of_depth(frames.models),
    ]


def _tables_of_depth(models: pd.DataFrame) -> list[Table]:
    if not len(models):
        return [Table("depth", "", (), models)]
    return [
        Table(
            "depth",
            "Cases in which a deeper model of fewer parameters is slower",
            (
                *(Column(name, name) for name in ("precision", "mode")),
                Column("context_length", "context", "count"),
                Column("size", "model"),
                Column("num_layers", "layers", "count"),
                Column("d_model", "width", "count"),
                Column("launches", "kernels", "count"),
                Column("busy_ns", "GPU busy", "ms"),
                spread_column("timer", "step"),
                Column("launch_wait", "waits", "share"),
            ),
            models,
        )
    ]


_SHARES = tuple(Column(f"{cause}_share", label, "share", bar=True) for cause, label in CAUSES.items())
_AHEAD = (
    Column("depth", "queue, mean", "count"),
    Column("deepest", "queue, deepest", "count"),
    Column("ahead_ns", "furthest ahead", "ms"),
    Column("wait_ns", "host waits", "ms"),
)


def _tables_of_steps(frames: HostData, case: tuple[Column, ...]) -> list[Table]:
    return [
        Table(
            "steps",
            "A step without the profiler, and what it launches",
            (
                *case,
                spread_column("timer", "step"),
                Column("busy_ns", "GPU busy", "ms"),
                Column("idle_share", "GPU idle", "share", bar=True),
                Column("operations", "kernels and copies", "count"),
                Column("calls", "launch calls", "count"),
                Column("rate_ns", "step ÷ launch calls", "us"),
            ),
            frames.table,
        ),
        Table(
            "saved",
            "Time saved by compile, by where it comes from",
            (
                *case,
                Column("saved_ns", "saved", "ms"),
                Column("saved_busy_ns", "shorter GPU work", "ms"),
                Column("saved_idle_ns", "less idling", "ms"),
                band_column("band_ns"),
                Column("differs", "apart", "yes_no"),
            ),
            frames.pairs,
        ),
    ]


def _tabulate_nsys(frames: HostData, case: tuple[Column, ...]) -> list[Table]:
    return [
        Table(
            "causes",
            "What the GPU does in a step under nsys",
            (*case, Column("wall_ns", "step", "ms"), *_SHARES),
            frames.table,
        ),
        Table(
            "ahead",
            "How far the host is ahead, under nsys",
            (
                *case,
                Column("host_ns", "host time per launch call", "us"),
                Column("call_ns", "of it inside the call", "us"),
                *_AHEAD,
            ),
            frames.table,
        ),
    ]


# ---------------------------------------------------------------- charts


def _charts(frames: HostData) -> list[Chart]:
    return [_step_times(frames), *_queues(frames)]


def _step_times(frames: HostData) -> Chart:
    by, measured = frames.by, frames.measured
    parts = {"busy_ns": "GPU busy", "idle_ns": "GPU idle"}
    steps = measured[measured["mode"] == TRAIN].dropna(subset=["busy_ns", "timer_ns"])
    steps = steps.assign(idle_ns=(steps["timer_ns"] - steps["busy_ns"]).clip(lower=0))
    rows = steps.melt([*by, "compile", "run_id"], list(parts), var_name="scope", value_name="time_ns")
    rows["scope"] = rows["scope"].map(parts)
    idle = steps["idle_ns"] / steps["timer_ns"]
    title = (
        f"The GPU idles for {format_percent_span(idle)} of an unprofiled training step"
        if len(steps)
        else "A training step"
    )
    options = {"order": list(parts.values()), "by": [*by, "compile"]}
    bases = steps[steps["compile"] == OFF].set_index(by)["timer_ns"]
    cases = pd.MultiIndex.from_frame(rows[by])
    if len(rows) and cases.isin(bases.index).all():  # steps of small and large models are on one scale then
        rows["of_base"] = rows["time_ns"] / bases.reindex(cases).to_numpy()
        return Chart("times", "stacked_parts", title, rows, options=options | {"value": "of_base", "part_of": BASE})
    return Chart("times", "stacked_parts", title, rows, options=options | {"value": "time_ns"})


def _queues(frames: HostData) -> list[Chart]:
    """Of the cases in which the GPU waits longest and shortest for launches one chart each: operations that wait in the
    queue over one training step, by `compile`."""
    charts: list[Chart] = []
    train, queued = frames.captured[frames.captured["mode"] == TRAIN], frames.queued
    waits = train.groupby(frames.by, sort=False)["launch_share"].max().dropna()
    extreme = {waits.idxmax(), waits.idxmin()} if len(waits) else set()
    for case, runs in train.groupby(frames.by, sort=False):
        if case not in extreme:
            continue
        parts = [
            queue.slice_queue(queued[queued["run_id"] == run_id]).assign(series=name)
            for run_id, name in zip(runs["run_id"], runs["compile"], strict=True)
        ]
        rows = pd.concat(parts, ignore_index=True)
        deepest = rows.groupby("series")["y"].max()
        most = " to ".join(dict.fromkeys(f"{depth:,.0f}" for depth in (deepest.min(), deepest.max())))
        title = f"At most {most} operations wait in the queue of a training step: {' · '.join(map(str, case))}"
        options = {"order": list(SERIES), "x_title": "ms since the first launch", "y_title": "operations in the queue"}
        charts.append(Chart(f"queue-{len(charts)}", "traces", title, rows, options=options))
    return charts


# ---------------------------------------------------------------- frames


def _every_mode(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The cases (`by`) of every mode that there are runs of, each with every value of compile: forward first, by size
    and context, then by compile."""
    measured = [mode for mode in modes.MODES if (runs["mode"].astype(str) == mode).any()]
    cases = pd.concat([run_grid.cases(runs, mode).assign(mode=mode) for mode in measured], ignore_index=True)
    cases = cases if "compile" in cases else cases.assign(compile=str(runs["compile"].iloc[0]))
    cases = cases[cases.assign(is_run=cases["run_id"] != "").groupby([*by, "mode"])["is_run"].transform("any")]
    return sort_stably(
        cases, rank_first_seen(cases, ["mode", "size", "context_length"]), place(cases["compile"], SERIES)
    )


def _summarise_runs(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame, queued: pd.DataFrame
) -> pd.DataFrame:
    """One row per run: timer_ns with its spread, `causes`, calls and host time per step of a rank."""
    timer = timing.host_times(steps, "timer", "timer")
    table = timer[timer["phase"] == ranges.STEP].drop(columns="phase")
    table = table.merge(queue.causes(queued, steps), how="left", on="run_id")
    num_steps = kernel_time.num_steps_of_ranks(kernels)
    calls = _group_calls(api)
    for group, number, time in (("launch", "calls", "calling_ns"), ("synchronisation", "waits", "wait_ns")):
        sums = calls[calls["group"] == group].groupby("run_id")[["calls", "total_ns"]].sum()
        sums = sums.rename(columns={"calls": number, "total_ns": time}).div(num_steps, axis=0)
        table = table.merge(sums, how="left", left_on="run_id", right_index=True)
    table["busy_ns"] = table["busy_captured_ns"]
    table["idle_ns"] = table["timer_ns"] - table["busy_ns"]
    # How long the GPU waits is not known of a run that was only timed: then it may be all of the step.
    table["timer_parts"] = table["idle_ns"].clip(lower=0).fillna(table["timer_ns"])
    table["idle_share"] = table["idle_ns"] / table["timer_ns"]
    table["rate_ns"] = table["timer_ns"] / table["calls"]
    table["host_ns"] = (table["wall_ns"] - table["wait_ns"]) / table["calls"]
    table["call_ns"] = table["calling_ns"] / table["calls"]
    table["profiler_ratio"] = table["wall_ns"] / table["timer_ns"]
    return table


def _group_calls(api: pd.DataFrame) -> pd.DataFrame:
    calls = api[api["phase"].astype(str) != ""].astype({"run_id": str, "name": str})
    groups = {name: cuda_api.group(name) or "" for name in calls["name"].unique()}
    return calls.assign(group=calls["name"].map(groups))


def _pairs(measured: pd.DataFrame, by: list[str], base: str, bands: Bands | None) -> pd.DataFrame:
    """Each variant beside the run of the same case with compile `base`: saved_ns and its two parts, ratio, differs,
    base_launch_part (of the base's idle time under nsys, how much waits for a launch), base_launch_wait (part of the
    base's unprofiled step, see `metrics.waiting`) and base_waits (whether that is more than noise)."""
    clock = ["timer_ns", "timer_min_ns", "timer_max_ns", "timer_parts"]
    columns = [*by, *clock, "busy_ns", "idle_ns", "idle_share", *(f"{cause}_share" for cause in CAUSES)]
    other = measured[measured["compile"] == base][columns]
    other = other.rename(columns={name: f"base_{name}" for name in columns if name not in by})
    rows = measured[(measured["compile"] != base) & (measured["compile"] != OFF)].merge(other, on=by)
    rows["ratio"] = rows["timer_ns"] / rows["base_timer_ns"]
    rows["speedup"] = 1 / rows["ratio"]
    rows["band_ns"] = differences.half_band_ns(rows, "timer", "base_timer", bands.wall if bands else None)
    rows["differs"] = differences.differ(rows, "timer", "base_timer", bands.wall if bands else None)
    rows["base_launch_part"] = rows["base_launch_share"] / (1 - rows["base_busy_share"])
    rows["base_launch_wait"] = rows["base_idle_share"].clip(lower=0) * rows["base_launch_part"]
    rows["base_launch_wait_ns"] = rows["base_launch_wait"] * rows["base_timer_ns"]
    rows["base_waits"] = waiting.is_beyond_noise(rows, bands.wall if bands else None, "base_")
    for part in ("timer", "busy", "idle"):
        saved = "saved_ns" if part == "timer" else f"saved_{part}_ns"
        rows[saved] = rows[f"base_{part}_ns"] - rows[f"{part}_ns"]
    return rows


def _list_compiled(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Spread over unprofiled steps of forward and backward together, per run: run_id, timer_ns, _min_ns, _max_ns, and
    timer_parts, how long the GPU waits in them."""
    rows = steps[steps["collector"].astype(str) == "timer"].astype({"run_id": str, "phase": str})
    rows = rows[rows["phase"].isin((ranges.FORWARD, ranges.BACKWARD))]
    rows = rows.groupby(["run_id", "rank", "process", "step"], sort=False)["wall_ns"].sum().reset_index()
    rows = per_rank.take_largest_rank(rows, ["wall_ns"])
    table = timing.spread(rows, ["run_id"], "wall_ns", "timer").drop(columns="timer_n")
    gpu = timing.gpu_times(kernels, memops)
    gpu = gpu[gpu["phase"].isin((ranges.FORWARD, ranges.BACKWARD))].groupby(["run_id", "phase"])["busy_ns"].median()
    busy = gpu.groupby("run_id").sum() / timing.num_devices(kernels)
    waits = table["timer_ns"] - busy.reindex(table["run_id"]).to_numpy()
    return table.assign(timer_parts=waits.clip(lower=0).fillna(table["timer_ns"]))


def _compare_with_default(
    measured: pd.DataFrame, compiled: pd.DataFrame, by: list[str], bands: Bands | None
) -> pd.DataFrame:
    """CUDA graphs beside compile without them, by the time of what is compiled."""
    clock = [name for name in compiled if name != "run_id"]
    rows = measured.drop(columns=clock).merge(compiled, on="run_id")[["run_id", *by, "compile", *clock]]
    off = rows[rows["compile"] == DEFAULT].drop(columns=["run_id", "compile"])
    rows = rows[rows["compile"] == GRAPHS].merge(off.rename(columns={name: f"base_{name}" for name in clock}), on=by)
    rows["ratio"] = rows["timer_ns"] / rows["base_timer_ns"]
    differs = differences.differ(rows, "timer", "base_timer", bands.wall if bands else None)
    return rows.assign(speedup=1 / rows["ratio"], differs=differs)


def _select_helped(pairs: pd.DataFrame) -> pd.DataFrame:
    """Training steps that wait for launches and that CUDA graphs make faster: first the one that waits for longest."""
    late = pairs["base_waits"] & pairs["differs"] & (pairs["ratio"] < 1)
    rows = pairs[(pairs["compile"] == GRAPHS) & (pairs["mode"] == TRAIN) & late]
    return rows.sort_values("base_launch_wait", ascending=False, kind="stable")


def _select_less_work(pairs: pd.DataFrame) -> pd.DataFrame:
    """Steps that compiling makes faster, most of it by less work for the GPU."""
    return pairs[_are_faster(pairs) & (pairs["saved_busy_ns"] > pairs["saved_ns"] / 2)]


def _select_saved(pairs: pd.DataFrame) -> pd.DataFrame:
    """CUDA graphs where they save time: host_part, how much of it is idling; less than 0 where the GPU idles longer."""
    rows = pairs[(pairs["compile"] == GRAPHS) & pairs["differs"] & (pairs["ratio"] < 1)].dropna(subset="saved_idle_ns")
    return rows.assign(host_part=rows["saved_idle_ns"] / rows["saved_ns"])


def _launches(captured: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Training steps, one row a case: kernels and copies, and launch calls, of off and cudagraphs side by side."""
    rows = captured[captured["mode"] == TRAIN]
    columns = [*by, "operations", "calls"]
    off, graphs = (rows[rows["compile"] == name][columns] for name in (OFF, GRAPHS))
    return off.merge(graphs, on=by, suffixes=("", "_graphs"))


def _phases(
    captured: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, by: list[str]
) -> pd.DataFrame:
    """Phases of the training steps: timer_ns, busy_ns, idle_ns (of all devices of a rank), launches (kernels
    per step)."""
    rows = captured[captured["mode"] == TRAIN][["run_id", *by, "compile"]]
    timer = timing.host_times(steps, "timer", "timer")
    gpu = timing.gpu_times(kernels, memops).groupby(["run_id", "phase"])[["busy_ns", "launches"]].median().reset_index()
    rows = rows.merge(timer[timer["phase"] != ranges.STEP], on="run_id").merge(gpu, how="left", on=["run_id", "phase"])
    rows = sort_stably(rows, rank_first_seen(rows, ["run_id"]), place(rows["phase"], ranges.PHASES))
    num_devices = timing.num_devices(kernels).reindex(rows["run_id"]).to_numpy()
    return rows.assign(idle_ns=rows["timer_ns"] * num_devices - rows["busy_ns"])


def _left(phases: pd.DataFrame, helped: pd.DataFrame) -> pd.DataFrame:
    """The optimizer's part of what the GPU idles in the training steps that CUDA graphs helped."""
    rows = phases[phases["run_id"].isin(helped["run_id"])]
    sums = rows.groupby("run_id")[["idle_ns", "timer_ns"]].transform("sum")
    rows = rows.assign(part=rows["idle_ns"] / sums["idle_ns"])
    return rows[rows["phase"] == ranges.OPTIMIZER]


def _allocations(api: pd.DataFrame, captured: pd.DataFrame) -> pd.DataFrame:
    """Per run, the calls that take memory from the driver or give it back, and their time, in all profiled steps."""
    calls = _group_calls(api)
    sums = calls[calls["group"] == "allocation"].groupby("run_id")[["calls", "total_ns"]].sum()
    rows = captured[["run_id", "mode", "compile"]].merge(sums, how="left", left_on="run_id", right_index=True)
    return rows.fillna({"calls": 0, "total_ns": 0})


def _describe_allocations(rows: pd.DataFrame) -> dict:
    return {"calls": int(rows["calls"].sum()), "total_ns": rows["total_ns"].max()}


def _modules(kernels: pd.DataFrame, captured: pd.DataFrame) -> pd.DataFrame:
    """Parts of the forward pass's kernels with a module, and of all kernels with a phase, by `compile`."""
    rows = (
        timing.select_steps(kernels)[["run_id", "phase", "module"]].astype(str).merge(captured[["run_id", "compile"]])
    )
    rows = rows.assign(in_phase=rows["phase"] != "", in_module=(rows["module"] != "").where(rows["phase"] == "forward"))
    rows = rows.groupby("compile", sort=False)[["in_phase", "in_module"]].agg(lambda part: part.astype(float).mean())
    return rows.reset_index()


def _describe_losses(rows: pd.DataFrame) -> bool:
    off = rows["compile"] == OFF
    return bool(off.any() and (~off).any() and (rows["in_phase"] == 1).all()
                and (rows.loc[off, "in_module"] > 0).all() and (rows.loc[~off, "in_module"] == 0).all())  # fmt: skip


def _case_columns(main: Any) -> list[str]:
    return run_grid.case_columns(main.runs) if len(main.runs) else ["size", "context_length"]


def _grid(main: Any) -> pd.DataFrame:
    """Every training step of the main recording with `causes`; waits_share: a launch or the next phase is awaited."""
    by = _case_columns(main)
    table = run_grid.cases(main.runs, TRAIN) if len(main.runs) else pd.DataFrame(columns=[*by, "run_id", NOT_MEASURED])
    train = set(table["run_id"])
    parts = (frame[frame["run_id"].astype(str).isin(train)] for frame in (main.kernels, main.memops))
    causes = queue.causes(queue.place_operations(queue.operations(*parts)), main.steps)
    table = table.merge(causes.astype({"run_id": str}), how="left", on="run_id")
    return table.assign(waits_share=table["launch_share"] + table["boundary_share"])


def _list_slower_cases(models: list[pd.DataFrame], paired: list[pd.DataFrame]) -> pd.DataFrame:
    """Runs of the pairs of all cases in which a deeper model is slower, from the longest model to the widest."""
    parts = []
    for rows, pairs in zip(models, paired, strict=True):
        case = [name for name in depth.CASE if name in rows]
        slower = pairs.loc[pairs["slower"], case].drop_duplicates()
        of_pairs = set(pairs["deep_run_id"]) | set(pairs["wide_run_id"])
        parts.append(rows[rows["run_id"].isin(of_pairs)].merge(slower, on=case))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if not len(table):
        return table
    return sort_stably(table, table["context_length"], place(table["mode"], list(modes.MODES)), -table["num_layers"])


# ---------------------------------------------------------------- facts of claims


def _describe_speed(every: pd.DataFrame):
    return lambda rows: {**extremes("speedup")(rows), **count_all(every)(rows)}


def _are_faster(rows: pd.DataFrame) -> pd.Series:
    return rows["differs"] & (rows["ratio"] < 1)


def _graphs_help(rows: pd.DataFrame) -> bool:
    return many(rows)(rows[_are_faster(rows)])


def _graphs_add(rows: pd.DataFrame) -> dict:
    return {**_num_faster(rows), **extremes("speedup")(rows[_are_faster(rows)])}


def _find_fewer_calls(rows: pd.DataFrame) -> dict:
    """The step that CUDA graphs save the largest part of its launch calls."""
    return rows.loc[(rows["calls_graphs"] / rows["calls"]).idxmin()].to_dict()


def _num_faster(rows: pd.DataFrame) -> dict:
    return {"num_found": int(_are_faster(rows).sum())}


def _find_deeper_slower(rows: pd.DataFrame, tried: pd.DataFrame) -> dict:
    """`most`: the pair whose deeper model is slower by the largest ratio."""
    rows = rows.assign(ratio=rows["deep_timer_ns"] / rows["wide_timer_ns"])
    return {
        "most": rows.loc[rows["ratio"].idxmax()].to_dict(),
        "num_slower": int(tried["slower"].sum()),
        "num_beyond": int(tried["differs"].sum()),
        "num_all": len(tried),
        "longest": int(tried.loc[tried["slower"], "context_length"].max()),
    }


def _full_queues(grid: pd.DataFrame) -> pd.DataFrame:
    """Steps whose queue was as deep as any: where steps of different length share that number, it is the limit."""
    return grid[grid["deepest"] == grid["deepest"].max()]


def _full(grid: pd.DataFrame):
    return lambda rows: {
        "deepest": rows["deepest"].iloc[0],
        "num_all": int(grid["deepest"].notna().sum()),
    }
