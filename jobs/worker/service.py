"""The process that is measured: it builds a model, warms up, runs annotated steps and reports. Under nsys one process
serves many runs, so that imports and the CUDA context are paid once; without nsys each run has fresh processes, which
are forked after the imports (`jobs.worker.fork`). It imports torch and the standard library, nothing else.

It is spawned with the address of a listening socket, and receives its tasks as messages (see `serve`). It does not know
whether nsys is attached: the runner starts the capture before a task, and stops it after.
"""

import argparse
import json
import os
import select
import shutil
import statistics
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from multiprocessing.connection import Client, Connection
from typing import Any

import torch

from profiler_job.jobs.contract.messages import GO, Busy, Facts, MemoryOf, Seconds
from profiler_job.jobs.contract.plain import PLAIN, TRAINED_STEPS, count_plain_steps
from profiler_job.jobs.contract.precisions import BASE_PRECISION
from profiler_job.jobs.contract.ranges import RANK, STEP
from profiler_job.jobs.follow.compiled_graphs import CompiledGraphs
from profiler_job.jobs.follow.module_ranges import ModuleRanges
from profiler_job.jobs.worker import calibration, parallel, probes
from profiler_job.jobs.worker.answers import answer, build_failed, build_measured, release, write_output_to
from profiler_job.jobs.worker.compile_first import calling_before_first_run
from profiler_job.jobs.worker.fork import fork_workers
from profiler_job.jobs.worker.host_speed import measure_host_loop
from profiler_job.jobs.worker.parallel import Place
from profiler_job.jobs.worker.stepper import Stepper
from profiler_job.jobs.worker.turns import take_turns
from profiler_job.jobs.workloads import annotation
from profiler_job.jobs.workloads.annotation import annotate

GRAPHS = CompiledGraphs()
"""What is compiled for the run in progress, in a worker that follows modules."""


def allocated_before(device: torch.device) -> MemoryOf:
    """Return the bytes that earlier runs left allocated, before a run is built: the workspace that cuBLAS keeps, or
    tensors that outlived their run. {} without CUDA."""
    return {"allocated_before_bytes": torch.cuda.memory_allocated(device)} if device.type == "cuda" else {}


def compares_with_fp32(run: dict[str, Any]) -> bool:
    """Return whether numerics are probed: fused attention has backends without float32, a compiled model would compile
    again."""
    return bool(run["precision"] != BASE_PRECISION and run["attention"] == "naive" and run["compile"] == "off")


def measure_plain_loss(run: dict[str, Any], device: torch.device) -> float | None:
    """Loss of the same workload with nothing done to make it faster, from the same weights with the same batch, after
    TRAINED_STEPS; None where it cannot be had, such as for want of memory, or says nothing, as with dropout. To be
    called before the run is built, which needs the memory: nothing of it is left."""

    def train() -> float | None:
        stepper = Stepper(run | PLAIN, device)
        return None if probes.draws_masks(stepper.model) else probes.measure_trained_loss(stepper, TRAINED_STEPS)

    loss = None
    try:
        loss = train()
    except Exception:
        traceback.print_exc()  # a failed probe must not fail the run
    release(device, was_compiled=False)
    return loss


def keep_busy(stepper: Stepper, at_least_s: float, step_ns: float) -> Busy:
    """Run steps, none of them timed by itself, for so long at least: the counter of a GPU's energy has ticks of tens of
    milliseconds. Several ranks run as many as they agree on, by what a step took, `step_ns`."""
    agreed = parallel.agree_on_steps(at_least_s, step_ns, stepper.device) if stepper.place.num_ranks > 1 else None
    steps, start = 0, time.perf_counter_ns()
    while steps < agreed if agreed else time.perf_counter_ns() - start < at_least_s * 1e9:
        stepper.step()
        steps += 1
    return {"steps": steps, "wall_ns": time.perf_counter_ns() - start}


class WaitForOthers:
    """The wait of a process before its first step runs: it sends `compiled`, and gets `go`. seconds: how long."""

    def __init__(self, connection: Connection):
        self.connection, self.seconds = connection, 0.0

    def __call__(self) -> None:
        began = time.perf_counter()
        answer(self.connection, {"event": "compiled"})
        if self.connection.recv() != GO:
            raise ConnectionAbortedError("the job wants no step")
        self.seconds += time.perf_counter() - began


