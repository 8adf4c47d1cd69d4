"""Memory of a followed step by owner, on the CPU: hooks of saved tensors as they are, and what a dispatch mode sees of
allocations in place of the allocator's events."""

import weakref
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from profiler_job.jobs import memory
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.follow import memory_owners
from profiler_job.jobs.follow.module_ranges import ModuleRanges
from profiler_job.jobs.follow.step_memory import OWN_HISTORY, StepMemory, find_function, read_clock
from profiler_job.jobs.worker.stepper import Stepper
from profiler_job.jobs.workloads import annotation

SIZES = {"d_model": 48, "d_ff": 80, "num_layers": 3, "num_heads": 4, "vocab_size": 50, "context_length": 32}
RUN = Run(size="tiny", **SIZES, batch_size=2, attention="naive", precision="fp32", mode="train_step", optimizer="loop")


class Allocations(TorchDispatchMode):
    """Events of storages, as the allocator of a GPU has them."""

    def __init__(self):
        super().__init__()
        self.events: list[dict] = []
        self.known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return out

    def note(self, storage) -> None:
        key, address, size = storage._cdata, storage.data_ptr(), storage.nbytes()
        if key in self.known:
            return

        def free(_):
            del self.known[key]
            self.events.append({"action": "free_requested", "addr": address, "size": size, "time_us": read_clock()})

        self.known[key] = weakref.ref(storage, free)
        self.events.append({"action": "alloc", "addr": address, "size": size, "time_us": read_clock()})


@pytest.fixture(autouse=True)
def functions(monkeypatch):
    """Autograd functions of other tests are not of these scripts."""
    monkeypatch.setattr("profiler_job.jobs.follow.step_memory.find_function", str)


@pytest.fixture
def ranges():
    ranges = ModuleRanges(lambda name: None, lambda: None)
    ranges.follow_calls()
    yield ranges
    ranges.unfollow_calls()


def follow_step(step_memory: StepMemory, stepper: Stepper) -> None:
    """A step of the reference Transformer, as the follower sees it."""
    ranges = step_memory.ranges
    ranges.forget()
    step_memory.begin(True, "")
    step_memory.note_model(stepper.model)
    with step_memory.phase("forward"), ranges.outermost("forward", ""):
        stepper.forward()
    stepper.loss()
    with ranges.labelling([stepper.loss_value]) as opened, step_memory.phase("backward"), opened:
        stepper.backward()
    with step_memory.phase("optimizer"):
        step_memory.note_update(stepper.optimizer)
        stepper.optimizer.step()


@pytest.fixture(scope="module")
def stepper():
    with annotation.no_ranges():
        stepper = Stepper(RUN.model_dump(), torch.device("cpu"))
        stepper.step()
    return stepper


def list_given(stepper: Stepper) -> list[torch.UntypedStorage]:
    """What is allocated before the step."""
    model, states = stepper.model, stepper.optimizer.state.values()
    state = [tensor for each in states for tensor in each.values() if tensor.dim()]
    return [tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers(), *stepper.batch, *state)]


def test_owners_of_a_followed_step_are_those_of_the_simulated_step(stepper, ranges, monkeypatch):
    """To the byte, but for numbers alone, and for buffers and data, which do not change."""
    monkeypatch.setattr(memory_owners, "SLACK_US", 0)
    step_memory = StepMemory(ranges)
    torch.autograd.set_multithreading_enabled(False)
    try:
        with annotation.no_ranges(), Allocations() as seen:
            stepper.optimizer.zero_grad()
            for storage in (given := list_given(stepper)):
                seen.note(storage)
            seen.events.clear()
            follow_step(step_memory, stepper)
    finally:
        torch.autograd.set_multithreading_enabled(True)
    step_memory.before, step_memory.events = [(each.data_ptr(), each.nbytes()) for each in given], seen.events
    timeline = memory_owners.Timeline(step_memory.before, seen.events)
    step_memory.peak = max(timeline.allocated)
    step_memory.end()
    facts = step_memory.list_facts()["memory_owners"]
    simulated, owner = memory.predict_owners(memory.infer_shape(RUN)), memory.Owner
    assert facts["problems"] == [] and facts["phase"] == simulated.phase == "backward"
    found, expected = facts["owners"], simulated.owners
    for name in ("parameters", "gradients", "optimizer state"):
        assert found[name] == expected[owner(name)]
    targets = 8 * RUN.batch_size * RUN.context_length  # the loss keeps them, and `list_given` does not know them
    assert found["activations"] == expected[owner.ACTIVATIONS] + targets == sum(facts["modules"].values())
    assert found["temporaries"] == expected[owner.TEMPORARIES] + expected[owner.LOGITS]
    assert found["buffers"] + found["from before the step"] + targets == expected[owner.BUFFERS]
    assert sum(found.values()) == facts["peak_bytes"] == max(size for _, size in facts["timeline"])
    scores = [kind for kind in facts["saved"] if kind["shape"] == (2, 4, 32, 32)]
    assert scores == [
        {"operation": "Exp", "module": "TransformerLM/blocks.*/attention", "shape": (2, 4, 32, 32), "dtype": "float32"}
        | {"bytes": 4 * 2 * 4 * 32 * 32, "num": 3}
    ]


