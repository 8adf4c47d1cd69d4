"""What stands above the tables: facts of the capture, how much is attributed, and what is wrong with it."""

from analysis.capture.summary import Summary
from analysis.show import findings, verdict
from analysis.show.values import printable, shown, time_text
from jobs.contract.words import counted

LONG_COLLECTION = 2
"""A collection is named beside its events where it lasts more than this many times as long."""


def facts_of(summary: Summary) -> list[str]:
    facts, coverage, launches = summary.capture, summary.coverage, summary.launches
    version, schema = (printable(facts[name]) or "unknown" for name in ("nsys_version", "schema_version"))
    lines = verdict.sentences(summary) + findings.sentences(summary)
    lines += [
        f"{_span(facts)}; {counted(len(facts['processes']), 'process')}; "
        f"{counted(facts['num_gpus'], 'GPU')} used; nsys {version}, schema {schema}",
        f"{counted(facts['num_kernels'], 'kernel')} ({time_text(facts['kernel_ns'])}), "
        f"{counted(facts['num_graph_executions'], 'graph execution')} ({time_text(facts['graph_ns'])}), "
        f"{counted(facts['num_api_calls'], 'API call')}, "
        f"{counted(facts['num_ranges'], 'range')} ({facts['num_open_ranges']} left open)",
        coverage_line(coverage, facts, len(summary.sections["phases"]) > 0),
    ]
    if facts["unclassified_share"] is not None:
        lines.append(f"Kernel families: {shown('share', facts['unclassified_share'])} of kernel time in no family")
    if launches["kernels"]:
        lines.append(
            f"Launches: {time_text(launches['latency_median_ns'])} median, "
            f"{time_text(launches['latency_max_ns'])} longest from call to kernel; "
            f"queue {launches['queue_median']:.0f} kernels in the median, {launches['queue_mean']:.1f} on average, "
            f"{launches['queue_max']} at most; empty for {time_text(launches['dry_ns'])} while a GPU idled"
        )
    if unmatched := facts["unmatched_ranges"]:
        names = ", ".join(map(printable, unmatched))
        lines.append(
            f"The largest ranges match no phase ({names}): name them with --phase, such as "
            f"--phase forward={printable(unmatched[0])}"
        )
    problems = summary.sections["problems"].itertuples(index=False)
    lines += [f"Wrong: {what}; {consequence}" for what, consequence in problems]
    return lines


def _span(facts: dict) -> str:
    """How long the events last, and how long nsys collected where that says something else: nsys may have waited long
    for them, or gone on after them."""
    events, collection = facts["events_ns"], facts["duration_ns"]
    if collection <= LONG_COLLECTION * events:
        return f"{time_text(events)} of events"
    return f"{time_text(events)} of events in a collection of {time_text(collection)}"


def coverage_line(coverage: dict, facts: dict, has_phases: bool = True) -> str:
    """The sentence that says how much of the kernel time is attributed, and how; and of how much GPU time that speaks
    where graph executions hide their kernels."""
    if any(value is None for value in coverage.values()):
        line = "Coverage: no kernels to attribute"
    else:
        parts = [f"{shown('share', coverage['exact'])} of kernel time attributed exactly"]
        parts += [f"{shown('share', coverage['linked'])} linked by number"] * bool(coverage["linked"])
        parts += [f"{shown('share', coverage['phase'])} to a phase by time"]
        parts += [f"{shown('share', coverage['inferred'])} inferred"] * bool(coverage["inferred"])
        parts += [f"{shown('share', coverage['none'])} in no {'phase' if has_phases else 'range'}"]
        line = f"Coverage: {', '.join(parts)}"
    if facts["graph_ns"]:
        line += f" (kernel time is {shown('share', facts['kernel_share'])} of GPU time; graphs hide the rest)"
    return line
