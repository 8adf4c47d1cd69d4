"""What a result of `tune` means: how much faster, what to write, whether the losses are the same; as sentences and as
tables that terminal, JSON, Markdown and pages show."""

import shlex
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.changes import load_change, write_code
from profiler_job.analysis.insight.other_gpus import estimate_on, list_others
from profiler_job.analysis.metrics.utilisation import measure_mfu
from profiler_job.analysis.reference import gpus
from profiler_job.analysis.reference.gpu_prices import GpuPrice, find_price
from profiler_job.jobs.contract.changes import CHANGES, COMPILE, COMPILE_BLOCKS, CUDA_GRAPHS, LABELS
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import (
    format_quantities,
    format_quantity,
    format_share,
    format_size,
    format_time,
)
from profiler_job.jobs.contract.tuning import (
    SAME_LOSS,
    ExpectedRatio,
    LadderStep,
    LossDifference,
    Method,
    NoLossCode,
    NoPartsCode,
    Outcome,
    Tried,
    TuneRatio,
    Tuning,
)
from profiler_job.jobs.contract.words import format_count

AS_IT_IS = "as it is"
COMPILING = {COMPILE, COMPILE_BLOCKS, CUDA_GRAPHS}
LEAST_PERCENT = 0.001
"""Differences of losses below it are not told apart."""
LEAST_EXPECTED = 1.05
"""What other code could give is shown from so many times as fast on, or if its interval does not hold 1: less is within
the error of parts."""
DISAGREES = 0.1
"""Relative difference of ratios above which fresh processes do not confirm a result. Nor do they if they are slower."""
STEP_COLUMNS = (
    *("change", "label", "step_ns", "times_as_fast", "low_times_as_fast", "high_times_as_fast"),
    *("before_times_as_fast", "before_low_times_as_fast", "before_high_times_as_fast"),
    *("expected_times_as_fast", "expected_low_times_as_fast", "expected_high_times_as_fast"),
    *("tokens_per_s", "mfu_share", "precision", "peak_bytes", "usd_per_million"),
    *("loss_share", "num_losses", "losses", "method"),
)
TRIED_COLUMNS = (
    *("change", "label", "outcome", "verdict", "times_as_fast", "low_times_as_fast", "high_times_as_fast"),
    *("expected_times_as_fast", "expected_low_times_as_fast", "expected_high_times_as_fast"),
    *("could_save_share", "peak_bytes", "on_top_of", "why"),
)
VERDICTS = {
    Outcome.BOUND: "not kept: the script would do something else",
    Outcome.FAILED: "failed",
    Outcome.OUT_OF_MEMORY: "out of memory",
    Outcome.NOT_POSSIBLE: "not possible",
    Outcome.SKIPPED_BELOW_1_PERCENT: "could save less than 1%",
    Outcome.NOT_REACHED: "not reached",
}
NO_LOSSES = {
    NoLossCode.NOT_MEASURED: "not compared: the budget ended before",
    NoLossCode.NO_LOSS: "not compared: no call of backward showed a loss",
    NoLossCode.NO_SEED: "not comparable: two runs without any change differ as much; set a seed",
    NoLossCode.NOT_FINITE: "not finite without changes either",
    NoLossCode.BROKEN: "not finite, and without changes they are",
    NoLossCode.FAILED: "not compared: the script failed in a process of its own",
}
LOSS_WORDS = {
    NoLossCode.NO_SEED: "not comparable",
    NoLossCode.NOT_FINITE: "not finite",
    NoLossCode.BROKEN: "not finite",
    NoLossCode.FAILED: "fails alone",
}
"""Of reasons with other words in a table than `not compared`."""
NOT_TRIED = (Outcome.NOT_REACHED, Outcome.NOT_POSSIBLE, Outcome.SKIPPED_BELOW_1_PERCENT)
NO_PARTS = {
    NoPartsCode.COMPILED: "the script compiles its model, so that a step is not the sum of operators measured alone",
    NoPartsCode.SEVERAL_RANKS: "several processes train together, and operators were not measured alone",
    NoPartsCode.NO_TRACE: "the kernels of a step are not known",
    NoPartsCode.NOT_MEASURED: "the operators of a step could not be measured alone",
}


