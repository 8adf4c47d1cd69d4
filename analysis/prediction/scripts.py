"""What a change would give in a training script if nothing but its recording is known.

The GPU needs the sum of its operations, each kind of a phase as much faster or slower as that kind was in recorded
pairs of the reference Transformer; the host needs what it needs to launch them. A script does not synchronise between
its phases, so that a step takes whichever is longer. Where the GPU limits the step, what the host needs is not seen; it
is inferred from its times under nsys, which slows it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics.kernel_time import kernel_totals, module_of, num_profiled_steps
from profiler_job.analysis.metrics.run_grid import has_known_shape
from profiler_job.analysis.metrics.step_clocks import GAP_NS
from profiler_job.analysis.prediction import fusion, script_changes, script_rates
from profiler_job.analysis.prediction.abstentions import AbstentionCode, AbstentionError, NoModelError
from profiler_job.analysis.prediction.baseline import ATTENTION, GEMM, Tables, is_of_attention
from profiler_job.analysis.prediction.predict import GPU, HOST, SURE, Abstention, Prediction, spread
from profiler_job.analysis.prediction.script_changes import EXPECTED, LEAST, MOST, Behind, Step
from profiler_job.analysis.prediction.script_rates import (
    ATTENTION_GEMMS,
    LINEAR,
    MATMULS,
    REST,
    UNPADDED_LINEAR,
    ScriptRates,
    name_rate_kind,
    width_of,
)
from profiler_job.analysis.prediction.sweep_changes import OWN_ADAMW_KERNELS, PASSES
from profiler_job.analysis.reference import flops
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.changes import (
    BF16,
    CASTS,
    CHECKPOINTING,
    COMPILE,
    COMPILED,
    FUSED_ADAMW,
    LABELS,
    PADDING,
    SYNCHRONISATIONS,
    TF32,
    find_conflict,
)
from profiler_job.jobs.contract.messages import UNPADDED, UNPADDED_MODULES

USUAL = (*((name,) for name in LABELS), (BF16, COMPILE))
"""The sets of changes that are predicted where none is named."""
GPU_LIMITED = 0.9
"""Part of a step without nsys that the GPU's work takes, from which on the GPU limits it."""
UNDER_NSYS = (0.35, 0.75, 1.0)
"""What the host needs without nsys, of what it needs under it: least, median, most. The least was lowered by hand, from
0.6, after a step that the host limits had taken 0.44 of what was predicted."""
OUTSIDE = ""
"""What no phase contains."""


def sort_changes(names: Iterable[str]) -> tuple[str, ...]:
    """The changes in the order in which they are applied. Raises AbstentionError where one is not known or two exclude
    each other."""
    asked = tuple(dict.fromkeys(names))
    for name in asked:
        if name not in LABELS:
            raise AbstentionError(
                AbstentionCode.UNKNOWN_CHANGE, f"no change is called {name}: choose of {', '.join(LABELS)}"
            )
    if conflict := find_conflict(asked):
        raise AbstentionError(AbstentionCode.ONE_CHOICE, f"{' and '.join(conflict)} are one choice: leave one out")
    return tuple(name for name in LABELS if name in asked)


def predict_step(step: Step, names: Iterable[str], rates: ScriptRates) -> Prediction | Abstention:
    """What a step of a script would take with all the changes `names`, or why that cannot be said."""
    names = tuple(names)
    try:
        names = sort_changes(names)
        after = apply_changes(step, names, rates)
        gpu, host = (spread(errors_of(step, names, rates), limit) for limit in (GPU, HOST))
        # What recorded pairs tell is as far off as they were, what the script itself tells has its own span (in the
        # precision that the set leads to), and the host's part is as far off as it is unknown.
        own = [name for name in names if name in script_changes.CHANGES or has_own_span(step, name)]
        before = replace(step, run=dict(step.run) | {"precision": after.run["precision"]})
        low_ns, high_ns = (
            end.take(
                gpu=1 + (on_gpu - 1) * share_of_changed(apply_changes(before, own, rates, how), end),
                host=by_host * known,
            )
            for how, on_gpu, by_host, known in zip((LEAST, MOST), gpu, host, after.host_span)
            for end in [apply_changes(step, names, rates, how)]
        )
    except AbstentionError as reason:
        return Abstention(changes=names, code=reason.code, reason=str(reason))
    ceiling_ns = compute_ceiling(step, names)
    expected_ns = max(after.take(), ceiling_ns)
    return Prediction(
        changes=names,
        baseline_ns=step.step_ns,
        step_ns=expected_ns,
        low_ns=min(max(low_ns, ceiling_ns), expected_ns),
        high_ns=max(high_ns, expected_ns),
        ceiling_ns=ceiling_ns,
        gpu_ns=after.gpu_ns,
        limited_by=after.limited_by,
        work=after.work,
        frees_bytes=script_changes.frees_bytes(step.run) if CHECKPOINTING in names else 0.0,
        reasons=(),
    )


