"""What each change needs to see, what it could save at most, and the code to write: one module a change, by its name in
`jobs.contract.changes`. Its twin in `jobs/follow/changes` switches it on."""

from functools import cache
from importlib import import_module
from typing import Protocol, cast

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence
from profiler_job.analysis.changes.script_code import FoundEdits, Program


class AdvisedChange(Protocol):
    """A module of this package. CODE: the code to write, in one line. ACTION: what to do, as a heading. LINE: an
    example of the code that works as it stands, at most 55 characters. A module may also have

    - `PLAIN`: what to do in a program without PyTorch. A change without it is not advised there.
    - `COMPILED`: what to do in a script that torch.compile compiles already, if that is something else.
    - `RECORDED`: what recorded runs do, if `CODE` also names another way.
    - `CAUTION`: what a reader should know before making the change, in a few words.
    - `find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None`: what a capture shows for the change, and the most
      that it could save; None if it shows nothing. Raises WithheldError if it shows something, and a reason against the
      change. A change without it is never advised: only `tune` measures it, or tells what parts of a step expect of it.
    - `find_edits(program: Program) -> FoundEdits`: what makes the change in a script."""

    CODE: str
    ACTION: str
    LINE: str


@cache
def load_change(name: str) -> AdvisedChange:
    """Return the module of a change."""
    return cast(AdvisedChange, import_module(f"{__name__}.{name}"))


def describe_code(name: str, has_pytorch: bool, is_compiled: bool = False) -> str | None:
    """Return the code to write for a change, in a script that is compiled already, or what to do without PyTorch; None
    if it has no meaning there."""
    module = load_change(name)
    if not has_pytorch:
        return getattr(module, "PLAIN", None)
    return str(getattr(module, "COMPILED", module.CODE)) if is_compiled else module.CODE


def write_code(name: str, device_type: str) -> str:
    """Return the code to write for a change in a script that ran on a type of device, `cuda` or `cpu`."""
    return load_change(name).CODE.replace('"cuda"', f'"{device_type}"')


def find_evidence(name: str, seen: CaptureEvidence) -> ChangeEvidence | None:
    """Find what a capture shows for a change: nothing if no capture can. Raises WithheldError."""
    find = getattr(load_change(name), "find_evidence", None)
    return cast(ChangeEvidence | None, find(seen)) if find else None


def find_caution(name: str) -> str:
    """Return what a reader should know before making a change; "" if there is nothing."""
    return str(getattr(load_change(name), "CAUTION", ""))


def find_edits(name: str, program: Program) -> FoundEdits:
    """Find what makes a change in a script: nothing if the change's module does not say how."""
    find = getattr(load_change(name), "find_edits", None)
    return cast(FoundEdits, find(program)) if find else FoundEdits()


def join_code(names: tuple[str, ...], is_recorded: bool = False) -> str:
    """Return the code to write for a set of changes, or what recorded runs do."""
    modules = map(load_change, names)
    return "; ".join(getattr(module, "RECORDED", module.CODE) if is_recorded else module.CODE for module in modules)
