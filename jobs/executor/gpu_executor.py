"""One GPU of a sweep, or as many as a run needs together, and the runs that are measured there.

A GPU executor has warm workers inside nsys, each in a separate session, and a process that forks a fresh worker for
each run without a profiler, or for each group of runs that take turns. A sweep has two stages: every run without a
profiler, in several passes, and then, when no executor measures unprofiled steps any more, every run under nsys. Ending
a capture takes nsys seconds and the GPU nothing, so it goes on, export included, while the next runs are profiled.
"""

import math
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Machine
from profiler_job.jobs.contract.messages import Failed, Measured
from profiler_job.jobs.contract.plain import count_plain_steps
from profiler_job.jobs.contract.words import format_count
from profiler_job.jobs.executor.attempt import Attempt
from profiler_job.jobs.executor.collectors import WARM_UP, Collector, Nsys, SampledNsys, Timer
from profiler_job.jobs.executor.failures import CollectorError, RunFailedError
from profiler_job.jobs.executor.gpu_sampler import GpuSensor, Watch
from profiler_job.jobs.executor.machine import read_machine_facts
from profiler_job.jobs.executor.python_samples import is_limited_by_cpu
from profiler_job.jobs.executor.sweep_state import SweepState
from profiler_job.jobs.sweep.prediction import compute_timeout

# The end of a capture takes nsys 3.0 to 3.7 s, most of it waiting, and a short run 1.4 s: with four none waits for it.
NSYS_WORKERS = 4


