"""Python stacks of threads, which nsys takes at regular times if asked to (`--python-sampling=true`), as it writes them
into an export made with `--include-json=true`: an event of a thread, with the frames as JSON, innermost first."""

import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits
from profiler_job.analysis.reference import python_libraries
from profiler_job.jobs.contract.source_paths import shorten_library

SAMPLE_COLUMNS = ("start_ns", "process", "thread", "stack")
LONGEST_TEXT = 64 << 10
"""Bytes of a stack: a frame takes 45, so that this is more than Python nests by default."""
_FRAMES = "Frames"
_NO_PROJECT = {PurePosixPath(path) for path in ("/", "/home", "/Users")}
"""Folders that the files of a project do not share: the next name is that of a user, or a part of the machine."""


class PythonFrame(NamedTuple):
    """A line of a function that runs or has called the next one. line: 0 if it is not known."""

    function: str
    file: str
    line: int


Stack = tuple[PythonFrame, ...]
"""The frames of a thread, innermost first."""


def make_samples(
    start: np.ndarray,
    process: np.ndarray,
    thread: np.ndarray,
    texts: Sequence[str],
    name: Callable[[int], str | None],
) -> tuple[pd.DataFrame, list[Stack]]:
    """Make the samples (SAMPLE_COLUMNS, int64, by start; stack: its number) and the different stacks. texts: the stack
    of each sample, as JSON; name: the string of an id. Raises ValueError for what nsys does not write, and LimitError
    for more than it may."""
    numbers: dict[str, int] = {}
    stacks: dict[Stack, int] = {}
    codes = np.full(len(texts), -1)
    for row, text in enumerate(texts):
        if text not in numbers:
            stack = _parse_stack(text, name)
            numbers[text] = stacks.setdefault(stack, len(stacks)) if stack else -1
            limits.PATHS.check(len(numbers))
        codes[row] = numbers[text]
    kept = np.flatnonzero(codes >= 0)
    order = kept[np.argsort(start[kept], kind="stable")]
    columns = (start, process, thread, codes)
    frame = pd.DataFrame({name: values[order] for name, values in zip(SAMPLE_COLUMNS, columns)}, dtype=np.int64)
    return frame, shorten_files(list(stacks))


def shorten_files(stacks: Sequence[Stack]) -> list[Stack]:
    """Make the files in stacks relative, so that no folder of the machine is named: those of libraries to where these
    are installed, and the user's to the deepest folder that holds more than half of them. A file of neither keeps its
    name alone, with a number if another file has it."""
    short = _shorten_paths({frame.file for stack in stacks for frame in stack})
    return [tuple(frame._replace(file=short[frame.file]) for frame in stack) for stack in stacks]


def _shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    short: dict[str, str] = {}
    own: list[str] = []
    for path in sorted(paths):
        library = shorten_library(path)
        if library is None and path.startswith("/") and python_libraries.is_profiler(path):
            library = "/".join(PurePosixPath(path).parts[-3:])  # jobs/follow/NAME.py
        if library is None and python_libraries.is_library(path):
            library = PurePosixPath(path).name if path.startswith("/") else path  # Inductor's; the others are relative
        if library is None:
            own.append(path)
        else:
            short[path] = library
    folder = _find_shared_folder([PurePosixPath(path) for path in own if path.startswith("/")])
    used: Counter[str] = Counter()
    for path in sorted(own, key=lambda path: path.startswith("/")):  # what is relative keeps its path
        name = _shorten_own(PurePosixPath(path), folder)
        used[name] += 1
        short[path] = f"{name} ({used[name]})" if used[name] > 1 else name
    return short


def _find_shared_folder(files: list[PurePosixPath]) -> PurePosixPath | None:
    """Find the deepest folder that holds more than half of the files; None if they share nothing."""
    counts = Counter(folder for file in files for folder in file.parents if folder not in _NO_PROJECT)
    shared = [folder for folder, count in counts.items() if 2 * count > len(files)]
    return max(shared, key=lambda folder: len(folder.parts), default=None)


def _shorten_own(file: PurePosixPath, folder: PurePosixPath | None) -> str:
    if folder is not None and file.is_relative_to(folder) and ".." not in file.parts:
        return str(file.relative_to(folder))
    return file.name if file.is_absolute() or ".." in file.parts else str(file)


def _parse_stack(text: str, name: Callable[[int], str | None]) -> Stack:
    """Parse the frames of a sample; empty if it is not of Python."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"a Python stack takes {len(text):,} bytes")
    try:
        payload = json.loads(text)
    except RecursionError:
        raise ValueError("a Python stack is nested too deeply") from None
    inside = payload.values() if isinstance(payload, dict) else ()
    frames = next((part[_FRAMES] for part in inside if isinstance(part, dict) and _FRAMES in part), ())
    if not isinstance(frames, (list, tuple)):
        raise ValueError("the frames of a Python stack are not a list")
    return tuple(_parse_frame(frame, name) for frame in frames)


def _parse_frame(frame: Any, name: Callable[[int], str | None]) -> PythonFrame:
    if not isinstance(frame, dict):
        raise ValueError("a frame of a Python stack has no names")
    texts = []
    for key in ("Function", "File"):
        value = frame.get(key)
        text = name(value) if isinstance(value, int) else value
        texts.append(html.unescape(text) if isinstance(text, str) else "")  # nsys writes &lt;module&gt;
    limits.check_names(texts, "a frame")
    line = frame.get("Line")
    return PythonFrame(texts[0], texts[1], line if isinstance(line, int) and 0 < line < 2**31 else 0)
