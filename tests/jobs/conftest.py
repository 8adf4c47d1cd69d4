"""A tiny sweep, a labelled fake nsys and a worker that fails on demand."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.sweep_runner import SweepRunner
from profiler_job.jobs.sweep.plan import Sweep, load_sweep
from tests.jobs.profiled_scripts import GLOO_ABORTED
from tests.waiting import HANGS_S
from tests.waiting import eventually as eventually

ROOT = Path(__file__).parents[2]
FAKE_NSYS = ROOT / "tests" / "fake_nsys"

TINY = {
    "name": "tiny",
    "size": ["tiny"],
    "context_length": [8, 16],
    "mode": ["forward", "train_step"],
    "custom_sizes": {"tiny": {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}},
    "warmup_steps": 2,
    "measured_steps": 2,
    "profiled_steps": 3,
    "processes": 1,
}


@pytest.fixture
def tiny(tmp_path) -> "callable":
    """Write a sweep file of tiny runs, with changes, and return its path."""

    def write(**changes) -> Path:
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(TINY | changes))
        return path

    return write


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """The fake nsys is the first on PATH, run by this Python: a `python3` that is a shim takes ten times as
    long to start, and a tiny sweep has dozens of nsys's commands."""
    path = tmp_path / "fake_nsys" / "nsys"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE_NSYS / "nsys"}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def scripted_nsys(tmp_path, monkeypatch):
    """Write a program called nsys that does what the test says."""

    def write(body: str) -> None:
        path = tmp_path / "bin" / "nsys"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(path.parent))

    return write


def read_nsys_log(log: Path) -> list[str]:
    """Return the lines of an nsys.log without their times."""
    return [line.split(" ", 1)[1] for line in log.read_text().splitlines()]


class FakeWorker:
    """Control of `tests/jobs/fake_worker.py`: writes its faults and reads its tasks."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.fail({})
        self.slow_down({})

    def fail(self, faults: dict[str, tuple[str, str]]) -> None:
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def slow_down(self, hosts: dict[str, list[float]]) -> None:
        """Script how many times as slow the host is in each process in which runs take turns, by the group's first
        run; the last one goes on."""
        (self.folder / "hosts.json").write_text(json.dumps(hosts))

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """(`<run_id>/<collector>`, pid of the worker) of every task, in order."""
        return [(name, int(pid)) for name, pid, _ in self._noted("tasks")]

    @property
    def measured_at(self) -> dict[str, float]:
        """Return when the measured steps of `<run_id>/<collector>` began, on the clock of time.monotonic."""
        return {name: float(moment) for name, _, moment in self._noted("measured")}

    def _noted(self, what: str) -> list[list[str]]:
        path = self.folder / f"{what}.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def fake_worker(tmp_path, monkeypatch, fake_nsys) -> FakeWorker:
    """Make `tests/jobs/fake_worker.py` the worker: Python imports sitecustomize before `-P -m
    profiler_job.jobs.worker`."""
    folder = tmp_path / "fake_worker"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if sys.orig_argv[1:4] == ['-P', '-m', 'profiler_job.jobs.worker']:\n"
        "    import importlib.util, pathlib\n"
        f"    spec = importlib.util.spec_from_file_location('fake', {str(ROOT / 'tests/jobs/fake_worker.py')!r})\n"
        "    fake = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(fake)\n"
        "    sys.argv = sys.orig_argv\n"
        f"    fake.main(pathlib.Path({str(folder)!r}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PROFILER_COMMIT", "this")  # a commit between two sessions would be another program
    return FakeWorker(folder)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def no_worker_is_left(fake_worker):
    """Fail if a fake worker outlives its test."""
    yield
    eventually(lambda: not [pid for _, pid in fake_worker.tasks if is_alive(pid)], what="a worker is left")


FAST_MKDOCS = """
import pathlib, sys
site = pathlib.Path(sys.argv[sys.argv.index("--site-dir") + 1])
site.mkdir(parents=True, exist_ok=True)
mark = '<meta property="og:site_name" content="profiler-job">'
(site / "index.html").write_text(f"{mark}built in {pathlib.Path.cwd().name}")
"""
NO_PAGES = """
import os, sys
if sys.orig_argv[1:6] == ['-P', '-m', 'profiler_job', 'site', '--pages-only']:
    os._exit(0)
