"""The end of the search of `tune`: the winner and the script without changes in processes of their own, by turns."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Protocol

from profiler_job.jobs.contract.paired_ratio import FEWEST_PAIRS, SPREAD_OF_CPU, compare_rounds
from profiler_job.jobs.contract.tuning import Confirmation, LossDifference, NoLossCode, Outcome, TuneRatio, Tuning
from profiler_job.jobs.executor.compare_losses import compare_losses
from profiler_job.jobs.executor.tuned_script import Engine, OverBudgetError, VariantFailedError, VariantRun

IDLING = 0.15
"""Part of a step that the GPU idles, from which on the CPU limits it."""
FEW_PAIRS = 2
"""Pairs of processes if the GPU limits the step: its times repeat."""
SLOWER = "it was faster by turns in one process, and slower in processes of its own"


class ConfirmedSearch(Protocol):
    """What is needed of the search."""

    engine: Engine
    tuning: Tuning
    say: Callable[[str], None]

    @property
    def left_s(self) -> float: ...

    @property
    def starts_s(self) -> float: ...

    @property
    def is_cpu_limited(self) -> bool: ...

    def update(self) -> None: ...


def does_idle(kernels: Mapping[str, float] | None, step_ns: float) -> bool:
    """Return whether the GPU waits for the CPU in a step. kernels: None if they are not known."""
    return kernels is not None and kernels["busy"] < (1 - IDLING) * step_ns


def confirm_winner(search: ConfirmedSearch) -> None:
    """Run the winner and the script without changes in processes of their own, and compare losses. If the CPU limits
    one of them, several pairs of processes are the result: what was slowed by the profiler in the process of turns
    stays slow there, by up to 44%."""
    tuning = search.tuning
    if not tuning.ladder:
        return
    search.say("the winner and the script without changes run in processes of their own")
    base = tuning.base
    is_by_cpu = search.is_cpu_limited or (base is not None and does_idle(base.kernels, base.step_ns))
    turned = tuning.confirmation.by_turns or tuning.ladder[-1].ratio_base
    run_pairs(search, FEWEST_PAIRS if is_by_cpu else FEW_PAIRS)
    if is_by_cpu:
        take_pairs(tuning, turned)
        search.update()


def run_pairs(search: ConfirmedSearch, num_pairs: int) -> None:
    """Let processes of both alternate while there is time, and note their steps, memory and losses."""
    tuning, confirmation = search.tuning, Confirmation()
    bases: list[VariantRun] = []
    winner = tuning.ladder[-1]
    for changes in ((), winner.changes) * num_pairs:
        if search.left_s < search.starts_s:
            break
        try:
            run = search.engine.run(changes, search.left_s)
        except OverBudgetError:
            break
        except VariantFailedError as error:
            search.say(str(error))
            winner.losses = LossDifference(reason=NoLossCode.FAILED)
            break
        if not changes:
            bases.append(run)
            confirmation.base_ns += (run.step_ns,)
            confirmation.base_peak_bytes = run.peak_bytes or None
        else:
            confirmation.winner_ns += (run.step_ns,)
            confirmation.winner_peak_bytes = run.peak_bytes or None
            last = run
        if confirmation.winner_ns:
            again = bases[1].losses if len(bases) > 1 else None
            winner.losses = compare_losses(bases[0].losses, last.losses, last.num_losses_per_step, again)
        tuning.confirmation = confirmation
        if tuning.base is not None:
            tuning.base.peak_bytes = confirmation.base_peak_bytes
        winner.peak_bytes = confirmation.winner_peak_bytes
        search.update()


def take_pairs(tuning: Tuning, turned: TuneRatio | None) -> None:
    """Take the winner's ratio from the pairs of processes, and its step. turned: its ratio by turns. With fewer than
    two pairs its interval is made as wide as fresh processes differ. Steps before the last keep their ratios."""
    confirmation, base, winner = tuning.confirmation, tuning.base, tuning.ladder[-1]
    num_pairs = len(confirmation.winner_ns)
    if num_pairs < FEW_PAIRS or base is None:
        if turned is not None and turned.num_pairs >= FEWEST_PAIRS:
            more = 1.0 + SPREAD_OF_CPU
            ends = {"low": turned.low / more, "high": turned.high * more}
            winner.ratio_base = turned.model_copy(update=ends)
        return
    pairs = [*zip(confirmation.base_ns, confirmation.winner_ns)]
    ratio = compare_rounds([first for first, _ in pairs], [second for _, second in pairs], SPREAD_OF_CPU)
    if num_pairs >= FEWEST_PAIRS and ratio.high < 1.0:
        drop_winner(tuning)
        return
    confirmation.by_turns, winner.ratio_base = turned, ratio
    if len(tuning.ladder) == 1:
        winner.ratio_before = ratio
    base.step_ns = median(confirmation.base_ns)
    for step in tuning.ladder:
        if step.ratio_base is not None:
            step.step_ns = base.step_ns / step.ratio_base.times_as_fast


def drop_winner(tuning: Tuning) -> None:
    """Take the last step back, which is slower than the script without changes."""
    tuning.ladder.pop()
    kept = tuning.ladder[-1].changes if tuning.ladder else ()
    for tried in tuning.tried:
        if tried.outcome is Outcome.KEPT and tried.change not in kept:
            tried.outcome, tried.message = Outcome.NOT_FASTER, SLOWER
    tuning.confirmation = Confirmation()
