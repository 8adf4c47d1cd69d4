"""The forms in which a comparison is printed: text for a terminal, Markdown for a pull request, JSON.

What is inside recordings and captures is not trusted: names are made harmless in text and Markdown.
"""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from profiler_job.analysis.comparison.align import NO_SHAPES, Alignment
from profiler_job.analysis.comparison.gate import Condition, Outcome
from profiler_job.analysis.comparison.judge import METRICS, WITHIN, Comparison, Judgement, Measured, Metric, Pair
from profiler_job.analysis.comparison.noise import ENERGY
from profiler_job.analysis.comparison.sides import shortlist
from profiler_job.analysis.comparison.waterfall import TOKENS, Cause, Waterfall
from profiler_job.analysis.metrics.differences import is_beyond_chance
from profiler_job.analysis.show.show_formats import escaped
from profiler_job.analysis.show.values import energy_text, printable, shortened, size_text, time_text
from profiler_job.jobs.contract.axes import find_label
from profiler_job.jobs.contract.words import format_count

WIDTH = 80
FEW = 5
"""Runs without a partner, and pairs with another sum, that are named in text and Markdown."""
NAMED, MOST_NAMED = 3, 100
"""Kernels that only one side has: so many of each are named in text, and in Markdown and JSON."""
Checked = Sequence[tuple[Condition, Sequence[Outcome]]]
"""The conditions of the gate, each with its outcome for each pair."""
UNIT = f"{TOKENS:,} tokens"
BAND_WORDS = {WITHIN: "within the noise band"}
"""How verdicts are said where they are counted, if not by their own word."""


# ---------------------------------------------------------------------------------------------------------------- words


def headline(pair: Pair) -> str:
    """The verdict in a sentence: the step, the GPU's work and the host apart."""
    step = pair.judgements["step"]
    clock = "" if pair.clock == "timer" else " (under nsys)"
    if step.is_real:
        both = f"{_value(step, step.first)} -> {_value(step, step.second)}{_per(step)}"
        said = f"B is {step.verdict}{clock}: {both}, {_share(step)}"
    else:
        what = f"the step{_per(step)}{clock}"
        said = f"{what}: {_off(step)}, {verdict_text(step)}"
        said = said[:1].upper() + said[1:]
    apart = [pair.judgements["kernel"], pair.judgements["idle"]]
    kernel, idle = (f"{_off(judged)}, {verdict_text(judged)}" for judged in apart)
    return f"{said}. GPU work: {kernel}. GPU idle: {idle}."


def verdict_text(judged: Judgement) -> str:
    """The verdict in a sentence. A difference within its noise band may be large, if the band is."""
    if judged.verdict != WITHIN:
        return judged.verdict
    band = f"{100 * judged.band / judged.first:.1f}%" if judged.first else _value(judged, judged.band)
    return f"not beyond the noise band of {band}"


def _value(judged: Judgement, value: float) -> str:
    if judged.metric == "throughput":
        return f"{value:,.0f}"
    return {"memory": size_text, "energy": energy_text}.get(judged.metric, time_text)(value)


def _band(judged: Judgement) -> str:
    return "not known" if math.isinf(judged.band) else f"±{_value(judged, judged.band)}"


def _per(judged: Judgement) -> str:
    return f" per {UNIT}" if judged.per_token else ""


def _off(judged: Judgement) -> str:
    return f"{'+' if judged.difference >= 0 else ''}{_value(judged, judged.difference)}"


def _share(judged: Judgement) -> str:
    return "n/a" if judged.share is None else f"{100 * judged.share:+.1f}%"


def _ms(ns: float, num: int, sign: str = "+") -> str:
    """In milliseconds, so that parts are seen to sum; what would be 0 there is in nanoseconds. sign: as in a format."""
    return f"{ns / num:{sign}.1f} ns" if ns and abs(ns / num) < 500 else f"{ns / num / 1e6:{sign}.3f} ms"


