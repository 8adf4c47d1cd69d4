"""The checks of the reconciliation: what two independent counts or clocks have to agree on."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import kernel_time, precisions, queue, run_grid, timing, utilisation
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.metrics.turns import find_turned_runs
from profiler_job.analysis.pages import cuda_calls
from profiler_job.analysis.pages.second_sources import MEANING as SECOND_SOURCES
from profiler_job.analysis.pages.second_sources import check_second_sources
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.analysis.reference import flops, gemm_names, gpus, kernel_families
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.slow_processes import MOST_EXTRA

PHASE_SUM_TOLERANCE = 0.03
"""Phases may miss this part of the step that holds them: the clock is read, and the device synchronised, between them.
"""

PROFILER_RANGE = (0.95, 3.0)
"""Fastest step under nsys over the fastest unprofiled one: the profiler slows the host, and never speeds it up."""

STEADY = 0.9
"""From this part of the unprofiled step on that the GPU is busy, `profiler` is checked: elsewhere it is the host's."""

SPAN_MARGIN = 0.01
"""Part of the step's NVTX range by which the GPU span may exceed it: the two are on two clocks."""

BUSY_MARGIN = 0.05
"""Part of a phase's unprofiled time by which the GPU may be busy in it for longer under nsys: kernels of another
minute. In the recordings that come with this it is at most 1.5%."""

MODULE_COVERAGE = 0.99
"""Least share of forward kernel time that a module must account for."""

WHERE_KNOWN = (
    "forward_layouts",
    "backward_layouts",
    "math_path",
    "nsys_sums",
    "profiler",
    "gemm_rate",
    "mfu",
    "gpu_memory",
    "peak_memory",
    "updated_parameters",
    "largest_update",
    "power",
    "copy_rate",
    "gemm_bytes",
    "copied_bytes",
    "doubled_copies",
    "busy_in_time",
    "embedded_tokens",
    "fused_backend",
)
"""Checks that are made only where a kernel of the embedding or of a fused backend tells by its blocks or its name,
where the names of the GEMM kernels say what they need, where nsys's own statistics were
recorded, where the GPU is busy for STEADY of a step, where the peaks of the GPU and the FLOPs are known, or where a
forward pass copies on the device."""

OF_CAPTURE = (
    "profiled_steps",
    "forward_matmuls",
    "backward_matmuls",
    "in_phase",
    "span",
    "in_module",
    "busy",
    "launch_calls",
    "gemm_family",
    "module_matmuls",
)
"""Checks of what nsys recorded: a run that was only timed has none. Compiled models have no modules."""

GATHER = "vectorized_gather_kernel"
"""In the name of the kernel of PyTorch that reads rows of a table."""

IN_NAMES = {"flash": "pytorch_flash", "efficient": "fmha_cutlass", "cudnn": "cudnn"}
"""What the kernels of a backend of fused attention have in their names."""

OF_ARCHITECTURE = ("forward_matmuls", "backward_matmuls", "in_module", "gemm_family", "module_matmuls", "peak_memory")
"""Checks of what the reference Transformer launches and the ranges that it opens: any other workload has none."""

NOT_OF_SCRIPTS = ("phases", "phase_sum", "in_phase", "math_path", "span", "launch_calls")
"""Checks that hold by the way a sweep is measured: somebody's own script is timed as a whole, launches outside phases,
may compute in any precision, and does not wait for the GPU at the end of a step."""

