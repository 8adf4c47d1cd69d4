"""Jobs that are killed at random moments and started again: no pass is lost, none is doubled, no process is left."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas
import pytest

from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.sweep.plan import load_sweep
from tests.jobs.conftest import ROOT, command, eventually
from tests.waiting import HANGS_S

FEW = ["tree", "runner", "SIGTERM"]
MANY = ["tree"] * 10 + ["runner"] * 10 + ["SIGTERM"] * 5
HARMS = MANY if "CHAOS" in os.environ else FEW
"""The suite takes one of each kind: all of them take minutes (make test-chaos)."""
SEED = int(os.environ.get("CHAOS_SEED", "20"))


def processes(mark: str) -> list[int]:
    """Return the pids of all processes with `mark` in their environment, orphans included."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def kill(pids) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Sweep:
    """A sweep that is started again and again. PYTHONPATH, which workers keep, marks every process of it."""

    def __init__(self, sweep: Path, folder: Path):
        self.mark = folder / "mark"
        self.mark.mkdir()
        planned = load_sweep(sweep)
        self.runs, self.protocol = planned.runs, planned.protocol
        self.folder_of_results = Results(folder / "results", "tiny")
        self.results = self.folder_of_results.folder
        self.command = command("run", "--device", "cpu", "--log-format", "json", "--sweep", sweep)
        self.command += ["--results", str(folder / "results")]
        self.folder = folder
        self.finished: dict[str, bytes] = {}
        self.timed: dict[str, bytes] = {}
        self.sessions = 0

    def start(self) -> subprocess.Popen:
        self.sessions += 1
        with (
            open(self.folder / f"events-{self.sessions}.jsonl", "w") as out,
            open(self.folder / "errors.txt", "a") as err,
        ):
            # A commit between two sessions would be another program, which times again.
            environment = os.environ | {"PYTHONPATH": str(self.mark), "PROFILER_COMMIT": "this"}
            return subprocess.Popen(self.command, cwd=ROOT, env=environment, stdout=out, stderr=err)

    def num_passes(self) -> int:
        """Return how many passes are on disk."""
        return len(list(self.results.glob("*/timed.json"))) + 2 * len(list(self.results.glob("*/run.json")))

    def check(self) -> None:
        """Check after a session: nothing runs, every record is whole, no earlier pass was lost or measured again."""
        eventually(lambda: not processes(str(self.mark)), "processes are left behind")
        records = {path.parent.name: path.read_bytes() for path in self.results.glob("*/run.json")}
        for run, record in records.items():
            assert json.loads(record)["status"] == "ok", record
            assert (self.results / run / "timings.json").exists()
        assert self.finished.items() <= records.items()
        self.finished = records
        kept = {run.run_id for run in self.runs if self.folder_of_results.timed(run, self.protocol)} | records.keys()
        timings = {run: (self.results / run / "timings.json").read_bytes() for run in kept}
        assert self.timed.items() <= timings.items()
        self.timed = timings

    def events(self) -> list[dict]:
        """The events of all sessions in order; a kill may cut the last line of one."""
        lines = [
            line
            for number in range(1, self.sessions + 1)
            for line in (self.folder / f"events-{number}.jsonl").read_text().splitlines()
        ]
        return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.mark.nightly
