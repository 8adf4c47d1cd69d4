"""Progress of a running sweep: a bar in a terminal, plain lines elsewhere, or JSON events."""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import StatisticsError, linear_regression
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from profiler_job.jobs.contract.json_format import add_format_version
from profiler_job.jobs.contract.printable import fit_terminal
from profiler_job.jobs.contract.versions import Difference, format_differences
from profiler_job.jobs.contract.words import format_count

Emit = Callable[..., None]
"""Function that receives each event: emit(event, **fields)."""

RunStage = tuple[str, str]
"""Id of a run and name of one of its stages."""


class EventSink(Protocol):
    """Receiver of events, which shows them or writes them down."""

    def __call__(self, event: str, /, **fields: Any) -> None: ...

    def close(self) -> None: ...


MARKS = {"ok": "[green]ok[/]", "oom": "[yellow]oom[/]"}
CHECK_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


class Meter:
    """Wall time since the start of the job, from which on the machine is paid for, and what it has cost; no cost
    without a price."""

    def __init__(self, price_per_hour: float | None = None):
        self.price_per_hour, self.started = price_per_hour, time.monotonic()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def cost(self) -> float | None:
        return None if self.price_per_hour is None else self.wall_s / 3600 * self.price_per_hour

    def read(self) -> dict[str, float | None]:
        return {"wall_s": round(self.wall_s, 1), "cost": self.cost and round(self.cost, 4)}


class Estimate:
    """Time that remains. Predictions are for an H200, so the times of finished stages say what one costs here: a
    fixed part and a part that grows with its prediction, fitted as a line once there are enough of them.

    `predicted_s` holds, by run and stage, the seconds of those to be done. `batches`: the predicted batches of a sweep
    that compiles side by side (see `jobs.sweep.batches`). Its stages wait for each other, so that their times say
    little. There the clock alone is compared with the plan, and what is not done yet counts as planned.
    """

    def __init__(
        self,
        predicted_s: Mapping[RunStage, float],
        num_gpus: int = 1,
        batches: Sequence[tuple[float, Mapping[RunStage, float]]] = (),
    ):
        self.open, self.num_gpus = dict(predicted_s), num_gpus
        self.starting = list(batches)  # whose first process is not done
        for _, running_s in batches:
            self.open |= running_s
        self.follows_plan = bool(batches)
        self.started = time.monotonic()
        self.done: list[tuple[float, float]] = []  # predicted and measured seconds of each finished stage

    def finish(self, stage: RunStage, wall_s: float) -> None:
        if stage in self.open:
            begun = [batch for batch in self.starting if stage in batch[1]]
            self.starting = [batch for batch in self.starting if batch not in begun]
            self.done.append((self.open.pop(stage) + sum(before_s for before_s, _ in begun), wall_s))

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def remaining_s(self) -> float:
        waits_s = sum(before_s for before_s, running_s in self.starting if running_s.keys() & self.open.keys())
        planned_s = sum(self.open.values()) + waits_s
        if not self.done:
            return planned_s / self.num_gpus
        if self.follows_plan:
            done_s = sum(predicted for predicted, _ in self.done)
            return planned_s * (self.elapsed_s + planned_s) / (done_s + planned_s)
        slope, fixed = self._line()
        expected_done = sum(fixed + slope * predicted for predicted, _ in self.done)
        expected_open = sum(fixed + slope * predicted for predicted in self.open.values())
        # Passes overlap (exports, several GPUs): the clock says how much elapses for the work that is done.
        return expected_open * self.elapsed_s / expected_done

    def _line(self) -> tuple[float, float]:
        """Slope and intercept of measured against predicted seconds; (1, 0) where no rising line fits."""
        try:
            slope, fixed = linear_regression(*zip(*self.done))
        except StatisticsError:  # one stage, or all with one prediction
            return 1.0, 0.0
        return (slope, fixed) if slope > 0 and fixed >= 0 else (1.0, 0.0)


def list_stages(seconds: Mapping[str, Mapping[str, float]]) -> dict[RunStage, float]:
    return {(run, stage): s for run, each in seconds.items() for stage, s in each.items()}


def format_clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def name_group(run: str, others: Sequence[str]) -> str:
    return f"{run} and {format_count(len(others), 'other run')}"


def format_cost(cost: float | None) -> str:
    return "" if cost is None else f" | cost {cost:.2f}"


