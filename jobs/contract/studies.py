"""The studies: questions that the default sweep does not answer. Sweeps name the study that they belong to; a study's
recordings are in a folder of its own."""

from pathlib import Path
from typing import Literal, get_args

from profiler_job.jobs.contract.integrity import find_folders
from profiler_job.jobs.contract.layout import MANIFEST

Study = Literal[
    "accumulation",
    "again",
    "attention",
    "bf16",
    "generation",
    "gpus",
    "host",
    "losses",
    "memory",
    "optimizer",
    "precision",
    "prediction",
    "trained",
    "warm_up",
]
AGAIN = "again"
"""The study that measures the runs of the default sweep once more."""

GENERATION = "generation"
"""The study of scripts that generate text: prefill and decode steps."""

GPUS = "gpus"
"""The study of one GPU against several."""

HOST = "host"
"""The study of steps with and without compile, in FP32 with nothing fused: each with its base, on one host."""

LADDER = "prediction"
"""The study of changes that are added one after the other."""

LOSSES = "losses"
"""The study of what changes do to the loss; its times are not reported."""

OPTIMIZER = "optimizer"
"""The study of AdamW's forms."""

PRECISION = "precision"
"""The study that has a case in every precision."""

TRAINED = "trained"
"""The study of steps as people train: BF16, fused attention, fused AdamW, eager and compiled by turns. Without it, the
BF16 answers are of any runs with these settings, such as those of "bf16", which a sweep of earlier versions had."""

NO_PLAIN_STEPS = (LOSSES, GENERATION)
"""Studies whose times are not those of plain steps, so that they stand in no list with them."""

STUDIES: tuple[Study, ...] = get_args(Study)

MAIN = "main"
"""Folder of the recordings of default sweeps, which belong to no study."""


def find_study_folder(study: str) -> str:
    """The name of the folder that holds the recordings of a study, or of none ("")."""
    return study or MAIN


def find_recordings(folder: Path) -> list[Path]:
    """The recordings in `folder` and in its folders of studies, sorted by name. Raises OSError."""
    places = (folder, *(folder / find_study_folder(study) for study in ("", *STUDIES)))
    recordings = [recording for place in places for recording in find_folders(place, MANIFEST)]
    return sorted(recordings, key=lambda recording: (recording.name, recording))
