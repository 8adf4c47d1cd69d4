"""Runner of a sweep: order, statuses, resume, and an executor for each GPU."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import takewhile

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import CALIBRATION, Machine, Protocol, RunRecord
from profiler_job.jobs.contract.versions import compare_machines, format_differences
from profiler_job.jobs.executor.attempt import finish_timed
from profiler_job.jobs.executor.collectors import Timer
from profiler_job.jobs.executor.events import Emit
from profiler_job.jobs.executor.extra_processes import find_shortest_loops, needs_another
from profiler_job.jobs.executor.failures import CollectorError, RunFailedError
from profiler_job.jobs.executor.gpu_executor import GpuExecutor
from profiler_job.jobs.executor.machine import count_cores
from profiler_job.jobs.executor.result_store import Results, read_json, write_json
from profiler_job.jobs.executor.sweep_state import SweepState
from profiler_job.jobs.executor.temporary import create_temporary_folder, remove_abandoned
from profiler_job.jobs.sweep.batches import (
    Batch,
    count_together,
    count_workers,
    order_passes,
    predict_batches,
    put_compiled_first,
)
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.prediction import assume_stages, count_stage_steps, name_stage, predict_seconds


def is_in_group(record: RunRecord) -> bool:
    """Return whether a run goes on to take its turns."""
    return record.status in ("ok", "timed") and all(process.group for process in record.timed[1:])


class StoppedError(ProfilerError):
    """Error when a signal stopped the sweep."""

    exit_code = ExitCode.TERMINATED


class MixedVersionsError(ProfilerError):
    """Error when finished runs, which stay, were measured with other versions than this machine has."""


class SweepRunner:
    """Runner of the runs of a sweep that are not finished yet.

    `emit(event, **fields)` receives each event. `gpus` are the device indices to use, one executor each. `calibrate`
    measures the first GPU's peak rates before the first run, into CALIBRATION. With `allow_mix` the other runs may be
    measured with other versions than those that are finished.
    """

    def __init__(
        self,
        results: Results,
        protocol: Protocol,
        emit: Emit,
        *,
        device: str = "cuda",
        gpus: Sequence[int] = (0,),
        retry: bool = False,
        allow_mix: bool = False,
        calibrate: bool = False,
    ):
        self.state = SweepState(results, protocol, emit, device)
        self.results, self.protocol, self.emit = results, protocol, emit
        self.gpus, self.retry, self.allow_mix, self.calibrate = gpus, retry, allow_mix, calibrate
        self.executors: list[GpuExecutor] = []
        self.orders: list[list[list[Run]]] = []  # of the passes of unprofiled processes; runs that share one together
        self.kept: list[Machine] = []  # of runs that were finished before

    def run(self, runs: Sequence[Run]) -> dict[str, str]:
        """Measure and return the status of every run by run_id (finished ones included).

        Raises CollectorError when the machine cannot measure, MixedVersionsError when it has other versions than
        finished runs and something is to be measured, OSError when results cannot be written,
        StoppedError after `stop`.
        """
        self.orders = order_passes(runs, self.protocol)
        pending = self._pending(runs)
        predicted = {run.run_id: assume_stages(run, self.protocol) for run in pending}
        if len(self.gpus) > 1:  # longest first, so that no GPU is left alone with a long run at the end
            pending.sort(key=lambda run: sum(predicted[run.run_id].values()), reverse=True)
        for run_id, timed in self.state.timed.items():
            for process in range(len(timed.timed)):
                predicted[run_id].pop(name_stage(Timer.name, process), None)  # none of a process that was not planned
        self.emit(
            "sweep_started",
            runs=len(runs),
            finished=len(self.state.statuses),
            timed=sum(timed.is_timed for timed in self.state.timed.values()),
            stages=len(runs) * len(count_stage_steps(self.protocol)),
            predicted_s=predicted,
            batches=[batch._asdict() for batch in self._predict_batches(pending, predicted)],
        )
        if pending:
            self._drive(pending)
        if self.state.stopping.is_set():
            raise StoppedError
        self.emit("sweep_finished", statuses=self.state.statuses)
        return self.state.statuses

    def _predict_batches(self, pending: Sequence[Run], predicted: Mapping[str, Mapping[str, float]]) -> list[Batch]:
        """Predict the batches of runs if they compile side by side, from the seconds of the stages that are left."""
        together = self._count_together(pending)
        if together == 1 or any(predict_seconds(run, self.protocol) is None for run in pending):
            return []
        return predict_batches({run: predicted[run.run_id] for run in pending}, self.protocol, together)

    def _count_together(self, pending: Sequence[Run]) -> int:
        return count_together(pending, count_cores(), len(self.gpus) if self.state.device == "cuda" else 0)

    def _pending(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs that are not finished, and put what is known about the others into the state."""
        final: dict[Run, RunRecord] = {}
        for run in runs:
            record = self.results.final(run, self.protocol, self.retry)
            if record is None:
                if damage := self.results.damage(run):
                    self.emit("run_damaged", run=run.run_id, why=damage)
                self.results.reopen(run, self.protocol)
                if timed := self.results.timed(run, self.protocol):
                    self.state.timed[run.run_id] = timed
            else:
                final[run] = record
        if self.protocol.turns:
            for group in group_runs(runs, self.protocol):
                self._reopen_unpaired(group, final)
        for run, record in final.items():
            self.results.tidy(run, record)
            self.state.statuses[run.run_id] = record.status
            self.kept.append(record.machine)
        return [run for run in runs if run not in final]

    def _reopen_unpaired(self, group: Sequence[Run], final: dict[Run, RunRecord]) -> None:
        """Keep only the shared processes that all runs of a group have, which a job may have left or other runs may
        have joined since: ratios need rounds in which all took their turn. Runs that failed, or had such a process
        alone for lack of memory, have left the group. final: records of finished runs; those that are to be measured
        again are taken out."""
        known = {run: final.get(run) or self.state.timed.get(run.run_id) for run in group}
        members = {run: record for run, record in known.items() if record is None or is_in_group(record)}
        shared = [[process.group for process in record.timed[1:]] if record else [] for record in members.values()]
        num = len([*takewhile(lambda groups: len({*groups}) == 1, zip(*shared))])
        for run, record in members.items():
            if record and (len(record.timed) > 1 + num):
                self.state.timed[run.run_id] = self.results.keep_processes(run, record, 1 + num)
                final.pop(run, None)
                self.emit("run_repeated", run=run.run_id, why="it is measured by turns with runs that lack its rounds")

    def _drive(self, pending: Sequence[Run]) -> None:
        state = self.state
        state.together = self._count_together(pending)
        state.num_nsys_workers, state.num_samplers = count_workers(state.together, self.protocol, len(pending))
        remove_abandoned()
        with create_temporary_folder("compiled-") as compiled:
            self.state.compiled = str(compiled)
            for ranks in sorted({run.gpus for run in pending}):
                if not self.state.stopping.is_set():
                    self._drive_together([run for run in pending if run.gpus == ranks], ranks)
        remove_abandoned()

    def _drive_together(self, pending: Sequence[Run], ranks: int) -> None:
        """Measure runs of `ranks` GPUs each, as many at once as there are GPUs for. Runs of other numbers of GPUs come
        before or after, so that no idle GPU waits for them."""
        groups = [self.gpus[first : first + ranks] for first in range(0, len(self.gpus) - ranks + 1, ranks)]
        on_cpu = self.state.device != "cuda"
        self.executors = [GpuExecutor(self.state, () if on_cpu else gpus, ranks) for gpus in groups or [()]]
        try:
            with ThreadPoolExecutor(len(self.executors), thread_name_prefix="gpu") as pool:
                self._run_stages(pool, pending)
        finally:
            with ThreadPoolExecutor(len(self.executors)) as pool:
                list(pool.map(GpuExecutor.stop, self.executors))

    def _run_stages(self, pool: ThreadPoolExecutor, pending: Sequence[Run]) -> None:
        """Run both stages. No capture opens before the last executor has ended the first stage: the start and the end
        of a capture disturb the CPU side of every GPU."""
        try:
            self._on_every_gpu(pool, GpuExecutor.start)
            self._compare_machines()
            self._calibrate(self.executors[0])
            unfinished = {run.run_id for run in pending}
            for process, order in enumerate(self.orders):
                positions = {run.run_id: position for position, group in enumerate(order) for run in group}
                left = [
                    [run for run in group if run.run_id in unfinished and self._is_next(run, process)]
                    for group in order
                ]
                if process >= self.protocol.processes:
                    left = self._select_slow(left, order)
                groups = {group[0].run_id: group for group in left if group}
                work = partial(GpuExecutor.time_runs, process=process, positions=positions)
                if self.protocol.turns and process:
                    work = partial(GpuExecutor.take_turns, process=process, positions=positions, groups=groups)
                self._on_every_gpu(pool, work, self._order([group[0] for group in groups.values()]))
            if self.state.num_nsys_workers:
                unprofiled = [run for run in pending if run.run_id not in self.state.statuses]
                self._on_every_gpu(pool, GpuExecutor.profile_runs, self._order(unprofiled))
            elif not self.state.stopping.is_set():
                for run in [run for run in pending if run.run_id not in self.state.statuses]:
                    finish_timed(self.state, run)
        except RunFailedError:  # the sweep was stopped while workers started
            pass
        except CollectorError:
            if not self.state.is_stopping("failed"):
                self.stop()
                raise
        except BaseException:
            self.stop()
            raise

    def _select_slow(self, left: Sequence[Sequence[Run]], order: Sequence[Sequence[Run]]) -> list[list[Run]]:
        """Select the groups that need one more process, since hosts were slow: those without a finished run. left:
        what each group in `order` has left; runs that had a process alone for lack of memory take no turns."""
        shortest = find_shortest_loops(self.results, (run for group in order for run in group))
        selected = []
        for runs, group in zip(left, order):
            members = {run: timed for run in runs if is_in_group(timed := self.state.timed[run.run_id])}
            is_finished = any(self.state.statuses.get(run.run_id) == "ok" for run in group)
            if len(members) > 1 and not is_finished and needs_another(self.results, members, shortest):
                selected.append([*members])
                first, *others = [run.run_id for run in members]
                self.emit("process_added", run=first, others=others, why="the CPU was slow while they took turns")
        return selected

    def _order(self, runs: list[Run]) -> list[Run]:
        return put_compiled_first(runs) if self.state.together > 1 else runs

    def _is_next(self, run: Run, process: int) -> bool:
        """Return whether a process of this number is the next to measure of a run."""
        timed = self.state.timed.get(run.run_id)
        return run.run_id not in self.state.statuses and process == (len(timed.timed) if timed else 0)

    def _on_every_gpu(
        self, pool: ThreadPoolExecutor, work: Callable[[GpuExecutor], None], runs: Sequence[Run] = ()
    ) -> None:
        """Queue `runs`, do `work` on every GPU at once, and return when the last has ended, or raise what the first
        raises."""
        for run in runs:
            self.state.enqueue(run)
        for ended in as_completed([pool.submit(work, executor) for executor in self.executors]):
            ended.result()

    def _compare_machines(self) -> None:
        """Check that both stages of each run have one kind of machine, GPU and software. Queue runs that were only
        timed elsewhere to be timed again. Raises CollectorError if the GPUs are of several kinds, since any GPU may
        profile what another has timed; and MixedVersionsError as `run` does."""
        machines = [executor.machine for executor in self.executors]
        kinds = sorted({machine.gpu_name for machine in machines})
        if len(kinds) > 1:
            raise CollectorError(f"the GPUs differ ({', '.join(kinds)}): name GPUs of one kind in CUDA_VISIBLE_DEVICES")
        self._compare_finished(machines[0].model_dump())
        for run_id in [run_id for run_id, timed in self.state.timed.items() if timed.machine not in machines]:
            del self.state.timed[run_id]
            self.emit("run_repeated", run=run_id, why="it was timed on another machine or with other software")

    def _compare_finished(self, here: Mapping[str, str]) -> None:
        """Compare the versions of finished runs, which stay as they are, with the versions `here`. Raises
        MixedVersionsError if they differ, unless `allow_mix`."""
        kept = [machine.model_dump() for machine in self.kept]
        others = [machine for machine in kept if compare_machines([machine], here)]
        if not others:
            return
        different = compare_machines(others, here)
        if self.allow_mix:
            self.emit("mixed_versions", runs=len(others), differences=different)
            return
        raise MixedVersionsError(
            f"{len(others)} of {len(kept)} finished runs in {self.results.folder} were measured with other versions: "
            f"{format_differences(different)}; give another --results, or --allow-mix (every page then says so), or "
            "remove the folders of those runs (run.json says with what each was measured) to measure them again"
        )

    def _calibrate(self, executor: GpuExecutor) -> None:
        """Measure the peak rates of a GPU, unless the results have rates of a GPU of this name."""
        if not self.calibrate or self.state.device != "cuda":
            return
        file = self.results.folder / CALIBRATION
        rates = read_json(file, list) or [{}]
        if any(not isinstance(rate, dict) or rate.get("gpu_name") != executor.machine.gpu_name for rate in rates):
            write_json(file, executor.timer.calibrate(file.with_suffix(".log")))

    def stop(self) -> None:
        """Stop within `jobs.executor.stop.STOP_S`: runs in flight are abandoned and marked as interrupted."""
        self.state.stopping.set()
        for executor in self.executors:
            executor.abandon()

    def kill(self) -> None:
        """Kill whatever was started, at once: the program is about to end."""
        for executor in self.executors:
            executor.kill()
