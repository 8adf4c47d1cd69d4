"""The end of the search of `tune`: the winner and the script without changes in processes of their own, by turns; then
one process of each other step of the ladder, for its losses. Where the patch makes all changes of a step, its process
runs the script with the patch, and nothing follows it: what is stated is what the user will see."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Protocol

from profiler_job.jobs.contract.changes import LABELS
from profiler_job.jobs.contract.paired_ratio import FEWEST_PAIRS, LEAST_GAIN, SPREAD_OF_CPU, SPREAD_OF_GPU
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.tuning import (
    Confirmation,
    LadderStep,
    LossDifference,
    NoLossCode,
    Outcome,
    ProcessPairs,
    TuneRatio,
    Tuning,
    VariantRun,
)
from profiler_job.jobs.executor.compare_losses import compare_losses, sum_losses
from profiler_job.jobs.executor.tune_ladder import note_taken_back
from profiler_job.jobs.executor.tune_processes import ProcessSearch, compare_pairs, measure_pairs
from profiler_job.jobs.executor.tuned_script import OverBudgetError, VariantFailedError

IDLING = 0.15
"""Part of a step that the GPU idles, from which on the CPU limits it."""
FEW_PAIRS = 2
"""Pairs of processes one after another if the GPU limits the step: its times repeat."""
SLOWER = "it was faster by turns in one process, and not in processes of its own"
ALONE = "it could be switched on while the script ran, and in a process of its own it fails"
PATCHED = "it could be switched on while the script ran, and with its patch the script fails"
LARGEST_FIRST_DIFFERENCE = 0.05
"""Relative difference of the loss of the first step, from equal weights and data, beyond which a variant computes
something else. Lower precision makes it differ by less than 1%."""
OTHER = "the loss of its first step differs by {share}, more than {most}"
BROKEN = "its losses are not finite from step {step} on, and without it they are"
NOTHING_TO_COMPARE = (NoLossCode.NO_LOSS, NoLossCode.NO_SEED, NoLossCode.NOT_FINITE, NoLossCode.FAILED)
"""Reasons that hold for all steps of a ladder if they hold for the last one."""


class ConfirmedSearch(ProcessSearch, Protocol):
    """What is needed of the search. facts: of the script, as `jobs.follow.turns` describes it."""

    facts: dict[str, Any]

    @property
    def do_processes_decide(self) -> bool: ...

    def update(self) -> None: ...


def does_idle(kernels: Mapping[str, float] | None, step_ns: float) -> bool:
    """Return whether the GPU waits for the CPU in a step. kernels: None if they are not known."""
    return kernels is not None and kernels["busy"] < (1 - IDLING) * step_ns


def confirm_winner(search: ConfirmedSearch, may_be_bare: bool = True) -> None:
    """Run the winner and the script without changes in processes of their own, and compare losses. These are the result
    if the patch makes the winner, since they are what it gives, or if the CPU limits one of them: what was slowed by
    the profiler in the process of turns stays slow there, by up to 44%. A winner is taken back if it is not faster
    in them, if its first loss is another, or if it alone fails or has losses that are not finite; then the step of the
    ladder before it is confirmed. may_be_bare: whether a patch may be tried."""
    tuning = search.tuning
    if not tuning.ladder:
        return
    winner, is_by_cpu = tuning.ladder[-1], search.do_processes_decide
    patch_digest = write_patch(search, winner.changes) if may_be_bare else ""
    is_bare = bool(patch_digest)
    if tuning.confirmation.is_bare and tuning.confirmation.patch_digest != patch_digest:
        search.say("the patch is another one than the one that was measured")
        forget_patch(tuning)
    with_patch = "the script with the patch" if is_bare else "the winner"
    goes_on = ": those that were measured are kept" if tuning.find_pairs(patch_digest) else ""
    search.say(f"{with_patch} and the script without changes run in processes of their own{goes_on}")
    turned = tuning.confirmation.by_turns or winner.ratio_base
    try:
        num_in_sequence = FEWEST_PAIRS if is_by_cpu else FEW_PAIRS
        pairs = measure_pairs(search, (), winner.changes, num_in_sequence, is_last=True, patch_digest=patch_digest)
    except OverBudgetError:
        if is_by_cpu:
            widen(tuning, turned)
        return
    except VariantFailedError as error:
        search.say(str(error))
        if not error.is_of_change and is_bare:
            return confirm_winner(search, may_be_bare=False)
        if not error.is_of_change:
            winner.losses = LossDifference(reason=NoLossCode.FAILED)
            return
        outcome = Outcome.OUT_OF_MEMORY if error.is_oom else Outcome.FAILED
        drop_winner(tuning, outcome, f"{PATCHED if is_bare else ALONE}: {error}")
        return confirm_winner(search)
    note_pairs(tuning, pairs)
    ratio = compare_pairs(pairs, SPREAD_OF_CPU if is_by_cpu else SPREAD_OF_GPU)
    are_enough = pairs.num_rounds or ratio.num_pairs >= FEW_PAIRS
    is_result = turned is None or ((is_by_cpu or is_bare) and are_enough)
    if winner.losses.reason is NoLossCode.BROKEN:
        drop_winner(tuning, Outcome.FAILED, BROKEN.format(step=winner.losses.step))
        confirm_winner(search)
    elif winner.losses.reason is None and (first := winner.losses.first or 0.0) > LARGEST_FIRST_DIFFERENCE:
        shares = {"share": format_share(first), "most": format_share(LARGEST_FIRST_DIFFERENCE)}
        drop_winner(tuning, Outcome.BOUND, OTHER.format(**shares))
        confirm_winner(search)
    elif (ratio.num_pairs >= FEWEST_PAIRS and ratio.high < 1.0) or (is_result and ratio.times_as_fast < LEAST_GAIN):
        drop_winner(tuning, Outcome.NOT_FASTER, SLOWER)
        confirm_winner(search)
    elif is_result:
        take_pairs(tuning, ratio, turned)
    elif is_by_cpu:
        widen(tuning, turned)
    search.update()


def write_patch(search: ConfirmedSearch, changes: Sequence[str]) -> str:
    """Return the digest of the patch for changes if processes can run the script with it, and nothing that follows it:
    an optimizer ends its steps, and nothing is left to write. "" otherwise."""
    return search.engine.write(changes) if search.facts.get("ends_with_optimizer") else ""


def forget_patch(tuning: Tuning) -> None:
    """Leave what turns gave of the winner, since its processes ran another patch than the one that there is now."""
    confirmed, winner = tuning.confirmation, tuning.ladder[-1]
    if confirmed.num_rounds or len(confirmed.winner_ns) >= FEW_PAIRS:  # its ratio is theirs
        winner.ratio_base = confirmed.by_turns
        if len(tuning.ladder) == 1 and confirmed.by_turns is not None:
            winner.ratio_before = confirmed.by_turns
        set_steps(tuning)
    tuning.confirmation = Confirmation()
    for step in tuning.ladder:
        step.losses = LossDifference(reason=NoLossCode.NOT_MEASURED)


def note_pairs(tuning: Tuning, pairs: ProcessPairs) -> None:
    """Note the steps, memory and losses of processes of the script without changes and of the winner."""
    winner = tuning.ladder[-1]
    tuning.confirmation = Confirmation(
        base_ns=tuple(run.step_ns for run in pairs.before),
        winner_ns=tuple(run.step_ns for run in pairs.after),
        num_rounds=pairs.num_rounds,
        is_bare=pairs.is_bare,
        patch_digest=pairs.patch_digest,
        base_peak_bytes=max(run.peak_bytes for run in pairs.before) or None,
        winner_peak_bytes=max(run.peak_bytes for run in pairs.after) or None,
    )
    winner.losses = compare_runs(pairs.before, pairs.after[-1])
    winner.peak_bytes = tuning.confirmation.winner_peak_bytes
    if tuning.base is not None:
        tuning.base.peak_bytes = tuning.confirmation.base_peak_bytes


def compare_runs(before: Sequence[VariantRun], after: VariantRun) -> LossDifference:
    """Compare the losses of a process of a variant with the losses of processes without changes. The second of these
    shows by how much equal processes differ."""
    runs = [before[0], after, *before[1:2]]
    losses, per_step = [run.losses for run in runs], after.num_losses_per_step
    if before[0].num_losses_per_step != per_step:  # of other micro-batches
        losses, per_step = [sum_losses(run.losses, round(run.num_losses_per_step)) for run in runs], 1.0
    return compare_losses(losses[0], losses[1], per_step, *losses[2:])


def compare_steps(search: ConfirmedSearch) -> None:
    """Compare the losses of the steps of the ladder before the winner: of a process that each had for another reason,
    or else of one that starts now, while there is time. What is not compared then says so."""
    steps, winner = search.tuning.ladder[:-1], search.tuning.winner
    if winner and winner.losses.reason in NOTHING_TO_COMPARE:
        for step in steps:
            step.losses = LossDifference(reason=winner.losses.reason)
    elif before := search.runs.get(()):
        for step in [step for step in steps if step.losses.reason is NoLossCode.NOT_MEASURED]:
            if runs := search.runs.get(step.changes) or run_alone(search, step):
                step.losses = compare_runs(before, runs[-1])
                step.peak_bytes = max(run.peak_bytes for run in runs) or None
                search.update()
    search.update()


def run_alone(search: ConfirmedSearch, step: LadderStep) -> Sequence[VariantRun]:
    """Run a step of the ladder in a process of its own; none if there is no time for it, or if it fails."""
    if search.left_s < search.starts_s:
        return ()
    search.say(f"losses of the ladder's step with {LABELS[step.change]}, in a process of its own")
    try:
        is_bare = search.tuning.confirmation.is_bare and bool(write_patch(search, step.changes))
        return [search.engine.run(step.changes, search.left_s, is_bare)]
    except OverBudgetError:
        return ()
    except VariantFailedError as error:
        search.say(str(error))
        step.losses = LossDifference(reason=NoLossCode.FAILED)
        return ()


def widen(tuning: Tuning, turned: TuneRatio | None) -> None:
    """Make the interval of the winner's ratio by turns as wide as processes differ whose step the CPU limits, once."""
    if turned is not None and turned.num_pairs >= FEWEST_PAIRS and not turned.widened_by:
        more = 1.0 + SPREAD_OF_CPU
        ends = {"low": turned.low / more, "high": turned.high * more, "widened_by": SPREAD_OF_CPU}
        tuning.ladder[-1].ratio_base = turned.model_copy(update=ends)


def take_pairs(tuning: Tuning, ratio: TuneRatio, turned: TuneRatio | None) -> None:
    """Take the winner's ratio from the pairs of processes, and its step. turned: its ratio by turns; None if it is not
    known. Steps before the last keep their ratios."""
    winner, base = tuning.ladder[-1], tuning.base
    tuning.confirmation.by_turns, winner.ratio_base = turned, ratio
    if len(tuning.ladder) == 1:
        winner.ratio_before = ratio
    if base is not None:
        base.step_ns = median(tuning.confirmation.base_ns)
        set_steps(tuning)


def set_steps(tuning: Tuning) -> None:
    """Make the steps of the ladder those that their ratios give of the script without changes."""
    for step in tuning.ladder:
        if tuning.base is not None and step.ratio_base is not None:
            step.step_ns = tuning.base.step_ns / step.ratio_base.times_as_fast


def drop_winner(tuning: Tuning, outcome: Outcome, message: str) -> None:
    """Take the last step back. outcome, message: of its change."""
    tuning.ladder.pop()
    note_taken_back(tuning, outcome, message, None)
    tuning.confirmation = Confirmation()
