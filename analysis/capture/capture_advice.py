"""Advise what to change first, from one capture: changes that it has evidence for, with the time that each could save.

A capture holds no unprofiled step, so nothing here is a prediction. `time_ns` is the time that the capture spends on
what the change removes. `ceiling_ns` is the most that the change could save: all of that time and all the time that the
GPU waits. If the GPU limits what was captured, `analysis.prediction.captures` adds a gain. If launches vanish, the
CPU's part of the waiting counts by their number. If start-up is in a capture, its GPUs idle for that, and no idle time
counts. Gains do not add up: several changes concern the same kernels. If the capture does not show enough, a change is
not advised, and the reason explains why.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.reference import gemm_names, gpus
from profiler_job.jobs.contract.changes import DO
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.ranges import OPTIMIZER

COLUMNS = {
    "change": "name of the change",
    "time_ns": "time that it could save, on all GPUs; null where it is not advised",
    "share": "part of the time from first to last operation, summed over GPUs; with start-up in it, of their busy time",
    "ceiling_ns": "more than this it cannot save of these times",
    "do": "line of code or flag",
    "evidence": "what the capture has of it",
    "sure": "high, medium or low, and why",
    "reason": "why it is not advised; empty where it is",
    "gain_ns": "predicted to be saved of the time from first to last operation; null where that is not predicted",
    "gain_least_ns": "the least of that",
    "gain_most_ns": "the most of that",
    "no_gain_because": "why no gain is predicted; empty where one is, where it is not advised, and where nobody asked",
}
LEAST = 0.01
"""Part of its whole that must be behind a change."""
LEAST_IDLE, LEAST_MATMULS, LEAST_UNFUSED = 0.1, 0.1, 0.2
"""The same of idle time that the host causes, of matmuls that are not BF16 and of kernels that could be fused."""
MOST_MEMORY, FULL_MEMORY = 0.45, 0.9
"""Peak allocated, as part of the GPU's memory: up to which twice the batch fits; from which on little is left."""
LEAST_LOADING = 0.02
"""Part of the GPUs' work in which kernels' code is loaded, from which on start-up is in the numbers."""
_OF_KERNELS = ("tf32", "bf16", "fused_attention", "fused_adamw", "foreach", "compile", "padding", "casts")
_FUSIBLE = ("elementwise", "copy", "reduce", "softmax", "norm", "fill", "index")


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A row of the section: an advice, or with a reason none."""

    change: str
    time_ns: int | None = None
    share: float | None = None
    ceiling_ns: int | None = None
    do: str = ""
    evidence: str = ""
    sure: str = ""
    reason: str = ""
    gain_ns: int | None = None
    gain_least_ns: int | None = None
    gain_most_ns: int | None = None
    no_gain_because: str = ""


class WithheldError(ProfilerError, ValueError):
    """Why a change is not advised though the capture has something of it, in one line."""


@dataclass(frozen=True)
class ChangeEvidence:
    """The evidence of a capture for a change; times in ns."""

    time_ns: float
    ceiling_ns: float
    evidence: str
    sure: str


def advise(capture: Mapping[str, Any], sections: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """List what to change first, without gains: a row per change with COLUMNS. Advised changes come first, sorted by
    the time they could save, then the others with the reason. No rows if no GPU worked.

    capture: facts, like `Summary.capture`. is_slowed: False if the idle times come from steps without nsys.
    memory_used: share of the GPU's memory, if known.
    """
    seen = CaptureEvidence(capture, sections)
    rows = list(_make_advice(seen)) if seen.whole_ns else []
    return make_advice_table(rows)


def make_advice_table(rows: list[Advice]) -> pd.DataFrame:
    """Make the table of advice with COLUMNS: the largest predicted gain first, then the most time that could be
    saved."""
    rows = sorted(rows, key=lambda row: (-(row.gain_ns or 0), -(row.time_ns or 0)))
    table = pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))
    return table.astype({name: "Int64" for name in COLUMNS if name.endswith("_ns")} | {"share": "Float64"})


def _make_advice(seen: "CaptureEvidence") -> Iterator[Advice]:
    for change, tell in _CHANGES.items():
        try:
            if change in _OF_KERNELS and seen.sum_parts("graphs") > seen.sum_parts("kernels"):
                raise WithheldError("graph executions hide their kernels: record with --cuda-graph-trace=node")
            said = tell(seen)
        except WithheldError as why:
            yield Advice(change=change, reason=str(why))
            continue
        if said:
            ceiling_ns = min(max(said.ceiling_ns, said.time_ns), seen.whole_ns)
            time_ns = min(said.time_ns, ceiling_ns)
            yield Advice(
                change=change,
                time_ns=round(time_ns),
                share=time_ns / seen.whole_ns,
                ceiling_ns=round(ceiling_ns),
                do=DO[change],
                evidence=said.evidence,
                sure=said.sure,
            )


class CaptureEvidence:
    """What is read of a capture. Times are sums over its GPUs, in ns."""

    def __init__(self, capture: Mapping[str, Any], sections: Mapping[str, pd.DataFrame]):
        self.sections = sections
        self.parts = sections["verdict"].sum(numeric_only=True)
        self.findings = sections["findings"].set_index("kind")
        self.num_kernels = capture["num_kernels"]
        self.is_graphed = bool(
            capture["num_graph_executions"] or sections["api"]["name"].astype(str).str.contains("GraphLaunch").any()
        )
        self.memory_used = capture.get("memory_used")
        self.is_slowed = capture.get("is_slowed", True)
        start, end, loaded = (capture[name] for name in ("work_start_ns", "work_end_ns", "loading_end_ns"))
        self.has_startup = loaded is not None and loaded - start >= LEAST_LOADING * (end - start)
        families = sections["families"].set_index("family")["total_ns"]
        self.families = {str(name): int(time_ns) for name, time_ns in families.items()}

    def sum_parts(self, *names: str) -> float:
        return sum(float(self.parts.get(f"{name}_ns", 0)) for name in names)

    @property
    def whole_ns(self) -> float:
        """What shares are of."""
        return self.sum_parts("kernels", "graphs", "communication", "copies") + self.waiting_ns

    @property
    def work_ns(self) -> float:
        """From the first operation of each GPU to its last."""
        return self.sum_parts("elapsed") - self.sum_parts("no_work")

    @property
    def waiting_ns(self) -> float:
        """The time that a GPU idles between its first and its last operation, if start-up is not in it."""
        return 0.0 if self.has_startup else self.sum_parts("late_launch", "sync", "between", "unknown_idle")

    def estimate_launching(self, num_launches: float) -> float:
        """Idle time that the host causes with so many of the launches."""
        late_ns = 0.0 if self.has_startup else self.sum_parts("late_launch")
        return late_ns * num_launches / max(self.num_kernels, 1)

    def measure_phase(self, name: str) -> tuple[float, float]:
        """Measure the kernel time and the elapsed time of a phase that ranges mark; 0 if none does."""
        phases, parts = self.sections["phases"], self.sections["verdict_phases"]
        known = phases[(phases["phase"] == name) & (phases["inferred_share"].fillna(0) < 0.5)]
        if known.empty:
            return 0.0, 0.0
        return float(known["kernel_ns"].sum()), float(parts.loc[parts["phase"] == name, "elapsed_ns"].sum())

    def sum_matmuls(self) -> dict[str, float]:
        """Time of GEMMs by math path."""
        rows = self.sections["kernels"]
        times: dict[str, float] = {}
        for name, time_ns in rows.loc[rows["family"] == "gemm", ["name", "total_ns"]].itertuples(index=False):
            gemm = gemm_names.parse(name)
            if gemm and gemm.math_path:
                times[gemm.math_path] = times.get(gemm.math_path, 0.0) + time_ns
        return times

    def need_steady(self) -> None:
        if self.has_startup:
            raise WithheldError(
                "start-up is in these numbers, and idles for other reasons: leave it out with --between"
            )

    def need_gpu_limited(self) -> str:
        """How sure an advice is that makes kernels faster, and launches no fewer. Raises WithheldError if the GPU waits
        for the host longer than its kernels run."""
        if self.has_startup:
            return "low: start-up is in these numbers, so it is not known how far the host limits"
        late_ns, unknown_ns = self.sum_parts("late_launch", "sync"), self.sum_parts("unknown_idle")
        if unknown_ns > self.sum_parts("kernels"):
            raise WithheldError(
                "the GPU idles longer than kernels run, and it is not known whether it waits for the host"
            )
        if late_ns > self.sum_parts("kernels"):
            raise WithheldError(
                f"the GPU waits for launches {late_ns / 1e6:.1f} ms, and kernels run "
                f"{self.sum_parts('kernels') / 1e6:.1f} ms: faster kernels alone give little"
                + ("; nsys slows the host, so time a step without it" if self.is_slowed else "")
            )
        return "medium: how much faster these kernels get depends on their shapes"

    def need_memory(self) -> float:
        """Peak allocated as part of the GPU's memory. Raises WithheldError."""
        if self.memory_used is None:
            raise WithheldError("it is not known how much memory is left")
        return self.memory_used

    def need_precision(self, precision: str) -> None:
        for name in self.sections["gpus"]["name"].fillna("").astype(str).unique():
            gpu = gpus.lookup(name)
            if gpu is None:
                raise WithheldError(f"it is not known whether the GPU ({name or 'not named'}) has it")
            if gpu.peak_flops(precision) is None:
                raise WithheldError(f"the GPU ({name}) does not have it")


