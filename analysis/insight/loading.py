"""A capture as tables of pandas, for programs and notebooks.

    from profiler_job.analysis import load

    capture = load("my.sqlite")
    capture.kernels.groupby("family")["duration_ns"].sum()

Columns and names stay as they are; columns may be added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution, attribute
from profiler_job.analysis.capture.capture_data import Capture, get_process_id, get_thread_id
from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.phase_names import parse_phases
from profiler_job.analysis.capture.selection import find_first_event, find_gpus, select
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.reference.rules import Taxonomy

_TIMES = {
    "start_ns": "start, from the first event of the capture",
    "end_ns": "end, from the first event of the capture",
    "duration_ns": "end - start",
}
_PLACE = {
    "step": "number of the training step, from 0; -1 none",
    "phase": "phase of the step; empty where it is not known",
    "attribution": "how the phase is known: exact, early, linked, phase, inferred or none, as `show` says",
}
_ON_GPU = {
    "gpu": "number of the GPU",
    "stream": "number of the CUDA stream",
    "process": "process id",
    "launch_ns": "start of the API call that launched it; start_ns where that is not known",
    "range_id": "row of the innermost range that it was launched in; -1 none",
    "module": "path of the ranges below the phase",
}
COLUMNS: dict[str, dict[str, str]] = {
    "kernels": {
        "name": "full demangled name",
        "family": "kernel family",
        "rule": "rule of the taxonomy that says so; empty where none does",
    }
    | _TIMES
    | _PLACE
    | _ON_GPU,
    "ranges": {
        "name": "NVTX name",
        "domain": "NVTX domain; empty for the default one",
        "style": "PushPop or StartEnd",
    }
    | _TIMES
    | {
        "step": _PLACE["step"],
        "phase": _PLACE["phase"],
        "process": "process id",
        "thread": "thread id",
        "parent_id": "row of the range around it; -1 none",
        "path": "names of the ranges around it and its own, joined by /",
        "module": _ON_GPU["module"],
    },
    "api": {"name": "CUDA runtime or driver function, without the version of its entry point"}
    | _TIMES
    | _PLACE
    | {"process": "process id", "thread": "thread id"},
    "memops": {"operation": "memcpy with its direction, or memset", "bytes": "bytes moved or set"}
    | _TIMES
    | _PLACE
    | _ON_GPU,
}
"""The columns of the frames, one line each: times are nanoseconds (int64), sizes bytes, words categories."""


@dataclass(kw_only=True)
class LoadedCapture:
    """What a capture holds, or what was chosen of it. Rows are in the order of their starts; columns are in COLUMNS.

    kernels: one row a kernel on a GPU
    ranges:  one row an NVTX range on the host
    api:     one row a call of the CUDA API on the host
    memops:  one row a memory copy or set on a GPU
    phases:  one row a phase: calls, times and shares, as `section_columns.SECTIONS["phases"]` explains them
    summary: all that `profiler-job show` prints: `summary.capture` (facts), `summary.coverage`, `summary.launches`,
             `summary.sections` (frames by name), `summary.as_json()`
    """

    source: str
    kernels: pd.DataFrame
    ranges: pd.DataFrame
    api: pd.DataFrame
    memops: pd.DataFrame
    phases: pd.DataFrame
    summary: Summary


def load(
    path: Path | str,
    *,
    gpu: int | None = None,
    range: str | None = None,
    between_ns: tuple[int, int] | None = None,
    phases: Sequence[str] = (),
    rules: Path | str | None = None,
) -> LoadedCapture:
    """Read a capture: an .nsys-rep (needs nsys), an .sqlite export, or a folder of a parquetdir export.

    gpu, range, between_ns: only a part of it, as `--gpu`, `--range` and `--between` of `profiler-job show` choose it;
    between_ns are nanoseconds from the first event. phases: ranges that mark phases, such as `optimizer=my_opt`, as
    `--phase` has them. rules: TOML file of further kernel families' rules.
    Raises analysis.capture.capture_data.ExportError, a ValueError of one line, where it cannot be read or lacks what is
    asked for; ValueError where phases or rules are wrong.
    """
    taxonomy = kernel_families.add_user_rules(Path(rules)) if rules else kernel_families.BUILT_IN
    chosen = parse_phases(phases)
    capture = read(path, details=False)
    zero = find_first_event(capture)
    attribution = infer_phases(capture, attribute(capture, chosen))
    selection = Selection(gpu=gpu, range=range, between=between_ns)
    summary = summarise(capture, attribution, taxonomy, selection=selection)
    capture, attribution = select(capture, attribution, selection)
    return LoadedCapture(
        source=capture.source,
        kernels=_load_kernels(capture, attribution, zero, taxonomy),
        ranges=_load_ranges(attribution, zero),
        api=_load_api(capture, attribution, zero),
        memops=_load_operations("memops", capture, attribution, zero, {}),
        phases=summary.sections["phases"],
        summary=summary,
    )


def _load_kernels(capture: Capture, attribution: Attribution, zero: int, taxonomy: Taxonomy) -> pd.DataFrame:
    names = capture.kernels["kernel_name"]
    known = [taxonomy.classify(str(name)) for name in names.cat.categories]
    words = {
        "name": names,
        "family": _make_categorical([classification.family for classification in known], names),
        "rule": _make_categorical([classification.rule for classification in known], names),
    }
    return _load_operations("kernels", capture, attribution, zero, words)


def _make_categorical(of_category: list[str], names: pd.Series) -> pd.Categorical:
    codes, categories = pd.factorize(np.array(of_category, dtype=object))
    return pd.Categorical.from_codes(codes[names.cat.codes] if len(names) else [], pd.Index(categories, dtype=object))


def _load_operations(
    table: str, capture: Capture, attribution: Attribution, zero: int, words: dict[str, Any]
) -> pd.DataFrame:
    rows, place = getattr(capture, table), getattr(attribution, table)
    columns = {name: rows[name] for name in rows} | {name: place[name] for name in place} | words
    columns |= _shift_times(rows, zero) | {
        "gpu": find_gpus(capture, rows),
        "process": _decode_ids(rows["process"], get_process_id),
        "launch_ns": place["launch_ns"] - zero,
    }
    return pd.DataFrame(columns)[list(COLUMNS[table])]


def _shift_times(rows: pd.DataFrame, zero: int) -> dict[str, pd.Series]:
    start, end = rows["start_ns"], rows["end_ns"]
    return {"start_ns": start - zero, "end_ns": end - zero, "duration_ns": end - start}


def _decode_ids(serialised: pd.Series, id_of: Callable[[int], int]) -> np.ndarray:
    known, code = np.unique(serialised.to_numpy(), return_inverse=True)
    return np.array([id_of(value) for value in known], np.int64)[code]


def _load_ranges(attribution: Attribution, zero: int) -> pd.DataFrame:
    rows = attribution.ranges
    ids = {
        "process": _decode_ids(rows["process"], get_process_id),
        "thread": _decode_ids(rows["thread"], get_thread_id),
    }
    return rows.assign(**_shift_times(rows, zero), **ids)[list(COLUMNS["ranges"])]


def _load_api(capture: Capture, attribution: Attribution, zero: int) -> pd.DataFrame:
    rows, place = capture.api, attribution.api
    ids = {
        "process": _decode_ids(rows["process"], get_process_id),
        "thread": _decode_ids(rows["thread"], get_thread_id),
    }
    columns = {name: place[name] for name in _PLACE}
    return rows.assign(**_shift_times(rows, zero), **ids, **columns)[list(COLUMNS["api"])]
