"""The answer of a comparison in sentences: of one pair what differs, how much, how sure and why; of several pairs in
how many B is faster, and by how much."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from profiler_job.analysis.comparison.choices import Metric
from profiler_job.analysis.comparison.judge import ComparedPair, Judgement
from profiler_job.analysis.comparison.waterfall import TOKENS, Cause
from profiler_job.analysis.metrics.differences import is_beyond_chance
from profiler_job.jobs.contract.quantities import format_quantity, format_rounded, format_share
from profiler_job.jobs.contract.words import format_count

_STEP = {"faster": "B is {} as fast", "slower": "B takes {} as long", "": "B is not measurably faster or slower"}
_WORK = {"faster": "Its kernels take {} less time", "slower": "Its kernels take {} more time"}
_WORK[""] = "Its kernels take as long, as far as can be measured,"
"""Words for the verdicts on a step, and on the GPU's work, with their size; "" is any other verdict."""
CERTAIN = 0.05
"""Width of an interval, as a share of the value, up to which the value has three significant digits, and not two."""
_CHANGES = {
    "kernels": "Kernel time changes most",
    "copies and fills": "Copies and fills change most",
    "overlap": "What runs at once changes most",
    "idle": "Waiting of the GPU changes most",
}


def describe_pair(pair: ComparedPair, first: str = "", second: str = "") -> str:
    """Describe one pair in two sentences: how many times as fast B is, with its interval, and the GPU's work. first,
    second: names of the sides."""
    a, b = (f"{letter} ({name})" if name else letter for letter, name in (("A", first), ("B", second)))
    return f"{_describe_step(pair, a, b)} {_describe_work(pair)}"


def _describe_step(pair: ComparedPair, a: str, b: str) -> str:
    step = pair.judgements["step"]
    known = not math.isinf(step.band) and step.first > 0 and step.second > 0
    is_sure = known and 2 * step.band <= CERTAIN * step.second
    times = [(format_quantity if is_sure else format_rounded)("time", ns) for ns in (step.first, step.second)]
    what = f"{TOKENS:,} tokens take" if step.per_token else "a step takes" if pair.has_steps else "all of it takes"
    under = "" if pair.clock == "timer" else " under the profiler"
    if not known:
        return f"{b}: {what} {times[1]}{under}, and {times[0]} in {a}; how much of that is noise is not known."
    if not step.is_real:
        seen = format_share(step.smallest_seen / step.first, 0)
        same = f"{b} is not measurably faster or slower than {a}"
        return f"{same}: {what} {times[1]} and {times[0]}{under}. A change of {seen} would have been found."
    verb, how = ("is", "fast") if step.verdict == "faster" else ("takes", "long")
    ratio, low, high = _find_ratio(pair)
    size = f"{b} {verb} {ratio} as {how} as {a} [{low}, {high}]"
    if pair.turns:
        fastest = f"In the fastest process of each, {what} {times[1]} instead of {times[0]}."
        return f"{size} in rounds in which both took turns. {fastest}"
    return f"{size}: {what} {times[1]} instead of {times[0]}{under}."


def _find_ratio(pair: ComparedPair) -> tuple[str, str, str]:
    """How many times as fast B is, or as long it takes, so that it is above 1; with the ends of its interval."""
    step = pair.judgements["step"]
    if pair.turns:
        values = [pair.turns.times_as_fast, pair.turns.low, pair.turns.high]
    else:
        shortest = max(step.second - step.band, 0.0)
        most = step.first / shortest if shortest else math.inf
        values = [step.first / step.second, step.first / (step.second + step.band), most]
    if step.verdict == "slower":
        values = [1 / values[0], 1 / values[2], 1 / values[1]]
    is_sure = values[2] - values[1] <= CERTAIN * values[0]
    ratio, low, high = (
        "∞" if math.isinf(value) else (format_quantity if is_sure else format_rounded)("ratio", value)
        for value in values
    )
    return ratio, low.removesuffix("×"), high.removesuffix("×")


def _describe_work(pair: ComparedPair) -> str:
    kernel, idle = pair.judgements["kernel"], pair.judgements["idle"]
    if not kernel.is_real or kernel.share is None:
        said = "Its kernels take as long, as far as can be measured"
    else:
        said = f"Its kernels take {format_share(abs(kernel.share), 0)} {'less' if kernel.share < 0 else 'more'} time"
    return f"{said}{f', and the GPU idles {idle.verdict}' if idle.verdict in ('less', 'more') else ''}."


