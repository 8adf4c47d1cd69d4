"""The bench of tuned copies, as far as a CPU can show it: a script and its copy run alone, timed, with their losses."""

import sys

import pytest

from profiler_job.analysis.changes.patch import COMMAND
from profiler_job.jobs.contract.tuning import CodeLine, CodePatch, LadderStep, Method, TuneRatio, Tuning
from tests.bench.tuned_copies import describe, find_command, run_alone

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
for step in range(STEPS):
    loss = model(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    other.step()
"""


@pytest.mark.long
def test_a_script_is_timed_alone_with_its_losses(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace("STEPS", "100"))
    first, second = (run_alone([sys.executable, "train.py"], tmp_path, 5, 4) for _ in range(2))
    assert first["losses"] == second["losses"] and len(first["losses"]) == 5 and first["step_ns"] > 0
    assert first["losses"][4] < first["losses"][0]


@pytest.mark.long
def test_a_script_that_ends_too_early_is_named(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace("STEPS", "8"))
    with pytest.raises(SystemExit, match=r"train\.py ended with 0 before 9 steps"):
        run_alone([sys.executable, "train.py"], tmp_path, 5, 4)


def test_what_was_said_stands_beside_what_pairs_show():
    ratio = TuneRatio(times_as_fast=2.0, low=1.9, high=2.1, num_pairs=6)
    step = LadderStep(
        change="bf16", changes=("bf16",), method=Method.TURNS, step_ns=5e6, ratio_before=ratio, ratio_base=ratio
    )
    line = CodeLine(change="bf16", file="train.py", line=3, code="with ...", reason="no call of a model")
    tuning = Tuning(name="x", command=("python",), budget_s=60, ladder=[step], patch=CodePatch(to_write=(line,)))
    pairs = [[{"step_ns": 10e6, "losses": [4.0, 2.0]}, {"step_ns": 5e6, "losses": [4.0, 2.2]}]] * 3
    found = describe(tuning, pairs)
    assert found["said"]["times_as_fast"] == 2.0 and found["pairs"]["times_as_fast"] == pytest.approx(2)
    assert found["to_write"] == ["bf16: no call of a model"] and found["median_ms"] == [10.0, 5.0]
    assert found["losses"] == {"num": 2, "first": 0.0, "largest": pytest.approx(0.1)}
    assert not find_command(tuning)


def test_a_copy_runs_with_the_command_that_the_patch_names():
    line = CodeLine(
        change="fewer_accumulations", file="", line=0, code="python train.py --batch_size=48", reason=COMMAND
    )
    tuning = Tuning(name="x", command=("python", "train.py"), budget_s=60, patch=CodePatch(to_write=(line,)))
    assert find_command(tuning) == ["python", "train.py", "--batch_size=48"]
