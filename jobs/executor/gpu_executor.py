"""One GPU of a sweep, or as many as a run needs together, and the runs that are measured there.

A GPU executor has warm workers inside nsys, each in a separate session, and a process that forks a fresh worker for
each run without a profiler, or for each group of runs that take turns. A sweep has two stages: every run without a
profiler, in several passes, and then, when no executor measures unprofiled steps any more, every run under nsys. Ending
a capture takes nsys seconds and the GPU nothing, so it goes on, export included, while the next runs are profiled.

In a sweep that compiles, processes of a batch compile side by side, each in a thread of its own, and run one at a time
(see `jobs.sweep.batches` and `gate`). What runs out of memory so has another process, alone.
"""

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Machine
from profiler_job.jobs.contract.messages import Failed, Measured
from profiler_job.jobs.contract.plain import count_plain_steps
from profiler_job.jobs.contract.words import format_count
from profiler_job.jobs.executor.attempt import Attempt, leave_out_process
from profiler_job.jobs.executor.collectors import WARM_UP, Collector, Nsys, SampledNsys, Timer, build_failure
from profiler_job.jobs.executor.failures import CollectorError, RunFailedError
from profiler_job.jobs.executor.gate import Gate, Passage
from profiler_job.jobs.executor.gpu_sampler import GpuSensor, Watch
from profiler_job.jobs.executor.machine import read_machine_facts
from profiler_job.jobs.executor.python_samples import is_limited_by_cpu
from profiler_job.jobs.executor.sweep_state import SweepState
from profiler_job.jobs.sweep.batches import UNKNOWN, Need, compute_room, sum_needs
from profiler_job.jobs.sweep.prediction import compute_timeout


