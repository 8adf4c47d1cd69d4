"""Phases between those that a followed script shows: updates by hand, moving averages, and what rollouts choose."""

import numpy as np
import pytest

from profiler_job.analysis.capture.followed_gaps import FEWEST_PARAMETERS, infer_in_gaps
from profiler_job.jobs.contract.ranges import ALL_PHASES

PHASES = [*ALL_PHASES, ""]
ADD, MUL, GEMM, SAMPLE = range(4)


def infer(*runs: tuple[str, list[int]], copied_at: tuple[int, ...] = ()) -> list[str]:
    """Return the phases of runs of kernels, each given as its phase and names, one nanosecond apart."""
    phase = np.array([PHASES.index(phase) for phase, names in runs for _ in names], np.int8)
    name = np.array([name for _, names in runs for name in names])
    inferred = infer_in_gaps(phase, name, name < GEMM, np.arange(len(name)), np.array(copied_at, np.int64))
    return [PHASES[new if new < len(ALL_PHASES) else old] for new, old in zip(inferred, phase)]


FORWARD, BACKWARD, STEP = ("forward", [GEMM]), ("backward", [GEMM]), ("optimizer", [ADD])
AVERAGE = [MUL, ADD] * FEWEST_PARAMETERS


def test_a_moving_average_of_the_weights_is_of_the_optimizer():
    phases = infer(FORWARD, BACKWARD, STEP, ("", [*AVERAGE, SAMPLE]), FORWARD)
    assert phases[3:] == ["optimizer"] * len(AVERAGE) + ["", "forward"]


def test_it_is_so_before_the_first_step_of_a_capture():
    assert set(infer(("", AVERAGE), FORWARD, BACKWARD, STEP)[: len(AVERAGE)]) == {"optimizer"}


def test_a_script_that_only_runs_forward_updates_nothing():
    assert infer(("", AVERAGE), FORWARD, ("", AVERAGE), FORWARD).count("optimizer") == 0


@pytest.mark.parametrize("before", ["backward", "clip"])
def test_an_update_by_hand_is_the_optimizer_of_a_script_without_one(before):
    runs = (FORWARD, (before, [GEMM]), ("", [ADD] * FEWEST_PARAMETERS), FORWARD)
    assert infer(*runs)[2:-1] == ["optimizer"] * FEWEST_PARAMETERS
    assert set(infer(*runs, STEP)[2:-2]) == {""}, "with an optimizer, it may be anything"


def test_what_is_done_to_the_next_batch_is_not_of_the_optimizer():
    assert set(infer(FORWARD, BACKWARD, STEP, ("", AVERAGE), FORWARD, copied_at=(3,))[3:-1]) == {""}


def test_a_few_kernels_after_the_update_have_no_phase():
    few = AVERAGE[: FEWEST_PARAMETERS - 2]
    assert set(infer(FORWARD, BACKWARD, STEP, ("", few), FORWARD)[3:-1]) == {""}


def test_what_chooses_the_next_token_is_of_the_call_before():
    runs = (("prefill", [GEMM]), ("", [SAMPLE]), ("decode", [GEMM]), ("", [SAMPLE, ADD]), ("decode", [GEMM]))
    assert infer(*runs, ("", [ADD]), FORWARD) == [
        *("prefill", "prefill", "decode", "decode", "decode", "decode"),
        *("", "forward"),
    ]
