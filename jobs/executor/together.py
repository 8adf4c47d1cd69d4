"""Several machines that measure a run together: the first one decides, and the others do as it does.

Each machine starts the same command. That of the first measures the sweep; those of the others connect to it, and each
of its collectors (see `jobs.executor.collectors`) has one of the same kind there, with the ranks of that machine: it is
started, captures and is stopped when the first one's is. Ranks themselves speak to the first machine alone (see
`jobs.worker.rank_group`), so one that ends anywhere ends the run, and all ranks end with the connection.

What goes to and fro is a JSON object a line, and files, and from rank to rank JSON, too: nothing that is read runs as
code. Else the network between the machines is trusted, as for torch.distributed: nothing is encrypted, and whoever
knows the sweep can take the place of a machine.
"""

import errno
import io
import json
import math
import os
import secrets
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.layout import CAPTURE, NSYS_LOG, NSYS_SUMS_FILE, name_node_file
from profiler_job.jobs.contract.messages import notice_loss
from profiler_job.jobs.contract.ports import find_free_ports
from profiler_job.jobs.contract.versions import compare_machines, format_differences
from profiler_job.jobs.executor.collectors import Collector, Nsys, Timer
from profiler_job.jobs.executor.failures import CollectorError, RunFailed
from profiler_job.jobs.executor.machine import hash_machine_names, read_machine_facts
from profiler_job.jobs.executor.nodes import Node
from profiler_job.jobs.executor.nsys_cli import TIMEOUT_S
from profiler_job.jobs.executor.stop import CAPTURE_S, Stop
from profiler_job.jobs.executor.temporary import create_temporary_folder, remove_abandoned
from profiler_job.jobs.executor.worker_process import Part

JOIN_S = 300
"""How long the machines wait for one another."""
GREET_S = 10
"""How long a machine may take to say which it is. Whoever else connects, as a scanner of ports does, says nothing."""
LOOK_S = 0.2
"""How often it is looked whether to wait on."""
LONGEST_LINE = 1 << 20
ANSWER_S = 4 * TIMEOUT_S
"""After so long without an answer of its program a machine counts as gone: longer than all of nsys's commands take."""
AFTER_STOP_S = 1.0
"""How long after a stop an answer is waited for: the other machine may know nothing of it, and take minutes."""
PRINTED_BYTES = 1 << 14
"""Of the beginning, and of the end, of what the ranks of a machine print: so much comes to the first when they end."""
KINDS: Mapping[str, type[Collector]] = {kind.name: kind for kind in (Timer, Nsys)}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
KEPT = (CAPTURE, NSYS_SUMS_FILE, NSYS_LOG)
"""Of a capture on another machine, what comes to the first."""


def count_down(seconds: float) -> Callable[[], float]:
    """Says how many of so many seconds are left."""
    deadline = time.monotonic() + seconds
    return lambda: deadline - time.monotonic()


class Incoming(io.RawIOBase):
    """What comes over a connection while `left_s()` seconds are left, in however many pieces: a limit for each of them
    would have no end where somebody sends a byte at a time. Raises OSError."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.left_s: Callable[[], float] = lambda: math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while (left := self.left_s()) > 0:
            if wait([self.connection], min(left, LOOK_S)):
                return self.connection.recv_into(buffer)
        raise TimeoutError("it did not answer in time")


class Line:
    """A connection to another machine. Raises OSError, also where that machine has closed it."""

    def __init__(self, connection: socket.socket):
        self.socket = connection
        notice_loss(connection)
        connection.settimeout(None)
        self.file = connection.makefile("wb")
        self.incoming = Incoming(connection)
        self.received = io.BufferedReader(self.incoming)

    def send(self, message: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        if self.file.closed:
            raise ConnectionError("it was given up before")
        sizes = {file.name: file.stat().st_size for file in files}
        self.file.write(json.dumps({**message, "files": sizes}).encode() + b"\n")
        for file in files:
            with open(file, "rb") as opened:
                shutil.copyfileobj(opened, self.file)
        self.file.flush()

    def receive(
        self, place_of: Callable[[str], Path | None] | None = None, left_s: Callable[[], float] = lambda: math.inf
    ) -> dict[str, Any]:
        """The next message; its files go where `place_of` says, or nowhere. Without it none may come. All of it comes
        while `left_s()` seconds are left."""
        self.incoming.left_s = left_s
        text = self.received.readline(LONGEST_LINE)
        try:
            message = json.loads(text)
            sizes = {str(name): int(size) for name, size in message["files"].items()}
            if min(sizes.values(), default=0) < 0 or (sizes and place_of is None):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ConnectionError("the other machine ended" if not text else "it speaks otherwise") from None
        for name, size in sizes.items():
            with open((place_of and place_of(name)) or os.devnull, "wb") as opened:
                while size:
                    if not (piece := self.received.read(min(size, 1 << 20))):
                        raise ConnectionError("the other machine ended")
                    opened.write(piece)
                    size -= len(piece)
        return message

    def is_closed(self) -> bool:
        """Whether the other machine has ended it, between two messages."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self.file.close()
        self.socket.close()


