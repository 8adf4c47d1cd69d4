"""What the CUDA API calls of a trace are and why they appear.

`cuda...` is the runtime API, which programs and PyTorch call; `cu...` is the driver API beneath it, called directly by
Triton, by cuBLAS and cuDNN for some launches, and by the runtime for look-ups. nsys does not list the driver call
inside a runtime call, so a launch is not counted twice. A trace has the version of the entry point after many names
(`cudaLaunchKernel_v7000`, `cuMemAlloc_v2`); nsys prints some of them with it and some without. Functions have their
names from CUDA's documentation here, which has no versions.
"""

import re
from functools import lru_cache
from typing import NamedTuple


class ApiCall(NamedTuple):
    """One row: `pattern` matches the whole `strip_version`, `find_group` is a key of `GROUPS`."""

    name: str
    group: str
    pattern: str
    explanation: str


SYNCHRONISATION = "synchronisation"
GROUPS = {
    "launch": "Launches: the host puts a kernel or a graph into a stream and goes on",
    SYNCHRONISATION: "Synchronisation: the host waits for the GPU",
    "copy": "Copies and fills",
    "allocation": "Memory allocation",
    "event": "Events: marks in a stream",
    "stream": "Streams",
    "graph": "CUDA graphs",
    "module": "Loading code",
    "query": "Queries about kernels and devices",
    "profiler": "Profiler control and start-up",
}
"""Groups of calls with their headings, in display order."""

