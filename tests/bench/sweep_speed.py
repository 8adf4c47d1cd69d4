"""Measure the job itself on a GPU machine. Each part puts its figures into one JSON file that the site renders; what a
part showed before stays in that file.

python -m tests.bench.sweep_speed whole --results DIR --out FILE      the job just run in DIR: wall time, GPU-busy share
python -m tests.bench.sweep_speed process-per-run --out FILE          12 small runs: warm workers against a process each
python -m tests.bench.sweep_speed gpus --out FILE                     the same runs on one GPU and on all of them

A run that is lost is named with its reason, and leaves the figures incomplete, not missing.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

import numpy as np
import pandas as pd
import pynvml

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.contract.program import find_commit
from profiler_job.jobs.executor.collectors import NOT_SAMPLED, TRACED, Timer
from profiler_job.jobs.executor.failures import CollectorError, RunFailedError
from profiler_job.jobs.executor.nsys_cli import count_kernels_and_steps, export
from profiler_job.jobs.executor.result_store import Results, read_json
from profiler_job.jobs.executor.sweep_runner import SweepRunner
from profiler_job.jobs.executor.visible_gpus import find_visible_gpus
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep, select
from profiler_job.jobs.sweep.prediction import compute_timeout

# The runs of the default sweep that a part measures, unless told otherwise.
RUNS = {"process-per-run": "size=small", "gpus": "size=small,size=medium"}
HEADLINES = {"whole": "gpu_busy_share", "process_per_run": "process_per_run_ratio", "gpus": "gpus_ratio"}
TARGETS = {"gpu_busy_share": 0.5, "process_per_run_ratio": 2.5, "gpus_ratio": 1.8, "kernel_time_difference": 0.02}


class Measured(NamedTuple):
    """A sweep: wall time in seconds, number of runs that are ok, why the others are not, and how often a capture was
    repeated."""

    wall_s: float
    complete: int
    lost: dict[str, str]
    repeated: int

    @property
    def throughput(self) -> float:
        """Complete runs per second."""
        return self.complete / self.wall_s

    def figures(self, which: str) -> dict:
        told = {"s": self.wall_s, "complete": self.complete, "lost": self.lost, "repeated": self.repeated}
        return {f"{which}_{name}": value for name, value in told.items()}


def measure(runs: list[Run], protocol: Protocol, folder: Path, gpus: list[int], device: str) -> Measured:
    """A sweep over `runs`, results in `folder`."""
    lost, repeats = {}, []

    def note(event: str, **fields) -> None:
        if event == "run_finished" and fields["status"] != "ok":
            lost[fields["run"]] = f"{fields['status']}: {fields['detail']['phase']}: {fields['detail']['message']}"
            say(fields["run"], f"lost: {lost[fields['run']]}")
        if event == "run_repeated":
            repeats.append(fields["run"])
            say(fields["run"], f"repeated: {fields['why']}")

    def say(run: str, what: str) -> None:
        log = folder / "bench" / run / "log.txt"
        last = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        print(f"{run} {what}", *last, sep="\n  ", file=sys.stderr)

    started = time.monotonic()
    SweepRunner(Results(folder, "bench"), protocol, note, device=device, gpus=gpus).run(runs)
    return Measured(time.monotonic() - started, len(runs) - len(lost), lost, len(repeats))


def union_ns(start: np.ndarray, end: np.ndarray) -> int:
    """Nanoseconds covered by intervals."""
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(start[1:] - end[:-1], 0).sum()
    return int(end[-1] - start[0] - gaps) if len(start) else 0


def kernels_in_steps(database: Path) -> pd.DataFrame:
    """Kernels of a capture that start after its first step began, with the lead-in left out."""
    capture = read(database)
    first = capture.ranges.loc[capture.ranges["name"] == "step", "start_ns"].min()
    return capture.kernels[capture.kernels["start_ns"] >= first]


def whole(results: Path, events: Path) -> dict:
    """The job that filled `results` and told `events`: its wall time from the first event to the last, and how much of
    it the GPU was busy with warm-up or measured steps.

    Busy time of a step comes from the capture; every step of both passes counts, and nothing else does. A run without
    a capture adds nothing.
    """
    sweep = read_json(results / "sweep.json", dict)
    told = [json.loads(line) for line in events.read_text().splitlines() if line.startswith("{")]
    at = {event["event"]: event["time"] for event in told}
    parts_s = {"sweep": at["sweep_finished"] - at["sweep_started"]}
    parts_s |= {event["step"]: event["wall_s"] for event in told if event["event"] == "step_finished"}
    busy_s = 0.0
    for run_id in sweep["runs"]:
        record = read_json(results / run_id / "run.json", dict)
        if record["status"] != "ok" or not record["profiled_steps"]:
            continue
        kernels = kernels_in_steps(results / run_id / "profile.sqlite")
        step_ns = union_ns(kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()) / record["profiled_steps"]
        warmup = record["warmup_steps"]  # and once more, unprofiled, for the probes
        num_steps = 2 * warmup + (warmup > 0) + record["measured_steps"] + record["profiled_steps"]
        busy_s += step_ns * num_steps / 1e9
    wall_s = told[-1]["time"] - told[0]["time"]
    num_gpus = len({event["gpu"] for event in told if event["event"] == "run_started"})
    return {
        "num_runs": len(sweep["runs"]),
        "num_gpus": num_gpus,
        "wall_s": wall_s,
        "parts_s": parts_s,
        "gpu_busy_s": busy_s,
        "gpu_busy_share": busy_s / wall_s / max(1, num_gpus),
    }


class ProcessPerRun(Timer):
    """By hand: `nsys profile` around a process that does one run, build and warm-up in its capture as in the job."""

    name = "nsys"
    annotate = True
    can_fork = False

    def profile(self, run: Run, protocol: Protocol, folder: Path) -> None:
        """Raises RunFailedError or CollectorError unless the capture holds all steps."""
        report = folder / "profile.nsys-rep"
        self.launcher = ("nsys", "profile", *TRACED, *NOT_SAMPLED, f"--output={report}")
        self.measure(
            run,
            warmup_steps=protocol.warmup_steps,
            steps=protocol.profiled_steps,
            folder=folder,
            timeout_s=compute_timeout(run, protocol),
        )
        self.worker.send(None)  # the process ends, and nsys, whose temporary folder it shares, writes its report
        self.worker.process.wait(120)
        num_kernels, num_steps = count_kernels_and_steps(export(report))
        if not num_kernels or num_steps != protocol.profiled_steps:
            raise RunFailedError(
                "failed", message=f"{num_kernels} kernels, {num_steps} of {protocol.profiled_steps} steps"
            )


def measure_by_hand(runs: list[Run], protocol: Protocol, folder: Path, device: str) -> tuple[Measured, float]:
    """A new process for each pass of each run; nothing is repeated. With the seconds of the passes under nsys alone."""
    started, lost, profiled_s = time.monotonic(), {}, 0.0
    for run in runs:
        one = folder / run.run_id
        one.mkdir(parents=True)
        timer, profiler = Timer(device, [0]), ProcessPerRun(device, [0])
        options = {"warmup_steps": protocol.warmup_steps, "timeout_s": compute_timeout(run, protocol)}
        try:
            timer.measure(run, steps=protocol.measured_steps, folder=one, **options)
            timer.stop()
            profiling = time.monotonic()
            profiler.profile(run, protocol, one)
            profiled_s += time.monotonic() - profiling
        except (RunFailedError, CollectorError, TimeoutExpired) as error:
            lost[run.run_id] = str(error)
        finally:
            timer.stop()
            profiler.stop()
    return Measured(time.monotonic() - started, len(runs) - len(lost), lost, 0), profiled_s


def process_per_run(runs: list[Run], protocol: Protocol, device: str) -> dict:
    """The same runs by warm workers, and with a new process for each pass of each run; in complete runs per second."""
    with tempfile.TemporaryDirectory() as folder:
        warm = measure(runs, protocol, Path(folder) / "warm", [0], device)
        each, profiled_s = measure_by_hand(runs, protocol, Path(folder) / "each", device)
    return {
        "num_runs": len(runs),
        **warm.figures("warm"),
        **each.figures("process_per_run"),
        "process_per_run_profiled_s": profiled_s,
        "process_per_run_ratio": warm.throughput / each.throughput if each.complete else None,
    }


def several_gpus(runs: list[Run], protocol: Protocol, device: str) -> dict:
    """Throughput of all GPUs against one, in complete runs, and by how much the kernel time of each run that both
    measured differs."""
    gpus = find_visible_gpus() if device == "cuda" else [0, 1]
    with tempfile.TemporaryDirectory() as folder:
        one = measure(runs, protocol, Path(folder) / "one", [0], device)
        every = measure(runs, protocol, Path(folder) / "every", gpus, device)
        differences = {}
        for run in runs:
            if run.run_id not in one.lost | every.lost:
                used = [Path(folder) / name / "bench" / run.run_id / "profile.sqlite" for name in ("one", "every")]
                alone, beside = (kernel_time_ns(database) for database in used)
                differences[run.run_id] = beside / alone - 1
    return {
        "num_runs": len(runs),
        "num_gpus": len(gpus),
        **one.figures("one_gpu"),
        **every.figures("all_gpus"),
        "gpus_ratio": every.throughput / one.throughput if one.complete else None,
        "kernel_time_difference": max(differences.values(), key=abs, default=None),
        "kernel_time_differences": differences,
    }


def kernel_time_ns(database: Path) -> int:
    kernels = kernels_in_steps(database)
    return int((kernels["end_ns"] - kernels["start_ns"]).sum())


def machine() -> dict:
    """All GPUs of the machine, used or not, its cores, and the commit of this program."""
    names = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    return {"gpus": names, "cores": os.cpu_count(), "commit": find_commit()}


def earlier(part: str, before: dict | None) -> list[dict]:
    """What a part showed each time that it was measured: the figure that a promise is about, last of all `before`."""
    if before is None:
        return []
    told = {
        "recorded": before["recorded"],
        "commit": before.get("machine", {}).get("commit", ""),
        "value": before[HEADLINES[part]],
    }
    return [*before.get("earlier", []), told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("whole", "process-per-run", "gpus"))
    parser.add_argument("--results", type=Path, help="RESULTS/<sweep> of a finished job (for `whole`)")
    parser.add_argument("--events", type=Path, help="what that job printed with --log-format json")
    parser.add_argument("--sweep", type=Path, default=DEFAULT_SWEEP)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this out")
    parser.add_argument("--only", help=f"runs of the other parts; else {RUNS['process-per-run']}, or {RUNS['gpus']}")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    sweep = load_sweep(arguments.sweep)
    runs = select(sweep.runs, arguments.only or RUNS.get(arguments.part, ""))
    if arguments.part == "whole":
        figures = whole(arguments.results, arguments.events)
    elif arguments.part == "gpus":
        figures = several_gpus(runs, sweep.protocol, arguments.device)
    else:
        figures = process_per_run(runs, sweep.protocol, arguments.device)
    told = ["--only", arguments.only] if arguments.only else []
    content = read_json(arguments.out, dict) or {"targets": TARGETS}
    part = arguments.part.replace("-", "_")
    content[part] = {
        "recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join(["python -m tests.bench.sweep_speed", arguments.part, *told]),
        "machine": machine(),
        **figures,
        "earlier": earlier(part, content.get(part)),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    figures.pop("kernel_time_differences", None)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
