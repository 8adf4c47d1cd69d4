"""Axes of a workload itself and Hugging Face configurations in a sweep file, the examples of `site/examples`, and the
simulation of their memory against tensors that are there."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.extras import install_command
from profiler_job.jobs.contract.options import format_options, parse_options
from profiler_job.jobs.sweep.plan import Sweep, SweepError, load_sweep, select
from tests.jobs.conftest import ROOT
from tests.shipped_sweeps import find_runs
from tests.test_extend import blocks
from tests.waiting import HANGS_S

EXAMPLES = ROOT / "site" / "examples"
SHORT = {"context_length": [16], "precision": ["fp32"], "mode": ["train_step"]}
TINY = {
    "gpt2.json": {"n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 256, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    | {"embd_pdrop": 0.0},
    "llama.json": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"num_hidden_layers": 2, "vocab_size": 256},
}
OWN = {"name": "x", "workload": "my_models:build", "size": ["base"], "context_length": [8], "mode": ["forward"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The examples, their Hugging Face models made tiny; the job is started there."""
    for file in EXAMPLES.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    for name, changes in TINY.items():
        (tmp_path / name).write_text(json.dumps(json.loads((EXAMPLES / name).read_text()) | changes))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def sweep_of(folder: Path, example: str, **changes) -> Sweep:
    file = folder / "changed.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load((folder / f"{example}.yaml").read_text()) | SHORT | changes))
    return load_sweep(file)


def hugging_face(folder: Path, **changes) -> Sweep:
    return sweep_of(
        folder, "hugging_face", hf={"config": ["gpt2.json", "llama.json"]} | changes.pop("hf", {}), **changes
    )


# ------------------------------------------------------------------------------------------------------- sweep files


def test_options_are_read_back_as_they_were():
    options = {"width": 64, "dropout": 0.1, "bias": True, "act": "gelu", "shift": -1, "eps": 1e-05}
    assert parse_options(format_options(options)) == options
    assert parse_options("") == {}


def test_every_option_is_an_axis():
    sweep = Sweep.model_validate(OWN | {"workload_axes": {"width": [64, 128], "dropout": [0.0, 0.1]}})
    assert [run.run_id for run in sweep.runs] == [
        f"base-ctx8-fp32-naive-forward-my_models.build-width{width}-dropout{dropout}"
        for width in (64, 128)
        for dropout in (0.0, 0.1)
    ]
    assert {run.workload_options for run in select(sweep.runs, "width=64")} == {
        "width=64, dropout=0.0",
        "width=64, dropout=0.1",
    }
    with pytest.raises(SweepError, match=r"no run has this dropout; this sweep has: 0.0, 0.1"):
        select(sweep.runs, "dropout=0.2")


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"workload_axes": {"size": [1]}}, "size: an axis of every sweep has this name"),
        ({"workload_axes": {"width": []}}, "at least 1 item"),
        ({"workload_axes": {"width": [[64]]}}, "should be a number, true, false, or a word"),
        ({"workload_axes": {"act": ["a-b"]}}, "should be a number, true, false, or a word"),
        ({"workload_axes": {"a b": [1]}}, "should be the name of a parameter"),
        (
            {"workload": "transformer", "size": ["small"], "workload_axes": {"width": [64]}},
            "the reference Transformer has",
        ),
        ({"workload": "hf"}, "needs the key hf"),
        ({"hf": {"config": "gpt2.json"}}, "size: is given by hf"),
    ],
)
def test_what_cannot_be_is_refused(changes, problem):
    with pytest.raises(ValueError, match=problem):
        Sweep.model_validate(OWN | changes)


def test_each_configuration_is_a_size_and_each_change_an_axis(folder):
    runs = hugging_face(folder, hf={"num_hidden_layers": [1, 2]}).runs
    assert len(runs) == 8 and {run.size for run in runs} == {"gpt2", "llama"}
    assert runs[0].run_id == "gpt2-ctx16-fp32-naive-train_step-hf-num_hidden_layers1"
    assert runs[0].workload_config.startswith("gpt2.json sha256:")
    (folder / "gpt2.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 1}))
    changed = hugging_face(folder, hf={"num_hidden_layers": [1, 2]}).runs
    assert changed[0] != runs[0] and changed[-1] == runs[-1], "another file is another run"


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"attention": ["flash"], "precision": ["bf16"]}, "Hugging Face models have naive .* and sdpa, not flash"),
        ({"hf": {"config": "none.json"}}, r"none.json: cannot be read"),
        ({"hf": {"config": "nano_gpt.py"}}, r"nano_gpt.py: no JSON"),
        ({"hf": {"config": ["gpt2.json", "gpt2.json"]}}, "two are called gpt2"),
    ],
)
def test_configurations_that_cannot_be_used_are_refused(folder, changes, problem):
    with pytest.raises(SweepError, match=problem):
        hugging_face(folder, **changes)


