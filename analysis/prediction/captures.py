"""What a change would give in a capture if nothing but the capture is known.

A capture holds no step without nsys, and nsys slows the host. But where the GPU worked nearly all the time, what was
captured takes without nsys what the GPU needs, and that the capture holds. Then the models of scripts say what a change
gives, with all of the captured time in place of a step: how many steps there are is not known, and need not be. What
those models have to know of the program is inferred from its kernels; what they do not tell, no change is predicted
from.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.chosen_part import ALL, Selection
from profiler_job.analysis.capture.selection import select
from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence
from profiler_job.analysis.insight.advice import COLUMNS
from profiler_job.analysis.insight.findings import is_unaligned
from profiler_job.analysis.insight.operations import COPIES, summarise_operations
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.summary import CapturePart, select_part, summarise_part
from profiler_job.analysis.prediction import fusion, script_rates, scripts
from profiler_job.analysis.prediction.abstentions import AbstentionCode, AbstentionError
from profiler_job.analysis.prediction.baseline import ATTENTION, GEMM
from profiler_job.analysis.prediction.predict import Abstention, Prediction
from profiler_job.analysis.prediction.script_changes import WAITS, Behind, Step
from profiler_job.analysis.prediction.script_rates import ATTENTION_GEMMS, LINEAR, REST, ScriptRates
from profiler_job.analysis.prediction.scripts import GPU_LIMITED, UNDER_NSYS, predict_step
from profiler_job.analysis.prediction.sweep_changes import PASSES
from profiler_job.analysis.reference import gemm_names, kernel_families
from profiler_job.analysis.reference.rules import Taxonomy
from profiler_job.jobs.contract import changes, ranges

MOST_UNKNOWN = 0.05
"""Part of the GPU's work that may be of no known phase; it is left as it is."""
SAME_PATH, LEAST_READ = 0.95, 0.8
"""Part of the matmuls' time that must be of one precision, of that whose names say it; and what must say it of all."""
AS_LARGE = 1.5
"""By which factor a phase's part of kernel time may differ between a window of whole steps and the whole capture: steps
at its edges may be cut, but of a part of one step the host had launched much before it."""
REPEATS = 0.01
"""Part of a time by which it differs between identical runs: no gain is known better than that."""
PER_TENSOR_KERNELS = (7, 9)
"""Kernels of AdamW for each tensor, least and most: 7 or 8 in the recorded pairs, by how it is written."""
_INDUCTOR = re.compile(r"triton_(poi|red|per|for|tem|mm|bmm|convolution)_")
_UPDATE_ENDS = "elementwise-addcdiv"
_OF_STEPS = tuple(phase for phase in ranges.ALL_PHASES if phase != ranges.SETUP)
_RECORDED = ("fp32", "tf32", "bf16")
_OF_CAPTURE = ("casts", "per_tensor_optimizer", "unaligned_gemms", "unfused_attention")


def summarise_with_gains(
    capture: Capture,
    taxonomy: Taxonomy = kernel_families.BUILT_IN,
    chosen: Mapping[str, str] | None = None,
    selection: Selection = ALL,
    with_moments: bool = False,
    skips_startup: bool = False,
) -> Summary:
    """As `insight.summary.summarise`, and with gains in the advice, if that is shown. Raises ExportError."""
    part = select_part(capture, chosen=chosen, selection=selection, skips_startup=skips_startup)
    summary = summarise_part(part, taxonomy, chosen, with_moments)
    return add_gains(summary, part, taxonomy) if "advice" in summary.shown else summary


def add_gains(summary: Summary, part: CapturePart, taxonomy: Taxonomy) -> Summary:
    """Add the gains of the advice to the summary of a part of a capture, the largest first, or why there are none."""
    rates = script_rates.load()
    try:
        step, why = step_of(summary, part, taxonomy, rates), {"no_gain_because": "", "no_gain_code": ""}
    except AbstentionError as reason:
        step, why = None, {"no_gain_because": str(reason), "no_gain_code": str(reason.code)}
    table = summary.sections["advice"].astype({name: object for name in why})
    for row in table.index[table["reason"] == ""]:
        if step is None:
            table.loc[row, [*why]] = [*why.values()]
        else:
            _add_gain(table, row, step, rates)
    order = pd.DataFrame({name: -table[name].fillna(0).astype(float) for name in ("fits_limit", "gain_ns", "time_ns")})
    ranked = table.loc[order.sort_values([*order], kind="stable").index, list(COLUMNS)]
    sections = summary.sections | {"advice": ranked.reset_index(drop=True)}
    return replace(summary, capture=summary.capture | why, sections=sections)


