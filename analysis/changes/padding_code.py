"""Edits that pad the outputs of linear layers, such as the logits of a vocabulary of 50257, and cut the rest off again:
what a model returns, its losses and its state_dict stay the same."""

import ast
from collections.abc import Iterator, Sequence

from profiler_job.analysis.changes.code_places import find_creation, find_imports_end, name_torch
from profiler_job.analysis.changes.model_code import import_torch
from profiler_job.analysis.changes.script_code import (
    Edit,
    FoundEdits,
    LineToWrite,
    Program,
    SourceFile,
    find_argument,
)
from profiler_job.analysis.changes.training_step import find_training_steps

PADDED = "PaddedLinear"
PAD = "pad_outputs"
CLASS = '''

class {padded}({torch}.nn.Linear):
    """Computes its outputs for a multiple of 64, which is faster, and cuts the rest off."""

    def forward(self, inputs):
        rest = -self.out_features % 64
        weight = {torch}.nn.functional.pad(self.weight, (0, 0, 0, rest))
        bias = None if self.bias is None else {torch}.nn.functional.pad(self.bias, (0, rest))
        return {torch}.nn.functional.linear(inputs, weight, bias)[..., : self.out_features]

    def __reduce_ex__(self, protocol):  # saved and copied as the layer that it was
        make, given, *state = super().__reduce_ex__(0)
        return make, ({torch}.nn.Linear, *given[1:]), *state


def {pad}(layer):
    if type(layer) is {torch}.nn.Linear and layer.out_features >= 1024 and layer.out_features % 8:
        layer.__class__ = {padded}

'''
"""Code for the file that makes the model. Layers keep their weights, so that optimizers and state_dicts do, too. A
saved model has layers that other scripts can load. They are those that `jobs.follow.changes.padding` pads."""
MORE_LOGITS = "tokens that never occur: the loss sums over their logits, too"
RESIZE, MULTIPLE_OF = "resize_token_embeddings", "pad_to_multiple_of"
MOVES = ("to", "cuda", "cpu", "train", "eval", "float", "half", "bfloat16")
"""Methods of a model that return it."""
MULTIPLE = 64
"""A padded dimension is a multiple of this."""


def pad_outputs(program: Program, code: str) -> FoundEdits:
    """Pad the outputs of the linear layers of models after these are made. If it is not known where, constant sizes of
    vocabularies are left to the user. code: what to write where the size is computed."""
    if present := find_padding(program):
        return FoundEdits(present=present)
    edits: list[Edit] = []
    models = [*_find_models(program)]
    resizes = [(file, call) for file, call in program.find_all_calls() if _does_resize(call)]
    if lines := [*_find_other_resizes(models, resizes)]:
        return FoundEdits(to_write=tuple(lines))
    for file, model, made in models:
        places = _list_places(file, made, [call for of, call in resizes if of is file and _name_resized(call) == model])
        calls = [file.insert_after(place, f"{model}.apply({PAD})") for place in places]
        helper = _write_class(file)
        if None in calls or not helper:
            edits = []
            break
        edits += [*helper, *filter(None, calls)]
    if edits:
        return FoundEdits(edits=tuple(dict.fromkeys(edits)))
    return FoundEdits(to_write=tuple(_find_vocabularies(program)) or (_write_by_hand(program, code),))


def find_padding(program: Program) -> str:
    """Find where a script pads outputs already; "" if it does not."""
    for file in program.files:
        for node in file.find_all(ast.ClassDef):
            if node.name == PADDED:
                return file.name_place(node)
        for call in file.find_all(ast.Call):
            if _does_resize(call) and _resizes_to_multiple(call):
                return file.name_place(call)
    return ""


