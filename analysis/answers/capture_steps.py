"""The steps in a capture that any script made, and the mode of each: forward, forward_backward or train_step.

Steps come from the first of these that the capture has:

- ranges that mark steps (`step`, `iter_3`, `train_step`), and outside of them ranges of forward: such a step lasts
  until the last range of a phase, or kernel of an inferred phase, before the next one
- phases that are inferred from kernels and threads: a step begins with forward
- repetition: kernels that come again and again in the same order are one step each

The phases in a step give its mode. Steps inside a range called warm-up are left out, and steps at the start that take
much longer than the others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution, attribute
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.jobs.contract import ranges as vocabulary
from profiler_job.jobs.contract.modes import MODE_PHASES
from profiler_job.jobs.contract.words import format_count

BY_RANGES, BY_PHASES, BY_REPETITION, WHOLE = "ranges", "inferred phases", "repetition", "the whole capture"
"""How steps were found."""
WARM_UP = re.compile(r"warm[-_ ]?up.*|.*[-_ ]warm[-_ ]?up", re.IGNORECASE)
LONGER = 1.5
"""A step at the start that takes this many times as long as the median of the others is warm-up."""
_SHORTEST_PASS = 20
"""Kernels of a forward pass, at least, for a range to be split into several."""
_MOST_PERIODS = 50
_EMBEDDING = re.compile(r"embedding|index|gather", re.IGNORECASE)
"""Kernels that look up the embedding of tokens. Every pass has one; the layers of a model have none."""
_IN_STEP = (vocabulary.FORWARD, vocabulary.LOSS, vocabulary.BACKWARD, vocabulary.CLIP, vocabulary.OPTIMIZER)
_FEWEST = 3


@dataclass(kw_only=True)
class CaptureSteps:
    """Steps of a capture.

    steps: process, start_ns, end_ns, mode, is_split (a part of a range that holds several), number (from 0 in each mode
    and process; -1 of warm-up). how: how they were found. attribution: places of operations, with inferred phases.
    notes: lines for the reader, on what was left out or inferred. is_cut_off: the last step was, and is left out.
    """

    steps: pd.DataFrame
    how: str
    attribution: Attribution
    notes: list[str]
    is_cut_off: bool = False

    @property
    def modes(self) -> list[str]:
        """The modes that have a step, in the order of MODE_PHASES."""
        present = set(self.steps.loc[self.steps["number"] >= 0, "mode"])
        return [mode for mode in MODE_PHASES if mode in present]


def find_steps(capture: Capture, chosen: dict[str, str], warmup: int | None = None, stated: str = "") -> CaptureSteps:
    """Find the steps of a capture. chosen: phases of ranges that the user names. warmup: steps to leave out at the
    start of each mode, None to judge by their times. stated: the mode that the user or the file name gives; it alone
    tells what repeated kernels are, if nothing else does."""
    attribution = attribute(capture, chosen)
    notes: list[str] = []
    if renamed := _find_optimizer_called_step(attribution):
        attribution = attribute(capture, chosen | dict.fromkeys(renamed, vocabulary.OPTIMIZER))
        attribution = replace(attribution, ranges=attribution.ranges.assign(step=np.int32(-1), is_step=False))
        notes.append(f"the range {renamed[0]} follows backward and holds no forward: it counts as the optimizer")
    attribution = infer_phases(capture, attribution)
    steps, how = _from_ranges(capture, attribution), BY_RANGES
    if steps.empty:
        steps, how = _from_kernels(attribution, capture), BY_PHASES
    if len(steps) < 2 and how == BY_PHASES:
        repeated, attribution = _from_repetition(capture, attribution, stated)
        if len(repeated):
            steps, how = repeated, BY_REPETITION
    steps = _add_modes(_mark_by_time(steps, attribution.ranges), attribution, capture).assign(is_split=False)
    if how == BY_RANGES:
        steps, split = _split_repeated(steps, capture, attribution)
        notes += split
    steps, cut_off = _leave_out_cut_off(steps, attribution, capture)
    notes += cut_off
    if warmup is None and attribution.ranges["name"].astype(str).str.startswith(vocabulary.FOLLOWED).any():
        warmup = 0  # recorded by this program, which leaves it out itself
    steps, left_out = _leave_out_warm_up(steps, warmup)
    notes += left_out
    return CaptureSteps(steps=steps, how=how, attribution=attribution, notes=notes, is_cut_off=bool(cut_off))


def _find_optimizer_called_step(attribution: Attribution) -> list[str]:
    """Find names of step ranges that are only around the optimizer: forward and backward have ranges, and none of these
    is in a step."""
    placed = attribution.ranges
    roots = placed[placed["is_step"]]
    phases = placed[placed["phase"].isin([vocabulary.FORWARD, vocabulary.BACKWARD])]
    if not len(roots) or phases["phase"].nunique() < 2 or (phases["step"] >= 0).any():
        return []
    return sorted(set(roots["name"].astype(str)))


def _list_phase_roots(placed: pd.DataFrame) -> pd.DataFrame:
    """List the outermost range of each phase, without those below warm-up."""
    phase, parent = placed["phase"].astype(str).to_numpy(), placed["parent_id"].to_numpy()
    outer = np.where(parent >= 0, phase[parent], "")
    return placed[(phase != "") & (outer != phase)]


def _mark_warm_up(placed: pd.DataFrame) -> np.ndarray:
    """Which ranges are below a range called warm-up, or are one."""
    paths = placed["path"].cat
    is_warm = np.array([any(map(WARM_UP.fullmatch, str(path).split("/"))) for path in paths.categories], bool)
    return is_warm[paths.codes.to_numpy()] if len(placed) else np.zeros(0, bool)


def _mark_by_time(steps: pd.DataFrame, placed: pd.DataFrame) -> pd.DataFrame:
    """Mark steps that start while a range called warm-up is open in their process."""
    warm = placed[_mark_warm_up(placed)]
    is_warm = []
    for step in steps.itertuples(index=False):
        is_open = (warm["start_ns"] <= step.start_ns) & (step.start_ns < warm["end_ns"])
        is_warm.append(bool((is_open & (warm["process"] == step.process)).any()))
    return steps.assign(is_warm_up=np.array(is_warm, bool))


def _from_ranges(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """Find steps from ranges: process, start_ns, end_ns, is_warm_up, is_marked (by a range of a step); without those
    followed for their modules alone. PyTorch's own operations are no ranges of forward: there are many in each."""
    placed = attribution.ranges.assign(is_warm_up=_mark_warm_up(attribution.ranges))
    paths = placed["path"].cat
    is_followed = np.array([str(path).startswith(vocabulary.FOLLOWED) for path in paths.categories], bool)
    if len(placed):  # and what is below them: without them, each layer would look like a forward pass
        placed = placed[~is_followed[paths.codes.to_numpy()]]
    roots = placed[placed["is_step"]]
    steps = [roots[["process", "start_ns", "end_ns", "is_warm_up"]].assign(is_marked=True)]
    loose = _list_phase_roots(placed.reset_index(drop=True).assign(parent_id=_renumber(placed)))
    loose = loose[(loose["step"] < 0) & loose["phase"].isin(_IN_STEP)]
    is_operation = loose["is_operation"].astype(bool)
    for process, rows in loose.assign(is_operation=is_operation).groupby("process", sort=True):
        rows = rows.sort_values("start_ns")
        starts = rows[(rows["phase"] == vocabulary.FORWARD) & ~rows["is_operation"]]
        begins = starts["start_ns"].to_numpy()
        marked = np.sort(roots.loc[roots["process"] == process, "start_ns"].to_numpy())
        bounds = np.sort(np.r_[begins, marked])
        for start, is_warm in zip(begins, starts["is_warm_up"]):
            later = bounds[bounds > start]
            until = later[0] if len(later) else np.iinfo(np.int64).max
            mine = rows[(rows["start_ns"] >= start) & (rows["start_ns"] < until)]
            last = max(int(mine["end_ns"].max()), _last_inferred(capture, attribution, process, start, until))
            steps.append(
                pd.DataFrame(
                    {
                        "process": [process],
                        "start_ns": [start],
                        "end_ns": [last],
                        "is_warm_up": [bool(is_warm)],
                        "is_marked": [False],
                    }
                )
            )
    joined = pd.concat([part for part in steps if len(part)] or [steps[0]], ignore_index=True)
    return joined.sort_values(["process", "start_ns"], ignore_index=True)


