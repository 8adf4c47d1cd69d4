"""The program's side of `jobs.follow.program_requests`."""

import json
import os
from contextlib import suppress
from typing import Any

from profiler_job.jobs.executor.temporary import TemporaryFolder

GATE = "gate"


class ScriptRequests:
    """Requests to one process of a script, in a temporary folder: a FIFO may not be possible where results are. The
    process waits for them, and ends when they are closed or this program is gone."""

    def __init__(self) -> None:
        self.folder = TemporaryFolder("requests-")
        self.num_sent = 0
        os.mkfifo(self.folder.path / GATE)
        self.gate: int | None = os.open(self.folder.path / GATE, os.O_RDWR)  # waits for no reader

    def send(self, request: dict[str, Any]) -> None:
        """Send a request, after the one before was answered. The process may not wait for it yet."""
        assert self.gate is not None
        self.num_sent += 1
        (self.folder.path / f"{self.num_sent}.json").write_text(json.dumps(request), encoding="utf-8")
        os.write(self.gate, b"\n")

    def is_read(self) -> bool:
        """Return whether the process has read the latest request."""
        return not (self.folder.path / f"{self.num_sent}.json").exists()

    def read_answer(self) -> Any:
        """Return the answer to the latest request; None if there is none yet."""
        with suppress(FileNotFoundError):
            file = self.folder.path / f"{self.num_sent}.answer.json"
            return json.loads(file.read_text(encoding="utf-8"))

    def close(self) -> None:
        """Send no more: the process ends its script instead of waiting."""
        if self.gate is not None:
            os.close(self.gate)
            self.gate = None

    def remove(self) -> None:
        self.close()
        self.folder.remove()
