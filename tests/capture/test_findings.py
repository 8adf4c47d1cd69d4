"""Each kind of finding appears where the capture has the evidence, and not where something only looks like it."""

from itertools import count
from pathlib import Path

import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.finding_lines import MOST, describe_findings
from profiler_job.analysis.insight.findings import COLUMNS, KINDS, SENTENCES
from profiler_job.analysis.insight.summary import summarise

from .nsys_files import Export
from .profiles import profile

US, MS = 1_000, 1_000_000
_VEC = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::"
_TAIL = "(at::TensorIteratorBase &)>(int, T2, T3)"
MUL = _VEC + "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>>(int, T2, T3)"
MASKED_FILL = f"{_VEC}<unnamed>::masked_fill_kernel{_TAIL}"
ADDCDIV = f"{_VEC}addcdiv_cuda_kernel{_TAIL}"
FOREACH = "void at::native::<unnamed>::multi_tensor_apply_kernel<PointwiseOpScalarListFunctor<float>>(T1, T2, T3...)"
FILL = f"{_VEC}FillFunctor<float>>(int, T2, T3)"
CAST = f"{_VEC}bfloat16_copy_kernel_cuda{_TAIL}"
CONTIGUOUS = "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native"
CONTIGUOUS += "::direct_copy_kernel_cuda(at::TensorIteratorBase &)>>(int, T3)"
EXP, NEG, DIV = f"{_VEC}exp_kernel_cuda{_TAIL}", f"{_VEC}neg_kernel_cuda{_TAIL}", _VEC + "DivFunctor<float>>(int)"
LOG = f"{_VEC}log_kernel_cuda{_TAIL}"
REDUCE = "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::"
MAX, SUM = REDUCE + "MaxOps<float>, unsigned int>>(T3)", REDUCE + "sum_functor<float, float>, unsigned int>>(T3)"
SCATTER = "void at::native::_scatter_gather_elementwise_kernel<(int)128, (int)8>(int, T3)"
SOFTMAX = "void at::native::<unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0, (bool)0>(T2 *, int)"
SOFTMAX_BACKWARD = SOFTMAX.replace("forward", "backward")
LOG_SOFTMAX = SOFTMAX.replace("(int)9, (bool)0", "(int)9, (bool)1")
LARGE_LOG_SOFTMAX = (
    "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, LogSoftMaxForwardEpilogue>(T4 *, int)"
)
NLL = "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(T1 *, long)"
TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, (int)2>(T1)"
GEMM = "nvjet_sm90_tst_96x128_64x7_2x1_v_bz_TNN"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128>>(pytorch_flash::Flash_fwd_params)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"


def _cutlass(name: str) -> str:
    return f"void cutlass::Kernel2<cutlass_{name}>(T1::Params)"


def _kernels(*names: str, repeat: int = 1, each: int = 10 * US) -> Export:
    """A capture of kernels one after another, each launched long before it runs."""
    export = Export()
    for number, name in enumerate(names * repeat):
        start = MS + number * each
        export.launch(number * 10, start=start, end=start + each, name=name)
    return export


def _find(export: Export, tmp_path: Path) -> dict[str, dict]:
    number = len(list(tmp_path.iterdir()))
    summary = summarise(read(export.sqlite(tmp_path / f"{number}.sqlite"), details=False))
    return {row["kind"]: row for row in summary.as_json()["findings"]}


def _describe(export: Export, tmp_path: Path) -> list[str]:
    number = len(list(tmp_path.iterdir()))
    return describe_findings(
        summarise(read(export.sqlite(tmp_path / f"{number}.sqlite"), details=False)).sections["findings"]
    )


def _attention(softmax: tuple[str, ...], before=(MUL, MASKED_FILL), after=()) -> Export:
    return _kernels(GEMM, *before, *softmax, *after, GEMM, GEMM, repeat=3)


