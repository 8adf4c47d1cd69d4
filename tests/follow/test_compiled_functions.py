"""Phases and ranges around what is compiled of a function, without a compiler (see `test_compiled_graphs`)."""

import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.output_graph import OutputGraph

from profiler_job.jobs.follow.compiled_graphs import Graph, Launch, list_shares, name_outermost
from profiler_job.jobs.follow.follow import Follower
from profiler_job.jobs.follow.module_ranges import ModuleRanges
from profiler_job.jobs.follow.plan import Plan, Stage

MODEL, HEAD = ("L['model']", nn.Transformer), ("L['model'].head", nn.Linear)
NAME = "__compiled_fn_1"
IN_MODEL = {"7": MODEL, "8": HEAD}


def make_graph(*stacks):
    nodes = [SimpleNamespace(meta={"nn_module_stack": stack} if stack else {}) for stack in stacks]
    return SimpleNamespace(graph=SimpleNamespace(nodes=nodes))


@pytest.fixture
def follower(tmp_path):
    log = []
    made = Follower(Plan(out=str(tmp_path)), ModuleRanges(log.append, lambda: log.append("end")))
    vars(made)["log"] = log
    return made


def compile_function(follower, graph, function):
    """Do as Dynamo does with the graph of a function: have it compiled, then put what was made into a variable."""
    output = SimpleNamespace(global_scope={})
    made = follower.functions.compile(lambda output, graph: function, output, graph)
    follower.functions.install(lambda output, *item: output.global_scope.update([item]), output, NAME, made)
    return output.global_scope


def call(follower, graph, *inputs):
    """Call what was compiled of a graph, and return the ranges inside."""
    follower.functions.use_ranges(follower.stage.is_captured)
    scope = compile_function(follower, graph, lambda *inputs: follower.log.copy())
    try:
        return scope[NAME](*inputs)
    finally:
        follower.log.clear()


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Stage.TIMED, []),
        (Stage.CAPTURED, ["forward"]),
        (Stage.FOLLOWED, ["modules:forward", "(compiled)"]),
        (Stage.DONE, []),
    ],
)
def test_a_graph_with_modules_is_forward(follower, stage, expected):
    follower.stage = stage
    assert call(follower, make_graph({}, IN_MODEL)) == expected
    assert follower.graphs.roots == ({7: "Transformer"} if stage is Stage.FOLLOWED else {})
    assert follower.facts["compiled"] == bool(expected)
    assert call(follower, make_graph({"7@1": MODEL, "8": HEAD})) == expected, "a second call of the model"


def test_ranges_are_there_in_captured_steps_only(follower):
    """At other times the script calls what Dynamo made, without a call of ours."""
    scope = compile_function(follower, make_graph(IN_MODEL), print)
    other = compile_function(follower, make_graph({}), print)
    for stage in Stage:
        follower.begin(stage)
        assert (scope[NAME] is not print) == stage.is_captured and other[NAME] is print
        assert (compile_function(follower, make_graph(IN_MODEL), len)[NAME] is not len) == stage.is_captured
    follower.begin(Stage.CAPTURED)
    del scope[NAME]  # as Dynamo does with the code of a function that is no more
    follower.begin(Stage.DONE)
    assert not scope and print not in [made.plain for made in follower.functions.made]


def test_the_code_of_dynamo_calls_what_is_in_the_variable(follower, monkeypatch):
    """With Dynamo itself: of a function that breaks, both parts have ranges, and nothing is compiled again."""
    for name in ("call_user_compiler", "install_global_unsafe"):
        monkeypatch.setattr(OutputGraph, name, getattr(OutputGraph, name))
    follower.graphs.is_on = True  # Inductor compiles nothing here
    graphs, model = [], nn.Linear(2, 2)

    def compile_graph(graph, inputs):
        graphs.append(graph)
        return lambda *inputs: (follower.log.append("graph"), graph(*inputs))[1]

    def step(inputs):
        outputs = model(inputs)
        torch._dynamo.graph_break()
        return model(outputs)

    follower.functions.begin()
    compiled = torch.compile(step, backend=compile_graph)
    logs = {}
    for stage in (Stage.SKIPPED, Stage.TIMED, Stage.CAPTURED, Stage.FOLLOWED, Stage.DONE):
        follower.begin(stage)
        compiled(torch.ones(1, 2))
        logs[stage] = follower.log.copy()
        follower.log.clear()
    with_ranges = {
        Stage.CAPTURED: ["forward", "graph", "end"] * 2,
        Stage.FOLLOWED: ["modules:forward", "(compiled)", "graph", "end", "end"] * 2,
    }
    assert logs == {stage: with_ranges.get(stage, ["graph"] * 2) for stage in logs}
    assert len(graphs) == 2 and not follower.graphs.errors


