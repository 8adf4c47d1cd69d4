"""Checks before anything expensive: is this a machine that can measure? Each failing check says what to do."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

import pynvml

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.extras import find_missing, install_command
from profiler_job.jobs.contract.find_nsys import HOW_TO_INSTALL
from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.machine import count_cores
from profiler_job.jobs.executor.nsys_cli import run_nsys
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.visible_gpus import find_visible_gpus, open_visible_handles
from profiler_job.jobs.memory import (
    CUDA_CONTEXT_BYTES,
    find_most_demanding,
    infer_shape,
    is_predictable,
    is_reference,
    predict_memory_bytes,
)
from profiler_job.jobs.sweep.batches import NSYS_WORKERS, count_together
from profiler_job.jobs.sweep.prediction import predict_export_bytes

MIB, GIB = 2**20, 2**30
LONGEST_TEMPORARY = 107 - len("/profiler-12345678/socket")  # bytes; Linux allows 107 for the path of a socket
FILES_PER_CAPTURE = 2  # its export and its report, whose size nobody noted: it is taken to be as large
BUSY_BYTES = 1 * GIB
MOST_NAMED = 100  # runs in one line
TORCH_TIMEOUT_S = 180
IMPORT_TIMEOUT_S = 180

# The default of --results; the image sets it.
RESULTS_OF_IMAGE = "PROFILER_RESULTS"


class Check(NamedTuple):
    """`state` is ok, warning (measure, but know this) or failed (measuring is pointless)."""

    name: str
    state: str
    found: str
    fix: str = ""


def check_gpu(needed: int = 1) -> Check:
    """Check that there are as many GPUs as the run with most of them needs."""
    try:
        names = [pynvml.nvmlDeviceGetName(handle) for handle in open_visible_handles()]
    except pynvml.NVMLError as error:
        fix = (
            "run on a machine with an NVIDIA GPU and driver; in Docker add --gpus all (needs nvidia-container-toolkit)"
        )
        return Check("GPU", "failed", f"no NVIDIA GPU is visible ({error})", fix)
    if not names:
        fix = "name one in CUDA_VISIBLE_DEVICES, or unset it; a batch engine sets it for jobs that ask for a GPU"
        return Check("GPU", "failed", "no NVIDIA GPU is visible to CUDA", fix)
    if len(names) < needed:
        fix = "take a machine with as many, or leave these runs out with --only gpus=1"
        return Check("GPU", "failed", f"some runs need {needed} GPUs, {len(names)} visible", fix)
    return Check("GPU", "ok", ", ".join(names))


def check_torch() -> Check:
    """Check, in a new process, that torch is a CUDA build and the driver is new enough for it."""
    program = (
        "import torch, sys\n"
        "print('torch', torch.__version__, 'for CUDA', torch.version.cuda)\n"
        "torch.cuda.init() if torch.version.cuda else sys.exit('this torch is built without CUDA')\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        finding = f"CUDA does not answer within {TORCH_TIMEOUT_S} s"
        return Check("torch", "failed", finding, "see whether nvidia-smi answers; if not, restart the machine")
    if done.returncode == 0:
        return Check("torch", "ok", done.stdout.strip())
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    if "No module named 'torch'" in reason:
        return find_no_torch()
    fix = "install a CUDA build of torch that this driver supports, or update the driver"
    return Check("torch", "failed", reason, fix)


def find_no_torch() -> Check:
    """The check that fails where torch is not installed, which a CPU needs, too."""
    return Check("torch", "failed", "not installed", install_command("gpu"))


def warn_of_torch(check: Check) -> Check:
    """Return the check of torch for whoever profiles a script, which brings a torch of its own."""
    if check.state != "failed":
        return check
    return check._replace(state="warning", found=f"{check.found}; only a sweep needs it, since a script has its own")


def check_workload(workload: str, options: Sequence[str] = ("",)) -> Check:
    """Check that a workload from outside can be imported, and takes the options of its runs; in a new process, as
    workers do."""
    program = (
        "import sys\n"
        "from profiler_job.jobs.contract.options import parse_options\n"
        "from profiler_job.jobs.workloads import check_options, find_build\n"
        "name, *said = sys.argv[1:]\n"
        "try:\n"
        "    build = find_build(name)\n"
        "    for options in said: check_options(build, parse_options(options), name)\n"
        "except ValueError as error: sys.exit(' '.join(str(error).split()))\n"
    )
    command = [sys.executable, "-P", "-c", program, workload, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        finding = f"{workload}: its module is not imported within {IMPORT_TIMEOUT_S} s"
        return Check("workload", "failed", finding, "let the module do its work in the function")
    if done.returncode == 0:
        return Check("workload", "ok", workload)
    said = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("workload ")
    finding, _, fix = said.rpartition("; ")
    return Check(
        "workload", "failed", finding or f"{workload}: {said}", fix if finding else "import it in Python to see why"
    )


def check_nsys() -> Check:
    """Check that nsys runs and can make a report of what it collects (its importer is there)."""
    try:
        version = run_nsys("--version").strip()
    except CollectorError as error:
        if shutil.which("nsys") is None:
            return Check("nsys", "failed", "not on this machine", HOW_TO_INSTALL)
        return Check("nsys", "failed", str(error), f"install nsys again: {HOW_TO_INSTALL}")
    with TemporaryDirectory() as folder:
        report = Path(folder) / "check.nsys-rep"
        quiet = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", f"--output={report}"]
        try:
            run_nsys("profile", *quiet, sys.executable, "-c", "pass")
        except CollectorError as error:
            return Check("nsys", "failed", str(error), f"install nsys again: {HOW_TO_INSTALL}")
        if not report.exists():
            fix = f"install a whole nsys, with its importer and libdw1: {HOW_TO_INSTALL}"
            return Check("nsys", "failed", "collects, but cannot make a report: its importer is missing", fix)
    return Check("nsys", "ok", version)


def format_amount(size: float) -> str:
    """Format bytes for a reader."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def check_disk(folder: Path, runs: Sequence[Run], protocol: Protocol) -> Check:
    sizes = [predict_export_bytes(run, protocol) for run in runs]
    needed = FILES_PER_CAPTURE * sum(size for size in sizes if size is not None)
    free = shutil.disk_usage(find_existing_parent(folder)).free
    finding = f"{format_amount(free)} free in {folder}"
    known = len(sizes) - sizes.count(None)
    if known or not sizes:
        finding += f", at most {format_amount(needed)} predicted"
    if None in sizes:
        finding += f" for {known} of {len(runs)} runs" if known else ""
        finding += f"; nothing is predicted for workload {', '.join(explain_unpredicted(runs))}"
    if free < needed:
        return Check("disk", "failed", finding, "free some space, or choose another folder with --results")
    return Check("disk", "ok", finding)


