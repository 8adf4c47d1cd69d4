"""A fault at every point at which a step changes files: `python -m tests.faults`, started by tests/jobs/test_faults.py.

A point is a call that creates, writes, syncs, renames or removes a file or a folder below the results (`faults.c`,
preloaded, counts them). At each the step is ended in three ways, one at a time: the call fails, the disk is full from
there on, or the process is killed. Then the step is done again, without a fault. Each step is a fork of this process,
which has imported everything.
"""

import argparse
import ctypes
import difflib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from signal import SIGKILL

from profiler_job.__main__ import app
from profiler_job.analysis.cli import ingest_command, publish_data_command  # noqa: F401 before the forks
from profiler_job.analysis.recording import publish_data, store, verify  # noqa: F401
from profiler_job.jobs.cli import job_command  # noqa: F401
from profiler_job.jobs.contract.integrity import clear
from profiler_job.jobs.contract.program import find_commit
from profiler_job.jobs.executor.result_store import REMOVED_LAST, Results
from profiler_job.jobs.sweep.plan import load_sweep

KINDS = ("", "create", "write", "sync", "rename", "make a folder", "remove")
COUNT, MODES = 0, {"error": 1, "full": 2, "kill": 3}
TIMES = ("started_at", "ended_at", "wall_s", "seconds", "digest", "files")
OF_THE_MOMENT = ("processes", "telemetry")
LEFTOVERS = "leftovers"


def run_in_fork(work: Callable[[], object], output: Path) -> int:
    """Do something in a fork, whose output goes to a file; returns its exit code, negative where a signal ended it."""
    sys.stdout.flush()
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def chosen(kinds: list[str]) -> list[int]:
    """The points to strike: of writes one after another, such as of the pages of a database, the first and the last."""
    around = zip(["", *kinds], kinds, [*kinds[1:], ""])
    return [at for at, (before, kind, after) in enumerate(around, 1) if kind != "write" or {before, after} != {kind}]


def difference(whole: str, now: str) -> str:
    lines = difflib.unified_diff(whole.splitlines(), now.splitlines(), "whole", "now", n=1, lineterm="")
    return "\n".join(["", *islice(lines, 20)])


def without_leftovers(state: str) -> str:
    """A state without what a step that was ended right after its last record may leave, and the next one removes."""
    return json.dumps({name: value for name, value in json.loads(state).items() if name != LEFTOVERS})


class Step:
    """A command that changes files below `root`. `look` returns what of their state must be the same in the end, and
    raises where something damaged passes as good. A step that failed leaves the state before it, or that after it."""

    def __init__(self, name: str, root: Path, command: list[object], look: Callable[[Path], object]):
        self.name, self.root, self.look = name, root, look
        self.command = [str(word) for word in command]
        self.kept = root.with_name(f"{root.name}-before-{name}")
        self.log = root.with_name(f"{name}.txt")
        shutil.copytree(root, self.kept, symlinks=True)

    def reset(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self.kept, self.root, symlinks=True)

    def do(self, at: int = 0, mode: int | None = None) -> tuple[int, list[str]]:
        """The exit code, and the kinds of the points that were passed, where they are counted."""
        counted = self.root.with_name("counted")

        def work() -> None:
            if mode is None:
                app(self.command)
            faults = ctypes.CDLL(None)
            faults.fault_arm(str(self.root).encode(), at, mode)
            try:
                app(self.command)
            finally:
                number = ctypes.c_int.in_dll(faults, "fault_count").value
                kinds = (ctypes.c_char * 65536).in_dll(faults, "fault_kinds").raw[:number]
                counted.write_text(" ".join(str(kind) for kind in kinds))

        counted.unlink(missing_ok=True)
        code = run_in_fork(work, self.log)
        kinds = counted.read_text().split() if counted.exists() else []
        return code, [KINDS[int(kind)] for kind in kinds]

    def state(self) -> str:
        """What `look` says, as JSON. Raises AssertionError where it cannot."""
        seen = self.root.with_name("seen")
        code = run_in_fork(lambda: print(json.dumps(self.look(self.root), sort_keys=True)), seen)
        assert code == 0, seen.read_text()
        return json.dumps(json.loads(seen.read_text()), indent=1)

    def check(self, every: int) -> dict:
        """Strike each `every`th of the chosen points, in each mode. Returns the counts, and what was wrong."""
        before = self.state()
        code, kinds = self.do(0, COUNT)
        assert code == 0, self.log.read_text()
        whole = self.state()
        outcomes: Counter[str] = Counter()
        wrong = []
        for at in chosen(kinds)[::every]:
            for name, mode in MODES.items():
                self.reset()
                code, _ = self.do(at, mode)
                said = self.log.read_text()
                where = f"{self.name}, point {at} of {len(kinds)} ({kinds[at - 1]}), {name}"
                outcome = "killed" if code == -SIGKILL else "told" if code else "whole"
                outcomes[outcome] += 1
                try:
                    assert "Traceback" not in said, f"a traceback: {said[-1500:]}"
                    assert outcome != "told" or "error: " in said, f"exit {code} without an error: {said[-300:]}"
                    now = self.state()
                    assert outcome != "whole" or now == whole, "exit 0, and it is not whole"
                    may_be = (without_leftovers(before), without_leftovers(whole))
                    assert without_leftovers(now) in may_be, f"neither as before nor whole:{difference(whole, now)}"
                    code, _ = self.do()
                    assert code == 0, f"done again: exit {code}: {self.log.read_text()[-500:]}"
                    assert (now := self.state()) == whole, f"done again it is another:{difference(whole, now)}"
                except AssertionError as error:
                    wrong.append(f"{where}: {error}")
                    print(wrong[-1], flush=True)
        assert before != whole or self.name != "run"
        return {"points": Counter(kinds), "struck": sum(outcomes.values()), "outcomes": outcomes, "wrong": wrong}


