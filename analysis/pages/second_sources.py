"""Checks of what a run records about itself against a second source: the data sheet of its GPU, the blocks of its
kernels, and what its parameters need at least. They find a mistaken label, a wrong clock and a wrong counter."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import run_grid, timing
from profiler_job.analysis.reference import flops, gpus, kernel_families
from profiler_job.jobs.contract import modes, ranges

MakeRows = Callable[[str, pd.Series, pd.Series | float, pd.Series | float], pd.DataFrame]
"""Makes the rows of a check: its name, what was found by run id, at least, at most."""

MEMORY_RANGE = (0.9, 1.15)
"""Memory that the driver tells, over the size that the data sheet names: 1.063 and 1.065 on the H100 and H200 that were
recorded, since a data sheet's gigabyte is between 10^9 and 2^30 bytes."""

POWER_MARGIN = 0.1
"""Part by which the mean power of a second may exceed the data sheet's: a GPU that was cool is held to its power only
after a while. In the recordings that come with this it is at most 6.3%."""

COUNTER_WINDOW_NS = 1_000_000_000
"""A counter of energy has ticks of tens of milliseconds: shorter times say nothing of power."""

COPIES = {"forward": 1, "forward_backward": 2, "train_step": 4}
"""How often a mode holds each parameter in FP32: as weight, gradient, and two moments of AdamW."""

THREAD_ELEMENTS = (4, 8)
"""Elements that a thread of PyTorch's element-wise kernels handles, in older and in newer versions."""

ONE_PER_TENSOR = "addcdiv_cuda_kernel"
"""In the name of the kernel that an optimizer without fused kernels launches once for each tensor of parameters."""

MEANING = {
    "gpu_memory": "memory of the GPU as its driver tells it, over the data sheet's",
    "peak_memory": "peak memory over the bytes of weights, gradients and optimizer states (at most the GPU's)",
    "updated_parameters": "elements that the optimizer's kernels update, by their blocks, over the parameters",
    "largest_update": "elements of the largest tensor that the optimizer updates, by its blocks, over d_model "
    "times the larger of vocab_size and d_ff",
    "gemm_family": "kernels of a step that are counted as matmuls by their family, against the architecture",
    "module_matmuls": "matmuls of a forward pass that another module has than the architecture",
    "power": "mean power of a second or longer, over the data sheet's (largest process, each GPU)",
}


def check_second_sources(
    info: pd.DataFrame, known: pd.DataFrame, kernels: pd.DataFrame, processes: pd.DataFrame, make_rows: MakeRows
) -> list[pd.DataFrame]:
    """Checks of MEANING. info: runs by run id; known: runs of the reference's shapes; processes: with the counter of
    energy."""
    return [
        _gpu_memory(info, make_rows),
        _peak_memory(known, make_rows),
        *_updates(known, kernels, make_rows),
        _gemm_family(known, kernels, make_rows),
        _module_matmuls(known, kernels, make_rows),
        _power(info, processes, make_rows),
    ]


def _gpu_memory(info: pd.DataFrame, make_rows: MakeRows) -> pd.DataFrame:
    listed = {run_id: gpus.lookup(str(name)) for run_id, name in info["gpu_name"].items()}
    size = pd.Series({run_id: gpu.memory_bytes for run_id, gpu in listed.items() if gpu}, dtype=float)
    return make_rows(
        "gpu_memory", (info["gpu_memory_bytes"].reindex(size.index).astype(float) / size).dropna(), *MEMORY_RANGE
    )


def select_unsharded(known: pd.DataFrame) -> pd.DataFrame:
    """Select the runs whose ranks each hold all parameters."""
    return known[known["parallel"].astype(str).isin(("none", "ddp"))] if "parallel" in known else known


def _peak_memory(known: pd.DataFrame, make_rows: MakeRows) -> pd.DataFrame:
    """Of runs whose ranks each hold all parameters. Gradients inside a CUDA graph are in a pool that is not counted."""
    unsharded = select_unsharded(known)
    copies = unsharded["mode"].map(COPIES).astype(float)
    in_graph = unsharded["compile"].astype(str).str.contains("cudagraphs") & (copies > 1)
    needed = unsharded["num_parameters"].astype(float) * flops.FP32_BYTES * (copies - in_graph)
    share = (unsharded["peak_memory_bytes"].astype(float) / needed).dropna()
    return make_rows("peak_memory", share, 1, (unsharded["gpu_memory_bytes"].astype(float) / needed).fillna(np.inf))


def _updates(known: pd.DataFrame, kernels: pd.DataFrame, make_rows: MakeRows) -> list[pd.DataFrame]:
    """A kernel has as many blocks as its elements need, so that at most a block is not full. Of optimizers that launch
    kernels for each tensor, on GPUs that hold all parameters."""
    unsharded = select_unsharded(known)
    updates = timing.select_steps(kernels)
    updates = updates[(updates["phase"] == ranges.OPTIMIZER) & updates["run_id"].isin(unsharded.index)]
    updates = updates[updates["kernel_name"].astype(str).str.contains(ONE_PER_TENSOR)].astype({"run_id": str})
    threads = updates["grid_x"].astype(float) * updates["block_x"]
    steps = threads.groupby([updates["run_id"], updates["rank"], updates["step"]]).agg(["sum", "max", "size"])
    of_run = steps.groupby("run_id").first()
    info = unsharded.loc[of_run.index]
    parameters = info["num_parameters"].astype(float)
    table = info[["vocab_size", "d_ff"]].astype(float).max(axis=1) * info["d_model"].astype(float)
    fewer, more = (each * of_run["sum"] / parameters for each in THREAD_ELEMENTS)
    each = pd.Series(np.where((fewer - 1).abs() < (more - 1).abs(), *THREAD_ELEMENTS), index=info.index)
    block = each * updates["block_x"].astype(float).groupby(updates["run_id"]).max()
    return [
        make_rows("updated_parameters", each * of_run["sum"] / parameters, 1, 1 + of_run["size"] * block / parameters),
        make_rows("largest_update", each * of_run["max"] / table, 1, 1 + block / table),
    ]


