"""What tests give to another process, which imports this module and nothing that takes long."""

import itertools
import os
import time
from pathlib import Path

from tests.waiting import HANGS_S


def twice(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def refuse(name: str) -> None:
    raise ValueError(f"{name} is damaged")


def wait() -> None:
    time.sleep(HANGS_S)


def write_on(folder: Path) -> None:
    for number in itertools.count():
        (folder / str(number)).touch()