def train(step_memory: StepMemory, compute) -> dict:
    """Follow the forward pass and the backward pass of a loss; return what is known of its memory."""
    ranges = step_memory.ranges
    step_memory.begin(True, "")
    with step_memory.phase("forward"), ranges.outermost("forward", ""):
        loss = compute()
    with ranges.labelling([loss]) as opened, step_memory.phase("backward"), opened:
        loss.backward()
    step_memory.end()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    return step_memory.list_facts()["memory_owners"]


class Model(nn.Module):
    def __init__(self, is_checkpointed: bool):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Tanh()) for _ in range(3))
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
        return x


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_only_what_checkpointing_keeps_is_saved_and_gradients_stay_the_same(ranges, is_checkpointed):
    model, x = Model(is_checkpointed), torch.randn(4, 8, requires_grad=True)
    step_memory = StepMemory(ranges)
    step_memory.models.append(model)
    facts = train(step_memory, lambda: model(x).sum())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(*pair) for pair in zip(gradients, (each.grad for each in model.parameters()), strict=True))
    assert facts["problems"] == [] and facts["peak_bytes"] == 0
    num_saved = {False: 1 + 3 + 3, True: 3}[is_checkpointed]  # linear layers save the outputs of Tanh, as Tanh does
    assert sum(kind["num"] for kind in facts["saved"]) == num_saved
    assert facts["saved_bytes"] == 4 * 4 * 8 * num_saved


def test_hooks_step_aside_where_the_script_uses_torch_func(ranges):
    x = torch.ones(3, requires_grad=True)
    facts = train(StepMemory(ranges), lambda: torch.func.grad(lambda y: y.sin().sum())(x.exp()).sum())
    assert facts["problems"] == ["saved tensors: the script uses torch.func"]
    assert [kind["operation"] for kind in facts["saved"]] == ["Exp"]
    assert torch.allclose(x.grad, (-x.exp().sin() * x.exp()).detach())


def test_hooks_of_the_script_itself_stay_the_only_ones(ranges):
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    x = torch.ones(3, requires_grad=True)
    step_memory = StepMemory(ranges)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step_memory.begin(True, "")
        x.exp().sum().backward()
        step_memory.end()
    facts = step_memory.list_facts()["memory_owners"]
    assert len(packed) == 1 and facts["saved"] == []
    assert facts["problems"] == ["saved tensors: the script has hooks of its own"]


def test_hooks_that_a_script_leaves_open_stay(ranges):
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    step_memory = StepMemory(ranges)
    step_memory.begin(True, "")
    hooks.__enter__()
    step_memory.end()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True)[0] is hooks.pack_hook
    hooks.__exit__()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None, "ours, below, are gone"


def test_hooks_are_taken_away_though_another_thread_uses_torch_func(ranges):
    step_memory = StepMemory(ranges)
    step_memory.begin(True, "")
    thread = Thread(target=lambda: torch.func.grad(torch.sin)(torch.ones(())))
    thread.start()
    thread.join()
    step_memory.end()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch.func.grad(torch.sin)(torch.zeros(())) == 1


def test_a_parameter_whose_data_a_script_exchanges_after_forward_has_the_new_ones_in_backward(ranges):
    step_memory = StepMemory(ranges)
    inputs, weight = torch.ones(2, requires_grad=True), nn.Parameter(torch.full((2,), 2.0))
    step_memory.begin(True, "")
    result = (inputs * weight).sum()
    weight.data = torch.zeros(2)
    result.backward()
    step_memory.end()
    assert inputs.grad.tolist() == [0, 0]