@dataclass(frozen=True, kw_only=True)
class TunedLadder:
    """A result of `tune` and what it means. price: of its GPU; None if none is known. headline: how much faster; facts:
    tokens, memory and prices; losses: one sentence; check: which processes confirm it; apply: the command that writes
    the patch, "" if there is none to write; code: what to write, a line each; notes: what limits the result.
    steps: a row for the script as it is and for each change that was kept, with STEP_COLUMNS. tried: a row for each
    other candidate, with TRIED_COLUMNS; those that were not reached last."""

    tuning: Tuning
    price: GpuPrice | None
    headline: str
    facts: tuple[str, ...]
    losses: str
    check: str
    apply: str
    code: tuple[str, ...]
    notes: tuple[str, ...]
    steps: pd.DataFrame
    tried: pd.DataFrame

    @property
    def not_helping(self) -> pd.DataFrame:
        """The rows of `tried` that were decided, but of what helped later, and of `other_code`."""
        is_reached = ~self.tried["outcome"].isin([Outcome.NOT_REACHED])
        is_other = self.tried["change"].isin([*list_kept(self.tuning), *self.other_code["change"]])
        return self.tried[is_reached & ~is_other]

    @property
    def other_code(self) -> pd.DataFrame:
        """The rows of `tried` that need other code, of which parts of the step tell what they could give; with
        `what_to_write`."""
        times, low = (self.tried[f"expected_{end}times_as_fast"].astype(float) for end in ("", "low_"))
        is_expected = (times >= LEAST_EXPECTED) | (low > 1)
        rows = self.tried[is_expected & (self.tried["outcome"] == Outcome.NOT_POSSIBLE)]
        return rows.assign(what_to_write=[load_change(name).CODE if name in CHANGES else "" for name in rows["change"]])

    @property
    def not_reached(self) -> pd.DataFrame:
        return self.tried[self.tried["outcome"] == Outcome.NOT_REACHED]


def interpret_tuning(tuning: Tuning, usd_per_hour: float | None = None) -> TunedLadder:
    """Interpret a result. usd_per_hour: price of the GPU, in place of the one in the result or the listed one."""
    given = tuning.usd_per_hour if usd_per_hour is None else usd_per_hour
    price = find_price(tuning.gpu_name) if given is None else GpuPrice(given)
    steps = _tabulate_steps(tuning, price)
    return TunedLadder(
        tuning=tuning,
        price=price,
        headline=_describe_gain(tuning),
        facts=(*_list_facts(steps, price), *_list_other_gpus(tuning)),
        losses=describe_losses(tuning.winner.losses) if tuning.winner else "",
        check=describe_check(tuning),
        apply=write_command(tuning),
        code=tuple(_list_code(tuning)),
        notes=tuple(_list_notes(tuning)),
        steps=steps,
        tried=_tabulate_tried(tuning),
    )


def name_change(name: str) -> str:
    """Return the label of a change; its name if this version does not know it."""
    return LABELS.get(name, name.replace("_", " "))


def format_ratio(ratio: TuneRatio) -> str:
    """Format a ratio with its interval."""
    times, low, high = (_format_times(value) for value in (ratio.times_as_fast, ratio.low, ratio.high))
    return f"{times} times as fast (95% interval {low} to {high})"


def _format_times(value: float) -> str:
    return f"{value:#.3g}".rstrip(".") if value >= 10 else f"{value:.2f}"


def describe_ratio(ratio: TuneRatio) -> str:
    """Return whether a ratio is measurable, as a verdict."""
    if ratio.low > 1:
        return "measurably faster"
    return "measurably slower" if ratio.high < 1 else "no measurable difference"


