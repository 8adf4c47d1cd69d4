"""The forms in which a comparison is printed: text for a terminal, Markdown for a pull request, JSON.

What is inside recordings and captures is not trusted: names are made harmless in text and Markdown.
"""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from profiler_job.analysis.capture.fused_kernels import BEGIN, END
from profiler_job.analysis.comparison.align import NO_SHAPES, Alignment
from profiler_job.analysis.comparison.choices import Metric
from profiler_job.analysis.comparison.gate import Condition, GateOutcome
from profiler_job.analysis.comparison.judge import (
    METRICS,
    WITHIN,
    ComparedPair,
    Comparison,
    Judgement,
)
from profiler_job.analysis.comparison.noise import ENERGY
from profiler_job.analysis.comparison.pair_answers import describe_pairs, note_chance
from profiler_job.analysis.comparison.sides import shortlist
from profiler_job.analysis.comparison.totals import MeasuredCase
from profiler_job.analysis.comparison.waterfall import TOKENS, Cause, Waterfall
from profiler_job.analysis.insight.limit_lines import describe_together
from profiler_job.analysis.render.escaped_text import escape_markdown
from profiler_job.analysis.render.terminal_text import shorten_text
from profiler_job.jobs.contract.axes import find_label
from profiler_job.jobs.contract.json_format import FORMAT_VERSION
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import (
    MILLISECONDS,
    choose_form,
    format_quantity,
    format_relative_change,
    format_share,
)
from profiler_job.jobs.contract.step_limit import describe_limit
from profiler_job.jobs.contract.words import format_count

WIDTH = 80
LEAST_NS = 500
"""A sum of parts below this, which would be 0.000 ms, is not named next to larger ones."""
FEW = 5
"""Runs without a partner, and pairs with another sum, that are named in text and Markdown."""
FUSED_MODULES = "modules that share kernels with others, with their parts of these kernels' time:"
NAMED_MODULES = 8
NAMED, MOST_NAMED = 3, 100
"""Kernels that only one side has: so many of each are named in text, and in Markdown and JSON."""
SEEN_METRICS: tuple[Metric, ...] = ("step", "kernel", "memory", "energy")
"""Metrics of which the smallest change that would have been found is printed."""
Checked = Sequence[tuple[Condition, Sequence[GateOutcome]]]
"""The conditions of the gate, each with its outcome for each pair."""
UNIT = f"{TOKENS:,} tokens"
BAND_WORDS = {WITHIN: "within the noise band"}
"""Words for verdicts in counts, if they differ from the verdict itself."""


# ---------------------------------------------------------------------------------------------------------------- words


def format_answer(pairs: Sequence[ComparedPair]) -> str:
    """Answer whether B is faster than A, and by how much: of one pair with the reason, of several with their number."""
    return format_headline(pairs[0]) if len(pairs) == 1 else describe_pairs(pairs)


def format_headline(pair: ComparedPair) -> str:
    """Format the verdict as a sentence: the step, and separately the GPU's work and the CPU."""
    step = pair.judgements["step"]
    clock = "" if pair.clock == "timer" else " (under the profiler)"
    if step.is_real:
        both = f"{' -> '.join(_format_both(step))}{_format_unit(step)}"
        said = f"B is {step.verdict}{clock}: {both}, {_format_share(step)}"
    else:
        what = f"the step{_format_unit(step)}{clock}"
        said = f"{what}: {_format_difference(step)}, {format_verdict(step)}"
        said = said[:1].upper() + said[1:]
    apart = [pair.judgements["kernel"], pair.judgements["idle"]]
    kernel, idle = (f"{_format_difference(judged)}, {format_verdict(judged)}" for judged in apart)
    return f"{said}{_format_turns(pair)}. GPU work: {kernel}. GPU idle: {idle}."


def _format_turns(pair: ComparedPair) -> str:
    """Format the ratio of runs that took turns in one process; "" for others."""
    if pair.turns is None:
        return ""
    ratio, low, high = (f"{value:.3f}" for value in (pair.turns.times_as_fast, pair.turns.low, pair.turns.high))
    return f". By turns in one process, {pair.turns.num_pairs} rounds: {ratio} times as fast [{low}, {high}]"


