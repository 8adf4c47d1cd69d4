"""`profile`: somebody's own script on the CPU, with the fake nsys. What is captured was recorded elsewhere; what is
noted inside the script is its own."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import store
from profiler_job.jobs.cli.follow_up import StepError
from profiler_job.jobs.cli.script_notes import describe_captured, describe_compiled
from profiler_job.jobs.contract.compiling import Compiling, GraphBreak, Recompilation
from profiler_job.jobs.contract.extras import install_command
from profiler_job.jobs.executor import script
from tests.jobs.conftest import ROOT, write_no_pages
from tests.jobs.profiled_scripts import ASKS, HEAD, TORCHRUN, TRAIN, ddp, ended, with_compiler
from tests.waiting import HANGS_S, has_ended


@pytest.mark.long
def test_a_script_ends_with_its_recording_and_its_site(profile, tmp_path):
    printed, code = ended(
        profile(with_compiler(TRAIN.replace("WORKERS", "2")), "--skip", "3", "--steps", "3", is_whole=True)
    )
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


@pytest.mark.long
def test_where_graphs_break_is_printed_and_recorded(profile, tmp_path):
    broken = """
import torch
called = model.forward
def forward(x):
    torch._dynamo.graph_break()
    return called(x)
model.forward = forward
model = torch.compile(model, backend="eager")
"""
    source = with_compiler(TRAIN).replace("WORKERS", "0").replace("optimizer =", f"{broken}optimizer =", 1)
    printed, code = ended(profile(source, "--skip", "3", "--steps", "3"))
    assert code == 0, printed
    where = f"train.py:{next(at for at, line in enumerate(source.splitlines(), 1) if 'graph_break()' in line)}"
    assert f"torch.compile broke a graph at {where}: Call to `torch._dynamo.graph_break()`" in printed
    notes = store.load(tmp_path / "results" / "recordings" / "train").compile_notes
    (known,) = notes[notes["kind"] == "graph break"].itertuples()
    assert (known.where, known.function) == (where, "forward")


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
"""A script with an NVTX range around each step, and a fake of NVTX, which PyTorch lacks without CUDA."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.long if "torchrun" in command else pytest.mark.nightly)
        for command in COMMANDS
    ],
)
def test_the_commands_of_the_page_end_with_a_recording_and_a_site(tmp_path, fake_nsys, command):
    """The commands run as on the page, but with two processes in place of eight, and `torchrun` in place of `accelerate
    launch`. Other tests check what such a site shows."""
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
    said = {name: int(number) for name, number in re.findall(r"--(skip|warmup|steps) (\d+)", command)}
    loaded = store.load(recording)
    assert loaded.runs["run_id"].tolist() == [recording.name]
    assert loaded.runs["warmup_steps"].tolist() == [said.get("skip", said.get("warmup", 10))]
    timed = loaded.steps.query("collector == 'timer' and rank == 0")
    assert timed["step"].nunique() == said.get("steps", 5)
    assert (tmp_path / "results" / "site" / "index.html").is_file() == ("--collector events" not in command)
    assert ("the end" in done.stdout) == ("--go-on" in command)


