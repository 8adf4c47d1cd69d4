"""One GPU of a sweep and the runs that are measured on it.

A lane has warm workers: one unprofiled, the others inside nsys, each in a session of its own. A sweep has two rounds:
every run without a profiler, and then, when no lane measures unprofiled steps any more, every run under nsys. Ending a
capture takes nsys seconds and the GPU nothing, so it goes on, export included, while the next runs are profiled.
"""

import math
import sqlite3
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING

from jobs.contract.axes import Run
from jobs.contract.layout import NSYS_LOG
from jobs.executor.collectors import Nsys, Timer
from jobs.executor.failures import CaptureLost, RunFailed
from jobs.executor.machine import machine_facts
from jobs.executor.nsys_cli import FOLDERS, count_kernels_and_steps
from jobs.sweep.prediction import timeout_seconds

if TYPE_CHECKING:
    from jobs.executor.sweep_runner import SweepRunner

# The end of a capture takes nsys 3.0 to 3.7 s, most of it waiting, and a short run 1.4 s: with four none waits for it.
NSYS_WORKERS = 4
# For tenths of a second after a capture began or began to end, nsys slows the host: on an H200, launch-bound steps of
# any process took up to half as long again. Kernels take no longer.
SETTLE_S = 1.0


class Lane:
    """One GPU. In each round it takes runs from the common queue until that is empty."""

    def __init__(self, sweep_runner: "SweepRunner", gpu: int | None):
        self.runner, self.gpu = sweep_runner, gpu
        worker = (sweep_runner.device, gpu, sweep_runner.stopping.is_set, sweep_runner.compiled)
        self.timer = Timer(*worker)
        self.free = deque(Nsys(*worker) for _ in range(sweep_runner.nsys_workers))
        self.collectors = [self.timer, *self.free]
        self.nsys: Nsys | None = None  # the one in use
        self.exports: set[Future[Nsys]] = set()
        self.disturbed = -math.inf  # when a capture last began or began to end, on the clock of time.monotonic
        self.machine: dict = {}

    def start(self) -> None:
        """Start every worker: those of nsys, too, since their start would disturb unprofiled steps."""
        with ThreadPoolExecutor(len(self.collectors)) as pool:
            starts = [pool.submit(collector.start) for collector in self.collectors]
        for start in starts:
            start.result()
        self.machine = machine_facts(self.timer.worker.facts, with_nsys=bool(self.free))

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.collectors)) as pool:
            list(pool.map(lambda collector: collector.stop(), self.collectors))

    def abandon(self) -> None:
        """Give up the run being measured; runs being exported are still finished."""
        for collector in (self.timer, self.nsys):
            if collector is not None:
                collector.abandon()

    def time_runs(self) -> None:
        """The first round."""
        while run := self.next_run():
            self.time(run)

    def profile_runs(self) -> None:
        """The second round."""
        with ThreadPoolExecutor(len(self.free), thread_name_prefix="export") as pool:
            try:
                while not self.runner.stopping.is_set():
                    self.await_export(0 if self.free else None)
                    if run := self.next_run():
                        self.profile(run, pool)
                    elif self.exports:
                        self.await_export()  # which may queue a run again
                    else:
                        break
                while self.exports:
                    self.await_export()
            finally:
                wait(self.exports)

    def next_run(self) -> Run | None:
        """None when the queue is empty or the sweep was told to stop."""
        if not self.runner.stopping.is_set():
            with suppress(Empty):
                return self.runner.queue.get_nowait()
        return None

    def await_export(self, timeout_s: float | None = None) -> None:
        """Wait for an export to end; its nsys worker is free again. Raises what the export raised."""
        ended, self.exports = wait(self.exports, timeout_s, FIRST_COMPLETED)
        self.free.extend(export.result() for export in ended)

    def settle(self) -> None:
        """Wait until no capture of this lane disturbs measured steps."""
        time.sleep(max(0.0, self.disturbed + self.runner.settle_s - time.monotonic()))

    def time(self, run: Run) -> None:
        """The unprofiled pass of a run. Whatever happens to it becomes its record; only a broken machine raises."""
        attempt = Attempt(self, run, self.timer)
        try:
            if run.fresh_process:
                self.timer.renew()
            measured = attempt.measure(self.runner.protocol.measured_steps)
        except RunFailed as failure:
            attempt.fail(failure)
        else:
            attempt.keep_timings({name: rows for name, rows in measured.items() if isinstance(rows, list)})

    def profile(self, run: Run, pool: ThreadPoolExecutor) -> None:
        """The pass of a timed run under nsys, with a capture of its own. Raises as `time`."""
        self.nsys = self.free.popleft()
        attempt = Attempt(self, run, self.nsys)
        try:
            if run.fresh_process:
                self.nsys.renew()
            self.nsys.start()
            self.nsys.begin_capture(attempt.folder)
            self.disturbed = time.monotonic()
            attempt.measure(self.runner.protocol.profiled_steps, when_quiet=self.settle)
        except RunFailed as failure:  # and the worker was stopped, its capture with it
            self.free.append(self.nsys)
            attempt.fail(failure)
        else:
            self.exports.add(pool.submit(attempt.export))
        self.disturbed = time.monotonic()
        self.nsys = None


