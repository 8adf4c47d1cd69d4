"""How much faster or slower the kinds of kernels of any training script get with a change, and its host: fitted to
pairs of recorded runs, which differ by that change alone. Of a script neither the shapes of its matmuls nor its modules
are known, so a kind of kernels of a phase takes

    time = f0 x its time before + f1 x its launches

python -m analysis.prediction.script_rates RECORDING...
"""

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.prediction import predict, rates
from analysis.prediction.baseline import ATTENTION, GEMM, Baseline, baselines
from analysis.prediction.changes import BATCHED, PASSES
from analysis.recording import store
from analysis.reference import flops
from jobs.contract import ranges

FILE = Path(__file__).parent / "script_rates.json"
LINEAR, PRODUCTS, REST = "linear", "products", "rest"
"""Matmuls of one module that has none inside; of two tensors, by a module around others; everything else."""
AXES = {
    "tf32": ("precision", ("fp32",), "tf32"),
    "bf16": ("precision", ("fp32", "tf32"), "bf16"),
    "compile": ("compile", ("off",), "default"),
    "cuda_graphs": ("compile", ("off",), "cudagraphs"),
}
"""Of each change the axis of a run, the values that it starts from, and the one that it leads to."""
SAME = ("size", "context_length", "mode", "batch_size", "precision", "attention", "compile", "optimizer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptRates:
    """times: factors (f0, f1 in us) and launches: of those before, by change, phase and kind. host: of the time that
    the host needs to launch a phase, by change and phase. adamw: fused AdamW's time over that of its traffic at
    `bandwidth`, in bytes a second. errors: measured over predicted of the pairs, each with the rates of other sizes."""

    gpu: str
    bandwidth: float
    adamw: float
    times: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    host: Mapping[str, float] = dataclasses.field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()
    made_from: Sequence[Mapping[str, str]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A run before and after a change. name: of the change, with the width of its numbers where that matters."""

    before: Baseline
    after: Baseline
    change: str

    @property
    def name(self) -> str:
        return name_of(self.change, str(self.before.run["precision"]))


def name_of(change: str, precision: str) -> str:
    """What is fused by compiling differs with the casts of BF16."""
    if change not in ("compile", "cuda_graphs"):
        return change
    return f"{change}/{16 if precision in ('bf16', 'fp16') else 32}"


def load(file: Path = FILE) -> ScriptRates:
    return ScriptRates(**json.loads(file.read_text(encoding="utf-8")))


def save(made: ScriptRates, file: Path = FILE) -> None:
    file.write_text(json.dumps(rates.rounded(dataclasses.asdict(made)), indent=1) + "\n", encoding="utf-8")


def kinds(parts: pd.DataFrame) -> pd.DataFrame:
    """Operations of a run by phase and kind, of a table with the leaf: launches, time_ns."""
    kind = parts["kind"].where(parts["kind"].isin([GEMM, ATTENTION]), REST)
    kind = kind.mask(parts["kind"] == GEMM, np.where(parts["leaf"].isin(BATCHED), PRODUCTS, LINEAR))
    return parts.groupby(["phase", kind.rename("kind")])[["launches", "time_ns"]].sum()


def pairs(runs: Iterable[Baseline]) -> list[Pair]:
    """Each training step with every other that differs from it by one change alone."""
    steps = [run for run in runs if str(run.run["mode"]) == "train_step"]
    return [
        Pair(before=before, after=after, change=change)
        for before in steps
        for after in steps
        for change, (axis, old, new) in AXES.items()
        if str(before.run[axis]) in old
        and str(after.run[axis]) == new
        and all(str(before.run[name]) == str(after.run[name]) for name in SAME if name != axis)
    ]


def fitted(every: Sequence[Pair], gpu: str, bandwidth: float, adamw: float) -> ScriptRates:
    times: dict[str, list] = {}
    launches: dict[str, list[float]] = {}
    host: dict[str, list[float]] = {}
    for pair in every:
        before, after = kinds(_merged(pair, pair.before.parts)), kinds(_merged(pair, pair.after.parts))
        for key, row in before.iterrows():
            phase, kind = key
            if phase not in PASSES or key not in after.index:
                continue
            name = f"{pair.name}/{phase}/{kind}"
            new = after.loc[key]
            times.setdefault(name, []).append(([row["time_ns"], 1e3 * row["launches"]], new["time_ns"]))
            launches.setdefault(name, []).append(new["launches"] / row["launches"])
        for phase in PASSES:
            known = [host_ns(run, phase) for run in (pair.before, pair.after)]
            if not any(map(math.isnan, known)):
                host.setdefault(f"{pair.name}/{phase}", []).append(known[1] / known[0])
    return ScriptRates(
        gpu=gpu,
        bandwidth=bandwidth,
        adamw=adamw,
        times={name: rates.fit(*zip(*rows)) for name, rows in times.items()},
        launches={name: float(np.median(values)) for name, values in launches.items()},
        host={name: float(np.median(values)) for name, values in host.items()},
    )


def _merged(pair: Pair, parts: pd.DataFrame) -> pd.DataFrame:
    """torch.compile's matmuls are of no module, so all are of one kind there."""
    return parts.assign(leaf="") if pair.change in ("compile", "cuda_graphs") else parts


def host_ns(run: Baseline, phase: str) -> float:
    """Time that the host needs to launch a phase; NaN where it waited for the GPU, or where that is not known."""
    parts = run.parts[run.parts["phase"] == phase]
    known = predict.own_host_rates(run)
    if phase in known:
        return known[phase] * float(parts["launches"].sum())
    clock = run.clocks.get(phase)
    if clock is None or not math.isnan(clock.issue_ns):
        return math.nan
    # An older recording: a phase that takes much longer than its kernels is the host's.
    return clock.wall_ns if clock.wall_ns > 1.3 * parts["time_ns"].sum() else math.nan


def adamw_factor(runs: Iterable[Baseline], bandwidth: float) -> float:
    """Median of fused AdamW's time over that of 28 bytes for each parameter."""
    known = [
        run.parts.loc[run.parts["phase"] == ranges.OPTIMIZER, "time_ns"].sum()
        / (flops.adamw(int(run.run["num_parameters"])).bytes / bandwidth * 1e9)
        for run in runs
        if str(run.run["mode"]) == "train_step" and str(run.run["optimizer"]) == "fused"
    ]
    return float(np.median(known))


def developed(runs: Sequence[Baseline], known: rates.Rates) -> ScriptRates:
    """Rates of these runs, with the errors of their pairs. known: what was fitted to the reference Transformer."""
    from analysis.prediction import scripts  # which predicts with these rates

    every, gpu, bandwidth = pairs(runs), known.gpu, known.peaks["copy"]
    adamw = adamw_factor(runs, bandwidth)
    errors = []
    for size in dict.fromkeys(str(pair.before.run["size"]) for pair in every):
        others = fitted([pair for pair in every if str(pair.before.run["size"]) != size], gpu, bandwidth, adamw)
        errors += [scripts.error_of(pair, others, known.host) for pair in every if str(pair.before.run["size"]) == size]
    return dataclasses.replace(
        fitted(every, gpu, bandwidth, adamw), errors=[error for error in errors if error is not None]
    )


if __name__ == "__main__":
    recordings = [store.load(Path(folder)) for folder in sys.argv[1:]]
    made = developed([run for recording in recordings for run in baselines(recording)], rates.load())
    sources = [{key: recording.manifest[key] for key in ("name", "created", "commit")} for recording in recordings]
    save(dataclasses.replace(made, made_from=sources))
