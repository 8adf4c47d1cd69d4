"""Any nsys profile, summarised in a terminal or for a machine.

The JSON form (`--format json`) is a stable interface: one object for one PROFILE, an array of them for several. Its
keys:

- `capture`: facts of the capture (source, nsys_version, schema_version, duration_ns (how long nsys collected; events_ns
  where the export does not say), events_ns (from the start of the first GPU operation, API call, range or
  synchronisation to the end of the last), processes, num_gpus, num_kernels, num_graph_executions, num_api_calls,
  num_ranges, num_open_ranges, kernel_ns, graph_ns (whole graph executions, whose kernels are not visible), kernel_share
  (kernel_ns of kernel_ns and graph_ns together; null where both are 0), unclassified_share, unmatched_ranges (names of
  the largest ranges that match no phase, though a phase of their kernels is not known from another range))
- `coverage`: {exact, linked, phase, inferred, none}, shares of kernel time by how its phase is known; null where there
  are no kernels. It speaks of kernel_share of the GPU time, not of what graph executions hide
- `launches`: launch latency (API start to kernel start) and queue depth over all kernels; dry_ns, how long GPUs idled
  because nothing was launched
- `verdict`: where the time of each GPU goes, to the nanosecond: `elapsed_ns` is the sum of the other times, and the
  same for all GPUs of a capture (its `events_ns`). A moment counts for the first of kernels, graphs, communication and
  copies that runs then, or for why nothing does. `verdict_phases`: the same by phase, with the sums of `verdict`
- `kernels`, `families`, `ranges`, `phases`, `api`, `syncs`, `memops`, `gpus`, `findings`, `problems`, `missing`: arrays
  of objects, whose keys are the columns of `analysis.capture.summary.SECTIONS`, largest first

Times are integer nanoseconds, sizes bytes, shares 0 to 1, and null means not known. Keys may be added, never renamed.
The CSV form is long: profile, section, row, column, value. Names in the text and Markdown forms are made harmless:
what is inside a profile is not trusted.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from analysis.capture import nsys_reports
from analysis.capture.nsys_export import ExportError, read
from analysis.capture.phase_names import chosen_phases
from analysis.capture.summary import Summary, summarise
from analysis.reference import kernel_families
from analysis.show.forms import as_csv, as_markdown, as_text
from analysis.show.values import printable

Format = Literal["text", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = get_args(Format)


def show(
    profiles: Sequence[Path],
    form: str,
    top: int,
    out: Callable[[str], None],
    err: Callable[[str], None],
    rules: Path | None = None,
    phases: Sequence[str] = (),
) -> int:
    """Give a summary of each profile to `out`, and one line to `err` for each that cannot be read; the others go on.

    form: one of FORMATS. top: rows of a section in text and md, 0 for all. rules: TOML file of further kernel
    families' rules. phases: ranges that mark phases, as PHASE=RANGE. Returns the exit code: 0, or 2 where a profile,
    the rules or the phases could not be read.
    """
    try:
        chosen = chosen_phases(phases)
        taxonomy = kernel_families.with_user_rules(rules) if rules else kernel_families.BUILT_IN
    except ValueError as error:
        err(printable(f"error: {error}"))
        return 2
    summaries: list[Summary] = []
    for profile in profiles:
        try:
            summary = summarise(read(profile, details=False), taxonomy=taxonomy, chosen=chosen)
            text = {"text": as_text, "md": as_markdown}[form](summary, top) if form in ("text", "md") else None
        except ExportError as error:
            err(printable(f"error: {error}"))
            continue
        except Exception as error:  # a batch goes on, and a user sees no traceback, whatever a profile holds
            what = f"could not be summarised ({type(error).__name__}: {error})"
            err(printable(f"error: {profile}: {what}; please report it, with the profile if you can"))
            continue
        summaries.append(summary)
        if text is not None:
            out(text)
    if form == "json" and len(profiles) > 1:
        out(json.dumps([summary.as_json() for summary in summaries], indent=2))
    elif form == "json" and summaries:
        out(json.dumps(summaries[0].as_json(), indent=2))
    elif form == "csv" and summaries:
        out(as_csv(summaries))
    return 0 if len(summaries) == len(profiles) else 2


def show_report(profiles: Sequence[Path], report: str, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Give a table of `nsys stats` to `out` for each profile, as CSV with nsys's columns; names and numbers as of
    `analysis.capture.nsys_reports`. Of several profiles, a line before each table says what it is, and an empty line
    comes between two. Errors and exit code as of `show`."""
    num_read = 0
    for profile in profiles:
        try:
            table = nsys_reports.REPORTS[report](read(profile))
        except ExportError as error:
            err(printable(f"error: {error}"))
            continue
        if len(profiles) > 1:
            out("\n" * (num_read > 0) + printable(f"# {report} of {profile}"))
        out(table.to_csv(index=False, float_format="%.1f").rstrip("\n"))
        num_read += 1
    return 0 if num_read == len(profiles) else 2
