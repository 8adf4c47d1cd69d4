"""The measured process, seen from outside: started with an allow-listed environment, spoken to over a socket."""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL, SIGTERM

from profiler_job.jobs.contract.excerpt import read_excerpt
from profiler_job.jobs.contract.messages import Answer, Hello, Task
from profiler_job.jobs.contract.privacy import COMPILED, ENVIRONMENT
from profiler_job.jobs.executor.failures import CollectorError, RunFailedError, WorkerDiedError
from profiler_job.jobs.executor.temporary import TemporaryFolder

START_TIMEOUT_S = 180
RANK_START_S = 30  # for each further rank: they may share few cores
END_TIMEOUT_S = 5
LOOK_S = 1.0  # how often it is looked whether the process was stopped
KEPT_OF_OUTPUT = 2**16  # bytes of the beginning, and of the end, of what a worker prints before its first run
KILLED = (-SIGKILL, -SIGTERM)  # exit codes of a process that did not fail by itself


def allowed_environment(
    environment: Mapping[str, str], home: Path, gpus: Sequence[int], compiled: str = ""
) -> dict[str, str]:
    """The environment of a worker: the allow-listed variables, a home and temporary folder of its own, its GPUs, and,
    unless it is named already, the folder of what is `compiled`."""
    allowed = {name: environment[name] for name in ENVIRONMENT if name in environment}
    if compiled:
        allowed.setdefault(COMPILED, compiled)
    allowed |= {"HOME": str(home), "TMPDIR": str(home), "PYTHONUNBUFFERED": "1"}
    if gpus:
        allowed["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order of NVML, which the checks before a sweep ask
        visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = [visible[gpu] if gpu < len(visible) and visible[0] else str(gpu) for gpu in gpus]
        allowed["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    return allowed


def processes_with(name: str, value: str) -> list[int]:
    """List the processes that were started with an environment variable of this value."""
    processes, mark = [], f"{name}={value}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                processes.append(int(environment.parent.name))
    return processes


def kill_processes_with(name: str, value: str) -> None:
    """Kill them, and wait a while until all are gone: who starts anew finds their memory free."""
    killed = processes_with(name, value)
    for pid in killed:
        with suppress(OSError):
            os.kill(pid, SIGKILL)
    deadline = time.monotonic() + END_TIMEOUT_S
    for pid in killed:
        with suppress(OSError):  # gone, or a system that cannot wait for another's child
            handle = os.pidfd_open(pid)
            try:
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(handle)


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped from outside, as by SIGSTOP or a frozen container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


@contextmanager
def listening(address: Path) -> Iterator[socket.socket]:
    """A socket that listens at an address for a while, and does not wait long."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        listener.settimeout(0.2)
        try:
            yield listener
        finally:
            address.unlink(missing_ok=True)


class WorkerProcess:
    """A process that runs `jobs.worker.service`, spoken to over a socket. `cancelled` ends the wait for its start.

    One that `forks` measures nothing: it has imported what the worker needs, and forks the worker, and another one for
    each `renew` (see `jobs.worker.fork`). `pid` and `facts` are the worker's. With several ranks the worker is the
    process between them and this one (see `rank_group`), which does not fork.
    """

    def __init__(
        self,
        device: str,
        gpus: Sequence[int],
        ranks: int,
        annotate: bool,
        launcher: Sequence[str],
        cancelled: Callable[[], bool],
        compiled: str,
        forks: bool = False,
    ):
        self._folder = TemporaryFolder()
        self.home = self._folder.path
        self._start_s = START_TIMEOUT_S + RANK_START_S * (ranks - 1)
        self.pid: int | None = None
        self._cancelled = cancelled
        self._connection: Connection | None = None
        self._control: Connection | None = None
        self.address = self.home / "socket"
        module = (
            ["profiler_job.jobs.worker"]
            if ranks == 1
            else ["profiler_job.jobs.worker.rank_group", "--ranks", str(ranks)]
        )
        command = [*launcher, sys.executable, "-P", "-m", *module, str(self.address), "--device", device]
        command += ["--annotate"] * annotate + ["--fork"] * forks
        self.environment = allowed_environment(os.environ, self.home, gpus, compiled)
        with listening(self.address) as listener, open(self.home / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
            connection = self._accept(listener)
        if connection is not None and forks:
            self._control = connection
            connection = self._fork()
        self._greet(connection)

    def _greet(self, connection: Connection | None) -> None:
        """Begin to speak with a worker that has connected. Raises CollectorError where none has, or where it says
        nothing, and RunFailedError where the sweep was stopped meanwhile; nothing is left then."""
        self._connection = connection
        try:
            hello = self._hear() if connection else None
        except RunFailedError:
            hello = None
        if hello is None:
            said = self.read_printed().strip().splitlines()
            self.kill()
            if self._cancelled():
                raise RunFailedError("failed", message="the sweep was stopped")
            raise CollectorError("the worker process did not start: " + (said[-1] if said else "it said nothing"))
        self.pid, self.facts = hello["pid"], hello["facts"]

    def _fork(self) -> Connection | None:
        """Have a worker forked; None where it does not connect."""
        assert self._control is not None
        with listening(self.address) as listener:
            with suppress(OSError):
                self._control.send(str(self.address))
            return self._accept(listener)

    def renew(self) -> None:
        """End the worker and have another one forked; the old one is gone then, with all its memory. Raises as
        `_greet`."""
        assert self._control is not None
        with suppress(OSError):
            self.connection.send(None)
        if not self._control.poll(END_TIMEOUT_S) and self.pid is not None:
            with suppress(OSError):
                os.kill(self.pid, SIGKILL)
        self._exit_code()
        self.connection.close()
        self._greet(self._fork())

    def _exit_code(self) -> int | None:
        """Return the exit code of the worker, which has ended, or is about to; None if it is not known."""
        if self._control is not None:
            with suppress(EOFError, OSError):
                if self._control.poll(END_TIMEOUT_S):
                    code: int | None = self._control.recv()
                    self.pid = None
                    return code
                return None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_TIMEOUT_S)
        return self.process.poll()

    def _accept(self, listener: socket.socket) -> Connection | None:
        deadline = time.monotonic() + self._start_s
        while time.monotonic() < deadline and not self._cancelled():
            with suppress(TimeoutError):
                client, _ = listener.accept()
                return Connection(client.detach())
            if self.process.poll() is not None or (self._control is not None and self._control.poll()):
                break
        return None

    def _hear(self) -> Hello | None:
        """The worker's first message; None when cancelled. Raises as `receive`."""
        deadline = time.monotonic() + self._start_s
        while not self.connection.poll(0.2) and time.monotonic() < deadline:
            if self._cancelled():
                return None
        hello = self.receive(0)
        assert hello["event"] == "hello"
        return hello

    @property
    def connection(self) -> Connection:
        """The socket to a worker that has started."""
        assert self._connection is not None
        return self._connection

    def send(self, message: Task | str) -> None:
        with suppress(OSError):  # a dead worker is noticed when its answer is read
            self.connection.send(message)

    def receive(self, timeout_s: float) -> Answer:
        """The worker's next message. A process that is stopped is not waited for: steps that it measures after somebody
        lets it go on would be as long as the stop.

        Raises RunFailedError with status `timeout`, or `machine` if somebody stopped the process; WorkerDiedError.
        """
        deadline = time.monotonic() + timeout_s
        was_stopped = False
        while not self.connection.poll(max(0.0, min(LOOK_S, deadline - time.monotonic()))):
            stopped, late = self.pid is not None and is_stopped(self.pid), time.monotonic() >= deadline
            if stopped and (was_stopped or late):
                raise RunFailedError("machine", phase="", message="somebody stopped the worker process (SIGSTOP)")
            if late:
                raise RunFailedError("timeout", phase="", message=f"no answer within {timeout_s:.0f} s")
            was_stopped = stopped
        try:
            received: Answer = self.connection.recv()
            return received
        except (EOFError, OSError):
            code = self._exit_code()
            message = f"worker process died (exit {code})"
            if code in KILLED:
                message += ": somebody, or the system for lack of memory, killed it"
            raise WorkerDiedError("machine" if code in KILLED else "failed", phase="", message=message) from None

    def read_printed(self) -> str:
        """Return the first and last KEPT_OF_OUTPUT bytes of what it printed before its first run. Raises OSError after
        `kill`."""
        return read_excerpt(self.home / "log.txt", KEPT_OF_OUTPUT)

    def died(self) -> bool:
        """Return whether an idle worker is gone: it sends nothing before it is asked, so its connection is closed."""
        with suppress(OSError):
            return self.connection.poll(0)
        return True

    def kill_processes(self) -> None:
        worker = {self.pid} if self.pid and self._control else {self.pid, self.process.pid}  # its parent reaps it
        for pid in filter(None, worker):
            with suppress(OSError):
                os.kill(pid, SIGKILL)

    def kill_all(self) -> None:
        """Kill the worker, too, and whatever was started for it: nsys's own processes outlive their command."""
        self.kill_processes()
        with suppress(OSError):
            self.process.kill()
        kill_processes_with("TMPDIR", str(self.home))  # which no other process has

    def kill(self) -> None:
        if self._control is not None and self.pid is not None:
            self.kill_processes()
            self._exit_code()
        self.kill_all()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        for connection in (self._connection, self._control):
            if connection:
                connection.close()
        self._folder.remove()
