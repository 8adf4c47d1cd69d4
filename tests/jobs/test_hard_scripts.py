"""Scripts that are followed although they do what most do not. On the CPU, without nsys."""

import subprocess
import sys
import tempfile

import pytest

from profiler_job.analysis.recording import store
from profiler_job.jobs.cli.script_notes import describe_script, describe_skipped, describe_unknown_batch
from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.failures import describe_exit
from tests.jobs.conftest import ROOT
from tests.jobs.profiled_scripts import HEAD, ended

LOOP = (
    HEAD
    + """
optimizer = torch.optim.AdamW(model.parameters())
def step(i):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for i in range(30):
    BODY
print("the end")
"""
)


def loop(body: str, before: str = "") -> str:
    return before + LOOP.replace("    BODY", "\n".join(f"    {line}" for line in body.splitlines()))


@pytest.mark.long
def test_a_script_that_clears_its_environment_is_followed(followed):
    printed, code, noted = followed(loop("step(i)", "import os\nos.environ.clear()\n"))
    assert code == 0 and noted["stage"] == "done", printed


@pytest.mark.long
def test_a_child_without_the_plan_is_left_alone(followed):
    child = """
import os, subprocess, sys
kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "PYTHON"))}
subprocess.run([sys.executable, "-c", "import torch; print('child ok')"], env=kept, check=True)
"""
    printed, code, _ = followed(child)
    assert code == 0 and "child ok" in printed, printed


@pytest.mark.long
def test_an_optimizer_without_a_module_has_its_parameters(followed):
    source = """
import torch
from torch.nn import functional
weights = [torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)]
optimizer = torch.optim.SGD(weights, lr=1e-3)
for i in range(30):
    optimizer.zero_grad()
    functional.cross_entropy(torch.randn(4, 8) @ weights[0] @ weights[1], torch.randint(0, 4, (4,))).backward()
    optimizer.step()
"""
    printed, code, noted = followed(source)
    assert code == 0, printed
    run = script.build_run(noted)
    assert (run["size"], run["mode"], run["num_parameters"]) == ("script", "train_step", 8 * 16 + 16 * 4)
    assert script.build_timings(followed.ranks)["steps"]


@pytest.mark.long
def test_the_flops_of_a_step_of_tokens_are_known(followed):
    """The home of one's own profile had no MFU, though `tune` had one."""
    source = """
import torch
from torch import nn
model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for i in range(30):
    optimizer.zero_grad()
    model(torch.randint(0, 32, (4, 16))).logsumexp(-1).mean().backward()
    optimizer.step()
"""
    printed, code, noted = followed(source)
    assert code == 0, printed
    scalars = {row["figure"]: row["value"] for row in script.build_timings(followed.ranks)["figures"]}
    assert scalars["flops_per_step"] == 6 * 8 * 32 * 4 * 16 == noted["flops_per_token"] * scalars["tokens_per_step"]


