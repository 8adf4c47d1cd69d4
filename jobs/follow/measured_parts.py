"""The time of parts of a step, each measured alone on the GPU at hand: calls of operators on random numbers of the same
shapes, fused attention, steps of optimizers.

Loaded into other people's scripts, as `follow` is.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from .applied_change import AppliedChange
from .apply_changes import load_change
from .kernel_shares import KernelTrace
from .script_facts import find_device_type

REPEATS = 3
MARK = re.compile("spin_kernel")
"""Kernel of `torch.cuda._sleep`: it is between the parts in a trace."""
CACHE_BYTES = 128 * 2**20
"""What is overwritten before each call: more than the L2 cache of any GPU."""
SOME_MEMORY = 0.25
"""Part of the free memory that an optimizer's copies may take; of larger ones a part is measured."""
Part = Mapping[str, Any]


class PartsMeasurement:
    """Measures parts. numbers: tensors of integers by the number of their value, from the recorder of the calls."""

    def __init__(self, numbers: Mapping[int, Tensor]):
        self.numbers = numbers
        self.device = torch.device(find_device_type())
        self.is_gpu = self.device.type == "cuda"

    def measure(self, parts: Sequence[Part]) -> list[tuple[float, float] | None]:
        """Return two times of each part in ns, of its kernels and until the CPU has launched them; None if it cannot be
        run alone. Without a GPU both are the same."""
        state = torch.get_rng_state(), torch.cuda.get_rng_state() if self.is_gpu else None
        before = torch.get_float32_matmul_precision()
        cache = torch.empty(CACHE_BYTES if self.is_gpu else 0, dtype=torch.uint8, device=self.device)
        trace = KernelTrace()
        runs: list[int] = []  # the part of each run
        times: list[list[float]] = [[] for _ in parts]
        trace.begin()
        try:
            for number, part in enumerate(parts):
                torch.set_float32_matmul_precision("high" if part.get("tf32") else before)
                try:
                    with torch.no_grad():
                        times[number] = self.time_part(part, number, cache, runs)
                except Exception:  # of a call that needs more than its shapes; the caller has another way
                    times[number] = []
        finally:
            if self.is_gpu:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()  # variants need the memory
            operations = trace.end()
            torch.set_float32_matmul_precision(before)
            torch.set_rng_state(state[0])
            if state[1] is not None:
                torch.cuda.set_rng_state(state[1])
        kernels = split_by_marks(operations, runs, len(parts)) if self.is_gpu else times
        factors = [self.cut(part)[1] if part["op"] == "optimizer" else 1.0 for part in parts]
        return [
            (median(gpu) * factor, median(cpu)) if gpu and cpu else None
            for gpu, cpu, factor in zip(kernels, times, factors)
        ]

    def time_part(self, part: Part, number: int, cache: Tensor, runs: list[int]) -> list[float]:
        """Run a part, each time between two marks, and return the times of the CPU."""
        run = self.prepare(part)
        run()
        times: list[float] = []
        for _ in range(REPEATS):
            self.mark(cache)
            begin = perf_counter_ns()
            try:
                run()
            finally:
                times.append(perf_counter_ns() - begin)
                self.mark()
                runs.append(number)
        return times

    def mark(self, cache: Tensor | None = None) -> None:
        if self.is_gpu:
            if cache is not None:
                cache.zero_()
            torch.cuda._sleep(1)

    def prepare(self, part: Part) -> Callable[[], Any]:
        """Return a function that runs a part once."""
        if part["op"] == "attention":
            return self.prepare_attention(part)
        if part["op"] == "optimizer":
            return self.prepare_optimizer(part)
        function: Any = torch.ops
        for name in part["op"].split("."):
            function = getattr(function, name)
        args, kwargs = [self.make(each) for each in part["args"]], self.make(part["kwargs"])
        return lambda: function(*args, **kwargs)

    def prepare_attention(self, part: Part) -> Callable[[], Any]:
        """Forward and backward pass of `scaled_dot_product_attention`."""
        query, key, value = (self.make(part[name]).requires_grad_() for name in ("query", "key", "value"))
        mask = self.make(part["mask"])
        change = load_change(part["switched"])() if "switched" in part else AppliedChange()

        def run() -> None:
            change.switch(True)
            try:
                attend()
            finally:
                change.switch(False)

        def attend() -> None:
            with torch.enable_grad():
                out = nn.functional.scaled_dot_product_attention(
                    query, key, value, mask, dropout_p=part["dropout"], is_causal=part["is_causal"]
                )
                torch.autograd.grad(out, (query, key, value), out.detach())

        return run

    def prepare_optimizer(self, part: Part) -> Callable[[], Any]:
        """A step of an optimizer of torch with parameters of these shapes."""
        parameters = [nn.Parameter(self.make(each)) for each in self.cut(part)[0]]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        options = {name: name == part["form"] for name in ("fused", "foreach")}
        optimizer = getattr(torch.optim, part["kind"])(parameters, lr=1e-4, **options)
        return lambda: optimizer.step()

    def cut(self, part: Part) -> tuple[list[Any], float]:
        """Return as many parameters as fit with their gradients and states, and by how much more all of them are."""
        sizes = [prod(each["shape"]) for each in part["parameters"]]
        most = SOME_MEMORY * torch.cuda.mem_get_info()[0] / 16 if self.is_gpu else sum(sizes)
        fitting = [number for number, size in enumerate(sizes) if sum(sizes[: number + 1]) <= most] or [0]
        return [part["parameters"][number] for number in fitting], sum(sizes) / sum(sizes[number] for number in fitting)

    def make(self, value: Any) -> Any:
        """Make an argument from its description."""
        if isinstance(value, list):
            return [self.make(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "torch" in value:
            name = str(value["torch"]).removeprefix("torch.")
            return self.device if name.startswith(("cuda", "cpu")) else getattr(torch, name)
        if "shape" not in value:
            return {name: self.make(each) for name, each in value.items()}
        return self.make_tensor(value)

    def make_tensor(self, described: Mapping[str, Any]) -> Tensor:
        shape, stride, dtype = described["shape"], described["stride"], getattr(torch, described["dtype"])
        size = 1 + sum((length - 1) * step for length, step in zip(shape, stride)) if 0 not in shape else 0
        if dtype.is_floating_point:
            base = torch.empty(size, device=self.device, dtype=dtype).normal_()
        elif dtype == torch.bool:
            base = torch.ones(size, device=self.device, dtype=dtype)
        else:
            kept = self.numbers.get(described.get("value", -1))
            if kept is not None and list(kept.shape) == shape:
                return kept
            if kept is not None and can_repeat(kept, shape):  # of a larger batch
                return torch.cat([kept] * (shape[0] // len(kept)))
            base = torch.zeros(size, device=self.device, dtype=dtype)
        return base.as_strided(shape, stride)


def can_repeat(kept: Tensor, shape: Sequence[int]) -> bool:
    """Return whether a tensor has this shape if it is repeated."""
    is_like = kept.dim() == len(shape) and kept.numel() > 0
    return is_like and [*kept.shape[1:]] == [*shape[1:]] and not shape[0] % len(kept) if shape else False


def split_by_marks(
    operations: Sequence[tuple[str, int, int]], runs: Sequence[int], num_parts: int
) -> list[list[float]]:
    """Split the operations of a trace (name, start, end) by the marks before and after each run, and return the times
    of each part."""
    sums: dict[int, float] = {}
    num_marks = 0
    for name, start, end in sorted(operations, key=lambda operation: operation[1]):
        if MARK.search(name):
            num_marks += 1
        elif num_marks % 2:
            sums[num_marks // 2] = sums.get(num_marks // 2, 0.0) + end - start
    times: list[list[float]] = [[] for _ in range(num_parts)]
    if num_marks != 2 * len(runs):
        return times
    for position, number in enumerate(runs):
        times[number].append(sums.get(position, 0.0))
    return times
