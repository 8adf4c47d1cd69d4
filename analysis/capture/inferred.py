"""Infer the phases of kernels that no range covers, from kernel names and from the threads and times of their launches.

Without these traces nothing is inferred. Each process is treated alone.

- If PyTorch's operations are ranges, and a thread runs forward: what it launches outside operations is forward, too,
  when forward or backward comes next. If the user marks forward, only what is launched between it and backward is
  inferred, as the loss. Between backward and the optimizer it is the clipping, if a norm is computed there.
- A thread that launches kernels of backward (known by their names) and none of an optimizer is autograd's: all that it
  launches is backward. What other threads launch between two such runs is first the optimizer (after the clipping of
  gradients), up to its last kernel: one of multi_tensor_apply, of a fused optimizer, or addcdiv, which ends Adam's
  update of a tensor; or else a long run of elementwise kernels. The rest is forward. Before the first run only as many
  kernels are forward as come before the next: the others may make the model.
- If one thread launches everything, kernels with telling names divide it: forward from an optimizer to the first kernel
  of backward, if one of forward is between them, and backward from there to the optimizer. Forward after backward
  without an optimizer between them may be a checkpoint's: it stays unknown, and so does all that is not between two
  such kernels.
- A process only runs forward, as inference does, if it launches forward kernels that have a counterpart in backward
  (attention, softmax, losses), but neither such a counterpart nor an optimizer. What a thread launches from the first
  of them to the last is forward, and before and after them at most as many kernels as come between two of them: the
  others may make the model, or use its output.

A phase that a range of the process marks is not inferred there: what is outside its ranges is something else. If ranges
cover fewer than half of the kernels, as if warm-up or a second loop has none, the rest is inferred all the same, but
not in a process that this program followed: it marks all phases, and of the rest only what `followed_gaps` finds
has one. An optimizer that runs inside a range of backward, and has no range, is separated by its kernels.
"""

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import ATTRIBUTIONS, EARLY, EXACT, INFERRED, NONE, Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.capture.followed_gaps import UPDATE_FAMILIES, fill_gaps, find_input_copies
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract import ranges as vocabulary

_PHASES = [*vocabulary.ALL_PHASES, ""]
_NO_PHASE = len(vocabulary.ALL_PHASES)
_DATA, _FORWARD, _LOSS, _BACKWARD, _CLIP, _OPTIMIZER, _ZERO_GRAD = map(
    _PHASES.index,
    (
        vocabulary.DATA,
        vocabulary.FORWARD,
        vocabulary.LOSS,
        vocabulary.BACKWARD,
        vocabulary.CLIP,
        vocabulary.OPTIMIZER,
        vocabulary.ZERO_GRAD,
    ),
)

# What a kernel's name says by itself; the first that is found counts.
_OTHER, _OF_FORWARD, _OF_BACKWARD, _OF_OPTIMIZER, _OF_ZERO_GRAD, _OF_NORM, _OF_SCALING, _OF_RANDOM = range(8)
_KINDS = (
    (_OF_NORM, r"LpNorm|L2Norm"),
    (_OF_ZERO_GRAD, r"^(?=.*multi_tensor_apply)(?=.*ZeroFunctor)"),
    (_OF_SCALING, r"^(?=.*multi_tensor_apply)(?=.*BinaryOpScalarTensorFunctor)"),
    (_OTHER, r"^(?=.*multi_tensor_apply)(?=.*Copy<)"),
    (_OF_OPTIMIZER, r"multi_tensor_apply|fused_?adam|fused_?sgd|addcdiv|lamb_stage|kLamb|adamw?_kernel|sgd_kernel"),
    (_OF_BACKWARD, r"backward|bwd|bprop|fmha_cutlassB|grad_?input|compute_grad_weight|GammaBeta|wgrad|dgrad"),
    (_OF_FORWARD, r"forward|_fwd|fprop|fmha_cutlassF"),
    (_OF_RANDOM, r"(normal|uniform)_and_transform"),
)
_KIND_PATTERNS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS]
_FEWEST_UPDATES = 30
COVERED = 0.5
"""Part of a process's kernels that ranges must cover for their phases to be complete."""
_TO_DEVICE = "memcpy Host-to-Device"
_NORMS = {"aten::_foreach_norm", "aten::linalg_vector_norm", "aten::norm", "aten::_foreach_pow"}


