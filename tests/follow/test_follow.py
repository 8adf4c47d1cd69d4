"""Phases that are opened around what PyTorch offers, in a process of its own: to follow a script changes PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

INJECTED = Path(__file__).parents[2] / "jobs" / "follow"
LOAD = f"""
import json, sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
import torch
spec = ModuleSpec("profiler_job_injected", None, is_package=True)
spec.submodule_search_locations = [{str(INJECTED)!r}]
sys.modules[spec.name] = module_from_spec(spec)
follow = import_module("profiler_job_injected.install")
script_facts = import_module("profiler_job_injected.script_facts")
log = []
plan = follow.Plan(out=sys.argv[1], skip=1, steps=1, followed=1)
follower = follow.install(plan, push=log.append, pop=lambda: log.append("end"))
"""
SCALED = """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
scaler = torch.amp.GradScaler("cpu")
for step in range(3):
    if step == 2:
        del log[:]
    loss = model(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if step == 2:
        print(json.dumps(log))
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.fixture
def phases(tmp_path):
    """The ranges that a script prints, which is followed."""

    def run(script: str) -> list[str]:
        command = [sys.executable, "-c", LOAD + script, str(tmp_path / "noted.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


@pytest.mark.long
def test_gradients_are_unscaled_in_the_optimizer(phases):
    names = [name for name in phases(SCALED) if name != "end"]
    assert names == ["forward", "zero_grad", "backward", "optimizer", "clip"]


UNPADDED = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(50257, 16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 50257, bias=False)
        self.head.weight = self.tokens.weight

print(json.dumps(script_facts.find_unpadded(Model())))
"""


@pytest.mark.long
def test_a_matrix_that_is_not_padded_is_noted_by_its_module(phases):
    assert phases(UNPADDED) == {"Model/head": 50257}


NOT_PLAIN = """
class Odd(torch.nn.Module):
    @property
    def weight(self):
        raise RuntimeError("not yet")

class Drawn(torch.nn.Module):
    def forward(self, weight):
        drawn.append(1)
        return weight

drawn = []
parts = [torch.nn.Linear(16, 50257), torch.nn.Linear(16, 16)]
halves = {"head": torch.nn.Sequential(*parts), "aux": torch.nn.Sequential(*parts[::-1])}
model = torch.nn.ModuleDict(halves | {"odd": Odd(), "lazy": torch.nn.LazyLinear(7), "tied": torch.nn.Linear(8, 8)})
torch.nn.utils.parametrize.register_parametrization(model["tied"], "weight", Drawn())
del drawn[:]
model["attention"] = torch.nn.MultiheadAttention(12, 2)
print(json.dumps([script_facts.find_unpadded(model), drawn]))
"""


@pytest.mark.long
def test_to_look_for_matrices_runs_nothing_and_confuses_no_names(phases):
    """Weights that are computed raised, or drew random numbers; of modules of one last name the last one counted."""
    noted, drawn = phases(NOT_PLAIN)
    assert drawn == [] and noted["ModuleDict.head/0"] == 50257
    assert "ModuleDict.head/1" not in noted and noted["ModuleDict.attention"] == 36