def own_facts(with_nsys: bool) -> dict[str, Any]:
    """What the first machine compares with its own; ranks tell the rest. Raises CollectorError."""
    return read_machine_facts({}, with_nsys=with_nsys).model_dump(include={"driver", "nsys", "commit"})


class Twins:
    """The collectors of the other machines that do as one of this machine does. When the sweep is told to stop nothing
    begins there any more, and a machine that has not answered AFTER_STOP_S later is given up, or CAPTURE_S after that
    where it ends a capture."""

    def __init__(self, others: "Others", kind: str, ranks: int, stopping: Stop):
        self.others, self.number, self.kind = others, next(others.numbers), kind
        self.stopping = stopping
        self.size = ranks // others.node.size  # of each machine
        self.ranks = ranks
        self.printed: dict[str, list[str]] = {}  # as of `Twin`

    @contextmanager
    def start(self) -> Iterator[Part]:
        """As `Twin.start`. The ports where all meet are drawn when it is the turn of this start, elsewhere each time:
        while it is waited for, another program could take them."""
        host = self.others.node.host
        with self.others.lock:
            meeting, address = (f"{host}:{port}" for port in self._draw_ports())
            part = Part(0, self.size, meeting, address, secrets.token_hex(16))
            task = {"call": "start", "kind": self.kind, "ranks": self.ranks}
            with self._with(lambda node: task | {"part": part._replace(first=node * self.size)}):
                yield part

    @contextmanager
    def does(self, call: str, folder: Path | None = None) -> Iterator[None]:
        with self.others.lock, self._with(lambda node: {"call": call}, folder, is_ending=call == "end_capture"):
            yield

    def _draw_ports(self) -> list[int]:
        """Two that are free, and not of another collector: its ranks meet only when they measure, and until then its
        port is as free as any."""
        drawn = self.others.ports
        drawn.pop(self.number, None)
        while set(ports := find_free_ports(2)) & {port for others in drawn.values() for port in others}:
            pass
        drawn[self.number] = ports
        return ports

    @contextmanager
    def _with(
        self, task_of: Callable[[int], dict], folder: Path | None = None, is_ending: bool = False
    ) -> Iterator[None]:
        """The others do their task while this is done here; the files that they leave come to `folder`. The lock of
        `others` is held. is_ending: whether a capture is being ended. Raises CollectorError where it fails here or
        there, and RunFailed where nothing begins, as the sweep stops."""
        self.printed = {}
        if self.stopping.is_set() and not is_ending:  # `Others.end`, which follows, stops all that there is
            raise RunFailed("failed", message="the sweep was stopped")
        allowed_s = AFTER_STOP_S + CAPTURE_S * is_ending
        lines, failed = self.others.lines, None
        for node, line in lines.items():  # before any is told: what one answers would be read as of the next task
            if line.is_closed():  # its ranks would be waited for in vain
                raise CollectorError(self._said_of(node, "it is gone"))
        for node, line in lines.items():
            with suppress(OSError):  # told when its answer is read
                line.send({"collector": self.number, **task_of(node)})
        try:
            yield
        except CollectorError as error:  # perhaps for what is wrong there
            failed = error
        finally:
            wrong = [said for node, line in lines.items() if (said := self._answer(node, line, folder, allowed_s))]
        if failed or wrong:
            raise CollectorError(wrong[0] if wrong else str(failed))

    def _answer(self, node: int, line: Line, folder: Path | None, allowed_s: float) -> str:
        """What went wrong there, "" where nothing did; after a stop it is waited for `allowed_s`. Raises OSError where
        there is no room here for its files."""
        late_s = count_down(ANSWER_S)

        def left_s() -> float:
            return min(late_s(), self.stopping.left(allowed_s))

        def place_of(name: str) -> Path | None:
            return folder / name_node_file(name, node) if folder and name in KEPT else None

        try:
            # A program that is stopped keeps its connection.
            answer = line.receive(place_of, left_s)
            said = answer.get("wrong", "")
            if printed := str(answer.get("printed", "")).splitlines():
                self.printed[self._name_of(node)] = printed
        except OSError as error:
            line.close()
            if error.errno in NO_ROOM:
                raise
            said = f"it is gone, or what it left cannot be kept ({error})"
        return self._said_of(node, said) if said else ""

    def _said_of(self, node: int, said: str) -> str:
        return f"{self._name_of(node)}: {said}"

    def _name_of(self, node: int) -> str:
        return f"machine {node + 1} of {self.others.node.size}"