WRITTEN = (MAX, NEG, EXP, SUM, DIV)
NAMES = {
    "fp32_gemms": (
        [FFMA, _cutlass("80_simt_sgemm_256x128_8x4_nn_align1"), "ampere_sgemm_128x64_tn"],
        [GEMM, _cutlass("80_tensorop_s1688gemm_128x128_16x4_nt_align4"), "gemv2T_kernel_val<int, float, float>", MUL],
    ),
    "unaligned_gemms": (
        [
            _cutlass("75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1"),
            _cutlass("80_tensorop_f16_s16816gemm_relu_f16_64x64_32x6_nn_align2"),
            _cutlass("80_tensorop_s1688gemm_128x128_16x4_nt_align1"),
        ],
        [
            _cutlass("80_simt_sgemm_256x128_8x4_nn_align1"),
            _cutlass("80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8"),
            _cutlass("80_tensorop_s1688gemm_128x128_16x4_nt_align4"),
            "cutlass3x_sm90_tensorop_s64x256x16gemm_f16_f16_f32_void_f32_128x256x64_2x1x1_0_ttt_align16",
            FFMA.replace("aligna4_alignc4", "aligna1_alignc1"),
        ],
    ),
    "casts": ([CAST], [CONTIGUOUS, FILL]),
    "tensor_copies": ([CONTIGUOUS, "void at::native::<unnamed>::CatArrayBatchedCopy<float>(T1 *)"], [CAST, MUL]),
    "fills": ([FILL], [CAST, MASKED_FILL]),
    "communication": ([NCCL], [GEMM]),
}


@pytest.mark.parametrize(
    ("kind", "name", "appears"),
    [(kind, name, index == 0) for kind, both in NAMES.items() for index in (0, 1) for name in both[index]],
)
def test_a_kernel_is_behind_a_finding_by_its_name(tmp_path, kind, name, appears):
    findings = _find(_kernels(name, MUL), tmp_path)
    assert (kind in findings) == appears
    if appears:
        row = findings[kind]
        assert (row["time_ns"], row["share"], row["of"], row["count"]) == (10 * US, 0.5, "kernel time", 1)
        assert row["evidence"].endswith(": 1 in 10.0 µs")
        assert row["what"] == KINDS[kind]


ATTENTIONS = {
    "library softmax": _attention((SOFTMAX,), after=("fused_dropout_kernel_vec",)),
    "library softmax, backward": _attention((SOFTMAX_BACKWARD,)),
    "written by hand": _attention(WRITTEN),
    "compiled": _attention(("triton_per_fused__softmax_add_masked_fill_mul_4",), before=()),
    "compiled, written by hand": _attention(
        ("triton_per_fused_div_exp_masked_fill_max_mul_sub_sum_view_2",), before=()
    ),
}
OTHERS = {
    "loss of a library": _kernels(GEMM, LARGE_LOG_SOFTMAX, NLL, MUL, GEMM, repeat=3),
    "log-softmax of few classes": _kernels(GEMM, LOG_SOFTMAX, MUL, GEMM, repeat=3),
    "loss written by hand": _kernels(GEMM, MAX, NEG, EXP, SUM, LOG, MUL, GEMM, repeat=3),
    "softmax and loss": _kernels(GEMM, SOFTMAX, NLL, GEMM, repeat=3),
    "router of experts": _kernels(GEMM, SOFTMAX, TOPK, MUL, GEMM, repeat=3),
    "after the last matmul": _kernels(GEMM, SOFTMAX, MUL),
    "compiled loss": _kernels(GEMM, "triton_red_fused__log_softmax_nll_loss_forward_2", GEMM, repeat=3),
    "far from the matmuls": _kernels(GEMM, *[MUL] * 40, SOFTMAX, GEMM),
    "exp alone": _kernels(GEMM, EXP, MUL, GEMM, repeat=3),
    "masked fill and sum alone": _kernels(GEMM, MASKED_FILL, SUM, GEMM, repeat=3),
    "fused attention elsewhere": _kernels(GEMM, SOFTMAX, GEMM, FLASH, repeat=3),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_unfused_attention_is_told_by_what_stands_between_two_matmuls(tmp_path, name):
    row = _find(ATTENTIONS[name], tmp_path)["unfused_attention"]
    others = sum(kernel["name"] != GEMM for kernel in _names(ATTENTIONS[name]))
    assert (row["count"], row["time_ns"]) == (others, others * 10 * US)
    assert row["evidence"].endswith("between two matmuls: 3 times")


def _names(export: Export) -> list[dict]:
    names = {row["id"]: row["value"] for row in export.rows["StringIds"]}
    return [{"name": names[row["demangledName"]]} for row in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]]


@pytest.mark.parametrize("name", OTHERS)
def test_other_softmaxes_are_no_attention(tmp_path, name):
    assert "unfused_attention" not in _find(OTHERS[name], tmp_path)


