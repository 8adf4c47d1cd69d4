"""Which functions are compiled again in measured steps, for which guard, and which torch.compile gives up."""

import contextlib

import pytest

torch = pytest.importorskip("torch")
from torch._dynamo import convert_frame  # noqa: E402

from profiler_job.jobs.follow.compiled_graphs import CompiledGraphs  # noqa: E402
from profiler_job.jobs.follow.recompilations import NOT_KNOWN, Recompilations, describe  # noqa: E402

HOOKS = ("get_and_maybe_log_recompilation_reasons", "exceeds_recompile_limit")


def ignore_errors(what):
    return contextlib.nullcontext(what)


class Stage:
    is_measured = False


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def again(monkeypatch, stage):
    for name in HOOKS:
        monkeypatch.setattr(convert_frame, name, getattr(convert_frame, name))
    noted = Recompilations(ignore_errors, lambda: stage.is_measured)
    noted.begin()
    torch._dynamo.reset()
    yield noted
    torch._dynamo.reset()


class Broken(torch.nn.Module):
    def forward(self, x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()


FORWARD = Broken.forward.__code__


def test_what_is_compiled_again_in_a_measured_step_has_the_guard_that_failed(again, stage):
    """Before and after the break; in steps that are not measured, as the first, nothing counts."""
    called = torch.compile(Broken(), backend="eager", dynamic=False)
    for is_measured, size in ((False, 2), (False, 3), (True, 3), (True, 4), (False, 5)):
        stage.is_measured = is_measured
        called(torch.ones(size))
    guard = "size mismatch at index 0. expected 3, actual 4"
    assert [(each["file"], each["function"], each["gave_up"]) for each in again.known] == [
        (FORWARD.co_filename, "forward", False)
    ] * 2
    assert [each["line"] for each in again.known] == [FORWARD.co_firstlineno, FORWARD.co_firstlineno + 2]
    assert all(each["reason"].startswith("tensor 'x'") and guard in each["reason"] for each in again.known)


def test_a_value_that_changes_is_a_guard_too(again, stage):
    def called(x, scale):
        return x.sin() * scale

    compiled = torch.compile(called, backend="eager", dynamic=False)
    compiled(torch.ones(2), 1)
    stage.is_measured = True
    compiled(torch.ones(2), 2)
    (known,) = again.known
    assert known["function"] == "called" and known["reason"] == "scale == 1"


def test_a_function_that_is_given_up_is_noted_in_any_step(again):
    """Python runs it where no guard holds, of which PyTorch keeps nothing but a warning."""
    called = torch.compile(lambda x: x.sin() + 1, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for size in range(2, 6):
            called(torch.ones(size))
    (known,) = again.known
    assert known["gave_up"] and "expected 3, actual 4" in known["reason"]


def test_a_function_that_fails_in_place_of_being_given_up_is_noted_once(again):
    """A script may catch that, and call it again in each step."""
    called = torch.compile(lambda x: x.sin() + 1, backend="eager", dynamic=False, fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2):
        for size in range(2, 4):
            called(torch.ones(size))
        for size in range(4, 7):
            with pytest.raises(convert_frame.FailOnRecompileLimitHit):
                called(torch.ones(size))
    (known,) = again.known
    assert known["gave_up"] and "expected 3, actual 4" in known["reason"]


@pytest.mark.parametrize(
    ("reason", "guard"),
    [
        ("0/1: n == 7          # return x * n  # ome/ada/train.py:37 in <lambda>", "n == 7"),
        ("0/1: d['a # b'] == 1  #   # <string>:2 in f (HINT: type int)", "d['a # b'] == 1 (HINT: type int)"),
        ("tensor 'x' size mismatch at index 0. expected 2, actual 3",) * 2,
    ],
)
def test_a_reason_is_the_guard_without_code_of_the_script_or_a_part_of_a_path(reason, guard):
    """PyTorch cuts `/home/ada/train.py` to `ome/ada/train.py`, in which nothing finds a folder any more."""
    assert describe(FORWARD, [reason])["reason"] == guard


def test_a_list_without_reasons_says_that_none_is_known():
    assert describe(FORWARD, [])["reason"] == NOT_KNOWN


@pytest.mark.parametrize("missing", HOOKS)
def test_a_hook_that_is_missing_is_named(monkeypatch, missing):
    for name in HOOKS:
        monkeypatch.setattr(convert_frame, name, getattr(convert_frame, name))
    monkeypatch.delattr(convert_frame, missing)
    graphs = CompiledGraphs()
    with graphs.noting_errors("recompilations"):
        graphs.again.begin()
    (error,) = graphs.errors
    assert error.startswith("recompilations: AttributeError") and missing in error