def errors_of(step: Step, names: Iterable[str], rates: ScriptRates) -> list[Mapping[str, Any]]:
    """Recorded pairs and tested predictions that show how sure a prediction is: for other models in sweeps the pairs of
    such models, and for the reference Transformer, which all pairs are of, no tests on scripts. Compiled steps are less
    sure than others, so they have the errors of compiled steps alone."""
    if step.is_in_phases and not has_known_shape(step.run):
        return [*rates.others]
    every = [*rates.errors] if step.is_in_phases else [*rates.errors, *rates.tested]
    compiled = {*names} & {*COMPILED}
    return [error for error in every if not compiled or {*error["changes"].split("+")} & {*COMPILED}]


def share_of_changed(before: Step, after: Step) -> float:
    """Part of the GPU's time after the changes that is of operations which they make faster, slower or vanish."""
    times = pd.concat([before.parts["time_ns"].rename("old"), after.parts["time_ns"].rename("new")], axis=1).fillna(0.0)
    moved = times[(times["old"] - times["new"]).abs() > 0.001 * times["old"]]
    return min(float(moved.max(axis=1).sum()) / after.gpu_ns, 1.0)


def step_of(recording: Tables, rates: ScriptRates) -> Step:
    """The step that was recorded. Raises AbstentionError."""
    if len(recording.runs) != 1 or str(recording.runs["status"].iloc[0]) != "ok":
        raise AbstentionError(AbstentionCode.OTHER_WORKLOAD, "it is not the recording of one script")
    run = recording.runs.astype({"run_id": str}).to_dict("records")[0]
    if str(run["gpu_name"]) != rates.gpu:
        raise AbstentionError(
            AbstentionCode.OTHER_GPU, f"the recorded pairs are of {rates.gpu}, and this run is of {run['gpu_name']}"
        )
    if recording.kernels["rank"].nunique() > 1 or run.get("gpus", 1) > 1:  # the others may be on other machines
        raise AbstentionError(AbstentionCode.SEVERAL_GPUS, "it has several ranks, which wait for each other")
    parts = parts_of(recording)
    steps = recording.steps.astype({"collector": str, "phase": str})
    medians = steps.groupby(["collector", "phase"])["wall_ns"].median()
    step_ns = float(medians["timer", ranges.STEP])
    phases = {str(phase): float(wall) for phase, wall in medians["nsys"].items() if phase != ranges.STEP}
    busy_ns, launches = float(parts["time_ns"].sum()), max(float(parts["launches"].sum()), 1.0)
    if not phases:
        raise AbstentionError(AbstentionCode.PHASES_UNKNOWN, "none of its phases was recorded")
    behind = script_changes.measure_savable(recording)
    if is_all_padded(recording):
        behind.setdefault("unaligned_gemms", Behind())
    passes_ns, is_cast = fusion.passes_ns(kernel_totals(recording.kernels)), casts_weights(run, behind, step_ns)
    waits, idle_ns = behind[SYNCHRONISATIONS], max(step_ns - busy_ns, 0.0)
    # The one at the end of a step is the timer's. After others the GPU is idle until the host has launched anew.
    is_awaited = waits.launches > 1 and waits.host_ns >= (1 - GPU_LIMITED) * step_ns
    if busy_ns >= GPU_LIMITED * step_ns or is_awaited:
        least, median, most = UNDER_NSYS
        waited = script_changes.waits_by_phase(recording)  # for what the GPU needs, which is not the host's own
        host = {phase: max(wall - waited.get(phase, 0.0), 0.0) * median for phase, wall in phases.items()}
        return Step(
            run=run,
            step_ns=step_ns,
            parts=parts,
            gap_ns=0.0 if is_awaited else idle_ns / launches,
            waiting_ns=idle_ns if is_awaited else 0.0,
            host_ns=host,
            host_span=(least / median, most / median),
            behind=behind,
            slower=1 / median,
            passes_ns=passes_ns,
            casts_weights=is_cast,
        )
    # nsys slows all of a step alike; what is outside of its phases, such as a script's own Python, no change touches.
    slower = max(float(medians.get(("nsys", ranges.STEP), 0.0)), sum(phases.values())) / step_ns
    host = {phase: wall / slower for phase, wall in phases.items()}
    host[OUTSIDE] = step_ns - sum(host.values())
    return Step(
        run=run,
        step_ns=step_ns,
        parts=parts,
        gap_ns=GAP_NS,
        host_ns=host,
        behind=behind,
        slower=slower,
        passes_ns=passes_ns,
        casts_weights=is_cast,
    )


