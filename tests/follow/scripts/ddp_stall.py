"""A training loop of several GPUs in which a rank is late on purpose: `torchrun ddp_stall.py --stall-ms 5` lets the CPU
of one rank sleep before each backward, `--extra-matmuls 2` gives the GPU of one rank more work in each forward."""

import argparse
import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=1, help="the rank that is late")
parser.add_argument("--stall-ms", type=float, default=0)
parser.add_argument("--extra-matmuls", type=int, default=0)
parser.add_argument("--steps", type=int, default=40)
options = parser.parse_args()
CAPTURED = 6  # the last steps

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
distributed.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)

torch.manual_seed(0)
width, layers, length = (1024, 8, 512) if on_gpu else (64, 2, 32)
layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
model = DistributedDataParallel(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
square = torch.randn(4 * width, 4 * width, device=device)
is_late = distributed.get_rank() == options.rank


def train_step() -> None:
    batch = torch.randn(4, length, width, device=device)
    loss = (model(batch) - batch).pow(2).mean()
    loss.item()  # every GPU has nothing left to do
    if is_late:
        time.sleep(options.stall_ms / 1e3)
        for _ in range(options.extra_matmuls):
            square @ square
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


for step in range(options.steps):
    if on_gpu and step == options.steps - CAPTURED:  # for nsys profile -c cudaProfilerApi
        torch.cuda.profiler.start()
    train_step()
if on_gpu:
    torch.cuda.profiler.stop()

distributed.destroy_process_group()