def _renumber(placed: pd.DataFrame) -> np.ndarray:
    """Return the parents of some rows of a frame of ranges as places among these rows; -1 if it is not there."""
    parents: np.ndarray = pd.Index(placed.index).get_indexer(placed["parent_id"])
    return parents


def _last_inferred(capture: Capture, attribution: Attribution, process: int, start: int, until: int) -> int:
    """Return the end of the last launch in a step of a kernel whose phase is inferred, such as an optimizer without a
    range; 0 if there is none."""
    kernels = attribution.kernels
    launch = kernels["launch_ns"].to_numpy()
    mine = (capture.kernels["process"].to_numpy() == process) & (launch >= start) & (launch < until)
    mine &= (kernels["attribution"] == "inferred").to_numpy()
    mine &= kernels["phase"].isin([vocabulary.OPTIMIZER, vocabulary.CLIP, vocabulary.BACKWARD]).to_numpy()
    return int(kernels["launch_end_ns"].to_numpy()[mine].max()) + 1 if mine.any() else 0


def _from_kernels(attribution: Attribution, capture: Capture) -> pd.DataFrame:
    """Find steps from phases of kernels: each begins with forward after another phase."""
    rows = []
    place = attribution.kernels
    process = capture.kernels["process"].to_numpy()
    for owner in np.unique(process):
        mine = np.flatnonzero((process == owner) & place["phase"].isin(_IN_STEP).to_numpy())
        mine = mine[np.argsort(place["launch_ns"].to_numpy()[mine], kind="stable")]
        if not len(mine):
            continue
        forward = (place["phase"] == vocabulary.FORWARD).to_numpy()[mine]
        begins = np.flatnonzero(forward & ~np.r_[False, forward[:-1]])
        ends = np.r_[begins[1:], len(mine)]
        launch, launch_end = (place[name].to_numpy()[mine] for name in ("launch_ns", "launch_end_ns"))
        rows += [
            {"process": owner, "start_ns": launch[low], "end_ns": launch_end[high - 1] + 1}
            for low, high in zip(begins, ends)
        ]
    frame = pd.DataFrame(rows, columns=["process", "start_ns", "end_ns"])
    return frame.assign(is_warm_up=False, is_marked=False)


