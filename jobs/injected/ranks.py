"""The processes of a script that step together, one for each GPU, as `torchrun` starts them. A capture has them all, so
they begin it at the same step and end it at the same step.

They meet by files and not by a collective: that would be one more in what is measured, and hang where one has ended.

Loaded into other people's scripts, as `follow` is.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from torch import distributed

WAIT_S = 120.0
"""How long a rank waits for the others, which are a part of a step away; nsys takes seconds to begin a capture."""


class CannotFollow(Exception):
    """The message says why, and what to do."""


class Ranks:
    """This process, number `rank` of `size` on this machine. `folder` has a file of each with what is known of it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rank, self.size = 0, 1
        self.has_joined = self.is_refused = False

    def join(self) -> bool:
        """Take the place of its rank, unless another process of the script has had it: whether this one has it. Called
        late, as a script makes itself a rank. Raises CannotFollow."""
        if self.has_joined or self.is_refused:
            return self.has_joined
        is_joined = distributed.is_available() and distributed.is_initialized()
        world = distributed.get_world_size() if is_joined else 1
        if "LOCAL_WORLD_SIZE" in os.environ:  # of a launcher, as torchrun
            self.rank, self.size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        elif is_joined:
            self.rank, self.size = distributed.get_rank(), world
        self.folder.mkdir(exist_ok=True)
        try:
            self.file.open("x").close()
        except FileExistsError:
            self.is_refused = True
            return False
        self.has_joined = True
        if world > self.size:
            raise CannotFollow(
                f"it has {world} processes, of which {self.size} are on this machine, and a capture is of one machine: "
                "start as many as this machine has GPUs"
            )
        return True

    @property
    def file(self) -> Path:
        return self.folder / f"{self.rank}.json"

    def write(self, facts: dict[str, Any]) -> None:
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(facts | {"rank": self.rank, "ranks": self.size}), encoding="utf-8")
        draft.replace(self.file)

    def meet(self, where: str) -> None:
        """Wait until all ranks are here. Raises CannotFollow where one does not come."""
        if self.size == 1:
            return
        (self.folder / f"{where}.{self.rank}").touch()
        deadline = time.monotonic() + WAIT_S
        missing = list(range(self.size))
        while missing := [rank for rank in missing if not (self.folder / f"{where}.{rank}").exists()]:
            if time.monotonic() > deadline:
                others = ", ".join(map(str, missing))
                raise CannotFollow(
                    f"rank {self.rank} waited {WAIT_S:g} s at the end of a step for rank {others}, and all {self.size} "
                    "ranks are captured at the same step: --step forward, or a range of the script, may end a step of "
                    "all"
                )
            time.sleep(0.001)