class JsonEvents:
    """Print one JSON object a line: `format_version`, `event`, `time` (Unix seconds) and the fields of the event."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, event: str, /, **fields: Any) -> None:
        with self.lock:
            content = {"event": event, "time": round(time.time(), 3)} | fields
            print(json.dumps(add_format_version(content)), flush=True)

    def close(self) -> None:
        pass


class Terminal:
    """A progress bar of stages on a terminal, a line a stage elsewhere. `meter` gives elapsed time and cost."""

    def __init__(self, meter: Meter | None = None, num_gpus: int = 1):
        self.meter, self.num_gpus = meter or Meter(), num_gpus
        self.console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.lock = threading.Lock()
        self.stages: dict[str, str] = {}
        self.unsaid: set[str] = set()  # runs whose last stage ended and that are about to be said finished
        self.estimate = Estimate({})
        self.num_stages = 0
        self.task: TaskID | None = None

    def __call__(self, event: str, /, **fields: Any) -> None:
        with self.lock:
            getattr(self, event)(**fields)
            if self.task is not None:
                now = ", ".join(f"{run} ({stage})" for run, stage in self.stages.items()) or "sweep"
                self.progress.update(self.task, description=now, completed=self.num_done, left=self.left())

    @property
    def num_done(self) -> int:
        return self.num_stages - len(self.estimate.open) - len(self.unsaid)

    def left(self) -> str:
        return f"about {format_clock(self.estimate.remaining_s)} left{format_cost(self.meter.cost)}"

    def sweep_started(
        self,
        runs: int,
        finished: int,
        timed: int,
        stages: int,
        predicted_s: dict[str, dict[str, float]],
        batches: Sequence[dict[str, Any]] = (),
    ) -> None:
        together = [(batch["before_s"], list_stages(batch["running_s"])) for batch in batches]
        self.num_stages, self.estimate = stages, Estimate(list_stages(predicted_s), self.num_gpus, together)
        more = f", {timed} timed" if timed else ""
        self.console.print(f"{format_count(runs, 'run')}, {finished} of them already finished{more}")
        self.task = self.progress.add_task("sweep", total=stages, completed=self.num_done, left="")
        self.progress.tasks[0].start_time = self.meter.started
        self.progress.start()

    def run_started(self, run: str, gpu: int) -> None:
        self.stages[run] = "starting"

    def stage_started(self, run: str, stage: str) -> None:
        self.stages[run] = stage

    def stage_finished(self, run: str, stage: str, collector: str, wall_s: float) -> None:
        self.stages.pop(run, None)
        self.estimate.finish((run, stage), wall_s)
        if left := [stage for _, stage in self.open_stages(run) if stage.startswith("timer")]:
            self.print_done(f"{run}  timed, {format_count(len(left), 'process')} to come  {wall_s:.1f} s")
        elif self.open_stages(run):
            self.print_done(f"{run}  timed  {wall_s:.1f} s")
        else:
            self.unsaid.add(run)

    def run_finished(self, run: str, status: str, detail: dict[str, Any] | None, wall_s: float) -> None:
        self.stages.pop(run, None)
        self.unsaid.discard(run)
        for stage in self.open_stages(run):  # of a run that failed
            del self.estimate.open[stage]
        why = escape(f": {detail.get('phase', '')}: {detail['message']}") if detail else ""
        self.print_done(f"{run}  {MARKS.get(status, f'[red]{status}[/]')}{why}  {wall_s:.1f} s")

    def open_stages(self, run: str) -> list[RunStage]:
        return [stage for stage in self.estimate.open if stage[0] == run]

    def print_done(self, what: str) -> None:
        left = "" if self.console.is_terminal else f"  ({format_clock(self.meter.wall_s)} elapsed, {self.left()})"
        self.console.print(rf"\[{self.num_done}/{self.num_stages}] {what}{left}")

    def mixed_versions(self, runs: int, differences: dict[str, Difference]) -> None:
        kept = (
            f"finished runs that stay, measured with other versions: {runs} ({escape(format_differences(differences))})"
        )
        self.console.print(f"[yellow]a mix[/]: {kept}; every page will say so")

    def samples_left_out(self, run: str, why: str) -> None:
        self.console.print(f"{run or 'all runs'}  without samples of Python: {escape(why)}")

    def run_repeated(self, run: str, why: str) -> None:
        self.stages.pop(run, None)
        self.console.print(f"{run}  [yellow]measured again[/]: {escape(why)}")

    def process_added(self, run: str, others: Sequence[str], why: str) -> None:
        self.console.print(f"{name_group(run, others)}  [yellow]one more process[/]: {escape(why)}")

    def process_left_out(self, run: str, others: Sequence[str], why: str) -> None:
        for each in (run, *others):
            self.stages.pop(each, None)
        self.console.print(f"{name_group(run, others)}  [yellow]without one more process[/]: {escape(why)}")

    def run_damaged(self, run: str, why: str) -> None:
        self.console.print(f"{run}  [red]damaged[/], measured again: {escape(why)}")

    def run_interrupted(self, run: str) -> None:
        self.stages.pop(run, None)
        self.console.print(f"{run}  [red]interrupted[/]: this stage will be measured again when the sweep is resumed")

    def sweep_finished(self, statuses: dict[str, str]) -> None:
        counts = ", ".join(f"{number} {status}" for status, number in Counter(statuses.values()).most_common())
        self.console.print(f"finished: {counts or 'nothing to do'} in {format_clock(self.estimate.elapsed_s)}")

    def check(self, name: str, state: str, found: str, fix: str) -> None:
        line = Text(fit_terminal(f"{state:8} {name}: {found}", sys.stdout, indent=9))
        line.stylize(CHECK_COLOURS[state], 0, len(state))
        self.console.print(line, soft_wrap=True)
        if fix and state != "ok":
            fix = fit_terminal(f"         -> {fix}", sys.stdout, indent=12)
            self.console.print(fix, soft_wrap=True, markup=False)

    def step_started(self, step: str) -> None:
        self.console.print(f"{step} ...")

    def step_finished(self, step: str, wall_s: float) -> None:
        self.console.print(f"{step}  [green]ok[/]  {wall_s:.1f} s")

    def site_built(self, path: str) -> None:
        line = f"the site: {path}"
        if len(line) > self.console.width:
            line = f"the site:\n{path}"  # a path is never broken
        self.console.print(line, markup=False, soft_wrap=True)

    def job_finished(self, exit_code: int, wall_s: float, cost: float | None) -> None:
        self.console.print(f"in all {format_clock(wall_s)}{format_cost(cost)}")

    def close(self) -> None:
        self.progress.stop()