def _from_repetition(capture: Capture, attribution: Attribution, stated: str) -> tuple[pd.DataFrame, Attribution]:
    """Find steps from the order of kernels. If the stated mode is forward and kernels have no phase, they are forward's
    in these steps."""
    place, rows = attribution.kernels, []
    process, code = capture.kernels["process"].to_numpy(), capture.kernels["kernel_name"].cat.codes.to_numpy()
    names = capture.kernels["kernel_name"].cat.categories
    embeddings = [number for number, name in enumerate(names) if _EMBEDDING.search(str(name))]
    fills = np.zeros(len(place), bool)
    for owner in np.unique(process):
        mine = np.flatnonzero(process == owner)
        mine = mine[np.argsort(place["launch_ns"].to_numpy()[mine], kind="stable")]
        first, period = find_period(code[mine], embeddings)
        if not period:
            continue
        launch, launch_end = (place[name].to_numpy()[mine] for name in ("launch_ns", "launch_end_ns"))
        for low in range(first, len(mine) - period + 1, period):
            rows.append({"process": owner, "start_ns": launch[low], "end_ns": launch_end[low + period - 1] + 1})
            fills[mine[low : low + period]] = True
    if stated == vocabulary.FORWARD and not (place["phase"] == vocabulary.BACKWARD).any():
        fills &= (place["phase"] == "").to_numpy()
        phase = place["phase"].astype(object).where(~fills, vocabulary.FORWARD)
        how = place["attribution"].astype(object).where(~fills, "inferred")
        phases = pd.Categorical(phase, place["phase"].cat.categories)
        filled = place.assign(phase=phases, attribution=pd.Categorical(how, place["attribution"].cat.categories))
        attribution = replace(attribution, kernels=filled)
    frame = pd.DataFrame(rows, columns=["process", "start_ns", "end_ns"])
    return frame.assign(is_warm_up=False, is_marked=False), attribution


