"""What to change first: each change is advised where a capture has evidence for it, and not where it has none or where
something else limits it."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.changes import find_evidence, load_change
from profiler_job.analysis.changes.evidence import WithheldCode
from profiler_job.analysis.insight.advice_lines import format_advice
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.show.show_formats import as_markdown, as_text
from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.contract.ranges import FOLLOWED
from profiler_job.jobs.executor.tune_expectations import CODE_CHANGES

from .nsys_files import Export
from .profiles import profile
from .test_findings import ADDCDIV, CAST, FFMA, FILL, FLASH, FOREACH, GEMM, MUL, NLL, SOFTMAX, TOPK
from .test_graph_breaks import make_export as break_graphs

US, MS = 1_000, 1_000_000
SM80 = "void cutlass::Kernel2<cutlass_80_{}>(T1::Params)"
TF32_GEMM = SM80.format("tensorop_s1688gemm_128x128_16x4_nt_align4")
BF16_GEMM = SM80.format("tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8")
UNALIGNED = SM80.format("tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align2")
TRITON = "triton_poi_fused_add_mul_3"
FUSED_ADAMW = (
    "void at::native::<unnamed>::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, (int)4>>(T1, T2, T3...)"
)


def capture_of(*names, repeat=1, each=100 * US, idle=0, gpu="NVIDIA H200"):
    """Kernels in a row. idle: time before each of them for which the host launches it late."""
    export = Export()
    if gpu:
        export.rows["TARGET_INFO_GPU"].append({"id": 0, "name": gpu, "totalMemory": 1, "clockRate": 1, "smCount": 1})
        export.rows["TARGET_INFO_CUDA_DEVICE"].append({"gpuId": 0, "cudaId": 0, "pid": 1})
    for number, name in enumerate(names * repeat):
        start = MS + number * (each + idle)
        export.launch(start - 10 * US if idle else number * 10, start=start, end=start + each, name=name)
    return export


def with_copies(host, kernels_hide=False):
    """Copies from the host's memory (0 pageable, 1 pinned) between kernels, or while one runs."""
    export = capture_of(GEMM, each=10 * MS)
    for number in range(4):
        call = export.call(100 + 20 * number, 110 + 20 * number, name="cudaMemcpyAsync_v3020")
        start = (2 if kernels_hide else 12) * MS + number * MS
        export.copy(start, start + MS, call, host=host)
    return export


def with_waits(of_gpu):
    """Pairs of kernels; between two of them the host waits in a synchronisation and then launches late, or does not
    wait."""
    export = capture_of(GEMM)
    for number in range(1, 5):
        start = MS + number * MS
        if of_gpu:
            export.call(start - 900 * US, start - 100 * US, name="cudaStreamSynchronize_v3020")
        export.launch(start - 50 * US if of_gpu else 100 + number, start=start, end=start + 100 * US, name=GEMM)
    return export


def with_hidden_waits():
    """Kernels in a row: while one runs, the host waits in a synchronisation and still launches the next in time."""
    export = capture_of(GEMM, each=MS)
    for number in range(1, 5):
        start = MS + number * MS
        export.call(start - 900 * US, start - 100 * US, name="cudaStreamSynchronize_v3020")
        export.launch(start - 50 * US, start=start, end=start + MS, name=GEMM)
    return export


def with_graphs(export):
    """The same, launched by a CUDA graph."""
    export.call(1, 9, name="cudaGraphLaunch_v10000")
    return export


def with_loading(export, start=MS):
    """The same, while code is loaded."""
    export.call(start, 2 * start, name="cuLibraryLoadData")
    return export


CAT = (
    "void at::native::<unnamed>::CatArrayBatchedCopy<OpaqueType<(unsigned int)2>, unsigned int, (int)4, (int)64>(T1 *)"
)


def with_phases(first, second, *names, repeat=4):
    """Kernels in the range `second`, before each of which the host spends as long in the range `first`; of a range of
    data, a copy of the batch to the GPU ends it."""
    export = capture_of(GEMM)
    for number in range(1, repeat + 1):
        start = 2 * MS * number
        export.push(first, start, start + MS)
        export.push(second, start + MS, start + 2 * MS)
        if first == "data":
            call = export.call(start + 900 * US, start + 910 * US, name="cudaMemcpyAsync_v3020")
            export.copy(start + 920 * US, start + 930 * US, call, host=1)
        for place, name in enumerate(names):
            at = start + MS + 150 * US * place
            export.launch(at + US, start=at + 10 * US, end=at + 110 * US, name=name)
    return export