MEANING = {
    "timed_steps": "steps timed in all processes, against steps to time",
    "phases": "phases that a run was timed or profiled in and its mode has not, or the other way round",
    "profiled_steps": "steps with kernels in the profile, against steps to profile",
    "phase_sum": "phases of a step added up, over the step (unprofiled, median, worst process)",
    "doubled_copies": "copies and fills that stand twice",
    "forward_matmuls": "matmuls in each forward pass, against the architecture",
    "backward_matmuls": "matmuls in each backward pass, against the architecture",
    "forward_layouts": "matmuls of each forward pass whose operand layout is not the expected one",
    "backward_layouts": "matmuls of each backward pass whose operand layout is not the expected one",
    "math_path": "share of GEMM time on the units of the precision that the run declares",
    "profiler": "fastest step under nsys (NVTX range; of a script without the first), over the fastest unprofiled step",
    "in_phase": "share of kernel time inside steps that has a phase",
    "in_module": "share of forward kernel time that has a module",
    "nsys_sums": "largest difference from nsys's own sums (ns, and calls) of any kernel in the step or a phase",
    "span": "longest GPU span of a step under nsys, over its NVTX range",
    "busy_in_time": "GPU busy in a phase, communication left out, over its unprofiled time (medians, largest of the "
    "phases)",
    "gemm_rate": "FLOPs of a step's matmuls over the time of its GEMM kernels, over the data sheet's peak",
    "mfu": "MFU of data-sheet peak (fastest unprofiled step)",
    "copy_rate": "fastest copy on the device that the L2 cache cannot hold, over the data sheet's memory bandwidth",
    "gemm_bytes": "bytes of a forward matmul that the L2 cache cannot hold, over its time, over the data sheet's "
    "memory bandwidth (fastest kind)",
    "copied_bytes": "bytes that a forward pass copies on the device, over the bytes of the scores that it masks",
    "embedded_tokens": "thread blocks of the embedding's kernel in a forward pass, one a token, over the tokens of a "
    "micro-batch (worst launch)",
    "fused_backend": "share of the time of fused attention in kernels of the backend that was asked for",
    "launch_calls": "launch calls of the host, over the kernels outside CUDA graphs that they started (worst phase)",
    "busy": "GPU busy in a step, over the time of its kernels, copies and fills (largest of the steps)",
    **SECOND_SOURCES,
}


@measure_by_run
def _check_runs(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    nsys_sums: pd.DataFrame,
    api: pd.DataFrame,
    processes: pd.DataFrame,
) -> pd.DataFrame:
    """Checks of every finished run: run_id, check, found, at_least, at_most, passed. Those OF_ARCHITECTURE are of runs
    whose shape is known.

    timed_steps, profiled_steps: as many as the run was to measure. phases: the phases of its mode. phase_sum: the
    phases of a step against the step, unprofiled, median of the worst process. forward_matmuls, backward_matmuls:
    matmuls of each step, 9L+1 and 18L+2 with eager attention, 7L+1 and 14L+2 with fused attention, for each
    micro-batch, and 8L or 6L more in backward with checkpointing of blocks; split-K and epilogue kernels belong to
    their matmul. profiler: fastest NVTX host range of the step over
    the fastest unprofiled step, where the GPU is busy for STEADY of it. span: GPU span over the NVTX range.
    busy_in_time: GPU busy of a phase over its unprofiled time. gemm_rate, mfu, copy_rate, gemm_bytes: at most the data
    sheet's peak. copied_bytes: bytes that forward copies on the device over the bytes of the scores. doubled_copies:
    copies and fills that stand twice. embedded_tokens: blocks of the embedding's kernel over the tokens of a
    micro-batch. fused_backend: share of fused attention in kernels of the backend by name. launch_calls: launch calls
    over kernels, worst phase. in_phase: share of the steps' kernel time with a phase. in_module: share of forward
    kernel time with a module. busy: GPU busy in a step over the time of its kernels, copies and fills (at most 1).
    forward_layouts, backward_layouts: matmuls whose layout, as their name has it, is not the one that the operation
    should have. math_path: share of GEMM time on the units of the declared precision. nsys_sums: largest
    difference, in ns or calls, from nsys's own statistics of any kernel in the step or a phase. And the
    columns of `second_sources`.
    """
    ordered = run_grid.select_measured_runs(runs)
    info = ordered.astype({"run_id": str, "mode": str, "attention": str}).set_index("run_id")
    known = run_grid.select_known_shapes(info)
    scripts = info.index[info["workload"].astype(str) == SCRIPT] if "workload" in info else []
    gpu = timing.gpu_times(kernels, memops)
    checks = [
        _counts(info, steps, gpu),
        _phases(info, steps, kernels),
        _phase_sum(steps),
        _gemms(known, kernels),
        _layouts(known, kernels),
        _math_path(info, kernels),
        _profiler(scripts, steps, gpu, kernels),
        _span(gpu, steps),
        _busy_in_time(info, gpu, steps, kernels, memops),
        *_peaks(info, steps, kernels),
        _copies(info, memops),
        _doubled_copies(memops),
        _gemm_bytes(known, kernels),
        _copied_bytes(known, memops),
        _embedded_tokens(known, kernels),
        _fused_backend(info, kernels),
        _launch_calls(kernels, api),
        _coverage(kernels),
        _busy(gpu),
        _nsys_sums(kernels, nsys_sums),
        *check_second_sources(info, known, kernels, processes, _rows),
    ]
    table = pd.concat(checks, ignore_index=True)
    table = table[table["run_id"].isin(info.index)]
    table = _with_missing(table, info)
    table = table[table["run_id"].isin(known.index) | ~table["check"].isin(OF_ARCHITECTURE)]
    table = table[~(table["run_id"].isin(scripts) & table["check"].isin(NOT_OF_SCRIPTS))]
    table["passed"] = (table["found"] >= table["at_least"]) & (table["found"] <= table["at_most"])
    table = sort_stably(table, place(table["run_id"], info.index), table["check"])
    return table.assign(run=table["run_id"])


