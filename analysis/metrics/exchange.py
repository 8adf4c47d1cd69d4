"""What communication costs the runs of several GPUs, in a step of one GPU, as `analysis.communication` splits it."""

import numpy as np
import pandas as pd

from analysis import communication
from analysis.metrics.remembered import remember
from analysis.metrics.timing import in_steps
from analysis.reference import kernel_families

PARTS = ("kernel_ns", "waiting_ns", "transfer_ns", "hidden_ns", "exposed_ns", "exposed_waiting_ns")
_KIND = ["kernel_name", "grid_x", "grid_y", "grid_z", "phase"]


@remember
def communication_of(kernels: pd.DataFrame) -> pd.DataFrame:
    """A row for each run with communication kernels in its steps: run_id; PARTS, of one step, mean over steps and GPUs
    (NaN where waiting is not known); slowed, matmuls beside communication over the same kernels alone (NaN without
    both); unknown, why waiting is not known; exchanged_apart_ns, how well the ranks' clocks agree.
    """
    rows = []
    for run_id, mine in in_steps(kernels).groupby("run_id", observed=True, sort=False):
        of_family = mine["family"].astype(str).to_numpy()
        if not (of_family == kernel_families.COMMUNICATION).any():
            continue
        measured = communication.measure(as_operations(mine, of_family))
        gpus, num_steps = measured.of_gpus, mine["step"].nunique()
        parts = gpus[list(PARTS)].astype("float64").mean() / num_steps
        alone, beside = gpus["alone_ns"].sum(), gpus["beside_ns"].sum()
        about = {"slowed": float(beside / alone) if alone else np.nan, "unknown": measured.why_not}
        rows.append({"run_id": str(run_id), **parts, **about, "exchanged_apart_ns": measured.apart_ns})
    return pd.DataFrame(rows, columns=["run_id", *PARTS, "slowed", "unknown", "exchanged_apart_ns"])


def as_operations(kernels: pd.DataFrame, family: np.ndarray) -> pd.DataFrame:
    """The kernels of one run as `communication.measure` wants them. The recording has no message sizes."""
    names = kernels["kernel_name"].astype(str)
    exchanges = family == kernel_families.COMMUNICATION
    collectives = {name: communication.collective_of(name) for name in names[exchanges].unique()}
    gpu = kernels.groupby(["rank", "device"], sort=True).ngroup()
    kinds = kernels.groupby([name for name in _KIND if name in kernels], observed=True, sort=False).ngroup()
    frame = kernels[["rank", "stream", "start_ns", "end_ns", "launch_ns"]].assign(
        gpu=gpu,
        collective=np.where(exchanges, names.map(collectives).fillna(""), ""),
        bytes=-1,
        communicator=-1,
        is_matmul=family == "gemm",
        kind=kinds,
    )
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)