def infer_phases(capture: Capture, attribution: Attribution) -> Attribution:
    """`attribution` with the phases of more kernels, which are labelled `inferred`."""
    kernels, place = capture.kernels, attribution.kernels
    phase, process = place["phase"].cat.codes.to_numpy(), kernels["process"].to_numpy()
    attribution = _separate_optimizer(capture, attribution)
    place = attribution.kernels
    phase = place["phase"].cat.codes.to_numpy()
    launched = (place["api"] >= 0).to_numpy()
    owners = find_distinct(process[launched & (phase == _NO_PHASE)])
    if not len(owners):
        return attribution
    phase, how = phase.copy(), place["attribution"].cat.codes.to_numpy().copy()
    launch = place["launch_ns"].to_numpy()
    ranges = attribution.ranges
    marked = (ranges["phase"] != "").to_numpy()
    is_followed = ranges["name"].astype(str).str.startswith(vocabulary.FOLLOWED).to_numpy(bool)
    names = kernels["kernel_name"].cat
    kind_of = np.array([_classify(str(name)) for name in names.categories], np.int8)
    is_update_of = np.array(
        [kernel_families.find_family(str(name)) in UPDATE_FAMILIES for name in names.categories], bool
    )
    code = names.codes.to_numpy()
    for owner in owners:
        mine = marked & (ranges["process"] == owner).to_numpy()
        rows = np.flatnonzero(launched & (process == owner))
        rows = rows[np.argsort(launch[rows], kind="stable")]
        inferred = np.full(len(rows), _NO_PHASE, np.int8)
        if mine.any() and ranges["is_operation"].to_numpy()[mine].any():
            thread = place["thread"].to_numpy()[rows]
            inferred = _infer_between_operations(ranges, np.flatnonzero(mine), thread, launch[rows])
        else:
            copies = find_input_copies(capture, attribution, owner)
            kind, is_update = kind_of[code[rows]], is_update_of[code[rows]]
            inferred = _infer_from_kernels(place["thread"].to_numpy()[rows], launch[rows], kind, is_update, copies)
            known = np.unique(ranges["phase"].cat.codes.to_numpy()[mine])
            if is_followed[mine].any() or (phase[rows] != _NO_PHASE).mean() >= COVERED:
                inferred[np.isin(inferred, known)] = _NO_PHASE
        new = (phase[rows] == _NO_PHASE) & (inferred != _NO_PHASE)
        if new.any():
            unknown = rows[(phase[rows] == _NO_PHASE) & np.isin(how[rows], (EXACT, EARLY))]
            how[unknown] = NONE  # inside a range, which says nothing about the phase
            phase[rows[new]], how[rows[new]] = inferred[new], INFERRED
    filled = place.assign(
        phase=pd.Categorical.from_codes(phase, _PHASES), attribution=pd.Categorical.from_codes(how, list(ATTRIBUTIONS))
    )
    return fill_gaps(capture, replace(attribution, kernels=filled))


