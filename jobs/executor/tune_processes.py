"""Processes of two variants of a script: for what cannot be switched while it runs, and to confirm what can. They take
turns where several fit (see `gated_processes`), or else run one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from profiler_job.jobs.contract.paired_ratio import compare_rounds, compare_variant_processes
from profiler_job.jobs.contract.tuning import TuneRatio
from profiler_job.jobs.executor.gated_processes import END_S
from profiler_job.jobs.executor.machine import count_cores
from profiler_job.jobs.executor.tuned_script import (
    GatePlan,
    OverBudgetError,
    TunedSearch,
    VariantFailedError,
    VariantRun,
)

MOST_PAIRS = 3
"""Processes of each variant that take turns, at most."""
TURN_S = 0.2
FEWEST_ROUNDS, MOST_ROUNDS = 2, 10
ROUNDS_S = 20.0
"""Time for all rounds, as far as the fewest fit."""
LONGER = 1.5
"""By how much processes that start together take longer to start than one."""
WARM = 0.6
"""Part of the time of a start, or of a compilation, that the same one takes when what it needs is in a cache."""
HANGS, HANGS_S = 3.0, 30.0
"""A process hangs that has not warmed up after so many times what is expected, and so much more."""


class ProcessSearch(TunedSearch, Protocol):
    """What is needed of the search. compiles_s: time that a process of its variants compiles, less than the first time.
    room: how many processes the machine has room for. runs: the latest processes of each variant that had some."""

    runs: dict[tuple[str, ...], Sequence[VariantRun]]
    say: Callable[[str], None]

    @property
    def compiles_s(self) -> float: ...

    @property
    def room(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ProcessPairs:
    """Processes of two variants, as many of each. num_rounds: rounds of turns that they took; 0 if they ran one after
    another."""

    before: Sequence[VariantRun]
    after: Sequence[VariantRun]
    num_rounds: int = 0

    def compare(self, spread: float) -> TuneRatio:
        """Return the ratio of the variants. spread: by how much processes of one variant differ, as far as these are
        too few to show it."""
        if self.num_rounds:
            before, after = ([run.times_ns for run in runs] for runs in (self.before, self.after))
            return compare_variant_processes(before, after, spread)
        return compare_rounds([run.step_ns for run in self.before], [run.step_ns for run in self.after], spread)


def estimate_s(search: ProcessSearch, num_pairs: int) -> float:
    """Estimate the time in seconds that pairs of processes take. num_pairs: 0 for one that runs one after another."""
    if not num_pairs:
        return 2.2 * search.starts_s + search.compiles_s
    num_rounds, round_s = plan_rounds(search, num_pairs)
    return estimate_start_s(search, num_pairs) + num_rounds * round_s + END_S


def estimate_start_s(search: ProcessSearch, num_pairs: int) -> float:
    """Estimate the time in seconds after which processes that start together have warmed up."""
    share = max(1.0, 2 * num_pairs / count_cores())
    return share * (LONGER * search.starts_s + search.compiles_s)


def plan_rounds(search: ProcessSearch, num_pairs: int) -> tuple[int, float]:
    """Return how many rounds pairs of processes take, and the time of one in seconds."""
    step_s = search.tuning.base.step_ns / 1e9 if search.tuning.base else 0.0
    round_s = 2 * num_pairs * (max(TURN_S, 2 * step_s) + step_s)
    return min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(ROUNDS_S / round_s))), round_s


def count_most_pairs(search: ProcessSearch) -> int:
    """Count the pairs of processes that there is room for."""
    return min(MOST_PAIRS, search.room // 2)


def measure_pairs(
    search: ProcessSearch,
    before: tuple[str, ...],
    after: tuple[str, ...],
    num_in_sequence: int,
    reserve_s: float = 0.0,
    stops_if_slower: bool = False,
    is_last: bool = False,
) -> ProcessPairs:
    """Measure two variants in processes of their own. num_in_sequence: pairs if they run one after another. reserve_s:
    time of the search that is kept. stops_if_slower: whether the first pair is enough if the second variant is slower
    in it. is_last: whether nothing else needs the time; then a pair that may take too long is tried. Raises
    OverBudgetError if there is no time for a pair, and VariantFailedError."""
    most = count_most_pairs(search)
    left_s = search.left_s - reserve_s
    if most:
        fitting = [number for number in range(most, 0, -1) if estimate_s(search, number) <= left_s]
        if not fitting and is_last and left_s > search.starts_s + FEWEST_ROUNDS * plan_rounds(search, 1)[1] + END_S:
            fitting = [1]
        if not fitting:
            raise OverBudgetError("too little time was left for processes of both")
        num_rounds, round_s = plan_rounds(search, fitting[0])
        hangs_s = HANGS * estimate_start_s(search, fitting[0]) + HANGS_S
        plan = GatePlan(
            num_each=fitting[0],
            num_rounds=num_rounds,
            turn_s=TURN_S,
            ready_s=min(hangs_s, left_s - FEWEST_ROUNDS * round_s - END_S),
            seed=search.tuning.seed,
        )
        try:
            first, second = search.engine.take_turns((before, after), plan, left_s)
            search.runs |= {before: first, after: second}
            return ProcessPairs(before=first, after=second, num_rounds=len(first[0].times_ns))
        except VariantFailedError as error:
            search.say(f"{error}; processes run one after another")
    return run_in_sequence(search, before, after, num_in_sequence, reserve_s, stops_if_slower)


def run_in_sequence(
    search: ProcessSearch,
    before: tuple[str, ...],
    after: tuple[str, ...],
    num_pairs: int,
    reserve_s: float,
    stops_if_slower: bool,
) -> ProcessPairs:
    """Run processes of two variants one after another, while there is time for the next pair (see `measure_pairs`)."""
    runs: tuple[list[VariantRun], list[VariantRun]] = ([], [])
    while len(runs[1]) < num_pairs and search.left_s - reserve_s >= 2 * search.starts_s:
        try:
            pair = [search.engine.run(before, search.left_s - reserve_s)]
            pair.append(run_changed(search, after, reserve_s))
        except OverBudgetError:
            break
        for run, of_variant in zip(pair, runs):
            of_variant.append(run)
        if stops_if_slower and pair[0].step_ns < pair[1].step_ns:
            break
    if not runs[1]:
        raise OverBudgetError("too little time was left for processes of both")
    search.runs |= {before: runs[0], after: runs[1]}
    return ProcessPairs(before=runs[0], after=runs[1])


def run_changed(search: ProcessSearch, changes: tuple[str, ...], reserve_s: float) -> VariantRun:
    """Run the second variant of a pair, whose first did not fail (see `run_in_sequence`)."""
    try:
        return search.engine.run(changes, search.left_s - reserve_s)
    except VariantFailedError as error:
        error.is_of_change = True
        raise
