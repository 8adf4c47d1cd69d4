"""`tune` as a whole on the CPU: scripts whose best order of changes is known, since their steps sleep."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.jobs.cli.tune_command import ask_of_code, name_changes
from profiler_job.jobs.contract.changes import LABELS, TRIABLE, ChangeSetError, RefusalCode, parse_changes
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.tuning import BaseStep, NoLossCode, Outcome, Tuning, read_tuning
from tests.jobs.conftest import ROOT
from tests.waiting import HANGS_S, eventually
from tests.without_compiler import WITHOUT_COMPILER

SLEEPING = (
    WITHOUT_COMPILER
    + """
import time
import torch
from torch import nn
from torch.optim import adam
SEED

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        IN_FORWARD
        time.sleep(0.008 if torch.is_autocast_enabled("cpu") else 0.04)
        return self.layer(x)

def sleeping(called, seconds):
    def call(*args, **options):
        time.sleep(seconds)
        return called(*args, **options)
    return call

adam._multi_tensor_adam = sleeping(adam._multi_tensor_adam, 0.006)
adam._single_tensor_adam = sleeping(adam._single_tensor_adam, 0.006)
adam._fused_adam = sleeping(adam._fused_adam, 0.001)
model = Slow()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    x = torch.randn(8, 16)
    loss = (model(x).float() - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)
"""The model takes 40 ms, and 8 in BF16; the optimizer takes 6 ms, and 1 fused."""


NOTHING = MappingProxyType({})
FAKE_NSYS = "tests/fake_nsys/nsys"


@pytest.fixture
def tune(tmp_path):
    """Start `tune` of a script in a new folder."""

    def start(*options: str, seed="torch.manual_seed(0)", in_forward="pass", steps=100_000, edits=NOTHING):
        source = SLEEPING.replace("SEED", seed).replace("IN_FORWARD", in_forward).replace("STEPS", str(steps))
        for old, new in edits.items():
            assert old in source
            source = source.replace(old, new)
        (tmp_path / "train.py").write_text(source)
        (tmp_path / "tmp").mkdir(exist_ok=True)
        write_noting_nsys(tmp_path)
        command = [sys.executable, "-m", "profiler_job", "tune", "--skip", "3", *options, "--", sys.executable]
        return subprocess.Popen(
            [*command, "train.py"],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path / "tmp")}
            | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def write_noting_nsys(folder: Path) -> None:
    """Write the fake nsys to `bin`, so that it notes each call in the file `nsys_called`."""
    (folder / "bin").mkdir(exist_ok=True)
    nsys = folder / "bin" / "nsys"
    nsys.write_text(f'#!/bin/sh\necho "$@" >> {folder / "nsys_called"}\nexec {ROOT / FAKE_NSYS} "$@"\n')
    nsys.chmod(0o755)


def find_outcomes(tuning) -> dict[str, Outcome]:
    return {tried.change: tried.outcome for tried in tuning.tried}


@pytest.mark.long
def test_the_best_order_is_found_measured_and_confirmed(tune, tmp_path):
    started = tune("--budget", "2", "--changes", "fused_adamw,bf16,dropped_gradients")
    printed, _ = started.communicate(timeout=HANGS_S)
    assert started.returncode == 0, printed
    tuning = read_tuning(tmp_path / "results" / "train-tune")
    assert [step.change for step in tuning.ladder] == ["bf16", "fused_adamw"], printed
    assert find_outcomes(tuning)["dropped_gradients"] is Outcome.NOT_POSSIBLE
    first, winner = tuning.ladder
    assert first.ratio_before.times_as_fast > 2 and winner.ratio_before.times_as_fast > 1.1
    assert winner.ratio_base.times_as_fast > 3
    assert tuning.is_complete and tuning.base.step_ns > 40e6 > 30e6 > winner.step_ns
    assert not tuning.base.keeps_gradients
    assert winner.losses.reason is None and 0 < winner.losses.largest < 0.05 and winner.losses.repeated == 0.0
    assert first.losses.reason is None and 0 < first.losses.largest < 0.05 and first.losses.num == 13
    assert len(tuning.confirmation.base_ns) == len(tuning.confirmation.winner_ns) >= 2
    assert tuning.confirmation.num_rounds >= 2
    assert max(tuning.confirmation.winner_ns) < min(tuning.confirmation.base_ns)
    places = {place.what: place.code for place in tuning.places}
    assert places["optimizer"] == "optimizer = torch.optim.AdamW(model.parameters())"
    assert places["backward"] == "loss.backward()" and "model(x)" in places["model_call"]
    assert "+optimizer = torch.optim.AdamW(model.parameters(), fused=True)" in tuning.patch.diff
    assert '+    with torch.autocast("cpu", dtype=torch.bfloat16):' in tuning.patch.diff, "it ran on the CPU"
    names = sorted(path.name for path in (tmp_path / "results" / "train-tune").iterdir())
    assert names == ["log.txt", "tune.html", "tune.json"]
    assert "What to write" in printed and "+ fused optimizer" in printed
    assert not (tmp_path / "nsys_called").exists(), "nothing is captured: its tracing would slow some variants"
    again = tune("--budget", "2", "--changes", "fused_adamw,bf16,dropped_gradients")
    printed, _ = again.communicate(timeout=HANGS_S)
    assert again.returncode == 0 and "--again" in printed and "measuring" not in printed
    written = tune("--write", "--changes", "fused_adamw,bf16,dropped_gradients")
    printed, _ = written.communicate(timeout=HANGS_S)
    assert written.returncode == 0 and "fused=True" in (tmp_path / "train.py").read_text(), printed
    kept = tmp_path / "results" / "train-tune" / "originals" / "train.py"
    assert "AdamW(model.parameters())" in kept.read_text()