def format_verdict(judged: Judgement) -> str:
    """Format the verdict for a sentence. A difference within its noise band may be large, if the band is."""
    if judged.verdict != WITHIN:
        return judged.verdict
    band = format_share(judged.band / judged.first) if judged.first else format_quantity(judged.kind, judged.band)
    return f"within the noise band of {band}"


def describe_smallest_seen(pairs: Sequence[ComparedPair]) -> str:
    """Describe the smallest changes that would have been found nine times out of ten, by metric, as shares of A: from
    the lowest to the highest of several pairs. "" if none is known."""
    known = []
    for metric in SEEN_METRICS:
        judged = [pair.judgements[metric] for pair in pairs if metric in pair.judgements]
        shares = [of.smallest_seen / of.first for of in judged if of.first and math.isfinite(of.band)]
        if shares:
            ends = dict.fromkeys(format_share(share) for share in (min(shares), max(shares)))
            known.append(f"{METRICS[metric]} {' to '.join(ends)}")
    return f"smallest change that is found nine times out of ten: {', '.join(known)}" if known else ""


def _format_both(judged: Judgement) -> list[str]:
    """Format A and B so that their difference is seen."""
    form = choose_form(judged.kind, [judged.first, judged.second, judged.difference])
    return [format_quantity(judged.kind, value, form) for value in (judged.first, judged.second)]


def _format_band(judged: Judgement) -> str:
    return "not known" if math.isinf(judged.band) else f"±{format_quantity(judged.kind, judged.band)}"


def _format_unit(judged: Judgement) -> str:
    return f" per {UNIT}" if judged.per_token else ""


def _format_difference(judged: Judgement) -> str:
    return format_quantity(judged.kind, judged.difference, is_signed=True)


def _format_share(judged: Judgement) -> str:
    return "n/a" if judged.share is None else format_relative_change(judged.share)


def _format_ms(ns: float, num: int, *, is_signed: bool = True) -> str:
    """In milliseconds, so that parts are seen to sum; what would be 0 there has a smaller unit."""
    form = None if ns and abs(ns / num) < 500 else MILLISECONDS
    return format_quantity("time", ns / num, form, is_signed=is_signed)


def _count_processes(measured: MeasuredCase) -> str:
    profiled = format_count(measured.num_profiled, "profiled step")
    if not measured.num_steps:
        return profiled
    return f"{format_count(measured.num_processes, 'process')}, {format_count(measured.num_steps, 'step')}, {profiled}"


def describe_sides(comparison: Comparison, *, with_alone: bool = True) -> list[str]:
    """Describe what is compared, one fact a line. with_alone: also the runs without a partner."""
    alignment, pairs = comparison.alignment, comparison.pairs
    each = " in each run" if len(pairs) > 1 else ""
    lines = [
        f"A is {comparison.first.label} ({_count_processes(pairs[0].first)}{each})",
        f"B is {comparison.second.label} ({_count_processes(pairs[0].second)}{each})",
    ]
    if not alignment.differences and not comparison.first.is_capture and not comparison.second.is_capture:
        lines.append("The runs of A and B have the same axes")
    for name, (first, second) in (alignment.differences | alignment.settings).items():
        lines.append(f"{find_label(name)}: A has {first or 'none'}, B has {second or 'none'}")
    if len(pairs) == 1:
        lines.append(f"compared: {pairs[0].case.label}")
        limits = describe_limits(comparison)
        lines += [f"{letter}: {limit}" for letter, limit in zip("AB", limits) if limit]
    if alignment.per_token:
        times = "times, energy" if "energy" in list_metrics(pairs) else "times"
        lines.append(f"{times} and their noise bands are per {UNIT}; peak allocated and kernel counts are of a step")
    for letter, alone in (("A", alignment.only_first), ("B", alignment.only_second)):
        if alone and with_alone:
            by_reason = sorted(alone.items(), key=lambda item: not item[1])  # what has a reason says more
            named = [f"{run} ({why})" if why else run for run, why in by_reason]
            lines.append(f"without a partner in {letter}, {format_count(len(named), 'run')}: {shortlist(named, FEW)}")
    lines += list_cautions(comparison)
    lines.append(f"noise band: {comparison.noise_source}")
    if turned := [pair for pair in pairs if pair.turns]:
        where = "" if len(turned) == len(pairs) else f", in {len(turned)} of {format_count(len(pairs), 'pair')}"
        how = "the verdict is of their ratio in rounds in which both took turns in one process"
        lines.append(f"step{where}: of the fastest process; {how}, and the noise band is its interval")
    if energies := [pair.judgements["energy"] for pair in pairs if "energy" in pair.judgements]:
        known = f"the larger of two: how much the processes of a side differ, and the noise band of {ENERGY.source}"
        unknown = "no noise band known, since there is one process of each"
        lines.append(f"noise band of energy: {unknown if math.isinf(energies[0].band) else known}")
    for letter, side in (("A", comparison.first), ("B", comparison.second)):
        lines += [f"{letter}: {note}" for note in side.notes]
    return [make_printable(line) for line in lines]