"""


def write_no_pages(folder: Path) -> None:
    """Make a folder for PYTHONPATH with which a site is one file without pages, since writing them takes seconds."""
    with open(folder / "sitecustomize.py", "a") as file:
        file.write(NO_PAGES)
    (folder / "mkdocs.py").write_text(FAST_MKDOCS)


@contextmanager
def without_pages(folder: Path) -> Iterator[None]:
    """Make a folder what `write_no_pages` makes it, as long as the context lasts."""
    before = (folder / "sitecustomize.py").read_text()
    write_no_pages(folder)
    yield
    (folder / "sitecustomize.py").write_text(before)
    (folder / "mkdocs.py").unlink()


class Session:
    """One invocation of the runner inside this process; `events` are what it emitted."""

    def __init__(self, results: Path, sweep: Path | Sweep, **options):
        self.sweep = load_sweep(sweep) if isinstance(sweep, Path) else sweep
        self.results = Results(results, self.sweep.name)
        self.events: list[dict] = []
        self.runner = SweepRunner(self.results, self.sweep.protocol, self.emit, device="cpu", **options)

    def emit(self, event: str, **fields) -> None:
        self.events.append({"event": event} | fields)

    def run(self) -> dict[str, str]:
        with self.results.lock():
            self.results.save_sweep(self.sweep, self.sweep.runs)
            return self.runner.run(self.sweep.runs)

    def named(self, event: str) -> list[str]:
        return [one["run"] for one in self.events if one["event"] == event]

    def stages(self, stage: str) -> list[str]:
        return [one["run"] for one in self.events if one["event"] == "stage_started" and one["stage"] == stage]

    def record(self, run_id: str) -> dict:
        return json.loads((self.results.folder / run_id / "run.json").read_text())


@pytest.fixture
def session(tmp_path, tiny):
    """Make a Session of the tiny sweep, with changes, on one results folder."""

    def make(changes: dict | None = None, **options) -> Session:
        return Session(tmp_path / "results", tiny(**(changes or {})), **options)

    return make


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "profiler_job", *map(str, arguments)]


def jobs(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    """Run `python -m profiler_job` to its end."""
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, **options)


IN_NEW_PYTHON = (sys.executable, "train.py")
"""The command of a script that is not to run in a copy of a Python that has imported torch (see `TorchCopies`)."""


@pytest.fixture
def followed(tmp_path, torch_copies):
    """Run a script as `profile` does, without nsys. Return its output, its exit code, and what was noted."""

    def run(source: str, *command: str, **plan) -> tuple[str, int, dict]:
        script_file = tmp_path / "train.py"
        script_file.write_text(source)
        out = tmp_path / "noted"
        plan = {"out": str(out), "skip": 3, "steps": 3, "followed": 2, "step": "auto", "goes_on": False} | plan
        environment = os.environ | {"PYTHONPATH": str(script.INJECTED), script.FOLLOW: json.dumps(plan)}
        environment |= {"OMP_NUM_THREADS": "1"}
        for _ in range(3):
            shutil.rmtree(out, ignore_errors=True)
            if not command:
                done = torch_copies.run(script_file, environment=environment)
            else:
                done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            if GLOO_ABORTED not in done.stderr:
                break
        run.ranks = script.read_noted(out)
        return done.stdout + done.stderr, done.returncode, next(iter(run.ranks), {})

    return run


@pytest.fixture
def profile(tmp_path, fake_nsys):
    """Start `profile` of a script in a new folder, once: a second start, for samples, is only with FAKE_NSYS_SAMPLES.
    is_whole: whether its site has pages, whose writing takes seconds; path: first on PYTHONPATH."""

    def start(
        source: str, *options: str, launcher: tuple[str, ...] = (), is_whole: bool = False, path: Path | None = None
    ) -> subprocess.Popen:
        (tmp_path / "train.py").write_text(source)
        if not is_whole and path is None:
            path = tmp_path / "no_pages"
            path.mkdir(exist_ok=True)
            write_no_pages(path)
        once = () if os.environ.get("FAKE_NSYS_SAMPLES") else ("--no-samples",)
        command = [sys.executable, "-m", "profiler_job", "profile", "--results", "results", *once, *options]
        return subprocess.Popen(
            [*command, "--", sys.executable, *launcher, "train.py", "--lr", "1e-3"],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, (path, ROOT)))), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start
