"""A worker that computes nothing and fails on demand, in the place of `jobs.worker` (see the fixture `fake_worker`).

It says what `jobs.worker.service.serve` says. `faults` maps `<run_id>/<collector>` (or `calibrate/timer`) to
[moment, fault]; the moments are warm-up, measured and released, the faults below.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Client
from pathlib import Path

from profiler_job.jobs.worker.fork import fork_workers

PHASES = {
    "forward": ["forward"],
    "forward_backward": ["forward", "loss", "backward"],
    "train_step": ["forward", "loss", "backward", "optimizer"],
}
SETTINGS = {"autograd_multithreading": False, "float32_matmul_precision": "highest"}
MEMORY = {"allocated_bytes": 900, "reserved_bytes": 950, "free_bytes": 50, "total_bytes": 1000}
RATES = [{"figure": "gemm_fp32", "unit": "FLOP/s", "value": 2.0, "low": 1.0, "high": 3.0, "repeats": 10}]
RATES[0]["gpu_name"] = "none"
FACTS = {"gpu_name": "none", "gpu_memory_bytes": 0, "cuda": "", "torch": "none", "python": "3"}


class AbandonedError(Exception):
    """The task ends here."""


class FakeService:
    def __init__(self, connection, folder: Path):
        self.connection, self.folder = connection, folder
        self.fault, self.task = None, {}

    def at(self, moment: str) -> None:
        if self.fault and self.fault[0] == moment:
            getattr(self, self.fault[1])()

    def hang(self):
        time.sleep(3600)

    def exit(self):
        os._exit(3)

    def segfault(self):
        print("about to segfault", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def segfault_once(self):
        mark = self.folder / "segfaulted"
        if not mark.exists():
            mark.touch()
            self.segfault()

    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def killed_once(self):
        mark = self.folder / "killed"
        if not mark.exists():
            mark.touch()
            self.killed()

    def stopped(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def lost_gpu(self):
        told = {"event": "failed", "phase": "forward", "step": 0, "settings": SETTINGS}
        self.connection.send(told | {"message": "RuntimeError: CUDA error: uncorrectable ECC error encountered"})
        raise SystemExit

    def oom(self):
        message = {
            "event": "oom",
            "phase": "backward",
            "step": 1,
            "message": "CUDA out of memory",
            "settings": SETTINGS,
        }
        self.connection.send(message | MEMORY)
        raise AbandonedError

    def oom_for_good(self):
        with suppress(AbandonedError):
            self.oom()
        raise SystemExit

    def failed(self):
        self.connection.send(
            {"event": "failed", "phase": "forward", "step": 0, "message": "RuntimeError: no", "settings": SETTINGS}
        )
        raise SystemExit

    def failed_where_compared(self):
        if self.task["compare"]:
            failed = {"event": "failed", "phase": "build", "step": 0, "settings": SETTINGS}
            self.connection.send(failed | {"message": "RuntimeError: CUDA error: misaligned address"})
            raise SystemExit

    def serve(self) -> None:
        self.connection.send({"event": "hello", "pid": os.getpid(), "facts": FACTS})
        while True:
            try:
                task = self.connection.recv()
            except EOFError:
                return
            if task is None:
                return
            if task.get("calibrate"):
                self.note("tasks", "calibrate/timer")
                self.fault = self.fault_of("calibrate/timer")
                self.at("measured")
                self.connection.send({"event": "calibrated", "rates": RATES})
            elif "runs" in task:
                self.take_turns(task)
            else:
                self.perform(task)
                self.at("released")
            self.connection.send({"event": "released"})

    def take_turns(self, task: dict) -> None:
        """Runs fail by the faults of `<run_id>/turns`, in warm-up or in their first measured turn."""
        ids = [Path(log).parent.name for log in task["logs"]]
        failed: dict[int, dict] = {}

        def reach(moment: str) -> None:
            for number, run_id in enumerate(ids):
                if number in failed:
                    continue
                self.connection.send({"event": "turn", "number": number})
                self.fault = self.fault_of(f"{run_id}/turns")
                if self.fault == [moment, "oom"]:
                    failed[number] = MEMORY | {"event": "oom", "phase": "backward", "step": 1, "settings": SETTINGS}
                    failed[number]["message"] = "CUDA out of memory"
                else:
                    self.at(moment)

        self.note("tasks", f"{'+'.join(ids)}/turns")
        reach("warm-up")
        self.connection.send({"event": "ready"})
        if self.connection.recv() != "go":
            return
        reach("measured")
        num_steps = task["rounds"] * task["steps"]
        answers = []
        slower = self.script_host(ids[0])
        for run in task["runs"]:
            names = [*PHASES[run["mode"]], "step"]
            row = {"wall_ns": 500 if run["precision"] == "bf16" else 1000, "issue_ns": 400}
            if slower and run["precision"] == "bf16":
                row = {"wall_ns": round(500 * slower), "issue_ns": round(490 * slower)}
            rows = [
                {"step": step, "phase": name, "round": step // task["steps"]} | row
                for step in range(num_steps)
                for name in names
            ]
            answers.append({"event": "measured", "steps": rows, "memory": [], "figures": [], "settings": SETTINGS})
            loop_ns = round(50_000_000 * (slower or 1))
            answers[-1] |= {"host_loop_ns": loop_ns, "seconds": {"build": 0.0, "warm_up": 0.0, "measure": 0.0}}
        self.connection.send({"event": "turned", "runs": [failed.get(n, one) for n, one in enumerate(answers)]})

    def script_host(self, first: str) -> float:
        """Return how many times as slow the host is in this process of the group of a run, as the test says: then the
        CPU limits runs in BF16. 0 if it says nothing."""
        speeds = json.loads((self.folder / "hosts.json").read_text()).get(first, [])
        tasks = (self.folder / "tasks.txt").read_text().splitlines()
        number = sum(first in line.split("/")[0].split("+") for line in tasks if "/turns " in line) - 1
        return speeds[min(number, len(speeds) - 1)] if speeds else 0.0

    def note(self, what: str, name: str) -> None:
        """Append `name`, this process and the time on the clock of time.monotonic to `<what>.txt`."""
        with open(self.folder / f"{what}.txt", "a") as file:
            file.write(f"{name} {os.getpid()} {time.monotonic()}\n")

    def fault_of(self, name: str) -> list[str] | None:
        return json.loads((self.folder / "faults.json").read_text()).get(name)

    def perform(self, task: dict) -> None:
        self.task, run = task, task["run"]
        run_id = Path(task["log"]).parent.name
        name = f"{run_id}/{task['collector']}"
        self.note("tasks", name)
        log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        print(f"{task['collector']}: {json.dumps(run)}", flush=True)
        self.fault = self.fault_of(name)
        try:
            if task["waits"]:
                self.connection.send({"event": "compiled"})
                if self.connection.recv() != "go":
                    return
            self.at("warm-up")
            self.connection.send({"event": "ready"})
            if self.connection.recv() != "go":
                return
            self.note("measured", name)
            self.at("measured")
        except AbandonedError:
            return
        if task["busy_s"]:
            self.connection.send({"event": "timed"})
            if self.connection.recv() != "go":
                return
        names = [*PHASES[run["mode"]], "step"]
        row = {"wall_ns": 1000, "issue_ns": 600}
        steps = [{"step": step, "phase": name} | row for step in range(task["steps"]) for name in names]
        answer = {"event": "measured", "steps": steps, "memory": [], "figures": [], "settings": SETTINGS}
        if task["probe"]:
            answer["host_loop_ns"] = 50_000_000
        if task["busy_s"]:
            answer["busy"] = {"steps": 10, "wall_ns": 1_000_000_000}
        self.connection.send(answer | {"seconds": {"build": 0.0, "warm_up": 0.0, "measure": 0.0}})


def main(folder: Path) -> None:
    def serve(address: str) -> None:
        with Client(address) as connection:
            FakeService(connection, folder).serve()

    address = sys.argv[sys.argv.index("profiler_job.jobs.worker") + 1]
    try:
        if "--fork" in sys.argv:
            with Client(address) as control:
                fork_workers(control, serve)
        else:
            serve(address)
    except SystemExit:
        os._exit(1)
    os._exit(0)
