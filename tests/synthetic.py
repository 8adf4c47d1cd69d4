"""A made-up recording with the columns of a real one and answers that can be worked out by hand.

Every kernel of a step is launched 6 us after the one before it and takes the time that its module says, so a small
model is launch-bound and a large one is not. Two blocks a model keep it small; nothing here was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from profiler_job.analysis.recording.store import empty
from profiler_job.jobs.contract.axes import AXES, find_default
from profiler_job.jobs.contract.handouts import HANDOUTS
from profiler_job.jobs.workloads.transformer.sizes import MODEL_SIZES, VOCAB_SIZE

GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(T1::Params)"
GEMM_NN, GEMM_NT = GEMM.replace("_tn_", "_nn_"), GEMM.replace("_tn_", "_nt_")
SPLIT_K = (
    "void gemmSN_TN_kernel<float, (int)128, (int)16>(cublasGemmSmallNParams<T9, T10,"
    " T11, T6>)_execute_split_k_kernel__5x_cublas"
)
MUL = (
    "void at::native::elementwise_kernel<(int)128, (int)2, void "
    "at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float>>>(at::TensorIteratorBase &, const T1 "
    "&)::[lambda(int) (instance 1)]>"
    "(int, T3)"
)
EXP = (
    "void at::native::vectorized_elementwise_kernel<(int)4, "
    "at::native::exp_kernel_cuda(at::TensorIteratorBase &)::[lambda() "
    "(instance 2)]::operator ()() const::[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)], "
    "std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
MAX = (
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::MaxNanFunctor<float>>, unsigned int, float, (int)4, (int)4>>(T3)"
)
CAT = (
    "void at::native::<unnamed>::CatArrayBatchedCopy_contig<at::native::<unnamed>::OpaqueType<(unsigned "
    "int)4>, unsigned int, (int)4, "
    "(int)64, (int)64>(T1 *, at::native::<unnamed>::CatArrInputTensorMetadata<T1, T2, T4, T5>)"
)
FAMILIES = {
    GEMM: "gemm",
    GEMM_NN: "gemm",
    GEMM_NT: "gemm",
    SPLIT_K: "gemm",
    MUL: "elementwise",
    EXP: "elementwise",
    MAX: "reduce",
    CAT: "copy",
}

DEFAULTS = {
    name: default
    for name in AXES
    if not name.startswith("workload")
    and name not in ("precision", "attention", "batch_size")
    and (default := find_default(name)) is not None
}
"""The values of a loaded run that has none of these axes, nor a workload."""
NUM_LAYERS = 2
LAUNCH_EVERY_NS = 6_000
OOM = {
    ("2.7B", 512, "train_step"): "backward",
    ("2.7B", 1024, "forward_backward"): "backward",
    ("2.7B", 1024, "train_step"): "forward",
}


TURN_NS = 10_000_000
"""Step of a run in the first round of `take_turns`."""


@dataclass(kw_only=True)
class Recording:
    """A fake of profiler_job.analysis.recording.store.Recording: the same tables as attributes."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    ranges: pd.DataFrame
    kernels: pd.DataFrame
    api: pd.DataFrame
    memops: pd.DataFrame
    nsys_sums: pd.DataFrame
    memory: pd.DataFrame
    module_memory: pd.DataFrame = field(default_factory=lambda: empty("module_memory"))
    figures: pd.DataFrame = field(default_factory=lambda: empty("figures"))
    waits: pd.DataFrame = field(default_factory=lambda: empty("waits"))
    sync_calls: pd.DataFrame = field(default_factory=lambda: empty("sync_calls"))
    wait_stacks: pd.DataFrame = field(default_factory=lambda: empty("wait_stacks"))
    compile_notes: pd.DataFrame = field(default_factory=lambda: empty("compile_notes"))
    processes: pd.DataFrame = field(default_factory=lambda: empty("processes"))
    telemetry: pd.DataFrame = field(default_factory=lambda: empty("telemetry"))
    manifest: dict = field(default_factory=dict)


