"""The processes of a script that step together, one for each GPU, as `torchrun` starts them. One capture covers all
ranks of a machine, so they begin it at the same step and end it at the same step.

They meet by files and not by a collective, which would add to what is measured, and hang if a rank has ended. Ranks of
several machines meet by the store of torch.distributed; each machine has a separate capture.

Loaded into other people's scripts, as `follow` is.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import distributed

WAIT_S = 120.0
"""How long a rank waits for the others, which are part of a step away; nsys takes seconds to begin a capture."""


PROGRESS = "progress"
"""File in which the first rank notes how far it is."""
BEFORE_CAPTURE = ("compiling", "skipped", "timed")


class FollowError(Exception):
    """Error when a script cannot be followed. The message gives the reason and what to do."""


class Ranks:
    """The rank of this process and how it meets the others. `rank`: its number among `world` ranks. `size`: number of
    ranks on this machine, from number `first`. `folder`: has a file of facts for each rank of this machine."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rank, self.first, self.size, self.world = 0, 0, 1, 1
        self.has_joined = self.is_refused = False
        self.shared_id = ""  # what ranks of several machines call what they do together

    def join(self) -> bool:
        """Take the place of this process's rank, and return whether it has it: another process of the script may have
        had it before. Called late, since a script makes itself a rank. Raises FollowError."""
        if self.has_joined or self.is_refused:
            return self.has_joined
        is_joined = distributed.is_available() and distributed.is_initialized()
        if "LOCAL_WORLD_SIZE" in os.environ:  # of a launcher, as torchrun
            self.rank, self.size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
            self.world = distributed.get_world_size() if is_joined else self.size
            if self.world > self.size:
                self.first = distributed.get_rank() - self.rank
                self.rank += self.first
        elif is_joined:
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            self.world = self.size
        self.folder.mkdir(exist_ok=True)
        try:
            self.file.open("x").close()
        except FileExistsError:
            if not self.is_left():
                self.is_refused = True
                return False
        self.owner.write_text(str(os.getpid()))
        self.has_joined = True
        return True

    def is_left(self) -> bool:
        """Return whether the process that had this rank before has ended, and no step was captured until now: a script
        may start one group of processes after the other, and the first may take too few steps."""
        try:
            owner, stage = int(self.owner.read_text()), (self.folder / PROGRESS).read_text()
            os.kill(owner, 0)
        except ProcessLookupError:
            return stage in BEFORE_CAPTURE
        except (OSError, ValueError):
            return False
        return False

    def write_progress(self, stage: str) -> None:
        """Note how far the script is, unless another process of it has captured steps."""
        file = self.folder / PROGRESS
        with suppress(OSError):
            self.folder.mkdir(exist_ok=True)
            if self.has_joined or not file.exists() or file.read_text() in BEFORE_CAPTURE:
                file.write_text(stage)

    @property
    def owner(self) -> Path:
        """File with the number of the process that has this rank."""
        return self.folder / f"{self.rank}.pid"

    @property
    def file(self) -> Path:
        return self.folder / f"{self.rank}.json"

    def write(self, facts: dict[str, Any]) -> None:
        draft = self.file.with_suffix(".draft")
        of_rank = {"rank": self.rank, "ranks": self.size, "world": self.world, "shared_id": self.shared_id}
        draft.write_text(json.dumps(facts | of_rank), encoding="utf-8")
        draft.replace(self.file)

    def meet(self, where: str) -> None:
        """Wait until all ranks are here. Raises FollowError if one does not come."""
        if self.size > 1:
            self.meet_on_machine(where)
        if self.world > self.size:
            self.meet_on_all_machines(where)

    def meet_on_machine(self, where: str) -> None:
        (self.folder / f"{where}.{self.rank}").touch()
        deadline = time.monotonic() + WAIT_S
        missing = list(range(self.first, self.first + self.size))
        while missing := [rank for rank in missing if not (self.folder / f"{where}.{rank}").exists()]:
            if time.monotonic() > deadline:
                others = ", ".join(map(str, missing))
                raise FollowError(
                    f"rank {self.rank} waited {WAIT_S:g} s at the end of a step for rank {others}, and all {self.size} "
                    "ranks are captured at the same step: --step forward, or a range of the script, may end a step of "
                    "all"
                )
            time.sleep(0.001)

    def meet_on_all_machines(self, where: str) -> None:
        deadline = time.monotonic() + WAIT_S
        have_come = self.count(where)
        self.shared_id = self.shared_id or self.agree()
        while have_come < self.world:
            if time.monotonic() > deadline:
                raise FollowError(
                    f"rank {self.rank} waited {WAIT_S:g} s at the end of a step for the ranks of the other machines, "
                    f"and {have_come} of {self.world} came: the others have ended, or are not profiled; start the same "
                    "`profile` on each machine at the same time"
                )
            time.sleep(0.001)
            have_come = self.count(where, 0)

    def leave(self) -> None:
        """End the meetings of ranks. Rank 0 ends last: its process may hold the store by which the others meet."""
        if self.world == self.size:
            return
        has_left = self.count("has left")
        deadline = time.monotonic() + WAIT_S
        while self.rank == 0 and has_left < self.world and time.monotonic() < deadline:
            time.sleep(0.001)
            has_left = self.count("has left", 0)

    def count(self, where: str, more: int = 1) -> int:
        """Add `more` ranks, and return how many ranks of all machines are there. Raises FollowError."""
        with open_common_store() as store:
            num_come: int = store.add(f"profiler-job: {where}", more)
        return num_come

    def agree(self) -> str:
        """Return the id that the first rank to ask has drawn, on any machine. Raises FollowError."""
        with open_common_store() as store:
            drawn: bytes = store.compare_set("profiler-job: shared id", "", secrets.token_hex(8))
        return drawn.decode()


@contextmanager
def open_common_store() -> Iterator[Any]:
    """Yield the store of torch.distributed. Raises FollowError if it is out of reach while the context is open."""
    try:
        yield distributed.distributed_c10d._get_default_store()
    except (RuntimeError, ValueError) as error:  # torch's own errors, of a connection above all
        raise FollowError(f"the ranks of the other machines are out of reach ({error})") from None
