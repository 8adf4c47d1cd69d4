"""Align the runs of two sides: which are compared, what differs between the sides, and what is refused.

Runs are cases by their axes. An axis of FIXED must be equal. Another axis may differ if each side has one value of it,
and so may the axes in TOKENS if runs are compared per token. Runs that differ only in their repetition are one case:
processes that measured the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.capture_data import NOT_USED
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.sides import Side, shortlist
from profiler_job.analysis.metrics.run_grid import sort_runs
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import (
    find_default,
    find_label,
    find_value_label,
    order_axes,
)

FIXED = ("size", "context_length", "batch_size", "mode")
"""Axes that say how much work a step is."""
TOKENS = ("context_length", "batch_size")
"""The axes in FIXED whose product is the number of tokens of a step."""
VARIANTS = (*(name for name in order_axes() if name not in (*FIXED, "repeat")), "fresh_process")
SETTINGS = ("gpu_name", "driver", "cuda", "torch", "nsys", "python", "commit")
"""What else may have changed between the two, of the machine and the programs."""

NO_SHAPES = "captures record neither batch nor context: check that these are of the same work"
"""Caution for every comparison with a capture."""

UNLIKE = 0.1
"""Part of the blocks from which on the same kernels work on other shapes; a batch of sentences may vary by less."""
MOST = 0.5
"""Share of the time of elementwise kernels that such kernels must take, since other programs share a few names."""

MODE_PHASES = {ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER}
"""Phases that tell one mode from another."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Runs that are compared: the run_ids of A and of B; several run_ids are repetitions."""

    label: str
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """differences: axis -> its value in A and in B. settings: the same for SETTINGS. only_first, only_second: runs
    without a partner, and why (not finished, another number of parameters, or ""). per_token: whether tokens are
    compared, and not steps."""

    cases: list[Case]
    differences: dict[str, tuple[str, str]]
    settings: dict[str, tuple[str, str]]
    only_first: dict[str, str]
    only_second: dict[str, str]
    per_token: bool = False

    @property
    def runs(self) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """The run_ids of each case of A, and of B."""
        return [case.first for case in self.cases], [case.second for case in self.cases]


def align(first: Side, second: Side, per_token: bool = False) -> Alignment:
    """Find the cases of two sides. Raises NotComparableError if there is none, or if per_token is set and tokens are
    not known."""
    if per_token:
        _check_tokens(first, second)
    if first.is_capture or second.is_capture:
        return _align_captures(first, second)
    fixed = tuple(name for name in FIXED if not (per_token and name in TOKENS))
    for letter, side in (("A", first), ("B", second)):
        if not len(side.runs):
            reasons = [f"{run} ({why})" for run, why in side.unfinished.items()]
            known = f", but {shortlist(reasons)}" if reasons else ""
            raise NotComparableError(ComparisonProblem.NO_RUN, f"{letter} has no finished run{known}: measure it again")
    axes = [name for name in (*FIXED, *VARIANTS) if name in first.runs and name in second.runs]
    differences: list[str] = []
    groups = _group_runs(first.runs, axes), _group_runs(second.runs, axes)
    if not groups[0].keys() & groups[1].keys():
        differences = [name for name in axes if name not in fixed and _differs(name, first.runs, second.runs)]
        axes = [name for name in axes if name not in differences]
        groups = _group_runs(first.runs, axes), _group_runs(second.runs, axes)
    cases: list[Case] = []
    refused: dict[str, str] = {}
    num_parameters = [dict(zip(side.runs["run_id"], side.runs["num_parameters"])) for side in (first, second)]
    vary = [name for name in axes if first.runs[name].nunique() > 1 or name in ("size", "context_length", "mode")]
    for key, mine in groups[0].items():
        others = groups[1].get(key, [])
        every = (n[run] for n, runs in zip(num_parameters, (mine, others)) for run in runs)
        counts = {int(count) for count in every if not pd.isna(count)}  # of captures of others it is not known
        if len(counts) > 1 and others:
            why = f"{find_label('size')} {key[0]} has {' and '.join(f'{n:,}' for n in sorted(counts))} parameters"
            refused |= dict.fromkeys([*mine, *others], why)
        elif others:
            named = [(name, value) for name, value in zip(axes, key) if name in vary and _is_said(name, value)]
            said = [_label_value(name, value) for name, value in named]
            cases.append(Case(label=" ".join(said), first=tuple(mine), second=tuple(others)))
    if not cases:
        raise _make_refusal(first, second, refused, fixed)
    return Alignment(
        cases=cases,
        differences={name: _pair_values(name, first.runs, second.runs) for name in differences},
        settings=compare_settings(first.runs, second.runs),
        only_first=_find_unpaired(first, cases, "first", refused),
        only_second=_find_unpaired(second, cases, "second", refused),
        per_token=per_token,
    )


