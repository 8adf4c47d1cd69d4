"""A workload without ranges, as another project has it."""

import torch
from torch import nn

from profiler_job.jobs.workloads import Built


def build(run, device) -> Built:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    return Built(model, (torch.randn(2, 4, device=device),), lambda output: output.square().mean())
