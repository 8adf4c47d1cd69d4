"""(l) What does AdamW cost, and what does fusing it save?"""

import re
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import differences, kernel_time, per_rank, run_grid, timing, waiting
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.steady import find_steady_runs, mark_quotable, prefer_turns, prefer_turns_band
from profiler_job.analysis.metrics.turns import compare_with_base, have_turns, list_rounds
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import (
    count_all,
    extremes,
    find_highest,
    format_percent_span,
    many,
    name_calibrated_gpu,
    noise_of,
    ratios_of,
    span,
)
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.reference import flops
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import Optimizer, find_value_name
from profiler_job.jobs.contract.studies import OPTIMIZER
from profiler_job.jobs.contract.words import NOT_MEASURED

STUDY = OPTIMIZER

MODE = "train_step"
LABELS = {value: find_value_name("optimizer", value) for value in get_args(Optimizer)}
BASE = "own"
CLOCKS = ("kernel", "time", "step")
ACCESSES = flops.ADAMW_ACCESSES
NEAR = 0.75
"""From this part of a copy's rate on, kernels are called near the speed of memory."""
KERNEL = ("kernel_ns", "kernel_min_ns", "kernel_max_ns", "kernel_speedup", "kernel_band_ns", "kernel_apart")
TIMER = ("time_ns", "time_min_ns", "time_max_ns", "time_speedup", "time_band_ns")
NOT_CALIBRATED = "n/a: not calibrated"
HEADINGS = (*case_headings(["size", "context_length"], linked=False), Column("optimizer", "AdamW"))
_NAMES = {
    "fused": r"FusedAdam",
    "addcdiv": r"addcdiv_cuda_kernel|PointwiseOpScalarListFunctor.*divides",
    "addcmul": r"addcmul_cuda_kernel|PointwiseOpScalarFunctor.*multiplies",
    "lerp": r"lerp_scalar_kernel|LerpFunctor",
    "sqrt": r"sqrt_kernel_cuda|Sqrt<",
    "div": r"BUnaryFunctor.*MulFunctor|DivFunctor|BinaryOpScalarListFunctor.*divides",
    "mul": r"AUnaryFunctor.*MulFunctor|BinaryOpScalarFunctor.*multiplies",
    "add": r"CUDAFunctorOnSelf_add|BinaryOpScalarFunctor.*plus",
    "add of gradient": r"CUDAFunctor_add",
}
"""Operations of flops.ADAMW_ACCESSES by what the names of their kernels say; the first that is found counts."""
COUNTERS = "step counters"


def answer(given: Inputs) -> Answer:
    """The optimizer phase of a training step with reference AdamW and with PyTorch's as a loop over the tensors, over
    lists of them (foreach), and fused.

    GPU busy (kernel_ns) is of the phase, time the phase by the unprofiled timer, speed-up the time of reference AdamW
    over this one's. Faster and slower are said about GPU busy, measurably, by the noise band of kernel times (`bands`),
    and of the timer, by the band of wall times, which is the wider, the longer the GPU waits. How long it waits for
    launches in the phase is what `metrics.waiting` says. Bytes are elements read and written as flops.ADAMW_ACCESSES
    counts them; their rate is over GPU busy and compared with the measured rate of a device copy. Extra memory is how
    far the phase raises the allocator's peak above what it held when the phase began.
    """
    tables = (given.runs, given.steps, given.processes, given.kernels, given.memops, given.memory)
    frames = _frames(*tables, given.calibration, given.bands)
    facts = _facts(given.calibration, given.bands) | {"took_turns": have_turns(given.steps)}
    return assemble(facts, _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="l",
    slug="optimizer-cost",
    title="What does AdamW cost, and does fusing it help?",
    needs=("runs", "steps", "processes", "kernels", "memops", "memory", "calibration", "bands"),
    answer=answer,
    section=Section.CHANGE,
    place=4,
    study=STUDY,
    searched=("fused AdamW", "foreach", "optimizer step"),
)


