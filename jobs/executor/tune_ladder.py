"""The end of a search by turns: all steps of the ladder and the script without changes take turns in the same rounds.
What was measurably faster by its own pairs, and is not in these rounds, is left out of the result."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from statistics import median
from typing import Protocol

from profiler_job.jobs.contract.changes import LABELS, add_change
from profiler_job.jobs.contract.paired_ratio import FEWEST_PAIRS, compare_rounds, is_decided, is_faster
from profiler_job.jobs.contract.tuning import LadderStep, Method, Outcome, TuneRatio, Tuning
from profiler_job.jobs.executor.tuned_script import OverBudgetError, TunedSearch, VariantFailedError

MOST_ROUNDS = 12
NO_GAIN = "it was faster at first, and not when all steps of the ladder took turns"
Variant = tuple[str, ...]
Times = dict[Variant, list[float]]
"""Steps (ns) of variants in rounds in which all of them took part."""


class LadderSearch(TunedSearch, Protocol):
    """What is needed of the search. compiled_s: the longest that a change took to compile."""

    compiled_s: float
    say: Callable[[str], None]

    @property
    def do_processes_decide(self) -> bool: ...

    def find_precision(self, changes: Variant) -> str: ...

    def take_turns(self, variants: Sequence[Variant], num_rounds: int, left_s: float) -> list[list[float]]: ...

    def update(self) -> None: ...


def measure_ladder(search: LadderSearch) -> None:
    """Let all steps of the ladder take turns, and take back what is not measurably faster than the step before. A
    single step does so, too, if it was believed after its first rounds, and processes of its own do not decide. If they
    have decided, or were begun, before the search was cut off, the ladder stays as it is."""
    tuning = search.tuning
    ladder = tuning.ladder
    if tuning.confirmation.by_turns is not None or tuning.find_pairs() is not None:
        return
    has_turns = all(step.method is Method.TURNS for step in ladder)  # one that was cut off may go on after others
    is_measured = len(ladder) == 1 and (search.do_processes_decide or ladder[0].ratio_before.num_pairs >= FEWEST_PAIRS)
    if not ladder or not has_turns or is_measured:
        return
    search.say("all steps of the ladder take turns")
    times = time_variants(search, [(), *(step.changes for step in ladder)])
    if not times:
        return
    compare_ladder(search.tuning, times)
    doubted = find_doubted(ladder)
    while doubted is not None:
        times = settle_doubt(search, doubted, times)
        compare_ladder(search.tuning, times)
        doubted = find_doubted(ladder)
    search.update()


def time_variants(search: LadderSearch, variants: Sequence[Variant], compiles_s: float = 0.0) -> Times:
    """Time variants by turns until each is decided against the one before, or MOST_ROUNDS are taken; {} if a variant
    fails, or if there is no time for the fewest rounds. compiles_s: that new variants may take to compile."""
    starts_s = compiles_s + (0.0 if search.engine.is_running else search.starts_s + search.compiled_s)
    rounds: list[list[float]] = []
    with suppress(VariantFailedError, OverBudgetError):
        while len(rounds) < MOST_ROUNDS and search.left_s >= search.reserve_s + starts_s:
            rounds += search.take_turns(variants, FEWEST_PAIRS, search.left_s - search.reserve_s)
            starts_s, times = 0.0, list(zip(*rounds))
            if all(is_decided(compare_rounds(before, after)) for before, after in pairwise(times)):
                break
    return {variant: list(times) for variant, times in zip(variants, zip(*rounds))}


def compare_ladder(tuning: Tuning, times: Mapping[Variant, Sequence[float]]) -> None:
    """Take the steps of the ladder and their ratios from rounds in which all took part."""
    before = times[()]
    if tuning.base is not None:
        tuning.base.step_ns = median(before)
    for step in tuning.ladder:
        step.step_ns = median(times[step.changes])
        step.ratio_before = compare_rounds(before, times[step.changes])
        step.ratio_base = compare_rounds(times[()], times[step.changes])
        before = times[step.changes]


def find_doubted(ladder: Sequence[LadderStep]) -> int | None:
    """Find the last step that is not measurably faster than the one before."""
    return next((number for number in reversed(range(len(ladder))) if not is_faster(ladder[number].ratio_before)), None)


def settle_doubt(search: LadderSearch, number: int, times: Times) -> Times:
    """Take back a step of the ladder that is not measurably faster than the one before. If later steps have its change,
    and the winner is faster with it than without, or there is no time to measure that, then it stays a part of the next
    step, which is compared with the one before it. Return the times of all steps of the ladder."""
    ladder, doubted = search.tuning.ladder, search.tuning.ladder[number]
    winner, rest = ladder[-1].changes, leave_out(search, number)
    if not all(step.changes in times for step in rest):
        search.say(f"all steps take turns again, without {LABELS[doubted.change]}, and the last one with it")
        variants = dict.fromkeys([(), *(step.changes for step in rest), winner])
        known = time_variants(search, [*variants], search.compiled_s)
        if not known or is_faster(compare_rounds(known[rest[-1].changes], known[winner])):
            ladder.pop(number)
            return times
        times = known
    ladder[:] = rest
    note_taken_back(search.tuning, Outcome.NOT_FASTER, NO_GAIN, doubted.ratio_before)
    return times


def leave_out(search: LadderSearch, number: int) -> list[LadderStep]:
    """Return the ladder without one of its steps, and without what it added to later ones; what it took the place of is
    in these again."""
    ladder = search.tuning.ladder
    rest = list(ladder[:number])
    for before, step in zip(ladder[number:], ladder[number + 1 :]):
        added = [name for name in step.changes if name not in before.changes]
        changes = reduce(add_change, added, rest[-1].changes if rest else ())
        known = {} if changes == step.changes else {"precision": search.find_precision(changes), "kernels": None}
        rest.append(step.model_copy(update={"changes": changes, **known}))
    return rest


def note_taken_back(tuning: Tuning, outcome: Outcome, message: str, ratio: TuneRatio | None) -> None:
    """Note what became of changes that no step of the ladder has any more. ratio: the latest of the change; None if it
    is not known."""
    left = {name for step in tuning.ladder for name in step.changes}
    for tried in tuning.tried:
        if tried.outcome is Outcome.KEPT and tried.change not in left:
            tried.outcome, tried.message, tried.ratio = outcome, message, ratio
