"""Where a script sets the samples of a micro-batch, and how many of these make a step: options of its command, or
numbers in its code."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from profiler_job.analysis.changes.script_code import Edit, FoundEdits, LineToWrite, Program, SourceFile
from profiler_job.jobs.contract.tuning import Accumulation

ROWS = re.compile(r"batch|^(b|bsz?|mbs)$", re.IGNORECASE)
PASSES = re.compile(r"accum|grad_acc", re.IGNORECASE)
ELSEWHERE = re.compile(r"(^|_)(val|eval|test|num_batch|n_batch)", re.IGNORECASE)
"""In names, and in what they are used for: a batch that is not trained."""
CONFIGURATOR = "configurator.py"
"""A file that sets global names of the script that runs it, as `--name=value` in the command."""
LARGEST = 10**9


class Number(NamedTuple):
    """A number in the code, at `node`."""

    file: SourceFile
    name: str
    node: ast.expr


@dataclass(frozen=True, kw_only=True)
class NewNumbers:
    """What gives a script larger micro-batches. edits: of its code. command: with other options. Neither differs from
    what is there if `reason` says why not."""

    edits: tuple[Edit, ...] = ()
    command: tuple[str, ...] = ()
    reason: str = ""


def find_numbers(program: Program, wanted: Accumulation) -> NewNumbers:
    """Find what to change for larger micro-batches. One of the two numbers may follow from the other."""
    command, edits, num_set, reasons = list(program.command), [], 0, []
    for what, pattern, before, after in (
        ("the samples of a micro-batch", ROWS, wanted.rows, wanted.rows * wanted.factor),
        ("the micro-batches of a step", PASSES, wanted.num_passes, wanted.num_passes // wanted.factor),
    ):
        if change_option(command, pattern, before, after):
            num_set += 1
            continue
        numbers = [each for each in list_numbers(program, pattern) if compute(each.node) == before]
        if len(numbers) == 1:
            [number] = numbers
            edits.append(number.file.replace(number.node, str(after)))
            num_set += 1
        elif numbers:
            lines = ", ".join(each.file.name_place(each.node) for each in numbers)
            return NewNumbers(reason=f"{what} are {before} in several lines: {lines}")
        elif name := find_global(program, pattern):
            command.append(f"--{name}={after}")
            num_set += 1
        elif not any(compute(each.node) is None for each in list_numbers(program, pattern)):
            reasons.append(f"no option and no line of its code sets {what} to {before}")
    if reasons or not num_set:
        return NewNumbers(reason="; ".join(reasons) or "its code computes both numbers")
    return NewNumbers(edits=tuple(edits), command=tuple(command))


def find_edits(program: Program) -> FoundEdits:
    """Find what gives a script the larger micro-batches that were measured."""
    wanted = program.accumulation
    if wanted is None:
        return FoundEdits()
    new = find_numbers(program, wanted)
    if new.reason:
        return FoundEdits(to_write=(LineToWrite(program.script.name, 0, describe_numbers(wanted), new.reason),))
    return FoundEdits(edits=new.edits, command=new.command if new.command != program.command else ())


def describe_numbers(wanted: Accumulation) -> str:
    after = wanted.rows * wanted.factor, wanted.num_passes // wanted.factor
    return f"{after[1]} micro-batches of {after[0]} samples, not {wanted.num_passes} of {wanted.rows}"


def change_option(command: list[str], pattern: re.Pattern[str], before: int, after: int) -> bool:
    """Change an option of a command, in place: `--name 4`, `--name=4` or `name=4`. Return whether there is one."""
    for number, word in enumerate(command):
        name, equals, value = word.partition("=")
        if not is_named(name.rpartition(".")[2].lstrip("-").replace("-", "_"), pattern):
            continue
        if equals and value == str(before):
            command[number] = f"{name}={after}"
            return True
        if not equals and word.startswith("-") and command[number + 1 : number + 2] == [str(before)]:
            command[number + 1] = str(after)
            return True
    return False


def list_numbers(program: Program, pattern: re.Pattern[str]) -> Iterator[Number]:
    """Yield what the code gives names that match: in assignments, arguments, dictionaries and defaults of options."""
    for file in program.files:
        for node in file.find_all(ast.AST):
            for name, value in list_named(node):
                if is_named(name, pattern) and not is_elsewhere(file, node):
                    yield Number(file, name, value)


def list_named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(map(name_target, target.elts), node.value.elts)
            else:
                yield name_target(target), node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield name_target(node.target), node.value
    elif isinstance(node, ast.Dict):
        named = [(key.value, value) for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)]
        yield from ((name, value) for name, value in named if isinstance(name, str))
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg or "", keyword.value) for keyword in node.keywords)
        default = next((keyword.value for keyword in node.keywords if keyword.arg == "default"), None)
        is_option = isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
        if is_option and default is not None:
            words = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            yield max(words, key=len, default="").lstrip("-").replace("-", "_"), default


def name_target(target: ast.expr) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def is_named(name: str, pattern: re.Pattern[str]) -> bool:
    is_other = ELSEWHERE.search(name) or (pattern is ROWS and PASSES.search(name))
    return pattern.search(name) is not None and not is_other


def is_elsewhere(file: SourceFile, node: ast.AST) -> bool:
    """Whether a call is of data that is not trained, by the names that its result is given."""
    statement = file.find_statement(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(ELSEWHERE.search(name_target(target)) for target in targets)


def compute(node: ast.expr) -> int | None:
    """Compute a whole number, such as 5 * 8; None if it is none."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = compute(node.left), compute(node.right)
        product = None if None in factors else factors[0] * factors[1]  # type: ignore[operator]
        return product if product is None or product < LARGEST else None
    return None


def find_global(program: Program, pattern: re.Pattern[str]) -> str:
    """Find a global name of the script that its command can set by a configurator; "" if there is none."""
    file = program.script
    if CONFIGURATOR not in file.text:
        return ""
    statements = [each for each in file.tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    names = [name for each in statements for name, value in list_named(each) if compute(value) is not None]
    return next((name for name in names if is_named(name, pattern)), "")


def edit_texts(program: Program, edits: tuple[Edit, ...]) -> dict[str, str]:
    """Return the new text of each file that edits change, by its name. Raises ScriptCodeError."""
    old = {file.name: file.text for file in program.files}
    return {file.name: file.text for file in program.apply(edits).files if file.text != old[file.name]}