@pytest.mark.long
def test_without_what_a_site_needs_it_ends_with_a_summary_and_names_the_command(profile, tmp_path):
    """The environment lacks extra `site`."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "from profiler_job.jobs.contract import extras\nextras.MODULES['site'] = ('no_such_module',)\n"
    )
    options = ("--skip", "3", "--steps", "3", "--name", "my-run")
    printed, code = ended(profile(TRAIN.replace("WORKERS", "0"), *options, path=hidden))
    assert code == 0, printed
    assert "Kernel families" in printed and not re.search(r"\berror:", printed)
    first, last = (at for at, line in enumerate(printed.splitlines()) if install_command("site") in line)
    assert first == 0 and "results/recordings/my-run" in printed.splitlines()[last]
    assert store.load(tmp_path / "results" / "recordings" / "my-run").runs["run_id"].tolist() == ["my-run"]
    assert not (tmp_path / "results" / "site").exists()


def test_a_report_that_cannot_be_made_says_how_to_make_it_later(tmp_path, monkeypatch):
    noted = {"steps": [{"host_ns": 1}], "captured_ns": [1], "followed_ns": [1], "exit_code": 0}
    noted |= {"rank": 0, "ranks": 1, "world": 1, "evaluations": 0, "trained_models": 1, "skipped_updates": 0}
    noted |= {"optimizers": ["AdamW"], "loops": [], "compiled": False}
    noted |= {"captured_graphs": [], "captured_graphs_error": ""}
    monkeypatch.setattr(
        "profiler_job.jobs.cli.measure_script.attempt", lambda followed, results: (results / followed.name, noted)
    )
    monkeypatch.setattr(
        "profiler_job.jobs.cli.measure_script.ingest", lambda *_: (_ for _ in ()).throw(StepError("no space"))
    )
    done = CliRunner().invoke(app, ["profile", "--results", str(tmp_path / "re sults"), "--", "python", "train.py"])
    assert done.exit_code == 70
    results = f"{tmp_path}/re sults"
    assert f"profiler-job ingest '{results}/train' --out '{results}/recordings/train'" in done.output
    assert f"profiler-job site --recording '{results}/recordings/train'" in done.output


def test_graphs_that_a_script_captures_are_printed_with_what_the_driver_does_not_show():
    printed = describe_captured({"captured_graphs": [1306, 0, 2, 3, 4, 5], "captured_graphs_error": "gone"})
    assert len(printed) == 2 and "1,306, 2, 3, 4, ..." in printed[0] and "gone" in printed[1]
    assert describe_captured({"captured_graphs": [0], "captured_graphs_error": ""}) == []


def test_why_kernels_of_compiled_code_have_no_modules_is_printed():
    (line,) = describe_compiled(Compiling(graphs=3, compiled_autograd="no GmWrapper"), True)
    assert line.startswith("compiled autograd") and line.endswith("(no GmWrapper)")
    assert describe_compiled(Compiling(graphs=3), True) == []
    (line,) = describe_compiled(Compiling(graphs=3, errors=["KeyError: 'x'", "skip_code: \x1b[2J"]), True)
    assert line.endswith("some graphs do not say which module is in which kernel (KeyError: 'x'; skip_code: \ufffd[2J)")
    (line,) = describe_compiled(Compiling(graphs=0, errors=["ImportError: no debug"]), True)
    assert line == "torch.compile: no graph of Inductor says which module is in which kernel (ImportError: no debug)"


def test_that_a_cache_of_graphs_was_not_read_is_said_where_none_was():
    (line,) = describe_compiled(Compiling(graphs=3, seconds=41.3), True)
    assert line == "torch.compile took 41 s, as in each start: PyTorch's cache of graphs is not read"
    first, second = describe_compiled(Compiling(graphs=1, seconds=41.3, cached_graphs=2), True)
    assert first == "torch.compile took 41 s" and "2 graphs from a cache" in second


@pytest.mark.parametrize("num", [3, 10, 11, 14])
def test_reasons_of_graph_breaks_are_printed_and_how_many_there_are_more(num):
    breaks = [GraphBreak(reason=f"reason {at}", where=f"train.py:{at}", function="main") for at in range(num)]
    lines = describe_compiled(Compiling(graphs=3, breaks=breaks), True)
    assert lines[:10] == [f"torch.compile broke a graph at train.py:{at}: reason {at}" for at in range(min(num, 10))]
    more = {11: ["and 1 more graph break"], 14: ["and 4 more graph breaks"]}
    assert [line.partition(":")[0] for line in lines[10:]] == more.get(num, [])


def test_graphs_that_are_compiled_in_measured_steps_are_printed():
    (line,) = describe_compiled(Compiling(graphs=3, late_graphs=2), True)
    assert "2 graphs in the measured steps" in line


def test_what_is_compiled_again_is_printed_once_with_the_last_guard_that_failed():
    again = [Recompilation(reason=reason, where="train.py:8", function="forward") for reason in ("first", "last")]
    gave_up = Recompilation(reason="often", function="score", gave_up=True)
    one, other = describe_compiled(Compiling(graphs=3, recompilations=[*again, gave_up]), True)
    assert one == "torch.compile compiled forward (train.py:8) again in measured steps: last"
    assert other == "torch.compile compiled score too often and gave it up: often"


@pytest.mark.long
def test_a_script_that_crashes_says_how_far_it_came(profile, tmp_path):
    source = TRAIN.replace("WORKERS", "0").replace("    loss.backward()", "    assert step < 3\n    loss.backward()")
    printed, code = ended(profile(source))
    assert code == 1
    assert "AssertionError" in printed, "what the script prints is seen"
    assert "ended (exit code 1) after 3 of the 22 steps that are needed" in " ".join(printed.split())
    assert not (tmp_path / "results" / "train").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "source", ["print('hello')", HEAD + "print(model[0].weight.sum())"], ids=["no torch", "no call"]
)
def test_a_script_that_never_calls_a_module_is_told_so(profile, source):
    printed, code = ended(profile(source))
    assert code == 1
    assert "never called optimizer.step() or a model" in " ".join(printed.split())


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
    monkeypatch.setattr(script, "run_followed", lambda followed, folder: 1)
    followed = script.Script(command=["train"], name="train", skip=1, steps=2, step="auto", goes_on=False)
    with pytest.raises(script.ScriptFailedError):
        script.measure(followed, tmp_path / "results")
    assert not any((tmp_path / "victim").iterdir())


def test_nsys_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "profiler_job", "profile", "--results", str(tmp_path), "--", sys.executable, "train.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 69 and "`profiler-job install-nsys`" in done.stderr
