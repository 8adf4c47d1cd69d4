"""One metric over many recordings, results or captures: lines of points, and the points that are changes.

Each entry of a line is compared with its reference: the first entry, or the last one that was a change. So a slow drift
is a change once it exceeds the noise band, and `compare REFERENCE ENTRY` shows each change, too. Entries whose runs
cannot be compared, or have other axes, are separate groups.
"""

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import capture_cache
from profiler_job.analysis.capture.fused_kernels import weigh_fused
from profiler_job.analysis.capture.profiles import find_profiles
from profiler_job.analysis.comparison import noise as noises
from profiler_job.analysis.comparison.align import Alignment, Case, align, compare_settings
from profiler_job.analysis.comparison.choices import By, Metric
from profiler_job.analysis.comparison.compare_formats import format_cause
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.judge import (
    MIDDLE,
    Judgement,
    describe_source,
    judge,
    keep_runs,
    measure,
)
from profiler_job.analysis.comparison.load_sides import load_measured_side, load_side, load_together
from profiler_job.analysis.comparison.noise import Noise
from profiler_job.analysis.comparison.sides import Side, is_capture, is_sweep, select_runs
from profiler_job.analysis.comparison.totals import MeasuredCase, Totals, simplify_modules
from profiler_job.analysis.comparison.waterfall import Cause, explain
from profiler_job.jobs.contract.axes import find_label
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.contract.words import format_count

WORST_FIRST = (ExitCode.DAMAGED, ExitCode.MISSING)
"""Of several entries that cannot be read, the one with the first of these codes gives the exit code."""
PART_KEYS = ("phase", "module", "family")
Runs = tuple[str, ...]
MANY, SMALL_BYTES, MOST_WORKERS = 32, 32 * 2**20, 8
"""Entries for each process that helps to read them, if all are files of at most so many bytes; most processes."""
BATCH = 8
"""Entries that are read before the next ones; of these, captures too small for the cache are measured together."""
SHARED = 0.5
"""Part of a group's lines that another entry must have to be of the group: fewer would be another sweep."""
_KERNELS = ("replaced", "per_call")
_CAUSES = {"kernel": _KERNELS, "busy": (*_KERNELS, "copies", "overlap"), "idle": ("idle",), "memory": (), "energy": ()}
"""Kinds of causes that a metric is made of; all of them for `step` and `throughput`."""


@dataclass(frozen=True, kw_only=True)
class KernelPart:
    """Kernels of a phase, in a module and those inside it, of a family; "" for any."""

    phase: str = ""
    module: str = ""
    family: str = ""

    def __bool__(self) -> bool:
        return any(getattr(self, key) for key in PART_KEYS)

    def __str__(self) -> str:
        return ", ".join(f"{key} {getattr(self, key)}" for key in PART_KEYS if getattr(self, key))

    def find_shares(self, kernels: pd.DataFrame) -> np.ndarray:
        """Return how much of each row belongs to the part: 0 to 1; of a fused kernel what its modules inside have."""
        shares = np.ones(len(kernels))
        for key in PART_KEYS:
            if getattr(self, key):
                values = simplify_modules(kernels[key]) if key == "module" else kernels[key].astype("category")
                names = [str(name) for name in values.cat.categories]
                fused = weigh_fused(names) if key == "module" else {}
                inside = [self._share_name(key, name, fused.get(name)) for name in names]
                shares *= np.array([*inside, 0.0])[values.cat.codes.to_numpy()]
        return shares

    def _share_name(self, key: str, name: str, weights: Mapping[str, int] | None) -> float:
        wanted = getattr(self, key)
        weights = weights or {name: 1}
        inside = [path == wanted or (key == "module" and path.startswith(f"{wanted}/")) for path in weights]
        return sum(itertools.compress(weights.values(), inside)) / sum(weights.values())


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """Kernel time of a part in a step, how many kernels, and the width of the middle 95% of steps."""

    time_ns: float
    num_kernels: float
    spread_ns: float


