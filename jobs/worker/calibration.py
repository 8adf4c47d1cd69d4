"""Peak rates that the machine really reaches, measured in seconds: what a roofline needs instead of a data sheet.

Each figure is the median of repeated measurements with CUDA events, on random data and on buffers larger than the L2
cache, after a warm-up.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from profiler_job.jobs.contract.messages import Rate

GEMM_SIZE = 8192
COPY_BYTES = 2**31
REPEATS = 10
LAUNCHES = 1000  # fewer than the queue holds, so that the host never waits for the device


def measure_rates(device: torch.device) -> list[Rate]:
    """Measure peak rates. Return rows of figure, unit, value (median), low, high, repeats and gpu_name.

    gemm_*: FLOP/s of a square matmul of GEMM_SIZE; copy: bytes read and written per second by a device copy; read:
    bytes read per second by a sum; launch: seconds of host time for one small PyTorch operation.
    """
    rows = []
    shape = (GEMM_SIZE, GEMM_SIZE)
    flops = 2 * GEMM_SIZE**3
    for name, dtype, precision in (
        ("gemm_fp32", torch.float32, "highest"),
        ("gemm_tf32", torch.float32, "high"),
        ("gemm_bf16", torch.bfloat16, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        a, b = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        seconds = time_calls(partial(torch.mm, a, b, out=out))
        rows.append(build_row(name, "FLOP/s", [flops / wall_s for wall_s in seconds]))
    source = torch.randn(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    rows.append(
        build_row("copy", "bytes/s", [2 * COPY_BYTES / wall_s for wall_s in time_calls(lambda: target.copy_(source))])
    )
    rows.append(build_row("read", "bytes/s", [COPY_BYTES / wall_s for wall_s in time_calls(lambda: source.sum())]))
    small = torch.zeros(1, device=device)
    rows.append(build_row("launch", "s", measure_host_seconds(lambda: small.add_(1))))
    name = torch.cuda.get_device_name(device)
    return [{**rate, "gpu_name": name} for rate in rows]


def build_row(figure: str, unit: str, values: list[float]) -> Rate:
    middle = statistics.median(values)
    return {
        "figure": figure,
        "unit": unit,
        "value": middle,
        "low": min(values),
        "high": max(values),
        "repeats": REPEATS,
    }


def time_calls(work: Callable[[], object]) -> list[float]:
    """Measure seconds of `work` on the device, REPEATS times, after three warm-ups."""
    for _ in range(3):
        work()
    seconds = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return seconds


def measure_host_seconds(work: Callable[[], object]) -> list[float]:
    """Measure seconds of CPU time for one `work`, the mean of LAUNCHES in a row, REPEATS times."""
    seconds = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            work()
        seconds.append((time.perf_counter() - start) / LAUNCHES)
    torch.cuda.synchronize()
    return seconds
