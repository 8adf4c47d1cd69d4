"""Captures of any size in the schema of nsys, for the benchmark: SQLite and parquetdir with the same events.

Two processes of two threads, each launching a Transformer's kernels inside nested NVTX ranges (step > forward > block >
module on one thread, backward on the other), with the API calls between launches, copies, and kernel names as PyTorch
has them. The same arguments always give the same capture.

    python -m tests.bench.generate KERNELS FOLDER     writes KERNELS.sqlite and the folder KERNELS
"""

import sqlite3
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KERNELS_PER_MODULE, MODULES, BLOCKS = 8, 6, 24
NAMES = [
    f"void at::native::vectorized_elementwise_kernel<(int)4, at::native::Functor_{i}<float>>(int, T2)"
    for i in range(40)
]
NAMES += [f"sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize{i}x64x8_stage3_warpsize1x4x1_ffma" for i in range(20)]
NAMES += [f"void at::native::reduce_kernel<(int)512, (int){i}, at::native::ReduceOp<float>>(T3)" for i in range(20)]
RANGES = [
    "step",
    "forward",
    "backward",
    *(f"block_{i}" for i in range(BLOCKS)),
    *(f"module_{i}" for i in range(MODULES)),
]
API = ["cudaLaunchKernel_v7000", "cudaStreamIsCapturing_v10000", "cudaMemcpyAsync_v3020"]

_INT = "INTEGER"
_OPERATION = {
    "start": "INTEGER NOT NULL",
    "end": "INTEGER NOT NULL",
    "deviceId": "INTEGER NOT NULL",
    "contextId": "INTEGER NOT NULL",
    "greenContextId": _INT,
    "streamId": "INTEGER NOT NULL",
    "correlationId": _INT,
    "globalPid": _INT,
}


def tables(num_kernels: int, seed: int = 0) -> dict[str, dict[str, np.ndarray | list]]:
    """Columns of each table of a capture with `num_kernels` kernels."""
    random = np.random.default_rng(seed)
    strings = [*NAMES, *API]
    per_stream = num_kernels // 4
    parts: dict[str, list[dict]] = {"kernel": [], "api": [], "nvtx": [], "copy": []}
    for process in range(2):
        correlation = 1
        for thread in range(2):
            count = per_stream if (process, thread) != (1, 1) else num_kernels - 3 * per_stream
            stream = _stream(random, count, process, thread, correlation)
            correlation += len(stream["api"]["start"])
            for name, columns in stream.items():
                parts[name].append(columns)
    joined = {name: {c: np.concatenate([part[c] for part in all_]) for c in all_[0]} for name, all_ in parts.items()}
    for name, columns in joined.items():
        order = np.argsort(columns["start"], kind="stable")
        joined[name] = {c: values[order] for c, values in columns.items()}
    kernel, api, nvtx, copy = (joined[name] for name in ("kernel", "api", "nvtx", "copy"))
    constant = lambda value, like: np.full(len(like["start"]), value, np.int64)  # noqa: E731
    return {
        "CUPTI_ACTIVITY_KIND_KERNEL": kernel
        | {"shortName": kernel["demangledName"], "mangledName": kernel["demangledName"]}
        | {name: constant(1, kernel) for name in ("launchType", "cacheConfig")}
        | {name: constant(32, kernel) for name in ("registersPerThread", "gridX", "gridY", "gridZ")}
        | {name: constant(128, kernel) for name in ("blockX", "blockY", "blockZ")}
        | {name: constant(0, kernel) for name in ("staticSharedMemory", "dynamicSharedMemory")},
        "CUPTI_ACTIVITY_KIND_MEMCPY": copy | {"bytes": constant(4096, copy), "copyKind": constant(8, copy)},
        "CUPTI_ACTIVITY_KIND_RUNTIME": api | {"returnValue": constant(0, api)},
        "NVTX_EVENTS": nvtx
        | {"eventType": constant(59, nvtx), "domainId": constant(0, nvtx), "text": [RANGES[i] for i in nvtx["text"]]},
        "StringIds": {"id": np.arange(len(strings)), "value": strings},
        "TARGET_INFO_GPU": {"id": np.arange(2), "name": ["Bench GPU"] * 2, "smCount": np.full(2, 132)},
        "META_DATA_EXPORT": {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["3.20.3"]},
    }


