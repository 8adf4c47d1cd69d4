"""Modules of measured steps, from the steps in which modules were followed."""

from types import SimpleNamespace

import pandas as pd
import pytest

from profiler_job.analysis.capture.modules import LINKED, link_modules
from profiler_job.jobs.contract import ranges

CAT = "void at::native::CatArrayBatchedCopy<unsigned int>(int)"
CAT_ALIGNED = "void at::native::CatArrayBatchedCopy_alignedK_contig<unsigned int>(int)"
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_ffma_execute_kernel"


def link(
    measured: list[tuple[str, int]],
    followed: list[tuple[str, int, str]],
    graphs: list[list[str]] = (),
    phases: list[str] = (),
    mark: str = "",
):
    """Link the kernels (name, grid) of one step, at 0, to those (with modules) of a followed one, at 1000. graphs: of
    torch.compile, the launches of each with modules. phases: of the kernels of each step, each with its own thread;
    then the graphs are of backward. mark: at the end of the graphs' names."""
    rows = [(0, name, grid, "") for name, grid in measured] + [
        (1000, name, grid, path) for name, grid, path in followed
    ]
    start = [at + number for number, (at, *_) in enumerate(rows)]
    names = [name for _, name, _, _ in rows]
    capture = SimpleNamespace(
        kernels=pd.DataFrame(
            {"process": 1, "start_ns": start, "kernel_name": names, "grid_x": [row[2] for row in rows]}
            | {"grid_y": 1, "grid_z": 1}
        ),
        memops=pd.DataFrame({"process": [], "start_ns": [], "operation": [], "bytes": []}),
    )
    place = pd.DataFrame(
        {"range_id": -1, "thread": 1, "launch_ns": start, "step": [0 if row[0] == 0 else -1 for row in rows]}
    )
    place = place.assign(phase=[*phases] * 2 or ranges.DECODE, module=[row[3] for row in rows])
    place["thread"] = place["phase"].factorize()[0]
    direction = ranges.BACKWARD if phases else ranges.FORWARD
    noted = [(ranges.FOLLOWED_STEP, -1)]
    for number, launches in enumerate(graphs):
        noted += [(f"{ranges.GRAPH}{number} {direction} GPT{mark}", 0), *((launch, len(noted)) for launch in launches)]
    steps = pd.DataFrame(noted, columns=["name", "parent_id"])
    steps = steps.assign(process=1, start_ns=range(1000, 1000 + len(steps)), end_ns=2000)
    steps = steps.assign(plain_name=steps["name"], is_operation=False)
    attribution = SimpleNamespace(kernels=place, memops=place.head(0), ranges=steps)
    links = link_modules(capture, attribution)
    return links.kernels.head(len(measured)), links.problems


@pytest.mark.parametrize("name", [CAT, CAT_ALIGNED], ids=["other grids", "another kernel of the family"])
def test_a_step_with_longer_keys_has_the_modules_of_the_followed_one(name):
    kernels, problems = link([(CAT, 8), (GEMM, 3)], [(name, 9, "Model/attention"), (GEMM, 3, "Model/head")])
    assert kernels["module"].tolist() == ["Model/attention", "Model/head"]
    assert set(kernels["module_by"]) == {LINKED} and problems.empty


@pytest.mark.parametrize(
    "followed",
    [[(GEMM, 3, "Model/head"), (CAT, 8, "Model/attention")], [(CAT, 8, "Model/attention")]],
    ids=["another order", "fewer"],
)
def test_other_kernels_are_not_linked(followed):
    kernels, problems = link([(CAT, 8), (GEMM, 3)], followed)
    assert set(kernels["module"]) == {""} and len(problems) == 1


NORM, JOINED = "triton_per_fused_native_layer_norm_0", "triton_red_fused_add_1"
COMPILED = [[f"{NORM}|norm=100", "extern_kernels.mm|head=100"], [f"{JOINED}|norm=100", "extern_kernels.mm|head=100"]]
FOLLOWED = [(NORM, 1, "GPT (compiled)"), (GEMM, 3, "GPT (compiled)")]