def checks_of(runs: pd.DataFrame, *tables: Any) -> pd.DataFrame:
    """Checks of every finished run, in model order: columns, and further tables, as in `_check_runs`."""
    table = _check_runs(runs, *tables)
    ordered = run_grid.select_measured_runs(runs)["run_id"].astype(str)
    return sort_stably(table, place(table["run_id"], ordered), table["check"])


def _rows(check: str, values: pd.Series, at_least: Any, at_most: Any) -> pd.DataFrame:
    """One row per run; `values` are indexed by run_id."""
    rows = pd.DataFrame({"run_id": values.index.astype(str), "check": check, "found": values.to_numpy(float)})
    return rows.assign(at_least=_bound(at_least, values), at_most=_bound(at_most, values))


def _bound(bound: pd.Series | float, values: pd.Series) -> np.ndarray | float:
    return bound.reindex(values.index).to_numpy(float) if isinstance(bound, pd.Series) else float(bound)


def _counts(info: pd.DataFrame, steps: pd.DataFrame, gpu: pd.DataFrame) -> pd.DataFrame:
    timed = steps[(steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == ranges.STEP)]
    timed = timed.astype({"run_id": str}).groupby(["run_id", "rank"]).size().groupby("run_id").agg(["min", "max"])
    wanted = (info["measured_steps"] * info["processes"]).reindex(timed.index)
    timed = timed["max"].where(timed["max"] != wanted, timed["min"])
    extra = info["measured_steps"].where(info.index.isin(find_turned_runs(steps)), 0).reindex(timed.index) * MOST_EXTRA
    profiled = gpu[(gpu["phase"] == ranges.STEP) & (gpu["launches"] > 0)].groupby("run_id")["step"].nunique()
    wanted_profiled = info["profiled_steps"]
    return pd.concat(
        [
            _rows("timed_steps", timed, wanted, wanted + extra),
            _rows("profiled_steps", profiled, wanted_profiled, wanted_profiled),
        ]
    )


def _phases(info: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    timed = steps[(steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) != ranges.STEP)]
    wrong = pd.Series(0.0, index=info.index)
    for frame in (timed, timing.select_steps(kernels)):
        pairs = frame[["run_id", "phase"]].drop_duplicates().astype(str)
        phases_of_run = pairs[pairs["phase"] != ""].groupby("run_id")["phase"].agg(set)
        for run_id, phases in phases_of_run.items():
            if run_id in wrong.index:
                wrong[run_id] += len(phases ^ {*modes.MODE_PHASES.get(info.loc[run_id, "mode"], phases)})
    return _rows("phases", wrong, 0, 0)


