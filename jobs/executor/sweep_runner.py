"""Runs a sweep: order, statuses, resume, several GPUs, each with a lane of its own (`jobs.executor.gpu_executor`)."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from jobs.contract.axes import Run
from jobs.contract.layout import CALIBRATION, Protocol
from jobs.executor.collectors import Timer
from jobs.executor.events import Report
from jobs.executor.failures import CollectorError, RunFailed
from jobs.executor.gpu_executor import NSYS_WORKERS, SETTLE_S, Lane
from jobs.executor.result_store import Results, read_json, write_json
from jobs.sweep.prediction import assumed_stages

MAX_REPEATS = 2
SIGNAL_S = 1.0  # batch engines signal every process of a job: a worker's death may be noticed before the own signal


class Stopped(Exception):
    """The sweep was told to stop."""


class SweepRunner:
    """Measures the runs of a sweep that are not finished yet.

    `report(event, **fields)` is told what happens. `gpus` are the device indices to use, one lane each. `calibrate`
    measures the first GPU's peak rates before the first run, into `calibration.json`.
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
        calibrate: bool = False,
    ):
        self.results, self.protocol, self.device, self.report = results, protocol, device, report
        self.gpus, self.retry, self.calibrate = gpus, retry, calibrate
        self.nsys_workers = 0
        self.compiled = ""  # the folder of what workers compile, while there are workers
        self.settle_s = SETTLE_S if device == "cuda" else 0.0
        self.stopping = threading.Event()
        self.queue: SimpleQueue[Run] = SimpleQueue()
        self.lanes: list[Lane] = []
        self.timed: dict[str, dict] = {}  # records of runs whose unprofiled pass is kept
        self.statuses: dict[str, str] = {}
        self.finished_on: Counter[str] = Counter()  # runs by GPU name that were finished before
        self.repeats: Counter[str] = Counter()

    def try_again(self, run: Run, why: str) -> bool:
        """Queue a run to be profiled once more, unless it had its MAX_REPEATS, or all runs had them and no capture was
        ever whole. Raises OSError when the disk is full, as `why` may say, which would end the next capture, too."""
        self.results.check_space(why)
        self.repeats[run.run_id] += 1
        some_whole = "ok" in self.statuses.values()
        if (self.repeats[run.run_id] if some_whole else self.repeats.total()) > MAX_REPEATS:
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
            record = self.results.final(run, self.protocol, self.retry)
            if record is None:
                pending.append(run)
                if timed := self.results.timed(run, self.protocol):
                    self.timed[run.run_id] = timed
            else:
                self.statuses[run.run_id] = record["status"]
                self.finished_on[record["machine"]["gpu_name"]] += 1
        predicted = {run.run_id: assumed_stages(run, self.protocol) for run in pending}
        if len(self.gpus) > 1:  # longest first, so that no GPU is left alone with a long run at the end
            pending.sort(key=lambda run: sum(predicted[run.run_id].values()), reverse=True)
        for run_id in self.timed:
            del predicted[run_id][Timer.name]
        self.report(
            "sweep_started",
            runs=len(runs),
            finished=len(self.statuses),
            timed=len(self.timed),
            passes=len(runs) * (2 if self.protocol.profiled_steps else 1),
            predicted_s=predicted,
        )
        if pending:
            self._drive(pending)
        if self.stopping.is_set():
            raise Stopped
        self.report("sweep_finished", statuses=self.statuses)
        return self.statuses

    def _drive(self, pending: Sequence[Run]) -> None:
        self.nsys_workers = min(NSYS_WORKERS, len(pending)) if self.protocol.profiled_steps else 0
        with TemporaryDirectory(prefix="profiler-compiled-", ignore_cleanup_errors=True) as self.compiled:
            self.lanes = [Lane(self, gpu if self.device == "cuda" else None) for gpu in self.gpus]
            try:
                with ThreadPoolExecutor(len(self.lanes), thread_name_prefix="lane") as pool:
                    self._rounds(pool, pending)
            finally:
                with ThreadPoolExecutor(len(self.lanes)) as pool:
                    list(pool.map(Lane.stop, self.lanes))

    def _rounds(self, pool: ThreadPoolExecutor, pending: Sequence[Run]) -> None:
        """No capture opens before the last lane has ended the first round: the start and the end of one disturb the
        host of every GPU."""
        try:
            self._in_every_lane(pool, Lane.start)
            self._forget_other_machines()
            self._calibrate(self.lanes[0])
            self._in_every_lane(pool, Lane.time_runs, [run for run in pending if run.run_id not in self.timed])
            if self.nsys_workers:
                unfinished = [run for run in pending if run.run_id not in self.statuses]
                self._in_every_lane(pool, Lane.profile_runs, unfinished)
        except RunFailed:  # the sweep was stopped while workers started
            pass
        except CollectorError:
            if not self.told_to_stop("failed"):
                self.stop()
                raise
        except BaseException:
            self.stop()
            raise

    def _in_every_lane(self, pool: ThreadPoolExecutor, work: Callable[[Lane], None], runs: Sequence[Run] = ()) -> None:
        """Queue `runs`, do `work` in every lane at once, and return when the last has ended, or raise what the first
        raises."""
        for run in runs:
            self.queue.put(run)
        for ended in as_completed([pool.submit(work, lane) for lane in self.lanes]):
            ended.result()

    def _forget_other_machines(self) -> None:
        """Both passes of a run belong to one machine, one kind of GPU and one version of its software. Raises
        CollectorError where the lanes have several kinds: any of them may profile what another has timed. Finished runs
        stay as they are, and are told of where their GPU was another."""
        machines = [lane.machine for lane in self.lanes]
        kinds = sorted({machine["gpu_name"] for machine in machines})
        if len(kinds) > 1:
            raise CollectorError(
                f"the GPUs differ ({', '.join(kinds)}): name those of one kind in CUDA_VISIBLE_DEVICES"
            )
        if other := {name: number for name, number in self.finished_on.items() if name not in kinds}:
            self.report("other_gpus", runs=other, gpu_name=kinds[0])
        for run_id in [run_id for run_id, timed in self.timed.items() if timed["machine"] not in machines]:
            del self.timed[run_id]
            self.report("run_repeated", run=run_id, why="it was timed on another machine or with other software")

    def _calibrate(self, lane: Lane) -> None:
        """Measure the peak rates of a lane's GPU, unless those in the results are of a GPU of this name."""
        if not self.calibrate or self.device != "cuda":
            return
        file = self.results.folder / CALIBRATION
        if {one.get("gpu_name") for one in read_json(file, list) or []} != {lane.machine["gpu_name"]}:
            write_json(file, lane.timer.calibrate(file.with_suffix(".log")))

    def told_to_stop(self, status: str) -> bool:
        """Whether `stop` was called, or is within SIGNAL_S of something that ended as `failed`."""
        return self.stopping.wait(SIGNAL_S if status == "failed" else 0)

    def stop(self) -> None:
        """Stop soon: runs in flight are abandoned and marked as interrupted, finished ones stay."""
        self.stopping.set()
        for lane in self.lanes:
            lane.abandon()
