"""What the matmuls and convolutions of a capture ran in, by kernel time: the precision of a program, whatever autocast
and the types of its parameters suggest."""

import re

import pandas as pd

from profiler_job.analysis.reference import gemm_names, kernel_families

_FAMILIES = ("gemm", "convolution")
_OF_CONVOLUTIONS = [
    (path, re.compile(pattern))
    for path, pattern in (
        ("tf32", r"implicit_gemm\w*_tf32f32_|tensorop_\w*_tf32_|ImplicitGemm.*tfloat32_t"),
        ("bf16", r"implicit_gemm\w*_bf16|tensorop_\w*bf16|ImplicitGemm.*bfloat16_t"),
        ("fp16", r"implicit_gemm\w*_f16f16_|tensorop_\w*_f16_|ImplicitGemm.*half_t"),
        ("fp32", r"implicit_gemm\w*_f32f32_f32f32_"),
    )
]
"""What the names of cuDNN's convolutions say of the types that they multiply."""


def sum_math_paths(kernels: pd.DataFrame) -> pd.DataFrame:
    """Sum the kernel time of matmuls by math path, the most time first. kernels: kernel_name, start_ns, end_ns. Columns
    of the result: path (a key of `gemm_names.MATH_PATHS`; "" if the names do not show it), time_ns, share."""
    names = kernels["kernel_name"].astype(str)
    time_ns = (kernels["end_ns"] - kernels["start_ns"]).groupby(names).sum()
    paths = {name: _find_path(name) for name in time_ns.index}
    known = time_ns[[path is not None for path in paths.values()]]
    sums = known.groupby([str(paths[name]) for name in known.index]).sum().sort_values(ascending=False, kind="stable")
    return pd.DataFrame({"path": sums.index, "time_ns": sums.to_numpy(), "share": (sums / sums.sum()).to_numpy()})


def find_precision(kernels: pd.DataFrame) -> str:
    """Return the math path with the most kernel time of matmuls; "" without matmuls, or if the names hide it."""
    paths = sum_math_paths(kernels)
    return str(paths["path"].iloc[0]) if len(paths) else ""


def _find_path(name: str) -> str | None:
    if kernel_families.find_family(name) not in _FAMILIES:
        return None
    gemm = gemm_names.parse(name)
    if gemm and gemm.math_path:
        return gemm.math_path
    return next((path for path, pattern in _OF_CONVOLUTIONS if pattern.search(name)), "")