def find_period(codes: np.ndarray, needed: Sequence[int] = ()) -> tuple[int, int]:
    """Find the sequence that a list of kernels ends with at least _FEWEST times: the place where its first repetition
    starts, and its length; (0, 0) if there is none. Of several the one that covers most kernels, and of these the
    shortest. Tried are the distances between neighbours of the rarest kernels. Nothing may follow the last one.
    needed: codes; if the list has any of them, one must be in it."""
    if len(codes) < 2 * _FEWEST:
        return 0, 0
    wanted = np.intersect1d(np.array(needed, np.int64), codes)
    values, counts = np.unique(codes, return_counts=True)
    rare = values[counts >= _FEWEST][np.argsort(counts[counts >= _FEWEST], kind="stable")][:_MOST_PERIODS]
    periods: set[int] = set()
    for value in rare:
        gaps, times = np.unique(np.diff(np.flatnonzero(codes == value)), return_counts=True)
        periods |= {int(gap) for gap in gaps[np.argsort(-times)][:3]}
    first, best = len(codes), 0
    for period in sorted(periods - {1}):
        differs = np.flatnonzero(codes[:-period] != codes[period:])
        num_same = len(codes) - period - (int(differs[-1]) + 1 if len(differs) else 0)
        num = num_same // period + 1
        holds = not len(wanted) or np.isin(wanted, codes[-period:]).any()
        if holds and num >= _FEWEST and len(codes) - num * period < first:
            first, best = len(codes) - num * period, period
    return (first, best) if best else (0, 0)


def _split_repeated(steps: pd.DataFrame, capture: Capture, attribution: Attribution) -> tuple[pd.DataFrame, list[str]]:
    """Split steps of forward alone whose range is around several passes, as the order of their kernels shows."""
    place = attribution.kernels
    process, launch, code = (
        capture.kernels["process"].to_numpy(),
        place["launch_ns"].to_numpy(),
        capture.kernels["kernel_name"].cat.codes.to_numpy(),
    )
    rows, notes = [], []
    for step in steps.itertuples(index=False):
        mine = np.flatnonzero((process == step.process) & (launch >= step.start_ns) & (launch < step.end_ns))
        mine = mine[np.argsort(launch[mine], kind="stable")]
        first, period = find_period(code[mine]) if step.mode == vocabulary.FORWARD else (0, 0)
        if period < _SHORTEST_PASS or first > 0:  # the layers of one pass come again, too, after its embedding
            rows.append(step._asdict())
            continue
        starts = [step.start_ns, *(int(launch[mine[at]]) for at in range(first + period, len(mine), period))]
        ends = [*starts[1:], step.end_ns]
        part = step._asdict() | {"is_split": True}
        rows += [part | {"start_ns": start, "end_ns": end} for start, end in zip(starts, ends)]
        notes.append(f"a range of forward holds {len(starts)} passes: split by the order of their kernels")
    return pd.DataFrame(rows, columns=steps.columns), list(dict.fromkeys(notes))


def _add_modes(steps: pd.DataFrame, attribution: Attribution, capture: Capture) -> pd.DataFrame:
    """Add the mode of each step, by the phases of the ranges and kernels in it; "" if there is no forward."""
    placed = _list_phase_roots(attribution.ranges)
    place, process = attribution.kernels, capture.kernels["process"].to_numpy()
    modes = []
    for step in steps.itertuples(index=False):
        inside = (placed["process"] == step.process) & placed["start_ns"].between(step.start_ns, step.end_ns, "left")
        launched = (process == step.process) & place["launch_ns"].between(step.start_ns, step.end_ns, "left")
        phases = {*placed.loc[inside, "phase"].astype(str)} | {*place.loc[launched, "phase"].astype(str)}
        modes.append(judge_mode(phases))
    return steps.assign(mode=modes)


