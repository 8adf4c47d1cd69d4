"""The lines above the tables: facts of the capture, how much is attributed, and its problems."""

from shlex import quote
from typing import Any

from profiler_job.analysis.capture.capture_data import NOT_USED
from profiler_job.analysis.capture.phase_names import guess_phase, holds_forward_and_backward
from profiler_job.analysis.insight.module_times import describe_modules
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.wait_lines import describe_sampled
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.words import format_count, inflect

LEAST_SAID = 0.0005
"""A share that would be shown as 0.0% is not worth a word."""
FINDING = "Finding: "
"""Before each finding, where all lines are in one list."""
LONG_COLLECTION = 2
"""The collection is shown in addition to its events if it lasts more than this many times as long."""


def format_heads(summary: Summary) -> list[list[str]]:
    """Format the lines above the tables, in groups: what was chosen of the capture, where the time of each GPU goes and
    which lines of the script it waits for; what communication costs; findings; the facts. If sections are chosen, only
    what was chosen, and the problems of the capture."""
    chosen = describe_selection(summary.capture["selection"])
    only = [f"only: {chosen}"] * bool(chosen)
    if len(summary.shown) < len(SECTIONS):
        return [only + _format_problems(summary)]
    said = summary.insight.sentences
    groups = [
        only + said.verdict + said.waits,
        said.communication,
        [f"{FINDING}{line}" for line in said.findings],
        format_facts(summary),
    ]
    return [group for group in groups if group]


def format_note(summary: Summary, section: str) -> str:
    """Format the hint below the table of a section; "" if none is needed."""
    notes = []
    other_threads = sum(summary.coverage[name] or 0 for name in ("linked", "phase"))
    if section == "ranges" and other_threads >= LEAST_SAID:
        what = "A range has what its own thread launched"
        notes.append(f"{what}. A phase has more: what autograd launched for it from other threads")
    if section == "modules":
        notes += describe_modules(summary.sections["modules"])
    if section == "waits" and summary.capture["num_samples"]:
        notes.append(f"Times are sums over {describe_sampled(summary.capture)}")
    processes = len(summary.capture["processes"])
    if section in _WITH_HOST_TIMES and processes > 1:
        hint = ": --gpu 0 shows one GPU" if summary.capture["num_gpus"] > 1 else ""
        notes.append(f"Times on the host are sums over {processes} processes, for which they pass together{hint}")
    return ". ".join(notes)


_WITH_HOST_TIMES = ("ranges", "api", "syncs")


def format_facts(summary: Summary) -> list[str]:
    facts, coverage, launches = summary.capture, summary.coverage, summary.launches
    version, schema = (make_printable(facts[name]) or "unknown" for name in ("nsys_version", "schema_version"))
    exporter = schema if version == NOT_USED else f"nsys {version}, schema {schema}"
    lines = [
        f"{_format_span(facts)}; {format_count(len(facts['processes']), 'process')}; "
        f"{format_count(facts['num_gpus'], 'GPU')} used; {exporter}",
        _format_counts(facts),
        describe_coverage(coverage, facts, len(summary.sections["phases"]) > 0),
    ]
    if (facts["unclassified_share"] or 0) >= LEAST_SAID:
        lines.append(
            f"Kernel families: {format_cell('share', facts['unclassified_share'])} of kernel time in no family"
        )
    if launches["kernels"]:
        queue = format_count(round(launches["queue_median"]), "kernel")
        lines.append(
            f"Launches: {format_time(launches['latency_median_ns'])} median, "
            f"{format_time(launches['latency_max_ns'])} longest from call to kernel; "
            f"queue {queue} in the median, {launches['queue_mean']:.1f} on average, "
            f"{launches['queue_max']} at most{_format_dry(launches['dry_ns'], facts['num_gpus'])}"
        )
    if unmatched := facts["unmatched_ranges"]:
        names = ", ".join(map(make_printable, unmatched))
        if both := [name for name in unmatched if holds_forward_and_backward(name)]:
            named = ", ".join(map(make_printable, both))
            lines.append(f"Forward and backward together are in the range {named}: its kernels are of neither by name")
        lines.append(
            f"The largest ranges match no phase ({names}): name them with --phase, such as "
            f"--phase {quote(f'{guess_phase(unmatched[0]) or _ANY_PHASE}={make_printable(unmatched[0])}')}"
        )
    return lines + _format_problems(summary)