def test_the_backward_pass_of_a_softmax_written_by_hand_is_of_attention_too(tmp_path):
    backward = (MUL, DIV, SUM, NEG, FILL, SCATTER, MASKED_FILL, MUL)
    row = _find(_kernels(GEMM, *WRITTEN, GEMM, *backward, GEMM), tmp_path)["unfused_attention"]
    assert row["count"] == len(WRITTEN) + len(backward)


def test_kernels_of_other_streams_are_not_between_two_matmuls(tmp_path):
    export = Export()
    for number, (name, stream) in enumerate([(GEMM, 7), (GEMM, 8), (SOFTMAX, 7), (MUL, 8), (GEMM, 7), (GEMM, 8)]):
        export.launch(number, start=MS + number * US, end=MS + number * US + US, name=name, stream=stream)
    row = _find(export, tmp_path)["unfused_attention"]
    assert (row["count"], row["evidence"].count(":")) == (1, 2)


def test_a_kernel_is_behind_one_finding(tmp_path):
    findings = _find(_kernels(GEMM, CAST, SOFTMAX, CAST, GEMM, CAST, MUL), tmp_path)
    assert (findings["unfused_attention"]["count"], findings["casts"]["count"]) == (3, 1)


def _optimizer(name: str, steps: int = 2, launches: int = 60, phases: bool = True) -> Export:
    export = Export()
    at = 0
    for _ in range(steps):
        if phases:
            export.push("optimizer", at, at + 100 * launches)
        for number in range(launches):
            export.launch(at + 100 * number, start=at + 100 * number + 50, end=at + 100 * number + 90, name=name)
        at += 100 * launches
    return export


@pytest.mark.parametrize(
    ("name", "launches", "phases", "appears"),
    [
        (ADDCDIV, 60, True, True),
        (MUL, 60, True, True),  # SGD: the phase tells
        (ADDCDIV, 60, False, True),
        (MUL, 60, False, False),
        (FOREACH, 60, True, False),
        (ADDCDIV, 10, True, False),
        (ADDCDIV, 10, False, False),
    ],
)
def test_an_optimizer_that_works_tensor_by_tensor_is_found(tmp_path, name, launches, phases, appears):
    findings = _find(_optimizer(name, launches=launches, phases=phases), tmp_path)
    assert ("per_tensor_optimizer" in findings) == appears
    if appears:
        row = findings["per_tensor_optimizer"]
        assert row["count"] == 2 * launches
        assert ("per step: 60" in row["evidence"]) == phases


def test_idle_time_is_that_of_all_gpus(tmp_path):
    export = Export()
    for device, end in ((0, 1000), (1, 600)):
        export.launch(0, start=100, end=200, device=device)
        export.launch(10, start=end - 100, end=end, device=device)
    row = _find(export, tmp_path)["idle"]
    assert (row["time_ns"], row["count"], row["of"]) == (700 + 300, 2, "GPU span")
    assert row["share"] == 1000 / 1400
    assert "idle" not in _find(_kernels(GEMM, MUL), tmp_path)


def _copies(operation: str, end: int = 300, **more) -> Export:
    export = _kernels(GEMM, each=1000)
    call = export.call(MS + 900, MS + 950, name="cudaMemcpyAsync")
    getattr(export, operation)(MS + 2000 - end, MS + 2000, call, bytes=1 << 20, **more)
    return export


@pytest.mark.parametrize(
    ("operation", "more", "kind", "evidence"),
    [
        ("copy", {"kind": 1}, "host_to_device", "moved: 1.00 MiB; pageable host memory: 1 in 300 ns"),
        ("copy", {"kind": 2, "host": 1}, "device_to_host", "moved: 1.00 MiB; pinned host memory: 1 in 300 ns"),
        ("copy", {"kind": 8}, "device_copies", "moved: 1.00 MiB"),
        ("memset", {}, "memsets", ""),
    ],
)
def test_copies_say_how_much_they_move_and_from_where(tmp_path, operation, more, kind, evidence):
    findings = _find(_copies(operation, **more), tmp_path)
    assert {"host_to_device", "device_to_host", "device_copies", "memsets"} & set(findings) == {kind}
    row = findings[kind]
    assert (row["time_ns"], row["share"], row["evidence"]) == (300, 0.15, evidence)
    assert kind not in _find(_copies(operation, end=10, **more), tmp_path), "below 1% of the GPU span"