ACCUMULATING = {
    "torch.manual_seed(0)": "torch.manual_seed(0); micro_batch_size = 2; accumulation_steps = 4",
    "    x = torch.randn(8, 16)\n": "    whole = torch.arange(step, step + 8 * 16).reshape(8, 16) % 5 / 5\n"
    "    for x in whole.split(micro_batch_size):\n"
    "        loss = (model(x).float() - x).square().mean() / accumulation_steps\n"
    "        loss.backward()\n",
    "    loss = (model(x).float() - x).square().mean()\n": "",
    "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n": "    optimizer.step()\n"
    "    optimizer.zero_grad()\n",
    ", 0.006)": ", 0.02)",  # of four micro-batches, too, a gain that a busy machine does not hide
}
"""Edits of the script: four micro-batches of two samples each, 40 ms for each of them. The loss is divided by four."""


@pytest.mark.long
@pytest.mark.parametrize(
    "divisor", ["accumulation_steps", pytest.param("4", marks=pytest.mark.nightly)], ids=["divided", "by_a_constant"]
)
def test_larger_micro_batches_are_found_and_compute_the_same(tune, tmp_path, divisor):
    """The best order: BF16, a fifth of all, then one micro-batch in place of four, then the optimizer. If the loss is
    divided by a constant, the script with one micro-batch computes another gradient."""
    edits = {old: new.replace("/ accumulation_steps", f"/ {divisor}") for old, new in ACCUMULATING.items()}
    started = tune("--budget", "3", "--changes", "fewer_accumulations,bf16,fused_adamw", edits=edits)
    printed, _ = started.communicate(timeout=HANGS_S)
    assert started.returncode == 0, printed
    tuning = read_tuning(tmp_path / "results" / "train-tune")
    if divisor == "4":
        assert [step.change for step in tuning.ladder] == ["bf16", "fused_adamw"], printed
        assert find_outcomes(tuning)["fewer_accumulations"] is Outcome.BOUND
        [message] = [each.message for each in tuning.tried if each.change == "fewer_accumulations"]
        assert "first step differs by 75" in message
        return
    assert [step.change for step in tuning.ladder] == ["bf16", "fused_adamw", "fewer_accumulations"], printed
    winner, accumulation = tuning.winner, tuning.accumulation
    assert (accumulation.rows, accumulation.num_passes, accumulation.factor) == (2, 4, 4)
    assert winner.ratio_before.times_as_fast > 2 and winner.ratio_base.times_as_fast > 8
    assert winner.losses.reason is None and winner.losses.largest < 0.05 and winner.losses.num == 13
    assert tuning.base.sequences_per_step == 8 and tuning.base.keeps_gradients
    assert "+torch.manual_seed(0); micro_batch_size = 8; accumulation_steps = 1" in tuning.patch.diff