def _add_gain(table: pd.DataFrame, row: int, step: Step, rates: ScriptRates) -> None:
    """Fill the gain of a row, in place, or why there is none."""
    said = predict_step(step, (str(table.loc[row, "change"]),), rates)
    if isinstance(said, Abstention):
        table.loc[row, ["no_gain_because", "no_gain_code"]] = [said.reason, str(said.code)]
        return
    gain_ns, least_ns, most_ns, ceiling_ns = (
        said.saved_ns(time_ns) for time_ns in (said.step_ns, said.high_ns, said.low_ns, said.ceiling_ns)
    )
    least_ns, most_ns = least_ns - REPEATS * step.step_ns, min(most_ns + REPEATS * step.step_ns, ceiling_ns)
    if least_ns <= 0:
        uncertain = _abstain_from_uncertain(step, said, rates)
        table.loc[row, ["no_gain_because", "no_gain_code"]] = [uncertain.reason, str(uncertain.code)]
        return
    gains = {"gain_ns": gain_ns, "gain_least_ns": least_ns, "gain_most_ns": most_ns, "ceiling_ns": ceiling_ns}
    for name, time_ns in gains.items():
        table.loc[row, name] = round(time_ns)


def _abstain_from_uncertain(step: Step, said: Prediction, rates: ScriptRates) -> Abstention:
    """Return why a prediction whose interval holds no gain is none: what is not known of the host, or the change."""
    alone = predict_step(replace(step, host_ns={}), said.changes, rates)
    if isinstance(alone, Prediction) and alone.saved_ns(alone.high_ns) > REPEATS * step.step_ns:
        why = "the host may need as long as now: without ranges of phases, or much waiting, a capture does not tell"
        return Abstention(changes=said.changes, code=AbstentionCode.HOST_UNKNOWN, reason=why)
    why = "it may give nothing: the interval of what is expected holds no gain"
    return Abstention(changes=said.changes, code=AbstentionCode.MAY_GIVE_NOTHING, reason=why)


def step_of(summary: Summary, part: CapturePart, taxonomy: Taxonomy, rates: ScriptRates) -> Step:
    """All that was captured, as a step that the GPU limits. Raises AbstentionError."""
    seen = CaptureEvidence(summary.capture, summary.sections)
    _need_gpu_limited(summary, seen, rates)
    work = summarise_operations(part.capture, part.attribution, taxonomy)
    if work.loc[work["family"] != COPIES, "process"].nunique() > 1:
        raise AbstentionError(
            AbstentionCode.SEVERAL_GPUS, "several processes share its GPU, and each has a host of its own"
        )
    _need_phases(work)
    _need_whole_steps(summary, part)
    precision = precision_of(work)
    parts = parts_of(work)
    behind, step_ns, launches = measure_savable(summary, work), seen.work_ns, max(float(parts["launches"].sum()), 1.0)
    late_ns = seen.sum_parts("late_launch", "sync")
    least, median, most = UNDER_NSYS
    return Step(
        run={
            "precision": precision,
            "compile": compile_of(work, seen.is_graphed),
            "optimizer": optimizer_of(work),
            "num_parameters": None,
        },
        step_ns=step_ns,
        parts=parts,
        gap_ns=max(step_ns - float(parts["time_ns"].sum()) - late_ns, 0.0) / launches,
        waiting_ns=late_ns,
        host_ns={phase: host_ns * median for phase, host_ns in host_of(summary, work, step_ns).items()},
        host_span=(least / median, most / median),
        behind=behind,
        slower=1 / median,
        passes_ns=fusion.passes_ns(work.rename(columns={"name": "kernel_name", "launches": "calls"})),
        casts_weights=scripts.casts_weights({"precision": precision}, behind, step_ns),
    )


