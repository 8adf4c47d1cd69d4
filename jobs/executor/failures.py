"""What can go wrong while a run is measured: with the run, with its capture, or with the machine."""

from typing import Any

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import Status


class RunFailed(ProfilerError):
    """A run that could not be measured: `status` is a status of the runs table, `detail` says phase and message."""

    exit_code = ExitCode.FAILED

    def __init__(self, status: Status, **detail: Any):
        super().__init__(detail.get("message", status))
        self.status, self.detail = status, detail


class WorkerDied(RunFailed):
    """The process that measured the run died."""


class CaptureLost(RunFailed):
    """nsys, not the run, failed: another capture of the run may be whole."""

    def __init__(self, phase: str, message: str, status: Status = "failed"):
        super().__init__(status, phase=phase, message=message, collector="nsys")


class CollectorError(ProfilerError):
    """The collector itself cannot work on this machine; no later run would fare better."""

    exit_code = ExitCode.MISSING


LOST_GPU = (
    "GPU is lost",  # NVML_ERROR_GPU_IS_LOST
    "uncorrectable ECC",  # cudaErrorECCUncorrectable
    "uncorrectable NVLink",  # cudaErrorNvlinkUncorrectable
    "device(s) is/are busy or unavailable",  # cudaErrorDevicesUnavailable
    "no CUDA-capable device",  # cudaErrorNoDevice
    "driver shutting down",  # cudaErrorCudartUnloading
    "CUDA driver initialization failed",  # PyTorch's own words for cudaErrorInitializationError when it counts devices
    "CUDA error: unknown error",  # cudaErrorUnknown, behind PyTorch's prefix: alone the words say too little
    "CUDA error: initialization error",  # cudaErrorInitializationError, the same
)
"""What is said where no run can go on. Other errors of CUDA's context, such as an illegal memory access, are a run's.

Each is part of a message that was looked up: those of `cuda...` are what cudaGetErrorString of CUDA 13.0 returns (its
codes are in the CUDA Runtime API, Data types, cudaError), which PyTorch puts behind `CUDA error: `
(c10/cuda/CUDAException.cpp); NVML's is what nvmlErrorString returns, as in nvidia-ml-py; PyTorch's own is in
c10/cuda/CUDAFunctions.cpp."""


def infer_status(event: str, message: str) -> Status:
    """The status of a run whose worker told that it ended as `event` (oom or failed)."""
    if event == "oom":
        return "oom"
    return "machine" if any(sign in message for sign in LOST_GPU) else "failed"
