"""Runs a sweep: order, isolation, statuses, resume, several GPUs.

A lane drives one GPU with two warm workers, one unprofiled, one inside nsys. For each run the unprofiled pass comes
first, then the pass under nsys; ending the capture and exporting it overlaps the next run's build and warm-up, and is
over before its measured steps begin.
"""

import math
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue

from jobs.collectors import SETTLE_S, CollectorError, Nsys, RunFailed, Timer, count_kernels_and_steps, nsys
from jobs.plan import Protocol, Run
from jobs.prediction import predicted_seconds, timeout_seconds
from jobs.progress import Report
from jobs.results import Results, write_json

MAX_REPEATS = 2
SIGNAL_S = 1.0  # batch engines signal every process of a job: a worker's death may be noticed before the own signal


class Stopped(Exception):
    """The sweep was told to stop."""


def machine_facts(worker_facts: dict) -> dict:
    """GPU, driver, CUDA, torch, nsys, Python and the commit of this program. No host, user or path."""
    return worker_facts | {"driver": driver_version(), "nsys": nsys_version(), "commit": commit()}


def driver_version() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""


def nsys_version() -> str:
    return nsys("--version").strip().rpartition("version ")[2]


def commit() -> str:
    """The commit of this program: from the environment (an image has no git), else from git, else empty."""
    if "PROFILER_COMMIT" in os.environ:
        return os.environ["PROFILER_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class Lane:
    """One GPU: takes runs from a queue until it is empty."""

    def __init__(self, sweep_runner: "SweepRunner", gpu: int | None):
        self.runner, self.gpu = sweep_runner, gpu
        self.timer = Timer(sweep_runner.device, gpu)
        self.nsys = Nsys(sweep_runner.device, gpu)
        self.machine: dict = {}
        self.export: Future | None = None
        self.export_ended = -math.inf  # on the clock of time.monotonic

    def work(self) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="export") as exporter:
            try:
                self.timer.start()
                self.machine = machine_facts(self.timer.worker.facts)
                while not self.runner.stopping.is_set():
                    try:
                        run = self.runner.queue.get_nowait()
                    except Empty:
                        if self.export is None:
                            break
                        self.await_export()  # which may queue a run again
                    else:
                        self.measure(run, exporter)
                self.await_export()
            finally:
                self.timer.stop()
                self.nsys.stop()

    def abandon(self) -> None:
        """Give up the run being measured; a run being exported is still finished."""
        self.timer.abandon()
        if self.export is None:
            self.nsys.abandon()

    def await_export(self) -> None:
        if self.export is not None:
            try:
                self.export.result()
            finally:
                self.export = None
                self.export_ended = time.monotonic()

    def await_quiet(self) -> None:
        """Wait until nothing disturbs measured steps."""
        self.await_export()
        time.sleep(max(0.0, self.export_ended + self.runner.settle_s - time.monotonic()))

    def measure(self, run: Run, exporter: ThreadPoolExecutor) -> None:
        """Both passes of a run. Whatever happens to it becomes its record; only a broken machine raises."""
        runner, protocol = self.runner, self.runner.protocol
        attempt = Attempt(self, run)
        passes = {
            "folder": attempt.folder,
            "warmup_steps": protocol.warmup_steps,
            "timeout_s": timeout_seconds(run, protocol),
            "when_quiet": self.await_quiet,
        }
        try:
            runner.report("phase", run=run.run_id, phase="timer")
            timed = self.timer.measure(run, steps=protocol.measured_steps, **passes)
            attempt.keep(self.timer, timed)
            write_json(attempt.folder / "timings.json", {"steps": timed["steps"], "memory": timed["memory"]})
            runner.report("phase", run=run.run_id, phase="nsys")
            attempt.keep(self.nsys, self.nsys.measure(run, steps=protocol.profiled_steps, **passes))
        except RunFailed as failure:
            if runner.told_to_stop(failure.status):
                attempt.interrupt()
            else:
                attempt.settings |= failure.detail.pop("settings", {})
                attempt.finish(failure.status, failure.detail)
            return
        self.export = exporter.submit(attempt.export)


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

    def export(self) -> None:
        """End the capture, export it, and finish the run."""
        self.runner.report("phase", run=self.run.run_id, phase="export")
        stopping = time.monotonic()
        try:
            database = self.lane.nsys.end_capture(self.folder)
        except CollectorError as error:
            self.lane.nsys.stop()
            if self.runner.told_to_stop("failed"):
                self.interrupt()
                return
            self.finish("failed", {"phase": "export", "message": str(error), "collector": "nsys"})
            return
        self.seconds["export"] = time.monotonic() - stopping
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


