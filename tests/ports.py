"""Ports for the servers of tests."""

import socket
from contextlib import ExitStack


def find_free_ports(number: int) -> list[int]:
    """Return different ports that are free on this machine; another program may take them before they are used."""
    with ExitStack() as held:
        return [held.enter_context(socket.create_server(("", 0))).getsockname()[1] for _ in range(number)]