def test_without_columns_of_host_memory_a_copy_is_found_all_the_same(tmp_path):
    export = _copies("copy", kind=1)
    for column in ("srcKind", "dstKind"):
        export.drop("CUPTI_ACTIVITY_KIND_MEMCPY", column)
    assert _find(export, tmp_path)["host_to_device"]["evidence"] == "moved: 1.00 MiB"


def _calls(*names: str, **more) -> Export:
    export = Export()
    at = count(0, 1000)
    for _ in range(2):
        start = next(at)
        export.push("step", start, start + 900)
        for number, name in enumerate(names):
            export.call(start + 100 * number, start + 100 * number + 50, name=name, **more)
    return export


@pytest.mark.parametrize(
    ("kind", "name", "appears"),
    [
        ("waiting_calls", "cudaStreamSynchronize_v3020", True),
        ("waiting_calls", "cudaMemcpy_v3020", True),
        ("waiting_calls", "cudaMemcpyAsync_v3020", False),
        ("waiting_calls", "cudaEventQuery_v3020", False),
        ("allocation_calls", "cudaMalloc_v3020", True),
        ("allocation_calls", "cudaMallocAsync_v11020", False),
        ("loading_calls", "cuLibraryLoadData", True),
        ("loading_calls", "cudaLaunchKernel_v7000", False),
    ],
)
def test_calls_are_found_by_name(tmp_path, kind, name, appears):
    findings = _find(_calls(name, name), tmp_path)
    assert (kind in findings) == appears
    if appears:
        row = findings[kind]
        assert (row["time_ns"], row["count"], row["of"]) == (200, 4, "elapsed time")
        assert row["evidence"].endswith("4 in 200 ns; per step: 2")


@pytest.mark.parametrize(("host", "appears"), [(0, True), (1, False)])
def test_a_copy_to_pageable_memory_is_waited_for(tmp_path, host, appears):
    export = Export()
    call = export.call(0, 500, name="cudaMemcpyAsync_v3020")
    export.copy(100, 400, call, kind=2, host=host)
    assert ("waiting_calls" in _find(export, tmp_path)) == appears


def test_threads_that_wait_together_count_once(tmp_path):
    export = Export()
    for thread, end in ((1, 500), (2, 700)):
        export.call(100, end, thread=thread, name="cudaDeviceSynchronize")
    export.call(900, 1000, name="cudaLaunchKernel")
    row = _find(export, tmp_path)["waiting_calls"]
    assert (row["time_ns"], row["count"], row["share"]) == (600, 2, 600 / 900)


def test_a_time_of_the_host_is_of_the_process_with_most_of_it(tmp_path):
    """One process of eight that waits for 3% of the time is found, and waits of two are not added."""
    export = Export()
    for process in range(1, 9):
        export.push("step", 0, 5_000, process=process)
        export.call(0, 10_000, process=process, name="cudaLaunchKernel")
    export.call(1_000, 1_300, process=2, name="cudaDeviceSynchronize")
    export.call(9_000, 9_050, process=2, thread=2, name="cudaDeviceSynchronize")
    export.call(1_000, 1_090, process=5, name="cudaStreamSynchronize")
    row = _find(export, tmp_path)["waiting_calls"]
    assert (row["time_ns"], row["count"], row["share"], row["of"]) == (350, 2, 0.035, "elapsed time")
    assert row["evidence"] == (
        "cudaDeviceSynchronize: 2 in 350 ns; per step: 1; outside steps: 1; process: 2, with most of 8"
    )


def test_launches_of_one_process_are_held_against_its_own_kernels(tmp_path):
    export = _launches(100, 1000)
    for number in range(40):  # long kernels, which another process launches
        export.launch(number * 1000 + 10, process=2, device=1, start=number * 1000 + 600, end=number * 1000 + 650)
    row = _find(export, tmp_path)["tiny_kernels"]
    assert (row["count"], row["time_ns"]) == (40, 40 * 500)
    assert row["evidence"].endswith("; process: 1, with most of 2")


def _launches(duration: int, period: int, call: int = 500) -> Export:
    export = Export()
    for number in range(40):
        at = number * period
        correlation = export.call(at, at + call)
        export.kernel(at + call, at + call + duration, correlation, name=MUL)
    return export


def test_kernels_shorter_than_a_launch_are_found_where_the_gpu_waits_for_them(tmp_path):
    row = _find(_launches(100, 1000), tmp_path)["tiny_kernels"]
    assert (row["count"], row["time_ns"]) == (40, 40 * 500)
    assert row["evidence"] == "median kernel: 100 ns; median launch call: 500 ns"
    assert "tiny_kernels" not in _find(_launches(600, 1000), tmp_path), "kernels are longer than a launch"
    assert "tiny_kernels" not in _find(_launches(480, 500), tmp_path), "the GPU is busy"


