"""What limits a step of a tuned script, as it is and after each change: from what the GPU did in it by kind of kernel.

`tune` knows neither phases nor modules of kernels: `profile` of the same script, patched or not, shows them.
"""

from collections.abc import Iterator, Mapping

import pandas as pd

from profiler_job.analysis.insight.limit_lines import describe_headline
from profiler_job.analysis.insight.other_gpus import COMPUTED
from profiler_job.analysis.insight.tuned_ladder import TunedLadder, infer_step_times, shorten_label
from profiler_job.jobs.contract.step_limit import COMPUTE, CPU, MEMORY, PARTS, StepLimit

COLUMNS = ["label", "scope", "time_ns"]
SCOPES = {COMPUTE: "compute", MEMORY: "memory", CPU: "GPU waits for the CPU"}
"""The parts of a step in the order of bars. `tune` profiles on one GPU, so that no time is communication."""
COLOURS = ("family-gemm", "family-elementwise", "ici-hatch")
"""Of SCOPES: those of the figure of a step."""


def find_tuned_limits(ladder: TunedLadder) -> dict[str, StepLimit]:
    """Find the parts of a step, by the label of its row in the ladder; without steps whose kernels are not known."""
    return {label: _split_step(kernels, step_ns) for label, step_ns, kernels in _list_profiled(ladder) if step_ns}


def _list_profiled(ladder: TunedLadder) -> Iterator[tuple[str, float, Mapping[str, float]]]:
    """Yield label, time (ns) and kernels of each step whose kernels are known."""
    tuning = ladder.tuning
    if tuning.base is None:
        return
    times = [tuning.base.step_ns, *infer_step_times(tuning)]
    profiled = [tuning.base.kernels, *(step.kernels for step in tuning.ladder)]
    for label, step_ns, kernels in zip(ladder.steps["label"], times, profiled, strict=True):
        if kernels:
            yield label, step_ns, kernels


def _split_step(kernels: Mapping[str, float], step_ns: float) -> StepLimit:
    """Split a step that was timed without a profiler. kernels: what the GPU does in it by kind, and `busy`. Tracing
    makes kernels longer, so that `busy` may exceed the step."""
    busy_ns = min(kernels["busy"], step_ns)
    sums = {name: time_ns for name, time_ns in kernels.items() if name not in ("busy", "matmul_fp32", "unaligned")}
    compute_ns = sum(sums.get(kind, 0.0) for kind in COMPUTED)
    share = compute_ns / total if (total := sum(sums.values())) else 0.0
    return StepLimit({COMPUTE: share * busy_ns, MEMORY: (1 - share) * busy_ns, CPU: step_ns - busy_ns})


def describe_tuned_limits(limits: Mapping[str, StepLimit]) -> str:
    """Describe what limits the first step and the last; "" if nothing is known."""
    names = list(limits)
    ends = names[:1] + names[1:][-1:]
    whose = ("As it is", "Tuned")
    return " ".join(f"{who}: {_lower(describe_headline(limits[name]))}." for who, name in zip(whose, ends))


def _lower(line: str) -> str:
    return line if line[:2].isupper() else f"{line[0].lower()}{line[1:]}"


def chart_tuned_limits(limits: Mapping[str, StepLimit]) -> pd.DataFrame:
    """Return the rows of the figure: COLUMNS."""
    rows = [
        (shorten_label(label), SCOPES[name], limit.parts[name])
        for label, limit in limits.items()
        for name in PARTS
        if name in SCOPES
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
