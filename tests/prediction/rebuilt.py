"""Captures made from the tables of recorded runs whose export the site does not keep: their kernels, copies, launches
and phases.

Of calls that launch no kernel a recording has sums by phase alone. Each wait is put before the end of the last kernel
in its phase, where the host waits in such a step, and each copy or fill takes its call as long as they do in the mean.
"""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.recording.store import Recording

_INTEGERS = ("start_ns", "end_ns", "process", "device", "stream", "correlation", "graph")
_CALLS = {"memset": "cudaMemsetAsync", "memcpy": "cudaMemcpyAsync"}
_PLACE = ["step", "phase"]


def capture_of(recording: Recording, run_id: str) -> Capture:
    """The measured steps of one run, with ranges for its phases and none for modules."""
    tables = {}
    for name in ("kernels", "memops", "api", "ranges"):
        rows = getattr(recording, name)
        rows = rows[(rows["run_id"].astype(str) == run_id) & (rows["step"] >= 0)]
        tables[name] = rows.assign(phase=rows["phase"].astype(str)).reset_index(drop=True)
    kernels, memops = (tables[name].sort_values("start_ns", ignore_index=True) for name in ("kernels", "memops"))
    calls = tables["api"].assign(name=tables["api"]["name"].astype(str))
    took = calls.assign(mean_ns=calls["total_ns"] / calls["calls"].clip(lower=1)).set_index([*_PLACE, "name"])[
        "mean_ns"
    ]
    named = memops["operation"].astype(str).str.partition(" ")[0].map(_CALLS).fillna("cudaMemcpyAsync")
    of_memops = pd.MultiIndex.from_arrays([memops["step"], memops["phase"], named])
    memops["launch_end_ns"] = memops["launch_ns"] + took.reindex(of_memops).fillna(1.0).clip(
        lower=1.0
    ).to_numpy().astype(int)
    launches = pd.concat([kernels, memops], ignore_index=True)
    number = np.arange(1, len(launches) + 1)
    api = pd.DataFrame(
        {
            "start_ns": launches["launch_ns"],
            "end_ns": np.maximum(launches["launch_end_ns"], launches["launch_ns"] + 1),
            "process": 1,
            "thread": np.where(launches["phase"] == "backward", 2, 1),
            "correlation": number,
            "name": np.r_[np.full(len(kernels), "cudaLaunchKernel"), named.to_numpy()],
        }
    )
    api = pd.concat([api, _waits(calls, kernels, len(api))]).sort_values("start_ns", kind="stable", ignore_index=True)
    common = {name: launches[name] for name in ("start_ns", "end_ns", "device", "stream")}
    operations = pd.DataFrame(common | {"process": 1, "correlation": number, "graph_node": 0})
    ranges = tables["ranges"]
    ranges = ranges[ranges["name"].astype(str) == ranges["phase"]].sort_values("start_ns", ignore_index=True)
    ranges = ranges[["start_ns", "end_ns", "name"]].assign(
        is_open=False, process=1, thread=1, domain="", style="PushPop"
    )
    nothing = pd.DataFrame({name: np.zeros(0, np.int64) for name in _INTEGERS})
    copies = operations[len(kernels) :].reset_index(drop=True).assign(host_memory=pd.Categorical([""] * len(memops)))
    frames = (operations, api, ranges)
    return Capture(
        source=run_id,
        kernels=operations[: len(kernels)].assign(kernel_name=_category(kernels["kernel_name"])),
        memops=copies.assign(operation=_category(memops["operation"]), bytes=memops["bytes"]),
        graphs=nothing,
        syncs=nothing.drop(columns="graph").assign(kind=pd.Categorical([])),
        api=api.assign(name=_category(api["name"])),
        ranges=ranges.assign(is_open=False, **{name: _category(ranges[name]) for name in ("name", "domain", "style")}),
        gpus=[{"id": 0, "name": str(recording.runs["gpu_name"].iloc[0])}],
        gpu_of={(1, 0): 0},
        events_ns=int(max(f["end_ns"].max() for f in frames) - min(f["start_ns"].min() for f in frames)),
    )


def _category(values: pd.Series) -> pd.Series:
    return values.astype(str).astype("category")


def _waits(calls: pd.DataFrame, kernels: pd.DataFrame, num_calls: int) -> pd.DataFrame:
    waits = calls[calls["name"].str.contains("Synchronize")]
    ends, last = kernels.groupby(_PLACE)["end_ns"].max(), kernels.groupby("step")["end_ns"].max()
    end = ends.reindex(pd.MultiIndex.from_frame(waits[_PLACE])).to_numpy()
    end = np.where(np.isnan(end), last.reindex(waits["step"]).to_numpy(), end).astype(np.int64)
    times = {"start_ns": end - waits["total_ns"].to_numpy(), "end_ns": end}
    number = num_calls + 1 + np.arange(len(waits))
    return pd.DataFrame(times | {"process": 1, "thread": 1, "correlation": number, "name": "cudaStreamSynchronize"})
