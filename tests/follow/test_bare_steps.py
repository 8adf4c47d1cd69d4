"""A script that is timed, and nothing else: what is in its process, and what is known of it at the end."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from profiler_job.jobs.executor.larger_micro_batches import EDITED
from profiler_job.jobs.executor.tuned_script import TunedScript, VariantFailedError, run_variant

SCRIPT = """
import json, sys, torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
plain = nn.Module.__call__, torch.compile, nn.Module.zero_grad, torch.autograd.backward.__module__
print("text:", TEXT, *sys.argv[1:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
optimizer = torch.optim.AdamW(model.parameters())
optimizer_of_others = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
for step in range(STEPS):
    for part in range(2):
        optimizer_of_others.step()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
    if step == 17:
        places = [each.__module__ for each in plain[:3]] + [torch.autograd.backward.__module__]
        hooks = [len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)]
        found = {"places": places, "hooks": hooks, "text": TEXT, "early": plain[3], "file": __file__}
        found["saved"] = bool(model._forward_hooks or model._forward_pre_hooks)
        json.dump(found, open("found.json", "w"))
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def make(steps=1000, command=(sys.executable, "train.py"), **texts) -> TunedScript:
        text = SCRIPT.replace("STEPS", str(steps))
        Path("train.py").write_text(text.replace("TEXT", "'own'"))
        patches = {(name,): ({str(tmp_path / "train.py"): edit(text)}, command) for name, edit in texts.items()}
        given = {"command": command, "folder": tmp_path / "runs", "log": tmp_path / "log.txt", "source": "train.py"}
        return TunedScript(**given, skip=8, steps=4, step="auto", seed=0, patches=patches)

    return make


def patch(text: str) -> str:
    return text.replace("TEXT", "'patched'").replace("nn.Dropout(0.5)", "nn.Dropout(0.5), nn.Dropout(0.1)")


@pytest.mark.parametrize(("changes", "text"), [((), "own"), (("bf16",), "patched")])
def test_nothing_of_ours_is_in_the_process_but_a_hook_after_updates(script, changes, text):
    run = run_variant(script(bf16=patch), changes, is_bare=True)
    found = json.loads(Path("found.json").read_text())
    assert found["places"] == ["torch.nn.modules.module", "torch", "torch.nn.modules.module", "torch.autograd"]
    assert found["hooks"] == [0, 1] and not found["saved"]
    assert found["text"] == text and found["file"] == os.path.abspath("train.py")
    assert run.num_losses_per_step == 2.0 and len(run.losses) == 2 * 12 and run.step_ns > 0


def test_losses_are_those_of_the_texts_that_ran(script):
    made = script(bf16=patch)
    before, again, after = (run_variant(made, changes, is_bare=True) for changes in ((), (), ("bf16",)))
    assert before.losses == again.losses != after.losses
    followed = run_variant(made, ())
    assert followed.losses[: len(before.losses)] == before.losses[: len(followed.losses)]


LOSSES = """
import json, torch
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
def get_batch():
    return torch.randn(1, 4), torch.randn(1)
def compute(part):
    return part.square().mean()
losses = []
x, y = get_batch()
for step in range(100):
    for micro in range(2):
        loss = sum(checkpoint(compute, model(x) + y, use_reentrant=True) for _ in range(2)) / 2
        x, y = get_batch()
        scaler.scale(loss).backward()
        losses.append(loss.item())
    scaler.step(optimizer)
    scaler.update()
    json.dump(losses, open("losses.json", "w"))
"""


@pytest.mark.parametrize("is_bare", [True, False])
def test_losses_are_what_backward_is_called_on(script, is_bare):
    """Each part of reentrant checkpointing counted as a loss, and losses were as large as a scaler made them."""
    made = script()
    Path("train.py").write_text(LOSSES)
    run = run_variant(made, (), is_bare=is_bare)
    assert run.num_losses_per_step == 2.0 and run.losses == json.loads(Path("losses.json").read_text())[:24]


def test_a_patch_may_have_another_command(script):
    made = script(bf16=patch)
    [(changes, (texts, command))] = made.patches.items()
    run_variant(replace(made, patches={changes: (texts, (*command, "--batch=8"))}), changes, is_bare=True)
    assert "text: patched --batch=8" in made.log.read_text()


def test_a_script_that_ends_early_and_a_patch_that_fails_are_told_apart(script):
    with pytest.raises(VariantFailedError) as early:
        run_variant(script(steps=9), (), is_bare=True)
    assert early.value.is_short
    with pytest.raises(VariantFailedError) as failed:
        run_variant(script(bf16=lambda text: "raise ValueError('broken by the patch')"), ("bf16",), is_bare=True)
    assert not failed.value.is_short and "broken by the patch" in str(failed.value)


@pytest.mark.long
def test_ranks_of_a_launcher_run_the_patched_texts(script):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
    made = script(command=launcher, bf16=patch)
    run = run_variant(made, ("bf16",), is_bare=True)
    assert made.log.read_text().count("text: patched") == 2 and len(run.losses) == 24


def test_functions_of_edited_code_are_read_as_they_run(tmp_path):
    own, texts = tmp_path / "train.py", tmp_path / "texts.json"
    own.write_text("def first(): pass\n")
    new = "import inspect\n# more lines\ndef first(): return 'edited'\nprint(inspect.getsource(first))\n"
    texts.write_text(json.dumps({str(own): new}))
    done = subprocess.run([sys.executable, EDITED, str(texts), str(own)], capture_output=True, text=True, check=True)
    assert "return 'edited'" in done.stdout
