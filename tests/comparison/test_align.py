"""Runs are paired by their axes, what differs is named, and what is other work is refused."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.comparison.align import align
from profiler_job.analysis.comparison.errors import ComparisonProblem
from profiler_job.analysis.comparison.load_sides import load_measured_side, load_side
from profiler_job.analysis.comparison.sides import make_recording_side
from tests import frozen
from tests.comparison.refusals import refuse
from tests.frozen import ATTENTION

from .recorded_sides import load_recorded_side, repeat_run, select

TRAIN = "size=small,mode=train_step,context_length=512"
"""Training steps in three precisions."""
FP32 = f"{TRAIN},precision=fp32"


def test_the_same_runs_are_paired():
    made = align(load_recorded_side(), load_recorded_side())
    assert len(made.cases) == 15 and not made.differences and not made.settings
    assert all(case.first == case.second for case in made.cases)
    assert not made.only_first and not made.only_second


def test_an_axis_that_differs_is_named():
    made = align(*(select(f"attention={name}", folder=ATTENTION) for name in ("naive", "flash")))
    assert made.differences == {"attention": ("eager", "flash")}
    assert [case.label for case in made.cases] == [
        f"small context {context} {mode}" for context in (128, 512) for mode in ("forward pass", "training step")
    ]


def test_a_value_may_be_given_as_pages_call_it():
    assert set(select("attention=eager", folder=ATTENTION).runs["attention"]) == {"naive"}


def test_versions_that_differ_are_named():
    first = select(TRAIN)
    second = dataclasses.replace(first, runs=first.runs.assign(torch="3.0"))
    assert align(first, second).settings == {"torch": ("2.11.0+cu130", "3.0")}


def test_runs_without_a_partner_are_listed_with_those_that_did_not_finish():
    lost = "small-ctx512-bf16-naive-train_step"
    first = make_recording_side(frozen.lose_run(frozen.load("attention"), lost))
    made = align(first, select("attention=flash", folder=ATTENTION))
    assert len(made.cases) == 4
    assert len(made.only_first) == 8 and not [run for run in made.only_second if "flash" in run]
    assert made.only_first[lost] == "OOM in backward"


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("size=small", "size=2.7B", ComparisonProblem.OTHER_WORK),
        ("precision=fp32,run_id=none", "", ComparisonProblem.NO_RUN),
        ("precission=fp32", "", ComparisonProblem.BAD_OPTION),
        ("precision", "", ComparisonProblem.BAD_OPTION),
    ],
)
def test_other_work_and_wrong_choices_are_refused(first, second, code):
    with refuse(code):
        align(select(first), select(*filter(None, [second])))


@pytest.mark.parametrize("load", [load_side, load_measured_side])
def test_a_path_that_does_not_exist_is_refused_before_what_it_is_to_select(load, tmp_path):
    """It was called a capture of one run, which has nothing to select."""
    with pytest.raises(ExportError) as refused:
        load(tmp_path / "precision", ("precision=fp32",))
    assert refused.value.code is ExportProblem.MISSING


@pytest.mark.parametrize(("axis", "other"), [("context_length", 256), ("batch_size", 8), ("mode", "forward")])
def test_fixed_axes_must_be_equal(axis, other):
    first = select(TRAIN)
    second = dataclasses.replace(first, runs=first.runs.assign(**{axis: other}))
    with refuse(ComparisonProblem.OTHER_WORK):
        align(first, second)


@pytest.mark.parametrize("axis", ["context_length", "batch_size"])
def test_per_token_the_tokens_of_a_step_may_differ(axis):
    first = select(FP32)
    second = dataclasses.replace(first, runs=first.runs.assign(**{axis: 64}))
    with refuse(ComparisonProblem.OTHER_WORK) as refused:
        align(first, second)
    assert "--per-token" in str(refused.value)
    made = align(first, second, per_token=True)
    assert made.differences == {axis: (str(first.runs[axis].iloc[0]), "64")}
    assert len(made.cases) == 1 and made.per_token


@pytest.mark.parametrize(("axis", "other"), [("size", "large"), ("mode", "forward")])
def test_per_token_other_work_stays_refused(axis, other):
    first = select(FP32)
    second = dataclasses.replace(first, runs=first.runs.assign(**{axis: other}))
    with refuse(ComparisonProblem.OTHER_WORK) as refused:
        align(first, second, per_token=True)
    assert "--per-token" not in str(refused.value)


def test_per_token_needs_one_context_of_each_and_tokens(capture):
    first = select("context_length=128,mode=train_step,optimizer=own")
    second = select(FP32)
    several = dataclasses.replace(
        first, runs=pd.concat([first.runs.assign(context_length=number) for number in (7, 8)], ignore_index=True)
    )
    with refuse(ComparisonProblem.SEVERAL_RUNS, "128", "7, 8", "--a context"):
        align(first, several, per_token=True)
    with refuse(ComparisonProblem.NO_TOKENS, "B is a capture"):
        align(second, load_side(capture), per_token=True)
    unknown = dataclasses.replace(second, runs=second.runs.assign(context_length=0))
    with refuse(ComparisonProblem.NO_TOKENS, "of A"):
        align(unknown, second, per_token=True)


def test_a_side_without_a_finished_run_is_refused():
    first = select(TRAIN)
    with refuse(ComparisonProblem.NO_RUN, "B "):
        align(first, dataclasses.replace(first, runs=first.runs[:0], unfinished={}))
    failed = dataclasses.replace(first, runs=first.runs[:0], unfinished={"xl": "OOM in backward"})
    with refuse(ComparisonProblem.NO_RUN, "A ", "xl (OOM in backward)"):
        align(failed, first)


def test_one_name_for_two_models_is_refused():
    first = select(TRAIN)
    second = dataclasses.replace(first, runs=first.runs.assign(num_parameters=7))
    with refuse(ComparisonProblem.OTHER_MODEL, "7", "128,625,408"):
        align(first, second)


def test_an_axis_of_several_values_has_to_be_chosen():
    first, second = select(FP32), select(f"{TRAIN},precision=tf32,precision=bf16")
    with refuse(ComparisonProblem.SEVERAL_RUNS, "fp32", "bf16, tf32"):
        align(first, second)


def test_repetitions_are_one_case():
    repeated = repeat_run(select(FP32), 5)
    made = align(repeated, repeated)
    assert [(len(case.first), len(case.second)) for case in made.cases] == [(5, 5)]


def test_a_capture_is_held_against_one_run(capture):
    recorded = load_side(capture)
    with refuse(ComparisonProblem.SEVERAL_RUNS, "A has 15 runs"):
        align(load_recorded_side(), recorded)
    with refuse(ComparisonProblem.BAD_OPTION, "size="):
        load_side(capture, ["size=small"])


def test_a_capture_of_other_phases_is_refused(capture):
    with refuse(ComparisonProblem.OTHER_WORK, "backward, forward, optimizer in A"):
        align(select(FP32), load_side(capture))


def test_a_capture_of_a_whole_program_is_not_held_against_steps(capture):
    whole = load_side(capture)
    whole.kernels = whole.kernels.assign(phase="")
    with refuse(ComparisonProblem.OTHER_WORK, "none in A", "forward in B"):
        align(whole, load_side(capture))
