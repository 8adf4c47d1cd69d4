"""Larger micro-batches: where a script or its command sets how large they are, and how many make a step."""

import json
import textwrap
from dataclasses import replace

import pytest

from profiler_job.analysis.changes.accumulation_code import find_numbers
from profiler_job.analysis.changes.patch import answer, make_patch
from profiler_job.analysis.changes.script_code import Program, SourceFile
from profiler_job.jobs.contract.tuning import Accumulation

WANTED = Accumulation(rows=4, num_passes=8, factor=2)
COMMAND = ("python", "train.py")
CHANGE = "fewer_accumulations"


def program_of(text: str, command: tuple[str, ...] = COMMAND) -> Program:
    return Program((SourceFile("train.py", textwrap.dedent(text)),), accumulation=WANTED, command=command)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("batch_size = 4\ngradient_accumulation_steps = 8\n", "batch_size = 8\ngradient_accumulation_steps = 4\n"),
        ("batch_size: int = 4\naccum = 2 * 4\n", "batch_size: int = 8\naccum = 4\n"),
        (
            "class Config:\n    mbs = 2 * 2\n    grad_accum: int = 8\n",
            "class Config:\n    mbs = 8\n    grad_accum: int = 4\n",
        ),
        ("config = {'batch_size': 4, 'accumulate_grad_batches': 8}\n", None),
        ("a = Args(per_device_train_batch_size=4, gradient_accumulation_steps=8)\n", None),
        ("p.add_argument('-b', '--batch-size', default=4)\np.add_argument('--accum-steps', default=8)\n", None),
        (
            "B, T = 4, 1024\ngrad_accum_steps = total // (B * T)\n",
            "B, T = 8, 1024\ngrad_accum_steps = total // (B * T)\n",
        ),
        ("accum = 8\nmicro_batch = batch_size // accum\n", "accum = 4\nmicro_batch = batch_size // accum\n"),
        ("batch_size = 4\nval_batch_size = 4\naccum = 8\n", "batch_size = 8\nval_batch_size = 4\naccum = 4\n"),
        (
            "train = Loader(a, batch_size=4)\nval_loader = Loader(b, batch_size=4)\naccum = 8\n",
            "train = Loader(a, batch_size=8)\nval_loader = Loader(b, batch_size=4)\naccum = 4\n",
        ),
    ],
)
def test_numbers_of_the_code_are_changed(text, lines):
    patch = make_patch(program_of(text), [CHANGE])
    assert patch.is_full
    assert patch.files["train.py"].text == (lines or text.replace("4", "#").replace("8", "4").replace("#", "8"))


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("--batch_size=4 --accum-steps=8", "--batch_size=8 --accum-steps=4"),
        ("--batch-size 4 --lr 4 --accum-steps 8", "--batch-size 8 --lr 4 --accum-steps 4"),
        ("trainer.batch_size=4 trainer.grad_accum=8", "trainer.batch_size=8 trainer.grad_accum=4"),
    ],
)
def test_options_of_the_command_are_changed_and_to_be_written_there(options, changed):
    patch = make_patch(program_of("batch_size = 1\n", (*COMMAND, *options.split())), [CHANGE])
    [line] = patch.to_write[CHANGE]
    assert not patch.files and line.code == f"python train.py {changed}" and line.reason == "the command sets it"
    assert patch.is_full and patch.command == tuple(line.code.split()) and patch.digest


def test_one_number_may_be_in_the_command_and_the_other_in_the_code():
    patch = make_patch(program_of("accum = 8\n", (*COMMAND, "--batch=4")), [CHANGE])
    assert patch.files["train.py"].text == "accum = 4\n"
    assert [line.code for line in patch.to_write[CHANGE]] == ["python train.py --batch=8"]


def test_names_that_a_configurator_sets_get_options():
    text = "batch_size = 12\ngradient_accumulation_steps = 5 * 8\nexec(open('configurator.py').read())\n"
    numbers = find_numbers(program_of(text), WANTED)
    assert numbers.command[2:] == ("--batch_size=8", "--gradient_accumulation_steps=4") and not numbers.edits


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accum = 8\n", "no option and no line of its code sets the samples of a micro-batch to 4"),
        ("batch_size = 4\n", "no option and no line of its code sets the micro-batches of a step to 8"),
        ("batch_size = 4\nmicro_batch = 4\naccum = 8\n", "are 4 in several lines: train.py:1, train.py:2"),
        ("batch_size = f(1)\naccum = f(2)\n", "its code computes both numbers"),
    ],
)
def test_what_the_code_does_not_allow_has_its_reason(text, reason):
    assert find_numbers(program_of(text), WANTED).reason.endswith(reason)
    patch = make_patch(program_of(text), [CHANGE])
    [line] = patch.to_write[CHANGE]
    assert not patch.diff and line.reason.endswith(reason) and line.code == "4 micro-batches of 8 samples, not 8 of 4"


def test_without_a_measured_accumulation_there_is_no_edit():
    program = replace(program_of("batch_size = 4\naccum = 8\n"), accumulation=None)
    assert not make_patch(program, [CHANGE]).diff


def test_the_module_answers_with_texts_by_path(tmp_path):
    (tmp_path / "config.py").write_text("accum = 8\n")
    (tmp_path / "train.py").write_text("import config\nbatch_size = 4\n")
    option = f"--accumulation={WANTED.model_dump_json()}"
    made = answer("accumulate", tmp_path, tmp_path / "train.py", option, f"--command={json.dumps(COMMAND)}")
    assert made == {
        "reason": "",
        "command": ["python", "train.py"],
        "texts": {
            str(tmp_path / "train.py"): "import config\nbatch_size = 8\n",
            str(tmp_path / "config.py"): "accum = 4\n",
        },
    }
    assert "+accum = 4" in answer("make", tmp_path, tmp_path / "train.py", option, CHANGE)["diff"]
    assert answer("edit", tmp_path, tmp_path / "train.py", option, CHANGE)["command"] == []
