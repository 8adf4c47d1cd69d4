"""Which of several machines this one is, where the same command is started on each of them."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SIZES, SIZE = ("--nnodes", "--num_machines"), "PET_NNODES"
"""Options of torchrun and `accelerate launch`, and what torchrun reads in place of its own: how many machines."""
NUMBERS = ("--node-rank", "--node_rank", "--machine_rank")
VARIABLES = ("PET_NODE_RANK", "SLURM_NODEID", "SKYPILOT_NODE_RANK", "NODE_RANK")
"""The number of this one, from 0: in their options, or as engines tell a task. An engine's number alone says nothing:
a script may train on one of the machines that a job has."""

SLURM_SIZES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")
SLURM_HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
"""Those of the step come first: its machines may be a part of the job's, and other steps have the rest."""

PORT = 29400
"""Where the first machine listens, unless MASTER_PORT says another."""


class Node(NamedTuple):
    """This machine: its number, from 0, among `size`, of which the first is reached at host and port."""

    number: int
    size: int
    host: str
    port: int


def this_node(environment: Mapping[str, str] = os.environ) -> Node | None:
    """This machine as the environment of torchrun, Slurm or SkyPilot tells it; None where it is alone, or not told."""

    def first(*names: str) -> str:
        return next((value for name in names if (value := environment.get(name, ""))), "")

    count = first("PET_NNODES", "NNODES", *SLURM_SIZES, "SKYPILOT_NUM_NODES")
    number = first("PET_NODE_RANK", "NODE_RANK", "SLURM_NODEID", "SKYPILOT_NODE_RANK")
    ips = environment.get("SKYPILOT_NODE_IPS", "").split()
    host = first("PET_MASTER_ADDR", "MASTER_ADDR") or first_host(first(*SLURM_HOSTS)) or (ips or [""])[0]
    port = first("PET_MASTER_PORT", "MASTER_PORT") or str(PORT)
    numbers = (number, count, port)
    if not all(text.isdecimal() for text in numbers) or int(count) < 2 or not int(number) < int(count) or not host:
        return None
    return Node(int(number), int(count), host, int(port))


def first_host(hosts: str) -> str:
    """gpu001 of Slurm's gpu[001-004,7]."""
    match = re.match(r"([^\[,]*)(?:\[([^],-]+)[^]]*\]([^,]*))?", hosts)
    return "".join(filter(None, match.groups())) if match else ""


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
