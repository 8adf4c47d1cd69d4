"""The place of each NVTX range: its path, step, phase and module."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits, pytorch_ranges
from profiler_job.analysis.capture.phase_names import find_phase, is_step, is_warm_up, parse_module
from profiler_job.analysis.capture.range_nesting import Nesting, merge_parents, split_by_depth
from profiler_job.jobs.contract import ranges as vocabulary

NO_PHASE = len(vocabulary.ALL_PHASES)
SETUP, DATA, FORWARD, LOSS, BACKWARD, _OPTIMIZER, ZERO_GRAD = map(
    vocabulary.ALL_PHASES.index,
    (
        vocabulary.SETUP,
        vocabulary.DATA,
        vocabulary.FORWARD,
        vocabulary.LOSS,
        vocabulary.BACKWARD,
        vocabulary.OPTIMIZER,
        vocabulary.ZERO_GRAD,
    ),
)
PHASE_CATEGORIES = [*vocabulary.ALL_PHASES, ""]


def place_ranges(ranges: pd.DataFrame, nesting: Nesting, chosen: Mapping[str, str]) -> tuple[pd.DataFrame, np.ndarray]:
    """Place the ranges; return also, for each range, the row of the numbered operation that made the node around it (-1
    none)."""
    parent = merge_parents(ranges, nesting)
    count = len(ranges)
    raw = ranges["name"].cat.codes.to_numpy().astype(np.int64)
    named = pytorch_ranges.parse_names([str(category) for category in ranges["name"].cat.categories])
    names, name = named.plain, named.code[raw]
    number, is_operation = named.number[raw], named.is_operation[raw]
    is_node = (number >= 0) & named.is_node[name]
    own_phase = np.array([PHASE_CATEGORIES.index(find_phase(text, chosen)) for text in names], np.int8)[name]
    is_chosen = np.array([text in chosen for text in names], bool)[name]
    own_step = np.array([is_step(text) for text in names], bool)[name]
    warms_up = np.array([is_warm_up(text) for text in names], bool)[name]
    names_module, names_call, below_phase = _parse_modules(names)
    has_own_module, is_call = names_module[name], names_call[name]
    is_forward = _find_numbered_forward(ranges, number, is_node, np.where(is_operation, NO_PHASE, own_phase), own_phase)
    own_phase[is_node & (own_phase == NO_PHASE)] = BACKWARD
    wins = (own_phase != NO_PHASE) & ~is_node
    next_backward = _find_next_backward(ranges, own_phase) if is_operation.any() else None

    depth, path, module = np.zeros(count, np.int32), np.zeros(count, np.int64), np.full(count, -1, np.int64)
    phase, in_step = np.full(count, NO_PHASE, np.int8), np.full(count, -1, np.int64)
    around = np.full(count, -1, np.int64)  # path of the ranges that are not PyTorch operations, from the phase on
    until, ends = np.zeros(count, np.int64), ranges["end_ns"].to_numpy()  # of the optimizer's range
    paths, modules = _JoinedNames(), _JoinedNames()
    by_depth = split_by_depth(parent)
    limits.DEPTH.check(len(by_depth))
    for level, rows in enumerate(by_depth):
        above = parent[rows]
        has = above >= 0
        depth[rows] = level
        path[rows] = paths.join(np.where(has, path[above], -1), name[rows])
        inherited = np.where(has, phase[above], NO_PHASE)
        begins = wins[rows] & (is_chosen[rows] | (inherited == _OPTIMIZER)) & (own_phase[rows] != inherited)
        below = (inherited != NO_PHASE) & ~begins
        phase[rows] = np.where(below, inherited, own_phase[rows])
        phase[rows[is_forward[rows] & (phase[rows] == NO_PHASE)]] = FORWARD
        if next_backward is not None:
            in_optimizer = phase[rows] == _OPTIMIZER
            until[rows] = np.where(below & has, until[above], np.where(in_optimizer, ends[rows], 0))
            in_closure = in_optimizer & below & is_operation[rows] & (next_backward[rows] < until[rows])
            phase[rows[in_closure]] = FORWARD
        named_here = has_own_module[rows]
        below |= named_here
        outer = np.where(has & ~named_here, module[above], -1)
        module[rows[is_call[rows]]] = outer[is_call[rows]]
        below &= ~is_call[rows]
        operation = is_operation[rows] & (below | ~wins[rows])
        joined = rows[below & ~operation]
        module[joined] = modules.join(outer[below & ~operation], name[joined])
        if is_operation.any():
            around[rows] = np.where(has & ~named_here, around[above], -1)
            holds = (~operation & ~wins[rows] & ~own_step[rows] & ~is_call[rows]) | named_here
            around[rows[holds]] = modules.join(around[rows[holds]], name[rows[holds]])
            around[rows[wins[rows] & ~below & ~is_operation[rows]]] = -1
            module[joined] = around[joined]
            joined = rows[operation]
            own = modules.join(np.full(len(joined), -1), name[joined])
            inner = (number[joined] < 0) & (outer[operation] >= 0)
            own = np.where(inner, outer[operation], own)
            module[joined] = np.where(around[joined] >= 0, around[joined], own)
        warms_up[rows] |= has & warms_up[above]
        own_step[rows] &= ~warms_up[rows]
        outer_step = np.where(has, in_step[above], -1)
        in_step[rows] = np.where(outer_step >= 0, outer_step, np.where(own_step[rows], rows, -1))

    placed = ranges.assign(is_operation=is_operation, parent_id=parent.astype(np.int32), depth=depth)
    placed.insert(len(ranges.columns), "plain_name", pd.Categorical.from_codes(name, pd.Index(names, dtype=object)))
    placed["path"] = paths.make_categorical(path, names)
    placed["step"] = _number_steps(ranges, _fill_started_steps(ranges, in_step))
    placed["is_step"] = in_step == np.arange(count)
    placed["phase"] = pd.Categorical.from_codes(phase, PHASE_CATEGORIES)
    placed["module"] = modules.make_categorical(module, below_phase)
    if not is_node.any():
        return placed, np.full(count, -1, np.int64)
    made_by = pytorch_ranges.link_nodes(ranges, number, is_node, name, names)
    pytorch_ranges.link_calls_of_nodes(made_by, parent, is_node, name, names)
    _spread_links(made_by, parent, by_depth)
    return placed, np.where(phase == BACKWARD, made_by, -1)


def _parse_modules(names: list[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return for each name whether it names a module (bool), or a call of a graph, a copy or a collection inside one
    (bool), and its part of a module's path."""
    own_module = [parse_module(text) for text in names]
    is_call = [text.startswith((vocabulary.CALL, vocabulary.COPY, vocabulary.GARBAGE_RANGE)) for text in names]
    below_phase = [text if own is None else own for text, own in zip(names, own_module)]
    return np.array([own is not None for own in own_module], bool), np.array(is_call, bool), below_phase