def _describe_gain(tuning: Tuning) -> str:
    """Return the main sentence: how many times as fast, and both steps."""
    base, winner = tuning.base, tuning.winner
    if base is None:
        return "No step of the script was measured"
    if winner is None:
        is_tried = any(tried.outcome not in NOT_TRIED for tried in tuning.tried)
        verdict = "Nothing that was tried makes it measurably faster" if is_tried else "No change was measured"
        return f"{verdict}: a step takes {format_time(base.step_ns)}"
    before, after = format_quantities("time", base.step_ns, infer_step_times(tuning)[-1])
    ratio = infer_ratios(tuning)[-1]
    about = "About " if winner.ratio_base is None else ""
    if ratio.low <= 1:
        about = f"{describe_ratio(ratio).capitalize()}: {about.lower()}"
    return f"{about}{format_ratio(ratio)}: a step takes {after}, before {before}"


def infer_ratios(tuning: Tuning) -> list[TuneRatio]:
    """Return how many times as fast as the script as it is each step of the ladder is. For one that took no turns with
    it, the ratio of the step before and the one over that step are multiplied, and so are the ends of their intervals:
    the interval is wider than a measured one."""
    ratios: list[TuneRatio] = []
    for step in tuning.ladder:
        over, before = step.ratio_before, ratios[-1] if ratios else None
        product = over if before is None else _multiply(before, over)
        ratios.append(step.ratio_base or product)
    return ratios


def infer_ratios_before(tuning: Tuning) -> list[TuneRatio]:
    """Return how many times as fast as the step before it each step of the ladder is. If processes gave the last ratio,
    the one over the step before, by turns, is of other steps: it is the quotient of both, and so are the ends of its
    interval, which is wider than a measured one."""
    before = [step.ratio_before for step in tuning.ladder]
    if tuning.confirmation.by_turns is not None and len(before) > 1:
        known, last = infer_ratios(tuning)[-2:]
        ends = {"low": last.low / known.high, "high": last.high / known.low}
        before[-1] = TuneRatio(times_as_fast=last.times_as_fast / known.times_as_fast, num_pairs=last.num_pairs, **ends)
    return before


def _multiply(before: TuneRatio, over: TuneRatio) -> TuneRatio:
    return TuneRatio(
        times_as_fast=before.times_as_fast * over.times_as_fast,
        low=before.low * over.low,
        high=before.high * over.high,
        num_pairs=min(before.num_pairs, over.num_pairs),
    )


def infer_step_times(tuning: Tuning) -> list[float]:
    """Return how long a step takes with each step of the ladder, in ns. Times agree with ratios: the time of the
    script as it is, divided by the ratio. Median times of turns at different moments cannot be compared."""
    if tuning.base is None:
        return []
    return [tuning.base.step_ns / ratio.times_as_fast for ratio in infer_ratios(tuning)]


def _list_facts(steps: pd.DataFrame, price: GpuPrice | None) -> Iterator[str]:
    """List tokens a second, MFU, prices and memory of the last step and of the first one."""
    if not len(steps):
        return
    first, last = steps.iloc[0], steps.iloc[-1]

    def compare(words: str, *texts: str) -> str:
        return f"{texts[1]} {words}".strip() + (f", before {texts[0]}" if len(steps) > 1 else "")

    if pd.notna(last["tokens_per_s"]):
        rates = [format_quantity("tokens/s", row["tokens_per_s"]) for row in (first, last)]
        yield compare("", *rates)
    if pd.notna(last["mfu_share"]):
        known = [row for row in (first, last) if pd.notna(row["mfu_share"])]
        peak = "the data sheet's peak in"
        texts = [f"{format_share(row['mfu_share'])} of {peak} {row['precision'].upper()}" for row in known]
        yield f"MFU {texts[-1]}" + (f", before {texts[0]}" if len(steps) > 1 and len(known) > 1 else "")
    if price and pd.notna(last["usd_per_million"]):
        prices = format_quantities("USD", first["usd_per_million"], last["usd_per_million"])
        yield f"{compare('for a million tokens', *prices)}, at {price.describe()}"
    if pd.notna(last["peak_bytes"]) and pd.notna(first["peak_bytes"]):
        yield compare("peak allocated", *(format_size(row["peak_bytes"]) for row in (first, last)))