def _separate_optimizer(capture: Capture, attribution: Attribution) -> Attribution:
    """Return `attribution` with the optimizer that runs inside ranges of backward, in processes that mark no optimizer:
    from the last kernel that is not an update, before the first kernel of an optimizer, to the last of these."""
    kernels, place, ranges = capture.kernels, attribution.kernels, attribution.ranges
    range_phase = ranges["phase"].cat.codes.to_numpy()
    if not (range_phase == _BACKWARD).any() or ranges["is_operation"].any():
        return attribution
    phase, process = place["phase"].cat.codes.to_numpy(), kernels["process"].to_numpy()
    names = kernels["kernel_name"].cat
    code = names.codes.to_numpy()
    is_optimizer = np.array([_classify(str(name)) == _OF_OPTIMIZER for name in names.categories], bool)[code]
    is_inside = (phase == _BACKWARD) & is_optimizer
    if not is_inside.any():
        return attribution
    is_update = np.array(
        [kernel_families.find_family(str(name)) in UPDATE_FAMILIES for name in names.categories], bool
    )[code]
    launch = place["launch_ns"].to_numpy()
    phase, how = phase.copy(), place["attribution"].cat.codes.to_numpy().copy()
    parent = ranges["parent_id"].to_numpy()
    is_root = (range_phase == _BACKWARD) & ((parent < 0) | (range_phase[parent] != _BACKWARD))
    for owner in find_distinct(process[is_inside]):
        if (range_phase[(ranges["process"] == owner).to_numpy()] == _OPTIMIZER).any():
            continue
        mine = np.flatnonzero((process == owner) & (phase == _BACKWARD))
        mine = mine[np.argsort(launch[mine], kind="stable")]
        roots = np.sort(ranges["start_ns"].to_numpy()[is_root & (ranges["process"] == owner).to_numpy()])
        instance = np.searchsorted(roots, launch[mine], side="right")
        for rows in np.split(mine, np.flatnonzero(np.diff(instance)) + 1):
            updates = np.flatnonzero(is_inside[rows])
            if len(updates):
                before = np.flatnonzero(~is_update[rows[: updates[0]]])
                part = rows[before[-1] + 1 if len(before) else 0 : updates[-1] + 1]
                phase[part], how[part] = _OPTIMIZER, INFERRED
    filled = place.assign(
        phase=pd.Categorical.from_codes(phase, _PHASES), attribution=pd.Categorical.from_codes(how, list(ATTRIBUTIONS))
    )
    return replace(attribution, kernels=filled)


def place_batches(capture: Capture, attribution: Attribution) -> Attribution:
    """`attribution` of a script whose phases are all marked: what it copies to the GPU in a step, outside all of them,
    is of `data`, and labelled `inferred`. So is what it copies between forward and backward, in no range of a loss."""
    place, memops = attribution.memops, capture.memops
    of_range = attribution.ranges["phase"].astype(str).to_numpy()
    held = place["range_id"].to_numpy()
    is_marked = (held >= 0) & (of_range[held] != "") if len(of_range) else np.zeros(len(held), bool)
    rows = (memops["operation"] == _TO_DEVICE) & (place["step"] >= 0) & (place["api"] >= 0) & ~is_marked
    rows &= place["phase"].isin(["", vocabulary.LOSS])
    filled = place.assign(
        phase=place["phase"].where(~rows, vocabulary.DATA), attribution=place["attribution"].where(~rows, "inferred")
    )
    return replace(attribution, memops=filled)


def is_backward_kernel(name: str) -> bool:
    """Whether a kernel's name alone says that a backward pass launched it."""
    return _classify(name) == _OF_BACKWARD


def _classify(name: str) -> int:
    return next((kind for kind, pattern in _KIND_PATTERNS if pattern.search(name)), _OTHER)


# ------------------------------------------------------------------------------------ outside the operations of PyTorch


