"""CUDA graphs: one launch takes the place of thousands."""

from profiler_job.analysis.changes import compile
from profiler_job.analysis.changes.evidence import (
    LEAST_IDLE,
    CaptureEvidence,
    ChangeEvidence,
    WithheldCode,
    WithheldError,
)
from profiler_job.analysis.changes.model_code import compile_models
from profiler_job.analysis.changes.script_code import FoundEdits, Program
from profiler_job.jobs.contract.quantities import format_share

CODE = 'torch.cuda.make_graphed_callables(...), or torch.compile(model, mode="reduce-overhead")'
COMPILED = 'torch.compile(model, mode="reduce-overhead")'
RECORDED = COMPILED
PLAIN = "capture one step in a CUDA graph, and launch the graph"
NEEDS = (
    "shapes must stay the same, not all can be captured, and a model that keeps a tensor from one call to the next, as "
    "a mask, ends with an error"
)
"""PyTorch's example of a word language model keeps its mask, which the next replay of the graph overwrites."""
ACTION = "Use CUDA graphs"
LINE = 'model = torch.compile(model, mode="reduce-overhead")'


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    late_ns = seen.late_launches_ns
    if seen.limit.is_launches:
        late_ns += seen.sum_parts("between")  # fewer launches leave fewer gaps
    if seen.sum_parts("unknown_idle") >= LEAST_IDLE * seen.whole_ns:
        raise WithheldError(WithheldCode.IDLE_UNEXPLAINED, "it is not known whether the GPU idles because of the CPU")
    if late_ns < LEAST_IDLE * seen.whole_ns:
        return None
    if seen.is_graphed:
        raise WithheldError(WithheldCode.ALREADY_MADE, "it runs CUDA graphs already")
    seen.need_steady()
    waited = format_share(late_ns / seen.limit.step_ns)
    gaps = ", and in the gaps between them" if seen.limit.is_launches and seen.sum_parts("between") else ""
    evidence = f"the GPU waits for the launches of {seen.num_kernels:,.0f} kernels{gaps}, {waited} of the time"
    sure = f"medium: {NEEDS}"
    if seen.is_slowed:
        sure = "low: nsys slows the host, so without it the GPU idles less"
    is_to_compile = seen.has_pytorch and not seen.is_compiled
    ceiling_ns = compile.measure_ceiling(seen) if is_to_compile else seen.waiting_for_launches_ns
    return ChangeEvidence(min(late_ns, ceiling_ns), ceiling_ns, evidence, sure)


def find_edits(program: Program) -> FoundEdits:
    return compile_models(program, 'mode="reduce-overhead"', copies_gradients=program.keeps_gradients)