def _advise_tf32(seen: CaptureEvidence) -> ChangeEvidence | None:
    if "fp32_gemms" not in seen.findings.index:
        return None
    seen.need_precision("tf32")
    sure = seen.need_gpu_limited()
    time_ns = float(seen.findings.loc["fp32_gemms", "time_ns"])
    return ChangeEvidence(time_ns, time_ns, "GEMMs run in FP32, without tensor cores", sure)


def _advise_bf16(seen: CaptureEvidence) -> ChangeEvidence | None:
    times = seen.sum_matmuls()
    time_ns = times.get("fp32", 0) + times.get("tf32", 0)
    if time_ns < LEAST_MATMULS * seen.sum_parts("kernels"):
        return None
    if any(times.get(path) for path in ("bf16", "fp16", "fp8")):
        raise WithheldError("some of its GEMMs are in 16 bits already: the others may be in FP32 on purpose")
    seen.need_precision("bf16")
    sure = seen.need_gpu_limited()
    other_ns = seen.sum_parts("kernels") - seen.measure_phase(OPTIMIZER)[0]
    evidence = "GEMMs run in " + " and ".join(path.upper() for path in ("fp32", "tf32") if times.get(path))
    return ChangeEvidence(time_ns, max(other_ns, time_ns), evidence, sure + ", and casts are added")