def format_run_options(workload: str, runs: Sequence[Run]) -> list[str]:
    """The different options of the runs of a workload."""
    return list(dict.fromkeys(run.workload_options for run in runs if run.workload == workload))


def explain_unpredicted(runs: Sequence[Run]) -> list[str]:
    """List the workloads of runs without a prediction."""
    return list(dict.fromkeys(run.workload for run in runs if not is_reference(run)))


def check_writable(folder: Path, *below: Path) -> Check:
    """Check that results can be written, also to folders `below`, and outlive the container if this program runs in
    its image."""
    is_lost = str(folder) == os.environ.get(RESULTS_OF_IMAGE) and not folder.is_mount()
    mount = 'mount a folder: -v "$PWD/results:/results"'
    for parent in map(find_existing_parent, (folder, *below)):
        if parent.is_dir() and os.access(parent, os.W_OK):
            continue
        user = f"{os.getuid()}:{os.getgid()}"
        fix = f"give a folder that user {user} may write; in Docker create it before the container does (mkdir -p "
        fix += "results) and add --user $(id -u):$(id -g)"
        finding = f"{parent} is not writable for user {user}"
        return Check("results folder", "failed", finding, mount if is_lost else fix)
    if is_lost:
        return Check("results folder", "warning", f"{folder} is lost with this container", mount)
    return Check("results folder", "ok", f"{folder} is writable")