@dataclass(frozen=True, kw_only=True)
class OptimizerCostData:
    """`cases`: one row per model and AdamW; `operations`: the kernels of the largest model."""

    cases: pd.DataFrame
    operations: pd.DataFrame

    @property
    def measured(self) -> pd.DataFrame:
        cases = self.cases[self.cases[NOT_MEASURED] == ""]
        return cases[cases["time_ns"].notna() & cases["kernel_ns"].notna()]

    @property
    def compared(self) -> pd.DataFrame:
        """Cases with reference AdamW next to them."""
        return self.measured[self.measured["kernel_speedup"].notna()]

    def compared_of(self, optimizer: str) -> pd.DataFrame:
        return self.compared[self.compared["optimizer"] == optimizer]


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    processes: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    memory: pd.DataFrame,
    calibration: pd.DataFrame,
    bands: Bands | None,
) -> OptimizerCostData:
    cases = run_grid.cases_along(runs, MODE, "optimizer", list(LABELS))
    waits = waiting.launch_waits(steps, kernels, memops, bands.wall if bands else None)
    waits = waits[waits["phase"] == ranges.OPTIMIZER].drop(columns=["phase", "busy_share"])
    for part in (_measure_steps(steps), _measure_gpu(kernels, memops), _memory(runs, memory), waits):
        cases = cases.merge(part, how="left", on="run_id")
    cases.loc[cases[NOT_MEASURED] != "", "extra_bytes"] = float("nan")
    rates = calibration.set_index("figure")["value"]
    known = cases["run_id"].isin(run_grid.select_known_shapes(runs)["run_id"].astype(str))
    weights = flops.FP32_BYTES * cases["num_parameters"].where(known)  # of another workload the type is not known
    cases["accesses"] = cases["optimizer"].map({name: sum(accesses.values()) for name, accesses in ACCESSES.items()})
    cases["moved_bytes"] = cases["accesses"] * weights
    cases["rate"] = cases["moved_bytes"] / cases["kernel_ns"]
    cases["of_copy"] = cases["rate"] * 1e9 / rates.get("copy", float("nan"))
    cases["busy_share"] = timing.busy_share(cases, kernels, "kernel_ns", "time_ns")
    cases["share"] = cases["time_ns"] / cases["step_ns"]
    cases["step_busy_share"] = timing.busy_share(cases, kernels, "step_busy_ns", "step_ns")
    cases["kernel_share"] = cases["kernel_ns"] / cases["step_busy_ns"]
    cases["extra_copies"] = cases["extra_bytes"] / weights
    cases["kernel_parts"] = np.sqrt(cases["launches"])
    cases["time_parts"] = (cases["time_ns"] * (1 - cases["busy_share"])).clip(lower=0)
    cases["step_parts"] = (cases["step_ns"] * (1 - cases["step_busy_share"])).clip(lower=0)
    cases["steady"] = cases["run_id"].isin(find_steady_runs(steps))
    cases = _join_base(cases, bands, list_rounds(steps, processes))
    return OptimizerCostData(cases=cases, operations=_operations(kernels, cases[known]))


