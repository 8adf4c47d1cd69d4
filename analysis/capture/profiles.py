"""Find the profiles that a path means when it is a folder."""

from pathlib import Path

from profiler_job.analysis.capture.capture_cache import FOLDER
from profiler_job.analysis.capture.trace_files import is_trace
from profiler_job.jobs.contract.layout import RECORD, SAMPLES, list_captures
from profiler_job.jobs.contract.outputs import is_profiled_script

REPORTS, EXPORTS = (".nsys-rep", ".qdrep"), (".sqlite",)


def find_profiles(path: Path) -> list[Path]:
    """List the profiles in a folder by name. Of a report and its export, the export counts, unless it is older. None if
    `path` is a profile itself, is not a folder, or holds no profile."""
    if not path.is_dir() or _is_parquetdir(path):
        return []
    try:
        entries = sorted(path.iterdir())
    except OSError:
        return []
    exports = {entry.stem: entry for entry in entries if entry.suffix in EXPORTS}
    reports = {entry.stem: entry for entry in entries if entry.suffix in REPORTS}
    replaced = {path for stem, path in reports.items() if stem in exports and not _is_older(exports[stem], path)}
    replaced |= {path for stem, path in exports.items() if stem in reports and reports[stem] not in replaced}
    known = {*exports.values(), *reports.values()} - replaced
    return [entry for entry in entries if entry in known or _is_other_profile(entry)]


def open_results(path: Path) -> list[Path]:
    """List the captures of the one run whose results a folder holds, of a script that `profile` measured or of a run of
    a sweep; a path that is no such folder as it is."""
    if not path.is_dir():
        return [path]
    run = _find_run(path)
    captures = list_captures(run) if (run / RECORD).is_file() else []
    return captures if captures and captures[0].is_file() else [path]


def find_samples(path: Path) -> Path | None:
    """Find the capture with samples of Python of the one run whose results a folder holds; None without one."""
    if not path.is_dir():
        return None
    samples = _find_run(path) / SAMPLES
    return samples if samples.is_file() and (samples.parent / RECORD).is_file() else None


def _find_run(folder: Path) -> Path:
    return folder / folder.resolve().name if is_profiled_script(folder) else folder


def _is_other_profile(entry: Path) -> bool:
    return (_is_parquetdir(entry) and entry.name != FOLDER) or is_trace(entry)


def _is_parquetdir(path: Path) -> bool:
    try:
        return path.is_dir() and next(path.glob("*.parquet"), None) is not None
    except OSError:
        return False


def _is_older(export: Path, report: Path) -> bool:
    try:
        return export.stat().st_mtime < report.stat().st_mtime
    except OSError:
        return False