def describe_limits(comparison: Comparison) -> list[str]:
    """Describe what limits the steps of A and of B of the only pair, as `show` does; "" for what is not known."""
    (pair,) = comparison.pairs
    limits = []
    for side, run_ids in ((comparison.first, pair.case.first), (comparison.second, pair.case.second)):
        parts = side.limits
        if parts is None:
            from profiler_job.analysis.insight import run_limit  # takes time to import
            from profiler_job.analysis.metrics import step_limits

            steps, kernels, memops = (
                rows[rows["run_id"].astype(str).isin(run_ids)] for rows in (side.steps, side.kernels, side.memops)
            )
            known = step_limits.find_limits(steps, kernels, memops)
            if len(run_ids) == 1 and known:
                limits.append(describe_limit(known[str(run_ids[0])]))
                continue
            parts = run_limit.split_steps(kernels, memops)
        gpus = parts.drop(columns=["run_id", "phase"]).groupby("gpu", as_index=False).sum()
        together = describe_together(gpus)
        limits.append(f"under the profiler, {together}" if together else "")
    return limits


def list_cautions(comparison: Comparison) -> list[str]:
    """List the reasons to doubt a comparison that is made all the same."""
    said = []
    if comparison.first.is_capture or comparison.second.is_capture:
        said.append(NO_SHAPES)
    if all(pair.is_of_one_measurement for pair in comparison.pairs):
        said.append("A and B have the same times to the nanosecond: one is a copy of the other, not a measurement")
    return said


def format_total(pair: ComparedPair) -> str:
    waterfall = pair.waterfall
    times = [ns / waterfall.num for ns in (waterfall.first_ns, waterfall.second_ns)]
    form = choose_form("time", [*times, times[1] - times[0]])
    first, second = (format_quantity("time", ns, form) for ns in times)
    of = f"{UNIT} of a step" if waterfall.per_token else "a step"
    shown = {sort: ns for sort, ns in waterfall.sums.items() if abs(ns / waterfall.num) >= LEAST_NS} or waterfall.sums
    sums = ", ".join(f"{sort} {_format_ms(ns, waterfall.num)}" for sort, ns in shown.items())
    made_of = f" ({sums})" if sums else ""
    if not pair.has_steps:
        return (
            f"what is compared of the capture, from its first to its last event, went from {first} to {second}{made_of}"
        )
    return f"under the profiler, {of} went from {first} to {second}{made_of}"