def _advise_fused_attention(seen: CaptureEvidence) -> ChangeEvidence | None:
    said = _advise_without_kernels(seen, "unfused_attention", "attention is not fused: kernels between its two matmuls")
    if said is None:
        return None
    times = seen.sum_matmuls()
    matmuls_ns = seen.families.get("gemm", 0)
    is_fp32 = bool(times.get("fp32"))
    sure = (
        "low: in FP32 it gives little where contexts are short" if is_fp32 else "medium: one kernel takes their place"
    )
    return ChangeEvidence(said.time_ns, said.ceiling_ns + matmuls_ns, said.evidence, sure)


def _advise_fused_adamw(seen: CaptureEvidence) -> ChangeEvidence | None:
    said = _advise_without_kernels(seen, "per_tensor_optimizer", "the optimizer launches kernels tensor by tensor")
    _, elapsed_ns = seen.measure_phase(OPTIMIZER)
    if said is None or not elapsed_ns or seen.has_startup:
        return said
    return ChangeEvidence(elapsed_ns, elapsed_ns, said.evidence, "high: the same arithmetic in few kernels")


def _advise_foreach(seen: CaptureEvidence) -> ChangeEvidence | None:
    """Advise foreach: lists of tensors move the same bytes, and only launches vanish, which saves nothing if the GPU is
    the limit."""
    said = _advise_fused_adamw(seen)
    if said is None:
        return None
    seen.need_steady()
    time_ns = seen.estimate_launching(seen.findings.loc["per_tensor_optimizer", "count"])
    if time_ns < LEAST * seen.whole_ns:
        raise WithheldError("lists of tensors move as many bytes, and the GPU waits next to nothing for these launches")
    sure = "low: where the GPU limited them, recorded optimizers were no faster in lists; a fused one gives more"
    return ChangeEvidence(time_ns, said.ceiling_ns, said.evidence, sure)


def _advise_casts(seen: CaptureEvidence) -> ChangeEvidence | None:
    said = _advise_without_kernels(seen, "casts", "kernels only convert the data type")
    return said and ChangeEvidence(
        said.time_ns, said.ceiling_ns, said.evidence, "low: it changes what is rounded, so compare losses"
    )


def _advise_without_kernels(seen: CaptureEvidence, kind: str, evidence: str) -> ChangeEvidence | None:
    """Advise a change that removes the kernels of a finding, and so their launches."""
    if kind not in seen.findings.index:
        return None
    finding = seen.findings.loc[kind]
    time_ns = float(finding["time_ns"]) + seen.estimate_launching(finding["count"])
    evidence = f"{evidence} ({finding['count']} launches)"
    return ChangeEvidence(
        time_ns, finding["time_ns"] + seen.waiting_ns, evidence, "medium: other kernels take their place"
    )


def _advise_padding(seen: CaptureEvidence) -> ChangeEvidence | None:
    if "unaligned_gemms" not in seen.findings.index:
        return None
    sure = seen.need_gpu_limited()
    time_ns = float(seen.findings.loc["unaligned_gemms", "time_ns"])
    return ChangeEvidence(
        time_ns, time_ns, "GEMMs load 4 bytes at once or fewer, as where a dimension is not padded", sure
    )


