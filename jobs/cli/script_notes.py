"""What a reader has to know of a script that was measured: what its steps are, and what is not known."""

from pathlib import Path
from statistics import median
from typing import Any

from profiler_job.jobs.contract.compiling import Compiling
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_quantity, format_share, format_time
from profiler_job.jobs.contract.words import format_count, inflect
from profiler_job.jobs.executor.script_loops import choose_loops, describe_loop
from profiler_job.jobs.executor.script_memory import list_savings, name_kind

MOST_GRAPHS = 4
MOST_BREAKS = 10
LEAST_WAIT = 0.01
MOST_OWNERS = 4
MOST_KINDS = 3


def describe_script(noted: dict[str, Any]) -> list[str]:
    """Return lines on what was noted of a script that a reader has to know. noted: of its first rank."""
    return [
        *describe_generation(noted),
        *describe_evaluation(noted),
        *describe_unknown_batch(noted),
        *describe_skipped(noted),
        *describe_compiled(noted.get("compiling", Compiling()), noted["compiled"]),
        *describe_captured(noted),
        *describe_other_loops(noted),
        *describe_batches(noted),
        *describe_collections(noted),
        *describe_samples(noted),
    ]


def describe_memory(noted: dict[str, Any]) -> list[str]:
    """Return lines on the memory of a step: whom it belongs to at its peak, what forward saves for backward, what would
    free it, and why some of it is not known."""
    memory = noted.get("memory_owners", {})
    lines = []
    if owners := memory.get("owners"):
        peak = memory["peak_bytes"]
        ranked = sorted(owners.items(), key=lambda owner: -owner[1])
        parts = ", ".join(f"{name} {format_share(size / peak)}" for name, size in ranked[:MOST_OWNERS])
        where = f", in {memory['phase']}" if memory["phase"] else ""
        lines.append(f"at its peak of {format_quantity('bytes', peak)}{where}, memory holds {parts}")
    if kinds := memory.get("saved"):
        largest = "; ".join(
            f"{format_quantity('bytes', kind['bytes'] * kind['num'])} by {name_kind(kind)}"
            for kind in kinds[:MOST_KINDS]
        )
        saved = format_quantity("bytes", memory["saved_bytes"])
        lines.append(f"forward saves {saved} for backward, most of it {make_printable(largest)}")
    if savings := list_savings(noted):
        freed = ", ".join(f"{change} {format_quantity('bytes', size)}" for change, size in savings.items())
        lines.append(f"at the peak these would free at most: {freed}")
    return lines + [f"not known of its memory: {make_printable(problem)}" for problem in memory.get("problems", ())]


def describe_batches(noted: dict[str, Any]) -> list[str]:
    """Return a line on the time that a step waits for its DataLoaders, if that is LEAST_WAIT of a step without a
    profiler."""
    if not (batches := noted.get("batches")):
        return []
    step_ns = median(step["wall_ns"] for step in noted["steps"])
    if batches["ns"] < LEAST_WAIT * step_ns:
        return []
    spent = f"{format_time(batches['ns'])} of a step of {format_time(step_ns)}"
    if len(lines := noted.get("batch_lines", ())) < 2:
        return [f"the DataLoader takes {spent}, with {describe_workers(batches)}"]
    parts = [
        f"{format_time(line['ns'])} in {make_printable(Path(line['file']).name)}:{line['line']} with "
        f"{describe_workers(line['workers'])}"
        for line in lines
    ]
    return [f"{len(lines)} lines take batches of DataLoaders for {spent}: {'; '.join(parts)}"]


def describe_workers(loader: dict[str, Any]) -> str:
    workers = format_count(loader["num_workers"], "worker") if loader["num_workers"] else "no workers"
    memory = "pinned" if loader["is_pinned"] else "pageable"
    take = "takes" if loader["num_workers"] == 1 else "take"
    each = f" that {take} {format_time(loader['worker_ns'])} for a batch" if loader.get("worker_ns") else ""
    return f"{workers}{each} and {memory} memory"


def describe_collections(noted: dict[str, Any]) -> list[str]:
    """Return a line on Python's collections of garbage, if they take LEAST_WAIT of a captured step."""
    garbage, walls = noted.get("garbage"), noted.get("captured_ns")
    if not garbage or not walls or garbage["ns"] < LEAST_WAIT * median(walls):
        return []
    often = f"{garbage['num']:.2g} {inflect(garbage['num'], 'time')}"
    return [f"Python collects garbage {often} a step, which takes the CPU {format_time(garbage['ns'])}"]


def describe_samples(noted: dict[str, Any]) -> list[str]:
    """Return a line on the samples of Python: how slow their steps were, or why there are none."""
    samples = noted.get("samples", {})
    if walls := samples.get("captured_ns"):
        num = format_count(samples["num_samples"], "sample")
        alone = median(step["wall_ns"] for step in noted["steps"])
        slower = f"{format_time(median(walls))}, {median(walls) / alone:.1f} times a step alone"
        return [f"{num} of its Python, in steps that take {slower}: no time is taken from them"]
    return [f"no samples of its Python: {samples['why_not']}"] if samples.get("why_not") else []


