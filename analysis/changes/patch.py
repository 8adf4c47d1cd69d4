"""The patch that makes changes in a training script, and the lines that are left to write.

    python -m profiler_job.analysis.changes.patch digest FOLDER SCRIPT
    python -m profiler_job.analysis.changes.patch make FOLDER SCRIPT [OPTION...] CHANGE...
    python -m profiler_job.analysis.changes.patch edit FOLDER SCRIPT [OPTION...] CHANGE...
    python -m profiler_job.analysis.changes.patch write FOLDER SCRIPT KEPT DIGESTS [OPTION...] CHANGE...
    python -m profiler_job.analysis.changes.patch accumulate FOLDER SCRIPT --accumulation=JSON --command=JSON

Answers are JSON on standard output; `error` in one says why there is no other. FOLDER: the one that names of files
start from. KEPT: the folder for copies of the files that are changed. DIGESTS: what `digest` answered when the script
was measured, as JSON. Options: --device=TYPE, of the device that it ran on (default: cuda); --workers=N, that a
DataLoader was given; --compiled, if it was seen to compile its model itself; --keeps-gradients, if gradients were there
when backward passes began; --accumulation=JSON, the larger
micro-batches that are measured, a `contract.tuning.Accumulation`; --command=JSON, the command that started it. `edit`
answers with `is_full`, the `texts` of files that the patch changes, by whole path, its `command` if that is another
one, and their `digest`; `accumulate` with the `command` and such `texts` that give the script larger micro-batches, or
with the `reason` why there are none.
"""

import difflib
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from profiler_job.analysis.changes import find_edits, write_code
from profiler_job.analysis.changes.accumulation_code import edit_texts, find_numbers
from profiler_job.analysis.changes.script_code import (
    LineToWrite,
    Program,
    ScriptCodeError,
    SourceFile,
    load_program,
)
from profiler_job.jobs.contract.changes import LABELS
from profiler_job.jobs.contract.outputs import TargetError, write_files
from profiler_job.jobs.contract.tuning import Accumulation