def _join_base(cases: pd.DataFrame, bands: Bands | None, rounds: pd.DataFrame) -> pd.DataFrame:
    """`cases` with the values of reference AdamW next to them, and what each saves against it: of the step within
    rounds if both took turns."""
    ends = ("ns", "min_ns", "max_ns", "parts")
    times = [f"{clock}_{end}" for clock in CLOCKS for end in ends]
    others = ["launches", "moved_bytes", "steady"]
    table = run_grid.join_base(cases, "optimizer", BASE, ["run_id", *times, *others])
    turns = compare_with_base(table["run_id"], table[f"run_id_{BASE}"], rounds)
    table[f"step_ns_{BASE}"] = prefer_turns(turns, table["step_ns"], table[f"step_ns_{BASE}"])
    for clock in CLOCKS:
        speedup = table[f"{clock}_ns_{BASE}"] / table[f"{clock}_ns"]
        table[f"{clock}_speedup"] = speedup.where(table["optimizer"] != BASE)
        renamed = table.rename(columns={f"{clock}_{end}_{BASE}": f"base_{end}" for end in ends})
        band = (bands.kernel if clock == "kernel" else bands.wall) if bands else None
        half_band = differences.half_band_ns(renamed, clock, "base", band)
        if clock == "step":
            half_band = prefer_turns_band(turns, table["step_ns"], half_band)
        table[f"{clock}_band_ns"] = half_band.where(table["optimizer"] != BASE)
        table[f"{clock}_apart"] = differences.differ(renamed, clock, "base", band)
    table["step_apart"] = table["step_apart"].mask(turns["times_as_fast"].notna(), turns["differs"])
    known = pd.Series(True, table.index)
    table["quotable"] = mark_quotable(known, table["steady"], table[f"steady_{BASE}"], turns=turns)
    table["fewer_bytes"] = table[f"moved_bytes_{BASE}"] / table["moved_bytes"]
    table["fewer_launches"] = table[f"launches_{BASE}"] / table["launches"]
    return table


def _facts(calibration: pd.DataFrame, bands: Bands | None) -> dict[str, Any]:
    return {
        "unfused": sum(ACCESSES[BASE].values()),
        "fused": sum(ACCESSES["fused"].values()),
        "noise": noise_of(bands),
        "calibrated_on": name_calibrated_gpu(calibration),
    }


def _claims(frames: OptimizerCostData) -> list[Claim]:
    return [
        *_claim_fused(frames),
        *_claim_unfused(frames),
        *_memory_claims(frames),
        *_claim_host(frames),
    ]


def _claim_fused(frames: OptimizerCostData) -> list[Claim]:
    """What fusing saves, by GPU busy and by the timer, and the share of the step that it saves from."""
    fused, faster = frames.compared_of("fused"), _beyond(frames.measured, faster=True)
    known = frames.measured[frames.measured["of_copy"].notna()]

    def is_faster(rows: pd.DataFrame) -> pd.Series:
        return rows["run_id"].isin(faster["run_id"])

    return [
        Claim(
            "fused",
            run_grid.only(fused, *KERNEL),
            lambda rows: is_faster(rows).all(),
            facts=lambda rows: {"speedup": span(rows["kernel_speedup"])},
        ),
        Claim(
            "fused_not_always",
            run_grid.only(fused, *KERNEL),
            lambda rows: not is_faster(rows).all(),
            facts=lambda rows: {"num_faster": is_faster(rows).sum()},
        ),
        _gain("timer", "time", fused),
        _gain("step", "step", fused[fused["quotable"]]),
        Claim(
            "share",
            run_grid.only(frames.measured, "kernel_ns", "step_busy_ns", "kernel_share"),
            lambda rows: {BASE, "fused"} <= set(rows["optimizer"]),
            facts=lambda rows: (
                {name: span(rows.loc[rows["optimizer"] == name, "kernel_share"]) for name in (BASE, "fused")}
                | {"contexts": span(rows["context_length"].astype(int))}
            ),
        ),
        Claim(
            "bytes",
            run_grid.only(
                fused[fused["moved_bytes"].notna()], "fewer_bytes", "kernel_speedup", "moved_bytes", "kernel_ns"
            ),
            lambda rows: (rows["kernel_speedup"] < rows["fewer_bytes"]).all(),
            facts=lambda rows: {"fewer": rows["fewer_bytes"].max(), "speedup": span(rows["kernel_speedup"])},
        ),
        Claim(
            "rate", run_grid.only(known, "rate", "of_copy"), lambda rows: (rows["of_copy"] > NEAR).all(), facts=_rates
        ),
    ]


