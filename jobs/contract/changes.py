"""The changes that make a training script faster, each with what both sides need to know of it.

A new change is one entry here; `analysis/changes/NAME.py`, which says what shows that it would help, what it could save
at most and the code to write; and, if it can be made without editing a script, `jobs/follow/changes/NAME.py`, which
switches it on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.step_limit import COMPUTE, DATA, LAUNCHES, MEMORY, NOTHING, SYNCHRONISATION


@dataclass(frozen=True, kw_only=True)
class ChangeRecord:
    """Facts about a change.

    label: its name on pages. axis, value: the axis of a run that it sets, and to what; "" if it sets none. one_of: the
    axis with whose changes it is one choice, though it has no value of it. is_triable:
    whether it can be made in a script from outside, without editing it. needs_process: only from the start of a
    process, and not between two steps. is_bound: what is made from outside only shows what the change could save.
    relieves: the limits of a step that it makes smaller, and for the CPU what the GPU waits for.
    """

    label: str
    axis: str = ""
    value: str = ""
    one_of: str = ""
    is_triable: bool = False
    needs_process: bool = False
    is_bound: bool = False
    relieves: tuple[str, ...] = ()


TF32 = "tf32"
BF16 = "bf16"
FUSED_ATTENTION = "fused_attention"
FUSED_ADAMW = "fused_adamw"
FOREACH = "foreach"
CUDNN_ATTENTION = "cudnn_attention"
DROPPED_GRADIENTS = "dropped_gradients"
CUDNN_BENCHMARK = "cudnn_benchmark"
EXPANDABLE_SEGMENTS = "expandable_segments"
FEWER_ACCUMULATIONS = "fewer_accumulations"
COMPILE = "compile"
COMPILE_BLOCKS = "compile_blocks"
WHOLE_GRAPHS = "whole_graphs"
CUDA_GRAPHS = "cuda_graphs"
PADDING = "padding"
CASTS = "casts"
COPIES = "copies"
SYNCHRONISATIONS = "synchronisations"
LOADER_WORKERS = "loader_workers"
STATIC_CACHE = "static_cache"
FUSED_LOSS = "fused_loss"
LARGER_BATCH = "larger_batch"
CHECKPOINTING = "checkpointing"
KEEP_ACTIVATIONS = "keep_activations"
SCRIPT_LINE = "script_line"

CHANGES = {
    TF32: ChangeRecord(label="TF32", axis="precision", value="tf32", is_triable=True, relieves=(COMPUTE,)),
    BF16: ChangeRecord(
        label="BF16 autocast", axis="precision", value="bf16", is_triable=True, relieves=(COMPUTE, MEMORY)
    ),
    FUSED_ATTENTION: ChangeRecord(
        label="fused attention",
        axis="attention",
        value="sdpa",
        is_triable=True,
        relieves=(COMPUTE, MEMORY, LAUNCHES),
    ),
    CUDNN_ATTENTION: ChangeRecord(label="attention by cuDNN", is_triable=True, relieves=(COMPUTE,)),
    FUSED_ADAMW: ChangeRecord(
        label="fused optimizer", axis="optimizer", value="fused", is_triable=True, relieves=(MEMORY, LAUNCHES)
    ),
    FOREACH: ChangeRecord(
        label="foreach optimizer", axis="optimizer", value="foreach", is_triable=True, relieves=(LAUNCHES,)
    ),
    DROPPED_GRADIENTS: ChangeRecord(label="dropped gradients", is_triable=True, relieves=(MEMORY, LAUNCHES)),
    COMPILE: ChangeRecord(
        label="torch.compile", axis="compile", value="default", is_triable=True, relieves=(MEMORY, LAUNCHES)
    ),
    COMPILE_BLOCKS: ChangeRecord(
        label="torch.compile of blocks", one_of="compile", is_triable=True, relieves=(MEMORY, LAUNCHES)
    ),
    WHOLE_GRAPHS: ChangeRecord(label="no graph breaks", relieves=(LAUNCHES, SYNCHRONISATION, NOTHING)),
    CUDA_GRAPHS: ChangeRecord(
        label="CUDA graphs", axis="compile", value="cudagraphs", is_triable=True, relieves=(LAUNCHES,)
    ),
    PADDING: ChangeRecord(label="padded dimensions", is_triable=True, relieves=(COMPUTE,)),
    CASTS: ChangeRecord(label="fewer casts", relieves=(MEMORY, LAUNCHES)),
    CUDNN_BENCHMARK: ChangeRecord(label="search for convolutions", is_triable=True, relieves=(COMPUTE,)),
    COPIES: ChangeRecord(label="pinned memory", is_triable=True, relieves=(MEMORY, DATA)),
    SYNCHRONISATIONS: ChangeRecord(
        label="fewer synchronisations", is_triable=True, is_bound=True, relieves=(SYNCHRONISATION,)
    ),
    LOADER_WORKERS: ChangeRecord(
        label="workers of the DataLoader", is_triable=True, needs_process=True, relieves=(DATA,)
    ),
    FEWER_ACCUMULATIONS: ChangeRecord(
        label="larger micro-batches", is_triable=True, needs_process=True, relieves=(COMPUTE, MEMORY, LAUNCHES)
    ),
    EXPANDABLE_SEGMENTS: ChangeRecord(
        label="expandable segments", is_triable=True, needs_process=True, relieves=(SYNCHRONISATION,)
    ),
    STATIC_CACHE: ChangeRecord(label="static cache", relieves=(MEMORY, LAUNCHES)),
    FUSED_LOSS: ChangeRecord(label="fused loss", relieves=(MEMORY,)),
    LARGER_BATCH: ChangeRecord(label="larger batch", relieves=(LAUNCHES,)),
    CHECKPOINTING: ChangeRecord(label="activation checkpointing"),
    KEEP_ACTIVATIONS: ChangeRecord(label="no checkpointing", is_triable=True, relieves=(COMPUTE, MEMORY, LAUNCHES)),
    SCRIPT_LINE: ChangeRecord(label="line of the script", relieves=(LAUNCHES, SYNCHRONISATION, DATA, NOTHING)),
}
"""By name, in the order in which a set of them is applied and named."""
LABELS = {name: record.label for name, record in CHANGES.items()}
TRIABLE = tuple(name for name, record in CHANGES.items() if record.is_triable)
COMPILED = tuple(name for name, record in CHANGES.items() if record.axis == "compile")


class RefusalCode(StrEnum):
    """Why changes cannot be tried."""

    UNKNOWN = "unknown"
    NEEDS_CODE = "needs_code"


class ChangeSetError(ProfilerError, ValueError):
    """Changes cannot be tried: `code` and the changes' names say why, and the message says it in one line."""

    def __init__(self, code: RefusalCode, names: tuple[str, ...], message: str):
        super().__init__(message)
        self.code, self.names = code, names