def explain_unequal_sum(pair: ComparedPair) -> str:
    """Explain that the parts sum to another difference than the step's, and which one to believe; "" if they sum to the
    same."""
    if not pair.has_parts_apart:
        return ""
    step, waterfall = pair.judgements["step"], pair.waterfall
    verdict, parts = _format_ms(step.difference, 1), _format_ms(waterfall.difference_ns, waterfall.num)
    none = ". No part of it explains that" if pair.is_unexplained else ""
    if pair.clock == "nsys":
        return f"The median step differs by {verdict}, and the parts are of all steps: they sum to {parts}{none}"
    under = f"under the profiler, which slows the host, by {parts}"
    both = f"Unprofiled, a step{_format_unit(step)} differs by {verdict}; {under}"
    where = "and none of them explains the first" if none else "the parts say where"
    return f"{both}, which is what the parts sum to. The first says how much, {where}"


def list_unequal_sums(pairs: Sequence[ComparedPair]) -> str:
    """List the pairs whose parts sum to another difference than the step's; "" if there is none."""
    apart = [pair.case.label for pair in pairs if pair.has_parts_apart]
    if not apart:
        return ""
    where = f"in {len(apart)} of {format_count(len(pairs), 'pair')}"
    what = "the unprofiled step and the profiled one change differently"
    return f"{where} {what} (in sign, or by more than a tenth): {shortlist(apart, FEW)}"


def format_metric(judged: Judgement) -> str:
    """Format a metric of both sides, and whether it differs."""
    first, second = _format_both(judged)
    band = format_quantity(judged.kind, judged.band)
    where = "more than" if judged.is_real else "within"
    said = f"{METRICS[judged.metric]}{_format_unit(judged)} {first} in A and {second} in B"
    if judged.turns:
        ratio, low, high = (
            format_quantity("ratio", value) for value in (judged.times_as_fast, judged.turns.low, judged.turns.high)
        )
        ends = f"{low.removesuffix('×')}–{high.removesuffix('×')}"
        return f"{said} (fastest process of each; B is {ratio} as fast [{ends}] in rounds in which both took turns)"
    return f"{said} ({_format_difference(judged)}, {where} the noise band of ±{band})"


def format_cause(cause: Cause) -> str:
    return cause.text if cause.is_real or cause.kind == "rest" else f"{cause.text} (within noise)"


def format_counts(pairs: Sequence[ComparedPair], metric: Metric) -> str:
    """Count the pairs by verdict, and note whether that many may differ by chance."""
    known = [pair.judgements[metric] for pair in pairs if metric in pair.judgements]
    verdicts = [judged.verdict for judged in known]
    words = [
        word for word in dict.fromkeys(("faster", "less", WITHIN, "slower", "more", "unknown")) if word in verdicts
    ]
    said = ", ".join(f"{verdicts.count(word)} {BAND_WORDS.get(word, word)}" for word in words)
    return f"{METRICS[metric]}{_format_unit(known[0])}: {said}{note_chance(known)}"


# ----------------------------------------------------------------------------------------------------------------- text


def as_text(comparison: Comparison, checked: Checked, top: int) -> str:
    """For a terminal of 80 columns: the answer, what was compared, and each pair. top: causes of a pair, 0 for all."""
    lines = [*_wrap(format_answer(comparison.pairs)), ""]
    for line in describe_sides(comparison):
        lines += _wrap(line)
    if len(comparison.pairs) > 1:
        lines.append("")
        for metric in list_counted_metrics(comparison.pairs):
            lines += _wrap(format_counts(comparison.pairs, metric))
        lines += _wrap(describe_smallest_seen(comparison.pairs))
    for pair in comparison.pairs:
        lines.append("")
        if len(comparison.pairs) > 1:
            lines += [make_printable(pair.case.label), *_wrap(format_headline(pair), "  ")]
            lines += _format_unequal_sum(pair, "  ")
            lines += [line for cause in pair.waterfall.first_causes for line in _format_part(pair.waterfall, cause)]
        else:
            lines += _format_table(pair)
            lines += [*_wrap(describe_smallest_seen([pair])), "", *_format_causes(pair, top)]
    if checked:
        lines.append("")
    for condition, case, outcome in _iterate_outcomes(comparison, checked):
        lines += _wrap(f"{condition.text}{case}: {outcome.text}")
    return "\n".join(lines)


