"""Two measurements side by side, B compared with A: what `profiler-job compare` prints, as pages.

One page has all pairs; where there are several, each has a page of its own that says why it differs. Numbers, verdicts
and sentences come from `analysis.comparison`.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from profiler_job.analysis.comparison import compare_formats
from profiler_job.analysis.comparison.choices import Metric
from profiler_job.analysis.comparison.judge import METRICS, ComparedPair, Comparison, Judgement
from profiler_job.analysis.comparison.pair_answers import advise_pair, describe_pair, describe_pairs, explain_pair
from profiler_job.analysis.comparison.waterfall import MANY, Cause, Waterfall
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.kernel_time import OUTSIDE
from profiler_job.analysis.pages.extreme_rows import noise_of
from profiler_job.analysis.render.answer import Answer, Chart, Column, Table, assemble
from profiler_job.jobs.contract.axes import find_value_label, find_value_name
from profiler_job.jobs.contract.printable import make_printable

SLUG = "comparison"
DRAWN = 10
"""Parts of a difference in a drawing, as many as in the text of `compare`."""
SERIES = ["shorter", "longer", "within noise, or the rest", "in all"]
_UNITS = {"memory": "bytes", "throughput": "", "energy": "J"}
LIMIT = "noise limit, ±"
"""The column of what a part must exceed: its noise band, or several (`waterfall.MANY`)."""
LABEL = 26
"""Characters of a bar's label: there is room for them on a phone."""
MANY_PAIRS = 20


@dataclass(frozen=True, kw_only=True)
class Links:
    """Pages, as paths below docs without suffix: of the runs of A and of B by (letter, run_id), where they have one;
    of the pairs in their order; and of all of them (`comparison`). titles: of the runs, by the same."""

    comparison: str
    runs: Mapping[tuple[str, str], str]
    pairs: list[str]
    titles: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def title_of(self, letter: str, run_id: str) -> str:
        """What pages call a run: its title, or its id where nothing else is known of it."""
        return make_printable(self.titles.get((letter, run_id), run_id))

    def find_page(self, letter: str, run_ids: tuple[str, ...]) -> str:
        """The page of the first of these runs that has one; "" where none has."""
        return next((self.runs[letter, run] for run in run_ids if (letter, run) in self.runs), "")


def answer(comparison: Comparison, links: Links) -> Answer:
    """All pairs: in how many a metric differs, what each pair differs by, and runs without a partner."""
    pairs = comparison.pairs
    first, *others = pairs
    facts = _facts(comparison, links) | {
        "pair": None if others else _pair_facts(first, comparison, has_own_page=False),
        "answer": make_printable(describe_pairs(pairs)),
        "counts": [
            compare_formats.format_counts(pairs, metric) for metric in compare_formats.list_counted_metrics(pairs)
        ],
        "metrics": _choose_metrics(pairs),
        "metric_names": {metric: _capitalise(METRICS[metric]) for metric in _choose_metrics(pairs)},
        "num_pairs": len(pairs),
        "modes": _count_modes(comparison),
        "is_shortened": len(pairs) > MANY_PAIRS,
        "apart": _capitalise(make_printable(compare_formats.list_unequal_sums(pairs))),
        "summary": _summary(comparison),
        "follows": _follows(pairs, links),
        "num_alone": len(comparison.alignment.only_first) + len(comparison.alignment.only_second),
    }
    tables = [_alone(comparison, links)]
    if not others:
        return assemble(facts, [], [*tables, *_pair_tables(first, links)], _pair_charts(first))
    tables += [_metric_table(metric, pairs, links) for metric in _choose_metrics(pairs)]
    return assemble(facts, [], tables, [_ratios(pairs)])


def _count_modes(comparison: Comparison) -> list[tuple[str, int]]:
    """Count the pairs of each mode, most first, if there are several: `training step`, 26."""
    if "mode" not in comparison.first.runs:
        return []
    modes = comparison.first.runs.set_index("run_id")["mode"].astype(str)
    counts = Counter(find_value_label("mode", modes[pair.case.first[0]]) for pair in comparison.pairs)
    return counts.most_common() if len(counts) > 1 else []