class Others:
    """The other machines, as the first one sees them."""

    def __init__(self, node: Node):
        self.node = node
        self.lines: dict[int, Line] = {}
        self.lock = threading.Lock()
        self.numbers = count()
        self.ports: dict[int, list[int]] = {}  # where the ranks of a collector meet, by its number
        self.hashed_names: list[str] = []
        self.stranger = ""  # what was wrong with the last program that came from another sweep

    def wait(self, sweep: str, facts: Mapping[str, Any]) -> None:
        """Until all are here. sweep: its digest. Raises CollectorError."""
        deadline = time.monotonic() + JOIN_S
        try:
            listener = socket.create_server(("", self.node.port), backlog=self.node.size)
        except OSError as error:
            raise CollectorError(
                f"the other machines cannot connect to port {self.node.port} ({error.strerror}): name a free one in "
                "MASTER_PORT, on all of them"
            ) from None
        with listener:
            listener.settimeout(0.2)
            while len(self.lines) < self.node.size - 1:
                if time.monotonic() > deadline:
                    why = f"; {self.stranger}" if self.stranger else ": start the same command on each, as srun does"
                    raise CollectorError(f"{len(self.lines) + 1} of {self.node.size} machines came in {JOIN_S} s{why}")
                with suppress(TimeoutError):
                    self._greet(Line(listener.accept()[0]), sweep, facts)

    def _greet(self, line: Line, sweep: str, facts: Mapping[str, Any]) -> None:
        try:
            said = line.receive(left_s=count_down(GREET_S))
            number, theirs, names = int(said["node"]), dict(said["facts"]), list(said["hashed_names"])
        except (OSError, KeyError, TypeError, ValueError, OverflowError):  # somebody else's
            line.close()
            return
        wrong, old = "", self.lines.get(number)
        is_stranger = said.get("sweep") != sweep
        if is_stranger:
            wrong = f"machine {number + 1} came with another sweep: give all of them the same file and --only"
        elif (old and not old.is_closed()) or not 0 < number < self.node.size:
            wrong = f"machine {number + 1} of {self.node.size} is there already, or cannot be: start one task on each"
        elif different := compare_machines([theirs], facts):
            wrong = f"machine {number + 1} has other versions ({format_differences(different)})"
        with suppress(OSError):  # that it is gone is noticed when it is to do something
            line.send({"wrong": wrong})
        if wrong:
            line.close()
            if not is_stranger:
                raise CollectorError(wrong)
            self.stranger = wrong  # perhaps of another job: those of this one may still come
            return
        if old:  # it was started again
            old.close()
        self.hashed_names += names
        self.lines[number] = line

    def twin(self, collector: Collector, ranks: int) -> Twins:
        return Twins(self, collector.name, ranks, collector.stopping)

    def end(self, wrong: str = "") -> None:
        """Tell the others that the sweep has ended, and what was wrong where it could not go on."""
        for line in self.lines.values():
            with suppress(OSError):
                line.send({"call": "end", "wrong": wrong})
            line.close()