def _list_other_gpus(tuning: Tuning) -> Iterator[str]:
    """Tell what the last step of the ladder would take on other GPUs."""
    gpu, last = gpus.lookup(tuning.gpu_name), tuning.winner or tuning.base
    if last is None or last.kernels is None or gpu is None:
        return
    step_ns = infer_step_times(tuning)[-1] if tuning.ladder else last.step_ns
    for other in list_others(gpu):
        ends = estimate_on(other, gpu, last.kernels, step_ns, last.precision)
        if ends is not None:
            low, high = format_quantities("time", *ends)
            yield f"on an {other.key} about {low} to {high} a step, by the data sheets"


def describe_check(tuning: Tuning) -> str:
    """Return one sentence on the fresh processes that confirm the winner: whether they ran the script with the patch,
    how many they were, and whether the ratio is theirs, or is close to theirs."""
    winner, confirmed, patch = tuning.winner, tuning.confirmation, tuning.patch
    if winner is None or tuning.base is None:
        return ""
    if not confirmed.winner_ns:
        is_failed = winner.losses.reason is NoLossCode.FAILED
        why = "the script failed in a process of its own" if is_failed else "the budget ended before"
        return f"Not checked in fresh processes: {why}"
    with_it, without = len(confirmed.winner_ns), len(confirmed.base_ns)
    rounds = f"by turns in {format_count(confirmed.num_rounds, 'round')}"
    how = rounds if confirmed.num_rounds else "one after another"
    processes = f"{format_count(with_it, 'process')} of it and {without} of the script as it is, {how}"
    if tuning.is_other_patch:
        what = f"This patch was not measured (--again does that), but another one was, in {processes}"
    elif confirmed.is_bare:
        what = f"Checked: the patched script ran alone, in {processes}"
    else:
        left = "the patch leaves lines to write" if patch and patch.to_write else "it cannot be timed alone"
        why = left if patch and (patch.diff or patch.to_write) else "there is no patch"
        what = f"The patched script was not run: {why}. Checked with its changes switched on, in {processes}"
    if confirmed.by_turns is not None or winner.method is Method.PROCESSES:
        return f"{what}. The ratio is theirs"
    base_ns, winner_ns = statistics.median(confirmed.base_ns), statistics.median(confirmed.winner_ns)
    before, after = format_quantities("time", base_ns, winner_ns)
    ratio, measured = base_ns / winner_ns, infer_ratios(tuning)[-1].times_as_fast
    verb = "confirm the ratio" if ratio > 1 and abs(ratio / measured - 1) <= DISAGREES else "have another ratio"
    return f"{what}. They {verb}: {before} and {after}, {_format_times(ratio)} times as fast"


def write_command(tuning: Tuning) -> str:
    """Return the command that writes the patch; "" if there is none to write."""
    if tuning.winner is None or tuning.patch is None or not tuning.patch.diff or tuning.patch.written:
        return ""
    return shlex.join(["profiler-job", "tune", *tuning.options, "--write", "--", *tuning.command])


def describe_losses(losses: LossDifference) -> str:
    """Return one sentence on the losses of a variant."""
    if losses.reason is not None:
        where = f", from step {losses.step} on" if losses.step else ""
        return f"Losses: {NO_LOSSES[losses.reason]}{where}"
    if not losses.num or losses.largest is None:
        return f"Losses: {NO_LOSSES[NoLossCode.NO_LOSS]}"
    compared = f"{losses.num:,} compared"
    if not losses.largest:
        return f"Losses are the same ({compared})"
    repeated = f"; two runs without changes: {_format_part(losses.repeated)}" if losses.repeated else ""
    is_least = 100 * losses.largest < LEAST_PERCENT
    most = f"by less than {LEAST_PERCENT}%" if is_least else f"by at most {_format_part(losses.largest)}"
    most += f" in step {losses.step}" if losses.step else ""
    if losses.largest <= SAME_LOSS:
        return f"Losses are the same but for rounding: they differ {most} ({compared}{repeated})"
    first = "" if losses.first is None else f"by {_format_part(losses.first)} in the first step, "
    return f"Losses differ {first}{most} ({compared}{repeated})"


