"""`profile`: somebody's own script on the CPU, with the fake nsys. What is captured was recorded elsewhere; what is
noted inside the script is its own."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ResultsError, ingest
from profiler_job.analysis.recording.merge import merge
from profiler_job.jobs.cli.follow_up import StepFailed
from profiler_job.jobs.cli.script_name import default_name
from profiler_job.jobs.contract.extras import install_command
from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.nodes import find_node
from tests.jobs.conftest import ROOT, write_no_pages
from tests.ports import find_free_ports
from tests.waiting import HANGS_S, has_ended
from tests.without_compiler import WITHOUT_COMPILER

HEAD = (
    WITHOUT_COMPILER
    + """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
"""
)
TRAIN = (
    HEAD
    + """
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(240, 8), torch.randint(0, 4, (240,)))
for step, (x, y) in enumerate(DataLoader(data, batch_size=8, num_workers=WORKERS)):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("loss", step, loss.item().hex(), flush=True)
print("the end")
"""
)

DDP = (
    HEAD
    + """
import os
from torch import distributed
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    IN_STEP
    optimizer.step()
    print(f"loss {rank} {step} {loss.item().hex()}\\n", end="", flush=True)
distributed.destroy_process_group()
"""
)
"""Two processes, which `torchrun` starts."""
GLOO_ABORTED = "terminate called without an active exception"
"""What PyTorch 2.13 prints, with no hook of ours too, where a thread of Gloo lets go of a tensor while Python ends
(pytorch/pytorch#190489): one start in ten on a busy machine, one in sixty with the process group destroyed."""


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def ddp(in_step: str = "", num_steps: int = 40) -> str:
    return DDP.replace("IN_STEP", in_step).replace("STEPS", str(num_steps))


def with_compiler(source: str) -> str:
    """A script as somebody has it, with all of PyTorch."""
    return source.replace(WITHOUT_COMPILER, "")


def losses(printed: str) -> list[str]:
    return re.findall(r"^loss (.*)$", printed, re.MULTILINE)


@pytest.fixture
def followed(tmp_path):
    """Runs a script as `profile` does, without nsys: what it printed, its exit code, and what was noted."""

    def run(source: str, *command: str, **plan) -> tuple[str, int, dict]:
        (tmp_path / "train.py").write_text(source)
        out = tmp_path / "noted"
        plan = {"out": str(out), "skip": 3, "steps": 3, "followed": 2, "step": "auto", "goes_on": False} | plan
        environment = os.environ | {"PYTHONPATH": str(script.INJECTED), script.FOLLOW: json.dumps(plan)}
        for _ in range(3):
            shutil.rmtree(out, ignore_errors=True)
            done = subprocess.run(
                command or (sys.executable, "train.py"),
                cwd=tmp_path,
                env=environment | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )
            if GLOO_ABORTED not in done.stderr:
                break
        run.ranks = script.read_noted(out)
        return done.stdout + done.stderr, done.returncode, next(iter(run.ranks), {})

    return run


@pytest.fixture
def profile(tmp_path, fake_nsys):
    """Starts `profile` of a script in a folder of its own."""

    def start(source: str, *options: str, launcher: tuple[str, ...] = (), program: Path = ROOT) -> subprocess.Popen:
        (tmp_path / "train.py").write_text(source)
        command = [sys.executable, "-m", "profiler_job", "profile", "--results", "results", *options]
        return subprocess.Popen(
            [*command, "--", sys.executable, *launcher, "train.py", "--lr", "1e-3"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(program), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def ended(process: subprocess.Popen) -> tuple[str, int]:
    printed, _ = process.communicate(timeout=HANGS_S)
    return printed, process.returncode


@pytest.mark.long
def test_a_script_ends_with_its_recording_and_its_site(profile, tmp_path):
    printed, code = ended(profile(with_compiler(TRAIN.replace("WORKERS", "2")), "--skip", "3", "--steps", "3"))
    assert code == 0, printed
    assert "11 steps were followed, the script ends here" in printed and "the end" not in printed
    runs = store.load(tmp_path / "results" / "recordings" / "train").runs
    assert list(runs["run_id"]) == ["train"]
    assert runs.iloc[0][["size", "mode", "precision", "workload", "optimizer"]].tolist() == [
        "Sequential",
        "train_step",
        "fp32",
        "script",
        "AdamW",
    ]
    assert runs["num_parameters"].tolist() == [8 * 16 + 16 + 16 * 4 + 4]
    page = (tmp_path / "results" / "site" / "index.html").read_text()
    assert "A step takes" in page and "Question" not in page
    kept = b"".join(file.read_bytes() for file in (tmp_path / "results" / "train").rglob("*") if file.is_file())
    assert b"--lr" not in kept, "arguments stay in nsys's own report"
    assert (tmp_path / "results" / "raw" / "train" / "train.nsys-rep").is_file()


PAGE = ROOT / "site" / "guide" / "profile.md"
COMMANDS = re.findall(r"^profiler-job (profile .*?)(?:\s+#.*)?$", PAGE.read_text(), re.MULTILINE)
LONGER = TRAIN.replace("WORKERS", "2").replace("240", "1000")
RANGED = (
    LONGER.replace(
        "model =", "import types\ntorch.cuda.nvtx._nvtx = types.SimpleNamespace(rangePushA=len, rangePop=int)\nmodel ="
    )
    .replace("    loss =", "    torch.cuda.nvtx.range_push('my_step')\n    loss =")
    .replace("    optimizer.step()", "    optimizer.step()\n    torch.cuda.nvtx.range_pop()")
)
"""With a range of its own around each step; where there is no CUDA, PyTorch has no NVTX, and this stands in for it."""
ASKS = HEAD + "with torch.inference_mode():\n    for i in range(60): print('loss', i, model(torch.ones(2, 8)).sum())"


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_end_with_a_recording_and_a_site(tmp_path, fake_nsys, command):
    """As they stand there, but for two processes in place of eight; `torchrun` stands in for `accelerate launch`. What
    such a site shows is told of one script, and of one with two ranks, above and below."""
    is_of_ranks = "torchrun" in command or "accelerate" in command
    trains = ddp() if is_of_ranks else RANGED if "my_step" in command else LONGER
    for name, source in {"train.py": trains, "generate.py": ASKS, "my/train.py": trains}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    programs = tmp_path / "programs"
    programs.mkdir()
    write_no_pages(programs)
    (programs / "accelerate").write_text(f'#!/bin/sh\nexec "{sys.executable}" {" ".join(TORCHRUN)} train.py\n')
    (programs / "accelerate").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    ranks = {"FAKE_NSYS_RANKS": "2"} if is_of_ranks else {}
    done = subprocess.run(
        [sys.executable, "-m", "profiler_job", *shlex.split(re.sub(r"\b8\b", "2", command))],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": f"{programs}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"} | ranks,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (manifest,) = (tmp_path / "results" / "recordings").glob("[!.]*/manifest.json")
    recording = manifest.parent
    said = {name: int(number) for name, number in re.findall(r"--(skip|steps) (\d+)", command)}
    loaded = store.load(recording)
    assert loaded.runs["run_id"].tolist() == [recording.name]
    assert loaded.runs["warmup_steps"].tolist() == [said.get("skip", 10)]
    timed = loaded.steps.query("collector == 'timer' and rank == 0")
    assert timed["step"].nunique() == said.get("steps", 5)
    assert (tmp_path / "results" / "site" / "index.html").is_file()
    assert ("the end" in done.stdout) == ("--go-on" in command)


@pytest.mark.long
def test_without_what_a_site_needs_it_ends_with_a_summary_and_names_the_command(profile, tmp_path):
    """As in an environment without extra `site`."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "from profiler_job.jobs.contract import extras\nextras.MODULES['site'] = ('no_such_module',)\n"
    )
    options = ("--skip", "3", "--steps", "3", "--name", "my-run")
    printed, code = ended(profile(TRAIN.replace("WORKERS", "0"), *options, program=hidden))
    assert code == 0, printed
    assert "Kernel families" in printed and "error" not in printed
    first, last = (at for at, line in enumerate(printed.splitlines()) if install_command("site") in line)
    assert first == 0 and "results/recordings/my-run" in printed.splitlines()[last]
    assert store.load(tmp_path / "results" / "recordings" / "my-run").runs["run_id"].tolist() == ["my-run"]
    assert not (tmp_path / "results" / "site").exists()


def test_a_report_that_cannot_be_made_says_how_to_make_it_later(tmp_path, monkeypatch):
    noted = {"steps": [{"host_ns": 1}], "captured_ns": [1], "followed_ns": [1], "exit_code": 0}
    noted |= {"rank": 0, "ranks": 1, "world": 1}
    monkeypatch.setattr(
        "profiler_job.jobs.cli.profile_command.measure", lambda followed, results: (results / followed.name, noted)
    )
    monkeypatch.setattr(
        "profiler_job.jobs.cli.measure_script.ingest", lambda *_: (_ for _ in ()).throw(StepFailed("no space"))
    )
    done = CliRunner().invoke(app, ["profile", "--results", str(tmp_path / "re sults"), "--", "python", "train.py"])
    assert done.exit_code == 70
    results = f"{tmp_path}/re sults"
    assert f"profiler-job ingest '{results}/train' --out '{results}/recordings/train'" in done.output
    assert f"profiler-job site --recording '{results}/recordings/train'" in done.output


@pytest.mark.long
def test_losses_are_the_same_to_the_bit(followed, tmp_path):
    printed, code, noted = followed(with_compiler(TRAIN.replace("WORKERS", "0")), goes_on=True)
    assert code == 0 and printed.rstrip().endswith("the end") and noted["stage"] == "done"
    bare = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert losses(printed) == losses(bare.stdout) and len(losses(printed)) == 30


def test_a_project_may_have_packages_of_our_names(followed, tmp_path):
    for name in ("jobs", "analysis", "follow", "module_ranges"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True")
    source = "import jobs, analysis, follow, module_ranges\nassert jobs.mine and follow.mine\n" + TRAIN
    printed, code, noted = followed(source.replace("WORKERS", "0"))
    assert code == 0, printed
    assert noted["stage"] == "done" and len(noted["steps"]) == 3


def test_a_script_may_ask_for_torch_before_it_imports_it(followed):
    asks = "from importlib.util import find_spec\nassert find_spec('torch') and find_spec('torch')\n"
    printed, code, noted = followed(asks + TRAIN.replace("WORKERS", "0"))
    assert code == 0 and noted.get("stage") == "done", printed


@pytest.mark.long
def test_autocast_is_known_where_it_is_compiled_with_the_model(followed):
    inside = "model.forward = torch.autocast('cpu', torch.bfloat16)(model.forward)\n"
    inside += "model = torch.compile(model, backend='eager')\n"
    source = with_compiler(TRAIN).replace("WORKERS", "0").replace("optimizer =", f"{inside}optimizer =", 1)
    printed, code, noted = followed(source)
    assert code == 0 and noted["compiled"] and noted["autocast"] == "torch.bfloat16", printed


@pytest.mark.long
def test_a_sitecustomize_of_the_users_own_runs_as_ever(followed, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.mine = True")
    monkeypatch.setattr(script, "INJECTED", f"{script.INJECTED}{os.pathsep}{tmp_path / 'own'}")
    printed, code, noted = followed("import sys\nassert sys.mine\n" + TRAIN.replace("WORKERS", "0"))
    assert code == 0 and noted["stage"] == "done", printed


@pytest.mark.long
@pytest.mark.parametrize("own", ["import torch", "raise RuntimeError('broken')"])
def test_a_sitecustomize_may_import_torch_or_be_broken(followed, tmp_path, monkeypatch, own):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(own)
    monkeypatch.setattr(script, "INJECTED", f"{script.INJECTED}{os.pathsep}{tmp_path / 'own'}")
    printed, code, noted = followed(TRAIN.replace("WORKERS", "0"))
    assert code == 0 and noted.get("stage") == "done", printed
    assert ("RuntimeError: broken" in printed) == ("broken" in own), "Python says so as ever"


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-m", "train"),
        ("sh", "-c", f"'{sys.executable}' train.py"),
        (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "train.py"),
    ],
    ids=["module", "shell", "torchrun"],
)
def test_a_script_may_be_started_in_other_ways(followed, command):
    printed, code, noted = followed(TRAIN.replace("WORKERS", "0"), *command)
    assert code == 0 and noted["stage"] == "done" and noted["seen"] == 11, printed


def test_workers_of_a_data_loader_are_not_followed(followed):
    printed, code, noted = followed(TRAIN.replace("WORKERS", "2"))
    assert code == 0, printed
    assert noted["seen"] == 11 and noted["optimizers"] == ["AdamW"]


SPAWNING = (
    WITHOUT_COMPILER
    + """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Normalized(torch.utils.data.Dataset):
    def __init__(self): self.normalize = nn.LayerNorm(8)
    def __len__(self): return 160
    def __getitem__(self, i): return self.normalize(torch.full((8,), float(i)).log1p()).detach()

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(DataLoader(Normalized(), batch_size=8, num_workers=1, multiprocessing_context="spawn")):
        loss = model(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", step, flush=True)
"""
)


@pytest.mark.long
def test_calls_of_modules_in_a_spawned_worker_are_no_steps(followed):
    """A spawned worker imports torch anew and knows nothing of the script's optimizer."""
    printed, code, noted = followed(SPAWNING)
    assert code == 0 and len(losses(printed)) == 10, printed
    assert noted["seen"] == 11 and noted["optimizers"] == ["SGD"]


@pytest.mark.long
def test_several_optimizers_make_a_step_of_the_one_that_steps_least(followed):
    source = (
        HEAD
        + """
often = torch.optim.SGD(model[0].parameters(), lr=0.1)
seldom = torch.optim.Adam(model[2].parameters())
for step in range(40):
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        often.step()
    model(torch.randn(4, 8)).sum().backward()
    seldom.step()
    print("loss", step)
"""
    )
    printed, code, noted = followed(source)
    assert code == 0 and len(losses(printed)) == 10, printed
    assert noted["optimizers"] == ["SGD", "Adam"] and noted["forwards"] == 4


@pytest.mark.long
def test_a_closure_is_no_part_of_the_optimizer(followed):
    source = (
        HEAD
        + """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().sum()
    loss.backward()
    return loss
for step in range(40):
    print("loss", step, float(optimizer.step(closure)).hex(), flush=True)
"""
    )
    printed, code, noted = followed(source)
    assert code == 0 and noted["stage"] == "done" and noted["forwards"] >= 1, printed


@pytest.mark.long
@pytest.mark.parametrize("step, expected", [("auto", 11), ("forward", 11)])
def test_without_an_optimizer_a_step_is_a_call_of_the_model(followed, step, expected):
    printed, code, noted = followed(ASKS, step=step)
    assert code == 0 and noted["stage"] == "done" and noted["seen"] == expected, printed
    assert noted["optimizers"] == [] and noted["training"] is False


@pytest.mark.long
def test_each_call_by_the_script_ends_a_step_and_no_call_inside_another_does(followed):
    """A part that is called alone is called inside the whole, too; one call in between raises and is caught."""
    calls = """
with torch.inference_mode():
    for i in range(30):
        part = model[0](torch.ones(2, 8))
        try:
            model(torch.ones(2, 3))
        except RuntimeError:
            pass
        print("loss", i, model(torch.ones(2, 8)).sum())
"""
    printed, code, noted = followed(HEAD + calls)
    assert code == 0 and noted["stage"] == "done" and noted["seen"] == 11, printed
    assert len(noted["steps"]) == 3
    assert printed.count("loss 4 ") == 1 and printed.count("loss 7 ") == 0, "two of its calls are two steps"


def test_a_script_that_crashes_says_how_far_it_came(profile, tmp_path):
    source = TRAIN.replace("WORKERS", "0").replace("    loss.backward()", "    assert step < 3\n    loss.backward()")
    printed, code = ended(profile(source))
    assert code == 1
    assert "AssertionError" in printed, "what the script prints is seen"
    assert "ended (exit code 1) after 3 steps, and 22 are needed" in " ".join(printed.split())
    assert not (tmp_path / "results" / "train").exists()


@pytest.mark.parametrize(
    "source", ["print('hello')", HEAD + "print(model[0].weight.sum())"], ids=["no torch", "no call"]
)
def test_a_script_that_never_calls_a_module_is_told_so(profile, source):
    printed, code = ended(profile(source))
    assert code == 1
    assert "took no step that PyTorch knows of" in " ".join(printed.split())


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_what_is_interrupted_leaves_no_process_and_keeps_the_last_profile(profile, tmp_path, number, code):
    kept = tmp_path / "results" / "train" / "kept"
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    (kept.parent / "sweep.json").write_text('{"script": true}')
    endless = TRAIN.replace("WORKERS", "0").replace(
        "    optimizer.step()", "    import os, time; print(os.getpid(), flush=True); time.sleep(9999)"
    )
    process = profile(endless)
    pid = int(next(line for line in process.stdout if line.strip().isdigit()))
    process.send_signal(number)
    printed, found = ended(process)
    assert found == code, printed
    assert has_ended(pid)
    assert kept.exists()


@pytest.mark.long
def test_each_rank_is_followed_and_computes_what_it_does_alone(followed, tmp_path):
    for launcher in ((str(Path(sys.executable).parent / "torchrun"), *TORCHRUN[2:]), (sys.executable, *TORCHRUN)):
        printed, code, noted = followed(ddp(num_steps=14), *launcher, "train.py", goes_on=True)
        assert code == 0, printed
        assert [(one["rank"], one["ranks"], one["stage"]) for one in followed.ranks] == [(0, 2, "done"), (1, 2, "done")]
        assert {len(one[kind]) for one in followed.ranks for kind in ("steps", "captured_ns")} == {3}
        assert noted["model"] == "Sequential", "not what wraps it"
        computed = sorted(losses(printed))
        if launcher[0] != sys.executable:
            bare = subprocess.run([*launcher, "train.py"], cwd=tmp_path, capture_output=True, text=True)
            alone = sorted(losses(bare.stdout))
        assert computed == alone and len(computed) == 28, launcher


ACCUMULATING = (
    HEAD.replace("nn.GELU()", "nn.GELU(), nn.Dropout(0.1)")
    + """
import os
from contextlib import nullcontext
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 8), torch.randint(0, 4, (640,)))
for step, (x, y) in enumerate(DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=True))):
    is_synchronized = step % 2 == 1
    with nullcontext() if is_synchronized else model.no_sync(), torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    if is_synchronized:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    weights = sum(parameter.double().sum() for parameter in model.parameters()).item().hex()
    drawn = torch.get_rng_state().sum().item()
    print(f"loss {rank} {step} {loss.item().hex()} {weights} {drawn}\\n", end="", flush=True)
distributed.destroy_process_group()
"""
)
"""Two processes that send their gradients in every other batch, as under `accelerate`."""


@pytest.mark.long
def test_ranks_that_accumulate_gradients_draw_and_compute_what_they_do_alone(followed, tmp_path):
    """To the bit, before, between and after all kinds of steps: losses, weights and the state of random numbers."""
    command = (sys.executable, *TORCHRUN, "train.py")
    printed, code, _ = followed(ACCUMULATING, *command, goes_on=True)
    assert code == 0, printed
    assert [(one["stage"], one["forwards"]) for one in followed.ranks] == [("done", 2)] * 2
    bare = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert sorted(losses(printed)) == sorted(losses(bare.stdout)) and len(losses(printed)) == 80


@pytest.mark.long
def test_two_ranks_end_with_a_recording_of_both(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NSYS_RANKS", "2")
    printed, code = ended(profile(with_compiler(ddp()), "--skip", "3", "--steps", "3", launcher=TORCHRUN))
    assert code == 0, printed
    assert printed.count("11 steps were followed, the script ends here") == 1
    recording = store.load(tmp_path / "results" / "recordings" / "train")
    for table in (recording.steps.query("collector == 'timer'"), recording.kernels, recording.ranges):
        assert set(table["rank"]) == {0, 1}
    assert recording.steps.groupby(["rank", "collector"], observed=True)["step"].nunique().tolist() == [3] * 4
    page = (tmp_path / "results" / "site" / "index.html").read_text()
    assert "By rank" in page and "sums over 2 ranks" in page


@pytest.mark.long
def test_each_of_two_machines_ends_with_a_recording_of_its_own_ranks(profile, tmp_path, monkeypatch):
    """Both are this one, with a rank each: the same command but for the number of the machine."""
    rendezvous = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(*find_free_ports(1)))
    started = []
    for node in range(2):
        monkeypatch.setenv("FAKE_NSYS_RANK", f"{node} of 2")
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "1", *rendezvous, "--node-rank", str(node))
        started.append(profile(ddp(), "--skip", "3", "--steps", "3", launcher=launcher))
    for node, process in enumerate(started):
        printed, code = ended(process)
        assert code == 0, printed
        said = " ".join(printed.split())
        assert f"rank {node} of 2 measured: the other machines have recordings of their own" in said
        recording = store.load(tmp_path / "results" / "recordings" / f"train-node-{node}")
        assert recording.runs["gpus"].tolist() == [2]
        for table in (recording.steps, recording.kernels, recording.ranges):
            assert set(table["rank"]) == {node}
        page = (tmp_path / "results" / f"site-node-{node}" / "index.html").read_text()
        assert f"Of a run of 2 ranks this is one machine's part: rank {node}." in page.replace("’", "'")
    nodes = [tmp_path / "results" / f"train-node-{node}" for node in range(2)]
    assert merge(nodes[::-1], tmp_path / "results" / "train").runs == ["train"]
    ingest(tmp_path / "results" / "train", tmp_path / "joined")
    joined = store.load(tmp_path / "joined")
    assert joined.runs["run_id"].tolist() == ["train"] and joined.runs["gpus"].tolist() == [2]
    for name in ("steps", "kernels", "ranges"):
        parts = [len(getattr(store.load(tmp_path / "results" / "recordings" / node.name), name)) for node in nodes]
        assert getattr(joined, name).groupby("rank").size().tolist() == parts
    assert joined.kernels.groupby("rank")["node"].unique().tolist() == [[0], [1]]
    assert not joined.ranges["range_id"].duplicated().any()
    with pytest.raises(ResultsError, match="no folder has rank 1"):
        merge(nodes[:1], tmp_path / "results" / "half")


@pytest.mark.long
def test_a_capture_that_lacks_a_rank_is_refused(profile):
    printed, code = ended(profile(ddp(), "--skip", "3", "--steps", "3", launcher=TORCHRUN))
    assert code == 1
    assert "nsys recorded steps of 1 process, and 2 took them" in " ".join(printed.split())


@pytest.mark.long
@pytest.mark.parametrize("died", ["os._exit(7)", "os.kill(os.getpid(), 9)", "int('died')"])
def test_a_rank_that_dies_ends_all(profile, tmp_path, died):
    source = ddp(f"Path(f'pid{{rank}}').write_text(str(os.getpid())); step == 5 and rank and {died}")
    source = "from pathlib import Path\n" + source
    printed, code = ended(profile(source, "--skip", "3", "--steps", "3", launcher=TORCHRUN))
    assert code == 1
    assert "and 11 are needed" in " ".join(printed.split()), printed
    assert all(has_ended(int((tmp_path / f"pid{rank}").read_text())) for rank in (0, 1))
    assert not (tmp_path / "results" / "train").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "number, code, is_deaf", [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGINT, 130, True)]
)
def test_what_is_interrupted_leaves_no_rank(profile, number, code, is_deaf):
    """One of them sleeps and the other waits for it; torchrun gives those that hear no signal half a minute."""
    ignore = "import signal; [signal.signal(number, signal.SIG_IGN) for number in (2, 15)]; " if is_deaf else ""
    wait = ignore + r"print(f'{os.getpid()}\n', end='', flush=True); import time; rank and time.sleep(9999)"
    process = profile(ddp(wait), launcher=TORCHRUN)
    lines = (line.strip() for line in process.stdout)
    pids = [int(next(line for line in lines if line.isdigit())) for _ in range(2)]
    process.send_signal(number)
    printed, found = ended(process)
    assert found == code, printed
    assert all(map(has_ended, pids))


@pytest.mark.long
def test_of_scripts_one_after_the_other_the_first_is_followed(followed):
    source = TRAIN.replace("WORKERS", "0")
    command = f"'{sys.executable}' train.py && echo second && '{sys.executable}' train.py"
    printed, code, noted = followed(source, "sh", "-c", command)
    assert code == 0 and noted["stage"] == "done" and noted["seen"] == 11
    assert len(losses(printed.partition("second")[2])) == 30, "the other runs to its end"


def test_a_second_signal_kills_nsys_and_the_script_at_once(tmp_path, monkeypatch):
    """One that ends on no other signal."""
    source = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True)"
    command = [sys.executable, "-c", f"{source}; time.sleep(9999)"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"

    def interrupted(patience_s=None):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        script.end_group(process, "")
    assert process.returncode == -signal.SIGKILL


def test_a_sweep_of_the_name_is_not_replaced(profile, tmp_path):
    kept = tmp_path / "results" / "train" / "shard-1-of-2" / "sweep.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    printed, code = ended(profile(TRAIN))
    assert code == 2 and "choose another --name" in " ".join(printed.split())
    assert kept.exists()


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "victim").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / ".train.draft").symlink_to(tmp_path / "victim")
    monkeypatch.setattr(script.shutil, "which", lambda name: name)
    monkeypatch.setattr(script, "run_under_nsys", lambda followed, folder: 1)
    followed = script.Script(command=["train"], name="train", skip=1, steps=2, step="auto", goes_on=False)
    with pytest.raises(script.ScriptFailed):
        script.measure(followed, tmp_path / "results")
    assert not any((tmp_path / "victim").iterdir())


