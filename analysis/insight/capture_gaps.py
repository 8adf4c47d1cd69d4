"""What is wrong with a capture, what it lacks, and which of its ranges match no phase."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.believed_launches import NO_CALL
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.range_nesting import split_by_depth
from profiler_job.analysis.insight.section_columns import SECTIONS


def list_problems(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    problems = capture.problems | attribution.problems
    place = attribution.kernels
    lead = (place["launch_ns"] - capture.kernels["start_ns"]).to_numpy()
    if num_early := int((lead > 0).sum()):
        what = f"{num_early} of {len(lead)} kernels begin before the call that launched them, by up to {lead.max()} ns"
        problems[what] = (
            "the clocks of host and GPU are that far apart, and latencies and queues as uncertain; "
            "they do not count as attributed exactly"
        )
    return pd.DataFrame(list(problems.items()), columns=list(SECTIONS["problems"]))


def list_missing(
    capture: Capture, attribution: Attribution, chosen: Mapping[str, str], further: dict[str, str]
) -> pd.DataFrame:
    """List what a capture lacks, and what cannot be said for it. chosen: phases of ranges that the user names. further:
    of the same form."""
    missing = capture.missing | further
    if len(capture.kernels) and len(capture.api):
        lost = int((attribution.kernels["api"] == NO_CALL).sum())
        if lost:
            missing[f"the launches of {lost} of {len(capture.kernels)} kernels"] = "they cannot be attributed to ranges"
    if len(capture.ranges) and not (attribution.ranges["phase"] != "").any():
        inferred = (attribution.kernels["attribution"] == "inferred").any()
        consequence = "phases are inferred from kernels and threads" if inferred else "no statement about phases"
        missing["ranges called forward, loss, backward or optimizer"] = consequence
    names = set(attribution.ranges["plain_name"].cat.categories)
    for name, phase in chosen.items():
        if name not in names:
            missing[f"ranges called {name}"] = f"--phase {phase}={name} marks nothing"
    return pd.DataFrame(list(missing.items()), columns=list(SECTIONS["missing"]))


_LARGE_SHARE, _MOST_UNMATCHED = 0.05, 3
_WHOLE_SHARE, _MOST_AROUND = 0.9, 5


def find_unmatched_ranges(attribution: Attribution, duration: np.ndarray) -> list[str]:
    """Find the names of the largest ranges that match no phase, if no range gives the phase of their kernels. If a
    range is around (nearly) all of them, the ranges inside it."""
    ranges, place = attribution.ranges, attribution.kernels
    unknown = (place["range_id"] >= 0) & place["attribution"].isin(["exact", "early", "inferred", "none"])
    unknown &= (place["phase"] == "") | (place["attribution"] == "inferred")
    rows = np.flatnonzero(unknown)
    total = duration.sum()
    if not len(rows) or duration[rows].sum() < _LARGE_SHARE * total:
        return []
    parent, plain = ranges["parent_id"].to_numpy(), ranges["plain_name"].cat
    code = plain.codes.to_numpy()
    matches = ((ranges["phase"] == "") & ~ranges["is_operation"] & ~ranges["is_step"]).to_numpy()
    matches = matches & (ranges["domain"] == "").to_numpy()  # users do not name ranges of a library
    by_depth = split_by_depth(parent)
    unmatched: list[str] = []
    for _ in range(_MOST_AROUND):
        outermost = np.where(matches, np.arange(len(ranges)), -1)
        for level in by_depth[1:]:
            above = outermost[parent[level]]
            outermost[level] = np.where(above >= 0, above, outermost[level])
        held_in = outermost[place["range_id"].to_numpy()[rows]]
        time = np.bincount(code[held_in[held_in >= 0]], duration[rows][held_in >= 0], len(plain.categories))
        large = [int(i) for i in np.argsort(-time, kind="stable")[:_MOST_UNMATCHED] if time[i] >= _LARGE_SHARE * total]
        if not large:
            break
        unmatched = [str(plain.categories[i]) for i in large]
        if time[large[0]] < _WHOLE_SHARE * duration[rows].sum():
            break
        matches &= code != large[0]
    return unmatched