def _processes(measured: Measured) -> str:
    profiled = format_count(measured.num_profiled, "profiled step")
    if not measured.num_steps:
        return profiled
    return f"{format_count(measured.num_processes, 'process')}, {format_count(measured.num_steps, 'step')}, {profiled}"


def about(comparison: Comparison, *, with_alone: bool = True) -> list[str]:
    """What is compared, one fact a line. with_alone: also which runs have no partner."""
    alignment, pairs = comparison.alignment, comparison.pairs
    lines = [
        f"A is {comparison.first.label} ({_processes(pairs[0].first)}{' in each run' if len(pairs) > 1 else ''})",
        f"B is {comparison.second.label} ({_processes(pairs[0].second)}{' in each run' if len(pairs) > 1 else ''})",
    ]
    if not alignment.differences and not comparison.first.is_capture and not comparison.second.is_capture:
        lines.append("The runs of A and B have the same axes")
    for name, (first, second) in (alignment.differences | alignment.settings).items():
        lines.append(f"{find_label(name)}: A has {first or 'none'}, B has {second or 'none'}")
    if len(pairs) == 1:
        lines.append(f"compared: {pairs[0].case.label}")
    if alignment.per_token:
        times = "times, energy" if "energy" in metrics_of(pairs) else "times"
        lines.append(f"{times} and their noise bands are per {UNIT}; peak allocated and kernel counts are of a step")
    for letter, alone in (("A", alignment.only_first), ("B", alignment.only_second)):
        if alone and with_alone:
            by_reason = sorted(alone.items(), key=lambda item: not item[1])  # what has a reason says more
            named = [f"{run} ({why})" if why else run for run, why in by_reason]
            lines.append(f"without a partner in {letter}, {format_count(len(named), 'run')}: {shortlist(named, FEW)}")
    lines += cautions(comparison)
    lines.append(f"noise band: {comparison.noise_source}")
    if energies := [pair.judgements["energy"] for pair in pairs if "energy" in pair.judgements]:
        known = f"the larger of how far the processes of a side lie apart, and those of {ENERGY.source}"
        unknown = "no noise band known, since there is one process of each"
        lines.append(f"noise band of energy: {unknown if math.isinf(energies[0].band) else known}")
    for letter, side in (("A", comparison.first), ("B", comparison.second)):
        lines += [f"{letter}: {note}" for note in side.notes]
    return [printable(line) for line in lines]


def cautions(comparison: Comparison) -> list[str]:
    """What speaks against a comparison that is made all the same."""
    said = []
    if comparison.first.is_capture or comparison.second.is_capture:
        said.append(NO_SHAPES)
    if all(pair.is_of_one_measurement for pair in comparison.pairs):
        said.append("every time of A is that of B to the nanosecond: one is a copy of the other, not a measurement")
    return said


def total_text(pair: Pair) -> str:
    waterfall = pair.waterfall
    first, second = (time_text(ns / waterfall.num) for ns in (waterfall.first_ns, waterfall.second_ns))
    of = f"{UNIT} of a profiled step" if waterfall.per_token else "a profiled step"
    sums = ", ".join(f"{sort} {_ms(ns, waterfall.num)}" for sort, ns in waterfall.sums.items())
    made_of = f" ({sums})" if sums else ""
    if not pair.has_steps:
        return f"the capture, from its first to its last event, went from {first} to {second}{made_of}"
    return f"{of} (its range under nsys) went from {first} to {second}{made_of}"


def parts_apart_text(pair: Pair) -> str:
    """That the parts sum to another difference than that of the step, and which one to believe; "" where they do
    not."""
    if not pair.has_parts_apart:
        return ""
    step, waterfall = pair.judgements["step"], pair.waterfall
    verdict, parts = _ms(step.difference, 1), _ms(waterfall.difference_ns, waterfall.num)
    none = ". No part of it explains that" if pair.is_unexplained else ""
    if pair.clock == "nsys":
        return f"The median step differs by {verdict}, and the parts are of all steps: they sum to {parts}{none}"
    both = f"Unprofiled, a step{_per(step)} differs by {verdict}; under nsys, which slows the host, by {parts}"
    where = "and none of them explains the first" if none else "the parts say where"
    return f"{both}, which is what the parts sum to. The first says how much, {where}"