def test_a_script_with_autograd_functions_of_its_own_gets_no_hooks(ranges, monkeypatch):
    """One may read attributes of a saved parameter, which it would not find."""

    class Own(torch.autograd.Function):
        pass

    assert issubclass(Own, torch.autograd.Function) and find_function()
    monkeypatch.setattr("profiler_job.jobs.follow.step_memory.find_function", lambda: "Own")
    step_memory = StepMemory(ranges)
    step_memory.begin(True, "")
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    step_memory.end()
    (problem,) = step_memory.list_facts()["memory_owners"]["problems"]
    assert "Own" in problem


def test_compiled_scripts_get_no_hooks_and_that_is_named(ranges):
    step_memory = StepMemory(ranges)
    step_memory.begin(True, "the script compiles")
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    step_memory.end()
    assert step_memory.list_facts()["memory_owners"]["problems"] == ["saved tensors: the script compiles"]


def test_hooks_stay_away_from_parameters_with_a_gradient_of_their_own_kind(ranges):
    """As in Megatron-LM, whose functions read it of the parameters that they have saved."""
    parameter = nn.Parameter(torch.ones(3))
    parameter.main_grad = torch.zeros(3)
    step_memory = StepMemory(ranges)
    step_memory.begin(True, "", [torch.optim.SGD([parameter])])
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    step_memory.end()
    problems = step_memory.list_facts()["memory_owners"]["problems"]
    assert problems == ["saved tensors: the script adds gradients up itself, in main_grad"]


def test_what_torch_does_not_have_is_named_and_breaks_nothing(ranges, monkeypatch):
    monkeypatch.delattr(torch._C._autograd, "_saved_tensors_hooks_disable")
    x = torch.ones(3, requires_grad=True)
    facts = train(StepMemory(ranges), lambda: x.exp().sum())
    assert x.grad is not None and facts["saved"] == []
    assert len(facts["problems"]) == 1 and "_saved_tensors_hooks_disable" in facts["problems"][0]


EVENTS = [
    {"action": "alloc", "addr": 100, "size": 50, "time_us": 11},  # kept for backward
    {"action": "segment_alloc", "addr": 512, "size": 4096, "time_us": 12},
    {"action": "alloc", "addr": 200, "size": 30, "time_us": 12},  # a temporary of forward
    {"action": "free_requested", "addr": 200, "size": 30, "time_us": 13},
    {"action": "free_completed", "addr": 200, "size": 30, "time_us": 13},
    {"action": "alloc", "addr": 200, "size": 70, "time_us": 2022},  # a gradient, at the same address
    {"action": "free_requested", "addr": 100, "size": 50, "time_us": 2030},
]
SPANS = [("forward", 10, 20), ("backward", 2020, 2040)]


def summarize(saved, peak_bytes, events=EVENTS):
    note, kinds = memory_owners.Note, memory_owners
    notes = [note(kinds.PARAMETERS, 1, 3000), note(kinds.GRADIENTS, 200, 2050)]
    return memory_owners.summarize([(1, 1000), (7, 5)], events, SPANS, notes, saved, peak_bytes)


def test_the_allocators_events_have_owners_at_their_peak():
    saved = [memory_owners.Saved(100, 11, 50, "GPT/mlp", 7, "Exp", (5, 10), "uint8")]
    facts, problem = summarize(saved, 1152)
    assert (problem, facts["phase"]) == ("", "backward")
    owners = {"parameters": 1000, "gradients": 70, "activations": 50, "from before the step": 5, "rounding": 27}
    assert facts["owners"] == owners and sum(owners.values()) == facts["peak_bytes"]
    assert facts["modules"] == {"GPT/mlp": 50}
    assert facts["timeline"] == [
        ("", 1005), ("forward", 1055), ("forward", 1085), ("forward", 1055), ("backward", 1125), ("backward", 1075)
    ]  # fmt: skip


