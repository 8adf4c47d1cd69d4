"""BF16 autocast: matmuls in 16 bits."""

from profiler_job.analysis.changes.evidence import (
    LEAST_MATMULS,
    CaptureEvidence,
    ChangeEvidence,
    WithheldCode,
    WithheldError,
)
from profiler_job.analysis.changes.model_code import add_autocast
from profiler_job.analysis.changes.script_code import FoundEdits, Program
from profiler_job.jobs.contract.ranges import OPTIMIZER

CODE = 'with torch.autocast("cuda", dtype=torch.bfloat16): around forward pass and loss'
PLAIN = "matmuls in BF16 that add up in FP32"
ACTION = "Use BF16 autocast"
LINE = 'with torch.autocast("cuda", torch.bfloat16):'


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    times, wide = seen.sum_matmuls(), seen.sum_wide_matmuls()
    time_ns = sum(wide.values())
    if time_ns < LEAST_MATMULS * seen.sum_parts("kernels"):
        return None
    if any(times.get(path) for path in ("bf16", "fp16", "fp8")):
        raise WithheldError(
            WithheldCode.ALREADY_MADE, "some of its GEMMs are in 16 bits already: the others may be in FP32 on purpose"
        )
    seen.need_precision("bf16")
    sure = seen.need_gpu_limited()
    other_ns = seen.sum_parts("kernels") - seen.measure_phase(OPTIMIZER)[0]
    evidence = "GEMMs run in " + " and ".join(path.upper() for path in sorted(wide))
    return ChangeEvidence(time_ns, max(other_ns, time_ns), evidence, sure + ", and casts are added")


def find_edits(program: Program) -> FoundEdits:
    return add_autocast(program)
