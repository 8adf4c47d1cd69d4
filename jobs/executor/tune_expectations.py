"""What `tune` expects of changes: the sum of the parts of a step, each measured alone. For what needs other code it is
all that can be told."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from profiler_job.jobs.contract.changes import (
    FEWER_ACCUMULATIONS,
    FUSED_ATTENTION,
    FUSED_LOSS,
    LARGER_BATCH,
    PADDING,
    add_change,
)
from profiler_job.jobs.contract.tuning import ExpectedRatio, NoPartsCode, Outcome, Tried
from profiler_job.jobs.executor.changed_calls import CHANGED, TWICE
from profiler_job.jobs.executor.larger_micro_batches import FILLED
from profiler_job.jobs.executor.predicted_steps import Part, StepParts
from profiler_job.jobs.executor.script import find_input
from profiler_job.jobs.executor.tune_bounds import LEAST_SAVING
from profiler_job.jobs.executor.tuned_script import OverBudgetError, TunedSearch, VariantFailedError

CODE_CHANGES = (FUSED_LOSS, LARGER_BATCH)
"""Changes that no script can be given from outside, and whose parts can be measured."""
PER_SAMPLE = "for as many samples"
TOO_LARGE = "for as many samples, if twice the memory fits"
BY_HAND = (FUSED_ATTENTION, PADDING)
"""Changes for which a script may need other code."""


class ExpectingSearch(TunedSearch, Protocol):
    """What is needed of the search. parts: None before and after they can be measured. expected: of what is measured
    after that."""

    facts: dict[str, Any]
    shares: dict[str, Any]
    parts: StepParts | None
    expected: dict[str, ExpectedRatio]
    is_by_processes: bool

    @property
    def current(self) -> tuple[str, ...]: ...

    @property
    def is_cpu_limited(self) -> bool: ...

    def ask(self, kind: str, left_s: float | None = None, **request: Any) -> Any: ...


def measure_parts(search: ExpectingSearch) -> None:
    """Measure the parts of a step without changes, each alone."""
    tuning = search.tuning
    tuning.no_parts = find_no_parts(search)
    if tuning.no_parts is not None:
        return

    def time_parts(parts: Sequence[Part]) -> list[Any]:
        """Return the times of parts; of those that end the script, none."""
        try:
            times: list[Any] = search.ask("parts", parts=parts)
        except VariantFailedError:
            return [None] * len(parts)
        return times

    with suppress(VariantFailedError):  # then only bounds are known
        shares = search.ask("profile", variant=[]) if search.current else search.shares
        shape = find_input({"steps": [], **search.facts})["shape"]
        batch = {"rows": shape[0] if shape else None, "factor": getattr(tuning.accumulation, "factor", TWICE)}
        parts = StepParts(search.ask("calls") | batch, shares, time_parts)
        search.parts = parts if parts.is_measured else None
    tuning.no_parts = None if search.parts else NoPartsCode.NOT_MEASURED


def find_no_parts(search: ExpectingSearch) -> NoPartsCode | None:
    """Return why parts of a step are not measured; None if they can be."""
    if search.is_by_processes:
        return NoPartsCode.SEVERAL_RANKS
    if search.facts.get("compiled"):
        return NoPartsCode.COMPILED
    return None if search.shares["kernels"] else NoPartsCode.NO_TRACE


def expect(search: ExpectingSearch, name: str, known: tuple[str, ...] | None = None) -> ExpectedRatio | None:
    """Return what can be expected of a change on top of those until now, or of those that are given; None if its parts
    are not known. While the CPU limits the step, it is the ratio of the kernels' time if that is larger: other changes
    may set it free."""
    if search.parts is None:
        return search.expected.get(name)
    known = search.current if known is None else known
    before = search.parts.predict(known)
    after = search.parts.predict(add_change(known, name), known)
    if before is None or after is None:
        return None
    ratio = before.gpu_ns / after.gpu_ns
    if search.is_cpu_limited and ratio > before.step_ns / after.step_ns:
        width = (after.high_ns - after.low_ns) / after.step_ns / 2
        ends = {"low": ratio / (1 + width), "high": ratio * (1 + width)}
        return ExpectedRatio(times_as_fast=ratio, **ends, is_of_kernels=True)
    return ExpectedRatio(
        times_as_fast=before.step_ns / after.step_ns,
        low=before.step_ns / after.high_ns,
        high=before.step_ns / after.low_ns,
    )


def expect_of_code(search: ExpectingSearch) -> None:
    """Note what can be expected of changes that need other code, which no script can be given, or not this one; and of
    larger micro-batches, which are measured later. They are on top of the changes that were kept, as far as the calls
    of a step with these are known."""
    if search.parts is None or not search.engine.is_running or search.left_s < search.reserve_s:
        return
    tuning = search.tuning
    known = tuple(name for name in search.current if name in CHANGED)
    tuning.tried = [tried for tried in tuning.tried if tried.change not in CODE_CHANGES]
    with suppress(OverBudgetError):
        if known == search.current and tuning.accumulation and (fewer := expect(search, FEWER_ACCUMULATIONS)):
            search.expected[FEWER_ACCUMULATIONS] = fewer
        for tried in [each for each in tuning.tried if each.outcome is Outcome.NOT_POSSIBLE]:
            expected = expect(search, tried.change, known) if tried.change in BY_HAND else None
            if expected and expected.times_as_fast > 1 + LEAST_SAVING:
                note_expected(tried, known, expected)
        for name in CODE_CHANGES if tuning.asked is None else ():
            if expected := expect(search, name, known):
                tried = Tried(change=name, outcome=Outcome.NOT_POSSIBLE)
                if name == LARGER_BATCH:
                    tried.message = PER_SAMPLE if fits_twice(search.facts) else TOO_LARGE
                note_expected(tried, known, expected)
                if (tried.could_save or 0.0) < LEAST_SAVING:
                    tried.outcome = Outcome.SKIPPED_BELOW_1_PERCENT
                tuning.tried.append(tried)


def note_expected(tried: Tried, known: tuple[str, ...], expected: ExpectedRatio) -> None:
    tried.on_top_of, tried.expected, tried.could_save = known, expected, max(0.0, 1 - 1 / expected.high)


def fits_twice(facts: Mapping[str, Any]) -> bool:
    """Return whether twice the memory surely fits into that of the GPU; what is not known does."""
    peak, memory = facts.get("peak_allocated_bytes", 0), facts.get("gpu_memory_bytes", 0)
    return TWICE * peak <= FILLED * memory or not memory