def _does_resize(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == RESIZE


def _name_resized(call: ast.Call) -> str:
    """Return the model whose vocabulary a call resizes, as it is written."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _resizes_to_multiple(call: ast.Call) -> bool:
    """Return whether a call resizes a vocabulary to a size that needs no padding."""
    multiple = find_argument(call, MULTIPLE_OF) or next(iter(call.args[1:]), None)
    size = find_argument(call, "new_num_tokens") or next(iter(call.args), None)
    return any(
        isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0 and not value.value % 8
        for value in (multiple, size)
    )


def _find_other_resizes(
    models: Sequence[tuple[SourceFile, str, ast.stmt]], resizes: Sequence[tuple[SourceFile, ast.Call]]
) -> Iterator[LineToWrite]:
    """Yield what to write where a model is resized that is not known to be one of `models`: its new layers would not be
    padded."""
    known = [(file.name, model) for file, model, _ in models]
    for file, call in resizes:
        if (file.name, _name_resized(call)) not in known:
            kept = [keyword for keyword in call.keywords if keyword.arg not in (MULTIPLE_OF, "mean_resizing")]
            new = [ast.keyword(MULTIPLE_OF, ast.Constant(MULTIPLE)), ast.keyword("mean_resizing", ast.Constant(False))]
            code = ast.unparse(ast.Call(call.func, call.args[:1], [*kept, *new]))
            yield LineToWrite(file.name, call.lineno, code, MORE_LOGITS)


def _list_places(file: SourceFile, made: ast.stmt, resizes: Sequence[ast.Call]) -> list[ast.stmt]:
    """List the statements after which a model is padded: those that resize it, which make its layers anew, and its
    creation unless one of them always follows."""
    places = [file.find_statement(call) for call in resizes]
    always = any(place.lineno > made.lineno and file.suites.get(place) is file.suites.get(made) for place in places)
    return list(dict.fromkeys([*([] if always else [made]), *places]))


def _write_class(file: SourceFile) -> list[Edit]:
    """Return the edits that write the class after the imports of a file; [] if it begins with none."""
    after = find_imports_end(file)
    if after is None or after not in file.tree.body:
        return []
    torch = name_torch(file)
    text = CLASS.format(padded=PADDED, pad=PAD, torch=torch or "torch").rstrip("\n") + "\n"
    own = [line.replace("    ", file.indent) if line.startswith(" ") else line for line in text.splitlines()]
    following = file.lines[after.end_lineno : (after.end_lineno or 0) + 2]
    own += [""] * (2 - _count_empty(following)) if following else []
    edit = file.insert_after(after, *own)
    return [*([] if torch else import_torch(file)), edit] if edit else []


def _count_empty(lines: list[str]) -> int:
    """Count the empty lines at the begin of some."""
    return next((number for number, line in enumerate(lines) if line.strip()), len(lines))


def _find_models(program: Program) -> Iterator[tuple[SourceFile, str, ast.stmt]]:
    """Yield the file, the name and the creation of each model that a training step calls; if it is not known what
    steps call, as of a trainer, of each language model of Transformers."""
    steps = [(step, model) for step in find_training_steps(program) for model in step.models]
    for step, model in steps:
        made = find_creation(step.file, model, step.backward)
        if made is not None:
            yield step.file, model, made
            continue
        for file in program.files:
            if file.tree.body and (made := find_creation(file, model, file.tree.body[0])):
                yield file, model, made
                break
    if steps:
        return
    for file, call in program.find_all_calls():
        statement = file.find_statement(call)
        if not _makes_language_model(file, call) or not isinstance(statement, ast.Assign):
            continue
        if _is_moved(statement.value, call) and len(statement.targets) == 1:
            yield file, ast.unparse(statement.targets[0]), statement


def _makes_language_model(file: SourceFile, call: ast.Call) -> bool:
    parts = file.resolve(call.func).split(".")
    return parts[0] == "transformers" and any("LM" in part and part[0].isupper() for part in parts[1:])


def _is_moved(value: ast.expr, made: ast.Call) -> bool:
    """Return whether an expression is a model that is made, and at most moved or switched, as by `.to(device)`."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MOVES:
        value = value.func.value
    return value is made


def _find_vocabularies(program: Program) -> Iterator[LineToWrite]:
    """Yield the constant sizes of vocabularies that are not a multiple of MULTIPLE. They are left to the user, since a
    larger one changes the numbers that the model begins with."""
    for file in program.files:
        constants: list[tuple[str, ast.expr]] = [
            (keyword.arg or "", keyword.value) for keyword in file.find_all(ast.keyword)
        ]
        for node in file.find_all(ast.Assign):
            constants += [(ast.unparse(target).rpartition(".")[2], node.value) for target in node.targets]
        for annotated in file.find_all(ast.AnnAssign):
            constants += [(ast.unparse(annotated.target), annotated.value)] if annotated.value else []
        for name, value in constants:
            if name.lower() not in ("vocab_size", "n_vocab", "num_tokens", "vocabulary_size"):
                continue
            if isinstance(value, ast.Constant) and type(value.value) is int and value.value % MULTIPLE:
                padded = -(-value.value // MULTIPLE) * MULTIPLE
                yield LineToWrite(file.name, value.lineno, f"{name}={padded}", MORE_LOGITS)


def _write_by_hand(program: Program, code: str) -> LineToWrite:
    """Return what to write where nothing else is known."""
    for file, call in program.find_all_calls():
        if _makes_language_model(file, call):
            resize = f"model.{RESIZE}({MULTIPLE_OF}={MULTIPLE}, mean_resizing=False)"
            why = f"after the model is made; {MORE_LOGITS}"
            return LineToWrite(file.name, file.find_statement(call).lineno, resize, why)
    return LineToWrite(program.script.name, 0, code, "the script computes the size of the vocabulary")
