"""Ranges around the calls of what torch.compile makes of graphs, without a compiler. Those of Inductor's graphs are in
`test_compiled_graphs`."""

from types import SimpleNamespace

import pytest

from profiler_job.jobs.contract import ranges
from profiler_job.jobs.follow import graph_calls
from profiler_job.jobs.follow.follow import Follower
from profiler_job.jobs.follow.module_ranges import ModuleRanges
from profiler_job.jobs.follow.plan import Plan, Stage


class Made:
    """What stands for Inductor's class."""

    def __call__(self, inputs):
        inputs.append("called")
        if inputs[0] == "fails":
            raise ValueError
        return inputs


@pytest.fixture
def follower(tmp_path, monkeypatch):
    log = []
    made = Follower(Plan(out=str(tmp_path)), ModuleRanges(log.append, lambda: log.append("end")))
    vars(made)["log"] = log
    monkeypatch.setattr(Made, "__call__", Made.__call__)
    made.graphs.calls.kind, made.graphs.calls.plain = Made, Made.__call__
    return made


def test_calls_have_ranges_in_followed_steps_only(follower):
    """At other times PyTorch's own function is there."""
    plain, graph, other = Made.__call__, Made(), Made()
    follower.graphs.calls.name(graph, 3, False)
    for stage in Stage:
        follower.begin(stage)
        assert (Made.__call__ is plain) == (stage is not Stage.FOLLOWED)
        assert graph(follower.log) is follower.log and other([0]) == [0, "called"], "not one that is known"
        inside = ["modules:call 3", "called", "end"] if stage is Stage.FOLLOWED else ["called"]
        assert follower.log == inside
        follower.log.clear()


def test_a_call_says_whether_its_graph_ends_at_a_break_and_is_closed_if_it_fails(follower):
    graph = Made()
    follower.graphs.calls.name(graph, 0, True)
    follower.begin(Stage.FOLLOWED)
    with pytest.raises(ValueError):
        graph(["fails"])
    assert follower.log == ["modules:call 0 broken", "end"]
    assert (ranges.CALL, ranges.BROKEN) == (graph_calls.CALL, graph_calls.BROKEN), "what a reader knows them by"


def test_without_nsys_calls_have_no_ranges(follower):
    plain = Made.__call__
    follower.events = SimpleNamespace()
    follower.begin(Stage.FOLLOWED)
    assert Made.__call__ is plain


def test_what_pytorch_makes_in_another_way_is_left_alone(follower):
    follower.graphs.calls.name(print, 0, False)
    follower.graphs.calls.kind = None
    follower.graphs.calls.name(graph := Made(), 0, False)
    follower.begin(Stage.FOLLOWED)
    graph(follower.log)
    assert follower.log == ["called"]