def look_at_results(sweep: Path) -> Callable[[Path], object]:
    """The finished runs with their records without times; every other file in their folders is one that a run has."""
    planned = load_sweep(sweep)

    def look(root: Path) -> object:
        results = Results(root, planned.name)
        state = {}
        for run in planned.runs:
            if record := results.finished(run, planned.protocol):
                content = {name: value for name, value in record.model_dump(mode="json").items() if name not in TIMES}
                same = {name: facts.sha256 for name, facts in record.files.items() if not name.endswith(".log")}
                same.pop("log.txt")  # has the lines of a stage that was repeated twice
                for name in (name for name in same if name.startswith("timings")):
                    tables = json.loads((results.folder / run.run_id / name).read_text())
                    same[name] = {table: rows for table, rows in tables.items() if table not in OF_THE_MOMENT}
                names = {path.name for path in (results.folder / run.run_id).iterdir()}
                state[run.run_id] = [content, same, sorted(names.difference(REMOVED_LAST))]
                state[LEFTOVERS] = sorted({*state.get(LEFTOVERS, []), *names.intersection(REMOVED_LAST)})
        state["raw"] = sorted(path.name for path in results.raw.glob("*") if any(path.stem == run for run in state))
        return state

    return look


def look_at_recording(root: Path) -> object:
    """Each recording there is: what its manifest says, without times. Raises where one is damaged. Looks at a copy,
    since whoever reads recordings puts back what a killed step had moved aside, and the step done again must, too."""
    found = {}
    copy = root.with_name("looked-at")
    clear(copy)
    for folder in store.recordings_in(shutil.copytree(root, copy)):
        recording = store.load(folder)
        about = {name: value for name, value in recording.manifest.items() if name not in ("created", "digest")}
        found[folder.name] = [about, sorted(path.name for path in folder.iterdir())]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="to work in")
    parser.add_argument("--sweep", type=Path, required=True, help="of two runs; one is finished before the faults")
    parser.add_argument("--step", choices=("run", "ingest", "publish-data"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="strike each so many of the points")
    arguments = parser.parse_args()
    folder, sweep = arguments.folder.resolve(), arguments.sweep
    results, recordings, data = (folder / name for name in ("results", "recordings", "data"))
    started, run = time.monotonic(), ["run", "--device", "cpu", "--sweep", sweep, "--results", results]
    first = load_sweep(sweep).runs[0]
    assert run_in_fork(lambda: app([*map(str, run), "--only", f"mode={first.mode}"]), folder / "first.txt") == 0
    found = {}
    step = Step("run", results, run, look_at_results(sweep))
    if arguments.step == "run":
        found["run"] = step.check(arguments.every)
    step.do()
    for name, root, command in (
        ("ingest", recordings, ["ingest", results / "tiny", "--out", recordings / "tiny"]),
        ("publish-data", data, ["publish-data", recordings / "tiny", "tiny", "--data", data, "--yes"]),
    ):
        root.mkdir()
        words = [str(word) for word in command]
        if run_in_fork(lambda words=words: app(words), folder / "first.txt"):  # in its place
            sys.exit((folder / "first.txt").read_text())
        if name == arguments.step:
            found[name] = Step(name, root, command, look_at_recording).check(arguments.every)
    about = {"recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": find_commit()}
    about = {"steps": {step: about | one for step, one in found.items()}}
    arguments.out.write_text(json.dumps(about, indent=1) + "\n")
    print(f"{sum(one['struck'] for one in found.values())} faults in {time.monotonic() - started:.0f} s")
    return int(any(one["wrong"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