def test_random_kills_lose_no_run_and_double_none(tiny, tmp_path, fake_nsys):
    chance = random.Random(SEED)
    harms = [*HARMS]
    chance.shuffle(harms)
    lengths = range(2, 42) if len(harms) > len(FEW) else range(2, 12)
    # So many warm-up steps that a pass takes some tenths of a second, and the sweep lasts for all harms.
    sweep = Sweep(tiny(context_length=list(lengths), mode=["forward"], warmup_steps=40), tmp_path)
    expected = {f"tiny-ctx{length}-fp32-naive-forward" for length in lengths}
    print(f"\nseed {SEED}, {len(expected)} runs")
    for number, harm in enumerate(harms, 1):
        process = sweep.start()
        # The harms are spread over the passes of both rounds. Where those before came late, one comes at any moment of
        # the start of workers or of the first passes.
        goal = 2 * len(expected) * 9 // 10 * number // (len(harms) + 1)
        late = sweep.num_passes() >= goal
        eventually(lambda goal=goal: sweep.num_passes() >= goal, "passes of the sweep")
        time.sleep(chance.uniform(0, 6 if late else 0.5))
        assert process.poll() is None, "the sweep ended before it was harmed"
        struck = time.monotonic()
        if harm == "SIGTERM":
            process.terminate()
        else:
            kill(processes(str(sweep.mark)) if harm == "tree" else [process.pid])
        code = process.wait(HANGS_S)
        ended = time.monotonic() - struck
        # A signal that comes before Python has loaded the program ends it at once: 143 too, as shells count.
        assert code in ((143, -signal.SIGTERM) if harm == "SIGTERM" else (-signal.SIGKILL,))
        sweep.check()
        states = {run.run_id: sweep.folder_of_results.read_in_flight(run) for run in sweep.runs}
        assert set(states.values()) <= {None, "interrupted"}
        in_flight = [run for run, state in states.items() if state]
        print(
            f"{harm:8} exit {code:4} after {ended:4.1f} s, {len(sweep.timed):2} timed, "
            f"{len(sweep.finished):2} finished, in flight {in_flight}",
            flush=True,
        )
    assert sweep.start().wait(HANGS_S) == 0
    sweep.check()

    assert set(sweep.finished) == expected
    started, done, passes = {}, {}, Counter()
    for position, event in enumerate(sweep.events()):
        if event["event"] == "run_started":
            started.setdefault(event["run"], []).append(position)
        if event["event"] == "run_finished":
            done.setdefault(event["run"], []).append(position)
        if event["event"] == "stage_finished":
            passes[event["run"], event["collector"]] += 1
    assert set(started) == expected
    assert all(len(positions) == 1 for positions in done.values()), "a run was measured twice"
    assert set(passes.values()) == {1}, "a pass was measured twice"
    assert all(max(started[run]) < finish for run, (finish,) in done.items()), "a finished run was measured again"
    assert (tmp_path / "errors.txt").read_text() == ""
    print(f"{len(expected)} runs, {len(harms)} sessions harmed, {sum(map(len, started.values()))} starts of runs")

    recording = tmp_path / "recording"
    ingest = [sys.executable, "-m", "profiler_job", "ingest", sweep.results, "--out", recording]
    subprocess.run(ingest, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert sorted(pandas.read_parquet(recording / "runs.parquet")["run_id"]) == sorted(expected)


@pytest.mark.long
def test_a_worker_stuck_in_a_step_ends_with_its_runner(tiny, tmp_path, fake_nsys):
    """The real workload, in a forward pass that never ends."""
    sweep = Sweep(tiny(context_length=[8], mode=["forward"]), tmp_path)
    (sweep.mark / "sitecustomize.py").write_text(
        "import sys\n"
        "if sys.orig_argv[1:4] == ['-P', '-m', 'profiler_job.jobs.worker']:\n"
        f"    sys.path.insert(0, {str(ROOT)!r})\n"
        "    import pathlib, profiler_job.jobs.workloads.transformer.model\n"
        "    def stuck(self, tokens):\n"
        f"        pathlib.Path({str(tmp_path)!r}, 'stuck').touch()\n"
        "        while True:\n"
        "            pass\n"
        "    profiler_job.jobs.workloads.transformer.model.TransformerLM.forward = stuck\n"
    )
    process = sweep.start()
    eventually(lambda: (tmp_path / "stuck").exists())
    assert len(processes(str(sweep.mark))) > 1
    process.kill()
    process.wait()
    eventually(lambda: not processes(str(sweep.mark)), "a stuck worker is left behind")
