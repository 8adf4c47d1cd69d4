"""The communication of a capture: its kernels as `analysis.capture.collective_time` wants them."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import collective_time
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.collective_messages import find_messages
from profiler_job.analysis.capture.distinct_values import encode
from profiler_job.analysis.insight.gpu_limit import find_syncs
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.reference.rules import Taxonomy
from profiler_job.jobs.contract.ranges import SAID_RANK

GEMM = "gemm"
_GRID = ("grid_x", "grid_y", "grid_z")


def measure(
    capture: Capture, attribution: Attribution, gpu: np.ndarray, taxonomy: Taxonomy
) -> collective_time.Communication:
    """What communication costs each GPU of a capture; gpu: number of the GPU of each kernel. A rank is a process on one
    GPU."""
    kernels = capture.kernels
    names = [str(name) for name in kernels["kernel_name"].cat.categories]
    families = [taxonomy.family(name) for name in names]
    exchanges = [family == kernel_families.COMMUNICATION for family in families]
    code = kernels["kernel_name"].cat.codes.to_numpy()
    if not any(exchanges) or not np.asarray(exchanges)[code].any():
        return collective_time.measure(_NOTHING)
    collectives = np.array(
        [collective_time.parse_collective(n) if is_one else "" for n, is_one in zip(names, exchanges)]
    )
    grid = [kernels[name] for name in _GRID if name in kernels]
    kinds = pd.concat([pd.Series(code), *grid, attribution.kernels["phase"].cat.codes], axis=1, ignore_index=True)
    place = attribution.kernels
    messages = find_messages(capture, attribution)
    rows = pd.DataFrame(
        {
            "gpu": gpu,
            "rank": encode(encode(kernels["process"].to_numpy())[1] * (int(gpu.max()) + 1) + gpu)[1],
            "stream": kernels["stream"].to_numpy(),
            "start_ns": kernels["start_ns"].to_numpy(),
            "end_ns": kernels["end_ns"].to_numpy(),
            "launch_ns": np.where(place["api"].to_numpy() >= 0, place["launch_ns"].to_numpy(), -1),
            "collective": collectives[code],
            "bytes": messages["bytes"].to_numpy(),
            "communicator": messages["communicator"].to_numpy(),
            "is_matmul": np.array([family == GEMM for family in families])[code],
            "kind": kinds.groupby(list(kinds)).ngroup().to_numpy(),
            "kernel_name": kernels["kernel_name"].reset_index(drop=True),
        }
    )
    return collective_time.measure(rows, _read_world_size(capture), host_waits=_find_host_waits(capture, gpu))


def _find_host_waits(capture: Capture, gpu: np.ndarray) -> pd.DataFrame:
    """When the processes with kernels on a GPU were in a synchronisation call: gpu, start_ns, end_ns."""
    syncs = find_syncs(capture)
    pairs = pd.DataFrame({"process": capture.kernels["process"].to_numpy(), "gpu": gpu}).drop_duplicates()
    waits = [
        pd.DataFrame({"gpu": number, "start_ns": syncs[process].start, "end_ns": syncs[process].end})
        for process, number in pairs.itertuples(index=False)
        if process in syncs
    ]
    return pd.concat(waits or [pd.DataFrame(columns=["gpu", "start_ns", "end_ns"], dtype=np.int64)])


def _read_world_size(capture: Capture) -> int:
    """Read the number of all ranks, on all machines, from the ranks' ranges; 0 if they do not give it."""
    said = pd.Series(capture.ranges["name"].cat.categories.astype(str)).str.extract(SAID_RANK)["world"]
    return int(said.astype("Int64").max()) if said.notna().any() else 0


_NOTHING = pd.DataFrame(
    {
        name: []
        for name in ("gpu", "rank", "stream", "start_ns", "end_ns", "launch_ns", "kind", "bytes", "communicator")
    },
    dtype=np.int64,
).assign(collective="", is_matmul=False, kernel_name="")