def _choose_metrics(pairs: list[ComparedPair]) -> list[Metric]:
    """Metrics that have a table. Of many pairs those that others tell have none, or the page is too large to load."""
    following = ("throughput", "busy") if len(pairs) > MANY_PAIRS else ()
    return [metric for metric in compare_formats.list_metrics(pairs) if metric not in following]


def answer_pair(comparison: Comparison, pair: ComparedPair, links: Links) -> Answer:
    """One of several pairs, and why it differs."""
    facts = _facts(comparison, links) | {"pair": _pair_facts(pair, comparison, has_own_page=True), "num_alone": 0}
    return assemble(facts, [], _pair_tables(pair, links), _pair_charts(pair))


def counterparts(comparison: Comparison, links: Links) -> dict[str, list[dict[str, Any]]]:
    """What the page of a run shows of the run that it is compared with, by the path of the page: which side it is
    (`letter`), the other side's `other` and `label`, which tells the two sides from each other, the `page` of its run
    ("" where there is none), where the two are compared (`why`), and step and kernel time of both in words (`said`)."""
    names = dict(zip("AB", _name_sides(comparison), strict=True))
    said: dict[str, list[dict[str, Any]]] = {}
    for pair, why in zip(comparison.pairs, links.pairs, strict=True):
        runs = {"A": pair.case.first, "B": pair.case.second}
        words = [compare_formats.format_metric(pair.judgements[name]) for name in ("step", "kernel")]
        for letter, other in (("A", "B"), ("B", "A")):
            page = links.find_page(other, runs[other])
            entry = {"letter": letter, "other": other, "label": names[other], "page": page}
            for run in runs[letter]:
                if (letter, run) in links.runs:
                    said.setdefault(links.runs[letter, run], []).append(entry | {"why": why, "said": words})
    return said


# ---------------------------------------------------------------- facts


def _name_sides(comparison: Comparison, form: str = "{} ({})") -> tuple[str, str]:
    """Name both sides by their labels and by what they differ in. form: of both, if the labels differ, too."""
    first, second = (make_printable(side.label) for side in (comparison.first, comparison.second))
    if differences := comparison.alignment.differences:  # the same recording may be both sides
        values = [[str(find_value_name(axis, value)) for value in of] for axis, of in differences.items()]
        named = [", ".join(of) for of in zip(*values)]
        of_one = first == second
        first, second = named if of_one else map(form.format, (first, second), named)
    return first, second


def _facts(comparison: Comparison, links: Links) -> dict[str, Any]:
    first, second = _name_sides(comparison)
    noises = comparison.noise, comparison.noise.least
    return {
        "page": links.comparison,
        "first": first,
        "second": second,
        "about": compare_formats.describe_sides(comparison, with_alone=False),
        "noises": [noise_of(Bands(kernel=noise.kernel, wall=noise.wall)) for noise in noises if noise],
        "memory_noise": comparison.noise.memory_share,
        "many_bands": MANY,
    }


def _summary(comparison: Comparison) -> list[str]:
    """What other pages say about the comparison."""
    pairs = comparison.pairs
    return [make_printable(describe_pair(pairs[0]) if len(pairs) == 1 else describe_pairs(pairs))]


def _follows(pairs: list[ComparedPair], links: Links) -> dict[str, Any] | None:
    """Of how many steps it is known whether they differ (`num_known`), and how many do (`num_real`); the
    `label` and the `page` of the one that differs most. None where nothing is known."""
    judged = [
        (pair.judgements["step"], pair, page) for pair, page in zip(pairs, links.pairs) if "step" in pair.judgements
    ]
    known = [item for item in judged if not math.isinf(item[0].band)]
    real = [item for item in known if item[0].is_real]
    if not known:
        return None
    facts = {"num_known": len(known), "num_real": len(real)}
    if not real:
        return facts
    most, pair, page = max(real, key=lambda item: abs(item[0].share or 0.0))
    return facts | {"label": make_printable(pair.case.label), "page": page, "share": most.share}


