"""The studies: questions beyond those of the default sweep, each answered from recordings of sweeps that name it."""

from typing import Literal, get_args

Study = Literal[
    "accumulation",
    "again",
    "attention",
    "bf16",
    "gpus",
    "host",
    "losses",
    "memory",
    "optimizer",
    "precision",
    "prediction",
    "warm_up",
]
AGAIN = "again"
"""The study that measures the runs of the default sweep once more."""

BF16 = "bf16"
"""The study that measures the runs of the default sweep as people train today: BF16, fused attention, fused AdamW."""

GPUS = "gpus"
"""The study of one GPU against several."""

HOST = "host"
"""The study of steps with and without compile, in FP32 with nothing fused: each beside its own base, on one host."""

LADDER = "prediction"
"""The study of what changes give one on top of the other, as it was predicted and measured."""

LOSSES = "losses"
"""The study of what changes do to the loss: nothing is said of its times."""

STUDIES: tuple[Study, ...] = get_args(Study)
