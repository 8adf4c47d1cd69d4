"""Requests of the program that started a script: `1.json`, `2.json` and so on in a folder, and a line in its FIFO for
each. One that is read is removed. The answer to the first is `1.answer.json`. Loaded into other people's scripts, as
`follow` is."""

import json
import os
from pathlib import Path
from typing import Any

GATE = "gate"
"""Name of the FIFO. Its other end is open as long as the program runs."""


class ProgramRequests:
    """Between requests the script waits in a read, which takes no time of the CPU and holds nothing of the GPU."""

    def __init__(self, folder: Path):
        self.folder, self.number = folder, 0
        self.gate = os.open(folder / GATE, os.O_RDONLY | os.O_NONBLOCK)  # else it waits for a program that is gone
        os.set_blocking(self.gate, True)

    def wait(self) -> dict[str, Any] | None:
        """Wait for the next request, and return it; None if the program wants no more, or is gone."""
        if not os.read(self.gate, 1):
            return None
        self.number += 1
        file = self.folder / f"{self.number}.json"
        request: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        return request

    def answer(self, content: Any) -> None:
        """Answer the latest request."""
        file = self.folder / f"{self.number}.answer.json"
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(content), encoding="utf-8")
        draft.replace(file)
