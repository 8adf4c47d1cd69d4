"""Where torch.compile breaks graphs, and why: lines at which a graph ends, and those for which a whole function is left
to Python, as it is where a loop has a break. Then what the function calls is compiled by itself.

Dynamo keeps a list of the first alone. Of the second it raises an error, out of which the line and the reason are read.
Of the first, too, its list has no reason where Python runs all that follows a line; then that of the error is taken.
All this is not part of PyTorch's interface. Needs torch, and is imported inside the script (see `sitecustomize`).
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from .wrapping import wrap

EXPLANATION = "Explanation: "
"""Before what PyTorch says of a reason for which a graph breaks."""
LEFT = "; Python runs all of "
"""After the reason for which a function is left to Python, before what it is called."""
IN_LOOP = ", since it breaks in a loop"
STEP = "step_unsupported"
"""The reason that Dynamo lists where Python runs a function from a line on, in place of what is the matter there."""
FROM_HERE = "Python runs the function from this line on, since something in it cannot be compiled"
MOST_LINES = 20
"""Lines of a statement that Dynamo begins to leave at its first, whichever of them cannot be compiled."""
OWN_FOLDER = os.path.dirname(__file__) + os.sep
"""Breaks at lines of this package are not the script's."""
_LOOP_BREAK = re.compile(r"graph break in (?:a for/while )?loop")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")
"""Dynamo's name of what follows a graph break in a function: that function, and the line of the break."""


class LeftFrames:
    """The functions that Dynamo leaves to Python because of a break inside them. breaks: of each reason, file (whole
    path), line and function. errors: the same of what Dynamo last could not compile, by file and number of the line of
    the compiled function that leads to it. noting_errors: notes an error inside, with what it is about."""

    def __init__(self, noting_errors: Callable[[str], AbstractContextManager[None]]) -> None:
        self.noting_errors = noting_errors
        self.breaks: list[dict[str, Any]] = []
        self.errors: dict[tuple[str, int], dict[str, Any]] = {}

    def begin(self) -> None:
        """Note each from now on."""
        from torch._dynamo.exc import Unsupported
        from torch._dynamo.symbolic_convert import InstructionTranslator

        wrap(InstructionTranslator, "run", self.run)
        wrap(Unsupported, "__init__", self.make_error)

    def make_error(self, called: Callable[..., Any], error: Any, *args: Any, **options: Any) -> None:
        """Make an error, as `called` does, and note it by the outermost line that it is in."""
        called(error, *args, **options)
        with self.noting_errors("what cannot be compiled"):
            if stack := error.real_stack:
                self.errors[stack[0].filename, stack[0].lineno] = describe(error.msg, stack[-1])

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
        reasons = (each for each in chain if not isinstance(each, SkipFrame) and getattr(each, "real_stack", None))
        reason = next(reasons, None)  # PyTorch gives a SkipFrame a stack, too
        in_loop = any(_LOOP_BREAK.search(str(each)) for each in chain)
        if reason is None and not in_loop:
            return  # nothing to compile
        line = (getattr(reason, "real_stack", None) or [translator.frame_summary()])[-1]
        described = describe(getattr(reason, "msg", "") or error, line)
        function, after = find_resumed(translator.f_code.co_name)
        part = f"{function} after line {after}" if after else function
        left = f"{described['reason'].rstrip('.')}{LEFT}{part}{IN_LOOP * in_loop}"
        self.breaks.append(described | {"reason": left})


def find_resumed(name: str) -> tuple[str, int]:
    """Find the function of the script that Dynamo calls `name`, and the line of the graph break that it follows; 0 if
    it is the whole function."""
    resumed = _RESUMED.match(name)
    return (resumed[1], int(resumed[2])) if resumed else (name, 0)


def list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def list_breaks(
    reasons: Iterable[Any], left: LeftFrames, counted: Iterable[Any], ends: Mapping[int, Any]
) -> list[dict[str, Any]]:
    """List where graphs broke, each line once: reason, file (whole path; "" if not known), line, function, and the
    numbers of the graphs that end there. reasons: what ended Dynamo's graphs; again if it began anew. counted: texts of
    reasons, some of which ended no graph. ends: why graphs ended, by their numbers."""
    breaks: list[dict[str, Any]] = []
    for described in [*(describe_break(reason, left.errors) for reason in reasons), *left.breaks]:
        if described not in breaks:
            breaks.append(described)
    known = {each["reason"].partition(LEFT)[0].rstrip(".") for each in breaks}
    for text in dict.fromkeys(shorten_reason(str(each)) for each in counted):
        if text.rstrip(".") not in known:
            breaks.append({"reason": text, "file": "", "line": 0, "function": ""})
    ended = {number: describe_break(reason, left.errors) for number, reason in ends.items() if is_break(reason)}
    breaks = [each for each in breaks if not each["file"].startswith(OWN_FOLDER)]
    return [each | {"graphs": [number for number, at in ended.items() if at == each]} for each in breaks]


def is_break(reason: Any) -> bool:
    """Return whether a graph broke for what Dynamo says of its end."""
    return bool(getattr(reason, "graph_break", False))


def describe_break(reason: Any, errors: Mapping[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    """Describe why and where Dynamo ended a graph: reason, file (whole path; "" if not known), line, function. errors:
    see `LeftFrames`."""
    if not reason.user_stack:
        return {"reason": shorten_reason(str(reason.reason)), "file": "", "line": 0, "function": ""}
    last = reason.user_stack[-1]
    if reason.reason != STEP:
        return describe(reason.reason, last)
    lines = (line for file, line in errors if file == last.filename and 0 <= line - last.lineno < MOST_LINES)
    return errors.get((last.filename, min(lines, default=0))) or describe(FROM_HERE, last)


def describe(reason: Any, line: Any) -> dict[str, Any]:
    """Describe a reason and a line, as `traceback` has it."""
    return {
        "reason": shorten_reason(str(reason)),
        "file": line.filename,
        "line": line.lineno,
        "function": line.name,
    }


def shorten_reason(reason: str) -> str:
    """Shorten a reason to what it is called and its explanation."""
    name, *lines = reason.splitlines() or [""]
    explained = [line.partition(EXPLANATION)[2] for line in lines if EXPLANATION in line]
    if name.startswith("generic_jump"):
        return f"Python branches on a value that the graph computes ({name})"
    return f"{name}: {explained[0]}" if explained else name
