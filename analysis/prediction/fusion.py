"""What torch.compile leaves of a script's elementwise kernels. How much of them it fuses is not known: a norm that is
written out is nine kernels before, and one after. What stays is inferred from the matmuls instead: activations go
through memory about once between two of them, however many kernels work on them there. So the elementwise kernels of a
phase take after it

    time = f x (matmuls of the forward pass x mean time of its elementwise kernels) + casts of the weights

if autocast makes the casts, which read or write each weight in FP32 and in BF16, and no more than before.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.prediction.script_rates import ScriptRates, width_of
from profiler_job.analysis.reference.kernel_families import is_main_gemm
from profiler_job.jobs.contract import ranges

CAST_BYTES = 6
"""What casting a weight from FP32 to BF16 moves, and its gradient back."""


def passes_ns(operations: pd.DataFrame) -> float:
    """Number of matmuls of the forward pass, times the mean time of its elementwise kernels, in ns; NaN where it has
    none of either. operations: of one run, with phase, family, kernel_name, calls, time_ns."""
    forward = operations[operations["phase"] == ranges.FORWARD]
    passes = forward[forward["family"] == "elementwise"]
    matmuls = forward.loc[forward["family"] == "gemm", ["kernel_name", "calls"]]
    num_matmuls = sum(float(calls) for name, calls in matmuls.itertuples(index=False) if is_main_gemm(name))
    num_passes = float(passes["calls"].sum())
    return num_matmuls * float(passes["time_ns"].sum()) / num_passes if num_matmuls and num_passes else math.nan


def casts_ns(run: Mapping[str, Any], bandwidth: float) -> float:
    """What casting all weights once takes in a step of the run, in ns: nothing in FP32, NaN where it is not known how
    many there are. bandwidth: in bytes a second."""
    if width_of(str(run["precision"])) != 16:
        return 0.0
    num_parameters = run.get("num_parameters")
    if num_parameters is None or pd.isna(num_parameters):
        return math.nan
    return CAST_BYTES * float(num_parameters) / bandwidth * 1e9


def fused_ns(passes: float, casts: float, by_kind_ns: float, before_ns: float) -> float:
    """What elementwise kernels of a phase take after compiling, in ns. passes, casts: the parts of the sum above.
    by_kind_ns: as much less than before_ns as in recorded pairs, which counts where passes are not known, and is the
    least where casts are not."""
    if math.isnan(passes):
        return by_kind_ns
    return min(max(passes, by_kind_ns) if math.isnan(casts) else passes + casts, before_ns)


def factor_of(rates: ScriptRates, change: str, phase: str) -> float:
    """NaN where no pair tells. change: with its width, as in `script_rates.name_of`."""
    return rates.passes.get(f"{change}/{phase}", math.nan)
