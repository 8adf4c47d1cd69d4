"""What may leave the machine that measures: the one place for rules about it.

A worker gets an allow-listed environment, since nsys stores all of it in every report. An export of nsys keeps
allow-listed tables. Text that is recorded loses folders, users and hosts. What is published is searched for anything
that looks private.
"""

import re

# nsys stores the environment of the profiled process in every report, so the process gets only what it needs.
COMPILED = "TORCHINDUCTOR_CACHE_DIR"  # a folder that workers share: what one compiled, the others find

ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LANG",
    "LC_ALL",
    "CUDA_HOME",
    "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NCCL_NVLS_ENABLE",
    "NVSHMEM_DISABLE_NVLS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    COMPILED,
)


KEPT_TABLES = (
    *("CUPTI_", "CUDA_GRAPH", "ENUM_", "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_"),
    *("TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "ANALYSIS_DETAILS", "PROFILER_OVERHEAD"),
)
STRING_COLUMNS = ("demangledName", "shortName", "mangledName", "nameId", "textId", "name")
GPU_IDS = {"uuid", "busLocation", "luid", "ctxswDevPath", "ctrlDevPath"}
"""An export of nsys keeps tables whose names begin so, the strings that their columns refer to, and of a GPU everything
but these columns. Everything else (environment, processes, host) is dropped."""

FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)+")
"""Folders of a path, in what nsys says."""

PRIVATE_LINE = re.compile(r"(?i:secret|token|passw|credential|api_?key|access_?key|private key)|\b[A-Z][A-Z0-9_]+=\S")
"""A line of a log that may hold a secret, and is left out."""

_SECRET = r"(?:secret|token|passw(?:or)?d|credential|api_?key|access_?key)"

PRIVATE = {
    "AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "token": r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-)[\w-]{16,}",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY",
    "secret": rf"(?i)\w*{_SECRET}\w*['\"]?\s*[=:]\s*['\"]?[^\s'\",}}\]]+",
    "environment variable": r"\b[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+=\S+",
    "path": r"(?<![\w/.:)>])(?:~|[A-Za-z]:)?[/\\](?:[\w.+@-]+[/\\])+[\w.+@-]+",
    "address": r"\b(?!0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)",
    "user and host": r"\b[\w.-]+@[\w-]+(?:\.[\w-]+)*",
}
"""What never belongs into a recording, as patterns over its text."""

SECRET_VARIABLE = re.compile(_SECRET, re.IGNORECASE)
"""Name of an environment variable whose value is a secret."""


def scrub_text(text: str) -> str:
    """`text` without what tells of the machine it came from: folders, and user@host; and without PyTorch's advice on
    its environment variables after an out of memory; at most 1000 characters."""
    text = text.partition(" If reserved but unallocated memory is large")[0]
    text = re.sub(r"(?<![\w/:.])(?:~|[A-Za-z]:)?[/\\](?:[\w.+@-]+[/\\])*(?=[\w.+@-])", "", text)
    # Each word is read once, with a user in it or not: to look for the @ from each of its letters takes their square.
    text = re.sub(r"[\w.-]+(@[\w-]+(?:\.[\w-]+)*)?", lambda word: "..." if word[1] else word[0], text)
    return text if len(text) <= 1000 else text[:997] + "..."
