"""Changes of a training script that no recorded pair covers: what they would give is inferred from what the script
itself spends on what they do away with. Each has a least, an expected and a most, of its own assumptions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from profiler_job.analysis.insight import run_limit
from profiler_job.analysis.insight.findings import is_unaligned
from profiler_job.analysis.insight.operations import is_queue_full
from profiler_job.analysis.metrics.kernel_time import kernel_totals, num_profiled_steps
from profiler_job.analysis.prediction.abstentions import AbstentionCode, AbstentionError
from profiler_job.analysis.prediction.baseline import ATTENTION, GEMM, Tables, is_of_attention
from profiler_job.analysis.prediction.predict import GPU, HOST
from profiler_job.analysis.prediction.script_rates import (
    ATTENTION_GEMMS,
    MATMULS,
    REST,
    UNPADDED_LINEAR,
    ScriptRates,
    name_rate_kind,
    width_of,
)
from profiler_job.analysis.prediction.sweep_changes import PASSES, TIMES_BATCH, need_memory
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.changes import (
    CASTS,
    CHECKPOINTING,
    COPIES,
    FOREACH,
    FUSED_ATTENTION,
    LARGER_BATCH,
    PADDING,
    SYNCHRONISATIONS,
)

LEAST, EXPECTED, MOST = 0, 1, 2
"""A step as short as it may become, as expected, and as long."""
LEAST_PART = 0.01
"""Of a step: what takes less is not worth a prediction."""
UNALIGNED_FASTER = (0.12, 0.19, 0.5)
"""Time of matmuls after padding over before, in BF16. In a recorded step of GPT-2 with 50257 tokens, the unaligned
matmuls reach 94 to 142 TFLOP/s, and aligned ones of the same step 563: 0.17 to 0.25. In one of another script 15.6 ms
became 2.8, and the three of them are 5.4 to 8.7 times as long as aligned ones are inferred from FP32: 0.12 to 0.19."""
UNALIGNED_FASTER_IN_TF32 = (0.3, 0.45, 0.9)
"""The same in TF32, whose numbers are twice as long: told from one step of that script, which took 7.9 ms longer than
with aligned matmuls."""
CASTS_LEFT = (0.0, 0.0, 0.5)
"""Part of the casts that stay where weights and activations are in one type."""
IN_ONE_TYPE = {ranges.FORWARD: (0.8, 0.9, 1.0), ranges.BACKWARD: (0.8, 0.9, 1.0), ranges.OPTIMIZER: (0.5, 0.65, 1.0)}
"""Time of all other elementwise kernels then over before: those that read FP32 read 16 bits. In two vision
Transformers (ViT-B, ViT-S; recordings that do not ship) under autocast, and with weights in BF16, 0.89 and 0.91 in both
passes, 0.63 and 0.70 in the optimizer; no cast was left."""
FUSED_IN_FP32 = 1.0
"""The part of the time of unfused attention in FP32 that fused attention takes at most. A Llama whose heads share keys
and values took 142.6 ms a step after it, and 139.9 before."""
NOT_AWAITED = (1.0, 0.5)
"""Least and expected: of the time in which the GPU is idle after the host has waited for a copy, what goes with it.
timm's `train.py` saved 9.6 ms where copies took 5.9 and the GPU idled 8.4."""
WAITS = "Synchronize"
"""In the names of calls in which the host waits for the GPU."""
LISTED_TIME, LISTED_LAUNCHES = (0.92, 1.05, 1.11), (0.06, 0.2, 0.6)
"""Kernel time and launches of AdamW in lists of tensors (foreach) over those tensor by tensor. In five recorded sizes
0.92 to 1.11, and 0.06 to 0.56."""
SLOW_GROWTH = 0.85
"""Part of the expected growth with the batch that is the least."""
RECOMPUTED = (0.6, 0.9, 1.0)
"""Part of the forward pass that checkpointed layers run again: all but embedding and head."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """What a step spends on something: launches, time_ns on the GPU, host_ns in calls, under nsys."""

    launches: float = 0.0
    time_ns: float = 0.0
    host_ns: float = 0.0


NOT_SEEN = Behind(time_ns=math.nan)
"""What the recorded step could not show of the changed one."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a script: parts: by phase and kind its launches and time_ns on the GPU. gap_ns: between two of them.
    host_ns: by phase what the host needs, and how sure that is: factors (least, 1, most). is_in_phases: whether the
    host waits for the GPU at the end of each phase, as in a sweep. behind: by finding what it spends on it. slower: how
    many times as long the host needs under nsys. waiting_ns: the GPU is idle after the host has waited for it, in the
    middle of a step. work: tokens over tokens of the recorded step. passes_ns: as in `fusion.passes_ns`; in BF16 it is
    what it is in FP32, as activations between layers stay in that (0.88 to 1.11 in eight recorded pairs).
    casts_weights: whether weights are in FP32, so that BF16 casts them."""

    run: Mapping[str, Any]
    step_ns: float
    parts: pd.DataFrame
    gap_ns: float
    host_ns: Mapping[str, float]
    host_span: tuple[float, float] = (1.0, 1.0)
    behind: Mapping[str, Behind] | None = None
    slower: float = 1.0
    waiting_ns: float = 0.0
    work: float = 1.0
    is_in_phases: bool = False
    passes_ns: float = math.nan
    casts_weights: bool = True

    @property
    def gpu_ns(self) -> float:
        return sum(self.gpu_ns_by_phase.values())

    @property
    def gpu_ns_by_phase(self) -> dict[str, float]:
        sums = self.parts[["time_ns", "launches"]].groupby("phase").sum()
        return {str(phase): float(time_ns + self.gap_ns * launches) for phase, time_ns, launches in sums.itertuples()}

    def take(self, gpu: float = 1.0, host: float = 1.0) -> float:
        """Its time, in ns, where what the GPU needs and what the host needs take so many times as long."""
        of_gpu = self.gpu_ns_by_phase
        if not self.is_in_phases:
            return max(gpu * self.gpu_ns + self.waiting_ns, host * sum(self.host_ns.values()))
        phases = {*of_gpu, *self.host_ns}
        return sum(max(gpu * of_gpu.get(phase, 0.0), host * self.host_ns.get(phase, 0.0)) for phase in phases)

    @property
    def limited_by(self) -> str:
        """HOST or GPU, by the larger part of the step."""
        of_gpu = self.gpu_ns_by_phase
        if not self.is_in_phases:
            return HOST if sum(self.host_ns.values()) > self.gpu_ns + self.waiting_ns else GPU
        by_host = sum(host_ns for phase, host_ns in self.host_ns.items() if host_ns > of_gpu.get(phase, 0.0))
        return HOST if by_host > self.take() / 2 else GPU


def waits_by_phase(recording: Tables) -> dict[str, float]:
    """How long the host of a step waits for the GPU, by phase, in ns, under nsys: in synchronisations, and in launches
    while the queue is full."""
    steps = float(num_profiled_steps(recording.kernels).iloc[0])
    calls = recording.api[recording.api["step"] >= 0]
    waits = calls[calls["name"].astype(str).str.contains(WAITS)]
    waited = waits.groupby(waits["phase"].astype(str))["total_ns"].sum()
    sums: dict[str, float] = (waited.add(_sum_blocked_by_phase(recording), fill_value=0.0) / steps).to_dict()
    return sums


def _sum_blocked_by_phase(recording: Tables) -> pd.Series:
    """Host time of all steps in launches while the queue is full. Of copies and fills the call is not known: they wait
    as long as kernels of their phase do."""
    names = ["launch_ns", "launch_end_ns", "start_ns", "phase", "step"]
    copies = recording.memops.assign(launch_end_ns=-1)
    rows = pd.concat([frame[names].astype({"phase": str}) for frame in (recording.kernels, copies)], ignore_index=True)
    rows = rows.drop_duplicates("launch_ns")
    rows = rows[is_queue_full(rows["launch_ns"].to_numpy(), rows["start_ns"].to_numpy()) & (rows["step"] >= 0)]
    kernels = rows["launch_end_ns"] >= 0
    took = (rows["launch_end_ns"] - rows["launch_ns"]).where(kernels)
    usual_ns = (recording.kernels["launch_end_ns"] - recording.kernels["launch_ns"]).median()
    waited = (took - usual_ns).clip(lower=0).groupby(rows["phase"])
    return waited.mean().fillna(0.0) * rows.groupby("phase").size()


def measure_savable(recording: Tables) -> dict[str, Behind]:
    """By finding, of the only run of a recording: `casts`, `unaligned_gemms`, `unfused_attention`; and
    `synchronisations` and `copies` from and to the host, whose calls are known by their phase alone. Of unaligned
    matmuls only the ones of layers: what aligned ones take was measured of such, and attention's no weight can be
    padded for.
    """
    steps = float(num_profiled_steps(recording.kernels).iloc[0])
    findings = run_limit.find(recording.kernels, recording.memops).set_index("kind")
    known = {
        str(kind): Behind(launches=row["count"] / steps, time_ns=row["time_ns"] / steps)
        for kind, row in findings.iterrows()
    }
    if "unaligned_gemms" in known:
        totals = kernel_totals(recording.kernels)
        mine = totals[(totals["family"] == GEMM) & ~is_of_attention(totals)]
        mine = mine[mine["kernel_name"].map(is_unaligned).astype(bool)]
        known["unaligned_gemms"] = Behind(launches=float(mine["calls"].sum()), time_ns=float(mine["time_ns"].sum()))
    calls = recording.api[recording.api["step"] >= 0]
    names = calls["name"].astype(str)
    waits = calls[names.str.contains(WAITS)]
    known[SYNCHRONISATIONS] = Behind(
        launches=float(waits["calls"].sum()) / steps, host_ns=float(waits["total_ns"].sum()) / steps
    )
    moved = recording.memops[recording.memops["step"] >= 0]
    moved = moved[moved["operation"].astype(str).str.startswith("memcpy")]
    of_host = moved[moved["operation"].astype(str).str.contains("Host")]
    # A call does not say what it copies: those between tensors take their part of the calls' time.
    part = len(of_host) / max(len(moved), 1) / steps
    known[COPIES] = Behind(
        launches=len(of_host) / steps,
        time_ns=float((of_host["end_ns"] - of_host["start_ns"]).sum()) / steps,
        host_ns=part * float(calls.loc[names.str.startswith("cudaMemcpy"), "total_ns"].sum()),
    )
    return known


def _need(step: Step, kind: str, why: str) -> Behind:
    """What the step spends on `kind`. Raises AbstentionError where that is next to nothing."""
    behind = (step.behind or {}).get(kind, Behind())
    if max(behind.time_ns, behind.host_ns / step.slower) < LEAST_PART * step.step_ns:
        raise AbstentionError(AbstentionCode.SAVES_LITTLE, why)
    return behind


def _remove_operations(step: Step, kinds: tuple[str, ...], time_ns: float, launches: float) -> Step:
    """The step without so much of the GPU's operations of these kinds, and without the host's part of launching
    them."""
    of_kinds = step.parts.index.get_level_values("kind").isin(kinds)
    parts = step.parts.copy()
    for column, less in (("time_ns", time_ns), ("launches", launches)):
        total = float(parts.loc[of_kinds, column].sum())
        parts.loc[of_kinds, column] *= max(1.0 - less / total, 0.0) if total else 1.0
    num_launches = float(step.parts["launches"].sum())
    of_phases = {*step.parts.index.get_level_values("phase")}
    host = {
        phase: ns * (1.0 - launches / num_launches if phase in of_phases else 1.0) for phase, ns in step.host_ns.items()
    }
    return replace(step, parts=parts, host_ns=host)


def _pad(step: Step, rates: ScriptRates, how: int) -> Step:
    if str(step.run["compile"]) != "off":  # GPT-2 in CUDA graphs got 2% faster of it, eager 8%
        raise AbstentionError(
            AbstentionCode.NO_PAIR, "no recorded pair shows beyond noise what padding gives under torch.compile"
        )
    precision = str(step.run["precision"])
    if knows_unpadded(step.parts) and precision in ("bf16", "tf32"):  # from FP32: all rates are of aligned matmuls
        return step
    if (step.behind or {}).get("unaligned_gemms") is NOT_SEEN:
        raise AbstentionError(
            AbstentionCode.OTHER_PRECISION,
            "a step in FP32 does not tell which matmuls are unaligned in BF16: record it in BF16",
        )
    behind = _need(step, "unaligned_gemms", "its unaligned matmuls of layers, on tensor cores, take next to nothing")
    if precision != "bf16":
        raise AbstentionError(
            AbstentionCode.OTHER_PRECISION, "how much faster aligned matmuls are is known of BF16 alone"
        )
    return _remove_operations(step, MATMULS, (1.0 - UNALIGNED_FASTER[how]) * behind.time_ns, 0.0)


def pad_compiled(step: Step, how: int) -> Step:
    """A compiled step in BF16, whose unaligned matmuls torch.compile has padded."""
    if not pads_by_compiling(step):
        return step
    behind = dict(step.behind or {})
    after = _remove_operations(step, MATMULS, (1.0 - UNALIGNED_FASTER[how]) * behind["unaligned_gemms"].time_ns, 0.0)
    return replace(after, behind=behind | {"unaligned_gemms": Behind()})


def pads_by_compiling(step: Step) -> bool:
    """Whether the step has unaligned matmuls that torch.compile pads. In a GPT-2 of 50257 tokens, matmuls of a
    vocabulary of 50304 saved 2.8 ms of 34.0 as it was, and 0.3 of 17.5 in CUDA graphs; in one with 24 layers all
    matmuls took 40.0 ms before compiling and 22.3 after. No pair is in TF32."""
    return str(step.run["precision"]) == "bf16" and (step.behind or {}).get("unaligned_gemms", Behind()).time_ns > 0


def slow_unpadded(before: Step, after: Step, how: int) -> Step:
    """The step after changes, with matmuls of weights that are not padded as slow as unaligned ones are in the
    precision that it has now and had not before."""
    faster = {"bf16": UNALIGNED_FASTER, "tf32": UNALIGNED_FASTER_IN_TF32}.get(str(after.run["precision"]))
    is_padded = str(after.run["precision"]) == "bf16" and str(after.run["compile"]) != "off"  # by torch.compile
    is_as_before = after.run["precision"] == before.run["precision"] or is_padded
    if faster is None or is_as_before or not knows_unpadded(after.parts):
        return after
    parts = after.parts.copy()
    unpadded = parts.index.get_level_values("kind") == UNPADDED_LINEAR
    parts.loc[unpadded, "time_ns"] /= faster[MOST - how]
    return replace(after, parts=parts)


def knows_unpadded(parts: pd.DataFrame) -> bool:
    """Whether some of its matmuls are known to be of weights that are not padded."""
    return bool((parts.index.get_level_values("kind") == UNPADDED_LINEAR).any())


def _leave_casts(step: Step, rates: ScriptRates, how: int) -> Step:
    if str(step.run["compile"]) != "off":
        raise AbstentionError(AbstentionCode.NO_PAIR, "compiling fuses casts with other kernels")
    behind = _need(step, CASTS, "its kernels convert next to nothing")
    gone = 1.0 - CASTS_LEFT[how]
    after = _remove_operations(step, (REST,), gone * behind.time_ns, gone * behind.launches)
    parts = after.parts.copy()
    for phase, faster in IN_ONE_TYPE.items():
        if (phase, REST) in parts.index:
            parts.loc[(phase, REST), "time_ns"] *= faster[how]
    return replace(after, parts=parts)


def _list_tensors(step: Step, rates: ScriptRates, how: int) -> Step:
    behind = _need(step, "per_tensor_optimizer", "its optimizer does not work tensor by tensor")
    less_ns, fewer = (1.0 - LISTED_TIME[how]) * behind.time_ns, (1.0 - LISTED_LAUNCHES[how]) * behind.launches
    return _remove_operations(step, (REST,), less_ns, fewer)


def _pin(step: Step, rates: ScriptRates, how: int) -> Step:
    behind = _need(step, COPIES, "its steps copy next to nothing from and to the host")
    if how == MOST:  # they were pinned already, or are waited for all the same
        return step
    after = _shorter_calls(_remove_operations(step, (REST,), behind.time_ns, 0.0), behind)
    of_copies, of_all = ((step.behind or {}).get(kind, Behind()) for kind in ("host_to_device", SYNCHRONISATIONS))
    part = min(of_copies.launches / of_all.launches, 1.0) if of_all.launches else 0.0
    return replace(after, waiting_ns=step.waiting_ns * (1.0 - NOT_AWAITED[how] * part))


def _leave_synchronisations(step: Step, rates: ScriptRates, how: int) -> Step:
    behind = (step.behind or {}).get(SYNCHRONISATIONS, Behind())
    if behind.launches <= 1:
        raise AbstentionError(
            AbstentionCode.SAVES_LITTLE, "its steps synchronise once at most, as the timer does at their end"
        )
    _need(step, SYNCHRONISATIONS, "its host waits next to nothing in synchronisations")
    if how == MOST:  # the host was late all the same
        return step
    return replace(_shorter_calls(step, behind), waiting_ns=0.0)


def _shorter_calls(step: Step, behind: Behind) -> Step:
    """The step without the host's time in these calls, as long as it is without nsys."""
    host_ns = sum(step.host_ns.values())
    left = max(1.0 - behind.host_ns / step.slower / host_ns, 0.0) if host_ns else 1.0
    return replace(step, host_ns={phase: ns * left for phase, ns in step.host_ns.items()})


