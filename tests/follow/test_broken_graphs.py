"""Why and at which line torch.compile leaves a whole function to Python, as where a loop has a break."""

import contextlib
import logging
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.exc import SkipFrame, Unsupported  # noqa: E402
from torch._dynamo.symbolic_convert import InstructionTranslator  # noqa: E402
from torch._dynamo.utils import graph_break_reasons  # noqa: E402

from profiler_job.jobs.follow.broken_graphs import FROM_HERE, STEP, LeftFrames, list_breaks  # noqa: E402
from profiler_job.jobs.follow.compiled_graphs import CompiledGraphs  # noqa: E402

LOG = logging.getLogger(__name__)


def ignore_errors(what):
    return contextlib.nullcontext(what)


class UnsupportedError(Exception):
    """As versions of PyTorch before 2.12 have it: a break in a loop is a SkipFrame that came from it."""

    msg = "Call to `print`\n  Explanation: Dynamo does not know `print`.\n  Hint: none"
    real_stack = (SimpleNamespace(filename="/x/train.py", lineno=7, name="forward"),)


@pytest.fixture
def left(monkeypatch):
    monkeypatch.setattr(InstructionTranslator, "run", InstructionTranslator.run)
    monkeypatch.setattr(Unsupported, "__init__", Unsupported.__init__)
    frames = LeftFrames(ignore_errors)
    frames.begin()
    torch._dynamo.reset()
    yield frames
    torch._dynamo.reset()


def test_a_break_in_a_loop_has_its_line_and_the_function_that_python_runs(left):
    def forward(x):
        for _ in range(2):
            x = torch.sin(x)
            torch._dynamo.graph_break()
        return torch.cos(x)

    torch.compile(forward, backend="eager")(torch.ones(2))
    [found] = list_breaks([], left, [], {})
    assert found["file"] == __file__ and found["line"] == forward.__code__.co_firstlineno + 3
    assert found["reason"].startswith("Call to `torch._dynamo.graph_break()`: User-inserted graph break.")
    assert found["reason"].endswith("; Python runs all of forward, since it breaks in a loop") and found["graphs"] == []


def test_what_follows_a_break_is_named_by_the_function_of_the_script(left):
    def forward(x):
        torch._dynamo.graph_break()
        for _ in range(2):
            x = torch.sin(x)
            torch._dynamo.graph_break()
        return torch.cos(x)

    torch.compile(forward, backend="eager")(torch.ones(2))
    (found,) = left.breaks
    part = f"forward after line {forward.__code__.co_firstlineno + 1}"
    assert found["function"] == "forward"
    assert found["reason"].endswith(f"; Python runs all of {part}, since it breaks in a loop")


@pytest.mark.parametrize("is_removed", [False, True])
def test_ranges_of_breaks_end_no_script_whose_working_directory_is_gone(monkeypatch, tmp_path, is_removed):
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    graphs, log = CompiledGraphs(), []
    at = {"file": str(folder / "a|b.py"), "line": 3, "function": "f", "reason": "r", "graphs": [0]}
    monkeypatch.setattr(graphs, "list_breaks", lambda: [at])
    if is_removed:
        folder.rmdir()
    graphs.write(log.append, lambda: None, {})
    assert log == ([] if is_removed else ["modules:break 0|a/b.py:3|f|r"])
    assert [error.partition(":")[0] for error in graphs.errors] == ["ranges of graph breaks"] * is_removed


def test_a_branch_on_a_value_in_a_loop_is_listed(left):
    def forward(x):
        for _ in range(2):
            if x.sum() > 0:
                x = x + 1
        return x

    torch.compile(forward, backend="eager")(torch.ones(2))
    [found] = list_breaks([], left, [], {})
    assert found["line"] == forward.__code__.co_firstlineno + 2 and "in a loop" in found["reason"]


def test_a_break_after_which_a_graph_goes_on_leaves_no_function(left):
    def forward(x):
        x = torch.sin(x)
        torch._dynamo.graph_break()
        return torch.cos(x)

    torch.compile(forward, backend="eager")(torch.ones(2))
    assert left.breaks == []


def test_older_versions_leave_a_loop_by_another_error(left):
    def run(translator):
        try:
            raise UnsupportedError
        except UnsupportedError as error:
            raise SkipFrame("Skipping frame because there is a graph break in a for/while loop") from error

    translator = SimpleNamespace(f_code=SimpleNamespace(co_name="forward"))
    with pytest.raises(SkipFrame):
        left.run(run, translator)
    [found] = list_breaks([], left, [UnsupportedError.msg], {})
    reason = "Call to `print`: Dynamo does not know `print`; Python runs all of forward, since it breaks in a loop"
    assert found == {"reason": reason, "file": "/x/train.py", "line": 7, "function": "forward", "graphs": []}


def test_a_function_without_anything_to_compile_is_no_break(left):
    def run(translator):
        raise SkipFrame("no content in function call")

    with pytest.raises(SkipFrame):
        left.run(run, SimpleNamespace(f_code=SimpleNamespace(co_name="forward")))
    assert left.breaks == []


def test_a_return_after_a_break_is_no_other_break(left):
    """PyTorch has nothing to compile from there on, and says so in an error with a stack."""

    def called(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y

    graph_break_reasons.clear()
    torch.compile(called, backend="eager")(torch.ones(2))
    assert left.breaks == [] and len(list_breaks(graph_break_reasons, left, [], {})) == 1


class Scaled(torch.nn.Module):
    """What its input is multiplied by is a property that logs, as the loss function of a model of Transformers."""

    @property
    def scale(self):
        LOG.warning("scaled")
        return 2.0

    def forward(self, x):
        x = torch.sin(torch.sin(x))
        x = dict(
            x=x,
            scale=self.scale,
        )
        return torch.cos(x["x"]) * x["scale"]


def test_a_line_from_which_python_runs_on_has_the_reason_and_place_of_what_is_inside(left):
    graph_break_reasons.clear()
    torch.compile(Scaled(), backend="eager")(torch.ones(2))
    [ended] = [reason for reason in graph_break_reasons if reason.reason == STEP]
    assert (__file__, ended.user_stack[-1].lineno) not in left.errors, "the statement begins before the line"
    [found] = list_breaks(graph_break_reasons, left, [], {0: ended})
    assert found["reason"].startswith("logging.Logger method not supported")
    assert (found["file"], found["function"], found["graphs"]) == (__file__, "scale", [0])


def test_a_line_from_which_python_runs_on_for_a_reason_that_is_not_known(left):
    line = SimpleNamespace(filename="/x/train.py", lineno=7, name="forward")
    reason = SimpleNamespace(reason=STEP, user_stack=[line], graph_break=True)
    [found] = list_breaks([reason], left, [], {})
    assert found == {"reason": FROM_HERE, "file": "/x/train.py", "line": 7, "function": "forward", "graphs": []}
