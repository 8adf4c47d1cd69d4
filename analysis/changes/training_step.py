"""Training steps in the code of a script: where the model is called, the loss computed, and `backward` called."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiler_job.analysis.changes.script_code import FUNCTIONS, Program, SourceFile

MODEL_METHODS = ("parameters", "named_parameters", "train", "eval", "modules", "gradient_checkpointing_enable")
"""Methods that show that what has them is a model."""
OTHER_METHODS = (
    *MODEL_METHODS,
    *(
        "zero_grad",
        "state_dict",
        "load_state_dict",
        "to",
        "cuda",
        "cpu",
        "half",
        "bfloat16",
        "float",
        "apply",
        "compile",
    ),
    *("requires_grad_", "named_modules", "children", "register_forward_hook", "register_buffer", "no_sync", "join"),
    *(
        "save_pretrained",
        "from_pretrained",
        "push_to_hub",
        "named_children",
        "set_requires_gradient_sync",
        "init_hidden",
    ),
)
"""Methods of a model that are no forward pass."""
WRAPPERS = (
    "compile",
    "DistributedDataParallel",
    "DDP",
    "DataParallel",
    "FullyShardedDataParallel",
    "FSDP",
    "fully_shard",
)
DEPTH = 3
"""Levels of functions in which the call of a model is looked for."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """A call of `backward` and what it is called on. regions: consecutive statements of a suite each, from the call of
    the model to the loss; () if they were not found in the function. models: expressions that are called. is_direct:
    whether a plain value has the call, not an expression that computes the loss."""

    file: SourceFile
    backward: ast.Call
    loss: ast.expr
    regions: tuple[tuple[ast.stmt, ...], ...]
    models: tuple[str, ...]
    is_direct: bool


def find_training_steps(program: Program) -> list[TrainingStep]:
    """Find the training steps of a program."""
    models = find_models(program)
    steps = []
    for file, call in program.find_all_calls():
        loss = _find_loss(file, call)
        if loss is not None:
            steps.append(_describe_step(program, file, call, loss, models))
    return steps


def find_models(program: Program) -> frozenset[str]:
    """Find the expressions, such as `model` and `self.net`, that stand for models."""
    names = {"model", "self.model"}
    for file in program.files:
        for call in file.find_all(ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr in MODEL_METHODS and is_plain(call.func.value):
                names.add(ast.unparse(call.func.value))
        for target, value in list_assignments(file.tree):
            while (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Attribute)
                and value.func.attr in ("to", "cuda")
            ):
                value = value.func.value
            if not isinstance(value, ast.Call):
                continue
            name = file.resolve(value.func).rpartition(".")[2]
            if name in program.module_classes or name in WRAPPERS or name in ("from_pretrained", "from_config"):
                names.add(target)
    return frozenset(name for name in names if name not in ("self", "super()") and "optim" not in name.lower())


def is_plain(expression: ast.expr) -> bool:
    """Whether an expression is a name, or names and dots."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return isinstance(expression, ast.Name)


def is_wrapper(file: SourceFile, value: ast.expr) -> bool:
    """Whether a value is a model in a wrapper."""
    return isinstance(value, ast.Call) and file.resolve(value.func).rpartition(".")[2] in WRAPPERS


