"""Operations of a replayed CUDA graph have the phase and module in which the graph was captured."""

from pathlib import Path

import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.replays import find_function
from profiler_job.analysis.reference.kernel_families import find_family
from tests.capture.nsys_files import Export
from tests.packed import unpack

DATA = Path(__file__).parents[1] / "data"

GELU = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::GeluCUDA<float>>(int, T2)"
NORM = "void <unnamed>::layer_norm_kernel<float>(float *)"
NOTED = [
    ("modules:forward", None, "modules:node kernel 8x1x1 void (anonymous namespace)::layer_norm_kernel<float>(float*)"),
    ("modules:forward", "GPT/mlp", "modules:node kernel 4x1x1 void at::native::vectorized_elementwise_kernel<4, at"),
    (None, None, "modules:node kernel 1x1x1 nll_loss"),
    ("modules:backward", "modules:backward/GPT/mlp", "modules:node kernel 2x1x1 triton_poi_fused_gelu_1"),
    ("modules:optimizer", "modules:optimizer/GPT/mlp", "modules:node memset"),
    ("modules:optimizer", "modules:optimizer/GPT/mlp", "modules:node kernel 2x1x1 adam"),
]
KERNELS = [(NORM, 8), (GELU, 4), ("nll_loss", 1), ("triton_poi_fused_gelu_1", 2), ("adam", 2)]
PLACES = [("forward", ""), ("forward", "GPT/mlp"), ("loss", ""), ("backward", "GPT/mlp"), ("optimizer", "GPT/mlp")]


def write_notes(export, at, noted=NOTED, number=0):
    export.push(f"modules:captured {number}", at, at + 1000)
    for place, (phase, module, node) in enumerate(noted):
        start = at + 10 + 20 * place
        for depth, name in enumerate(name for name in (phase, module, node) if name):
            export.push(name, start + depth, start + 15 - depth)


def attribute_replay(tmp_path, kernels=KERNELS, *notes, details=True):
    """Places of kernels and memops of a step that replays a graph."""
    export = Export()
    export.span("step", 0, 900)
    call = export.call(10, 20, name="cudaGraphLaunch_v10000")
    for place, (name, blocks) in enumerate(kernels):
        node = (5 << 32) + place + (place >= 4)
        # The last two run at once, the second first.
        start = 100 * place + 30 - 150 * (place == 4)
        export.kernel(start, start + 50, call, name=name, blocks=blocks, graph_node=node, stream=7 + (place == 4))
    export.memset(380, 385, call)
    export.rows["CUPTI_ACTIVITY_KIND_MEMSET"][0]["graphNodeId"] = (5 << 32) + 4
    export.span("modules:step", 1000, 9000)
    for number, noted in enumerate(notes or (NOTED,)):
        write_notes(export, 2000 * (1 + number), noted, number)
    capture = read(export.sqlite(tmp_path / "a.sqlite"), details=details)
    placed = attribute(capture)
    order = capture.kernels["graph_node"].argsort()
    rows = placed.kernels.iloc[order]
    places = list(zip(rows["phase"].astype(str), rows["module"].astype(str)))
    return places, rows["attribution"].astype(str).tolist(), placed


@pytest.mark.parametrize("details", [True, False])
def test_each_operation_of_a_replay_has_the_place_of_its_node(tmp_path, details):
    places, how, placed = attribute_replay(tmp_path, details=details)
    assert places == PLACES
    assert set(how) == {"linked"}
    assert placed.memops[["phase", "module"]].astype(str).values.tolist() == [["optimizer", "GPT/mlp"]]
    assert (placed.kernels["step"] == 0).all()


@pytest.mark.parametrize(
    "kernels",
    [KERNELS[:-1], [*KERNELS[:3], KERNELS[4], KERNELS[3]], [(NORM, 9), *KERNELS[1:]], [*KERNELS, KERNELS[0]]],
    ids=["fewer", "another order", "another grid", "more"],
)
def test_a_replay_of_other_kernels_is_not_placed(tmp_path, kernels):
    places, how, _ = attribute_replay(tmp_path, kernels)
    assert set(places) == {("", "")} and "linked" not in how


def test_graphs_of_the_same_kernels_in_other_modules_place_nothing(tmp_path):
    other = [(phase, module and module.replace("mlp", "mlp_2"), node) for phase, module, node in NOTED]
    assert set(attribute_replay(tmp_path, KERNELS, NOTED, other)[0]) == {("", "")}
    (tmp_path / "a.sqlite").unlink()
    assert attribute_replay(tmp_path, KERNELS, NOTED, NOTED)[0] == PLACES


def test_a_recorded_step_in_one_graph_has_phases_and_the_matmuls_of_its_architecture(tmp_path):
    """A GPT of four blocks on an H200, BF16, with AdamW: forward, loss, backward, update and zero_grad in one graph."""
    capture = read(unpack(DATA / "whole_step_graph_h200.sqlite.packed", tmp_path / "a.sqlite"))
    placed = attribute(capture).kernels
    of_graph = (capture.kernels["graph_node"] != 0) & (placed["step"] >= 0)
    assert of_graph.sum() == 3 * 331
    assert (placed["attribution"][of_graph] == "linked").all() and (placed["phase"][of_graph] != "").all()
    counts = placed["phase"][of_graph].value_counts()
    assert set(counts[counts > 0].index) == {"forward", "loss", "backward", "optimizer", "zero_grad"}
    names = capture.kernels["kernel_name"].astype(str)
    is_matmul = of_graph & (names.map(find_family) == "gemm") & ~names.str.contains("splitKreduce")
    for phase, num in (("forward", 1), ("backward", 2)):
        matmuls = placed["module"][is_matmul & (placed["phase"] == phase)].astype(str).value_counts()
        parts = [f"GPT/blocks.{at}/{part}" for at in range(4) for part in ("attn/qkv", "attn/proj", "mlp/0", "mlp/2")]
        assert matmuls.to_dict() == dict.fromkeys([*parts, "GPT/head"], 3 * num)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (GELU, "vectorized_elementwise_kernel"),
        (NORM, "layer_norm_kernel"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("std::enable_if<1>::type a::gemv<int>(int)", "enable_if"),
        ("", ""),
    ],
)
def test_the_function_of_a_kernel_is_its_name_without_types(name, function):
    assert find_function(name) == function