def _iterate_outcomes(comparison: Comparison, checked: Checked) -> Iterator[tuple[Condition, str, GateOutcome]]:
    for condition, outcomes in checked:
        for pair, outcome in zip(comparison.pairs, outcomes):
            yield condition, f", {make_printable(pair.case.label)}" if len(comparison.pairs) > 1 else "", outcome


def _wrap(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        line, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    ) or [""]


def _format_table(pair: ComparedPair) -> list[str]:
    head = UNIT if pair.waterfall.per_token else ""
    rows = [[head, "A", "B", "difference", "", "noise band", "verdict"]]
    rows += [
        [
            METRICS[name],
            *_format_both(judged),
            _format_difference(judged),
            _format_share(judged),
            _format_band(judged),
            judged.verdict,
        ]
        for name, judged in pair.judgements.items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, 6) else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def _format_causes(pair: ComparedPair, top: int) -> list[str]:
    waterfall, lines = pair.waterfall, [*_wrap(f"Why: {format_total(pair)}"), *_format_unequal_sum(pair)]
    for cause in waterfall.shorten(top):
        lines += _format_part(waterfall, cause)
    lines += _format_line(waterfall, waterfall.difference_ns, "in all")
    if fused := describe_fused_modules(waterfall):
        lines += ["", FUSED_MODULES, *(line for ns, text in fused for line in _format_line(waterfall, ns, text))]
    for words, names, calls, ns in _list_one_sided_names(pair):
        lines += ["", *_wrap(words)]
        for row in names[:NAMED]:
            count = f"{_format_count(getattr(row, calls), waterfall)} x "
            name = shorten_text(make_printable(row.kernel_name), WIDTH - 18 - len(count))
            lines.append(f"{_format_ms(getattr(row, ns), waterfall.num, is_signed=False):>16}  {count}{name}")
    return lines


def describe_fused_modules(waterfall: Waterfall) -> list[tuple[int, str]]:
    """List the most changed modules that a side fuses with others: the difference, and the times on both sides, with
    their parts of the fused kernels, which are named."""
    rows = waterfall.by_module[waterfall.by_module["fused_into"] != ""].head(NAMED_MODULES)
    lines = []
    for row in rows.itertuples():
        times = [_format_ms(ns, waterfall.num, is_signed=False) for ns in (row.first_ns, row.second_ns)]
        place = f"{row.phase or 'outside phases'}, {row.module}"
        name, *others = row.fused_into.split("; ")
        name = name.removeprefix(BEGIN).removesuffix(END)
        more = f" and {len(others)} more" if others else ""
        text = f"{place}: {times[0]} -> {times[1]}, fused into {name}{more}"
        lines.append((int(row.second_ns - row.first_ns), text))
    return lines


def _list_one_sided_names(pair: ComparedPair) -> Iterator[tuple[str, list[Any], str, str]]:
    """List kernels that vanished and kernels that appeared: how many names and how much time, their rows of
    Waterfall.names, and the columns of their calls and time."""
    names, num = pair.waterfall.names, pair.waterfall.num
    for said, side, other in (("vanished: A has", "first", "second"), ("appeared: B has", "second", "first")):
        of_side = names[names[f"{other}_calls"] == 0]
        if len(of_side):
            time = _format_ms(of_side[f"{side}_ns"].sum(), num, is_signed=False)
            what = f"{said} {format_count(len(of_side), 'kernel name')} that the other has not, {time} in all"
            yield what, list(of_side.itertuples()), f"{side}_calls", f"{side}_ns"


def _format_count(calls: int, waterfall: Waterfall) -> str:
    """Format how often something happens in a step."""
    return f"{calls / waterfall.num_steps:,.1f}".removesuffix(".0")


def _format_unequal_sum(pair: ComparedPair, indent: str = "") -> list[str]:
    return _wrap(explain_unequal_sum(pair), indent) if pair.has_parts_apart else []


def _format_part(waterfall: Waterfall, cause: Cause) -> list[str]:
    return _format_line(waterfall, cause.ns, format_cause(cause))