def test_findings_are_ordered_by_time_and_none_is_below_a_hundredth(tmp_path):
    names = [GEMM] * 197 + [FILL] * 2 + [CAST]
    findings = _find(_kernels(*names), tmp_path)
    assert list(findings) == ["fills"], "the cast has 0.5%"
    findings = _find(_kernels(CAST, FILL, FILL, MUL), tmp_path)
    assert list(findings) == ["fills", "casts"]


def test_a_capture_without_gpu_work_or_calls_has_no_findings(tmp_path):
    export = Export()
    export.push("forward", 0, 100)
    assert _find(export, tmp_path) == {}


def test_a_sentence_has_numbers_and_evidence(tmp_path):
    export = _kernels("\x1b[2J" + CAST, CAST, FILL, NCCL, CONTIGUOUS, FFMA, _cutlass("75_tensorop_f16_gemm_align1"))
    export.launch(0, start=2 * MS, end=2 * MS + US, name=MUL)
    lines = _describe(export, tmp_path)
    assert len(lines) == MOST
    assert lines[0].startswith("kernels only convert the data type: 20.0 µs, 28.2% of kernel time, 2 kernels (")
    assert "\x1b" not in "".join(lines)


def test_a_sentence_names_two_kernels_that_differ_in_few_characters(tmp_path):
    tile = (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize{}x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"
    )
    names = [tile.format(size) + "__5x_cublas" for size in (64, 128, 256)]
    (line,) = _describe(_kernels(*names), tmp_path)
    first, second = line.split("(")[1].rstrip(")").split("; ")
    assert first != second and first.endswith(": 1 in 10.0 µs")
    assert len(line) <= 2 * 116


def test_small_findings_are_said_only_among_the_first(tmp_path):
    kinds = [FFMA] * 50 + [FILL] * 40 + [NCCL] * 30 + [CAST] * 3
    assert len(_describe(_kernels(*kinds), tmp_path)) == 3, "the casts take 2.4%"
    assert len(_describe(_kernels(*kinds, CAST), tmp_path)) == 4


def test_every_kind_has_a_sentence_but_idle_of_which_the_verdict_says_more():
    assert set(SENTENCES) == set(KINDS) - {"idle"}


EXPECTED = {
    "train": ["idle", "tiny_kernels", "fp32_gemms", "per_tensor_optimizer", "unfused_attention", "tensor_copies"],
    "train_tf32": ["idle", "unfused_attention", "per_tensor_optimizer", "tensor_copies", "device_copies"],
    "train_bf16_sdpa": ["idle", "tiny_kernels", "per_tensor_optimizer", "casts", "tensor_copies"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_findings_of_real_exports(name):
    findings = summarise(read(profile(name), details=False)).sections["findings"]
    assert list(findings["kind"]) == EXPECTED[name]
    assert list(findings) == list(COLUMNS)
    kernels = findings[findings["of"] == "kernel time"]
    assert kernels["share"].sum() <= 1


def test_the_cpu_needs_the_time_since_the_launch_before(tmp_path):
    """In the process of the launch, from any thread; on each of its GPUs."""
    export = Export()
    for at, name, more in [
        (0, GEMM, {}),
        (3 * US, CAST, {"thread": 2}),
        (4 * US, GEMM, {"process": 2}),
        (5 * US, CAST, {}),
        (9 * US, CAST, {"process": 2}),
        (19 * US, FILL, {"process": 2, "device": 1}),
    ]:
        export.launch(at, start=MS + at, end=MS + at + US, name=name, **more)
    found = _find(export, tmp_path)
    assert found["casts"]["launching_ns"] == (3 + 2) * US + 2 * 5 * US and found["fills"]["launching_ns"] == 2 * 10 * US
    assert found["idle"]["launching_ns"] is None

    export.kernel(2 * MS, 2 * MS + US, correlation=0, name=CAST)
    assert _find(export, tmp_path)["casts"]["launching_ns"] is None, "one of seven launches is not known"


def test_with_attention_the_launches_of_its_matmuls_go(tmp_path):
    found = _find(_attention((SOFTMAX,)), tmp_path)["unfused_attention"]
    assert found["count"] == 3 * 3 and found["launching_ns"] == 17 * 10
