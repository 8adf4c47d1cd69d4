"""Padded dimensions: matmuls that load 16 bytes at once."""

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence
from profiler_job.analysis.changes.padding_code import pad_outputs
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "pad the dimension to a multiple of 64, such as a vocabulary of 50257 to 50304"
PLAIN = CODE
ACTION = "Pad odd dimensions"
LINE = "vocab_size = 64 * math.ceil(vocab_size / 64)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    if "unaligned_gemms" not in seen.findings.index:
        return None
    sure = seen.need_gpu_limited()
    time_ns = float(seen.findings.loc["unaligned_gemms", "time_ns"])
    return ChangeEvidence(
        time_ns, time_ns, "GEMMs load 4 bytes at once or fewer, as where a dimension is not padded", sure
    )


def find_edits(program: Program) -> FoundEdits:
    return pad_outputs(program, CODE)
