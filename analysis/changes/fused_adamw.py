"""A fused optimizer: few kernels that update all parameters."""

import pandas as pd

from profiler_job.analysis.changes.code_places import set_trainer
from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence, ChangeEvidence, find_removable_kernels
from profiler_job.analysis.changes.optimizer_code import set_fused
from profiler_job.analysis.changes.script_code import FoundEdits, Program
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.ranges import OPTIMIZER

CODE = "torch.optim.AdamW(..., fused=True)"
PLAIN = "one kernel that updates all parameters"
ACTION = "Use the fused optimizer"
LINE = "optimizer = AdamW(parameters, fused=True)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    known = find_removable_kernels(seen, "per_tensor_optimizer", "the optimizer launches kernels tensor by tensor")
    if known is None:
        return _find_foreach(seen)
    _, elapsed_ns = seen.measure_phase(OPTIMIZER)
    if not elapsed_ns or seen.has_startup:
        return known
    return ChangeEvidence(elapsed_ns, elapsed_ns, known.evidence, "high: the same arithmetic in few kernels")


def _find_foreach(seen: CaptureEvidence) -> ChangeEvidence | None:
    """Find an optimizer in lists of tensors (foreach), which reads and writes memory once for each operation. Next to a
    fused optimizer such kernels only count steps or set gradients to zero."""
    rows = seen.sections["kernels"]
    rows = rows[rows["family"] == "optimizer"]
    parts = [kernel_families.classify(str(name)).part for name in rows["name"]]
    if any(part.startswith("fused") for part in parts):
        return None
    rows = rows[pd.Series(parts, rows.index, dtype=object) == "foreach"]
    time_ns, launches = float(rows["total_ns"].sum()), float(rows["calls"].sum())
    if time_ns < LEAST * seen.sum_parts("kernels") or time_ns <= 0:
        return None
    share = format_share(time_ns / seen.sum_parts("kernels"))
    evidence = f"the optimizer works in lists of tensors, operation by operation ({share} of kernel time)"
    ceiling_ns = time_ns + seen.estimate_launching(launches)
    return ChangeEvidence(ceiling_ns, ceiling_ns, evidence, "medium: Adam, AdamW, SGD and Adagrad have a fused form")


def find_edits(program: Program) -> FoundEdits:
    trainer = set_trainer(program, {"arguments": ("optim", '"adamw_torch_fused"')})
    return trainer or set_fused(program, CODE)
