"""Feed-forward blocks whose RMSNorm is a Triton kernel of its own, or the same in PyTorch (`fused: [true, false]`).

Without a GPU or without Triton, and in the simulation of `plan`, the PyTorch form runs in either case: a time on a
CPU says nothing about the kernel.
"""

import torch
from torch import nn

from profiler_job.jobs.workloads import Built

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton is for GPUs
    triton = None

EPSILON = 1e-6

if triton:

    @triton.jit
    def rms_norm_forward(x, weight, y, scales, width, epsilon, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0), tl.arange(0, BLOCK)
        inside = columns < width
        values = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(values * values) / width + epsilon)
        tl.store(scales + row, scale)
        factors = tl.load(weight + columns, mask=inside, other=0.0)
        tl.store(y + row * width + columns, values * scale * factors, mask=inside)

    @triton.jit
    def rms_norm_backward(x, weight, scales, dy, dx, dweight, width, BLOCK: tl.constexpr):
        row, columns = tl.program_id(0), tl.arange(0, BLOCK)
        inside = columns < width
        scale = tl.load(scales + row)
        normed = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32) * scale
        gradient = tl.load(dy + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        tl.atomic_add(dweight + columns, gradient * normed, mask=inside)
        gradient *= tl.load(weight + columns, mask=inside, other=0.0)
        shared = tl.sum(gradient * normed) / width
        tl.store(dx + row * width + columns, (gradient - normed * shared) * scale, mask=inside)


class FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        x = x.contiguous()
        width = x.shape[-1]
        y, scales = torch.empty_like(x), x.new_empty(x.numel() // width, dtype=torch.float32)
        rms_norm_forward[(len(scales),)](x, weight, y, scales, width, EPSILON, BLOCK=triton.next_power_of_2(width))
        context.save_for_backward(x, weight, scales)
        return y

    @staticmethod
    def backward(context, dy):
        x, weight, scales = context.saved_tensors
        width = x.shape[-1]
        dx, dweight, block = torch.empty_like(x), torch.zeros_like(weight), triton.next_power_of_2(width)
        rms_norm_backward[(len(scales),)](x, weight, scales, dy.contiguous(), dx, dweight, width, BLOCK=block)
        return dx, dweight


class RMSNorm(nn.Module):
    def __init__(self, width: int, fused: bool):
        super().__init__()
        self.weight, self.fused = nn.Parameter(torch.ones(width)), fused

    def forward(self, x):
        if self.fused and triton and x.is_cuda:
            return FusedRMSNorm.apply(x, self.weight)
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPSILON)
        return (x * scale * self.weight).to(x.dtype)


def build(run, device, width: int = 1024, num_layers: int = 8, fused: bool = True):
    def block():
        return nn.Sequential(RMSNorm(width, fused), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    with device:
        model = nn.Sequential(*(block() for _ in range(num_layers)))
        batch = torch.randn(run["batch_size"], run["context_length"], width)
    return Built(model, (batch,), lambda output: output.float().square().mean())