@pytest.mark.long
@pytest.mark.parametrize(
    "before",
    ["with torch.no_grad(): other(torch.randn(64, 8))", "other.requires_grad_(False)(torch.randn(64, 8))"],
    ids=["without gradients", "frozen"],
)
def test_a_model_that_is_only_asked_is_not_the_one_that_is_trained(followed, before):
    other = "other = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 4))\noptimizer ="
    printed, code, noted = followed(loop(f"{before}\nstep(i)").replace("optimizer =", other, 1))
    assert code == 0, printed
    assert noted["training"] and noted["num_parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert script.infer_batch(noted) == (8, 0), "one call of eight samples"


@pytest.mark.long
def test_the_inputs_of_several_trained_models_are_not_added_up(followed):
    other = "other = nn.Linear(8, 4)\noptimizer ="
    source = loop("other(torch.randn(8, 8)).sum().backward()\nstep(i)").replace("optimizer =", other, 1)
    printed, code, noted = followed(source)
    assert code == 0, printed
    assert script.infer_batch(noted) == (0, 0)


@pytest.mark.long
def test_a_patch_of_the_script_on_module_calls_stays(followed):
    patch = """if i == 8:
    before = nn.Module.__call__
    calls = [0]
    def patched(self, *args, **options):
        calls[0] += 1
        return before(self, *args, **options)
    nn.Module.__call__ = patched
step(i)
if i == 29: print('calls', calls[0], nn.Module.__call__ is patched)"""
    printed, code, noted = followed(loop(patch), goes_on=True)
    assert code == 0 and noted["stage"] == "done", printed
    assert "calls 88 True" in printed, "22 steps of a model with three parts"


@pytest.mark.long
def test_a_script_that_catches_its_end_is_said_to_go_on(followed):
    printed, code, _ = followed(loop("try: step(i)\nexcept BaseException as error: print(type(error).__name__)"))
    assert code == 0 and "the end" in printed
    assert printed.count("caught SystemExit") == 1 and "goes on alone" in printed


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(4, marks=pytest.mark.long, id="timed"),
        pytest.param(7, id="captured"),
        pytest.param(9, marks=pytest.mark.long, id="followed"),
    ],
)
def test_a_crash_in_the_measured_steps_is_no_success(profile, tmp_path, at):
    source = loop(f"step(i)\nif i == {at}: raise ValueError('boom')")
    printed, code = ended(profile(source, "--skip", "3", "--steps", "3"))
    assert code == 1
    said = " ".join(printed.split())
    assert "boom" in said and f"ended (exit code 1) after {at + 1} of the 11 steps that are needed" in said
    assert not (tmp_path / "results" / "train").exists()


@pytest.mark.long
def test_a_range_that_never_comes_is_named(profile):
    printed, code = ended(profile(loop("step(i)"), "--step", "my_step"))
    assert code == 1 and "closed no NVTX range `my_step`" in " ".join(printed.split())


@pytest.mark.long
def test_a_short_script_is_started_once_more_with_smaller_numbers(profile, tmp_path):
    printed, code = ended(profile(loop("step(i)").replace("range(30)", "range(10)")))
    assert code == 0, printed
    assert "the script takes 10 steps: it is started once more, with --skip 4 --steps 2" in " ".join(printed.split())
    assert store.load(tmp_path / "results" / "recordings" / "train").runs["warmup_steps"].tolist() == [4]


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--steps", "5")], ids=["six steps", "with numbers of the user"])
def test_a_script_with_too_few_steps_is_started_once(profile, options):
    length = "range(10)" if options else "range(6)"
    printed, code = ended(profile(loop("step(i)").replace("range(30)", length), *options))
    assert code == 1 and printed.count("the end") == 1
    assert "let it run longer" in " ".join(printed.split())


@pytest.mark.parametrize("seen", range(30))
def test_smaller_numbers_are_taken_by_the_script_and_are_no_larger_than_asked_for(seen):
    asked = script.Script(command=["train"], name="train", skip=10, steps=5, step="auto", goes_on=False)
    shorter = script.shorten(asked, seen)
    assert (shorter is None) == (seen < 7)
    if shorter:
        assert shorter.num_needed <= max(seen, asked.num_needed) and 1 <= shorter.skip <= 10 and 2 <= shorter.steps <= 5
        assert shorter.num_needed == min(seen, asked.num_needed)


@pytest.mark.long
def test_the_time_of_an_evaluation_is_its_own(followed):
    body = "step(i)\nif i % 5 == 0:\n    with torch.no_grad():\n        for _ in range(6): model(torch.randn(4, 8))"
    printed, code, noted = followed(loop(body), events=True)
    assert code == 0, printed
    phases = {row["phase"] for row in noted["phases"]}
    assert {"evaluation", "forward", "backward", "optimizer"} <= phases
    assert noted["evaluations"] == 6 and describe_script(noted)[0].startswith("evaluation: 6 calls")
    assert script.infer_batch(noted) == (8, 0)


