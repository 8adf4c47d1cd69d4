"""Conditions that make a comparison fail, such as `step > 3%`, for continuous integration."""

import math
import re
from dataclasses import dataclass
from typing import cast

from profiler_job.analysis.comparison.choices import Metric
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.judge import METRICS, ComparedPair, Judgement, find_kind
from profiler_job.analysis.comparison.noise import MOST
from profiler_job.analysis.metrics.differences import is_beyond_chance
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.quantities import UNITS, Kind, format_quantity, format_share, parse_quantity

WITHIN, BEYOND, UNKNOWN = ExitCode.OK, ExitCode.FAILED, ExitCode.UNKNOWN
"""Exit codes. 2 is for what cannot be compared."""
LIMITED = [metric for metric in METRICS if metric != "throughput"]
"""Metrics for which more is worse."""
_MORE_OF: dict[str, tuple[str, str]] = {
    "processes": ("processes of each", "`processes` of a sweep"),
    "rounds": ("rounds of each", "`rounds` of a sweep"),
    "repeats": ("profiled repetitions of each", "`repeats` of a sweep"),
    "measured_steps": ("unprofiled steps of each", "`measured_steps` of a sweep"),
    "profiled_steps": ("profiled steps of each", "`profiled_steps` of a sweep"),
}
"""What makes a noise band narrower, by `Width.of`, and how a sweep file says it."""
_MORE_THAN_ANYONE_MEASURES = 30
"""Number of processes, repetitions or steps."""
_CONDITION = re.compile(r"\s*(\w+)\s*>\s*(\d+(?:\.\d+)?)\s*(%|\w+)\s*")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Fails if `metric` grows by more than `limit`: a share of A, or ns, bytes or J."""

    text: str
    metric: Metric
    limit: float
    is_share: bool

    def compute_limit(self, judged: Judgement) -> float:
        return self.limit * judged.first if self.is_share else self.limit


@dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """code: WITHIN, BEYOND or UNKNOWN. text: one line that says why."""

    code: int
    text: str


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises NotComparableError if `text` is not one."""
    match = _CONDITION.fullmatch(text)
    how = f'give METRIC > LIMIT such as "step > 3%" or "memory > 100 MiB"; metrics are {", ".join(LIMITED)}'
    if not match or match[1] not in METRICS:
        raise NotComparableError(ComparisonProblem.BAD_OPTION, f"--fail-if {text}: not understood; {how}")
    if match[1] == "throughput":
        raise NotComparableError(
            ComparisonProblem.BAD_OPTION, f"--fail-if {text}: throughput follows from the step; give a limit of step"
        )
    metric, unit = cast(Metric, match[1]), match[3]
    kind: Kind = "share" if unit == "%" else find_kind(metric)
    try:
        limit = parse_quantity(kind, f"{match[2]}{unit}")
    except ValueError:
        units = ", ".join(reversed(UNITS[kind]))
        raise NotComparableError(
            ComparisonProblem.BAD_OPTION, f"--fail-if {text}: {unit} is not a unit of {metric}; use % or {units}"
        ) from None
    return Condition(text=text.strip(), metric=metric, limit=limit, is_share=kind == "share")


def check(condition: Condition, pairs: list[ComparedPair]) -> list[GateOutcome]:
    """Check the condition on each pair. If no more pairs exceed the limit than chance allows, they count only if one of
    them clearly exceeds it. Raises NotComparableError if a pair lacks the metric."""
    outcomes = [_check_pair(condition, pair) for pair in pairs]
    beyond = [pair.judgements[condition.metric] for pair, made in zip(pairs, outcomes) if made.code == BEYOND]
    if len(pairs) < 2 or is_beyond_chance(len(beyond), len(pairs)) or any(judged.is_clear for judged in beyond):
        return outcomes
    chance = f" ({len(beyond)} of {len(pairs)} pairs, and so many may differ by chance): measure it again to tell"
    return [GateOutcome(code=UNKNOWN, text=made.text + chance) if made.code == BEYOND else made for made in outcomes]


