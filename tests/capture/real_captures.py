"""Captures of unmodified programs, recorded on NVIDIA H200s with nsys 2025.3 and torch 2.11, as they are in
tests/data/h200_captures: whole processes, start-up included, without environment, paths and what no code reads.

- `gpt2_plain`: an HF GPT-2 in a loop (BF16 autocast, clipping, AdamW, a DataLoader), 6 steps, no ranges
- `gpt2_emit`: the same under `torch.autograd.profiler.emit_nvtx()`
- `light_plain`: a Lightning module (BF16), 5 steps, no ranges
- `light_autograd`: the same under `nsys profile --pytorch=autograd-nvtx`
- `ddp_plain`: an HF GPT-2 of 6 layers under `torchrun` with two processes and GPUs, DDP, 5 steps; NCCL's ranges alone
- `ddp_autograd`: the same under `nsys profile --pytorch=autograd-nvtx`
- `infer_plain`: 5 forward passes of an HF Llama, no ranges
"""

from pathlib import Path

from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.nsys_export import read
from tests import packed

FOLDER = Path(__file__).parents[1] / "data" / "h200_captures"


def unpack(name: str, folder: Path) -> Path:
    """The capture as a file in `folder`."""
    return packed.unpack(FOLDER / f"{name}.sqlite.packed", folder / f"{name}.sqlite")


def read_capture(name: str, folder: Path) -> Capture:
    return read(unpack(name, folder), details=False)
