"""Which profiles are meant where somebody gives a folder."""

from pathlib import Path

REPORTS, EXPORTS = (".nsys-rep", ".qdrep"), (".sqlite",)


def find_profiles(path: Path) -> list[Path]:
    """The profiles in a folder by name; of a report and its export the export, unless it is older. None where `path` is
    a profile itself, or no folder, or holds none."""
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
    return [entry for entry in entries if entry in known or (entry.is_dir() and _is_parquetdir(entry))]


def _is_parquetdir(path: Path) -> bool:
    try:
        return next(path.glob("*.parquet"), None) is not None
    except OSError:
        return False


def _is_older(export: Path, report: Path) -> bool:
    try:
        return export.stat().st_mtime < report.stat().st_mtime
    except OSError:
        return False