def _leave_out_cut_off(
    steps: pd.DataFrame, attribution: Attribution, capture: Capture
) -> tuple[pd.DataFrame, list[str]]:
    """Leave out the last step of a process that was cut off, such as by an error: a range of it never ended, or its
    kernels are those of the step before it, but end within a phase."""
    place, placed = attribution.kernels, attribution.ranges
    process, code = capture.kernels["process"].to_numpy(), capture.kernels["kernel_name"].cat.codes.to_numpy()
    launch, phase = place["launch_ns"].to_numpy(), place["phase"].astype(str).to_numpy()
    never_ended = placed[placed["is_open"].to_numpy(bool) & (placed["phase"].isin(_IN_STEP) | placed["is_step"])]
    left_out = []
    for _, rows in steps[~steps["is_split"]].groupby("process", sort=True):
        last = rows.iloc[-1]
        is_open = (never_ended["process"] == last["process"]) & (never_ended["start_ns"] >= last["start_ns"])
        mine = []
        for step in rows.iloc[-2:].itertuples(index=False):
            index = np.flatnonzero((process == step.process) & (launch >= step.start_ns) & (launch < step.end_ns))
            mine.append(index[np.argsort(launch[index], kind="stable")])
        before, of_last = mine[0], mine[-1]
        is_shorter = len(rows) > 1 and 0 < len(of_last) < len(before)
        if is_shorter and (code[before[: len(of_last)]] == code[of_last]).all():
            ends_in = phase[of_last[-1]]
            is_shorter = (phase[of_last] == ends_in).sum() < (phase[before] == ends_in).sum()
        else:
            is_shorter = False
        if is_open.any() or is_shorter:
            left_out.append(rows.index[-1])
    kept = steps.drop(index=left_out).reset_index(drop=True)
    said = "the last step was cut off: left out" if len(kept) else "its only step was cut off: nothing can be answered"
    return kept, [f'{said}; if it ran out of memory, give it status = "oom" in a file of facts'] * bool(left_out)


def judge_mode(phases: set[str]) -> str:
    """Return the mode whose steps have these phases; "" if none has."""
    if vocabulary.OPTIMIZER in phases and vocabulary.BACKWARD in phases:
        return "train_step"
    if vocabulary.BACKWARD in phases:
        return "forward_backward"
    return "forward" if vocabulary.FORWARD in phases else ""


def _leave_out_warm_up(steps: pd.DataFrame, warmup: int | None) -> tuple[pd.DataFrame, list[str]]:
    """Number the steps of each mode and process, warm-up as -1, and describe what is left out."""
    number = np.full(len(steps), -1, np.int64)
    notes: list[str] = []
    span = (steps["end_ns"] - steps["start_ns"]).to_numpy(np.int64)
    for mode, of_mode in steps[steps["mode"] != ""].groupby("mode", sort=True):
        kept = of_mode[~of_mode["is_warm_up"].to_numpy(bool)]
        by_process = [rows.index.to_numpy() for _, rows in kept.groupby("process", sort=True)]
        named = len(of_mode) - len(kept)
        first = warmup if warmup is not None else 0
        if warmup is None and not named:
            first = max((_count_slow(span[index]) for index in by_process), default=0)
        first = min(first, max(min(map(len, by_process), default=1) - 1, 0))
        for index in by_process:
            number[index[first:]] = np.arange(len(index) - first)
        if named:
            notes.append(f"{format_count(named, 'step')} of {mode} in a range called warm-up: left out")
        if first:
            fewer = "" if warmup is None or warmup == first else f": {warmup}, but the last step counts"
            why = f"as asked{fewer}" if warmup is not None else f"more than {LONGER} times as long as the others"
            which = "step" if first == 1 else f"{first} steps"
            notes.append(f"the first {which} of {mode}: left out as warm-up ({why})")
    return steps.assign(number=number), list(dict.fromkeys(notes))


def _count_slow(span: np.ndarray) -> int:
    """Count the steps at the start that take LONGER than the median of the second half, if there are enough steps."""
    if len(span) < _FEWEST:
        return 0
    slow = span > LONGER * np.median(span[len(span) // 2 :])
    return int((~slow).argmax()) if not slow.all() else 0