def _format_part(fraction: float) -> str:
    percent = 100 * fraction
    if 0 < percent < LEAST_PERCENT:
        return f"<{LEAST_PERCENT}%"
    return f"{percent:,.0f}%" if percent >= 99.5 else f"{percent:.2g}%"


def _list_code(tuning: Tuning) -> Iterator[str]:
    """List what to write for the winner's changes."""
    if tuning.winner is None:
        return
    patch, changes = tuning.patch, tuning.winner.changes
    if patch is None:
        known = [name for name in changes if name in CHANGES]
        yield from (f"{name_change(name)}: {write_code(name, tuning.device_type)}" for name in known)
        return
    left = {line.change for line in patch.to_write}
    patched = [name_change(name) for name in changes if name not in left and name not in patch.present]
    if patched and patch.written:
        yield f"Written to {', '.join(patch.written)}: {', '.join(patched)}"
    elif patched:
        yield f"The patch below: {', '.join(patched)}"
    for line in patch.to_write:
        place = f"{line.file}:{line.line}" if line.line else line.file
        yield f"{place}: {line.code} ({line.reason})"
    for name, place in patch.present.items():
        yield f"{place} has it already: {name_change(name)}"


def _list_notes(tuning: Tuning) -> Iterator[str]:
    """List what limits the result: a ratio that was not measured, fresh processes that disagree, a search that was cut
    off."""
    confirmed = tuning.confirmation
    if tuning.base and tuning.winner and tuning.winner.ratio_base is None:
        yield "The last change took no turns with the script as it is: its ratio is the product of those of the ladder"
    if confirmed.by_turns is not None:
        turns = _format_times(confirmed.by_turns.times_as_fast)
        is_by_turns = tuning.winner is None or tuning.winner.method is Method.TURNS
        where = "By turns in one process" if is_by_turns else "In processes of its own"
        yield f"{where}, which following it slows, it was {turns} times as fast"
    yield from _list_loss_notes(tuning)
    if tuning.no_parts is not None:
        yield f"Nothing was expected of changes: {NO_PARTS[tuning.no_parts]}"
    failed = Counter(tried.message for tried in tuning.tried if tried.outcome is Outcome.FAILED)
    if failed and (most := failed.most_common(1)[0][1]) > 1:
        yield f"{format_count(most, 'change')} ended with the same error: the script may end so without them"
    if not tuning.is_complete:
        left = sum(tried.outcome is Outcome.NOT_REACHED for tried in tuning.tried)
        what = f", and {format_count(left, 'change')} had too little time left" if left else ""
        is_over = tuning.used_s >= tuning.budget_s
        goes_on = "The same command goes on; " if is_over or not left else "A larger "
        more = "--budget gives it more time"
        yield f"The search is not complete after {tuning.used_s / 60:.1f} min{what}. {goes_on}{more}"
    if tuning.asked is not None:
        names = ", ".join(name_change(name) for name in tuning.asked)
        yield f"Only what --changes names was tried: {names}"


def _list_loss_notes(tuning: Tuning) -> Iterator[str]:
    """Tell how the losses of a ladder of several steps were compared, and why some were not."""
    winner = tuning.winner
    if tuning.confirmation.is_bare and winner and COMPILING.intersection(winner.changes) and winner.losses.largest:
        yield "Losses are those of the script with the patch: compiled code draws other random numbers, as for dropout"
    compared = [step.losses.num for step in tuning.ladder if step.losses.reason is None]
    if len(tuning.ladder) < 2 or not compared:
        return
    yield (
        f"Losses of a step of the ladder come from a process of its own, from one seed. Shown is the largest "
        f"difference of the first {max(compared)} from losses without changes"
    )
    left = sum(step.losses.reason is NoLossCode.NOT_MEASURED for step in tuning.ladder)
    if left:
        yield f"The losses of {format_count(left, 'step')} are not compared: the budget ended before"


