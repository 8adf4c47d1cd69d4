"""Why each piece of a GPU's waiting is: from what the thread that launches next does meanwhile, in samples of Python.

Without samples a late launch of a copy from the host, or in the phase of data, waits for data, and others for launches.
A sample that is in a DataLoader or a tokenizer is data wherever it is; one that sleeps or saves is neither. One in
another known part of a library, such as an optimizer, is launches.
"""

import numpy as np
import pandas as pd

from profiler_job.analysis.insight.gpu_limit import PHASES
from profiler_job.analysis.insight.gpu_waits import BETWEEN, COPY, FOR_DATA, IDLING, LATE, SYNC
from profiler_job.analysis.insight.stack_places import Places
from profiler_job.analysis.insight.stack_samples import NOT_SAMPLED
from profiler_job.analysis.reference import python_libraries
from profiler_job.analysis.reference.python_libraries import PARTS, SLEEP
from profiler_job.jobs.contract.step_limit import CAUSES, DATA, GAPS, LAUNCHES, NOTHING, SYNCHRONISATION

COLUMNS = {
    "late_launch_ns": (LATE, FOR_DATA, IDLING),
    "data_ns": (FOR_DATA,),
    "nothing_ns": (IDLING,),
    "sync_ns": (SYNC,),
    "copies_ns": (COPY,),
    "between_ns": (BETWEEN,),
}
"""Columns of the section `waits`, and the causes of pieces that each sums."""
CAUSE_COLUMNS = ["gpu", "phase", "data_ns", "nothing_ns"]
LEAST_PART, WHOLE = 0.05, 0.9
"""Least share that is named, and from which on nothing else is."""
_OF_CAUSES = {DATA: FOR_DATA, NOTHING: IDLING}
_OF_PARTS = dict.fromkeys((part.name for part in PARTS), LATE)
_OF_PARTS |= {part: _OF_CAUSES[cause] for part, cause in python_libraries.CAUSES.items()}


def find_causes(pieces: pd.DataFrame, places: Places) -> pd.Series:
    """Find the cause of pieces (cause, stack) whose launch is late, where their stack shows another than without it."""
    is_late = pieces["cause"].isin(COLUMNS["late_launch_ns"]) & (pieces["stack"] != NOT_SAMPLED)
    stacks = pieces.loc[is_late, "stack"]
    by_stack = {
        number: _OF_PARTS[below] for number in stacks.unique().tolist() if (below := places[number].below) in _OF_PARTS
    }
    shown = stacks.map(by_stack).dropna()
    causes = pieces["cause"].copy()
    causes[shown.index] = shown.astype(causes.dtype)
    return causes


def sum_causes(pieces: pd.DataFrame, before: pd.Series, places: Places) -> pd.DataFrame:
    """Sum by gpu and phase what samples change: data_ns, which may be negative, and nothing_ns. before: the causes
    without samples, in which pauses that are known without them count as nothing, too."""
    changed = pieces[(pieces["cause"] != before) | (pieces["cause"] == IDLING)]
    is_sleep = np.array([places[number].below == SLEEP for number in changed["stack"].tolist()], bool)
    more = (changed["cause"] == FOR_DATA).astype(int)
    less = ((before[changed.index] == FOR_DATA) & ~is_sleep).astype(int)
    phase = [PHASES[int(code)] for code in changed["phase"]]
    rows = changed.assign(phase=phase, data_ns=changed["ns"] * (more - less))
    rows = rows.assign(nothing_ns=rows["ns"].where(rows["cause"] == IDLING, 0.0))
    return rows.groupby(["gpu", "phase"], as_index=False)[["data_ns", "nothing_ns"]].sum()


def add_causes(table: pd.DataFrame, causes: pd.DataFrame) -> pd.DataFrame:
    """Add to a section `verdict` or `verdict_phases` what samples show. causes: of `sum_causes`."""
    keys = [name for name in ("gpu", "phase") if name in table]
    sums = causes.groupby(keys)[["data_ns", "nothing_ns"]].sum()
    if not len(sums):
        return table
    shown = sums.reindex(pd.MultiIndex.from_frame(table[keys]) if len(keys) > 1 else table[keys[0]]).fillna(0.0)
    late, data, nothing = (table[name].to_numpy(float) for name in ("late_launch_ns", "data_ns", "nothing_ns"))
    nothing = np.minimum(np.maximum(shown["nothing_ns"].to_numpy(float), nothing), late)
    data = np.clip(data + shown["data_ns"].to_numpy(float), 0, late - nothing)
    return table.assign(data_ns=np.rint(data).astype(np.int64), nothing_ns=np.rint(nothing).astype(np.int64))


def format_parts(parts: pd.Series, nothing: str = "") -> str:
    """Format shares of names: the name alone if it has WHOLE, or else each with its share, most first, as
    `forward 60%; backward 40%`. nothing: in place of the name "", next to others."""
    total = parts.sum()
    ranked = parts[parts >= LEAST_PART * total].sort_values(ascending=False, kind="stable")
    if not len(ranked) or ranked.iloc[0] >= WHOLE * total:
        return str(ranked.index[0]) if len(ranked) else ""
    return "; ".join(f"{name or nothing} {100 * ns / total:.0f}%" for name, ns in ranked.items())


def name_causes(rows: pd.DataFrame) -> pd.Series:
    """Name what the GPU waits for in each of rows with COLUMNS, as `data`, or `launches 60%; synchronisation 40%`."""
    times = rows[[*COLUMNS]].astype(float).clip(lower=0)
    own = times["late_launch_ns"] - times["data_ns"] - times["nothing_ns"]
    named = {CAUSES[LAUNCHES]: own, CAUSES[DATA]: times["data_ns"], CAUSES[NOTHING]: times["nothing_ns"]}
    named |= {CAUSES[SYNCHRONISATION]: times["sync_ns"], CAUSES[GAPS]: times["between_ns"]}
    parts = pd.DataFrame(named | {"copies": times["copies_ns"]})
    return pd.Series([format_parts(row) for _, row in parts.iterrows()], rows.index, dtype=object)
