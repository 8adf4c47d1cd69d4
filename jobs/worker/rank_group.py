"""A run on several GPUs: a process for each, its rank, and this one between them and the job. To the job it is one
worker: what the job says goes to every rank, and what the ranks answer is put together. Being none of them, it still
answers when a rank hangs in a collective that another one never joins. Needs the standard library alone.

`python -m profiler_job.jobs.worker.rank_group ADDRESS --device cuda --ranks 2` starts it, and it starts the ranks: its
children, so that nsys records all of them in one capture, on one clock.

Where other machines have some of the ranks, each has such a process for its own, `--here` of them from `--first`. Those
ranks connect to the one on the first machine, as its children do, and end with that connection. So what one of them
does or leaves undone is known in one place, and the process on its own machine only starts it, and ends it. That one
also says where a rank has ended, which is waited for on the first machine if it had not connected yet.
"""

import argparse
import hmac
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.messages import CONNECT_S, KEY, Channel, read_greeting, send_greeting
from profiler_job.jobs.contract.ports import find_free_ports

TABLES = ("steps", "memory", "figures", "module_memory")
"""Lists of rows in what a rank measured; put together each row says its rank."""
HOST = "127.0.0.1"
GREET_S = 5
"""How long who connects may take to say which rank it is. A scanner of ports says nothing."""
DEATH_S = 0.3
"""How long after one rank's failure it shows that another had died."""


TELL_S = 30
"""How long it is tried to tell the first machine that a rank has ended: that one may begin to listen later."""


class RankDied(Exception):
    """A rank has ended by itself; the message says which, and how."""

    def __init__(self, rank: int, code: int | None):
        super().__init__(f"rank {rank} died (exit {code})")
        self.code = code


class NotTogether(Exception):
    """The ranks have other GPUs or versions than one another, or some of them do not come."""


class Ranks:
    """A socket to each rank, and the processes of those on this machine, which are the first `num_here`: the others
    connect to `address` (host:port), and all of them meet at `meeting`."""

    def __init__(
        self,
        home: Path,
        num_ranks: int,
        options: Sequence[str],
        num_here: int = 0,
        meeting: str = "",
        address: str = "",
    ):
        num_here, meeting = num_here or num_ranks, meeting or f"{HOST}:{find_free_ports(1)[0]}"
        self.processes: list[subprocess.Popen] = []
        self.sockets: list[Connection] = []
        try:
            # Those of other machines find it open, however long the ranks here take to start, one after the other.
            with listen(int(address.rpartition(":")[2])) if num_ranks > num_here else nullcontext() as port:
                for rank in range(num_here):
                    own = str(home / f"rank-{rank}")
                    with Listener(own) as listener:
                        self.processes.append(start(own, rank, num_ranks, meeting, options, gpu=rank))
                        self.sockets.append(accepted(listener, self.processes[-1], rank))
                if port:
                    self.sockets += accept_others(port, range(num_here, num_ranks), self.look_at_processes)
        except (RankDied, NotTogether):
            self.kill()  # else the last that is printed is that they lost their connection
            raise

    def look_at_processes(self) -> None:
        """Raises RankDied where one of this machine has ended."""
        for rank, process in enumerate(self.processes):
            if process.poll() is not None:
                raise RankDied(rank, process.returncode)

    def send(self, message: Any) -> None:
        """The same to every rank; those of other machines cannot write where a run's output goes."""
        for rank, connection in enumerate(self.sockets):
            is_elsewhere = rank >= len(self.processes) and isinstance(message, dict)
            with suppress(OSError):  # that it died is noticed when its answer is read
                connection.send(message | {"log": ""} if is_elsewhere else message)

    def receive(self, job: Connection) -> list[dict]:
        """The next message of every rank, in their order; of one that failed alone, its own. Raises RankDied, and
        EOFError where the job is gone."""
        answers: dict[int, dict] = {}
        while len(answers) < len(self.sockets):
            waiting = {connection: rank for rank, connection in enumerate(self.sockets) if rank not in answers}
            for ready in wait([*waiting, job]):
                if ready is job:
                    raise EOFError  # while the ranks work the job says nothing
                rank = waiting[ready]  # type: ignore[index]
                try:
                    answers[rank] = self.sockets[rank].recv()
                except (EOFError, OSError):
                    raise RankDied(rank, self.exit_code(rank)) from None
                if answers[rank]["event"] == "failed":
                    self.look_for_dead([other for other in waiting.values() if other != rank])
                if answers[rank]["event"] in ("oom", "failed"):
                    return [answers[rank] | {"rank": rank}]
        return [answers[rank] for rank in sorted(answers)]

    def look_for_dead(self, others: Sequence[int]) -> None:
        """Whether a rank failed since another one died, which its collective may tell first. Raises RankDied."""
        time.sleep(DEATH_S)
        for rank in others:
            if not self.sockets[rank].poll():
                continue
            try:
                self.sockets[rank].recv()
            except (EOFError, OSError):
                raise RankDied(rank, self.exit_code(rank)) from None

    def exit_code(self, rank: int) -> int | None:
        """Of a rank that has ended. What ended one on another machine is not known: it counts as killed, so that the
        run is measured again."""
        if rank >= len(self.processes):
            return -signal.SIGKILL
        with suppress(subprocess.TimeoutExpired):
            self.processes[rank].wait(5)
        return self.processes[rank].poll()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def start(address: str, rank: int, num_ranks: int, meeting: str, options: Sequence[str], gpu: int) -> subprocess.Popen:
    """The process of a rank, which connects to an address; gpu: its number among those of this machine."""
    place = ["--rank", str(rank), "--ranks", str(num_ranks), "--meeting", meeting, "--gpu", str(gpu)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "profiler_job.jobs.worker", address, *options, *place], stdin=subprocess.DEVNULL
    )