API_CALLS = (
    ApiCall(
        "cudaLaunchKernel",
        "launch",
        r"cudaLaunchKernel",
        "Puts a kernel into a stream. While the stream has room for more, the call returns in a few microseconds, long "
        "before the kernel has run; when it is full, the call waits for the GPU. The kernel carries the same "
        "correlation id. Where these calls fill the timeline and the GPU has gaps, the step is host-bound.",
    ),
    ApiCall(
        "cudaLaunchKernelExC",
        "launch",
        r"cudaLaunchKernelEx\w*",
        "cudaLaunchKernel with launch attributes, such as thread block clusters. cuBLAS launches GEMMs this way.",
    ),
    ApiCall(
        "cuLaunchKernel",
        "launch",
        r"cuLaunchKernel",
        "The driver's launch. Triton's kernels and those that a library loads as binary code arrive through it.",
    ),
    ApiCall(
        "cuLaunchKernelEx",
        "launch",
        r"cuLaunchKernelEx",
        "The driver's launch with attributes: kernels for Hopper and later that need clusters, from cuBLAS, cuDNN "
        "and Triton.",
    ),
    ApiCall(
        "cudaLaunchCooperativeKernel",
        "launch",
        r"cu(?:da)?LaunchCooperativeKernel\w*",
        "A launch whose blocks may wait for one another across the whole GPU, so that all must fit at once.",
    ),
    ApiCall(
        "cudaLaunchHostFunc",
        "launch",
        r"cu(?:da)?LaunchHostFunc",
        "Puts a function of the host into a stream; it runs when everything before it is done.",
    ),
    ApiCall(
        "cudaGraphLaunch",
        "launch",
        r"cu(?:da)?GraphLaunch",
        "Starts a recorded graph of kernels with one call. Traced by node, its kernels are listed one by one; traced "
        "as a graph, only the graph is.",
    ),
    ApiCall(
        "cudaDeviceSynchronize",
        "synchronisation",
        r"cudaDeviceSynchronize|cuCtxSynchronize",
        "The host waits until all streams are done: torch.cuda.synchronize(), and the boundaries of timed steps. "
        "Its time is the GPU's work still queued, not work of its own.",
    ),
    ApiCall(
        "cudaStreamSynchronize",
        "synchronisation",
        r"cu(?:da)?StreamSynchronize",
        "The host waits for one stream. PyTorch calls it whenever a value is needed on the host: .item(), .cpu(), "
        "printing a "
        "loss, indexing by a mask.",
    ),
    ApiCall(
        "cudaEventSynchronize",
        "synchronisation",
        r"cu(?:da)?EventSynchronize",
        "The host waits until the stream has reached a recorded event: timing with events, hand-over of buffers.",
    ),
    ApiCall(
        "cudaMemcpyAsync",
        "copy",
        r"cudaMemcpyAsync|cuMemcpy\w*Async",
        "Puts a copy into a stream: from tensor to tensor on the GPU (.contiguous(), .clone(), copy_()), to the GPU "
        "(.to()) or to the host (.item()). From ordinary (pageable) host memory it waits for the data to be read, and "
        "to the host until it has arrived, so it may take as long as the copy.",
    ),
    ApiCall(
        "cudaMemcpy",
        "copy",
        r"cudaMemcpy(?!\w*Async)\w*|cuMemcpy(?!\w*Async)\w*",
        "Copies and waits until the data have arrived.",
    ),
    ApiCall(
        "cudaMemsetAsync",
        "copy",
        r"cudaMemsetAsync|cuMemset\w*Async",
        "Fills memory with a byte value in a stream: zeroed buffers, and the counters that split-K GEMMs and scans "
        "start from.",
    ),
    ApiCall(
        "cudaMemset", "copy", r"cudaMemset(?!\w*Async)\w*|cuMemset(?!\w*Async)\w*", "Fills memory with a byte value."
    ),
    ApiCall(
        "cudaMemPrefetchAsync",
        "copy",
        r"cu(?:da)?MemPrefetchAsync\w*|cu(?:da)?MemAdvise\w*",
        "Moves unified memory to where it will be used, or tells the driver where that is.",
    ),
    ApiCall(
        "cudaMalloc",
        "allocation",
        r"cudaMalloc|cuMemAlloc|cudaMallocPitch|cudaMalloc3D",
        "Takes memory from the driver, which is slow and may wait for the GPU. PyTorch's caching allocator keeps "
        "what it got, so "
        "after warm-up none should appear.",
    ),
    ApiCall(
        "cudaFree",
        "allocation",
        r"cudaFree|cuMemFree",
        "Returns memory to the driver and waits for the GPU. PyTorch frees only when it runs out or on "
        "empty_cache(). One call "
        "with nothing to free is a customary way to start CUDA.",
    ),
    ApiCall(
        "cudaMallocAsync",
        "allocation",
        r"cudaMallocAsync|cudaMallocFromPoolAsync|cudaFreeAsync|cuMem(?:Alloc|Free)Async|cu(?:da)?MemPool\w+",
        "Allocation in the order of a stream, from a pool, without waiting.",
    ),
    ApiCall(
        "cudaHostAlloc",
        "allocation",
        r"cudaHostAlloc|cudaMallocHost|cudaFreeHost|cudaHost(?:Register|Unregister|GetDevicePointer|GetFlags)"
        r"|cuMemHost\w+|"
        r"cuMemFreeHost|cuMemAllocHost\w*",
        "Page-locked host memory, from which copies run at full speed and beside kernels: pin_memory in a data "
        "loader. Slow to "
        "take.",
    ),
    ApiCall(
        "cudaMallocManaged",
        "allocation",
        r"cudaMallocManaged|cuMemAllocManaged",
        "Unified memory that host and GPU share; pages move when they are touched.",
    ),
    ApiCall(
        "cuMemCreate",
        "allocation",
        r"cuMem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|GetAllocation\w+"
        r"|ExportToShareableHandle|"
        r"ImportFromShareableHandle|RetainAllocationHandle|GetHandleForAddressRange)\w*|cuMulticast\w+",
        "Virtual memory management: expandable segments of PyTorch's allocator, and buffers that NCCL shares "
        "between GPUs.",
    ),
    ApiCall(
        "cudaIpcGetMemHandle",
        "allocation",
        r"cu(?:da)?Ipc\w+",
        "Shares memory or events between processes: data loaders and communication on one machine.",
    ),
    ApiCall(
        "cudaMemGetInfo",
        "query",
        r"cu(?:da)?MemGetInfo",
        "Asks how much device memory is free.",
    ),
    ApiCall(
        "cudaEventRecord",
        "event",
        r"cu(?:da)?EventRecord\w*",
        "Puts a mark into a stream, to be timed or waited for: torch.cuda.Event, memory that another stream still "
        "uses, NCCL.",
    ),
    ApiCall(
        "cudaEventQuery",
        "event",
        r"cu(?:da)?EventQuery",
        "Asks without waiting whether a mark has been reached: the caching allocator and NCCL's watchdog poll this "
        "way.",
    ),
    ApiCall(
        "cudaEventElapsedTime",
        "event",
        r"cu(?:da)?EventElapsedTime\w*",
        "Time on the GPU between two recorded events.",
    ),
    ApiCall(
        "cudaEventCreate",
        "event",
        r"cu(?:da)?Event(?:Create|Destroy)\w*",
        "Creates or destroys an event.",
    ),
    ApiCall(
        "cudaStreamWaitEvent",
        "stream",
        r"cu(?:da)?StreamWaitEvent",
        "Makes a stream, not the host, wait for an event in another: overlapping communication or copies with "
        "computation.",
    ),
    ApiCall(
        "cudaStreamIsCapturing",
        "stream",
        r"cu(?:da)?Stream(?:IsCapturing|GetCaptureInfo\w*)|cu(?:da)?ThreadExchangeStreamCaptureMode",
        "Asks whether a stream is recording a graph. PyTorch asks before it allocates, synchronises or draws random "
        "numbers, so "
        "the call is frequent and cheap.",
    ),
    ApiCall(
        "cudaStreamQuery",
        "stream",
        r"cu(?:da)?StreamQuery",
        "Asks without waiting whether a stream has finished its work.",
    ),
    ApiCall(
        "cudaStreamCreate",
        "stream",
        r"cu(?:da)?Stream(?:Create|Destroy|Get|Set|AddCallback|AttachMem|CopyAttributes|WriteValue|WaitValue)\w*",
        "Creates, destroys or describes a stream, a queue of work that runs in order.",
    ),
    ApiCall(
        "cudaStreamBeginCapture",
        "graph",
        r"cu(?:da)?Stream(?:BeginCapture|EndCapture|UpdateCaptureDependencies)\w*",
        "Starts or ends the recording of a stream's work into a graph instead of running it: torch.cuda.graph, "
        "torch.compile with reduce-overhead.",
    ),
    ApiCall(
        "cudaGraphInstantiate",
        "graph",
        r"cu(?:da)?GraphInstantiate\w*|cu(?:da)?GraphExecUpdate\w*|cu(?:da)?GraphUpload",
        "Turns a recorded graph into one that can be launched. Slow, done once for many launches.",
    ),
    ApiCall("cudaGraph", "graph", r"cu(?:da)?Graph(?!Launch)\w*", "Builds, inspects or destroys a CUDA graph."),
    ApiCall(
        "cuModuleLoadData",
        "module",
        r"cu(?:Module|Library)(?:Load|Unload)\w*|cu(?:da)?Library\w+|cuLink\w+|cuModuleGet\w+",
        "Loads a kernel's machine code, or looks a kernel up in it. With lazy loading it happens at the first "
        "launch of each "
        "kernel, which is one reason for warm-up steps.",
    ),
    ApiCall(
        "cuKernelGetName",
        "query",
        r"cuKernelGetName|cuFuncGetName",
        "Reads a kernel's name. With recent CUDA it stands before each cudaLaunchKernel and takes a tenth of a "
        "microsecond.",
    ),
    ApiCall(
        "cudaFuncSetAttribute",
        "query",
        r"cudaFuncSet\w+|cuFuncSet\w+|cuKernelSet\w+",
        "Sets a property of a kernel before its launch, mostly a limit above 48 KiB of shared memory.",
    ),
    ApiCall(
        "cudaFuncGetAttributes",
        "query",
        r"cudaFuncGet\w+|cuFuncGet\w+|cuKernelGet\w+|cudaGetFuncBySymbol|cudaGetKernel|cuFuncIsLoaded|cuFuncLoad"
        r"|cudaGetSymbol\w+",
        "Looks up a kernel or its needs (registers, shared memory) before the launch.",
    ),
    ApiCall(
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        "query",
        r"cu(?:da)?Occupancy\w+",
        "Computes how many blocks or clusters of a kernel fit on a multiprocessor, so that a library can choose its "
        "grid.",
    ),
    ApiCall(
        "cudaGetDevice",
        "query",
        r"cudaGet(?:Device\w*|LastError|DriverEntryPoint\w*|ErrorString|ErrorName)|cuda(?:Set|Choose)Device\w*"
        r"|cudaPeekAtLastError|"
        r"cudaDeviceGet\w+|cuDevice\w+|cudaPointerGetAttributes|cuPointerGet\w+|cu(?:da)?(?:Driver|Runtime)GetVersion|"
        r"cuGetProcAddress\w*|cuGetError\w+|cuGetExportTable|cudaDeviceCanAccessPeer|cudaDeviceSetLimit"
        r"|cudaDeviceSetCacheConfig",
        "Asks about the device, a pointer, an entry point of the driver or the last error, or selects a device.",
    ),
    ApiCall(
        "cudaDeviceEnablePeerAccess",
        "query",
        r"cu(?:da)?(?:Device|Ctx)(?:Enable|Disable)PeerAccess",
        "Lets one GPU read another's memory: communication between GPUs of a machine.",
    ),
    ApiCall(
        "cudaProfilerStart",
        "profiler",
        r"cu(?:da)?Profiler\w+",
        "Starts or stops the capture, where the profiler was told to follow these calls. Not part of the workload.",
    ),
    ApiCall(
        "cuInit",
        "profiler",
        r"cuInit|cuCtx\w+|cuDevicePrimaryCtx\w+|cudaDeviceReset|cudaInitDevice",
        "Starts CUDA or manages its context, once a process; the first takes a good part of a second.",
    ),
)
"""The calls in order; the first whose pattern matches wins."""

_PATTERNS = [re.compile(call.pattern) for call in API_CALLS]
_VERSION = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def strip_version(name: str) -> str:
    """Return `name` as in CUDA's documentation, without the suffixes of its entry points: a version, and `_ptsz` or
    `_ptds` if each thread has its own default stream. `cudaLaunchKernel_v7000`, `cudaLaunchKernel_ptsz_v7000` and
    `cudaLaunchKernel` are one."""
    return _VERSION.sub("", name)


@lru_cache(maxsize=10_000)
def explain(name: str) -> ApiCall | None:
    """Explain the API call `name`, with or without a version; None for a call that is not described here."""
    base = strip_version(name)
    for call, pattern in zip(API_CALLS, _PATTERNS, strict=True):
        if pattern.fullmatch(base):
            return call
    return None


def find_group(name: str) -> str | None:
    """Key of the group of `GROUPS` that API call `name` belongs to; None if it is not described."""
    entry = explain(name)
    return entry and entry.group
