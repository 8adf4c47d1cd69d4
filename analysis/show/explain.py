"""What a kernel, an API call or a kernel family is, from the reference data alone; and what a profile has of it."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

import pandas as pd

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.profiles import find_profiles
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.reference import cuda_api, gemm_names, kernel_families
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.analysis.reference.element_types import ELEMENT_TYPES, parse_element_type
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.reference.kernel_names import shorten
from profiler_job.analysis.reference.rules import OTHER, Rule, Taxonomy
from profiler_job.analysis.render.terminal_text import WIDTH, measure_terminal, wrap_text
from profiler_job.jobs.contract.errors import describe_bug
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.words import format_count

MOST_CLOSE = 5
_LOOKS_LIKE_API = re.compile(r"cu(?:da)?[A-Z]\w*")
_ELEMENTS_IN_NAME = ("elementwise", "copy", "fill", "reduce", "softmax")


def explain(
    name: str,
    profiles: Sequence[Path],
    top: int,
    out: Callable[[str], None],
    err: Callable[[str], None],
    rules: Path | None = None,
) -> int:
    """Give to `out` what `name` is, and what each profile has of it; to `err` a line for a name that nothing has, and
    for each profile that cannot be read.

    name: a kernel, an API call, a kernel family or rule; with profiles also a part of the name of a kernel or call in
    them. If several match, they are listed, at most `top` (0: all). Returns the exit code: the largest one of several
    errors.
    """
    width = measure_terminal()
    try:
        taxonomy = kernel_families.add_user_rules(rules) if rules else kernel_families.BUILT_IN
    except ValueError as error:
        err(make_printable(f"error: {error}"))
        return ExitCode.USAGE
    if not profiles:
        lines = describe(name, taxonomy, width)
        return _print_lines(lines, _explain_unknown(name, taxonomy), out, err)
    code = ExitCode.OK
    profiles = [profile for path in profiles for profile in find_profiles(path) or [path]]
    for number, profile in enumerate(profiles):
        try:
            summary = summarise(read(profile, details=False), taxonomy=taxonomy)
        except ExportError as error:
            err(make_printable(f"error: {error}"))
            code = max(code, error.exit_code)
            continue
        except Exception as error:  # like `show`: a user sees no traceback, whatever a profile holds
            err(make_printable(f"error: {profile}: could not be summarised: {describe_bug(error)}"))
            code = ExitCode.BUG
            continue
        if number:
            out("")
        lines = describe_in(name, summary, taxonomy, top, width)
        code = max(code, _print_lines(lines, _explain_unknown(name, taxonomy, summary), out, err))
    return code


def _print_lines(lines: list[str], problem: str, out: Callable[[str], None], err: Callable[[str], None]) -> ExitCode:
    for line in lines:
        out(make_printable(line))
    if not lines:
        err(make_printable(problem))
    return ExitCode.OK if lines else ExitCode.USAGE


def describe(name: str, taxonomy: Taxonomy = kernel_families.BUILT_IN, width: int = WIDTH) -> list[str]:
    """Describe `name`, a kernel, an API call, a family or a rule, from the reference data, in a terminal of so many
    columns; nothing if they do not have the name. Names and patterns stay in one piece, to be copied."""
    if family := _find_family(name):
        return _describe_family(family, taxonomy, width)
    if rule := next((rule for rule in taxonomy.rules if rule.name == name), None):
        return [f"{name}: a rule of the family {FAMILIES[rule.family].label}", *_describe_rule(rule, width)]
    if _LOOKS_LIKE_API.fullmatch(name):
        return _describe_call(name, width)
    return _describe_kernel(name, taxonomy, width) if taxonomy.family(name) != OTHER else []


def describe_in(name: str, summary: Summary, taxonomy: Taxonomy, top: int, width: int = WIDTH) -> list[str]:
    """Describe `name` and what the profile has of it. If it is a part of several names, list them; nothing if neither
    the profile nor the reference data have it."""
    source = summary.capture["source"]
    kernels, api, families = (summary.sections[section] for section in ("kernels", "api", "families"))
    family = _find_family(name)
    if family and family.key in set(families["family"]):
        row = families[families["family"] == family.key].iloc[0]
        members = kernels[kernels["family"] == family.key]
        return [*_describe_family(family, taxonomy, width), _count_kernels(source, row), *_list_names(members, top)]
    calls, names = _find_matching(name, api["name"]), _find_matching(name, kernels["name"])
    if family or len(calls) + len(names) == 0:
        lines = describe(name, taxonomy, width)
        return [*lines, f"In {source}: none"] if lines else []
    if len(calls) + len(names) > 1:
        heading = f"{name} is in {format_count(len(calls) + len(names), 'name')} of {source}:"
        return [heading, *_list_names(pd.concat([kernels.loc[names], api.loc[calls]]), top)]
    if len(names):
        row = kernels.loc[names[0]]
        return [*_describe_kernel(row["name"], taxonomy, width), _count_kernels(source, row)]
    row = api.loc[calls[0]]
    lines = _describe_call(row["name"], width) or [f"{row['name']}: an API call that is not described here"]
    lines.append(f"In {source}: {format_count(row['calls'], 'call')}, {format_time(row['total_ns'])} of host time")
    if row["launches"]:
        latency = format_time(row["latency_median_ns"])
        lines.append(f"They launch {format_count(row['launches'], 'kernel')}, {latency} median from call to kernel")
    return lines


# ---------------------------------------------------------------------------------------------- what reference data say


def _find_family(name: str) -> kernel_families.Family | None:
    wanted = name.strip().casefold()
    return next((family for family in FAMILIES.values() if wanted in (family.key, family.label.casefold())), None)


def _describe_family(family: kernel_families.Family, taxonomy: Taxonomy, width: int) -> list[str]:
    lines = [f"{family.label}: a family of kernels ({family.key})", *wrap_text(family.explanation, width)]
    rules = [rule for rule in taxonomy.rules if rule.family == family.key]
    lines += ["Its rules:"] if rules else []
    return [*lines, *(text for rule in rules for text in wrap_text(f"{rule.name}: {rule.explanation}", width, "  "))]


def _describe_rule(rule: Rule, width: int) -> list[str]:
    example = [f"Such as: {rule.example}"] if rule.example else []
    return [*wrap_text(rule.explanation, width), f"Recognised by: {rule.pattern}", *example]


def _describe_call(name: str, width: int) -> list[str]:
    call = cuda_api.explain(name)
    if call is None:
        return []
    like = "" if call.name == cuda_api.strip_version(name) else f", described with {call.name}"
    about = (f"{cuda_api.GROUPS[call.family]}.", call.explanation)
    return [
        f"{cuda_api.strip_version(name)}: an API call{like}",
        *(line for text in about for line in wrap_text(text, width)),
    ]


def _describe_kernel(name: str, taxonomy: Taxonomy, width: int) -> list[str]:
    known = taxonomy.classify(name)
    rule, family = kernel_families.find_rule(known, taxonomy), FAMILIES[known.family]
    lines = [f"{name}: a kernel", f"Family: {family.label} ({family.key})"]
    if rule is None:
        return [*lines, *wrap_text(family.explanation, width)]
    part = f", part {rule.part}" if rule.part else ""
    lines += [f"Rule: {rule.name}{part}", *wrap_text(rule.explanation, width), f"Recognised by: {rule.pattern}"]
    if known.family in _ELEMENTS_IN_NAME and (elements := parse_element_type(name)):
        lines.append(f"Type of the elements: {ELEMENT_TYPES[elements]}")
    gemm = gemm_names.parse(name) if known.family == "gemm" else None
    return [*lines, *(_describe_gemm(gemm) if gemm else [])]


def _describe_gemm(gemm: gemm_names.GemmName) -> list[str]:
    """Describe the fields in the name of a GEMM, a line each."""
    fields = {
        "architecture": gemm.architecture,
        "math_path": gemm.math_path and gemm_names.MATH_PATHS[gemm.math_path],
        "layout": gemm.layout and f"{gemm.layout} (in BLAS terms: t transposed, n not)",
        "tile": gemm.tile and " x ".join(str(size) for size in gemm.tile if size),
        "stages": gemm.stages,
        "split_k": None if gemm.split_k is None else "yes" if gemm.split_k else "no",
    }
    labels = {"math_path": "Math path", "split_k": "Split-K"}
    lines = [f"Library: {gemm.library}"]
    for field, value in fields.items():
        if value is not None:
            inferred = " [inferred]" if field in gemm.inferred else ""
            lines.append(f"{labels.get(field, field.capitalize())}: {value}{inferred}")
    return [*lines, "[inferred]: from many such names; no documentation says so"] if gemm.inferred else lines


# ----------------------------------------------------------------------------------------------- what a profile has


def _find_matching(name: str, names: pd.Series) -> pd.Index:
    """Select the rows whose name is `name`, or else the rows whose name contains it, in full or shortened as in
    findings."""
    exact = names.index[(names == name) | (names == cuda_api.strip_version(name))]
    if len(exact):
        return exact
    # Names are also taken as `show` prints them, with an ellipsis in the middle.
    part = re.compile(".*".join(map(re.escape, name.split("\N{HORIZONTAL ELLIPSIS}"))), re.IGNORECASE | re.DOTALL)
    return names.index[[bool(part.search(text) or part.search(shorten(text))) for text in names]]


def _count_kernels(source: str, row: pd.Series) -> str:
    time, share = format_time(row["total_ns"]), format_cell("share", row["share"])
    return f"In {source}: {format_count(row['calls'], 'kernel')}, {time}, {share} of kernel time"


def _list_names(rows: pd.DataFrame, top: int) -> list[str]:
    """Format a line for each name with its calls and time, the longest time first."""
    rows = rows.sort_values("total_ns", ascending=False, kind="stable")
    shown_rows = rows.head(top) if top else rows
    columns = (shown_rows[column] for column in ("name", "calls", "total_ns"))
    lines = [f"  {name}: {calls} in {format_time(ns)}" for name, calls, ns in zip(*columns)]
    left_out = len(rows) - len(shown_rows)
    return [*lines, f"  ... and {left_out} more (show --top 0 shows all)"] if left_out else lines


def _explain_unknown(name: str, taxonomy: Taxonomy, summary: Summary | None = None) -> str:
    """Return the error for a name that nothing has."""
    pool = [*FAMILIES, *(rule.name for rule in taxonomy.rules), *(call.name for call in cuda_api.API_CALLS)]
    if summary is not None:
        pool += [*summary.sections["api"]["name"], *map(shorten, summary.sections["kernels"]["name"])]
    by_fold = {text.casefold(): text for text in pool}
    close = [by_fold[text] for text in get_close_matches(name.casefold(), by_fold, MOST_CLOSE, 0.5)]
    where = f" in {summary.capture['source']}" if summary else ""
    closest = f"the closest names are {', '.join(close)}" if close else f"families are {', '.join(FAMILIES)}"
    return f"error: {name!r} is not a known kernel, API call, family or rule{where}; {closest}"