def _infer_between_operations(
    ranges: pd.DataFrame, marked: np.ndarray, thread: np.ndarray, time: np.ndarray
) -> np.ndarray:
    """Phase of what is launched at `time` outside every phase, from the phases before and after it; `marked`: ranges of
    the process that have a phase."""
    phase, parent = ranges["phase"].cat.codes.to_numpy(), ranges["parent_id"].to_numpy()
    roots = marked[(parent[marked] < 0) | (phase[parent[marked]] != phase[marked])]
    forward = roots[phase[roots] == _FORWARD]
    forward_threads = np.unique(ranges["thread"].to_numpy()[forward])
    by_operations = ranges["is_operation"].to_numpy()[forward].any()
    starts = ranges["start_ns"].to_numpy()[roots]
    roots = roots[np.argsort(starts, kind="stable")]
    starts = np.sort(starts)
    sequence = np.r_[_NO_PHASE, phase[roots], _NO_PHASE]
    gap = np.searchsorted(starts, time, side="right")
    before, after = sequence[gap], sequence[gap + 1]
    inferred = np.full(len(time), _NO_PHASE, np.int8)
    to_forward = np.isin(after, (_FORWARD, _BACKWARD)) & np.isin(
        before, (_FORWARD, _OPTIMIZER, _ZERO_GRAD, _DATA, _CLIP, _BACKWARD)
    )
    if by_operations:
        inferred[to_forward] = _FORWARD
    else:
        inferred[(before == _FORWARD) & (after == _BACKWARD)] = _LOSS
    inferred[(before == _BACKWARD) & (after == _BACKWARD)] = _BACKWARD
    plain = ranges["plain_name"].cat
    is_norm = np.isin(plain.codes.to_numpy(), [i for i, name in enumerate(plain.categories) if name in _NORMS])
    with_norm = np.unique(np.searchsorted(starts, ranges["start_ns"].to_numpy()[is_norm], side="right"))
    inferred[(before == _BACKWARD) & (after == _OPTIMIZER) & np.isin(gap, with_norm)] = _CLIP
    inferred[~np.isin(thread, forward_threads)] = _NO_PHASE
    return inferred


# ------------------------------------------------------------------------------------------- from kernels and threads


def _infer_from_kernels(
    thread: np.ndarray, launch: np.ndarray, kind: np.ndarray, is_update: np.ndarray, copies: np.ndarray
) -> np.ndarray:
    """Infer the phase of each kernel of a process from the order of the launches; _NO_PHASE if nothing shows it."""
    threads, code = np.unique(thread, return_inverse=True)
    num_backward, num_optimizer = (
        np.bincount(code[kind == of], minlength=len(threads)) for of in (_OF_BACKWARD, _OF_OPTIMIZER)
    )
    of_autograd = (num_backward > 0) & (num_optimizer == 0)
    inferred = np.full(len(thread), _NO_PHASE, np.int8)
    if not num_backward.any() and not num_optimizer.any():
        for rows in (np.flatnonzero(code == number) for number in range(len(threads))):
            inferred[rows[_find_lone_forward(kind[rows])]] = _FORWARD
        return inferred
    if of_autograd.any() and (num_backward == 0).any():
        rows = np.flatnonzero(of_autograd[code] | (num_backward[code] == 0))
        parts = (launch[rows], kind[rows], is_update[rows], copies)
        inferred[rows] = _infer_around_autograd(of_autograd[code[rows]], *parts)
    for number in np.flatnonzero(num_backward > 0):
        rows = np.flatnonzero(code == number)
        if (inferred[rows] == _NO_PHASE).all():
            inferred[rows] = _infer_between_markers(kind[rows])
    return inferred


def _infer_around_autograd(
    of_autograd: np.ndarray, launch: np.ndarray, kind: np.ndarray, is_update: np.ndarray, copies: np.ndarray
) -> np.ndarray:
    """Infer the phases of a process whose autograd has threads of its own."""
    phase = np.where(of_autograd, _BACKWARD, _FORWARD).astype(np.int8)
    edges = np.flatnonzero(np.diff(of_autograd)) + 1
    begins, ends = np.r_[0, edges], np.r_[edges, len(phase)]
    num_forward = []
    for low, high in zip(begins, ends):
        if of_autograd[low]:
            continue
        rows = slice(low, high)
        if low:
            until = _find_end_of_optimizer(launch[rows], kind[rows], is_update[rows], copies)
            phase[low : low + until] = _OPTIMIZER
            clip = _find_end_of_clip(kind[low : low + until])
            phase[low : low + clip] = _CLIP
            if high < len(phase):
                num_forward.append(high - low - until)
        zeroed = low + np.flatnonzero(kind[rows] == _OF_ZERO_GRAD)
        phase[zeroed] = _ZERO_GRAD
    if not of_autograd[0]:
        _forget_model_setup(phase[: ends[0]], kind[: ends[0]], num_forward)
    return phase


