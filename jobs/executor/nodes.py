"""Which of several machines this one is, where a script is started on each of them by the same command."""

import os
from collections.abc import Mapping, Sequence

SIZES, SIZE = ("--nnodes", "--num_machines"), "PET_NNODES"
"""Options of torchrun and `accelerate launch`, and what torchrun reads in place of its own: how many machines."""
NUMBERS = ("--node-rank", "--node_rank", "--machine_rank")
VARIABLES = ("PET_NODE_RANK", "SLURM_NODEID", "SKYPILOT_NODE_RANK", "NODE_RANK")
"""The number of this one, from 0: in their options, or as engines tell a task. An engine's number alone says nothing:
a script may train on one of the machines that a job has."""


def node_of(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int | None:
    """The number of this machine among several that a command trains on, from 0; None where it is one, or not told."""
    size = option_of(command, SIZES) or environment.get(SIZE, "1")
    most = size.rpartition(":")[2]  # 1:4 is elastic
    known = (option_of(command, NUMBERS), *(environment.get(name) for name in VARIABLES))
    node = next(filter(None, known), "")
    return int(node) if node.isdecimal() and most.isdecimal() and int(most) > 1 else None


def option_of(command: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the option that has one of these names."""
    for word, after in zip(command, [*command[1:], ""]):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else after
    return None
