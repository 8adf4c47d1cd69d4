"""Ranges by module, in forward and in backward, as a log of what was opened on which thread."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from profiler_job.jobs.contract import ranges as ranges_of_contract
from profiler_job.jobs.follow import module_ranges
from profiler_job.jobs.follow.module_ranges import ModuleRanges
from tests.follow.range_log import Log


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def ranges(log):
    ranges = ModuleRanges(log.push, log.pop)
    ranges.follow_calls()
    yield ranges
    ranges.unfollow_calls()
    assert not any(log.open.values()), "a range was not closed"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, checkpointed: bool | None = None):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 3)
        self.checkpointed = checkpointed

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.checkpointed is None else checkpoint(layer, x, use_reentrant=self.checkpointed)
        return self.head(x)


def train(ranges: ModuleRanges, model: nn.Module) -> torch.Tensor:
    x = torch.randn(2, 4, requires_grad=True)
    with ranges.outermost("forward", ""):
        output = model(x)
    loss = output.square().mean()
    with ranges.labelling([loss]) as of_pass, ranges.outermost("backward"), of_pass:
        loss.backward()
    return loss


def test_forward_has_the_names_of_the_modules_with_lists_beside_their_number(log, ranges):
    train(ranges, Model())
    forward = [name.removeprefix("modules:forward/") for name in log.names() if name.startswith("modules:forward/")]
    blocks = [f"Model/layers.{i}{part}" for i in (0, 1) for part in ("", "/up", "/down")]
    assert forward == ["Model", *blocks, "Model/head"]


class Wrapper(nn.Module):
    """Calls its module as torch.compile's wrapper does, if Python runs `Module.__call__` in between."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x):
        return self._orig_mod(x)


def test_a_compiled_model_that_its_wrapper_calls_by_python_has_one_range(log, ranges):
    """Two made its modules `Model/Model/head` in forward, and `Model/head` in backward, on torch 2.11."""
    train(ranges, Wrapper(Model()))
    forward = [name.removeprefix("modules:forward/") for name in log.names() if name.startswith("modules:forward/")]
    assert forward[0] == "Model (compiled)"
    assert not any(name.startswith("Model (compiled)/Model") for name in forward)


def test_a_backward_pass_of_compiled_autograd_has_one_range_and_no_hooks(log, ranges, monkeypatch):
    """Hooks would be a part of the graph, which would be compiled again in each step."""
    monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", SimpleNamespace(compiled_autograd_enabled=True))
    model = Model()
    train(ranges, model)
    assert set(log.backward()) == {module_ranges.COMPILED_AUTOGRAD}
    ((names, paths),) = ranges.passes.items()
    called = [(name.removeprefix("torch::autograd::"), path) for name, path in zip(names, paths)]
    assert called[:2] == [("MeanBackward0", "(loss)"), ("PowBackward0", "(loss)")]
    leaves = [path for name, path in called if name == "AccumulateGrad"]
    assert leaves.count("Model/head") == 2 and leaves.count("Model/layers.1/down") == 2
    assert ("AddBackward0", "Model/layers.0") in called and ("ReluBackward0", "Model/layers.0") in called
    train(ranges, model)
    assert ranges.passes == {names: paths}