# ---------------------------------------------------------------------------------------------------------- examples


def peaks_of(run: dict) -> list[dict[str, int]]:
    """Live bytes of tensors on the CPU at the peak of each phase of two steps."""
    import torch

    from profiler_job.jobs.worker.simulation import LiveBytes
    from profiler_job.jobs.worker.stepper import Stepper

    peaks: list[dict[str, int]] = []
    with LiveBytes() as counted:

        def around(phase, work):
            counted.begin()
            work()
            peaks[-1][phase] = counted.peak

        stepper = Stepper(run, torch.device("cpu"))
        for _ in range(2):
            peaks.append({})
            stepper.step(around)
    assert stepper.loss_value is None and all(p.grad is not None for p in stepper.model.parameters())
    return peaks


@pytest.fixture
def one_thread():
    import torch

    before = torch.autograd.is_multithreading_enabled()
    torch.autograd.set_multithreading_enabled(False)
    yield
    torch.autograd.set_multithreading_enabled(before)


@pytest.mark.long
@pytest.mark.parametrize(
    "example, changes",
    [
        ("hugging_face", {"hf": {"config": ["gpt2.json", "llama.json"]}}),
        ("nano_gpt", {"workload_axes": {"width": [64], "num_layers": [2], "dropout": [0.0]}}),
        ("triton_norm", {"workload_axes": {"width": [64], "num_layers": [2], "fused": [True, False]}}),
    ],
)
def test_the_examples_run_and_need_what_is_simulated(folder, one_thread, example, changes):
    """On the CPU, where the Triton kernel is replaced by PyTorch's form. Eager attention: to the byte; fused: 6%, since
    a GPU has no fused kernel in FP32 for fewer key heads than query heads."""
    from profiler_job.jobs.worker.simulation import simulate

    importlib.invalidate_caches()
    for run in sweep_of(folder, example, **changes).runs:
        expected = peaks_of(run.model_dump())
        simulated = simulate(run.model_dump())["peaks"]
        assert [list(step) for step in simulated] == 2 * [["forward", "loss", "backward", "optimizer"]]
        within = 0.06 if run.attention == "sdpa" else 0
        for step, peaks in enumerate(expected):
            assert simulated[step] == pytest.approx(peaks, rel=within), (run.run_id, step)


@pytest.mark.long
def test_without_dropout_the_losses_of_gpt2_on_the_ladder_can_be_compared(folder, one_thread):
    """The sweep says so by options, of the configuration that the ladder was timed with."""
    import torch

    from profiler_job.jobs.contract.plain import TRAINED_STEPS
    from profiler_job.jobs.worker import probes
    from profiler_job.jobs.worker.service import measure_plain_loss
    from profiler_job.jobs.worker.stepper import Stepper

    importlib.invalidate_caches()
    off = {name: rate for name, rate in parse_options(find_runs("ladder_losses_gpt2")[0].workload_options).items()}
    off = {name: [rate] for name, rate in off.items() if "drop" in name}
    assert len(off) == 3
    tiny = {name: value for name, value in TINY["gpt2.json"].items() if "drop" not in name}
    (folder / "gpt2.json").write_text(json.dumps(json.loads((EXAMPLES / "gpt2.json").read_text()) | tiny))
    cpu = torch.device("cpu")

    def run_of(changes: dict) -> dict:
        [run] = hugging_face(folder, hf={"config": ["gpt2.json"]} | changes, attention=["sdpa"]).runs
        return run.model_dump()

    assert measure_plain_loss(run_of({}), cpu) is None
    run = run_of(off)
    plain = measure_plain_loss(run, cpu)
    assert plain == pytest.approx(probes.measure_trained_loss(Stepper(run, cpu), TRAINED_STEPS), rel=1e-5)
    first = probes.measure_trained_loss(Stepper(run, cpu), 0)
    assert plain < first, "it trains"


