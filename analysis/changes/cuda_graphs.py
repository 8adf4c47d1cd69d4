"""CUDA graphs: one launch takes the place of thousands."""

from profiler_job.analysis.changes.evidence import (
    LEAST_IDLE,
    CaptureEvidence,
    ChangeEvidence,
    WithheldCode,
    WithheldError,
)

CODE = 'torch.cuda.make_graphed_callables(...), or torch.compile(model, mode="reduce-overhead")'


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    late_ns = seen.sum_parts("late_launch")
    if seen.sum_parts("unknown_idle") >= LEAST_IDLE * seen.whole_ns:
        raise WithheldError(WithheldCode.IDLE_UNEXPLAINED, "it is not known whether the host is why the GPU idles")
    if late_ns < LEAST_IDLE * seen.whole_ns:
        return None
    if seen.is_graphed:
        raise WithheldError(WithheldCode.ALREADY_MADE, "it runs CUDA graphs already")
    seen.need_steady()
    evidence = "the host launches late, and the GPU idles meanwhile"
    if not seen.is_slowed:
        return ChangeEvidence(
            late_ns, seen.waiting_ns, evidence, "medium: shapes must stay the same, and not all can be captured"
        )
    return ChangeEvidence(
        late_ns, seen.waiting_ns, evidence, "low: nsys slows the host, so without it the GPU idles less"
    )
