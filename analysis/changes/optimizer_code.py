"""Edits of the lines that make optimizers and clear gradients."""

import ast
from collections.abc import Iterator

from profiler_job.analysis.changes.script_code import Edit, FoundEdits, LineToWrite, Program, SourceFile

FUSED_KINDS = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch that have a fused form."""
FUSED, FOREACH = "fused", "foreach"
ZERO_GRAD = "zero_grad"


def find_optimizers(program: Program) -> Iterator[tuple[SourceFile, ast.Call]]:
    """Yield the calls that make an optimizer of torch."""
    for file, call in program.find_all_calls():
        name = file.resolve(call.func)
        if name.startswith("torch.optim.") and name.rpartition(".")[2] in FUSED_KINDS:
            yield file, call


def set_fused(program: Program, code: str) -> FoundEdits:
    """Give optimizers `fused=True`. code: what to write where no edit can."""
    edits: list[Edit] = []
    present, to_write = "", []
    for file, call in find_optimizers(program):
        given = {keyword.arg: keyword for keyword in call.keywords}
        where = LineToWrite(file.name, call.lineno, code, "the script computes the options of the optimizer")
        if FUSED in given and ast.unparse(given[FUSED].value) == "True":
            present = present or file.name_place(call)
        elif _is_computed(file, given):
            to_write.append(where)
        elif FOREACH in given and FUSED not in given:
            keyword = given[FOREACH]
            edits.append(Edit(file.name, file.find_start(keyword), file.find_stop(keyword), f"{FUSED}=True"))
        elif edit := file.set_keyword(call, FUSED, "True"):
            edits.append(edit)
    return FoundEdits(edits=tuple(edits), present="" if edits or to_write else present, to_write=tuple(to_write))


def _is_computed(file: SourceFile, given: dict[str | None, ast.keyword]) -> bool:
    """Whether the code decides when it runs if an optimizer is fused."""
    if FUSED in given:
        return not isinstance(given[FUSED].value, ast.Constant)
    return None in given and _mentions_fused(file)


def _mentions_fused(file: SourceFile) -> bool:
    """Whether a file has the option as a text or a keyword: then `**options` may have it."""
    return any(keyword.arg == FUSED for keyword in file.find_all(ast.keyword)) or any(
        node.value == FUSED for node in file.find_all(ast.Constant)
    )


def set_foreach(program: Program) -> FoundEdits:
    """Remove `foreach=False` from optimizers."""
    edits = []
    for file, call in find_optimizers(program):
        for keyword in call.keywords:
            if keyword.arg == FOREACH and ast.unparse(keyword.value) == "False":
                edits.append(file.remove_keyword(call, keyword))
    return FoundEdits(edits=tuple(edits))


def set_gradients_to_none(program: Program) -> FoundEdits:
    """Remove `set_to_none=False` from calls of `zero_grad`."""
    edits, present, loops = [], "", []
    for file, call in program.find_all_calls():
        if not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "zero_" and ast.unparse(call.func.value).endswith(".grad"):
            loops.append((file, call))
        if call.func.attr != ZERO_GRAD:
            continue
        keyword = next((option for option in call.keywords if option.arg == "set_to_none"), None)
        if keyword is not None and ast.unparse(keyword.value) == "False":
            edits.append(file.remove_keyword(call, keyword))
        elif not call.args:
            present = present or file.name_place(call)
    why = "a loop clears the gradients one by one"
    to_write = tuple(
        LineToWrite(file.name, call.lineno, f"{ast.unparse(call.func.value)} = None", why)
        for file, call in loops
        if isinstance(call.func, ast.Attribute)
    )
    return FoundEdits(edits=tuple(edits), present="" if edits or to_write else present, to_write=to_write)
