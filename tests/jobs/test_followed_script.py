"""A script that is followed computes what it does alone, and its steps are counted right."""

import os
import subprocess
import sys

import pytest

from profiler_job.jobs.executor import script
from tests.jobs.conftest import IN_NEW_PYTHON
from tests.jobs.profiled_scripts import ASKS, HEAD, TRAIN, losses, with_compiler
from tests.without_compiler import WITHOUT_COMPILER


@pytest.mark.long
def test_losses_are_the_same_to_the_bit(followed, tmp_path):
    printed, code, noted = followed(with_compiler(TRAIN.replace("WORKERS", "0")), *IN_NEW_PYTHON, goes_on=True)
    assert code == 0 and printed.rstrip().endswith("the end") and noted["stage"] == "done"
    bare = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert losses(printed) == losses(bare.stdout) and len(losses(printed)) == 30


@pytest.mark.long
def test_a_project_may_have_packages_of_our_names(followed, tmp_path):
    for name in ("jobs", "analysis", "follow", "module_ranges"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True")
    source = "import jobs, analysis, follow, module_ranges\nassert jobs.mine and follow.mine\n" + TRAIN
    printed, code, noted = followed(source.replace("WORKERS", "0"))
    assert code == 0, printed
    assert noted["stage"] == "done" and len(noted["steps"]) == 3


@pytest.mark.long
def test_a_script_may_ask_for_torch_before_it_imports_it(followed):
    asks = "from importlib.util import find_spec\nassert find_spec('torch') and find_spec('torch')\n"
    printed, code, noted = followed(asks + TRAIN.replace("WORKERS", "0"), *IN_NEW_PYTHON)
    assert code == 0 and noted.get("stage") == "done", printed


@pytest.mark.long
def test_autocast_is_known_where_it_is_compiled_with_the_model(followed):
    inside = "model.forward = torch.autocast('cpu', torch.bfloat16)(model.forward)\n"
    inside += "model = torch.compile(model, backend='eager')\n"
    source = with_compiler(TRAIN).replace("WORKERS", "0").replace("optimizer =", f"{inside}optimizer =", 1)
    printed, code, noted = followed(source, *IN_NEW_PYTHON)
    assert code == 0 and noted["compiled"] and noted["autocast"] == "torch.bfloat16", printed


@pytest.mark.long
def test_a_sitecustomize_of_the_users_own_runs_as_ever(followed, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.mine = True")
    monkeypatch.setattr(script, "INJECTED", f"{script.INJECTED}{os.pathsep}{tmp_path / 'own'}")
    printed, code, noted = followed("import sys\nassert sys.mine\n" + TRAIN.replace("WORKERS", "0"), *IN_NEW_PYTHON)
    assert code == 0 and noted["stage"] == "done", printed


@pytest.mark.long
@pytest.mark.parametrize("own", ["import torch", "raise RuntimeError('broken')"])
def test_a_sitecustomize_may_import_torch_or_be_broken(followed, tmp_path, monkeypatch, own):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(own)
    monkeypatch.setattr(script, "INJECTED", f"{script.INJECTED}{os.pathsep}{tmp_path / 'own'}")
    printed, code, noted = followed(TRAIN.replace("WORKERS", "0"), *IN_NEW_PYTHON)
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


@pytest.mark.long
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
@pytest.mark.parametrize("step, expected", [("auto", 60), ("forward", 11)])
def test_without_an_optimizer_a_step_is_a_call_of_the_model(followed, step, expected):
    """Without that option it looks on for a while: a loop of forward and backward may follow."""
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
    assert code == 0 and noted["stage"] == "done", printed
    assert noted["seen"] == 60 and len(noted["steps"]) == 3, "two of its calls are two steps"


@pytest.mark.long
def test_of_scripts_one_after_the_other_the_first_is_followed(followed):
    source = TRAIN.replace("WORKERS", "0")
    command = f"'{sys.executable}' train.py && echo second && '{sys.executable}' train.py"
    printed, code, noted = followed(source, "sh", "-c", command)
    assert code == 0 and noted["stage"] == "done" and noted["seen"] == 11
    assert len(losses(printed.partition("second")[2])) == 30, "the other runs to its end"
