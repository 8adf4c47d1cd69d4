"""A fused loss: one kernel reads the logits and writes their gradient, in place of softmax, casts and a loss."""

import numpy as np
import pandas as pd

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.ranges import GRAPH_INPUTS, LOSS_MODULE

CODE = "torch.compile(torch.nn.functional.cross_entropy)(logits, targets)"
COMPILED = f"compile the loss with the model, or at least by itself: {CODE}"
ACTION = "Fuse the loss"
LINE = "loss = torch.compile(F.cross_entropy)(logits, y)"
LEAST_LOSS = 0.05
"""Part of the kernel time that the loss must have."""
EAGER = "at::native"
"""In the names of kernels that PyTorch launches for single operations."""


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    """Where a model is compiled and its loss is not, each operation of the loss reads and writes all logits, and a CUDA
    graph of backward needs a copy of their gradient."""
    modules = seen.sections.get("modules")
    if not seen.is_compiled or modules is None or modules.empty:
        return None
    whole_ns = max(float(modules["total_ns"].sum()), 1.0)
    loss = float(modules.loc[_is_eager_loss(modules), "total_ns"].sum()) / whole_ns
    if loss < LEAST_LOSS:
        return None
    copies = float(modules.loc[_is_gradient(modules["name"]), "backward_ns"].sum()) / whole_ns
    evidence = f"the loss is not compiled, and runs operation by operation ({format_share(loss)} of kernel time)"
    if copies:
        evidence += f"; its gradient is copied for a CUDA graph ({format_share(copies)})"
    time_ns = (loss + copies) * seen.sum_parts("kernels")
    return ChangeEvidence(time_ns, time_ns, evidence, "medium: a fused loss still reads the logits, once or twice")


def _is_eager_loss(modules: pd.DataFrame) -> np.ndarray:
    """Return which rows are of a loss that PyTorch runs operation by operation: outside of all modules, or in one
    called ...Loss that is inside no other and has none inside, as a model with its loss has."""
    names = modules["name"].astype(str)
    around = set(names.str.partition("/")[0][names.str.contains("/")])
    is_alone = names.str.endswith("Loss") & ~names.str.contains("/") & ~names.isin(around)
    is_eager = modules["kernel"].astype(str).str.contains(EAGER, regex=False)
    return np.array((is_alone | (names == LOSS_MODULE)) & is_eager, bool)


def _is_gradient(names: pd.Series) -> np.ndarray:
    """Return which rows, in backward, are copies of what comes from outside of the model: blocks that are compiled one
    by one copy each other's."""
    return np.array(names.str.endswith(GRAPH_INPUTS) & (names.str.count("/") <= 1), bool)