def with_loss(inside, *names):
    """A compiled forward pass, and backward: first kernels of no module, of which those of `inside` are in a range of
    their own, then a compiled one."""
    export = Export()
    for at, prefix in ((0, ""), (10 * MS, FOLLOWED)):
        export.span(f"{prefix}step", at, at + 9 * MS)
        for number, (phase, kernels) in enumerate((("forward", [TRITON]), ("backward", [*names, TRITON]))):
            begin = at + 4 * MS * number
            export.push(f"{prefix}{phase}", begin + US, begin + 4 * MS - US)
            for place, name in enumerate(kernels):
                start = begin + (1 + 2 * place) * 100 * US
                export.launch(start, start=start + 10 * US, end=start + 110 * US, name=name)
                if prefix and (name == TRITON or inside):
                    path = "GPT (compiled)" if name == TRITON else inside
                    export.push(f"modules:backward/{path}" if number else path, start - 5 * US, start + 5 * US)
    return export


FETCH = ("fetch", "/env/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py", 50)


def with_samples(export, *frames):
    for at in range(MS, 11 * MS, MS // 2):
        export.sample(at, ("make_batch", "train.py", 8), *frames, ("<module>", "train.py", 30))
    return export


ATTENTION = (GEMM, MUL, SOFTMAX, GEMM)
GIVEN = {
    "tf32": capture_of(FFMA, MUL),
    "bf16": capture_of(TF32_GEMM, MUL),
    "fused_attention": capture_of(*ATTENTION, repeat=3),
    "fused_adamw": capture_of(ADDCDIV, repeat=60),
    "foreach": capture_of(ADDCDIV, repeat=60, idle=100 * US),
    "compile": capture_of(GEMM, MUL, MUL),
    "whole_graphs": break_graphs(),
    "cuda_graphs": capture_of(GEMM, repeat=9, idle=100 * US),
    "padding": capture_of(UNALIGNED, MUL),
    "casts": capture_of(GEMM, CAST),
    "copies": with_copies(host=0),
    "synchronisations": with_waits(of_gpu=True),
    "loader_workers": with_phases("data", "forward", GEMM),
    "static_cache": with_phases("generation: prefill", "generation: decode", GEMM, CAT),
    "fused_loss": with_loss("", SOFTMAX, NLL),
}
IN_LISTS = (
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)4>, "
    "at::native::<unnamed>::PointwiseOpListFunctor<float, (int)4>>(T1, T2, T3...)"
)


def test_an_optimizer_in_lists_is_a_candidate_for_a_fused_one(summary):
    table = summary(capture_of(GEMM, IN_LISTS, IN_LISTS)).sections["advice"].set_index("change")
    assert "in lists of tensors" in table.loc["fused_adamw", "evidence"] and "foreach" not in table.index


FUSED_ADAM = IN_LISTS.replace("PointwiseOpListFunctor<float, (int)4>", "FusedAdamMathFunctor<float, (int)4>")
ZEROS = IN_LISTS.replace("PointwiseOpListFunctor<float, (int)4>", "ZeroFunctor<float, (int)1>")


def test_gradients_set_to_zero_in_lists_are_no_optimizer_to_be_fused(summary):
    table = summary(capture_of(GEMM, FUSED_ADAM, ZEROS)).sections["advice"].set_index("change")
    assert "in lists of tensors" not in str(table["evidence"].get("fused_adamw", ""))