def list_assignments(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield targets and values of assignments to names and attributes, pair by pair."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = [*zip(target.elts, node.value.elts)]
                else:
                    pairs = [(target, node.value)]
                yield from ((ast.unparse(name), value) for name, value in pairs if is_plain(name))
        elif isinstance(node, ast.AnnAssign) and node.value is not None and is_plain(node.target):
            yield ast.unparse(node.target), node.value


def _find_loss(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """Find what `backward` is called on: the loss; None if the call is another one."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return None
    value = call.func.value
    if file.resolve(call.func) == "torch.autograd.backward" or (call.args and "accelerator" in ast.unparse(value)):
        return call.args[0] if call.args else None
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("scale", "scale_loss")
    ):
        return value.args[0] if value.args else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super":
        return None
    return value


def _describe_step(
    program: Program, file: SourceFile, call: ast.Call, loss: ast.expr, models: frozenset[str]
) -> TrainingStep:
    is_direct = not any(isinstance(node, ast.Call) for node in ast.walk(loss))
    called = [] if is_direct else find_called_models(program, file, loss, models)
    wanted, regions = list_names(loss), []
    path = [] if called else _list_path(file, call)
    while path and not called:
        suite, place = path.pop()
        relevant: list[ast.stmt] = []
        first = None
        for statement in reversed(suite[:place]):
            if _has_backward(statement):
                break
            if not wanted & list_targets(statement):
                continue
            relevant.append(statement)
            wanted |= list_names(statement)
            if names := find_called_models(program, file, statement, models):
                called += names
                first = statement
        if relevant:
            regions.append(_span(suite, first or relevant[-1], relevant[0]))
    regions = regions[::-1] if called else []
    return TrainingStep(
        file=file,
        backward=call,
        loss=loss,
        regions=tuple(regions),
        models=tuple(dict.fromkeys(called)),
        is_direct=is_direct,
    )


def _list_path(file: SourceFile, node: ast.AST) -> list[tuple[list[ast.stmt], int]]:
    """List the suites around a node in its function, the outermost first, with the place of what holds it."""
    path = []
    while not isinstance(node, (*FUNCTIONS, ast.Module)):
        if isinstance(node, ast.stmt):
            suite = file.suites[node]
            path.append((suite, suite.index(node)))
        node = file.parents[node]
    return path[::-1]


def _span(suite: Sequence[ast.stmt], first: ast.stmt, last: ast.stmt) -> tuple[ast.stmt, ...]:
    """Return all statements of a suite from one to another."""
    return tuple(suite[suite.index(first) : suite.index(last) + 1])


def _has_backward(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "backward"
        for each in ast.walk(node)
    )


def list_names(node: ast.AST) -> set[str]:
    """List the names and dotted names that are read in a node."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load) and is_plain(each):
            names.add(ast.unparse(each))
    return names


def list_targets(statement: ast.stmt) -> set[str]:
    """List the names and dotted names that a statement assigns, also inside it; elements of containers count as
    these."""
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            value = node.value if isinstance(node, ast.Subscript) else node
            if is_plain(value):
                names.add(ast.unparse(value))
        elif isinstance(node, ast.AugAssign) and is_plain(node.target):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            names.add(ast.unparse(node.func.value))
    return names


def find_called_models(
    program: Program, file: SourceFile, node: ast.AST, models: frozenset[str], depth: int = DEPTH
) -> list[str]:
    """Find the models that a node calls: by name, by a method that runs it, as the argument of a call, or
    inside a function of the program that it calls."""
    names = []
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        func = call.func
        if is_plain(func) and ast.unparse(func) in models:
            names.append(ast.unparse(func))
            continue
        if isinstance(func, ast.Attribute) and func.attr not in (*OTHER_METHODS, "generate"):
            name = ast.unparse(func.value)
            if name in models:
                names.append(name)
                continue
        name = file.resolve(func).rpartition(".")[2]
        if name in OTHER_METHODS or name in WRAPPERS or "optim" in name.lower() or "prepare" in name:
            continue
        passed = [text for argument in call.args if is_plain(argument) and (text := ast.unparse(argument)) in models]
        inner = program.functions.get(name)
        if inner and depth and not _has_backward(inner[1]):
            called = find_called_models(program, inner[0], inner[1], models, depth - 1)
            names += (passed or called) if called else []
        elif passed and not inner and not file.resolve(func).startswith(("torch.", "isinstance", "print", "len")):
            names += passed
    return names


def find_context(step: TrainingStep, word: str) -> ast.stmt | None:
    """Find a `with` around or inside a training step that opens a context with a word in its name, or in what the name
    was given. None if there is none."""
    file = step.file
    contexts = {target for target, value in list_assignments(file.tree) if word in ast.unparse(value)}

    def opens(node: ast.AST) -> bool:
        texts = [ast.unparse(item.context_expr) for item in getattr(node, "items", ())]
        return any(word in text or text in contexts for text in texts)

    nodes: list[ast.AST] = [step.backward, *(statement for region in step.regions for statement in region)]
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.With) and opens(inner):
                return inner
        while not isinstance(node, (*FUNCTIONS, ast.Module)):
            if isinstance(node, ast.With | ast.AsyncWith) and opens(node):
                return node
            node = file.parents[node]
    return None