class Attempt:
    """One pass of a run. `record` is what is known of the run so far: timed.json after the first pass, run.json in the
    end."""

    def __init__(self, lane: Lane, run: Run, collector: Timer):
        self.lane, self.run, self.collector, self.runner = lane, run, collector, lane.runner
        self.started = time.monotonic()
        if collector is lane.timer:
            self.folder = self.runner.results.begin(run)
            self.record = {
                "run_id": run.run_id,
                "status": "timed",
                "status_detail": None,
                "run": run.model_dump(),
                "machine": lane.machine,
                "num_parameters": None,
                "autograd_multithreading": None,
                "float32_matmul_precision": None,
                **self.runner.protocol.model_dump(),
                "started_at": now(),
                "ended_at": None,
                "wall_s": 0.0,
                "seconds": {},
            }
            self.runner.report("run_started", run=run.run_id, gpu=lane.gpu or 0)
        else:
            self.folder = self.runner.results.begin_profile(run)
            self.record = dict(self.runner.timed[run.run_id])
        self.runner.report("phase", run=run.run_id, phase=collector.name)

    def measure(self, steps: int, **options) -> dict:
        """Measure with the collector, as of `Timer.measure`, and note the settings and how long it took."""
        protocol = self.runner.protocol
        measured = self.collector.measure(
            self.run,
            warmup_steps=protocol.warmup_steps,
            steps=steps,
            folder=self.folder,
            timeout_s=timeout_seconds(self.run, protocol),
            **options,
        )
        self.record |= measured["settings"]
        self.add_seconds(self.collector.name, measured["seconds"])
        return measured

    def add_seconds(self, name: str, seconds: dict | float) -> None:
        self.record["seconds"] = self.record["seconds"] | {name: seconds}

    def keep_timings(self, tables: dict[str, list]) -> None:
        """From here on the run is timed; it is finished, too, if no step is to be profiled."""
        self.runner.results.keep_timings(self.run, tables)
        if self.runner.protocol.profiled_steps:
            wall_s = self.add_wall()
            self.runner.results.keep_timed(self.run, self.record)
            self.runner.timed[self.run.run_id] = self.record
            self.report_pass(wall_s)
        else:
            self.finish("ok")

    def export(self) -> Nsys:
        """End the capture, export it, and finish the run. Returns the collector, which is free again."""
        self.runner.report("phase", run=self.run.run_id, phase="export")
        stopping = time.monotonic()
        try:
            self.check(self.collector.end_capture())
        except CaptureLost as failure:
            self.fail(failure)
        else:
            self.add_seconds("export", time.monotonic() - stopping)
            self.finish("ok")
        return self.collector

    def check(self, database: Path) -> None:
        """Raises CaptureLost unless a capture holds kernels and every profiled step."""
        try:
            num_kernels, num_steps = count_kernels_and_steps(database)
        except sqlite3.Error as error:
            raise CaptureLost("export", f"the export of nsys cannot be used: {error}") from None
        profiled = self.runner.protocol.profiled_steps
        if self.runner.device == "cpu":  # nothing to trace: only a stand-in for nsys can bring one here
            return
        if num_kernels == 0:
            message = "nsys recorded no kernel; where this is so for all runs, driver, container or nsys version do not"
            raise CaptureLost("export", f"{message} allow CUDA tracing", status="no_kernels")
        if num_steps != profiled:
            raise CaptureLost("export", f"nsys recorded {num_steps} of {profiled} steps")

    def add_wall(self) -> float:
        """Add the seconds of this pass to the record, and return them."""
        wall_s = time.monotonic() - self.started
        self.record["wall_s"] = round(self.record["wall_s"] + wall_s, 3)
        return round(wall_s, 3)

    def report_pass(self, wall_s: float) -> None:
        self.runner.report("pass_finished", run=self.run.run_id, collector=self.collector.name, wall_s=wall_s)

    def fail(self, failure: RunFailed) -> None:
        """Finish a run that could not be measured. One that was given up because the sweep stops is interrupted, one
        whose capture was lost is profiled again."""
        lost = isinstance(failure, CaptureLost)
        if lost:
            said = " ".join(self.collector.log.complaints)
            message = FOLDERS.sub("", failure.detail["message"]) + (f"; nsys said: {said}" if said else "")
            failure.detail["message"] = f"{message} (see {NSYS_LOG})"
            self.runner.results.set_capture_aside(self.run)
        if self.runner.told_to_stop(failure.status):
            self.runner.results.mark(self.run, "interrupted")
            self.runner.report("run_interrupted", run=self.run.run_id)
        elif lost and self.runner.try_again(self.run, failure.detail["message"]):
            why = f"{failure.detail['phase']}: {failure.detail['message']}"
            self.runner.report("run_repeated", run=self.run.run_id, why=why)
        else:
            self.record |= failure.detail.pop("settings", {})
            self.finish(failure.status, failure.detail)

    def finish(self, status: str, detail: dict | None = None) -> None:
        """Write the run's record. Raises OSError when the run failed because the disk is full: so would all others."""
        if status == "failed":
            self.runner.results.check_space(detail["message"])
        wall_s = self.add_wall()
        self.record |= {"status": status, "status_detail": detail, "ended_at": now()}
        self.runner.results.finish(self.run, self.record)
        self.runner.statuses[self.run.run_id] = status
        if status == "ok":
            self.report_pass(wall_s)
        told = {"status": status, "detail": detail, "wall_s": self.record["wall_s"]}
        self.runner.report("run_finished", run=self.run.run_id, **told)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