def find_conflict(names: Iterable[str]) -> tuple[str, ...]:
    """Return the changes that set one axis, which a set may do once; () if none do."""
    by_axis: dict[str, list[str]] = {}
    wanted = {*names}
    for name, record in CHANGES.items():
        if name in wanted and (choice := record.axis or record.one_of):
            by_axis.setdefault(choice, []).append(name)
    return next((tuple(group) for group in by_axis.values() if len(group) > 1), ())


def add_change(names: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the changes with one more, in place of those with which it is one choice."""
    return (*(other for other in names if other != name and not find_conflict((other, name))), name)


def parse_changes(texts: Iterable[str]) -> tuple[str, ...]:
    """Return changes from texts of names joined by commas, each once and in the order of `CHANGES`. Raises
    ChangeSetError."""
    names = {name.strip(): None for text in texts for name in text.split(",")}
    for name in names:
        if name not in CHANGES:
            known = ", ".join(TRIABLE)
            message = f"{name or 'an empty name'} is not a known change; the known ones are: {known}"
            raise ChangeSetError(RefusalCode.UNKNOWN, (name,), message)
        if name not in TRIABLE:
            message = f"{name} needs a change of code, to be compared with `profiler-job compare`"
            raise ChangeSetError(RefusalCode.NEEDS_CODE, (name,), message)
    return tuple(name for name in TRIABLE if name in names)
