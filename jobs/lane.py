"""One GPU of a sweep and the runs that are measured on it.

A lane has warm workers: one unprofiled, the others inside nsys, each in a session of its own. For each run a capture
begins in a free session, the unprofiled pass follows, then the pass under nsys. Ending the capture takes nsys seconds
and the GPU nothing, so it goes on, export included, while the next runs are measured in other sessions.
"""

import math
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING

from jobs.collectors import CollectorError, Nsys, RunFailed, Timer, count_kernels_and_steps
from jobs.machine import machine_facts
from jobs.plan import Run
from jobs.prediction import timeout_seconds
from jobs.results import write_json

if TYPE_CHECKING:
    from jobs.runner import SweepRunner

NSYS_WORKERS = 3  # a short run takes half as long as the end of a capture
# For tenths of a second after a capture began or began to end, nsys slows the host: on an H200, launch-bound steps of
# any process took up to half as long again. An open capture and the rest of its end disturb no other process.
SETTLE_S = 1.0


class Lane:
    """One GPU: takes runs from a queue until it is empty."""

    def __init__(self, sweep_runner: "SweepRunner", gpu: int | None):
        self.runner, self.gpu = sweep_runner, gpu
        worker = (sweep_runner.device, gpu, sweep_runner.stopping.is_set)
        self.timer = Timer(*worker)
        self.free = deque(Nsys(*worker) for _ in range(sweep_runner.nsys_workers))
        self.collectors = [self.timer, *self.free]
        self.nsys: Nsys | None = None  # the one in use
        self.exports: set[Future[Nsys]] = set()
        self.disturbed = -math.inf  # when a capture last began or began to end, on the clock of time.monotonic
        self.machine: dict = {}

    def work(self) -> None:
        with ThreadPoolExecutor(len(self.collectors), thread_name_prefix="collector") as pool:
            try:
                starts = [pool.submit(collector.start) for collector in self.collectors]
                wait(starts)
                for start in starts:
                    start.result()
                self.machine = machine_facts(self.timer.worker.facts, with_nsys=bool(self.free))
                while not self.runner.stopping.is_set():
                    self.await_export(0)
                    if self.runner.nsys_workers and not self.free:
                        self.await_export()
                        continue
                    try:
                        run = self.runner.queue.get_nowait()
                    except Empty:
                        if not self.exports:
                            break
                        self.await_export()  # which may queue a run again
                    else:
                        self.measure(run, pool)
                while self.exports:
                    self.await_export()
            finally:
                wait(self.exports)
                list(pool.map(lambda collector: collector.stop(), self.collectors))

    def abandon(self) -> None:
        """Give up the run being measured; runs being exported are still finished."""
        for collector in (self.timer, self.nsys):
            if collector is not None:
                collector.abandon()

    def await_export(self, timeout_s: float | None = None) -> None:
        """Wait for an export to end; its nsys worker is free again. Raises what the export raised."""
        ended, self.exports = wait(self.exports, timeout_s, FIRST_COMPLETED)
        self.free.extend(export.result() for export in ended)

    def settle(self) -> None:
        """Wait until no capture disturbs measured steps."""
        time.sleep(max(0.0, self.disturbed + self.runner.settle_s - time.monotonic()))

    def measure(self, run: Run, pool: ThreadPoolExecutor) -> None:
        """Both passes of a run. Whatever happens to it becomes its record; only a broken machine raises."""
        runner, protocol = self.runner, self.runner.protocol
        profiled = protocol.profiled_steps > 0
        attempt = Attempt(self, run)
        passes = {
            "folder": attempt.folder,
            "warmup_steps": protocol.warmup_steps,
            "timeout_s": timeout_seconds(run, protocol),
            "when_quiet": self.settle,
        }
        try:
            if run.fresh_process:
                self.timer.renew()
            if profiled:
                self.open_capture(run.fresh_process)
            runner.report("phase", run=run.run_id, phase="timer")
            timed = self.timer.measure(run, steps=protocol.measured_steps, **passes)
            attempt.keep(self.timer, timed)
            tables = {name: rows for name, rows in timed.items() if isinstance(rows, list)}
            write_json(attempt.folder / "timings.json", tables)
            if profiled:
                runner.report("phase", run=run.run_id, phase="nsys")
                attempt.keep(self.nsys, self.nsys.measure(run, steps=protocol.profiled_steps, **passes))
        except RunFailed as failure:
            self.put_back()
            if runner.told_to_stop(failure.status):
                attempt.interrupt()
            else:
                attempt.settings |= failure.detail.pop("settings", {})
                attempt.finish(failure.status, failure.detail)
            return
        if not profiled:
            attempt.finish("ok", None)
            return
        self.disturbed = time.monotonic()
        self.exports.add(pool.submit(attempt.export, self.nsys))
        self.nsys = None

    def open_capture(self, in_fresh_process: bool) -> None:
        """Take a free nsys worker for a run. Its capture begins before anything is measured, while the GPU is idle."""
        self.nsys = self.free.popleft()
        if in_fresh_process:
            self.nsys.renew()
        self.nsys.start()
        if not self.nsys.capturing:
            self.nsys.begin_capture()
            self.disturbed = time.monotonic()

    def put_back(self) -> None:
        """After a run that failed. A capture in which nothing was measured serves the next run."""
        if self.nsys and self.nsys.capturing:
            self.free.appendleft(self.nsys)
        elif self.nsys:  # stopped, and its capture with it
            self.disturbed = time.monotonic()
            self.free.append(self.nsys)
        self.nsys = None