def parts_apart_line(pairs: Sequence[Pair]) -> str:
    """Of several pairs, those whose parts sum to another difference than that of the step; "" where there is none."""
    apart = [pair.case.label for pair in pairs if pair.has_parts_apart]
    if not apart:
        return ""
    where = f"in {len(apart)} of {format_count(len(pairs), 'pair')}"
    what = "the unprofiled step differs otherwise than the profiled one, of which the parts are"
    return f"{where} {what} (in sign, or by more than a tenth): {shortlist(apart, FEW)}"


def metric_line(judged: Judgement) -> str:
    """A metric of both sides, and whether it differs."""
    first, second, band = (_value(judged, value) for value in (judged.first, judged.second, judged.band))
    where = "beyond" if judged.is_real else "within"
    said = f"{METRICS[judged.metric]}{_per(judged)} {first} in A, {second} in B, {where} the noise band"
    return f"{said} ({_off(judged)}, band ±{band})"


def cause_text(cause: Cause) -> str:
    return cause.text if cause.is_real or cause.kind == "rest" else f"{cause.text} (within noise)"


def counts_line(pairs: Sequence[Pair], metric: Metric) -> str:
    """How many pairs are of which verdict, and whether that many may differ by chance."""
    known = [pair.judgements[metric] for pair in pairs if metric in pair.judgements]
    verdicts = [judged.verdict for judged in known]
    words = [
        word for word in dict.fromkeys(("faster", "less", WITHIN, "slower", "more", "unknown")) if word in verdicts
    ]
    said = ", ".join(f"{verdicts.count(word)} {BAND_WORDS.get(word, word)}" for word in words)
    real = [judged for judged in known if judged.is_real]
    if real and not is_beyond_chance(len(real), len(known)) and not any(judged.is_clear for judged in real):
        said += " (so many may differ by chance)"
    return f"{METRICS[metric]}{_per(known[0])}: {said}"


# ----------------------------------------------------------------------------------------------------------------- text


def as_text(comparison: Comparison, checked: Checked, top: int) -> str:
    """For a terminal of 80 columns. top: causes of a pair, 0 for all."""
    lines: list[str] = []
    for line in about(comparison):
        lines += _wrapped(line)
    if len(comparison.pairs) > 1:
        lines.append("")
        for metric in counted_metrics(comparison.pairs):
            lines += _wrapped(counts_line(comparison.pairs, metric))
    for pair in comparison.pairs:
        lines.append("")
        if len(comparison.pairs) > 1:
            lines += [printable(pair.case.label), *_wrapped(headline(pair), "  ")]
            lines += _apart(pair, "  ")
            lines += [line for cause in pair.waterfall.first_causes for line in _part(pair.waterfall, cause)]
        else:
            lines += [*_wrapped(headline(pair)), "", *_table(pair), "", *_why(pair, top)]
    if checked:
        lines.append("")
    for condition, case, outcome in _outcomes(comparison, checked):
        lines += _wrapped(f"{condition.text}{case}: {outcome.text}")
    return "\n".join(lines)


def _outcomes(comparison: Comparison, checked: Checked) -> Iterator[tuple[Condition, str, Outcome]]:
    for condition, outcomes in checked:
        for pair, outcome in zip(comparison.pairs, outcomes):
            yield condition, f", {printable(pair.case.label)}" if len(comparison.pairs) > 1 else "", outcome


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        line, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    ) or [""]