def _pair_facts(pair: ComparedPair, comparison: Comparison, has_own_page: bool) -> dict[str, Any]:
    return {
        "has_own_page": has_own_page,
        "label": make_printable(pair.case.label),
        "headline": make_printable(describe_pair(pair, *_name_sides(comparison, "{}, {}"))),
        "why": make_printable(explain_pair(pair)),
        "advice": advise_pair(pair),
        "total": _capitalise(compare_formats.format_total(pair)),
        "apart": compare_formats.explain_unequal_sum(pair),
    }


def _capitalise(words: str) -> str:
    return words[:1].upper() + words[1:]


# ---------------------------------------------------------------- all pairs


def _metric_table(metric: Metric, pairs: list[ComparedPair], links: Links) -> Table:
    known = [(pair, why) for pair, why in zip(pairs, links.pairs, strict=True) if metric in pair.judgements]
    kind = {"memory": "mib", "throughput": "count", "energy": "amount"}.get(metric, "ms")
    rows = [_describe_pair(pair, why, links) | _word_judgement(pair.judgements[metric]) for pair, why in known]
    columns = (
        Column("runs", "runs", "page"),
        Column("page_of_first", "A", "page"),
        Column("page_of_second", "B", "page"),
        Column("first", "A", kind),
        Column("second", "B", kind),
        Column("difference", "difference", kind),
        Column("share", "of A", "share", absent="n/a"),
        Column("band", "noise band, ±", kind, absent="not known"),
        Column("seen", "smallest change found", "share", absent="n/a"),
        Column("is_real", "measurable", "yes_no"),
        Column("verdict", "verdict"),
    )
    title = f"{_capitalise(METRICS[metric])} of every pair{', J' if metric == 'energy' else ''}"
    is_per_token = bool(known) and known[0][0].judgements[metric].per_token
    return Table(metric, f"{title}, per {compare_formats.UNIT}" if is_per_token else title, columns, pd.DataFrame(rows))


def _describe_pair(pair: ComparedPair, why: str, links: Links) -> dict[str, Any]:
    """The columns that name a pair, each with where it leads."""
    named: dict[str, Any] = {"runs": make_printable(pair.case.label), "runs_leads_to": why}
    for letter, which, run_ids in (("A", "first", pair.case.first), ("B", "second", pair.case.second)):
        page = links.find_page(letter, run_ids)
        named |= {f"{which}_runs": ", ".join(map(make_printable, run_ids))}
        named |= {f"page_of_{which}": "run" if page else "no page", f"page_of_{which}_leads_to": page}
    return named


def _word_judgement(judged: Judgement) -> dict[str, Any]:
    band = None if math.isinf(judged.band) else judged.band
    return {
        "first": judged.first,
        "second": judged.second,
        "difference": judged.difference,
        "low": None if band is None else judged.difference - band,
        "high": None if band is None else judged.difference + band,
        "share": judged.share,
        "band": band,
        "seen": None if band is None or not judged.first else judged.smallest_seen / judged.first,
        "is_real": judged.is_real,
        "verdict": judged.verdict,
    }


def _shorten_label(label: str) -> str:
    """Shorten the label of a pair for a figure: `small · 1024 · batch 4 · train`, since a narrow one cuts it."""
    label = re.sub(r" context (?=\d)", " · ", label)
    label = re.sub(r" batch (?=\d)", " · batch ", label)
    return label.replace(" training step", " · train").replace(" forward pass", " · fwd")


