"""Edits around models: autocast around forward pass and loss, compilation, attention, checkpointing."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from profiler_job.analysis.changes.accumulation_code import list_named
from profiler_job.analysis.changes.code_places import (
    NO_LINE,
    PASSED_ON,
    find_creation,
    name_torch,
    passes_options_on,
    set_trainer,
)
from profiler_job.analysis.changes.script_code import (
    FUNCTIONS,
    Edit,
    FoundEdits,
    LineToWrite,
    Program,
    SourceFile,
    do_overlap,
    find_argument,
)
from profiler_job.analysis.changes.switch_code import switch_all
from profiler_job.analysis.changes.training_step import (
    TrainingStep,
    find_context,
    find_training_steps,
    is_plain,
    list_assignments,
)

AUTOCAST = '{torch}.autocast("{device}", dtype={torch}.bfloat16)'
SDPA_KERNEL = (
    "{torch}.nn.attention.sdpa_kernel([{torch}.nn.attention.SDPBackend.CUDNN_ATTENTION, "
    "{torch}.nn.attention.SDPBackend.FLASH_ATTENTION, {torch}.nn.attention.SDPBackend.EFFICIENT_ATTENTION, "
    "{torch}.nn.attention.SDPBackend.MATH], set_priority=True)"
)

COPY = "weight.register_hook(lambda new, weight=weight: new.clone() if weight.grad is None else None)"
"""Has the first gradient of a weight copied, as `jobs.follow.changes.cuda_graphs` does, and says why."""
EACH_WEIGHT = "after the model is made, for each weight of it that is trained"


def add_autocast(program: Program) -> FoundEdits:
    """Put forward pass and loss of each training step below `with torch.autocast(...)`. It is done only where the call
    of the model and the loss are found in one suite, or in the suites around the call of `backward`."""
    options = {
        "arguments": ("bf16", "True"),
        "accelerator": ("mixed_precision", '"bf16"'),
        "lightning": ("precision", '"bf16-mixed"'),
    }
    if (by_trainer := set_trainer(program, options)) is not None:
        return by_trainer
    return wrap_steps(program, "autocast", AUTOCAST, "bfloat16")


def prefer_cudnn(program: Program) -> FoundEdits:
    """Make cuDNN the first choice of `scaled_dot_product_attention` in each training step."""
    return wrap_steps(program, "sdpa_kernel", SDPA_KERNEL, "CUDNN_ATTENTION")


def wrap_steps(program: Program, word: str, context: str, mark: str) -> FoundEdits:
    """Put forward pass and loss of each training step below `with` a context. word: part of its name, by which one that
    the script opens is known. mark: what that has if it is the wanted one."""
    edits: list[Edit] = []
    present, to_write = "", []
    for step in find_training_steps(program):
        file = step.file
        line = context.format(torch=name_torch(file) or "torch", device=program.device_type)
        opened = find_context(step, word)
        if opened is not None:
            if mark in ast.unparse(opened).partition("\n")[0]:
                present = present or file.name_place(opened)
            else:
                why = "the script opens such a context here already"
                to_write.append(LineToWrite(file.name, opened.lineno, line, why))
            continue
        made = _wrap_step(step, f"with {line}:")
        imports = [] if name_torch(file) else import_torch(file)
        if made is None or not (imports or name_torch(file)):
            why = "around forward pass and loss, up to this call of backward"
            to_write.append(LineToWrite(file.name, step.backward.lineno, f"with {line}:", why))
        else:
            edits += [*made, *imports]
    edits = [*dict.fromkeys(edits)]
    if do_overlap(edits):
        edits = []
        why = "around forward pass and loss: parts of these steps are shared"
        line = f"with {context.format(torch='torch', device=program.device_type)}:"
        to_write = [
            LineToWrite(step.file.name, step.backward.lineno, line, why) for step in find_training_steps(program)
        ]
    unique = tuple(dict.fromkeys(to_write))
    return FoundEdits(edits=tuple(edits), present="" if edits or unique else present, to_write=unique)


def import_torch(file: SourceFile) -> list[Edit]:
    """Import torch before the first other import; [] if a file imports nothing."""
    first: ast.stmt | None = next(
        (statement for statement in file.tree.body if isinstance(statement, ast.Import | ast.ImportFrom)), None
    )
    while isinstance(first, ast.ImportFrom) and first.module == "__future__":
        first = file.suites[first][file.suites[first].index(first) + 1]
    edit = file.insert_before(first, "import torch") if first else None
    return [edit] if edit else []


def _wrap_step(step: TrainingStep, head: str) -> list[Edit] | None:
    """Wrap the regions of a step; None if they are not known or cannot be."""
    file = step.file
    if step.is_direct:
        edits = [file.wrap(region, head) for region in step.regions]
        return [edit for edit in edits if edit] if edits and all(edits) else None
    statement = file.find_statement(step.backward)
    suite = file.suites[statement]
    if not step.models or not isinstance(statement, ast.Expr) or file.find_indent(statement) is None:
        return None
    inner = step.regions[-1] if step.regions else ()
    if inner and inner[0] not in suite:
        return None
    before = suite[suite.index(inner[0]) if inner else suite.index(statement) : suite.index(statement)]
    name = _choose_name(file, step)
    quoted = file.quote(step.loss)
    indent, end = file.find_indent(statement) or "", file.line_end
    head_edit = file.wrap(tuple(before), head) if before else None
    if before and head_edit is None:
        return None
    wrapped = head_edit.text if head_edit else f"{indent}{head}{end}"
    start = head_edit.start if head_edit else file.find_start(statement) - len(indent)
    between = file.text[head_edit.end : file.find_start(statement)] if head_edit else ""
    if between.strip():
        return None
    loss_start, loss_stop = file.find_start(step.loss), file.find_stop(step.loss)
    opened = file.text[file.find_start(statement) : loss_start]
    rest = file.text[loss_stop : file.find_stop(statement)]
    while opened.endswith("(") and rest.startswith(")") and opened.strip("(") == "":
        opened, rest = opened[:-1], rest[1:]
    text = f"{wrapped}{indent}{file.indent}{name} = {quoted}{end}{indent}{opened}{name}{rest}"
    others = [file.wrap(region, head) for region in step.regions[:-1]]
    if not all(others):
        return None
    return [*(edit for edit in others if edit), Edit(file.name, start, file.find_stop(statement), text)]


def _choose_name(file: SourceFile, step: TrainingStep) -> str:
    """Choose a name for the loss that its function does not use."""
    function = file.find_function(step.backward)
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return next(name for name in ("loss", "total_loss", "autocast_loss") if name not in used or name == "autocast_loss")


def compile_models(program: Program, options: str = "", copies_gradients: bool = False) -> FoundEdits:
    """Compile the models that training steps call, in place: `model.compile()`, which keeps the names of parameters in
    checkpoints. options: arguments of the call. copies_gradients: whether the first gradients are copied, too, so that
    others can be added to them (see COPY)."""
    trainer = {"arguments": ("torch_compile", "True")}
    if options:
        trainer = {"arguments": ("torch_compile_mode", options.partition("=")[2])}
    if (by_trainer := set_trainer(program, trainer)) is not None:
        return _leave_copies(program, by_trainer) if copies_gradients else by_trainer
    compiled = find_compilation(program, options, copies_gradients)
    if compiled:
        return compiled
    edits: list[Edit] = []
    to_write = []
    for step in find_training_steps(program):
        for model in step.models:
            code = f"{model}.compile({options})"
            file, after = step.file, find_creation(step.file, model, step.backward)
            if after is None:
                file, after = _find_in_others(program, model)
            lines = [code, *(copy_gradients(file, model) if copies_gradients else ())]
            edit = file.insert_after(after, *lines) if after else None
            if edit:
                edits.append(edit)
            else:
                why = NO_LINE if after else "where the model is made, after it is moved to the GPU"
                line = after.lineno if after else step.backward.lineno
                to_write.append(LineToWrite(file.name if after else step.file.name, line, code, why))
                to_write += [LineToWrite(file.name, 0, COPY, EACH_WEIGHT)] if copies_gradients else []
    return FoundEdits(edits=tuple(dict.fromkeys(edits)), to_write=tuple(dict.fromkeys(to_write)))


def copy_gradients(file: SourceFile, model: str) -> list[str]:
    """Return lines that have the first gradients of a model copied."""
    head = f"for weight in {model}.parameters():  # a CUDA graph frees its gradients when it runs again: add up copies"
    return [head, f"{file.indent}if weight.requires_grad:", f"{2 * file.indent}{COPY}"]


def _leave_copies(program: Program, made: FoundEdits) -> FoundEdits:
    """Leave to the user that the first gradients are copied, unless the script has CUDA graphs."""
    copy = LineToWrite(program.script.name, 0, COPY, EACH_WEIGHT)
    return made if made.present else replace(made, to_write=(*made.to_write, copy))


def compile_blocks(program: Program, code: str) -> FoundEdits:
    """Compile each block that a model repeats, if one list of modules in the class of the model holds them. code: what
    to write if not."""
    if (compiled := find_compilation(program)) and compiled.present:
        return compiled
    edits: list[Edit] = []
    to_write = []
    for step in find_training_steps(program):
        for model in step.models:
            file, after = step.file, find_creation(step.file, model, step.backward, is_wrapped=False)
            blocks = _find_blocks(program, step.file, model)
            edit = (
                file.insert_after(after, f"for block in {model}.{blocks}:", f"{file.indent}block.compile()")
                if (after and blocks)
                else None
            )
            if edit:
                edits.append(edit)
            else:
                line = after.lineno if after else step.backward.lineno
                why = "where the model is made; the blocks are those that it repeats"
                to_write.append(LineToWrite(file.name, line, code.replace("model.", f"{model}."), why))
    return FoundEdits(edits=tuple(dict.fromkeys(edits)), to_write=tuple(dict.fromkeys(to_write)))


def _find_blocks(program: Program, file: SourceFile, model: str) -> str:
    """Find the attribute of a model with the blocks that it repeats: the only list of modules of its class that a loop
    fills, which may be in a ModuleDict; "" if there is none, or several."""
    made = [
        call.func
        for call in file.find_all(ast.Call)
        for target, value in list_assignments(file.tree)
        if target == model and call in ast.walk(value)
    ]
    classes = {file.resolve(func).rpartition(".")[2] for func in made} & program.module_classes
    lists = [
        target.removeprefix("self.")
        for other in program.files
        for node in other.find_all(ast.ClassDef)
        if node.name in classes
        for target, value in _list_parts(node)
        if target.startswith("self.")
        and isinstance(value, ast.Call)
        and other.resolve(value.func).endswith(".ModuleList")
        and value.args
        and isinstance(value.args[0], ast.ListComp | ast.GeneratorExp)
    ]
    return lists[0] if len(lists) == 1 else ""


def _list_parts(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a class assigns, with what it puts into a ModuleDict, by dotted names."""
    for target, value in list_assignments(node):
        yield target, value
        if isinstance(value, ast.Call) and value.args and ast.unparse(value.func).endswith("ModuleDict"):
            yield from ((f"{target}.{name}", part) for name, part in list_named(value.args[0]))


