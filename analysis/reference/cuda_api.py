"""What the CUDA API calls of a trace are and why they appear.

`cuda...` is the runtime API, which programs and PyTorch call; `cu...` is the driver API beneath it, called directly by
Triton, by cuBLAS and cuDNN for some launches, and by the runtime for look-ups. nsys does not list the driver call
inside a runtime call, so a launch is not counted twice. A trace has the version of the entry point after many names
(`cudaLaunchKernel_v7000`, `cuMemAlloc_v2`); nsys prints some of them with it and some without. Functions have their
names from CUDA's documentation here, which has no versions.
"""

import re
from pathlib import Path

from profiler_job.analysis.reference.rules import Rule, Taxonomy, load_rules

SYNCHRONISATION, ALLOCATION = "synchronisation", "allocation"
GROUPS = {
    "launch": "Launches: the host puts a kernel or a graph into a stream and goes on",
    SYNCHRONISATION: "Synchronisation: the host waits for the GPU",
    "copy": "Copies and fills",
    ALLOCATION: "Memory allocation",
    "event": "Events: marks in a stream",
    "stream": "Streams",
    "graph": "CUDA graphs",
    "module": "Loading code",
    "query": "Queries about kernels and devices",
    "profiler": "Profiler control and start-up",
}
"""Groups of calls with their headings, in display order."""
UPLOAD = "memcpy Host-to-Device"
HOST_COPIES = (UPLOAD, "memcpy Device-to-Host")
"""Operations of the GPU that copy from the host, and from or to it."""

API_CALLS = load_rules(Path(__file__).with_suffix(".toml"), GROUPS)
"""The rules of `cuda_api.toml`: each is named after the call that it explains, and its family is a key of GROUPS."""
_TAXONOMY = Taxonomy(API_CALLS)

_VERSION = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def strip_version(name: str) -> str:
    """Return `name` as in CUDA's documentation, without the suffixes of its entry points: a version, and `_ptsz` or
    `_ptds` if each thread has its own default stream. `cudaLaunchKernel_v7000`, `cudaLaunchKernel_ptsz_v7000` and
    `cudaLaunchKernel` are one."""
    return _VERSION.sub("", name)


def explain(name: str) -> Rule | None:
    """Return the rule that explains the API call `name`, with or without a version; None for a call that is not
    described."""
    return _TAXONOMY.find_rule(_TAXONOMY.classify(strip_version(name)))


def find_group(name: str) -> str | None:
    """Return the key of the group of `GROUPS` that API call `name` belongs to; None if it is not described."""
    entry = explain(name)
    return entry and entry.family