_ANY_PHASE = "PHASE"
"""In place of a phase that the name of a range does not show."""


def _format_problems(summary: Summary) -> list[str]:
    problems = summary.sections["problems"].itertuples(index=False)
    return [f"Wrong: {what}; {consequence}" for what, consequence in problems]


def _format_counts(facts: dict[str, Any]) -> str:
    """Format the number of everything that the capture has."""
    parts = [f"{format_count(facts['num_kernels'], 'kernel')} ({format_time(facts['kernel_ns'])})"]
    if facts["num_graph_executions"]:
        parts.append(
            f"{format_count(facts['num_graph_executions'], 'graph execution')} ({format_time(facts['graph_ns'])})"
        )
    left_open = f" ({facts['num_open_ranges']} left open)" if facts["num_open_ranges"] else ""
    parts += [
        format_count(facts["num_api_calls"], "API call"),
        f"{format_count(facts['num_ranges'], 'range')}{left_open}",
    ]
    return ", ".join(parts)


def _format_dry(dry_ns: int | None, num_gpus: int) -> str:
    """Format how long the queue was empty while a GPU idled; nothing if that is not known, as for a range."""
    if dry_ns is None:
        return ""
    return f"; empty for {format_time(dry_ns)} while a GPU idled" + f", summed over {num_gpus} GPUs" * (num_gpus > 1)


def describe_selection(selection: dict[str, Any]) -> str:
    """Describe what was chosen of the capture; "" if all of it was."""
    parts = []
    if "gpu" in selection:
        parts.append(f"GPU {selection['gpu']}")
    if "range" in selection:
        parts.append(f"range {make_printable(selection['range'])}")
    if "start_ns" in selection:
        start, end = (f"{selection[name] / 1e6:.9g}" for name in ("start_ns", "end_ns"))
        after = "after start-up (--whole shows it, too): " if selection.get("after_startup") else ""
        parts.append(f"{after}{start} to {end} ms")
    if "sections" in selection:
        parts.append(f"{inflect(len(selection['sections']), 'section')} {', '.join(selection['sections'])}")
    return "; ".join(parts)


def _format_span(facts: dict[str, Any]) -> str:
    """Format how long the events last, and how long nsys collected if that differs: nsys may have waited long for them,
    or continued after them."""
    events, collection = facts["events_ns"], facts["duration_ns"]
    if collection <= LONG_COLLECTION * events:
        return f"{format_time(events)} of events"
    return f"{format_time(events)} of events in a collection of {format_time(collection)}"


def describe_coverage(coverage: dict[str, Any], facts: dict[str, Any], has_phases: bool = True) -> str:
    """Format the sentence about how much of the kernel time is attributed, and how. If graph executions hide their
    kernels, it also gives the share of the GPU time that this covers."""
    if any(value is None for value in coverage.values()):
        line = "Coverage: no kernels to attribute"
    else:
        nowhere = "in no phase" if has_phases else "in no range"
        words = {"exact": "attributed exactly", "early": "to a launch after its start", "linked": "linked by number"}
        words |= {"phase": "to a phase by time", "inferred": "inferred", "none": nowhere}
        parts = [
            f"{format_cell('share', coverage[name])} {word}"
            for name, word in words.items()
            if coverage[name] >= LEAST_SAID
        ]
        parts[0] = parts[0].replace("%", "% of kernel time", 1)
        line = f"Coverage: {', '.join(parts)}"
    if facts["graph_ns"]:
        line += f" (kernel time is {format_cell('share', facts['kernel_share'])} of GPU time; graphs hide the rest)"
    return line