@pytest.fixture
def fake_gpu(monkeypatch):
    """A GPU whose allocator has the events of EVENTS; `calls` are those that turn its history on and off."""
    state = SimpleNamespace(calls=[], is_recorded=False)
    block = {"address": 1, "requested_size": 1000, "size": 1024, "state": "active_allocated"}
    free = {"address": 2000, "requested_size": 0, "size": 1024, "state": "inactive"}
    segments = [{"device": 0, "blocks": [block, free]}, {"device": 1, "blocks": [block]}]
    for name, value in {
        "is_initialized": True,
        "current_device": 0,
        "reset_peak_memory_stats": None,
        "max_memory_allocated": 1152,
        "max_memory_reserved": 4096,
        "memory_allocated": 1024,
        "memory_snapshot": segments,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: state.is_recorded, raising=False)
    record = torch.cuda.memory
    monkeypatch.setattr(record, "_record_memory_history", lambda *args, **options: state.calls.append(args))
    monkeypatch.setattr(record, "_snapshot", lambda: {"segments": segments, "device_traces": [list(EVENTS), []]})
    return state


def test_the_allocators_history_is_on_during_the_step_alone(ranges, fake_gpu):
    x = torch.ones(3, requires_grad=True)
    step_memory = StepMemory(ranges)
    facts = train(step_memory, lambda: x.exp().sum())
    assert fake_gpu.calls == [("all",), (None,)] and facts["problems"] == []
    assert facts["peak_bytes"] == 1152 and facts["owners"]["from before the step"] == 1000
    assert facts["owners"]["rounding"] == 1152 - 1120
    phases = step_memory.list_facts()["memory"]
    assert [(row["phase"], row["peak_allocated_bytes"]) for row in phases] == [("forward", 1152), ("backward", 1152)]


def test_calls_of_the_allocator_have_the_innermost_line_of_the_script(ranges, fake_gpu, monkeypatch):
    """Frames are innermost first; autograd's threads have none."""
    library = {"filename": "/env/lib/python3.12/site-packages/torch/functional.py", "line": 9, "name": "einsum"}
    mine, outer = ({"filename": "/x/train.py", "line": line, "name": name} for line, name in ((7, "f"), (30, "main")))
    segments = [
        {"action": "segment_free", "frames": [mine, outer]},
        {"action": "segment_alloc", "frames": [library, outer]},
        {"action": "segment_alloc", "frames": []},
    ]
    traces = {"device_traces": [[{"addr": 9, "size": 2, "time_us": 9} | event for event in segments]]}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: traces)
    x = torch.ones(3, requires_grad=True)
    step_memory = StepMemory(ranges)
    assert step_memory.list_facts()["segments"] is None
    train(step_memory, lambda: x.exp().sum())
    calls = [(made["call"], made["file"], made["line"]) for made in step_memory.list_facts()["segments"]]
    assert calls == [("cudaFree", "/x/train.py", 7), ("cudaMalloc", "/x/train.py", 30), ("cudaMalloc", "", 0)]


def test_a_history_that_the_script_records_stays_on(ranges, fake_gpu):
    fake_gpu.is_recorded = True
    x = torch.ones(3, requires_grad=True)
    facts = train(StepMemory(ranges), lambda: x.exp().sum())
    assert fake_gpu.calls == [] and facts["problems"] == ["the allocator's events: the script records them itself"]
    assert facts["peak_bytes"] == 1152 and "owners" not in facts and facts["saved"]


def test_a_history_that_the_script_begins_in_the_step_stays_on(ranges, fake_gpu):
    """It was turned off at the end of the step."""
    record = torch.cuda.memory._record_memory_history
    step_memory = StepMemory(ranges)
    step_memory.begin(True, "the script goes on")
    torch.cuda.memory._record_memory_history("all", max_entries=7)
    step_memory.end()
    assert fake_gpu.calls == [("all",), ("all",)]
    assert torch.cuda.memory._record_memory_history is record
    facts = step_memory.list_facts()
    assert facts["segments"] is None
    assert f"the allocator's events: {OWN_HISTORY}" in facts["memory_owners"]["problems"]


def test_without_saved_tensors_what_backward_finds_are_activations():
    facts, _ = summarize([], 1152)
    assert facts["owners"]["activations"] == 50 and facts["modules"] == {memory_owners.UNKNOWN_MODULE: 50}


def test_events_that_miss_the_allocators_peak_are_named():
    _, problem = summarize([], 2000)
    assert problem == "the events peak at 1125 of 2000 bytes"
    assert summarize([], 1000)[1] and not summarize([], 1000, events=[])[1]