def _format_line(waterfall: Waterfall, ns: int, text: str) -> list[str]:
    first, *others = textwrap.wrap(make_printable(text), WIDTH - 18, break_on_hyphens=False)
    return [f"{_format_ms(ns, waterfall.num):>16}  {first}", *(f"{'':18}{line}" for line in others)]


def list_metrics(pairs: Sequence[ComparedPair]) -> list[Metric]:
    """List the metrics that any pair has."""
    return [metric for metric in METRICS if any(metric in pair.judgements for pair in pairs)]


def list_counted_metrics(pairs: Sequence[ComparedPair]) -> list[Metric]:
    """List the metrics whose verdicts are counted; throughput has the same verdict as the step."""
    return [metric for metric in list_metrics(pairs) if metric != "throughput"]


# ------------------------------------------------------------------------------------------------------------- Markdown


def as_markdown(comparison: Comparison, checked: Checked, top: int) -> str:
    """Tables for a pull request."""
    pairs = comparison.pairs
    lines = ["### A against B", "", f"**{escape_markdown(format_answer(pairs))}**", ""]
    lines += [f"- {escape_markdown(line)}" for line in describe_sides(comparison)]
    if len(pairs) == 1:
        (pair,) = pairs
        lines += ["", *_format_markdown_table(pair)]
        lines += ["", escape_markdown(describe_smallest_seen([pair]))]
        lines += ["", escape_markdown(f"Why: {format_total(pair)}"), ""]
        lines += [escape_markdown(explain_unequal_sum(pair)), ""] if pair.has_parts_apart else []
        lines += ["| difference | part |", "| --: | :-- |"]
        rows = [*((cause.ns, format_cause(cause)) for cause in pair.waterfall.shorten(top))]
        rows.append((pair.waterfall.difference_ns, "in all"))
        lines += [
            f"| {escape_markdown(_format_ms(ns, pair.waterfall.num))} | {escape_markdown(make_printable(text))} |"
            for ns, text in rows
        ]
        if fused := describe_fused_modules(pair.waterfall):
            lines += ["", FUSED_MODULES, "", "| difference | module |", "| --: | :-- |"]
            lines += [
                f"| {_format_ms(ns, pair.waterfall.num)} | {escape_markdown(make_printable(text))} |"
                for ns, text in fused
            ]
        for words, names, calls, ns in _list_one_sided_names(pair):
            lines += ["", escape_markdown(words), "", "| in a step | calls | kernel |", "| --: | --: | :-- |"]
            for row in names[:MOST_NAMED]:
                time, count = (
                    _format_ms(getattr(row, ns), pair.waterfall.num, is_signed=False),
                    _format_count(getattr(row, calls), pair.waterfall),
                )
                lines.append(f"| {time} | {count} | {escape_markdown(make_printable(row.kernel_name))} |")
            lines += ["", _format_others(len(names))] if len(names) > MOST_NAMED else []
    else:
        lines += ["", *(f"- {escape_markdown(format_counts(pairs, metric))}" for metric in list_counted_metrics(pairs))]
        lines += [f"- {escape_markdown(describe_smallest_seen(pairs))}"]
        steps = f"step{_format_unit(pairs[0].judgements['step'])}"
        lines += ["", f"| runs | {steps} A | step B | change | verdict | GPU work | GPU idle | what changed |"]
        lines.append("| :-- | --: | --: | --: | :-- | :-- | :-- | :-- |")
        for pair in pairs:
            step, kernel, idle = (pair.judgements[name] for name in ("step", "kernel", "idle"))
            parts = pair.waterfall.first_causes
            cause = "; ".join(f"{_format_ms(part.ns, pair.waterfall.num)} {format_cause(part)}" for part in parts)
            cells = [
                pair.case.label,
                *_format_both(step),
                _format_share(step),
            ]
            cells += [step.verdict, kernel.verdict, idle.verdict, cause]
            lines.append("| " + " | ".join(escape_markdown(make_printable(cell)) for cell in cells) + " |")
        lines += ["", escape_markdown(make_printable(apart))] if (apart := list_unequal_sums(pairs)) else []
    if checked:
        lines += ["", "| condition | outcome |", "| :-- | :-- |"]
    for condition, case, outcome in _iterate_outcomes(comparison, checked):
        lines.append(f"| {escape_markdown(condition.text + case)} | {escape_markdown(outcome.text)} |")
    return "\n".join(lines) + "\n"


