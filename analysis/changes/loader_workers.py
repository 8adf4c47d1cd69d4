"""Workers that load data: batches are made while the GPU works."""

from profiler_job.analysis.changes.evidence import LEAST_IDLE, CaptureEvidence, ChangeEvidence
from profiler_job.analysis.changes.loader_code import add_workers
from profiler_job.analysis.changes.script_code import FoundEdits, Program
from profiler_job.jobs.contract.quantities import format_share

CODE = "DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)"
ACTION = "Load data in workers"
LINE = "loader = DataLoader(data, num_workers=4)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    data_ns = seen.sum_parts("data")
    if data_ns < LEAST_IDLE * seen.whole_ns:
        return None
    seen.need_steady()
    seen.need_loader()
    evidence = f"the GPU waits for data, {format_share(data_ns / seen.limit.step_ns)} of the time"
    sure = "medium: the CPU needs cores for them, and what workers do not do stays"
    return ChangeEvidence(data_ns, data_ns, evidence, sure)


def find_edits(program: Program) -> FoundEdits:
    return add_workers(program)