def test_what_has_no_module_or_runs_in_backward_or_another_process_is_left_alone(follower, monkeypatch):
    follower.stage = Stage.FOLLOWED
    assert call(follower, make_graph({})) == [] and not follower.graphs.errors
    assert call(follower, None) == [] and follower.graphs.list_facts()["graphs_errors"][0].startswith(
        "modules of a graph: AttributeError"
    )
    monkeypatch.setattr(follower, "in_backward", 1)
    assert call(follower, make_graph(IN_MODEL)) == []
    monkeypatch.setattr(follower, "in_backward", 0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert call(follower, make_graph(IN_MODEL)) == []


def test_a_loss_and_an_evaluation_are_named_as_such(follower):
    follower.stage = Stage.CAPTURED
    assert call(follower, make_graph({"5": ("L['criterion']", nn.MSELoss)})) == ["loss"]
    weight = torch.ones(2)
    follower.optimized = {id(weight)}
    assert call(follower, make_graph(IN_MODEL), weight) == ["forward"]
    with torch.no_grad():
        assert call(follower, make_graph(IN_MODEL), weight) == ["evaluation"]
        assert call(follower, make_graph(IN_MODEL), torch.ones(2)) == ["forward"]


@pytest.mark.parametrize(
    ("around", "expected"), [("GPT", ["GPT", "(compiled)"]), ("GPT (compiled)", ["GPT (compiled)"])]
)
def test_what_is_called_in_a_compiled_module_has_its_range(follower, around, expected):
    follower.stage = Stage.FOLLOWED
    with follower.phase("forward"), follower.ranges.range(around):
        assert call(follower, make_graph(IN_MODEL)) == ["modules:forward", *expected]


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, follower):
        return call(follower, make_graph({str(id(self.blocks[0])): ("L['self'].part", nn.Linear)}))


def test_parts_that_a_broken_model_calls_have_their_paths(follower):
    model = Outer()
    model(follower)
    assert follower.graphs.paths[id(model.blocks[0])] == "Outer/blocks.0"
    call(follower, make_graph(IN_MODEL))
    assert 7 not in follower.graphs.paths


@pytest.mark.parametrize("argument", ["self", "module"])
def test_a_graph_of_a_leaf_is_of_the_module_whose_call_is_compiled(follower, argument):
    leaf = nn.Linear(2, 2)
    function = SimpleNamespace(f_locals={argument: leaf}, f_code=SimpleNamespace(co_varnames=(argument,)))
    graph = make_graph({}, {})
    follower.functions.compile(lambda *given: None, SimpleNamespace(root_tx=function), graph)
    expected = {"nn_module_stack": {str(id(leaf)): ("L['self']", nn.Linear)}}
    assert [node.meta for node in graph.graph.nodes] == [expected] * 2
    graph = make_graph(IN_MODEL, {})  # what is outside the modules that a method calls is not of them
    follower.functions.compile(lambda *given: None, SimpleNamespace(root_tx=function), graph)
    assert [node.meta for node in graph.graph.nodes] == [{"nn_module_stack": IN_MODEL}, {}]
    function.f_locals[argument] = torch.ones(1)
    graph = make_graph({})
    follower.functions.compile(lambda *given: None, SimpleNamespace(root_tx=function), graph)
    assert [node.meta for node in graph.graph.nodes] == [{}]


def test_an_exception_passes_and_closes_the_ranges(follower):
    follower.stage = Stage.FOLLOWED

    def fail():
        raise ValueError

    follower.functions.use_ranges(True)
    scope = compile_function(follower, make_graph(IN_MODEL), fail)
    with pytest.raises(ValueError):
        scope[NAME]()
    assert follower.log == ["modules:forward", "(compiled)", "end", "end"] and not follower.phases


@pytest.mark.parametrize("path", ["", "model"])
def test_modules_are_named_as_in_an_eager_run(path):
    def name(levels):
        graph = name_outermost(Graph(False, [Launch("k", {((1, path),): 1}), Launch("k", {levels: 1})]), {1: "GPT"})
        return list(list_shares(graph.launches[1].shares))

    inside = f"{path}.blocks.0".lstrip(".")
    assert name(((1, path), (2, inside), (3, f"{inside}.mlp"))) == ["GPT/blocks.0/mlp=100"]
    assert name(((0, "call 0 4"), (1, path), (2, inside))) == ["GPT/blocks.0=100"]
    assert name(()) == ["(loss)=100"] and name(((9, "other"),)) == ["other=100"]


def test_a_graph_of_known_modules_is_left_as_it_is():
    graph = Graph(False, [Launch("k", {((1, ""), (2, "head")): 1, (): 1})])
    assert name_outermost(graph, {3: "GPT"}) is graph


@pytest.mark.parametrize(("num", "named"), [(2, 2), (80, 80), (300, 0)])
def test_a_launch_of_many_modules_names_those_with_one_percent(num, named):
    """As of operations on lists of tensors: the text of a range stays short."""
    shares = {((0, ""), (1, f"h.{number}.norm")): 1000 for number in range(num)} | {((9, "tiny"),): 1}
    listed = list(list_shares(shares))
    assert len(listed) == named and not any(name.startswith("tiny") for name in listed)