def work_for_first(
    node: Node, sweep: str, device: str, gpus: Sequence[int], with_nsys: bool, stop: Stop | None = None
) -> None:
    """Do what the first machine does until it says that the sweep has ended. Raises CollectorError where it ends
    otherwise, or does not take this machine. stop: as of `jobs.executor.collectors.Collector`; it is set when the first
    machine is gone, too."""
    remove_abandoned()
    line, stop = _connect(node), stop or Stop()
    stop_with(line, stop)
    collectors: dict[int, Collector] = {}
    with create_temporary_folder("node-") as folder, create_temporary_folder("compiled-") as compiled:
        try:
            of_sweep = {"sweep": sweep, "facts": own_facts(with_nsys)}
            line.send({"node": node.number, "hashed_names": hash_machine_names()} | of_sweep)
            if wrong := line.receive().get("wrong"):
                raise CollectorError(str(wrong))
            while (task := line.receive())["call"] != "end":
                try:
                    about, files = _perform(task, collectors, device, gpus, folder, str(compiled), stop)
                except (CollectorError, RunFailed, OSError) as failure:  # the last is of this machine's own files
                    line.send({"wrong": str(failure)})
                else:
                    line.send(about, files)
            if wrong := task.get("wrong"):
                raise CollectorError(str(wrong))
        except OSError as error:
            raise CollectorError(f"the first machine is gone ({error})") from None
        finally:
            for collector in collectors.values():
                collector.stop()
            line.close()


def stop_with(line: Line, stop: Stop) -> None:
    """Stop what goes on here as soon as the first machine has closed the line: until it has ended nobody reads that."""
    connection = line.socket.dup()  # which this end closes by itself

    def watch() -> None:
        closed = select.poll()
        with connection:
            closed.register(connection, select.POLLRDHUP)
            closed.poll()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()


def _connect(node: Node) -> Line:
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            return Line(socket.create_connection((node.host, node.port), timeout=5))
        except OSError as error:
            if time.monotonic() > deadline:
                raise CollectorError(
                    f"the first machine is out of reach at {node.host}:{node.port} ({error}): start the same command "
                    "on each, as srun does; MASTER_ADDR and MASTER_PORT name it"
                ) from None
            time.sleep(0.5)


def _perform(
    task: Mapping[str, Any],
    collectors: dict[int, Collector],
    device: str,
    gpus: Sequence[int],
    folder: Path,
    compiled: str,
    stop: Stop,
) -> tuple[dict[str, str], Sequence[Path]]:
    """Do what the collector of the same number does on the first machine. Returns what that one is told, and the files
    that it is to have."""
    number, call = int(task["collector"]), task["call"]
    of_run = folder / str(number)
    collector = collectors.get(number)
    if call == "start":
        part = Part(*task["part"])
        if len(gpus) < part.size and device == "cuda":
            raise CollectorError(f"{part.size} GPUs are needed here, and {len(gpus)} would be used")
        if collector is None:
            used = tuple(gpus[: part.size]) if device == "cuda" else ()
            collector = collectors[number] = KINDS[task["kind"]](device, used, int(task["ranks"]), stop, compiled)
        collector.stop()
        collector.part = part
        collector.start()
    elif collector is None:
        pass
    elif call == "stop":
        printed = collector.worker.read_printed(PRINTED_BYTES) if collector.worker else ""
        collector.stop()
        return {"printed": printed}, ()
    elif call == "begin_capture" and isinstance(collector, Nsys):
        shutil.rmtree(of_run, ignore_errors=True)
        of_run.mkdir()
        collector.begin_capture(of_run)
    elif call == "end_capture" and isinstance(collector, Nsys):
        collector.end_capture()
        return {}, [of_run / name for name in KEPT if (of_run / name).is_file()]
    return {}, ()
