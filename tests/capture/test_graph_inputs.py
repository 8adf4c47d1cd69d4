"""What a call of a compiled module launches before it replays a CUDA graph: copies to where that reads its inputs."""

import pytest

from profiler_job.analysis.capture.compiled_graphs import Graph
from profiler_job.jobs.contract.ranges import GRAPH_INPUTS

from .test_compiled_graphs import JOINED, NORM, make_graph, name


@pytest.mark.parametrize("region", ["GPT (compiled)", "(compiled)"])
def test_what_a_call_launches_before_it_replays_a_cuda_graph_copies_its_inputs(region):
    """As the gradient of the logits, where the loss is outside of the graph: 276 µs of a step of a GPT on an H200."""
    graph = make_graph("norm")._replace(numbers=(0,))
    copy, known = "multi_tensor_apply_kernel", {"call": [7] * 3, "graph": [0] * 3}
    inputs = "/".join(filter(None, [region.removesuffix("(compiled)").strip(), GRAPH_INPUTS]))
    replayed = name(graph, [copy, copy, NORM.kernel], region, **known, graph_node=[0, 0, 5])
    assert replayed[:2] == [inputs] * 2 and replayed[2].endswith("norm")
    for nodes in ([0, 0, 0], [0, 5, 5], [5, 5, 5]):
        assert name(graph, [copy, copy, NORM.kernel], region, **known, graph_node=nodes)[:2] == [region] * 2


def test_a_call_that_replays_a_cuda_graph_of_a_part_copies_its_inputs_too():
    """Inductor leaves out of CUDA graphs what they cannot have, as what needs the CPU."""
    graph = Graph(1, False, "GPT", (NORM, JOINED), (0,))
    kernels, known = ["copy", NORM.kernel, JOINED.kernel], {"call": [7] * 3, "graph": [0] * 3}
    assert name(graph, kernels, **known, graph_node=[0, 5, 0])[0] == f"GPT/{GRAPH_INPUTS}"
    assert name(graph, kernels, **known, graph_node=[0, 0, 5])[0] == "GPT (compiled)"


def test_what_runs_before_a_cuda_graph_is_no_copy_of_its_inputs_if_that_is_not_certain():
    """Where no range is around a call, as in older captures; where other kernels run than the graph's; where they are
    hidden; and where the graph is another process's."""
    graph = make_graph("norm")._replace(numbers=(0,))
    kernels, call, nodes = ["copy", NORM.kernel], {"call": [7] * 2, "graph": [0] * 2}, {"graph_node": [0, 5]}
    assert name(graph, kernels, **call, **nodes)[0] == f"GPT/{GRAPH_INPUTS}"
    for others in (nodes, call, nodes | {"call": [7] * 2, "graph": [3] * 2}):
        assert name(graph, kernels, **others)[0] == "GPT (compiled)"
    assert name(graph, ["copy", "other"], **call, **nodes) == ["GPT (compiled)"] * 2
    assert name(graph, ["copy"], call=[7], graph=[0], graph_node=[0]) == ["GPT (compiled)"]
    assert name(graph, kernels, process=2, **call, **nodes) == ["GPT (compiled)"] * 2
