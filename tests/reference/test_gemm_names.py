"""Reading real GEMM kernel names."""

import csv
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from profiler_job.analysis.reference.gemm_names import EXPECTED_LAYOUTS, MATH_PATHS, GemmName, parse, parse_alignment
from profiler_job.analysis.reference.gpus import PRECISIONS
from profiler_job.analysis.reference.kernel_families import is_main_gemm

READ = [  # name, library, architecture, math path, layout, tile, stages, split-K
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
        "_execute_kernel__5x_cublas",
        ("cuBLAS", "sm80", "fp32", "tn", (64, 64, 8), 3, None),
    ),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize64x128x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
        "_execute_split_k_kernel__5x_cublas",
        ("cuBLAS", "sm80", "fp32", "nt", (64, 128, 8), 3, True),
    ),
    (
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_on_kernel__5x_cublas",
        ("cuBLAS", "sm90", "tf32", "nt", (128, 128, 32), None, True),
    ),
    (
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x256x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        ("cuBLAS", "sm90", "tf32", "nn", (64, 256, 32), None, False),
    ),
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        ("cuBLAS", "sm90", "bf16", "tn", (64, 128, 64), None, False),
    ),
    (
        "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize256x64x64_stage4_warpsize4x1x1_tensor16x8x32_execute_kernel__5x_cublas",
        ("cuBLAS", "sm89", "fp8", "tn", (256, 64, 64), 4, None),
    ),
    (
        "sm75_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize128x128x32",
        ("cuBLAS", "sm75", "fp16", "nn", (128, 128, 32), None, None),
    ),
    ("sm75_xmma_gemm_f16f16_f16f32", ("cuBLAS", "sm75", "fp16", None, None, None, None)),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
        ("CUTLASS", "sm80", "fp32", "nn", (256, 128, 8), 4, None),
    ),
    (
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x256_nt_align1>(T1::Params)",
        ("CUTLASS", "sm75", "bf16", "nt", (128, 256, 0), None, None),
    ),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align4>(T1::Params)",
        ("CUTLASS", "sm80", "tf32", "tn", (256, 64, 16), 4, None),
    ),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T1::Params)",
        ("CUTLASS", "sm80", "bf16", "tn", (256, 128, 32), 3, None),
    ),
    (
        "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_tn_align8EEE",
        ("CUTLASS", "sm80", "fp16", "tn", (256, 128, 32), 3, None),
    ),
    (
        "cutlass3x_sm90_tensorop_s64x256x16gemm_f16_f16_f32_void_f32_128x256x64_2x1x1_0_ttt_align8"
        "_warpspecialized_cooperative_epi_tma",
        ("CUTLASS", "sm90", "fp16", "tt", (128, 256, 64), None, None),
    ),
    (
        "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x64x16_1x1x1_3_tnn_align1_bias_f32_relu",
        ("CUTLASS", "sm100", "fp32", "tn", (64, 64, 16), 3, None),
    ),
    (
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT",
        ("cuBLAS", "sm90", "bf16", "tn", (192, 128, 64), 5, None),
    ),
    (
        "nvjet_sm90_tst_96x128_64x6_2x1_v_bz_splitK_NNN",
        ("cuBLAS", "sm90", "bf16", "nn", (96, 128, 64), 6, True),
    ),
    (
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT",
        ("cuBLAS", None, "fp16", "nn", (256, 128, 64), 4, None),
    ),
    (
        "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT",
        ("cuBLAS", None, "fp8", "tn", (128, 256, 128), 6, None),
    ),
    (
        "nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN",
        ("cuBLAS", "sm120", "bf16", "tn", (64, 64, 128), 3, None),
    ),
    (
        "nvjet_sm110_tst_256x128_64x4_1x2_h_bz_splitK_bias_TNT",
        ("cuBLAS", "sm110", "bf16", "tn", (256, 128, 64), 4, True),
    ),
    ("ampere_sgemm_128x64_tn", ("cuBLAS", "ampere", "fp32", "tn", (128, 64, 0), None, None)),
    ("volta_sgemm_64x32_sliced1x4_nn", ("cuBLAS", "volta", "fp32", "nn", (64, 32, 0), None, None)),
    (
        "volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn",
        ("cuBLAS", "volta", "fp16", "nn", (256, 128, 0), None, None),
    ),
    (
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        ("cuBLAS", "ampere", "bf16", "tn", (128, 256, 64), 3, None),
    ),
    (
        "ampere_s1688gemm_bf16_128x128_ldg8_stages_32x1_nn",
        ("cuBLAS", "ampere", "bf16", "nn", (128, 128, 32), 1, None),
    ),
    (
        "void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>, float const*)",
        ("cuBLAS", None, None, None, None, None, True),
    ),
    (
        "void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParams<",
        ("cuBLAS", None, "fp32", "t", None, None, None),
    ),
    (
        "void deep_gemm::sm90_fp8_gemm_1d1d_impl<2048u, 4096u, 0u, 32u, 128u, 152u, 128u, 128u, ...",
        ("DeepGEMM", "sm90", "fp8", None, None, None, None),
    ),
]


