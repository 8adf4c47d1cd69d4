"""The two ways a run is measured: by Python's clock (`timer`) and under Nsight Systems (`nsys`). Each keeps one warm
worker process (`jobs.workload`) that serves run after run."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL

from jobs.plan import Run
from jobs.ranges import STEP

START_TIMEOUT_S = 180
RELEASE_TIMEOUT_S = 60
STOP_TIMEOUT_S = 300
CALIBRATE_TIMEOUT_S = 300
SESSION_NUMBERS = count(1)
TRACED = ("--trace=cuda,nvtx", "--cuda-graph-trace=node", "--resolve-symbols=false")
NOT_SAMPLED = ("--sample=none", "--cpuctxsw=none")
NSYS_MISSING = "nsys is not on PATH: install the Nsight Systems command line (nsight-systems-cli)"
NSYS_SUMS = "nvtx_kern_sum"  # nsys's report of kernel time by NVTX range and kernel name

# nsys stores the environment of the profiled process in every report, so the process gets only what it needs.
ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LANG",
    "LC_ALL",
    "CUDA_HOME",
    "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NCCL_NVLS_ENABLE",
    "NVSHMEM_DISABLE_NVLS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCHINDUCTOR_CACHE_DIR",  # what one pass compiled, the other finds
)

# What an export may keep. Everything else (environment, processes, host) is dropped.
KEPT_TABLES = ("CUPTI_", "CUDA_GRAPH", "ENUM_", "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_")
KEPT_TABLES += ("TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "ANALYSIS_DETAILS", "PROFILER_OVERHEAD")
STRING_COLUMNS = ("demangledName", "shortName", "mangledName", "nameId", "textId", "name")


class RunFailed(Exception):
    """A run that could not be measured: `status` is oom, timeout or failed, `detail` says phase and message."""

    def __init__(self, status: str, **detail):
        super().__init__(detail.get("message", status))
        self.status, self.detail = status, detail


class CollectorError(Exception):
    """The collector itself cannot work on this machine; no later run would fare better."""


def allowed_environment(environment: Mapping[str, str], home: Path, gpu: int | None) -> dict[str, str]:
    """The environment of a worker: the allow-listed variables, a home and temporary folder of its own, its GPU."""
    allowed = {name: environment[name] for name in ENVIRONMENT if name in environment}
    allowed |= {"HOME": str(home), "TMPDIR": str(home), "PYTHONUNBUFFERED": "1"}
    if gpu is not None:
        visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        allowed["CUDA_VISIBLE_DEVICES"] = visible[gpu] if gpu < len(visible) and visible[0] else str(gpu)
    return allowed


class Worker:
    """A process that runs `jobs.workload`, spoken to over a socket. `cancelled` ends the wait for its start."""

    def __init__(
        self, device: str, gpu: int | None, annotate: bool, launcher: Sequence[str], cancelled: Callable[[], bool]
    ):
        self.home = Path(tempfile.mkdtemp(prefix="profiler-"))
        self.pid: int | None = None
        self.connection: Connection | None = None
        address = self.home / "socket"
        command = [*launcher, sys.executable, "-m", "jobs.workload", str(address), "--device", device]
        self.environment = environment = allowed_environment(os.environ, self.home, gpu)
        package_root = str(Path(__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, environment.get("PYTHONPATH"))))
        with socket.socket(socket.AF_UNIX) as listener, open(self.home / "log.txt", "ab") as log:
            listener.bind(str(address))
            listener.listen()
            listener.settimeout(0.2)
            self.process = subprocess.Popen(
                [*command, *(["--annotate"] if annotate else [])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            self.connection = self._accept(listener, cancelled)
        try:
            hello = self.connection and self.receive(START_TIMEOUT_S)
        except RunFailed:
            hello = None
        if not hello:
            log = (self.home / "log.txt").read_text(errors="replace").strip().splitlines()
            self.kill()
            if cancelled():
                raise RunFailed("failed", message="the sweep was stopped")
            raise CollectorError("the worker process did not start: " + (log[-1] if log else "it said nothing"))
        self.pid, self.facts = hello["pid"], hello["facts"]

    def _accept(self, listener: socket.socket, cancelled: Callable[[], bool]) -> Connection | None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and not cancelled():
            with suppress(TimeoutError):
                client, _ = listener.accept()
                return Connection(client.detach())
            if self.process.poll() is not None:
                break
        return None

    def send(self, message) -> None:
        with suppress(OSError):  # a dead worker is noticed when its answer is read
            self.connection.send(message)

    def receive(self, timeout_s: float) -> dict:
        """The worker's next message.

        Raises RunFailed with status `timeout` or `failed` (the process died).
        """
        if not self.connection.poll(max(timeout_s, 0)):
            raise RunFailed("timeout", phase="", message=f"no answer within {timeout_s:.0f} s")
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            raise RunFailed("failed", phase="", message=f"worker process died (exit {self.process.poll()})") from None

    def kill_processes(self) -> None:
        for pid in {self.pid, self.process.pid} - {None}:
            with suppress(OSError):
                os.kill(pid, SIGKILL)

    def kill(self) -> None:
        self.kill_processes()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.connection:
            self.connection.close()
        shutil.rmtree(self.home, ignore_errors=True)


class Timer:
    """Measures without a profiler: Python's clock, device synchronised at phase boundaries."""

    name = "timer"
    annotate = False
    launcher: tuple[str, ...] = ()
    capturing = False

    def __init__(self, device: str, gpu: int | None = None, cancelled: Callable[[], bool] = lambda: False):
        self.device, self.gpu, self.cancelled = device, gpu, cancelled
        self.worker: Worker | None = None
        self.fresh = True

    def start(self) -> None:
        """Start the worker unless it is running. Raises CollectorError when it cannot, RunFailed when cancelled."""
        if self.worker is None:
            self.worker = Worker(self.device, self.gpu, self.annotate, self.launcher, self.cancelled)
            self.fresh = True

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker = None

    def renew(self) -> None:
        """Start a new worker unless this one has done nothing yet. Raises as `start`."""
        if not self.fresh:
            self.stop()
        self.start()

    def abandon(self) -> None:
        """Called from another thread after `cancelled` has become true: the run being measured fails at once."""
        if (worker := self.worker) is not None:
            worker.kill_processes()

    def calibrate(self, log: Path) -> list[dict]:
        """The machine's peak rates, as of `jobs.calibration.rates`. Raises CollectorError."""
        try:
            self.start()
            self.fresh = False
            self.worker.send({"calibrate": True, "log": str(log.absolute())})
            rates = self.worker.receive(CALIBRATE_TIMEOUT_S)["rates"]
            self.worker.receive(RELEASE_TIMEOUT_S)
        except RunFailed as failure:
            raise CollectorError(f"the machine's rates cannot be measured: {failure} (see {log})") from None
        return rates

    def measure(
        self,
        run: Run,
        *,
        warmup_steps: int,
        steps: int,
        folder: Path,
        timeout_s: float,
        when_quiet: Callable[[], None] = lambda: None,
    ) -> dict:
        """Measure `steps` steps of a run; the worker's output goes to `folder/log.txt`. `when_quiet` is called between
        warm-up and measured steps and returns when nothing disturbs the machine.

        Returns the `measured` message of `jobs.workload.perform`. Raises RunFailed; a worker that hangs or breaks is
        killed, and the next run gets a new one.
        """
        self.start()
        self.fresh = False
        deadline = time.monotonic() + timeout_s
        reached = "build or warm-up"
        try:
            if self.cancelled():
                raise RunFailed("failed", message="the sweep was stopped")
            self.worker.send(
                {
                    "collector": self.name,
                    "run": run.model_dump(),
                    "warmup_steps": warmup_steps,
                    "steps": steps,
                    "observe": self.name == Timer.name,
                    "log": str(folder / "log.txt"),
                }
            )
            answer = self.worker.receive(deadline - time.monotonic())
            if answer["event"] == "ready":
                reached = "measured steps"
                when_quiet()
                self.worker.send("go")
                answer = self.worker.receive(deadline - time.monotonic())
            if answer["event"] != "measured":
                raise RunFailed(answer.pop("event"), **answer)
            self.worker.receive(deadline - time.monotonic())  # released
            return answer
        except RunFailed as error:
            failure = error
        failure.detail["phase"] = failure.detail.get("phase") or reached
        failure.detail["collector"] = self.name
        if failure.status != "oom" or self.capturing or not self._released():
            self.stop()
        raise failure

    def _released(self) -> bool:
        try:
            return self.worker.receive(RELEASE_TIMEOUT_S)["event"] == "released"
        except RunFailed:
            return False