def keep_cases(alignment: Alignment, is_kept: Callable[[Case], bool]) -> Alignment:
    """Leave out the cases that are not kept: their runs have no partner."""
    dropped = [case for case in alignment.cases if not is_kept(case)]
    return replace(
        alignment,
        cases=[case for case in alignment.cases if is_kept(case)],
        only_first=alignment.only_first | {run: "" for case in dropped for run in case.first},
        only_second=alignment.only_second | {run: "" for case in dropped for run in case.second},
    )


def _check_tokens(first: Side, second: Side) -> None:
    """Raise NotComparableError if a side does not know how many tokens its steps have."""
    for letter, side in (("A", first), ("B", second)):
        if side.is_capture:
            raise NotComparableError(
                ComparisonProblem.NO_TOKENS,
                f"--per-token: {letter} is a capture, which knows no tokens; compare recordings",
            )
        unknown = side.runs.loc[side.runs[[*TOKENS]].min(axis=1) < 1, "run_id"]
        if len(unknown):
            raise NotComparableError(
                ComparisonProblem.NO_TOKENS,
                f"--per-token: {unknown.iloc[0]} of {letter} has no tokens recorded; choose others with "
                f"--{letter.lower()} KEY=VALUE",
            )


def _align_captures(first: Side, second: Side) -> Alignment:
    """Align two sides with a capture. It has one run and no axes but the phases of its steps, so the other side must
    have one run, too."""
    for letter, side in (("A", first), ("B", second)):
        if len(side.runs) != 1:
            option = f"--{letter.lower()}"
            why = f"{letter} has {len(side.runs)} runs and the other is a capture of one"
            raise NotComparableError(ComparisonProblem.SEVERAL_RUNS, why, f": choose with {option} KEY=VALUE")
    phases = [_find_phases(side) for side in (first, second)]
    if phases[0] != phases[1]:
        said = " and ".join(f"{', '.join(sorted(names)) or 'none'} in {letter}" for names, letter in zip(phases, "AB"))
        raise NotComparableError(
            ComparisonProblem.OTHER_WORK,
            f"mode: steps have the phases {said}, which is other work, and these cannot be compared",
        )
    if not phases[0] and (trains := _has_backward(first)) != _has_backward(second):
        raise NotComparableError(
            ComparisonProblem.OTHER_WORK,
            f"mode: {'A' if trains else 'B'} launches kernels of a backward pass and {'B' if trains else 'A'} launches"
            " none: training is other work than inference, and these cannot be compared",
        )
    _check_blocks(first, second)
    runs = first.runs["run_id"].iloc[0], second.runs["run_id"].iloc[0]
    case = Case(label=runs[0] if not first.is_capture else runs[1], first=(runs[0],), second=(runs[1],))
    # A capture may have been exported by another version of nsys than recorded it.
    settings = {name: both for name, both in compare_settings(first.runs, second.runs).items() if NOT_USED in both}
    return Alignment(cases=[case], differences={}, settings=settings, only_first={}, only_second={})


def _check_blocks(first: Side, second: Side) -> None:
    """Raise NotComparableError if both sides are captures with tensors of different sizes: most time of their
    elementwise kernels is in kernels that both launch as often, but with other numbers of blocks."""
    if first.blocks is None or second.blocks is None:
        return
    place = second.blocks.index.get_indexer(first.blocks.index)
    both = first.blocks[place >= 0].to_numpy(), second.blocks.to_numpy()[place[place >= 0]]
    calls, blocks, ns = np.moveaxis(np.stack(both), 2, 0)  # each of A and of B
    is_unlike = (calls[0] == calls[1]) & (np.abs(blocks[0] - blocks[1]) > UNLIKE * blocks.max(axis=0, initial=0))
    if ns[:, is_unlike].sum() > MOST * (first.blocks["ns"].sum() + second.blocks["ns"].sum()):
        means = [round(of[is_unlike].sum() / calls[0, is_unlike].sum()) for of in blocks]
        raise NotComparableError(
            ComparisonProblem.OTHER_WORK,
            f"shape: elementwise kernels of A have {means[0]:,} blocks, and the same ones of B {means[1]:,} (mean): "
            "another batch, context or width, which is another amount of work, and these cannot be compared",
        )