def recording(
    sizes=tuple(HANDOUTS[2025].sizes),
    contexts=(128, 256, 512, 1024),
    modes=("forward", "forward_backward", "train_step"),
    precisions=("fp32",),
    num_profiled=3,
    num_timed=10,
    oom=OOM,
) -> Recording:
    tables = {name: [] for name in ("runs", "steps", "ranges", "kernels", "api", "memops", "memory")}
    for size in sizes:
        for context in contexts:
            for precision in precisions:
                for mode in modes:
                    _add_run(
                        tables,
                        size,
                        context,
                        mode,
                        precision,
                        num_profiled,
                        num_timed,
                        oom.get((size, context, mode)),
                    )
    frames = {name: pd.DataFrame(rows) for name, rows in tables.items()}
    frames |= {name: frame.assign(rank=0) for name, frame in frames.items() if name != "runs"}
    frames["nsys_sums"] = nsys_sums(frames["kernels"])
    manifest = {
        "name": "synthetic",
        "created": "2026-01-02T03:04:05Z",
        "gpu": "NVIDIA H200",
        "driver": "580.0",
        "cuda": "13.0",
        "torch": "2.13.0",
        "nsys": "2025.3.1",
        "python": "3.11",
        "commit": "0" * 12,
        "recorded_from": "2026-01-02T03:04:05Z",
        "recorded_to": "2026-01-02T04:04:05Z",
        "sweep": "sweep",
        "runs": frames["runs"][["run_id", "status"]].to_dict("records"),
        "nsys_schema": "3.0",
        "tables": {name: {"rows": len(frame), "bytes": 0} for name, frame in frames.items()},
    }
    return Recording(**frames, manifest=manifest)


def nsys_sums(kernels: pd.DataFrame) -> pd.DataFrame:
    """nsys's statistics of these kernels."""
    inside = kernels.assign(calls=1, total_ns=kernels["end_ns"] - kernels["start_ns"])
    parts = [inside.assign(range=inside["phase"]), inside.assign(range="step")]
    by = ["run_id", "range", "kernel_name"]
    return pd.concat(parts).groupby(by, as_index=False, observed=True)[["calls", "total_ns"]].sum()


def forward_kernels(size: str, context: int) -> list[tuple[str, str, int]]:
    """(module, kernel name, ns) of one forward pass: 9L+1 matmuls, one of them with a split-K part."""
    s = MODEL_SIZES[size]
    tokens = 4 * context
    linear = max(2_000, int(2 * tokens * s.d_model * s.d_model / 40_000))
    ffn = max(2_000, int(2 * tokens * s.d_model * s.d_ff / 40_000))
    scores = max(2_000, int(2 * 4 * context * context * s.d_model / 20_000))
    pointwise = max(1_500, int(tokens * s.d_model * 4 / 2_000))
    square = max(1_500, int(4 * s.num_heads * context * context * 4 / 2_000))
    kernels = [("embedding", CAT, pointwise)]
    for layer in range(NUM_LAYERS):
        b = f"block_{layer}"
        kernels += [(f"{b}/norm", MUL, pointwise), (f"{b}/norm", MAX, pointwise)]
        kernels += [(f"{b}/attention/qkv_proj", GEMM, linear)] * 3
        kernels += [
            (f"{b}/attention/rope", MUL, pointwise),
            (f"{b}/attention/rope", CAT, pointwise),
        ]
        kernels += [
            (f"{b}/attention/attention_scores", GEMM, scores),
            (f"{b}/attention/attention_scores", MUL, square),
        ]
        kernels += [
            (f"{b}/attention/softmax", MAX, square),
            (f"{b}/attention/softmax", EXP, square),
        ]
        kernels += [
            (f"{b}/attention/attention_output", GEMM_NN, scores),
            (f"{b}/attention/o_proj", GEMM, linear),
        ]
        kernels += [(f"{b}/norm", MUL, pointwise), (f"{b}/norm", MAX, pointwise)]
        kernels += [(f"{b}/ffn", GEMM, ffn)] * 3 + [(f"{b}/ffn", MUL, pointwise * 4)]
    kernels += [
        ("norm", MUL, pointwise),
        ("lm_head", GEMM, ffn),
        ("lm_head", SPLIT_K, 1_000),
    ]
    return kernels


