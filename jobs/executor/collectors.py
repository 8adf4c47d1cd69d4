"""The two ways a run is measured: by Python's clock (`timer`) and under Nsight Systems (`nsys`), each in worker
processes (`jobs.worker`) of its own."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.find_nsys import NSYS_MISSING
from profiler_job.jobs.contract.layout import LOG, NSYS_LOG, REPORT, SAMPLES
from profiler_job.jobs.contract.messages import GO, Answer, Facts, Failed, Measured, Rate, RunTask, TurnsTask
from profiler_job.jobs.executor.failures import (
    CaptureLostError,
    CollectorError,
    RunFailedError,
    WorkerDiedError,
    infer_status,
)
from profiler_job.jobs.executor.nsys_cli import NsysLog, export, run_nsys
from profiler_job.jobs.executor.python_samples import NO_SAMPLES, SAMPLED, keep_samples
from profiler_job.jobs.executor.stop import CAPTURE_S, SHUTDOWN_S, Stop
from profiler_job.jobs.executor.worker_process import WorkerProcess

RELEASE_TIMEOUT_S = 60
CALIBRATE_TIMEOUT_S = 300
SHUTDOWN_TIMEOUT_S = 60
WARM_UP = "build or warm-up"
"""Phase of a worker that ended without a message before its first measured step."""
REACHED = {"compiled": WARM_UP, "ready": "measured steps", "timed": "busy block"}
"""Phase of a worker after each message at which it waits."""
SESSION_NUMBERS = count(1)
TRACED = ("--trace=cuda,nvtx", "--cuda-graph-trace=node", "--resolve-symbols=false")
NOT_SAMPLED = ("--sample=none", "--cpuctxsw=none")


class Collector:
    """Collector that measures runs in a worker process, which stays warm until it is renewed. Each of several `ranks`
    has a GPU of `gpus`; on the CPU there are none.

    annotate: whether the worker opens NVTX ranges. probes: whether it also looks at memory, numerics and the speed of
    the host. can_fork: whether a process that has imported everything forks workers of one rank. launcher: the command
    that starts the worker, before the worker's command. capturing: whether nsys collects. turn: of runs that take
    turns, the place of the one whose turn it is.
    """

    name = ""
    annotate = False
    probes = False
    can_fork = False
    launcher: tuple[str, ...] = ()
    capturing = False

    def __init__(
        self,
        device: str,
        gpus: Sequence[int] = (),
        ranks: int = 1,
        stopping: Stop | None = None,
        compiled: str = "",
    ):
        self.device, self.gpus, self.ranks = device, gpus, ranks
        self.stopping, self.compiled = stopping or Stop(), compiled
        self.forks = self.can_fork and ranks == 1
        self.worker: WorkerProcess | None = None
        self.fresh = True
        self.turn = 0

    @property
    def running(self) -> WorkerProcess:
        """The worker of a collector that has been started."""
        assert self.worker is not None
        return self.worker

    @property
    def facts(self) -> Facts:
        """The machine, as the worker knows it. The collector has been started."""
        return self.running.facts

    @property
    def gpu(self) -> int | None:
        """The first GPU; None on the CPU."""
        return self.gpus[0] if self.gpus else None

    @property
    def complaints(self) -> list[str]:
        """Warnings and errors about the last capture."""
        return []

    def start(self) -> None:
        """Start the worker unless it is running. Raises CollectorError if it cannot, RunFailedError if cancelled."""
        if self.worker is not None and not self.capturing and self.worker.died():
            self.stop()
        if self.worker is None:
            self.prepare()
            how = (self.annotate, self.launcher, self.stopping.is_set, self.compiled, self.forks)
            self.worker = WorkerProcess(self.device, self.gpus, self.ranks, *how)
            self.fresh = True

    def prepare(self) -> None:
        """Called before a worker starts."""

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker = None

    def renew(self) -> None:
        """Start a new worker unless this one has done nothing yet. Raises as `start`."""
        self.turn = 0
        if not self.fresh and not self.forks:
            self.stop()
        self.start()
        if not self.fresh:
            try:
                self.running.renew()
            except (CollectorError, RunFailedError):
                self.worker = None
                raise
            self.fresh = True

    def abandon(self) -> None:
        """Called from another thread after `stopping` was set: the run being measured fails at once."""
        if (worker := self.worker) is not None:
            worker.kill_processes()

    def kill(self) -> None:
        """Called from another thread: kill everything, and leave the rest as it is."""
        if (worker := self.worker) is not None:
            worker.kill_all()

    def measure(
        self,
        run: Run,
        *,
        warmup_steps: int,
        steps: int,
        folder: Path,
        timeout_s: float,
        compare: bool = False,
        busy_s: float = 0.0,
        waits: bool = False,
        between: Callable[[str], None] = lambda event: None,
    ) -> Measured:
        """Measure `steps` steps of a run; the worker's output goes to `folder/log.txt`. compare, busy_s, waits: see
        `jobs.contract.messages.RunTask`. `between` is called with `compiled` before warm-up if it `waits`, with `ready`
        between warm-up and measured steps, and with `timed` between these and a busy block of `busy_s`: the worker
        waits until it returns. In the end it is called with `measured`.

        Returns the `measured` message of `jobs.worker.service.perform`. Raises RunFailedError; a worker that hangs or
        breaks is killed, and the next run gets a new one.
        """
        task: RunTask = {
            "collector": self.name,
            "run": run.model_dump(),
            "warmup_steps": warmup_steps,
            "steps": steps,
            "probe": self.probes,
            "compare": compare,
            "busy_s": busy_s,
            "waits": waits,
            "log": str(folder / LOG),
        }
        answer = self.perform(task, timeout_s, between)
        assert answer["event"] == "measured"
        return answer

    def perform(self, task: RunTask | TurnsTask, timeout_s: float, between: Callable[[str], None]) -> Answer:
        """Give the worker a task, and return its last answer. Calls `between`, and raises, as `measure` does."""
        self.start()
        self.fresh = False
        deadline = time.monotonic() + timeout_s
        reached = WARM_UP
        try:
            if self.stopping.is_set():
                raise RunFailedError("failed", message="the sweep was stopped")
            self.running.send(task)
            answer = self.running.receive(deadline - time.monotonic())
            while answer["event"] in ("compiled", "ready", "timed", "turn"):
                if answer["event"] == "turn":
                    self.turn = answer["number"]
                else:
                    reached = REACHED[answer["event"]]
                    began = time.monotonic()
                    between(answer["event"])  # which may wait for other processes
                    deadline += time.monotonic() - began
                    self.running.send(GO)
                answer = self.running.receive(deadline - time.monotonic())
            if answer["event"] == "oom" or answer["event"] == "failed":
                raise build_failure(answer)
            between("measured")
            self.running.receive(deadline - time.monotonic())  # released
            return answer
        except RunFailedError as error:
            failure = error
        failure.detail["phase"] = failure.detail.get("phase") or reached
        failure.detail["collector"] = self.name
        if failure.status != "oom" or self.capturing or not self._released():
            failure = self.give_up(failure)
        raise failure

    def give_up(self, failure: RunFailedError) -> RunFailedError:
        """Stop the worker. Returns how the run failed."""
        self.stop()
        return failure

    def _released(self) -> bool:
        try:
            return self.running.receive(RELEASE_TIMEOUT_S)["event"] == "released"
        except RunFailedError:
            return False


def build_failure(failed: Failed) -> RunFailedError:
    """Return the failure of a run that its worker reported."""
    detail = {name: value for name, value in failed.items() if name != "event"}
    return RunFailedError(infer_status(failed["event"], failed["message"]), **detail)


class Timer(Collector):
    """Collector without a profiler: Python's clock, device synchronised at phase boundaries."""

    name = "timer"
    probes = True
    can_fork = True

    def take_turns(
        self,
        runs: Sequence[Run],
        *,
        warmup_steps: int,
        rounds: int,
        steps: int,
        seed: str,
        folders: Sequence[Path],
        timeout_s: float,
        between: Callable[[str], None],
    ) -> list[Measured | Failed]:
        """Let runs of one model take turns, `steps` measured steps in each of so many rounds; the output of each goes
        to its folder. Returns what each run measured, or that it ran out of memory. Calls `between`, and raises, as
        `measure` does: what failed is the run that `turn` says."""
        task: TurnsTask = {
            "runs": [run.model_dump() for run in runs],
            "warmup_steps": warmup_steps,
            "rounds": rounds,
            "steps": steps,
            "seed": seed,
            "logs": [str(folder / LOG) for folder in folders],
        }
        answer = self.perform(task, timeout_s, between)
        assert answer["event"] == "turned"
        return answer["runs"]

    def calibrate(self, log: Path) -> list[Rate]:
        """The GPU's peak rates (see `jobs.worker.calibration.measure_rates`). Raises CollectorError."""
        try:
            self.start()
            self.fresh = False
            self.running.send({"calibrate": True, "log": str(log.absolute())})
            answer = self.running.receive(CALIBRATE_TIMEOUT_S)
            assert answer["event"] == "calibrated"
            self.running.receive(RELEASE_TIMEOUT_S)
        except RunFailedError as failure:
            raise CollectorError(f"the machine's rates cannot be measured: {failure} (see {log})") from None
        return answer["rates"]


