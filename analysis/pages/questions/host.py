"""(i) When does the GPU wait for the CPU, and what do torch.compile and CUDA graphs change?"""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences, queue, run_grid, timing
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.queue import CAUSES
from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.metrics.turns import have_turns
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.cuda_calls import calls_of_steps
from profiler_job.analysis.pages.extreme_rows import (
    count_all,
    extremes,
    format_percent_span,
    give_largest,
    many,
    noise_of,
)
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.pages.questions.host_data import (
    BASE,
    DEFAULT,
    GRAPHS,
    OFF,
    SERIES,
    TRAIN,
    HostData,
    compare_graphs,
    gather_data,
    measure_steps,
)
from profiler_job.analysis.recording.run_table import keep_runs, measure_by_run, read_whole
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.studies import HOST, TRAINED

STUDY = HOST


def answer(given: Inputs) -> Answer:
    """What the GPU does in a step by cause, how far the host is ahead of it, and step times by `compile`.

    A step under nsys is cut into time in which the GPU is busy (union of kernels, copies and fills) and idle time by
    cause (`metrics.queue` says how): it waits for a launch, it is idle between two phases, where the host
    synchronises, or it takes up work that was there already. The four add up to the NVTX range of the step. The
    unprofiled step is the timer's; its idle share is 1 - busy / timer. Times saved are to the run without compile of
    the same case; a variant is faster or slower only measurably, by the noise band of wall times (`bands`). What graphs
    add to compile is judged by forward and backward together, without the optimizer: only the model is compiled. `main`
    is asked for the same causes in every training step of the grid. The steps of the study TRAINED, of the batches of
    the others, are drawn alone.
    """
    tables = (given.runs, given.steps, given.processes, given.kernels, given.memops, given.api)
    frames = gather_data(*tables, given.main, given.bands)
    queues = _queues(frames)
    charts = [
        _step_times(frames.by, frames.measured, _name_state(given.runs)),
        *_chart_trained(given.studies, given.runs),
        *queues,
    ]
    facts = _facts(frames, given.runs, given.kernels, queues, given.bands)
    facts["took_turns"] = have_turns(given.steps)
    claims = _claims(frames, given.kernels, given.api)
    facts["advise_graphs"] = any(claim.key == "graphs_add" and claim.holds for claim in claims)
    claims += [_claim_main(frames.measured, given.runs, given.main), _claim_graphs(given.studies)]
    return assemble(facts, claims, _tables(frames), charts)


QUESTION = Question(
    letter="i",
    slug="host",
    title="When does the GPU wait for the CPU?",
    needs=("runs", "steps", "processes", "kernels", "memops", "api", "main", "studies", "bands"),
    answer=answer,
    section=Section.LIMIT,
    place=2,
    study=STUDY,
    reads=(TRAINED,),
    searched=("CUDA graphs", "torch.compile", "launch overhead", "host-bound"),
)


def _facts(
    frames: HostData, runs: pd.DataFrame, kernels: pd.DataFrame, queues: list[Chart], bands: Bands | None
) -> dict[str, Any]:
    clock = timing.clock_lead(timing.select_steps(kernels))
    return {
        "noise": noise_of(bands),
        "queues": [chart.key for chart in queues],
        "known": bool((frames.captured["compile"] == OFF).any()),
        "precisions": sorted(runs["precision"].astype(str).str.upper().unique()),
        "batch_sizes": sorted(set(runs["batch_size"].astype(str))),
        "clock_lead_ns": max(0.0, clock["lead_ns"]),
        "clock_drift_ns": clock["drift_ns"],
    }


def _claims(frames: HostData, kernels: pd.DataFrame, api: pd.DataFrame) -> list[Claim]:
    return [
        *_claims_of_compile(frames),
        *_claim_waiting(frames),
        *_claim_profiling(frames.captured, kernels, api),
        Claim("grid", frames.grid, lambda rows: (rows["waits_share"] > 0).any(), facts=extremes("waits_share")),
        Claim(
            "full", _full_queues(frames.grid), lambda rows: rows["operations"].nunique() > 2, facts=_full(frames.grid)
        ),
    ]