class Nsys(Timer):
    """Measures under Nsight Systems, tracing CUDA and NVTX; CPU sampling is off, so no privilege is needed.

    The worker lives in an nsys session. A capture begins before a run is measured and ends after it; until then the
    session serves no other run.
    """

    name = "nsys"
    annotate = True

    def __init__(self, device: str, gpu: int | None = None, cancelled: Callable[[], bool] = lambda: False):
        super().__init__(device, gpu, cancelled)
        self.session = ""

    def start(self) -> None:
        if self.worker is None:
            if shutil.which("nsys") is None:
                raise CollectorError(NSYS_MISSING)
            self.session = f"profiler-{os.getpid()}-{next(SESSION_NUMBERS)}"
            self.launcher = ("nsys", "launch", f"--session-new={self.session}", *TRACED)
        super().start()

    def stop(self) -> None:
        if self.worker is not None:
            with suppress(CollectorError):
                self.control("shutdown", "--kill=sigkill")
            self.capturing = False
        super().stop()

    def control(self, command: str, *options: str) -> None:
        nsys(command, f"--session={self.session}", *options, environment=self.worker.environment)

    @property
    def report(self) -> Path:
        """Where nsys leaves the report of a capture, whichever run it will be for."""
        return self.worker.home / "profile.nsys-rep"

    def begin_capture(self) -> None:
        """Begin to collect. Raises RunFailed; the worker is then stopped."""
        try:
            self.control("start", *NOT_SAMPLED, "--force-overwrite=true", f"--output={self.report}")
        except CollectorError as error:
            self.stop()
            detail = {"phase": "start of capture", "message": str(error), "collector": self.name}
            raise RunFailed("failed", **detail) from None
        self.capturing = True

    def end_capture(self, folder: Path) -> Path:
        """Stop collecting and export the report to `folder`, as of `export`. Raises CollectorError; the worker is then
        stopped."""
        try:
            self.control("stop")
            self.capturing = False
            if not self.report.exists():
                raise CollectorError("nsys stop left no report")
            return export(Path(shutil.move(self.report, folder)), self.worker.environment)
        except CollectorError:
            self.stop()
            raise