COMPILED = "--compiled"
KEEPS_GRADIENTS = "--keeps-gradients"
DEVICE = "--device"
WORKERS = "--workers"
ACCUMULATION = "--accumulation"
STARTED_BY = "--command"
COMMAND = "the command sets it"
"""Why a patch leaves the command to the user."""
BY_HAND = "no edit of the code is known for it"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """What makes some changes in a script. diff: a unified diff; "" if no file changes. files: the new text of each
    file that does. to_write: lines for the user, by change. present: where the script has a change already. command:
    that starts the script then; () if it stays as it is."""

    diff: str
    files: Mapping[str, SourceFile]
    to_write: Mapping[str, tuple[LineToWrite, ...]]
    present: Mapping[str, str]
    command: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether nothing is left to write but the command."""
        return all(line.reason == COMMAND for lines in self.to_write.values() for line in lines)

    @property
    def digest(self) -> str:
        """SHA-256 of the new texts and the new command; "" if nothing changes."""
        digests = [*(compute_digest(self.files[name]) for name in sorted(self.files)), *self.command]
        return sha256(json.dumps(digests).encode()).hexdigest() if digests else ""


def make_patch(program: Program, changes: Sequence[str]) -> Patch:
    """Make the patch for changes, one after the other. A change whose edits leave code that is not valid Python, or
    that would be edited again, is left to the user. Raises ScriptCodeError."""
    before, to_write, present, of_command = program, {}, {}, ""
    for name in changes:
        made = find_edits(name, program)
        left = made.to_write
        if made.edits or made.command:
            try:
                changed = replace(program.apply(made.edits), command=made.command or program.command)
                again = find_edits(name, changed)
            except ScriptCodeError:
                left = _leave(name, program)
            else:
                if again.edits:
                    left = _leave(name, program)
                else:
                    program, of_command = changed, name if made.command else of_command
        elif made.present:
            present[name] = made.present
        elif not left:
            left = _leave(name, program)
        if left:
            to_write[name] = _find_lines_before(name, before, left)
    command = program.command if of_command else ()
    if command:
        line = LineToWrite(program.script.name, 0, shlex.join(command), COMMAND)
        to_write[of_command] = (*to_write.get(of_command, ()), line)
    old = {file.name: file for file in before.files}
    files = {file.name: file for file in program.files if file.text != old[file.name].text}
    diff = "".join(_compare(old[name], file) for name, file in files.items())
    return Patch(diff=diff, files=files, to_write=to_write, present=present, command=command)


def _leave(name: str, program: Program) -> tuple[LineToWrite, ...]:
    return (LineToWrite(program.script.name, 0, write_code(name, program.device_type), BY_HAND),)


def _find_lines_before(name: str, before: Program, left: tuple[LineToWrite, ...]) -> tuple[LineToWrite, ...]:
    """Return lines to write with the numbers that lines have before other changes, if these do not hide them."""
    first = find_edits(name, before).to_write
    return first if len(first) == len(left) else left


def _compare(old: SourceFile, new: SourceFile) -> str:
    """Return the unified diff of a file."""
    lines = difflib.unified_diff(old.lines, new.lines, f"a/{old.name}", f"b/{new.name}")
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)


def compute_digests(program: Program) -> dict[str, str]:
    """Compute the SHA-256 of each file of a script."""
    return {file.name: compute_digest(file) for file in program.files}


def compute_digest(file: SourceFile) -> str:
    return sha256(file.text.encode(file.encoding)).hexdigest()


def write_patch(patch: Patch, program: Program, kept: Path, measured: Mapping[str, str]) -> list[str]:
    """Write the changed files of a script, and copies of what they were to the folder `kept`. measured: digests of the
    files when the script was measured. Returns the names of the files. Raises ScriptCodeError if a file was changed
    since, and TargetError if one cannot be written."""
    old = {file.name: file for file in program.files}
    for name in patch.files:
        if name not in measured:
            raise ScriptCodeError(f"{name} was not there when the script was measured: nothing was written")
        if compute_digest(old[name]) != measured[name]:
            raise ScriptCodeError(f"{name} was changed since it was measured: nothing was written; tune it again")
    originals = {name: old[name].text.encode(old[name].encoding) for name in patch.files}
    copies = {kept / _flatten(name): content for name, content in originals.items()}
    write_files(copies, lambda file: file.read_bytes() in originals.values(), advice="move it away")
    changed = {file.path: file.text.encode(file.encoding) for file in patch.files.values()}
    write_files(changed, lambda file: file.read_bytes() in originals.values(), advice="tune it again")
    return [*patch.files]


def _flatten(name: str) -> str:
    """Return a name for a copy in one folder."""
    return name.replace("/", "__")


def describe(patch: Patch) -> dict[str, Any]:
    """Return a patch as JSON: `diff`, `to_write` (change, label, file, line, code, reason), `present` (by change),
    `is_full`, `digest`."""
    lines = [
        {"change": name, "label": LABELS[name], **line._asdict()}
        for name, lines in patch.to_write.items()
        for line in lines
    ]
    made = {"diff": patch.diff, "present": dict(patch.present), "is_full": patch.is_full, "digest": patch.digest}
    return made | {"to_write": lines}


def accumulate(program: Program) -> dict[str, Any]:
    """Return what gives a script larger micro-batches (see above)."""
    assert program.accumulation is not None
    new = find_numbers(program, program.accumulation)
    texts = edit_texts(program, new.edits)
    by_path = {str(file.path.resolve()): texts[file.name] for file in program.files if file.name in texts}
    return {"reason": new.reason, "command": list(new.command), "texts": by_path}


def take_option(program: Program, option: str, value: str = "") -> Program:
    """Return a program with what an option shows about its run (see above)."""
    if option == DEVICE:
        return replace(program, device_type=value)
    if option == WORKERS:
        return replace(program, num_workers=int(value))
    if option == ACCUMULATION:
        return replace(program, accumulation=Accumulation.model_validate_json(value))
    if option == STARTED_BY:
        return replace(program, command=tuple(json.loads(value)))
    if option == KEEPS_GRADIENTS:
        return replace(program, keeps_gradients=True)
    assert option == COMPILED
    return replace(program, is_compiled=True)


def answer(task: str, folder: Path, script: Path, *arguments: str) -> dict[str, Any]:
    """Return the answer of the module to a task. Raises ScriptCodeError and TargetError."""
    program = load_program(script, folder)
    for given in [each for each in arguments if each.startswith("--")]:
        program = take_option(program, *given.split("=", 1))
    arguments = tuple(each for each in arguments if not each.startswith("--"))
    if task == "accumulate":
        return accumulate(program)
    if task == "digest":
        return {"digests": compute_digests(program)}
    if task == "edit":
        made = make_patch(program, arguments)
        texts = {str(file.path.resolve()): file.text for file in made.files.values()}
        return {"is_full": made.is_full, "texts": texts, "command": list(made.command), "digest": made.digest}
    if task == "make":
        return describe(make_patch(program, arguments))
    kept, measured, *changes = arguments
    patch = make_patch(program, changes)
    names = write_patch(patch, program, Path(kept), json.loads(measured))
    return describe(patch) | {"written": names}


def main(task: str, folder: str, script: str, *arguments: str) -> None:
    try:
        result = answer(task, Path(folder), Path(script), *arguments)
    except (ScriptCodeError, TargetError) as error:
        result = {"error": str(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
