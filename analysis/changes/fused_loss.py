"""A fused loss: one kernel reads the logits and writes their gradient, in place of softmax, casts and a loss."""

import numpy as np
import pandas as pd

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.ranges import GRAPH_INPUTS, LOSS_MODULE

CODE = "torch.compile(torch.nn.functional.cross_entropy)(logits, targets)"
COMPILED = "compute the loss in the function that torch.compile compiles, with the model"
ACTION = "Fuse the loss"
LINE = "torch.compile(lambda x, y: loss(model(x), y))"
LEAST_LOSS = 0.05
"""Part of the kernel time that the loss must have."""


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    """Where a model is compiled and its loss is not, each operation of the loss reads and writes all logits, and a CUDA
    graph of backward needs a copy of their gradient. Of what is not compiled, torch.compile is advised."""
    modules = seen.sections.get("modules")
    if not seen.is_compiled or modules is None or modules.empty:
        return None
    names = modules["name"].astype(str)
    times = [float(modules.loc[rows, "total_ns"].sum()) for rows in (_is_loss(names), _is_copy(names))]
    whole = float(modules["total_ns"].sum())
    loss, copies = (time_ns / max(whole, 1.0) for time_ns in times)
    if loss < LEAST_LOSS:
        return None
    evidence = f"the loss is computed outside of what is compiled, operation by operation ({format_share(loss)} of"
    evidence += " kernel time)"
    if copies:
        evidence += f", and its gradient is copied for a CUDA graph ({format_share(copies)})"
    time_ns = (loss + copies) * seen.sum_parts("kernels")
    return ChangeEvidence(time_ns, time_ns, evidence, "medium: a fused loss still reads the logits, once or twice")


def _is_loss(names: pd.Series) -> np.ndarray:
    last = names.str.rpartition("/")[2]
    return ((names == LOSS_MODULE) | last.str.endswith("Loss")).to_numpy(bool)


def _is_copy(names: pd.Series) -> np.ndarray:
    return names.str.endswith(GRAPH_INPUTS).to_numpy(bool)
