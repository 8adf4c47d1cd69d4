"""Places that several changes write to: lines after the imports, options of trainers, the creation of models."""

import ast
from collections.abc import Iterator, Mapping

from profiler_job.analysis.changes.script_code import (
    Edit,
    FoundEdits,
    LineToWrite,
    Program,
    SourceFile,
    Suite,
    find_argument,
)
from profiler_job.analysis.changes.training_step import is_wrapper, list_targets

TORCH = "torch"
SETTINGS = ("set_float32_matmul_precision", "backends")
"""Parts of `torch` that lines after the imports set."""
ARGUMENTS = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")
"""Ends of names of classes with the options of a Hugging Face trainer."""
ACCELERATOR, LIGHTNING = "accelerate.Accelerator", ("lightning", "pytorch_lightning")
NO_LINE = "the statement shares its line with others"
PASSED_ON = "the options of this call come from elsewhere"


def name_torch(file: SourceFile) -> str:
    """Return the name by which a file calls torch; "" if it does not import it."""
    return next((name for name, module in file.imported.items() if module == TORCH), "")


def find_imports_end(file: SourceFile) -> ast.stmt | None:
    """Find the statement after which torch is imported and can be set: the last import of the first run of them that
    has torch, or else of all, with settings that follow it. None if the file imports nothing at its start."""
    suite = _find_import_suite(file)
    if suite is None:
        return None
    torch = [number for number, statement in enumerate(suite) if _imports_torch(statement)]
    imports = [number for number, statement in enumerate(suite) if _is_import(statement)]
    place = torch[0] if torch else imports[-1]
    while place + 1 < len(suite) and _is_import(suite[place + 1]):
        place += 1
    while place + 1 < len(suite) and is_setting(file, suite[place + 1]):
        place += 1
    return suite[place]


def _find_import_suite(file: SourceFile) -> Suite | None:
    body = file.tree.body
    if any(_imports_torch(statement) for statement in body):
        return body
    for statement in file.find_all(ast.stmt):
        if _imports_torch(statement) and isinstance(statement, ast.Import | ast.ImportFrom):
            return file.suites[statement]
    return body if any(isinstance(statement, ast.Import | ast.ImportFrom) for statement in body) else None


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _imports_torch(statement: ast.stmt) -> bool:
    """Whether a statement imports torch or a part of it, or tries to."""
    if isinstance(statement, ast.Import):
        return any(alias.name.split(".")[0] == TORCH for alias in statement.names)
    if isinstance(statement, ast.ImportFrom):
        return not statement.level and (statement.module or "").split(".")[0] == TORCH
    return isinstance(statement, ast.Try) and any(map(_imports_torch, statement.body))


def is_setting(file: SourceFile, statement: ast.stmt) -> bool:
    """Whether a statement sets something of torch: `torch.backends... = ...`, `torch.set_...(...)`."""
    if isinstance(statement, ast.Assign):
        return file.resolve(statement.targets[0]).startswith("torch.backends.")
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Call) and file.resolve(value.func).startswith(("torch.set_float32", "torch.backends."))


def add_setting(program: Program, line: str, reason: str) -> FoundEdits:
    """Add a line to the script after its imports. line: with `torch` as the name of torch."""
    file = program.script
    name, after = name_torch(file), find_imports_end(file)
    if after is None:
        return FoundEdits(to_write=(LineToWrite(file.name, 0, line, reason),))
    lines = [line if not name else name + line.removeprefix(TORCH)]
    if not name:
        lines.insert(0, "import torch")
    if not is_setting(file, after):
        lines.insert(0, "")
    edit = file.insert_after(after, *lines)
    if edit is None:
        return FoundEdits(to_write=(LineToWrite(file.name, after.lineno, line, NO_LINE),))
    return FoundEdits(edits=(edit,))


def set_environment(program: Program, name: str, value: str) -> FoundEdits:
    """Set a variable of the environment in the script, before its first import, unless it is set outside."""
    file = program.script
    for constant in file.find_all(ast.Constant):
        if constant.value == name:
            statement = file.find_statement(constant)
            if value in ast.unparse(statement):
                return FoundEdits(present=file.name_place(statement))
            why = "the script sets it already"
            return FoundEdits(to_write=(LineToWrite(file.name, statement.lineno, f"{name}={value}", why),))
    imports = [statement for statement in file.tree.body if _is_import(statement)]
    imports = [each for each in imports if not (isinstance(each, ast.ImportFrom) and each.module == "__future__")]
    line = f'os.environ.setdefault("{name}", "{value}")'
    edit = file.insert_before(imports[0], "import os", "", line, "") if imports else None
    if edit is None:
        why = "in the environment, before the script starts"
        return FoundEdits(to_write=(LineToWrite(file.name, 0, f"{name}={value}", why),))
    return FoundEdits(edits=(edit,))


def set_flag(program: Program, target: str, value: str) -> FoundEdits:
    """Set a flag such as `torch.backends.cudnn.benchmark` in the script: where it is set otherwise there, or else after
    the imports."""
    edits, present = [], ""
    for file in program.files:
        for node in file.find_all(ast.Assign):
            if target not in map(file.resolve, node.targets):
                continue
            if not isinstance(node.value, ast.Constant):
                why = "the script computes it"
                return FoundEdits(to_write=(LineToWrite(file.name, node.lineno, f"{target} = {value}", why),))
            if ast.unparse(node.value) == value:
                present = present or file.name_place(node)
            else:
                edits.append(file.replace(node.value, value))
    if edits or present:
        return FoundEdits(edits=tuple(edits), present="" if edits else present)
    return add_setting(program, f"{target} = {value}", "the script imports nothing at its start")