def _need_gpu_limited(summary: Summary, seen: CaptureEvidence, rates: ScriptRates) -> None:
    """Raise AbstentionError where the GPU need not limit what was captured, or no recorded pair is of such a GPU."""
    gpus = summary.sections["gpus"]
    if not len(gpus):
        raise AbstentionError(AbstentionCode.NO_GPU_WORK, "no GPU worked")
    if len(gpus) > 1:
        raise AbstentionError(
            AbstentionCode.SEVERAL_GPUS, f"it has {len(gpus)} GPUs, and the recorded pairs are of one GPU"
        )
    if "range" in summary.capture["selection"]:
        raise AbstentionError(AbstentionCode.PART_OF_STEP, "what else the GPU did meanwhile is left out with --range")
    name = str(gpus["name"].iloc[0] or "a GPU that is not named")
    if name != rates.gpu:
        raise AbstentionError(
            AbstentionCode.OTHER_GPU, f"the recorded pairs are of {rates.gpu}, and this capture is of {name}"
        )
    if seen.sum_parts("graphs"):
        raise AbstentionError(
            AbstentionCode.KERNELS_HIDDEN, "graph executions hide their kernels: record with --cuda-graph-trace=node"
        )
    if seen.sum_parts("communication") or seen.families.get("communication"):
        raise AbstentionError(AbstentionCode.SEVERAL_GPUS, "it exchanges data with other GPUs, and waits for them")
    if seen.has_startup:
        raise AbstentionError(AbstentionCode.STARTUP_INCLUDED, "start-up is in it: leave it out with --between")
    idle = 1 - seen.sum_parts("kernels", "copies") / max(seen.work_ns, 1.0)
    if idle > 1 - GPU_LIMITED:
        raise AbstentionError(
            AbstentionCode.CPU_LIMITS,
            f"under nsys the GPU idles {idle:.0%} of the time, and nsys slows the host; `profiler-job profile` times "
            "steps without it",
        )


def _need_phases(work: pd.DataFrame) -> None:
    unknown = work.loc[~work["phase"].isin(_OF_STEPS), "time_ns"].sum() / work["time_ns"].sum()
    if unknown > MOST_UNKNOWN:
        raise AbstentionError(
            AbstentionCode.PHASES_UNKNOWN,
            f"{unknown:.0%} of the GPU's work is of no phase that is known: mark phases with NVTX ranges, record with "
            "nsys --pytorch=autograd-nvtx, or leave out with --between what is outside of them",
        )


def _need_whole_steps(summary: Summary, part: CapturePart) -> None:
    """Raise AbstentionError where --between leaves a part of a step: a pass or the optimizer, as far as the whole
    capture has it, has another part of the kernel time of known phases in the window than in the whole capture."""
    if not part.selection.between:
        return
    named = summary.sections["phases"]
    without = _sum_phases(*select(*part.entire, replace(part.selection, between=None)))
    window, capture = (
        {phase: int(ns) for phase, ns in times if phase in _OF_STEPS}
        for times in (zip(named["phase"], named["kernel_ns"]), without.items())
    )
    for phase in (*PASSES, ranges.OPTIMIZER):
        if not capture.get(phase):
            continue
        ratio = window.get(phase, 0) / max(sum(window.values()), 1) * sum(capture.values()) / capture[phase]
        if not 1 / AS_LARGE <= ratio <= AS_LARGE:
            raise AbstentionError(AbstentionCode.PART_OF_STEP, "it is a part of a step: give --between whole steps")


def _sum_phases(capture: Capture, attribution: Attribution) -> dict[str, int]:
    """Sum kernel time by phase, in ns."""
    duration = capture.kernels["end_ns"] - capture.kernels["start_ns"]
    sums = duration.groupby(attribution.kernels["phase"].astype(str).to_numpy()).sum()
    return {str(phase): int(time_ns) for phase, time_ns in sums.items()}


def parts_of(work: pd.DataFrame) -> pd.DataFrame:
    """Operations by phase and kind: launches, time_ns."""
    kind = work["family"].where(work["family"] == ATTENTION, REST)
    kind = kind.mask(work["family"] == GEMM, LINEAR).mask(work["of_attention"], ATTENTION_GEMMS)
    return work.groupby(["phase", kind.rename("kind")])[["launches", "time_ns"]].sum().astype(float)


def precision_of(work: pd.DataFrame) -> str:
    """The precision of its matmuls, by the names of kernels. Raises AbstentionError if they have none or several."""
    gemms = work[work["family"] == GEMM]
    times: dict[str, float] = {}
    for name, time_ns in gemms[["name", "time_ns"]].itertuples(index=False):
        gemm = gemm_names.parse(name)
        if gemm and gemm.math_path:
            times[gemm.math_path] = times.get(gemm.math_path, 0.0) + time_ns
    total = sum(times.values())
    if not total or total < LEAST_READ * gemms["time_ns"].sum():
        raise AbstentionError(AbstentionCode.MATMULS_UNKNOWN, "the names of its matmuls do not tell their precision")
    path = max(times, key=times.__getitem__)
    if times[path] < SAME_PATH * total:
        mixed = " and ".join(sorted(name.upper() for name, ns in times.items() if ns > (1 - SAME_PATH) / 2 * total))
        raise AbstentionError(
            AbstentionCode.OTHER_PRECISION,
            f"its matmuls are in {mixed}, and each recorded run uses one precision",
        )
    if path not in _RECORDED:
        raise AbstentionError(
            AbstentionCode.OTHER_PRECISION,
            f"its matmuls are in {path.upper()}, and recorded pairs use FP32, TF32 or BF16",
        )
    return path


