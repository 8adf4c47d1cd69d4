"""How much faster or slower the kinds of kernels of any training script get with a change, and its host: fitted to
pairs of recorded runs, which differ by that change alone. Of a script neither the shapes of its matmuls nor its modules
are known, so a kind of kernels of a phase takes

    time = f0 x its time before + f1 x its launches

but for the elementwise kernels that compiling leaves, which `fusion` tells from matmuls. `script_development` fits
these factors.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler_job.analysis.prediction import rates
from profiler_job.jobs.contract.changes import BF16, CHANGES, COMPILE, COMPILED, CUDA_GRAPHS, TF32

FILE = Path(__file__).resolve().parent / "script_rates.json"
LINEAR, UNPADDED_LINEAR, ATTENTION_GEMMS, REST = "linear", "unpadded", "gemms", "rest"
"""Matmuls of one module that has none inside; of one whose weights are not padded, in a step in FP32; matmuls of
two tensors, by a module around others; everything else."""
MATMULS = (LINEAR, UNPADDED_LINEAR, ATTENTION_GEMMS)
AXES = {
    TF32: ("precision", ("fp32",), CHANGES[TF32].value),
    BF16: ("precision", ("fp32", "tf32"), CHANGES[BF16].value),
    COMPILE: ("compile", ("off",), CHANGES[COMPILE].value),
    CUDA_GRAPHS: ("compile", ("off",), CHANGES[CUDA_GRAPHS].value),
}
"""Of each change the axis of a run, the values that it starts from, and the one that it leads to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptRates:
    """times: factors (f0, f1 in us) and launches: of those before, by change, phase and kind. host: of the time that
    the host needs to launch a phase, by change and phase. adamw: fused AdamW's time over the time of its traffic at
    `bandwidth`, in bytes a second. errors: measured over predicted of the pairs, each with the rates of other sizes.
    tested: the same of the predictions of scripts that were kept before they were measured. others: the same of sweeps
    with other models than the reference Transformer, to which no rate was fitted. attention: of the time of
    unfused attention by precision, what fused attention takes: least, median, most. per_tensor: of the time of AdamW
    tensor by tensor, what fused AdamW takes: least, median, most. passes: by change and phase the factor of
    `fusion`."""

    gpu: str
    bandwidth: float
    adamw: float
    times: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    host: Mapping[str, float] = dataclasses.field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()
    tested: Sequence[Mapping[str, Any]] = ()
    others: Sequence[Mapping[str, Any]] = ()
    attention: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    per_tensor: Sequence[float] = ()
    passes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    made_from: Sequence[Mapping[str, str]] = ()


def name_of(change: str, precision: str) -> str:
    """A change with what it starts from. Matmuls get faster by less from TF32 than from FP32, and what is fused by
    compiling differs with the casts of BF16."""
    return f"{change}/{width_of(precision) if change in COMPILED else precision}"


def name_rate_kind(kind: str) -> str:
    """The kind whose rates one has: in FP32, and aligned, matmuls of weights that are not padded are as all others."""
    return LINEAR if kind == UNPADDED_LINEAR else kind


def width_of(precision: str) -> int:
    """Bits of the numbers that most kernels read."""
    return 16 if precision in ("bf16", "fp16") else 32


def host_factor(rates: ScriptRates, change: str, precision: str, phase: str) -> float | None:
    """What the host needs for a phase after a change, over before; None where no pair tells. A replayed graph is one
    launch, whatever numbers it computes with, so a pair of another precision covers it, too."""
    known = rates.host.get(f"{name_of(change, precision)}/{phase}")
    if known is None and change == CUDA_GRAPHS:
        known = next((rates.host.get(f"{change}/{width}/{phase}") for width in (16, 32)), None)
    return known


def load(file: Path = FILE) -> ScriptRates:
    return ScriptRates(**json.loads(file.read_text(encoding="utf-8")))


def save(made: ScriptRates, file: Path = FILE) -> None:
    file.write_text(json.dumps(rates.round_numbers(dataclasses.asdict(made)), indent=1) + "\n", encoding="utf-8")
