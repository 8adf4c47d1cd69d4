"""What matmuls ran in, by kernel time."""

import pandas as pd
import pytest

from profiler_job.analysis.capture.math_paths import find_precision, sum_math_paths

FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel"
BF16 = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(T1::Params)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"

CONVOLUTIONS = {
    "sm90_xmma_dgrad_implicit_gemm_indexed_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x64x32_cudnn": "tf32",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_cudnn": "tf32",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x64_16x4_nhwc_align4>(T1)": "tf32",
    "void cutlass__5x_cudnn::Kernel<conv::kernel::ImplicitGemmConvolution<cutlass::tfloat32_t>>": "tf32",
    "sm90_xmma_wgrad_indexed_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_cudnn": "fp16",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816dgrad_optimized_f16_256x64_32x4_nhwc>(T1)": "fp16",
    "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn": "bf16",
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_ffma_cudnn": "fp32",
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void *)": "",
}


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


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_types_of_a_convolution_are_read(name):
    """PyTorch lets convolutions of FP32 run in TF32: a diffusion model and ResNet-50 were recorded as FP32."""
    assert find_precision(kernels((name, 5))) == CONVOLUTIONS[name]


def test_other_paths_are_named_with_their_share():
    paths = sum_math_paths(kernels((BF16, 6), (FP32, 1), (FP32, 1), (ADD, 90)))
    assert paths[["path", "share"]].to_dict("records") == [
        {"path": "bf16", "share": 0.75},
        {"path": "fp32", "share": 0.25},
    ]