def check_temporary(runs: Sequence[Run], protocol: Protocol, gpus: int = 0) -> Check:
    """Check that the temporary folder can hold a worker's socket, and the largest capture of every worker at once;
    `gpus` are used, or all (0)."""
    try:
        folder = gettempdir()
    except FileNotFoundError:
        fix = "in Docker with --read-only add --tmpfs /tmp:exec; elsewhere set TMPDIR to a writable folder"
        return Check("temporary folder", "failed", "no temporary folder is writable", fix)
    if len(os.fsencode(folder)) > LONGEST_TEMPORARY:
        finding = f"the path {folder} is too long for a socket"
        return Check("temporary folder", "failed", finding, "set TMPDIR to a shorter one")
    largest = max((predict_export_bytes(run, protocol) or 0 for run in runs), default=0)
    num_gpus = gpus or len(find_visible_gpus()) or 1
    needed = FILES_PER_CAPTURE * largest * max(NSYS_WORKERS, count_together(runs, count_cores(), num_gpus)) * num_gpus
    if shutil.disk_usage(folder).free < needed:
        finding = f"less than {needed / MIB:.0f} MiB free in {folder} for captures in progress"
        return Check("temporary folder", "failed", finding, "free some space, or set TMPDIR to another folder")
    return Check("temporary folder", "ok", f"{folder} is writable")


def check_gpu_memory(runs: Sequence[Run], with_nsys: bool = True, gpus: int = 0) -> Check:
    """Check that every run is predicted to fit in the memory that the CUDA contexts of idle workers leave."""
    memory = []
    with suppress(pynvml.NVMLError):
        memory = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in open_visible_handles(gpus)]
    together = count_together(runs, count_cores(), len(memory))
    num_nsys = min(max(NSYS_WORKERS, together), len(runs)) if with_nsys else 0
    idle = (together - 1 + num_nsys) * CUDA_CONTEXT_BYTES
    if memory:
        least, used = min(info.free for info in memory), max(info.used for info in memory)
        known = [run for run in runs if is_predictable(run)]
        shapes = {infer_shape(run) for run in known}
        predicted = set(find_most_demanding(shapes))
        tight = [
            run.run_id
            for run in known
            if infer_shape(run) in predicted and (predict_memory_bytes(run) or 0) + idle > least
        ]
        finding = f"{least / GIB:.1f} GiB free"
        if others := explain_unpredicted(runs):
            finding += f"; nothing is predicted for workload {', '.join(others)}"
        if used > BUSY_BYTES:
            fix = "stop the other programs on this GPU: they disturb the timings"
            return Check("GPU memory", "warning", f"{finding}; {used / GIB:.1f} GiB in use by others", fix)
        if len(predicted) < len(shapes):
            finding += f"; predicted for the {len(predicted)} most demanding of {len(shapes)} different shapes"
        if tight:
            more = f" and {len(tight) - MOST_NAMED} more" if len(tight) > MOST_NAMED else ""
            finding += f"; predicted not to fit: {', '.join(tight[:MOST_NAMED])}{more}"
            return Check("GPU memory", "warning", finding, "they are tried all the same, and reported as oom")
        return Check("GPU memory", "ok", finding)
    return Check("GPU memory", "failed", "unknown", "see GPU")


def check_other_processes(gpus: int = 0) -> Check:
    with suppress(pynvml.NVMLError):
        processes = [
            process.pid
            for handle in open_visible_handles(gpus)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ]
        if processes:
            fix = "stop them: two programs on one GPU share its time"
            return Check("other processes", "warning", f"{len(processes)} on the GPU (pid {processes})", fix)
        return Check("other processes", "ok", "none on the GPU")
    return Check("other processes", "failed", "unknown", "see GPU")


def find_existing_parent(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def run_checks(
    results: Results, runs: Sequence[Run], protocol: Protocol, device: str = "cuda", gpus: int = 0
) -> list[Check]:
    """All checks for measuring `runs` on `gpus` GPUs (0: all); without a GPU (`device` cpu, for trying things out) only
    some, and none of nsys where no step is profiled."""
    with_nsys = protocol.profiled_steps > 0
    temporary = check_temporary(runs, protocol, gpus)
    if temporary.state == "failed":  # most other checks need one
        return [temporary]
    everywhere: list[Callable[[], Check]] = [
        lambda: check_writable(*results.written),
        lambda: check_disk(results.root, runs, protocol),
        *([check_nsys] if with_nsys else []),
        *(
            partial(check_workload, workload, format_run_options(workload, runs))
            for workload in explain_unpredicted(runs)
        ),
    ]
    on_gpu: list[Callable[[], Check]] = [
        lambda: check_gpu(max((run.gpus for run in runs), default=1)),
        check_torch,
        lambda: check_gpu_memory(runs, with_nsys, gpus),
        lambda: check_other_processes(gpus),
    ]
    on_cpu = [find_no_torch] if find_missing("gpu") else []
    return [*(check() for check in (on_gpu if device == "cuda" else on_cpu) + everywhere), temporary]
