"""How a run is judged whose own steps were compared, with and without a planted change."""

import random

import pandas as pd

from tests.bench.planted_changes import divide_turns, draw_rounds, judge


def make_rounds(*apart: float) -> list:
    """Make two processes whose rounds have these ratios."""
    return [([100.0] * len(apart), [100.0 * ratio for ratio in apart])] * 2


def test_a_change_is_found_where_steps_agree_and_not_where_they_spread():
    quiet, loud = make_rounds(0.998, 1.001, 1, 1.002, 0.999), make_rounds(0.8, 1.1, 1, 1.2, 0.9)
    assert judge(quiet) == {"false_alarms": 0, "judged": 1, "found": 2, "planted": 2}
    assert judge(loud) == {"false_alarms": 0, "judged": 1, "found": 0, "planted": 2}
    assert judge(make_rounds(1.1, 1.11, 1.1, 1.11, 1.1))["false_alarms"] == 1


def test_every_other_round_is_divided_the_other_way_round():
    rows = [("timer", "step", -1, 9, 0)]
    rows += [("timer", "step", number // 2, number, number + 10) for number in range(4)]
    rows += [("timer", "forward", 0, 0, 5), ("nsys", "step", 0, 0, 5)]
    steps = pd.DataFrame(rows, columns=["collector", "phase", "round", "step", "wall_ns"]).assign(run_id="a", process=1)
    assert divide_turns(steps) == {"a": [([10, 13], [11, 12])]}


def test_drawn_rounds_keep_their_pairs_and_divide_them_by_chance():
    drawn = draw_rounds(([1.0, 2.0], [10.0, 20.0]), 200, random.Random(0))
    assert {*zip(*drawn, strict=True)} == {(1, 10), (10, 1), (2, 20), (20, 2)} and len(drawn[0]) == 200


def test_more_rounds_find_what_few_do_not():
    draw, few = random.Random(0), [([100.0] * 5, [96.0, 105.0, 98.0, 102.0, 95.0])] * 2
    many = [draw_rounds(rounds, 40, draw) for rounds in few]
    assert judge(few)["found"] < judge(many)["found"] == 2 and not judge(many)["false_alarms"]
