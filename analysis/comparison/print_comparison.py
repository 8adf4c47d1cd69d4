"""The whole way from two paths to what is printed, and the exit code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from profiler_job.analysis.comparison.align import align
from profiler_job.analysis.comparison.choices import CompareFormat
from profiler_job.analysis.comparison.compare_formats import Checked, as_json, as_markdown, as_text
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.gate import BEYOND, UNKNOWN, WITHIN, check, parse_condition
from profiler_job.analysis.comparison.judge import Comparison, compare
from profiler_job.analysis.comparison.load_sides import load_measured_side, load_side
from profiler_job.analysis.comparison.noise import choose_noise, fit_recordings
from profiler_job.analysis.comparison.sides import is_capture
from profiler_job.jobs.contract.errors import ProfilerError, describe_bug
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import make_printable

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Request:
    """first, second: paths of A and B; only_first, only_second: KEY=VALUE of their runs. noise: a pair of recordings of
    the same runs. skip: steps of captures that are left out. per_token: whether tokens are compared, and not steps.
    conditions: of the gate. top: causes of a pair in text and Markdown, 0 for all. caches: whether results
    are kept next to captures."""

    first: Path
    second: Path
    only_first: Sequence[str] = ()
    only_second: Sequence[str] = ()
    noise: tuple[Path, Path] | None = None
    skip: int = 0
    per_token: bool = False
    conditions: Sequence[str] = ()
    form: CompareFormat = "text"
    top: int = 10
    caches: bool = True


def run(request: Request, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Compare, and give the result to `out`, or one line to `err` if it cannot be compared.

    Returns the exit code: 0, or with conditions BEYOND if one is broken, else UNKNOWN if one cannot be decided; the
    code of the error if the two, or a condition, cannot be used.
    """
    done = attempt(request, err, lambda: _checked(request))
    if isinstance(done, ExitCode):
        return done
    comparison, checked = done
    codes = {outcome.code for _, outcomes in checked for outcome in outcomes}
    code = next((code for code in (BEYOND, UNKNOWN) if code in codes), WITHIN)
    if request.form == "json":
        out(as_json(comparison, checked, code))
    else:
        out({"text": as_text, "md": as_markdown}[request.form](comparison, checked, request.top))
    return code


def _checked(request: Request) -> tuple[Comparison, Checked]:
    conditions = [parse_condition(text) for text in request.conditions]
    comparison = load(request)
    return comparison, [(condition, check(condition, comparison.pairs)) for condition in conditions]


def load(request: Request) -> Comparison:
    """Load and compare the paths of a request. Raises NotComparableError, and what reading them raises."""
    skips = [request.skip if is_capture(path) else 0 for path in (request.first, request.second)]
    if request.skip and not any(skips):
        raise NotComparableError(
            ComparisonProblem.BAD_OPTION,
            "--skip is for captures: the steps of a recording are measured ones; leave it out",
        )
    options = {"with_limits": True, "caches": request.caches}
    first = load_measured_side(request.first, tuple(request.only_first), skips[0], **options)
    second = load_measured_side(request.second, tuple(request.only_second), skips[1], **options)
    alignment = align(first, second, request.per_token)
    if (
        first.sequence and second.sequence and first.sequence != second.sequence
    ):  # of captures without steps: their rows are needed after all
        from profiler_job.analysis.comparison.common_work import keep_common_work  # takes time to import

        paths = (request.first, request.second)
        first, second = keep_common_work(*(load_side(path, skip=skip) for path, skip in zip(paths, skips)))
    if request.first.samefile(request.second) and any(case.first == case.second for case in alignment.cases):
        twice = f"A and B are the same runs of {request.first}, which differ in nothing"
        raise NotComparableError(
            ComparisonProblem.SAME_RUNS,
            f"{twice}: give two measurements, or choose other runs of one with --a and --b KEY=VALUE",
        )
    named = fit_recordings(*map(load_side, request.noise)) if request.noise else None
    return compare(first, second, choose_noise(named, (first, second), alignment.runs), alignment)


def attempt(request: Request, err: Callable[[str], None], work: Callable[[], Result]) -> Result | ExitCode:
    """Return what `work` gives; the exit code of the error, and one line to `err`, if these cannot be compared."""
    try:
        return work()
    except ProfilerError as error:
        err(make_printable(f"error: {error}"))
        return error.exit_code
    except OSError as error:
        err(make_printable(f"error: {error}"))
        return ExitCode.USAGE
    except Exception as error:  # a user sees no traceback, whatever a capture holds
        err(make_printable(f"error: {request.first} and {request.second} could not be compared: {describe_bug(error)}"))
        return ExitCode.BUG
