"""The files of a training script, with the places of their statements and calls, and edits to them.

Places come from `ast` and `tokenize`, so that an edit changes nothing but what it names: comments, blank lines and line
ends stay.
"""

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.tuning import Accumulation

LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""Lines as Python counts them: a form feed ends none."""
MOST_FILES = 200
"""Files of a script that are read."""
LARGEST_BYTES = 1_000_000
LEFT_OUT = ("site-packages", "dist-packages")
"""Folders with files of others, also below the script's folder."""
PROJECT = ("pyproject.toml", "setup.py")
"""Files of a project that is installed, so that its scripts import its modules from any folder."""
_BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_STRING_STARTS = tuple(
    getattr(tokenize, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(tokenize, name)
)
_STRING_ENDS = tuple(getattr(tokenize, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(tokenize, name))

Node = TypeVar("Node", bound=ast.AST)
Suite = list[ast.stmt]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class ScriptCodeError(ProfilerError, ValueError):
    """A script's code cannot be read or changed: the message names the file and the reason."""


class Edit(NamedTuple):
    """Characters `start` to `end` of a file become `text`."""

    file: str
    start: int
    end: int
    text: str


def do_overlap(edits: Iterable[Edit]) -> bool:
    """Whether two different edits change the same characters."""
    return any(a.file == b.file and a.end > b.start and a.start != a.end for a, b in pairwise(sorted(set(edits))))


class LineToWrite(NamedTuple):
    """Code that the user writes: where (line 0: anywhere), what, and why it is not part of a patch."""

    file: str
    line: int
    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FoundEdits:
    """What makes a change in a script. present: where the script has it already, as `file:line`. to_write: what no edit
    can do. command: that starts the script then; () if it stays as it is. With none of the four the change has no place
    in the code."""

    edits: tuple[Edit, ...] = ()
    command: tuple[str, ...] = ()
    present: str = ""
    to_write: tuple[LineToWrite, ...] = ()


class Token(NamedTuple):
    kind: int
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class SourceFile:
    """A file of a script. name: its path as patches show it. path: where it was read. Line ends are as in the file.
    Raises ScriptCodeError when its tree is first asked for, if it is not valid Python."""

    name: str
    text: str
    encoding: str = "utf-8"
    path: Path = Path()

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ScriptCodeError(f"{self.name} is not valid Python: {error}") from error

    @cached_property
    def lines(self) -> list[str]:
        return LINES.findall(self.text)

    @cached_property
    def line_end(self) -> str:
        """Line end that the file uses."""
        return next((end for line in self.lines for end in ("\r\n", "\n", "\r") if line.endswith(end)), "\n")

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line))
        return starts

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def suites(self) -> dict[ast.stmt, Suite]:
        """The suite of each statement."""
        suites: dict[ast.stmt, Suite] = {}
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                suite = getattr(node, name, None)
                if isinstance(suite, list):
                    suites |= {statement: suite for statement in suite if isinstance(statement, ast.stmt)}
        return suites

    @cached_property
    def tokens(self) -> list[Token]:
        read = tokenize.generate_tokens(io.StringIO(self.text, newline="").readline)
        return [
            Token(each.type, each.string, self._line_starts[each.start[0] - 1] + each.start[1], self._find_end(each))
            for each in read
            if each.start[0] <= len(self.lines)
        ]

    def _find_end(self, token: tokenize.TokenInfo) -> int:
        line = min(token.end[0] - 1, len(self._line_starts) - 1)
        return min(self._line_starts[line] + token.end[1], len(self.text))

    @cached_property
    def inside_strings(self) -> frozenset[int]:
        """Numbers of lines, from 1, that start inside a string."""
        inside: set[int] = set()
        opened: list[int] = []
        for token in self.tokens:
            if token.kind in _STRING_STARTS:
                opened.append(token.start)
            start = opened.pop() if token.kind in _STRING_ENDS and opened else token.start
            if token.kind == tokenize.STRING or token.kind in _STRING_ENDS:
                inside.update(range(self.count_line(start) + 1, self.count_line(token.end) + 1))
        return frozenset(inside)

    @cached_property
    def imported(self) -> dict[str, str]:
        """What names stand for, by the imports of the file: {"optim": "torch.optim"}."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    names.setdefault(bound, alias.name if alias.asname else bound)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names.setdefault(alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}")
        return names

    @cached_property
    def indent(self) -> str:
        """Indentation of one level."""
        for node in ast.walk(self.tree):
            suite = getattr(node, "body", None)
            if not isinstance(suite, list) or not suite or not isinstance(node, ast.stmt):
                continue
            outer, inner = self.find_indent(node), self.find_indent(suite[0])
            if outer is not None and inner is not None and inner.startswith(outer) and inner != outer:
                return inner[len(outer) :]
        return "    "

    def count_line(self, offset: int) -> int:
        """Return the number of the line, from 1, of a character."""
        low, high = 0, len(self._line_starts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._line_starts[middle] <= offset else (low, middle - 1)
        return low + 1

    def _find_offset(self, line: int, column: int) -> int:
        text = self.lines[line - 1]
        return self._line_starts[line - 1] + len(text.encode("utf-8")[:column].decode("utf-8", "ignore"))

    def find_start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._find_offset(node.lineno, node.col_offset)

    def find_stop(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._find_offset(node.end_lineno, node.end_col_offset)

    def quote(self, node: ast.expr | ast.stmt) -> str:
        """Return the source of a node."""
        return self.text[self.find_start(node) : self.find_stop(node)]

    def find_indent(self, statement: ast.stmt) -> str | None:
        """Find the white space before a statement; None if it does not start its line."""
        start = self.find_start(statement)
        before = self.text[self._line_starts[statement.lineno - 1] : start]
        return before if not before.strip() else None

    def resolve(self, expression: ast.expr) -> str:
        """Return the full name of an expression of names and dots, by the imports; "" for others."""
        parts: list[str] = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return ""
        return ".".join([self.imported.get(expression.id, expression.id), *reversed(parts)])

    def find_all(self, kind: type[Node]) -> Iterator[Node]:
        """Yield nodes of a kind in the order of the text."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, kind)]
        return iter(sorted(nodes, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))))

    def find_calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield calls of functions with one of these full names."""
        return (call for call in self.find_all(ast.Call) if self.resolve(call.func) in names)

    def find_statement(self, node: ast.AST) -> ast.stmt:
        """Find the innermost statement that holds a node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def find_function(self, node: ast.AST) -> ast.AST:
        """Find the function that holds a node, or the module."""
        while not isinstance(node := self.parents[node], (*FUNCTIONS, ast.Module)):
            pass
        return node

    def name_place(self, node: ast.expr | ast.stmt) -> str:
        return f"{self.name}:{node.lineno}"

    # ----------------------------------------------------------------------------------------------------------- edits

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        return Edit(self.name, self.find_start(node), self.find_stop(node), text)

    def insert_after(self, statement: ast.stmt, *lines: str) -> Edit | None:
        """Insert lines after the last line of a statement, indented as it is; None if it does not start its line."""
        indent = self.find_indent(statement)
        if indent is None or statement.end_lineno is None:
            return None
        at = self._line_starts[statement.end_lineno]
        text = "".join(f"{indent}{line}{self.line_end}" if line else self.line_end for line in lines)
        if not self.lines[statement.end_lineno - 1].endswith(("\n", "\r")):
            text = self.line_end + text.removesuffix(self.line_end)
        return Edit(self.name, at, at, text)

    def insert_before(self, statement: ast.stmt, *lines: str) -> Edit | None:
        """Insert lines before a statement, indented as it is; None if it does not start its line."""
        indent = self.find_indent(statement)
        if indent is None:
            return None
        at = self._line_starts[statement.lineno - 1]
        text = "".join(f"{indent}{line}{self.line_end}" if line else self.line_end for line in lines)
        return Edit(self.name, at, at, text)

    def wrap(self, statements: Sequence[ast.stmt], head: str) -> Edit | None:
        """Put consecutive statements of a suite below a line that ends in a colon; None if they share lines with
        others."""
        first, last = statements[0], statements[-1]
        indent, end = self.find_indent(first), last.end_lineno
        assert end is not None
        suite = self.suites[first]
        place = suite.index(last) + 1
        if indent is None or (place < len(suite) and suite[place].lineno == end):
            return None
        numbers = range(first.lineno, end + 1)
        inner = [
            line if not line.strip() or number in self.inside_strings else self.indent + line
            for number, line in zip(numbers, self.lines[first.lineno - 1 : end])
        ]
        start, stop = self._line_starts[first.lineno - 1], self._line_starts[end]
        return Edit(self.name, start, stop, f"{indent}{head}{self.line_end}{''.join(inner)}")

    def set_keyword(self, call: ast.Call, name: str, value: str) -> Edit | None:
        """Give a call a keyword argument, in place of one of that name; None if it has a generator as its argument."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return self.replace(keyword.value, value)
        inside = self._list_tokens_inside(call)
        if not inside:
            at = self.find_stop(call) - 1
            return Edit(self.name, at, at, f"{name}={value}")
        if len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp) and not call.keywords:
            return None
        last = inside[-1]
        if last.text != ",":
            return Edit(self.name, last.end, last.end, f", {name}={value}")
        line = self.count_line(last.start)
        if line == self.count_line(self.find_stop(call) - 1):
            return Edit(self.name, last.end, last.end, f" {name}={value}")
        indent = re.match(r"[ \t]*", self.lines[line - 1])
        assert indent is not None
        after = self._line_starts[line]
        return Edit(self.name, after, after, f"{indent[0]}{name}={value},{self.line_end}")

    def remove_keyword(self, call: ast.Call, keyword: ast.keyword) -> Edit:
        """Remove a keyword argument and one comma next to it."""
        inside = self._list_tokens_inside(call)
        start, end = self.find_start(keyword), self.find_stop(keyword)
        before = [token for token in inside if token.end <= start]
        after = [token for token in inside if token.start >= end]
        if len(after) > 1:
            return Edit(self.name, start, after[1].start, "")
        end = after[0].end if after and not before else end
        return Edit(self.name, before[-1].start if before else start, end, "")

    def _list_tokens_inside(self, call: ast.Call) -> list[Token]:
        """Tokens of the arguments of a call, between its parentheses."""
        start, stop = self.find_stop(call.func), self.find_stop(call) - 1
        inside = [token for token in self.tokens if start <= token.start < stop and token.kind not in _BLANK]
        opening = next(place for place, token in enumerate(inside) if token.text == "(")
        return inside[opening + 1 :]


def find_argument(call: ast.Call, *names: str) -> ast.expr | None:
    """Find the value of a keyword argument with one of these names; None if the call has none."""
    return next((keyword.value for keyword in call.keywords if keyword.arg in names), None)


@dataclass(frozen=True)
class Program:
    """The files of a training script, itself first. is_compiled: whether it is known to compile its model when it runs
    as it was measured. keeps_gradients: whether it is known to add gradients to earlier ones. accumulation: the larger
    micro-batches that were measured; None if none were. command: that starts it; () if it is not known. device_type: on
    which it ran, as `torch.autocast` takes it. num_workers: that a DataLoader was given."""

    files: tuple[SourceFile, ...]
    is_compiled: bool = False
    keeps_gradients: bool = False
    accumulation: Accumulation | None = None
    command: tuple[str, ...] = ()
    device_type: str = "cuda"
    num_workers: int = 4

    @property
    def script(self) -> SourceFile:
        return self.files[0]

    def find_all_calls(self) -> Iterator[tuple[SourceFile, ast.Call]]:
        """Yield the calls of all files, each with its file."""
        return ((file, call) for file in self.files for call in file.find_all(ast.Call))

    @cached_property
    def functions(self) -> dict[str, tuple[SourceFile, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Functions and methods by name; the first of several."""
        functions: dict[str, tuple[SourceFile, ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for file in self.files:
            for node in file.find_all(ast.AST):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    functions.setdefault(node.name, (file, node))
        return functions

    @cached_property
    def module_classes(self) -> frozenset[str]:
        """Names of classes that are models: of `nn.Module`, or of another class that is."""
        bases: dict[str, list[str]] = {}
        for file in self.files:
            for node in file.find_all(ast.ClassDef):
                bases[node.name] = [file.resolve(base) for base in node.bases]
        known: set[str] = set()
        for _ in bases:
            known |= {
                name
                for name, of in bases.items()
                if any(base.endswith("Module") or base.rpartition(".")[2] in known for base in of)
            }
        return frozenset(known)

    def apply(self, edits: Iterable[Edit]) -> "Program":
        """Return the program with edits made. Raises ScriptCodeError if they overlap, or if what results is not valid
        Python."""
        edits = set(edits)
        if do_overlap(edits):
            raise ScriptCodeError("two edits change the same code")
        texts = {file.name: file.text for file in self.files}
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
            text = texts[edit.file]
            texts[edit.file] = text[: edit.start] + edit.text + text[edit.end :]
        files = tuple(replace(file, text=texts[file.name]) for file in self.files)
        for file in files:
            assert isinstance(file.tree, ast.Module)  # raises ScriptCodeError
        return replace(self, files=files)


def read_file(path: Path, name: str) -> SourceFile:
    """Read a file of a script. Raises ScriptCodeError."""
    try:
        with open(path, "rb") as opened:
            content = opened.read(LARGEST_BYTES + 1)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (OSError, SyntaxError, ValueError, LookupError) as error:
        raise ScriptCodeError(f"{name} cannot be read: {error}") from error
    if len(content) > LARGEST_BYTES:
        raise ScriptCodeError(f"{name} is too large to be changed")
    return SourceFile(name, text, encoding, path)


def load_program(script: Path, folder: Path | None = None) -> Program:
    """Load a script and the modules next to it, or of the project that it is in, that it imports. Names are paths from
    `folder` (default: the working directory) where that holds them, or else from the script's folder or the project's.
    Of two modules of one name Python imports the one next to the script. Raises ScriptCodeError if the script is not
    valid Python; modules that are not are left out."""
    script = Path(os.path.normpath(script.absolute()))  # no tool applies a patch to a path with `..`
    projects = (each for each in script.parents if any((each / name).is_file() for name in PROJECT))
    roots = ((folder or Path.cwd()).absolute(), script.parent, *islice(projects, 1))
    read = {script: read_file(script, _name_file(script, roots))}
    assert isinstance(read[script].tree, ast.Module)  # raises ScriptCodeError
    waiting = [script]
    while waiting and len(read) < MOST_FILES:
        path = waiting.pop(0)
        for other in _find_imported(path, read[path], (roots[1], roots[0], *roots[2:])):
            name = _name_file(other, roots)
            is_known = any(name == file.name for file in read.values())
            if is_known or any(part in LEFT_OUT for part in other.parts):
                continue
            try:
                file = read_file(other, name)
                assert isinstance(file.tree, ast.Module)
            except ScriptCodeError:
                continue
            read[other] = file
            waiting.append(other)
    return Program(tuple(read.values()))


def _name_file(path: Path, roots: Sequence[Path]) -> str:
    return next((path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root)), path.name)


def _find_imported(path: Path, file: SourceFile, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files below `roots` that a file imports."""
    for node in file.find_all(ast.AST):
        if isinstance(node, ast.Import):
            names, places = [alias.name for alias in node.names], roots
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".removeprefix(".") for alias in node.names)]
            places = [path.parents[node.level - 1]] if node.level and node.level <= len(path.parents) else roots
        else:
            continue
        parts = [name.split(".")[:depth] for name in filter(None, names) for depth in range(1, name.count(".") + 2)]
        for part in parts:
            for root in places:
                target = root.joinpath(*part)
                for candidate in (target.with_suffix(".py"), target / "__init__.py"):
                    if candidate.is_file() and any(candidate.is_relative_to(each) for each in roots):
                        yield candidate
