"""Conditions that make a comparison fail, such as `step > 3%`, for continuous integration."""

import math
import re
from dataclasses import dataclass
from typing import cast

from analysis.comparison.errors import NotComparable
from analysis.comparison.noise import num_processes_for
from analysis.comparison.verdict import METRICS, Judgement, Metric, Pair
from analysis.show.values import energy_text, size_text, time_text

WITHIN, BEYOND, UNKNOWN = 0, 1, 3
"""Exit codes. 2 is for what cannot be compared."""
LIMITED = [metric for metric in METRICS if metric != "throughput"]
"""Metrics of which more is worse."""
MORE_PROCESSES = "; more processes of each would be (`processes` of a sweep)"
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_UNITS: dict[Metric, dict[str, float]] = {
    "memory": {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "energy": {"mJ": 1e-3, "J": 1.0, "kJ": 1e3},
}
"""Those of limits, by metric; of others _TIMES."""
_CONDITION = re.compile(r"\s*(\w+)\s*>\s*(\d+(?:\.\d+)?)\s*(%|\w+)\s*")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Fails where `metric` grows by more than `limit`: a share of A, or ns, bytes or J."""

    text: str
    metric: Metric
    limit: float
    is_share: bool

    def limit_of(self, judged: Judgement) -> float:
        return self.limit * judged.first if self.is_share else self.limit


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """code: WITHIN, BEYOND or UNKNOWN. text: one line that says why."""

    code: int
    text: str


def parse_condition(text: str) -> Condition:
    """Raises NotComparable where it is no condition."""
    match = _CONDITION.fullmatch(text)
    how = f'give METRIC > LIMIT such as "step > 3%" or "memory > 100 MiB"; metrics are {", ".join(LIMITED)}'
    if not match or match[1] not in METRICS:
        raise NotComparable(f"--fail-if {text}: not understood; {how}")
    if match[1] == "throughput":
        raise NotComparable(f"--fail-if {text}: throughput follows from the step; give a limit of step")
    metric, number, unit = cast(Metric, match[1]), float(match[2]), match[3]
    units = _UNITS.get(metric, _TIMES)
    if unit != "%" and unit not in units:
        raise NotComparable(f"--fail-if {text}: {unit} is no unit of {metric}; use % or {', '.join(units)}")
    factor = 0.01 if unit == "%" else units[unit]
    return Condition(text=text.strip(), metric=metric, limit=number * factor, is_share=unit == "%")


def check(condition: Condition, pairs: list[Pair]) -> list[Outcome]:
    """The outcome of each pair. Raises NotComparable where the metric is not known of one."""
    return [_check_pair(condition, pair) for pair in pairs]


def _check_pair(condition: Condition, pair: Pair) -> Outcome:
    judged = pair.judgements.get(condition.metric)
    if judged is None:
        what = METRICS[condition.metric]
        raise NotComparable(f"--fail-if {condition.text}: {what} is not recorded on both sides; leave it out")
    limit, off, band = condition.limit_of(judged), judged.difference, judged.band
    in_words = {"memory": size_text, "energy": energy_text}.get(condition.metric, time_text)
    said = f"{METRICS[condition.metric]} {'+' if off >= 0 else ''}{in_words(off)} against a limit of {in_words(limit)}"
    if abs(off) <= band and band > limit:
        known = "no noise band is known" if math.isinf(band) else f"the noise band is ±{in_words(band)}"
        remedy = MORE_PROCESSES if condition.metric == "energy" else _remedy(band, limit, pair)
        return Outcome(code=UNKNOWN, text=f"{said}, and {known}: not enough data to tell{remedy}")
    if off > limit:
        return Outcome(code=BEYOND, text=f"{said}: beyond")
    return Outcome(code=WITHIN, text=f"{said}: within")


def _remedy(band: float, limit: float, pair: Pair) -> str:
    processes = pair.first.num_processes, pair.second.num_processes
    if pair.clock == "nsys":
        return "; compare recordings, which have unprofiled steps, or more steps of each"
    if not limit:
        return "; no number of processes makes it 0: give a limit"
    return f"; about {num_processes_for(band, processes, limit)} processes of each would (`repeats` of a sweep)"