def test_a_step_that_ran_another_graph_has_the_modules_of_that_graph():
    """As with dynamic shapes: another size may have a graph of its own."""
    kernels, problems = link([(JOINED, 9), (GEMM, 3)], FOLLOWED, COMPILED)
    assert kernels["module"].tolist() == ["GPT/norm", "GPT/head"]
    assert set(kernels["module_by"]) == {LINKED} and problems.empty


def test_a_step_that_ran_a_graph_that_is_not_known_is_not_linked():
    """Not to another graph with the same families of kernels either."""
    kernels, problems = link([(JOINED, 9), (GEMM, 3)], FOLLOWED, COMPILED[:1])
    assert set(kernels["module"]) == {""}
    assert problems["reason"].tolist() == [f"operation 1 differs: {JOINED} here, {NORM} there"]


def test_a_step_that_ran_one_graph_that_is_known_and_one_that_is_not_is_not_linked():
    kernels, problems = link([(JOINED, 9), (GEMM, 3), ("triton_poi_fused_2", 1)], FOLLOWED, COMPILED)
    assert set(kernels["module"]) == {""} and len(problems) == 1


def test_equal_parts_are_told_apart_in_each_pass_of_a_step():
    """Gradients are accumulated: autograd's thread launches one backward pass after the other."""
    region, pair = (NORM, 1, "GPT (compiled)"), [[f"{NORM}|second=100"], [f"{NORM}|first=100"]]
    followed = [(GEMM, 3, "head"), region, region] * 2
    phases = [ranges.FORWARD, ranges.BACKWARD, ranges.BACKWARD] * 2
    kernels, _ = link([kernel[:2] for kernel in followed], followed, pair, phases)
    assert kernels["module"].tolist() == ["head", "GPT/second", "GPT/first"] * 2


OTHER_MODULE = [f"{NORM}|norm_2=100", "extern_kernels.mm|head_2=100"]


@pytest.mark.parametrize(
    ("mark", "graphs", "modules"),
    [
        ("", COMPILED[:1], ["GPT/norm", "GPT/head"]),  # dynamic shapes, or an older capture
        (ranges.STATIC, COMPILED[:1], ["", ""]),
        (ranges.STATIC, [COMPILED[0], COMPILED[0]], ["GPT/norm", "GPT/head"]),  # the same for another size
        (ranges.STATIC, [COMPILED[0], OTHER_MODULE], ["GPT", "GPT"]),  # it is not known which of them ran
    ],
    ids=["dynamic", "static", "one for each size", "two of other modules"],
)
def test_a_static_graph_has_one_grid(mark, graphs, modules):
    """With others a kernel of its name is of another graph: which one, the list of graphs says, or nothing does."""
    kernels, problems = link([(NORM, 2), (GEMM, 3)], FOLLOWED, graphs, mark=mark)
    assert kernels["module"].tolist() == modules
    assert problems["reason"].tolist() == [f"operation 1 differs: another shape of {NORM}"] * (not any(modules))


def test_a_static_graph_has_the_modules_of_steps_with_its_grids():
    """Whatever the grids of other kernels."""
    kernels, _ = link([(NORM, 1), (GEMM, 4)], FOLLOWED, COMPILED[:1], mark=ranges.STATIC)
    assert kernels["module"].tolist() == ["GPT/norm", "GPT/head"]


def test_calls_of_a_static_graph_have_the_grids_of_the_first():
    followed = [*FOLLOWED, (NORM, 2, "GPT (compiled)"), (GEMM, 3, "GPT (compiled)")]
    kernels, _ = link([kernel[:2] for kernel in followed], followed, COMPILED[:1], mark=ranges.STATIC)
    assert kernels["module"].tolist() == ["GPT/norm", "GPT/head", "GPT (compiled)", "GPT (compiled)"]
