"""The result of `tune` as JSON."""

import json

import pytest

from profiler_job.jobs.contract.tuning import (
    TUNE,
    BaseStep,
    LadderStep,
    LossDifference,
    Method,
    NoLossCode,
    Outcome,
    Place,
    Tried,
    TuneRatio,
    Tuning,
    TuningError,
    is_tuned,
    read_tuning,
    write_tuning,
)

RATIO = TuneRatio(times_as_fast=1.5, low=1.4, high=1.6, num_pairs=8)
TUNING = Tuning(
    name="train",
    command=("python", "train.py"),
    script="train.py",
    budget_s=600,
    base=BaseStep(step_ns=3e6, tokens_per_step=512, precision="fp32"),
    ladder=[
        LadderStep(
            change="bf16",
            changes=("bf16",),
            method=Method.TURNS,
            step_ns=2e6,
            ratio_before=RATIO,
            ratio_base=RATIO,
            losses=LossDifference(num=5, first=0.0, largest=0.01, step=3, repeated=0.0),
        )
    ],
    tried=[
        Tried(change="bf16", outcome=Outcome.KEPT, method=Method.TURNS, ratio=RATIO, could_save=0.6),
        Tried(change="tf32", on_top_of=("bf16",), outcome=Outcome.OUT_OF_MEMORY, message="it was full"),
    ],
    places=[Place(what="optimizer", file="train.py", line=3, code="opt = AdamW(model.parameters())")],
)


def test_a_result_is_read_as_it_was_written(tmp_path):
    folder = tmp_path / "train-tune"
    assert not is_tuned(folder)
    write_tuning(folder, TUNING)
    assert read_tuning(folder) == read_tuning(folder / TUNE) == TUNING and is_tuned(folder)
    write_tuning(folder, TUNING.model_copy(update={"used_s": 3.0}))
    assert read_tuning(folder).used_s == 3.0
    assert [file.name for file in folder.iterdir()] == [TUNE]


def test_the_winner_is_the_last_step_of_the_ladder():
    assert TUNING.winner.change == "bf16"
    assert Tuning(name="a", command=("a",), budget_s=1).winner is None


def test_a_newer_result_may_have_more_keys(tmp_path):
    content = json.loads(TUNING.model_dump_json()) | {"new": 1}
    (tmp_path / TUNE).write_text(json.dumps(content))
    assert read_tuning(tmp_path) == TUNING


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}'])
def test_what_is_no_result_is_refused(tmp_path, text):
    (tmp_path / TUNE).write_text(text)
    with pytest.raises(TuningError):
        read_tuning(tmp_path)


def test_what_differs_from_what_was_noted_is_listed():
    """What is not known on either side counts as equal."""
    noted = TUNING.model_copy(update={"gpu_name": "A", "skip": 0, "step": "auto"})
    assert noted.list_other(gpu_name="B", skip=0, step="auto") == ["gpu_name was A and is B"]
    assert noted.list_other(gpu_name="A", skip=10, step="optimizer")[0] == "skip was 0 and is 10"
    assert not noted.list_other(gpu_name="", torch="2") and not TUNING.list_other(gpu_name="B", skip=3, step="auto")


def test_what_begins_anew_keeps_what_was_asked_for():
    known = TUNING.model_copy(update={"asked": ("bf16",), "seed": 3, "used_s": 9.0})
    known.begin_anew()
    assert (known.asked, known.seed, known.script) == (("bf16",), 3, "train.py")
    assert known.base is known.pairs is None and not known.ladder + known.tried + known.places and not known.used_s


def test_losses_are_not_measured_until_they_are():
    step = LadderStep(change="a", changes=("a",), method=Method.TURNS, step_ns=1.0, ratio_before=RATIO)
    assert step.losses.reason is NoLossCode.NOT_MEASURED
