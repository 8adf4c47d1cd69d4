"""Phases of kernels between the phases of a script that was followed.

Two kinds of work have no function of PyTorch that could be followed:

- Updates by hand, and moving averages of the weights: after the optimizer (after backward or clipping, in a script
  without one) the same elementwise kernels are launched again and again, once for each parameter, before the next batch
  is copied. They are of the optimizer.
- Rollouts: what is launched between two calls of a model that generates or evaluates chooses the next token or action.
  It is of the call before it.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler_job.analysis.capture.attribution import ATTRIBUTIONS, INFERRED, Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract import ranges as vocabulary

_PHASES = [*vocabulary.ALL_PHASES, ""]
_NO_PHASE = len(vocabulary.ALL_PHASES)
_PLAYING = [_PHASES.index(name) for name in (vocabulary.PREFILL, vocabulary.DECODE, vocabulary.EVALUATION)]
_BACKWARD, _CLIP, _OPTIMIZER = map(_PHASES.index, (vocabulary.BACKWARD, vocabulary.CLIP, vocabulary.OPTIMIZER))
UPDATE_FAMILIES = {"elementwise", "fill", "copy", "reduce", "optimizer"}
"""Kernel families of an optimizer without kernels of its own: one operation on each tensor after the other."""
FEWEST_PARAMETERS = 10
"""Kernels of one name in a gap that update one parameter after the other."""
_TO_DEVICE = "memcpy Host-to-Device"


def fill_gaps(capture: Capture, attribution: Attribution) -> Attribution:
    """Return `attribution` with phases of kernels in gaps, labelled `inferred`, in processes that were followed."""
    kernels, place, ranges = capture.kernels, attribution.kernels, attribution.ranges
    is_followed = ranges["name"].astype(str).str.startswith(vocabulary.FOLLOWED)
    followed = find_distinct(ranges["process"].to_numpy()[is_followed.to_numpy(bool)])
    phase, how = place["phase"].cat.codes.to_numpy().copy(), place["attribution"].cat.codes.to_numpy().copy()
    launched = (place["api"] >= 0).to_numpy() & (place["step"] >= 0).to_numpy()
    names = kernels["kernel_name"].cat
    families = [kernel_families.find_family(str(name)) for name in names.categories]
    is_update = np.array([family in UPDATE_FAMILIES for family in families], bool)
    code, launch = names.codes.to_numpy(), place["launch_ns"].to_numpy()
    for owner in followed:
        rows = np.flatnonzero(launched & (kernels["process"] == owner).to_numpy())
        rows = rows[np.argsort(launch[rows], kind="stable")]
        copies = find_input_copies(capture, attribution, owner)
        inferred = infer_in_gaps(phase[rows], code[rows], is_update[code[rows]], launch[rows], copies)
        new = inferred != _NO_PHASE
        phase[rows[new]], how[rows[new]] = inferred[new], INFERRED
    filled = place.assign(
        phase=pd.Categorical.from_codes(phase, _PHASES), attribution=pd.Categorical.from_codes(how, list(ATTRIBUTIONS))
    )
    return replace(attribution, kernels=filled)


def find_input_copies(capture: Capture, attribution: Attribution, process: int) -> NDArray[np.int64]:
    """Return when the process launched copies from host to device, sorted: the copy of a batch ends an optimizer's
    run."""
    memops = capture.memops
    to_device = (memops["operation"] == _TO_DEVICE).to_numpy() & (memops["process"] == process).to_numpy()
    return np.sort(attribution.memops["launch_ns"].to_numpy()[to_device])


def infer_in_gaps(
    phase: NDArray[np.int8],
    name: NDArray[np.int64],
    is_update: NDArray[np.bool_],
    launch: NDArray[np.int64],
    copies: NDArray[np.int64],
) -> NDArray[np.int8]:
    """Return the phase of kernels that have none; the number of phases where nothing shows it. phase: of kernels in the
    order of their launches. name: their names, as codes. is_update: whether an update by hand may launch such a kernel.
    copies: when batches were copied to the GPU, sorted."""
    inferred = np.full(len(phase), _NO_PHASE, np.int8)
    unknown = phase == _NO_PHASE
    edges = np.flatnonzero(np.diff(np.r_[False, unknown, False]))
    trains = np.isin(phase, (_BACKWARD, _CLIP, _OPTIMIZER)).any()
    before_update = [_OPTIMIZER] if (phase == _OPTIMIZER).any() else [_BACKWARD, _CLIP]
    for begin, end in zip(edges[::2], edges[1::2]):
        before = phase[begin - 1] if begin else _OPTIMIZER  # a capture of steps begins after an update
        after = phase[end] if end < len(phase) else _NO_PHASE
        if before in _PLAYING and after in _PLAYING:
            inferred[begin:end] = before
        elif trains and (before in before_update or not begin):
            copied = np.searchsorted(copies, launch[begin])
            until = np.searchsorted(launch[begin:end], copies[copied]) if copied < len(copies) else end - begin
            rows = np.arange(begin, begin + until)
            _, place, counts = np.unique(name[rows], return_inverse=True, return_counts=True)
            inferred[rows[is_update[rows] & (counts[place] >= FEWEST_PARAMETERS)]] = _OPTIMIZER
    return inferred
