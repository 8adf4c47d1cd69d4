"""Larger micro-batches of a script in a process of its own: how large, and what runs."""

import json
import subprocess
import sys

import pytest

from profiler_job.jobs.contract.tuning import Accumulation, Outcome
from profiler_job.jobs.executor.compare_losses import compare_losses, sum_losses
from profiler_job.jobs.executor.larger_micro_batches import (
    AS_MODULE,
    EDITED,
    NO_FILE,
    NO_ROWS,
    ONE_PASS,
    SEVERAL_RANKS,
    LargerMicroBatches,
    choose_accumulation,
    find_edit_obstacle,
)
from tests.jobs.simulated_scripts import SimulatedScript, list_ladder, outcomes, search

GB = 10**9
INPUTS = [{"name": "0", "shape": [4, 128], "dtype": "torch.int64"}]
FACTS = {"world": 1, "forwards": 8, "inputs": INPUTS}
ACCUMULATION = Accumulation(rows=4, num_passes=8, factor=8)


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({}, 8),
        ({"peak_allocated_bytes": 10 * GB, "gpu_memory_bytes": 80 * GB}, 4),
        ({"peak_allocated_bytes": 70 * GB, "gpu_memory_bytes": 80 * GB}, 2),
        ({"forwards": 15, "peak_allocated_bytes": 10 * GB, "gpu_memory_bytes": 80 * GB}, 5),
        ({"forwards": 7}, 7),
    ],
)
def test_micro_batches_are_as_large_as_surely_fits_and_divide_the_step(more, factor):
    assert choose_accumulation(FACTS | more).factor == factor


@pytest.mark.parametrize(
    ("more", "reason"), [({"forwards": 1}, ONE_PASS), ({"world": 2}, SEVERAL_RANKS), ({"inputs": []}, NO_ROWS)]
)
def test_why_there_are_none_is_said(more, reason):
    assert choose_accumulation(FACTS | more) == reason


def test_a_module_and_code_without_a_file_are_not_edited():
    assert find_edit_obstacle(["python", "-m", "train"], "train.py") == AS_MODULE
    assert find_edit_obstacle(["python", "-c", "1"], "") == NO_FILE
    assert find_edit_obstacle(["python", "a.py"], "a.py") == ""


def test_the_process_gets_other_options_and_other_texts(tmp_path):
    given = {"accumulation": ACCUMULATION, "script": "train.py", "command": ["python", "-u", "train.py", "--batch=32"]}
    command, environment = LargerMicroBatches(**given, texts={"/train.py": "1"}).prepare(tmp_path)
    assert command == ["python", "-u", EDITED, str(tmp_path / "texts.json"), "train.py", "--batch=32"]
    assert json.loads((tmp_path / "texts.json").read_text()) == {"/train.py": "1"}
    assert [*environment.values()] == ["32,1"]
    command, _ = LargerMicroBatches(**given, texts={}).prepare(tmp_path)
    assert command == given["command"]


def test_a_script_with_other_texts_runs_as_without(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "numbers_of_it.py").write_text("accum = 8\n")
    script = folder / "train.py"
    script.write_text(
        "import inspect, os, pickle, sys, numbers_of_it\n"
        "class Saved:\n    pass\n"
        "batch = 4\n"
        "pickle.loads(pickle.dumps(Saved()))\n"
        "print([__name__, __file__, __doc__, sys.argv, sys.path[0], inspect.getsource(Saved)])\n"
        "print([numbers_of_it.accum, batch])\n"
    )
    texts = {str(folder / "numbers_of_it.py"): "accum = 4\n", str(script): script.read_text().replace("4", "8")}
    (tmp_path / "texts.json").write_text(json.dumps(texts))

    def run(*before: str) -> str:
        command = [sys.executable, *before, "code/train.py", "--lr", "1"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    without = run()
    assert run(EDITED, "texts.json") == without.replace("[8, 4]", "[4, 8]") != without


def test_losses_of_a_step_are_added_up():
    assert sum_losses([1.0, 2.0, 3.0, 4.0, 5.0], 2) == [3.0, 7.0]
    assert sum_losses([1.0, None, 3.0, "inf"], 2) == [None, "inf"]
    divided, whole = sum_losses([0.5, 0.5, 0.25, 0.25], 2), sum_losses([1.0, 0.5], 1)
    assert compare_losses(divided, whole).largest == 0.0


def test_larger_micro_batches_are_kept_if_they_are_faster():
    script = SimulatedScript({"fewer_accumulations": 0.4, "bf16": 0.5}, accumulation=ACCUMULATION)
    tuning = search(script, asked=("bf16", "fewer_accumulations"))
    assert list_ladder(tuning) == ["bf16", "fewer_accumulations"] and tuning.accumulation == ACCUMULATION
    assert tuning.winner.ratio_base.low < 1 / 0.3 < tuning.winner.ratio_base.high
    assert tuning.winner.peak_bytes


def test_why_larger_micro_batches_are_not_tried_is_kept():
    tuning = search(SimulatedScript({"bf16": 0.5}, accumulation=ONE_PASS), asked=("bf16", "fewer_accumulations"))
    assert outcomes(tuning, "fewer_accumulations") == [Outcome.NOT_POSSIBLE] and tuning.accumulation is None
    assert next(each.message for each in tuning.tried if each.change == "fewer_accumulations") == ONE_PASS


def test_a_loss_that_is_not_divided_by_their_number_takes_them_back():
    class NotDivided(SimulatedScript):
        def note_run(self, changes, num_turns):
            run = super().note_run(changes, num_turns)
            losses, num = ([3.0, 2.0], 1.0) if changes else ([3.0, 3.0, 2.0, 2.0], 2.0)
            return type(run)(**(vars(run) | {"losses": losses, "num_losses_per_step": num}))

    script = NotDivided({"fewer_accumulations": 0.4}, accumulation=ACCUMULATION)
    tuning = search(script, asked=("fewer_accumulations",))
    assert not tuning.ladder and outcomes(tuning, "fewer_accumulations") == [Outcome.BOUND]
    assert "the loss of its first step differs by 50.0%" in tuning.tried[-1].message


def test_a_search_that_goes_on_leaves_what_needs_a_process_in_the_ladder():
    """Turns in one process would not show that it is faster."""
    effects = {"fewer_accumulations": 0.4, "bf16": 0.5}
    asked = ("bf16", "fewer_accumulations")
    tuning = search(SimulatedScript(effects, accumulation=ACCUMULATION), asked=asked)

    class Switched(SimulatedScript):
        def ask(self, request, left_s):
            for variants in [request.get("variants", [])]:
                assert not any("fewer_accumulations" in variant for variant in variants)
            return super().ask(request, left_s)

    again = search(Switched(effects, accumulation=ACCUMULATION), tuning)
    assert list_ladder(again) == [*asked]
