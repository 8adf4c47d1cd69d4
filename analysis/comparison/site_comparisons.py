"""Choose the pairs of recordings that a site compares.

The first recording is compared with each other one that has most of its cells with other axes, such as the same runs in
another precision, or that was made with other SETTINGS: on another GPU, or with another version of a program.
Repetitions are left out, since noise bands come from them: a recording of the study AGAIN, whatever its commit, or one
that differs in nothing. Within a study of precision, FP32 is compared with BF16, and of steps as people train, those
that are not compiled with those that are. The recordings of a study are joined for that, but a pair is of one
recording: its runs took turns in the same processes.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from profiler_job.analysis.comparison.align import Alignment, align, keep_cases
from profiler_job.analysis.comparison.errors import NotComparableError
from profiler_job.analysis.comparison.judge import Comparison, compare
from profiler_job.analysis.comparison.noise import choose_noise
from profiler_job.analysis.comparison.sides import Side, make_recording_side
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.studies import AGAIN

SHARED = 0.5
"""Part of the runs of the first recording that must have a counterpart in another one."""
WITHIN_STUDIES = {"precision": ("precision", "fp32", "bf16"), "trained": ("compile", "off", "default")}
"""Axis of a study, and its values of A and of B."""


def make_comparisons(
    recordings: Sequence[store.Recording], studies: Mapping[str, store.Recording] = MappingProxyType({})
) -> dict[str, Comparison]:
    """Make the comparisons of recordings that a site has, by a name for a file. studies: the recordings of each study
    as one."""
    made = {}
    for name, first, second in _iterate_sides(recordings, studies):
        try:
            alignment = align(first, second)
            if first.recording is second.recording:
                alignment = _keep_within_recordings(alignment, _get_study(first.recording), recordings)
            if _is_repetition(alignment, second) or len(alignment.cases) < SHARED * len(first.runs):
                continue
            made[name] = compare(first, second, choose_noise(None, (first, second), alignment.runs), alignment)
        except NotComparableError:  # recordings of other work, or without profiles, are of one site all the same
            continue
    return made


def _iterate_sides(
    recordings: Sequence[store.Recording], studies: Mapping[str, store.Recording]
) -> Iterator[tuple[str, Side, Side]]:
    """Yield each two sides that may be compared, with the name of the pair: of whole recordings, and within studies on
    the GPU of their first run."""
    main, *others = sorted(
        recordings, key=lambda rec: (bool(_get_study(rec)), str(rec.manifest.get("recorded_from", "")))
    )
    for other in others:
        yield other.label, make_recording_side(main), make_recording_side(other)
    for study, (axis, *values) in WITHIN_STUDIES.items():
        if study not in studies:
            continue
        side = dataclasses.replace(make_recording_side(studies[study]), label=study)
        on_one = side.runs[side.runs["gpu_name"] == side.runs["gpu_name"].iloc[0]]
        first, second = (
            dataclasses.replace(side, runs=on_one[on_one[axis].astype(str) == value], unfinished={}) for value in values
        )
        yield f"{study}-{values[1]}", first, second


def _keep_within_recordings(alignment: Alignment, study: str, recordings: Sequence[store.Recording]) -> Alignment:
    """Keep the cases of an alignment of joined recordings whose runs are all of one of them."""
    holders = {
        run: number
        for number, rec in enumerate(recordings)
        if _get_study(rec) == study
        for run in rec.runs["run_id"].astype(str)
    }
    return keep_cases(alignment, lambda case: len({holders[run] for run in (*case.first, *case.second)}) == 1)


def _is_repetition(alignment: Alignment, second: Side) -> bool:
    """Whether B has the axes of A and was made to repeat it, or by the same programs on the same kind of GPU."""
    repeats = second.recording is not None and _get_study(second.recording) == AGAIN
    return not alignment.differences and (repeats or not alignment.settings)


def _get_study(rec: store.Recording | None) -> str:
    return str(rec.manifest.get("study", "")) if rec else ""