# --------------------------------------------------------------------------------------------------------------- tables


def _tabulate_steps(tuning: Tuning, price: GpuPrice | None) -> pd.DataFrame:
    base = tuning.base
    if base is None:
        return pd.DataFrame(columns=list(STEP_COLUMNS))
    rows: list[dict[str, Any]] = [
        {"change": "", "label": AS_IT_IS, "times_as_fast": 1.0}
        | _derive_rates(tuning, base.step_ns, base.precision, price)
        | {"peak_bytes": base.peak_bytes, "method": ""}
    ]
    measured = zip(infer_ratios(tuning), infer_ratios_before(tuning), infer_step_times(tuning))
    for before, step, (ratio, over_before, step_ns) in zip([None, *tuning.ladder], tuning.ladder, measured):
        rows.append(
            {"change": step.change, "label": _label_step(step, before)}
            | _derive_rates(tuning, step_ns, step.precision, price)
            | {"times_as_fast": ratio.times_as_fast}
            | _name_ends(ratio, "")
            | {"before_times_as_fast": over_before.times_as_fast}
            | _name_ends(over_before, "before_")
            | _describe_expected(tuning, step)
            | {"peak_bytes": step.peak_bytes, "method": str(step.method)}
            | _describe_loss(step.losses)
        )
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS))


def _describe_expected(tuning: Tuning, step: LadderStep) -> dict[str, float | None]:
    """Return what was expected of a step of the ladder over the one before; nothing if only its kernels were."""
    tried = [each for each in tuning.tried if each.change == step.change and each.outcome is Outcome.KEPT]
    expected = tried[-1].expected if tried else None
    if expected is None or expected.is_of_kernels:
        return {}
    return {"expected_times_as_fast": expected.times_as_fast, **_name_ends(expected, "expected_")}


def _label_step(step: LadderStep, before: LadderStep | None) -> str:
    """Return what a step of the ladder adds, and what it takes the place of."""
    known = before.changes if before else ()
    replaced = [name_change(name) for name in known if name not in step.changes]
    instead = f", not {' and '.join(replaced)}" if replaced else ""
    added = [name_change(name) for name in step.changes if name not in known] or [name_change(step.change)]
    return f"+ {' + '.join(added)}{instead}"


def _name_ends(ratio: TuneRatio | ExpectedRatio | None, prefix: str) -> dict[str, float | None]:
    names = [f"{prefix}{end}_times_as_fast" for end in ("low", "high")]
    return dict(zip(names, (ratio.low, ratio.high) if ratio else (None, None)))


def _derive_rates(tuning: Tuning, step_ns: float, precision: str, price: GpuPrice | None) -> dict[str, Any]:
    """Derive tokens a second, MFU and the price of tokens from a step. MFU is of the data sheet's dense peak in the
    precision that most matmuls run in."""
    assert tuning.base is not None
    tokens, flops = tuning.base.tokens_per_step, tuning.base.flops
    rate = tokens / (step_ns / 1e9) if tokens else None
    return {
        "step_ns": step_ns,
        "tokens_per_s": rate,
        "precision": precision,
        "mfu_share": measure_mfu(flops, step_ns, tuning.gpu_name, precision) if flops else None,
        "usd_per_million": price.compute_usd_per_million(rate) if price and rate else None,
    }


def _describe_loss(losses: LossDifference) -> dict[str, Any]:
    """Return the largest relative difference of a step's losses, of how many, and both in words."""
    if losses.reason is not None:
        return {"losses": LOSS_WORDS.get(losses.reason, "not compared")}
    share = losses.largest or 0.0
    return {"loss_share": share, "num_losses": losses.num, "losses": _format_part(share) if share else "the same"}


def _tabulate_tried(tuning: Tuning) -> pd.DataFrame:
    rows = [_describe_candidate(tried) for tried in tuning.tried if tried.outcome is not Outcome.KEPT]
    table = pd.DataFrame(rows, columns=list(TRIED_COLUMNS))
    order = [Outcome.NOT_FASTER, *VERDICTS]
    return table.sort_values("outcome", key=lambda values: values.map(order.index), kind="stable", ignore_index=True)