class SweepRunner:
    """Measures the runs of a sweep that are not finished yet.

    `report(event, **fields)` is told what happens. `gpus` are the device indices to use, one lane each.
    """

    def __init__(
        self,
        results: Results,
        protocol: Protocol,
        report: Report,
        *,
        device: str = "cuda",
        gpus: Sequence[int] = (0,),
        retry: bool = False,
    ):
        self.results, self.protocol, self.device, self.report = results, protocol, device, report
        self.gpus, self.retry = gpus, retry
        self.settle_s = SETTLE_S if device == "cuda" else 0.0
        self.stopping = threading.Event()
        self.queue: SimpleQueue[Run] = SimpleQueue()
        self.lanes: list[Lane] = []
        self.statuses: dict[str, str] = {}
        self.repeats: Counter[str] = Counter()

    def try_again(self, run: Run) -> bool:
        """Queue a run once more unless it had its MAX_REPEATS."""
        self.repeats[run.run_id] += 1
        if self.repeats[run.run_id] > MAX_REPEATS:
            return False
        self.queue.put(run)
        return True

    def run(self, runs: Sequence[Run]) -> dict[str, str]:
        """Measure and return the status of every run by run_id (finished ones included).

        Raises CollectorError when the machine cannot measure, OSError when results cannot be written, Stopped after
        `stop`.
        """
        pending = []
        for run in runs:
            record = self.results.finished(run, self.protocol)
            if record is None or (self.retry and record["status"] not in ("ok", "oom")):
                pending.append(run)
            else:
                self.statuses[run.run_id] = record["status"]
        predicted = {run.run_id: predicted_seconds(run, self.protocol) for run in pending}
        self.report("sweep_started", runs=len(runs), finished=len(self.statuses), predicted_s=predicted)
        if len(self.gpus) > 1:  # longest first, so that no GPU is left alone with a long run at the end
            pending.sort(key=lambda run: predicted[run.run_id], reverse=True)
        for run in pending:
            self.queue.put(run)
        if pending:
            self._drive()
        if self.stopping.is_set():
            raise Stopped
        self.report("sweep_finished", statuses=self.statuses)
        return self.statuses

    def _drive(self) -> None:
        self.lanes = [Lane(self, gpu if self.device == "cuda" else None) for gpu in self.gpus]
        with ThreadPoolExecutor(len(self.lanes), thread_name_prefix="lane") as pool:
            lanes = [pool.submit(lane.work) for lane in self.lanes]
            try:
                for lane in lanes:
                    with suppress(RunFailed):  # the sweep was stopped while the lane's first worker started
                        lane.result()
            except CollectorError:
                if not self.told_to_stop("failed"):
                    self.stop()
                    raise
            except BaseException:
                self.stop()
                raise

    def told_to_stop(self, status: str) -> bool:
        """Whether `stop` was called, or is within SIGNAL_S of something that ended as `failed`."""
        return self.stopping.wait(SIGNAL_S if status == "failed" else 0)

    def stop(self) -> None:
        """Stop soon: runs in flight are abandoned and marked as interrupted, finished ones stay."""
        self.stopping.set()
        for lane in self.lanes:
            lane.abandon()
