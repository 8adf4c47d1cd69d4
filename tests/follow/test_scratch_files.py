"""A script that saves while it is tuned: the files that it had before stay, and it reads what it saved."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiler_job.jobs.executor.script import FOLLOW, INJECTED
from profiler_job.jobs.executor.tuned_script import TunedScript, run_variant

HEAD = """
import io, json, os, pathlib, pickle, shutil, subprocess, sys, types
import torch
model = torch.nn.Linear(2, 2)
new = {"weight": torch.full((3,), 7.0)}

def check(read, value=7.0):
    assert read["weight"].tolist() == [value] * 3, read

def train():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""
WAYS = {
    "path": """
torch.save(new, "out/old.pt")
check(torch.load("out/old.pt"))
check(torch.load(f="out/old.pt", mmap=True))
""",
    "pathlib": """
file = pathlib.Path("out") / "old.pt"
torch.save(obj=new, f=file)
check(torch.load(file))
assert file.stat().st_size == os.path.getsize("out/old.pt") > 0
""",
    "bytes": "torch.save(new, b'out/old.pt'); check(torch.load('out/old.pt'))",
    "folder_changed": "os.chdir('out'); torch.save(new, 'old.pt'); os.chdir('..'); check(torch.load('out/old.pt'))",
    "open_file": """
with open("out/old.pt", "wb") as file:
    torch.save(new, file)
with open("out/old.pt", "rb") as file:
    check(torch.load(file))
""",
    "open_path": """
file = pathlib.Path("out/old.pt")
with file.open(mode="wb") as opened:
    pickle.dump(new, opened)
check(pickle.loads(file.read_bytes()))
""",
    "bytes_io": "file = io.BytesIO(); torch.save(new, file); file.seek(0); check(torch.load(file))",
    "draft_replaced": """
torch.save(new, "out/draft")
os.replace("out/draft", "out/old.pt")
check(torch.load("out/old.pt"))
assert not os.path.exists("out/draft")
""",
    "draft_moved": """
pathlib.Path("draft").write_bytes(b"new")
shutil.move("draft", "out/old.pt")
assert pathlib.Path("out/old.pt").read_bytes() == b"new" and not os.path.exists("draft")
""",
    "turned_over": """
os.rename("out/old.pt", "out/before.pt")
torch.save(new, "out/old.pt")
check(torch.load("out/old.pt"))
check(torch.load("out/before.pt"), 1.0)
""",
    "best_copied": """
for copy in (shutil.copyfile, shutil.copy, shutil.copy2):
    torch.save(new, "out/new.pth.tar")
    copy("out/new.pth.tar", "out/old.pt")
    check(torch.load("out/old.pt"))
    os.remove("out/new.pth.tar")
    assert not os.path.exists("out/new.pth.tar")
""",
    "removed": """
os.remove("out/old.pt")
pathlib.Path("out/text.json").unlink()
torch.save(new, "out/old.pt")
check(torch.load("out/old.pt"))
""",
    "folder_removed": """
shutil.rmtree("out")
os.mkdir("out")
torch.save(new, "out/old.pt")
check(torch.load("out/old.pt"))
""",
    "text": """
print("new", file=open("out/text.json", "w"), flush=True)
assert open("out/text.json").read() == "new\\n"
""",
    "appended": """
print("more", file=open("out/text.json", "a"), flush=True)
print("lines", file=open("out/text.json", "a"), flush=True)
assert open("out/text.json").read() == "more\\nlines\\n"
""",
    "changed": """
with open("out/text.json", "r+") as file:
    file.write("n")
descriptor = os.open("out/text.json", os.O_WRONLY | os.O_APPEND)
os.write(descriptor, b"er")
os.close(descriptor)
assert open("out/text.json").read() == "nlder"
os.truncate("out/text.json", 1)
assert open("out/text.json").read() == "n"
""",
    "descriptors": """
descriptor = os.open("out/text.json", os.O_WRONLY | os.O_TRUNC)
os.write(descriptor, b"new")
os.close(descriptor)
assert open("out/text.json").read() == "new"
""",
    "truncated": "os.truncate('out/text.json', 1); assert open('out/text.json').read() == 'o'",
    "folder_moved": "os.rename('out', 'before'); os.makedirs('out'); torch.save(new, 'out/old.pt')",
    "linked": """
for link in (os.symlink, os.link):
    torch.save(new, "out/2.pt")
    for name in ("out/latest.pt", "out/old.pt"):
        if os.path.exists(name):
            os.remove(name)
        link("2.pt" if link is os.symlink else "out/2.pt", name)
        check(torch.load(name))
""",
    "distributed_checkpoint": """
import torch.distributed.checkpoint as dcp
dcp.save(new, checkpoint_id="out/dcp")
read = {"weight": torch.zeros(3)}
dcp.load(read, checkpoint_id="out/dcp")
check(read)
""",
    "new_name": """
torch.save(new, "out/first.pt")
open("out/second.pt", "wb").close()
assert os.path.getsize("out/first.pt") and not os.path.getsize("out/second.pt")
""",
    "new_folder": "os.makedirs('more/of/it'); torch.save(new, 'more/of/it/x'); shutil.rmtree('more'); os.mkdir('more')",
    "safetensors": """
from safetensors.torch import load_file, save_file
save_file(new, "out/old.safetensors")
check(load_file("out/old.safetensors"))
""",
    "forked": """
torch.save(new, "out/old.pt")
if not os.fork():
    check(torch.load("out/old.pt"))
    os._exit(0)
assert not os.wait()[1]
""",
    "child": """
torch.save(new, "out/old.pt")
text = "import torch; assert torch.load('out/old.pt')['weight'][0] == 7; torch.save({}, 'out/of_child.pt')"
subprocess.run([sys.executable, "-c", text], check=True)
""",
    "whole_checkpoints": """
def save(*_):
    raise AssertionError("a checkpoint is saved")
sys.modules["transformers.trainer"] = types.SimpleNamespace(Trainer=type("Trainer", (), {"_save_checkpoint": save}))
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
assert sys.modules.pop("transformers.trainer").Trainer()._save_checkpoint("model", None) is None
""",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with files that a script saved in an earlier run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("out").mkdir()
    lines = ["import torch; old = {'weight': torch.ones(3)}; torch.save(old, 'out/old.pt')"]
    lines += ["import torch.distributed.checkpoint as dcp; dcp.save(old, checkpoint_id='out/dcp')"]
    lines += ["from safetensors.torch import save_file; save_file(old, 'out/old.safetensors')"]
    subprocess.run([sys.executable, "-c", "; ".join(lines)], check=True)
    Path("out/text.json").write_text("old")
    return tmp_path


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and "runs" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def run(text: str, folder: Path, *command: str, is_bare: bool = True) -> None:
    """Run a script as `tune` does. Raises VariantFailedError."""
    Path("train.py").write_text(text)
    Path("runs").mkdir()
    given = {"folder": folder / "runs", "log": folder / "runs" / "log.txt", "source": "train.py"}
    whole = command or (sys.executable, "train.py")
    run_variant(TunedScript(command=whole, **given, skip=3, steps=3, step="auto", seed=0), (), is_bare=is_bare)


@pytest.mark.parametrize("is_bare", [True, False])
def test_what_is_saved_is_read_and_what_was_there_stays(folder, is_bare):
    pytest.importorskip("safetensors")
    for way in WAYS:
        shutil.copytree("out", Path(way, "out"))
    before = read_files(folder)
    lines = [f"print({way!r}, flush=True); os.chdir({str(folder / way)!r})\n{text}" for way, text in WAYS.items()]
    run("\n".join([HEAD, *lines, "train()"]), folder, is_bare=is_bare)
    after = read_files(folder)
    after.pop("train.py")
    assert after == before


SAVING = (
    HEAD
    + """
torch.save({"weight": torch.zeros(3)}, "out/old.pt")
loaded = [type(open).__name__, type(os.stat).__name__, "safetensors" in sys.modules]
pathlib.Path("loaded.json").write_text(json.dumps(loaded))
train()
"""
)


def test_a_script_that_is_followed_otherwise_saves_as_ever(folder):
    """As `profile` does."""
    Path("train.py").write_text(SAVING)
    plan = json.dumps({"out": str(folder / "noted"), "skip": 3, "steps": 3, "followed": 0})
    subprocess.run(
        [sys.executable, "train.py"],
        env={"PYTHONPATH": str(INJECTED), FOLLOW: plan, "OMP_NUM_THREADS": "1", "PATH": ""},
        check=True,
    )
    assert json.loads(Path("loaded.json").read_text()) == [*["builtin_function_or_method"] * 2, False]
    text = "import torch; assert torch.load('out/old.pt')['weight'][0] == 0"
    subprocess.run([sys.executable, "-c", text], check=True)


RANKS = """
import os, torch
from torch import distributed
from torch.utils.data import DataLoader

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, place):
        return torch.load("out/old.pt")["weight"]

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    if distributed.get_rank() == 0:
        torch.save({"weight": torch.full((3,), 7.0)}, "out/old.pt")
    distributed.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Samples(), batch_size=2, num_workers=1, multiprocessing_context="spawn"):
        assert x.tolist() == [[7.0] * 3] * 2
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.long
def test_ranks_and_spawned_workers_read_what_one_of_them_saved(folder):
    before = read_files(folder)
    run(RANKS, folder, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    after = read_files(folder)
    assert {name: after[name] for name in before} == before