def perform(
    task: dict[str, Any],
    device: torch.device,
    connection: Connection,
    followed_by: ModuleRanges | None = None,
    place: Place = Place(),  # noqa: B008  a constant
) -> None:
    """Carry out one task: warm up, send `ready`, wait for `go`, run `steps` steps, send `measured`. If the task has
    `busy_s`, before `measured` send `timed`, wait for `go`, and keep the GPU busy. If it `waits`, send `compiled`, and
    wait for `go`, before the first step runs (see `compile_first`).

    Warm-up steps have no ranges: a capture may be open, and only what lies in a `step` counts. Without warm-up the
    first measured step is the first of all. With `followed_by` run one more step (see `Stepper.follow_modules`).
    A failure is sent as `oom` or `failed` with the phase, the step (from 0, warm-up included) and memory in bytes.
    """
    stepper = None
    before: MemoryOf = {}
    try:
        if followed_by and task["run"]["compile"] != "off":
            GRAPHS.begin()
            GRAPHS.forget()
        compares = task["compare"] and count_plain_steps(task["run"], task["warmup_steps"])
        plain = measure_plain_loss(task["run"], device) if compares else None
        before = allocated_before(device)  # the plain model's workspace, too
        started = time.perf_counter()
        stepper = Stepper(task["run"], device, place)
        stepper.synchronize()
        built = time.perf_counter()
        wait = WaitForOthers(connection)
        if task["waits"] and task["run"]["compile"] == "off":
            wait()
        with calling_before_first_run(wait) if task["waits"] else nullcontext():
            probed = warm_up(stepper, task, plain, before)
        warm = time.perf_counter() - wait.seconds
        answer(connection, {"event": "ready"})
        if connection.recv() != GO:
            return
        host_loop_ns = measure_host_loop() if task["probe"] else None  # until now others may have used the CPU
        if task["warmup_steps"]:  # the last one comes after the wait, in which the GPU was idle
            with annotation.no_ranges():
                stepper.step()
        stepper.synchronize()
        if place.num_ranks > 1:
            with annotate(f"{RANK}{place.rank}"):
                pass
        measuring = time.perf_counter()
        GRAPHS.is_measured = True
        times = [stepper.step() for _ in range(task["steps"])]
        GRAPHS.is_measured = False
        measured = time.perf_counter()
        busy = None
        if task["busy_s"]:
            answer(connection, {"event": "timed"})
            if connection.recv() != GO:
                return
            busy = keep_busy(stepper, task["busy_s"], statistics.median(step[STEP].wall for step in times))
        if followed_by:
            stepper.follow_modules(followed_by, GRAPHS if task["run"]["compile"] != "off" else None)
            for problem in GRAPHS.list_problems():
                print(f"torch.compile: {problem}", flush=True)
        seconds: Seconds = {"build": built - started, "warm_up": warm - built, "measure": measured - measuring}
        if task["probe"] and place.num_ranks > 1:
            probed["figures"] += probes.measure_silent_steps(stepper)
        message = build_measured(stepper, times, probed, seconds)
        if host_loop_ns is not None:
            message["host_loop_ns"] = host_loop_ns
        if busy:
            message["busy"] = busy
        answer(connection, message)
    except Exception as error:
        traceback.print_exc()
        answer(connection, build_failed(error, stepper, device, before))
        # Any error but one of the allocator may have broken the CUDA context for good.
        if not isinstance(error, torch.OutOfMemoryError):
            sys.exit(1)


