"""The findings of a summary as sentences."""

import re

import pandas as pd

from profiler_job.analysis.insight.findings import SENTENCES
from profiler_job.analysis.insight.short_names import shorten
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.words import format_count

MOST, LEAST = 5, 3
"""Number of findings that are shown at most, and the number shown whatever their share."""
LEAST_SHARE = 0.03
"""Least share of its whole that a finding after the first LEAST needs to be shown."""
MOST_NAMES, NAME_WIDTH = 2, 36
"""Number of names shown as evidence, and the width of each."""
_ITEM = re.compile(r"(.+): (\d+ in [\d.,]+ \S+)")


def describe_findings(table: pd.DataFrame) -> list[str]:
    """Format a sentence for each of the findings that take most time, MOST at most, with its numbers and evidence. If
    the table has num_steps, as `run_limit.find` gives it, numbers are of one step."""
    lines: list[str] = []
    for finding in table[table["kind"].isin(list(SENTENCES))].head(MOST).itertuples():
        if len(lines) >= LEAST and finding.share < LEAST_SHARE:
            continue
        num_steps = getattr(finding, "num_steps", None)
        time = format_time(finding.time_ns / (num_steps or 1)) + " a step" * (num_steps is not None)
        values = {"time": time, "share": format_cell("share", finding.share)}
        nouns = ("kernel", "operation", "call", "break", "collection")
        values |= {f"{noun}s": format_count(max(round(finding.count / (num_steps or 1)), 1), noun) for noun in nouns}
        evidence = f" ({_shorten_evidence(make_printable(finding.evidence))})" if finding.evidence else ""
        lines.append(f"{SENTENCES[finding.kind].format(**values)}{evidence}")
    return lines


def _shorten_evidence(evidence: str) -> str:
    """Shorten the evidence to its first names, in little room but still different; and its other facts."""
    parts = evidence.split("; ")
    items = [item for item in map(_ITEM.fullmatch, parts) if item][:MOST_NAMES]
    names = shorten([item[1] for item in items], NAME_WIDTH)
    others = [part for part in parts if not _ITEM.fullmatch(part)]
    return "; ".join([*(f"{names[item[1]]}: {item[2]}" for item in items), *others])
