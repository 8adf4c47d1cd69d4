"""What stands above the tables: facts of the capture, how much is attributed, and what is wrong with it."""

from analysis.capture.summary import Summary
from analysis.show.values import printable, shown, time_text
from jobs.contract.words import counted, noun_of

LONG_COLLECTION = 2
"""A collection is named beside its events where it lasts more than this many times as long."""


def facts_of(summary: Summary) -> list[str]:
    facts, coverage, launches = summary.capture, summary.coverage, summary.launches
    version, schema = (printable(facts[name]) or "unknown" for name in ("nsys_version", "schema_version"))
    lines = [f"only: {selected}"] if (selected := selection_text(facts["selection"])) else []
    lines += [
        f"{_span(facts)}; {counted(len(facts['processes']), 'process')}; "
        f"{counted(facts['num_gpus'], 'GPU')} used; nsys {version}, schema {schema}",
        f"{counted(facts['num_kernels'], 'kernel')} ({time_text(facts['kernel_ns'])}), "
        f"{counted(facts['num_graph_executions'], 'graph execution')} ({time_text(facts['graph_ns'])}), "
        f"{counted(facts['num_api_calls'], 'API call')}, "
        f"{counted(facts['num_ranges'], 'range')} ({facts['num_open_ranges']} left open)",
        coverage_line(coverage, facts),
    ]
    if facts["unclassified_share"] is not None:
        lines.append(f"Kernel families: {shown('share', facts['unclassified_share'])} of kernel time in no family")
    if launches["kernels"]:
        lines.append(
            f"Launches: {time_text(launches['latency_median_ns'])} median, "
            f"{time_text(launches['latency_max_ns'])} longest from call to kernel; "
            f"queue {launches['queue_mean']:.1f} kernels on average, {launches['queue_max']} at most"
        )
    problems = summary.sections["problems"].itertuples(index=False)
    lines += [f"Wrong: {what}; {consequence}" for what, consequence in problems]
    return lines


def selection_text(selection: dict) -> str:
    """What was chosen of the capture; "" where all of it was."""
    parts = []
    if "gpu" in selection:
        parts.append(f"GPU {selection['gpu']}")
    if "range" in selection:
        parts.append(f"range {printable(selection['range'])}")
    if "start_ns" in selection:
        start, end = (f"{selection[name] / 1e6:.9g}" for name in ("start_ns", "end_ns"))
        parts.append(f"{start} to {end} ms")
    if "sections" in selection:
        parts.append(f"{noun_of(len(selection['sections']), 'section')} {', '.join(selection['sections'])}")
    return "; ".join(parts)


def _span(facts: dict) -> str:
    """How long the events last, and how long nsys collected where that says something else: nsys may have waited long
    for them, or gone on after them."""
    events, collection = facts["events_ns"], facts["duration_ns"]
    if collection <= LONG_COLLECTION * events:
        return f"{time_text(events)} of events"
    return f"{time_text(events)} of events in a collection of {time_text(collection)}"


def coverage_line(coverage: dict, facts: dict) -> str:
    """The sentence that says how much of the kernel time is attributed, and how; and of how much GPU time that speaks
    where graph executions hide their kernels."""
    if any(value is None for value in coverage.values()):
        line = "Coverage: no kernels to attribute"
    else:
        exact, phase, none = (shown("share", coverage[name]) for name in ("exact", "phase", "none"))
        line = f"Coverage: {exact} of kernel time attributed exactly, {phase} to a phase by time, {none} not attributed"
    if facts["graph_ns"]:
        line += f" (kernel time is {shown('share', facts['kernel_share'])} of GPU time; graphs hide the rest)"
    return line
