"""What a capture shows for or against a change. Times are in ns, summed over the GPUs of the capture."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.changes.waiting_lines import ScriptLine, find_lines
from profiler_job.analysis.reference import gemm_names, gpus
from profiler_job.analysis.reference.python_libraries import CAUSES, GARBAGE, LOADER, LOGGING, NO_WORKERS, OWN, PRINTING
from profiler_job.jobs.contract.errors import CodedError
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.ranges import PASSES
from profiler_job.jobs.contract.step_limit import CPU, UNKNOWN, StepLimit, split_time

LEAST = 0.01
"""Part of its whole that must be behind a change."""
LEAST_IDLE, LEAST_MATMULS, LEAST_UNFUSED = 0.1, 0.1, 0.2
"""The same of idle time that the host causes, of matmuls that are not BF16 and of kernels that could be fused."""
MOST_MEMORY, FULL_MEMORY = 0.45, 0.9
"""Peak allocated, as part of the GPU's memory: up to which twice the batch fits; from which on little is left."""
WIDE_PATHS = {path for record in PRECISIONS.values() if record.element_bytes == 4 for path in record.gemm_paths}
"""The math paths of matmuls that read elements of four bytes."""
OF_LOADERS = (LOADER, NO_WORKERS)
KEPT_PARTS = (LOGGING, PRINTING, *CAUSES)
"""Parts of libraries in samples of Python: of a DataLoader, and what takes its time however a model is launched."""
LEAST_SAMPLED = 0.5
"""Share of the waiting that samples must cover before something is missing in them."""
_NO_BREAKS = pd.DataFrame(columns=["where", "function", "reason", *(f"{phase}_idle_ns" for phase in PASSES), "kernels"])
"""Where torch.compile breaks graphs, most idle time first: as `insight.broken_lines` lists it."""
LEAST_LOADING = 0.02
"""Part of the GPUs' work in which kernels' code is loaded, from which on start-up is in the numbers."""


class WithheldCode(StrEnum):
    """Why a change is not advised though a capture has something of it."""

    STARTUP_INCLUDED = "startup_included"
    KERNELS_HIDDEN = "kernels_hidden"
    IDLE_UNEXPLAINED = "idle_unexplained"
    CPU_LIMITS = "cpu_limits"
    NOT_USED = "not_used"
    MEMORY_UNKNOWN = "memory_unknown"
    MEMORY_FULL = "memory_full"
    GPU_UNKNOWN = "gpu_unknown"
    GPU_CANNOT = "gpu_cannot"
    ALREADY_MADE = "already_made"
    SAVES_LITTLE = "saves_little"


class WithheldError(CodedError[WithheldCode]):
    """Why a change is not advised though the capture has something of it: a code, and one line."""


@dataclass(frozen=True)
class ChangeEvidence:
    """The evidence of a capture for a change; times in ns. line: the line of the script that it is about."""

    time_ns: float
    ceiling_ns: float
    evidence: str
    sure: str
    line: ScriptLine | None = None


def breaks_graphs(line: ScriptLine, breaks: pd.DataFrame) -> bool:
    """Return whether the GPU waits for a line of its own code because it breaks a graph, which has an advice. breaks:
    with the columns of `_NO_BREAKS`."""
    is_there = [line.where.startswith(f"{make_printable(str(where))} ") for where in breaks["where"]]
    rows = breaks.loc[np.array(is_there, bool)]
    idle_ns = float(rows[[f"{phase}_idle_ns" for phase in PASSES]].sum().sum())
    return not line.changes and 2 * idle_ns > line.wait_ns