def _claim_unfused(frames: OptimizerCostData) -> list[Claim]:
    """PyTorch's loop and its lists of tensors (foreach) against reference AdamW."""
    differing = {how: _beyond(frames.measured, faster=how == "faster") for how in ("faster", "slower")}
    shown = (*KERNEL, *TIMER, "time_apart")
    return [
        Claim(
            "foreach_launches",
            run_grid.only(frames.compared_of("foreach"), "launches", "fewer_launches"),
            lambda rows: (rows["fewer_launches"] > 1).all(),
            facts=lambda rows: {"fewer": span(rows["fewer_launches"])},
        ),
        *(
            Claim(
                f"{name}_{how}",
                run_grid.only(rows[rows["optimizer"] == name], *shown),
                many(frames.compared_of(name)),
                facts=count_all(frames.compared_of(name), _speedups),
            )
            for name in ("foreach", "loop")
            for how, rows in differing.items()
        ),
    ]


def _memory_claims(frames: OptimizerCostData) -> list[Claim]:
    """What the phase allocates beyond what it found."""
    fused, foreach = (frames.compared_of(name) for name in ("fused", "foreach"))
    return [
        Claim(
            "foreach_memory",
            run_grid.only(foreach[foreach["extra_copies"].notna()], "extra_bytes", "extra_copies"),
            lambda rows: (rows["extra_copies"] >= 1).all(),
            facts=lambda rows: {"copies": span(rows["extra_copies"]), "most": find_highest(rows, "extra_bytes")},
        ),
        Claim(
            "fused_memory",
            run_grid.only(fused[fused["extra_copies"].notna()], "extra_bytes"),
            lambda rows: (rows["extra_bytes"] == 0).all(),
        ),
    ]


def _claim_host(frames: OptimizerCostData) -> list[Claim]:
    """What the GPU waits for in the phase."""
    shown = ("launches", "busy_share", "launch_wait", "boundary_wait")
    known = frames.measured[frames.measured["launch_wait"].notna()]
    fused = known[known["optimizer"] == "fused"]
    return [
        Claim(
            "waits",
            run_grid.only(known, *shown, "waits"),
            facts=lambda rows: {**extremes("launch_wait")(rows), "num_waiting": int(rows["waits"].sum())},
        ),
        Claim(
            "fused_prepares",
            run_grid.only(fused, *shown),
            lambda rows: (rows["boundary_wait"] > rows["launch_wait"]).all(),
            facts=lambda rows: {
                "launches": span(rows["launches"]),
                "most": find_highest(rows, "boundary_wait"),
                "launch_wait": rows["launch_wait"].max(),
            },
        ),
    ]


def _tables(frames: OptimizerCostData) -> list[Table]:
    return [*_main_tables(frames), *_detail_tables(frames)]


def _main_tables(frames: OptimizerCostData) -> list[Table]:
    return [
        Table(
            "cost",
            "The optimizer phase of one training step",
            (
                *HEADINGS,
                spread_column("kernel", "GPU busy"),
                Column("kernel_speedup", "speed-up", "ratio", absent="base"),
                band_column("kernel_band_ns"),
                spread_column("time", "phase, unprofiled"),
                Column("time_speedup", "speed-up", "ratio", absent="base"),
                band_column("time_band_ns"),
                Column("launches", "launches", "count"),
                Column("rate", "rate", "gbps", absent="n/a"),
                Column("of_copy", "of copy rate", "share", bar=True, absent=NOT_CALIBRATED),
            ),
            frames.cases,
        ),
        Table(
            "whole",
            "The whole training step",
            (
                *HEADINGS,
                spread_column("step", "step, unprofiled"),
                Column("step_speedup", "speed-up", "ratio", absent="base"),
                band_column("step_band_ns"),
                Column("step_busy_share", "GPU busy ÷ step", "share"),
                Column("share", "optimizer, of step", "share", bar=True),
                Column("kernel_share", "optimizer, of GPU busy", "share", bar=True),
            ),
            frames.cases,
        ),
        Table(
            "memory",
            "Memory of the training step",
            (
                *HEADINGS,
                Column("peak_memory_bytes", "peak allocated", "bytes"),
                Column("extra_bytes", "extra in the phase", "bytes"),
                Column("extra_copies", "extra ÷ weights", "ratio", absent="n/a"),
            ),
            frames.cases,
        ),
    ]


