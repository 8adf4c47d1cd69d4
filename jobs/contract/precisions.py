"""The precisions of a run, each with all that other code needs to know of it.

A new precision is one entry here, and the code of the workload that computes in it.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class PrecisionRecord:
    """Facts about a precision.

    label: its name on pages. name: what sentences call it. element_bytes: bytes of an element that a matmul reads.
    fraction_bits: bits that the element stores after the point. autocast: torch's dtype of autocast, "" without
    autocast. matmul: the setting of `torch.set_float32_matmul_precision`. gemm_paths: math paths that its main matmuls
    may take, as `analysis.reference.gemm_names` calls them. peak: key of the data-sheet rate. sustained_flops: FLOP/s
    of the matmuls of a step on an H200, for plans. compute_capability: the first that has it.
    """

    label: str
    name: str
    element_bytes: int
    fraction_bits: int
    autocast: str = ""
    matmul: Literal["highest", "high", "medium"] = "highest"
    gemm_paths: tuple[str, ...]
    peak: str
    sustained_flops: float
    compute_capability: tuple[int, int] = (0, 0)


PRECISIONS = {
    "fp32": PrecisionRecord(
        label="FP32",
        name="FP32 without tensor cores",
        element_bytes=4,
        fraction_bits=23,
        gemm_paths=("fp32",),
        peak="fp32",
        sustained_flops=46e12,
    ),
    "tf32": PrecisionRecord(
        label="TF32",
        name="TF32",
        element_bytes=4,
        fraction_bits=10,
        matmul="high",
        gemm_paths=("tf32",),
        peak="tf32",
        sustained_flops=350e12,
        compute_capability=(8, 0),
    ),
    "bf16": PrecisionRecord(
        label="BF16",
        name="BF16 autocast",
        element_bytes=2,
        fraction_bits=7,
        autocast="bfloat16",
        gemm_paths=("bf16",),
        peak="bf16",
        sustained_flops=600e12,
        compute_capability=(8, 0),
    ),
}
BASE_PRECISION = "fp32"
"""The default, with which other precisions are compared."""