def listen(port: int) -> socket.socket:
    """A socket to which ranks of other machines can connect. Raises NotTogether."""
    try:
        listener = socket.create_server(("", port), backlog=socket.SOMAXCONN)
    except OSError as error:
        raise NotTogether(
            f"ranks of other machines cannot connect to port {port} of the first one ({error.strerror}), which was "
            "free: start the sweep again"
        ) from None
    listener.settimeout(0.2)
    return listener


def accept_others(listener: socket.socket, ranks: range, look: Callable[[], None] = lambda: None) -> list[Channel]:
    """The connections of ranks on other machines, in their order; each may take CONNECT_S after the one before it.
    Meanwhile `look` is called again and again. Raises NotTogether where one does not come, and RankDied where its
    machine says that it has ended."""
    deadline = time.monotonic() + CONNECT_S
    channels: dict[int, Channel] = {}
    while missing := [rank for rank in ranks if rank not in channels]:
        if time.monotonic() > deadline:
            raise NotTogether(
                f"rank {missing[0]} did not connect to port {listener.getsockname()[1]} of the first machine within "
                f"{CONNECT_S} s: let its machine reach all ports of the first one"
            )
        look()
        with suppress(TimeoutError):
            connected, _ = listener.accept()
            rank, code = greeted(connected)
            if rank in ranks and code is not None:
                connected.close()
                raise RankDied(rank, code)
            if rank in missing:
                channels[rank] = Channel(connected)
                deadline = time.monotonic() + CONNECT_S
            else:
                connected.close()
    return [channels[rank] for rank in ranks]


