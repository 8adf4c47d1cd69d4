"""Pinned memory: copies from the CPU's memory that nothing waits for."""

from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence, ChangeEvidence, WithheldCode, WithheldError
from profiler_job.analysis.changes.loader_code import pin_copies
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "DataLoader(..., pin_memory=True) and tensor.to(device, non_blocking=True)"
PLAIN = "copies from pinned memory, asynchronous, on a stream"
ACTION = "Pin the memory of batches"
LINE = "loader = DataLoader(data, pin_memory=True)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    rows = seen.findings[seen.findings.index.isin(["host_to_device", "device_to_host"])]
    rows = rows[rows["evidence"].str.contains("pageable host memory")]
    if rows.empty:
        return None
    seen.need_steady()
    time_ns = min(float(rows["time_ns"].sum()), seen.sum_parts("copies"))
    if time_ns < LEAST * seen.whole_ns:
        raise WithheldError(WithheldCode.SAVES_LITTLE, "kernels hide its copies")
    evidence = "copies from or to pageable memory, while nothing else runs"
    sure = "medium: the copies stay, and hide only behind kernels that do not wait for them"
    return ChangeEvidence(time_ns, time_ns + seen.waiting_ns, evidence, sure)


def find_edits(program: Program) -> FoundEdits:
    return pin_copies(program)