def test_nsys_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "profiler_job", "profile", "--results", str(tmp_path), "--", "python", "train.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 69 and "`profiler-job install-nsys`" in done.stderr


SLURM = {"SLURM_NODEID": "3", "SLURM_NNODES": "4"}


@pytest.mark.parametrize(
    "command, environment, node",
    [
        ("torchrun --nnodes 2 --node-rank 1 train.py", {}, 1),
        ("torchrun --nnodes=1:4 --node_rank=0 train.py", {}, 0),
        ("accelerate launch --num_machines 2 --machine_rank 1 train.py", {}, 1),
        ("torchrun --nnodes 4 --rdzv-backend c10d train.py", SLURM, 3),
        ("torchrun --nnodes 2 train.py", {"SKYPILOT_NODE_RANK": "1"}, 1),
        ("torchrun train.py", SLURM, None),
        ("torchrun train.py", {"PET_NODE_RANK": "1", "PET_NNODES": "2"}, 1),
        ("torchrun --nnodes 1 train.py", SLURM, None),
        ("torchrun --nnodes 2 train.py", {}, None),
        ("torchrun train.py", {"PET_NNODES": "1", "PET_NODE_RANK": "0"}, None),
        ("torchrun --node-rank here --nnodes 2 train.py", {}, None),
        ("python train.py", {}, None),
    ],
)
def test_which_of_several_machines_this_is_comes_from_the_launcher_or_the_engine(command, environment, node):
    assert find_node(command.split(), environment) == node


@pytest.mark.parametrize(
    "command, name",
    [
        (["python", "train.py", "--name", "x"], "train"),
        (["python", "-u", "src/run_clm.py"], "run_clm"),
        (["python", "-m", "nanochat.train"], "nanochat.train"),
        (["torchrun", "--nproc-per-node=1", "train.py"], "train"),
        (["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"], "train"),
        (["torchrun", "--nproc-per-node", "2", "-m", "my.train"], "my.train"),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], "train"),
        (["accelerate", "launch", "--num_processes", "2", "train.py", "evaluate.py"], "train"),
        (["./train.sh"], "train"),
        (["python", "my train.py"], "my-train"),
        (["python", "_train.py"], "train"),
        (["python", "x" * 80 + ".py"], "x" * 64),
        (["python", "site.py"], "site-script"),
        (["python", "-c", "import train; train.main()"], "script"),
        (["python", "-"], "python"),
    ],
)
def test_results_are_named_after_the_script(command, name):
    assert default_name(command) == name