def _detail_tables(frames: OptimizerCostData) -> list[Table]:
    return [
        Table(
            "host",
            "Host and GPU in the optimizer phase",
            (
                *HEADINGS,
                Column("launches", "launches", "count"),
                Column("kernel_ns", "GPU busy", "ms"),
                spread_column("time", "phase, unprofiled"),
                Column("busy_share", "GPU busy ÷ phase", "share", bar=True),
                Column("launch_wait", "waits for launches", "share"),
                Column("boundary_wait", "idle at its start and end", "share"),
            ),
            frames.cases,
        ),
        Table(
            "operations",
            "The kernels of the largest model by operation",
            (
                Column("size", "model"),
                Column("optimizer", "AdamW"),
                Column("operation", "operation"),
                Column("accesses", "elements moved a parameter", "count"),
                Column("launches", "launches", "count"),
                Column("kernel_ns", "kernel time", "ms"),
                Column("rate", "rate", "gbps", absent="not counted"),
            ),
            frames.operations,
        ),
    ]


def _charts(frames: OptimizerCostData) -> list[Chart]:
    labels = frames.measured["optimizer"].map(LABELS)
    labelled = frames.measured.assign(clock=labels, scope=labels)
    times = labelled.drop(columns="time_ns").rename(columns={"kernel_ns": "time_ns"})
    rates = labelled.drop(columns="share").rename(columns={"of_copy": "share"}).dropna(subset="share")
    options = {"order": list(LABELS.values()), "by": ["size"]}
    return [
        Chart("times", "dumbbell", _title_of_times(frames.measured), times, options=options),
        Chart(
            "rates",
            "grouped_bars",
            _title_of_rates(rates),
            rates,
            options={**options, "unit": "% of the rate of a copy", "zero": False},
        ),
    ]


def _title_of_rates(rates: pd.DataFrame) -> str:
    known = [(label, rates.loc[rates["clock"] == label, "share"]) for label in LABELS.values()]
    parts = [f"{format_percent_span(shares)} ({label})" for label, shares in known if len(shares)]
    return f"The optimizer's kernels reach {', '.join(parts)} of the rate of a copy" if parts else "Not measured"


def _title_of_times(measured: pd.DataFrame) -> str:
    fused = measured.loc[measured["optimizer"] == "fused", "kernel_speedup"].dropna()
    if not len(fused):
        return "GPU busy in the optimizer phase"
    return f"The kernels of fused AdamW are {ratios_of(fused)} as fast as the kernels of reference AdamW"


def operation_of(name: str) -> str:
    """Operation of AdamW that the kernel `name` carries out: a key of _NAMES, "" for another kernel."""
    return next((operation for operation, pattern in _NAMES.items() if re.search(pattern, name)), "")


