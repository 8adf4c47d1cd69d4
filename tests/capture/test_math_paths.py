"""What matmuls ran in, by kernel time."""

import pandas as pd
import pytest

from profiler_job.analysis.capture.math_paths import find_precision, sum_math_paths

FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel"
BF16 = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(T1::Params)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def kernels(*rows: tuple[str, int]) -> pd.DataFrame:
    return pd.DataFrame(
        {"kernel_name": [name for name, _ in rows], "start_ns": 0, "end_ns": [time_ns for _, time_ns in rows]}
    )


@pytest.mark.parametrize(
    "rows, precision",
    [
        ([(FP32, 10), (ADD, 90)], "fp32"),
        ([(TF32, 10), (FP32, 2)], "tf32"),
        ([(BF16, 6), (FP32, 3), (FP32, 2), (ADD, 90)], "bf16"),
        ([(ADD, 5)], ""),
        ([], ""),
    ],
)
def test_the_precision_is_what_most_time_of_matmuls_runs_in(rows, precision):
    assert find_precision(kernels(*rows)) == precision


def test_other_paths_are_named_with_their_share():
    paths = sum_math_paths(kernels((BF16, 6), (FP32, 1), (FP32, 1), (ADD, 90)))
    assert paths[["path", "share"]].to_dict("records") == [
        {"path": "bf16", "share": 0.75},
        {"path": "fp32", "share": 0.25},
    ]