@dataclass(kw_only=True)
class HistoryEntry:
    """A recording, the results of a sweep, or a capture. recorded_at: in UTC to the second, None if not recorded.
    commit: "" if there is none. number: its place in the history, from 1. measured, parts: by the run_ids of a case."""

    path: Path
    label: str
    side: Side
    recorded_at: pd.Timestamp | None
    commit: str
    number: int = 0
    measured: dict[Runs, MeasuredCase] = field(default_factory=dict)
    parts: dict[Runs, PartTime] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NoEntry:
    """Why a path gives no entry: it cannot be read, or is left out since it has none of the chosen runs."""

    why: str
    exit_code: ExitCode = ExitCode.DAMAGED
    is_left_out: bool = False


@dataclass(frozen=True, kw_only=True)
class Point:
    """An entry on a line. against: its reference, and judged: what it is against it; the first point has none. cause:
    of a change, the largest part of it, in nanoseconds of one step."""

    entry: HistoryEntry
    value: float
    against: HistoryEntry | None = None
    judged: Judgement | None = None
    cause: str = ""
    cause_ns: float = 0.0

    @property
    def is_change(self) -> bool:
        """Whether it differs from its reference by more than the noise band."""
        return self.judged is not None and self.judged.is_real


@dataclass(frozen=True, kw_only=True)
class HistoryLine:
    label: str
    points: list[Point]

    @property
    def changes(self) -> list[Point]:
        return [point for point in self.points if point.is_change]


@dataclass(kw_only=True)
class Group:
    """Entries whose runs are comparable. reason: why they are not in the group before. clock: the clock of `step`.
    settings: entry -> versions and GPUs that changed since the entry before. not_in_all: entry -> its runs that others
    lack. noise: sources of the noise bands."""

    entries: list[HistoryEntry]
    reason: str
    lines: list[HistoryLine] = field(default_factory=list)
    clock: str = "timer"
    settings: dict[int, dict[str, tuple[str, str]]] = field(default_factory=dict)
    not_in_all: dict[int, list[str]] = field(default_factory=dict)
    noise: list[str] = field(default_factory=list)
    _alignments: list[Alignment] = field(default_factory=list)
    _shared: set[Runs] = field(default_factory=set)
    """Cases that all entries have, by the run_ids of the first."""


@dataclass(frozen=True, kw_only=True)
class History:
    """unreadable, left_out: path -> why it is not among the entries: it is damaged, or has none of the chosen runs.
    exit_code: of a command that shows it: OK, or why some are unreadable."""

    metric: Metric
    part: KernelPart
    by: By
    groups: list[Group]
    unreadable: dict[str, str]
    left_out: dict[str, str]
    exit_code: ExitCode = ExitCode.OK

    @property
    def entries(self) -> list[HistoryEntry]:
        return sorted((entry for group in self.groups for entry in group.entries), key=lambda entry: entry.number)


def parse_part(given: Iterable[str]) -> KernelPart:
    """KEY=VALUE of PART_KEYS. Raises NotComparableError."""
    chosen: dict[str, str] = {}
    for text in (text.strip() for texts in given for text in texts.split(",")):
        key, _, value = text.partition("=")
        if key not in PART_KEYS or not value or key in chosen:
            raise NotComparableError(
                ComparisonProblem.BAD_OPTION,
                f"--part {text}: give KEY=VALUE once, where KEY is one of {', '.join(PART_KEYS)}",
            )
        chosen[key] = value
    return KernelPart(**chosen)


def find_paths(folder: Path) -> list[Path]:
    """Find the entries of a folder: its recordings, results of sweeps and captures. A path that is itself one stays."""
    if not folder.is_dir() or (folder / MANIFEST).is_file() or is_sweep(folder):
        return [folder]
    from profiler_job.analysis.recording import store  # takes time to import

    recordings = store.recordings_in(folder)
    sweeps = [child for child in sorted(folder.iterdir()) if child not in recordings and is_sweep(child)]
    captures = [path for path in find_profiles(folder) if path not in (*recordings, *sweeps)]
    return sorted([*recordings, *sweeps, *captures]) or [folder]