NOT_GIVEN = {
    "tf32": {
        "on tensor cores already": (capture_of(TF32_GEMM, MUL), ""),
        "the host limits it": (capture_of(FFMA, repeat=9, idle=300 * US), WithheldCode.CPU_LIMITS),
        "a GPU that has none": (capture_of(FFMA, gpu="Tesla V100-SXM2-16GB"), WithheldCode.GPU_CANNOT),
        "a GPU that is not named": (capture_of(FFMA, gpu=""), WithheldCode.GPU_UNKNOWN),
    },
    "bf16": {
        "there already": (capture_of(BF16_GEMM, MUL), ""),
        "some of it": (capture_of(BF16_GEMM, TF32_GEMM), WithheldCode.ALREADY_MADE),
        "no matmuls to speak of": (capture_of(FFMA, *[MUL] * 20), ""),
        "the host limits it": (capture_of(FFMA, repeat=9, idle=300 * US), WithheldCode.CPU_LIMITS),
    },
    "fused_attention": {
        "fused already": (capture_of(GEMM, FLASH, GEMM, repeat=3), ""),
        "a loss": (capture_of(GEMM, SOFTMAX, NLL, GEMM, repeat=3), ""),
        "a router of experts": (capture_of(GEMM, SOFTMAX, TOPK, GEMM, repeat=3), ""),
    },
    "fused_adamw": {
        "few kernels": (capture_of(GEMM, ADDCDIV, repeat=9), ""),
        "fused already": (capture_of(FUSED_ADAMW, repeat=60), ""),
    },
    "foreach": {
        "few kernels": (capture_of(GEMM, ADDCDIV, repeat=9, idle=100 * US), ""),
        "in lists already": (capture_of(FOREACH, repeat=60, idle=100 * US), ""),
        "the GPU does not wait": (capture_of(ADDCDIV, repeat=60), WithheldCode.SAVES_LITTLE),
        "start-up": (with_loading(capture_of(ADDCDIV, repeat=60, idle=100 * US)), WithheldCode.STARTUP_INCLUDED),
    },
    "compile": {
        "compiled already": (capture_of(GEMM, MUL, MUL, TRITON), WithheldCode.ALREADY_MADE),
        "matmuls alone": (capture_of(GEMM, repeat=9), ""),
        "an optimizer alone": (capture_of(ADDCDIV, repeat=60), ""),
    },
    "whole_graphs": {
        "no break": (break_graphs((TRITON, TRITON), (TRITON, TRITON)), ""),
        "start-up": (with_loading(break_graphs(), start=US), WithheldCode.STARTUP_INCLUDED),
    },
    "cuda_graphs": {
        "the GPU does not wait": (capture_of(GEMM, repeat=9), ""),
        "there already": (with_graphs(capture_of(GEMM, repeat=9, idle=100 * US)), WithheldCode.ALREADY_MADE),
        "start-up": (with_loading(capture_of(GEMM, repeat=9, idle=100 * US)), WithheldCode.STARTUP_INCLUDED),
    },
    "padding": {
        "padded": (capture_of(BF16_GEMM, MUL), ""),
        "the host limits it": (capture_of(UNALIGNED, repeat=9, idle=300 * US), WithheldCode.CPU_LIMITS),
    },
    "casts": {
        "none": (capture_of(GEMM, MUL), ""),
        "next to nothing": (capture_of(*[GEMM] * 199, CAST), ""),
        "of a loss that is to be compiled": (with_loss("", CAST, SOFTMAX, NLL), ""),
    },
    "copies": {
        "pinned": (with_copies(host=1), ""),
        "kernels hide them": (with_copies(host=0, kernels_hide=True), WithheldCode.SAVES_LITTLE),
        "start-up": (with_loading(with_copies(host=0)), WithheldCode.STARTUP_INCLUDED),
    },
    "synchronisations": {
        "none": (with_waits(of_gpu=False), ""),
        "the GPU stays busy": (with_hidden_waits(), ""),
        "start-up": (with_loading(with_waits(of_gpu=True)), WithheldCode.STARTUP_INCLUDED),
    },
    "loader_workers": {
        "no data": (with_phases("loss", "forward", GEMM), ""),
        "no loader": (with_samples(with_phases("data", "forward", GEMM)), WithheldCode.NOT_USED),
        "start-up": (with_loading(with_phases("data", "forward", GEMM)), WithheldCode.STARTUP_INCLUDED),
    },
    "static_cache": {
        "no text is generated": (with_phases("loss", "forward", GEMM, CAT), ""),
        "the cache does not grow": (with_phases("generation: prefill", "generation: decode", GEMM), ""),
        "start-up": (
            with_loading(with_phases("generation: prefill", "generation: decode", GEMM, CAT)),
            WithheldCode.STARTUP_INCLUDED,
        ),
    },
    "fused_loss": {
        "in the compiled model": (with_loss("GPT (compiled)", SOFTMAX, NLL), ""),
        "next to nothing": (with_loss(""), ""),
        "a model that is not compiled": (capture_of(GEMM, SOFTMAX, NLL), ""),
    },
    "larger_batch": {"any capture": (capture_of(GEMM), WithheldCode.MEMORY_UNKNOWN)},
    "checkpointing": {"any capture": (capture_of(GEMM), WithheldCode.MEMORY_UNKNOWN)},
    "keep_activations": {"any capture": (capture_of(GEMM), "")},
    "script_line": {"no samples": (with_phases("data", "forward", GEMM), "")},
}