def explain_pair(pair: ComparedPair) -> str:
    """Explain in few words which part of a profiled step changed most, and whether these parts explain the step."""
    waterfall = pair.waterfall
    parts = sorted(waterfall.causes, key=lambda cause: -abs(cause.ns))
    real = [cause for cause in parts if cause.is_real or cause.is_regrouped]
    if not any(cause.is_real for cause in parts) or not waterfall.sums:
        return "No part of a profiled step differs measurably."
    largest = max(waterfall.sums, key=lambda sort: abs(waterfall.sums[sort]))
    phases = waterfall.by_phase["phase"]
    where = f", above all in {phases.iloc[0]}" if largest == "kernels" and len(phases) and phases.iloc[0] else ""
    largest_part = f"The largest single part is {_name_part(parts[0])}"
    if parts[0] is not real[0]:
        largest_part += f", within its noise; of those beyond noise it is {_name_part(real[0])}"
    apart = (
        " The unprofiled step changes by another time than the profiled one: the figure shows where, not how much."
        if pair.has_parts_apart
        else ""
    )
    return f"{_CHANGES.get(largest, 'Other time changes most')}{where}. {largest_part}.{apart}"


def _name_part(part: Cause) -> str:
    if part.kind == "idle":
        return f"waiting in {part.phase}" if part.phase else "waiting between operations"
    return part.text.partition(":")[0]


def advise_pair(pair: ComparedPair) -> str:
    """Advise what to do after the verdict on the step."""
    verdict, memory = pair.judgements["step"].verdict, pair.judgements.get("memory")
    if verdict == "unknown":
        return "Measure each side in several processes: then the noise is known."
    if verdict == "faster":
        more = ", and that it has room: it needs more memory" if memory and memory.verdict == "more" else ""
        return f"Use B. Check first that its loss is the same{more}."
    if verdict == "slower":
        return "Keep A. The red bars show what takes B longer."
    return "Do not choose by speed. To find a smaller difference, measure more processes."


def describe_pairs(pairs: Sequence[ComparedPair]) -> str:
    """Describe in two sentences the step and the GPU's work: in how many pairs they differ, and by how much."""
    step, kernel = _select(pairs, "step"), _select(pairs, "kernel")
    sentences = [_describe(step, _STEP, _format_ratios)] if step else []
    if kernel:
        sentences.append(_describe(kernel, _WORK, _format_shares))
    return " ".join(sentences)


def note_chance(known: Sequence[Judgement]) -> str:
    """Note that as many of these may differ by chance; "" if they may not."""
    real = [judged for judged in known if judged.is_real]
    is_chance = real and not is_beyond_chance(len(real), len(known)) and not any(judged.is_clear for judged in real)
    return " (so many may differ by chance)" if is_chance else ""


def _select(pairs: Sequence[ComparedPair], metric: Metric) -> list[Judgement]:
    return [pair.judgements[metric] for pair in pairs if metric in pair.judgements]


def _describe(
    known: Sequence[Judgement], words: Mapping[str, str], format_size: Callable[[Sequence[Judgement], str], str]
) -> str:
    """Describe the pairs of each verdict of `words`, with their size, and the rest."""
    of_verdict = {verdict: [of for of in known if of.verdict == verdict] for verdict in words if verdict}
    said = [
        f"{words[verdict].format(format_size(of, verdict))} in {_count_of(len(of), known)}"
        for verdict, of in of_verdict.items()
        if of
    ]
    rest = len(known) - sum(map(len, of_verdict.values()))
    said += [f"{words['']} in {_count_of(rest, known)}"] if rest else []
    return f"{'; '.join(said)}{note_chance(known)}."


def _count_of(number: int, known: Sequence[Judgement]) -> str:
    total = len(known)
    if number == total == 2:
        return "both pairs"
    return f"all {total} pairs" if number == total else f"{number} of {format_count(total, 'pair')}"


def _format_ratios(known: Sequence[Judgement], verdict: str) -> str:
    """Format how many times as fast B is, or as long it takes: `1.4× to 4.2× (median 2.8×)`."""
    is_faster = verdict == "faster"
    ratios = [of.times_as_fast if is_faster else 1 / of.times_as_fast for of in known if of.first and of.second]
    if not ratios:
        return "an unknown number of times"
    ends = _list_ends([format_rounded("ratio", value) for value in (min(ratios), max(ratios))])
    middle = format_rounded("ratio", statistics.median(ratios))
    median = f" (median {middle})" if len(ratios) > 2 and " to " in ends else ""
    return f"{ends}{median}"


def _format_shares(known: Sequence[Judgement], verdict: str) -> str:
    """Format by how much: `12% to 40%`."""
    shares = [abs(of.share) for of in known if of.share is not None]
    if not shares:
        return "an unknown share of"
    return _list_ends([format_share(value, 0) for value in (min(shares), max(shares))])


def _list_ends(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))