def _table(pair: Pair) -> list[str]:
    head = UNIT if pair.waterfall.per_token else ""
    rows = [[head, "A", "B", "difference", "", "noise band", "verdict"]]
    rows += [
        [
            METRICS[name],
            _value(judged, judged.first),
            _value(judged, judged.second),
            _off(judged),
            _share(judged),
            _band(judged),
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


def _why(pair: Pair, top: int) -> list[str]:
    waterfall, lines = pair.waterfall, [*_wrapped(f"Why: {total_text(pair)}"), *_apart(pair)]
    for cause in waterfall.shortened(top):
        lines += _part(waterfall, cause)
    lines += _line(waterfall, waterfall.difference_ns, "in all")
    for words, names, calls, ns in _names_of_one_side(pair):
        lines += ["", *_wrapped(words)]
        for row in names[:NAMED]:
            count = f"{_count(getattr(row, calls), waterfall)} x "
            name = shortened(printable(row.kernel_name), WIDTH - 18 - len(count))
            lines.append(f"{_ms(getattr(row, ns), waterfall.num, ''):>16}  {count}{name}")
    return lines


def _names_of_one_side(pair: Pair) -> Iterator[tuple[str, list[Any], str, str]]:
    """Of kernels that vanished, and of those that appeared: how many names and how much time, their rows of
    Waterfall.names, and the columns of their calls and time."""
    names, num = pair.waterfall.names, pair.waterfall.num
    for said, side, other in (("vanished: A has", "first", "second"), ("appeared: B has", "second", "first")):
        of_side = names[names[f"{other}_calls"] == 0]
        if len(of_side):
            time = f"{of_side[f'{side}_ns'].sum() / num / 1e6:.3f} ms"
            what = f"{said} {format_count(len(of_side), 'kernel name')} that the other has not, {time} in all"
            yield what, list(of_side.itertuples()), f"{side}_calls", f"{side}_ns"


def _count(calls: int, waterfall: Waterfall) -> str:
    """How often in a step."""
    return f"{calls / waterfall.num_steps:,.1f}".removesuffix(".0")


def _apart(pair: Pair, indent: str = "") -> list[str]:
    return _wrapped(parts_apart_text(pair), indent) if pair.has_parts_apart else []


def _part(waterfall: Waterfall, cause: Cause) -> list[str]:
    return _line(waterfall, cause.ns, cause_text(cause))


def _line(waterfall: Waterfall, ns: int, text: str) -> list[str]:
    first, *others = textwrap.wrap(printable(text), WIDTH - 18, break_on_hyphens=False)
    return [f"{_ms(ns, waterfall.num):>16}  {first}", *(f"{'':18}{line}" for line in others)]


def metrics_of(pairs: Sequence[Pair]) -> list[Metric]:
    """Those that are known of any pair."""
    return [metric for metric in METRICS if any(metric in pair.judgements for pair in pairs)]


def counted_metrics(pairs: Sequence[Pair]) -> list[Metric]:
    """Those whose verdicts are counted: throughput has that of the step."""
    return [metric for metric in metrics_of(pairs) if metric != "throughput"]


# ------------------------------------------------------------------------------------------------------------- Markdown


def as_markdown(comparison: Comparison, checked: Checked, top: int) -> str:
    """Tables for a pull request."""
    pairs = comparison.pairs
    lines = ["### A against B", ""]
    lines += [f"- {escaped(line)}" for line in about(comparison)]
    if len(pairs) == 1:
        (pair,) = pairs
        lines += ["", f"**{escaped(headline(pair))}**", "", *_markdown_table(pair)]
        lines += ["", escaped(f"Why: {total_text(pair)}"), ""]
        lines += [escaped(parts_apart_text(pair)), ""] if pair.has_parts_apart else []
        lines += ["| difference | part |", "| --: | :-- |"]
        rows = [*((cause.ns, cause_text(cause)) for cause in pair.waterfall.shortened(top))]
        rows.append((pair.waterfall.difference_ns, "in all"))
        lines += [f"| {escaped(_ms(ns, pair.waterfall.num))} | {escaped(printable(text))} |" for ns, text in rows]
        for words, names, calls, ns in _names_of_one_side(pair):
            lines += ["", escaped(words), "", "| in a step | calls | kernel |", "| --: | --: | :-- |"]
            for row in names[:MOST_NAMED]:
                time, count = _ms(getattr(row, ns), pair.waterfall.num, ""), _count(getattr(row, calls), pair.waterfall)
                lines.append(f"| {time} | {count} | {escaped(printable(row.kernel_name))} |")
            lines += ["", _others(len(names))] if len(names) > MOST_NAMED else []
    else:
        lines += ["", *(f"- {escaped(counts_line(pairs, metric))}" for metric in counted_metrics(pairs))]
        steps = f"step{_per(pairs[0].judgements['step'])}"
        lines += ["", f"| runs | {steps} A | step B | change | verdict | GPU work | GPU idle | what changed |"]
        lines.append("| :-- | --: | --: | --: | :-- | :-- | :-- | :-- |")
        for pair in pairs:
            step, kernel, idle = (pair.judgements[name] for name in ("step", "kernel", "idle"))
            parts = pair.waterfall.first_causes
            cause = "; ".join(f"{_ms(part.ns, pair.waterfall.num)} {cause_text(part)}" for part in parts)
            cells = [pair.case.label, _value(step, step.first), _value(step, step.second), _share(step)]
            cells += [step.verdict, kernel.verdict, idle.verdict, cause]
            lines.append("| " + " | ".join(escaped(printable(cell)) for cell in cells) + " |")
        lines += ["", escaped(printable(apart))] if (apart := parts_apart_line(pairs)) else []
    if checked:
        lines += ["", "| condition | outcome |", "| :-- | :-- |"]
    for condition, case, outcome in _outcomes(comparison, checked):
        lines.append(f"| {escaped(condition.text + case)} | {escaped(outcome.text)} |")
    return "\n".join(lines) + "\n"


def _others(num: int) -> str:
    return f"The {format_count(num - MOST_NAMED, 'other')} of them take less time."


def _markdown_table(pair: Pair) -> list[str]:
    head = f"{UNIT} " if pair.waterfall.per_token else ""
    lines = [
        f"| {head}| A | B | difference | share | noise band | verdict |",
        "| :-- | --: | --: | --: | --: | --: | :-- |",
    ]
    for name, judged in pair.judgements.items():
        cells = [
            METRICS[name],
            _value(judged, judged.first),
            _value(judged, judged.second),
            _off(judged),
            _share(judged),
        ]
        cells += [_band(judged), judged.verdict]
        lines.append("| " + " | ".join(map(escaped, cells)) + " |")
    return lines


# ----------------------------------------------------------------------------------------------------------------- JSON


def as_json(comparison: Comparison, checked: Checked, code: int) -> str:
    """Keys are those of the guide's page. Times are nanoseconds, sizes bytes, energy J, throughput tokens a second."""
    alignment = comparison.alignment
    return json.dumps(
        {
            "first": _side(comparison.first.label, comparison.first.notes, alignment.only_first),
            "second": _side(comparison.second.label, comparison.second.notes, alignment.only_second),
            "differences": _differences(alignment),
            "settings": {name: list(values) for name, values in alignment.settings.items()},
            "per_token": alignment.per_token,
            "noise": comparison.noise_source,
            "cautions": cautions(comparison),
            "pairs": [_pair(pair) for pair in comparison.pairs],
            "conditions": [
                {"condition": condition.text, "pair": number, "code": outcome.code, "text": outcome.text}
                for condition, outcomes in checked
                for number, outcome in enumerate(outcomes)
            ],
            "exit_code": code,
        },
        indent=2,
    )


def _side(label: str, notes: list[str], alone: dict[str, str]) -> dict:
    return {"label": label, "notes": notes, "without_partner": alone}


def _differences(alignment: Alignment) -> dict[str, list[str]]:
    return {name: list(values) for name, values in alignment.differences.items()}


def _pair(pair: Pair) -> dict[str, Any]:
    waterfall = pair.waterfall
    return {
        "case": pair.case.label,
        "first_runs": pair.case.first,
        "second_runs": pair.case.second,
        "clock": pair.clock,
        "parts_apart": parts_apart_text(pair) or None,
        "metrics": {
            name: {
                "first": judged.first,
                "second": judged.second,
                "difference": judged.difference,
                "share": judged.share,
                "band": None if math.isinf(judged.band) else judged.band,
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