class Attempt:
    """One run being measured: its folder, what is known of it so far, and its end."""

    def __init__(self, lane: Lane, run: Run):
        self.lane, self.run, self.runner = lane, run, lane.runner
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.started = time.monotonic()
        self.seconds: dict[str, dict | float] = {}
        self.settings: dict = {}
        self.folder = self.runner.results.begin(run)
        self.runner.report("run_started", run=run.run_id, gpu=lane.gpu or 0)

    def keep(self, collector: Timer, measured: dict) -> None:
        self.seconds[collector.name] = measured["seconds"]
        self.settings |= measured["settings"]

    def export(self, nsys: Nsys) -> Nsys:
        """End the capture of a run, export it, and finish the run. Returns the collector, which is free again."""
        self.runner.report("phase", run=self.run.run_id, phase="export")
        stopping = time.monotonic()
        try:
            database = nsys.end_capture(self.folder)
        except CollectorError as error:
            if self.runner.told_to_stop("failed"):
                self.interrupt()
            else:
                self.finish("failed", {"phase": "export", "message": str(error), "collector": "nsys"})
            return nsys
        self.seconds["export"] = time.monotonic() - stopping
        self.judge(database)
        return nsys

    def judge(self, database: Path) -> None:
        """Finish the run by what its capture holds, or measure it again."""
        num_kernels, num_steps = count_kernels_and_steps(database)
        profiled = self.runner.protocol.profiled_steps
        if self.runner.device == "cpu":  # nothing to trace: only a stand-in for nsys can bring one here
            self.finish("ok", None)
        elif num_kernels == 0:
            message = "nsys recorded no kernel: driver, container or nsys version do not allow CUDA tracing here"
            self.finish("no_kernels", {"phase": "export", "message": message, "collector": "nsys"})
        elif num_steps != profiled:
            self.incomplete(f"nsys recorded {num_steps} of {profiled} steps")
        else:
            self.finish("ok", None)

    def incomplete(self, message: str) -> None:
        """Nsys lost part of the capture: measure the run again, a few times."""
        if self.lane.runner.try_again(self.run):
            self.runner.report("run_repeated", run=self.run.run_id, why=message)
        else:
            self.finish("failed", {"phase": "export", "message": message, "collector": "nsys"})

    def finish(self, status: str, detail: dict | None) -> None:
        """Write the run's record. Raises OSError when the run failed because the disk is full: so would all others."""
        if status == "failed":
            self.runner.results.check_space()
        wall_s = round(time.monotonic() - self.started, 3)
        record = {
            "run_id": self.run.run_id,
            "status": status,
            "status_detail": detail,
            "run": self.run.model_dump(),
            "machine": self.lane.machine,
            **{name: self.settings.get(name) for name in ("autograd_multithreading", "float32_matmul_precision")},
            **self.runner.protocol.model_dump(),
            "started_at": self.started_at,
            "wall_s": wall_s,
            "seconds": self.seconds,
        }
        self.runner.results.finish(self.run, record)
        self.runner.statuses[self.run.run_id] = status
        self.runner.report("run_finished", run=self.run.run_id, status=status, detail=detail, wall_s=wall_s)

    def interrupt(self) -> None:
        self.runner.results.mark(self.run, "interrupted")
        self.runner.report("run_interrupted", run=self.run.run_id)
