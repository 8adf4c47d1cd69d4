"""Summarise any nsys profile in a terminal or for a machine.

The JSON form (`--format json`) is a stable interface: one object for one PROFILE, an array of them for several. Its
keys (of the result of `tune` in a folder: `analysis.show.tuned_forms`):

- `format_version`: as in `jobs.contract.json_format`
- `capture`: facts of the capture (source, selection (what was chosen of it: gpu, range, start_ns, end_ns, sections;
  empty if the whole capture was; all keys but duration_ns describe what was chosen), nsys_version, schema_version,
  duration_ns (how long nsys collected; events_ns if the export does not have it), events_ns (from the start of the
  first GPU operation, API call, range or synchronisation to the end of the last), processes, work_start_ns and
  work_end_ns (of all GPU operations) and loading_end_ns (when the last call ends that loads kernels' code meanwhile),
  all three from the first event of the whole capture and null if there is nothing of the kind, num_gpus, num_kernels,
  num_graph_executions, num_api_calls, num_ranges, num_open_ranges, kernel_ns, graph_ns (whole graph executions, whose
  kernels are not visible), kernel_share (kernel_ns as a part of kernel_ns + graph_ns; null if both are 0),
  unclassified_share, unmatched_ranges (names of the largest ranges that match no phase, if no other range gives the
  phase of their kernels), communication_ranks (ranks that have communication kernels), ranks_apart_ns (median distance
  between the ends of the same collectives on them), no_waiting_because (why it is not known how much of communication
  is waiting; empty if it is), num_samples (of Python stacks; without any the keys after it are null),
  sample_period_ns, waiting_ns (GPU time without a kernel or fill: idle, or only copies from the host),
  waiting_span_ns (what that is a part of), sampled_share (part of waiting_ns whose Python stack is known),
  own_python_ns (part of waiting_ns in own code that launches nothing for 1 ms), num_sampled_steps (steps in that
  time; null if none is marked))
- `coverage`: {exact, early, linked, phase, inferred, none}, shares of kernel time by how its phase is known; null if
  there are no kernels. It covers kernel_share of the GPU time, and not the kernels that graph executions hide
- `launches`: launch latency (API start to kernel start) and queue depth over all kernels; dry_ns, how long GPUs idled
  because nothing was launched
- `verdict`: the time of each GPU by its cause, to the nanosecond: `elapsed_ns` is the sum of the other times, and the
  same for all GPUs of a capture (its `events_ns`). A moment counts for the first of kernels, graphs, communication and
  copies that runs then, or for the reason why nothing does. `verdict_phases`: the same by phase, with the sums of
  `verdict`
- `kernels`, `families`, `ranges`, `phases`, `modules`, `api`, `matmuls`, `syncs`, `memops`, `gpus`, `communication`,
  `collectives`, `messages`, `waits`, `wait_parts`, `wait_stacks`, `sync_lines`, `copy_lines`, `allocation_lines`,
  `findings`, `advice`, `problems`, `missing`: arrays of objects, whose keys are the columns of
  `analysis.insight.section_columns.SECTIONS`, largest first
- `sentences`: what text, Markdown and pages print of this: {verdict, communication, findings, advice, advice_note,
  waits}; missing if sections are chosen

Times are integer nanoseconds, sizes bytes, shares 0 to 1, and null means not known. Keys may be added, never renamed.
The CSV form is long: profile, section, row, column, value; if one section is chosen, it has that section's columns.
Names are made harmless in every form: the content of a profile is not trusted.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.chosen_part import ALL, Selection, ShowFormat
from profiler_job.analysis.capture.phase_names import parse_phases
from profiler_job.analysis.capture.profiles import find_profiles, find_samples, open_results
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.render.escaped_text import escape_csv_cell
from profiler_job.analysis.render.terminal_text import measure_terminal
from profiler_job.analysis.show.reader import Reader
from profiler_job.analysis.show.show_formats import as_csv, as_markdown, as_text, section_as_csv
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.json_format import add_format_version
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.tuning import TUNE, is_tuned

FORMATS: tuple[ShowFormat, ...] = get_args(ShowFormat)


def show(
    profiles: Sequence[Path],
    form: str,
    top: int,
    out: Callable[[str], None],
    err: Callable[[str], None],
    rules: Path | None = None,
    phases: Sequence[str] = (),
    *,
    selection: Selection = ALL,
    html: Path | None = None,
    force: bool = False,
    is_whole: bool = False,
    caches: bool = True,
) -> int:
    """Give a summary of each profile to `out`, and one line to `err` for each that cannot be read; the others go on.

    profiles: files, parquetdirs, folders that hold some, or the results of one run; the profiles of a folder are
    printed as a table with a row each, unless sections are chosen. Of a run that has a capture with samples of
    Python, that one is shown where only it has what is asked for. form: one of FORMATS. top: rows of a section in
    text and md, 0 for all. rules: TOML file with rules of further kernel families. phases: ranges that mark phases,
    as PHASE=RANGE. selection: the part of a capture to summarise. html: write pages there instead, see
    `write_pages`, and with `force` in place of anything. is_whole: with start-up, which is left out otherwise;
    tables of folders have it. caches: whether results are kept next to the profiles. Returns the exit code: 0, or the
    code of the error if a profile, the rules or the phases could not be read.
    """
    try:
        chosen = parse_phases(phases)
        if rules:
            from profiler_job.analysis.reference import kernel_families

            kernel_families.add_user_rules(rules)
        _check_sections(selection.sections, form)
        if form == "speedscope" and len(profiles) > 1:
            raise ValueError("--format speedscope prints one file: give one PROFILE")
    except ValueError as error:
        err(make_printable(f"error: {error}"))
        return ExitCode.USAGE
    tuned = [path for path in profiles if is_tuned(path) or path.name == TUNE]
    if tuned:
        return _show_tuned(profiles, tuned, form, top, out, err, html, force)
    samples = {path: capture for path in profiles if (capture := find_samples(path))}
    if form == "speedscope" or _are_of_samples(selection.sections):
        profiles = [samples.get(path, path) for path in profiles]
    elif form == "text" and not html:
        for path in samples.values():
            err(make_printable(f"{path} has samples of Python: `show` it for the lines that the GPU waits for"))
    profiles = [capture for path in profiles for capture in open_results(path)]
    inside = {path: find_profiles(path) for path in profiles}
    captures = [profile for path in profiles for profile in inside[path] or [path]]
    has_folder = any(inside.values())
    several = has_folder or len(profiles) > 1
    reader = Reader(
        chosen,
        selection,
        err,
        rules=rules,
        with_moments=html is not None,
        skips_startup=not is_whole and not has_folder,
        caches=caches,
    )
    if html:
        from profiler_job.analysis.show.write_pages import write_pages  # what draws takes time to import

        return write_pages(reader, captures, html, top, several, out, err, force)
    width = measure_terminal()
    if form == "speedscope":
        from profiler_job.analysis.show.wait_stacks import format_speedscope

        for text in reader.make_each(captures, format_speedscope):
            out(text)
    elif form in ("text", "md") and (selection.sections or not has_folder):
        printed = partial(as_text, top=top, width=width) if form == "text" else partial(as_markdown, top=top)
        for number, text in enumerate(reader.make_each(captures, printed)):
            out("\n" * (form == "text" and number > 0) + text)
    else:
        summaries = list(reader.make_each(captures, lambda summary: summary))
        if summaries or (form == "json" and several):
            out(_join_summaries(summaries, form, width, selection, several))
    return reader.code


def _are_of_samples(sections: Sequence[str]) -> bool:
    """Whether only sections are chosen that captures without samples of Python do not have."""
    from profiler_job.analysis.insight.waits import OF_WAITS  # takes time to import

    return bool(sections) and set(sections) <= set(OF_WAITS)


def _show_tuned(
    profiles: Sequence[Path],
    tuned: Sequence[Path],
    form: str,
    top: int,
    out: Callable[[str], None],
    err: Callable[[str], None],
    html: Path | None,
    force: bool,
) -> int:
    """Show the one result of `tune` among `profiles`; more than one, or others next to it, are refused."""
    if len(profiles) > 1:
        err(make_printable(f"error: {tuned[0]} holds a result of `tune`: give it alone"))
        return ExitCode.USAGE
    from profiler_job.analysis.show.tuned import show_tuned

    return show_tuned(tuned[0], form, out, err, top=top, html=html, force=force)


def _check_sections(names: Sequence[str], form: str) -> None:
    """Raise ValueError if a section is unknown, or if CSV is asked for with several sections in their own columns."""
    for name in names:
        if name not in SECTIONS:
            raise ValueError(f"there is no section {name!r}: choose from {', '.join(SECTIONS)}")
    if form == "csv" and len(names) > 1:
        raise ValueError("--format csv gives one --section at a time: leave out all but one, or all of them")


def _join_summaries(summaries: list[Summary], form: str, width: int, selection: Selection, several: bool) -> str:
    if form == "json":
        objects = [add_format_version(summary.as_json()) for summary in summaries]
        return json.dumps(objects if several else objects[0], indent=2)
    if form == "csv" and selection.sections:
        return section_as_csv(summaries, selection.sections[0], several)
    if form == "csv":
        return as_csv(summaries)
    from profiler_job.analysis.show import index

    return index.as_text(summaries, width) if form == "text" else index.as_markdown(summaries)


def show_report(profiles: Sequence[Path], report: str, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Give a table of `nsys stats` to `out` for each profile, as CSV with nsys's columns; names and numbers follow
    `analysis.capture.nsys_reports`. With several profiles, a line before each table names it, and an empty line comes
    between two. Errors and exit code: see `show`."""
    from profiler_job.analysis.capture import nsys_reports
    from profiler_job.analysis.capture.nsys_export import read

    num_read, code = 0, ExitCode.OK
    profiles = [profile for path in profiles for profile in find_profiles(path) or [path]]
    for profile in profiles:
        try:
            table = nsys_reports.REPORTS[report](read(profile))
        except ExportError as error:
            err(make_printable(f"error: {error}"))
            code = max(code, error.exit_code)
            continue
        if len(profiles) > 1:
            out("\n" * (num_read > 0) + make_printable(f"# {report} of {profile}"))
        texts = table.select_dtypes(exclude="number").astype(object)
        table = table.assign(**{name: values.map(escape_csv_cell) for name, values in texts.items()})
        out(table.to_csv(index=False, float_format="%.1f").rstrip("\n"))
        num_read += 1
    return code