@pytest.mark.long
def test_checkpoints_of_the_script_stay_as_they_were(tune, tmp_path):
    """As in makemore, which replaces its best model, and nanoGPT: what variants have trained is not the user's."""
    saving = "    optimizer.step()\n    if step % 5 == 0:\n        print('saving')\n"
    saving += "        os.makedirs('out', exist_ok=True)\n"
    saving += "        torch.save(model.state_dict(), os.path.join('out', 'model.pt'))\n"
    saving += "        assert torch.load('out/model.pt').keys() == model.state_dict().keys()\n"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.pt").write_bytes(b"trained for days")
    edits = {"import time\n": "import os\nimport time\n", "    optimizer.step()\n": saving}
    started = tune("--budget", "1", "--changes", "fused_adamw", edits=edits)
    printed, _ = started.communicate(timeout=HANGS_S)
    assert started.returncode == 0 and read_tuning(tmp_path / "results" / "train-tune").confirmation.is_bare, printed
    assert "saving" in (tmp_path / "results" / "train-tune" / "log.txt").read_text()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.pt"]
    assert (tmp_path / "out" / "model.pt").read_bytes() == b"trained for days"
    assert not (tmp_path / "results" / "train-tune" / ".processes").exists()


@pytest.mark.nightly
def test_a_search_that_is_cut_off_goes_on_where_it_was(tune, tmp_path):
    file = tmp_path / "results" / "train-tune" / "tune.json"
    started = tune("--budget", "2", "--changes", "fused_adamw,bf16")
    eventually(lambda: file.is_file() and read_tuning(file).ladder)
    os.kill(started.pid, signal.SIGINT)
    started.communicate(timeout=HANGS_S)
    assert started.returncode == ExitCode.INTERRUPTED
    cut_off = read_tuning(file)
    assert cut_off.ladder[0].change == "bf16" and not cut_off.is_complete
    again = tune("--budget", "2", "--changes", "fused_adamw,bf16")
    printed, _ = again.communicate(timeout=HANGS_S)
    assert again.returncode == 0 and "measuring BF16" not in printed, printed
    assert [step.change for step in read_tuning(file).ladder] == ["bf16", "fused_adamw"]
    assert read_tuning(file).ladder[0].change == "bf16" and read_tuning(file).is_complete


