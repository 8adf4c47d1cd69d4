"""Which steps the home page offers: cases that recordings hold, in states that are known."""

import dataclasses
import re

import pandas as pd
import pytest

from profiler_job.analysis.pages import home_cases
from profiler_job.analysis.pages.home_cases import BF16, COMPILED, FP32, CaseNumbers, HomeCase
from profiler_job.analysis.render.text import name_model_of
from profiler_job.jobs.contract.words import name_model
from tests.synthetic import recording, take_turns


def change(rec, suffix, **axes):
    runs = rec.runs.astype({"precision": str, "attention": str, "run_id": str})
    return dataclasses.replace(rec, runs=runs.assign(run_id=runs["run_id"] + suffix, **axes))


@pytest.fixture(scope="module")
def rec():
    return recording(("small", "medium"), (128, 512))


@pytest.fixture(scope="module")
def bf16(rec):
    return change(rec, "-bf16", precision="bf16", attention="sdpa", optimizer="fused")


def test_a_case_has_a_run_of_each_state(rec, bf16):
    compiled = change(bf16, "-compiled", compile="default")
    cases = home_cases.list_cases([rec, bf16, compiled])
    assert [case.at for case in cases] == [
        (model, context, "4", "H200") for model in ("small (0.13B)", "medium (0.42B)") for context in ("128", "512")
    ]
    assert {state: number for state, (number, _) in cases[0].runs.items()} == {FP32: 0, BF16: 1, COMPILED: 2}
    assert all(run_id.endswith("train_step") for case in cases for _, run_id in [case.runs[FP32]])


def test_a_state_that_was_timed_alone_is_offered_only_if_no_state_was_captured(rec, bf16):
    """Eight of twelve compiled states that could be chosen had no figure."""
    runs = bf16.runs.assign(profiled_steps=0)
    timed = dataclasses.replace(bf16, runs=runs)
    for case in home_cases.list_cases([rec, timed]):
        assert [*case.runs] == [FP32] and case.timed[BF16][0] == 1
    for case in home_cases.list_cases([timed]):
        assert [*case.runs] == [BF16] and not case.timed


def test_of_several_runs_of_a_state_the_usual_one_is_shown(rec, bf16):
    eager = change(rec, "-eager", precision="bf16")
    [case, *_] = home_cases.list_cases([rec, eager, bf16])
    assert case.runs[BF16][0] == 2


def test_of_several_runs_that_took_turns_one_with_a_page_is_shown(rec, bf16):
    """Small in BF16 took 35 ms on home and 33 ms on its page, which is of another recording."""
    turned = take_turns(dataclasses.replace(bf16, steps=bf16.steps.assign(run_id=bf16.runs["run_id"].iloc[0])), {})
    other, trained = (
        dataclasses.replace(turned, manifest=turned.manifest | {"study": study}) for study in ("prediction", "trained")
    )
    for recordings, number in (([rec, other, trained], 2), ([rec, trained, other], 1)):
        assert home_cases.list_cases(recordings)[0].runs[BF16][0] == number


def test_a_state_says_which_of_its_settings_are_not_the_usual_ones(rec, bf16):
    """BF16 had other attention and another optimizer on one GPU than on the other."""
    other = change(rec, "-cudnn", precision="bf16", attention="cudnn")
    case = home_cases.list_cases([rec, other])[0]
    assert case.others == {
        BF16: (
            "fused attention (cudnn) and reference AdamW",
            "fused attention (PyTorch's choice) and fused AdamW",
            "",
        )
    }
    assert not home_cases.list_cases([rec, bf16])[0].others


