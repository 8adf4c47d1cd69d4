"""Print what CUDA events measured of a followed script: its step, phases and modules."""

import re
from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.find_nsys import HOW_TO_INSTALL
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_quantity, format_share, format_time
from profiler_job.jobs.contract.step_limit import (
    CPU,
    DATA,
    GPU,
    LAUNCHES,
    LEAST_INTERVAL,
    StepLimit,
    describe_limit,
)
from profiler_job.jobs.contract.words import format_count
from profiler_job.jobs.executor.script import infer_batch

MOST_MODULES = 12
UNNAMED = "(outside any module)"
NOT_SHOWN = (
    "Not shown, since CUDA events see no kernel: kernels, the fraction of matmuls, and where within a phase the GPU"
    f" waits. That takes nsys: {HOW_TO_INSTALL}."
)
NOT_SHOWN_ON_CPU = (
    "Not shown, since the script used no GPU: memory, what limits the step, and kernels. Start the same command on a"
    " machine with a GPU; for kernels leave out --collector events there, which takes nsys."
)


def print_summary(noted: dict[str, Any], console: Console) -> None:
    """Print the step of a script, its throughput, memory and limit, then its phases and modules. noted: what a rank
    noted with events (see `jobs.follow.follow`)."""
    walls = [step["wall_ns"] for step in noted["steps"]]
    step_ns = median(walls)
    clock = "the CPU's clock, since the script used no GPU" if not noted["gpu_memory_bytes"] else noted["gpu_name"]
    spread = f"median of {len(walls)}, {format_time(min(walls))} to {format_time(max(walls))}"
    console.print(f"A step takes {format_time(step_ns)} ({spread}) on {clock}.", soft_wrap=True, markup=False)
    sequences, tokens = infer_batch(noted)
    if sequences and step_ns:
        amount, unit = (tokens, "tokens") if tokens else (sequences, "samples")
        rate = f"{amount * 1e9 / step_ns:,.0f} {unit}/s"
        console.print(f"Throughput: {rate}, {amount:,} {unit} a step.", soft_wrap=True, markup=False)
    if peak := max((row["peak_allocated_bytes"] for row in noted["memory"]), default=0):
        where = max(noted["memory"], key=lambda row: row["peak_allocated_bytes"])["phase"]
        most, capacity = (format_quantity("bytes", size) for size in (peak, noted["gpu_memory_bytes"]))
        text = f"Memory: {most} allocated at most, in {where}, of {capacity}."
        console.print(text, soft_wrap=True, markup=False)
    phases, profiled_ns = average_phases(noted["phases"]), noted["profiled_ns"]
    if noted["gpu_memory_bytes"]:
        console.print(format_limit(phases, noted["compiled"]), soft_wrap=True, markup=False)
    console.print(build_phase_table(phases, profiled_ns, with_limit=bool(noted["gpu_memory_bytes"])))
    console.print(build_module_table(noted["modules"]))
    missing = NOT_SHOWN if noted["gpu_memory_bytes"] else NOT_SHOWN_ON_CPU
    console.print(missing, soft_wrap=True, markup=False)


def average_phases(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the phases in the order of a step, each with the medians over steps: wall_ns, issue_ns, and lag_ns, how
    far the GPU was behind at its end; and sum_ns, its time in all steps. Phases that come several times in a step are
    added up."""
    steps: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        sums = steps.setdefault(row["phase"], {}).setdefault(row["step"], [0.0, 0.0, 0.0])
        sums[0] += row["wall_ns"]
        sums[1] += row["issue_ns"]
        sums[2] = row["lag_ns"]
    return [
        {"phase": phase, "sum_ns": sum(wall for wall, _, _ in of_steps.values())}
        | dict(zip(("wall_ns", "issue_ns", "lag_ns"), map(median, zip(*of_steps.values()))))
        for phase, of_steps in steps.items()
    ]


def find_limit(phases: Iterable[dict[str, Any]]) -> StepLimit:
    """Find what limits phases: the GPU if it still has work of a phase to do when the CPU has launched all of it, else
    the CPU, by its launches or by data."""
    parts, causes = dict.fromkeys((GPU, CPU), 0.0), dict.fromkeys((LAUNCHES, DATA), 0.0)
    for phase in phases:
        is_behind = phase["lag_ns"] > LEAST_INTERVAL * phase["wall_ns"]
        parts[GPU if is_behind else CPU] += phase["wall_ns"]
        if not is_behind:
            causes[DATA if phase["phase"] == ranges.DATA else LAUNCHES] += phase["wall_ns"]
    return StepLimit(parts, causes)


def format_limit(phases: list[dict[str, Any]], is_compiled: bool = False) -> str:
    """Format what limits the step, and what to do if the CPU does. is_compiled: torch.compile compiled it."""
    limit = find_limit(phases)
    compiling = "" if is_compiled else "torch.compile, "
    advice = f" Launch less: {compiling}CUDA graphs, larger batches." if limit.is_launches else ""
    return f"The step is {describe_limit(limit)} (its phases).{advice}"


def build_phase_table(phases: list[dict[str, Any]], steps_ns: list[float], with_limit: bool) -> Table:
    """Return the table of phases. steps_ns: of the steps in which they were timed, of which a share is; a phase need
    not come in each."""
    title = f"Phases, in a step that times them, too: {format_time(median(steps_ns))}"
    table = Table("phase", title=title, title_justify="left")
    for heading in ("time", "share", "CPU"):
        table.add_column(heading, justify="right")
    if with_limit:
        table.add_column("limit")
    all_ns = sum(steps_ns) or 1
    for phase in phases:
        limit = [find_limit([phase]).name] if with_limit else []
        times = (format_time(phase["wall_ns"]), format_share(phase["sum_ns"] / all_ns), format_time(phase["issue_ns"]))
        table.add_row(phase["phase"], *times, *limit)
    return table


def build_module_table(rows: Iterable[dict[str, Any]]) -> Table:
    """Return the table of the modules that take most time; the layers of a list are one row."""
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        key = re.sub(r"\.\d+(?=/|$| )", ".*", row["module"]) or UNNAMED, row["phase"]
        totals[key][0] += row["alone_ns"]
        totals[key][1] += row["calls"]
    all_ns = sum(alone for alone, _ in totals.values()) or 1
    ranked = sorted(totals.items(), key=lambda item: -item[1][0])
    title = f"Modules, each without those inside it, in a step that times them, too: {format_time(all_ns)}"
    table = Table(title=title, title_justify="left")
    table.add_column("module", overflow="fold")
    table.add_column("phase", no_wrap=True)
    for heading in ("time", "share", "ranges"):
        table.add_column(heading, justify="right")
    others = ranked[MOST_MODULES:]
    for (module, phase), (alone, calls) in ranked[:MOST_MODULES]:
        table.add_row(make_printable(module), phase, format_time(alone), format_share(alone / all_ns), f"{calls:,}")
    if others:
        alone = sum(alone for _, (alone, _) in others)
        table.add_row(f"{format_count(len(others), 'other')}", "", format_time(alone), format_share(alone / all_ns), "")
    return table
