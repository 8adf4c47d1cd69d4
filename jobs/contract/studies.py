"""The studies: questions that the default sweep does not answer. Sweeps name the study that they belong to."""

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
"""The study of steps with and without compile, in FP32 with nothing fused: each with its base, on one host."""

LADDER = "prediction"
"""The study of changes that are added one after the other: predicted and measured gains."""

LOSSES = "losses"
"""The study of what changes do to the loss; its times are not reported."""

STUDIES: tuple[Study, ...] = get_args(Study)