def nsys(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run an nsys command and return what it printed. It finds sessions only in the environment they were started in.

    Raises CollectorError with nsys's last line.
    """
    try:
        done = subprocess.run(
            ["nsys", *arguments], capture_output=True, text=True, timeout=STOP_TIMEOUT_S, env=environment
        )
    except FileNotFoundError:
        raise CollectorError(NSYS_MISSING) from None
    except subprocess.TimeoutExpired:
        raise CollectorError(f"nsys {arguments[0]} did not end within {STOP_TIMEOUT_S} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise CollectorError(f"nsys {arguments[0]} failed: " + (said[-1] if said else f"exit {done.returncode}"))
    return done.stdout


def export(report: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Export a report to SQLite beside it, without what names the machine, and what nsys's own statistics say, for the
    reconciliation. Raises CollectorError."""
    database = report.with_suffix(".sqlite")
    options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
    nsys("export", *options, str(report), environment=environment)
    try:
        scrub(database)
    except sqlite3.Error as error:
        raise CollectorError(f"the export of nsys cannot be used: {error}") from None
    with suppress(CollectorError):  # an nsys without its statistics scripts still measures
        options = ["--quiet", f"--report={NSYS_SUMS}", "--format=csv", "--output=-"]
        sums = nsys("stats", *options, str(database), environment=environment)
        report.with_name(f"{NSYS_SUMS}.csv").write_text(sums)
    return database


def scrub(database: Path) -> None:
    """Remove from an export everything that names the machine: other tables, unreferenced strings, device ids."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        referenced = []
        for table in tables:
            if not table.startswith(KEPT_TABLES):
                connection.execute(f'DROP TABLE "{table}"')
            elif table.startswith(("CUPTI_", "NVTX_EVENTS")):
                columns = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
                referenced += [
                    f'SELECT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'
                    for column in STRING_COLUMNS
                    if column in columns
                ]
        if "StringIds" in tables and referenced:
            connection.execute(f"DELETE FROM StringIds WHERE id NOT IN ({' UNION '.join(referenced)})")
        if "TARGET_INFO_GPU" in tables:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(TARGET_INFO_GPU)")}
            for column in columns & {"uuid", "busLocation", "luid", "ctxswDevPath", "ctrlDevPath"}:
                connection.execute(f"UPDATE TARGET_INFO_GPU SET {column} = NULL")
        if "META_DATA_EXPORT" in tables:
            connection.execute("DELETE FROM META_DATA_EXPORT WHERE name LIKE '%PATH%'")
        connection.execute("VACUUM")


def count_kernels_and_steps(database: Path) -> tuple[int, int]:
    """How many kernels an export holds since its first step began (warm-up is in the capture, too), and how many
    complete ranges named `step`."""
    steps = """SELECT count(*), coalesce(min(start), 0) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id
               WHERE coalesce(text, value) = ? AND "end" IS NOT NULL"""
    kernels = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= ?"
    with closing(sqlite3.connect(database)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        num_kernels = num_steps = first = 0
        if "NVTX_EVENTS" in tables:
            num_steps, first = connection.execute(steps, (STEP,)).fetchone()
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            (num_kernels,) = connection.execute(kernels, (first,)).fetchone()
    return num_kernels, num_steps
