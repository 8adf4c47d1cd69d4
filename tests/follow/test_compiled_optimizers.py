"""Optimizers whose step a script compiles, in a process of its own."""

import pytest

from tests.follow.test_compiled_graphs import TRAIN, run

COMPILED_STEP = """
sizes = []

def count_calls(graph, inputs):
    sizes.append(sum(node.op == "call_function" for node in graph.graph.nodes))
    return graph.forward

class Descent(torch.optim.Optimizer):
    def __init__(self, parameters, rate):
        super().__init__(parameters, {"lr": rate})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)

@torch.compile(backend=count_calls, fullgraph=FULLGRAPH)
def update():
    optimizer.step()

called = model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
"""


@pytest.mark.parametrize(("kind", "fullgraph", "num"), [("Descent", True, 4), ("torch.optim.AdamW", False, 22)])
def test_a_compiled_step_of_an_optimizer_is_compiled_as_without_following(tmp_path, kind, fullgraph, num):
    """What is called before and after it broke its graph: with `fullgraph` the script ended, else it ran eagerly."""
    source = COMPILED_STEP.replace("FULLGRAPH", str(fullgraph)) + TRAIN.replace("torch.optim.SGD", kind)
    source = source.replace("        optimizer.step()\n", "        update()\n").replace(
        "list_facts()]", "list_facts(), sizes]"
    )
    _, losses, facts, sizes = run(tmp_path, source)
    _, without, _, sizes_without = run(tmp_path, source, is_followed=False)
    assert sizes == sizes_without == [num] and losses == without[: len(losses)]
    assert not [each for each in facts["graph_breaks"] if "follow" in each["file"]]
