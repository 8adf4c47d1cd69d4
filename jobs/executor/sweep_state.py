"""State that the GPU executors of a sweep share: runs left to do, runs done, and whether to stop."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Protocol, RunRecord
from profiler_job.jobs.executor.events import Emit
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.stop import Stop
from profiler_job.jobs.sweep.batches import take_batch

MAX_REPEATS = 2
MAX_MACHINE_FAILURES = 3  # in a row: then the machine is broken, and every other run would fail, too
SIGNAL_S = 1.0  # batch engines signal every process of a job: a worker may be seen to die before our signal comes
# For tenths of a second after a capture began or began to end, nsys slows the host: on an H200, launch-bound steps of
# any process took up to half as long again. Kernels take no longer.
COOLDOWN_S = 1.0


class SweepState:
    """Shared state of a sweep. `timed`: records of runs that only the timer has measured, in all or some of its
    processes, by run id. `statuses`: statuses of finished runs, by run id. `compiled`: folder of what workers compile,
    while there are workers. `together`: how many processes of a GPU may warm up side by side. `alone`: ids of runs that
    failed so, and have a batch of their own."""

    def __init__(self, results: Results, protocol: Protocol, emit: Emit, device: str):
        self.results, self.protocol, self.emit, self.device = results, protocol, emit, device
        self.num_nsys_workers = self.num_samplers = 0
        self.together = 1
        self.alone: set[str] = set()
        self.compiled = ""
        self.cooldown_s = COOLDOWN_S if device == "cuda" else 0.0
        self.stopping = Stop()
        self.queue: list[Run] = []
        self.queue_lock = threading.Lock()
        self.timed: dict[str, RunRecord] = {}
        self.statuses: dict[str, str] = {}
        self.repeats: Counter[str] = Counter()
        self.machine_failures: Counter[int | None] = Counter()  # in a row, by GPU

    def next_batch(self, fits: Callable[[Sequence[Run]], bool]) -> list[Run]:
        """Take the next run, and others that may warm up next to it (see `take_batch`); none when the queue is empty or
        the sweep stops."""
        with self.queue_lock:
            batch = [] if self.stopping.is_set() else take_batch(self.queue, fits)
            for run in batch:
                self.queue.remove(run)
        return batch

    def enqueue(self, run: Run) -> None:
        with self.queue_lock:
            self.queue.append(run)

    def measure_alone(self, run: Run, why: str) -> None:
        """Queue a run once more, next to which no other warms up."""
        self.alone.add(run.run_id)
        self.emit("run_repeated", run=run.run_id, why=why)
        self.enqueue(run)

    def try_again(self, run: Run, why: str) -> bool:
        """Queue a run to be profiled once more, and return whether it was queued. It is not after MAX_REPEATS, which
        count over all runs until a first capture is complete. Raises OSError when the disk is full, as `why` may say:
        the next capture would fail, too."""
        self.results.check_space(why)
        self.repeats[run.run_id] += 1
        some_whole = "ok" in self.statuses.values()
        if (self.repeats[run.run_id] if some_whole else self.repeats.total()) > MAX_REPEATS:
            return False
        self.alone.add(run.run_id)
        self.enqueue(run)
        return True

    def is_stopping(self, status: str) -> bool:
        """Return whether the sweep stops. After a failed run wait up to SIGNAL_S for the signal that may have ended
        it."""
        return self.stopping.wait(SIGNAL_S if status in ("failed", "machine") else 0)

    def count_machine_failures(self, gpu: int | None, status: str, message: str = "") -> None:
        """Count failures of the machine in a row, by GPU. Raises CollectorError after MAX_MACHINE_FAILURES."""
        self.machine_failures[gpu] = self.machine_failures[gpu] + 1 if status == "machine" else 0
        if self.machine_failures[gpu] >= MAX_MACHINE_FAILURES:
            raise CollectorError(f"the machine failed {MAX_MACHINE_FAILURES} runs in a row, the last one: {message}")
