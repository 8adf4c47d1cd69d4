"""Lines of a script that copy between the CPU and another device, as they are noted in followed steps. The device is
`meta` here: no GPU is needed to see which call has a range."""

import _thread
import inspect
import pickle
import sys
import threading

import pytest
import torch

from profiler_job.jobs.follow import host_copies
from profiler_job.jobs.follow.host_copies import CopyCalls


@pytest.fixture
def noted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    ranges: list[str] = []
    calls = CopyCalls(ranges.append, lambda: ranges.append("pop"))
    calls.ranges = ranges
    calls.begin()
    yield calls
    calls.end()


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.to("meta"),
        lambda x: x.to("meta:0", torch.float16, non_blocking=True),
        lambda x: x.to(device=torch.device("meta")),
        lambda x: x.to(torch.empty(0, device="meta")),
        lambda x: torch.empty(2, device="meta").copy_(x, non_blocking=True),
    ],
)
def test_a_call_that_copies_is_inside_a_range_with_the_number_of_its_line(noted, copy):
    assert copy(torch.ones(2)).device.type == "meta"
    assert noted.ranges == ["modules:copy 0", "pop"]
    (line,) = noted.list_lines()
    assert line["file"] == __file__ and line["function"] == "<lambda>"
    assert "lambda x:" in inspect.getsource(inspect.getmodule(copy)).splitlines()[line["line"] - 1]


def test_each_line_has_a_number(noted):
    for _ in range(2):
        torch.ones(2).to("meta")
        torch.nn.Linear(2, 2).to("meta")
    numbers = [name for name in noted.ranges if name != "pop"]
    assert [name[-1] for name in numbers] == list("011011"), "weight and bias are of the line that moves the module"
    assert [line["number"] for line in noted.list_lines()] == [0, 1]


@pytest.mark.parametrize(
    "stay",
    [
        lambda x: x.to(torch.float16),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.zeros(1), non_blocking=True),
        lambda x: x.copy_(torch.zeros(2)),
        lambda x: torch.empty(2, device="meta").to("meta"),
    ],
)
def test_other_calls_have_no_range(noted, stay):
    stay(torch.ones(2))
    assert not noted.ranges


def test_a_call_without_an_argument_goes_to_the_gpu():
    assert host_copies.moves(torch.ones(2), "cuda", (), {}) and host_copies.moves(torch.ones(2), "to", (0,), {})
    assert not host_copies.moves(torch.empty(2, device="meta"), "cuda", (), {"non_blocking": True})


def test_everything_is_taken_back_and_what_the_script_replaces_stays(noted):
    noted.end()
    assert not {*host_copies.COPYING} & {*vars(torch.Tensor)}
    noted.begin()
    torch.Tensor.cuda = mine = lambda tensor, *_: tensor
    noted.end()
    assert torch.Tensor.cuda is mine
    del torch.Tensor.cuda
    torch.ones(2).to("meta")
    assert not noted.ranges and not {*host_copies.COPYING} & {*vars(torch.Tensor)}


SEEN: list[str] = []
NAMES = {torch.Tensor.to: "to", torch.Tensor.copy_: "copy_", torch.Tensor.cuda: "cuda"}
"""As a script makes it that implements functions for tensors of its own."""


class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), options=None):
        SEEN.append(NAMES.get(function, f"{function.__name__}?"))
        return super().__torch_function__(function, types, args, options or {})


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), options=None):
        SEEN.append(NAMES.get(function, f"{function.__name__}?"))
        return function(*args, **(options or {}))


class WithoutDevice(torch.Tensor):
    @property
    def device(self):
        raise RuntimeError("not known")


def test_a_script_that_overrides_functions_of_tensors_sees_the_same_calls(noted):
    """It saw reads of `device` that were not its own, and got a function that was not PyTorch's."""
    x = torch.ones(2).as_subclass(Own)
    SEEN.clear()
    assert type(x.to("meta")) is Own
    torch.empty(2, device="meta").copy_(x)
    with Mode():
        torch.empty(2, device="meta").copy_(x)
    assert SEEN == ["to", "copy_", "empty?", "copy_", "copy_"], "the mode first, then the tensor"
    assert [name for name in noted.ranges if name != "pop"] == [f"modules:copy {number}" for number in range(3)]


def test_parameters_without_a_shape_can_be_moved(noted):
    """They allow certain functions, and did not know ours."""
    layer = torch.nn.LazyLinear(2)
    with torch.device("meta"):
        assert layer.to("meta").weight.device.type == "meta"
    assert (
        noted.ranges == ["modules:copy 0", "pop"] * 2 and torch.Tensor.to.__code__.co_filename == host_copies.__file__
    )


def test_a_tensor_whose_device_cannot_be_read_is_copied_all_the_same(noted):
    assert type(torch.ones(2).as_subclass(WithoutDevice).to("meta")) is WithoutDevice
    with pytest.raises(TypeError):
        torch.Tensor.to(3, "meta")
    x = torch.ones(2)
    assert x.to(tensor=x) is x, "a name of an argument of PyTorch's"


def test_a_call_below_which_there_is_no_python_works(noted, monkeypatch):
    """As where autograd's thread calls the hook of a script."""
    failed, ended = [], threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda facts: (failed.append(facts.exc_value), ended.set()))

    class Tracked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), options=None):
            try:
                return super().__torch_function__(function, types, args, options or {})
            finally:
                ended.set()

    _thread.start_new_thread(torch.ones(2).as_subclass(Tracked).to, ("meta",))
    assert ended.wait(60) and not failed and not noted.ranges


def test_a_method_can_be_pickled(noted):
    assert pickle.loads(pickle.dumps(torch.Tensor.to)) is torch.Tensor.to


def test_what_a_script_keeps_of_ours_is_off_at_the_end(noted):
    kept = torch.Tensor.to
    noted.end()
    assert kept(torch.ones(2), "meta").device.type == "meta" and not noted.ranges


def test_what_torch_compile_has_made_is_used_as_it_was(noted):
    noted.end()
    num_graphs = []

    def count(graph, _):
        num_graphs.append(graph)
        return graph.forward

    def move(x):
        return x.to(torch.float64).to("cpu") + x.to(x)

    compiled = torch.compile(move, backend=count, fullgraph=True)
    compiled(torch.ones(3))
    noted.begin()
    compiled(torch.ones(3))
    assert len(num_graphs) == 1
    torch.compile(lambda x: x.to(torch.float64).to("cpu"), backend=count, fullgraph=True)(torch.ones(3))
    assert len(num_graphs) == 2 and not noted.ranges


def test_without_a_gpu_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    CopyCalls(pytest.fail, pytest.fail).begin()
    assert not {*host_copies.COPYING} & {*vars(torch.Tensor)}
