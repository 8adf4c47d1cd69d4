"""Changes that a script is given from outside: what it computes is what it would compute with the change written into
it, and what it has already is not counted as a change."""

import json
import math
import subprocess
import sys
from contextlib import nullcontext
from functools import cache

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from profiler_job.analysis.changes.patch import make_patch
from profiler_job.analysis.changes.script_code import Program, SourceFile
from profiler_job.jobs.contract.changes import TRIABLE
from profiler_job.jobs.follow.applied_change import HAS_IT
from profiler_job.jobs.follow.apply_changes import Changes, load_change
from profiler_job.jobs.follow.changes import compile as compiling
from profiler_job.jobs.follow.losses import Losses
from profiler_job.jobs.follow.script_facts import find_device_type, read_machine
from tests.follow.test_follow import INJECTED

TORCH_CALL = nn.Module.__call__
CHANGED = [
    (torch.autograd, "backward"),
    (torch.autocast, "__enter__"),
    (nn.Module, "__call__"),
    (torch, "set_float32_matmul_precision"),
    (torch.optim.Adam, "__init__"),
    (torch.optim.AdamW, "__init__"),
    (torch.optim.SGD, "__init__"),
]


@pytest.fixture
def given(monkeypatch):
    """Apply changes in this process, and restore PyTorch afterwards."""
    for holder, name in CHANGED:
        monkeypatch.setattr(holder, name, getattr(holder, name))
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(optimizers, hooks, getattr(optimizers, hooks).copy())
    monkeypatch.setattr(compiling, "BACKEND", "eager")

    def give(*names: str) -> Changes:
        given = Changes(names)
        given.apply()
        return given

    yield give
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()
    torch._C._set_float32_matmul_precision("highest")


class Model(nn.Module):
    """Uses a weight twice, and computes a part again in backward."""

    def __init__(self):
        super().__init__()
        self.up, self.twice, self.down = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.tanh(self.twice(torch.tanh(self.up(x))))
        return self.down(checkpoint(self.twice, x, use_reentrant=False))


def build_autocast():
    return torch.autocast("cpu", torch.bfloat16)


def train(around=nullcontext, seen=lambda: None) -> list[str]:
    """Return losses and the sum of the weights, to the bit, of steps with accumulated gradients and validation
    between."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for parameter in model.parameters():
        parameter.register_hook(lambda _: seen())
    said = []
    for step in range(4):
        for _ in range(2):
            x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
            with around():
                loss = nn.functional.cross_entropy(model(x), y) / 2
            loss.backward()
            said.append(loss.item().hex())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            with torch.no_grad(), around():
                said.append(model(x).float().sum().item().hex())
    return [*said, sum(parameter.double().sum() for parameter in model.parameters()).item().hex()]


def fit(around=nullcontext) -> list[str]:
    """The same of an optimizer whose closure computes the loss."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))

    def closure():
        optimizer.zero_grad()
        with around():
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item().hex() for _ in range(3)]


@pytest.mark.parametrize("compute", [train, fit])
def test_autocast_from_outside_computes_what_autocast_by_hand_does(given, compute):
    plain, expected = compute(), compute(build_autocast)
    bf16 = given("bf16")
    assert compute() == expected != plain
    assert bf16.facts() == {"applied": ["bf16"], "not_applied": {}}


WRITTEN_SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for step in range(6):
    x = torch.randn(8, 16)
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""


def test_the_patch_computes_what_was_measured_on_the_device_that_it_was_measured_on(given):
    """It named `cuda`, so that a script tuned on a CPU stayed in FP32, with a warning."""

    def run(text: str) -> list[float]:
        known: dict = {}
        exec(compile(text, "train.py", "exec"), known)
        return known["losses"]

    program = Program((SourceFile("train.py", WRITTEN_SCRIPT),), device_type=find_device_type())
    patch = make_patch(program, ["bf16"])
    plain, patched = run(WRITTEN_SCRIPT), run(patch.files["train.py"].text)
    given("bf16")
    assert run(WRITTEN_SCRIPT) == patched != plain


def test_autocast_is_off_in_backward_and_in_steps_of_optimizers(given):
    given("bf16")
    inside = []
    train(seen=lambda: inside.append(torch.is_autocast_enabled("cpu")))
    assert inside and not any(inside)
    assert torch.is_autocast_enabled("cpu")

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            inside.append(torch.is_autocast_enabled("cpu"))

    Watched(nn.Linear(2, 2).parameters()).step()
    assert not inside[-1] and torch.is_autocast_enabled("cpu")


def test_autocast_of_the_script_in_bf16_is_no_change(given):
    bf16 = given("bf16")
    train(build_autocast)
    assert bf16.facts()["not_applied"] == {"bf16": HAS_IT}