def describe_generation(noted: dict[str, Any]) -> list[str]:
    """Return lines on the prefill and the decode steps of a script that generates text."""
    lines = []
    for kind, step in (("prefill", "a prefill"), ("decode", "a token")):
        if walls := [step["wall_ns"] for step in noted["steps"] if step.get("kind") == kind]:
            rate = sum(step["tokens"] for step in noted["steps"] if step["kind"] == kind) * 1e9 / sum(walls)
            lines.append(f"{kind}: {format_time(median(walls))} {step}, {rate:,.0f} tokens/s")
    if not lines or lines[0].startswith("prefill"):
        return lines
    captured = [
        wall for wall, (kind, _) in zip(noted["captured_ns"], noted["captured_kinds"], strict=True) if kind == "prefill"
    ]
    known = f"{format_time(median(captured))} in a captured step, and" if captured else "neither captured nor"
    return [f"prefill: {known} not timed alone, since the script begins too few texts", *lines]


def describe_evaluation(noted: dict[str, Any]) -> list[str]:
    """Return a line if the trained model was called without gradients in captured steps."""
    if not (num := noted["evaluations"]):
        return []
    return [f"evaluation: {format_count(num, 'call')} without gradients in the captured steps, a phase of its own"]


def describe_other_loops(noted: dict[str, Any]) -> list[str]:
    """Return a line for each loop before the first update of an optimizer, which was not measured."""
    if not noted["optimizers"]:
        return []
    return [
        f"before the first update there are {describe_loop(loop)}: --step {loop['kind']} --skip {loop['before']}"
        " measures them"
        for loop in choose_loops(noted["loops"])
    ]


def describe_unknown_batch(noted: dict[str, Any]) -> list[str]:
    """Return a line if a step trains several models, so that their inputs are not one batch, or if batches differ."""
    if (num := noted["trained_models"]) > 1:
        return [f"batch and tokens are not known: a step trains {format_count(num, 'model')}"]
    has_generated = any(step.get("kind") for step in noted["steps"])
    if noted.get("num_batches", 0) > 1 and not has_generated:
        return ["batches of the captured steps differ in size: samples and tokens of a step are their median"]
    return []


def describe_skipped(noted: dict[str, Any]) -> list[str]:
    """Return a line if the gradient scaler skipped updates."""
    if not (num := noted["skipped_updates"]):
        return []
    updates = format_count(num, "update")
    return [f"the gradient scaler skipped {updates}: the gradients were not finite"]


def describe_compiled(compiling: Compiling, is_compiled: bool) -> list[str]:
    """Return lines on torch.compile: how long it took, where graphs broke, which ends a compiled region, graphs that it
    compiled in measured steps, and why modules are not known. is_compiled: what it made ran in the steps."""
    lines = []
    if compiling.seconds:
        why = "" if compiling.cached_graphs else ", as in each start: PyTorch's cache of graphs is not read"
        lines.append(f"torch.compile took {compiling.seconds:.0f} s{why}")
    if num := compiling.cached_graphs:
        lines.append(f"torch.compile took {format_count(num, 'graph')} from a cache, which do not say their modules")
    for each in compiling.breaks[:MOST_BREAKS]:
        where = f" at {each.where}" if each.where else ""
        lines.append(f"torch.compile broke a graph{where}: {each.reason}")
    if (more := len(compiling.breaks) - MOST_BREAKS) > 0:
        lines.append(f"and {format_count(more, 'more graph break')}: the site lists all")
    if num := compiling.late_graphs:
        lines.append(f"torch.compile compiled {format_count(num, 'graph')} in the measured steps: skip more steps")
    last = {(each.function, each.where): each for each in compiling.recompilations}
    for again in [*last.values()][:MOST_BREAKS]:
        place = f"{again.function} ({again.where})" if again.where else again.function
        how = "too often and gave it up" if again.gave_up else "again in measured steps"
        lines.append(f"torch.compile compiled {place} {how}: {again.reason}")
    if why := compiling.compiled_autograd:
        lines.append(f"compiled autograd runs backward as a graph: its kernels are in one line, not by module ({why})")
    if compiling.errors or (is_compiled and compiling.graphs == 0):
        which = "some graphs do not say" if compiling.graphs else "no graph of Inductor says"
        errors = f" ({'; '.join(compiling.errors)})" if compiling.errors else ""
        lines.append(f"torch.compile: {which} which module is in which kernel{errors}")
    return list(map(make_printable, lines))


def describe_captured(noted: dict[str, Any]) -> list[str]:
    """Return lines on CUDA graphs that the script captured itself."""
    lines = []
    if sizes := [num for num in noted["captured_graphs"] if num]:
        numbers = ", ".join(f"{num:,}" for num in sizes[:MOST_GRAPHS]) + (", ..." if len(sizes) > MOST_GRAPHS else "")
        lines.append(f"the script captured {format_count(len(sizes), 'CUDA graph')}, of {numbers} operations")
    if why := noted["captured_graphs_error"]:
        lines.append(f"operations of a CUDA graph have no modules: the driver does not show its nodes ({why})")
    return lines
