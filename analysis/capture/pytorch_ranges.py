"""Ranges that PyTorch pushes around its own operations, under `torch.autograd.profiler.emit_nvtx` or `nsys
--pytorch=autograd-nvtx`.

Each name holds numbers: "aten::linear, op_id = 318126", "MmBackward0, seq = 1020, op_id = 4154, sizes = [[2, 3]]"
(getNvtxStr in torch/csrc/profiler/util.cpp). Without them the 90,000 ranges of a short capture have some hundreds of
names. `seq` tells which operation of forward a node of autograd's graph is of: the operation has the number that its
thread gives to its next node, and the node has that number. So of all operations with a node's number the last one
before the node made it.

`nsys --pytorch=functions-trace` marks modules and functions ("torch.nn.modules.Module.__call__"): operations, too.

Threads count on their own, and a checkpoint runs forward again on autograd's thread. Of several threads' operations
with a node's number the one is taken whose name fits the node's (aten::mm to MmBackward0), and else the last.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

_NUMBERS = re.compile(r", seq = (\d+)|, op_id = \d|, sizes = \[")
_OF_ENGINE, _OF_FUNCTIONS_TRACE = "torch::autograd::", ("torch.nn.", "torch.Tensor.", "torch.optim.")
_JOINS = {"aten::add", "aten::add_"}
NO_NUMBER = -1
_MOST_DIGITS = 18


class ParsedNames(NamedTuple):
    """The content of the names of ranges; the first three by category of the capture's names, the others by plain name.

    code: of its plain name. number: `seq`, NO_NUMBER if there is none. is_operation: whether PyTorch marks an
    operation, a node or a module with it; ranges of `torch.profiler.record_function` have numbers, and belong to the
    user. plain: names without numbers. is_node: whether it is a node of autograd's graph, if it has a number.
    """

    code: np.ndarray
    number: np.ndarray
    is_operation: np.ndarray
    plain: list[str]
    is_node: np.ndarray


def _match_numbers(name: str) -> re.Match[str] | None:
    return _NUMBERS.search(name) if " = " in name else None


def strip_numbers(name: str) -> str:
    """The name of a range without PyTorch's numbers."""
    match = _match_numbers(name)
    return name[: match.start()] if match else name


def parse_names(names: list[str]) -> ParsedNames:
    """Plain names and numbers of the names of ranges."""
    codes: dict[str, int] = {}
    code = np.empty(len(names), np.int64)
    number = np.full(len(names), NO_NUMBER, np.int64)
    is_operation = np.zeros(len(names), bool)
    for i, name in enumerate(names):
        plain = name
        is_operation[i] = name.startswith(_OF_FUNCTIONS_TRACE)
        if (match := _match_numbers(name)) is not None:
            plain = name[: match.start()]
            if match[1] and len(match[1]) <= _MOST_DIGITS:
                number[i] = int(match[1])
            is_operation[i] = number[i] >= 0 or "::" in plain
        code[i] = codes.setdefault(plain, len(codes))
    is_node = [
        not plain.startswith("aten::")
        and (plain.rstrip("0123456789").endswith("Backward") or plain.startswith(_OF_ENGINE))
        for plain in codes
    ]
    return ParsedNames(code, number, is_operation, list(codes), np.array(is_node, bool))


def link_nodes(
    ranges: pd.DataFrame, number: np.ndarray, is_node: np.ndarray, plain: np.ndarray, names: list[str]
) -> np.ndarray:
    """Find the row of the operation that made each node, -1 for other ranges and if there is none (int64).

    ranges: start_ns, process, thread. number, is_node, plain (code in `names`): of each row.
    """
    start, process = ranges["start_ns"].to_numpy(), ranges["process"].to_numpy()
    nodes, operations = np.flatnonzero(is_node), np.flatnonzero((number >= 0) & ~is_node)
    rows = np.r_[operations, nodes]
    bare = pd.factorize(np.array([_simplify(name) for name in names], dtype=object))[0][plain[rows]]
    numbered = _encode_pairs(
        np.unique(process[rows], return_inverse=True)[1], np.unique(number[rows], return_inverse=True)[1]
    )
    made_by = np.full(len(ranges), -1, np.int64)
    for key in (numbered, _encode_pairs(numbered, bare)):  # what fits by name, too, counts more
        of_operations, of_nodes = key[: len(operations)], key[len(operations) :]
        last = _find_last_before(of_operations, start[operations], of_nodes, start[nodes])
        made_by[nodes[last >= 0]] = operations[last[last >= 0]]
    return made_by


def _encode_pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A code for each distinct pair of two codes."""
    return np.unique(first * (int(second.max(initial=0)) + 1) + second, return_inverse=True)[1]


def link_calls_of_nodes(
    made_by: np.ndarray, parent: np.ndarray, is_node: np.ndarray, plain: np.ndarray, names: list[str]
) -> None:
    """Fill `made_by`, in place, for the sums over a broadcast dimension that autograd calls in addition to a node. If
    autograd adds the gradients of branches that join, these are of several operations."""
    nodes = np.flatnonzero(is_node & (parent >= 0))
    of_call = np.full(len(parent), -1, np.int64)
    of_call[parent[nodes]] = made_by[nodes]
    joins = np.array([name in _JOINS for name in names], bool)[plain]
    beside = np.flatnonzero((parent >= 0) & ~is_node & ~joins)
    made_by[beside] = of_call[parent[beside]]


def _find_last_before(key: np.ndarray, start: np.ndarray, wanted: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Find for each `wanted` key the place of the last row that has it and starts before its time, -1 if none does."""
    count = len(key)
    later = np.r_[np.ones(count), np.zeros(len(wanted))]  # at one moment it is not before
    order = np.lexsort((later, np.r_[start, time], np.r_[key, wanted]))
    last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    place = np.empty(len(order), np.int64)
    place[order] = np.where(last >= 0, order[last], -1)
    place = place[count:]
    return np.where((place >= 0) & (np.r_[key, -1][place] == wanted), place, -1)


def _simplify(name: str) -> str:
    """What the names of an operation and of its node have in common: aten::nll_loss_forward, NllLossBackward0."""
    short = name.rpartition("::")[2].replace("_", "").lower()
    return short.rstrip("0123456789").removesuffix("backward").removesuffix("forward")