@pytest.fixture
def summary(tmp_path):
    return lambda export: summarise(read(export.sqlite(tmp_path / "x.sqlite"), details=False))


def find_loss(*rows, time_ns=100.0):
    """The evidence for a compiled loss, of modules: name, time in a step, of that in backward, and main kernel."""
    modules = pd.DataFrame(rows, columns=["name", "total_ns", "backward_ns", "kernel"])
    seen = SimpleNamespace(sections={"modules": modules}, is_compiled=True, sum_parts=lambda *names: time_ns)
    return find_evidence("fused_loss", seen)


IN_MODEL = ("GPT/head", 60, 40, TRITON)


@pytest.mark.parametrize("name", ["(loss)", "CrossEntropyLoss", "LabelSmoothingLoss"])
def test_a_loss_outside_of_what_is_compiled_is_to_be_compiled(name):
    """With the copies of its gradient: not with those of the model's inputs, or of one block for the next."""
    copies = [("GPT/(inputs of a CUDA graph)", 10, 8, FILL), ("GPT/h.*/(inputs of a CUDA graph)", 10, 10, FILL)]
    assert find_loss(IN_MODEL, (name, 40, 20, SOFTMAX)).time_ns == pytest.approx(40)
    assert find_loss(IN_MODEL, (name, 20, 10, SOFTMAX), *copies).time_ns == pytest.approx(28)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param([("(loss)", 40, 20, "triton_red_fused__log_softmax_0")], id="compiled by itself"),
        pytest.param([("LigerCrossEntropyLoss", 40, 20, "liger_cross_entropy_kernel")], id="a kernel of the script"),
        pytest.param([("GPTWithLoss", 30, 10, SOFTMAX), ("GPTWithLoss/head", 10, 10, GEMM)], id="a model"),
        pytest.param([("GPT/AuxiliaryLoss", 40, 20, SOFTMAX)], id="in the model"),
        pytest.param([("(loss)", 3, 3, SOFTMAX)], id="short"),
    ],
)
def test_no_loss_is_to_be_compiled_that_is_in_the_model_or_one_kernel(loss):
    assert find_loss(IN_MODEL, *loss) is None


@pytest.mark.parametrize("casts", [(), (CAST,)], ids=["no casts", "of the loss"])
@pytest.mark.parametrize(
    ("adam", "matmul", "is_advised"),
    [
        ("FusedAdamMathFunctor<float, (int)4>", BF16_GEMM, True),
        ("FusedAdamMathFunctor<c10::BFloat16, (int)4>", BF16_GEMM, False),
        ("FusedAdamMathFunctor<float, (int)4>", TF32_GEMM, False),
    ],
    ids=["weights in FP32", "weights in BF16", "all in FP32"],
)
def test_an_optimizer_of_fp32_weights_moves_half_the_bytes_in_bf16_whatever_casts_a_loss_has(
    summary, adam, matmul, is_advised, casts
):
    """Of a compiled Llama 3 8B nothing was advised: the optimizer took 65 of 251 ms, and all casts were of the loss."""
    update = IN_LISTS.replace("PointwiseOpListFunctor<float, (int)4>", adam)
    export = with_loss("", *casts, SOFTMAX, NLL, matmul, *[update] * 3, *[IN_LISTS] * 2)
    sections = summary(export).sections
    table = sections["advice"].set_index("change")
    if not is_advised:
        assert "casts" not in table.index
        return
    families = sections["families"].set_index("family")["total_ns"]
    assert table.loc["casts", "time_ns"] == families["optimizer"] / 2
    assert families["optimizer"] / 2 < table.loc["casts", "ceiling_ns"] < families.sum() / 2


@pytest.mark.parametrize("change", GIVEN)
def test_it_is_advised_where_the_capture_has_evidence_for_it(summary, change):
    rows = summary(GIVEN[change]).sections["advice"].set_index("change")
    row = rows.loc[change]
    compiled = [load_change(change).COMPILED] if change == "fused_loss" else []  # advised where the model is
    assert row["reason"] == "" and row["do"] in [*compiled, load_change(change).CODE][:1] and row["evidence"]
    assert 0 < row["time_ns"] <= row["ceiling_ns"]
    assert 0 < row["share"] <= 1
    assert row["sure"].split(":")[0] in ("high", "medium", "low")