def warm_up(
    stepper: Stepper, task: dict[str, Any], plain: float | None, before: MemoryOf
) -> dict[str, list[dict[str, Any]]]:
    """Run the warm-up steps but the last, and the probes that the task asks for. Return the rows of probes by table.

    plain: loss of the plain run, to compare with. before: bytes allocated before the run was built.
    """
    has_probes = task["probe"] and task["warmup_steps"] > 0
    probed: dict[str, list[dict[str, Any]]] = {"memory": [], "figures": []}
    if task["probe"]:
        of_run = {"figure": "allocated_before_build", "unit": "bytes"}
        probed["figures"] += [of_run | {"value": value} for value in before.values()]
        if stepper.place.num_ranks > 1:
            probed["figures"] += probes.measure_link_rates(stepper.device, task["run"]["parallel"])
    with annotation.no_ranges():
        if has_probes and compares_with_fp32(task["run"]) and not probes.draws_masks(stepper.model):
            probed["figures"] += probes.probe_numerics(stepper)
        steps = task["warmup_steps"] - 1
        if plain is not None:
            probed["figures"] += probes.measure_losses(probes.measure_trained_loss(stepper, TRAINED_STEPS), plain)
            steps -= TRAINED_STEPS + 1
        for _ in range(steps):
            stepper.step()
        if has_probes:
            for name, rows in probes.probe_memory(stepper).items():
                probed[name] = probed.get(name, []) + rows
    return probed


def read_facts(device: torch.device) -> Facts:
    """Return what this process knows about the machine."""
    cuda = device.type == "cuda"
    return {
        "gpu_name": torch.cuda.get_device_name(device) if cuda else "CPU (no GPU)",
        "gpu_memory_bytes": torch.cuda.mem_get_info(device)[1] if cuda else 0,
        "cuda": torch.version.cuda or "",
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def serve(
    connection: Connection,
    device: torch.device,
    followed_by: ModuleRanges | None = None,
    place: Place = Place(),  # noqa: B008  a constant
) -> None:
    """Answer tasks until one is None or the connection closes: each is a dict, as `jobs.contract.messages` describes
    it. When `released` is sent, the run has left nothing behind."""
    answer(connection, {"event": "hello", "pid": os.getpid(), "facts": read_facts(device)})
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if task is None:
            return
        if task.get("log"):
            write_output_to(task["log"])
        runs = task.get("runs", [])
        if runs:
            take_turns(task, device, connection)
        elif "run" in task:
            runs = [task["run"]]
            print(f"{task['collector']}: {json.dumps(task['run'])}", flush=True)
            perform(task, device, connection, followed_by, place)
        else:
            answer(connection, {"event": "calibrated", "rates": calibration.measure_rates(device)})
        release(device, was_compiled=any(run["compile"] != "off" for run in runs))
        sys.stdout.flush()
        answer(connection, {"event": "released"})


def end_with_runner(connection: Connection, home: str = "") -> None:
    """End this process as soon as the runner is gone, even in the middle of a step, and remove its temporary folder
    `home`, which nobody else will. Until then a thread sleeps."""
    runner = select.poll()
    runner.register(connection.fileno(), select.POLLRDHUP)

    def watch() -> None:
        runner.poll()
        if home:
            shutil.rmtree(home, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measured process of a sweep; started by the runner.")
    parser.add_argument("address")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--annotate", action="store_true", help="open NVTX ranges")
    parser.add_argument("--fork", action="store_true", help="fork a process for each address that is sent")
    parser.add_argument("--rank", type=int, default=0, help="which of several processes this is")
    parser.add_argument("--ranks", type=int, default=1, help="how many there are")
    parser.add_argument("--meeting", default="", help="the file by which they meet")
    arguments = parser.parse_args()
    home = os.path.dirname(arguments.address)
    if arguments.fork:
        with Client(arguments.address) as control:
            fork_workers(control, lambda address: connect(address, arguments))
        shutil.rmtree(home, ignore_errors=True)
    else:
        # The folder of a rank belongs to the process between it and the runner.
        connect(arguments.address, arguments, home if arguments.ranks == 1 else "")


def connect(address: str, arguments: argparse.Namespace, home: str = "") -> None:
    """Serve whoever listens at an address. `home`: see `end_with_runner`."""
    # Backward on the thread that runs forward, so that its kernels are launched inside the `backward` range.
    torch.autograd.set_multithreading_enabled(False)
    followed_by = None
    if arguments.annotate and arguments.device == "cuda":
        annotation.use(torch.cuda.nvtx.range)
        followed_by = ModuleRanges(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    place = Place(arguments.rank, arguments.ranks, arguments.meeting)
    device = torch.device("cuda", arguments.rank) if arguments.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with Client(address) as connection:
        end_with_runner(connection, home)
        serve(connection, device, followed_by, place)