@pytest.mark.long
def test_models_of_hugging_face_share_their_weights_by_turns(folder, one_thread):
    """The weights of a GPT-2's embedding and of its head are one, and stay one."""
    import torch

    from profiler_job.jobs.worker.stepper import Stepper

    importlib.invalidate_caches()
    (folder / "gpt2.json").write_text(json.dumps(json.loads((EXAMPLES / "gpt2.json").read_text()) | TINY["gpt2.json"]))
    runs = hugging_face(folder, hf={"config": ["gpt2.json"]}, attention=["naive", "sdpa"]).runs
    first = Stepper(runs[0].model_dump(), torch.device("cpu"))
    first.step()
    second = Stepper(runs[1].model_dump(), torch.device("cpu"), shared=first)
    assert second.model.lm_head.weight is second.model.transformer.wte.weight is first.model.lm_head.weight
    assert [*map(id, first.model.parameters())] == [*map(id, second.model.parameters())]
    before = first.model.lm_head.weight.detach().clone()
    second.step()
    assert not torch.equal(before, first.model.lm_head.weight)


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    known = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "400", "PYTHONDONTWRITEBYTECODE": "1"} | environment
    program = [sys.executable, "-m", "profiler_job", *arguments]
    return subprocess.run(program, cwd=folder, env=known, capture_output=True, text=True, timeout=HANGS_S)


def test_the_sweep_on_the_page_is_the_example():
    assert (EXAMPLES / "hugging_face.yaml").read_text() in blocks("yaml")


@pytest.mark.nightly
def test_the_page_s_commands_plan_the_examples_as_they_are():
    """With their memory: none is n/a. What the page measures needs a GPU."""
    commands = [line.split() for line in next(b for b in blocks("console") if "hugging_face" in b).splitlines()]
    assert commands[0] == ["cd", "site/examples"]
    for _, command, *arguments in commands[1:]:
        patient = ["--memory"] if "--memory" not in arguments else []  # which waits longer, on a busy machine
        planned = start(EXAMPLES, "plan", *arguments[: -2 if command == "run" else None], *patient)
        assert planned.returncode == 0, planned.stderr
        assert "memory is the peak allocated of a simulation" in planned.stdout and "is n/a" not in planned.stdout


@pytest.mark.long
def test_hugging_face_models_are_measured_and_ingested(folder, fake_nsys):
    hugging_face(folder, warmup_steps=2, measured_steps=2, profiled_steps=3, processes=1, attention=["sdpa"])
    done = start(folder, "run", "--sweep", "changed.yaml", "--device", "cpu", "--results", "results")
    assert done.returncode == 0, done.stdout + done.stderr
    done = start(folder, "ingest", "results/hugging-face", "--out", "recording")
    assert done.returncode == 0, done.stderr
    runs = store.load(folder / "recording").runs
    assert set(runs["run_id"]) == {f"{model}-ctx16-fp32-sdpa-train_step-hf" for model in ("gpt2", "llama")}
    assert set(runs["status"]) == {"ok"} and set(runs["workload"]) == {"hf"} and set(runs["workload_options"]) == {""}
    assert all(said.startswith(f"{size}.json sha256:") for size, said in zip(runs["size"], runs["workload_config"]))


@pytest.mark.long
@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"hf": {"n_layers": [1]}}, "hf.n_layers: unknown key of a configuration of gpt2; it has .*n_layer"),
        ({"hf": {"num_hidden_layers": [0.5]}}, "hf.num_hidden_layers: should be int, as gpt2 says, not 0.5"),
    ],
)
def test_a_change_that_a_configuration_does_not_have_is_refused(folder, changes, problem):
    hugging_face(folder, **changes)
    done = start(folder, "plan", "--sweep", "changed.yaml")
    assert done.returncode == 2
    assert re.search(problem, " ".join(done.stderr.split()))


@pytest.mark.long
def test_without_transformers_one_line_says_what_to_install(folder):
    first = folder / "first"
    first.mkdir()
    (first / "transformers.py").write_text("raise ModuleNotFoundError(\"No module named 'transformers'\")")
    hugging_face(folder)
    done = start(folder, "plan", "--sweep", "changed.yaml", PYTHONPATH=f"{first}{os.pathsep}{ROOT}")
    said = " ".join(done.stdout.split())
    assert done.returncode == 0 and f"No module named 'transformers'); {install_command('hf')}" in said
