"""AdamW (Loshchilov & Hutter 2019, algorithm 2): the reference, a handful of unfused kernels for every tensor, and
PyTorch's own in its three implementations."""

from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor


class AdamW:
    """Updates parameters in place. The moments are allocated in the first step, as torch.optim does."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        self.parameters = list(parameters)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.num_steps = 0
        self.moments: dict[Tensor, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        self.num_steps += 1
        beta1, beta2 = self.betas
        step_size = self.lr * sqrt(1 - beta2**self.num_steps) / (1 - beta1**self.num_steps)
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            if parameter not in self.moments:
                self.moments[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            mean, square = self.moments[parameter]
            mean.mul_(beta1).add_(parameter.grad, alpha=1 - beta1)
            square.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
            parameter.mul_(1 - self.lr * self.weight_decay)
            parameter.addcdiv_(mean, square.sqrt().add_(self.eps), value=-step_size)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def share_moments(optimizer: "AdamW | torch.optim.AdamW", other: "AdamW | torch.optim.AdamW") -> None:
    """Let an optimizer that has taken no step go on with the moments of another one of the same parameters, in place;
    nothing is shared before the other's first step."""
    if isinstance(other, AdamW):
        num_steps, moments = other.num_steps, other.moments
    else:
        num_steps = next((int(state["step"]) for state in other.state.values()), 0)
        moments = {parameter: (state["exp_avg"], state["exp_avg_sq"]) for parameter, state in other.state.items()}
    if isinstance(optimizer, AdamW):
        optimizer.num_steps, optimizer.moments = num_steps, dict(moments)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in moments:
                device = parameter.device if group["fused"] else "cpu"  # as torch makes it
                step = torch.tensor(float(num_steps), dtype=torch.float32, device=device)
                mean, square = moments[parameter]
                optimizer.state[parameter] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}


def build_optimizer(name: str, parameters: Iterable[Any]) -> "AdamW | torch.optim.AdamW":
    """`own`, or torch.optim.AdamW as `loop` (a tensor at a time), `foreach` (lists of tensors) or `fused`.
    parameters: tensors; for torch.optim.AdamW groups, too."""
    if name == "own":
        return AdamW(parameters)
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, foreach=name == "foreach", fused=name == "fused")