def set_matmul_precision(program: Program, code: str) -> FoundEdits:
    """Allow TF32 in matmuls. code: the line that does."""
    edits, present = [], ""
    for file in program.files:
        for call in file.find_calls("torch.set_float32_matmul_precision"):
            value = call.args[0] if call.args else None
            if isinstance(value, ast.Constant) and value.value == "highest":
                edits.append(file.replace(value, '"high"'))
            elif value is not None:
                present = present or file.name_place(call)
        for node in file.find_all(ast.Assign):
            if "torch.backends.cuda.matmul.allow_tf32" in map(file.resolve, node.targets):
                if ast.unparse(node.value) == "False":
                    edits.append(file.replace(node.value, "True"))
                else:
                    present = present or file.name_place(node)
    if edits or present:
        return FoundEdits(edits=tuple(edits), present="" if edits else present)
    return add_setting(program, code, "the script imports nothing at its start")


def find_trainers(program: Program) -> Iterator[tuple[SourceFile, ast.Call, str]]:
    """Yield the calls that make options of trainers, and what they are: `arguments`, `accelerator`, `lightning`."""
    for file, call in program.find_all_calls():
        name = file.resolve(call.func)
        last = name.rpartition(".")[2]
        if last.endswith(ARGUMENTS):
            yield file, call, "arguments"
        elif name == ACCELERATOR or (last == "Accelerator" and "accelerate" in name):
            yield file, call, "accelerator"
        elif last == "Trainer" and name.startswith(LIGHTNING):
            yield file, call, "lightning"


def passes_options_on(call: ast.Call) -> bool:
    """Whether a call has `**options`, which may hold an argument already."""
    return any(keyword.arg is None for keyword in call.keywords)


def set_trainer(program: Program, options: Mapping[str, tuple[str, str]]) -> FoundEdits | None:
    """Give options of trainers a value. options: name and value by what takes them, as `find_trainers` calls it. None
    if the script has no such trainer. Arguments that are read from the command line are set there."""
    edits: list[Edit] = []
    present = ""
    for file, call, kind in find_trainers(program):
        if kind not in options:
            continue
        name, value = options[kind]
        given = find_argument(call, name)
        if given is not None and ast.unparse(given) == ast.unparse(ast.parse(value, mode="eval").body):
            present = present or file.name_place(call)
        elif given is not None and not isinstance(given, ast.Constant):
            why = "the script computes this option"
            return FoundEdits(to_write=(LineToWrite(file.name, given.lineno, f"{name}={value}", why),))
        elif given is None and passes_options_on(call):
            return FoundEdits(to_write=(LineToWrite(file.name, call.lineno, f"{name}={value}", PASSED_ON),))
        elif edit := file.set_keyword(call, name, value):
            edits.append(edit)
    if edits or present:
        return FoundEdits(edits=tuple(edits), present="" if edits else present)
    return _set_on_command_line(program, options)


def _set_on_command_line(program: Program, options: Mapping[str, tuple[str, str]]) -> FoundEdits | None:
    if "arguments" not in options:
        return None
    for file, call in program.find_all_calls():
        if file.resolve(call.func).endswith("HfArgumentParser"):
            name, value = options["arguments"]
            code = f"--{name} {ast.literal_eval(value)}"
            why = "an option of the command line, which the script reads"
            return FoundEdits(to_write=(LineToWrite(file.name, call.lineno, code, why),))
    return None


def find_creation(file: SourceFile, model: str, before: ast.AST, is_wrapped: bool = True) -> ast.stmt | None:
    """Find the statement after which a model is complete: the last one that assigns it, in one suite with the others,
    and before loops. before: a node of its use, in whose function it is looked for first. is_wrapped: whether it may be
    in a wrapper by then, which has other attributes. None if nothing assigns it, or if an assignment shares no suite
    with the first one."""
    function = file.find_function(before)
    while True:
        suite = getattr(function, "body", None)
        if isinstance(suite, list) and (assignment := _find_last_assignment(file, suite, model, function, is_wrapped)):
            return assignment
        if isinstance(function, ast.Module):
            break
        function = file.find_function(function)
    for other in file.find_all(ast.FunctionDef):
        if assignment := _find_last_assignment(file, other.body, model, other, is_wrapped):
            return assignment
    return None


def _find_last_assignment(
    file: SourceFile, suite: Suite, model: str, function: ast.AST, is_wrapped: bool
) -> ast.stmt | None:
    """Find the last statement that assigns a model in a suite before the first loop that does not assign it, or in the
    suite of the only statement that holds its assignments."""
    holders = [statement for statement in suite if _assigns(file, statement, model, function, is_wrapped)]
    if not holders:
        return None
    last = holders[0]
    for statement in suite[suite.index(last) + 1 :]:
        if isinstance(statement, ast.For | ast.While | ast.Try):
            break
        if statement in holders:
            last = statement
    inner = [body for name in ("body", "orelse") if isinstance(body := getattr(last, name, None), list)]
    is_loop = isinstance(last, ast.For | ast.While | ast.With | ast.Try) or _is_main(last)
    if last is holders[0] and is_loop and inner:
        assignments = (_find_last_assignment(file, body, model, function, is_wrapped) for body in inner)
        return next(filter(None, assignments), None)
    return last


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _assigns(file: SourceFile, statement: ast.stmt, model: str, function: ast.AST, is_wrapped: bool) -> bool:
    """Whether a statement assigns a model in this function, and something else than None, or than a wrapper."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign | ast.AnnAssign) and model in list_targets(node):
            is_none = isinstance(node.value, ast.Constant) and node.value.value is None
            is_other = is_none or (not is_wrapped and node.value is not None and is_wrapper(file, node.value))
            if not is_other and file.find_function(node) is function:
                return True
    return False