def _gemm_family(known: pd.DataFrame, kernels: pd.DataFrame, make_rows: MakeRows) -> pd.DataFrame:
    """Families are a column of the kernels, which pages sum; names are read anew by other checks. Of each step's
    forward and backward, the one that is farthest from the architecture."""
    of_step = timing.select_steps(kernels)
    of_step = of_step[of_step["run_id"].isin(known.index) & (of_step["family"].astype(str) == "gemm")]
    of_step = of_step[of_step["phase"].isin([ranges.FORWARD, ranges.BACKWARD])]
    names = of_step["kernel_name"].astype("category")
    families = {name: kernel_families.classify(name).family for name in names.cat.categories}
    counted = {name: kernel_families.is_main_gemm(name) or families[name] != "gemm" for name in names.cat.categories}
    by = [of_step["run_id"].astype(str), of_step["rank"], of_step["step"]]
    counts = names.map(counted).astype(int).groupby(by).sum().groupby("run_id").agg(["min", "max"])
    wanted = pd.Series(
        {
            run_id: sum(
                run_grid.count_matmuls(run, phase)
                for phase in (ranges.FORWARD, ranges.BACKWARD)
                if phase in modes.MODE_PHASES[run["mode"]]
            )
            for run_id, run in known.loc[known.index[known["profiled_steps"] > 0]].iterrows()
        },
        dtype=float,
    )
    counts = counts.reindex(wanted.index, fill_value=0)
    num_gemms = counts["max"].where(counts["max"] != wanted, counts["min"])
    return make_rows("gemm_family", num_gemms, wanted, wanted)


def _module_matmuls(known: pd.DataFrame, kernels: pd.DataFrame, make_rows: MakeRows) -> pd.DataFrame:
    """Of runs that are not compiled; of fused attention the matmuls around it. Worst step, each misplaced one counted
    once."""
    known = known[(known["compile"].astype(str) == "off") & (known["profiled_steps"] > 0)]
    forward = timing.select_steps(kernels)
    forward = forward[(forward["phase"] == ranges.FORWARD) & forward["run_id"].isin(known.index)]
    names = forward["kernel_name"].astype("category")
    is_main = names.map({name: kernel_families.is_main_gemm(name) for name in names.cat.categories}).astype(bool)
    by = ["run_id", "rank", "step", "module"]
    sizes = forward[is_main].groupby(by, observed=True).size().rename("size").reset_index()
    sizes = sizes.astype({"run_id": str, "module": str})  # now that there are few
    sizes["module"] = sizes["module"].str.rsplit("/", n=1).str[-1]
    counts = sizes.groupby(by)["size"].sum().unstack(fill_value=0)
    worst: dict[str, float] = {}
    for run_id, run in known.iterrows():
        if run_id not in counts.index:
            continue
        times, costs = run_grid.micro_batches_of(run), flops.matmul_costs(run_grid.micro_batch_of(run))
        fused = run["attention"] != "naive"
        wanted = {
            name: times * number * (not (fused and name in (ranges.ATTENTION_SCORES, ranges.ATTENTION_OUTPUT)))
            for name, (_, number) in costs.items()
        }
        expected = pd.Series(wanted).reindex(counts.columns.union(list(wanted)), fill_value=0)
        apart = counts.loc[[run_id]].reindex(columns=expected.index, fill_value=0).sub(expected).abs()
        worst[str(run_id)] = float(apart.sum(axis=1).max()) / 2
    return make_rows("module_matmuls", pd.Series(worst, dtype=float), 0, 0)


def _power(info: pd.DataFrame, processes: pd.DataFrame, make_rows: MakeRows) -> pd.DataFrame:
    read = processes.astype({"run_id": str})
    read = read[
        (read["energy_mj"] > 0) & (read["energy_wall_ns"] >= COUNTER_WINDOW_NS) & read["run_id"].isin(info.index)
    ]
    watts = read["energy_mj"].astype(float) * 1e6 / read["energy_wall_ns"].astype(float)
    largest = watts.groupby(read["run_id"]).max()
    listed = {run_id: gpus.lookup(str(name)) for run_id, name in info["gpu_name"].items()}
    board = {run_id: gpu.board_watts for run_id, gpu in listed.items() if gpu and gpu.board_watts}
    num_gpus = info["gpus"].astype(float) if "gpus" in info else pd.Series(1.0, index=info.index)
    share = largest / num_gpus.reindex(largest.index) / pd.Series(board, dtype=float).reindex(largest.index)
    return make_rows("power", share.dropna(), 0, 1 + POWER_MARGIN)
