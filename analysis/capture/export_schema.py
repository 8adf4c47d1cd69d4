"""The tables of an nsys export, and the columns and constants of nsys that are read from them."""

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
API = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
NCCL = "NCCL"
LOCK_DOMAIN, LOCK_WAIT = "GIL Trace", "Waiting for GIL"
"""Domain and name of the ranges in which a thread waits for Python's lock (`--trace=python-gil`)."""
"""Domain of NCCL's own ranges."""
STRINGS = "StringIds"
OS_CALLS = "OSRT_API"
"""Calls of the operating system (`--trace=osrt`)."""

# What is unknown when a table is absent; the keys are the tables that `nsys_export.read` looks for.
CONSEQUENCES = {
    KERNEL: "no kernel times: no statement about GPU work, families, phases or idle share",
    API: "no CUDA API calls: no launch latency, no queue depth, and kernels cannot be attributed to ranges",
    NVTX: "no NVTX ranges: kernels cannot be attributed to ranges or modules, and phases can only be inferred",
    STRINGS: "no string table: kernels, API calls and registered ranges have no names",
    MEMCPY: "no memory copies: either none happened or they were not traced",
    MEMSET: "no memory sets: either none happened or they were not traced",
    SYNC: "no synchronisation events: either none happened or they were not traced",
    "TARGET_INFO_GPU": "no GPU facts: name, SMs, memory and clocks are unknown",
}

SESSION = "TARGET_INFO_SESSION_START_TIME"
ABOUT = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Tables that name the version of nsys, as new and as old (2023.1) versions call them."""
FACT_TABLES = (*ABOUT, "ANALYSIS_DETAILS", SESSION, "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE")
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
OPTIONS = "META_DATA_CAPTURE"
"""The options of `nsys profile`, as names and values."""
READ = (*dict.fromkeys((*CONSEQUENCES, GRAPH, OS_CALLS, *FACT_TABLES, DIAGNOSTICS, OPTIONS)),)
"""The tables that are looked at; of others not even the damage matters."""

PUSH_POP, START_END, DOMAIN_CREATE, THREAD_SAMPLE = 59, 60, 75, 34
MOST_EXACT = 2**53  # sums up to here are exact whichever way they are made; as nanoseconds, 104 days
LAST_MOMENT = 2**62  # nanoseconds since 1970, in the year 2116: no capture is later
NO_VALUE = -(2**63)  # stands for NULL while columns are fetched; no timestamp or id has this value

COPY_KINDS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
HOST_MEMORY = {0: "pageable", 1: "pinned", 4: "managed", 6: "managed"}
HOST_MEMORIES = ["", "pageable", "pinned", "managed"]
SYNC_TYPES = {0: "Unknown", 1: "Event sync", 2: "Stream wait sync", 3: "Stream sync", 4: "Context sync"}
CONTEXT_SYNC = 4
NO_ID = 2**32 - 1
"""A stream or an event that is none."""
SYNC_CALLS = {
    r"EventSynchronize": SYNC_TYPES[1],
    r"StreamWaitEvent": SYNC_TYPES[2],
    r"StreamSynchronize|MemcpyAsync|Memcpy": SYNC_TYPES[3],
    r"(?:Device|Ctx|Thread)Synchronize": SYNC_TYPES[4],
}
"""What a call synchronises, by its name."""

GRID_COLUMNS = {"grid_x": "gridX", "grid_y": "gridY", "grid_z": "gridZ"}
KERNEL_COLUMNS = GRID_COLUMNS | {
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
}
GPU_COLUMNS = {
    "id": "id",
    "name": "name",
    "memory_bytes": "totalMemory",
    "memory_bandwidth": "memoryBandwidth",
    "clock_hz": "clockRate",
    "sm_count": "smCount",
    "l2_bytes": "l2CacheSize",
    "compute_major": "computeMajor",
    "compute_minor": "computeMinor",
}

SMALL_COLUMNS = {"deviceId", "streamId", "demangledName", "shortName", "mangledName", "nameId"}
"""Columns of operations and calls that are read as int32: half the memory to fill."""

GPU_OPERATION = {
    "start_ns": "start",
    "end_ns": "end",
    "process": "globalPid",
    "device": "deviceId",
    "stream": "streamId",
    "correlation": "correlationId",
}