class GpuExecutor:
    """The GPUs of one run at a time, a rank for each; on the CPU `gpus` is empty. In each stage it takes runs from the
    common queue until the queue is empty."""

    def __init__(self, state: SweepState, gpus: Sequence[int], ranks: int = 1):
        self.state = state
        worker = (state.device, gpus, ranks, state.stopping, state.compiled)
        self.timers = deque(Timer(*worker) for _ in range(state.together if ranks == 1 else 1))
        self.timer = self.timers[0]
        self.free = deque(Nsys(*worker) for _ in range(state.num_nsys_workers))
        self.samplers = deque(SampledNsys(*worker) for _ in range(state.num_samplers))
        self.collectors: list[Collector] = [*self.timers, *self.free]
        self.in_use: set[Nsys] = set()
        self.limited_by_cpu: dict[str, bool] = {}  # timed runs, by id
        self.exports: set[Future[Nsys]] = set()
        self.cooling_since = -math.inf  # when a capture last began or began to end, on the clock of time.monotonic
        self.machine, self.room = Machine(), 0.0
        self.sensor = GpuSensor(gpus, state.results.salt())

    def start(self) -> None:
        """Start every worker, the nsys workers, too: to start them later would disturb unprofiled steps. Of the nsys
        workers one suffices."""
        with ThreadPoolExecutor(len(self.collectors)) as pool:
            starts = [(collector, pool.submit(collector.start)) for collector in self.collectors]
        for collector, start in starts:
            try:
                start.result()
            except CollectorError:
                if not isinstance(collector, Nsys) or len(self.free) == 1:
                    raise
                self.free.remove(collector)
        self.start_samplers()
        facts = self.timer.facts
        self.machine = read_machine_facts(facts, with_nsys=bool(self.free))
        self.room = compute_room(facts["gpu_memory_bytes"], self.state.together, self.state.num_nsys_workers)

    def start_samplers(self) -> None:
        """Start the workers in whose steps Python is sampled. An nsys that cannot sample measures all the same."""
        self.collectors += self.samplers
        try:
            if self.samplers:
                with ThreadPoolExecutor(len(self.samplers)) as pool:
                    list(pool.map(lambda sampler: sampler.start(), self.samplers))
        except CollectorError as error:
            self.state.emit("samples_left_out", run="", why=str(error))
            self.samplers.clear()

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.collectors)) as pool:
            list(pool.map(lambda collector: collector.stop(), self.collectors))

    def abandon(self) -> None:
        """Give up the run being measured; runs being exported are still finished."""
        for collector in [*self.collectors]:
            if isinstance(collector, Timer | SampledNsys) or collector in self.in_use:
                collector.abandon()

    def kill(self) -> None:
        """Kill whatever was started, at once."""
        for collector in self.collectors:
            collector.kill()

    def time_runs(self, process: int, positions: Mapping[str, int]) -> None:
        """Time each run in the queue in its process number `process`. `positions`: place of each run in this pass of
        the first stage, by run id."""

        def time(run: Run, passages: Sequence[Passage]) -> None:
            self.time(run, process, positions[run.run_id], passages[0])

        def find_need(run: Run) -> Need:
            return UNKNOWN if process == 0 and self.count_plain_steps(run) else Need.predict(run)

        while batch := self.next_batch(find_need):
            self.measure_together(batch, time)

    def take_turns(self, process: int, positions: Mapping[str, int], groups: Mapping[str, Sequence[Run]]) -> None:
        """Let the runs of each group in the queue take turns in their shared process number `process`. groups: by the
        id of their first run, which is in the queue."""

        def time(run: Run, passages: Sequence[Passage]) -> None:
            self.time_group(groups[run.run_id], process, positions[run.run_id], passages[0])

        while batch := self.next_batch(lambda run: Need.predict_shared(groups[run.run_id])):
            self.measure_together(batch, time)

    def profile_runs(self) -> None:
        """Profile each run in the queue under nsys: the second stage."""
        with ThreadPoolExecutor(max(1, len(self.free)), thread_name_prefix="export") as pool:

            def profile(run: Run, passages: Sequence[Passage]) -> None:
                self.profile(run, pool, passages)

            def find_need(run: Run) -> Need:
                return Need.predict(run).times(self.count_processes(run))

            def has_workers(batch: Sequence[Run]) -> bool:
                return len(batch) <= len(self.free) and sum(map(self.is_sampled, batch)) <= len(self.samplers)

            try:
                while not self.state.stopping.is_set():
                    self.await_export(0 if self.free else None)
                    while self.exports and self.state.together > 1:
                        self.await_export()
                    if batch := self.next_batch(find_need, has_workers):
                        self.measure_together(batch, profile, self.count_processes)
                    elif self.exports:
                        self.await_export()  # which may queue a run again
                    else:
                        break
                while self.exports:
                    self.await_export()
            finally:
                wait(self.exports)

    def next_batch(
        self, find_need: Callable[[Run], Need], has_workers: Callable[[Sequence[Run]], bool] = lambda batch: True
    ) -> list[Run]:
        """Take runs from the queue that may compile side by side, as far as their memory and the workers allow."""
        alone = self.state.alone
        needs = cache(lambda run: UNKNOWN if run.run_id in alone else find_need(run))

        def fits(batch: Sequence[Run]) -> bool:
            is_few = len(batch) <= len(self.timers) and has_workers(batch)
            return is_few and sum_needs(list(map(needs, batch))) <= self.room

        return self.state.next_batch(fits)

    def measure_together(
        self,
        batch: Sequence[Run],
        measure: Callable[[Run, Sequence[Passage]], None],
        count_processes: Callable[[Run], int] = lambda run: 1,
    ) -> None:
        """Measure the runs of a batch, each with a passage of one gate for each of its processes. Raises as `measure`
        does."""
        gate = Gate()
        passages = {
            run.run_id: [Passage(gate) for _ in range(count_processes(run) if len(batch) > 1 else 1)] for run in batch
        }

        def work(run: Run) -> None:
            try:
                measure(run, passages[run.run_id])
            finally:
                for passage in passages[run.run_id]:
                    passage.leave()

        with ThreadPoolExecutor(len(batch)) as pool:
            works = [pool.submit(work, run) for run in batch]
        for each in works:
            each.result()

    def await_export(self, timeout_s: float | None = None) -> None:
        """Wait for an export to end; its nsys worker is free again. Raises what the export raised."""
        ended, self.exports = wait(self.exports, timeout_s, FIRST_COMPLETED)
        self.free.extend(export.result() for export in ended)

    def cool_down(self, event: str) -> None:
        """Wait before measured steps until no capture of this GPU disturbs them."""
        if event == "ready":
            time.sleep(max(0.0, self.cooling_since + self.state.cooldown_s - time.monotonic()))

    def time(self, run: Run, process: int, position: int, passage: Passage) -> None:
        """Measure a run without a profiler, in a fresh process, and write the outcome into its record. Raises
        CollectorError when the machine is broken."""
        timer = self.timers.popleft()
        try:
            if process == 0:
                attempt = Attempt.begin(self.state, run, timer, self.machine)
            else:
                attempt = Attempt.resume(self.state, run, timer)
            self.time_alone(attempt, position, passage, is_first=process == 0)
        finally:
            self.timers.append(timer)

    def time_alone(self, attempt: Attempt, position: int, passage: Passage, is_first: bool = False) -> None:
        """Do the same with an attempt that has begun."""
        with Watch(self.sensor, position) as watch:
            try:
                measured = self.measure_in_fresh_process(attempt, watch, passage, is_first)
            except RunFailedError as failure:
                if not self.repeat_alone(attempt.run, passage, failure.status):
                    attempt.fail(failure)
            else:
                attempt.keep_timings(measured, watch)

    def repeat_alone(self, run: Run, passage: Passage, status: str) -> bool:
        """Queue a run that ran out of memory while others were warm, and return whether it was queued."""
        if status != "oom" or not passage.is_shared:
            return False
        self.state.measure_alone(run, "it ran out of memory next to other processes, and is measured without them")
        return True

    def time_group(self, runs: Sequence[Run], process: int, position: int, passage: Passage) -> None:
        """Let runs take turns in a fresh process, and write the outcome into their records. A run that fails ends
        alone: the others begin again without it. A run for which there is no memory beside the others has a process
        alone. A process that was not planned is left out if a run fails in it. Raises as `time` does."""
        timer = self.timers.popleft()
        try:
            self.time_group_with(timer, runs, process, position, passage)
        finally:
            self.timers.append(timer)

    def time_group_with(self, timer: Timer, runs: Sequence[Run], process: int, position: int, passage: Passage) -> None:
        """Do the same with one of the timers."""
        attempts = [Attempt.resume(self.state, run, timer, len(runs)) for run in runs]
        without_room: list[Attempt] = []
        outcomes: list[Measured | Failed] = []
        while attempts and not outcomes:
            with Watch(self.sensor, position) as watch:
                try:
                    outcomes = self.measure_turns(timer, attempts, process, watch, passage)
                except RunFailedError as failure:
                    if self.repeat_alone(runs[0], passage, failure.status):
                        return
                    failed = attempts.pop(timer.turn)
                    if self.state.stopping.is_set():
                        for attempt in (failed, *attempts, *without_room):
                            attempt.interrupt()
                        return
                    if failed.record.is_timed:
                        leave_out_process(failed, attempts, failure)
                        return
                    if failure.status == "oom":  # after which the process could not go on
                        without_room.append(failed)
                    else:
                        failed.fail(failure)
        if any(outcome["event"] == "oom" and self.repeat_alone(runs[0], passage, "oom") for outcome in outcomes):
            return
        for attempt, outcome in zip(attempts, outcomes, strict=True):
            if outcome["event"] != "measured" and attempt.record.is_timed:
                rest = [other for other in attempts if other is not attempt]
                leave_out_process(attempt, rest, build_failure(outcome))
                return
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
            self.time_alone(attempt, position, passage)

    def measure_turns(
        self, timer: Timer, attempts: Sequence[Attempt], process: int, watch: Watch, passage: Passage
    ) -> list[Measured | Failed]:
        """Measure with a timer (see `Timer.take_turns`) in a fresh process."""
        protocol, runs = self.state.protocol, [attempt.run for attempt in attempts]
        timer.renew()
        return timer.take_turns(
            runs,
            warmup_steps=protocol.warmup_steps,
            rounds=protocol.rounds,
            steps=protocol.measured_steps // protocol.rounds,
            seed=f"{protocol.seed}-{process}-{runs[0].run_id}",
            folders=[attempt.folder for attempt in attempts],
            timeout_s=sum(compute_timeout(run, protocol) for run in runs),
            between=pass_by(passage, watch, attempts),
        )

    def measure_in_fresh_process(self, attempt: Attempt, watch: Watch, passage: Passage, is_first: bool) -> Measured:
        """Measure with the attempt's timer (see `Attempt.measure`) in a fresh process.

        The first process of a run also trains the plain run before, to compare the losses. These extra steps may break
        the CUDA context. If a process fails before the run is built, another process measures without them."""
        protocol, busy_s = self.state.protocol, self.sensor.busy_s
        compares = is_first and self.count_plain_steps(attempt.run) > 0
        between = pass_by(passage, watch, [attempt])
        attempt.collector.renew()
        try:
            return attempt.measure(
                protocol.measured_steps, compare=compares, busy_s=busy_s, waits=passage.is_shared, between=between
            )
        except RunFailedError as failure:
            is_early = failure.status == "failed" and failure.detail.get("phase") in ("build", WARM_UP)
            if not compares or not is_early or self.state.is_stopping(failure.status):
                raise
            why = f"{failure.detail['message']}, while its loss was to be compared with the loss of the plain run"
        self.state.emit("run_repeated", run=attempt.run.run_id, why=why)
        attempt.collector.renew()
        return attempt.measure(protocol.measured_steps, busy_s=busy_s, waits=passage.is_shared, between=between)

    def count_plain_steps(self, run: Run) -> int:
        """Count the steps of the plain run before the first process of a run."""
        return count_plain_steps(run.model_dump(), self.state.protocol.warmup_steps)

    def profile(self, run: Run, pool: ThreadPoolExecutor, passages: Sequence[Passage]) -> None:
        """Measure a timed run under nsys, in one capture, and its samples. passages: of that process and, if both warm
        up side by side, of the one with samples. Raises as `time` does."""
        nsys, passage = self.free.popleft(), passages[0]
        attempt = Attempt.resume(self.state, run, nsys)
        self.in_use.add(nsys)
        with ThreadPoolExecutor(1) as beside:
            sampling = beside.submit(self.sample, attempt, passages[-1])
            try:
                if passages[-1] is passage:
                    wait([sampling])
                failed = sampling.exception() if sampling.done() else None
                failed = failed or self.capture(attempt, nsys, passage)
            finally:
                self.cooling_since = time.monotonic()
                passage.leave()
        self.in_use.discard(nsys)
        failed = failed or sampling.exception()
        if failed is None:
            self.exports.add(pool.submit(self.export, attempt, nsys))
            return
        self.free.append(nsys)  # the worker was stopped, its capture with it
        if not isinstance(failed, RunFailedError):
            raise failed
        if not self.repeat_alone(run, passage, failed.status):
            attempt.fail(failed)

    def capture(self, attempt: Attempt, nsys: Nsys, passage: Passage) -> RunFailedError | None:
        """Measure in a capture, which goes on. Return how the run failed."""
        try:
            if attempt.run.fresh_process:
                nsys.renew()
            nsys.start()
            nsys.begin_capture(attempt.folder)
            self.cooling_since = time.monotonic()
            attempt.measure(
                self.state.protocol.profiled_steps,
                waits=passage.is_shared,
                between=pass_by(passage, self.cool_down, [attempt]),
            )
        except RunFailedError as failure:
            return failure
        return None

    def is_sampled(self, run: Run) -> bool:
        """Return whether a timed run is to have a capture with samples of Python: if the sweep asks for them, and the
        CPU limits the run."""
        if self.samplers and run.run_id not in self.limited_by_cpu:
            self.limited_by_cpu[run.run_id] = is_limited_by_cpu(self.state.results.read_steps(run))
        return self.limited_by_cpu.get(run.run_id, False)

    def count_processes(self, run: Run) -> int:
        """Count the processes under nsys that a timed run is to have."""
        return 1 + self.is_sampled(run)

    def sample(self, attempt: Attempt, passage: Passage) -> None:
        """Leave a capture of further steps with samples of Python in the folder of a timed run, if it is to have one. A
        run without them is measured all the same. Raises RunFailedError if the sweep stops."""
        if not self.is_sampled(attempt.run):
            return
        sampler, protocol = self.samplers.popleft(), self.state.protocol

        def begin_capture(event: str) -> None:
            if event == "ready":  # samples of a compilation are a hundred times those of the steps
                sampler.begin_capture(attempt.folder)

        try:
            sampler.start()
            sampler.measure(
                attempt.run,
                warmup_steps=protocol.warmup_steps,
                steps=protocol.profiled_steps,
                folder=attempt.folder,
                timeout_s=compute_timeout(attempt.run, protocol),
                waits=passage.is_shared,
                between=pass_by(passage, begin_capture),
            )
            self.cooling_since = time.monotonic()
            passage.leave()
            sampler.end_capture()
        except (RunFailedError, CollectorError) as failure:
            if self.state.stopping.is_set():
                raise RunFailedError("failed", message="the sweep was stopped") from None
            sampler.stop()
            self.state.emit("samples_left_out", run=attempt.run.run_id, why=str(failure))
        finally:
            self.cooling_since = time.monotonic()
            passage.leave()
            self.samplers.append(sampler)

    def export(self, attempt: Attempt, nsys: Nsys) -> Nsys:
        """End a capture, export it, and finish its run. Returns the collector, which is free again."""
        attempt.export(nsys.end_capture)
        return nsys


def pass_by(passage: Passage, then: Callable[[str], None], attempts: Sequence[Attempt] = ()) -> Callable[[str], None]:
    """Return what to call with the events of `Collector.measure`: a passage, and `then` something else. attempts: of
    the process, which note how long it waited."""

    def between(event: str) -> None:
        began = time.monotonic()
        passage(event)
        for attempt in attempts:
            attempt.waited_s += time.monotonic() - began
        then(event)

    return between
