"""The findings of a summary as sentences."""

from analysis.capture.summary import Summary
from analysis.show.values import printable, shown, time_text
from jobs.contract.words import counted

MOST = 5
SENTENCES = {
    "fp32_gemms": "FP32 GEMMs on CUDA cores, without tensor cores, take {time}, {share} of kernel time, in {kernels}",
    "unaligned_gemms": (
        "tensor-core GEMMs that load 4 bytes at once or fewer, as where a dimension is not padded, take {time}, "
        "{share} of kernel time, in {kernels}"
    ),
    "unfused_attention": (
        "attention is not fused: what lies between its two matmuls takes {time}, {share} of kernel time, in {kernels}"
    ),
    "casts": "conversions of the data type take {time}, {share} of kernel time, in {kernels}",
    "tensor_copies": "moving elements within the GPU takes {time}, {share} of kernel time, in {kernels}",
    "fills": "writing constants takes {time}, {share} of kernel time, in {kernels}",
    "per_tensor_optimizer": "the optimizer works tensor by tensor: {time}, {share} of kernel time, in {kernels}",
    "communication": "communication, with waiting for other GPUs, takes {time}, {share} of kernel time, in {kernels}",
    "host_to_device": "copies from the host take {time}, {share} of the GPU's span, in {operations}",
    "device_to_host": "copies to the host take {time}, {share} of the GPU's span, in {operations}",
    "device_copies": "copies on the GPU by the driver take {time}, {share} of its span, in {operations}",
    "memsets": "memory sets take {time}, {share} of the GPU's span, in {operations}",
    "waiting_calls": "the host waits for the GPU for {time}, {share} of elapsed time, in {calls}",
    "allocation_calls": (
        "taking memory from the driver and returning it takes the host {time}, {share} of elapsed time, in {calls}"
    ),
    "loading_calls": "loading kernels' code, as in first steps, takes the host {time}, {share} of elapsed time",
    "tiny_kernels": (
        "launches take the host {time}, {share} of elapsed time, and {kernels} are shorter than a launch takes"
    ),
}
"""What is said of each kind of finding. Of idle time the verdict says more."""


def sentences(summary: Summary) -> list[str]:
    """A sentence for each of the findings with most time behind them, MOST at most, with its numbers and evidence."""
    lines = []
    table = summary.sections["findings"]
    for finding in table[table["kind"].isin(list(SENTENCES))].head(MOST).itertuples():
        values = {"time": time_text(finding.time_ns), "share": shown("share", finding.share)}
        values |= {f"{noun}s": counted(finding.count, noun) for noun in ("kernel", "operation", "call")}
        evidence = f" ({printable(finding.evidence)})" if finding.evidence else ""
        lines.append(f"Finding: {SENTENCES[finding.kind].format(**values)}{evidence}")
    return lines
