"""The changes that can be predicted: when each has nothing to say, and what it does to the operations of a step. A
set of changes is applied one after the other to one table of operations; gains are never added."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.prediction.abstentions import AbstentionCode, AbstentionError, NoModelError
from profiler_job.analysis.prediction.baseline import ATTENTION, GEMM, REST, Baseline
from profiler_job.analysis.prediction.rates import Rates
from profiler_job.analysis.reference import flops
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.changes import (
    BF16,
    COMPILE,
    CUDA_GRAPHS,
    FUSED_ADAMW,
    FUSED_ATTENTION,
    LABELS,
    LARGER_BATCH,
    TF32,
    find_conflict,
)
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.quantities import format_size

EAGER = ("attention_scores", "softmax", "attention_output")
"""What fused attention replaces."""
FUSED = ranges.FUSED_ATTENTION
AROUND = ("qkv_proj", "rope", "o_proj", "(gradient accumulation)")
"""Modules whose copies and sums are others with fused attention."""
BATCHED = ("attention_scores", "attention_output")
PASSES = {ranges.FORWARD: 1, ranges.BACKWARD: 2}
"""Matmuls of a phase for each matmul of forward."""
OWN_ADAMW_KERNELS = 8
"""Kernels of reference AdamW for each tensor of parameters."""
FUSED_IN = {"fp32": f"{FUSED_ATTENTION}_fp32", "bf16": FUSED_ATTENTION}
"""What the rates call fused attention in a precision."""
TIMES_BATCH = 2
"""How many times as large a larger batch is."""
STATE_BYTES = 16
"""For each parameter: it, its gradient and AdamW's two averages in FP32. All else in a peak grows with the batch."""
MOST_MEMORY = 0.9
"""Part of the GPU's memory that a step may be predicted to need."""


@dataclass(frozen=True)
class State:
    """A step as it would be: run and parts as in `Baseline`; touched: the phases that a change touches; work: its
    tokens over tokens of the baseline's step."""

    run: Mapping[str, Any]
    parts: pd.DataFrame
    touched: frozenset[str] = frozenset()
    work: float = 1.0


