"""Modules of what compiled autograd compiles, without a compiler but in the last test of `test_compiled_graphs`."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from profiler_job.jobs.follow.compiled_backward import (
    CALL,
    STACK,
    CompiledBackward,
    find_line,
    find_paths,
    is_backward_graph,
    list_lines,
    locate,
    note_calls,
)
from profiler_job.jobs.follow.compiled_graphs import CompiledGraphs
from profiler_job.jobs.follow.module_ranges import order_calls

MODEL, HEAD = ("L['self']", nn.Module), ("L['self'].head", nn.Linear)


class Node(SimpleNamespace):
    __hash__ = object.__hash__


def make_node(name, *inputs, call="", kind="mm", stack=None, op="call_function"):
    meta = {"stack_trace": f"in set_node_origin\n    {call}"} if call else {}
    meta |= {f"fwd_{STACK}": stack} if stack else {}
    return Node(name=name, op=op, target=Node(__name__=kind), meta=meta, all_input_nodes=list(inputs))


def test_each_operation_has_its_call_and_the_modules_inside_a_compiled_part():
    given = make_node("inputs", op="placeholder")
    loss = make_node("mean", given, call="MeanBackward0 (NodeCall 1)")
    prologue = make_node("prologue", loss, call="CompiledFunctionBackward0 (NodeCall 2)", kind="call_aot_bwd_prologue")
    matmul = make_node("aot0_mm", prologue, stack={"1": MODEL, "2": HEAD})
    joined = make_node("aot0_add", prologue, matmul)
    added = make_node(
        "grad", given, matmul, call="torch::autograd::AccumulateGrad (NodeCall 4)", kind="call_accumulate_grad"
    )
    calls = note_calls([given, loss, prologue, matmul, joined, added], 3)
    assert calls == ("", "MeanBackward0", "CompiledFunctionBackward0", "", "torch::autograd::AccumulateGrad")
    inside = {CALL: (f"{CALL}3 2", nn.Module), "1": MODEL, "2": HEAD}
    assert STACK not in given.meta and loss.meta[STACK] == {CALL: (f"{CALL}3 1", nn.Module)}
    assert [node.meta[STACK] for node in (matmul, joined, added)] == [inside] * 3


@pytest.mark.parametrize(
    ("number", "below", "expected"),
    [
        (1, "", "(loss)"),
        (1, "blocks.0/mlp", "blocks.0/mlp"),  # of a compiled function that calls the model: the model has no path
        (2, "mlp/fc", "GPT/blocks.0/mlp/fc"),
        (2, "", "GPT/blocks.0"),
        (3, "", "GPT/head"),
        (4, "", "(loss)"),  # of a compiled function
        (4, "GPT/head", "GPT/head"),
        (5, "head", "GPT/head"),
    ],
)
def test_the_path_of_a_call_is_above_the_modules_inside(number, below, expected):
    paths = ["", "(loss)", "GPT/blocks.0 (compiled)", "GPT/head", "(compiled)", "GPT/(compiled)"]
    assert locate([(0, f"{CALL}0 {number}")], below, paths) == expected


def test_without_a_call_or_its_path_only_the_modules_inside_are_known():
    assert locate([(0, f"{CALL}0 2")], "mlp/fc", []) == locate([], "mlp/fc", ["", "GPT"]) == "mlp/fc"


def test_paths_are_those_of_a_pass_with_the_same_calls():
    known = {("MeanBackward0", "MmBackward0"): ["(loss)", "GPT/head"]}
    root = "torch::autograd::GraphRoot"
    assert find_paths((root, "MeanBackward0", "MmBackward0"), known) == ["", "(loss)", "GPT/head"]
    assert find_paths((root, "", "MmBackward0"), known) == ["", "(loss)", "GPT/head"]
    for calls in (
        (root, "MeanBackward0"),
        (root, "MeanBackward0", "AddBackward0"),
        (root, "MmBackward0", "MeanBackward0"),
    ):
        assert find_paths(calls, known) == []


class Seen(torch.Tensor):
    """A tensor that notes which line of `code` computes with it."""

    code, lines = None, list[int]()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.lines.append(find_line(cls.code))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_the_line_that_runs_names_the_node(monkeypatch):
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Identity(), nn.ReLU()))
    names = list_lines(traced)
    monkeypatch.setattr(Seen, "code", type(traced).forward.__code__)
    monkeypatch.setattr(Seen, "lines", [])
    traced(torch.ones(2).as_subclass(Seen))
    assert {names[line - 1] for line in Seen.lines} == {"_1"} and find_line(Seen.code) == 0


def test_a_graph_that_is_not_what_it_is_thought_to_be_is_compiled_without_modules():
    backward = CompiledBackward(lambda: None)

    class CompiledAutograd0(nn.Module):
        graph = None

    graph = CompiledAutograd0()
    assert backward.compile(lambda given: [given], graph) == [graph]
    assert backward.calls == [()] and backward.error.startswith("AttributeError")
    assert not is_backward_graph(graph) and not is_backward_graph(len)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        y = self.first(x)
        z = torch.relu(self.second(y)) + y
        return torch.cat([self.third(z), self.first(z), y]).chunk(2)


@pytest.mark.long
@pytest.mark.parametrize("num_roots", [1, 2])
def test_nodes_are_called_in_the_order_of_compiled_autograd(num_roots):
    from torch._dynamo import compiled_autograd

    backward = CompiledBackward(lambda: None)
    roots = [part.square().sum() for part in Branches()(torch.ones(3, 4))][:num_roots]
    ordered = [node.name() for node in order_calls(roots)]
    with compiled_autograd._enable(partial(backward.compile, lambda graph: graph)):
        torch.autograd.backward(roots)
    assert not backward.error and find_paths(backward.calls[0], {tuple(ordered): ordered}) == ["", *ordered]
    assert sum(map(bool, backward.calls[0])) > len(ordered) // 2


@pytest.mark.long
def test_what_pytorch_does_not_have_is_named(monkeypatch):
    from torch._dynamo import compiled_autograd, utils

    monkeypatch.delattr(utils, "GmWrapper")
    backward = CompiledBackward(lambda: None)
    instance = compiled_autograd.AutogradCompilerInstance
    monkeypatch.setattr(instance, "__init__", instance.__init__)  # restored after the test
    backward.begin()
    assert backward.error.startswith("ImportError") and "GmWrapper" in backward.error
    compiled = instance(lambda graph: graph).compiler_fn
    assert compiled(torch.fx.symbolic_trace(nn.ReLU()))(torch.ones(1)) == 1, "its graphs are compiled all the same"


@pytest.mark.parametrize(("captures", "expected"), [(0, ""), (1, "PyTorch does not show what its graph is made from")])
def test_compiled_autograd_is_explained_if_it_made_a_graph(monkeypatch, captures, expected):
    """A script may ask for it and run backward outside of what is compiled: all of its kernels have modules then."""
    from torch._dynamo import config

    monkeypatch.setattr("torch._dynamo.utils.counters", {"compiled_autograd": {"captures": captures}})
    with config.patch(compiled_autograd=True):
        assert CompiledGraphs().explain_backward() == expected
