"""Lines of a script that copy between the CPU and another device, as they are noted in followed steps. The device is
`meta` here: no GPU is needed to see which call has a range."""

import inspect

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
