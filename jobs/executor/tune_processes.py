"""Processes of two variants of a script: for what cannot be switched while it runs, and to confirm what can. They take
turns where several fit (see `gated_processes`), or else run one after another."""

from collections.abc import Callable, Sequence
from typing import Protocol

from profiler_job.jobs.contract.paired_ratio import compare_rounds, compare_variant_processes
from profiler_job.jobs.contract.tuning import ProcessPairs, TuneRatio, VariantRun
from profiler_job.jobs.executor.gated_processes import END_S
from profiler_job.jobs.executor.machine import count_cores
from profiler_job.jobs.executor.tuned_script import (
    GatePlan,
    OverBudgetError,
    TunedSearch,
    VariantFailedError,
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
    room: how many processes the machine has room for. waits_for_batches: whether steps may.
    runs: the latest processes of each variant that had some."""

    runs: dict[tuple[str, ...], Sequence[VariantRun]]
    say: Callable[[str], None]

    @property
    def compiles_s(self) -> float: ...

    @property
    def room(self) -> int: ...

    @property
    def waits_for_batches(self) -> bool: ...

    def update(self) -> None: ...


def compare_pairs(pairs: ProcessPairs, spread: float) -> TuneRatio:
    """Return the ratio of two variants. spread: by how much processes of one variant differ, as far as these are too
    few to show it."""
    if pairs.num_rounds:
        before, after = ([run.times_ns for run in runs] for runs in (pairs.before, pairs.after))
        return compare_variant_processes(before, after, spread)
    return compare_rounds([run.step_ns for run in pairs.before], [run.step_ns for run in pairs.after], spread)


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
    patch_digest: str = "",
) -> ProcessPairs:
    """Measure two variants in processes of their own. num_in_sequence: pairs if they run one after another. reserve_s:
    time of the search that is kept. stops_if_slower: whether the first pair is enough if the second variant is slower
    in it. is_last: whether they confirm the winner; then what was measured before the search was cut off is not
    measured again, unless there is time now for more processes that take turns, and a pair that may take too long is
    tried, as nothing else needs the time. patch_digest: as of `Engine.write` if they run the patch and nothing follows
    them, "" otherwise; then batches that loaders fetch while a process waits would count, so that none waits. Raises
    OverBudgetError if there is no time for a pair, and VariantFailedError."""
    is_bare = bool(patch_digest)
    none = ProcessPairs(changes=after, before=[], after=[], is_bare=is_bare, patch_digest=patch_digest)
    made = (search.tuning.find_pairs(patch_digest) if is_last else None) or none
    if made.before and not made.num_rounds:
        return run_in_sequence(search, before, made, num_in_sequence, reserve_s, stops_if_slower, is_last)
    most = 0 if is_bare and search.waits_for_batches else count_most_pairs(search)
    left_s = search.left_s - reserve_s
    fitting = [number for number in range(most, 0, -1) if estimate_s(search, number) <= left_s]
    made.is_cut_off &= most > len(made.after)
    are_enough = made.num_rounds >= FEWEST_ROUNDS  # more rounds of these processes say little more of others
    if are_enough and not (made.is_cut_off and fitting and fitting[0] > len(made.after)):
        return take_runs(search, before, made)
    if most:
        if not fitting and is_last and left_s > search.starts_s + FEWEST_ROUNDS * plan_rounds(search, 1)[1] + END_S:
            fitting = [1]
        if not fitting:
            raise OverBudgetError("too little time was left for processes of both")
        none.is_cut_off = fitting[0] < most
        num_rounds, round_s = plan_rounds(search, fitting[0])
        hangs_s = HANGS * estimate_start_s(search, fitting[0]) + HANGS_S
        plan = GatePlan(
            num_each=fitting[0],
            num_rounds=num_rounds,
            turn_s=TURN_S,
            ready_s=min(hangs_s, left_s - FEWEST_ROUNDS * round_s - END_S),
            seed=search.tuning.seed,
            is_bare=is_bare,
        )

        def note(runs: list[list[VariantRun]]) -> None:
            if is_last and len(runs[0][0].times_ns) >= (FEWEST_ROUNDS if are_enough else 1):
                search.tuning.pairs = build_pairs(none, runs)
                search.update()

        try:
            pairs = build_pairs(none, search.engine.take_turns((before, after), plan, left_s, note))
            return take_runs(search, before, made if are_enough and pairs.num_rounds < FEWEST_ROUNDS else pairs)
        except OverBudgetError:
            if not are_enough:
                raise
            return take_runs(search, before, made)
        except VariantFailedError as error:
            if are_enough:  # more of them fail: these are all that there can be
                made.is_cut_off = False
                return take_runs(search, before, made)
            search.say(f"{error}; processes run one after another")
            if is_last:  # a search that is cut off now would take their rounds
                search.tuning.pairs = None
                search.update()
    return run_in_sequence(search, before, none, num_in_sequence, reserve_s, stops_if_slower, is_last)


def build_pairs(none: ProcessPairs, runs: Sequence[list[VariantRun]]) -> ProcessPairs:
    """Return the pairs of processes of two variants that took turns. none: those before there were any."""
    first, second = runs
    num = len(first[0].times_ns)
    is_cut_off = none.is_cut_off or num < FEWEST_ROUNDS
    return none.model_copy(update={"before": first, "after": second, "num_rounds": num, "is_cut_off": is_cut_off})


def take_runs(search: ProcessSearch, before: tuple[str, ...], pairs: ProcessPairs) -> ProcessPairs:
    """Note pairs of processes as the latest of their variants."""
    search.runs |= {before: pairs.before, pairs.changes: pairs.after}
    return pairs


def run_in_sequence(
    search: ProcessSearch,
    before: tuple[str, ...],
    pairs: ProcessPairs,
    num_pairs: int,
    reserve_s: float,
    stops_if_slower: bool,
    is_last: bool,
) -> ProcessPairs:
    """Run processes of two variants one after another, while there is time for the next pair (see `measure_pairs`).
    pairs: those that were measured until now."""
    changes, is_bare = pairs.changes, pairs.is_bare
    while len(pairs.after) < num_pairs and search.left_s - reserve_s >= 2 * search.starts_s:
        try:
            first = search.engine.run(before, search.left_s - reserve_s, is_bare)
            second = run_changed(search, changes, reserve_s, is_bare)
        except OverBudgetError:
            break
        is_cut_off = len(pairs.after) + 1 < num_pairs
        pairs = pairs.model_copy(
            update={"before": [*pairs.before, first], "after": [*pairs.after, second], "is_cut_off": is_cut_off}
        )
        if is_last:
            search.tuning.pairs = pairs
            search.update()
        if stops_if_slower and first.step_ns < second.step_ns:
            break
    if not pairs.after:
        raise OverBudgetError("too little time was left for processes of both")
    return take_runs(search, before, pairs)


def run_changed(search: ProcessSearch, changes: tuple[str, ...], reserve_s: float, is_bare: bool) -> VariantRun:
    """Run the second variant of a pair, whose first did not fail (see `run_in_sequence`)."""
    try:
        return search.engine.run(changes, search.left_s - reserve_s, is_bare)
    except VariantFailedError as error:
        error.is_of_change = True
        raise
