"""Probes of a workload outside its timed steps: device memory by phase, by module and by use, the difference of its
results from float32, and the rate of the link between its GPUs."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from profiler_job.jobs.contract.messages import LINK_MESSAGE, LINK_RATE, LINK_SIZE, SILENT
from profiler_job.jobs.contract.precisions import BASE_PRECISION
from profiler_job.jobs.contract.ranges import FORWARD, LOSS, OPTIMIZER, STEP
from profiler_job.jobs.worker import parallel
from profiler_job.jobs.worker.parallel import synchronize, take_local_part
from profiler_job.jobs.worker.stepper import Stepper
from profiler_job.jobs.workloads import annotation

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def probe_memory(stepper: Stepper) -> dict[str, list[dict[str, Any]]]:
    """Memory in one more step of a `Stepper`, without CUDA only the empty list of `memory`.

    memory: allocator's peaks and levels in bytes, a row for each phase: over all micro-batches its highest peak, and
    the levels before the first and after the last. module_memory: bytes that each range of the first forward left
    allocated, its activations. figures: bytes in use when the step has ended, by use.
    """
    if stepper.device.type != "cuda":
        return {"memory": []}
    kept = KeptBytes(stepper.device)
    phases: dict[str, dict[str, Any]] = {}

    def measure_phase(phase: str, work: Callable[[], None]) -> None:
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

    stepper.step(measure_phase)
    return {"memory": list(phases.values()), "module_memory": kept.rows, "figures": measure_memory_by_use(stepper)}


class KeptBytes:
    """Opener of ranges that notes the bytes that each range left allocated on the device."""

    def __init__(self, device: torch.device):
        self.device = device
        self.path: list[str] = []
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def open(self, name: str) -> Iterator[None]:
        self.path.append(name)
        row = {"phase": FORWARD, "module": "/".join(self.path), "kept_bytes": 0}
        self.rows.append(row)
        before = torch.cuda.memory_allocated(self.device)
        yield
        row["kept_bytes"] = torch.cuda.memory_allocated(self.device) - before
        self.path.pop()


def measure_memory_by_use(stepper: Stepper) -> list[dict[str, Any]]:
    """Measure the bytes of the allocator's blocks that hold parameters, gradients and optimizer state, and of all
    others, from a snapshot of the allocator."""
    blocks = {
        block["address"]: block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    parameters = list(stepper.model.parameters())
    uses: dict[str, Sequence[Tensor]] = {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer_state": list(stepper.optimizer_state()),
    }
    rows, known_bytes = [], 0
    for use, tensors in uses.items():
        size = sum(
            blocks.get(address, 0)
            for address in {take_local_part(tensor).untyped_storage().data_ptr() for tensor in tensors}
        )
        rows.append({"figure": f"memory_{use}", "unit": "bytes", "value": size})
        known_bytes += size
    rows.append({"figure": "memory_other", "unit": "bytes", "value": sum(blocks.values()) - known_bytes})
    return rows


LINK_BYTES = {"cuda": 2**30, "cpu": 2**20}
"""Largest size of a message, by device: more than any layer or bucket has, so that the rate is the link's and not set
by latency. A GPU with too little free memory uses half of it, or a quarter; with less nothing is measured."""
LINK_ROOM = 4
"""How many times the message must be free: the run comes first, and NCCL allocates memory, too."""
LINK_REPEATS, LINK_CALLS = 5, 3
LINK_COLLECTIVES = {"ddp": ("AllReduce",), "fsdp": ("AllGather", "ReduceScatter"), "tp": ("AllReduce",)}
"""Collectives that a run uses. For other collectives NCCL might keep memory that the run does not need."""
LEAST_LINK_BYTES = {"cuda": 2**20, "cpu": 2**18}
"""Smallest message of the grid of all-reduces, each twice as large as the one before."""
LINK_GRID_BYTES, MOST_LINK_CALLS = 2**28, 20
"""Bytes that the calls in a row of one size send, and the most calls: nccl-tests makes 20. The CPU's clock then holds
little of what one call takes to begin."""
SILENT_STEPS = 5


def measure_link_rates(device: torch.device, how: str) -> list[dict[str, Any]]:
    """Measure the rate of the link between ranks for the collectives of a run that is parallel in this way (`how`).

    The rate is in bytes of messages a second, as NCCL counts them (for an all-gather and a reduce-scatter, the part of
    one rank), while the ranks do nothing else. It is the median of LINK_REPEATS, each LINK_CALLS in a row, after as
    many calls as warm-up. A further row has the bytes of all ranks' parts together. Of an all-reduce smaller messages
    are measured, too, down to LEAST_LINK_BYTES. Empty if a GPU has no room for it. Every rank must call it; it leaves
    no memory allocated.
    """
    messages = _allocate_messages(device)
    rows = _build_rates(*messages, how, device) if messages else []
    del messages
    if device.type == "cuda":
        torch.cuda.empty_cache()  # they are larger than anything that a run may need
    return rows


def _allocate_messages(device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Allocate a message of all ranks and the part of one rank, as large as fits on every rank; None if none fits."""
    most = LINK_BYTES[device.type]
    for size in (most, most // 2, most // 4):
        messages = _allocate(size, device) if has_room(size, device) else None
        if parallel.find_least(int(messages is not None), device):
            return messages
        del messages  # before the next is taken
    return None


def has_room(size: int, device: torch.device) -> bool:
    """Return whether a message of so many bytes may be allocated for a moment."""
    return device.type != "cuda" or torch.cuda.mem_get_info(device)[0] >= LINK_ROOM * size


def _allocate(size: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Allocate a message of all ranks and the part of one; None if the limit of the allocator is below it."""
    ranks = distributed.get_world_size()
    try:
        part = torch.ones(size // 4 // ranks, device=device)
        return torch.ones(ranks * len(part), device=device), part
    except torch.OutOfMemoryError:
        return None


def _build_rates(of_all: Tensor, part: Tensor, how: str, device: torch.device) -> list[dict[str, Any]]:
    collectives: dict[str, tuple[Tensor, Callable[[], object]]] = {
        "AllReduce": (of_all, lambda: distributed.all_reduce(of_all)),
        "AllGather": (part, lambda: distributed.all_gather_into_tensor(of_all, part)),
        "ReduceScatter": (part, lambda: distributed.reduce_scatter_tensor(part, of_all)),
    }
    rows = [{"figure": LINK_MESSAGE, "unit": "bytes", "value": of_all.nbytes}]
    for name in LINK_COLLECTIVES[how]:
        message, call = collectives[name]
        rows.append(_build_rate(name, message, call, LINK_CALLS, device))
        if name == "AllReduce":
            rows += _build_smaller_rates(message, device)
    return rows


def _build_smaller_rates(message: Tensor, device: torch.device) -> list[dict[str, Any]]:
    """The rates of all-reduces of the first part of a message, by its size, the largest first."""
    rows, size = [], message.nbytes // 2
    while size >= LEAST_LINK_BYTES[device.type]:
        part = message[: size // message.element_size()]
        calls = min(MOST_LINK_CALLS, max(LINK_CALLS, LINK_GRID_BYTES // size))
        name = f"AllReduce{LINK_SIZE}{part.nbytes}"
        rows.append(_build_rate(name, part, partial(distributed.all_reduce, part), calls, device))
        size //= 2
    return rows


def _build_rate(
    name: str, message: Tensor, call: Callable[[], object], calls: int, device: torch.device
) -> dict[str, Any]:
    rates = [calls * message.nbytes / measure_seconds(call, calls, device) for _ in range(1 + LINK_REPEATS)][1:]
    return {"figure": f"{LINK_RATE}{name}", "unit": "bytes/s", "value": statistics.median(rates)}


def measure_seconds(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Measure the seconds of so many calls in a row by the CPU's clock, after all ranks have met."""
    distributed.barrier()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return time.perf_counter() - start


def measure_silent_steps(stepper: Stepper) -> list[dict[str, Any]]:
    """Measure steps without an optimizer in which the ranks exchange nothing: the median time of SILENT_STEPS. With
    FSDP each rank then has all parameters and gradients. Empty with other ways to share the work, or if a GPU has no
    room for them. Every rank must call it, when nothing else is to be measured: the model cannot be used afterwards."""
    needed = 2 * sum(parameter.numel() * parameter.element_size() for parameter in stepper.model.parameters())
    if stepper.run["parallel"] not in ("ddp", "fsdp"):
        return []
    if not parallel.find_least(int(has_room(needed // LINK_ROOM, stepper.device)), stepper.device):
        return []

    def skip_optimizer(phase: str, work: Callable[[], None]) -> None:
        if phase != OPTIMIZER:
            work()

    times = []
    with parallel.silence(stepper.model), annotation.no_ranges():
        for _ in range(2 + SILENT_STEPS):
            stepper.model.zero_grad()  # the optimizer of FSDP knows the parts alone
            step = stepper.step(skip_optimizer)
            times.append(sum(step[phase].wall for phase in step if phase not in (STEP, OPTIMIZER)))
    del times[:2]
    return [{"figure": SILENT, "unit": "ns", "value": statistics.median(times)}]


def draws_masks(model: nn.Module) -> bool:
    """Return whether a model uses dropout: in its modules, or in attention by its configuration, since attention may
    not be a module. Then two passes from the same weights have different losses in any precision."""
    config: Any = getattr(model, "config", None)
    named = config.to_dict() if hasattr(config, "to_dict") else {}
    rates = [rate for name, rate in named.items() if "att" in name and "drop" in name and isinstance(rate, float)]
    rates += [module.p for module in model.modules() if isinstance(module, DROPOUT)]
    return model.training and any(rate > 0 for rate in rates)


def probe_numerics(stepper: Stepper) -> list[dict[str, Any]]:
    """Compare one forward pass in the run's precision with one in float32 from the same weights: the loss, and the
    output if it is one tensor (logits)."""
    output, loss = compute_outputs(stepper, stepper.run["precision"])
    exact, exact_loss = compute_outputs(stepper, BASE_PRECISION)
    figures = {"loss": loss, "loss_fp32": exact_loss}
    if output is not None and exact is not None:
        difference = output - exact
        figures |= {
            "logits_rms_fp32": compute_rms(exact),
            "logits_rms_difference": compute_rms(difference),
            "logits_max_difference": difference.abs().max().item(),
        }
    return [{"figure": figure, "unit": "", "value": value} for figure, value in figures.items()]


def measure_trained_loss(stepper: Stepper, steps: int) -> float:
    """Run `steps` training steps and one more, and return the loss of the last."""
    losses: list[float] = []

    def note(phase: str, work: Callable[[], None]) -> None:
        work()
        if phase == LOSS:
            assert stepper.loss_value is not None  # the phase computes it
            losses.append(stepper.loss_value.item())

    with annotation.no_ranges():
        for _ in range(steps + 1):
            stepper.step(note)
    return losses[-1]


def measure_losses(trained: float, plain: float) -> list[dict[str, Any]]:
    """Build the rows of both losses of `measure_trained_loss`."""
    figures = {"loss_trained": trained, "loss_trained_plain": plain}
    return [{"figure": figure, "unit": "", "value": value} for figure, value in figures.items()]


def compute_outputs(stepper: Stepper, precision: str) -> tuple[Tensor | None, float]:
    """Compute the output in float64 (None if it is not a tensor) and the loss of one forward pass in a precision."""
    stepper.where = FORWARD
    with stepper.use_precision(precision), annotation.no_ranges():
        stepper.forward()
        output = stepper.output.detach().double() if isinstance(stepper.output, Tensor) else None
        stepper.loss()
        assert stepper.loss_value is not None  # `loss` computes it
        loss = stepper.loss_value.item()
    stepper.loss_value = None
    return output, loss


def compute_rms(values: Tensor) -> float:
    return values.pow(2).mean().sqrt().item()