def list_processes(folder) -> list[int]:
    """List the processes of the script in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_here = (process / "cwd").readlink() == folder
            if is_here and (process / "cmdline").read_bytes().endswith(b"\0train.py\0"):
                found.append(int(process.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize("how", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL])
def test_a_confirmation_that_is_cut_off_leaves_no_process_and_is_made_again(tune, tmp_path, how):
    folder = tmp_path / "results" / "train-tune"
    started = tune("--budget", "2", "--changes", "fused_adamw")
    eventually(lambda: len([*folder.glob(".processes/gated-*/noted/progress")]) >= 2)
    assert len(list_processes(tmp_path)) > 2
    os.kill(started.pid, how)
    started.communicate(timeout=HANGS_S)
    assert started.returncode == (ExitCode.TERMINATED if how == signal.SIGTERM else -how)
    eventually(lambda: not list_processes(tmp_path))
    cut_off = read_tuning(folder)
    assert cut_off.ladder and not cut_off.confirmation.winner_ns and not cut_off.is_complete
    again = tune("--budget", "2", "--changes", "fused_adamw")
    printed, _ = again.communicate(timeout=HANGS_S)
    assert again.returncode == 0 and "measuring" not in printed, printed
    assert read_tuning(folder).confirmation.num_rounds >= 2 and read_tuning(folder).is_complete
    assert not [*(tmp_path / "tmp").glob("profiler-*/")]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "error, outcome",
    [
        ("torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')", Outcome.OUT_OF_MEMORY),
        ("ValueError('broken by the change')", Outcome.FAILED),
    ],
)
def test_a_variant_that_ends_the_script_leaves_the_others(tune, tmp_path, error, outcome):
    fails = f"if torch.is_autocast_enabled('cpu'): raise {error}"
    started = tune("--budget", "2", "--changes", "fused_adamw,bf16", in_forward=fails)
    printed, _ = started.communicate(timeout=HANGS_S)
    assert started.returncode == 0, printed
    tuning = read_tuning(tmp_path / "results" / "train-tune")
    assert find_outcomes(tuning) == {"bf16": outcome, "fused_adamw": Outcome.KEPT}
    message = next(tried.message for tried in tuning.tried if tried.change == "bf16")
    assert "exit code 1" in message and error.partition("'")[2].split(".")[0].rstrip("')") in message


@pytest.mark.nightly
def test_a_script_that_takes_few_steps_is_started_again(tune, tmp_path):
    started = tune("--budget", "2", "--changes", "fused_adamw,bf16", steps=150)
    printed, _ = started.communicate(timeout=HANGS_S)
    assert started.returncode == 0, printed
    assert [step.change for step in read_tuning(tmp_path / "results" / "train-tune").ladder] == ["bf16", "fused_adamw"]


@pytest.mark.nightly
def test_losses_of_a_script_that_draws_others_each_time_are_not_compared(tune, tmp_path):
    started = tune("--budget", "2", "--changes", "fused_adamw", seed="torch.seed()")
    printed, _ = started.communicate(timeout=HANGS_S)
    assert started.returncode == 0, printed
    assert read_tuning(tmp_path / "results" / "train-tune").winner.losses.reason is NoLossCode.NO_SEED


@pytest.mark.long
def test_a_script_that_fails_says_where_its_words_are(tune, tmp_path):
    started = tune("--budget", "1", "--changes", "bf16", in_forward="raise ValueError('broken itself')")
    printed, _ = started.communicate(timeout=HANGS_S)
    assert started.returncode == ExitCode.FAILED
    assert "broken itself" in printed and "log.txt" in printed
    assert not read_tuning(tmp_path / "results" / "train-tune").is_complete


@pytest.mark.parametrize("change", [name for name in LABELS if name not in TRIABLE])
def test_a_change_of_code_is_refused(change):
    with pytest.raises(ChangeSetError) as refused:
        parse_changes([change])
    assert (refused.value.code, refused.value.names) == (RefusalCode.NEEDS_CODE, (change,))


def test_a_change_of_code_is_refused_with_the_line_of_code(tmp_path):
    done = CliRunner().invoke(app, ["tune", "-o", str(tmp_path), "--changes", "static_cache", "--", "python", "a.py"])
    assert done.exit_code == ExitCode.USAGE and "cache_implementation" in " ".join(done.output.split())


@pytest.mark.parametrize("text", ["warp_speed", "tf32,"])
def test_unknown_changes_are_refused(text):
    with pytest.raises(ChangeSetError) as refused:
        parse_changes([text])
    assert refused.value.code is RefusalCode.UNKNOWN


@pytest.mark.parametrize("option", ["--budget", "--price"])
@pytest.mark.parametrize("value", ["-1", "inf", "nan"])
def test_numbers_that_are_none_are_refused(option, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["tune", option, value, "--", sys.executable, "-c", "1"])
    assert result.exit_code == ExitCode.USAGE and not [*tmp_path.iterdir()], result.output


def test_changes_are_given_in_any_order():
    assert parse_changes(["fused_adamw,bf16", "bf16"]) == parse_changes(["bf16", "fused_adamw"])


@pytest.mark.parametrize("keeps_gradients", [True, False])
def test_what_is_known_of_gradients_reaches_the_patch(tmp_path, keeps_gradients):
    base = BaseStep(step_ns=1e6, is_compiled=True, keeps_gradients=keeps_gradients)
    script = tmp_path / "train.py"
    script.write_text("import torch\nmodel = torch.compile(torch.nn.Linear(8, 8))\nmodel(1).mean().backward()\n")
    tuning = Tuning(name="t", budget_s=1.0, command=("python", "train.py"), script=str(script), base=base)
    made = ask_of_code("make", tuning.script, *name_changes(tuning, ["cuda_graphs"]))
    assert made["is_full"] and ("register_hook" in made["diff"]) == keeps_gradients


def test_a_script_of_several_machines_is_not_tuned(tmp_path, monkeypatch):
    for name, value in {"PET_NNODES": "2", "PET_NODE_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["tune", "-o", str(tmp_path), "--", "python", "train.py"])
    assert done.exit_code == ExitCode.USAGE and "on this machine alone" in " ".join(done.output.split())


def test_a_file_that_is_no_result_is_not_replaced(tmp_path):
    folder = tmp_path / "train-tune"
    folder.mkdir()
    (folder / "tune.json").write_text(json.dumps({"name": 1}))
    done = CliRunner().invoke(app, ["tune", "-o", str(tmp_path), "--", "python", "train.py"])
    assert done.exit_code == ExitCode.USAGE and "choose another --name" in " ".join(done.output.split())