@pytest.mark.long
def test_a_wrapper_that_shifts_its_input_trains_on_one_token_less(followed):
    source = """
import torch
from torch import nn
class Shifts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    def forward(self, ids):
        return nn.functional.cross_entropy(self.net(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
model = Shifts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(30):
    model(torch.randint(0, 16, (4, 33))).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    printed, code, noted = followed(source)
    assert code == 0, printed
    assert script.infer_batch(noted) == (4, 4 * 32) and script.infer_context(noted) == 32


def test_the_prompt_of_generated_text_is_not_its_positions():
    inputs = [("pos", [20], "torch.int64"), ("attention_mask", [2, 24], "torch.int64"), ("ids", [2, 20], "torch.int64")]
    noted = {"inputs": [{"name": name, "shape": shape, "dtype": dtype} for name, shape, dtype in inputs]}
    noted |= {"steps": [{"kind": "decode"}]}
    assert script.infer_batch(noted) == (2, 2) and script.infer_context(noted) == 20


@pytest.mark.long
def test_updates_that_a_scaler_skips_are_said(followed):
    scaled = """scaler = globals().setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=8.0))
loss = nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 4, (8,)))
optimizer.zero_grad()
scaler.scale(loss * (float("inf") if i in (2, 6) else 1)).backward()
scaler.step(optimizer)
scaler.update()"""
    printed, code, noted = followed(
        loop(scaled).replace("AdamW", "SGD").replace("parameters())", "parameters(), lr=0.1)")
    )
    assert code == 0, printed
    assert noted["skipped_updates"] == 2
    assert describe_skipped(noted) == ["the gradient scaler skipped 2 updates: the gradients were not finite"]


@pytest.mark.long
def test_of_several_trained_models_it_is_said_that_the_batch_is_not_known(followed):
    other = "other = nn.Linear(8, 4)\noptimizer ="
    source = loop("other(torch.randn(8, 8)).sum().backward()\nstep(i)").replace("optimizer =", other, 1)
    _, _, noted = followed(source)
    assert describe_unknown_batch(noted) == ["batch and tokens are not known: a step trains 2 models"]


@pytest.mark.long
def test_two_threads_that_train_at_once_end_as_without_us(followed):
    source = (
        "import threading\ndef train():\n"
        + loop("step(i)").replace("\n", "\n    ")
        + "\nthreads = [threading.Thread(target=train) for _ in range(2)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\n"
    )
    printed, code, noted = followed(source, goes_on=True)
    assert code == 0 and printed.count("the end") == 2 and "Error" not in printed, printed
    assert noted["stage"] == "done"


@pytest.mark.long
def test_training_after_a_loop_of_calls_is_what_is_measured(profile, tmp_path):
    source = loop("step(i)").replace("optimizer =", "for _ in range(25): model(torch.randn(32, 8))\noptimizer =", 1)
    printed, code = ended(profile(source, "--skip", "3", "--steps", "3"))
    assert code == 0, printed
    assert "updates of an optimizer: it is started once more, with --step optimizer" in " ".join(printed.split())
    runs = store.load(tmp_path / "results" / "recordings" / "train").runs
    assert (runs["mode"].item(), runs["batch_size"].item()) == ("train_step", 8)


@pytest.mark.long
def test_what_nsys_prints_is_in_a_log_and_not_among_the_lines_of_the_script(profile, tmp_path):
    printed, code = ended(profile(loop("step(i)\nprint('line', i)"), "--skip", "3", "--steps", "3"))
    assert code == 0 and "line 9" in printed, printed
    assert "Collecting data" not in printed and "Generat" not in printed
    assert "[100%] report" in (tmp_path / "results" / "train" / "train" / "nsys.log").read_text()
    assert "draft" not in printed and tempfile.gettempdir() + "/fake-nsys" not in printed


@pytest.mark.long
def test_progress_names_the_stages(profile):
    slow = "step(i)\nimport time; time.sleep(0.4)"
    printed, code = ended(profile(loop(slow), "--skip", "3", "--steps", "3", "--collector", "events"))
    assert code == 0, printed
    at = [printed.index(words) for words in script.STAGE_WORDS_OF_EVENTS.values()]
    assert at == sorted(at)


@pytest.mark.parametrize("compiles", [False, True])
def test_no_step_for_a_while_is_said(capsys, tmp_path, monkeypatch, compiles):
    monkeypatch.setattr(script, "NO_STEP_S", 0.2)
    monkeypatch.setattr(script, "POLL_S", 0.1)
    if compiles:
        (tmp_path / "progress").write_text("compiling")
    process = subprocess.Popen(["sleep", "1"])
    assert script.wait_for_script(process, tmp_path / "progress") == 0
    said = capsys.readouterr().err.splitlines()
    assert 1 < len(said) < 5 and all("no step yet" in line and ("torch.compile" in line) == compiles for line in said)


def test_the_lock_of_a_script_is_gone_after_a_failed_start(profile, tmp_path):
    _, code = ended(profile("raise ValueError"))
    assert code == 1 and not (tmp_path / "results" / ".train").exists()


@pytest.mark.long
def test_a_range_that_never_opens_is_said_within_the_first_steps(profile):
    fake = "import types\nimport torch\ntorch.cuda.nvtx._nvtx = types.SimpleNamespace(rangePushA=len, rangePop=int)\n"
    body = "torch.cuda.nvtx.range_push('other')\nstep(i)\ntorch.cuda.nvtx.range_pop()\nprint('line', i, flush=True)"
    printed, code = ended(profile(loop(body, fake), "--step", "my_step", "--collector", "events"))
    assert code == 1
    said = printed.index("no NVTX range `my_step` was opened in 3 updates; opened: `other`")
    assert said < printed.index("line 4")


def test_an_interrupt_that_is_ignored_stays_so():
    source = (
        "import signal; from profiler_job.jobs.cli.console import handle_termination\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nhandle_termination(print)\n"
        "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, signal.getsignal(signal.SIGTERM) == print)"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_report_that_nsys_does_not_write_is_not_blamed_on_the_script(tmp_path):
    (tmp_path / "nsys.log").write_text(
        "2026-01-01T00:00:00 profile: Importer error status: unknown.\n2026-01-01T00:00:00 profile: Generated:\n"
    )
    noted = {"rank": 0, "ranks": 1, "stage": "done", "seen": 22, "captured_ns": [1], "loops": [], "num_prefills": 0}
    asked = script.Script(command=["train"], name="train", skip=10, steps=5, step="auto", goes_on=False)
    with pytest.raises(script.ScriptFailedError, match="wrote no report: Importer error status"):
        script.explain_shortage(asked, tmp_path, [noted], 0)


@pytest.mark.long
@pytest.mark.parametrize("first, num", [(5, 11), (30, 11)], ids=["too few, then enough", "enough in the first"])
def test_of_groups_of_processes_the_first_that_has_enough_is_followed(followed, first, num):
    trains = loop("step(i)\nif i == 29 or i + 1 == num: print('group', num, 'ended')").replace(
        "range(30)", "range(num)"
    )
    source = (
        "import subprocess, sys\nfor num in NUMS:\n"
        "    subprocess.run([sys.executable, '-c', f'num = {num}\\n' + SOURCE], check=True)\n"
    )
    printed, code, noted = followed(source.replace("NUMS", f"({first}, 20)").replace("SOURCE", repr(trains)))
    assert code == 0 and noted["stage"] == "done" and noted["seen"] == num, printed
    assert ("group 5 ended" in printed) == (first == 5)
    assert ("group 20 ended" in printed) == (first == 30), "the second group goes on alone"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "no error"),
        (1, "exit code 1"),
        (255, "exit code 255"),
        (-11, "exit code -11, SIGSEGV"),
        (-9, "exit code -9, SIGKILL, as when memory is full"),
        (137, "exit code 137, SIGKILL, as when memory is full"),
    ],
)
def test_the_end_of_a_script_that_was_killed_names_the_signal(code, words):
    assert describe_exit(code) == words