def casts_weights(run: Mapping[str, Any], behind: Mapping[str, Behind], step_ns: float) -> bool:
    """Whether a step in BF16 has weights in FP32: such a step has casts. So would one in FP32 under autocast."""
    casts = behind.get(CASTS, Behind())
    return width_of(str(run["precision"])) != 16 or casts.time_ns >= script_changes.LEAST_PART * step_ns


def parts_of(recording: Tables) -> pd.DataFrame:
    """Operations of a step by phase and kind: launches, time_ns."""
    totals = kernel_totals(recording.kernels)
    names = {module_of(name) for name in unpadded_modules(recording)}
    unpadded = totals["module"].isin(names) | totals["module"].str.rpartition("/")[2].isin(names)
    kind = totals["family"].where(totals["family"].isin([GEMM, ATTENTION]), REST)
    kind = kind.mask(totals["family"] == GEMM, LINEAR).mask((kind == GEMM) & unpadded, UNPADDED_LINEAR)
    kind = kind.mask(is_of_attention(totals), ATTENTION_GEMMS)
    rows = totals.assign(kind=kind).rename(columns={"calls": "launches"})[["phase", "kind", "launches", "time_ns"]]
    copies = recording.memops[recording.memops["step"] >= 0]
    if len(copies):
        steps = float(num_profiled_steps(recording.kernels).iloc[0])
        spans = (copies["end_ns"] - copies["start_ns"]).groupby(copies["phase"].astype(str)).agg(
            ["size", "sum"]
        ) / steps
        spans = spans.set_axis(["launches", "time_ns"], axis=1).rename_axis("phase").reset_index().assign(kind=REST)
        rows = pd.concat([rows, spans])
    return rows.groupby(["phase", "kind"])[["launches", "time_ns"]].sum()


def unpadded_modules(recording: Tables) -> list[str]:
    """Paths (in older recordings the last names) of the modules with matrices that are not padded, where their matmuls
    are in FP32: on tensor cores the names of kernels tell."""
    if str(recording.runs["precision"].iloc[0]) != "fp32":
        return []
    figures = recording.figures["figure"].astype(str)
    return [*figures[figures.str.startswith(UNPADDED)].str.removeprefix(UNPADDED)]


def is_all_padded(recording: Tables) -> bool:
    """Whether it is known that no matmul of a layer would be unaligned in BF16."""
    figures = recording.figures.set_index(recording.figures["figure"].astype(str))["value"]
    return bool(figures.get(UNPADDED_MODULES) == 0)


def apply_changes(step: Step, names: Iterable[str], rates: ScriptRates, how: int = EXPECTED) -> Step:
    """The step with these changes, one after the other. how: LEAST or MOST where a change has its own span. Raises
    AbstentionError."""
    names, after = tuple(names), step
    for name in names:
        if apply := script_changes.CHANGES.get(name):
            after = apply(after, rates, how)
        else:
            after = _fuse_adamw(after, rates, how) if name == FUSED_ADAMW else _speed_up(after, name, rates)
            after = script_changes.pad_compiled(after, how) if name in COMPILED else after
    return after if PADDING in names else script_changes.slow_unpadded(step, after, how)


def _speed_up(step: Step, change: str, rates: ScriptRates) -> Step:
    precision = str(step.run["precision"])
    if change not in script_rates.AXES:
        raise NoModelError(f"no model says what {LABELS[change]} would give in a script")
    axis, old, new = script_rates.AXES[change]
    if str(step.run[axis]) not in old:
        raise AbstentionError(
            AbstentionCode.ALREADY_MADE,
            "it is compiled already" if axis == "compile" else f"it computes in {precision.upper()} already",
        )
    name, rows, host = script_rates.name_of(change, precision), {}, dict(step.host_ns)
    casts_ns = fusion.casts_ns(step.run, rates.bandwidth) if step.casts_weights else 0.0
    parts = step.parts
    if axis == "compile":  # as in the pairs, where matmuls are of no module
        kinds = [LINEAR if kind == ATTENTION_GEMMS else kind for _, kind in parts.index]
        parts = parts.groupby([parts.index.get_level_values("phase"), pd.Index(kinds, name="kind")]).sum()
    for (phase, kind), row in parts.iterrows():
        known = f"{script_rates.name_of(change, 'fp32') if kind == ATTENTION else name}/{phase}/{name_rate_kind(kind)}"
        factors = rates.times.get(known)
        # What has one kernel already stays as it is but in BF16, and is in TF32 what it is in FP32.
        if phase not in PASSES or (kind == ATTENTION and change != BF16):
            rows[phase, kind] = row
            continue
        if factors is None:
            raise AbstentionError(
                AbstentionCode.NO_PAIR, f"no recorded pair tells what it does to {kind} kernels of {phase}"
            )
        launches = row["launches"] * rates.launches[known]
        time_ns = factors[0] * row["time_ns"] + factors[1] * 1e3 * row["launches"]
        if axis == "compile" and kind == REST:
            left_ns = fusion.factor_of(rates, name, phase) * step.passes_ns
            time_ns = fusion.fused_ns(left_ns, casts_ns, time_ns, row["time_ns"])
        rows[phase, kind] = pd.Series({"launches": launches, "time_ns": time_ns})
    after = pd.DataFrame(rows).T.rename_axis(["phase", "kind"])
    before, launches = (table["launches"].groupby("phase").sum() for table in (parts, after))
    for phase in host:
        if phase in PASSES and phase in before.index:  # where no pair covers the host, each launch costs it as much
            factor = script_rates.host_factor(rates, change, precision, phase)
            host[phase] *= launches[phase] / before[phase] if factor is None else factor
    behind = dict(step.behind or {})
    if unaligned := behind.get("unaligned_gemms"):  # which they are is not known: they stay the same part of all
        faster = _gemms_ns(after) / max(_gemms_ns(parts), 1.0)
        behind["unaligned_gemms"] = replace(unaligned, time_ns=faster * unaligned.time_ns)
    elif change == BF16 and precision == "fp32" and not script_changes.knows_unpadded(after):
        # None of its matmuls is on tensor cores, aligned or not.
        behind["unaligned_gemms"] = script_changes.NOT_SEEN
    return replace(step, run=dict(step.run) | {axis: new}, parts=after, host_ns=host, behind=behind)


