"""Number of this machine among several, when `torchrun` or `accelerate launch` trains on them together."""

import os
from collections.abc import Mapping, Sequence

SIZES, SIZE = ("--nnodes", "--num_machines"), "PET_NNODES"
"""Options of torchrun and `accelerate launch` for the number of machines, and the variable that torchrun reads."""
NUMBERS = ("--node-rank", "--node_rank", "--machine_rank")
VARIABLES = ("PET_NODE_RANK", "SLURM_NODEID", "SKYPILOT_NODE_RANK", "NODE_RANK")
"""The number of this machine, from 0: in their options, and in variables of torchrun and of engines. A variable alone
is not enough: a script may train on one of the machines that a job has."""


def find_node(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of this machine, from 0, among several that a command trains on; None if it trains on one, or
    if the number is not known."""
    size = find_option(command, SIZES) or environment.get(SIZE, "1")
    most = size.rpartition(":")[2]  # 1:4 is elastic
    known = (find_option(command, NUMBERS), *(environment.get(name) for name in VARIABLES))
    node = next(filter(None, known), "")
    return int(node) if node.isdecimal() and most.isdecimal() and int(most) > 1 else None


def find_option(command: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of the option that has one of these names; None if the command has none of them."""
    for word, after in zip(command, [*command[1:], ""]):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else after
    return None
