"""Where torch.compile breaks graphs, and why: lines at which a graph ends, and those for which a whole function is left
to Python, as it is where a loop has a break. Then what the function calls is compiled by itself.

Dynamo keeps a list of the first alone. Of the second it raises an error, out of which the line and the reason are read.
All this is not part of PyTorch's interface. Needs torch, and is imported inside the script (see `sitecustomize`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .wrapping import wrap

EXPLANATION = "Explanation: "
"""Before what PyTorch says of a reason for which a graph breaks."""
LEFT = "; Python runs all of "
"""After the reason for which a function is left to Python, before what it is called."""
IN_LOOP = ", since it breaks in a loop"
_LOOP_BREAK = re.compile(r"graph break in (?:a for/while )?loop")


class LeftFrames:
    """The functions that Dynamo leaves to Python because of a break inside them. breaks: of each reason, file (whole
    path), line and function. noting_errors: notes an error inside, with what it is about."""

    def __init__(self, noting_errors: Callable[[str], AbstractContextManager[None]]) -> None:
        self.noting_errors = noting_errors
        self.breaks: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Note each from now on."""
        from torch._dynamo.symbolic_convert import InstructionTranslator

        wrap(InstructionTranslator, "run", self.run)

    def run(self, called: Callable[..., Any], translator: Any, *args: Any, **options: Any) -> Any:
        """Translate a function, as `called` does, and note why it is left to Python if it is."""
        try:
            return called(translator, *args, **options)
        except Exception as error:
            with self.noting_errors("a function left to Python"):
                self.note(translator, error)
            raise

    def note(self, translator: Any, error: BaseException) -> None:
        from torch._dynamo.exc import SkipFrame, Unsupported

        if not isinstance(error, SkipFrame | Unsupported):
            return  # it begins anew, or fails
        chain = list(list_causes(error))
        reason = next((each for each in chain if getattr(each, "real_stack", None)), None)
        in_loop = any(_LOOP_BREAK.search(str(each)) for each in chain)
        if reason is None and not in_loop:
            return  # nothing to compile
        text = str(getattr(reason, "msg", "") or error)
        line = (getattr(reason, "real_stack", None) or [translator.frame_summary()])[-1]
        self.breaks.append(
            {
                "reason": f"{shorten_reason(text).rstrip('.')}{LEFT}{translator.f_code.co_name}{IN_LOOP * in_loop}",
                "file": line.filename,
                "line": line.lineno,
                "function": line.name,
            }
        )


def list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def list_breaks(
    reasons: Iterable[Any], left: Sequence[dict[str, Any]], counted: Iterable[Any], ends: Mapping[int, Any]
) -> list[dict[str, Any]]:
    """List where graphs broke, each line once: reason, file (whole path; "" if not known), line, function, and the
    numbers of the graphs that end there. reasons: what ended Dynamo's graphs; again if it began anew. left: see
    `LeftFrames`. counted: texts of reasons, some of which ended no graph. ends: why graphs ended, by their numbers."""
    breaks: list[dict[str, Any]] = []
    for described in [*map(describe_break, reasons), *left]:
        if described not in breaks:
            breaks.append(described)
    known = {each["reason"].partition(LEFT)[0].rstrip(".") for each in breaks}
    for text in dict.fromkeys(shorten_reason(str(each)) for each in counted):
        if text.rstrip(".") not in known:
            breaks.append({"reason": text, "file": "", "line": 0, "function": ""})
    ended = {number: describe_break(reason) for number, reason in ends.items() if is_break(reason)}
    return [each | {"graphs": [number for number, at in ended.items() if at == each]} for each in breaks]


def is_break(reason: Any) -> bool:
    """Return whether a graph broke for what Dynamo says of its end."""
    return bool(getattr(reason, "graph_break", False))


def describe_break(reason: Any) -> dict[str, Any]:
    """Describe why and where Dynamo ended a graph: reason, file (whole path; "" if not known), line, function."""
    place = {"file": "", "line": 0, "function": ""}
    if reason.user_stack:
        last = reason.user_stack[-1]
        place = {"file": last.filename, "line": last.lineno, "function": last.name}
    return {"reason": shorten_reason(str(reason.reason)), **place}


def shorten_reason(reason: str) -> str:
    """Shorten a reason to what it is called and its explanation."""
    name, *lines = reason.splitlines() or [""]
    explained = [line.partition(EXPLANATION)[2] for line in lines if EXPLANATION in line]
    if name.startswith("generic_jump"):
        return f"Python branches on a value that the graph computes ({name})"
    return f"{name}: {explained[0]}" if explained else name