def _ratios(pairs: list[ComparedPair]) -> Chart:
    """How many times as fast steps and kernels are in B as in A, of each pair."""
    rows = [
        {
            "runs": _shorten_label(make_printable(pair.case.label)),
            "clock": METRICS[metric],
            "value": judged.times_as_fast,
        }
        for pair in pairs
        for metric, judged in pair.judgements.items()
        if metric in ("step", "kernel") and judged.first and judged.second
    ]
    options = {"order": [METRICS["kernel"], METRICS["step"]], "by": ["runs"], "value": "value"}
    rows_of = pd.DataFrame(rows, columns=["runs", "clock", "value"])
    return Chart(
        "ratios",
        "dumbbell",
        "How many times as fast B is, pair by pair",
        rows_of,
        options=options | {"unit": "times as fast (log scale)"},
    )


def _alone(comparison: Comparison, links: Links) -> Table:
    """Runs without a partner."""
    sides = {"A": comparison.alignment.only_first, "B": comparison.alignment.only_second}
    rows = [
        {"side": letter, "run": links.title_of(letter, run), "why": why or "no such run on the other side"}
        for letter, alone in sides.items()
        for run, why in alone.items()
    ]
    columns = (Column("side", "of"), Column("run", "run"), Column("why", "why", "words"))
    return Table("alone", "Runs that are not compared", columns, pd.DataFrame(rows, columns=["side", "run", "why"]))


# ---------------------------------------------------------------- one pair


def _pair_tables(pair: ComparedPair, links: Links) -> list[Table]:
    metrics = [
        {"metric": METRICS[metric], "unit": _UNITS.get(metric, "ns")} | _word_judgement(judged)
        for metric, judged in pair.judgements.items()
    ]
    waterfall = pair.waterfall
    per = f", per {compare_formats.UNIT}" if waterfall.per_token else ""
    of = f"{compare_formats.UNIT} of a profiled step" if waterfall.per_token else "a profiled step"
    return [
        Table(
            "metrics",
            f"Every metric of A and B{per}",
            (
                Column("metric", "metric"),
                Column("first", "A", "quantity"),
                Column("second", "B", "quantity"),
                Column("difference", "difference", "change"),
                Column("share", "of A", "share", absent="n/a"),
                Column("band", "noise band, ±", "quantity", absent="not known"),
                Column("seen", "smallest change found", "share", absent="n/a"),
                Column("is_real", "measurable", "yes_no"),
                Column("verdict", "verdict"),
            ),
            pd.DataFrame(metrics),
        ),
        Table("pages", "The runs", _page_columns(), pd.DataFrame(_pages(pair, links))),
        Table(
            "parts",
            f"What the difference of {of} is made of",
            (
                Column("bar", "bar", "count", absent=" "),
                Column("part", "part", "words"),
                Column("difference_ns", "difference", "ms"),
                Column("band_ns", LIMIT, "ms", absent=" "),
                Column("is_real", "measurable", "yes_no", absent=" "),
            ),
            pd.DataFrame(_parts(waterfall)),
        ),
        _kernel_table("phases", f"Kernel time by phase{per}", waterfall.by_phase, waterfall),
        _kernel_table("modules", f"Kernel time by phase and module{per}", waterfall.by_module, waterfall),
    ]


def _page_columns() -> tuple[Column, ...]:
    return Column("side", "of"), Column("run", "run", "page")


def _pages(pair: ComparedPair, links: Links) -> list[dict[str, str]]:
    return [
        {"side": letter, "run": links.title_of(letter, run), "run_leads_to": links.runs.get((letter, run), "")}
        for letter, runs in (("A", pair.case.first), ("B", pair.case.second))
        for run in runs
    ]


def _parts(waterfall: Waterfall) -> list[dict[str, Any]]:
    """All parts, and what they sum to."""
    num = waterfall.num
    bars = _number_bars(waterfall)
    rows = [
        {
            "bar": bars.get(id(cause)),
            "kind": cause.kind,
            "phase": make_printable(cause.phase),
            "module": make_printable(cause.module),
            "part": make_printable(cause.text),
            "difference_ns": cause.ns / num,
            "band_ns": cause.band_ns / num,
            "is_real": cause.is_real,
        }
        for cause in waterfall.causes
    ]
    total = {"bar": None, "kind": "total", "phase": "", "module": "", "part": "in all", "band_ns": None}
    return [*rows, total | {"difference_ns": waterfall.difference_ns / num, "is_real": None}]


