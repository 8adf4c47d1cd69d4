"""`try`: changes of somebody's own script on the CPU, with the fake nsys. What is captured was recorded elsewhere, so
a step under nsys is the same with every change; what is timed and computed is the script's own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.comparison.judge import Judgement
from profiler_job.analysis.prediction import judge_tries as judging
from profiler_job.analysis.prediction.abstentions import AbstentionCode
from profiler_job.analysis.prediction.judge_tries import Ceiling
from profiler_job.analysis.prediction.predict import Abstention, Prediction
from profiler_job.analysis.recording import store
from profiler_job.jobs.cli import try_command as tries
from profiler_job.jobs.contract.changes import LABELS, TRIABLE, ChangeSetError, RefusalCode, parse_sets
from tests.jobs.conftest import ROOT
from tests.waiting import HANGS_S
from tests.without_compiler import WITHOUT_COMPILER

MS = 1e6

TRAIN = (
    WITHOUT_COMPILER
    + """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(60):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 4, (8,)))
    assert step < 5 or not torch.is_autocast_enabled("cpu"), "broken by the change"
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)


@pytest.mark.long
def test_what_fails_with_a_change_leaves_the_other_changes_to_be_tried(tmp_path, fake_nsys):
    (tmp_path / "train.py").write_text(TRAIN)
    options = ["--results", "results", "--skip", "3", "--steps", "3"]
    sets = ["--change", "fused_adamw", "--change", "bf16", "--change", "tf32"]
    done = subprocess.run(
        [sys.executable, "-m", "profiler_job", "try", *options, *sets, "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fused_adamw: not tried: the script has it already" in done.stderr
    assert "(exit code 1) after 5 of the 11 steps" in " ".join(done.stderr.split())
    assert "broken by the change" in done.stderr
    expected, _, given = done.stdout.partition(" times as fast")
    assert "fused_adamw: no prediction" in expected
    assert "losses: 11 compared, all the same" in given
    assert max(map(len, given.splitlines())) <= 80
    results = tmp_path / "results"
    run = store.load(results / "recordings" / "train-tf32").runs.iloc[0]
    assert (run["float32_matmul_precision"], run["precision"]) == ("high", "fp32"), (
        "the fake capture's matmuls are FP32"
    )
    assert not (results / "train-bf16").exists() and not (results / "train-fused-adamw").exists()
    entries = json.loads((results / "train-tries.json").read_text())["tries"]
    assert [("failed" in entry, "measured" in entry) for entry in entries] == [
        (True, False),
        (True, False),
        (False, True),
    ]


def noted(**changed) -> dict:
    """Return what is noted of a script without changes."""
    plain = {"steps": [{"host_ns": 1}], "captured_ns": [1], "followed_ns": [1], "exit_code": 0, "seen": 2}
    plain |= {
        "float32_matmul_precision": "highest",
        "autocast": "",
        "compiled": False,
        "losses": [2.0, 1.0],
        "present": {},
    }
    return plain | changed


@dataclass
class Told:
    """What the command asked for and measured, in order."""

    order: list[str]
    code: int
    output: str


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Run the command with fakes of measuring and judging."""

    def run(*options: str, script: dict | None = None) -> Told:
        order: list[str] = []

        def measure(followed, results):
            order.append(",".join(followed.changes) or "plain")
            (results / followed.name).mkdir(parents=True, exist_ok=True)
            return results / followed.name, script or noted()

        def ask(name, module):
            order.append(module[1])
            if module[1] == "code":
                return f"code of {module[2]}"
            if module[1] == "judge":
                return {"lines": ["1.50 times as fast"]}
            return [{"lines": [f"no prediction of {text}"]} for text in module[3:]]

        monkeypatch.setattr(tries, "measure", measure)
        monkeypatch.setattr(tries, "attempt", measure)
        monkeypatch.setattr(tries, "ask", ask)
        monkeypatch.setattr("profiler_job.jobs.cli.measure_script.ingest", lambda folder, recording, emit: True)
        results = ["--results", str(tmp_path / "results")]
        done = CliRunner().invoke(app, ["try", *results, *options, "--", "python", "train.py"])
        return Told(order, done.exit_code, done.output)

    return run


def test_the_baseline_is_measured_once_and_all_is_expected_before_any_change_is_tried(tried, tmp_path):
    done = tried("--change", "tf32", "--change", "bf16,fused_adamw", "--change", "fused_adamw,bf16")
    assert done.code == 0, done.output
    assert done.order == ["plain", "expect", "tf32", "judge", "bf16,fused_adamw", "judge"]
    assert done.output.index("no prediction of bf16,fused_adamw") < done.output.index("tf32: 1.50 times as fast")
    assert sorted(path.name for path in (tmp_path / "results").iterdir() if path.name.startswith("train")) == [
        "train",
        "train-bf16-fused-adamw",
        "train-tf32",
        "train-tries.json",
    ]


def test_what_the_script_has_already_is_not_tried(tried):
    done = tried("--change", "tf32,compile", script=noted(present={"compile": "R"}))
    assert done.code == 1 and done.order == ["plain", "expect"]
    assert "tf32,compile: not tried: compile: R" in done.output


@pytest.mark.parametrize("change", [name for name in LABELS if name not in TRIABLE])
def test_a_change_of_code_is_refused_with_the_line_of_code(tried, change):
    done = tried("--change", change)
    said = " ".join(done.output.split())
    assert done.code == 2 and done.order == ["code"]
    assert f"{change} needs a change of code" in said and f"code of {change}" in said


@pytest.mark.parametrize(
    "text, code, names",
    [
        ("warp_speed", RefusalCode.UNKNOWN, ("warp_speed",)),
        ("tf32,", RefusalCode.UNKNOWN, ("",)),
        ("padding", RefusalCode.NEEDS_CODE, ("padding",)),
        ("bf16, tf32", RefusalCode.ONE_CHOICE, ("tf32", "bf16")),
        ("compile,cuda_graphs", RefusalCode.ONE_CHOICE, ("compile", "cuda_graphs")),
    ],
)
def test_sets_that_cannot_be_are_refused(text, code, names):
    with pytest.raises(ChangeSetError) as refused:
        parse_sets([text])
    assert (refused.value.code, refused.value.names) == (code, names)
    assert all(name in str(refused.value) for name in names)


def test_a_set_is_named_alike_in_whatever_order_it_is_given():
    """Else its results never met the prediction that they test."""
    assert parse_sets(["fused_adamw,bf16", "bf16,fused_adamw"]) == [("bf16", "fused_adamw")]


def test_a_script_of_several_machines_is_not_tried(tried, monkeypatch):
    for name, value in {"PET_NNODES": "2", "PET_NODE_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    done = tried("--change", "tf32")
    assert done.code == 2 and not done.order and "on this machine alone" in " ".join(done.output.split())


def test_results_of_a_sweep_are_not_replaced_by_those_of_a_change(tried, tmp_path):
    (tmp_path / "results" / "train-tf32").mkdir(parents=True)
    (tmp_path / "results" / "train-tf32" / "sweep.json").write_text("{}")
    done = tried("--change", "tf32")
    assert done.code == 2 and not done.order and "choose another --name" in " ".join(done.output.split())


@pytest.mark.parametrize(
    "without, with_changes, said",
    [
        ([2.0, 1.0], [2.0, 1.0], "losses: 2 compared, all the same"),
        (
            [2.0, 1.0, 1.0, 1.0],
            [2.0, 1.0, 1.0, 1.01],
            "losses: 4 compared: 0% difference in the first step, at most 1%, in step 2",
        ),
        ([2.0, 1.0], [3.0, 1.0], "losses: the first step differs by 50%: the script seems to draw other"),
        ([2.0, 1.0], [2.0, "nan"], "losses: not finite in step 2, with the change"),
        ([2.0, "inf"], [2.0, "inf"], "losses: not finite in step 2, without and with the change"),
        (
            [2.0, 1.0],
            [None, 1.5],
            "losses: 1 compared: the first step is not known, at most 50%, in step 2",
        ),
        ([2.0, 1.0], [None, 1.0], "losses: 1 compared, all the same"),
        ([], [2.0], "losses: no loss is known on both sides"),
    ],
)
def test_losses_are_compared_in_a_sentence(without, with_changes, said):
    losses = tries.compare_losses(noted(losses=without), noted(losses=with_changes))
    assert tries.describe_losses(losses).startswith(said)


def test_losses_that_differ_without_any_change_are_said_as_such():
    plain = noted(losses=[2.0, 1.0, 0.9])
    losses = tries.compare_losses(plain, noted(losses=[2.01, 1.0, 0.9]))
    repeated = tries.compare_losses(plain, noted(losses=[2.02, 1.0]))
    assert tries.describe_losses(losses, repeated).startswith("losses: two runs without any change differ by 1%")
    same = tries.compare_losses(plain, noted(losses=[2.0, 1.0]))
    assert tries.describe_losses(losses, same).startswith("losses: 3 compared: 0.5% difference in the first step")


def step(second: float, band: float = 0.5) -> Judgement:
    return Judgement(metric="step", first=12 * MS, second=second * MS, band=band * MS)


def test_a_step_is_said_with_its_interval_and_whether_that_is_noise():
    assert judging.format_step(step(8)) == [
        "1.50 times as fast (1.41 to 1.60): 12.00 ms -> 8.00 ms",
        "-4.00 ms exceeds the noise band of 500 µs: faster",
    ]
    assert judging.format_step(step(11.8))[1] == "-200 µs is within the noise band of 4.2%: it may be none"
    assert "slower" in judging.format_step(step(14))[1]


def test_a_step_that_none_was_to_beat_is_told():
    prediction = {"step_ns": 9.5 * MS, "low_ns": 9 * MS, "high_ns": 10 * MS, "ceiling_ns": 8 * MS}
    assert judging.judge_prediction(step(7.4), prediction)[1] == (
        "its ceiling did not hold: no step was to take less than 8.00 ms"
    )
    assert len(judging.judge_prediction(step(7.6), prediction)) == 1, "within the noise band"


@pytest.mark.parametrize("second, held", [(9.0, "held"), (10.0, "held"), (8.9, "did not hold"), (11, "did not hold")])
def test_a_prediction_holds_within_its_interval(second, held):
    prediction = {"step_ns": 9.5 * MS, "low_ns": 9 * MS, "high_ns": 10 * MS, "ceiling_ns": 8 * MS}
    assert judging.judge_prediction(step(second), prediction)[0].startswith(f"the prediction {held}: ")
    assert judging.judge_prediction(step(second), None) == []


@pytest.mark.parametrize(
    "second, said",
    [
        (9.0, "the ceiling held: 3.00 ms was saved, of at most 3.00 ms"),
        (8.0, "the ceiling did not hold: 4.00 ms was saved, and at most 3.00 ms could be"),
        (13.0, "the ceiling held: nothing was saved, of at most 3.00 ms"),
    ],
)
def test_a_ceiling_holds_unless_more_is_saved(second, said):
    assert judging.judge_ceiling(step(second), 3 * MS) == [said]


def test_a_set_has_a_ceiling_where_each_of_its_changes_has():
    advised = {"tf32": Ceiling(save_ns=2.0), "compile": Ceiling(save_ns=3.0), "bf16": Ceiling(save_ns=None, reason="R")}
    assert judging.ceiling(advised, ("tf32", "compile"), 6.0) == Ceiling(save_ns=5.0)
    assert judging.ceiling(advised, ("bf16", "compile"), 6.0) == Ceiling(save_ns=None, reason="BF16 autocast: R")
    assert "no evidence" in judging.ceiling(advised, ("fused_adamw",), 6.0).reason


def test_ceilings_of_more_than_the_step_are_none():
    advised = {"bf16": Ceiling(save_ns=4.0), "compile": Ceiling(save_ns=3.0)}
    most = judging.ceiling(advised, ("bf16", "compile"), 6.0)
    assert most == Ceiling(save_ns=None)
    abstained = Abstention(changes=("bf16",), code=AbstentionCode.NO_PAIR, reason="no pair")
    assert judging.expectation(abstained, most)["lines"] == ["no prediction: no pair"]


def test_what_is_expected_is_said_with_its_interval_or_why_there_is_none():
    prediction = Prediction(
        baseline_ns=12 * MS,
        step_ns=8 * MS,
        low_ns=7 * MS,
        high_ns=9 * MS,
        ceiling_ns=6 * MS,
        gpu_ns=7 * MS,
        limited_by="GPU",
        reasons=(),
        changes=("tf32",),
    )
    assert judging.expectation(prediction, Ceiling(save_ns=5 * MS))["lines"] == [
        "predicted: a step of 8.00 ms (7.00 ms to 9.00 ms), 1.50 times as fast; limited by the GPU",
        "advice: at most 5.00 ms of it can be saved",
    ]
    abstained = Abstention(changes=("tf32",), code=AbstentionCode.NO_PAIR, reason="no pair")
    assert judging.expectation(abstained, Ceiling(save_ns=None, reason="R"))["lines"] == [
        "no prediction: no pair",
        "not advised: R",
    ]


@pytest.mark.parametrize("separator", [(), ("--",)])
@pytest.mark.parametrize("command", ["try", "profile"])
def test_all_words_after_the_first_that_is_not_an_option_are_the_scripts(monkeypatch, tmp_path, command, separator):
    """Its options may have the names of ours."""
    given = []
    module = "profiler_job.jobs.cli.measure_script.attempt"
    monkeypatch.setattr(module, lambda followed, results: given.append(followed) or sys.exit(0))
    script = ["python", "train.py", "--steps", "3", "--change", "x", "-o", "out", "--help", "--", "rest"]
    options = ["--results", str(tmp_path), "--steps", "7", *(["--change", "tf32"] if command == "try" else [])]
    done = CliRunner().invoke(app, [command, *options, *separator, *script])
    assert done.exit_code == 0, done.output
    (followed,) = given
    assert list(followed.command) == script and followed.steps == 7
