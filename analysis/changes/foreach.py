"""An optimizer in lists of tensors (foreach): fewer launches, which move the same bytes."""

from profiler_job.analysis.changes import fused_adamw
from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence, ChangeEvidence, WithheldCode, WithheldError
from profiler_job.analysis.changes.optimizer_code import set_foreach
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "foreach=True, PyTorch's default, for an optimizer that has no fused=True"
ACTION = "Use the foreach optimizer"
LINE = "optimizer = AdamW(parameters, foreach=True)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    known = fused_adamw.find_evidence(seen)
    if known is None or "per_tensor_optimizer" not in seen.findings.index:
        return None
    seen.need_steady()
    finding = seen.findings.loc["per_tensor_optimizer"]
    time_ns = min(seen.estimate_launching(finding["count"]), known.time_ns - float(finding["time_ns"]))
    if time_ns < LEAST * seen.whole_ns:
        raise WithheldError(
            WithheldCode.SAVES_LITTLE,
            "lists of tensors move as many bytes, and the GPU waits next to nothing for these launches",
        )
    sure = "low: where the GPU limited them, recorded optimizers were no faster in lists; a fused one gives more"
    return ChangeEvidence(time_ns, known.ceiling_ns, known.evidence, sure)


def find_edits(program: Program) -> FoundEdits:
    return set_foreach(program)