def make_history(
    paths: Sequence[Path],
    metric: Metric,
    part: KernelPart,
    by: By,
    only: Sequence[str] = (),
    noise: Noise | None = None,
    skip: int = 0,
    *,
    caches: bool = True,
) -> History:
    """Compute the history of `metric` over the entries of `paths`. only: KEY=VALUE of runs. noise: the noise of
    recordings that the user names. skip: steps of captures to leave out. caches: whether results are kept next to
    captures. Raises NotComparableError if nothing can be shown."""
    unreadable: dict[str, str] = {}
    left_out: dict[str, str] = {}
    entries = []
    codes: set[ExitCode] = set()
    labels = _label_paths([inside for given in paths for inside in find_paths(given)])
    read = partial(_read_batch, only=only, part=part, skip=skip, caches=caches)
    for label, made in zip(labels.values(), _read_entries(labels, read)):
        if isinstance(made, HistoryEntry):
            entries.append(made)
        elif made.is_left_out:
            left_out[label] = made.why
        else:
            unreadable[label] = made.why
            codes.add(made.exit_code)
    exit_code = next(filter(codes.__contains__, WORST_FIRST), max(codes, default=ExitCode.OK))
    if not entries:
        why = next(iter([*unreadable.values(), *left_out.values()]), "it holds no recording, results or capture")
        message = f"{', '.join(map(str, paths))} has nothing to show: {why}"
        raise NotComparableError(ComparisonProblem.NO_RUN, message, exit_code=exit_code or None)
    _check_part(part, entries)
    for number, entry in enumerate(_sort_entries(entries, by), start=1):
        entry.number = number
    groups = _group_entries(sorted(entries, key=lambda entry: entry.number))
    for group in groups:
        _draw_lines(group, metric, part, noise)
    return History(
        metric=metric,
        part=part,
        by=by,
        groups=groups,
        unreadable=unreadable,
        left_out=left_out,
        exit_code=exit_code,
    )


def _read_entries(
    labels: Mapping[Path, str], read: Callable[[Sequence[tuple[Path, str]]], list["HistoryEntry | NoEntry"]]
) -> Iterator["HistoryEntry | NoEntry"]:
    """Read the entries in the order of their labels; many small ones in several processes."""
    items = list(labels.items())
    batches = [items[first : first + BATCH] for first in range(0, len(items), BATCH)]
    num_workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS, len(labels) // MANY)
    if num_workers < 2 or not all(path.is_file() and path.stat().st_size <= SMALL_BYTES for path in labels):
        yield from itertools.chain.from_iterable(map(read, batches))
        return
    with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from itertools.chain.from_iterable(pool.map(read, batches))


def _read_batch(
    labelled: Sequence[tuple[Path, str]], only: Sequence[str], part: KernelPart, skip: int, caches: bool
) -> list["HistoryEntry | NoEntry"]:
    """Read and measure the entries at some paths, with their labels; or say why there is none."""
    small = [path for path, _ in labelled if path.is_file() and path.stat().st_size < capture_cache.LEAST_BYTES]
    sides = load_together(small, skip) if len(small) > 1 and not part else {}
    return [_read_entry(path, label, sides.get(path), only, part, skip, caches) for path, label in labelled]


def _read_entry(
    path: Path, label: str, side: Side | None, only: Sequence[str], part: KernelPart, skip: int, caches: bool
) -> "HistoryEntry | NoEntry":
    """Read, if there is no side, and measure the entry at a path."""
    try:
        if part:  # its kernels are counted again
            side = load_side(path, skip=skip if is_capture(path) else 0)
        elif side is None:
            side = load_measured_side(path, skip=skip, with_limits=False, caches=caches)
    except ProfilerError as error:
        return NoEntry(why=str(error), exit_code=error.exit_code)
    except OSError as error:
        return NoEntry(why=str(error))
    except Exception as error:  # the others are shown, whatever a capture holds
        return NoEntry(why=f"{path} could not be read ({type(error).__name__}: {error})")
    try:
        return _measure_entry(path, label, select_runs(side, only, path), part)
    except NotComparableError as error:
        return NoEntry(why=str(error), is_left_out=True)


def _label_paths(paths: Sequence[Path]) -> dict[Path, str]:
    """Label each path by its name; if several share it, by the folders that distinguish them."""
    parts_of = {path: Path(os.path.realpath(path)).parts for path in paths}
    names = [parts[-1] for parts in parts_of.values()]
    sharing: dict[str, list[tuple[str, ...]]] = {}
    for parts in parts_of.values():
        sharing.setdefault(parts[-1], []).append(parts)
    shared_ends = {name: _find_shared_ends(paths) for name, paths in sharing.items() if len(paths) > 1}
    return {
        path: _shorten_path(parts_of[path], *shared_ends[name]) if name in shared_ends else name
        for path, name in zip(parts_of, names)
    }


