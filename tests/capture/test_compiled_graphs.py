"""Kernels of compiled regions get the modules inside."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.capture.compiled_graphs import Graph, Launch, link_launches, name_inside, read_graphs
from profiler_job.analysis.reference.kernel_families import find_family

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
    linked = link_launches(kernels, [Graph(1, False, "GPT", launches)])
    return [launch.modules[0] for _, _, launch in linked]


def test_generated_kernels_are_known_by_name_and_calls_by_their_place():
    assert link([NORM.kernel, GEMM, JOINED.kernel], NORM, QKV, JOINED) == ["blocks.0/norm", QKV.modules[0], "blocks.0"]


def test_the_kernels_between_two_of_ours_are_those_of_one_call():
    assert link([NORM.kernel, GEMM, SPLIT_K, JOINED.kernel], NORM, QKV, JOINED)[1:3] == [QKV.modules[0]] * 2


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


@pytest.mark.parametrize(
    "kernels",
    [
        [NORM.kernel, GEMM, SPLIT_K, SPLIT_K, JOINED.kernel],  # one matmul for two calls
        [NORM.kernel, GEMM, SPLIT_K, JOINED.kernel],  # the same, though two kernels for two calls
        [NORM.kernel, JOINED.kernel],  # none
        [NORM.kernel, GEMM, GEMM_2],  # cut off
        [JOINED.kernel, GEMM, GEMM_2, NORM.kernel],  # another order
        [GEMM, GEMM_2],
    ],
)
def test_kernels_that_do_not_fit_are_not_linked(kernels):
    assert link(kernels, NORM, QKV, PROJ, JOINED) == []


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
    linked = link_launches(["copy", *once, "copy", *once], [Graph(1, False, "GPT", (NORM, QKV, JOINED))])
    assert [place for place, *_ in linked] == [1, 2, 3, 5, 6, 7]


def name(graph, kernels, module="GPT (compiled)", phase="forward", process=1):
    rows = pd.DataFrame({"kernel_name": kernels, "process": process, "thread": 1, "phase": phase, "module": module})
    return name_inside(rows, [graph]).tolist()


def test_modules_have_the_paths_of_an_eager_run():
    graph = Graph(1, False, "GPT", (NORM, QKV, JOINED, ACROSS))
    assert name(graph, [NORM.kernel, GEMM, JOINED.kernel, ACROSS.kernel]) == [
        "GPT/blocks.0/norm",
        "GPT/blocks.0/attn/qkv",
        "GPT/blocks.0/(fused: norm_2)",
        "GPT/(fused: blocks.0.mlp + blocks.1.norm)",
    ]


@pytest.mark.parametrize(("region", "expected"), [("(compiled)", ""), ("block_3/(compiled)", "block_3/")])
def test_a_region_of_a_sweep_has_no_name_of_its_own(region, expected):
    graph = Graph(1, False, "", (Launch(NORM.kernel, ("attention/norm",)), Launch(JOINED.kernel, ("ffn", ""))))
    inside = name(graph, [NORM.kernel, JOINED.kernel], region)
    assert inside == [f"{expected}attention/norm", f"{expected}ffn"]  # what has no module goes with the others


def test_a_graph_of_one_block_names_the_modules_of_every_block():
    graph = Graph(1, False, "GPT/blocks.0", (Launch(NORM.kernel, ("norm",)),))
    assert name(graph, [NORM.kernel], "GPT/blocks.7 (compiled)") == ["GPT/blocks.7/norm"]


def test_a_graph_of_a_part_names_modules_below_it():
    graph = Graph(1, False, "GPT/lm/body", (Launch(NORM.kernel, ("norm",)),))
    assert name(graph, [NORM.kernel], "GPT (compiled)") == ["GPT/lm/body/norm"]


@pytest.mark.parametrize(
    "graph", [Graph(1, True, "GPT", (NORM,)), Graph(2, False, "GPT", (NORM,)), Graph(1, False, "GPT", (QKV, ATTENTION))]
)
def test_without_its_graph_a_kernel_stays_with_the_compiled_module(graph):
    assert name(graph, [NORM.kernel]) == ["GPT (compiled)"]


def test_a_kernel_of_an_eager_module_keeps_it():
    assert name(Graph(1, False, "GPT", (NORM,)), [NORM.kernel], "GPT/norm") == ["GPT/norm"]


def test_graphs_are_read_from_ranges():
    names = ["modules:step", "modules:graph 0 backward GPT/a b", "k_1|x=60|y=40", "extern_kernels.mm|=100", "other"]
    ranges = pd.DataFrame({"name": names, "parent_id": [-1, 0, 1, 1, 0], "start_ns": range(5), "process": 3})
    assert read_graphs(ranges) == [
        Graph(3, True, "GPT/a b", (Launch("k_1", ("x", "y")), Launch("extern_kernels.mm", ("",))))
    ]
    assert read_graphs(ranges[~ranges["name"].str.contains("graph")]) == []


RECORDED = json.loads(gzip.decompress((Path(__file__).parents[1] / "data" / "compiled_h200.json.gz").read_bytes()))
"""The last followed step of four compiled scripts on an H200 (torch 2.11, BF16): a GPT of four blocks compiled as a
whole (sdpa), block by block, and with CUDA graphs, and Hugging Face's GPT-2. Kernels are name, module, phase and ns."""
LINEAR = ("qkv", "proj", "fc", "out")


def link_recorded(name):
    """The kernels with the module of their range, and the module inside."""
    recorded = RECORDED[name]
    text = recorded["names"]
    columns = ["kernel_name", "module", "phase"]
    rows = pd.DataFrame([[*(text[at] for at in row[:3]), row[3]] for row in recorded["kernels"]])
    rows.columns = [*columns, "ns"]
    graphs = [
        Graph(1, is_backward, root, tuple(Launch(text[at], tuple(text[m] for m in inside)) for at, inside in launches))
        for is_backward, root, launches in recorded["graphs"]
    ]
    rows = rows.assign(process=1, thread=rows["phase"])
    return rows, pd.Series(name_inside(rows, graphs), rows.index)


@pytest.mark.parametrize("name", RECORDED)
def test_the_kernels_of_recorded_compiled_regions_have_modules_inside(name):
    rows, modules = link_recorded(name)
    compiled = rows["module"].str.contains("compiled")
    inside = compiled & ~modules.str.contains("compiled")
    assert rows["ns"][inside].sum() >= 0.97 * rows["ns"][compiled].sum()
    assert (modules[~compiled] == rows["module"][~compiled]).all()


@pytest.mark.parametrize("name", ["sdpa", "regional", "graphs"])
def test_each_linear_module_of_a_compiled_gpt_has_the_matmuls_of_its_architecture(name):
    rows, modules = link_recorded(name)
    gemms = rows["kernel_name"].map(find_family) == "gemm"
    for phase, num in (("forward", 1), ("backward", 2)):
        counts = modules[gemms & (rows["phase"] == phase)].value_counts()
        blocks = {module: count for module, count in counts.items() if module.rpartition("/")[2] in LINEAR}
        assert len(blocks) == 16 and set(blocks.values()) == {num}
        assert counts["GPT/head"] == num
