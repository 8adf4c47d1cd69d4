"""The steps that are measured: a model with its data, and its phases, separated by device synchronisation."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from profiler_job.jobs.contract.modes import list_phases
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.ranges import BACKWARD, FORWARD, LOSS, OPTIMIZER, PHASES, STEP
from profiler_job.jobs.follow.compiled_graphs import CompiledGraphs
from profiler_job.jobs.follow.module_ranges import COMPILED, ModuleRanges
from profiler_job.jobs.worker import parallel
from profiler_job.jobs.worker.compile_first import compile_backward_with_forward
from profiler_job.jobs.worker.parallel import Place
from profiler_job.jobs.workloads import REFERENCE, annotation, build_workload
from profiler_job.jobs.workloads.adamw import AdamW, build_optimizer, share_moments
from profiler_job.jobs.workloads.annotation import annotate
from profiler_job.jobs.workloads.transformer.model import name_ranges

SEED = 0

OUTERMOST = (STEP, *PHASES)

COMPILE_MODE = {"default": "default", "cudagraphs": "reduce-overhead"}


class HostTime(NamedTuple):
    """CPU time of a phase or a step, in nanoseconds. issue: without the waits for the device at the ends of phases; the
    time to issue the work, unless the queue of launches is full."""

    wall: int
    issue: int


class Stepper:
    """A model with its data, ready to run steps.

    `run` holds the fields of `jobs.contract.axes.Run`, `place` says which rank this process is. `where` names the phase
    in progress, in which a failure happens. `shared`: another stepper of this model, whose weights, gradients and
    moments this one uses; raises ValueError if its model has other parameters.
    """

    def __init__(
        self,
        run: dict[str, Any],
        device: torch.device,
        place: Place = Place(),  # noqa: B008  a constant
        shared: "Stepper | None" = None,
    ):
        self.run, self.device, self.place = run, device, place
        self.where = "build"
        self.num_steps = 0
        torch.manual_seed(SEED)
        self.set_precision(run["precision"])
        limit_memory(run["memory_limit_gib"], device)
        parallel.join(place, device)
        self.model, self.batch, self.loss_of = build_workload(run | {"batch_size": count_sequences(run)}, device)
        if shared:
            share_parameters(self.model, shared.model)
        self.open_compiled: Callable[[str], AbstractContextManager[Any]] = nullcontext
        if run["checkpointing"] == "blocks":
            checkpoint_blocks(self.model)
        if run["compile"] == "blocks":
            compile_blocks(self.model, self.call_compiled)
        self.model = parallel.parallelise(self.model, run, device)
        self.apply: Callable[..., torch.Tensor] = self.model
        if run["compile"] != "off":
            compile_backward_with_forward()
        if run["compile"] in COMPILE_MODE:
            mode = COMPILE_MODE[run["compile"]]
            self.apply = partial(self.call_compiled, torch.compile(self.model, mode=mode, dynamic=False))
        divided = run["parallel"] == "tp" and run["optimizer"] != "own"
        parameters = parallel.group_parameters(self.model) if divided else self.model.parameters()
        self.optimizer = build_optimizer(run["optimizer"], parameters)
        if shared:
            share_moments(self.optimizer, shared.optimizer)
        work = {FORWARD: self.forward, LOSS: self.loss, BACKWARD: self.backward, OPTIMIZER: self.optimizer.step}
        self.phases = [(name, work[name]) for name in list_phases(run["mode"], run["accumulation"])]
        self.output: torch.Tensor | None = None
        self.loss_value: torch.Tensor | None = None

    def forward(self) -> None:
        self.output = None
        with torch.set_grad_enabled(self.run["mode"] != "forward"), self.autocast():
            self.output = self.apply(*self.batch)

    def loss(self) -> None:
        with self.autocast():
            self.loss_value = self.loss_of(self.output)
        self.output = None

    def backward(self) -> None:
        assert self.loss_value is not None  # loss came before
        # Gradients add up to the gradient of the mean over all micro-batches.
        self.loss_value.backward(torch.full_like(self.loss_value, 1 / self.run["accumulation"]))
        self.loss_value = None

    def call_compiled(self, compiled: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call what torch.compile made. It has no ranges inside: its kernels span modules, and opening a range would
        split it."""
        is_named = self.run["compile"] in COMPILE_MODE and self.run["workload"] != REFERENCE
        name = f"{type(self.model).__name__}{COMPILED}" if is_named else COMPILED.strip()
        with self.open_compiled(name), annotation.no_ranges():
            return compiled(*args, **options)

    def autocast(self) -> torch.autocast:
        name = PRECISIONS[self.precision].autocast
        return torch.autocast(self.device.type, getattr(torch, name or "bfloat16"), enabled=bool(name))

    def set_precision(self, precision: str) -> None:
        self.precision = precision
        torch.set_float32_matmul_precision(PRECISIONS[precision].matmul)

    @contextmanager
    def use_precision(self, precision: str) -> Iterator[None]:
        """Compute forward and loss in another precision while the context is open."""
        self.set_precision(precision)
        try:
            yield
        finally:
            self.set_precision(self.run["precision"])

    def forget_outputs(self) -> None:
        """Free what the last step left for the next one: others take their turn before it."""
        self.output = self.loss_value = None

    def optimizer_state(self) -> Iterator[torch.Tensor]:
        """The tensors that the optimizer keeps on the device."""
        states = (self.read_state(parameter) for parameter in self.model.parameters())
        return (tensor for state in states for tensor in state if tensor.device.type == self.device.type)

    def read_state(self, parameter: torch.nn.Parameter) -> tuple[torch.Tensor, ...]:
        """Return what the optimizer keeps of a parameter; nothing before its first step."""
        if isinstance(self.optimizer, AdamW):
            return self.optimizer.moments.get(parameter, ())
        return tuple(self.optimizer.state[parameter].values()) if parameter in self.optimizer.state else ()

    def step(self, around: Callable[[str, Callable[[], None]], None] | None = None) -> dict[str, HostTime]:
        """One step, its phases separated by device synchronisation so that none leaks into the next.

        Returns the times of each phase, all micro-batches together, and of the step. `around(phase, work)` may wrap
        each phase.
        """
        times: dict[str, HostTime] = {}
        waited = 0
        step_start = time.perf_counter_ns()
        with annotate(STEP):
            self.optimizer.zero_grad()
            if self.run["compile"] == "cudagraphs":
                torch.compiler.cudagraph_mark_step_begin()
            for name, work in self.phases:
                self.where = name
                start = time.perf_counter_ns()
                with annotate(name):
                    around(name, work) if around else work()
                    issued = time.perf_counter_ns()
                    self.synchronize()
                end = time.perf_counter_ns()
                before = times.get(name, HostTime(0, 0))
                times[name] = HostTime(before.wall + end - start, before.issue + issued - start)
                waited += end - issued
        wall = time.perf_counter_ns() - step_start
        times[STEP] = HostTime(wall, wall - waited)
        self.num_steps += 1
        return times

    def follow_modules(self, ranges: ModuleRanges, graphs: CompiledGraphs | None = None) -> None:
        """One more step, which opens the range of a module in backward and in the optimizer, too, and in forward where
        the workload opens none. That costs time on the host, so the step has other names: it tells which module
        launches which kernel, and not how long that takes. graphs: what of this model was compiled, to be written
        after it."""

        def open_range(name: str) -> AbstractContextManager[Any]:
            if name in OUTERMOST:
                return ranges.outermost(name, "" if name == FORWARD else None)
            return ranges.range(name)

        def follow(phase: str, work: Callable[[], None]) -> None:
            if phase == BACKWARD:
                assert self.loss_value is not None  # loss came before
                with ranges.labelling([self.loss_value]):
                    work()
            elif phase == OPTIMIZER:
                if graphs:
                    ranges.paths |= self.name_owners(ranges)
                with ranges.label_optimizer(
                    (p, p.grad, *self.read_state(p)) for p in self.model.parameters() if p.grad is not None
                ):
                    work()
            else:
                work()

        ranges.forget()
        is_reference = self.run["workload"] == REFERENCE
        if not is_reference and self.run["compile"] not in COMPILE_MODE:
            ranges.follow_calls()
        self.open_compiled = ranges.range
        if graphs:
            graphs.calls.use(ranges)
        try:
            with annotation.opened_by(open_range):
                self.step(follow)
        finally:  # what the process measures next has no ranges
            self.open_compiled = nullcontext
            ranges.unfollow_calls()
            if graphs:
                graphs.calls.use(None)
        if graphs:
            graphs.write(ranges.push, ranges.pop, ranges.known_paths, name_ranges if is_reference else str)

    def name_owners(self, ranges: ModuleRanges) -> dict[int, str]:
        """Name the module of each parameter, by the parameter's id: a compiled model calls none of its modules."""
        if self.run["workload"] == REFERENCE:
            names = {id(module): name_ranges(join_numbers(name)) for name, module in self.model.named_modules()}
        else:
            names = ranges.paths_of(self.model)
        return {id(p): names[id(module)] for module in self.model.modules() for p in module.parameters(recurse=False)}

    def synchronize(self) -> None:
        parallel.synchronize(self.device)