def _claims_of_compile(frames: HostData) -> list[Claim]:
    pairs, over_default = frames.pairs, frames.over_default
    return [
        Claim(
            "helped",
            _select_helped(pairs),
            facts=lambda rows: _describe_helped(rows, _find_compiled(rows, pairs, frames.by), frames.main_shares),
        ),
        Claim("helped_times", _select_quotable(_select_helped(pairs)), facts=lambda rows: rows.iloc[0].to_dict()),
        Claim("faster", pairs[_are_faster(pairs)], many(pairs), facts=count_all(pairs)),
        Claim("quoted", _select_quotable(pairs[_are_faster(pairs)]), facts=extremes("speedup")),
        Claim("work", _select_quotable(_select_less_work(pairs)), facts=extremes("speedup")),
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


def _claim_main(measured: pd.DataFrame, runs: pd.DataFrame, main: Any) -> Claim:
    """The step without compile that took another time in the main recording, by more than processes may differ:
    `main_ns` there."""
    same = differences.select_repeated_runs(runs, main.runs)["run_id"].astype(str)
    times = timing.host_times(main.steps, "timer", "timer")
    times = times[times["phase"] == ranges.STEP].rename(columns={"timer_ns": "main_ns"})[["run_id", "main_ns"]]
    rows = measured[(measured["compile"] == OFF) & measured["run_id"].isin(same)].merge(times, on="run_id")
    rows["apart"] = rows["timer_ns"] / rows["main_ns"]
    return Claim("main", rows[(rows["apart"] - 1).abs() > MOST_APART], facts=give_largest("apart"))


def _claim_graphs(studies: Mapping[str, Any]) -> Claim:
    """What CUDA graphs add to compile in fused BF16, in every study that measured both."""
    compared = compare_graphs(studies.values())
    faster = compared[compared["least"] > 1]
    return Claim("graphs_trained", faster, facts=count_all(compared, give_largest("least")))


def _claim_profiling(captured: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame) -> list[Claim]:
    allocations = _allocations(api, captured)
    return [
        Claim("no_allocation", allocations, lambda rows: not rows["calls"].sum(), facts=_describe_allocations),
        Claim("allocation", allocations, lambda rows: rows["calls"].sum() > 0, facts=_describe_allocations),
        Claim("profiler", captured, lambda rows: rows["profiler_ratio"].max() > 1, facts=extremes("profiler_ratio")),
        Claim("no_modules", _modules(kernels, captured), _describe_losses, facts=lambda rows: {}),
    ]


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
    ]


_SHARES = tuple(Column(f"{cause}_share", label, "share", bar=True) for cause, label in CAUSES.items())

_AHEAD = (
    Column("depth", "queue, mean", "count"),
    Column("deepest", "queue, deepest", "count"),
    Column("ahead_ns", "furthest ahead", "ms"),
    Column("wait_ns", "CPU waits", "ms"),
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
            "How far the CPU is ahead, under nsys",
            (
                *case,
                Column("host_ns", "CPU time per launch call", "us"),
                Column("call_ns", "of it inside the call", "us"),
                *_AHEAD,
            ),
            frames.table,
        ),
    ]


def _chart_trained(studies: Mapping[str, Any], main: pd.DataFrame) -> list[Chart]:
    """The same chart of steps as people train, by `compile`; none if there are none."""
    if not (rec := studies.get(TRAINED)):
        return []
    runs = run_grid.select_known_shapes(rec.runs[rec.runs["batch_size"].isin(main["batch_size"])])
    runs = runs[pd.Series([run_grid.is_plain(run) for run in runs.to_dict("records")], index=runs.index, dtype=bool)]
    if not len(runs):
        return []
    by, measured = measure_steps(runs, rec.steps, rec.kernels, rec.api, rec.memops)
    return [_step_times(by, measured, _name_state(runs), "times-trained")]


def _name_state(runs: pd.DataFrame) -> str:
    return " / ".join(sorted(runs["precision"].astype(str).str.upper().unique()))