def _enlarge_batch(step: Step, rates: ScriptRates, how: int) -> Step:
    need_memory(step.run)
    rows = {}
    for (phase, kind), row in step.parts.iterrows():
        time_ns, launches = row["time_ns"], row["launches"]
        if phase in PASSES or phase == ranges.LOSS:
            known = f"{LARGER_BATCH}/{width_of(str(step.run['precision']))}/{phase}/{name_rate_kind(kind)}"
            factor, of_launch = rates.times.get(known, (TIMES_BATCH, 0.0))
            longer_ns = max(factor * time_ns + of_launch * 1e3 * launches, time_ns) - time_ns
            time_ns += (TIMES_BATCH - 1) * time_ns if how == MOST else longer_ns if how else SLOW_GROWTH * longer_ns
        rows[phase, kind] = pd.Series({"launches": launches, "time_ns": time_ns})
    parts = pd.DataFrame(rows).T.rename_axis(["phase", "kind"])
    run = dict(step.run) | {"batch_size": TIMES_BATCH * int(step.run["batch_size"])}
    return replace(step, run=run, parts=parts, work=step.work * TIMES_BATCH)


def _checkpoint(step: Step, rates: ScriptRates, how: int) -> Step:
    forward = step.parts.index.get_level_values("phase") == ranges.FORWARD
    if not forward.any() or ranges.BACKWARD not in step.parts.index.get_level_values("phase"):
        raise AbstentionError(AbstentionCode.OTHER_MODE, "it has no backward pass, so it keeps no activations")
    again = step.parts[forward].rename(index={ranges.FORWARD: ranges.BACKWARD}, level="phase") * RECOMPUTED[how]
    host = dict(step.host_ns)
    host[ranges.BACKWARD] = host.get(ranges.BACKWARD, 0.0) + RECOMPUTED[how] * host.get(ranges.FORWARD, 0.0)
    return replace(step, parts=step.parts.add(again, fill_value=0.0), host_ns=host)