def share_parameters(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """Let a model use the parameters of another one in place of its own. Raises ValueError if these differ."""
    shapes = [{name: value.shape for name, value in each.named_parameters()} for each in (model, other)]
    if shapes[0] != shapes[1]:
        different = ", ".join(sorted(dict(shapes[0].items() ^ shapes[1].items()))[:3])
        raise ValueError(f"runs that take turns have one model, and these differ in the parameters {different}")
    for name, module in model.named_modules():
        module._parameters.update(other.get_submodule(name)._parameters)


def join_numbers(name: str) -> str:
    """Write the name of a module as a path, where the place in a list stays with it: blocks.0.ffn -> blocks.0/ffn"""
    return re.sub(r"\.(?!\d+(?:\.|$))", "/", name)


def compile_blocks(model: torch.nn.Module, call: Callable[..., Any]) -> None:
    """Compile each layer of a model by itself, in place: what ranks exchange between layers stays outside. call: calls
    the compiled function, its first argument."""
    for layer in parallel.find_layers(model):
        layer.forward = partial(call, torch.compile(layer.forward, dynamic=False))


def checkpoint_blocks(model: torch.nn.Module) -> None:
    """Keep only the input of each layer of a model until backward, which computes the layer again, in place."""
    for layer in parallel.find_layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def count_sequences(run: dict[str, Any]) -> int:
    """Count the sequences that a process computes at once. With tensor parallelism all ranks compute all of them."""
    ranks = run["gpus"] if run["parallel"] == "tp" else 1
    return int(run["batch_size"]) * ranks // int(run["accumulation"])


def limit_memory(limit_gib: float, device: torch.device) -> None:
    """Let the allocator hold at most `limit_gib` GiB; 0: without limit."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_gib * 2**30 / total) if limit_gib else 1.0, device)


def count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
