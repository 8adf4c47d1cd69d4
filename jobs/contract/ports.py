"""Ports at which processes of one run meet."""

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

LOWEST = 10_000
"""Below are those of well-known services."""
GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Which ports the system gives to a program that asks for any: the first and the last."""
FIRST_GIVEN_OUT = 32_768
"""The first of them, where the system does not say."""
FEW = 1_000


def find_free_ports(number: int) -> list[int]:
    """Different ports that are free on all addresses of this machine. They are used seconds later. So they are none of
    those that the system gives out meanwhile, of which NCCL alone takes dozens; unless next to no others are left."""
    end = read_first_ephemeral()
    draw = random.SystemRandom()
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < number:
            with suppress(OSError):
                port = draw.randrange(LOWEST, end) if end - LOWEST >= FEW else 0
                ports.append(held.enter_context(socket.create_server(("", port))).getsockname()[1])
    return ports


def read_first_ephemeral() -> int:
    """The first port that the system gives to a program that asks for any."""
    try:
        return int(GIVEN_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return FIRST_GIVEN_OUT