@dataclass(frozen=True)
class Change:
    """name: as the user says it. sets: the axes of a run that it changes; it multiplies the axes of `scales` by so
    much. touches: whether it changes a group of operations (phase, leaf, kind), which the ceiling then counts as
    free."""

    name: str
    sets: Mapping[str, str]
    apply: Callable[[State, Rates], State]
    touches: Callable[[str, str, str], bool]
    scales: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, state: State, rates: Rates) -> State:
        if self.sets and all(str(state.run.get(axis)) == value for axis, value in self.sets.items()):
            raise AbstentionError(AbstentionCode.ALREADY_MADE, f"the run has it already: {LABELS[self.name]}")
        return self.apply(state, rates)

    def settings(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """The axes that it changes of this run, with their new values."""
        return {**self.sets, **{axis: times * int(run[axis]) for axis, times in self.scales.items()}}


def features(run: Mapping[str, Any], rates: Rates, phase: str, leaf: str, kind: str, before: Any) -> list[float]:
    """What the time of a group after a change is a sum of, in ns: its time before, FLOPs at the peak rate, bytes of its
    weights and of its activations at the measured bandwidth, and 1000 for each call of the model."""
    shape, layers = run_grid.shape_of(run), int(run["num_layers"])
    precision = str(run["precision"])
    passes = PASSES.get(phase, 1)
    bandwidth = rates.peaks["copy"] / 1e9
    if kind == GEMM:
        costs = flops.matmul_costs(shape, PRECISIONS[precision].element_bytes)
        if leaf not in costs:
            raise AbstentionError(
                AbstentionCode.MODULES_UNKNOWN,
                f"it has matmuls in {leaf or 'no module'}, where the architecture has none",
            )
        cost, number = costs[leaf]
        number *= passes
        work = number * cost.flops / rates.peaks[f"gemm_{precision}"] * 1e9
        return [before["time_ns"], work, number * cost.bytes / bandwidth, 0.0, 1e3 * number]
    widths = {"ffn": shape.d_ff, "lm_head": shape.vocab_size}
    depth = 1 if leaf in ("lm_head", "embedding", "(loss)", "") else layers
    weights = {
        "qkv_proj": 3 * shape.d_model**2,
        "o_proj": shape.d_model**2,
        "ffn": 3 * shape.d_model * shape.d_ff,
        "lm_head": shape.d_model * shape.vocab_size,
    }.get(leaf, 0)
    activations = shape.num_scores if leaf in EAGER else shape.num_tokens * widths.get(leaf, shape.d_model)
    per_depth = [flops.FP32_BYTES * depth * elements / bandwidth for elements in (weights, activations)]
    return [before["time_ns"], 0.0, *per_depth, 1e3 * depth]


def key_of(name: str, phase: str, leaf: str, kind: str) -> str:
    """Of a group in `Rates.times`: matmuls of one class share their factors."""
    if kind == GEMM:
        leaf = "batched" if leaf in BATCHED else "linear"
    return f"{name}/{phase}/{leaf}/{kind}"


def need_reference(state: State) -> None:
    """Raises AbstentionError for any other program: its shapes and its optimizer are not known."""
    if not run_grid.has_known_shape(state.run):
        raise AbstentionError(
            AbstentionCode.OTHER_WORKLOAD,
            "it is not the reference Transformer: neither the shapes of its matmuls nor its optimizer is known",
        )


def need_modules(state: State) -> None:
    """Raises AbstentionError where a matmul cannot be distinguished from others."""
    need_reference(state)
    if str(state.run.get("compile", "off")) != "off":
        raise AbstentionError(AbstentionCode.NO_PAIR, "torch.compile made its kernels, and no recorded pair has such")
    if run_grid.micro_batches_of(state.run) > 1:
        raise AbstentionError(
            AbstentionCode.NO_PAIR, "it splits its batch into micro-batches, and no recorded pair does"
        )
    kernels = state.parts[state.parts["kind"] == GEMM]
    if (kernels["leaf"] == "").any():
        raise AbstentionError(
            AbstentionCode.MODULES_UNKNOWN, "it is not known which module launched its matmuls: record it anew"
        )


def _use_precision(precision: str) -> Callable[[State, Rates], State]:
    def apply(state: State, rates: Rates) -> State:
        need_modules(state)
        if str(state.run["precision"]) != "fp32":
            raise AbstentionError(AbstentionCode.OTHER_PRECISION, "its matmuls are not FP32")
        if str(state.run["attention"]) != "naive":
            raise AbstentionError(AbstentionCode.NO_PAIR, "no recorded pair has fused attention in FP32 before it")
        run = dict(state.run) | {"precision": precision}
        return apply_change(precision, replace(state, run=run), rates)

    return apply


def apply_change(name: str, state: State, rates: Rates, lost: tuple[str, ...] = ()) -> State:
    """`state` with the times and launches of every group that `rates` have for the change, without leaves `lost`."""
    rows, touched = [], set(state.touched)
    layers = int(state.run["num_layers"])
    before = state.parts[~state.parts["leaf"].isin(lost)]
    gone = state.parts[state.parts["leaf"].isin(lost)]
    touched |= set(gone["phase"])
    known = {(row["phase"], row["leaf"], row["kind"]): row for row in before.to_dict("records")}
    for full in [*rates.launches]:  # groups that come with the change
        change, phase, leaf, kind = full.split("/")
        if change == name and phase in set(state.parts["phase"]) and (phase, leaf, kind) not in known:
            group = {"phase": phase, "leaf": leaf, "kind": kind, "launches": 0.0, "time_ns": 0.0}
            known[phase, leaf, kind] = group
    for (phase, leaf, kind), row in known.items():
        key = key_of(name, phase, leaf, kind)
        if key not in rates.times:
            rows.append(row)
            continue
        touched.add(phase)
        more = rates.launches.get(f"{name}/{phase}/{leaf}/{kind}", 0.0) * layers
        time_ns = rates.time_ns(key, features(state.run, rates, phase, leaf, kind, row))
        rows.append(row | {"time_ns": time_ns, "launches": row["launches"] + more})
    parts = pd.DataFrame(
        [row for row in rows if row["launches"] > 0 or row["time_ns"] > 0], columns=state.parts.columns
    )
    return replace(state, parts=parts, touched=frozenset(touched))


def _fuse_attention(state: State, rates: Rates) -> State:
    need_modules(state)
    precision = str(state.run["precision"])
    if precision not in FUSED_IN:
        raise AbstentionError(
            AbstentionCode.NO_PAIR, f"no recorded pair tells what fused attention gives in {precision.upper()}"
        )
    if str(state.run["attention"]) != "naive":
        raise AbstentionError(AbstentionCode.ALREADY_MADE, "its attention is fused already")
    name = FUSED_IN[precision]
    run = dict(state.run) | {"attention": "sdpa"}
    after = apply_change(name, replace(state, run=run), rates, lost=EAGER)
    layers, rows = int(run["num_layers"]), []
    for phase in sorted(set(after.parts["phase"]) & set(PASSES)):
        key = f"{name}/{phase}/{FUSED}/{ATTENTION}"
        if key not in rates.times:
            raise AbstentionError(
                AbstentionCode.NO_PAIR,
                f"no recorded pair of another size tells what fused attention gives in {precision.upper()}",
            )
        rows.append(
            {
                "phase": phase,
                "leaf": FUSED,
                "kind": ATTENTION,
                "launches": layers * rates.launches[key],
                "time_ns": rates.time_ns(key, fused_features(run, rates, phase)),
            }
        )
    return replace(after, parts=pd.concat([after.parts, pd.DataFrame(rows)], ignore_index=True))


def fused_features(run: Mapping[str, Any], rates: Rates, phase: str) -> list[float]:
    """As in `features`, of the kernels of fused attention."""
    shape, layers = run_grid.shape_of(run), int(run["num_layers"])
    peak = rates.peaks[f"gemm_{run['precision']}"]
    work = layers * PASSES[phase] * flops.fused_attention(shape).flops / peak * 1e9
    bytes_ns = layers * shape.num_tokens * shape.d_model * flops.FP32_BYTES / (rates.peaks["copy"] / 1e9)
    return [0.0, work, 0.0, bytes_ns, 1e3 * layers]


def _fuse_adamw(state: State, rates: Rates) -> State:
    need_reference(state)
    optimizer = state.parts["phase"] == ranges.OPTIMIZER
    if str(state.run["mode"]) != "train_step" or not optimizer.any():
        raise AbstentionError(AbstentionCode.OTHER_MODE, "the run has no optimizer")
    if str(state.run.get("optimizer", "own")) != "own":
        raise AbstentionError(AbstentionCode.OTHER_OPTIMIZER, "only from reference AdamW it is known what it gives")
    tensors = state.parts.loc[optimizer, "launches"].sum() / OWN_ADAMW_KERNELS
    work = flops.adamw(int(state.run["num_parameters"])).bytes / (rates.peaks["copy"] / 1e9)
    fused = {
        "phase": ranges.OPTIMIZER,
        "leaf": "(all parameters)",
        "kind": REST,
        "launches": tensors,
        "time_ns": rates.time_ns(f"{FUSED_ADAMW}/optimizer", [work, 1e3 * tensors]),
    }
    parts = pd.concat([state.parts[~optimizer], pd.DataFrame([fused])], ignore_index=True)
    run = dict(state.run) | {"optimizer": "fused"}
    return replace(state, run=run, parts=parts, touched=state.touched | {ranges.OPTIMIZER})


def _enlarge_batch(state: State, rates: Rates) -> State:
    need_modules(state)
    run = dict(state.run) | {"batch_size": TIMES_BATCH * int(state.run["batch_size"])}
    need_memory(run)
    name = f"{LARGER_BATCH}_{run['precision']}"
    passes = state.parts[state.parts["phase"].isin(PASSES) & state.parts["kind"].isin([GEMM, ATTENTION])]
    for row in passes.to_dict("records"):
        if key_of(name, row["phase"], row["leaf"], row["kind"]) not in rates.times:
            raise AbstentionError(
                AbstentionCode.NO_PAIR,
                f"no recorded pair tells how {row['leaf']} grows with the batch in this precision",
            )
    return replace(apply_change(name, replace(state, run=run), rates), work=state.work * TIMES_BATCH)


def need_memory(run: Mapping[str, Any]) -> None:
    """run: with the larger batch, and the peak of the one that was measured. Raises AbstentionError."""
    known = [run.get(name) for name in ("peak_memory_bytes", "gpu_memory_bytes")]
    peak, gpu = (math.nan if fact is None or pd.isna(fact) else float(fact) for fact in known)
    if math.isnan(peak + gpu):
        raise AbstentionError(AbstentionCode.MEMORY_UNKNOWN, "it is not known how much memory is left")
    kept = STATE_BYTES * int(run["num_parameters"])
    needed = kept + TIMES_BATCH * max(peak - kept, 0.0)
    if needed > MOST_MEMORY * gpu:
        needs = f"it would need about {format_size(needed)} of the GPU's {format_size(gpu)}"
        raise AbstentionError(AbstentionCode.MEMORY_FULL, needs)


def _compile(name: str, value: str) -> Callable[[State, Rates], State]:
    def apply(state: State, rates: Rates) -> State:
        need_reference(state)
        if str(state.run["compile"]) != "off":
            raise AbstentionError(AbstentionCode.ALREADY_MADE, "it is compiled already")
        if (str(state.run["precision"]), str(state.run["attention"])) != ("bf16", "sdpa"):
            raise AbstentionError(
                AbstentionCode.NO_PAIR,
                "compiled steps are known in BF16 with fused attention, and else with nothing but TF32",
            )
        if str(state.run["mode"]) != "train_step":
            raise AbstentionError(AbstentionCode.OTHER_MODE, "the recorded pairs are of training steps")
        of_model = state.parts["phase"].isin(PASSES)
        rows = []
        for (phase, kind), group in state.parts[of_model].groupby(["phase", "kind"]):
            key = f"{name}/{phase}//{kind}"
            if key not in rates.times:
                raise AbstentionError(
                    AbstentionCode.NO_PAIR, "no recorded pair of another size tells what compiling gives"
                )
            time_ns, launches = (float(group[column].sum()) for column in ("time_ns", "launches"))
            row = {"phase": phase, "leaf": "", "kind": kind, "launches": rates.launches[key] * launches}
            rows.append(row | {"time_ns": rates.time_ns(key, [time_ns])})
        parts = pd.concat([state.parts[~of_model], pd.DataFrame(rows)], ignore_index=True)
        run = dict(state.run) | {"compile": value}
        return replace(state, run=run, parts=parts, touched=state.touched | {*PASSES})

    return apply


CHANGES = {
    change.name: change
    for change in (
        Change(
            TF32,
            {"precision": "tf32"},
            _use_precision("tf32"),
            lambda phase, leaf, kind: kind == GEMM,
        ),
        Change(
            BF16,
            {"precision": "bf16"},
            _use_precision("bf16"),
            lambda phase, leaf, kind: phase != ranges.OPTIMIZER,
        ),
        Change(
            FUSED_ATTENTION,
            {"attention": "sdpa"},
            _fuse_attention,
            lambda phase, leaf, kind: phase in PASSES and (leaf in EAGER or kind == REST),
        ),
        Change(
            FUSED_ADAMW,
            {"optimizer": "fused"},
            _fuse_adamw,
            lambda phase, leaf, kind: phase == ranges.OPTIMIZER,
        ),
        Change(
            LARGER_BATCH,
            {},
            _enlarge_batch,
            lambda phase, leaf, kind: phase in PASSES,
            scales={"batch_size": TIMES_BATCH},
        ),
        *(
            Change(
                name,
                {"compile": value},
                _compile(name, value),
                lambda phase, leaf, kind: phase in PASSES and kind != ATTENTION,
            )
            for name, value in ((COMPILE, "default"), (CUDA_GRAPHS, "cudagraphs"))
        ),
    )
}
"""By name, in the order in which a set of them is applied."""
_LADDER = (BF16, FUSED_ATTENTION, FUSED_ADAMW)
USUAL = (
    *((name,) for name in CHANGES),
    (BF16, FUSED_ATTENTION),
    _LADDER,
    (*_LADDER, COMPILE),
    (*_LADDER, CUDA_GRAPHS),
)
"""The sets of changes that are predicted where none is named."""


def work_of(names: Any) -> int:
    """Tokens of a step with these changes over tokens of one without."""
    return TIMES_BATCH if LARGER_BATCH in names else 1


def sort_changes(names: Any) -> list[Change]:
    """The changes of these names, as they are applied. Raises AbstentionError where one is not known or two exclude
    each other."""
    asked = dict.fromkeys(names)
    for name in asked:
        if name not in LABELS:
            raise AbstentionError(
                AbstentionCode.UNKNOWN_CHANGE, f"no change is called {name}: choose of {', '.join(CHANGES)}"
            )
    if not asked:
        raise AbstentionError(AbstentionCode.NO_CHANGE, "no change was named")
    if conflict := find_conflict(asked):
        raise AbstentionError(AbstentionCode.ONE_CHOICE, f"{' and '.join(conflict)} are one choice: leave one out")
    for name in asked:
        if name not in CHANGES:
            raise NoModelError(
                f"no model says what {LABELS[name]} would give in a sweep: choose of {', '.join(CHANGES)}"
            )
    return [change for name, change in CHANGES.items() if name in asked]


def baseline_state(baseline: Baseline) -> State:
    return State(run=baseline.run, parts=baseline.parts.reset_index(drop=True))