def _spread_links(made_by: np.ndarray, parent: np.ndarray, by_depth: list[np.ndarray]) -> None:
    """Give each range that has no link of its own, in place, the link of the range around it."""
    for rows in by_depth[1:]:
        inner = rows[(made_by[rows] < 0) & (parent[rows] >= 0)]
        made_by[inner] = made_by[parent[inner]]


def _find_next_backward(ranges: pd.DataFrame, own_phase: np.ndarray) -> np.ndarray:
    """Find the start of the process's next range of backward after the start of each range; the largest time if there
    is none."""
    process, start = ranges["process"].to_numpy(), ranges["start_ns"].to_numpy()
    following = np.empty(len(ranges), np.int64)
    for owner in np.unique(process):
        mine = process == owner
        backward = np.r_[np.sort(start[mine & (own_phase == BACKWARD)]), np.iinfo(np.int64).max]
        following[mine] = backward[np.searchsorted(backward[:-1], start[mine], side="right")]
    return following


def _find_numbered_forward(
    ranges: pd.DataFrame, number: np.ndarray, is_node: np.ndarray, users_phase: np.ndarray, own_phase: np.ndarray
) -> np.ndarray:
    """Find the ranges that are numbered operations of forward: in a process whose user does not mark forward, and not
    between backward and the optimizer, when gradients are clipped by hand."""
    process, start = ranges["process"].to_numpy(), ranges["start_ns"].to_numpy()
    is_forward = (number >= 0) & ~is_node
    for owner in np.unique(process[is_forward]):
        mine = process == owner
        rows = np.flatnonzero(mine & is_forward)
        if (users_phase[mine] == FORWARD).any():
            is_forward[rows] = False
            continue
        backward = np.sort(start[mine & (is_node | (own_phase == BACKWARD))])
        optimizer = np.sort(start[mine & (own_phase == _OPTIMIZER)])
        before = [np.r_[-1, of][np.searchsorted(of, start[rows], side="right")] for of in (backward, optimizer)]
        never = np.iinfo(np.int64).max
        after = [np.r_[of, never][np.searchsorted(of, start[rows], side="right")] for of in (backward, optimizer)]
        is_forward[rows[(before[0] > before[1]) & (after[1] < after[0])]] = False
    return is_forward


