"""One stage of one run, by a process of the timer or under nsys: what it measured, how it failed, and the record."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import (
    NSYS_LOG,
    SCHEMA_VERSION,
    Detail,
    Machine,
    RunRecord,
    Status,
    TimedProcess,
)
from profiler_job.jobs.contract.messages import Measured
from profiler_job.jobs.contract.privacy import FOLDERS
from profiler_job.jobs.executor.collectors import Collector, Timer
from profiler_job.jobs.executor.failures import CaptureLostError, RunFailedError
from profiler_job.jobs.executor.gpu_sampler import Watch
from profiler_job.jobs.executor.machine import hash_machine_names
from profiler_job.jobs.executor.nsys_cli import LONGEST_DIAGNOSTIC, count_kernels_and_steps, count_steps_of_processes
from profiler_job.jobs.executor.sweep_state import SweepState
from profiler_job.jobs.sweep.prediction import compute_timeout, name_stage


class Attempt:
    """One attempt to measure a stage of a run. `record`: the record so far, saved as timed.json after a stage of the
    timer, and as run.json at the end. `stage`: the name of the stage, from `name_stage`. `num_sharing`: how many runs
    share its process, and its seconds in equal parts. `waited_s`: for other processes, which is no time of the run."""

    def __init__(
        self,
        state: SweepState,
        run: Run,
        collector: Collector,
        folder: Path,
        record: RunRecord,
        num_sharing: int = 1,
    ):
        self.state, self.run, self.collector, self.folder, self.record = state, run, collector, folder, record
        self.num_sharing = num_sharing
        names = {*record.hashed_names, *hash_machine_names()}  # its stages may have a machine each
        self.update(hashed_names=sorted(names))
        self.started, self.waited_s = time.monotonic(), 0.0
        self.stage = name_stage(collector.name, len(record.timed))
        self.seconds: dict[str, float] = {}
        state.emit("stage_started", run=run.run_id, stage=self.stage)

    @classmethod
    def begin(cls, state: SweepState, run: Run, collector: Collector, machine: Machine) -> "Attempt":
        """Begin the first stage of a run, in a folder without files of an earlier attempt."""
        folder = state.results.begin(run)
        record = RunRecord(
            schema_version=SCHEMA_VERSION,
            protocol_version=state.protocol.version,
            run_id=run.run_id,
            status="timed",
            run=run,
            machine=machine,
            started_at=read_clock(),
            **state.protocol.model_dump(),
        )
        state.emit("run_started", run=run.run_id, gpu=collector.gpu or 0)
        return cls(state, run, collector, folder, record)

    @classmethod
    def resume(cls, state: SweepState, run: Run, collector: Collector, num_sharing: int = 1) -> "Attempt":
        """Begin a later stage of a run that the timer has measured at least once."""
        record = state.timed[run.run_id].model_copy(deep=True)
        return cls(state, run, collector, state.results.resume(run, record), record, num_sharing)

    def measure(self, steps: int, **options: Any) -> Measured:
        """Measure with the collector (see `Collector.measure`), and note what was measured."""
        protocol = self.state.protocol
        measured = self.collector.measure(
            self.run,
            warmup_steps=protocol.warmup_steps,
            steps=steps,
            folder=self.folder,
            timeout_s=compute_timeout(self.run, protocol),
            **options,
        )
        self.note(measured)
        return measured

    def note(self, measured: Measured) -> None:
        """Note the settings of what was measured, and the seconds it took."""
        self.update(**measured["settings"])
        self.seconds = {name: seconds for name, seconds in measured["seconds"].items() if isinstance(seconds, float)}

    def update(self, **known: Any) -> None:
        self.record = self.record.model_copy(update=known)

    def keep_timings(self, measured: Measured, watch: Watch, group: str = "") -> None:
        """Save the timings of one more process. After the last process, finish the run, unless steps are to be
        profiled or more turns may be taken. group: see `TimedProcess`."""
        tables = {name: rows for name, rows in measured.items() if isinstance(rows, list)} | watch.tables(measured)
        self.state.results.keep_timings(self.run, tables, len(self.record.timed))
        process = TimedProcess(position=watch.position, group=group, seconds=self.seconds)
        self.update(timed=[*self.record.timed, process])
        protocol = self.state.protocol
        if self.record.is_timed and not protocol.profiled_steps and not protocol.turns:
            self.finish("ok")
            return
        wall_s = self.add_wall()
        self.state.timed[self.run.run_id] = self.state.results.keep_timed(self.run, self.record)
        self.emit_stage_finished(wall_s)
        self.state.count_machine_failures(self.collector.gpu, "timed")

    def export(self, end_capture: Callable[[], Path]) -> None:
        """End the capture, export it, and finish the run."""
        self.state.emit("stage_started", run=self.run.run_id, stage="export")
        stopping = time.monotonic()
        try:
            self.check(end_capture())
        except CaptureLostError as failure:
            self.fail(failure)
        else:
            self.record.seconds[self.collector.name] = self.seconds
            self.record.seconds["export"] = time.monotonic() - stopping
            self.finish("ok")

    def check(self, database: Path) -> None:
        """Check that a capture holds kernels and every profiled step. Raises CaptureLostError."""
        try:
            num_kernels, _ = count_kernels_and_steps(database)
            num_steps = count_steps_of_processes(database)
        except sqlite3.Error as error:
            raise CaptureLostError("export", f"the export of nsys cannot be used: {error}") from None
        profiled = self.state.protocol.profiled_steps
        if self.state.device == "cpu":  # nothing to trace: only a fake nsys can bring one here
            return
        if num_kernels == 0:
            message = "nsys recorded no kernel; where this is so for all runs, driver, container or nsys version do not"
            raise CaptureLostError("export", f"{message} allow CUDA tracing", status="no_kernels")
        if num_steps != [profiled] * self.run.gpus:
            recorded = " and ".join(map(str, num_steps or [0]))
            of_each = " of each rank" if self.run.gpus > 1 else ""
            raise CaptureLostError("export", f"nsys recorded {recorded} of {profiled} steps{of_each}")

    def add_wall(self) -> float:
        """Add the seconds of this stage to the record, and return them."""
        wall_s = (time.monotonic() - self.started - self.waited_s) / self.num_sharing
        self.update(wall_s=round(self.record.wall_s + wall_s, 3))
        return round(wall_s, 3)

    def emit_stage_finished(self, wall_s: float) -> None:
        named = {"stage": self.stage, "collector": self.collector.name}
        self.state.emit("stage_finished", run=self.run.run_id, **named, wall_s=wall_s)

    def fail(self, failure: RunFailedError) -> None:
        """Finish a run that could not be measured. A run that was given up because the sweep stops is marked as
        interrupted; a run whose capture was lost is profiled again."""
        lost = isinstance(failure, CaptureLostError)
        if lost:
            said = " ".join(self.collector.complaints)[:LONGEST_DIAGNOSTIC]
            message = FOLDERS.sub("", failure.detail["message"]) + (f"; nsys said: {said}" if said else "")
            failure.detail["message"] = f"{message} (see {NSYS_LOG})"
            self.state.results.set_capture_aside(self.run)
        if self.state.is_stopping(failure.status):
            self.interrupt()
        elif lost and self.state.try_again(self.run, failure.detail["message"]):
            why = f"{failure.detail['phase']}: {failure.detail['message']}"
            self.state.emit("run_repeated", run=self.run.run_id, why=why)
        else:
            if self.collector.name == Timer.name:
                failure.detail |= {"collector": Timer.name, "process": len(self.record.timed)}
            self.update(**failure.detail.pop("settings", {}))
            self.finish(failure.status, Detail(**failure.detail))

    def interrupt(self) -> None:
        """Mark the run as interrupted, since the sweep stops."""
        self.state.results.mark(self.run, "interrupted")
        self.state.emit("run_interrupted", run=self.run.run_id)

    def finish(self, status: Status, detail: Detail | None = None) -> None:
        """Write the run's record. Raises OSError if the run failed because the disk is full: all others would, too."""
        if status in ("failed", "machine") and detail is not None:
            self.state.results.check_space(detail.message)
        wall_s = self.add_wall()
        self.update(status=status, status_detail=detail, ended_at=read_clock())
        if status == "ok":
            self.emit_stage_finished(wall_s)
        keep_record(self.state, self.run, self.record)
        self.state.count_machine_failures(self.collector.gpu, status, detail.message if detail else "")