def _describe_candidate(tried: Tried) -> dict[str, Any]:
    ratio = tried.ratio
    verdict = VERDICTS.get(tried.outcome) or (describe_ratio(ratio) if ratio else "not faster")
    if tried.outcome is Outcome.NOT_FASTER and ratio and ratio.low > 1:
        verdict = "faster, but not by as much as is kept"
    elif tried.outcome is Outcome.NOT_POSSIBLE and tried.expected:
        verdict = "about as fast, by its parts"
    elif tried.outcome is Outcome.BOUND and ratio and ratio.low <= 1:
        verdict = describe_ratio(ratio)
    names = ", ".join(name_change(name) for name in tried.on_top_of)
    return {
        "change": tried.change,
        "label": name_change(tried.change),
        "outcome": tried.outcome,
        "verdict": verdict,
        "times_as_fast": ratio.times_as_fast if ratio else None,
        **_name_ends(ratio, ""),
        "expected_times_as_fast": tried.expected.times_as_fast if tried.expected else None,
        **_name_ends(tried.expected, "expected_"),
        "could_save_share": tried.could_save,
        "peak_bytes": tried.peak_bytes,
        "on_top_of": names,
        "why": tried.message,
    }


def has_several_peaks(steps: pd.DataFrame) -> bool:
    """Return whether the MFU of the ladder's steps is of peaks of more than one precision: it can fall though the step
    is faster."""
    return bool(steps.loc[steps["mfu_share"].notna(), "precision"].nunique() > 1)


def shorten_label(label: str) -> str:
    """Shorten the label of a step for a figure: its last change and how many more, without what it replaces."""
    first, *more = label.partition(",")[0].removeprefix("+ ").split(" + ")
    sign = "+ " if label.startswith("+ ") else ""
    return f"{sign}{' + '.join([first, *more])}" if len(more) < 2 else f"{sign}{more[-1]} + {len(more)} more"


def chart_ladder(ladder: TunedLadder) -> pd.DataFrame:
    """Return the rows of the figure: label, value, low and high (times as fast as the script as it is), text."""
    steps = ladder.steps
    values = steps["times_as_fast"].astype(float)
    return pd.DataFrame(
        {
            "label": [shorten_label(label) for label in steps["label"]],
            "value": values,
            "low": steps["low_times_as_fast"].astype(float).fillna(values),
            "high": steps["high_times_as_fast"].astype(float).fillna(values),
            "text": [
                f"{_format_times(ratio)}×, {format_time(step_ns)}"
                for ratio, step_ns in zip(steps["times_as_fast"], steps["step_ns"])
            ],
        }
    )


def count_tried(tuning: Tuning) -> str:
    """Return how many changes were tried and kept, in words: once each, however often they were measured."""
    tried = {tried.change for tried in tuning.tried if tried.outcome not in NOT_TRIED}
    kept = list_kept(tuning)
    return f"{format_count(len(tried | kept), 'change')} tried, {len(kept)} kept"


def list_kept(tuning: Tuning) -> set[str]:
    """List the changes of all steps of the ladder, also those that a later one took the place of."""
    return {change for step in tuning.ladder for change in step.changes}


def name_tuned(ladder: TunedLadder) -> str:
    """Return what was tuned and where, in one line."""
    tuning = ladder.tuning
    where = f" on {tuning.gpu_name}" if tuning.gpu_name else ""
    return make_printable(f"{tuning.name}{where}: {count_tried(tuning)}")


def list_diff_lines(ladder: TunedLadder) -> list[str]:
    """List the lines of the patch, made harmless; tabs stay, so that it can be applied."""
    patch = ladder.tuning.patch
    if patch is None or not patch.diff:
        return []
    return ["\t".join(map(make_printable, line.split("\t"))) for line in patch.diff.rstrip("\n").split("\n")]