def _step_times(by: list[str], measured: pd.DataFrame, state: str, key: str = "times") -> Chart:
    """Training steps without the profiler. by, measured: as in `HostData`."""
    parts = {"busy_ns": "GPU busy", "idle_ns": "GPU idle"}
    steps = measured[measured["mode"] == TRAIN].dropna(subset=["busy_ns", "timer_ns"])
    steps = steps.assign(idle_ns=(steps["timer_ns"] - steps["busy_ns"]).clip(lower=0))
    waits = (steps["idle_ns"] / steps["timer_ns"]).groupby([steps[name] for name in by]).transform("max")
    steps = steps.assign(waits=waits).sort_values("waits", ascending=False, kind="stable")
    rows = steps.melt([*by, "compile", "run_id"], list(parts), var_name="scope", value_name="time_ns")
    rows["scope"] = rows["scope"].map(parts)
    idle = steps["idle_ns"] / steps["timer_ns"]
    where = ", in this study" if key == "times" else ""
    title = (
        f"The GPU waits {format_percent_span(idle)} of an unprofiled step{where}" if len(steps) else "A training step"
    )
    options: dict[str, Any] = {"order": list(parts.values()), "by": [*by, "compile"]}
    bases = steps[steps["compile"] == OFF].set_index(by)["timer_ns"]
    cases = pd.MultiIndex.from_frame(rows[by])
    if len(rows) and cases.isin(bases.index).all():  # steps of small and large models are on one scale then
        rows["of_base"] = rows["time_ns"] / bases.reindex(cases).to_numpy()
        options |= {"value": "of_base", "part_of": BASE}
    return Chart(key, "stacked_parts", title, rows, options={"value": "time_ns", **options}, state=state)


def _queues(frames: HostData) -> list[Chart]:
    """One chart each for the cases in which the GPU waits longest and shortest for launches: operations that wait in
    the queue over one training step, by `compile`."""
    charts: list[Chart] = []
    train = frames.captured[frames.captured["mode"] == TRAIN]
    waits = train.groupby(frames.by, sort=False)["launch_share"].max().dropna()
    extreme = {waits.idxmax(), waits.idxmin()} if len(waits) else set()
    for case, runs in train.groupby(frames.by, sort=False):
        if case not in extreme:
            continue
        parts = [
            queue.slice_queue(_place_operations(frames, run_id)).assign(series=name)
            for run_id, name in zip(runs["run_id"], runs["compile"], strict=True)
        ]
        rows = pd.concat(parts, ignore_index=True)
        deepest = rows.groupby("series")["y"].max()
        most = " to ".join(dict.fromkeys(f"{depth:,.0f}" for depth in (deepest.min(), deepest.max())))
        title = f"At most {most} operations wait in the queue of a training step: {' · '.join(map(str, case))}"
        options = {"order": list(SERIES), "x_title": "ms since the first launch", "y_title": "operations in the queue"}
        charts.append(Chart(f"queue-{len(charts)}", "traces", title, rows, options=options))
    return charts


def _place_operations(frames: HostData, run_id: str) -> pd.DataFrame:
    kernels, memops = (read_whole(keep_runs(rows, {run_id})) for rows in frames.operations)
    return queue.place_operations(queue.operations(kernels, memops))


def _select_helped(pairs: pd.DataFrame) -> pd.DataFrame:
    """Training steps that wait for launches and that CUDA graphs make faster: first the one that waits for longest."""
    late = pairs["base_waits"] & pairs["differs"] & (pairs["ratio"] < 1)
    rows = pairs[(pairs["compile"] == GRAPHS) & (pairs["mode"] == TRAIN) & late]
    return rows.sort_values("base_launch_wait", ascending=False, kind="stable")


def _find_compiled(rows: pd.DataFrame, pairs: pd.DataFrame, by: list[str]) -> float | None:
    """Find the step (ns) of the first row's case compiled without CUDA graphs; None if that is not measurably faster
    than the step without compile."""
    same = (pairs[[*by, "mode"]] == rows.iloc[0][[*by, "mode"]]).all(axis=1)
    compiled = pairs[same & (pairs["compile"] == DEFAULT) & _are_faster(pairs)]
    return float(compiled["timer_ns"].iloc[0]) if len(compiled) else None


def _describe_helped(rows: pd.DataFrame, compiled_ns: float | None, main_shares: pd.Series) -> dict[str, Any]:
    """The first row, the same step compiled without CUDA graphs, how much of the step without compile the GPU waits in
    the main recording (None if that has no such run), and the interval of the speed-up by the noise band, least and
    most; None if no band is known."""
    row: dict[str, Any] = {**rows.iloc[0].to_dict(), "compiled_ns": compiled_ns}
    row["main_share"] = main_shares.get(row["base_run_id"])
    shortest = row["timer_ns"] - row["band_ns"]
    if pd.isna(shortest) or shortest <= 0:
        return row | {"least": None, "most": None}
    return row | {
        "least": row["base_timer_ns"] / (row["timer_ns"] + row["band_ns"]),
        "most": row["base_timer_ns"] / shortest,
    }


