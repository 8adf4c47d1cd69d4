"""Modules of TorchScript in a trace of torch.profiler, recorded with `with_modules`.

An operator has "Module Hierarchy": "TOP(Net)::forward.layers(Block)::forward.fc(Linear)::forward.", the frames of
TorchScript's interpreter around it. Eager models have none. Once a graph is optimized its outermost frame is
"TOP()::<forward op>": the module is that of the operator around it.

PyTorch asks for the frames of each operator but nodes of backward, and hands the answers out to all operators of a
thread in order (begin_op and materialize in torch/csrc/profiler/collection.cpp, since 1.12). So after a thread's first
node each operator has the frames of an earlier one, and they are put back here.
"""

import re
from typing import NamedTuple

import numpy as np

NO_FRAMES = -1
_MOST_NAMES = 100
_FRAME = re.compile(r"([^.():]*)\(([^()]*)\)::[^.]*\.")
_TOP, _NO_MODULES = "TOP", {"SELF", "UNKNOWN_INSTANCE"}
_AROUND_NODE = "autograd::engine::evaluate_function: "


class ModuleRanges(NamedTuple):
    """Calls of modules: start and end (ns), thread, name (place in `names`)."""

    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    name: np.ndarray
    names: list[str]


class _Call(NamedTuple):
    """A call that may go on: its row in the result, its name, how many operators were around it when it began, the
    number of the innermost, and whether it is of a whole model."""

    row: int
    name: str
    around: int
    operator: int
    is_model: bool


def make_ranges(
    start: np.ndarray,
    end: np.ndarray,
    thread: np.ndarray,
    name: np.ndarray,
    frames: np.ndarray,
    *,
    is_shifted: bool,
    texts: list[str],
) -> ModuleRanges:
    """Make the calls of modules of all operators and ranges of the user: start and end (ns), thread, name and frames
    (places in texts, NO_FRAMES if there are none). is_shifted: whether PyTorch handed the frames out in
    order."""
    order = np.lexsort((-end, start, thread))
    start, end, thread, name, frames = (column[order] for column in (start, end, thread, name, frames))
    if is_shifted:
        frames = _put_back(thread, _find_nodes(name, texts), frames)
    known = {int(code): _parse_frames(texts[code]) for code in np.unique(frames) if code != NO_FRAMES}
    followed = _CallFollower()
    for row in zip(start.tolist(), end.tolist(), thread.tolist(), frames.tolist(), strict=True):
        followed.add(*row[:3], known.get(row[3]))
    return followed.make()


def _find_nodes(name: np.ndarray, texts: list[str]) -> np.ndarray:
    """Find the nodes of autograd's graph: what autograd does around each has its name."""
    used, inverse = np.unique(name, return_inverse=True)
    names = [texts[code] for code in used.tolist()]
    nodes = {text.removeprefix(_AROUND_NODE) for text in names if text.startswith(_AROUND_NODE)}
    return np.array([text in nodes for text in names], bool)[inverse]


def _put_back(thread: np.ndarray, is_node: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Give the first frames of a thread to its first operator that is no node, and so on."""
    right = np.full(len(frames), NO_FRAMES, np.int64)
    for rows in np.split(np.arange(len(thread)), np.flatnonzero(np.diff(thread)) + 1):
        owners = rows[~is_node[rows]]
        right[owners] = frames[rows[: len(owners)]]
    return right


def _parse_frames(text: str) -> list[str]:
    """Parse the names of modules, outermost first; the first is "" if it is that of the operator around.
    Those that nest too deep are left out."""
    names = []
    for instance, kind in _FRAME.findall(text):
        if instance == _TOP:
            names.append(kind)
        elif instance not in _NO_MODULES:
            names.append(f"{instance}({kind})")
    return names[:_MOST_NAMES]


class _CallFollower:
    """Joins operators, by thread and start, that one call of a module launched."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []  # start, end, thread, name
        self._names: dict[str, int] = {}
        self._thread = -1
        self._operators: list[tuple[int, int]] = []  # number and end of each that is open
        self._num_operators = 0
        self._calls: list[_Call] = []

    def add(self, start: int, end: int, thread: int, modules: list[str] | None) -> None:
        """Add an operator, and the modules that launched it: None if there are none."""
        if thread != self._thread:
            self._operators, self._calls, self._thread = [], [], thread
        while self._operators and self._operators[-1][1] <= start:
            self._operators.pop()
        around = len(self._operators)
        operator = self._operators[-1][0] if around else -1
        while self._calls and not self._goes_on(self._calls[-1], around, operator):
            self._calls.pop()
        self._operators.append((self._num_operators, end))
        self._num_operators += 1
        has_model = bool(modules and modules[0])
        if modules and not has_model:
            has_model = bool(self._calls) and self._calls[0].is_model
            modules = [*([self._calls[0].name] if has_model else []), *modules[1:]]
        kept = 0
        for call, module in zip(self._calls, modules or []):
            if call.name != module:
                break
            kept += 1
        outer = sum(call.around < around for call in self._calls)
        if kept < outer:  # what an operator calls belongs to its module
            modules, kept = None, outer
        del self._calls[kept:]
        for call in self._calls[outer:]:
            self._rows[call.row][1] = max(self._rows[call.row][1], end)
        for module in (modules or [])[kept:]:
            name = self._names.setdefault(module, len(self._names))
            self._calls.append(_Call(len(self._rows), module, around, operator, has_model and not self._calls))
            self._rows.append([start, end, thread, name])

    def _goes_on(self, call: _Call, around: int, operator: int) -> bool:
        """Whether an operator may be of a call: inside the same one, or inside one of the call's. Outside of all
        operators each is a call."""
        if around == call.around:
            return around > 0 and operator == call.operator
        return around > call.around and (call.around == 0 or self._operators[call.around - 1][0] == call.operator)

    def make(self) -> ModuleRanges:
        start, end, thread, name = np.array(self._rows, np.int64).reshape(-1, 4).T
        return ModuleRanges(start, end, thread, name, list(self._names))
