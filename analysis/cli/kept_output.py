"""What a command printed of captures, kept next to the first of them: to print it again takes no reading, and neither
pandas nor pyarrow, which take longer to import than all the rest."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler_job.analysis.capture.capture_cache import FOLDER, About, CacheEntry, open_entry
from profiler_job.analysis.cli.terminal import print_form
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import print_line

Print = Callable[[str], None]
ENDING = ".json"


def print_kept(
    paths: Sequence[Path], options: Mapping[str, Any], make: Callable[[Print, Print], int], *, is_wanted: bool
) -> int:
    """Print what was kept of these paths and options; or else what `make` gives to its first argument, and its errors
    to the second. What succeeds without an error is kept, if it is wanted. options: all that changes the output,
    except the paths and the terminal. Returns the exit code."""
    terminal = [*shutil.get_terminal_size(), sys.stdout.encoding, sys.stdout.isatty()]
    about = {"result": "output", "paths": list(map(str, paths)), "terminal": terminal, **options}
    entry = open_entry(_list_captures(paths), about, ENDING, is_wanted=is_wanted)
    if entry and (kept := entry.load(_decode)):
        for text in kept:
            print_form(text)
        return ExitCode.OK
    texts: list[str] = []
    errors: list[str] = []

    def out(text: str) -> None:
        texts.append(text)
        print_form(text)

    def err(text: str) -> None:
        errors.append(text)
        print_line(text)

    code = make(out, err)
    if entry and not code and texts and not errors:
        _keep(entry, texts)
    return code


def _list_captures(paths: Sequence[Path]) -> list[Path]:
    """List the files, and the folders of Parquet files, of these paths; nothing if a folder holds others."""
    captures: list[Path] = []
    for path in paths:
        try:
            inside = [] if path.is_file() else sorted(file for file in path.iterdir() if file.name != FOLDER)
        except OSError:
            return []
        if not all(file.is_file() for file in inside):
            return []
        captures += [path] if any(file.suffix == ".parquet" for file in inside) else inside or [path]
    return captures


def _keep(entry: CacheEntry, texts: Sequence[str]) -> None:
    entry.keep(lambda about: json.dumps({"about": about, "texts": texts}).encode())


def _decode(content: bytes) -> tuple[About, list[str]]:
    kept = json.loads(content)
    return kept["about"], kept["texts"]