@pytest.mark.parametrize(("name", "expected"), READ, ids=[name[:60] for name, _ in READ])
def test_real_name_is_read(name, expected):
    assert parse(name)[:-1] == expected


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>(int, T2, T3)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
        "triton_tem_fused_bmm_7",
        "",
    ],
)
def test_other_names_are_not_read(name):
    assert parse(name) is None


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        (READ[0][0], 4),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)", 1),
        ("cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4", 4),
        ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT", None),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_alignc4", None),
    ],
)
def test_alignment_is_that_of_the_operands(name, elements):
    assert parse_alignment(name) == elements


def test_what_cublas_does_not_document_is_marked_inferred():
    found = parse("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT")
    assert found.inferred == {"architecture", "math_path", "layout", "tile", "stages"}
    assert parse("ampere_sgemm_128x64_tn").inferred == {"architecture", "math_path", "layout", "tile"}


def test_what_cutlass_documents_is_not():
    assert parse("cutlass_80_simt_sgemm_256x128_8x4_nn_align1").inferred == frozenset()
    assert parse("cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4").inferred == {"math_path"}


def test_inferred_names_are_fields():
    with (Path(__file__).parent / "kernel_names.tsv").open(encoding="utf-8", newline="") as file:
        names = [row["name"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    found = [parse(name) for name in names if parse(name)]
    assert len(found) > 60
    for read in found:
        assert read.inferred <= set(GemmName._fields)
        assert read.math_path is None or read.math_path in MATH_PATHS


def test_math_paths_are_the_precisions_of_the_gpu_table():
    assert set(PRECISIONS) <= set(MATH_PATHS)


@pytest.mark.parametrize(
    ("profile", "math_path"), [("train", "fp32"), ("train_tf32", "tf32"), ("train_bf16_sdpa", "bf16")]
)
def test_every_gemm_of_the_shared_profiles_is_read_with_its_math_path(shared_profiles, profile, math_path):
    assert {parse(name).math_path for name in gemms(shared_profiles / f"{profile}.sqlite")} == {math_path}


def test_layouts_of_a_train_step_are_those_of_its_gemms(shared_profiles):
    """12 layers, 2 steps. A layer has 7 linears, the model 1 more; QK^T and AV have one GEMM forward, two back."""
    counts = Counter(parse(name).layout for name in gemms(shared_profiles / "train.sqlite"))
    times = {operation: 2 * (7 * 12 + 1 if operation.startswith("linear") else 12) for operation in EXPECTED_LAYOUTS}
    expected = Counter()
    for operation, layout in EXPECTED_LAYOUTS.items():
        expected[layout] += times[operation]
    assert counts == expected == {"tn": 218, "nn": 218, "nt": 218}


def gemms(path: Path) -> list[str]:
    """Names of the main kernels of all GEMMs of an export, one a launch."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = connection.execute(
        "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"
    ).fetchall()
    connection.close()
    return [name for (name,) in rows if is_main_gemm(name)]