def test_passes_with_the_same_calls_and_other_modules_have_no_paths(ranges, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", SimpleNamespace(compiled_autograd_enabled=True))
    models = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    for model in models:
        train(ranges, model)
    (paths,) = ranges.passes.values()
    assert not any(paths)


def test_a_model_of_torchscript_has_its_own_name_and_is_not_looked_into(log, ranges):
    scripted = torch.jit.script(Block())
    train(ranges, nn.Sequential(scripted, nn.Linear(4, 4)))
    forward = [name.removeprefix("modules:forward/") for name in log.names() if name.startswith("modules:forward/")]
    assert forward == ["Sequential", "Sequential/0", "Sequential/1"]
    assert module_ranges.name_class(scripted) == "Block" and module_ranges.name_class(Block()) == "Block"
    assert [module_ranges.takes_hooks(model) for model in (scripted, Block())] == [False, True]


def test_a_list_of_modules_that_is_called_is_above_its_parts(log, ranges):
    train(ranges, nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    forward = [name.removeprefix("modules:forward/") for name in log.names() if name.startswith("modules:forward/")]
    above = "ParametrizedLinear/parametrizations.weight"
    assert forward == ["ParametrizedLinear", above, f"{above}/0"]


def test_each_node_of_backward_is_of_the_module_that_made_it(log, ranges):
    train(ranges, Model())
    modules = [label for label in log.backward() if not label.startswith("(")]
    assert list(dict.fromkeys(modules)) == [
        "Model/head",
        "Model/layers.1",
        "Model/layers.1/down",
        "Model/layers.1/up",
        "Model/layers.0",
        "Model/layers.0/down",
        "Model/layers.0/up",
    ]


def test_nodes_outside_every_module_are_the_loss_and_leaves_accumulate_gradients(log, ranges):
    train(ranges, Model())
    assert log.backward()[0] == module_ranges.LOSS
    assert log.backward().count(module_ranges.LOSS) == 2  # the mean and the square
    assert log.backward().count(module_ranges.ACCUMULATION) == 11  # ten parameters and the input


def test_backward_on_a_thread_of_its_own_has_the_same_modules(log, ranges):
    """Autograd has such a thread for each GPU: ranges are opened on the thread that runs the nodes."""
    train(ranges, model := Model())
    expected = log.backward()
    log.ranges.clear()
    loss = model(torch.randn(2, 4, requires_grad=True)).square().mean()
    with ranges.labelling([loss]):
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    own = [thread for thread, name in log.ranges if module_ranges.BACKWARD in name]
    assert set(own) == {own[0]} != {threading.get_ident()}
    assert log.backward() == expected


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_in_backward_is_labelled_as_such(log, ranges, reentrant):
    labelled = torch.autograd.backward

    def backward(tensors, *args, **options):
        with ranges.labelling(tensors if isinstance(tensors, tuple | list) else [tensors]):
            labelled(tensors, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        if reentrant:  # a backward pass within the backward pass: whoever follows a script wraps torch's own function
            patch.setattr(torch.autograd, "backward", backward)
            x = torch.randn(2, 4, requires_grad=True)
            Model(checkpointed=True)(x).sum().backward()
        else:
            train(ranges, Model(checkpointed=False))
    again = [label for label in log.backward() if label.startswith(module_ranges.RECOMPUTED)]
    blocks = [f"(recomputed)/Model/layers.{i}{part}" for i in (1, 0) for part in ("", "/up", "/down")]
    assert [label for label in again if label in blocks] == blocks
    assert {"Model/layers.0/up", "Model/layers.1/down"} <= set(log.backward())


def test_a_compiled_module_is_one_region_and_says_so(log, ranges):
    model = Model()
    model.layers[0] = torch.compile(model.layers[0], backend="aot_eager")
    train(ranges, model)
    assert any(name.endswith("Model/layers.0 (compiled)") for name in log.names())
    assert not any("layers.0" in name and name.endswith("/up") for name in log.names())
    assert "Model/layers.0 (compiled)" in log.backward()


def test_following_changes_neither_the_loss_nor_the_gradients(ranges):
    def results() -> list[torch.Tensor | None]:
        return [loss, *(parameter.grad for parameter in model.parameters())]

    torch.manual_seed(0)
    model = Model()
    loss = train(ranges, model)
    followed = results()
    ranges.unfollow_calls()
    torch.manual_seed(0)
    model = Model()
    loss = model(torch.randn(2, 4, requires_grad=True)).square().mean()
    loss.backward()
    assert all(torch.equal(one, other) for one, other in zip(followed, results(), strict=True))


def test_a_pass_that_is_compiled_as_a_whole_is_one_range_inside_its_phase(log, ranges, monkeypatch):
    monkeypatch.setattr(module_ranges, "is_compiling_backward", lambda: True)
    with ranges.outermost("forward", ""):
        loss = Model()(torch.randn(2, 4)).square().mean()
    log.ranges.clear()
    with ranges.labelling([loss]) as of_pass, ranges.outermost("backward"), of_pass:
        loss.backward()
    phase = log.names()[0]
    assert log.names() == [phase, f"{phase}/{module_ranges.BACKWARD}{module_ranges.COMPILED_AUTOGRAD}"]


def test_hooks_are_gone_after_backward(log, ranges):
    loss = train(ranges, Model())
    log.ranges.clear()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    model = Model()
    loss = model(torch.randn(2, 4)).sum()
    with ranges.labelling([loss]):
        loss.backward(retain_graph=True)
    log.ranges.clear()
    loss.backward()
    assert log.ranges == []


def test_a_model_that_raises_leaves_no_range_open(log, ranges):
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        nn.Sequential(Broken())(torch.ones(1))
    assert log.names() == ["Sequential", "Sequential/0"]


FSDP_STEPS = """
import os, sys, threading
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from tests.follow.test_module_ranges import Log, Model, ModuleRanges, train

class Launches(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        (*_, name) = log.open.get(threading.get_ident()) or [""]
        print(f"launch {distributed.get_rank()} {operation}|{name}\\n", end="", flush=True)
        return operation(*args, **(kwargs or {}))

distributed.init_process_group("gloo")
torch.autograd.set_multithreading_enabled(False)  # the mode is of this thread
log, model = Log(), Model()
ranges = ModuleRanges(log.push, log.pop)
if sys.argv[1] == "fully_shard":
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
else:
    options = {"device_id": torch.device("cpu"), "use_orig_params": sys.argv[1] == "original"}
    for number, layer in enumerate(model.layers):
        model.layers[number] = FullyShardedDataParallel(layer, **options)
    model = FullyShardedDataParallel(model, **options)
optimizer = torch.optim.SGD(model.parameters(), foreach=False)
ranges.follow_calls()
train(ranges, model)  # FSDP lays out its parameters
optimizer.zero_grad()
ranges.forget()
with Launches():
    train(ranges, model)
assert not any(log.open.values()), "a range was not closed"
log.ranges.clear()
with ranges.label_optimizer((p, p.grad) for p in model.parameters() if p.grad is not None):
    optimizer.step()
print(f"updates {distributed.get_rank()} {sorted(set(log.names()))}\\n", end="", flush=True)
distributed.destroy_process_group()
os._exit(0)  # gloo's threads abort a process that ends by itself, once in twenty times with FullyShardedDataParallel
"""


def run_first_rank(tmp_path, how: str) -> tuple[list[list[str]], str]:
    """Run FSDP_STEPS, and return each operation of backward with its range, and the ranges of the optimizer."""
    (tmp_path / "steps.py").write_text(FSDP_STEPS)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "steps.py", how),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = [line.removeprefix("launch 0 ") for line in done.stdout.splitlines() if line.startswith("launch 0 ")]
    updates = next(line for line in done.stdout.splitlines() if line.startswith("updates 0 "))
    return [line.split("|") for line in printed if "|modules:backward" in line and "profiler." not in line], updates


@pytest.mark.long
def test_what_fsdp_does_in_backward_is_of_the_module_whose_parameters_it_is_for(tmp_path):
    launches, updates = run_first_rank(tmp_path, "fully_shard")
    for part in ("all_gather_copy_in", "allgather", "split_with_sizes_copy", "chunk_cat", "reduce_scatter"):
        of = [name for operation, name in launches if part in operation]
        assert of and all(name.endswith(f"/{module_ranges.FSDP}") for name in of), (part, of)
    assert {name for _, name in launches if name.endswith(module_ranges.FSDP)} == {
        f"modules:backward/FSDPModel/{unit}/(FSDP)" for unit in ("layers.0", "layers.1", "head")
    }
    outside = {operation for operation, name in launches if name == "modules:backward"}
    assert outside == {"aten.ones_like.default", "aten.add.Tensor"}, "the loss's gradient, and where branches join"
    assert "FSDPModel/layers.1/down" in updates and module_ranges.ALL_PARAMETERS not in updates


@pytest.mark.parametrize(
    "how, updated",
    [
        pytest.param("flat", "layers.1", marks=pytest.mark.nightly),
        pytest.param("original", "layers.1/_fsdp_wrapped_module/up", marks=pytest.mark.long),
    ],
)
def test_what_fsdp_with_flat_parameters_does_in_backward_is_of_its_module(tmp_path, how, updated):
    top = "FullyShardedDataParallel/_fsdp_wrapped_module"
    units = {top, *(f"{top}/layers.{number}/_fsdp_wrapped_module" for number in (0, 1))}
    launches, updates = run_first_rank(tmp_path, how)
    of_units = {
        part: {name for operation, name in launches if part in operation} for part in ("allgather", "reduce_scatter")
    }
    # The outermost unit stays gathered from forward on.
    assert of_units["reduce_scatter"] == {f"modules:backward/{unit}/(FSDP)" for unit in units}
    assert of_units["allgather"] == {f"modules:backward/{unit}/(FSDP)" for unit in units - {top}}
    outside = {operation for operation, name in launches if name == "modules:backward"}
    assert {operation for operation in outside if "c10d" in operation} == set()
    assert f"{top}/{updated}'" in updates and module_ranges.ALL_PARAMETERS not in updates


@pytest.mark.parametrize(
    "paths, shared",
    [(["a/b/c", "a/b/d"], "a/b"), (["a/b", "a/bc"], "a"), (["a"], "a"), (["a", "b"], ""), ([], "")],
)
def test_several_modules_are_parts_of_one(paths, shared):
    assert module_ranges.find_common_path(paths) == shared


def test_names_are_those_that_the_analysis_looks_for():
    assert module_ranges.PREFIX == ranges_of_contract.FOLLOWED
    assert {module_ranges.BACKWARD, module_ranges.OPTIMIZER} == {
        f"{ranges_of_contract.FOLLOWED}{phase}/" for phase in ("backward", "optimizer")
    }
    for name in ("ACCUMULATION", "RECOMPUTED", "ALL_PARAMETERS", "FSDP", "COMPILED_AUTOGRAD"):
        assert getattr(module_ranges, name) == getattr(ranges_of_contract, name)
    assert module_ranges.LOSS == ranges_of_contract.LOSS_MODULE


def test_unfollowed_calls_are_those_of_torch():
    before = nn.Module.__call__
    ranges = ModuleRanges(lambda name: None, lambda: None)
    ranges.follow_calls()
    ranges.follow_calls()
    assert nn.Module.__call__ is not before
    ranges.unfollow_calls()
    assert nn.Module.__call__ is before


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=lambda o: str(o))
def test_an_optimizer_that_updates_one_parameter_at_a_time_is_split_by_module(log, ranges, options):
    train(ranges, model := Model())
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    optimizer.step()
    log.ranges.clear()
    groups = [(p, p.grad, *optimizer.state[p].values()) for p in model.parameters()]
    with ranges.label_optimizer(groups):
        optimizer.step()
    modules = {name.removeprefix(module_ranges.OPTIMIZER) for name in log.names()}
    if options.get("foreach") is False:
        assert {"Model/head", "Model/layers.0/up", "Model/layers.1/down"} <= modules
        assert module_ranges.ALL_PARAMETERS not in modules
    else:
        assert module_ranges.ALL_PARAMETERS in modules
