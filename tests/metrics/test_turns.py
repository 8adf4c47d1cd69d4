"""Ratios of runs that took turns: within rounds, whatever their processes differ by; and the fastest process."""

import math

import pandas as pd
import pytest

from profiler_job.analysis.metrics import step_clocks, timing
from profiler_job.analysis.metrics.turns import (
    compare_turns,
    find_turned_runs,
    list_rounds,
    measure_spreads,
    select_fastest_processes,
)
from profiler_job.jobs.contract.paired_ratio import SPREAD_OF_RATIOS

FEW, ENOUGH = 5, 8


def make_steps(num_rounds: int, **walls: tuple[int, ...]) -> pd.DataFrame:
    """Steps of runs: wall_ns in each process, the first alone. In a shared process each round is slower than the one
    before, and a turn has three steps, one of them long."""
    rows = []
    for run_id, (alone, *shared) in walls.items():
        rows += [(run_id, 0, step, -1, alone) for step in range(2)]
        for process, wall in enumerate(shared, 1):
            for turn in range(num_rounds):
                for step in range(3):
                    ns = wall * (1 + turn) * (5 if step == 1 else 1)
                    rows.append((run_id, process, 3 * turn + step, turn, ns))
    steps = pd.DataFrame(rows, columns=["run_id", "process", "step", "round", "wall_ns"])
    return steps.assign(rank=0, collector="timer", phase="step", issue_ns=steps["wall_ns"] // 2)


def make_processes(*run_ids: str, groups: tuple[str, ...] = ("", "one", "two")) -> pd.DataFrame:
    rows = [(run_id, process, group) for run_id in run_ids for process, group in enumerate(groups)]
    return pd.DataFrame(rows, columns=["run_id", "process", "group"])


def test_a_round_has_the_median_of_a_turn():
    steps = make_steps(2, a=(100, 10, 20))
    rounds = list_rounds(steps, make_processes("a"))
    assert rounds.to_dict("list") == {
        "run_id": ["a"] * 4,
        "group": ["one", "one", "two", "two"],
        "round": [0, 1, 0, 1],
        "wall_ns": [10, 20, 20, 40],
    }
    assert list_rounds(steps.assign(round=-1), make_processes("a")).empty


def compare(steps: pd.DataFrame, processes: pd.DataFrame):
    rounds = list_rounds(steps, processes)
    return compare_turns(rounds, rounds, ["a"], ["b"])


def test_the_ratio_is_taken_within_rounds_of_shared_processes():
    """Alone b took as long as a."""
    turns = compare(make_steps(ENOUGH, a=(100, 200, 210), b=(100, 100, 105)), make_processes("a", "b"))
    assert turns.num_pairs == 2 * ENOUGH
    few = math.exp(1.96 * SPREAD_OF_RATIOS / math.sqrt(2))  # two processes do not show how far processes differ
    assert (turns.times_as_fast, turns.low, turns.high) == pytest.approx((2, 2 / few, 2 * few), rel=1e-4)


def test_a_slow_process_has_no_part_in_the_ratio():
    """TF32 was 1.58 times as fast as FP32 in one process, and 1.07 times in the next, on a slower host."""
    turns = compare(make_steps(6, a=(66, 66, 70), b=(42, 42, 66)), make_processes("a", "b"))
    few = math.exp(1.96 * SPREAD_OF_RATIOS)
    assert (turns.times_as_fast, turns.num_pairs) == (pytest.approx(66 / 42), 6)
    assert (turns.low, turns.high) == pytest.approx((66 / 42 / few, 66 / 42 * few), rel=1e-4)


def test_few_rounds_without_a_slow_process_keep_the_interval_of_all():
    turns = compare(make_steps(5, a=(66, 66, 70), b=(42, 42, 66)), make_processes("a", "b"))
    assert (turns.times_as_fast, turns.num_pairs) == (pytest.approx(66 / 42), 10)
    assert turns.low < 70 / 66 and turns.high > 66 / 42


def test_runs_of_other_processes_have_no_ratio():
    other = pd.concat([make_processes("a"), make_processes("b", groups=("", "three", "four"))])
    assert compare(make_steps(ENOUGH, a=(100, 200, 200), b=(100, 100, 100)), other) is None


def test_too_few_rounds_have_no_ratio():
    assert compare(make_steps(FEW, a=(100, 200), b=(100, 100)), make_processes("a", "b")) is None
    assert compare(make_steps(6, a=(100, 200), b=(100, 100)), make_processes("a", "b")) is not None


def test_the_step_of_a_run_that_took_turns_is_that_of_its_fastest_process():
    steps = make_steps(1, a=(300, 100, 200), b=(50, 100, 200))
    times = timing.host_times(steps, "timer", "timer").set_index("run_id")["timer_ns"]
    assert times.to_dict() == {"a": 100, "b": 50}
    assert step_clocks.clocks(steps)["a"]["step"] == (100, 50)
    shown = timing.measure_processes(steps).set_index("run_id").loc["a"]
    assert shown.tolist() == [3, 100, 300], "all of them are shown"


def test_steps_of_other_runs_stay_as_they_are():
    steps = make_steps(1, a=(300, 100, 200)).assign(round=-1)
    assert select_fastest_processes(steps) is steps
    assert timing.host_times(steps, "timer", "timer")["timer_n"].tolist() == [8]
    mixed = pd.concat([steps, make_steps(1, b=(50, 100)), steps.assign(collector="nsys")])
    sizes = select_fastest_processes(mixed).groupby(["run_id", "collector"]).size()
    assert sizes.to_dict() == {("a", "nsys"): 8, ("a", "timer"): 8, ("b", "timer"): 2}
    assert find_turned_runs(mixed) == {"b"} and not find_turned_runs(steps)


def test_ratios_of_runs_that_take_turns_repeat_if_processes_do_not():
    """b is twice as fast in each process. One process is ten times as slow as the other, so that a ratio of two
    processes is 0.2 or 20."""
    steps = make_steps(ENOUGH, a=(100, 200, 2000), b=(100, 100, 1000), c=(100, 50, 500))
    (first, second) = measure_spreads(list_rounds(steps, make_processes("a", "b", "c"))).to_dict("records")
    assert (first["run_id"], first["other"], second["other"]) == ("a", "b", "c")
    assert first["by_turns"] == pytest.approx(0, abs=1e-9) and first["apart"] == pytest.approx(99)
    alone = make_steps(ENOUGH, a=(100, 200), b=(100, 100))
    assert measure_spreads(list_rounds(alone, make_processes("a", "b"))).empty, "one process shows no spread"
    assert measure_spreads(list_rounds(alone.assign(round=-1), make_processes("a", "b"))).empty