def _select_quotable(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs[pairs["quotable"].astype(bool)]


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


def _left(phases: pd.DataFrame, helped: pd.DataFrame) -> pd.DataFrame:
    """The optimizer's part of what the GPU idles in the training steps that CUDA graphs helped."""
    rows = phases[phases["run_id"].isin(helped["run_id"])]
    sums = rows.groupby("run_id")[["idle_ns", "timer_ns"]].transform("sum")
    rows = rows.assign(part=rows["idle_ns"] / sums["idle_ns"])
    return rows[rows["phase"] == ranges.OPTIMIZER]


def _allocations(api: pd.DataFrame, captured: pd.DataFrame) -> pd.DataFrame:
    """Per run, the calls that take memory from the driver or give it back, and their time, in all profiled steps."""
    calls = calls_of_steps(api)
    sums = calls[calls["group"] == "allocation"].groupby("run_id")[["calls", "total_ns"]].sum()
    rows = captured[["run_id", "mode", "compile"]].merge(sums, how="left", left_on="run_id", right_index=True)
    return rows.fillna({"calls": 0, "total_ns": 0})


def _describe_allocations(rows: pd.DataFrame) -> dict[str, Any]:
    return {"calls": int(rows["calls"].sum()), "total_ns": rows["total_ns"].max()}


def _modules(kernels: pd.DataFrame, captured: pd.DataFrame) -> pd.DataFrame:
    """Parts of the forward pass's kernels with a module, and of all kernels with a phase, by `compile`."""
    counts = _count_named(kernels).merge(captured[["run_id", "compile"]], on="run_id")
    sums = counts.groupby("compile", sort=False)[["kernels", "in_phase", "forward", "in_module"]].sum()
    parts = {"in_phase": sums["in_phase"] / sums["kernels"], "in_module": sums["in_module"] / sums["forward"]}
    return pd.DataFrame(parts).reset_index()


@measure_by_run
def _count_named(kernels: pd.DataFrame) -> pd.DataFrame:
    """Count the kernels of the steps of each run: run_id, kernels, in_phase, forward, in_module (of forward)."""
    rows = timing.select_steps(kernels)
    forward = rows["phase"] == "forward"
    flags = {"kernels": 1, "in_phase": rows["phase"] != "", "forward": forward}
    flags |= {"in_module": forward & (rows["module"] != "")}
    return pd.DataFrame(flags).groupby(rows["run_id"].astype(str), sort=False).sum().reset_index()


def _describe_losses(rows: pd.DataFrame) -> bool:
    off = rows["compile"] == OFF
    return bool(off.any() and (~off).any() and (rows["in_phase"] == 1).all()
                and (rows.loc[off, "in_module"] > 0).all() and (rows.loc[~off, "in_module"] == 0).all())  # fmt: skip


def _describe_speed(every: pd.DataFrame) -> Callable[[pd.DataFrame], dict[str, Any]]:
    return lambda rows: {**extremes("speedup")(rows), **count_all(every)(rows)}


def _are_faster(rows: pd.DataFrame) -> pd.Series:
    return rows["differs"] & (rows["ratio"] < 1)


def _graphs_help(rows: pd.DataFrame) -> bool:
    return many(rows)(rows[_are_faster(rows)])


def _graphs_add(rows: pd.DataFrame) -> dict[str, Any]:
    return {**_num_faster(rows), **extremes("speedup")(rows[_are_faster(rows)])}


def _find_fewer_calls(rows: pd.DataFrame) -> dict[str, Any]:
    """The step that CUDA graphs save the largest part of its launch calls."""
    facts: dict[str, Any] = rows.loc[(rows["calls_graphs"] / rows["calls"]).idxmin()].to_dict()
    return facts


def _num_faster(rows: pd.DataFrame) -> dict[str, Any]:
    return {"num_found": int(_are_faster(rows).sum())}


def _full_queues(grid: pd.DataFrame) -> pd.DataFrame:
    """Steps whose queue was as deep as any: where steps of different length share that number, it is the limit."""
    return grid[grid["deepest"] == grid["deepest"].max()]


def _full(grid: pd.DataFrame) -> Callable[[pd.DataFrame], dict[str, Any]]:
    return lambda rows: {
        "deepest": rows["deepest"].iloc[0],
        "num_all": int(grid["deepest"].notna().sum()),
    }