def _find_in_others(program: Program, model: str) -> tuple[SourceFile, ast.stmt | None]:
    for file in program.files:
        if after := find_creation(file, model, file.tree.body[0]) if file.tree.body else None:
            return file, after
    return program.script, None


def find_compilation(program: Program, options: str = "", copies_gradients: bool = False) -> FoundEdits | None:
    """Find where a script compiles a model already: present, or what switches it on if conditions decide, or a line to
    write if that is not known. None if it compiles none. options: one argument, which is added to the call if it has
    none of that name. copies_gradients: as of `compile_models`, if it is added."""
    compilations = [(file, call, _list_conditions(file, call)) for file, call in _find_compilations(program)]
    if program.is_compiled:
        compilations = [(file, call, []) for file, call, _ in compilations]
    if not compilations:
        return None
    file, call, tests = min(compilations, key=lambda each: len(each[2]))
    name, _, value = options.partition("=")
    edit = file.set_keyword(call, name, value) if name and find_argument(call, name) is None else None
    edits = (edit,) if edit else ()
    made = _find_with_option(program, file, call, edits, tests, options)
    if not edits or not copies_gradients:
        return made
    model = _find_compiled(program, file, call)
    copies = file.insert_after(file.find_statement(call), *copy_gradients(file, model)) if model else None
    return replace(made, edits=(*made.edits, copies)) if copies else _leave_copies(program, made)