class Nsys(Collector):
    """Collector with Nsight Systems, tracing CUDA and NVTX; CPU sampling is off, so no privilege is needed.

    The worker lives in an nsys session. A capture begins before a run is measured and ends after it; until then the
    session serves no other run.
    """

    name = "nsys"
    annotate = True

    sampled: tuple[str, ...] = ()
    session = ""
    log: NsysLog | None = None

    @property
    def complaints(self) -> list[str]:
        return self.log.complaints if self.log else []

    @property
    def open_log(self) -> NsysLog:
        """The log of the run whose capture has begun."""
        assert self.log is not None
        return self.log

    def prepare(self) -> None:
        if shutil.which("nsys") is None:
            raise CollectorError(NSYS_MISSING)
        self.session = f"profiler-{os.getpid()}-{next(SESSION_NUMBERS)}"
        self.launcher = ("nsys", "launch", f"--session-new={self.session}", *TRACED, *self.sampled)

    def stop(self) -> None:
        if self.worker is not None:
            with suppress(CollectorError):
                self.control("shutdown", "--kill=sigkill", allowed_s=SHUTDOWN_S, timeout_s=SHUTDOWN_TIMEOUT_S)
            self.capturing = False
        super().stop()

    def control(self, command: str, *options: str, allowed_s: float = 0.0, **settings: Any) -> None:
        """Run an nsys command on the session, which may go on for `allowed_s` after a stop. settings: of `run_nsys`."""
        settings |= {"environment": self.running.environment, "left_s": partial(self.stopping.left, allowed_s)}
        run_nsys(command, f"--session={self.session}", *options, **settings)

    @property
    def report(self) -> Path:
        """Path at which nsys leaves the report of a capture of any run."""
        return self.running.home / REPORT

    def begin_capture(self, folder: Path) -> None:
        """Begin to collect for the run of `folder`, where NSYS_LOG gets what nsys says. Raises CaptureLostError; the
        worker is then stopped."""
        self.log = NsysLog(folder / NSYS_LOG)
        try:
            options = (*NOT_SAMPLED, "--force-overwrite=true", f"--output={self.report}")
            self.control("start", *options, log=self.log)
        except CollectorError as error:
            raise self._lost("start of capture", str(error)) from None
        self.capturing = True

    def end_capture(self) -> Path:
        """Stop collecting, move the report into the folder of the run, and export it there (see `read`). Raises
        CaptureLostError; unless only the export failed, the worker is then stopped."""
        try:
            self.control("stop", allowed_s=CAPTURE_S, log=self.log)
            self.capturing = False
            if not self.report.exists():
                raise CollectorError("nsys stop left no report")
        except CollectorError as error:
            raise self._lost("end of capture", str(error)) from None
        report = shutil.move(self.report, self.open_log.path.parent)
        try:
            return self.read(Path(report))
        except CollectorError as error:
            raise CaptureLostError("export", str(error)) from None

    def read(self, report: Path) -> Path:
        """Export a report next to it (see `export`), and return the export. Raises CollectorError."""
        left_s = partial(self.stopping.left, CAPTURE_S)
        return export(report, self.running.environment, self.open_log, left_s, with_samples=bool(self.sampled))

    def give_up(self, failure: RunFailedError) -> RunFailedError:
        """A process that dies in a capture takes that with it: without nsys the run came to its end."""
        if isinstance(failure, WorkerDiedError) and self.capturing:
            return self._lost(failure.detail["phase"], f"{failure} under nsys")
        return super().give_up(failure)

    def _lost(self, phase: str, message: str) -> CaptureLostError:
        """Stop the worker, and keep what there is of the capture next to the run."""
        self.open_log("launch", self.running.read_printed())
        for left in self.running.home.glob(f"{self.report.stem}.*"):
            shutil.move(left, self.open_log.path.parent)
        self.stop()
        return CaptureLostError(phase, message)


class SampledNsys(Nsys):
    """Collector with Nsight Systems that also samples Python, which slows the CPU: no time is taken from its steps.

    nsys takes the options of samples when it starts a program, so the worker has a session of its own."""

    name = "samples"
    sampled = SAMPLED

    def read(self, report: Path) -> Path:
        """Export a report to SAMPLES next to it, and remove it. Raises CollectorError, also without any sample."""
        database = super().read(report)
        report.unlink()
        if not keep_samples(database, Path.cwd()):
            database.unlink()
            raise CollectorError(NO_SAMPLES)
        return database.rename(database.with_name(SAMPLES))