@pytest.mark.parametrize(("change", "case"), [(change, case) for change in NOT_GIVEN for case in NOT_GIVEN[change]])
def test_it_is_not_advised_without_evidence_or_where_something_else_limits(summary, change, case):
    export, code = NOT_GIVEN[change][case]
    rows = summary(export).sections["advice"].set_index("change")
    if not code:
        assert change not in rows.index
        return
    assert rows.loc[change, "reason_code"] == code and rows.loc[change, "reason"]
    assert not rows.loc[change, "do"] and rows.loc[change, ["time_ns", "ceiling_ns"]].isna().all()


@pytest.mark.parametrize(("frames", "said"), [((), "but for train.py:8 make_batch"), ((FETCH,), "")])
def test_workers_are_advised_only_to_a_script_that_has_a_data_loader(frames, said, summary):
    """One that makes its batches itself was advised to give workers to a DataLoader that it lacks."""
    export = with_samples(with_phases("data", "forward", GEMM), *frames)
    reason = summary(export).sections["advice"].set_index("change").loc["loader_workers", "reason"]
    assert said in reason if said else not reason


def is_advised(change):
    return hasattr(load_change(change), "find_evidence")


def test_every_change_has_both():
    advised = [name for name in CHANGES if is_advised(name)]
    assert [*GIVEN, "larger_batch", "checkpointing", "keep_activations", "script_line"] == [*NOT_GIVEN] == advised


def test_a_change_that_is_never_advised_can_be_measured_or_is_expected_from_parts():
    measured = [name for name in CHANGES if not is_advised(name) and name not in CODE_CHANGES]
    assert measured and all(CHANGES[name].is_triable for name in measured)
    assert all(hasattr(load_change(name), "find_edits") and find_evidence(name, None) is None for name in measured)


def test_the_most_time_comes_first_and_reasons_come_last(summary):
    table = summary(capture_of(FFMA, *[MUL] * 3, CAST, gpu="")).sections["advice"]
    assert table["change"].tolist() == ["compile", "casts", "tf32", "bf16", "larger_batch", "checkpointing"]
    assert table["time_ns"].tolist()[:2] == [400 * US, 100 * US]


def test_what_runs_as_graphs_that_hide_their_kernels_is_not_judged(summary):
    export = capture_of(FFMA)
    export.graph(20 * MS, 30 * MS, export.call(1, 9, name="cudaGraphLaunch_v10000"))
    rows = summary(export).sections["advice"].set_index("change")
    assert rows.loc["tf32", "reason"].startswith("graph executions hide their kernels")


def test_without_work_on_a_gpu_there_is_no_advice(summary):
    export = Export()
    export.call(1, 2)
    assert format_advice(summary(export)) == []


def test_show_ends_with_it_and_says_that_it_is_no_prediction(summary):
    said = summary(GIVEN["tf32"])
    text = as_text(said, 20, 120).split("\nWhat to change first\n")[1]
    assert "TF32: concerns 100 µs (50.0%), could save up to 100 µs" in text
    assert 'do: torch.set_float32_matmul_precision("high")' in text
    assert "evidence: GEMMs run in FP32" in text
    assert "how sure: " in text and "predicted" not in text
    assert "Times of this capture, not predictions" in text.splitlines()[-2]
    assert "## What to change first" in as_markdown(said, 20)


def test_with_nothing_to_advise_it_says_so(summary):
    said = summary(capture_of(GEMM))
    assert [line for entry in format_advice(said) for line in entry] == [
        "Nothing that is known here: the capture has no evidence for it",
        "Not advised, larger batch, activation checkpointing: it is not known how much memory is left",
    ]


