"""Matmuls by the sizes of their operands, if a capture has recorded them: a trace of torch.profiler with
`record_shapes=True`, or nsys with `--pytorch=autograd-shapes-nvtx`. Without sizes only names of kernels are known."""

import ast
import re

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.reference.rules import Taxonomy

ALIGNED = 8
"""A GEMM on tensor cores loads as many 16-bit values at once, if rows and columns are multiples of it."""
_SIZED = re.compile(r"aten::(_scaled_mm|addmm|baddbmm|bmm|mm)\b.*?sizes = (\[\[.{1,500}\])", re.DOTALL)
_FIRST = {"addmm": 1, "baddbmm": 1}
"""Place of the first matrix among the operands: these add the product to another one."""

Sizes = tuple[int, int, int, int]
"""Matmuls in a batch, rows and columns of the result, and what is summed over."""


def summarise_matmuls(capture: Capture, attribution: Attribution, taxonomy: Taxonomy) -> pd.DataFrame:
    """Sum the kernels of matmuls by the operator and sizes of the range that launched them, most time first: the
    section `matmuls`."""
    names = attribution.ranges["name"].cat
    known = [parse_sizes(str(name)) for name in names.categories]
    range_id, kernel = attribution.kernels["range_id"].to_numpy(), capture.kernels["kernel_name"].cat
    is_gemm = np.array([taxonomy.family(str(name)) == "gemm" for name in kernel.categories], bool)
    code = np.where(range_id >= 0, names.codes.to_numpy()[range_id], -1) if len(names.codes) else range_id
    has_sizes = np.array([*(sizes is not None for sizes in known), False], bool)
    rows = np.flatnonzero(has_sizes[code] & is_gemm[kernel.codes.to_numpy()]) if has_sizes.any() else code[:0]
    if not len(rows):
        return pd.DataFrame(columns=list(SECTIONS["matmuls"]))
    ns = (capture.kernels["end_ns"] - capture.kernels["start_ns"]).to_numpy()
    frame = pd.DataFrame([known[number] for number in code[rows]], columns=["operator", "batch", "m", "n", "k"])
    frame = frame.assign(range_id=range_id[rows], time_ns=ns[rows])
    keys = ["operator", "batch", "m", "n", "k"]
    sums = frame.groupby(keys, sort=False).agg(count=("range_id", "nunique"), time_ns=("time_ns", "sum")).reset_index()
    flops = 2.0 * sums["batch"] * sums["m"] * sums["n"] * sums["k"] * sums["count"]
    sums["flops"], sums["flop_per_s"] = flops, 1e9 * flops / sums["time_ns"].clip(lower=1)
    sums["unaligned"] = [list_unaligned(m, n, k) for m, n, k in sums[["m", "n", "k"]].itertuples(index=False)]
    return sums.sort_values("time_ns", ascending=False, kind="stable", ignore_index=True)[list(SECTIONS["matmuls"])]


def parse_sizes(name: str) -> tuple[str, int, int, int, int] | None:
    """Return operator, batch, m, n and k of a range; None if it is no matmul with sizes."""
    match = _SIZED.search(name)
    try:
        sizes = ast.literal_eval(match[2]) if match else []
        first = _FIRST.get(match[1], 0) if match else 0
        (*batch, m, k), (*_, same, n) = sizes[first], sizes[first + 1]
        numbers = [int(number) for number in (*batch, m, n, k)]
    except (ValueError, TypeError, SyntaxError, IndexError, RecursionError, MemoryError):
        return None
    if match is None or same != k or len(batch) > 1 or not all(0 < number < 2**31 for number in numbers):
        return None
    return (match[1], numbers[0] if batch else 1, *numbers[-3:])  # type: ignore[return-value]


def list_unaligned(m: int, n: int, k: int) -> str:
    """List the sizes that are no multiple of ALIGNED."""
    return ", ".join(f"{name} = {size}" for name, size in (("m", m), ("n", n), ("k", k)) if size % ALIGNED)