def _find_compiled(program: Program, file: SourceFile, call: ast.Call) -> str:
    """Return the expression for what a statement compiles if that is a model; "" if it is a function, or has no
    name."""
    statement = file.find_statement(call)
    if isinstance(statement, ast.Expr) and isinstance(call.func, ast.Attribute) and is_plain(call.func.value):
        return ast.unparse(call.func.value)
    compiled = file.resolve(call.args[0]).rpartition(".")[2] if call.args else ""
    if not isinstance(statement, ast.Assign) or statement.value is not call or compiled in program.functions:
        return ""
    return ast.unparse(statement.targets[0]) if is_plain(statement.targets[0]) else ""


def _find_with_option(
    program: Program,
    file: SourceFile,
    call: ast.Call,
    edits: tuple[Edit, ...],
    tests: Sequence[tuple[ast.expr, bool]],
    options: str,
) -> FoundEdits:
    """Find what switches on a compilation below conditions. edits: those of its call."""
    if not tests:
        return FoundEdits(edits=edits, present="" if edits else file.name_place(call))
    if made := switch_all(program, [(file, test, wanted) for test, wanted in tests]):
        return FoundEdits(edits=(*edits, *made.edits), command=made.command)
    where = "in the patch" if edits else "already written"
    test, wanted = tests[0]
    why = f"{where}, below `if {ast.unparse(test)}`{'' if wanted else ' ... else'}: make it so"
    code = ast.unparse(call)
    code = f"{code[:-1]}{', ' * bool(call.args or call.keywords)}{options})" if edits else code
    return FoundEdits(edits=edits, to_write=(LineToWrite(file.name, call.lineno, code, why),))