def _measure_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Unprofiled time of the optimizer phase (time_ns) and of the step (step_ns), with _min_ns and _max_ns."""
    phase, step = (timing.host_times(steps, "timer", name) for name in ("time", "step"))
    phase, step = phase[phase["phase"] == ranges.OPTIMIZER], step[step["phase"] == ranges.STEP]
    return phase.drop(columns="phase").merge(step.drop(columns="phase"), on="run_id")


def _measure_gpu(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """How long the GPU is busy in the optimizer phase (kernel_ns, with _min_ns and _max_ns) and in the whole step
    (step_busy_ns), and launches of the phase, median over steps, per run_id."""
    times = timing.gpu_times(kernels, memops)
    phase, step = (times[times["phase"] == name] for name in (ranges.OPTIMIZER, ranges.STEP))
    table = timing.spread(phase, ["run_id"], "busy_ns", "kernel").drop(columns="kernel_n")
    for times, name, called in ((phase, "launches", "launches"), (step, "busy_ns", "step_busy_ns")):
        medians = times.groupby("run_id")[name].median().rename(called).reset_index()
        table = table.merge(medians, how="left", on="run_id")
    return table


def _memory(runs: pd.DataFrame, memory: pd.DataFrame) -> pd.DataFrame:
    """run_id, num_parameters, peak_memory_bytes of the run, extra_bytes of the optimizer phase over what it found."""
    rows = per_rank.memory_by_phase(memory)
    rows = rows[rows["phase"] == ranges.OPTIMIZER]
    extra = rows.assign(extra_bytes=rows["peak_allocated_bytes"] - rows["allocated_before_bytes"])
    known = run_grid.select_measured_runs(runs).astype({"run_id": str})[
        ["run_id", "num_parameters", "peak_memory_bytes"]
    ]
    return known.merge(extra[["run_id", "extra_bytes"]], how="left", on="run_id")


def _operations(kernels: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Kernels of the optimizer phase of the last model of `table`, if any, by operation: size, optimizer, operation,
    accesses, launches, kernel_ns (of one step) and rate in GB/s."""
    of_model = table[table["size"].isin(table["size"].tail(1))][["size", "optimizer", "run_id", "num_parameters"]]
    totals = kernel_time.kernel_totals(kernels)
    rows = of_model.merge(totals[totals["phase"] == ranges.OPTIMIZER], on="run_id")
    rows["operation"] = rows["kernel_name"].map(operation_of)
    by = ["size", "optimizer", "num_parameters", "operation"]
    rows = rows.groupby(by, sort=False)[["calls", "time_ns"]].sum().reset_index()
    rows = rows.rename(columns={"calls": "launches", "time_ns": "kernel_ns"})
    pairs = zip(rows["optimizer"], rows["operation"], strict=True)
    rows["accesses"] = [ACCESSES.get(optimizer, {}).get(operation, float("nan")) for optimizer, operation in pairs]
    rows["rate"] = rows["accesses"] * flops.FP32_BYTES * rows["num_parameters"] / rows["kernel_ns"]
    rows["operation"] = rows["operation"].where(rows["accesses"].notna(), COUNTERS)
    rows["accesses"] = rows["accesses"].fillna(0)
    return rows


# ---------------------------------------------------------------- facts of the claims


def _differs_from_reference(rows: pd.DataFrame, clock: str) -> pd.Series:
    """True if the time differs from reference AdamW's."""
    return rows[f"{clock}_apart"]


def _beyond(rows: pd.DataFrame, faster: bool) -> pd.DataFrame:
    """Rows whose kernels are faster, or slower, than reference AdamW's."""
    return rows[_differs_from_reference(rows, "kernel") & ((rows["kernel_speedup"] > 1) == faster)]


def _gain(key: str, clock: str, rows: pd.DataFrame) -> Claim:
    """That all of the `rows` whose time by `clock` differs from reference AdamW's are faster."""
    names = [f"{clock}_{end}" for end in ("ns", "min_ns", "max_ns", "speedup", "band_ns")]
    speedup = names[-2]
    return Claim(
        key,
        run_grid.only(rows[_differs_from_reference(rows, clock)], *names),
        lambda part: many(rows)(part) and (part[speedup] > 1).all(),
        facts=lambda part: {
            "num_all": len(rows),
            "speedup": span(part[speedup]),
            "contexts": span(part["context_length"].astype(int)),
        },
    )


def _speedups(rows: pd.DataFrame) -> dict[str, Any]:
    """Of GPU busy, and of the timer where it differs in the same direction."""
    agrees = _differs_from_reference(rows, "time") & ((rows["time_speedup"] > 1) == (rows["kernel_speedup"] > 1))
    timed = rows[agrees]["time_speedup"]
    return {"speedup": span(rows["kernel_speedup"]), "num_timed": len(timed), "timer": span(timed)}


def _rates(rows: pd.DataFrame) -> dict[str, Any]:
    return {"of": {LABELS[name]: span(part["of_copy"]) for name, part in rows.groupby("optimizer", sort=False)}}