def _fuse_attention(step: Step, rates: ScriptRates, how: int) -> Step:
    precision = str(step.run["precision"])
    if precision not in rates.attention:
        raise AbstentionError(
            AbstentionCode.NO_PAIR, f"no recorded pair tells what fused attention gives in {precision.upper()}"
        )
    behind = _need(step, "unfused_attention", "it has no matmuls of attention with kernels between them")
    kinds = step.parts.index.get_level_values("kind")
    gemms = step.parts[kinds == ATTENTION_GEMMS]
    if gemms.empty:
        raise AbstentionError(AbstentionCode.MATMULS_UNKNOWN, "it is not known which of its matmuls are of attention")
    after = _remove_operations(step, (REST,), behind.time_ns, behind.launches)
    rows = gemms.assign(time_ns=gemms["time_ns"] + behind.time_ns * gemms["time_ns"] / gemms["time_ns"].sum())
    factor = rates.attention[precision][how]
    if how == MOST and precision == "fp32":
        factor = max(factor, FUSED_IN_FP32)
    rows = rows.assign(time_ns=rows["time_ns"] * factor, launches=rows["launches"] / 2)
    rows.index = pd.MultiIndex.from_tuples(
        [(phase, ATTENTION) for phase, _ in rows.index], names=after.parts.index.names
    )
    rest = after.parts[after.parts.index.get_level_values("kind") != ATTENTION_GEMMS]
    launches = step.parts["launches"].groupby("kind").sum().reindex([*MATMULS], fill_value=0.0)
    of_layers = 1.0 - launches[ATTENTION_GEMMS] / launches.sum()
    return replace(after, parts=rest.add(rows, fill_value=0.0), passes_ns=of_layers * step.passes_ns)