def phase_kernels(size: str, context: int, phase: str) -> list[tuple[str, str, int]]:
    forward = forward_kernels(size, context)
    if phase == "forward":
        return forward
    if phase == "loss":
        return [("", MAX, 3_000), ("", EXP, 3_000)]
    if phase == "backward":
        gradients = {GEMM: (GEMM_NN, GEMM_NT), GEMM_NN: (GEMM, GEMM_NT)}
        return [
            ("", one, ns) for _, name, ns in forward if name != SPLIT_K for one in gradients.get(name, (name, name))
        ]
    num_parameters = MODEL_SIZES[size].num_parameters(VOCAB_SIZE)
    return [("", MUL, max(2_000, num_parameters // 400)) for _ in range(10)]


def _run_row(run_id, size, context, mode, precision, num_profiled, num_timed, oom_phase):
    s = MODEL_SIZES[size]
    return {
        "run_id": run_id,
        "status": "oom" if oom_phase else "ok",
        "status_phase": oom_phase or "",
        "status_message": "CUDA out of memory: tried to allocate 2.00 GiB" if oom_phase else "",
        "size": size,
        "d_model": s.d_model,
        "d_ff": s.d_ff,
        "num_layers": NUM_LAYERS,
        "num_heads": s.num_heads,
        "vocab_size": VOCAB_SIZE,
        "context_length": context,
        "batch_size": 4,
        "mode": mode,
        "precision": precision,
        "attention": "naive",
        **DEFAULTS,
        "num_parameters": s.num_parameters(VOCAB_SIZE),
        "gpu_name": "NVIDIA H200",
        "gpu_memory_bytes": 150_000_000_000,
        "driver": "580.0",
        "cuda": "13.0",
        "torch": "2.13.0",
        "nsys": "2025.3.1",
        "python": "3.11",
        "commit": "0" * 12,
        "autograd_multithreading": False,
        "float32_matmul_precision": "highest",
        "warmup_steps": 5,
        "measured_steps": num_timed,
        "profiled_steps": num_profiled,
        "processes": 1,
        "peak_memory_bytes": 20 * s.num_parameters(VOCAB_SIZE),
        "started_at": "2026-01-02T03:04:05Z",
        "wall_s": 12.5,
    }


def _kernel(run_id, range_id, step, phase, module, name, launch, begin, end):
    return {
        "run_id": run_id,
        "range_id": range_id,
        "step": step,
        "phase": phase,
        "module": module,
        "attribution": "exact",
        "kernel_name": name,
        "launch_ns": launch,
        "launch_end_ns": launch + 3_000,
        "start_ns": begin,
        "end_ns": end,
        "device": 0,
        "stream": 7,
        "grid_x": 8,
        "grid_y": 1,
        "grid_z": 1,
        "block_x": 128,
        "block_y": 1,
        "block_z": 1,
        "registers": 32,
        "static_shared_bytes": 0,
        "dynamic_shared_bytes": 0,
        "graph_node": 0,
        "family": FAMILIES[name],
    }


def _add_run(tables, size, context, mode, precision, num_profiled, num_timed, oom_phase):
    run_id = f"{size}-ctx{context}-{precision}-naive-{mode}"
    tables["runs"].append(_run_row(run_id, size, context, mode, precision, num_profiled, num_timed, oom_phase))
    if oom_phase:
        return
    phases = {
        "forward": ["forward"],
        "forward_backward": ["forward", "loss", "backward"],
    }.get(mode, ["forward", "loss", "backward", "optimizer"])
    _add_profiled_steps(tables, run_id, size, context, phases, num_profiled)
    _add_timed_steps(tables, run_id, phases, num_timed)
    _add_calls_and_memory(tables, run_id, size, context, phases, num_profiled)
    tables["memops"].append(
        {
            "run_id": run_id,
            "step": 0,
            "phase": "forward",
            "module": "",
            "attribution": "exact",
            "operation": "memset",
            "bytes": 4096,
            "launch_ns": 100,
            "start_ns": 200,
            "end_ns": 1_400,
            "device": 0,
            "stream": 7,
        }
    )


def _add_profiled_steps(tables, run_id, size, context, phases, num_profiled):
    clock, range_id = 0, 0
    for step in range(num_profiled):
        step_start, step_range = clock, range_id
        tables["ranges"].append(_range(run_id, step_range, -1, step, "", "step", "step", step_start, 0))
        step_row = tables["ranges"][-1]
        range_id += 1
        for phase in phases:
            start = launch = gpu_free = clock
            for module, name, ns in phase_kernels(size, context, phase):
                launch += LAUNCH_EVERY_NS
                begin = max(launch + 4_000, gpu_free)
                gpu_free = begin + ns
                tables["kernels"].append(_kernel(run_id, range_id, step, phase, module, name, launch, begin, gpu_free))
            clock = max(gpu_free, launch) + 20_000
            tables["ranges"].append(
                _range(
                    run_id,
                    range_id,
                    step_range,
                    step,
                    phase,
                    phase,
                    f"step/{phase}",
                    start,
                    clock,
                )
            )
            tables["steps"].append(_step(run_id, "nsys", step, phase, clock - start + step * 1_000))
            range_id += 1
        step_row["end_ns"] = clock
        tables["steps"].append(_step(run_id, "nsys", step, "step", clock - step_start + 4 * step * 1_000))


def _add_timed_steps(tables, run_id, phases, num_timed):
    host = {
        phase: next(r for r in tables["steps"] if r["run_id"] == run_id and r["phase"] == phase)["wall_ns"]
        for phase in phases
    }
    for step in range(num_timed):
        for phase in phases:
            tables["steps"].append(_step(run_id, "timer", step, phase, int(host[phase] * 0.97) + step * 500))
        total = sum(int(host[phase] * 0.97) + step * 500 for phase in phases)
        tables["steps"].append(_step(run_id, "timer", step, "step", total))


def _add_calls_and_memory(tables, run_id, size, context, phases, num_profiled):
    for phase in phases:
        calls = len(phase_kernels(size, context, phase)) * num_profiled
        for name, count, each in (
            ("cudaLaunchKernel", calls, 3_000),
            ("cudaDeviceSynchronize", num_profiled, 20_000),
        ):
            tables["api"].append(
                {
                    "run_id": run_id,
                    "step": -1,
                    "phase": phase,
                    "name": name,
                    "calls": count,
                    "total_ns": count * each,
                }
            )
        used = 4 * MODEL_SIZES[size].num_parameters(VOCAB_SIZE)
        tables["memory"].append(
            {
                "run_id": run_id,
                "phase": phase,
                "peak_allocated_bytes": used * 3,
                "peak_reserved_bytes": used * 4,
                "allocated_before_bytes": used,
                "allocated_after_bytes": used * 2,
            }
        )


def _range(run_id, range_id, parent, step, phase, name, path, start, end):
    return {
        "run_id": run_id,
        "range_id": range_id,
        "parent_id": parent,
        "step": step,
        "phase": phase,
        "name": name,
        "path": path,
        "thread": 0,
        "start_ns": start,
        "end_ns": end,
    }


def time_twice(steps: pd.DataFrame, times: float = 1.0) -> pd.DataFrame:
    """The steps with as many of a second process, each of which took so many times as long."""
    again = steps[steps["collector"].astype(str) == "timer"]
    again = again.assign(process=1, wall_ns=(again["wall_ns"] * times).astype("int64"))
    return pd.concat([steps, again], ignore_index=True)


SHARED = {1: "one", 2: "two", 3: "three"}
"""Processes in which runs take turns, and their names."""


def take_turns(rec: Recording, times: Mapping[str, float], num_rounds: int = 8) -> Recording:
    """The recording as if its runs had a process alone, and then took turns in three, which are alike: each round
    slower than the one before. times: how long a step is by turns, as a multiple of TURN_NS, of the runs whose id ends
    so; others: 1."""
    timed = rec.steps[rec.steps["collector"].astype(str) == "timer"]
    first = timed[(timed["step"] == timed["step"].min()) & (timed["process"] == 0)]
    factors = [next((times[end] for end in times if run.endswith(end)), 1.0) for run in first["run_id"].astype(str)]
    of_phase = (first["phase"].astype(str) == "step").map({True: TURN_NS, False: TURN_NS / 5})
    wall_ns = of_phase * factors
    turns = [
        first.assign(step=turn, round=turn, process=process, wall_ns=(wall_ns * (1 + turn)).astype("int64"))
        for process in SHARED
        for turn in range(num_rounds)
    ]
    steps = pd.concat([rec.steps[rec.steps["process"] == 0], *turns], ignore_index=True)
    shared = [
        pd.DataFrame({"run_id": rec.runs["run_id"].astype(str), "rank": 0, "process": process, "group": group})
        for process, group in SHARED.items()
    ]
    processes = pd.concat(
        [rec.processes, *(rows.assign(host_loop_ns=50_000_000) for rows in shared)], ignore_index=True
    )
    return replace(rec, steps=steps, processes=processes)


def _step(run_id, collector, step, phase, wall_ns):
    return {
        "run_id": run_id,
        "collector": collector,
        "step": step,
        "phase": phase,
        "wall_ns": wall_ns,
        "process": 0,
        "issue_ns": None,
        "round": -1,
    }