class GpuExecutor:
    """The GPUs of one run at a time, a rank for each; on the CPU `gpus` is empty. In each stage it takes runs from the
    common queue until the queue is empty."""

    def __init__(self, state: SweepState, gpus: Sequence[int], ranks: int = 1):
        self.state = state
        worker = (state.device, gpus, ranks, state.stopping, state.compiled)
        self.timer = Timer(*worker)
        self.free = deque(Nsys(*worker) for _ in range(state.num_nsys_workers))
        self.sampler = SampledNsys(*worker) if state.num_nsys_workers and state.protocol.samples else None
        self.collectors: list[Collector] = [self.timer, *self.free]
        self.nsys: Nsys | None = None  # the one in use
        self.exports: set[Future[Nsys]] = set()
        self.cooling_since = -math.inf  # when a capture last began or began to end, on the clock of time.monotonic
        self.machine = Machine()
        self.sensor = GpuSensor(gpus, state.results.salt())

    def start(self) -> None:
        """Start every worker, the nsys workers, too: to start them later would disturb unprofiled steps."""
        with ThreadPoolExecutor(len(self.collectors)) as pool:
            starts = [pool.submit(collector.start) for collector in self.collectors]
        for start in starts:
            start.result()
        if self.sampler:
            self.start_sampler(self.sampler)
        self.machine = read_machine_facts(self.timer.facts, with_nsys=bool(self.free))

    def start_sampler(self, sampler: SampledNsys) -> None:
        """Start the worker in whose steps Python is sampled. An nsys that cannot sample measures all the same."""
        try:
            sampler.start()
        except CollectorError as error:
            self.state.emit("samples_left_out", run="", why=str(error))
            self.sampler = None
        else:
            self.collectors.append(sampler)

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.collectors)) as pool:
            list(pool.map(lambda collector: collector.stop(), self.collectors))

    def abandon(self) -> None:
        """Give up the run being measured; runs being exported are still finished."""
        for collector in (self.timer, self.nsys, self.sampler):
            if collector is not None:
                collector.abandon()

    def kill(self) -> None:
        """Kill whatever was started, at once."""
        for collector in self.collectors:
            collector.kill()

    def time_runs(self, process: int, positions: Mapping[str, int]) -> None:
        """Time each run in the queue in its process number `process`. `positions`: place of each run in this pass of
        the first stage, by run id."""
        while run := self.state.next_run():
            self.time(run, process, positions[run.run_id])

    def profile_runs(self) -> None:
        """Profile each run in the queue under nsys: the second stage."""
        with ThreadPoolExecutor(len(self.free), thread_name_prefix="export") as pool:
            try:
                while not self.state.stopping.is_set():
                    self.await_export(0 if self.free else None)
                    if run := self.state.next_run():
                        self.profile(run, pool)
                    elif self.exports:
                        self.await_export()  # which may queue a run again
                    else:
                        break
                while self.exports:
                    self.await_export()
            finally:
                wait(self.exports)

    def await_export(self, timeout_s: float | None = None) -> None:
        """Wait for an export to end; its nsys worker is free again. Raises what the export raised."""
        ended, self.exports = wait(self.exports, timeout_s, FIRST_COMPLETED)
        self.free.extend(export.result() for export in ended)

    def take_turns(self, process: int, positions: Mapping[str, int], groups: Mapping[str, Sequence[Run]]) -> None:
        """Let the runs of each group in the queue take turns in their shared process number `process`. groups: by the
        id of their first run, which is in the queue."""
        while run := self.state.next_run():
            self.time_group(groups[run.run_id], process, positions[run.run_id])

    def cool_down(self, event: str) -> None:
        """Wait before measured steps until no capture of this GPU disturbs them."""
        if event == "ready":
            time.sleep(max(0.0, self.cooling_since + self.state.cooldown_s - time.monotonic()))

    def time(self, run: Run, process: int, position: int) -> None:
        """Measure a run without a profiler, in a fresh process, and write the outcome into its record. Raises
        CollectorError when the machine is broken."""
        if process == 0:
            attempt = Attempt.begin(self.state, run, self.timer, self.machine)
        else:
            attempt = Attempt.resume(self.state, run, self.timer)
        self.time_alone(attempt, position, is_first=process == 0)

    def time_alone(self, attempt: Attempt, position: int, is_first: bool = False) -> None:
        """Do the same with an attempt that has begun."""
        with Watch(self.sensor, position) as watch:
            try:
                measured = self.measure_in_fresh_process(attempt, watch, is_first)
            except RunFailedError as failure:
                attempt.fail(failure)
            else:
                attempt.keep_timings(measured, watch)

    def time_group(self, runs: Sequence[Run], process: int, position: int) -> None:
        """Let runs take turns in a fresh process, and write the outcome into their records. A run that fails ends
        alone: the others begin again without it. A run for which there is no memory beside the others has a process
        alone. Raises as `time` does."""
        attempts = [Attempt.resume(self.state, run, self.timer, len(runs)) for run in runs]
        without_room: list[Attempt] = []
        outcomes: list[Measured | Failed] = []
        while attempts and not outcomes:
            with Watch(self.sensor, position) as watch:
                try:
                    outcomes = self.measure_turns(attempts, process, watch)
                except RunFailedError as failure:
                    failed = attempts.pop(self.timer.turn)
                    if self.state.stopping.is_set():
                        for attempt in (failed, *attempts, *without_room):
                            attempt.interrupt()
                        return
                    if failure.status == "oom":  # after which the process could not go on
                        without_room.append(failed)
                    else:
                        failed.fail(failure)
        group = secrets.token_hex(4)
        for attempt, outcome in zip(attempts, outcomes, strict=True):
            if outcome["event"] == "measured":
                attempt.note(outcome)
                attempt.keep_timings(outcome, watch, group)
            else:
                without_room.append(attempt)
        for attempt in without_room:
            others = format_count(len(runs) - 1, "other run")
            why = f"it ran out of memory by turns with {others}, and has a process alone"
            self.state.emit("run_repeated", run=attempt.run.run_id, why=why)
            self.time_alone(attempt, position)

    def measure_turns(self, attempts: Sequence[Attempt], process: int, watch: Watch) -> list[Measured | Failed]:
        """Measure with the timer (see `Timer.take_turns`) in a fresh process."""
        protocol, runs = self.state.protocol, [attempt.run for attempt in attempts]
        self.timer.renew()
        return self.timer.take_turns(
            runs,
            warmup_steps=protocol.warmup_steps,
            rounds=protocol.rounds,
            steps=protocol.measured_steps // protocol.rounds,
            seed=f"{protocol.seed}-{process}-{runs[0].run_id}",
            folders=[attempt.folder for attempt in attempts],
            timeout_s=sum(compute_timeout(run, protocol) for run in runs),
            between=watch,
        )

    def measure_in_fresh_process(self, attempt: Attempt, watch: Watch, is_first: bool) -> Measured:
        """Measure with the timer (see `Attempt.measure`) in a fresh process.

        The first process of a run also trains the plain run before, to compare the losses. These extra steps may break
        the CUDA context. If a process fails before the run is built, another process measures without them."""
        protocol, busy_s = self.state.protocol, self.sensor.busy_s
        compares = is_first and count_plain_steps(attempt.run.model_dump(), protocol.warmup_steps) > 0
        self.timer.renew()
        try:
            return attempt.measure(protocol.measured_steps, compare=compares, busy_s=busy_s, between=watch)
        except RunFailedError as failure:
            is_early = failure.status == "failed" and failure.detail.get("phase") in ("build", WARM_UP)
            if not compares or not is_early or self.state.is_stopping(failure.status):
                raise
            why = f"{failure.detail['message']}, while its loss was to be compared with the loss of the plain run"
        self.state.emit("run_repeated", run=attempt.run.run_id, why=why)
        self.timer.renew()
        return attempt.measure(protocol.measured_steps, busy_s=busy_s, between=watch)

    def profile(self, run: Run, pool: ThreadPoolExecutor) -> None:
        """Measure a timed run under nsys, in one capture. Raises as `time` does."""
        self.nsys = nsys = self.free.popleft()
        attempt = Attempt.resume(self.state, run, nsys)
        try:
            self.sample(run, attempt)
            if run.fresh_process:
                nsys.renew()
            nsys.start()
            nsys.begin_capture(attempt.folder)
            self.cooling_since = time.monotonic()
            attempt.measure(self.state.protocol.profiled_steps, between=self.cool_down)
        except RunFailedError as failure:  # and the worker was stopped, its capture with it
            self.free.append(nsys)
            attempt.fail(failure)
        else:
            self.exports.add(pool.submit(self.export, attempt, nsys))
        self.cooling_since = time.monotonic()
        self.nsys = None

    def sample(self, run: Run, attempt: Attempt) -> None:
        """Leave a capture of further steps with samples of Python in the folder of a timed run, if the sweep asks for
        them and the CPU limits the run. A run without them is measured all the same. Raises RunFailedError if the sweep
        stops."""
        if self.sampler is None or not is_limited_by_cpu(self.state.results.read_steps(run)):
            return
        sampler, protocol = self.sampler, self.state.protocol

        def begin_capture(event: str) -> None:
            if event == "ready":  # samples of a compilation are a hundred times those of the steps
                sampler.begin_capture(attempt.folder)

        try:
            sampler.start()
            sampler.measure(
                run,
                warmup_steps=protocol.warmup_steps,
                steps=protocol.profiled_steps,
                folder=attempt.folder,
                timeout_s=compute_timeout(run, protocol),
                between=begin_capture,
            )
            sampler.end_capture()
        except (RunFailedError, CollectorError) as failure:
            if self.state.stopping.is_set():
                raise RunFailedError("failed", message="the sweep was stopped") from None
            sampler.stop()
            self.state.emit("samples_left_out", run=run.run_id, why=str(failure))

    def export(self, attempt: Attempt, nsys: Nsys) -> Nsys:
        """End a capture, export it, and finish its run. Returns the collector, which is free again."""
        attempt.export(nsys.end_capture)
        return nsys