def _find_shared_ends(paths: Sequence[tuple[str, ...]]) -> tuple[int, int]:
    """Return how many folders all paths begin with, and the place from the end, from 1, of the first that differs."""
    shortest = min(map(len, paths))
    begin = next((n for n in range(shortest) if len({path[n] for path in paths}) > 1), shortest - 1)
    end = next((n for n in range(1, shortest + 1) if len({path[-n] for path in paths}) > 1), shortest)
    return begin, end


def _shorten_path(parts: tuple[str, ...], begin: int, end: int) -> str:
    """Shorten a path by what `_find_shared_ends` returns."""
    return "/".join(parts[begin : len(parts) - end + 1] or parts[begin:])


def _sort_entries(entries: list[HistoryEntry], by: By) -> list[HistoryEntry]:
    """Sort by date, or by commit in the order in which commits were first measured; entries without one come last."""
    never = pd.Timestamp.max.tz_localize("UTC")

    def when(entry: HistoryEntry) -> pd.Timestamp:
        return never if entry.recorded_at is None else entry.recorded_at

    first: dict[str, pd.Timestamp] = {}
    for entry in entries:
        first[entry.commit] = min(when(entry), first.get(entry.commit, never))
    if by == "date":
        return sorted(entries, key=lambda entry: (when(entry), entry.label))
    return sorted(
        entries,
        key=lambda entry: (not entry.commit, first[entry.commit], entry.commit, when(entry), entry.label),
    )


# ------------------------------------------------------------------------------------------------------------- entries


def _measure_entry(path: Path, label: str, side: Side, part: KernelPart) -> HistoryEntry:
    """Measure the cases of an entry; only the tables that are still needed stay."""
    if not side.is_capture:
        profiled = set(side.kernels["run_id"].unique())
        if not (len(side.runs) and side.runs["run_id"].isin(profiled).any()):
            raise NotComparableError(ComparisonProblem.NO_RUN, f"{path} has no run that finished and was profiled")
        side.runs = side.runs[side.runs["run_id"].isin(profiled)]
    at = pd.to_datetime(side.recorded_at, utc=True, errors="coerce")
    commits = sorted(set(side.runs["commit"].dropna().astype(str)) - {""}) if "commit" in side.runs else []
    entry = HistoryEntry(
        path=path,
        label=label,
        side=side,
        recorded_at=None if pd.isna(at) else cast(pd.Timestamp, at),
        commit=", ".join(commits),
    )
    cases = [(side.runs["run_id"].iloc[0],)] if side.is_capture else [case.first for case in align(side, side).cases]
    for case, measured in zip(cases, measure(side, cases), strict=True):
        entry.measured[case] = measured
        if part:
            entry.parts[case] = _measure_part(side, case, part, measured.totals)
    if not any(len(case) > 1 for case in cases):  # repetitions are needed for the noise band
        entry.side = _slim(side)
    return entry


def _slim(side: Side) -> Side:
    """Drop the rows of the measurements: there may be millions."""
    kernels = side.kernels[["run_id", "phase", "kernel_name"]].drop_duplicates()
    return Side(
        label=side.label,
        is_capture=side.is_capture,
        runs=side.runs,
        steps=side.steps[:0],
        kernels=kernels,
        memops=side.memops[:0],
        blocks=side.blocks,
        notes=side.notes,
        unfinished=side.unfinished,
    )


def _measure_part(side: Side, run_ids: Runs, part: KernelPart, totals: Totals) -> PartTime:
    """Compute the median over steps and ranks, then over processes, like `measure`; a step without such a kernel has
    0."""
    kernels = keep_runs(side.kernels, run_ids)
    shares = part.find_shares(kernels)
    times = (kernels["end_ns"] - kernels["start_ns"]) * shares
    rows = kernels[["run_id", "rank", "step"]].assign(time_ns=times)[shares > 0]
    sums = rows.groupby(["run_id", "rank", "step"], observed=True)["time_ns"].agg(["sum", "size"]).reset_index()
    steps = totals.steps[["run_id", "rank", "step"]].astype({"run_id": str})
    sums = steps.merge(sums.astype({"run_id": str}), how="left", on=["run_id", "rank", "step"]).fillna(0)
    of_run = sums.groupby("run_id", sort=False)[["sum", "size"]].median().median()
    spread = float(np.ptp(np.quantile(sums["sum"], MIDDLE)))
    return PartTime(time_ns=float(of_run["sum"]), num_kernels=float(of_run["size"]), spread_ns=spread)


