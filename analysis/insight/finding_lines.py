"""The findings of a summary as sentences."""

import re

import pandas as pd

from profiler_job.analysis.insight.short_names import shorten
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.words import format_count

FINDING = "Finding: "
MOST, LEAST = 5, 3
"""Number of findings that are shown at most, and the number shown whatever their share."""
LEAST_SHARE = 0.03
"""Least share of its whole that a finding after the first LEAST needs to be shown."""
MOST_NAMES, NAME_WIDTH = 2, 36
"""Number of names shown as evidence, and the width of each."""
_ITEM = re.compile(r"(.+): (\d+ in [\d.,]+ \S+)")
SENTENCES = {
    "fp32_gemms": "FP32 GEMMs run without tensor cores: {time}, {share} of kernel time, {kernels}",
    "unaligned_gemms": (
        "GEMMs load 4 bytes at once or fewer, as where a dimension is not padded: {time}, {share} of kernel time, "
        "{kernels}"
    ),
    "unfused_attention": ("attention is not fused: {time} between its two matmuls, {share} of kernel time, {kernels}"),
    "casts": "kernels only convert the data type: {time}, {share} of kernel time, {kernels}",
    "tensor_copies": "kernels only move elements: {time}, {share} of kernel time, {kernels}",
    "fills": "kernels only write constants: {time}, {share} of kernel time, {kernels}",
    "per_tensor_optimizer": "the optimizer works tensor by tensor: {time}, {share} of kernel time, {kernels}",
    "communication": "GPUs exchange data, or wait for each other to do so: {time}, {share} of kernel time, {kernels}",
    "host_to_device": "data is copied from the host: {time}, {share} of the GPU's span, {operations}",
    "device_to_host": "data is copied to the host: {time}, {share} of the GPU's span, {operations}",
    "device_copies": "the driver copies on the GPU: {time}, {share} of the GPU's span, {operations}",
    "memsets": "the driver sets memory: {time}, {share} of the GPU's span, {operations}",
    "waiting_calls": "the host waits for the GPU: {time}, {share} of elapsed time, {calls}",
    "allocation_calls": (
        "the host takes memory from the driver, or returns it: {time}, {share} of elapsed time, {calls}"
    ),
    "loading_calls": "the host loads kernels' code, as in first steps: {time}, {share} of elapsed time, {calls}",
    "tiny_kernels": (
        "launching takes longer than running, for {kernels}: {time}, {share} of elapsed time, in launch calls"
    ),
}
"""The text of each kind of finding: its meaning, then its numbers. The verdict has more about idle time."""


def describe_findings(table: pd.DataFrame) -> list[str]:
    """Format a sentence for each of the findings that take most time, MOST at most, with its numbers and evidence."""
    lines: list[str] = []
    for finding in table[table["kind"].isin(list(SENTENCES))].head(MOST).itertuples():
        if len(lines) >= LEAST and finding.share < LEAST_SHARE:
            continue
        values = {"time": format_time(finding.time_ns), "share": format_cell("share", finding.share)}
        values |= {f"{noun}s": format_count(finding.count, noun) for noun in ("kernel", "operation", "call")}
        evidence = f" ({_shorten_evidence(make_printable(finding.evidence))})" if finding.evidence else ""
        lines.append(f"{FINDING}{SENTENCES[finding.kind].format(**values)}{evidence}")
    return lines


def _shorten_evidence(evidence: str) -> str:
    """Shorten the evidence to its first names, in little room but still different; and its other facts."""
    parts = evidence.split("; ")
    items = [item for item in map(_ITEM.fullmatch, parts) if item][:MOST_NAMES]
    names = shorten([item[1] for item in items], NAME_WIDTH)
    others = [part for part in parts if not _ITEM.fullmatch(part)]
    return "; ".join([*(f"{names[item[1]]}: {item[2]}" for item in items), *others])