def _advise_compile(seen: CaptureEvidence) -> ChangeEvidence | None:
    if seen.is_graphed:
        return None
    rows = seen.sections["families"]
    fusible = rows[rows["family"].isin(_FUSIBLE)]
    time_ns, calls = fusible[["total_ns", "calls"]].sum()
    if "per_tensor_optimizer" in seen.findings.index:  # the model is compiled, its optimizer is not
        time_ns -= seen.findings.loc["per_tensor_optimizer", "time_ns"]
        calls -= seen.findings.loc["per_tensor_optimizer", "count"]
    if time_ns < LEAST_UNFUSED * seen.sum_parts("kernels"):
        return None
    if seen.families.get("triton"):
        raise WithheldError("it is compiled already: it has Triton's kernels")
    evidence = f"{calls} kernels move or map elements one after another"
    sure = "low: which of them it fuses is not known before"
    time_ns = float(time_ns) + seen.estimate_launching(calls)
    return ChangeEvidence(time_ns, seen.sum_parts("kernels") + seen.waiting_ns, evidence, sure)


def _advise_cuda_graphs(seen: CaptureEvidence) -> ChangeEvidence | None:
    late_ns = seen.sum_parts("late_launch")
    if seen.sum_parts("unknown_idle") >= LEAST_IDLE * seen.whole_ns:
        raise WithheldError("it is not known whether the host is why the GPU idles")
    if late_ns < LEAST_IDLE * seen.whole_ns:
        return None
    if seen.is_graphed:
        raise WithheldError("it runs CUDA graphs already")
    seen.need_steady()
    evidence = "the host launches late, and the GPU idles meanwhile"
    if not seen.is_slowed:
        return ChangeEvidence(
            late_ns, seen.waiting_ns, evidence, "medium: shapes must stay the same, and not all can be captured"
        )
    return ChangeEvidence(
        late_ns, seen.waiting_ns, evidence, "low: nsys slows the host, so without it the GPU idles less"
    )


def _advise_copies(seen: CaptureEvidence) -> ChangeEvidence | None:
    rows = seen.findings[seen.findings.index.isin(["host_to_device", "device_to_host"])]
    rows = rows[rows["evidence"].str.contains("pageable host memory")]
    if rows.empty:
        return None
    seen.need_steady()
    time_ns = min(float(rows["time_ns"].sum()), seen.sum_parts("copies"))
    if time_ns < LEAST * seen.whole_ns:
        raise WithheldError("kernels hide its copies")
    evidence = "copies from or to pageable memory, while nothing else runs"
    sure = "medium: the copies stay, and hide only behind kernels that do not wait for them"
    return ChangeEvidence(time_ns, time_ns + seen.waiting_ns, evidence, sure)


def _advise_synchronisations(seen: CaptureEvidence) -> ChangeEvidence | None:
    sync_ns = seen.sum_parts("sync")
    if sync_ns < LEAST * seen.whole_ns:
        return None
    seen.need_steady()
    ceiling_ns = seen.waiting_ns + seen.sum_parts("copies")
    sure = "medium: a measured step ends in one, and the host must be fast enough to run ahead"
    return ChangeEvidence(sync_ns, ceiling_ns, "the GPU idles while the host waits in a synchronisation", sure)


def _advise_larger_batch(seen: CaptureEvidence) -> ChangeEvidence | None:
    used = seen.need_memory()
    late_ns = seen.sum_parts("late_launch")
    if late_ns < LEAST_IDLE * seen.whole_ns:
        return None
    if used > MOST_MEMORY:
        raise WithheldError(f"peak allocated is {used:.0%} of the GPU's memory")
    evidence = f"the GPU waits for the host, and peak allocated is {used:.0%} of its memory"
    return ChangeEvidence(late_ns, seen.waiting_ns, evidence, "medium: a token takes less time, a step does not")


def _advise_checkpointing(seen: CaptureEvidence) -> ChangeEvidence | None:
    if (used := seen.need_memory()) > FULL_MEMORY:
        why = f"{used:.0%} of the GPU's memory is allocated: it frees some, and makes a step slower"
        raise WithheldError(f"{why}; of a script, `predict --change checkpointing` says how much of either")
    return None


_CHANGES: dict[str, Callable[[CaptureEvidence], ChangeEvidence | None]] = {
    "tf32": _advise_tf32,
    "bf16": _advise_bf16,
    "fused_attention": _advise_fused_attention,
    "fused_adamw": _advise_fused_adamw,
    "foreach": _advise_foreach,
    "compile": _advise_compile,
    "cuda_graphs": _advise_cuda_graphs,
    "padding": _advise_padding,
    "casts": _advise_casts,
    "copies": _advise_copies,
    "synchronisations": _advise_synchronisations,
    "larger_batch": _advise_larger_batch,
    "checkpointing": _advise_checkpointing,
}
