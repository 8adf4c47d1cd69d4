"""The studies: questions beyond those of the default sweep, each answered from recordings of sweeps that name it."""

from typing import Literal, get_args

Study = Literal["again", "attention", "host", "memory", "optimizer", "precision", "warm_up"]
AGAIN = "again"
"""The study that measures the runs of the default sweep once more."""

STUDIES: tuple[Study, ...] = get_args(Study)
