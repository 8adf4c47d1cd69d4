"""What is said of equal variants that took turns."""

import random

import pytest

from tests.bench.equal_variants import judge, judge_recording
from tests.metrics.test_turns import make_processes, make_steps


def make_processes_of_turns(spread: float, num: int) -> list:
    draw = random.Random(0)
    rounds = []
    for _ in range(num):
        own = draw.lognormvariate(0, spread)
        before = [draw.uniform(90, 110) for _ in range(5)]
        rounds.append((before, [time * own * draw.lognormvariate(0, 0.001) for time in before]))
    return rounds


def test_the_spread_of_processes_is_found_and_most_intervals_hold_1():
    row = judge(make_processes_of_turns(0.01, 8))
    assert row["processes"] == 8 and row["ratio"] == pytest.approx(1, abs=0.01)
    assert 0.5 < row["spread_percent"] < 1.6 and row["of_rounds_percent"] < 0.1
    assert [row[f"of_{number}"]["choices"] for number in (1, 2, 3, 8)] == [8, 28, 56, 1]
    assert all(row[f"of_{number}"]["hold_1"] >= 0.7 * row[f"of_{number}"]["choices"] for number in (2, 3, 4))


def test_processes_of_the_same_ratio_have_no_spread_but_that_of_rounds():
    row = judge(make_processes_of_turns(0, 8))
    assert row["spread_percent"] < 3 * row["of_rounds_percent"]


def test_a_recording_is_judged_by_its_repetitions():
    names = ("a", "a-repeat1", "b")
    runs = make_processes(*names)[["run_id"]].drop_duplicates().assign(repeat=[0, 1, 0])
    steps = make_steps(6, **dict.fromkeys(names, (100, 200, 400)))
    (row,) = judge_recording(runs, steps, make_processes(*names))
    assert row["run_id"] == "a" and row["processes"] == 2 and row["ratio"] == 1.0
    assert row["of_2"]["hold_1"] == 1