def compile_of(work: pd.DataFrame, is_graphed: bool) -> str:
    """Whether the model is compiled, by the names that torch.compile gives to its kernels; graphs without these are
    the program's own."""
    if not work["name"].map(lambda name: _INDUCTOR.search(name) is not None).any():
        return "off"
    return "cudagraphs" if is_graphed else "default"


def optimizer_of(work: pd.DataFrame) -> str:
    """AdamW if its phase has as many kernels for each tensor as in the recorded pairs; else empty, which is
    not known."""
    mine = work[(work["phase"] == ranges.OPTIMIZER) & (work["family"] != COPIES)]
    updates = float(mine.loc[mine["rule"] == _UPDATE_ENDS, "launches"].sum())
    least, most = PER_TENSOR_KERNELS
    return "AdamW" if updates and least <= mine["launches"].sum() / updates <= most else ""


def host_of(summary: Summary, work: pd.DataFrame, step_ns: float) -> dict[str, float]:
    """What the host needs under nsys, by phase, in ns: how long ranges of the phases are, where nearly all kernels have
    some. At most it is the time in which it kept up with the GPU: where ranges do not say more, each phase has its part
    of that. Where it waits is left out: in calls, and where the queue is full."""
    findings, phases, parts = (summary.sections[name] for name in ("findings", "phases", "verdict_phases"))
    waits_ns = float(findings.loc[findings["kind"] == "waiting_calls", "time_ns"].sum())
    blocked = work.groupby("phase")["blocked_ns"].sum()
    most_ns = max(step_ns - waits_ns - float(blocked.sum()), LEAST * step_ns)
    named = phases[phases["phase"] != ""]
    in_ranges_ns = named.loc[named["host_ns"].notna(), "kernel_ns"].sum()
    if len(named) and in_ranges_ns >= (1 - MOST_UNKNOWN) * named["kernel_ns"].sum():
        known = named[["phase", "host_ns"]].dropna()
        host = {
            str(phase): max(float(ns) - float(blocked.get(phase, 0.0)), 0.0)
            for phase, ns in known.itertuples(index=False)
        }
    else:
        elapsed = parts[parts["phase"] != ""].groupby("phase")["elapsed_ns"].sum()
        host = {str(phase): most_ns * float(ns) / float(elapsed.sum()) for phase, ns in elapsed.items()}
    return {phase: ns * min(1.0, most_ns / max(sum(host.values()), 1.0)) for phase, ns in host.items()}


def measure_savable(summary: Summary, work: pd.DataFrame) -> dict[str, Behind]:
    """By finding what was captured of it, as in `script_changes.measure_savable`."""
    findings, api, memops = (summary.sections[name] for name in ("findings", "api", "memops"))
    rows = findings[findings["kind"].isin(_OF_CAPTURE)]
    known = {
        str(kind): Behind(launches=float(count), time_ns=float(time_ns))
        for kind, count, time_ns in rows[["kind", "count", "time_ns"]].itertuples(index=False)
    }
    if "unaligned_gemms" in known:
        mine = work[(work["family"] == GEMM) & ~work["of_attention"] & work["name"].map(is_unaligned)]
        known["unaligned_gemms"] = Behind(launches=float(mine["launches"].sum()), time_ns=float(mine["time_ns"].sum()))
    calls, operations = api["name"].astype(str), memops["operation"].astype(str)  # an empty table has no type
    waits = api[calls.str.contains(WAITS)]
    known[changes.SYNCHRONISATIONS] = Behind(
        launches=float(waits["calls"].sum()), host_ns=float(waits["total_ns"].sum())
    )
    moved = memops[operations.str.startswith("memcpy")]
    of_host = memops[operations.str.startswith("memcpy") & operations.str.contains("Host")]
    part = float(of_host["count"].sum()) / max(float(moved["count"].sum()), 1.0)
    calls_ns = float(api.loc[calls.str.startswith("cudaMemcpy"), "total_ns"].sum())
    known[changes.COPIES] = Behind(
        launches=float(of_host["count"].sum()), time_ns=float(of_host["total_ns"].sum()), host_ns=part * calls_ns
    )
    return known