CHANGES: dict[str, Callable[[Step, ScriptRates, int], Step]] = {
    FUSED_ATTENTION: _fuse_attention,
    FOREACH: _list_tensors,
    PADDING: _pad,
    CASTS: _leave_casts,
    COPIES: _pin,
    SYNCHRONISATIONS: _leave_synchronisations,
    LARGER_BATCH: _enlarge_batch,
    CHECKPOINTING: _checkpoint,
}
FREE: dict[str, Callable[[pd.Series, pd.Series], pd.Series]] = {
    FUSED_ATTENTION: lambda phase, kind: phase.isin([*PASSES]) & kind.isin([ATTENTION_GEMMS, REST]),
    PADDING: lambda phase, kind: kind.isin(MATMULS),
    FOREACH: lambda phase, kind: kind == REST,
    CASTS: lambda phase, kind: kind == REST,
    COPIES: lambda phase, kind: kind == REST,
}
"""The kinds of operations that a change may make as short as nothing, for the ceiling; none where a change is not
named: no kernel of a larger batch, or of a layer that is computed again, is shorter than before."""


def frees_bytes(run: Mapping[str, Any]) -> float:
    """What activation checkpointing frees at most: all of the peak but weights, gradients and AdamW's averages in
    FP32. NaN where the peak is not known."""
    peak = run.get("peak_memory_bytes")
    if peak is None or pd.isna(peak):
        return math.nan
    return max(float(peak) - 16 * int(run["num_parameters"]), 0.0)