def _gemms_ns(parts: pd.DataFrame) -> float:
    return float(parts.loc[parts.index.get_level_values("kind").isin(MATMULS), "time_ns"].sum())


def has_own_span(step: Step, change: str) -> bool:
    """Whether a change that recorded pairs cover has a least and a most of its own in this step: fused AdamW, where
    nothing says how many parameters there are."""
    return change == FUSED_ADAMW and step.run["num_parameters"] is None


def _fuse_adamw(step: Step, rates: ScriptRates, how: int = EXPECTED) -> Step:
    optimizer, host = str(step.run["optimizer"]), dict(step.host_ns)
    mine = step.parts.index.get_level_values("phase") == ranges.OPTIMIZER
    if optimizer not in ("Adam", "AdamW", "own") or not mine.any():
        raise AbstentionError(
            AbstentionCode.OTHER_OPTIMIZER,
            f"its optimizer is {optimizer or 'not known'}, and recorded pairs are of AdamW",
        )
    if step.limited_by == HOST and not step.is_in_phases:
        raise AbstentionError(
            AbstentionCode.CPU_LIMITS, "the host limits the step, and what it saves the host is not known"
        )
    if has_own_span(step, FUSED_ADAMW):
        fused_ns = rates.per_tensor[how] * float(step.parts.loc[mine, "time_ns"].sum())
    else:
        traffic_ns = flops.adamw(int(step.run["num_parameters"])).bytes / rates.bandwidth * 1e9
        fused_ns = rates.adamw * traffic_ns
    if step.parts.loc[mine, "time_ns"].sum() < 1.3 * fused_ns:
        raise AbstentionError(AbstentionCode.ALREADY_MADE, "its optimizer is as fast as a fused one already")
    if step.is_in_phases:  # it sorts all tensors before it launches: the host's part adds to the GPU's
        fused_ns += host[ranges.OPTIMIZER] / OWN_ADAMW_KERNELS
        host[ranges.OPTIMIZER] = 0.0
    after = pd.DataFrame({"launches": [1.0], "time_ns": [fused_ns]}, index=step.parts.index[mine][:1])
    return replace(step, parts=pd.concat([step.parts[~mine], after]), host_ns=host)


def compute_ceiling(step: Step, changes: Iterable[str]) -> float:
    """What no step beats: the GPU's operations that no change touches. All of what is touched is free; but where BF16
    alone touches elementwise kernels, they move half of what they did."""
    names = {*changes}
    free = pd.Series(False, index=step.parts.index)
    phase, kind = (step.parts.index.get_level_values(level) for level in ("phase", "kind"))
    if TF32 in names:
        free |= kind.isin(MATMULS)
    if FUSED_ADAMW in names:
        free |= phase == ranges.OPTIMIZER
    if names & {*COMPILED}:
        free |= kind == REST
        if script_changes.pads_by_compiling(step):
            names |= {PADDING}
    for name in names & {*script_changes.FREE}:
        free |= script_changes.FREE[name](phase, kind)
    left = (~free).astype(float)
    if BF16 in names:
        is_halved = ~free & (kind == REST) & phase.isin(PASSES)
        left = left.mask(phase != ranges.OPTIMIZER, 0.0).mask(is_halved, 0.5)
    return SURE * float((left * step.parts["time_ns"]).sum())