def greeted(connected: socket.socket) -> tuple[int, int | None]:
    """The rank of who has connected, -1 where it is none of this run; and the exit code where it was said that this
    rank has ended."""
    with suppress(OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        hello = read_greeting(connected, GREET_S)
        if hmac.compare_digest(str(hello["key"]).encode(), os.environ[KEY].encode()):
            return int(hello["rank"]), int(hello["ended"]) if "ended" in hello else None
    return -1, None


def tell_ended(address: str, rank: int, code: int, job: Connection) -> None:
    """Tell the first machine that a rank of this one has ended, unless it does not listen within TELL_S, as where all
    ranks had connected, or the job has something to say."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + TELL_S
    while True:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=GREET_S) as first:
            send_greeting(first, {"key": os.environ[KEY], "rank": rank, "ended": code})
            return
        if job.poll(0.2) or time.monotonic() > deadline:
            return


def accepted(listener: Listener, process: subprocess.Popen, rank: int) -> Connection:
    """The connection of a process that has just started. Raises RankDied where it ends before."""
    underlying = listener._listener._socket  # type: ignore[attr-defined]
    underlying.settimeout(0.2)
    while True:
        with suppress(TimeoutError):
            return listener.accept()
        if (code := process.poll()) is not None:
            raise RankDied(rank, code)


def together(answers: Sequence[dict]) -> dict:
    """What the ranks measured as one answer: each row of its tables says its rank, seconds are of the slowest, and
    the rest is the first rank's."""
    first = answers[0]
    if first["event"] != "measured":
        return first
    tables = {
        name: [{"rank": rank} | row for rank, answer in enumerate(answers) for row in answer[name]] for name in TABLES
    }
    longest = {name: max(answer["seconds"][name] for answer in answers) for name in first["seconds"]}
    return first | tables | {"seconds": longest}


def serve(job: Connection, ranks: Ranks) -> None:
    """Carry the messages of `jobs.contract.messages` between the job and the ranks, until either is gone."""
    hellos = ranks.receive(job)
    check_alike([hello["facts"] for hello in hellos])
    job.send(hellos[0] | {"pid": os.getpid()})
    while (task := job.recv()) is not None:
        redirect(task["log"])
        if "calibrate" in task:
            rank = ranks.sockets[0]  # one GPU's rates
            rank.send(task)
            job.send(rank.recv())
            job.send(rank.recv())
            continue
        ranks.send(task)
        while True:
            answer = together(ranks.receive(job))
            if answer["event"] in ("oom", "failed"):
                fail(job, answer)
                return
            job.send(answer)
            if answer["event"] == "released":
                break
            if answer["event"] in ("ready", "timed"):
                ranks.send(job.recv())
    ranks.send(None)


def check_alike(facts: Sequence[dict]) -> None:
    """Raises NotTogether where the GPUs of several machines, or what runs there, differ."""
    for name in ("gpu_name", "cuda", "torch"):
        if len(values := sorted({str(fact[name]) for fact in facts})) > 1:
            raise NotTogether(f"the ranks differ in {name}: {', '.join(values)}")


def start_for_first(job: Connection, num_ranks: int, options: Sequence[str], part: argparse.Namespace) -> None:
    """Start the ranks of this machine, which connect to that on the first, and end them when one has ended, or the job
    on this machine says so, or is gone. Of that the first is told."""
    ranks = range(part.first, part.first + part.here)
    processes = [
        start(part.address_of_first, rank, num_ranks, part.meeting, options, gpu) for gpu, rank in enumerate(ranks)
    ]
    try:
        job.send({"event": "hello", "pid": os.getpid(), "facts": {}})
        while not job.poll(0.2) and all(process.poll() is None for process in processes):
            pass
        ended = {rank: code for rank, process in zip(ranks, processes) if (code := process.poll()) is not None}
        if ended:
            time.sleep(2 * DEATH_S)  # else those that are killed here look as if they had died first
    finally:
        for process in processes:
            process.kill()
            process.wait()
    tell_ended(part.address_of_first, *next(iter(ended.items()), (ranks[0], -signal.SIGKILL)), job)


def fail(job: Connection, answer: dict) -> None:
    """Tell the job; the others wait for the rank in a collective, so all of them end with this process."""
    job.send(answer | {"message": f"rank {answer['rank']}: {answer['message']}"})
    if answer["event"] == "oom":
        job.send({"event": "released"})


def redirect(log: str) -> None:
    """What this process says goes where its ranks' output goes."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker of several ranks; started by the runner.")
    parser.add_argument("address")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--annotate", action="store_true")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="the first rank of this machine")
    parser.add_argument("--here", type=int, default=0, help="how many are on this machine; 0: all")
    parser.add_argument("--meeting", default="", help="where all ranks meet: host:port")
    parser.add_argument("--address-of-first", default="", help="where those of other machines connect to: host:port")
    arguments = parser.parse_args()
    home = Path(arguments.address).parent
    options = ["--device", arguments.device, *["--annotate"] * arguments.annotate]
    ended: RankDied | NotTogether | None = None
    ranks: Ranks | None = None
    with Client(arguments.address) as job:
        try:
            if arguments.first:
                start_for_first(job, arguments.ranks, options, arguments)
                return
            where = (arguments.here, arguments.meeting, arguments.address_of_first)
            ranks = Ranks(home, arguments.ranks, options, *where)
            serve(job, ranks)
        except NotTogether as apart:
            ended = apart
            print(apart, flush=True)
        except RankDied as died:
            ended = died
            print(f"{died}; the others are ended, too", flush=True)
        except (EOFError, OSError):  # the job is gone
            shutil.rmtree(home, ignore_errors=True)
        finally:
            if ranks is not None:
                ranks.kill()
    if isinstance(ended, RankDied) and ended.code is not None and ended.code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -ended.code)  # as its rank: the job tells a killed process from one that failed
    sys.exit(1 if ended is not None else 0)


if __name__ == "__main__":
    main()
