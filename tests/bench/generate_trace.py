"""A trace of torch.profiler of any size, for the benchmark: one process of two threads and one GPU.

Each kernel has an operator, a call that launches it, and the two ends of the arrow that PyTorch draws between them:
some 1,200 bytes of JSON. Steps, phases and blocks are ranges of `record_function`; backward runs on another thread,
linked by sequence numbers. The same arguments always give the same trace.

    python -m tests.bench.generate_trace KERNELS FILE.json
"""

import sys
from pathlib import Path

from .generate import BLOCKS, NAMES

PER_BLOCK, PID, MAIN, AUTOGRAD = 24, 4711, 4711, 4790
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "Bench GPU", "totalGlobalMem": 85018279936, "computeMajor": 9,
    "computeMinor": 0, "numSms": 132}],
  "cuda_runtime_version": 13000, "record_shapes": 0, "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
TAIL = """
  ],
  "traceName": "/tmp/bench.json"
}
"""


def write_trace(num_kernels: int, path: Path) -> None:
    """Write a trace with `num_kernels` kernels."""
    per_step = 2 * BLOCKS * PER_BLOCK
    with path.open("w", encoding="ascii") as file:
        file.write(HEAD)
        separator, number, step = "", 0, 0
        while number < num_kernels:
            count = min(per_step, num_kernels - number)
            file.write(separator + ",\n".join(_make_step(step, number, count, per_step)))
            separator, number, step = ",\n", number + count, step + 1
        file.write(TAIL)


def _make_step(step: int, first: int, count: int, per_step: int) -> list[str]:
    """Make the events of one step: forward from the first kernel to the middle, then backward in the other order."""
    events = []
    begin = 4_000_000_000_000 + 10 * first + 20 * step
    half = min(per_step // 2, count)
    events.append(_make_range(f"ProfilerStep#{step}", MAIN, begin, 10 * count + 5))
    events.append(_make_range("forward", MAIN, begin + 0.1, 10 * half))
    if count > half:
        events.append(_make_range("backward", MAIN, begin + 10 * half + 0.2, 10 * (count - half)))
    for block in range(0, half, PER_BLOCK):
        length = min(PER_BLOCK, half - block)
        events.append(_make_range(f"block_{block // PER_BLOCK}", MAIN, begin + 10 * block + 0.5, 10 * length - 0.1))
    for i in range(count):
        is_backward = i >= half
        sequence = first + (per_step - 1 - i if is_backward else i)
        events += _make_launch(first + i, begin + 10 * i + 1, sequence, is_backward)
    return events


def _make_range(name: str, thread: int, begin: float, length: float) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "{name}", "pid": {PID}, "tid": {thread},\n'
        f'    "ts": {begin:.3f}, "dur": {length:.3f},\n'
        '    "args": {\n      "External id": 1, "Ev Idx": 1\n    }\n  }'
    )


def _make_launch(number: int, begin: float, sequence: int, is_backward: bool) -> list[str]:
    """Make an operator, its launch, its kernel, and the arrow between them."""
    thread, name = (AUTOGRAD, "MulBackward0") if is_backward else (MAIN, "aten::mul")
    kernel, took = NAMES[number % len(NAMES)], 2 + number % 7 + number % 1000 / 1000
    return [
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {PID}, "tid": {thread},\n'
        f'    "ts": {begin:.3f}, "dur": 6.125,\n    "args": {{\n      "External id": {number}, "Sequence number": '
        f'{sequence}, "Fwd thread id": {int(is_backward)}, "Record function id": 0, "Ev Idx": {number}\n    }}\n  }}',
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {PID}, "tid": {thread},\n'
        f'    "ts": {begin + 1:.3f}, "dur": 3.250,\n    "args": {{\n      "External id": {number}, "cbid": 211, '
        f'"correlation": {number}\n    }}\n  }}',
        f'  {{\n    "ph": "s", "id": {number}, "pid": {PID}, "tid": {thread}, "ts": {begin + 1:.3f},\n    '
        '"cat": "ac2g", "name": "ac2g"\n  }',
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7,\n'
        f'    "ts": {begin + 8:.3f}, "dur": {took:.3f},\n    "args": {{\n      "External id": {number},\n'
        '      "queued": 0, "device": 0, "context": 1,\n      "stream": 7, '
        f'"correlation": {number},\n      "registers per thread": 32,\n      "shared memory": 0,\n'
        '      "blocks per SM": 0.0125,\n      "warps per SM": 0.05,\n      "grid": [1, 1, 1],\n'
        '      "block": [128, 1, 1],\n      "est. achieved occupancy %": 0\n    }\n  }',
        f'  {{\n    "ph": "f", "id": {number}, "pid": 0, "tid": 7, "ts": {begin + 8:.3f},\n    '
        '"cat": "ac2g", "name": "ac2g", "bp": "e"\n  }',
    ]


if __name__ == "__main__":
    write_trace(int(sys.argv[1]), Path(sys.argv[2]))