@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.autocast("cpu", torch.bfloat16, enabled=False),
        lambda: torch.autocast("cpu", torch.float16),
        lambda: torch.autocast("cpu", torch.float32),
        cache(lambda: torch.autocast("cpu", torch.float16)),
    ],
    ids=["off", "another type", "fp32", "one object for all steps"],
)
@pytest.mark.parametrize("compute", [train, fit])
def test_autocast_of_the_script_in_another_type_is_on_in_bf16(given, compute, around):
    getattr(around, "cache_clear", nullcontext)()
    expected = compute(build_autocast)
    bf16 = given("bf16")
    assert compute(around) == expected
    assert bf16.facts() == {"applied": ["bf16"], "not_applied": {}}


def test_a_part_of_a_model_may_turn_autocast_off(given):
    """Libraries do this for operations that need FP32."""

    class Partly(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                x = super().forward(x)
            return x

    bf16, types = given("bf16"), []
    model = nn.Sequential(Partly(4, 4), nn.Linear(4, 4))
    for _ in range(3):
        out = model(torch.ones(2, 4))
        types.append(out.dtype)
        out.float().sum().backward()
    assert types == [torch.bfloat16] * 3
    assert bf16.facts() == {"applied": ["bf16"], "not_applied": {}}


def test_a_model_in_bf16_has_nothing_to_cast(given):
    bf16 = given("bf16")
    nn.Linear(2, 2).bfloat16()(torch.ones(2, 2, dtype=torch.bfloat16))
    assert bf16.facts()["not_applied"] == {"bf16": "the model has no parameters in FP32"}


@pytest.mark.parametrize(
    "script, reason",
    [([], ""), (["high"], HAS_IT), (["highest"], "the script undid it")],
    ids=["untouched", "has it", "undone"],
)
def test_tf32_is_a_change_unless_the_script_sets_it_otherwise(given, script, reason):
    tf32 = given("tf32")
    assert torch.get_float32_matmul_precision() == "high"
    for precision in script:
        torch.set_float32_matmul_precision(precision)
    assert tf32.facts()["not_applied"] == ({"tf32": reason} if reason else {})


@pytest.fixture
def matmul():
    """PyTorch's settings of matmuls, restored afterwards."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    yield settings
    settings.fp32_precision = before


@pytest.mark.parametrize("fp32_precision, told", [("tf32", "high"), ("ieee", "highest")])
def test_tf32_is_known_where_a_script_sets_it_in_backends(matmul, fp32_precision, told):
    matmul.fp32_precision = fp32_precision
    assert read_machine()["float32_matmul_precision"] == told


class OwnAdam(torch.optim.Adam):
    pass


NOT_FUSED = "no optimizer of torch that has a fused form was made"


@pytest.mark.parametrize(
    "kind, options, reason",
    [
        (torch.optim.AdamW, {}, ""),
        (torch.optim.Adam, {"foreach": None}, ""),
        (torch.optim.Adam, {"foreach": True}, ""),
        (torch.optim.AdamW, {"foreach": False}, ""),
        (torch.optim.SGD, {"fused": None, "momentum": 0.9}, ""),
        (torch.optim.AdamW, {"fused": True}, HAS_IT),
        (torch.optim.AdamW, {"fused": False}, "the script asks for a form that is not fused"),
        (torch.optim.Adam, {"differentiable": True}, "a differentiable optimizer has no fused form"),
        (OwnAdam, {}, NOT_FUSED),
        (torch.optim.RMSprop, {}, NOT_FUSED),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_optimizers_of_torch_are_fused_unless_the_script_says_otherwise(given, kind, options, reason):
    fused = given("fused_adamw")
    model = nn.Linear(4, 4)
    made = kind(model.parameters(), lr=0.1, **options)
    assert bool(made.defaults.get("fused")) == (reason in ("", HAS_IT))
    assert fused.facts()["not_applied"] == ({"fused_adamw": reason} if reason else {})
    if not reason:
        assert made.defaults["foreach"] is None
        model(torch.ones(2, 4)).sum().backward()
        made.step()


def test_calls_of_modules_cost_nothing_more_after_the_first_backward_pass(given):
    given("bf16")
    follows = nn.Module.__call__
    assert follows is not TORCH_CALL
    model = nn.Sequential(nn.Linear(2, 2))
    during = []
    model[0].register_forward_hook(lambda *_: during.append(nn.Module.__call__))
    loss = model(torch.ones(2, 2)).sum()
    assert nn.Module.__call__ is follows
    loss.backward()
    assert nn.Module.__call__ is TORCH_CALL and during == [TORCH_CALL]


def test_a_call_that_somebody_else_has_replaced_is_left_to_them(given):
    bf16 = given("bf16")
    ours = nn.Module.__call__

    def call(module, *args):
        return ours(module, *args)

    nn.Module.__call__ = call
    nn.Linear(2, 2)(torch.ones(2, 2)).sum().backward()
    assert nn.Module.__call__ is call
    nn.Module.__call__ = ours
    bf16.settle()
    assert nn.Module.__call__ is TORCH_CALL


COMPILED = f"""
import json, sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
import torch
from torch import nn
from torch._dynamo.utils import counters
spec = ModuleSpec("profiler_job_injected", None, is_package=True)
spec.submodule_search_locations = [{str(INJECTED)!r}]
sys.modules[spec.name] = module_from_spec(spec)
follow = import_module("profiler_job_injected.install")
import_module("profiler_job_injected.changes.compile").BACKEND = "eager"
plan = follow.Plan(out=sys.argv[1], skip=2, steps=2, followed=2, goes_on=True, changes=["bf16", "compile"])
follower = follow.install(plan, push=lambda name: None, pop=lambda: None)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return torch.relu(self.linear(x))

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

models = [Own(), nn.Sequential(Block(), nn.GELU(), Block())]
optimizer = torch.optim.SGD([parameter for model in models for parameter in model.parameters()])
compiled = []
for step in range(9):
    optimizer.zero_grad()
    sum(model(torch.ones(2, 4)).float().square().sum() for model in models).backward()
    stage = follower.stage.name
    optimizer.step()
    compiled.append((stage, counters["stats"]["calls_captured"], counters["stats"]["unique_graphs"]))
facts = json.loads(follower.ranks.file.read_text())
print(json.dumps([compiled, facts["applied"], facts["not_applied"], len(facts["losses"]), facts["compiled"]]))
"""
"""A script with two models, one of them of torch's own class, followed through all stages."""


@pytest.mark.long
def test_models_are_compiled_once_whatever_stage_begins(tmp_path):
    command = [sys.executable, "-c", COMPILED, str(tmp_path / "noted")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    compiled, applied, not_applied, num_losses, is_compiled = json.loads(done.stdout)
    assert [stage for stage, *_ in compiled] == [
        *["SKIPPED"] * 2, *["TIMED"] * 2, *["CAPTURED"] * 2, *["FOLLOWED"] * 2, "DONE"
    ]  # fmt: skip
    assert {(calls, graphs) for _, calls, graphs in compiled} == {(9, 2)}
    assert (applied, not_applied, num_losses, is_compiled) == (["bf16", "compile"], {}, 8, True)


def test_a_model_that_the_script_compiles_has_the_change_already(given):
    compiled = given("compile")
    model = nn.Linear(2, 2)
    model.compile(backend="eager")
    model(torch.ones(2, 2)).sum().backward()
    assert compiled.facts()["not_applied"] == {"compile": HAS_IT}


def test_neither_losses_nor_transforms_are_compiled(given):
    compiled = given("compile")

    class Normalize(nn.Module):
        def forward(self, x):
            return x / 2

    nn.MSELoss()(Normalize()(torch.ones(2)), torch.zeros(2))
    assert compiled.facts()["not_applied"] == {"compile": "no model was called"}


def test_every_change_that_can_be_tried_has_a_module_here():
    files = {file.stem for file in (INJECTED / "changes").glob("[!_]*.py")}
    assert files == {*TRIABLE}
    assert all(load_change(name) for name in files)


class Launched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_losses_are_kept_without_a_kernel_and_read_at_the_end():
    losses = Losses()
    kept = [torch.tensor(2.5, requires_grad=True), torch.tensor(math.nan), torch.tensor([-math.inf])]
    several = torch.ones(2)
    with Launched() as launched:
        losses.note(kept[0])
        losses.note((kept[1],))
        losses.note([kept[2]])
        losses.note((kept[0], kept[1]))
        losses.note(several)
    assert set(launched.names) == {"detach.default"}
    values = losses.values()
    assert values == [2.5, "nan", "-inf"] == losses.values()
    assert [float(value) for value in json.loads(json.dumps(values))][::2] == [2.5, -math.inf]


def test_a_loss_that_a_later_one_has_overwritten_is_not_known():
    losses, output = Losses(), torch.zeros(())
    for value in (1.0, 2.0):
        losses.note(output.fill_(value))
    assert losses.values() == [None, 2.0]
    copied, output = Losses(copies=True), torch.zeros(())
    for value in (1.0, 2.0):
        copied.note(output.fill_(value))
    assert copied.values() == [1.0, 2.0]