def _check_part(part: KernelPart, entries: list[HistoryEntry]) -> None:
    """Raise NotComparableError if no entry has such kernels."""
    if not part or any(time.num_kernels for entry in entries for time in entry.parts.values()):
        return
    key = next(key for key in reversed(PART_KEYS) if getattr(part, key))
    known = {str(n) for entry in entries for made in entry.measured.values() for n in made.totals.kernels[key]}
    said = ", ".join(sorted(known - {""})[:20]) or "none"
    raise NotComparableError(
        ComparisonProblem.BAD_OPTION, f"--part: no entry has kernels of {part}; of {key} there is {said}"
    )


# -------------------------------------------------------------------------------------------------------------- groups


def _group_entries(entries: list[HistoryEntry]) -> list[Group]:
    """Put each entry in the first group that it can be compared with, or else in a new one."""
    groups: list[Group] = []
    for entry in entries:
        reason = ""
        for group in groups:
            reason = _join(group, entry)
            if not reason:
                break
        if reason or not groups:
            groups.append(Group(entries=[], reason=reason))
            _join(groups[-1], entry)
    return groups


def _join(group: Group, entry: HistoryEntry) -> str:
    """Put the entry into the group, or say why it cannot be. It is compared with the first of the group; a capture with
    the last one, too, since its shapes are known by likeness alone."""
    first = group.entries[0] if group.entries else entry
    if first.side.is_capture != entry.side.is_capture:
        return "a capture says nothing of its axes, and has a line of its own"
    made = None if group.entries else align(entry.side, entry.side)
    compared = [*group.entries[1:][-1:], *group.entries[:1]] if entry.side.is_capture else group.entries[:1]
    for other in compared:
        try:
            made = align(other.side, entry.side)
        except NotComparableError as error:
            return f"A is {other.label}, B is {entry.label}: {error.why}"
    assert made is not None  # with the entry itself, or with the first
    if made.differences:
        said = [f"{find_label(name)} is {b}, and {a} in {first.label}" for name, (a, b) in made.differences.items()]
        return "; ".join(said)
    of_entry = {case.first for case in made.cases}
    shared = group._shared & of_entry if group.entries else of_entry
    num_before, num_after = len(group._shared or of_entry), len(shared)
    if num_after < SHARED * num_before:
        shares = f"{num_after} of the {format_count(num_before, 'run')} that the entries from {first.label} on have"
        return f"{entry.label} has {shares}: choose runs with --run to see these"
    group.entries.append(entry)
    group._alignments.append(made)
    group._shared = shared
    return ""


def _find_shared(group: Group) -> list[list[Case]]:
    """Find the cases that all entries have, each with the run_ids of the entries in their order."""
    by_first = [{case.first: case for case in made.cases} for made in group._alignments]
    return [[cases[first] for cases in by_first] for first in by_first[0] if first in group._shared]


def _draw_lines(group: Group, metric: Metric, part: KernelPart, named: Noise | None) -> None:
    """Draw the lines of a group, with its notes."""
    lines = _find_shared(group)
    used = {run for cases in lines for case in cases for run in (*case.first, *case.second)}
    for before, entry in itertools.pairwise(group.entries):
        settings = compare_settings(before.side.runs, entry.side.runs)
        settings.pop("commit", None)  # has a column of its own
        if settings:
            group.settings[entry.number] = settings
    for entry in group.entries:
        if alone := [run for run in entry.side.runs["run_id"] if run not in used]:
            group.not_in_all[entry.number] = alone
    measured = [[entry.measured[case.second] for entry, case in zip(group.entries, cases)] for cases in lines]
    group.clock = "timer" if all("timer" in made.clocks for line in measured for made in line) else "nsys"
    bands = _EntryNoise(named)
    for cases, of_line in zip(lines, measured):
        if not all(_knows(metric, made) for made in of_line):
            continue
        line = HistoryLine(label=cases[0].label, points=[])
        reference = 0
        for place, entry in enumerate(group.entries):
            against, runs = group.entries[reference], (cases[reference].second, cases[place].second)
            both = of_line[reference], of_line[place]
            noise = bands.find_noise(against, entry) if place else noises.SHIPPED  # the first is compared with nothing
            judged = _judge(both, (against, entry), runs, group.clock, metric, part, noise)
            if not place:
                line.points.append(Point(entry=entry, value=judged.second))
                continue
            cause, ns = _find_cause(both, noise, metric, part, judged) if judged.is_real else ("", 0.0)
            point = Point(entry=entry, value=judged.second, against=against, judged=judged, cause=cause, cause_ns=ns)
            line.points.append(point)
            if point.is_change:
                reference = place
        group.lines.append(line)
    group.noise = bands.sources


