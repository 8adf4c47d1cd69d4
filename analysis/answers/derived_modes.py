"""Runs of a smaller mode from the steps of a larger one: forward, and forward and backward, of training steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import join_frames
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.modes import MODE_PHASES

_MEASURED = ("ok", "no_kernels")
_TABLES = ("steps", "ranges", "kernels", "api", "memops")


@dataclass(frozen=True, kw_only=True)
class DerivedModes:
    """A recording with derived runs. larger: ids of derived runs -> mode of the steps that they are a part of. sources:
    the same ids -> id of the run with these steps. refused: ids of runs -> why no smaller mode is derived from them."""

    recording: store.Recording
    larger: Mapping[str, str]
    sources: Mapping[str, str]
    refused: Mapping[str, str]


def derive_modes(rec: store.Recording) -> DerivedModes:
    """Add the runs of each mode that a case has no run of, from the phases that it shares with a larger mode that was
    measured. Several passes in one step are no forward pass, so such steps give none."""
    names = [name for name in (*run_grid.CASE_AXES, *run_grid.VARIANT_AXES) if name in rec.runs]
    runs = rec.runs.reset_index(drop=True).astype({"run_id": str, "mode": str, "status": str})
    rows, pieces = [], []
    larger, sources, refused = {}, {}, {}
    has_steps = {*rec.steps["run_id"].astype(str)} | {*rec.kernels["run_id"].astype(str)}
    for _, case in runs.groupby([runs[name].astype(str) for name in names], sort=False, dropna=False):
        modes = dict(zip(case["mode"], case.index))
        for place, mode in enumerate(MODE_PHASES):
            bigger = [name for name in [*MODE_PHASES][place + 1 :] if name in modes]
            measured = [modes[name] for name in bigger if runs.loc[modes[name], "status"] in _MEASURED]
            measured = [index for index in measured if runs.loc[index, "run_id"] in has_steps]
            if mode in modes or not measured:
                continue
            run = runs.loc[measured[0]]
            if (num_passes := _count_passes(rec, run)) > 1:
                refused[run["run_id"]] = f"no forward pass is taken from steps with {num_passes} of them"
                continue
            new = f"{run['run_id']}, phases of {mode}"
            rows.append(run.to_frame().T.assign(run_id=new, mode=mode))
            pieces.append({name: _select(getattr(rec, name), run["run_id"], new, mode) for name in _TABLES})
            larger[new], sources[new] = run["mode"], run["run_id"]
    if not rows:
        return DerivedModes(recording=rec, larger={}, sources={}, refused=refused)
    more = {name: [piece[name] for piece in pieces if len(piece[name])] for name in _TABLES}
    tables = {name: join_frames(name, [getattr(rec, name), *parts]) for name, parts in more.items() if parts}
    joined = pd.concat([runs, *rows], ignore_index=True)
    joined = joined.astype({name: rec.runs[name].dtype for name in rec.runs if name not in ("run_id", "mode")})
    joined = joined.astype({"run_id": "category", "mode": "category"})
    return DerivedModes(recording=replace(rec, runs=joined, **tables), larger=larger, sources=sources, refused=refused)


def _select(frame: pd.DataFrame, run_id: str, new: str, mode: str) -> pd.DataFrame:
    """Select the rows of a run in the phases of a mode, as rows of a new run. The steps get their sum as a whole."""
    rows = frame[frame["run_id"] == run_id]
    rows = rows[rows["phase"].astype(str).isin(MODE_PHASES[mode])]
    if "wall_ns" in rows:
        by = ["rank", "process", "collector", "step"]
        sums = rows.groupby(by, as_index=False, observed=True)["wall_ns"].sum().assign(phase=ranges.STEP)
        rows = pd.concat([rows.astype({"phase": object}), sums], ignore_index=True)[[*frame.columns]]
    return rows.assign(run_id=pd.Categorical([new] * len(rows), [new]))


def _count_passes(rec: store.Recording, run: pd.Series) -> int:
    """Count the forward passes in a step of a run: the ranges of forward that come after one of another phase."""
    placed = rec.ranges[rec.ranges["run_id"] == run["run_id"]]
    phase = placed["phase"].astype(str)
    placed = placed[phase.isin((ranges.FORWARD, ranges.BACKWARD)) & (placed["step"] >= 0)].sort_values("start_ns")
    by = [name for name in ("rank", "step") if name in placed]
    is_forward = (placed["phase"].astype(str) == ranges.FORWARD).astype(int)
    begins = placed.assign(begins=is_forward.groupby([placed[name] for name in by]).diff().eq(1)).groupby(by)["begins"]
    counted = int(begins.sum().max()) + 1 if len(placed) else 1
    stated = run.get("accumulation")  # not known of a script
    return counted if pd.isna(stated) else max(counted, int(stated))
