"""Fewer synchronisations: the CPU runs ahead of the GPU."""

from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence, ChangeEvidence

CODE = "call .item(), .cpu() and print(loss) once in many steps"
PLAIN = "read results from the GPU once in many steps"
ACTION = "Synchronise less often"
LINE = "if step % 100 == 0: print(loss.item())"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    elsewhere = sum(line.sync_share for line in seen.lines if not line.is_synchronisation)
    sync_ns = seen.sum_parts("sync") * (1 - elsewhere)  # the advice of these lines is for it, such as to print less
    if sync_ns < LEAST * seen.whole_ns:
        return None
    seen.need_steady()
    ceiling_ns = seen.waiting_ns + seen.sum_parts("copies")
    sure = "medium: a measured step ends in one, and the host must be fast enough to run ahead"
    return ChangeEvidence(sync_ns, ceiling_ns, "the GPU idles while the host waits in a synchronisation", sure)