def _knows(metric: Metric, measured: MeasuredCase) -> bool:
    known = {"memory": measured.memory_bytes is not None, "throughput": measured.num_tokens > 0}
    return known.get(metric, metric != "energy" or bool(measured.energies))


class _EntryNoise:
    """The noise between two entries, as `compare` has it."""

    def __init__(self, named: Noise | None):
        self._named = named
        self._made: dict[tuple[int, int], Noise] = {}
        self.sources: list[str] = []

    def find_noise(self, first: HistoryEntry, second: HistoryEntry) -> Noise:
        key = first.number, second.number
        if key not in self._made:
            if second.side.is_capture:  # has one run; that both may be compared is known
                runs = ([*first.measured], [*second.measured])
            else:
                runs = align(first.side, second.side).runs
            self._made[key] = noises.choose_noise(self._named, (first.side, second.side), runs)
            source = describe_source(first.side, second.side, self._made[key])
            if source not in self.sources:
                self.sources.append(source)
        return self._made[key]


def _judge(
    both: tuple[MeasuredCase, MeasuredCase],
    entries: tuple[HistoryEntry, HistoryEntry],
    runs: tuple[Runs, Runs],
    clock: str,
    metric: Metric,
    part: KernelPart,
    noise: Noise,
) -> Judgement:
    """Compare the second with the first."""
    has_capture = any(entry.side.is_capture for entry in entries)
    if not part:
        return next(made for made in judge(*both, clock, noise, has_capture) if made.metric == metric)
    first, second = (entry.parts[run_ids] for entry, run_ids in zip(entries, runs))
    time, kernels = max(first.time_ns, second.time_ns), max(first.num_kernels, second.num_kernels)
    band = noise.width("kernel", time, float(np.sqrt(kernels)), (both[0].num_runs, both[1].num_runs))
    if has_capture:
        band = max(band, first.spread_ns, second.spread_ns)
    return Judgement(metric="kernel", first=first.time_ns, second=second.time_ns, band=band)


def _find_cause(
    both: tuple[MeasuredCase, MeasuredCase], noise: Noise, metric: Metric, part: KernelPart, judged: Judgement
) -> tuple[str, float]:
    """Return the first part that explains a change, and its time in a step; ("", 0.0) if there is none."""
    first, second = both
    num_layers = first.num_layers if first.num_layers == second.num_layers else 0
    num_runs = first.num_runs, second.num_runs
    made = explain(first.totals, second.totals, noise, num_runs, num_layers=num_layers)
    kinds = _CAUSES.get(metric)
    off_ns = judged.difference
    if metric == "throughput":
        off_ns = 1e9 * first.num_tokens * (1 / judged.second - 1 / judged.first)

    def is_wanted_cause(cause: Cause) -> bool:
        is_wanted = (kinds is None or cause.kind in kinds) and (not part or _is_in_part(cause, part))
        return is_wanted and cause.explains(off_ns * made.num)

    first_cause = next(filter(is_wanted_cause, made.causes), None)  # they are in the order in which they count
    return (format_cause(first_cause), first_cause.ns / made.num) if first_cause else ("", 0.0)


def _is_in_part(cause: Cause, part: KernelPart) -> bool:
    paths = weigh_fused([cause.module]).get(cause.module) or [cause.module]
    inside = any(not part.module or path == part.module or path.startswith(f"{part.module}/") for path in paths)
    return inside and part.phase in ("", cause.phase) and (not part.family or part.family in cause.families)
