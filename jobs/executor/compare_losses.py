"""The losses of two runs of a script, compared."""

import math
from collections.abc import Sequence

from profiler_job.jobs.contract.tuning import SAME_LOSS, LossDifference, NoLossCode

NO_SEED_LOSS = 0.05
"""Relative difference of the losses of two equal runs from which on they surely draw other numbers."""
Losses = Sequence[float | str | None]


def compare_losses(
    before: Losses, after: Losses, per_step: float = 1.0, repeated: Losses | None = None
) -> LossDifference:
    """Compare the losses of a script without and with changes. repeated: of a second run without changes. per_step: how
    many losses a step has."""
    difference = find_difference(before, after, per_step)
    if repeated is None or difference.reason is not None:
        return difference
    again = find_difference(before, repeated, per_step).largest
    is_random = again is not None and again > max(SAME_LOSS, min(difference.largest or 0.0, NO_SEED_LOSS))
    reason = NoLossCode.NO_SEED if is_random else None
    return difference.model_copy(update={"repeated": again, "reason": reason})


def sum_losses(losses: Losses, num: int) -> list[float | str | None]:
    """Add up the losses of each step, of which it has `num`: a script divides them by this number, so that a step's
    gradient is that of their sum. None if one of a step is not known."""
    steps = [losses[start : start + num] for start in range(0, len(losses) - num + 1, num)]
    sums = [None if None in step else sum(float(loss or 0.0) for loss in step) for step in steps]
    return [total if total is None or math.isfinite(total) else str(total) for total in sums]


def find_difference(before: Losses, after: Losses, per_step: float) -> LossDifference:
    """Find the first and the largest relative difference of losses; a loss that is not finite is named."""
    pairs = [
        (number, float(first), float(second))
        for number, (first, second) in enumerate(zip(before, after))
        if first is not None and second is not None
    ]
    if not pairs:
        return LossDifference(reason=NoLossCode.NO_LOSS)
    for number, first, second in pairs:
        if not (math.isfinite(first) and math.isfinite(second)):
            reason = NoLossCode.BROKEN if math.isfinite(first) else NoLossCode.NOT_FINITE
            return LossDifference(num=len(pairs), step=int(number / per_step) + 1, reason=reason)
    differences = [(abs(second - first) / (abs(first) or 1.0), number) for number, first, second in pairs]
    largest, number = max(differences, key=lambda difference: difference[0])
    of_first = differences[0][0] if pairs[0][0] == 0 else None  # else it was overwritten, as by a CUDA graph
    return LossDifference(num=len(pairs), first=of_first, largest=largest, step=int(number / per_step) + 1)