def _forget_model_setup(phase: np.ndarray, kind: np.ndarray, num_forward: list[int]) -> None:
    """Keep before the first backward only kernels that a forward has, and no random weights."""
    random = np.flatnonzero(kind == _OF_RANDOM)
    first = random[-1] + 1 if len(random) else 0
    if num_forward:
        first = max(first, len(phase) - max(num_forward))
    phase[:first] = _NO_PHASE


def _find_end_of_optimizer(launch: np.ndarray, kind: np.ndarray, is_update: np.ndarray, copies: np.ndarray) -> int:
    """Count the kernels of the optimizer among these kernels, which follow backward."""
    own = np.flatnonzero(kind == _OF_OPTIMIZER)
    if len(own):
        return int(own[-1]) + 1
    run = len(is_update) if is_update.all() else int((~is_update).argmax())
    first = np.searchsorted(copies, launch[0])
    if run and first < len(copies):
        run = min(run, int(np.searchsorted(launch, copies[first])))
    return run if run >= _FEWEST_UPDATES else 0


def _find_end_of_clip(kind: np.ndarray) -> int:
    """How many of the optimizer's kernels clip gradients before it: norms, and the scaling by them."""
    clip = np.flatnonzero((kind == _OF_NORM) | (kind == _OF_SCALING))
    return int(clip[-1]) + 1 if (kind == _OF_NORM).any() else 0


def _infer_between_markers(kind: np.ndarray) -> np.ndarray:
    """Infer the phases of a process in which one thread launches everything."""
    phase = np.full(len(kind), _NO_PHASE, np.int8)
    markers = np.flatnonzero(np.isin(kind, (_OF_FORWARD, _OF_BACKWARD, _OF_OPTIMIZER)))
    if not len(markers):
        return phase
    change = np.flatnonzero(np.diff(kind[markers])) + 1
    first, last = markers[np.r_[0, change]], markers[np.r_[change, len(markers)] - 1]
    of = kind[first]
    forwards = []
    for i, kind_here in enumerate(of):
        before = of[i - 1] if i else _OTHER
        after = of[i + 1] if i + 1 < len(of) else _OTHER
        if kind_here == _OF_BACKWARD:
            until = (
                _find_begin_of_updates(markers, last[i] + 1, first[i + 1]) if after == _OF_OPTIMIZER else last[i] + 1
            )
            phase[first[i] : until] = _BACKWARD
            phase[until : first[i + 1] if after == _OF_OPTIMIZER else until] = _OPTIMIZER
        elif kind_here == _OF_OPTIMIZER:
            phase[first[i] : last[i] + 1] = _OPTIMIZER
        elif after == _OF_BACKWARD and before == _OF_OPTIMIZER:
            forwards.append(slice(last[i - 1] + 1, first[i + 1]))
    for rows in forwards:
        phase[rows] = _FORWARD
    if len(of) > 1 and of[0] == _OF_FORWARD and of[1] == _OF_BACKWARD and forwards:
        phase[: first[1]] = _FORWARD
        _forget_model_setup(phase[: first[1]], kind[: first[1]], [rows.stop - rows.start for rows in forwards])
    phase[kind == _OF_ZERO_GRAD] = _ZERO_GRAD
    return phase


def _find_lone_forward(kind: np.ndarray) -> slice:
    """Find the forward kernels of a thread whose process has no other phase."""
    markers = np.flatnonzero(kind == _OF_FORWARD)
    if not len(markers):
        return slice(0)
    most = int(np.diff(markers).max(initial=1)) - 1
    random = np.flatnonzero(kind[: markers[0]] == _OF_RANDOM)  # makes weights, where sampling comes after forward
    first = max(int(markers[0]) - most, int(random[-1]) + 1 if len(random) else 0)
    return slice(first, int(markers[-1]) + most + 1)


def _find_begin_of_updates(markers: np.ndarray, low: int, first: int) -> int:
    """Find the begin of the optimizer whose first own kernel is `first`: the update of a tensor has as many kernels
    before its own as the next update has."""
    following = markers[markers > first]
    return max(low, 2 * first + 1 - int(following[0])) if len(following) else first
