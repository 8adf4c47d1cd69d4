"""Attribute GPU work to the NVTX ranges it was launched in.

A kernel belongs to the API call that launched it, and to the innermost range of that call's thread.

An operation belongs to where the CPU *launched* it, never to where it ran: kernels run after the CPU has left the
range. The launch is the API call with the operation's correlation id in the operation's process (the id is unique per
process only). Every kernel of a CUDA graph belongs to the call that launched the graph. Push/pop ranges belong to the
thread that pushed them, and nest per domain. A thread without ranges (autograd's backward thread) gets its phase and
step from the ranges that are open at that time on the other threads of the process. If a step has a forward and a
backward range and no loss range, everything launched between the two is the loss. If PyTorch's operations are ranges,
everything that a process launches outside steps from the first operation to its first phase is set-up, provided that a
step can begin with that phase. The label shows how the phase is known:

- `exact`: the launching thread was inside the phase (or inside a range, if the capture names no phase)
- `early`: like `exact`, but the operation seems to begin before its launch: the clocks of CPU and GPU disagree, and
  only the correlation id links it to this call
- `linked`: like `exact`, inside a node of autograd's graph whose number identifies the forward operation that made it;
  the module is that operation's module. Or in a replay of a CUDA graph, as it was captured (see
  `analysis.capture.replays`)
- `phase`: the phase was found by time, across the threads of the process
- `inferred`: inferred without a range, from the kernel and the thread that launched it (`analysis.capture.inferred`
  only)
- `none`: none of these, or the capture lacks the launch, or the launch is not trusted, or the threads disagree about
  the phase

An operation that PyTorch numbers (see `analysis.capture.pytorch_ranges`) outside every other phase belongs to forward,
if no other range of the process marks forward. Its module is the path of the other ranges around it, or else its name.
A phase within an optimizer counts as itself: an optimizer may call a closure that runs forward and backward. So
PyTorch's operations in an optimizer belong to forward if backward follows in the same optimizer.

A launch is not trusted in three cases: several calls have the operation's correlation id; the call launches one kernel
and several have its id; the operation begins too long before it (`compute_most_early`). `Attribution.problems` counts
these operations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits
from profiler_job.analysis.capture.believed_launches import find_believed_launches
from profiler_job.analysis.capture.blocks import split_into_blocks
from profiler_job.analysis.capture.capture_data import UNKNOWN_THREAD, Capture, make_limit_error
from profiler_job.analysis.capture.range_nesting import Nesting
from profiler_job.analysis.capture.range_places import (
    BACKWARD,
    DATA,
    FORWARD,
    LOSS,
    NO_PHASE,
    PHASE_CATEGORIES,
    SETUP,
    ZERO_GRAD,
    place_ranges,
)
from profiler_job.analysis.capture.replays import place_replays
from profiler_job.jobs.contract import ranges as vocabulary

ATTRIBUTIONS = ("exact", "early", "linked", "phase", "inferred", "none")
EXACT, EARLY, LINKED, PHASE, INFERRED, NONE = range(6)


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
        """Find every (operation, range) for which a push/pop range holds the launch of a row of kernels, memops or
        graphs: row numbers (int64, int32), innermost ranges first. Raises ExportError if there are too many."""
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
    """Attribute every GPU operation and API call of `capture`; `chosen`: phases of ranges that the user names. Raises
    ExportError if its ranges exceed the limits."""
    try:
        nesting = Nesting(capture.ranges)
        ranges, made_by = place_ranges(capture.ranges, nesting, chosen or {})
    except limits.LimitError as error:
        raise make_limit_error(capture.path, error) from error
    places = _Places(ranges, nesting, made_by)
    problems: dict[str, str] = {}
    operations = {}
    for name, shown in (("kernels", "kernels"), ("memops", "copies and fills"), ("graphs", "graph executions")):
        frame = getattr(capture, name)
        row = find_believed_launches(frame, capture.api, capture.events_ns, shown, problems)
        operations[name] = places.place_operations(frame, capture.api, row)
    for name in ("kernels", "memops"):
        operations[name] = place_replays(name, capture, operations[name], ranges, ATTRIBUTIONS[LINKED])
    return Attribution(
        ranges=ranges,
        **operations,
        nesting=nesting,
        problems=problems,
        _places=places,
        _calls=capture.api,
        _path=capture.path,
    )


class _Places:
    """The range, step, phase and module of the CPU at many moments, and how they are known."""

    def __init__(self, ranges: pd.DataFrame, nesting: Nesting, made_by: np.ndarray):
        self._ranges, self._nesting, self._made_by = ranges, nesting, made_by
        self._phase = ranges["phase"].cat.codes.to_numpy()
        self._step = ranges["step"].to_numpy()
        self._module = ranges["module"].cat.codes.to_numpy()
        self._modules = ranges["module"].cat.categories
        parent = ranges["parent_id"].to_numpy()
        has = parent >= 0
        # The outermost range of a phase (of a step), on each thread: these are what other threads are looked up in.
        self._phase_roots = (self._phase != NO_PHASE) & ~(has & (self._phase[parent] == self._phase))
        self._around = np.where(has, self._phase[parent], NO_PHASE) if len(ranges) else self._phase
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

    def place_moments(
        self,
        process: pd.Series,
        thread: pd.Series | np.ndarray,
        time: pd.Series | np.ndarray,
        launched: np.ndarray | None,
    ) -> pd.DataFrame:
        """Find the place of the CPU at `time` on `thread` of `process`; none if `launched` is False."""
        process, thread, time = np.asarray(process), np.asarray(thread), np.asarray(time)
        count = len(time)
        wanted = np.ones(count, bool) if launched is None else launched
        chains = self._nesting.find_chains(thread, time)
        for chain in chains:
            chain[~wanted] = -1
        range_id = self._nesting.find_innermost(chains, count)
        phase, step = np.full(count, NO_PHASE, np.int8), np.full(count, -1, np.int32)
        module = np.full(count, -1, np.result_type(self._module, np.int16))
        attribution = np.full(count, NONE, np.int8)
        for rows in split_into_blocks(count) if len(self._phase) else ():
            parts = (phase[rows], step[rows], module[rows], attribution[rows])
            self._fill_by_thread(range_id[rows], [chain[rows] for chain in chains], *parts)
        self._fill_by_time(process, time, wanted, phase, step, attribution)
        return pd.DataFrame(
            {
                "range_id": range_id,
                "step": step,
                "phase": pd.Categorical.from_codes(phase, PHASE_CATEGORIES),
                "module": pd.Categorical.from_codes(
                    module if len(self._module) else np.zeros(count, np.int8),
                    self._modules if len(self._module) else pd.Index([""], dtype=object),
                ),
                "attribution": pd.Categorical.from_codes(attribution, list(ATTRIBUTIONS)),
            },
            copy=False,
        )

    def _fill_by_thread(
        self,
        range_id: np.ndarray,
        chains: list[np.ndarray],
        phase: np.ndarray,
        step: np.ndarray,
        module: np.ndarray,
        attribution: np.ndarray,
    ) -> None:
        """Fill the last four, in place, from the ranges of the launching thread."""
        # The innermost range knows; where domains overlap without nesting, another domain's range may know instead.
        for chain in [range_id, *chains] if len(chains) > 1 else chains:
            inside = chain >= 0
            np.copyto(phase, self._phase[chain], where=inside & (phase == NO_PHASE))
            np.copyto(step, self._step[chain], where=inside & (step < 0), casting="same_kind")
        held = range_id >= 0
        module[:] = np.where(held, self._module[range_id], self._modules.get_loc(""))
        attribution[(phase != NO_PHASE) | (held & (not self._has_phases))] = EXACT
        if len(self._made_by):
            linked = held & (self._made_by[range_id] >= 0) & (attribution == EXACT) & (phase == BACKWARD)
            attribution[linked] = LINKED
            module[linked] = self._module[self._made_by[range_id[linked]]]

    def _fill_by_time(
        self,
        process: np.ndarray,
        time: np.ndarray,
        wanted: np.ndarray,
        phase: np.ndarray,
        step: np.ndarray,
        attribution: np.ndarray,
    ) -> None:
        """Fill phase and step, in place, from what was open at that time on any thread of the process."""
        ranges = self._ranges
        start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
        range_process = ranges["process"].to_numpy()
        for owner in np.unique(range_process[self._phase_roots | self._step_roots]):
            mine = range_process == owner
            rows = np.flatnonzero(wanted & (process == owner) & (phase == NO_PHASE))
            if len(rows) and self._has_phases:
                open_now = np.zeros((NO_PHASE, len(rows)), bool)
                for code in range(NO_PHASE):
                    roots = mine & self._phase_roots & (self._phase == code)
                    within = mine & self._phase_roots & (self._around == code)
                    num_open = _num_open(start[roots], end[roots], time[rows])
                    open_now[code] = num_open > _num_open(start[within], end[within], time[rows])
                loss_process, loss_start, loss_end = self._losses
                here = loss_process == owner
                between = _num_open(loss_start[here], loss_end[here], time[rows]) > 0
                open_now[LOSS] |= between & ~open_now.any(axis=0)
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
                rows = np.flatnonzero(wanted & (process == owner) & (phase == NO_PHASE) & (step < 0))
                rows = rows[(first_operation <= time[rows]) & (time[rows] < first_phase)]
                phase[rows], attribution[rows] = SETUP, PHASE


def _mark_forward_operations(ranges: pd.DataFrame) -> np.ndarray:
    """Mark the ranges that are operations of PyTorch in forward: there is no loss between two of them."""
    return (ranges["is_operation"] & (ranges["phase"] == vocabulary.FORWARD)).to_numpy()


def _find_implied_losses(ranges: pd.DataFrame, phase: np.ndarray, roots: np.ndarray) -> tuple[np.ndarray, ...]:
    """Process, start and end of the times between a forward range and the backward range that follows it as the next
    phase of the same thread and step; gradients may be set to zero between the two."""
    rows = np.flatnonzero(roots & (ranges["step"].to_numpy() >= 0) & (phase != ZERO_GRAD))
    process, thread = ranges["process"].to_numpy(), ranges["thread"].to_numpy()
    start, end, step = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), ranges["step"].to_numpy()
    rows = rows[np.lexsort((start[rows], thread[rows], process[rows]))]
    first, second = rows[:-1], rows[1:]
    follows = (process[first] == process[second]) & (thread[first] == thread[second]) & (step[first] == step[second])
    follows &= (phase[first] == FORWARD) & (phase[second] == BACKWARD) & (end[first] <= start[second])
    return process[first[follows]], end[first[follows]], start[second[follows]]


def _find_setups(ranges: pd.DataFrame, phase: np.ndarray) -> dict[int, tuple[int, int]]:
    """Find for each process the start of its first operation of PyTorch and of its first phase, if a step begins with
    that phase."""
    setups = {}
    process, start = ranges["process"].to_numpy(), ranges["start_ns"].to_numpy()
    is_operation, has_phase = ranges["is_operation"].to_numpy(bool), phase != NO_PHASE
    for owner in np.unique(process[is_operation]):
        mine = process == owner
        phases = np.flatnonzero(mine & has_phase)
        first = phases[np.argmin(start[phases])] if len(phases) else -1
        if first >= 0 and phase[first] in (DATA, FORWARD, ZERO_GRAD):
            setups[int(owner)] = (int(start[mine & is_operation].min()), int(start[first]))
    return setups


def _num_open(start: np.ndarray, end: np.ndarray, time: np.ndarray) -> np.ndarray:
    """How many of the intervals [start, end) hold each of `time`."""
    return np.searchsorted(np.sort(start), time, side="right") - np.searchsorted(np.sort(end), time, side="right")
