"""Which functions torch.compile compiles again in measured steps, for which guard, and which it gave up.

Dynamo compiles a function for what it is called with, and guards that. Where a guard fails, it compiles the function
again. If it did so too often, it lets Python run it where no guard holds, or fails if it is told to (fullgraph). It
finds out which guard failed before it compiles, for its log (TORCH_LOGS=recompiles), whether that is read or not; here
it is noted, too.

This is not part of PyTorch's interface: where it is missing, that is named, and the script goes on. Needs torch, and is
imported inside the script (see `sitecustomize`).
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

from .broken_graphs import OWN_FOLDER, find_resumed
from .wrapping import wrap

NOT_KNOWN = "PyTorch does not say which guard failed"
MOST = 100
"""Recompilations that are kept."""
_NUMBER = re.compile(r"^[!\d/_-]+: ")
"""Dynamo's number of the compilation whose guard failed, before what failed."""
_CODE = re.compile(r"\s{2,}# .*?(?= \(HINT: |$)")
"""What Dynamo adds to a guard: the code of the script that asked for it, and a part of the path of its file, which may
begin in the name of a folder and of a user."""


class Recompilations:
    """Each recompilation that was noted: file (whole path), line and name of the function, the reason, and whether
    Dynamo gave up. noting_errors: notes an error inside, with what it is
    about. is_measured: whether the steps now are measured."""

    def __init__(
        self, noting_errors: Callable[[str], AbstractContextManager[None]], is_measured: Callable[[], bool]
    ) -> None:
        self.noting_errors, self.is_measured = noting_errors, is_measured
        self.known: list[dict[str, Any]] = []
        self.last: dict[str, Any] | None = None  # what Dynamo has found a reason for, and may give up

    def begin(self) -> None:
        """Note each from now on."""
        from torch._dynamo import convert_frame

        wrap(convert_frame, "get_and_maybe_log_recompilation_reasons", self.find_reasons)
        wrap(convert_frame, "exceeds_recompile_limit", self.check_limit)

    def find_reasons(self, called: Callable[..., Any], entries: Any, frame: Any, *args: Any, **options: Any) -> Any:
        """Find the guards that failed, as `called` does, and note the first."""
        reasons = called(entries, frame, *args, **options)
        if not options.get("skip_logging"):  # or else it only asks for a count of its own
            with self.noting_errors("recompilations"):
                self.note(describe(frame.f_code, reasons))
        return reasons

    def note(self, again: dict[str, Any]) -> None:
        self.last = None if again["file"].startswith(OWN_FOLDER) else again
        if self.last is not None and self.is_measured() and len(self.known) < MOST:
            self.known.append(again)

    def check_limit(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Check whether a function was compiled too often, as `called` does, and note that Dynamo gives it up: in
        whichever step, since what it was not compiled for stays so in all others. Once, if it fails in each call."""
        result = called(*args, **options)
        with self.noting_errors("recompilations"):
            last, self.last = self.last, None
            if last is not None and result[0]:
                last["gave_up"] = True
                if not any(is_same(last, each) for each in self.known):
                    self.known.append(last)
        return result


def is_same(again: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two say that the same function was given up, or that it was compiled again."""
    return all(again[name] == other[name] for name in ("file", "line", "function", "gave_up"))


def describe(code: CodeType, reasons: list[str]) -> dict[str, Any]:
    """Describe a recompilation. reasons: of each earlier compilation of the function, the latest first."""
    reason = reasons[0].partition("\n")[0] if reasons else NOT_KNOWN
    function, line = find_resumed(code.co_name)
    return {
        "file": code.co_filename,
        "line": line or code.co_firstlineno,
        "function": function,
        "reason": _CODE.sub("", _NUMBER.sub("", reason), count=1).strip(),
        "gave_up": False,
    }


def format_recompilation(again: dict[str, Any]) -> str:
    """Format a recompilation as a line of a log."""
    what = "was compiled too often and given up" if again["gave_up"] else "was compiled again in measured steps"
    return f"{again['function']} ({again['file']}:{again['line']}) {what}: {again['reason']}"
