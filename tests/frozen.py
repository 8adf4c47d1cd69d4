"""Small recordings of real runs that stay as they are: `tests/freeze.py` made them."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from profiler_job.analysis.recording import store
from profiler_job.analysis.site.combine import select_runs

FOLDER = Path(__file__).parent / "data" / "recordings"
NUM_STEPS = 2
"""Profiled steps of each run. What was timed without nsys is kept whole: it is small."""
ONE_GPU, ATTENTION = FOLDER / "one_gpu", FOLDER / "attention"


@cache
def load(name: str) -> store.Recording:
    """Return the recording `one_gpu` or `attention`. All tests share it: they change copies."""
    return store.load(FOLDER / name)


@cache
def load_study(study: str) -> store.Recording:
    """Return the runs of `one_gpu` that are of a study (`precision`, `optimizer`, `host` or "", the default sweep)."""
    rec = load("one_gpu")
    runs = rec.runs.astype({name: str for name in ("run_id", "mode", "precision", "optimizer", "compile")})
    is_plain = (runs[["precision", "optimizer", "compile"]] == ["fp32", "own", "off"]).all(axis=1)
    is_training = runs["mode"] == "train_step"
    chosen = {
        "": is_plain,
        "precision": is_training & (runs["context_length"] == 512),
        "optimizer": is_training & (runs["context_length"] == 128),
        "host": (runs["mode"] == "forward") & (runs["size"].astype(str) == "small"),
    }[study]
    return replace(keep_runs(rec, chosen), manifest=rec.manifest | {"name": study or "main", "study": study})


def keep_runs(rec: store.Recording, chosen: pd.Series) -> store.Recording:
    """Return `rec` with the runs that are chosen by rows of its table, and no others."""
    return select_runs(rec, list(rec.runs.loc[chosen, "run_id"].astype(str)))


def measure_again(rec: store.Recording) -> store.Recording:
    """Return a made-up second recording of the same runs, of another day and commit. Kernels take up to 0.2% longer or
    shorter, steps up to 5%."""
    random = np.random.default_rng(1)
    lengths = rec.kernels["end_ns"] - rec.kernels["start_ns"]
    lengths = (lengths * random.uniform(0.998, 1.002, len(lengths))).astype("int64")
    walls = (rec.steps["wall_ns"] * random.uniform(0.95, 1.05, len(rec.steps))).astype("int64")
    return replace(
        rec,
        runs=rec.runs.assign(started_at="2027-01-02T03:04:05+00:00", commit="0123456789ab"),
        kernels=rec.kernels.assign(end_ns=rec.kernels["start_ns"] + lengths),
        steps=rec.steps.assign(wall_ns=walls),
        manifest=rec.manifest | {"name": "again", "study": "again", "recorded_from": "2027-01-02T03:04:05+00:00"},
    )


def lose_run(rec: store.Recording, run_id: str, phase: str = "backward") -> store.Recording:
    """Return `rec` as if a run had run out of memory in a phase."""
    is_lost = rec.runs["run_id"].astype(str) == run_id
    runs = rec.runs.astype({"status": str, "status_phase": object})
    runs.loc[is_lost, ["status", "status_phase", "status_message"]] = ["oom", phase, "CUDA out of memory"]
    return replace(rec, runs=runs)