def _check_pair(condition: Condition, pair: ComparedPair) -> GateOutcome:
    judged = pair.judgements.get(condition.metric)
    if judged is None:
        what = METRICS[condition.metric]
        raise NotComparableError(
            ComparisonProblem.NOT_RECORDED,
            f"--fail-if {condition.text}: {what} is not recorded on both sides; leave it out",
        )
    limit, off, band = condition.compute_limit(judged), judged.change, judged.band
    grown = format_quantity(judged.kind, off, is_signed=True)
    said = f"{METRICS[condition.metric]} {grown} against a limit of {format_quantity(judged.kind, limit)}"
    if abs(off) <= band and band > limit:
        known = (
            "no noise band is known" if math.isinf(band) else f"the noise band is ±{format_quantity(judged.kind, band)}"
        )
        remedy = _suggest_remedy(judged, limit, pair)
        return GateOutcome(code=UNKNOWN, text=f"{said}, and {known}: not enough data to tell; {remedy}")
    if off > limit:
        return GateOutcome(code=BEYOND, text=f"{said}: beyond")
    return GateOutcome(code=WITHIN, text=f"{said}: within")


def _suggest_remedy(judged: Judgement, limit: float, pair: ComparedPair) -> str:
    """Suggest how to make the band as narrow as the limit: more of the data it comes from, or something else if that
    does not help."""
    if not limit:
        return "no more data makes it 0: give a limit"
    is_of_captures = not (pair.first.num_steps and pair.second.num_steps)
    # The band of idle time is made of two; for the others this is the limit.
    wanted = limit * max(width.half for width in judged.widths) / judged.band if math.isfinite(judged.band) else limit
    wide = [width for width in judged.widths if width.half > wanted]
    kinds = list(dict.fromkeys(width.of for width in wide))
    if "seen" in kinds:
        return "it is what measurements of one run were seen to differ by: give a larger limit"
    if "range" in kinds:
        return (
            "the steps of a capture differ by that much, and more steps do not change it: leave uneven ones out with"
            " --skip N, or compare recordings of sweeps"
        )
    needed = {of: [width.num_for(wanted) for width in wide if width.of == of] for of in kinds}
    if any(None in nums for nums in needed.values()):
        not_enough = f"{MOST:,} {' or '.join(_MORE_OF[of][0] for of in kinds)} would not be enough"
        return f"{not_enough}: {_suggest_alternatives(judged, limit, pair)}"
    more = [f"about {max(filter(None, nums)):,} {_MORE_OF[of][0]} ({_MORE_OF[of][1]})" for of, nums in needed.items()]
    where = "a capture is one process: recordings of " if is_of_captures else ""
    said = f"{where}{' and '.join(more)} would be enough"
    most = max(num or 0 for nums in needed.values() for num in nums)
    too_many = most > _MORE_THAN_ANYONE_MEASURES and math.isfinite(judged.band)  # else no limit is wide enough
    return f"{said}; with fewer, {_suggest_alternatives(judged, limit, pair)}" if too_many else said


def _suggest_alternatives(judged: Judgement, limit: float, pair: ComparedPair) -> str:
    """Suggest what helps if more data does not: a metric with a narrow band, a larger limit, a busier GPU."""
    band = format_share(judged.band / judged.first) if judged.first else "the noise band"
    ways = [f"give a limit above {band}"]
    kernel = pair.judgements.get("kernel")
    is_other = judged.metric in ("step", "idle", "busy") and judged.first
    if is_other and kernel and kernel.first and kernel.band / kernel.first <= limit / judged.first:
        ways.append(f"limit `kernel`, whose band is {format_share(kernel.band / kernel.first)}")
    if judged.metric in ("step", "idle"):
        ways.append("measure larger steps, in which the GPU waits less for the host")
    return ", or ".join(ways)
