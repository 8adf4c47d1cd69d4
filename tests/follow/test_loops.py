"""Loops of a script without updates, from its model calls and backward passes."""

import pytest

from profiler_job.jobs.executor.script_loops import choose_loops
from profiler_job.jobs.follow.loops import CallCounts


def count(text: str) -> list[tuple[str, int, int]]:
    """Count calls (`f`) and backward passes (`b`). Return kind, number and steps before of each loop."""
    counts = CallCounts()
    for event in text:
        counts.note_call() if event == "f" else counts.note_backward()
    return [(loop["kind"], loop["num"], loop["before"]) for loop in counts.list_loops()]


@pytest.mark.parametrize(
    "events, loops",
    [
        ("f" * 15, [("forward", 15, 0)]),
        ("fb" * 30, [("backward", 30, 0)]),
        ("f" * 15 + "fb" * 30, [("forward", 15, 0), ("backward", 30, 0)]),
        ("fb" * 30 + "f" * 15, [("backward", 30, 0), ("forward", 15, 30)]),
        ("b" * 12, [("backward", 12, 0)]),
        ("ffffffffb" * 20, [("backward", 20, 0)]),
        ("ffb" * 10, [("backward", 10, 0)]),
        ("f" * 3 + "fb" * 4, []),
        (
            "f" * 9 + "fb" * 9 + "f" * 12 + "fb" * 8,
            [("forward", 9, 0), ("backward", 9, 0), ("forward", 12, 18), ("backward", 8, 9)],
        ),
        ("", []),
    ],
)
def test_calls_and_backward_passes_make_loops(events, loops):
    assert count(events) == loops


def test_of_each_kind_the_longest_loop_is_measured():
    loops = [
        {"kind": kind, "num": num, "before": 0} for kind, num in (("forward", 9), ("backward", 9), ("forward", 12))
    ]
    assert [(loop["kind"], loop["num"]) for loop in choose_loops(loops)] == [("backward", 9), ("forward", 12)]
