"""TF32: matmuls of FP32 numbers on tensor cores."""

from profiler_job.analysis.changes.code_places import set_matmul_precision
from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = 'torch.set_float32_matmul_precision("high")'
PLAIN = "TF32 in the matmuls of cuBLAS, as CUBLAS_COMPUTE_32F_FAST_TF32"
ACTION = "Allow TF32"
LINE = 'torch.set_float32_matmul_precision("high")'


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    if "fp32_gemms" not in seen.findings.index:
        return None
    seen.need_precision("tf32")
    sure = seen.need_gpu_limited()
    time_ns = float(seen.findings.loc["fp32_gemms", "time_ns"])
    return ChangeEvidence(time_ns, time_ns, "GEMMs run in FP32, without tensor cores", sure)


def find_edits(program: Program) -> FoundEdits:
    return set_matmul_precision(program, CODE)