def test_of_a_program_that_has_everything_nothing_is_advised(summary):
    """BF16 with its weights, aligned, fused attention and optimizer, compiled, in graphs, from pinned memory, and it
    never waits."""
    update = FUSED_ADAMW.replace("Functor<float", "Functor<c10::BFloat16")
    export = with_graphs(capture_of(BF16_GEMM, FLASH, TRITON, BF16_GEMM, update, repeat=20))
    for number in range(4):
        call = export.call(100 + 20 * number, 110 + 20 * number, name="cudaMemcpyAsync_v3020")
        export.copy((2 + number) * MS, (2 + number) * MS + 100 * US, call, host=1)
    table = summary(export).sections["advice"]
    assert table["change"][table["reason"] == ""].tolist() == []
    assert set(table["change"]) <= {"compile", "cuda_graphs", "larger_batch", "checkpointing"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "advised", "withheld"),
    [
        (
            "train",
            {"cuda_graphs", "compile", "fused_adamw", "foreach", "fused_attention", "larger_batch"},
            {"tf32", "bf16"},
        ),
        (
            "train_threads",
            {"cuda_graphs", "compile", "fused_adamw", "foreach", "fused_attention", "larger_batch"},
            {"tf32", "bf16"},
        ),
        (
            "train_tf32",
            {"cuda_graphs", "compile", "fused_adamw", "foreach", "fused_attention", "bf16", "larger_batch"},
            set(),
        ),
        ("train_bf16_sdpa", {"cuda_graphs", "compile", "fused_adamw", "foreach", "casts", "larger_batch"}, set()),
        ("forward_whole", {"tf32", "bf16", "compile", "fused_attention", "larger_batch"}, {"cuda_graphs"}),
        ("graph_node", {"tf32", "bf16"}, {"larger_batch"}),
    ],
)
def test_real_captures_have_the_advice_that_their_programs_leave_open(name, advised, withheld):
    table = summarise(read(profile(name), details=False)).sections["advice"]
    assert set(table["change"][table["reason"] == ""]) == advised
    assert set(table["change"][table["reason"] != ""]) == withheld | {"checkpointing"}


LLM_C = (
    "matmul_forward_kernel4(float *, const float *, const float *, const float *, int, int)",
    "layernorm_forward_kernel3(__nv_bfloat16 *, float *, float *, const __nv_bfloat16 *, int, int)",
    "gelu_forward_kernel2(__nv_bfloat16 *, const __nv_bfloat16 *)",
    "softmax_forward_kernel5(__nv_bfloat16 *, float, const __nv_bfloat16 *, int, int)",
)
JAX = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "loop_add_fusion_4",
    "input_reduce_fusion_2",
    "wrapped_tanh",
)


@pytest.mark.parametrize("names", [LLM_C, JAX], ids=["llm.c", "JAX"])
def test_a_program_without_pytorch_gets_no_calls_of_pytorch(names, tmp_path):
    summary = summarise(read(capture_of(*names, repeat=8, idle=300 * US).sqlite(tmp_path / "x.sqlite")))
    advised = summary.sections["advice"]
    assert advised["change"].iloc[0] == "cuda_graphs" and "larger_batch" in set(advised["change"])
    assert not {"compile", "foreach", "loader_workers", "cudnn_benchmark"} & set(advised["change"])
    lines = [line for entry in summary.insight.sentences.advice for line in entry]
    assert lines and not [line for line in lines if re.search(r"torch|DataLoader", line)]


@pytest.mark.parametrize(
    "name", [*map(str, LLM_C[2:]), "void at::native::vectorized_elementwise_kernel<(int)4>(int, T2, T3)"]
)
def test_one_kernel_of_pytorch_shows_that_the_program_has_it(name, tmp_path):
    names = (*LLM_C, name)
    table = summarise(read(capture_of(*names, repeat=8, idle=300 * US).sqlite(tmp_path / "x.sqlite"))).sections[
        "advice"
    ]
    assert ("torch." in table.set_index("change").loc["cuda_graphs", "do"]) == name.startswith("void at::")


def test_ranges_of_llm_c_are_its_phases(tmp_path):
    export = Export()
    for number, name in enumerate(("gpt2_forward", "gpt2_backward_and_reduce", "gpt2_update")):
        export.push(name, number * MS, number * MS + MS // 2)
        export.launch(
            number * MS + 10, start=number * MS + 100, end=number * MS + (number + 1) * 10 * US, name=LLM_C[0]
        )
    phases = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["phases"].set_index("phase")
    assert phases["inferred_share"].eq(0).all()
    assert phases["kernel_ns"].to_dict() == pytest.approx(
        {"forward": 10 * US - 100, "backward": 20 * US - 100, "optimizer": 30 * US - 100}
    )


def test_kernels_of_communication_take_nothing_from_what_compiling_could_save():
    """On two GPUs the bound was the time that the CPU takes: hidden communication stood for kernels that stay."""
    parts = {"kernels": 60.0, "communication": 20.0}
    seen = SimpleNamespace(families={"gemm": 20, "elementwise": 40, "communication": 90}, waiting_ns=5, launched_ns=85)
    seen.sum_parts = parts.__getitem__
    assert load_change("compile").measure_ceiling(seen) == 45
