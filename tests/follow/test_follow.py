"""Phases that are opened around what PyTorch offers, in a process of its own: to follow a script changes PyTorch."""

import json
from pathlib import Path

import pytest

from tests.without_compiler import WITHOUT_COMPILER

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
def phases(tmp_path, torch_copies):
    """The ranges that a script prints, which is followed."""

    def run(script: str) -> list[str]:
        file = tmp_path / "train.py"
        file.write_text(WITHOUT_COMPILER + LOAD + script)
        done = torch_copies.run(file, tmp_path / "noted.json")
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.long
def test_gradients_are_unscaled_in_the_optimizer(phases):
    names = [name for name in phases(SCALED) if name != "end"]
    assert names == ["forward", "zero_grad", "backward", "optimizer", "clip"]
