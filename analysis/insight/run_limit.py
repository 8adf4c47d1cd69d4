"""Where the time of a step goes on each GPU, and what stands out in its kernels: what `show` prints of a capture, for a
recording. Definitions are in `limit_of_capture` and `findings`. A step lasts on a GPU from the start of its first
operation to the end of its last. A recording has no single API calls but launches: idle time in a synchronisation call
counts as launched late, and nothing is found in calls.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from profiler_job.analysis.insight import findings, gpu_limit, limit_columns
from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.metrics.timing import select_steps
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.analysis.reference import cuda_api
from profiler_job.analysis.reference.kernel_families import BUILT_IN
from profiler_job.jobs.contract.ranges import OPTIMIZER

BUSY = {name: label for name, label in limit_columns.BUSY.items() if name != "graphs_ns"}
IDLE = {name: label for name, label in limit_columns.IDLE.items() if name != "sync_ns"}
PARTS = (*BUSY, *IDLE)
"""What `elapsed_ns` is the sum of, in a recording."""
OF_PARTS = tuple(limit_columns.OF_PARTS)
GPU = ["rank", "device"]


@measure_by_run
def split_steps(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """What the time of a step is made of on each GPU, mean over the measured steps: run_id, gpu (number in its run, by
    rank and device), phase (empty for operations of none), elapsed_ns, PARTS, OF_PARTS. Idle time is of
    the phase of the operation that ends it."""
    rows = []
    num_steps = kernel_time.num_profiled_steps(kernels)
    for run_id, of_run in _runs(kernels, memops):
        for gpu, (_, of_gpu) in enumerate(_operations(*of_run).groupby(GPU, sort=True)):
            table = np.sum([_split(of_step) for _, of_step in of_gpu.groupby("step", sort=False)], axis=0)
            means = pd.DataFrame(table.T / num_steps[run_id], columns=[*limit_columns.PARTS, *OF_PARTS])
            elapsed = means[list(PARTS)].sum(axis=1)
            rows.append(means.assign(run_id=run_id, gpu=gpu, phase=gpu_limit.PHASES, elapsed_ns=elapsed))
    columns = ["run_id", "gpu", "phase", "elapsed_ns", *PARTS, *OF_PARTS]
    table = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)
    return table.loc[table["elapsed_ns"] > 0, columns].reset_index(drop=True)


@measure_by_run
def find(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """What stands out in the measured steps of each run, all of them together: run_id, the columns of
    `findings.COLUMNS` and num_steps, how many these are. The evidence is of one step, in the mean."""
    tables = []
    num_steps = kernel_time.num_profiled_steps(kernels)
    for run_id, (of_kernels, of_memops) in _runs(kernels, memops):
        spans = _operations(of_kernels, of_memops).groupby([*GPU, "step"]).agg({"start_ns": "min", "end_ns": "max"})
        span_ns = int((spans["end_ns"] - spans["start_ns"]).sum())
        launched = of_kernels.sort_values("start_ns", kind="stable").rename(columns={"rank": "process"})
        launched["kernel_name"] = launched["kernel_name"].astype("category").cat.remove_unused_categories()
        num_updates = len(launched.loc[launched["phase"] == OPTIMIZER, ["process", "step"]].drop_duplicates())
        of_memops = of_memops.assign(host_memory=pd.Categorical([""] * len(of_memops)))
        table = findings.make_findings_table(
            [
                *findings.find_in_kernels(launched, launched["phase"], num_updates, BUILT_IN, int(num_steps[run_id])),
                *findings.find_in_copies(of_memops, span_ns, int(num_steps[run_id])),
            ]
        )
        tables.append(table.assign(run_id=run_id, num_steps=int(num_steps[run_id])))
    columns = ["run_id", *findings.COLUMNS, "num_steps"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def _runs(kernels: pd.DataFrame, memops: pd.DataFrame) -> Iterator[tuple[str, tuple[pd.DataFrame, pd.DataFrame]]]:
    """run_id, and the kernels and memops of its measured steps, of each run with kernels."""
    parts = [select_steps(frame) for frame in (kernels, memops)]
    of_runs, moved = (dict(iter(part.groupby("run_id", observed=True, sort=False))) for part in parts)
    for run_id, of_run in of_runs.items():
        yield run_id, (of_run, moved.get(run_id, parts[1].head(0)))


def _operations(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Kernels, copies and fills of a run: GPU, step, phase (code in verdict.PHASES), kind, launch_ns, launch_end_ns (of
    copies and fills launch_ns), start_ns, end_ns."""
    family = kernels["family"].astype("category").cat
    parts = (
        kernels.assign(
            kind=gpu_limit.classify_families(family.categories)[family.codes],
            is_compute=gpu_limit.are_compute(family.categories)[family.codes],
            is_upload=False,
            is_host_copy=False,
        ),
        memops.assign(
            kind=np.int8(gpu_limit.COPIES),
            launch_end_ns=memops["launch_ns"],
            is_compute=False,
            is_upload=memops["operation"].astype(str) == cuda_api.UPLOAD,
            is_host_copy=memops["operation"].astype(str).isin(cuda_api.HOST_COPIES),
        ),
    )
    columns = [*GPU, "step", "phase", *_COLUMNS.values(), "launch_ns", "launch_end_ns"]
    columns = list(dict.fromkeys(columns))
    phases = pd.CategoricalDtype(gpu_limit.PHASES)
    ops = pd.concat([part[columns].astype({"phase": phases}) for part in parts], ignore_index=True)
    return ops.assign(phase=ops["phase"].cat.codes)


def _split(ops: pd.DataFrame) -> np.ndarray:
    """`verdict.split` of what one GPU does in one step. What began when it was launched was launched nobody knows
    when."""
    launches, call = np.unique(ops["launch_ns"].to_numpy(), return_inverse=True)
    ends = launches.copy()
    np.maximum.at(ends, call, ops["launch_end_ns"].to_numpy())
    is_known = (ops["launch_ns"] != ops["start_ns"]).to_numpy()
    calls = gpu_limit.Calls(
        start=launches,
        end=ends,
        process=np.zeros(len(launches), np.int64),
        thread=np.zeros(len(launches), np.int64),
        is_shared=np.bincount(call[is_known], minlength=len(launches)) > 1,
        syncs={},
        pauses={},
    )
    columns = {name: ops[column].to_numpy() for name, column in _COLUMNS.items()}
    return gpu_limit.split(gpu_limit.Operations.sort_by_start(**columns, call=np.where(is_known, call, -1)), calls)


_COLUMNS = {
    "start": "start_ns",
    "end": "end_ns",
    "kind": "kind",
    "phase": "phase",
    "is_compute": "is_compute",
    "is_upload": "is_upload",
    "is_host_copy": "is_host_copy",
}
