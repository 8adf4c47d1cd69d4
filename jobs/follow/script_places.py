"""The lines of a script at which a change would be written: where it makes an optimizer or a DataLoader, calls its
model, begins a backward pass or opens autocast. Loaded into other people's scripts, as `follow` is."""

import linecache
import os
import sys
from typing import Any

from .script_frames import find_own_frame


class Places:
    """Places by what is done there; of several the first."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, int]] = {}

    def note(self, what: str) -> None:
        """Note the innermost line of the script's own files that is running."""
        if what not in self.known:
            frame = find_own_frame(sys._getframe(1))
            if frame is not None:
                self.known[what] = (frame.f_code.co_filename, frame.f_lineno)

    def list_facts(self) -> list[dict[str, Any]]:
        """List what, file (relative to the current folder if it is below it), line and its text."""
        return [
            {"what": what, "file": shorten_path(file), "line": line, "code": linecache.getline(file, line).strip()}
            for what, (file, line) in self.known.items()
        ]


def shorten_path(file: str) -> str:
    shorter = os.path.relpath(file)
    return file if shorter.startswith(os.pardir) else shorter
