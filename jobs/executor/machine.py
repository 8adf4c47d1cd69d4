"""Facts of the machine and the programs that measure, as recorded. No host, user or path."""

import os
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Any

from profiler_job.jobs.contract.layout import Machine
from profiler_job.jobs.contract.privacy import collect_machine_names, hash_names
from profiler_job.jobs.contract.program import find_commit
from profiler_job.jobs.executor.nsys_cli import run_nsys


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


def read_nsys_version() -> str:
    return run_nsys("--version").strip().rpartition("version ")[2]


@cache
def hash_machine_names() -> list[str]:
    """Hash the names of this machine and its user with a salt of this process."""
    return hash_names(collect_machine_names(), secrets.token_hex(8))


def count_cores() -> int:
    """Count the cores of the CPU that this process may use."""
    return len(os.sched_getaffinity(0))
