"""Small traces of torch.profiler, event by event. Times are microseconds, as in the file."""

import gzip
import json
from pathlib import Path
from typing import Any

PID, MAIN, AUTOGRAD = 4711, 4711, 4790
GPU = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "numSms": 132, "computeMajor": 9}
RANK = {"backend": "nccl", "rank": 3, "world_size": 8}
MULTIPLY = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float> >(int, float)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int, float)"
GEMM = "ampere_sgemm_128x64_tn"


class Trace:
    def __init__(self, **facts: Any):
        self.facts = {"schemaVersion": 1, "deviceProperties": [GPU], "baseTimeNanoseconds": 1790857026000000000} | facts
        self.events: list[dict[str, Any]] = []
        self._number = 0

    def add(self, cat: str, name: str, ts: float, dur: float = 1, **more: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": MAIN, "ts": ts, "dur": dur}
        self.events.append(event | more)

    def annotate(self, name: str, ts: float, dur: float) -> None:
        self.add("user_annotation", name, ts, dur, args={"External id": 1})

    def call_module(self, name: str, ts: float, dur: float) -> None:
        self.add("python_function", f"nn.Module: {name}", ts, dur, args={"Python id": 1, "Python module id": 0})

    def operate(self, name: str, ts: float, dur: float, sequence: int | None = None, tid: int = MAIN, **args: Any):
        args |= {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": int(tid != MAIN)}
        self.add("cpu_op", name, ts, dur, tid=tid, args={"External id": 1} | args)

    def launch(
        self, ts: float, start: float, dur: float = 2, name: str = MULTIPLY, tid: int = MAIN, call="cudaLaunchKernel"
    ) -> None:
        """Launch a kernel at `ts`, which starts at `start`."""
        self._number += 1
        of = {"correlation": self._number}
        self.add("cuda_runtime", call, ts, 1, tid=tid, args=of)
        sizes = {"grid": [5, 2, 1], "block": [128, 1, 1], "registers per thread": 30, "shared memory": 64}
        self.add("kernel", name, start, dur, pid=0, tid=7, args=of | {"device": 0, "stream": 7} | sizes)

    def copy(self, name: str, ts: float, num_bytes: int, cat: str = "gpu_memcpy") -> None:
        self._number += 1
        of = {"correlation": self._number, "bytes": num_bytes, "device": 0, "stream": 7}
        self.add("cuda_runtime", "cudaMemcpyAsync", ts - 2, 1, args=of)
        self.add(cat, name, ts, 1, pid=0, tid=7, args=of)

    def write(self, path: Path, **options: Any) -> Path:
        text = json.dumps(self.facts | {"traceEvents": self.events, "traceName": "x"}, **options).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def make_training(num_steps: int = 3, **facts: Any) -> Trace:
    """Steps of a model with one linear layer: two kernels in forward, one in backward, one in the optimizer."""
    trace = Trace(**facts)
    for step in range(num_steps):
        at = 1000.0 + 1000 * step
        trace.annotate(f"ProfilerStep#{step + 5}", at, 900)
        trace.call_module("Net_0", at + 10, 200)
        trace.call_module("Linear_0", at + 20, 100)
        trace.operate("aten::linear", at + 25, 50, 7 + step)
        trace.operate("aten::addmm", at + 30, 20, 7 + step, **{"Input Dims": [[8], [4, 6], [6, 8]]})
        trace.launch(at + 40, at + 60, 5, GEMM)
        trace.operate("aten::mse_loss", at + 150, 20, 107 + step)
        trace.launch(at + 155, at + 160)
        trace.operate("autograd::engine::evaluate_function: AddmmBackward0", at + 300, 60, 7 + step, AUTOGRAD)
        trace.operate("AddmmBackward0", at + 310, 40, 7 + step, AUTOGRAD)
        trace.launch(at + 320, at + 330, 6, GEMM, AUTOGRAD)
        trace.annotate("Optimizer.step#SGD.step", at + 500, 100)
        trace.operate("aten::add_", at + 510, 30)
        trace.launch(at + 520, at + 530)
        trace.copy("Memcpy DtoH (Device -> Pageable)", at + 700, 4)
        trace.add("cuda_runtime", "cudaStreamSynchronize", at + 702, 20, args={"correlation": 9000 + step})
    return trace


def make_followed(num_steps: int = 2) -> Trace:
    """The trace that `profile` makes of two measured steps and one with modules: forward and backward of one layer."""
    trace = Trace(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    for step in range(num_steps + 1):
        at, with_modules = 1000.0 * step + 100, step == num_steps
        prefix = "modules:" if with_modules else ""
        trace.annotate(f"loop:{prefix}step", at, 900)
        trace.annotate(f"{prefix}forward", at + 10, 100)
        if with_modules:
            trace.annotate("Net", at + 11, 90)
            trace.annotate("head", at + 12, 80)
        trace.annotate("Torch-Compiled Region: 0/0", at + 13, 70)  # what PyTorch 2.11 writes around a compiled graph
        trace.annotate("## Call CompiledFxGraph None ##", at + 14, 60)
        trace.operate("triton_poi_fused_0", at + 15, 50)
        trace.launch(at + 20, at + 30, 5, GEMM)
        trace.annotate(f"{prefix}backward", at + 200, 100)
        if with_modules:
            trace.add("user_annotation", "modules:backward/Net/head", at + 210, 50, tid=AUTOGRAD)
        trace.launch(at + 220, at + 230, 6, GEMM, AUTOGRAD)
        trace.operate("aten::add_", at + 270, 10, tid=AUTOGRAD)  # the gradients of two branches
        trace.launch(at + 272, at + 275, 1, ADD, AUTOGRAD)
    return trace
