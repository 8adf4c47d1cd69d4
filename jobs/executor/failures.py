"""What can go wrong while a run is measured: with the run, with its capture, or with the machine."""

from typing import Any

from jobs.contract.layout import Status


class RunFailed(Exception):
    """A run that could not be measured: `status` is a status of the runs table, `detail` says phase and message."""

    def __init__(self, status: Status, **detail: Any):
        super().__init__(detail.get("message", status))
        self.status, self.detail = status, detail


class WorkerDied(RunFailed):
    """The process that measured the run died."""


class CaptureLost(RunFailed):
    """nsys, not the run, failed: another capture of the run may be whole."""

    def __init__(self, phase: str, message: str, status: Status = "failed"):
        super().__init__(status, phase=phase, message=message, collector="nsys")


class CollectorError(Exception):
    """The collector itself cannot work on this machine; no later run would fare better."""
