"""Attribute GPU work to the NVTX ranges it was launched in: kernel -> launch API call -> innermost range of the same
thread.

An operation belongs to where the host *launched* it, never to where it ran: kernels run after the host has left the
range. The launch is the API call with the operation's correlation id in the operation's process (the id is unique per
process only); every kernel of a CUDA graph belongs to the call that launched the graph. Push/pop ranges belong to the
thread that pushed them, and nest per domain. What a thread without ranges launches (autograd's backward thread) gets
its phase and step from the ranges open at that time on the process's other threads. Where a step has a forward and a
backward range and no loss range, what is launched between the two is the loss. Where
PyTorch's operations are ranges, what a process launches from the first of them to its first phase, outside every step,
is set-up, if that phase is one that a step begins with. The label says how the phase is known:

- `exact`: the launching thread itself was inside the phase (or, where the capture names no phase, inside a range)
- `early`: so it was, but the operation seems to begin before its launch. The clocks of host and GPU disagree, and the
  correlation id alone says that this call launched it
- `linked`: so it was, inside a node of autograd's graph whose number tells the operation of forward that made it; the
  module is that operation's
- `phase`: the phase was found by time, across the threads of the process
- `inferred`: from what it is and who launched it, without a range (`analysis.capture.inferred` only)
- `none`:  none of these, or the launch is not in the capture or not to be believed, or the threads disagree about the
  phase

An operation that PyTorch numbers (see `analysis.capture.pytorch_ranges`) outside every other phase is of forward, where
no other range of the process marks forward. Its module is the path of the other ranges around it, or else its name. A
phase within an optimizer counts as itself: an optimizer may call a closure that runs forward and backward. So what
PyTorch marks in an optimizer is of forward where backward follows in the same optimizer.

A launch is not to be believed where it is one of several calls with the operation's correlation id, where the call
launches one kernel and several have its id, and where the operation begins too long before it (`compute_most_early`).
`Attribution.problems` tells of how many operations that is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits, pytorch_ranges
from profiler_job.analysis.capture.blocks import split_into_blocks
from profiler_job.analysis.capture.capture_data import UNKNOWN_THREAD, Capture, make_limit_error
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.capture.phase_names import find_phase, is_step, parse_module
from profiler_job.jobs.contract import ranges as vocabulary

ATTRIBUTIONS = ("exact", "early", "linked", "phase", "inferred", "none")
EXACT, EARLY, LINKED, PHASE, INFERRED, NONE = range(6)
MOST_EARLY_NS, MOST_EARLY_SHARE = 5_000_000, 0.1
"""An operation may begin so long before its launch, and never more than this share of the capture: nsys brings the
clocks of host and GPU together only approximately. Of 2.8 M kernels that were recorded on H200s 3.5% seem to begin
before their launch, by up to 2.23 ms, and by up to 0.5% of the time of their run's events."""
NO_CALL, NOT_BELIEVED = -1, -2
_NO_PHASE = len(vocabulary.ALL_PHASES)
_SETUP, _DATA, _FORWARD, _LOSS, _BACKWARD, _OPTIMIZER, _ZERO_GRAD = map(
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
_LAUNCHES_ONE = re.compile(r"cu(da)?Launch(Cooperative)?Kernel(Ex|ExC)?")
_PHASE_CATEGORIES = [*vocabulary.ALL_PHASES, ""]


@dataclass(kw_only=True)
class Attribution:
    """Ranges with their place, and the place of each operation; rows are in the order of the capture's frames.

    ranges: the capture's columns and plain_name (without the numbers of PyTorch), is_operation (whether PyTorch pushed
            it), parent_id (-1 none; row number of the parent), depth, path, step (-1 none), is_step (whether it is the
            outermost range of its step), phase, module (path below the phase); path and module are of plain names and
            end in an ellipsis after a hundred. Start/end ranges take no part in the nesting: they have no parent.
    kernels, memops, graphs: api (row of the launch, NO_CALL not in the capture, NOT_BELIEVED), launch_ns, launch_end_ns
            (start_ns where there is no launch), thread, range_id (-1 none), step, phase, module, attribution
    api:    range_id, step, phase, attribution
    nesting: looks up the innermost range of a thread at a time
    problems: what is wrong with the launches -> what was made of it
    """

    ranges: pd.DataFrame
    kernels: pd.DataFrame
    memops: pd.DataFrame
    graphs: pd.DataFrame
    nesting: "Nesting"
    problems: dict[str, str]
    _places: "_Places"
    _calls: pd.DataFrame
    _path: Path

    @cached_property
    def api(self) -> pd.DataFrame:
        """range_id, step, phase and attribution of each API call, worked out when first asked for."""
        calls = self._calls
        return self._places.place_moments(calls["process"], calls["thread"], calls["start_ns"], None).drop(
            columns="module"
        )

    def find_chains(self, operations: pd.DataFrame) -> list[np.ndarray]:
        """For each domain: the innermost push/pop range that holds the launch of each row of kernels, memops or
        graphs."""
        if len(self.nesting.domains) == 1 and "range_id" in operations:
            return [operations["range_id"].to_numpy()]
        return self.nesting.find_chains(operations["thread"].to_numpy(), operations["launch_ns"].to_numpy())

    def pair_with_ranges(self, operations: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Every (operation, range) where a push/pop range holds the launch of a row of kernels, memops or graphs: row
        numbers (int64, int32), innermost ranges first. Raises ExportError where there are too many."""
        chains = self.find_chains(operations)
        try:
            limits.HELD_IN.check(sum(int(self.nesting.depth[chain[chain >= 0]].sum()) for chain in chains))
        except limits.LimitError as error:
            raise make_limit_error(self._path, error) from error
        pairs = [(np.empty(0, np.int64), np.empty(0, np.int32))]
        for chain in chains:
            row = np.arange(len(chain))
            while True:
                held = chain >= 0
                row, chain = row[held], chain[held]
                if not len(row):
                    break
                pairs.append((row, chain))
                chain = self.nesting.stack_parent[chain]
        rows, held_in = zip(*pairs)
        return np.concatenate(rows), np.concatenate(held_in)


def attribute(capture: Capture, chosen: Mapping[str, str] | None = None) -> Attribution:
    """Attribution of every GPU operation and API call of `capture`; `chosen`: phases of ranges that the user names.
    Raises ExportError where its ranges are beyond the limits."""
    try:
        nesting = Nesting(capture.ranges)
        ranges, made_by = _place_ranges(capture.ranges, nesting, chosen or {})
    except limits.LimitError as error:
        raise make_limit_error(capture.path, error) from error
    places = _Places(ranges, nesting, made_by)
    problems: dict[str, str] = {}
    operations = {}
    for name, shown in (("kernels", "kernels"), ("memops", "copies and fills"), ("graphs", "graph executions")):
        frame = getattr(capture, name)
        row = _find_believed_launches(frame, capture.api, capture.events_ns, shown, problems)
        operations[name] = places.place_operations(frame, capture.api, row)
    return Attribution(
        ranges=ranges,
        **operations,
        nesting=nesting,
        problems=problems,
        _places=places,
        _calls=capture.api,
        _path=capture.path,
    )


# ---------------------------------------------------------------------------------------------------- nesting of ranges


class Nesting:
    """The push/pop stacks of a capture's ranges, one per thread and domain, for looking up many moments at once. Raises
    LimitError where a stack is too deep."""

    def __init__(self, ranges: pd.DataFrame):
        self._start = ranges["start_ns"].to_numpy()
        self._end = ranges["end_ns"].to_numpy()
        self.stack_parent = np.full(len(ranges), -1, np.int64)
        self.depth = np.zeros(len(ranges), np.int64)  # in the stack, 1 for the outermost
        pushed = np.flatnonzero((ranges["style"] == "PushPop").to_numpy())
        self._threads, thread = np.unique(ranges["thread"].to_numpy()[pushed], return_inverse=True)
        domain_codes, domain = np.unique(ranges["domain"].cat.codes.to_numpy()[pushed], return_inverse=True)
        self.domains = [ranges["domain"].cat.categories[code] for code in domain_codes]
        self._times = np.sort(np.concatenate([self._start[pushed], self._end[pushed]]))
        self._keys: list[np.ndarray] = []
        self._current: list[np.ndarray] = []
        for code in range(len(domain_codes)):
            mine = domain == code
            self._add_stacks(pushed[mine], thread[mine])

    def _add_stacks(self, rows: np.ndarray, thread: np.ndarray) -> None:
        """Walk the pushes and pops of one domain in the order they happened, all threads at once."""
        start, end = self._start[rows], self._end[rows]
        count = len(rows)
        index = np.arange(count)
        time = np.concatenate([start, end])
        # At one moment: first what ends, inner before outer; then what begins, outer before inner; an empty range last.
        kind = np.concatenate([np.ones(count, np.int8), np.where(start == end, 2, 0).astype(np.int8)])
        other = np.concatenate([-end, -start])
        order = np.lexsort((np.concatenate([index, -index]), other, kind, time, np.concatenate([thread, thread])))
        pushes, event = order < count, order % count
        depth_after = np.cumsum(np.where(pushes, 1, -1))
        position = np.flatnonzero(pushes)
        depth = depth_after[position]
        limits.DEPTH.check(int(depth.max(initial=0)))
        self.depth[rows[event[position]]] = depth
        by_depth = position[np.argsort(depth, kind="stable")]
        parent = np.full(count, -1, np.int64)
        above = None
        for level in np.split(by_depth, np.cumsum(np.bincount(depth)[1:])[:-1]) if count else []:
            if above is not None:
                parent[event[level]] = event[above[np.searchsorted(above, level) - 1]]
            above = level
        current = np.where(pushes, event, parent[event])
        self.stack_parent[rows] = np.where(parent >= 0, rows[parent], -1)
        rank = np.searchsorted(self._times, time[order])
        self._keys.append(np.concatenate([thread, thread])[order] * (len(self._times) + 1) + rank)
        self._current.append(np.where(current >= 0, rows[current], -1).astype(np.int32))

    def find_chains(self, thread: np.ndarray, time: np.ndarray) -> list[np.ndarray]:
        """For each domain: the innermost range (row number, -1 none) of that domain open on `thread` at `time`, as
        int32.

        A range holds the moment it starts and not the moment it ends."""
        if not len(self._threads):
            return []
        innermost = [np.empty(len(time), np.int32) for _ in self._keys]
        for rows in split_into_blocks(len(time)):
            code = np.searchsorted(self._threads, thread[rows])
            code[code == len(self._threads)] = 0
            known = self._threads[code] == thread[rows]
            key = code * (len(self._times) + 1) + np.searchsorted(self._times, time[rows], side="right") - 1
            for chain, keys, current in zip(innermost, self._keys, self._current):
                position = np.searchsorted(keys, key, side="right") - 1
                # After the last event of a thread nothing is open, so a moment before its first event finds nothing
                # either.
                chain[rows] = np.where(known & (position >= 0), current[position], np.int32(-1))
        return innermost

    def find_innermost(self, chains: list[np.ndarray], size: int) -> np.ndarray:
        """Of the domains' innermost ranges the one that started last (int32 row numbers, -1 none)."""
        if not chains:
            return np.full(size, -1, np.int32)
        best = chains[0]
        for other in chains[1:]:
            later = (other >= 0) & ((best < 0) | (self._start[other] >= self._start[best]))
            best = np.where(later, other, best)
        return best


def _merge_parents(ranges: pd.DataFrame, nesting: Nesting) -> np.ndarray:
    """Parent of each push/pop range: the latest started range on its thread that holds all of it, of any domain."""
    parent = nesting.stack_parent
    if len(nesting.domains) < 2:
        return parent
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    domain = ranges["domain"].to_numpy()
    pushed = (ranges["style"] == "PushPop").to_numpy()
    best = parent.copy()
    for name, chain in zip(nesting.domains, nesting.find_chains(ranges["thread"].to_numpy(), start)):
        fits = pushed & (domain != name) & (chain >= 0)
        # Two domains may overlap without nesting, and two ranges that are equal must not become each other's parent.
        fits &= (end[chain] >= end) & ((start[chain] < start) | (end[chain] > end) | (chain < np.arange(len(chain))))
        later = fits & ((best < 0) | (start[chain] > start[best]))
        best = np.where(later, chain, best)
    return best


def split_by_depth(parent: np.ndarray) -> list[np.ndarray]:
    """Row numbers by depth, outermost first, for a forest given by parents (-1 none)."""
    above, depth = parent, (parent >= 0).astype(np.int64)
    # Each round doubles how far `above` looks: pushes that are never popped nest by the ten thousand.
    while (has := above >= 0).any():
        depth, above = depth + np.where(has, depth[above], 0), np.where(has, above[above], -1)
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(parent) else []


def _place_ranges(ranges: pd.DataFrame, nesting: Nesting, chosen: Mapping[str, str]) -> tuple[pd.DataFrame, np.ndarray]:
    """The ranges with their place, and for each the row of the numbered operation that made the node it lies in (-1
    none)."""
    parent = _merge_parents(ranges, nesting)
    count = len(ranges)
    raw = ranges["name"].cat.codes.to_numpy().astype(np.int64)
    named = pytorch_ranges.parse_names([str(category) for category in ranges["name"].cat.categories])
    names, name = named.plain, named.code[raw]
    number, is_operation = named.number[raw], named.is_operation[raw]
    is_node = (number >= 0) & named.is_node[name]
    own_phase = np.array([_PHASE_CATEGORIES.index(find_phase(text, chosen)) for text in names], np.int8)[name]
    is_chosen = np.array([text in chosen for text in names], bool)[name]
    own_step = np.array([is_step(text) for text in names], bool)[name]
    own_module = [parse_module(text) for text in names]
    has_own_module = np.array([own is not None for own in own_module], bool)[name]
    below_phase = [text if own is None else own for text, own in zip(names, own_module)]
    is_forward = _find_numbered_forward(
        ranges, number, is_node, np.where(is_operation, _NO_PHASE, own_phase), own_phase
    )
    own_phase[is_node & (own_phase == _NO_PHASE)] = _BACKWARD
    wins = (own_phase != _NO_PHASE) & ~is_node
    next_backward = _find_next_backward(ranges, own_phase) if is_operation.any() else None

    depth = np.zeros(count, np.int32)
    path, module = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    phase, in_step = np.full(count, _NO_PHASE, np.int8), np.full(count, -1, np.int64)
    around = np.full(count, -1, np.int64)  # path of what is no operation of PyTorch, from the phase on
    until, ends = np.zeros(count, np.int64), ranges["end_ns"].to_numpy()  # of the optimizer's range
    paths, modules = _JoinedNames(), _JoinedNames()
    by_depth = split_by_depth(parent)
    limits.DEPTH.check(len(by_depth))
    for level, rows in enumerate(by_depth):
        above = parent[rows]
        has = above >= 0
        depth[rows] = level
        path[rows] = paths.join(np.where(has, path[above], -1), name[rows])
        inherited = np.where(has, phase[above], _NO_PHASE)
        begins = wins[rows] & (is_chosen[rows] | (inherited == _OPTIMIZER)) & (own_phase[rows] != inherited)
        below = (inherited != _NO_PHASE) & ~begins
        phase[rows] = np.where(below, inherited, own_phase[rows])
        phase[rows[is_forward[rows] & (phase[rows] == _NO_PHASE)]] = _FORWARD
        if next_backward is not None:
            in_optimizer = phase[rows] == _OPTIMIZER
            until[rows] = np.where(below & has, until[above], np.where(in_optimizer, ends[rows], 0))
            in_closure = in_optimizer & below & is_operation[rows] & (next_backward[rows] < until[rows])
            phase[rows[in_closure]] = _FORWARD
        named_here = has_own_module[rows]
        below |= named_here
        outer = np.where(has & ~named_here, module[above], -1)
        operation = is_operation[rows] & (below | ~wins[rows])
        joined = rows[below & ~operation]
        module[joined] = modules.join(outer[below & ~operation], name[joined])
        if is_operation.any():
            around[rows] = np.where(has, around[above], -1)
            holds = ~operation & ~wins[rows] & ~own_step[rows]
            around[rows[holds]] = modules.join(around[rows[holds]], name[rows[holds]])
            around[rows[wins[rows] & ~below & ~is_operation[rows]]] = -1
            module[joined] = around[joined]
            joined = rows[operation]
            own = modules.join(np.full(len(joined), -1), name[joined])
            inner = (number[joined] < 0) & (outer[operation] >= 0)
            own = np.where(inner, outer[operation], own)
            module[joined] = np.where(around[joined] >= 0, around[joined], own)
        outer_step = np.where(has, in_step[above], -1)
        in_step[rows] = np.where(outer_step >= 0, outer_step, np.where(own_step[rows], rows, -1))

    placed = ranges.copy(deep=False)
    placed["plain_name"] = pd.Categorical.from_codes(name, pd.Index(names, dtype=object))
    placed["is_operation"] = is_operation
    placed["parent_id"] = parent.astype(np.int32)
    placed["depth"] = depth
    placed["path"] = paths.make_categorical(path, names)
    placed["step"] = _number_steps(ranges, _fill_started_steps(ranges, in_step))
    placed["is_step"] = in_step == np.arange(count)
    placed["phase"] = pd.Categorical.from_codes(phase, _PHASE_CATEGORIES)
    placed["module"] = modules.make_categorical(module, below_phase)
    made_by = np.full(count, -1, np.int64)
    if is_node.any():
        made_by = pytorch_ranges.link_nodes(ranges, number, is_node, name, names)
        pytorch_ranges.link_calls_of_nodes(made_by, parent, is_node, name, names)
        for rows in by_depth[1:]:
            inner = rows[(made_by[rows] < 0) & (parent[rows] >= 0)]
            made_by[inner] = made_by[parent[inner]]
        made_by[phase != _BACKWARD] = -1
    return placed, made_by


def _find_next_backward(ranges: pd.DataFrame, own_phase: np.ndarray) -> np.ndarray:
    """When the process's next range of backward starts after the start of each range; the largest time where none
    does."""
    process, start = ranges["process"].to_numpy(), ranges["start_ns"].to_numpy()
    following = np.empty(len(ranges), np.int64)
    for owner in np.unique(process):
        mine = process == owner
        backward = np.r_[np.sort(start[mine & (own_phase == _BACKWARD)]), np.iinfo(np.int64).max]
        following[mine] = backward[np.searchsorted(backward[:-1], start[mine], side="right")]
    return following


def _find_numbered_forward(
    ranges: pd.DataFrame, number: np.ndarray, is_node: np.ndarray, users_phase: np.ndarray, own_phase: np.ndarray
) -> np.ndarray:
    """Which ranges are numbered operations of forward: in a process in which the user's ranges do not mark forward, and
    not between backward and the optimizer, where gradients are clipped by hand."""
    process, start = ranges["process"].to_numpy(), ranges["start_ns"].to_numpy()
    is_forward = (number >= 0) & ~is_node
    for owner in np.unique(process[is_forward]):
        mine = process == owner
        rows = np.flatnonzero(mine & is_forward)
        if (users_phase[mine] == _FORWARD).any():
            is_forward[rows] = False
            continue
        backward = np.sort(start[mine & (is_node | (own_phase == _BACKWARD))])
        optimizer = np.sort(start[mine & (own_phase == _OPTIMIZER)])
        before = [np.r_[-1, of][np.searchsorted(of, start[rows], side="right")] for of in (backward, optimizer)]
        never = np.iinfo(np.int64).max
        after = [np.r_[of, never][np.searchsorted(of, start[rows], side="right")] for of in (backward, optimizer)]
        is_forward[rows[(before[0] > before[1]) & (after[1] < after[0])]] = False
    return is_forward


def _fill_started_steps(ranges: pd.DataFrame, in_step: np.ndarray) -> np.ndarray:
    """`in_step` with the step of what lies in one that is a start/end range: it holds what its process pushes in it,
    and is no part of a stack."""
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
    """Number of the step each range lies in: the steps of a process counted from 0 in the order they start."""
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

    def __init__(self):
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
        """Raises LimitError where a string would be too long, or all together, before any is made."""
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


# ------------------------------------------------------------------------------------------------ places of operations


class _Places:
    """Where the host was at many moments: range, step, phase and module, and how that is known."""

    def __init__(self, ranges: pd.DataFrame, nesting: Nesting, made_by: np.ndarray):
        self._ranges, self._nesting, self._made_by = ranges, nesting, made_by
        self._phase = ranges["phase"].cat.codes.to_numpy()
        self._step = ranges["step"].to_numpy()
        self._module = ranges["module"].cat.codes.to_numpy()
        self._modules = ranges["module"].cat.categories
        parent = ranges["parent_id"].to_numpy()
        has = parent >= 0
        # The outermost range of a phase (of a step), on each thread: these are what other threads are looked up in.
        self._phase_roots = (self._phase != _NO_PHASE) & ~(has & (self._phase[parent] == self._phase))
        self._around = np.where(has, self._phase[parent], _NO_PHASE) if len(ranges) else self._phase
        self._step_roots = ranges["is_step"].to_numpy()
        self._has_phases = bool(self._phase_roots.any())
        self._losses = _find_implied_losses(ranges, self._phase, self._phase_roots & ~_mark_forward_operations(ranges))
        self._setups = _find_setups(ranges, self._phase)

    def place_operations(self, operations: pd.DataFrame, api: pd.DataFrame, row: np.ndarray) -> pd.DataFrame:
        """Place of each of `operations`, launched by this row of `api`."""
        launched = row >= 0
        start = operations["start_ns"].to_numpy()
        launch, launch_end, thread = start, start, np.full(len(row), UNKNOWN_THREAD)
        if len(api):
            launch, launch_end = np.empty_like(start), np.empty_like(start)
            begins, ends, threads = (api[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
            for rows in split_into_blocks(len(row)):
                known = launched[rows]
                call = np.where(known, row[rows], 0)
                launch[rows] = np.where(known, begins[call], start[rows])
                launch_end[rows] = np.where(known, ends[call], start[rows])
                thread[rows] = np.where(known, threads[call], UNKNOWN_THREAD)
        place = self.place_moments(operations["process"], thread, launch, launched)
        how = place["attribution"].cat.codes.to_numpy()
        how = np.where((how == EXACT) & (start < launch), EARLY, how).astype(np.int8)
        place["attribution"] = pd.Categorical.from_codes(how, list(ATTRIBUTIONS))
        frame = {"api": row, "launch_ns": launch, "launch_end_ns": launch_end, "thread": thread}
        return pd.DataFrame(frame | {name: place[name] for name in place}, copy=False)

    def place_moments(self, process, thread, time, launched: np.ndarray | None) -> pd.DataFrame:
        """Place of the host at `time` on `thread` of `process`; where `launched` is False there is none."""
        process, thread, time = np.asarray(process), np.asarray(thread), np.asarray(time)
        count = len(time)
        wanted = np.ones(count, bool) if launched is None else launched
        chains = self._nesting.find_chains(thread, time)
        for chain in chains:
            chain[~wanted] = -1
        range_id = self._nesting.find_innermost(chains, count)
        phase, step = np.full(count, _NO_PHASE, np.int8), np.full(count, -1, np.int32)
        module = np.full(count, -1, np.result_type(self._module, np.int16))
        attribution = np.full(count, NONE, np.int8)
        for rows in split_into_blocks(count) if len(self._phase) else ():
            parts = (phase[rows], step[rows], module[rows], attribution[rows])
            self._fill_fill_fill_by_thread(range_id[rows], [chain[rows] for chain in chains], *parts)
        self._fill_fill_fill_by_time(process, time, wanted, phase, step, attribution)
        return pd.DataFrame(
            {
                "range_id": range_id,
                "step": step,
                "phase": pd.Categorical.from_codes(phase, _PHASE_CATEGORIES),
                "module": pd.Categorical.from_codes(
                    module if len(self._module) else np.zeros(count, np.int8),
                    self._modules if len(self._module) else pd.Index([""], dtype=object),
                ),
                "attribution": pd.Categorical.from_codes(attribution, list(ATTRIBUTIONS)),
            },
            copy=False,
        )

    def _fill_fill_fill_by_thread(self, range_id, chains, phase, step, module, attribution) -> None:
        """Fill the last four, in place, from the ranges of the launching thread."""
        # The innermost range knows; where domains overlap without nesting, another domain's range may know instead.
        for chain in [range_id, *chains] if len(chains) > 1 else chains:
            inside = chain >= 0
            np.copyto(phase, self._phase[chain], where=inside & (phase == _NO_PHASE))
            np.copyto(step, self._step[chain], where=inside & (step < 0), casting="same_kind")
        held = range_id >= 0
        module[:] = np.where(held, self._module[range_id], self._modules.get_loc(""))
        attribution[(phase != _NO_PHASE) | (held & (not self._has_phases))] = EXACT
        if len(self._made_by):
            linked = held & (self._made_by[range_id] >= 0) & (attribution == EXACT) & (phase == _BACKWARD)
            attribution[linked] = LINKED
            module[linked] = self._module[self._made_by[range_id[linked]]]

    def _fill_fill_fill_by_time(self, process, time, wanted, phase, step, attribution) -> None:
        """Fill phase and step, in place, from what was open at that time on any thread of the process."""
        ranges = self._ranges
        start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
        range_process = ranges["process"].to_numpy()
        for owner in np.unique(range_process[self._phase_roots | self._step_roots]):
            mine = range_process == owner
            rows = np.flatnonzero(wanted & (process == owner) & (phase == _NO_PHASE))
            if len(rows) and self._has_phases:
                open_now = np.zeros((_NO_PHASE, len(rows)), bool)
                for code in range(_NO_PHASE):
                    roots = mine & self._phase_roots & (self._phase == code)
                    within = mine & self._phase_roots & (self._around == code)
                    num_open = _num_open(start[roots], end[roots], time[rows])
                    open_now[code] = num_open > _num_open(start[within], end[within], time[rows])
                loss_process, loss_start, loss_end = self._losses
                here = loss_process == owner
                between = _num_open(loss_start[here], loss_end[here], time[rows]) > 0
                open_now[_LOSS] |= between & ~open_now.any(axis=0)
                agreed = open_now.sum(axis=0) == 1
                phase[rows[agreed]] = open_now.argmax(axis=0)[agreed]
                attribution[rows[agreed]] = PHASE
            rows = np.flatnonzero(wanted & (process == owner) & (step < 0))
            roots = np.flatnonzero(mine & self._step_roots)
            if len(rows) and len(roots):
                roots = roots[np.argsort(start[roots], kind="stable")]
                last = np.searchsorted(start[roots], time[rows], side="right") - 1
                inside = (last >= 0) & (time[rows] < end[roots][last])
                inside &= _num_open(start[roots], end[roots], time[rows]) == 1
                step[rows[inside]] = self._step[roots[last[inside]]]
            if owner in self._setups:
                first_operation, first_phase = self._setups[owner]
                rows = np.flatnonzero(wanted & (process == owner) & (phase == _NO_PHASE) & (step < 0))
                rows = rows[(first_operation <= time[rows]) & (time[rows] < first_phase)]
                phase[rows], attribution[rows] = _SETUP, PHASE


def _mark_forward_operations(ranges: pd.DataFrame) -> np.ndarray:
    """Which ranges are operations of PyTorch in forward: between two of them lies no loss."""
    return (ranges["is_operation"] & (ranges["phase"] == vocabulary.FORWARD)).to_numpy()


def _find_implied_losses(ranges: pd.DataFrame, phase: np.ndarray, roots: np.ndarray) -> tuple[np.ndarray, ...]:
    """Process, start and end of the times between a forward range and the backward range that follows it as the next
    phase of the same thread and step; gradients may be set to zero between the two."""
    rows = np.flatnonzero(roots & (ranges["step"].to_numpy() >= 0) & (phase != _ZERO_GRAD))
    process, thread = ranges["process"].to_numpy(), ranges["thread"].to_numpy()
    start, end, step = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), ranges["step"].to_numpy()
    rows = rows[np.lexsort((start[rows], thread[rows], process[rows]))]
    first, second = rows[:-1], rows[1:]
    follows = (process[first] == process[second]) & (thread[first] == thread[second]) & (step[first] == step[second])
    follows &= (phase[first] == _FORWARD) & (phase[second] == _BACKWARD) & (end[first] <= start[second])
    return process[first[follows]], end[first[follows]], start[second[follows]]


def _find_setups(ranges: pd.DataFrame, phase: np.ndarray) -> dict[int, tuple[int, int]]:
    """Process -> start of its first operation of PyTorch and of its first phase, where a step begins with that."""
    setups = {}
    process, start = ranges["process"].to_numpy(), ranges["start_ns"].to_numpy()
    is_operation, has_phase = ranges["is_operation"].to_numpy(bool), phase != _NO_PHASE
    for owner in np.unique(process[is_operation]):
        mine = process == owner
        phases = np.flatnonzero(mine & has_phase)
        first = phases[np.argmin(start[phases])] if len(phases) else -1
        if first >= 0 and phase[first] in (_DATA, _FORWARD, _ZERO_GRAD):
            setups[int(owner)] = (int(start[mine & is_operation].min()), int(start[first]))
    return setups


def _num_open(start: np.ndarray, end: np.ndarray, time: np.ndarray) -> np.ndarray:
    """How many of the intervals [start, end) hold each of `time`."""
    return np.searchsorted(np.sort(start), time, side="right") - np.searchsorted(np.sort(end), time, side="right")


def compute_most_early(events_ns: int) -> float:
    """How long before its launch an operation may begin, in a capture whose events last so long."""
    return min(MOST_EARLY_NS, MOST_EARLY_SHARE * events_ns)


def _find_believed_launches(
    operations: pd.DataFrame, api: pd.DataFrame, events_ns: int, shown: str, problems: dict[str, str]
) -> np.ndarray:
    """Row of `api` that launched each operation, NO_CALL where that is not to be believed; `problems` says of how many
    operations, which are called `shown`."""
    row = find_launches(operations, api)
    several_calls = row == NOT_BELIEVED
    most = compute_most_early(events_ns)
    early = np.zeros(len(row), bool)
    if len(api):
        begins, start = api["start_ns"].to_numpy(), operations["start_ns"].to_numpy()
        for rows in split_into_blocks(len(row)):
            early[rows] = (row[rows] >= 0) & (begins[np.maximum(row[rows], 0)] - start[rows] > most)
    shares = _is_shared_launch(row, api)
    for doubtful, what in (
        (several_calls, "have the correlation id of several API calls"),
        (shares, "have the correlation id of a call that launches one kernel, as other kernels do"),
        (early & ~shares, f"begin more than {most / 1e6:.3g} ms before the call that launched them"),
    ):
        if num := int(doubtful.sum()):
            problems[f"{num} of {len(row)} {shown} {what}"] = "their launch is not believed: they are not attributed"
    return np.where(several_calls | shares | early, NOT_BELIEVED, row)


def _is_shared_launch(row: np.ndarray, api: pd.DataFrame) -> np.ndarray:
    """Whether the operation's call is one that launches a single kernel, and has several operations."""
    names = api["name"].cat
    shared = have_shared_launch(row, len(api))
    if not shared.any():
        return np.zeros(len(row), bool)
    single = np.array([_LAUNCHES_ONE.fullmatch(str(name)) is not None for name in names.categories], bool)
    call = np.where(row >= 0, row, 0)
    return (row >= 0) & shared[call] & single[names.codes.to_numpy()[call]]


def have_shared_launch(row: np.ndarray, num_calls: int) -> np.ndarray:
    """Whether each of the calls launched several of the operations; `row`: the call of each operation, below 0 none."""
    launched = row[row >= 0]
    once = np.zeros(num_calls, bool)
    once[launched] = True
    if np.count_nonzero(once) == len(launched):  # as in most captures; counting takes eight times the memory
        return np.zeros(num_calls, bool)
    return np.bincount(launched, minlength=num_calls) > 1


def find_launches(operations: pd.DataFrame, api: pd.DataFrame) -> np.ndarray:
    """Row of `api` that launched each operation, joined on process and correlation id; NO_CALL where there is none,
    NOT_BELIEVED where there are several (int64)."""
    if not len(api) or not len(operations):
        return np.full(len(operations), NO_CALL, np.int64)
    api_process, process = api["process"].to_numpy(), operations["process"].to_numpy()
    processes = find_distinct(api_process)
    api_correlation, correlation = api["correlation"].to_numpy(), operations["correlation"].to_numpy()
    low, high = int(api_correlation.min()), int(api_correlation.max())
    if (high - low + 1) * len(processes) >= 2**63:
        raise ValueError("correlation ids are out of range")
    span = high - low + 1

    def make_keys(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Keys of operations, and which of them can be those of a call."""
        code = np.minimum(np.searchsorted(processes, process[rows]), len(processes) - 1)
        wanted = correlation[rows]
        known = (processes[code] == process[rows]) & (wanted >= max(low, 0)) & (wanted <= high)
        return code * span + np.where(known, wanted - low, 0), known

    def make_api_keys(rows: slice) -> np.ndarray:
        return np.searchsorted(processes, api_process[rows]) * span + (api_correlation[rows] - low)

    if span * len(processes) <= 8 * len(api) + 1_000_000:
        # Correlation ids are counted up, so a table of them is small; of equal ids a later one is written over.
        table = np.full(span * len(processes), NO_CALL, np.int32)
        for rows in split_into_blocks(len(api)):
            table[make_api_keys(rows)] = np.arange(rows.start, rows.stop, dtype=np.int32)
        for rows in split_into_blocks(len(api)):
            keys = make_api_keys(rows)
            table[keys[table[keys] != np.arange(rows.start, rows.stop, dtype=np.int32)]] = NOT_BELIEVED
        row = np.empty(len(operations), np.int64)
        for rows in split_into_blocks(len(row)):
            key, known = make_keys(rows)
            row[rows] = np.where(known, table[key], np.int64(NO_CALL))
        return row
    api_key = make_api_keys(slice(None))
    key, known = make_keys(slice(None))
    order = np.argsort(api_key, kind="stable")
    ordered = api_key[order]
    position = np.minimum(np.searchsorted(ordered, key), len(ordered) - 1)
    several = ordered[np.minimum(position + 1, len(ordered) - 1)] == key
    several &= position + 1 < len(ordered)
    api_row = np.where(several, NOT_BELIEVED, order[position])
    return np.where(known & (ordered[position] == key), api_row, NO_CALL)