def leave_out_process(failed: Attempt, others: Sequence[Attempt], failure: RunFailedError) -> None:
    """Leave out a process that was not planned, in which a run failed: all its runs keep what they were timed by
    before. Raises as `Attempt.finish` does."""
    state, message = failed.state, failure.detail["message"]
    if state.is_stopping(failure.status):
        for attempt in (failed, *others):
            attempt.interrupt()
        return
    if failure.status in ("failed", "machine"):
        state.results.check_space(message)
    for attempt in (failed, *others):
        attempt.add_wall()
        state.timed[attempt.run.run_id] = state.results.keep_timed(attempt.run, attempt.record)
    why = f"{failure.detail.get('phase', '')}: {message}"
    state.emit("process_left_out", run=failed.run.run_id, others=[each.run.run_id for each in others], why=why)
    state.count_machine_failures(failed.collector.gpu, failure.status, message)


def finish_timed(state: SweepState, run: Run) -> None:
    """Finish a run that all its unprofiled processes have measured, and of which no step is to be profiled."""
    keep_record(state, run, state.timed[run.run_id].model_copy(update={"status": "ok", "ended_at": read_clock()}))


def keep_record(state: SweepState, run: Run, record: RunRecord) -> None:
    """Write the record of a finished run."""
    state.results.finish(run, record)
    state.statuses[run.run_id] = record.status
    detail = record.status_detail and record.status_detail.model_dump()
    state.emit("run_finished", run=run.run_id, status=record.status, detail=detail, wall_s=record.wall_s)


def read_clock() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
