"""What is probed of a workload outside its timed steps: device memory by phase, by module and by use, how far its
arithmetic is from float32, and what the link between its GPUs gives."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed

from jobs.contract.messages import LINK_RATE
from jobs.contract.ranges import FORWARD
from jobs.worker.parallel import local_part, synchronize
from jobs.workloads import annotation


def probe_memory(stepper) -> dict[str, list[dict]]:
    """Memory in one more step of a `jobs.worker.service.Stepper`, without CUDA only the empty list of `memory`.

    memory: allocator's peaks and levels in bytes, a row for each phase: over all micro-batches its highest peak, and
    the levels before the first and after the last. module_memory: bytes that each range of the first forward left
    allocated, its activations. figures: bytes in use when the step has ended, by use.
    """
    if stepper.device.type != "cuda":
        return {"memory": []}
    kept = KeptBytes(stepper.device)
    phases: dict[str, dict] = {}

    def of_phase(phase: str, work: Callable[[], None]) -> None:
        device = stepper.device
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        is_first = phase not in phases
        with annotation.opened_by(kept.open) if phase == FORWARD and is_first else annotation.no_ranges():
            work()
        stepper.synchronize()
        row = phases.setdefault(phase, {"phase": phase, "allocated_before_bytes": before})
        for peak, bytes_ in (
            ("peak_allocated_bytes", torch.cuda.max_memory_allocated(device)),
            ("peak_reserved_bytes", torch.cuda.max_memory_reserved(device)),
        ):
            row[peak] = max(bytes_, row.get(peak, 0))
        row["allocated_after_bytes"] = torch.cuda.memory_allocated(device)

    stepper.step(of_phase)
    return {"memory": list(phases.values()), "module_memory": kept.rows, "figures": memory_by_use(stepper)}


class KeptBytes:
    """Opener of ranges that notes the bytes each of them left allocated on the device."""

    def __init__(self, device: torch.device):
        self.device = device
        self.path: list[str] = []
        self.rows: list[dict] = []

    @contextmanager
    def open(self, name: str) -> Iterator[None]:
        self.path.append(name)
        row = {"phase": FORWARD, "module": "/".join(self.path), "kept_bytes": 0}
        self.rows.append(row)
        before = torch.cuda.memory_allocated(self.device)
        yield
        row["kept_bytes"] = torch.cuda.memory_allocated(self.device) - before
        self.path.pop()


def memory_by_use(stepper) -> list[dict]:
    """Bytes of the allocator's blocks that hold parameters, gradients and optimizer state, and of all others, from a
    snapshot of the allocator."""
    blocks = {
        block["address"]: block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    parameters = list(stepper.model.parameters())
    uses = {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer_state": list(stepper.optimizer_state()),
    }
    rows, known_bytes = [], 0
    for use, tensors in uses.items():
        size = sum(
            blocks.get(address, 0)
            for address in {local_part(tensor).untyped_storage().data_ptr() for tensor in tensors}
        )
        rows.append({"figure": f"memory_{use}", "unit": "bytes", "value": size})
        known_bytes += size
    rows.append({"figure": "memory_other", "unit": "bytes", "value": sum(blocks.values()) - known_bytes})
    return rows


LINK_BYTES = {"cuda": 2**30, "cpu": 2**20}
"""Of one message, by device: more than any layer or bucket has, so that a rate is the link's and not that of starts."""
LINK_REPEATS, LINK_CALLS = 5, 3


def link_rates(device: torch.device) -> list[dict]:
    """What the link between the ranks gives when they do nothing else: bytes of messages a second of each collective,
    as NCCL counts them (of an all-gather and a reduce-scatter, the part of one rank). Median of LINK_REPEATS, each
    LINK_CALLS in a row, after as many as warm-up. Every rank must call it."""
    rows = _link_rates(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of the messages, which are larger than anything that a run may need
    return rows


def _link_rates(device: torch.device) -> list[dict]:
    ranks, size = distributed.get_world_size(), LINK_BYTES[device.type]
    of_all = torch.ones(size // 4, device=device)
    of_one = torch.ones(size // 4 // ranks, device=device)
    collectives: dict[str, tuple[int, Callable[[], object]]] = {
        "AllReduce": (size, lambda: distributed.all_reduce(of_all)),
        "AllGather": (size // ranks, lambda: distributed.all_gather_into_tensor(of_all[: ranks * len(of_one)], of_one)),
        "ReduceScatter": (
            size // ranks,
            lambda: distributed.reduce_scatter_tensor(of_one, of_all[: ranks * len(of_one)]),
        ),
    }
    rows = []
    for name, (message, call) in collectives.items():
        rates = [LINK_CALLS * message / seconds_of(call, device) for _ in range(1 + LINK_REPEATS)][1:]
        rows.append({"figure": f"{LINK_RATE}{name}", "unit": "bytes/s", "value": statistics.median(rates)})
    return rows


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Of LINK_CALLS in a row, by the host's clock, the ranks having met before."""
    distributed.barrier()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(LINK_CALLS):
        call()
    synchronize(device)
    return time.perf_counter() - start


def numerics(stepper) -> list[dict]:
    """Loss, and output where it is one tensor (logits), of one forward pass in the run's precision against the same
    weights in float32."""
    output, loss = outputs(stepper, stepper.run["precision"])
    exact, exact_loss = outputs(stepper, "fp32")
    figures = {"loss": loss, "loss_fp32": exact_loss}
    if output is not None and exact is not None:
        difference = output - exact
        figures |= {
            "logits_rms_fp32": rms(exact),
            "logits_rms_difference": rms(difference),
            "logits_max_difference": difference.abs().max().item(),
        }
    return [{"figure": figure, "unit": "", "value": value} for figure, value in figures.items()]


def outputs(stepper, precision: str) -> tuple[Tensor | None, float]:
    """Output in float64 (None where it is no tensor) and loss of one forward pass in a precision."""
    stepper.where = FORWARD
    with stepper.in_precision(precision), annotation.no_ranges():
        stepper.forward()
        output = stepper.output.detach().double() if isinstance(stepper.output, Tensor) else None
        stepper.loss()
        loss = stepper.loss_value.item()
    stepper.loss_value = None
    return output, loss


def rms(values: Tensor) -> float:
    return values.pow(2).mean().sqrt().item()
