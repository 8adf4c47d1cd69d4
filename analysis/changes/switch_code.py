"""What makes a condition of a script hold: an option of its command, or a constant in its code."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from profiler_job.analysis.changes.accumulation_code import CONFIGURATOR, Number, list_named, name_target
from profiler_job.analysis.changes.script_code import FoundEdits, Program, SourceFile, find_argument

OPPOSITES = {"False": "True", "false": "true", "0": "1", "no": "yes", "off": "on"}
ON = {value: key for key, value in OPPOSITES.items()}
PAIR = "BooleanOptionalAction"
"""The action of an option that is `--name` or `--no-name`."""
DEPTH = 3
"""Names that are followed, each of which is given the value of the next one."""


class Option(NamedTuple):
    """An option that a script declares: its longest word, the name of its value, its action."""

    word: str
    name: str
    action: str


def switch_all(program: Program, tests: Iterable[tuple[SourceFile, ast.expr, bool]]) -> FoundEdits | None:
    """Find what makes conditions true or false, as each one says. None if it is not known for one of them."""
    made = FoundEdits(command=program.command)
    for file, test, wanted in tests:
        more = switch(replace(program, command=made.command), file, test, wanted)
        if more is None:
            return None
        made = FoundEdits(edits=(*made.edits, *more.edits), command=more.command or made.command)
    return made if made.command != program.command else replace(made, command=())


def switch(program: Program, file: SourceFile, test: ast.expr, wanted: bool, depth: int = DEPTH) -> FoundEdits | None:
    """Find what makes a condition, a name mostly, true or false (`wanted`). None if it is not known, or if it should
    be so already."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return switch(program, file, test.operand, not wanted, depth)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and wanted:
        rest = [each for each in test.values if not ast.unparse(each).startswith("hasattr(")]
        return switch(program, file, rest[0], wanted, depth) if len(rest) == 1 else None
    name = name_target(test)
    if not name or not depth:
        return None
    numbers = [
        Number(other, known, value)
        for other in program.files
        for node in other.find_all(ast.AST)
        for known, value in list_named(node)
        if known == name
    ]
    if command := switch_option(program, name, wanted) or add_option(program, numbers, name, wanted):
        return FoundEdits(command=command)
    if len(numbers) != 1:
        return None
    [number] = numbers
    if isinstance(number.node, ast.Constant):
        is_other = isinstance(number.node.value, int) and bool(number.node.value) != wanted
        return FoundEdits(edits=(number.file.replace(number.node, str(wanted)),)) if is_other else None
    return switch(program, number.file, number.node, wanted, depth - 1)


def switch_option(program: Program, name: str, wanted: bool) -> tuple[str, ...]:
    """Return the command with another value of an option: `--name False`, `name=false`, `--name`, `--no-name`; () if it
    has none that can be changed."""
    command, other = [*program.command], OPPOSITES if wanted else ON
    pairs = [option.word for option in list_options(program) if option.name == name and option.action == PAIR]
    for number, word in enumerate(command):
        option, equals, value = word.partition("=")
        known = normalise(option)
        after = command[number + 1] if number + 1 < len(command) else ""
        if equals and known == name and value in other:
            command[number] = f"{option}={other[value]}"
        elif not word.startswith("-") or equals:
            continue
        elif known == name and after in other:
            command[number + 1] = other[after]
        elif (known == name and not wanted and after not in ON) or (known == f"no_{name}" and wanted):
            command[number : number + 1] = pairs if wanted else [f"--no-{each[2:]}" for each in pairs]
        else:
            continue
        return tuple(command)
    return ()


def normalise(option: str) -> str:
    """Return the name that an option of a command has in the code."""
    return option.rpartition(".")[2].lstrip("-").replace("-", "_")


def add_option(program: Program, numbers: Iterable[Number], name: str, wanted: bool) -> tuple[str, ...]:
    """Return the command with an option that the script declares; () if it declares none, or the command has it.
    numbers: what its code gives this name."""
    words = []
    if CONFIGURATOR in program.script.text:
        of_script = [number.node for number in numbers if number.file is program.script]
        is_global = [program.script.find_statement(node) in program.script.tree.body for node in of_script]
        words += [f"--{name}={wanted}" for node, known in zip(of_script, is_global) if known and is_bool(node)]
    for option in list_options(program):
        if option.name == name and option.action == PAIR:
            words.append(option.word if wanted else f"--no-{option.word[2:]}")
        elif option.name == name and option.action == ("store_true" if wanted else "store_false"):
            words.append(option.word)
    if not program.command or not words or words[0] in program.command:
        return ()
    return (*program.command, words[0])


def list_options(program: Program) -> Iterator[Option]:
    """Yield the options of `argparse` that have an action."""
    for _, call in program.find_all_calls():
        action, given = find_argument(call, "action"), find_argument(call, "dest")
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and action is not None):
            continue
        words = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
        word = max(words, key=len, default="")
        name = str(given.value) if isinstance(given, ast.Constant) else normalise(word)
        if word.startswith("--"):
            yield Option(word, name, ast.unparse(action).strip("'").rpartition(".")[2])


def is_bool(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)