def _kernel_table(key: str, title: str, sums: pd.DataFrame, waterfall: Waterfall) -> Table:
    """Kernels of a step: how many, and their time, or their time for so many tokens."""
    off = sums["second_ns"] - sums["first_ns"]
    rows = sums.assign(difference_ns=off, is_real=off.abs() > sums["band_ns"])
    calls, times = ["first_calls", "second_calls"], ["first_ns", "second_ns", "difference_ns", "band_ns"]
    rows[calls] = rows[calls] / waterfall.num_steps
    rows[times] = rows[times] / waterfall.num
    rows["phase"] = rows["phase"].map(make_printable).replace("", "outside phases")
    columns = [Column("phase", "phase")]
    if "module" in rows:
        rows["module"] = rows["module"].map(make_printable).replace("", OUTSIDE)
        columns.append(Column("module", "module"))
    columns += [
        Column("first_calls", "kernels, A", "count"),
        Column("second_calls", "B", "count"),
        Column("first_ns", "kernel time, A", "ms"),
        Column("second_ns", "B", "ms"),
        Column("difference_ns", "difference", "ms"),
        Column("band_ns", LIMIT, "ms"),
        Column("is_real", "measurable", "yes_no"),
    ]
    if "fused_into" in rows and (rows["fused_into"] != "").any():
        rows["fused_into"] = rows["fused_into"].map(make_printable)
        columns.append(Column("fused_into", "fused into", "words", absent=" "))
    return Table(key, title, tuple(columns), rows)


def _pair_charts(pair: ComparedPair) -> list[Chart]:
    title = "From a profiled step of A to one of B"
    if pair.waterfall.per_token:
        title = f"From {compare_formats.UNIT} of A to as many of B"
    return [
        Chart(
            "waterfall",
            "waterfall",
            title,
            pd.DataFrame(_bars(pair.waterfall)),
            options={"order": SERIES},
        )
    ]


def _bars(waterfall: Waterfall) -> list[dict[str, Any]]:
    """Bars that begin where the one above ends, of the first parts and the rest, and one for their sum: label, text,
    series, begin_ns and end_ns of a step (or of so many tokens), off what A takes."""
    at, num = 0, waterfall.num
    bars: list[dict[str, Any]] = []
    numbers = _number_bars(waterfall)
    for cause in waterfall.shorten(DRAWN):
        number = numbers.get(id(cause))
        label = f"{number} {_short(cause)}" if number else cause.text.split(",")[0].removeprefix("the ")
        series = SERIES[cause.ns > 0] if cause.is_real and cause.kind != "rest" else SERIES[2]
        place = {"begin_ns": at / num, "end_ns": (at + cause.ns) / num}
        bars.append({"label": label, "text": make_printable(cause.text), "series": series} | place)
        at += cause.ns
    return [*bars, {"label": "in all", "text": "in all", "series": SERIES[3], "begin_ns": 0.0, "end_ns": at / num}]


def _number_bars(waterfall: Waterfall) -> dict[int, int]:
    """Number the parts that are drawn as bars of their own, from above, by their id."""
    parts = {id(cause) for cause in waterfall.causes}
    drawn = [id(cause) for cause in waterfall.shorten(DRAWN) if id(cause) in parts]
    return {part: number for number, part in enumerate(drawn, 1)}


def _short(cause: Cause) -> str:
    """Where a part is, in few characters."""
    what = {"idle": "idle", "copies": "copies", "overlap": "at once"}.get(cause.kind, cause.module.rsplit("/", 1)[-1])
    words = ", ".join(part for part in (cause.phase, what) if part and part != OUTSIDE) or "outside phases"
    words = make_printable(words)
    return words if len(words) <= LABEL else f"{words[: LABEL - 1]}…"
