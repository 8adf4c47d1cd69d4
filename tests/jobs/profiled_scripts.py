"""Scripts of somebody else that tests follow and profile, on the CPU."""

import re
import subprocess

from tests.waiting import HANGS_S
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
ASKS = HEAD + "with torch.inference_mode():\n    for i in range(60): print('loss', i, model(torch.ones(2, 8)).sum())"

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


def ended(process: subprocess.Popen) -> tuple[str, int]:
    printed, _ = process.communicate(timeout=HANGS_S)
    return printed, process.returncode
