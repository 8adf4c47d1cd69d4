"""The answer of a comparison of several pairs: in how many B is faster, and by how much."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from profiler_job.analysis.comparison.choices import Metric
from profiler_job.analysis.comparison.judge import ComparedPair, Judgement
from profiler_job.analysis.metrics.differences import is_beyond_chance
from profiler_job.jobs.contract.quantities import format_rounded, format_share
from profiler_job.jobs.contract.words import format_count

_STEP = {"faster": "faster", "slower": "slower"}
_WORK = {"faster": "less time", "slower": "more time"}
"""Words for the verdicts on a step, and on the GPU's work."""


def describe_pairs(pairs: Sequence[ComparedPair]) -> str:
    """Describe in two sentences the step and the GPU's work: in how many pairs they differ, and by how much."""
    step, kernel = _select(pairs, "step"), _select(pairs, "kernel")
    sentences = [_describe("B is", step, _STEP, _format_ratios, "not measurably faster or slower")] if step else []
    if kernel:
        rest_words = "not measurably less or more time"
        sentences.append(_describe("Its kernels take", kernel, _WORK, _format_shares, rest_words))
    return " ".join(sentences)


def note_chance(known: Sequence[Judgement]) -> str:
    """Note that as many of these may differ by chance; "" if they may not."""
    real = [judged for judged in known if judged.is_real]
    is_chance = real and not is_beyond_chance(len(real), len(known)) and not any(judged.is_clear for judged in real)
    return " (so many may differ by chance)" if is_chance else ""


def _select(pairs: Sequence[ComparedPair], metric: Metric) -> list[Judgement]:
    return [pair.judgements[metric] for pair in pairs if metric in pair.judgements]


def _describe(
    start: str,
    known: Sequence[Judgement],
    words: Mapping[str, str],
    format_size: Callable[[Sequence[Judgement], str], str],
    rest_words: str,
) -> str:
    """Describe the pairs of each verdict of `words`, with their size, and the rest."""
    of_verdict = {verdict: [of for of in known if of.verdict == verdict] for verdict in words}
    said = [
        f"{words[verdict]} in {_count_of(len(of), known)}, {format_size(of, verdict)}"
        for verdict, of in of_verdict.items()
        if of
    ]
    rest = len(known) - sum(map(len, of_verdict.values()))
    said += [f"{rest_words} in {_count_of(rest, known)}"] if rest else []
    return f"{start} {'; '.join(said)}{note_chance(known)}."


def _count_of(number: int, known: Sequence[Judgement]) -> str:
    total = len(known)
    if number == total == 2:
        return "both pairs"
    return f"all {total} pairs" if number == total else f"{number} of {format_count(total, 'pair')}"


def _format_ratios(known: Sequence[Judgement], verdict: str) -> str:
    """Format how many times as fast B is, or as long it takes: `1.4× to 4.2× as fast (median 2.8×)`."""
    is_faster = verdict == "faster"
    ratios = [of.first / of.second if is_faster else of.second / of.first for of in known if of.first and of.second]
    if not ratios:
        return "by a ratio that is not known"
    ends = _list_ends([format_rounded("ratio", value) for value in (min(ratios), max(ratios))])
    middle = format_rounded("ratio", statistics.median(ratios))
    median = f" (median {middle})" if len(ratios) > 2 and " to " in ends else ""
    return f"{ends} as {'fast' if is_faster else 'long'}{median}"


def _format_shares(known: Sequence[Judgement], verdict: str) -> str:
    """Format by how much: `by 12% to 40%`."""
    shares = [abs(of.share) for of in known if of.share is not None]
    if not shares:
        return "by a share that is not known"
    return f"by {_list_ends([format_share(value) for value in (min(shares), max(shares))])}"


def _list_ends(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))