class CaptureEvidence:
    """What a capture shows, as far as evidence for changes needs it. Times are sums over its GPUs, in ns."""

    def __init__(self, capture: Mapping[str, Any], sections: Mapping[str, pd.DataFrame]):
        self.sections = sections
        self.parts = sections["verdict"].sum(numeric_only=True)
        times = {str(name): float(value) for name, value in self.parts.items()}
        self.limit: StepLimit = capture.get("limit") or split_time(times)
        self.findings = sections["findings"].set_index("kind")
        self.has_kernels = bool(capture["num_kernels"] or capture["num_graph_executions"])
        self.capabilities: Mapping[str, tuple[int, int]] = capture.get("compute_capabilities", {})
        self.num_kernels = capture["num_kernels"]
        self.is_graphed = bool(
            capture["num_graph_executions"] or sections["api"]["name"].astype(str).str.contains("GraphLaunch").any()
        )
        self.has_pytorch = capture.get("has_pytorch", True)
        self.memory_used = capture.get("memory_used")
        self.recomputed = float(capture.get("recomputed") or 0.0)
        """How often backward launches forward's fused attention again, as activation checkpointing does, for each
        launch in forward."""
        self.attention_matmuls_ns: float | None = capture.get("attention_matmuls_ns")
        """Time of the matmuls that attention may have launched; None if no module tells them from the others."""
        self.attention_ns: float | None = capture.get("attention_ns")
        """Time of all kernels of attention without its projections; None if no module tells them from the others."""
        self.is_slowed = capture.get("is_slowed", True)
        self._sampled_share = float(capture.get("sampled_share") or 0.0)
        self._own_ns = float(capture.get("own_python_ns") or 0.0)
        start, end, loaded = (capture[name] for name in ("work_start_ns", "work_end_ns", "loading_end_ns"))
        self.has_startup = loaded is not None and loaded - start >= LEAST_LOADING * (end - start)
        families = sections["families"].set_index("family")["total_ns"]
        self.families = {str(name): int(time_ns) for name, time_ns in families.items()}
        self.is_compiled = bool(capture.get("is_compiled") or self.families.get("triton"))
        """Whether torch.compile has compiled something, as far as is known: kernels of Triton may be the script's."""
        self.breaks: pd.DataFrame = sections.get("breaks", _NO_BREAKS)
        self._captured_waiting_ns: float | None = capture.get("captured_waiting_ns")
        lines = [] if self.has_startup or "lines" not in sections else find_lines(sections["lines"])
        self.lines = [line for line in lines if not breaks_graphs(line, self.breaks)]

    def sum_parts(self, *names: str) -> float:
        """Return the time in which GPUs do these things, by the parts of the verdict."""
        return sum(float(self.parts.get(f"{name}_ns", 0)) for name in names)

    @property
    def whole_ns(self) -> float:
        """What shares are of."""
        return self.sum_parts("kernels", "graphs", "communication", "copies") + self.waiting_ns

    @property
    def waiting_ns(self) -> float:
        """The time that a GPU idles between its first and its last operation, if start-up is not in it."""
        return 0.0 if self.has_startup else self.sum_parts("late_launch", "sync", "between", "unknown_idle")

    @property
    def captured_waiting_ns(self) -> float:
        """The same in the steps that nsys captured, which `breaks` are of."""
        return self.waiting_ns if self._captured_waiting_ns is None else self._captured_waiting_ns

    @property
    def launched_ns(self) -> float:
        """The most that can be saved if launches take no time: to load data, to log, to print and what else the script
        computes in Python still takes its time, at best while the GPU works."""
        return self.whole_ns - self._kept_ns

    @property
    def late_launches_ns(self) -> float:
        """The time that a GPU waits for launches, and not for what takes its time however they are made."""
        return max(self.sum_parts("late_launch") - self._kept_ns - self._wait_parts.get(GARBAGE, 0.0), 0.0)

    @property
    def _kept_ns(self) -> float:
        kept_ns = self._own_ns + sum(self._wait_parts.get(name, 0.0) for name in KEPT_PARTS)
        return max(self.sum_parts("data", "nothing"), kept_ns)

    @property
    def waiting_for_launches_ns(self) -> float:
        """The most of `waiting_ns` that goes if launches take no time."""
        return min(self.waiting_ns, self.launched_ns)

    @property
    def _wait_parts(self) -> dict[str, float]:
        """How long a GPU waits for each part that samples of Python show; {} without samples."""
        rows = self.sections.get("wait_parts", pd.DataFrame(columns=["part", "wait_ns"]))
        return dict(zip(rows["part"].astype(str), rows["wait_ns"].astype(float)))

    def estimate_launching(self, num_launches: float) -> float:
        """Return the idle time that the host causes with so many of the launches."""
        late_ns = 0.0 if self.has_startup else self.sum_parts("late_launch")
        return float(late_ns * num_launches / max(self.num_kernels, 1))

    def measure_phase(self, name: str) -> tuple[float, float]:
        """Measure the kernel time and the elapsed time of a phase that ranges mark; 0 if none does."""
        phases, parts = self.sections["phases"], self.sections["verdict_phases"]
        known = phases[(phases["phase"] == name) & (phases["inferred_share"].fillna(0) < 0.5)]
        if known.empty:
            return 0.0, 0.0
        return float(known["kernel_ns"].sum()), float(parts.loc[parts["phase"] == name, "elapsed_ns"].sum())

    def sum_matmuls(self) -> dict[str, float]:
        """Return the time of GEMMs by math path."""
        rows = self.sections["kernels"]
        times: dict[str, float] = {}
        for name, time_ns in rows.loc[rows["family"] == "gemm", ["name", "total_ns"]].itertuples(index=False):
            gemm = gemm_names.parse(name)
            if gemm and gemm.math_path:
                times[gemm.math_path] = times.get(gemm.math_path, 0.0) + time_ns
        return times

    def sum_wide_matmuls(self) -> dict[str, float]:
        """Return the time of GEMMs that read elements of four bytes, by math path."""
        return {path: time_ns for path, time_ns in self.sum_matmuls().items() if path in WIDE_PATHS}

    def need_kernels(self) -> None:
        """Raise WithheldError if the capture shows executions of graphs instead of most kernels."""
        if self.sum_parts("graphs") > self.sum_parts("kernels"):
            raise WithheldError(
                WithheldCode.KERNELS_HIDDEN, "graph executions hide their kernels: record with --cuda-graph-trace=node"
            )

    def need_steady(self) -> None:
        """Raise WithheldError if start-up is in the times."""
        if self.has_startup:
            raise WithheldError(
                WithheldCode.STARTUP_INCLUDED,
                "start-up is in these numbers, and idles for other reasons: leave it out with --between",
            )

    def need_gpu_limited(self) -> str:
        """Return how sure an advice is that makes kernels faster, and launches no fewer. Raises WithheldError if the
        CPU limits the step."""
        if self.has_startup:
            return "low: start-up is in these numbers, so it is not known how far the host limits"
        if self.limit.names == (CPU,) and self.limit.cause == UNKNOWN:
            raise WithheldError(
                WithheldCode.IDLE_UNEXPLAINED,
                "the GPU idles longer than kernels run, and it is not known whether it waits for the CPU",
            )
        if self.limit.names == (CPU,):
            raise WithheldError(
                WithheldCode.CPU_LIMITS,
                "the CPU limits the step: faster kernels alone give little"
                + ("; nsys slows the CPU, so time a step without it" if self.is_slowed else ""),
            )
        return "medium: how much faster these kernels get depends on their shapes"

    def need_loader(self) -> None:
        """Raise WithheldError, with the line that makes the data, if samples of Python show no DataLoader."""
        if self._sampled_share < LEAST_SAMPLED or not self._wait_parts.keys().isdisjoint(OF_LOADERS):
            return
        rows = self.sections["waits"]
        own = rows[rows["below"].astype(str).str.fullmatch(rf"{OWN} \d+%.*")].head(1)
        lines = "".join(
            f", but for {make_printable(row.where)} {make_printable(row.function)}" for row in own.itertuples()
        )
        raise WithheldError(
            WithheldCode.NOT_USED, f"the GPU waits for no DataLoader{lines}: see the lines that it waits for"
        )

    def need_memory(self) -> float:
        """Return peak allocated as part of the GPU's memory. Raises WithheldError."""
        if self.memory_used is None:
            raise WithheldError(WithheldCode.MEMORY_UNKNOWN, "it is not known how much memory is left")
        return float(self.memory_used)

    def need_precision(self, precision: str) -> None:
        """Raise WithheldError unless each GPU is known to have a precision."""
        for name in self.sections["gpus"]["name"].fillna("").astype(str).unique():
            gpu = gpus.lookup(name)
            if gpu is None and name in self.capabilities:
                if self.capabilities[name] < PRECISIONS[precision].compute_capability:
                    raise WithheldError(WithheldCode.GPU_CANNOT, f"the GPU ({name}) does not have it")
                continue
            if gpu is None:
                raise WithheldError(
                    WithheldCode.GPU_UNKNOWN, f"it is not known whether the GPU ({name or 'not named'}) has it"
                )
            if gpu.peak_flops(precision) is None:
                raise WithheldError(WithheldCode.GPU_CANNOT, f"the GPU ({name}) does not have it")


def find_removable_kernels(seen: CaptureEvidence, kind: str, evidence: str) -> ChangeEvidence | None:
    """Return the evidence for a change that removes the kernels of a finding, and so their launches."""
    if kind not in seen.findings.index:
        return None
    finding = seen.findings.loc[kind]
    # A GPU waits less by no more than the CPU is faster: by what leads to these launches.
    launching_ns = seen.waiting_ns if pd.isna(finding["launching_ns"]) else float(finding["launching_ns"])
    ceiling_ns = float(finding["time_ns"]) + min(seen.waiting_ns, launching_ns)
    time_ns = float(finding["time_ns"]) + min(seen.estimate_launching(finding["count"]), launching_ns)
    evidence = f"{evidence} ({finding['count']:,.0f} launches)"
    return ChangeEvidence(time_ns, ceiling_ns, evidence, "medium: other kernels take their place")
