"""A run on several GPUs: a process for each, its rank, and this one between them and the job. To the job it is one
worker: what the job says goes to every rank, and what the ranks answer is put together. Being none of them, it still
answers when a rank hangs in a collective that another one never joins. Needs the standard library alone.

`python -m jobs.worker.ranks ADDRESS --device cuda --ranks 2` starts it, and it starts the ranks: its children, so that
nsys records all of them in one capture, on one clock.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

TABLES = ("steps", "memory", "figures", "module_memory")
"""Lists of rows in what a rank measured; put together each row says its rank."""
HOST = "127.0.0.1"


class RankDied(Exception):
    """A rank has ended by itself; the message says which, and how."""

    def __init__(self, rank: int, code: int | None):
        super().__init__(f"rank {rank} died (exit {code})")
        self.code = code


class Ranks:
    """The processes of the ranks, and a socket to each."""

    def __init__(self, home: Path, num_ranks: int, options: Sequence[str]):
        meeting = f"{HOST}:{free_port()}"
        self.processes: list[subprocess.Popen] = []
        self.sockets: list[Connection] = []
        for rank in range(num_ranks):
            address = str(home / f"rank-{rank}")
            with Listener(address) as listener:
                place = ["--rank", str(rank), "--ranks", str(num_ranks), "--meeting", meeting]
                command = [sys.executable, "-m", "jobs.worker", address, *options, *place]
                self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
                self.sockets.append(accepted(listener, self.processes[-1], rank))

    def send(self, message: Any) -> None:
        """The same to every rank."""
        for connection in self.sockets:
            with suppress(OSError):  # that it died is noticed when its answer is read
                connection.send(message)

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
                    with suppress(subprocess.TimeoutExpired):
                        self.processes[rank].wait(5)
                    raise RankDied(rank, self.processes[rank].poll()) from None
                if answers[rank]["event"] in ("oom", "failed"):
                    return [answers[rank] | {"rank": rank}]
        return [answers[rank] for rank in sorted(answers)]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def accepted(listener: Listener, process: subprocess.Popen, rank: int) -> Connection:
    """The connection of a process that has just started. Raises RankDied where it ends before."""
    underlying = listener._listener._socket  # type: ignore[attr-defined]
    underlying.settimeout(0.2)
    while True:
        with suppress(TimeoutError):
            return listener.accept()
        if (code := process.poll()) is not None:
            raise RankDied(rank, code)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


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
    hello = ranks.receive(job)[0]
    job.send(hello | {"pid": os.getpid()})
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
    arguments = parser.parse_args()
    home = Path(arguments.address).parent
    options = ["--device", arguments.device, *["--annotate"] * arguments.annotate]
    ended: RankDied | None = None
    ranks: Ranks | None = None
    with Client(arguments.address) as job:
        try:
            ranks = Ranks(home, arguments.ranks, options)
            serve(job, ranks)
        except RankDied as died:
            ended = died
            print(f"{died}; the others are ended, too", flush=True)
        except (EOFError, OSError):  # the job is gone
            shutil.rmtree(home, ignore_errors=True)
        finally:
            if ranks is not None:
                ranks.kill()
    if ended is not None and ended.code is not None and ended.code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -ended.code)  # as its rank: the job tells a killed process from one that failed
    sys.exit(1 if ended is not None else 0)


if __name__ == "__main__":
    main()
