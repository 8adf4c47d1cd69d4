"""Facts of the machine and the programs that measure, as recorded. No host, user or path."""

import os
import secrets
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Any

from profiler_job.jobs.contract.layout import Machine
from profiler_job.jobs.contract.privacy import collect_machine_names, hash_names
from profiler_job.jobs.contract.program import find_commit
from profiler_job.jobs.executor.nsys_cli import run_nsys

PRINT_TORCH = """
import importlib.util, runpy
[folder] = importlib.util.find_spec("torch").submodule_search_locations
print(runpy.run_path(f"{folder}/version.py")["__version__"])
"""
TORCH_S = 60.0


def read_machine_facts(worker_facts: Mapping[str, Any], *, with_nsys: bool) -> Machine:
    """GPU, driver, CUDA, torch, nsys (empty where it is not used), Python and the commit of this program.

    Raises CollectorError where nsys is missing.
    """
    nsys_used = read_nsys_version() if with_nsys else ""
    return Machine(**worker_facts, driver=read_driver_version(), nsys=nsys_used, commit=find_commit())


def read_driver_version() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        version: str = pynvml.nvmlSystemGetDriverVersion()
        return version
    except pynvml.NVMLError:
        return ""


def list_gpu_names() -> list[str]:
    """List the names of the GPUs that this process may use; [] without a driver. PyTorch's name of a part of one begins
    with its name and ` MIG `."""
    import pynvml

    from profiler_job.jobs.executor.visible_gpus import open_visible_handles

    try:
        return [pynvml.nvmlDeviceGetName(handle) for handle in open_visible_handles()]
    except pynvml.NVMLError:
        return []


def read_torch_version(python: str) -> str:
    """Read the version of the torch that a Python imports, without importing it; "" if it has none."""
    try:
        done = subprocess.run([python, "-c", PRINT_TORCH], capture_output=True, text=True, timeout=TORCH_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if not done.returncode else ""


def read_nsys_version() -> str:
    return run_nsys("--version").strip().rpartition("version ")[2]


@cache
def hash_machine_names() -> list[str]:
    """Hash the names of this machine and its user with a salt of this process."""
    return hash_names(collect_machine_names(), secrets.token_hex(8))


def count_cores() -> int:
    """Count the cores of the CPU that this process may use."""
    return len(os.sched_getaffinity(0))
