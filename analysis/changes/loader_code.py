"""Edits of what brings data to the GPU: DataLoader's options and copies."""

import ast
from collections.abc import Iterator

from profiler_job.analysis.changes.code_places import PASSED_ON, passes_options_on, set_trainer
from profiler_job.analysis.changes.script_code import (
    FUNCTIONS,
    Edit,
    FoundEdits,
    LineToWrite,
    Program,
    SourceFile,
    find_argument,
)
from profiler_job.analysis.changes.training_step import find_models, find_training_steps, is_plain

WORKERS, PINNED = "num_workers", "pin_memory"


def find_loaders(program: Program) -> Iterator[tuple[SourceFile, ast.Call]]:
    """Yield the calls that make a DataLoader."""
    for file, call in program.find_all_calls():
        name = file.resolve(call.func)
        if name.startswith("torch.utils.data.") and name.rpartition(".")[2] == "DataLoader":
            yield file, call


def _list_values(call: ast.Call, program: Program) -> str:
    """Return the number of workers, followed by pinned memory if there is a GPU and the call does not decide that."""
    has_pinned = program.device_type == "cuda" and not find_argument(call, PINNED)
    return f"{program.num_workers}, {PINNED}=True" if has_pinned else str(program.num_workers)


def add_workers(program: Program) -> FoundEdits:
    """Give loaders that have none worker processes, and pinned memory."""
    num_workers = program.num_workers
    by_trainer = set_trainer(program, {"arguments": ("dataloader_num_workers", str(num_workers))})
    if by_trainer is not None:
        return by_trainer
    edits: list[Edit] = []
    present, to_write = "", []
    for file, call in find_loaders(program):
        given = find_argument(call, WORKERS)
        if given is not None and not isinstance(given, ast.Constant):
            why = "the script computes the number of workers"
            to_write.append(LineToWrite(file.name, given.lineno, f"{WORKERS}={num_workers}", why))
        elif isinstance(given, ast.Constant) and isinstance(given.value, int) and given.value:
            present = present or file.name_place(call)
        elif given is None and passes_options_on(call):
            to_write.append(LineToWrite(file.name, call.lineno, f"{WORKERS}={num_workers}", PASSED_ON))
        elif edit := file.set_keyword(call, WORKERS, _list_values(call, program)):
            edits.append(edit)
    return FoundEdits(edits=tuple(edits), present="" if edits or to_write else present, to_write=tuple(to_write))


def pin_copies(program: Program) -> FoundEdits:
    """Pin the memory of batches and copy them without waiting: loaders get `pin_memory=True`, and copies to the GPU in
    the function of a training step `non_blocking=True`."""
    edits: list[Edit] = []
    present, to_write = "", []
    for file, call in find_loaders(program):
        given = find_argument(call, PINNED)
        if is_pinned(call) or (given is None and passes_options_on(call) and _is_given_pinned(program, file, call)):
            present = present or file.name_place(call)
        elif given is not None and not isinstance(given, ast.Constant):
            why = "the script computes this option"
            to_write.append(LineToWrite(file.name, given.lineno, f"{PINNED}=True", why))
        elif given is None and passes_options_on(call):
            to_write.append(LineToWrite(file.name, call.lineno, f"{PINNED}=True", PASSED_ON))
        elif edit := file.set_keyword(call, PINNED, "True"):
            edits.append(edit)
    for file, call in _find_copies(program):
        if find_argument(call, "non_blocking"):
            present = present or file.name_place(call)
        elif edit := file.set_keyword(call, "non_blocking", "True"):
            edits.append(edit)
    return FoundEdits(edits=tuple(edits), present="" if edits or to_write else present, to_write=tuple(to_write))


def is_pinned(call: ast.Call) -> bool:
    given = find_argument(call, PINNED)
    return given is not None and ast.unparse(given) == "True"


def _is_given_pinned(program: Program, file: SourceFile, call: ast.Call) -> bool:
    """Whether all calls of the function or class that makes a loader give it pinned memory."""
    function = file.find_function(call)
    maker = file.parents[function] if getattr(function, "name", "") == "__init__" else function
    name = getattr(maker, "name", "")
    calls = [other for at, other in program.find_all_calls() if at.resolve(other.func).rpartition(".")[2] == name]
    return bool(name and calls) and all(map(is_pinned, calls))


def _find_copies(program: Program) -> Iterator[tuple[SourceFile, ast.Call]]:
    """Yield copies of tensors to a device in the loops that hold a training step."""
    models, seen = find_models(program), set()
    for step in find_training_steps(program):
        node: ast.AST = step.backward
        loop: ast.AST | None = None
        while not isinstance(node, (*FUNCTIONS, ast.Module)):
            if isinstance(node, ast.For | ast.While) and loop is None:
                loop = node
            node = step.file.parents[node]
        for call in ast.walk(loop or node):
            if id(call) not in seen and isinstance(call, ast.Call) and _copies(step.file, call, models):
                seen.add(id(call))
                yield step.file, call


def _copies(file: SourceFile, call: ast.Call, models: frozenset[str]) -> bool:
    """Whether a call moves a batch to a device: `.cuda()`, or `.to` with what is named as a device."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("to", "cuda"):
        return False
    value = call.func.value
    if not is_plain(value if not isinstance(value, ast.Subscript) else value.value) or ast.unparse(value) in models:
        return False
    if call.func.attr == "cuda":
        return True
    devices = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "device")]
    words = " ".join(ast.unparse(device).lower() for device in devices)
    return "device" in words or "cuda" in words or "gpu" in words or "rank" in words