def _stream(random, count: int, process: int, thread: int, correlation: int) -> dict[str, dict[str, np.ndarray]]:
    """What one thread does: launches, the calls between them, ranges around them, and the kernels on its own stream."""
    pid, tid = (0x1000000 + process + 1) << 24, ((0x1000000 + process + 1) << 24) + 100 + thread
    gap = random.integers(4_000, 9_000, count)
    launch = np.cumsum(gap) + 1_000_000
    took = random.integers(
        2_000, 3_500, count
    )  # so that 500 ns stay for the other call and for ranges to end and begin
    duration = random.integers(1_000, 8_000, count)
    # A kernel starts when it has been launched and the stream is free.
    ready = launch + took + 500
    busy = np.cumsum(duration)
    start = np.maximum.accumulate(ready - np.r_[0, busy[:-1]]) + np.r_[0, busy[:-1]]
    number = correlation + 2 * np.arange(count)
    api = {
        "start": np.r_[launch, launch - 460],
        "end": np.r_[launch + took, launch - 430],
        "eventClass": np.zeros(2 * count, np.int64),
        "globalTid": np.full(2 * count, tid),
        "correlationId": np.r_[number, number + 1],
        "nameId": np.r_[np.full(count, len(NAMES)), np.full(count, len(NAMES) + 1)],
    }
    operation = {
        "deviceId": np.full(count, process),
        "contextId": np.ones(count, np.int64),
        "greenContextId": np.zeros(count, np.int64),
        "streamId": np.full(count, 7 + thread),
        "correlationId": number,
        "globalPid": np.full(count, pid),
    }
    times = {"start": start, "end": start + duration}
    kernel = times | operation | {"demangledName": random.integers(0, len(NAMES), count)}
    copies = np.arange(0, count, 50)
    copy_times = {"start": (start + duration)[copies], "end": (start + duration)[copies] + 400}
    copy = copy_times | {name: values[copies] for name, values in operation.items()}
    return {"kernel": kernel, "api": api, "nvtx": _nested(launch, launch + took, tid, thread), "copy": copy}


def _nested(launch: np.ndarray, launched: np.ndarray, tid: int, thread: int) -> dict[str, np.ndarray]:
    levels = [(KERNELS_PER_MODULE, lambda i: 3 + BLOCKS + i % MODULES)]
    levels.append((KERNELS_PER_MODULE * MODULES, lambda i: 3 + i % BLOCKS))
    levels.append((KERNELS_PER_MODULE * MODULES * BLOCKS, lambda i: np.full(len(i), 1 + thread)))
    levels.append((KERNELS_PER_MODULE * MODULES * BLOCKS, lambda i: np.zeros(len(i), np.int64)))
    start, end, text = [], [], []
    for depth, (size, name) in enumerate(levels):
        first = np.arange(0, len(launch), size)
        last = np.minimum(first + size, len(launch)) - 1
        start.append(launch[first] - 300 - 10 * depth)
        end.append(launched[last] + 10 * (depth + 1))
        text.append(name(np.arange(len(first))))
    joined = {"start": np.concatenate(start), "end": np.concatenate(end), "text": np.concatenate(text)}
    return joined | {"globalTid": np.full(len(joined["start"]), tid)}


def write_sqlite(data: dict[str, dict], path: Path) -> None:
    """Write `tables` as the SQLite export that nsys would write."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = OFF")
    for table, columns in data.items():
        kinds = {c: "TEXT" if isinstance(values, list) else _OPERATION.get(c, _INT) for c, values in columns.items()}
        if table == "NVTX_EVENTS":
            kinds["end"] = _INT
        declared = ", ".join(f'"{c}" {kind}' for c, kind in kinds.items())
        connection.execute(f'CREATE TABLE "{table}" ({declared})')
        insert = f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})'
        rows = len(next(iter(columns.values())))
        for low in range(0, rows, 100_000):
            chunk = [values[low : low + 100_000] for values in columns.values()]
            plain = [one if isinstance(one, list) else one.tolist() for one in chunk]
            connection.executemany(insert, zip(*plain))
    connection.commit()
    connection.close()


def write_parquetdir(data: dict[str, dict], folder: Path) -> None:
    """Write `tables` as the parquetdir export that nsys would write: ids unsigned, texts as strings."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, columns in data.items():
        arrays = {}
        for name, values in columns.items():
            kind = (
                pa.large_string()
                if isinstance(values, list)
                else pa.int64()
                if name in ("start", "end")
                else pa.uint64()
            )
            arrays[name] = pa.array(values, kind)
        pq.write_table(pa.table(arrays), folder / f"{table}.parquet")


if __name__ == "__main__":
    kernels, where = int(sys.argv[1]), Path(sys.argv[2])
    generated = tables(kernels)
    write_sqlite(generated, where / f"{kernels}.sqlite")
    write_parquetdir(generated, where / f"{kernels}")
