"""Kernels of compiled regions get the modules inside."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.compiled_graphs import Graph, Launch, link_graphs, name_inside, read_graphs
from profiler_job.analysis.capture.modules import link_modules
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.metrics.kernel_time import kernel_totals, sum_by_module
from profiler_job.analysis.reference.kernel_families import find_family, is_main_gemm
from profiler_job.jobs.contract.ranges import FOLLOWED
from tests.capture.nsys_files import Export

GEMM, GEMM_2 = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", "nvjet_sm90_tst_96x64_64x8_2x4_h_bz_NTN"
SPLIT_K = "void splitKreduce_kernel<32, 16, int, float>(args)"
FLASH = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64"
NORM = Launch("triton_per_fused_native_layer_norm_0", ("blocks.0/norm",))
QKV = Launch("extern_kernels.addmm", ("blocks.0/attn/qkv",))
ATTENTION = Launch("torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default", ("blocks.0/attn",))
PROJ = Launch("extern_kernels.mm", ("blocks.0/attn/proj",))
JOINED = Launch("triton_per_fused_add_native_layer_norm_1", ("blocks.0", "blocks.0/norm_2"))
ACROSS = Launch("triton_per_fused_add_native_layer_norm_2", ("blocks.0/mlp", "blocks.1/norm"))


def link(kernels, *launches):
    runs = link_graphs(kernels, [Graph(1, False, "GPT", launches)])
    return [launch.modules[0] for run in runs for launch in run.launches]


def test_generated_kernels_are_known_by_name_and_calls_by_their_place():
    assert link([NORM.kernel, GEMM, JOINED.kernel], NORM, QKV, JOINED) == ["blocks.0/norm", QKV.modules[0], "blocks.0"]


def test_the_kernels_between_two_of_ours_are_those_of_one_call():
    assert link([NORM.kernel, GEMM, SPLIT_K, JOINED.kernel], NORM, QKV, JOINED)[1:3] == [QKV.modules[0]] * 2


def test_the_second_kernel_of_a_split_k_matmul_is_no_other_matmul():
    half = (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_execute{}_kernel__5x_cublas"
    )
    kernels = [half.format(""), half.format("_split_k"), GEMM]
    assert link([NORM.kernel, *kernels, JOINED.kernel], NORM, QKV, PROJ, JOINED)[1:-1] == [
        *[QKV.modules[0]] * 2,
        PROJ.modules[0],
    ]


@pytest.mark.parametrize(
    "kernels",
    [[GEMM, SPLIT_K, GEMM_2], [GEMM, GEMM_2, SPLIT_K], [GEMM, SPLIT_K, SPLIT_K, GEMM_2, SPLIT_K]],
)
def test_of_several_calls_each_has_one_matmul(kernels):
    linked = link([NORM.kernel, *kernels, JOINED.kernel], NORM, QKV, PROJ, JOINED)[1:-1]
    second = kernels.index(GEMM_2)
    assert linked == [QKV.modules[0]] * second + [PROJ.modules[0]] * (len(kernels) - second)


def test_attention_has_several_kernels():
    kernels = [GEMM, GEMM_2, FLASH, FLASH, FLASH]
    linked = link([NORM.kernel, *kernels, JOINED.kernel], NORM, QKV, PROJ, ATTENTION, JOINED)[1:-1]
    assert linked == [QKV.modules[0], PROJ.modules[0], *["blocks.0/attn"] * 3]


COUNT = "void at::native::elementwise_kernel<CountFunctor>(int)"
SCATTER = "void indexing_backward_kernel<float, 4>(args)"
SUM_KERNEL = "void at::native::reduce_kernel<512, 1, ReduceOp<float>>(args)"
INDEX_PUT = Launch("aten.index_put_", ("tokens",))


@pytest.mark.parametrize("before", [[], [QKV]])
def test_a_call_of_several_kernels_has_those_between_two_matmuls(before):
    """As `index_put_` of deterministic algorithms, which counts and sorts first."""
    kernels = [*[GEMM, SPLIT_K] * len(before), COUNT, SUM_KERNEL, SCATTER, GEMM_2, SPLIT_K]
    linked = link([NORM.kernel, *kernels, JOINED.kernel], NORM, *before, INDEX_PUT, PROJ, JOINED)[1:-1]
    assert linked == [QKV.modules[0]] * 2 * len(before) + ["tokens"] * 3 + [PROJ.modules[0]] * 2


@pytest.mark.parametrize("after", [Launch("aten.sum", ("head",)), Launch("aten.cumsum", ("head",))])
def test_where_a_call_of_several_kernels_ends_must_be_certain(after):
    kernels = [COUNT, SUM_KERNEL, SCATTER, SUM_KERNEL]
    assert not link([NORM.kernel, *kernels, JOINED.kernel], NORM, INDEX_PUT, after, JOINED)


@pytest.mark.parametrize(
    "kernels",
    [
        [NORM.kernel, GEMM, SPLIT_K, SPLIT_K, JOINED.kernel],  # one matmul for two calls
        [NORM.kernel, GEMM, SPLIT_K, JOINED.kernel],  # the same, though two kernels for two calls
        [NORM.kernel, JOINED.kernel],  # none
        [NORM.kernel, GEMM, GEMM_2],  # cut off
        [JOINED.kernel, GEMM, GEMM_2, NORM.kernel],  # another order
        [GEMM, GEMM_2],
        [NORM.kernel, GEMM, GEMM_2, "triton_poi_fused_9", JOINED.kernel],  # one of a graph that is not known
    ],
)
def test_kernels_that_do_not_fit_are_not_linked(kernels):
    assert link(kernels, NORM, QKV, PROJ, JOINED) == []


@pytest.mark.parametrize("kernels", [[], [GEMM], [GEMM, SPLIT_K, "foreign"], ["foreign"], [GEMM] * 3, [GEMM] * 4])
def test_calls_of_one_module_have_as_many_matmuls(kernels):
    second = Launch("extern_kernels.mm", QKV.modules)
    assert link([NORM.kernel, *kernels, JOINED.kernel], NORM, QKV, second, JOINED) == []
    linked = link([NORM.kernel, GEMM, SPLIT_K, GEMM_2, SPLIT_K, JOINED.kernel], NORM, QKV, second, JOINED)
    assert linked[1:-1] == [QKV.modules[0]] * 4


def test_another_call_of_the_same_module_may_launch_matmuls():
    custom = Launch("torch.ops.custom.mlp.default", QKV.modules)
    linked = link([NORM.kernel, GEMM, COUNT, GEMM_2, JOINED.kernel], NORM, QKV, custom, JOINED)
    assert linked[1:-1] == [QKV.modules[0]] * 3
    assert link([NORM.kernel, COUNT, SCATTER, COUNT, JOINED.kernel], NORM, QKV, custom, JOINED) == []


SUM, FILL = "void at::native::reduce_kernel<128, 4, ...>", "void at::native::vectorized_elementwise_kernel<FillFunctor>"
SUMMED = Launch("aten.sum", ("blocks.0/norm",))


@pytest.mark.parametrize("splits", [[], [SPLIT_K]])
def test_a_sum_of_parts_is_one_reduction(splits):
    kernels = [NORM.kernel, SUM, SUM, GEMM, *splits, JOINED.kernel]
    linked = link(kernels, NORM, SUMMED, SUMMED, QKV, JOINED)
    assert linked == ["blocks.0/norm"] * 3 + [QKV.modules[0]] * (1 + len(splits)) + ["blocks.0"]


def test_a_fill_is_of_what_is_computed_after_it():
    linked = link([NORM.kernel, GEMM, FILL, FLASH, FILL, JOINED.kernel], NORM, QKV, ATTENTION, JOINED)
    assert linked == ["blocks.0/norm", QKV.modules[0], *["blocks.0/attn"] * 3, "blocks.0"]
    assert link([NORM.kernel, FILL, JOINED.kernel], NORM, JOINED) == ["blocks.0/norm", "blocks.0", "blocks.0"]
    assert link([NORM.kernel, SUM, JOINED.kernel], NORM, JOINED) == []


def test_a_graph_may_run_again_and_kernels_of_none_stand_between():
    once = [NORM.kernel, GEMM, JOINED.kernel]
    runs = link_graphs(["copy", *once, "copy", *once], [Graph(1, False, "GPT", (NORM, QKV, JOINED))])
    assert [(run.start, len(run.launches)) for run in runs] == [(1, 3), (5, 3)]


def name(graphs, kernels, module="GPT (compiled)", phase="forward", process=1, **calls):
    rows = pd.DataFrame({"kernel_name": kernels, "process": process, "thread": 1, "phase": phase, "module": module})
    rows = rows.assign(**calls)
    return name_inside(rows, [graphs] if isinstance(graphs, Graph) else graphs).tolist()


def test_modules_have_the_paths_of_an_eager_run():
    graph = Graph(1, False, "GPT", (NORM, QKV, JOINED, ACROSS))
    assert name(graph, [NORM.kernel, GEMM, JOINED.kernel, ACROSS.kernel]) == [
        "GPT/blocks.0/norm",
        "GPT/blocks.0/attn/qkv",
        "GPT/blocks.0/(fused: norm_2)",
        "GPT/(fused: blocks.0.mlp + blocks.1.norm)",
    ]


@pytest.mark.parametrize(
    ("modules", "shares", "expected"),
    [
        (("h.0/ln_2", "h.0/mlp/0"), (55, 45), "GPT/h.0/(fused: ln_2 55% + mlp[0] 45%)"),
        (("h.0/ln_2", "h.0"), (55, 45), "GPT/h.0/(fused: ln_2 55%)"),
        (("h.0/ln_2", "h.1/ln_1"), (60, 20), "GPT/(fused: h.0.ln_2 75% + h.1.ln_1 25%)"),  # what is small is left out
        (("h.0/ln_2", "", "h.0/mlp"), (50, 40, 10), "GPT/h.0/(fused: ln_2 83% + mlp 17%)"),
        (("h.0/ln_2", ""), (70, 30), "GPT/h.0/ln_2"),
        (("a", "b", "c"), (33, 33, 33), "GPT/(fused: a 34% + b 33% + c 33%)"),
        (("a", "b"), (), "GPT/(fused: a + b)"),
    ],
)
def test_a_kernel_of_several_modules_names_their_percents(modules, shares, expected):
    assert name(Graph(1, False, "GPT", (Launch(NORM.kernel, modules, shares),)), [NORM.kernel]) == [expected]


@pytest.mark.parametrize(("region", "expected"), [("(compiled)", ""), ("block_3/(compiled)", "block_3/")])
def test_a_region_of_a_sweep_has_no_name_of_its_own(region, expected):
    graph = Graph(1, False, "", (Launch(NORM.kernel, ("attention/norm",)), Launch(JOINED.kernel, ("ffn", ""))))
    inside = name(graph, [NORM.kernel, JOINED.kernel], region)
    assert inside == [f"{expected}attention/norm", f"{expected}ffn"]  # what has no module goes with the others


def test_a_graph_of_one_block_names_the_modules_of_every_block():
    graph = Graph(1, False, "GPT/blocks.0", (Launch(NORM.kernel, ("norm",)),))
    assert name(graph, [NORM.kernel], "GPT/blocks.7 (compiled)") == ["GPT/blocks.7/norm"]


def test_which_block_a_graph_ran_for_is_not_known_if_it_ran_for_several():
    graph = Graph(1, False, "GPT/blocks.0", (Launch(NORM.kernel, ("norm",)), Launch(JOINED.kernel, ("mlp.2", ""))))
    assert name(graph, [NORM.kernel, JOINED.kernel]) == ["GPT/blocks.0/norm", "GPT/blocks.0/mlp.2"]
    assert name(graph, [NORM.kernel, JOINED.kernel] * 2) == ["GPT/blocks.*/norm", "GPT/blocks.*/mlp.2"] * 2
    assert (
        name(graph, [NORM.kernel, JOINED.kernel] * 2, "GPT/blocks.7 (compiled)")
        == [
            "GPT/blocks.7/norm",
            "GPT/blocks.7/mlp.2",
        ]
        * 2
    )


def make_graph(module, root="GPT", kernel=NORM.kernel, is_backward=False):
    return Graph(1, is_backward, root, (Launch(kernel, (module,)),))


FIRST_PART, SECOND_PART = make_graph("first"), make_graph("second")
HEAD = make_graph("head", kernel=JOINED.kernel)


def test_equal_parts_have_the_modules_of_the_graphs_in_the_order_of_their_first_calls():
    named = name([FIRST_PART, SECOND_PART, HEAD], [NORM.kernel, "print", NORM.kernel, JOINED.kernel])
    assert named == ["GPT/first", "GPT (compiled)", "GPT/second", "GPT/head"]
    accumulated = ["GPT (compiled)", "(gradient accumulation)", "GPT (compiled)"]
    backward = [graph._replace(is_backward=True) for graph in (SECOND_PART, FIRST_PART)]
    named = name(backward, [NORM.kernel, "add", NORM.kernel], accumulated, "backward")
    assert named == ["GPT/second", accumulated[1], "GPT/first"]


def test_another_graph_between_equal_parts_says_which_ran_before_it():
    kernels = [NORM.kernel, NORM.kernel, JOINED.kernel, NORM.kernel]
    named = name([FIRST_PART, HEAD, SECOND_PART], kernels)
    assert named == ["GPT/first", "GPT/first", "GPT/head", "GPT/second"]


@pytest.mark.parametrize(
    ("modules", "num", "expected"),
    [
        (("first", "second"), 3, ["GPT/first", "GPT", "GPT"]),  # the third may be either, so the second, too
        (("first", "second"), 1, ["GPT"]),  # one of them did not run
        (("layers.0/a", "layers.0/b"), 3, ["GPT/layers.0/a", "GPT/layers.0", "GPT/layers.0"]),
        (("layers.0/a", "layers.1/a"), 1, ["GPT/layers.*/a"]),
        (("layers.0/a", "layers.1/b"), 1, ["GPT/layers.*"]),
        (("h/(fused: a + b)", "h/(fused: a + c)"), 1, ["GPT/h"]),
    ],
)
def test_where_the_order_does_not_decide_kernels_are_of_what_has_both_inside(modules, num, expected):
    named = name([make_graph(module) for module in modules], [NORM.kernel] * num)
    assert named == expected


def test_where_calls_are_known_they_say_which_of_equal_graphs_ran():
    graphs = [FIRST_PART._replace(numbers=(4,)), SECOND_PART._replace(numbers=(5, 9))]
    known = {"call": [10, 20, -1, 30], "graph": [5, 4, -1, 9]}
    named = name(graphs, [NORM.kernel] * 4, **known)
    assert named == ["GPT/second", "GPT/first", "GPT (compiled)", "GPT/second"], "none outside of calls"
    assert name(graphs, [JOINED.kernel], call=[10], graph=[5]) == ["GPT (compiled)"], "not the kernels of that graph"
    assert name(graphs, [NORM.kernel], call=[10], graph=[7]) == ["GPT (compiled)"], "a graph that is not known"
    assert name(graphs, [NORM.kernel] * 2, call=[-1, -1], graph=[-1, -1]) == name(graphs, [NORM.kernel] * 2)


def test_a_module_that_python_calls_around_graphs_has_its_kernels():
    """As the head and the loss of a model whose loop over blocks breaks: Dynamo leaves its own function to Python, too.
    With torch 2.11 on an H200 a loss in forward, 43.6% of its time, had no module but `GPT (compiled)`."""
    graph = make_graph("norm", "GPT/blocks.0")._replace(numbers=(0,))
    paths = [f"GPT (compiled){part}" for part in ("/blocks.1", "/head", "/head", "", "/cub::DeviceRadixSort")]
    paths.append("(compiled)")
    kernels = [NORM.kernel, GEMM, "triton_poi_fused_other_9", GEMM, SUM_KERNEL, GEMM]
    named = name(graph, kernels, paths, call=[7, -1, -1, -1, -1, -1], graph=[0, -1, -1, -1, -1, -1])
    assert named == ["GPT/blocks.1/norm", "GPT/head", paths[2], "GPT", "GPT", "(compiled)"]
    assert name(graph, kernels[1:], paths[1:]) == paths[1:], "calls are not known"


def test_two_calls_of_one_graph_in_a_row_are_two():
    blocks = [make_graph("norm", f"GPT/blocks.{number}")._replace(numbers=(number,)) for number in range(2)]
    named = name(blocks, [NORM.kernel] * 3, call=[10, 20, 30], graph=[0, 1, 1])
    assert named == ["GPT/blocks.0/norm", "GPT/blocks.*/norm", "GPT/blocks.*/norm"]


def test_the_range_of_a_call_is_no_module(tmp_path):
    """Kernels of equal graphs in a followed step, in forward inside the module and in backward on another thread."""
    export = Export()
    for at, prefix in ((0, ""), (1000, FOLLOWED)):
        export.span(f"{prefix}step", at, at + 900)
        for thread, phase in enumerate(("forward", "backward")):
            begin = at + 400 * thread
            export.push(f"{prefix}{phase}", begin + 1, begin + 300)
            for place, number in enumerate((1, 0)):
                start = begin + 10 + 100 * place
                export.launch(start + 10, name=NORM.kernel, thread=thread + 1)
                if prefix:
                    around = f"{prefix}backward/GPT (compiled)" if thread else "GPT (compiled)"
                    export.push(around, start, start + 50, thread=thread + 1)
                    export.push(f"modules:call {number + 2 * thread}", start + 2, start + 40, thread=thread + 1)
                    export.push("cub::DeviceScan", start + 4, start + 30, thread=thread + 1)
    for number, (phase, path) in enumerate([*zip(["forward"] * 2, "ab"), *zip(["backward"] * 2, "ab")]):
        export.push(f"modules:graph {number} {phase} GPT", 3000 + 100 * number, 3050 + 100 * number)
        export.push(f"{NORM.kernel}|{path}=100", 3010 + 100 * number, 3020 + 100 * number)
    capture = read(export.sqlite(tmp_path / "a.sqlite"))
    attribution = attribute(capture)
    paths = attribution.ranges["module"][attribution.ranges["name"].astype(str).str.startswith("modules:call")]
    assert set(paths) == {"GPT (compiled)"}
    named = link_modules(capture, attribution).kernels["module"].tolist()
    assert named[:4] == ["GPT/b", "GPT/a"] * 2


def test_graphs_of_equal_modules_are_one():
    """As of other shapes, or of the same block compiled again."""
    again = make_graph("", "GPT/first"), make_graph("", "GPT/second")
    assert name([FIRST_PART, SECOND_PART, *again], [NORM.kernel] * 2) == ["GPT/first", "GPT/second"]
    blocks = [make_graph("norm", f"GPT/blocks.{number}") for number in range(2)]
    assert name(blocks, [NORM.kernel], "GPT/blocks.7 (compiled)") == ["GPT/blocks.7/norm"]


def test_a_graph_of_the_compiled_module_goes_before_one_of_another_model():
    others = [make_graph("first", "Critic"), make_graph("second")]
    assert name(others, [NORM.kernel]) == ["GPT/second"]
    assert name(others, [NORM.kernel], "(compiled)") == ["(compiled)"], "nothing has both inside"


def test_a_graph_of_a_part_names_modules_below_it():
    graph = Graph(1, False, "GPT/lm/body", (Launch(NORM.kernel, ("norm",)),))
    assert name(graph, [NORM.kernel], "GPT (compiled)") == ["GPT/lm/body/norm"]


@pytest.mark.parametrize(
    "graph", [Graph(1, True, "GPT", (NORM,)), Graph(2, False, "GPT", (NORM,)), Graph(1, False, "GPT", (QKV, ATTENTION))]
)
def test_without_its_graph_a_kernel_stays_with_the_compiled_module(graph):
    assert name(graph, [NORM.kernel]) == ["GPT (compiled)"]


def test_the_range_of_a_library_is_of_the_call_around_it():
    """CUB opens a range around a sort, which deterministic algorithms need: it is no module, and divides no graph."""
    region = "GPT (compiled)"
    graph = Graph(1, False, "GPT", (NORM, Launch("aten.index_put_", ("tokens",)), JOINED))
    kernels, within = [NORM.kernel, "fill", "sort", "index", JOINED.kernel], f"{region}/cub::DeviceRadixSort"
    inside = name(graph, kernels, [region, region, within, region, region])
    assert inside == ["GPT/blocks.0/norm", *["GPT/tokens"] * 3, "GPT/blocks.0/(fused: norm_2)"]
    assert name(graph, kernels[2:3], [within]) == [within]


def test_a_graph_of_compiled_autograd_names_the_modules_of_all_its_calls():
    inside = Launch(NORM.kernel, ("GPT/blocks.0/norm", "GPT/blocks.0/attn")), Launch(JOINED.kernel, ("(loss)",))
    rest, region = Launch(ACROSS.kernel, ("",)), "(compiled autograd)"
    graph = Graph(1, True, "", (*inside, rest))
    named = name(graph, [NORM.kernel, JOINED.kernel, ACROSS.kernel], region, "backward")
    assert named == ["GPT/blocks.0/(fused: attn + norm)", "(loss)", region]
    below = Graph(1, True, "GPT", (Launch(NORM.kernel, ("blocks.0/norm",)), rest))
    assert name(below, [NORM.kernel, ACROSS.kernel], region, "backward") == ["GPT/blocks.0/norm", "GPT"]


def test_a_kernel_of_an_eager_module_keeps_it():
    assert name(Graph(1, False, "GPT", (NORM,)), [NORM.kernel], "GPT/norm") == ["GPT/norm"]


def test_graphs_are_read_from_ranges():
    names = ["modules:step", "modules:graph 0 backward GPT/a b", "k_1|x=60|y=40", "extern_kernels.mm|=100", "other"]
    ranges = pd.DataFrame({"name": names, "parent_id": [-1, 0, 1, 1, 0], "start_ns": range(5), "process": 3})
    assert read_graphs(ranges) == [
        Graph(
            3, True, "GPT/a b", (Launch("k_1", ("x", "y"), (60, 40)), Launch("extern_kernels.mm", ("",), (100,))), (0,)
        )
    ]
    assert read_graphs(ranges[~ranges["name"].str.contains("graph")]) == []


@pytest.mark.parametrize(
    ("compiled", "called"),
    [
        ("f0 f1 b1 b0", "f0 f1 b1 b0"),  # backward when it first ran
        ("f0 b0 f1 b1", "f0 f1 b1 b0"),  # with forward, as of dynamic shapes
        ("f0 f1 f0 b1 b0", "f0 f1 b1 b0"),
    ],
)
def test_graphs_are_in_the_order_of_their_first_calls(compiled, called):
    """Whatever the order of their ranges: the tenth was compiled after the second."""
    passes = {"f": "forward", "b": "backward"}
    names = [f"modules:graph {at} {passes[one[0]]} {one[1]}" for at, one in enumerate(compiled.split(), 8)]
    ranges = pd.DataFrame({"name": sorted(names), "parent_id": -1, "start_ns": 0, "process": 1})
    graphs = read_graphs(ranges)
    assert [f"{'fb'[graph.is_backward]}{graph.root}" for graph in graphs] == called.split()
    numbers = {root: tuple(at for at, one in enumerate(compiled.split(), 8) if one == root) for root in called.split()}
    assert [graph.numbers for graph in graphs] == list(numbers.values())


DATA = Path(__file__).parents[1] / "data"
FIRST, SECOND, THIRD, FOURTH, FIFTH = (
    json.loads(gzip.decompress((DATA / f"compiled_{name}h200.json.gz").read_bytes()))
    for name in ("", "scripts_", "turns_", "autograd_", "calls_")
)
RECORDED = {f"first {name}": recorded for name, recorded in FIRST.items()} | SECOND | THIRD | FOURTH
RECORDED |= {f"calls {name}": recorded for name, recorded in FIFTH.items()}
"""The last followed step of compiled scripts on an H200 (torch 2.11, BF16), four layers each. First: a GPT compiled as
a whole (sdpa), block by block, and with CUDA graphs, and Hugging Face's GPT-2. Then: nanochat's GPT, HF Llama and GPT-2
(default, reduce-overhead, block by block), training steps of a sweep, and GPTs of three layers: with graph breaks in
each block, of dynamic shapes, with flex attention, and with a Triton kernel of its own. Then: a GPT with deterministic
algorithms, llm.c's GPT-2 of twelve layers, a GPT of twelve layers and a Llama of eight, both under nsys and under
torch.profiler, and of dynamic shapes a measured step that ran another graph in backward than the followed ones. Then
with compiled autograd: a GPT, one with deterministic algorithms, and Hugging Face's GPT-2. Kernels are name, module,
phase and ns. Last with calls (call and graph of each kernel, -1 for none): nanochat's GPT with reduce-overhead and
block by block, GPTs with a break between two equal halves and after each block of a loop, and a step of a sweep of two
layers in FP32, whose largest matmuls are two kernels each."""
OF_GPT2 = (["c_attn", "c_proj", "c_fc"], 16, "lm_head")
OF_LLAMA = ([f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")], 28, "lm_head")
LINEAR = {
    "first sdpa": (["qkv", "proj", "fc", "out"], 16, "head"),
    "nanochat": (["c_q", "c_k", "c_v", "c_proj", "c_fc"], 24, "lm_head"),
    "llama": OF_LLAMA,
    "gpt2": OF_GPT2,
    "dynamic": (["qkv", "proj", "0", "2"], 12, "head"),
    "llmc": (["c_attn", "c_proj", "c_fc"], 48, "lm_head"),
    "gpt-12": (["qkv", "proj", "fc", "out"], 48, "head"),
    "llama-8": (OF_LLAMA[0], 56, "lm_head"),
}
"""By script: the last names of linear modules in blocks, how many there are, and the name of the last."""
ALIKE = {"first regional": "first sdpa", "first graphs": "first sdpa", "flex": "dynamic", "triton": "dynamic"}
ALIKE |= {"det": "first sdpa", "dynamic-other": "first sdpa"}
ALIKE |= {f"{name}-traced": name for name in ("gpt-12", "llama-8")}
ALIKE |= {f"{name}-{how}": name for name in ("llama", "gpt2") for how in ("reduce", "regional")}
ALIKE |= {"calls nano-reduce": "nanochat", "calls nano-regional": "nanochat"}
ALIKE |= {"calls halves": "first sdpa", "calls breaks": "first sdpa"}


def link_recorded(name, has_shares=False):
    """The kernels with the module of their range, and the module inside. has_shares: equal ones, which were not
    recorded."""
    recorded = RECORDED[name]
    text = recorded["names"]
    columns = ["kernel_name", "module", "phase", "ns", "call", "graph"]
    rows = pd.DataFrame([[*(text[at] for at in row[:3]), *row[3:]] for row in recorded["kernels"]])
    rows.columns = columns[: rows.shape[1]]
    rows = rows.assign(process=1, thread=rows["phase"])
    return rows, name_rows(name, rows, has_shares)


def name_rows(name, rows, has_shares=False):
    """The modules inside, by the graphs of a recording."""
    text = RECORDED[name]["names"]
    graphs = [
        Graph(
            1,
            is_backward,
            root,
            tuple(
                Launch(text[at], tuple(text[m] for m in inside), (100 // len(inside),) * len(inside) * has_shares)
                for at, inside in launches
            ),
            tuple(*numbers),
        )
        for is_backward, root, launches, *numbers in RECORDED[name]["graphs"]
    ]
    return pd.Series(name_inside(rows, graphs), rows.index)


@pytest.mark.parametrize("name", RECORDED)
def test_the_kernels_of_recorded_compiled_regions_have_modules_inside(name):
    rows, modules = link_recorded(name)
    compiled = rows["module"].str.contains("compiled")
    inside = compiled & ~modules.str.contains("compiled")
    for phase in ("forward", "backward")[name in FOURTH :]:  # see the test of their forward below
        of_phase = rows["phase"] == phase
        assert rows["ns"][inside & of_phase].sum() >= 0.97 * rows["ns"][compiled & of_phase].sum() > 0
    assert (modules[~compiled] == rows["module"][~compiled]).all()


def write_step(export, rows, at, prefix=""):
    """Launch recorded kernels, one after the other; where they were followed (prefix), in the ranges of modules."""
    for phase in ("forward", "backward"):
        begin = at
        changes = (rows["module"].shift() != rows["module"]).cumsum()
        for _, of_module in rows[rows["phase"] == phase].groupby(changes):
            first = at
            for name, ns in zip(of_module["kernel_name"], of_module["ns"]):
                export.launch(at + 10, start=at + 20, end=at + 20 + ns, name=name)
                at += 30 + ns
            if prefix:
                path = of_module["module"].iloc[0]
                export.push(f"{prefix}backward/{path}" if phase == "backward" else path, first + 5, at)
        export.push(f"{prefix}{phase}", begin, at)
        at += 10
    return at


def export_recorded(name, path):
    """Write a recording as nsys exports it: a measured step, a followed one, and the graphs."""
    rows, _ = link_recorded(name)
    text, export = RECORDED[name]["names"], Export()
    for prefix, at in (("", 0), (FOLLOWED, 10**9)):
        export.span(f"{prefix}step", at, write_step(export, rows, at + 1, prefix) + 10)
    at = 2 * 10**9
    for number, (is_backward, root, launches, *_) in enumerate(RECORDED[name]["graphs"]):
        begin = at
        for kernel, modules in launches:
            export.push("|".join([text[kernel], *(f"{text[module]}=50" for module in modules)]), at + 2, at + 4)
            at += 5
        export.push(f"modules:graph {number} {'backward' if is_backward else 'forward'} {root}", begin, at)
        at += 10
    return read(export.sqlite(path / "recorded.sqlite"))


@pytest.mark.parametrize("name", ["gpt-12", "llmc", "nanochat", "breaks", "calls nano-reduce"])
def test_the_modules_that_a_page_shows_have_all_the_time_of_their_compiled_region(name, tmp_path):
    capture = export_recorded(name, tmp_path)
    attribution = attribute(capture)
    times = capture.kernels[["start_ns", "end_ns", "kernel_name"]]
    place = attribution.kernels[["step", "phase"]].assign(module=link_modules(capture, attribution).kernels["module"])
    shown = sum_by_module(kernel_totals(pd.concat([times, place], axis=1).assign(run_id="run", rank=0, family="")))
    shown = shown[(shown["depth"] == 0) & shown["module"].str.startswith("GPT")]
    rows, _ = link_recorded(name)
    for phase in ("forward", "backward"):
        raw = rows["ns"][(rows["phase"] == phase) & rows["module"].str.contains("compiled")]
        assert shown[f"{phase}_ns"].sum() == raw.sum() > 0
        assert shown[f"{phase}_ns"][shown["module"] == "GPT"].sum() >= 0.97 * raw.sum()


@pytest.mark.parametrize(("name", "num"), [("gpt-12", 12), ("llmc", 12), ("nanochat", 4)])
def test_attention_has_its_kernels_in_each_block(name, num):
    """One fused kernel in forward; in backward one, with one before and one after it."""
    rows, modules = link_recorded(name)
    is_attention = rows["kernel_name"].map(find_family) == "attention"
    for phase, num_kernels in (("forward", 1), ("backward", 3)):
        counts = modules[is_attention & (rows["phase"] == phase)].value_counts()
        assert len(counts) == num and set(counts) == {num_kernels} and counts.index.str.endswith("/attn").all()
    fused = modules[rows["kernel_name"].str.contains("_flash_")]
    assert len(fused) == 2 * num and set(fused.value_counts()) == {2}


def find_matmuls(rows):
    return rows["kernel_name"].map(is_main_gemm)


def count_matmuls(name, phase):
    rows, modules = link_recorded(name)
    return modules[find_matmuls(rows) & (rows["phase"] == phase)].value_counts()


@pytest.mark.parametrize(("phase", "num"), [("forward", 1), ("backward", 2)])
@pytest.mark.parametrize("name", [*LINEAR, *ALIKE])
def test_each_linear_module_of_a_compiled_model_has_the_matmuls_of_its_architecture(name, phase, num):
    linear, num_modules, last = LINEAR[ALIKE.get(name, name)]
    counts = count_matmuls(name, phase)
    inside = counts[[module.rpartition("/")[2] in linear for module in counts.index]]
    assert len(inside) == num_modules and set(inside) == {num}
    assert counts[[module.rpartition("/")[2] == last for module in counts.index]].tolist() == [num]


@pytest.mark.parametrize("name", FOURTH)
def test_each_linear_module_has_its_matmuls_in_a_backward_pass_of_compiled_autograd(name):
    counts = count_matmuls(name, "backward")
    assert len(counts) == 17 and set(counts) == {2} and not counts.index.str.contains("compiled").any()


@pytest.mark.parametrize("name", FOURTH)
def test_the_kernels_of_a_compiled_function_are_those_of_its_graph(name):
    """These were recorded when its call had no range: with one, each kernel has a launch. The loss has no module."""
    rows, _ = link_recorded(name)
    rows = rows[rows["phase"] == ""]
    rows = rows[rows["kernel_name"].str.startswith("triton_").cummax()]  # the batch is drawn before
    modules = name_rows(name, rows.assign(module="(compiled)", phase="forward"))
    assert not modules.str.contains("compiled").any()
    assert len(modules) > 70 and (modules != "").sum() == len(modules) - 3
    counts = modules[find_matmuls(rows)].value_counts()
    assert len(counts) == 17 and set(counts) == {1}


@pytest.mark.parametrize(("phase", "num"), [("forward", 1), ("backward", 2)])
@pytest.mark.parametrize(("name", "layers"), [("sweep-fp32", 4), ("sweep-bf16", 4), ("calls sweep-fp32", 2)])
def test_modules_of_a_compiled_sweep_have_the_matmuls_of_an_eager_run(name, layers, phase, num):
    """The reference model has three projections in qkv_proj, and three matmuls in ffn."""
    blocks = {f"block_{number}/{part}": 3 * num for number in range(layers) for part in ("attention/qkv_proj", "ffn")}
    blocks |= {f"block_{number}/attention/o_proj": num for number in range(layers)}
    assert count_matmuls(name, phase).to_dict() == blocks | {"lm_head": num}


@pytest.mark.parametrize("name", ["gpt-12", "llama-8"])
def test_both_collectors_give_each_kernel_the_same_module(name):
    (rows, modules), (traced_rows, traced) = link_recorded(name), link_recorded(f"{name}-traced")
    regions = rows["module"].str.contains("compiled"), traced_rows["module"].str.contains("compiled")
    for phase in ("forward", "backward"):
        inside = modules[regions[0] & (rows["phase"] == phase)].tolist()
        assert inside == traced[regions[1] & (traced_rows["phase"] == phase)].tolist() and len(inside) > 100


def test_blocks_that_break_share_their_graphs():
    """And the head has a graph of its own, which named no module but the model when it was recorded."""
    assert count_matmuls("breaks", "forward").to_dict() == {
        f"GPT/blocks.*/{part}": 3 for part in ("attn/qkv", "attn/proj", "mlp/0", "mlp/2")
    } | {"GPT": 1}
