"""Errors while a run is measured: of the run, of its capture, or of the machine."""

import signal
from typing import Any, Protocol

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import Status


class RunFailedError(ProfilerError):
    """Error of a run that could not be measured. `status`: as in the runs table. `detail`: phase and message."""

    exit_code = ExitCode.FAILED

    def __init__(self, status: Status, **detail: Any):
        super().__init__(detail.get("message", status))
        self.status, self.detail = status, detail


class WorkerDiedError(RunFailedError):
    """Error when the process that measured the run died."""


class CaptureLostError(RunFailedError):
    """Error of nsys, not of the run: another capture of the run may be complete."""

    def __init__(self, phase: str, message: str, status: Status = "failed"):
        super().__init__(status, phase=phase, message=message, collector="nsys")


class CollectorError(ProfilerError):
    """Error of the collector on this machine: every later run would fail, too."""

    exit_code = ExitCode.MISSING


LOST_GPU = (
    "GPU is lost",  # NVML_ERROR_GPU_IS_LOST
    "uncorrectable ECC",  # cudaErrorECCUncorrectable
    "uncorrectable NVLink",  # cudaErrorNvlinkUncorrectable
    "device(s) is/are busy or unavailable",  # cudaErrorDevicesUnavailable
    "no CUDA-capable device",  # cudaErrorNoDevice
    "driver shutting down",  # cudaErrorCudartUnloading
    "CUDA driver initialization failed",  # PyTorch's own words for cudaErrorInitializationError when it counts devices
    "CUDA error: unknown error",  # cudaErrorUnknown, with PyTorch's prefix: the words alone are too common
    "CUDA error: initialization error",  # cudaErrorInitializationError, the same
)
"""Parts of error messages after which no run can go on. Other errors of CUDA's context, such as an illegal memory
access, concern one run.

Sources: for codes `cuda...`, cudaGetErrorString of CUDA 13.0 (CUDA Runtime API, Data types, cudaError), to which
PyTorch adds the prefix `CUDA error: ` (c10/cuda/CUDAException.cpp); for NVML, nvmlErrorString, as in nvidia-ml-py; for
PyTorch, c10/cuda/CUDAFunctions.cpp."""


def infer_status(event: str, message: str) -> Status:
    """Return the status of a run whose worker sent `event` (oom or failed) with a message."""
    if event == "oom":
        return "oom"
    return "machine" if any(sign in message for sign in LOST_GPU) else "failed"


def describe_exit(code: int) -> str:
    """Describe how a process ended. code: its exit code, minus the number of the signal that killed it, or 128 plus
    that number if a shell or a launcher started it."""
    if not code:
        return "no error"
    try:
        name = signal.Signals(-code if code < 0 else code - 128).name
    except ValueError:
        return f"exit code {code}"
    return f"exit code {code}, {name}{', as when memory is full' if name == 'SIGKILL' else ''}"


class CountedSteps(Protocol):
    """What is asked of a script: steps to skip, steps of each stage after them, and all that are needed."""

    @property
    def skip(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def num_needed(self) -> int: ...


def describe_progress(stage: str, asked: CountedSteps) -> str:
    """Describe how far a script was that was killed before it could note its steps; stage: the last that it noted."""
    captured = asked.skip + asked.steps
    before = {"skipped": 1, "timed": asked.skip, "captured": captured, "followed": captured + asked.steps}
    if stage not in before:
        return "before its first step"
    return f"after at least {before[stage]} of the {asked.num_needed} steps that are needed"