def _format_others(num: int) -> str:
    return f"The {format_count(num - MOST_NAMED, 'other')} of them take less time."


def _format_markdown_table(pair: ComparedPair) -> list[str]:
    head = f"{UNIT} " if pair.waterfall.per_token else ""
    lines = [
        f"| {head}| A | B | difference | share | noise band | verdict |",
        "| :-- | --: | --: | --: | --: | --: | :-- |",
    ]
    for name, judged in pair.judgements.items():
        cells = [
            METRICS[name],
            *_format_both(judged),
            _format_difference(judged),
            _format_share(judged),
        ]
        cells += [_format_band(judged), judged.verdict]
        lines.append("| " + " | ".join(map(escape_markdown, cells)) + " |")
    return lines


# ----------------------------------------------------------------------------------------------------------------- JSON


def as_json(comparison: Comparison, checked: Checked, code: int) -> str:
    """Return JSON with the keys of the page of outputs. Times are nanoseconds, sizes bytes, energy J, throughput tokens
    a second."""
    alignment = comparison.alignment
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "first": _make_side(comparison.first.label, comparison.first.notes, alignment.only_first),
            "second": _make_side(comparison.second.label, comparison.second.notes, alignment.only_second),
            "differences": _make_differences(alignment),
            "settings": {name: list(values) for name, values in alignment.settings.items()},
            "per_token": alignment.per_token,
            "noise": comparison.noise_source,
            "cautions": list_cautions(comparison),
            "pairs": [_make_pair(pair) for pair in comparison.pairs],
            "conditions": [
                {"condition": condition.text, "pair": number, "code": outcome.code, "text": outcome.text}
                for condition, outcomes in checked
                for number, outcome in enumerate(outcomes)
            ],
            "exit_code": code,
        },
        indent=2,
    )


def _make_side(label: str, notes: list[str], alone: dict[str, str]) -> dict[str, Any]:
    return {"label": label, "notes": notes, "without_partner": alone}


def _make_differences(alignment: Alignment) -> dict[str, list[str]]:
    return {name: list(values) for name, values in alignment.differences.items()}


def _make_pair(pair: ComparedPair) -> dict[str, Any]:
    waterfall = pair.waterfall
    return {
        "case": pair.case.label,
        "first_runs": pair.case.first,
        "second_runs": pair.case.second,
        "clock": pair.clock,
        "turns": pair.turns and pair.turns.model_dump(),
        "parts_apart": explain_unequal_sum(pair) or None,
        "metrics": {
            name: {
                "first": judged.first,
                "second": judged.second,
                "difference": judged.difference,
                "share": judged.share,
                "band": None if math.isinf(judged.band) else judged.band,
                "smallest_seen": None if math.isinf(judged.band) else judged.smallest_seen,
                "verdict": judged.verdict,
            }
            for name, judged in pair.judgements.items()
        },
        "waterfall": {
            "steps": waterfall.num_steps,
            "tokens": waterfall.num * TOKENS if waterfall.per_token else None,
            "first_ns": waterfall.first_ns,
            "second_ns": waterfall.second_ns,
            "difference_ns": waterfall.difference_ns,
            "causes": [
                {"kind": cause.kind, "phase": cause.phase, "module": cause.module, "families": cause.families}
                | {"text": cause.text, "difference_ns": cause.ns, "band_ns": cause.band_ns}
                for cause in waterfall.causes
            ],
            "kernels": waterfall.groups.to_dict("records"),
            "num_names_of_one_side": len(waterfall.names),
            "names_of_one_side": waterfall.names.head(2 * MOST_NAMED).to_dict("records"),
        },
    }