def _fill_started_steps(ranges: pd.DataFrame, in_step: np.ndarray) -> np.ndarray:
    """Return `in_step` with the ranges inside start/end steps filled in. Such a step holds what its process pushes
    during it, but is not part of a stack."""
    start, end, process = (ranges[column].to_numpy() for column in ("start_ns", "end_ns", "process"))
    steps = np.flatnonzero((ranges["style"] == "StartEnd").to_numpy() & (in_step == np.arange(len(ranges))))
    if not len(steps):
        return in_step
    filled = in_step.copy()
    for owner in np.unique(process[steps]):
        mine = steps[process[steps] == owner]
        mine = mine[np.argsort(start[mine], kind="stable")]
        rows = np.flatnonzero((in_step < 0) & (process == owner))
        last = mine[np.maximum(np.searchsorted(start[mine], start[rows], side="right") - 1, 0)]
        inside = (start[last] <= start[rows]) & (end[rows] <= end[last])
        filled[rows[inside]] = last[inside]
    return filled


def _number_steps(ranges: pd.DataFrame, in_step: np.ndarray) -> np.ndarray:
    """Number the step of each range: the steps of a process count from 0 in the order they start."""
    number = np.full(len(ranges), -1, np.int32)
    roots = np.unique(in_step[in_step >= 0])
    process = ranges["process"].to_numpy()[roots]
    order = np.lexsort((ranges["start_ns"].to_numpy()[roots], process))
    first = np.r_[True, process[order][1:] != process[order][:-1]] if len(roots) else np.empty(0, bool)
    run = np.arange(len(roots)) - np.maximum.accumulate(np.where(first, np.arange(len(roots)), 0))
    ordinal = np.empty(len(roots), np.int32)
    ordinal[order] = run
    inside = in_step >= 0
    number[inside] = ordinal[np.searchsorted(roots, in_step[inside])]
    return number


class _JoinedNames:
    """Strings of names joined by "/", built level by level: a code for each distinct (outer string, name)."""

    MOST_NAMES = 100  # what lies deeper shares one text: a push that is never popped would make them grow without end

    def __init__(self) -> None:
        self._pairs: list[tuple[int, int]] = []
        self._codes: dict[tuple[int, int], int] = {}

    def join(self, outer: np.ndarray, name: np.ndarray) -> np.ndarray:
        if not len(name):
            return np.empty(0, np.int64)
        shift = int(name.max()) + 1
        unique, inverse = np.unique((outer + 1) * shift + name, return_inverse=True)
        codes = np.empty(len(unique), np.int64)
        for i, pair in enumerate(unique.tolist()):
            key = (pair // shift - 1, pair % shift)
            if key not in self._codes:
                self._codes[key] = len(self._pairs)
                self._pairs.append(key)
                limits.PATHS.check(len(self._pairs))
            codes[i] = self._codes[key]
        return codes[inverse]

    def _check_lengths(self, names: list[str]) -> None:
        """Raise LimitError if a string would be too long, or all together, before any is made."""
        name_bytes = [len(name.encode("utf-8", "replace")) for name in names]
        num_names: list[int] = []
        num_bytes: list[int] = []
        total = 0
        for outer, name in self._pairs:
            num_names.append(num_names[outer] + 1 if outer >= 0 else 1)
            num_bytes.append(num_bytes[outer] if outer >= 0 else 0)
            if num_names[-1] <= self.MOST_NAMES:
                num_bytes[-1] += name_bytes[name] + 1
                limits.PATH_BYTES.check(num_bytes[-1])
                total += num_bytes[-1]
        limits.PATHS_BYTES.check(total)

    def make_categorical(self, codes: np.ndarray, names: list[str]) -> pd.Categorical:
        self._check_lengths(names)
        texts: list[str] = []
        length: list[int] = []
        for outer, name in self._pairs:
            length.append(length[outer] + 1 if outer >= 0 else 1)
            if length[-1] > self.MOST_NAMES + 1:
                texts.append(texts[outer])
            else:
                last = names[name] if length[-1] <= self.MOST_NAMES else "\N{HORIZONTAL ELLIPSIS}"
                texts.append(f"{texts[outer]}/{last}" if outer >= 0 else last)
        merged, categories = pd.factorize(np.array([*texts, ""], dtype=object))
        return pd.Categorical.from_codes(merged.astype(np.int32)[codes], pd.Index(categories, dtype=object))