def _find_compilations(program: Program) -> Iterator[tuple[SourceFile, ast.Call]]:
    """Yield the calls that compile a model."""
    for file, call in program.find_all_calls():
        name = file.resolve(call.func)
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "compile" and not call.args
        if name == "torch.compile" or (is_method and not name.startswith("re.")):
            yield file, call


def _list_conditions(file: SourceFile, call: ast.Call) -> list[tuple[ast.expr, bool]]:
    """List the conditions below which a call is in its function, and whether each has to be true; the innermost
    first."""
    conditions = []
    node: ast.AST = call
    while not isinstance(node, (*FUNCTIONS, ast.Module)):
        inner, node = node, file.parents[node]
        if not isinstance(node, ast.If | ast.IfExp) or inner is node.test or "__name__" in ast.unparse(node.test):
            continue
        is_true = inner in node.body if isinstance(node, ast.If) else inner is node.body
        conditions.append((node.test, is_true))
    return conditions


def set_attention(program: Program, code: str) -> FoundEdits:
    """Ask models of Hugging Face for fused attention. code: what to write in attention that is written by hand."""
    edits: list[Edit] = []
    to_write = []
    name, value = "attn_implementation", '"sdpa"'
    for file, call in program.find_all_calls():
        given = find_argument(call, name, f"_{name}")
        if isinstance(given, ast.Constant) and given.value == "eager":
            edits.append(file.replace(given, value))
        elif given is not None or not _makes_hugging_face(file, call):
            continue
        elif passes_options_on(call):
            to_write.append(LineToWrite(file.name, call.lineno, f"{name}={value}", PASSED_ON))
        elif edit := file.set_keyword(call, name, value):
            edits.append(edit)
    if edits or to_write:
        return FoundEdits(edits=tuple(edits), to_write=tuple(to_write))
    why = "attention is written by hand here: this call replaces both matmuls, the mask and the softmax"
    return FoundEdits(to_write=tuple(LineToWrite(*place, code, why) for place in find_written_attention(program)))


def _makes_hugging_face(file: SourceFile, call: ast.Call) -> bool:
    """Whether a call makes a model of Hugging Face in a way that takes options."""
    name = file.resolve(call.func)
    method = name.rpartition(".")[2]
    return (
        method in ("from_pretrained", "from_config")
        and name.startswith("transformers.")
        and ("Model" in name or "LMHead" in name or "For" in name)
    )


def find_written_attention(program: Program) -> list[tuple[str, int]]:
    """Find file and line of each softmax in a function with two matmuls."""
    places = []
    for file in program.files:
        for function in file.find_all(ast.FunctionDef):
            matmuls, softmax = 0, 0
            for node in ast.walk(function):
                is_operator = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
                name = ""
                if isinstance(node, ast.Call):
                    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                matmuls += is_operator or name in ("matmul", "bmm", "einsum", "baddbmm")
                if name == "softmax" and isinstance(node, ast.Call):
                    softmax = softmax or node.lineno
            if softmax and matmuls >= 2:
                places.append((file.name, softmax))
    return places


def keep_activations(program: Program) -> FoundEdits:
    """Remove activation checkpointing: the statement that enables it, the option, and calls of `checkpoint`."""
    edits: list[Edit] = []
    for file, call in program.find_all_calls():
        statement = file.find_statement(call)
        name = file.resolve(call.func)
        is_whole = isinstance(statement, ast.Expr) and statement.value is call
        option = find_argument(call, "gradient_checkpointing")
        if isinstance(call.func, ast.Attribute) and call.func.attr == "gradient_checkpointing_enable" and is_whole:
            edits.append(
                file.replace(statement, "pass" if len(file.suites[statement]) == 1 else f"# {ast.unparse(call)}")
            )
        elif option is not None and ast.unparse(option) == "True":
            edits.append(file.replace(option, "False"))
        elif name.startswith("torch.utils.checkpoint") and name.endswith(".checkpoint") and len(call.args) > 1:
            arguments = [file.quote(argument) for argument in call.args[1:]]
            arguments += [
                f"{keyword.arg}={file.quote(keyword.value)}"
                for keyword in call.keywords
                if keyword.arg
                not in ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "context_fn")
            ]
            function = file.quote(call.args[0])
            if not isinstance(call.args[0], ast.Name | ast.Attribute | ast.Subscript | ast.Call):
                function = f"({function})"
            edits.append(file.replace(call, f"{function}({', '.join(arguments)})"))
    return FoundEdits(edits=tuple(edits))
