"""How many steps a number needs: what the first steps are worth, from recordings and from made-up steps."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.metrics import first_steps
from profiler_job.analysis.pages.questions import warm_up
from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.site import page_context
from tests import frozen


def timed(*processes) -> pd.DataFrame:
    case = {"size": "small", "context_length": 128, "mode": "train_step"}
    rows = [
        {"run_id": f"r{run}", **case, "step": step, "wall_ns": wall}
        for run, walls in enumerate(processes)
        for step, wall in enumerate(walls)
    ]
    return pd.DataFrame(rows, columns=["run_id", *case, "step", "wall_ns"])


def test_a_slow_first_step_spoils_the_mean_and_not_the_median():
    numbers = first_steps.estimate_numbers(timed([1000] + [100] * 19), 10).set_index(["warm_up", "statistic"])
    assert numbers.loc[(0, "mean"), "number_ns"] == 190
    assert numbers.loc[(0, "median"), "error"] == 0
    assert numbers.loc[(1, "mean"), "error"] == 0


def test_a_median_needs_as_many_steps_as_until_it_stays_right_in_every_process():
    steady = [100.0] * 20
    late = [107.0] * 4 + [100.0] * 16
    assert first_steps.count_steps_needed(timed(steady), 2, 5)["within_1"].iloc[0] == 1
    needed = first_steps.count_steps_needed(timed(steady, late), 0, 5).iloc[0]
    assert needed["within_1"] == 9 and needed["within_5"] == 8 and needed["within_10"] == 1


def test_a_median_that_never_settles_is_said_so():
    needed = first_steps.count_steps_needed(timed([100.0 + 5 * step for step in range(20)]), 0, 10)
    assert np.isnan(needed["within_1"].iloc[0]) and needed["num_known"].iloc[0] == 20


def test_one_disturbed_tail_does_not_decide_what_a_number_is_compared_with():
    steady = [100.0] * 20
    disturbed = [100.0] * 16 + [150.0] * 4
    needed = first_steps.count_steps_needed(timed(steady, disturbed, steady), 5, 10).iloc[0]
    assert needed["main_error"] == 0 and needed["within_1"] == 1


def test_one_process_that_is_slow_throughout_is_named():
    slow, steady = [104.0] * 20, [100.0] * 20
    needed = first_steps.count_steps_needed(timed(steady, slow, steady), 5, 10).iloc[0]
    assert needed["main_error"] == pytest.approx(0.04) and needed["main_process"] == 2
    assert np.isnan(needed["within_2"]) and needed["within_5"] == 1


def test_too_few_steps_are_no_number():
    assert not len(first_steps.estimate_numbers(timed([100.0] * 4), 10))
    assert np.isnan(first_steps.count_steps_needed(timed([100.0] * 4), 5, 10)["within_10"].iloc[0])
    assert not len(first_steps.spreads_of(timed([100.0] * 4)))


def test_processes_that_differ_are_told_from_steps_that_do():
    rng = np.random.default_rng(0)
    alike = first_steps.spreads_of(timed(*(100 + rng.normal(0, 2, 20) for _ in range(5)))).iloc[0]
    apart = first_steps.spreads_of(timed(*(100 + 10 * run + rng.normal(0, 2, 20) for run in range(5)))).iloc[0]
    assert alike["between"] < alike["within"]
    assert apart["between"] > warm_up.CHANCE * apart["expected"] and apart["between"] > apart["within"]


@pytest.mark.parametrize("between, holds", [(0.0424, []), (0.05, ["between"]), (0.03, ["within"])])
def test_spreads_that_read_the_same_are_not_compared(between, holds):
    spreads = pd.DataFrame({"between": [between], "within": [0.0418], "expected": [0.1]})
    joined = pd.DataFrame(columns=["main_ns", "median_min_ns", "median_max_ns", "off"], dtype=float)
    frames = SimpleNamespace(spreads=spreads, joined=joined, sessions=pd.DataFrame(columns=warm_up.CASE))
    found = {claim.key: claim for claim in warm_up._process_claims(frames)}
    assert [key for key in ("between", "within") if found[key].holds] == holds


def test_warmed_up_runs_say_nothing_of_first_steps():
    rec = frozen.load_study("")
    assert (rec.runs["warmup_steps"] > 0).all()
    main = store.Recording(manifest=rec.manifest, **{name: store.empty(name) for name in table_schema.TABLES})
    found = page_context.ask(warm_up.QUESTION, rec, main=main)
    assert not [key for key, claim in found.claims.items() if claim.holds]


def test_processes_too_short_for_a_number_answer_nothing():
    main = frozen.load_study("")
    steps = main.steps[(main.steps["step"] < 4) & (main.steps["process"] == 0)]
    rec = dataclasses.replace(main, runs=main.runs.assign(warmup_steps=0), steps=steps)
    found = page_context.ask(warm_up.QUESTION, rec, main=main)
    assert not found.facts["known"]
    assert not any(found.claims[key].holds for key in ("answered", "unanswered", "too_fine", "main_number"))
