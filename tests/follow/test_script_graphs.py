"""CUDA graphs that a script captures itself: what is noted while it does, and which replays are steps. In place of the
GPU, operations on the CPU are counted as the nodes of the graph."""

import json

import pytest

from tests.follow.test_follow import LOAD
from tests.without_compiler import WITHOUT_COMPILER

GRAPHS = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func._schema.returns or func._schema.returns[0].alias_info is None or "_." in str(func):
            nodes.append(str(func))
        return func(*args, **(kwargs or {}))

nodes, counted = [], Operations()

class CUDAGraph:
    def capture_begin(self):
        counted.__enter__()
    def capture_end(self):
        counted.__exit__(None, None, None)
    def replay(self):
        pass

torch.cuda.CUDAGraph = CUDAGraph
torch.cuda.current_stream = lambda: type("Stream", (), {"cuda_stream": 0})
"""
SEEN = """
script_graphs = import_module("profiler_job_injected.script_graphs")

class Nodes:
    def __init__(self, stream):
        del nodes[:]
    def count(self):
        return len(nodes)
    def list_nodes(self):
        return [script_graphs.Node(0, name, (1, 1, 1)) for name in nodes]

script_graphs.GraphNodes = Nodes

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

model, x = Model(), torch.ones(4, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)

def step():
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)

def capture(work):
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    work()
    graph.capture_end()
    return graph

def run(work):
    num = 0
    try:
        for num in range(1, 40):
            work()
    except SystemExit:
        pass
    print(json.dumps([num, log, follower.facts | follower.captures.list_facts()]))
"""
PLAN = LOAD.replace("skip=1, steps=1, followed=1", "skip={skip}, steps=2, followed=1")
WHOLE = "for _ in range({warmup}):\n    step()\nrun(capture(step).replay)\n"


@pytest.fixture
def run(tmp_path, torch_copies):
    """Run a script that is followed. Return what it prints last."""

    def run(script, *, skip=3, warmup=3):
        source = (
            WITHOUT_COMPILER
            + GRAPHS
            + PLAN.replace("{skip}", str(skip))
            + SEEN
            + script.replace("{warmup}", str(warmup))
        )
        file = tmp_path / "train.py"
        file.write_text(source)
        done = torch_copies.run(file, tmp_path)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def list_nodes(log):
    """Path of the ranges around each node of the first graph, and its name."""
    stack, found = [], []
    for name in log:
        if name == "end":
            stack.pop()
        else:
            stack.append(name)
            if name.startswith("modules:node "):
                found.append(("/".join(stack[stack.index("modules:captured 0") + 1 : -1]), name.split(" ")[-1]))
    return found


def test_a_replay_is_a_step_and_its_nodes_have_the_ranges_of_their_modules(run):
    num, log, facts = run(WHOLE)
    assert num == 3 + 2 + 2 + 1  # skipped, timed, captured, followed
    assert len(facts["captured_ns"]) == 2 and len(facts["followed_ns"]) == 1 and facts["stage"] == "done"
    assert facts["optimizers"] == ["SGD"] and facts["inputs"][0]["shape"] == [4, 8] and facts["forwards"] == 1
    nodes = list_nodes(log)
    assert facts["captured_graphs"] == [len(nodes)] and not facts["captured_graphs_error"]
    forward = [path for path, name in nodes if name == "aten.addmm.default"]
    assert forward == [f"modules:forward/Model/layers.{number}" for number in (0, 1)]
    backward = [path for path, name in nodes if name == "aten.mm.default"]
    assert backward == [f"modules:backward/modules:backward/Model/layers.{number}" for number in (1, 1, 0)]
    assert {path for path, name in nodes if name == "aten.mean.default"} == {""}
    updates = {path for path, _ in nodes if path.startswith("modules:optimizer")}
    assert updates >= {f"modules:optimizer/modules:optimizer/Model/layers.{number}" for number in (0, 1)}
    assert {path for path, name in nodes if name == "aten.zero_.default"} == {"modules:zero_grad"}


@pytest.mark.long
@pytest.mark.parametrize("warmup", [0, 4])
def test_steps_before_the_graph_was_captured_do_not_count(run, warmup):
    num, _, facts = run(WHOLE, warmup=warmup)
    assert num == 8 and len(facts["captured_ns"]) == 2 and len(facts["steps"]) == 2


@pytest.mark.long
def test_a_graph_that_is_captured_in_the_captured_steps_is_refused(run):
    script = (
        "try:\n    " + WHOLE.replace("\n", "\n    ") + "\nexcept SystemExit:\n    print(json.dumps(follower.facts))"
    )
    assert "--skip 7" in run(script, warmup=6)["refused"]


@pytest.mark.long
def test_of_two_graphs_the_last_ends_a_step(run):
    script = """
def forward():
    global loss
    loss = model(x).square().mean()
    loss.backward()

step()
first, second = capture(forward), capture(optimizer.step)

def work():
    first.replay()
    second.replay()
    first.replay()

run(work)
"""
    num, log, facts = run(script)
    assert num == 8 and len(facts["captured_graphs"]) == 2
    assert [name for name in log if name.startswith("modules:captured")] == ["modules:captured 0", "modules:captured 1"]


@pytest.mark.long
def test_an_optimizer_after_each_replay_ends_the_steps(run):
    script = """
def forward():
    model(x).square().mean().backward()

graph = capture(forward)

def work():
    graph.replay()
    optimizer.step()

run(work)
"""
    num, _, facts = run(script)
    assert num == 8 and facts["optimizers"] == ["SGD"]


@pytest.mark.long
def test_a_graph_of_inference_is_a_step(run):
    script = "del optimizer\n" + "for _ in range(2):\n    model(x)\nrun(capture(lambda: model(x)).replay)\n"
    num, log, _ = run("follower.has_optimizer = False\n" + script)
    assert num == 8 and {path for path, _ in list_nodes(log)} == {
        "modules:forward/Model/layers.0",
        "modules:forward/Model/layers.1",
    }


@pytest.mark.long
def test_without_the_driver_replays_are_steps_all_the_same(run):
    missing = "def fail(stream):\n    raise script_graphs.DriverError('gone')\nscript_graphs.GraphNodes = fail\n"
    num, log, facts = run(missing + WHOLE)
    assert num == 8 and facts["captured_graphs"] == [0] and facts["captured_graphs_error"] == "gone"
    assert not list_nodes(log)