def _find_phases(side: Side) -> set[str]:
    """Find the phases in MODE_PHASES in which a side launches kernels; none if it names no phase."""
    kernels = side.kernels
    if not side.is_capture:  # which has one run
        kernels = kernels[kernels["run_id"].isin(side.runs["run_id"])]
    return set(map(str, kernels["phase"].unique())) & MODE_PHASES


def _has_backward(side: Side) -> bool:
    """Whether a side that names no phase launches kernels that only a backward pass has, by their names."""
    from profiler_job.analysis.capture.inferred import is_backward_kernel

    return any(is_backward_kernel(str(name)) for name in side.kernels["kernel_name"].unique())


def _group_runs(runs: pd.DataFrame, axes: list[str]) -> dict[tuple[Any, ...], list[str]]:
    """run_ids by the values of `axes`, in model order."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for row in sort_runs(runs)[[*axes, "run_id"]].itertuples(index=False):
        groups.setdefault(tuple(map(str, row[:-1])), []).append(row[-1])
    return groups


def _differs(name: str, first: pd.DataFrame, second: pd.DataFrame) -> bool:
    values = [set(runs[name].astype(str)) for runs in (first, second)]
    return len(values[0]) == len(values[1]) == 1 and values[0] != values[1]


def _pair_values(name: str, first: pd.DataFrame, second: pd.DataFrame) -> tuple[str, str]:
    """Return the one value of an axis on each side, as sweeps and JSON have it; `eager` for its older name."""
    values = (runs[name].iloc[0] for runs in (first, second))
    has_label = name not in ("compile", "precision")
    before, after = (str(find_value_label(name, value) if has_label else value) for value in values)
    return before, after


def _is_said(name: str, value: object) -> bool:
    """Whether a label has a value: defaults of axes that most runs leave alone would make it long."""
    return name in (*FIXED, "precision", "attention") or str(value) != str(find_default(name))


def _label_value(name: str, value: object) -> str:
    """Label a value of an axis as pages do; the value alone if it is clear without the name of the axis."""
    text = str(find_value_label(name, value))
    return text if name in ("size", "mode", "precision", "attention") else f"{find_label(name)} {text}"


def _make_refusal(first: Side, second: Side, refused: dict[str, str], fixed: tuple[str, ...]) -> NotComparableError:
    if refused:
        return NotComparableError(
            ComparisonProblem.OTHER_MODEL,
            f"A and B are not the same model: {next(iter(refused.values()))}",
            "; compare runs of one model",
        )
    for name in (*FIXED, *VARIANTS):
        values = [[*map(str, sorted(set(side.runs[name])))] if name in side.runs else [] for side in (first, second)]
        if set(values[0]) & set(values[1]):
            continue
        said = f"{find_label(name)} is {', '.join(values[0])} in A and {', '.join(values[1])} in B"
        if name in fixed:
            how = "; --per-token compares tokens" if name in TOKENS else ""
            return NotComparableError(
                ComparisonProblem.OTHER_WORK,
                f"{said}: a step is another amount of work, and these cannot be compared",
                how,
            )
        return NotComparableError(
            ComparisonProblem.SEVERAL_RUNS, said, f": choose one of each with --a {name}=VALUE and --b {name}=VALUE"
        )
    named = ", ".join(map(find_label, fixed))
    how = ": choose runs with --a KEY=VALUE and --b KEY=VALUE"
    return NotComparableError(ComparisonProblem.NO_COMMON_RUN, f"no run of A has the {named} of one of B", how)


def compare_settings(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Find the SETTINGS that differ, with the values of A and of B."""
    said = {}
    for name in SETTINGS:
        if name in first and name in second:
            before, after = (", ".join(sorted(set(runs[name].dropna().astype(str)))) for runs in (first, second))
            if before != after:
                said[name] = (before, after)
    return said


def _find_unpaired(side: Side, cases: list[Case], which: str, refused: dict[str, str]) -> dict[str, str]:
    used = {run for case in cases for run in getattr(case, which)}
    alone = {run: refused.get(run, "") for run in side.runs["run_id"] if run not in used}
    return alone | side.unfinished
