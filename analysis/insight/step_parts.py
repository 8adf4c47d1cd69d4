"""A step cut into parts that add up to it: phases, their modules, and the kinds of their kernels, with the waiting of
each phase.

The step is the unprofiled one, and so are its phases if the timer knows them. The profiled steps of the same run show
what runs in a phase. Kernels that overlap share the time in which the GPU is busy, so that the parts of each limit
add up to the time of that limit (`metrics.step_limits`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.capture.fused_kernels import divide_fused
from profiler_job.analysis.insight.run_limit import IDLE
from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.metrics.step_limits import PARTS
from profiler_job.analysis.metrics.timing import select_steps
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.step_limit import COMMUNICATION, COMPUTE, CPU, MEMORY

WAIT = "wait"
KINDS = {
    "matmul": COMPUTE,
    "attention": COMPUTE,
    "elementwise": MEMORY,
    "copy": MEMORY,
    "optimizer": MEMORY,
    "other": MEMORY,
    "communication": COMMUNICATION,
    WAIT: CPU,
}
"""The kinds of parts in the order in which they are drawn, with the limit that each belongs to."""
KIND_OF_FAMILY = {
    "gemm": "matmul",
    "convolution": "matmul",
    "attention": "attention",
    "elementwise": "elementwise",
    "triton": "elementwise",
    "copy": "copy",
    "fill": "copy",
    "memory": "copy",
    "optimizer": "optimizer",
    "communication": "communication",
}
COLUMNS = ["run_id", "step_ns", "phase", "module", "kind", "time_ns"]
OUTSIDE = "outside phases"
"""Phase of kernels that no phase launched."""
BETWEEN = "between phases"
"""Phase of the waiting that belongs to no phase."""
REST = "other"
"""Modules that take less than LEAST of the step in each phase, and kernels outside modules."""
LEAST = 0.01
WITHOUT_MODULES = {
    ranges.LOSS: "loss",
    ranges.CLIP: "gradients",
    ranges.OPTIMIZER: "update",
    ranges.ZERO_GRAD: "gradients",
}
"""Phases that work on all parameters or on the loss, with the name of what they do."""
NAMES = {
    ranges.ACCUMULATION: "gradient sums",
    ranges.LOSS_MODULE: "loss",
    ranges.ALL_PARAMETERS: "parameters",
    ranges.RECOMPUTED: "recomputed",
    ranges.FFN: "FFN",
    ranges.NORM: "norms",
}
"""Short names of modules, by a part of their path."""
NAMES_IN_ATTENTION = {ranges.QKV_PROJ: "QKV, out", ranges.O_PROJ: "QKV, out", ranges.ROPE: "RoPE"}
"""Short names of the parts of attention in the reference Transformer. All others are attention itself."""
_LIST = re.compile(r"block|.*\.\*|\d+")


def measure_step_parts(
    limits: pd.DataFrame, elapsed: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame
) -> pd.DataFrame:
    """Cut the step of each timed and profiled run into parts: COLUMNS, ns. The parts of a run add up to its step_ns.
    Phases come in their order, modules by falling time, kinds in the order of KINDS.

    limits: of `step_limits.measure_limits`; elapsed: of `run_limit.split_steps`."""
    totals = divide_fused(kernel_time.kernel_totals(kernels), ["time_ns"])
    rows = totals[["run_id", "phase", "module"]].assign(
        kind=totals["family"].map(KIND_OF_FAMILY).fillna(REST), time_ns=totals["time_ns"]
    )
    moved = _sum_copies(memops, kernel_time.num_profiled_steps(kernels))
    of_runs, copies, split = (
        dict(iter(table.groupby(table["run_id"].astype(str), sort=False))) for table in (rows, moved, elapsed)
    )
    parts = []
    for run_id, limit in limits.groupby("run_id", sort=False):
        if run_id in of_runs and (limit["phase"] == ranges.STEP).any():
            work = pd.concat([of_runs[run_id], copies.get(run_id, moved.head(0))], ignore_index=True)
            table = pd.DataFrame(_cut_step(limit, split.get(run_id, elapsed.head(0)), work), columns=COLUMNS[2:])
            step_ns = float(limit.loc[limit["phase"] == ranges.STEP, "timer_ns"].iloc[0])
            parts.append(_sort(_merge_small_modules(table, step_ns)).assign(run_id=run_id, step_ns=step_ns))
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


def sum_by_kind(parts: pd.DataFrame) -> dict[str, float]:
    """Sum the times of one step by kind (ns), in the order of KINDS."""
    sums = parts.groupby("kind")["time_ns"].sum()
    return {kind: float(sums[kind]) for kind in KINDS if kind in sums}


def name_module(phase: str, path: str) -> str:
    """Name the module of a range path in a word or two, the same name for all blocks: `block/attention/rope` is RoPE,
    `GPT/h.*/mlp/c_fc` is mlp, `GPT/lm_head` is lm_head."""
    if phase in WITHOUT_MODULES:
        return WITHOUT_MODULES[phase]
    names = [name for name in path.split("/") if name and "::" not in name]
    if not names:
        return REST
    if names[0] in NAMES and names[0] != ranges.FFN:
        return NAMES[names[0]]
    start = next((i + 1 for i, name in enumerate(names) if _LIST.fullmatch(name)), 0)
    while start and names[start + 1 : start + 2] and names[start + 1].isdigit():  # stages/0/blocks/3
        start += 2
    inside = names[start:] if start else names[-1:]
    if not inside:
        return names[-1].removesuffix(".*")  # a block, outside of its modules
    if inside[0] == ranges.ATTENTION and len(inside) > 1:
        return NAMES_IN_ATTENTION.get(inside[1], ranges.ATTENTION)
    return NAMES.get(inside[0], re.sub(r"^\((.*)\)$", r"\1", inside[0]))  # not that of `GPT (compiled)`


def sum_drawn_modules(totals: pd.DataFrame) -> pd.DataFrame:
    """Sum the kernel time of a step of one run by the module that its parts are drawn as, all blocks together, the
    largest first: module, total_ns, step_share. What no module launched is left out. totals: `kernel_totals`."""
    rows = divide_fused(totals, ["time_ns"])
    paths, phases = rows["module"].astype(str), rows["phase"].astype(str)
    is_module = (paths != "") & ~paths.str.match(r"\(|.*/\(") & ~phases.isin(list(WITHOUT_MODULES))
    names = [name_module(phase, path) for phase, path in zip(phases[is_module], paths[is_module])]
    sums = rows.loc[is_module, "time_ns"].groupby(pd.Series(names, rows.index[is_module], dtype=object)).sum()
    table = sums.sort_values(ascending=False, kind="stable").rename("total_ns").rename_axis("module").reset_index()
    return table.assign(step_share=table["total_ns"] / rows["time_ns"].sum())


@measure_by_run
def _sum_copies(memops: pd.DataFrame, num_steps: pd.Series) -> pd.DataFrame:
    """Sum the copies and fills of a step by phase: the columns of kernels."""
    rows = select_steps(memops)
    times = (rows["end_ns"] - rows["start_ns"]).groupby([rows["run_id"].astype(str), rows["phase"].astype(str)]).sum()
    table = times.rename("time_ns").reset_index()
    table["time_ns"] = table["time_ns"] / table["run_id"].map(num_steps)
    return table.assign(module="", kind="copy")


def _cut_step(limit: pd.DataFrame, elapsed: pd.DataFrame, work: pd.DataFrame) -> Iterator[tuple[str, str, str, float]]:
    """Yield phase, module, kind and ns of each part of one step. work: its kernels and copies."""
    step = limit[limit["phase"] == ranges.STEP].iloc[0]
    phases = limit[limit["phase"] != ranges.STEP]
    of_phases = _take_timed_phases(step, phases) if len(phases) else _share_step(step, elapsed)
    for phase, times in of_phases.items():
        inside = work[work["phase"] == phase]
        limit_of = inside["kind"].map(KINDS)
        for name, time_ns in times.items():
            rows = inside[limit_of == name]
            recorded_ns = rows["time_ns"].sum()
            label = phase or OUTSIDE
            if name == CPU or (time_ns and not recorded_ns):
                yield label, "" if name == CPU else REST, WAIT if name == CPU else REST, time_ns
            elif time_ns:
                for module, kind, ns in zip(rows["module"], rows["kind"], rows["time_ns"]):
                    yield label, name_module(phase, module), kind, ns * time_ns / recorded_ns
    between_ns = step["timer_ns"] - sum(sum(times.values()) for times in of_phases.values())
    if between_ns >= 1:  # less is of rounding
        yield BETWEEN, "", WAIT, between_ns


Times = dict[str, dict[str, float]]
"""By phase the time of each limit."""


def _take_timed_phases(step: Mapping[str, Any], phases: pd.DataFrame) -> Times:
    """Take the limits of each phase that the timer knows. Medians of phases may add up to more than the median of
    steps: then all are shortened."""
    shrink = min(1.0, step["timer_ns"] / phases["timer_ns"].sum())
    return {
        row["phase"]: {name: row[column] * shrink for name, column in PARTS.items()}
        for row in phases.to_dict("records")
    }


def _share_step(step: Mapping[str, Any], elapsed: pd.DataFrame) -> Times:
    """Share the limits of an unprofiled step among its phases like the profiled step's."""
    sums = elapsed.groupby("phase", sort=False).sum(numeric_only=True)
    kernels = sums["kernels_ns"] - sums["compute_ns"]
    split = pd.DataFrame(
        {
            COMPUTE: sums["compute_ns"],
            MEMORY: kernels + sums["copies_ns"],
            COMMUNICATION: sums["communication_ns"],
            CPU: sums[list(IDLE)].sum(axis=1),
        }
    )
    totals = split.sum()
    factors = {name: step[column] / totals[name] if totals[name] else 0.0 for name, column in PARTS.items()}
    return {str(phase): {name: row[name] * factors[name] for name in PARTS} for phase, row in split.iterrows()}


def _merge_small_modules(parts: pd.DataFrame, step_ns: float) -> pd.DataFrame:
    """Merge the modules that take less than LEAST of the step in each phase."""
    largest = parts.groupby(["phase", "module"])["time_ns"].sum().groupby("module").max()
    is_small = (parts["module"].map(largest) < LEAST * step_ns) & (parts["kind"] != WAIT)
    parts = parts.assign(module=parts["module"].mask(is_small, REST))
    return parts.groupby(["phase", "module", "kind"], sort=False)["time_ns"].sum().reset_index()


def _sort(parts: pd.DataFrame) -> pd.DataFrame:
    parts = parts[parts["time_ns"] > 0]
    of_module = parts.groupby(["phase", "module"])["time_ns"].transform("sum")
    return sort_stably(
        parts,
        place(parts["phase"], (*ranges.ALL_PHASES, OUTSIDE, BETWEEN)),
        parts["kind"] == WAIT,
        parts["module"] == REST,
        -of_module,
        parts["module"],
        place(parts["kind"], KINDS),
    )