def test_a_step_that_is_the_median_of_processes_that_differ_says_so(rec, bf16):
    """Small in BF16 took 65 ms on an H100 at 128 tokens and 50 ms at 512: medians of 47 to 84 ms, next to the fastest
    process on an H200."""
    steps = rec.steps.assign(run_id=rec.steps["run_id"].astype(str) + "-bf16")
    slower = steps.assign(process=steps["process"] + 1, wall_ns=(steps["wall_ns"] * 1.5).astype("int64"))
    apart = dataclasses.replace(bf16, steps=pd.concat([steps, slower], ignore_index=True))
    assert not home_cases.list_cases([rec, apart])[0].others  # no step here is of the fastest process
    of_fp32 = take_turns(dataclasses.replace(rec, steps=rec.steps), {})
    here, usual, _ = home_cases.list_cases([rec, of_fp32, apart])[0].others[BF16]
    assert re.fullmatch(r"the median of \d processes \(.+ms to .+ms\)", here) and usual == "the fastest process"
    turned = take_turns(dataclasses.replace(bf16, steps=steps), {})
    assert BF16 not in home_cases.list_cases([rec, turned])[0].others


def test_several_gpus_and_capped_memory_are_no_case(rec):
    others = [change(rec, "-two", gpus=2), change(rec, "-capped", memory_limit_gib=10.0)]
    assert not home_cases.list_cases(others)


def test_a_recording_in_other_precisions_has_its_own_states(rec):
    [case, *_] = home_cases.list_cases([change(rec, "-tf32", precision="tf32")])
    assert [*case.runs] == ["TF32"]


def test_without_training_steps_the_longest_mode_is_shown(rec):
    forward = dataclasses.replace(rec, runs=rec.runs[rec.runs["mode"].astype(str) == "forward"])
    [case, *_] = home_cases.list_cases([forward])
    assert case.runs[FP32][1].endswith("forward")


def test_a_case_with_all_states_is_shown_first(rec, bf16):
    of_small = dataclasses.replace(bf16, runs=bf16.runs[bf16.runs["size"].astype(str) == "small"])
    assert home_cases.choose_case(home_cases.list_cases([rec, of_small])).at[0].startswith("small")
    assert home_cases.choose_case(home_cases.list_cases([rec])).at[:2] == ("medium (0.42B)", "512")


@pytest.mark.parametrize(("spreads", "chosen"), [((0.5, 0.05), 1), ((0.04, 0.05), 0), ((0.5, 0.3), 1)])
def test_a_case_whose_processes_differ_is_not_shown_first(spreads, chosen):
    """Home opened on a step that took 1.5 times as long in one process as in another."""
    middle, other = (("small", context, "4", "H200") for context in ("256", "128"))
    more = {"numbers": CaseNumbers(0, 128, 4, "H200"), "runs": {FP32: (0, "a")}, "others": {}}
    cases = [HomeCase(at=at, apart=apart, **more) for at, apart in zip((middle, other), spreads)]
    assert home_cases.choose_case([cases[1], cases[0]]) is cases[chosen]


def test_of_two_runs_of_a_state_the_one_that_took_turns_counts(rec, bf16):
    """Home's BF16 step was of one recording and its compiled one of another: 35 ms, and 34 on its card."""
    steps = bf16.steps.assign(run_id=bf16.steps["run_id"].astype(str) + "-bf16")
    turned = take_turns(dataclasses.replace(bf16, steps=steps), {})
    case = home_cases.list_cases([rec, bf16, turned])[0]
    assert case.runs[BF16][0] == 2


def test_a_checkpointed_step_is_not_a_state(rec, bf16):
    again = change(bf16, "-checkpoint_blocks", checkpointing="blocks")
    assert all([*case.runs] == [FP32] for case in home_cases.list_cases([rec, again]))


def test_a_model_is_named_by_its_family_and_parameters_once():
    assert name_model("large", 0.97e9) == "large (0.97B)" and name_model("xl", 1.998e9) == "xl (2.0B)"
    assert name_model("1.3B", 1.255e9) == "1.3B" and name_model("405B", 405.9e9) == "405B (406B)"
    assert name_model("script", float("nan")) == "script"
    assert name_model_of({"size": "script", "num_parameters": 0}) == name_model_of({"size": "script"}) == "script"
    assert name_model_of({"workload": "llama", "size": "8B", "num_parameters": 8.03e9}) == "Llama 3 8B"
