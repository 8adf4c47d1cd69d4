"""nsys's own warnings about a capture in which it saw no kernels, and whether it was to trace CUDA."""

import re

import pandas as pd

from profiler_job.analysis.capture.export_columns import ExportTables
from profiler_job.analysis.capture.export_schema import DIAGNOSTICS, OPTIONS
from profiler_job.analysis.reference import cuda_api
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.words import format_count

WARNING, ERROR = 2, 3
MOST_WARNINGS, LONGEST_WARNING = 5, 300
MOST_ROWS = 10_000
UNUSED = (
    "the program used no CUDA, ended before it did, or a process that nsys does not follow used it: "
    "`nsys profile --trace-fork-before-exec=true` follows forked ones; with `--capture-range`, look whether it opened"
)
CAUSES = {
    r"CUDA driver version .* is not supported": "use an nsys that is newer than the driver: `install-nsys --package`",
    r"No CUDA events|CUDA profiling might": UNUSED,
}
"""What to do, by a pattern of nsys's warning."""


def read_warnings(tables: ExportTables) -> list[str]:
    """Return the warnings and errors of nsys, each once, in its order."""
    if not {"severity", "text"} <= _list_columns(tables, DIAGNOSTICS):
        return []
    (severities,) = tables.read_integers(DIAGNOSTICS, ["severity"])
    (texts,) = tables.read_objects(DIAGNOSTICS, ["text"])
    said = (str(text) for text, severity in zip(texts, severities) if severity in (WARNING, ERROR))
    return list(dict.fromkeys(make_printable(text)[:LONGEST_WARNING] for text in said))[:MOST_WARNINGS]


def is_cuda_traced(tables: ExportTables) -> bool:
    """Return whether the options of the capture ask for CUDA."""
    if not {"name", "value"} <= _list_columns(tables, OPTIONS):
        return False
    names, values = tables.read_objects(OPTIONS, ["name", "value"])
    return any("COLLECT_CUDA_TRACE" in str(name) and str(value) == "true" for name, value in zip(names, values))


def explain_no_kernels(tables: ExportTables, api: pd.DataFrame) -> dict[str, str]:
    """Return what is wrong with a capture without kernels, and what to do."""
    problems = {f'nsys warned: "{text}"': _advise(text) for text in read_warnings(tables)}
    num_launches = sum(cuda_api.find_group(str(name)) == "launch" for name in api["name"])
    if num_launches:
        problems[f"{format_count(num_launches, 'launch')} and no kernel"] = (
            "the capture ended before they ran, or this nsys does not know the driver (WSL 2: update both)"
        )
    elif not problems:
        problems["no kernel was launched while nsys recorded"] = (
            "record the part that works on the GPU, and trace CUDA with `nsys profile --trace=cuda,nvtx`; with "
            "`--capture-range`, look whether the range opened"
        )
    return problems


def describe_no_events(tables: ExportTables) -> tuple[str, str]:
    """Return the problem of a capture without any event, and its remedy."""
    warnings = read_warnings(tables)
    said = f" (nsys warned: {'; '.join(warnings)})" if warnings else ""
    if is_cuda_traced(tables):
        return f"holds no CUDA and no NVTX events, though CUDA was traced{said}", UNUSED
    return f"holds no CUDA and no NVTX events{said}", "record with `nsys profile --trace=cuda,nvtx`"


def _list_columns(tables: ExportTables, table: str) -> set[str]:
    """Return the columns of a table that is short enough to be read; of none and of others nothing."""
    is_read = table in tables.list_tables() and tables.num_rows(table) <= MOST_ROWS
    return set(tables.list_columns(table)) if is_read else set()


def _advise(warning: str) -> str:
    return next((advice for pattern, advice in CAUSES.items() if re.search(pattern, warning)), "kernels may be missing")