def _phase_sum(steps: pd.DataFrame) -> pd.DataFrame:
    timed = steps[steps["collector"].astype(str) == "timer"].astype({"run_id": str, "phase": str})
    wide = timed.pivot_table(
        index=["run_id", "rank", "process", "step"], columns="phase", values="wall_ns", aggfunc="sum"
    )
    # A script's own steps are timed as a whole.
    phases = wide[[phase for phase in ranges.PHASES if phase in wide]].sum(axis=1, min_count=1)
    quotient = phases / (wide[ranges.STEP] if ranges.STEP in wide else float("nan"))
    # A host that pauses once between two phases has measured no phase wrongly.
    medians = quotient.dropna().groupby(["run_id", "rank", "process"]).median()
    worst = medians.groupby("run_id").agg(lambda values: values.loc[(values - 1).abs().idxmax()])
    return _rows("phase_sum", worst, 1 - PHASE_SUM_TOLERANCE, 1 + PHASE_SUM_TOLERANCE)


def _gemms(info: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    counted = kernel_time.count_gemms(kernels, kernel_families.is_main_gemm)
    parts = []
    for phase in (ranges.FORWARD, ranges.BACKWARD):
        of_phase = counted[(counted["phase"] == phase) & counted["run_id"].isin(info.index)]
        want = pd.Series({run_id: run_grid.count_matmuls(run, phase) for run_id, run in info.iterrows()}, dtype=float)
        distance = (of_phase["gemms"] - want.reindex(of_phase["run_id"]).to_numpy()).abs()
        worst = of_phase.assign(distance=distance).sort_values("distance").drop_duplicates("run_id", keep="last")
        parts.append(_rows(f"{phase}_matmuls", worst.set_index("run_id")["gemms"], want, want))
    return pd.concat(parts)


def _expected_layouts(run: pd.Series, phase: str) -> pd.Series:
    """Number of matmuls of each layout, from what the layouts of the operations should be. A checkpointed layer runs
    forward again in backward, but for its last matmul."""
    times = run_grid.micro_batches_of(run)
    layers, head = times * int(run["num_layers"]), times
    inside = layers if run["attention"] == "naive" else 0
    again = run_grid.checkpointing_of(run) == "blocks"
    operations = {
        ranges.FORWARD: {"linear forward": 7 * layers + head, "QK^T": inside, "AV": inside},
        ranges.BACKWARD: {
            "linear input gradient": 7 * layers + head,
            "linear weight gradient": 7 * layers + head,
            "QK^T query gradient": inside,
            "QK^T key gradient": inside,
            "AV score gradient": inside,
            "AV value gradient": inside,
            **({"linear forward": 6 * layers, "QK^T": inside, "AV": inside} if again else {}),
        },
    }[phase]
    counts = pd.Series({name: gemm_names.EXPECTED_LAYOUTS[name] for name in operations})
    return pd.Series(operations).groupby(counts).sum()


def _layouts(info: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Matmuls too many or too few of each layout, halved: the matmuls that have another layout. Worst step."""
    rows = timing.select_steps(kernels)
    names = rows["kernel_name"].astype("category")
    layouts = {
        name: (getattr(gemm_names.parse(name), "layout", None) or "unknown")
        if kernel_families.is_main_gemm(name)
        else ""
        for name in names.cat.categories
    }
    is_gemm = names.isin([name for name, layout in layouts.items() if layout]) & rows["run_id"].isin(info.index)
    by = ["run_id", "phase", "rank", "step", "kernel_name"]
    sizes = rows[is_gemm].groupby(by, observed=True).size().rename("size").reset_index()
    sizes = sizes.astype({"run_id": str, "phase": str, "kernel_name": str})  # now that there are few
    sizes["layout"] = sizes["kernel_name"].map(layouts)
    counts = sizes.groupby([*by[:-1], "layout"])["size"].sum().unstack("layout", fill_value=0)
    counts = counts[~counts.reset_index("step", drop=True).reset_index().duplicated().to_numpy()]
    parts = []
    for phase in (ranges.FORWARD, ranges.BACKWARD):
        worst: dict[str, float] = {}
        expected_of: dict[str, pd.Series] = {}
        for (run_id, found_phase, *_), row in counts.iterrows():
            if found_phase != phase or row.get("unknown", 0):
                continue
            if run_id not in expected_of:
                expected_of[run_id] = _expected_layouts(info.loc[run_id], phase)
            expected = expected_of[run_id]
            wrong = row.sub(expected, fill_value=0).abs().sum() / 2
            worst[run_id] = max(wrong, worst.get(run_id, 0))
        parts.append(_rows(f"{phase}_layouts", pd.Series(worst, dtype=float), 0, 0))
    return pd.concat(parts)


def _math_path(info: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The share of the time of GEMMs whose name shows the math path: on the units of the run's precision. Undeclared
    TF32 shows here, and FP32 units in a run that is called TF32."""
    declared = {run_id: PRECISIONS[name].gemm_paths for run_id, name in info["precision"].astype(str).items()}
    totals = kernel_time.kernel_totals(kernels)
    totals = totals[(totals["family"] == "gemm") & totals["run_id"].isin(list(declared))]
    paths = {name: getattr(gemm_names.parse(name), "math_path", None) for name in totals["kernel_name"].unique()}
    totals = totals.assign(path=totals["kernel_name"].map(paths)).dropna(subset="path")
    is_declared = [path in declared[run_id] for run_id, path in zip(totals["run_id"], totals["path"], strict=True)]
    time = totals.groupby(["run_id", np.array(is_declared, bool)])["time_ns"].sum().unstack(fill_value=0.0)
    share = time.get(True, pd.Series(0.0, index=time.index)) / time.sum(axis=1)
    return _rows("math_path", share, 1, 1)


def _profiler(scripts: Iterable[str], steps: pd.DataFrame, gpu: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    # The steps of a script overlap: while the GPU still works on one, the host prepares the next. The first captured
    # one begins with a GPU that has nothing to do, so its range lacks the wait for the step before.
    is_first = steps["run_id"].isin(scripts) & (steps["collector"].astype(str) == "nsys") & (steps["step"] == 0)
    steps = steps[~is_first]

    def step_ns(collector: str) -> pd.Series:
        times = timing.host_times(steps, collector, "wall")
        return times[times["phase"] == ranges.STEP].set_index("run_id")["wall_min_ns"]

    timer = step_ns("timer")
    busy = gpu[gpu["phase"] == ranges.STEP].groupby("run_id")["busy_ns"].min() / timing.num_devices(kernels)
    steady = (busy / timer) >= STEADY
    quotient = (step_ns("nsys") / timer).dropna()
    # Where the host is what takes the time, nsys slows it by as much as it likes; a script's steps overlap.
    steady = steady.reindex(quotient.index, fill_value=False)
    checked = quotient[steady | ~quotient.index.isin(list(scripts))]
    at_least, at_most = PROFILER_RANGE
    return _rows("profiler", checked, at_least, steady.map({True: at_most, False: np.inf}))


def _span(gpu: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    host = queue.step_ranges(steps)
    both = gpu[gpu["phase"] == ranges.STEP].merge(host, on=queue.STEP)
    quotient = (both["projected_ns"] / both["wall_ns"]).groupby(both["run_id"]).max()
    return _rows("span", quotient, 0, 1 + SPAN_MARGIN)


def _busy_in_time(
    info: pd.DataFrame, gpu: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame
) -> pd.DataFrame:
    """Of GPUs that are known: elsewhere nothing says that kernels and clock are of the same machine. A communication
    kernel also waits for the hosts of other ranks, which nsys slows: without those, where there are any."""
    exchanges = kernels["family"].astype(str) == kernel_families.COMMUNICATION
    if exchanges.any():
        gpu = timing.gpu_times(kernels[~exchanges], memops)
    busy = gpu.groupby(["run_id", "phase"])["busy_ns"].median().reset_index()
    both = timing.host_times(steps, "timer", "timer").merge(busy, on=["run_id", "phase"])
    listed = {run_id for run_id, name in info["gpu_name"].items() if gpus.lookup(str(name))}
    both = both[both["run_id"].isin(listed)]
    share = timing.busy_share(both, kernels).groupby(both["run_id"]).max()
    return _rows("busy_in_time", share, 0, 1 + BUSY_MARGIN)


def _peaks(info: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame) -> list[pd.DataFrame]:
    """Rates that no GPU exceeds: where tables of two runs are exchanged, one of the two does. The GEMM kernels do all
    matmuls of a run with eager attention that is not compiled."""
    totals = kernel_time.kernel_totals(kernels)
    gemm_ns = totals[totals["family"].astype(str) == "gemm"].groupby("run_id")["time_ns"].sum()
    wall = timing.host_times(steps, "timer", "wall")
    wall_ns = wall[wall["phase"] == ranges.STEP].set_index("run_id")["wall_min_ns"]
    shares: dict[str, dict[str, float]] = {"gemm_rate": {}, "mfu": {}}
    for run_id, run in info.iterrows():
        if run_id in wall_ns.index:
            shares["mfu"][run_id] = utilisation.mfu(run, wall_ns[run_id])
        if run_id in gemm_ns.index and run["attention"] == "naive" and run.get("compile", "off") == "off":
            shares["gemm_rate"][run_id] = utilisation.measure_eager_matmuls(run, gemm_ns[run_id])
    return [_rows(check, pd.Series(share, dtype=float).dropna(), 0, 1) for check, share in shares.items()]


def _copies(info: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """A copy on the device reads and writes each byte."""
    rows = timing.select_steps(memops).astype({"run_id": str, "operation": str})
    rows = rows[rows["operation"] == precisions.DEVICE_COPY]
    listed = {run_id: gpus.lookup(str(name)) for run_id, name in info["gpu_name"].items()}
    cache = rows["run_id"].map({run_id: gpu.l2_bytes for run_id, gpu in listed.items() if gpu}).astype(float)
    peak = rows["run_id"].map({run_id: gpu.memory_bandwidth for run_id, gpu in listed.items() if gpu}).astype(float)
    share = (2e9 * rows["bytes"] / (rows["end_ns"] - rows["start_ns"]) / peak)[rows["bytes"] > cache]
    return _rows("copy_rate", share.groupby(rows["run_id"]).max().dropna(), 0, 1)


def _doubled_copies(memops: pd.DataFrame) -> pd.DataFrame:
    """Nothing of one stream begins and ends with another. nsys's own sums show kernels that are there twice."""
    same = memops.duplicated(["run_id", "rank", "device", "stream", "start_ns", "end_ns", "operation", "bytes"])
    return _rows("doubled_copies", same.groupby(memops["run_id"].astype(str)).sum(), 0, 0)


def _gemm_bytes(known: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """A matmul reads its operands and writes its result at least once, in the run's precision, and through memory where
    all of it is larger than the L2 cache. Of eager forward passes that are not compiled: their ranges name the matmul.
    """
    totals = kernel_time.kernel_totals(kernels)
    gemms = totals[(totals["family"].astype(str) == "gemm") & (totals["phase"].astype(str) == ranges.FORWARD)]
    gemms = gemms.assign(module=gemms["module"].str.rsplit("/", n=1).str[-1])
    time_ns = gemms.groupby(["run_id", "module"], sort=False)["time_ns"].sum().to_dict()
    shares: dict[str, float] = {}
    for run_id, run in known.iterrows():
        gpu = gpus.lookup(str(run["gpu_name"]))
        is_eager = run["attention"] == "naive" and run.get("compile", "off") == "off"
        if not is_eager or gpu is None or gpu.l2_bytes is None:
            continue
        element_bytes = PRECISIONS[str(run["precision"])].element_bytes
        rates = [
            1e9 * run_grid.micro_batches_of(run) * number * cost.bytes / time_ns[run_id, module]
            for module, (cost, number) in flops.matmul_costs(run_grid.micro_batch_of(run), element_bytes).items()
            if cost.bytes > gpu.l2_bytes and (run_id, module) in time_ns
        ]
        if rates:
            shares[run_id] = max(rates) / gpu.memory_bandwidth
    return _rows("gemm_bytes", pd.Series(shares, dtype=float), 0, 1)


def _copied_bytes(known: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """A forward pass with eager attention that is not compiled copies the scores of each layer once, as it fills in
    the mask, and nothing else. Worst step. DDP also sends the model's buffers, and copies them for that."""
    known = known[known["parallel"] != "ddp"] if "parallel" in known else known
    rows = timing.select_steps(memops).astype({"run_id": str, "operation": str, "phase": str})
    rows = rows[(rows["operation"] == precisions.DEVICE_COPY) & (rows["phase"] == ranges.FORWARD)]
    copied = rows.groupby(["run_id", "rank", "step"])["bytes"].sum().groupby("run_id").agg(["min", "max"])
    if copied.empty:  # PyTorch may fill in the mask otherwise
        return _rows("copied_bytes", copied["min"], 1, 1)
    copied = copied.reindex(known.index[known["profiled_steps"] > 0], fill_value=0)
    shares: dict[str, float] = {}
    for run_id, run in known.loc[copied.index].iterrows():
        if run["attention"] == "naive" and run.get("compile", "off") == "off":
            element_bytes = PRECISIONS[str(run["precision"])].element_bytes
            scores = int(run["num_layers"]) * run_grid.shape_of(run).num_scores * element_bytes
            shares[run_id] = max((copied.loc[run_id] / scores).tolist(), key=lambda share: abs(share - 1))
    return _rows("copied_bytes", pd.Series(shares, dtype=float), 1, 1)


def _embedded_tokens(known: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """PyTorch's kernel that reads rows of a table has a block for each row: of the embedding of a model that is not
    compiled, for each token. So the tables of another context or batch do not pass for tables of a run."""
    one_gpu = known["gpus"] == 1 if "gpus" in known else True
    known = known[(known["compile"].astype(str) == "off") & one_gpu]
    rows = timing.select_steps(kernels)
    rows = rows[(rows["phase"] == ranges.FORWARD) & rows["run_id"].isin(known.index)]
    rows = rows.astype({"run_id": str, "module": str, "kernel_name": str})
    rows = rows[rows["module"].str.endswith(ranges.EMBEDDING) & rows["kernel_name"].str.contains(GATHER)]
    blocks = rows.groupby("run_id")["grid_x"].agg(["min", "max"])
    shares: dict[str, float] = {}
    for run_id, run in known.loc[blocks.index].iterrows():
        tokens = int(run["batch_size"]) // run_grid.micro_batches_of(run) * int(run["context_length"])
        shares[str(run_id)] = max((blocks.loc[run_id] / tokens).tolist(), key=lambda share: abs(share - 1))
    return _rows("embedded_tokens", pd.Series(shares, dtype=float), 1, 1)


def _fused_backend(info: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Of runs that name a backend of fused attention: its kernels say which they are."""
    named = info["attention"].map(IN_NAMES).dropna()
    fused = timing.select_steps(kernels)
    fused = fused[(fused["family"] == "attention") & fused["run_id"].isin(named.index)]
    fused = fused.astype({"run_id": str, "kernel_name": str})
    duration = (fused["end_ns"] - fused["start_ns"]).astype(float)
    is_own = [own in name for own, name in zip(fused["run_id"].map(named), fused["kernel_name"], strict=True)]
    of_run = duration.groupby(fused["run_id"]).sum()
    return _rows("fused_backend", duration.where(is_own, 0.0).groupby(fused["run_id"]).sum() / of_run, 1, 1)


def _launch_calls(kernels: pd.DataFrame, api: pd.DataFrame) -> pd.DataFrame:
    """A kernel outside CUDA graphs has its own launch call: tables of two pages count the same."""
    rows = timing.select_steps(kernels)
    rows = rows[(rows["graph_node"] == 0) & (rows["phase"] != "")]
    launched = rows.groupby(["run_id", "phase"], observed=True).size().rename("kernels").reset_index()
    launched = launched.astype({"run_id": str, "phase": str}).set_index(["run_id", "phase"])
    calls = cuda_calls.calls_of_steps(api).astype({"phase": str})
    calls = calls[(calls["group"] == "launch") & ~calls["name"].str.contains("GraphLaunch")]
    of_phase = pd.concat([launched, calls.groupby(["run_id", "phase"])["calls"].sum()], axis=1).fillna(0)
    apart = (of_phase["calls"] - of_phase["kernels"]).abs()
    worst = of_phase.loc[apart.groupby(level="run_id").idxmax()].droplevel("phase")
    return _rows("launch_calls", worst["calls"] / worst["kernels"], 1, 1)


def _coverage(kernels: pd.DataFrame) -> pd.DataFrame:
    rows = timing.select_steps(kernels)
    time = rows["end_ns"] - rows["start_ns"]
    frame = pd.DataFrame(
        {
            "run_id": rows["run_id"],
            "time": time,
            "in_phase": time.where(rows["phase"] != "", 0),
            "in_module": time.where(rows["module"] != "", 0),
            "forward": rows["phase"] == ranges.FORWARD,
        }
    )
    every = frame.groupby("run_id", observed=True)[["time", "in_phase"]].sum()
    forward = frame[frame["forward"]].groupby("run_id", observed=True)[["time", "in_module"]].sum()
    every.index, forward.index = every.index.astype(str), forward.index.astype(str)
    return pd.concat(
        [
            _rows("in_phase", every["in_phase"] / every["time"], 1, 1),
            _rows("in_module", forward["in_module"] / forward["time"], MODULE_COVERAGE, 1),
        ]
    )


def _busy(gpu: pd.DataFrame) -> pd.DataFrame:
    steps = gpu[gpu["phase"] == ranges.STEP]
    quotient = (steps["busy_ns"] / steps["operation_ns"]).groupby(steps["run_id"]).max()
    return _rows("busy", quotient, 0, 1)


def _nsys_sums(kernels: pd.DataFrame, nsys_sums: pd.DataFrame) -> pd.DataFrame:
    rows = timing.select_steps(kernels)
    rows = pd.DataFrame(
        {
            "run_id": rows["run_id"],
            "range": rows["phase"],
            "kernel_name": rows["kernel_name"],
            "calls": 1,
            "total_ns": rows["end_ns"] - rows["start_ns"],
            "in_range": rows["attribution"].isin(["exact", "early"]),
        }
    )
    by = ["run_id", "range", "kernel_name"]
    grouped = rows.groupby(by, observed=True)
    ours = grouped.agg(calls=("calls", "sum"), total_ns=("total_ns", "sum"), in_range=("in_range", "all")).reset_index()
    ours = ours.astype(dict.fromkeys(by, str))
    in_steps = ours.groupby(["run_id", "kernel_name"])
    in_steps = in_steps.agg({"calls": "sum", "total_ns": "sum", "in_range": "all"}).reset_index()
    ours = pd.concat([ours[ours["range"] != ""], in_steps.assign(range=ranges.STEP)]).set_index(by)
    # nsys counts what the range's own thread launched, and knows nothing of autograd's threads.
    is_in_range = ours.groupby(level=["run_id", "range"])["in_range"].all()
    theirs = nsys_sums.astype(dict.fromkeys(by, str)).set_index(by)[["calls", "total_ns"]]
    ours = ours[ours.index.get_level_values("run_id").isin(theirs.index.get_level_values("run_id"))]
    difference = ours[["calls", "total_ns"]].sub(theirs, fill_value=0).abs().max(axis=1)
    place_of = difference.index.droplevel("kernel_name")
    difference = difference[is_in_range.reindex(place_of, fill_value=True).to_numpy(bool)]
    return _rows("nsys_sums", difference.groupby(level="run_id").max(), 0, 0)


def _with_missing(table: pd.DataFrame, info: pd.DataFrame) -> pd.DataFrame:
    """A check that a finished run should have and has not: a row with nothing found, so that it counts as a breach."""
    wanted = []
    for run_id, run in info.iterrows():
        for check in MEANING:
            if check.startswith("backward") and ranges.BACKWARD not in modes.MODE_PHASES.get(run["mode"], ()):
                continue
            if check in WHERE_KNOWN or (check in OF_CAPTURE and not run["profiled_steps"]):
                continue
            if check in ("in_module", "module_matmuls") and run["compile"] != "off":
                continue
            wanted.append((run_id, check))
    grid = pd.DataFrame(wanted, columns=["run_id", "check"])
    grid = grid.merge(table, how="left", on=["run_id", "check"])
    return pd.concat([grid, table[table["check"].isin(WHERE_KNOWN)]], ignore_index=True)
