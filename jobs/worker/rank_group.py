"""A run on several GPUs: a process for each, its rank, and this one between them and the job. To the job it is one
worker: what the job says goes to every rank, and what the ranks answer is put together. Being none of them, it still
answers when a rank hangs in a collective that another one never joins. Needs the standard library and the contract.

`python -m profiler_job.jobs.worker.rank_group ADDRESS --device cuda --ranks 2` starts it, and it starts the ranks: its
children, so that nsys records all of them in one capture, on one clock.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode

Answer = dict[str, Any]
"""A message of a rank (see `jobs.contract.messages`)."""

TABLES = ("steps", "memory", "figures", "module_memory")
"""Lists of rows in what a rank measured; put together each row says its rank."""
MEETING = "meeting"
"""The file of torch.distributed's store by which the ranks meet. A port that is free now may be taken before they do:
NCCL opens dozens of sockets."""
DEATH_S = 0.3
"""Time after one rank's failure in which the death of another becomes visible."""


class RankDiedError(ProfilerError):
    """A rank ended by itself; the message names the rank and its exit code."""

    exit_code = ExitCode.FAILED

    def __init__(self, rank: int, code: int | None):
        super().__init__(f"rank {rank} died (exit {code})")
        self.code = code


class Ranks:
    """The processes of the ranks, and a socket to each. Raises RankDiedError if one ends as it starts."""

    def __init__(self, home: Path, num_ranks: int, options: Sequence[str]):
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[Connection] = []
        try:
            with ExitStack() as open_until_connected:
                listeners = []
                for rank in range(num_ranks):  # which import at the same time
                    address = str(home / f"rank-{rank}")
                    listeners.append(open_until_connected.enter_context(Listener(address)))
                    self.processes.append(start_rank(address, rank, num_ranks, str(home / MEETING), options))
                for rank, (listener, process) in enumerate(zip(listeners, self.processes, strict=True)):
                    self.sockets.append(accept_rank(listener, process, rank))
        except RankDiedError:
            self.kill()  # else the last line that is printed is that the others lost their connection
            raise

    def send(self, message: Any) -> None:
        """Send the same to every rank."""
        for connection in self.sockets:
            with suppress(OSError):  # that it died is noticed when its answer is read
                connection.send(message)

    def receive(self, job: Connection) -> list[Answer]:
        """Return the next message of every rank, in their order; if one failed, its message alone. Raises
        RankDiedError, and EOFError if the job is gone."""
        answers: dict[int, Answer] = {}
        while len(answers) < len(self.sockets):
            waiting = {connection: rank for rank, connection in enumerate(self.sockets) if rank not in answers}
            for ready in wait([*waiting, job]):
                if ready is job:
                    raise EOFError  # while the ranks work the job says nothing
                rank = waiting[ready]  # type: ignore[index]
                try:
                    answers[rank] = self.sockets[rank].recv()
                except (EOFError, OSError):
                    raise RankDiedError(rank, self.exit_code(rank)) from None
                if answers[rank]["event"] == "failed":
                    self.look_for_dead([other for other in waiting.values() if other != rank])
                if answers[rank]["event"] in ("oom", "failed"):
                    return [answers[rank] | {"rank": rank}]
        return [answers[rank] for rank in sorted(answers)]

    def look_for_dead(self, others: Sequence[int]) -> None:
        """Raise RankDiedError if a rank failed because another one died: its collective may fail first."""
        time.sleep(DEATH_S)
        for rank in others:
            if not self.sockets[rank].poll():
                continue
            try:
                self.sockets[rank].recv()
            except (EOFError, OSError):
                raise RankDiedError(rank, self.exit_code(rank)) from None

    def exit_code(self, rank: int) -> int | None:
        """Return the exit code of a rank that has ended; None if that is not known."""
        with suppress(subprocess.TimeoutExpired):
            self.processes[rank].wait(5)
        return self.processes[rank].poll()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def start_rank(
    address: str, rank: int, num_ranks: int, meeting: str, options: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start the process of a rank, which connects to an address."""
    place = ["--rank", str(rank), "--ranks", str(num_ranks), "--meeting", meeting]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "profiler_job.jobs.worker", address, *options, *place], stdin=subprocess.DEVNULL
    )


def accept_rank(listener: Listener, process: subprocess.Popen[bytes], rank: int) -> Connection:
    """Accept the connection of a process that has just started. Raises RankDiedError if it ends before."""
    underlying = listener._listener._socket  # type: ignore[attr-defined]
    underlying.settimeout(0.2)
    while True:
        with suppress(TimeoutError):
            return listener.accept()
        if (code := process.poll()) is not None:
            raise RankDiedError(rank, code)


def join_answers(answers: Sequence[Answer]) -> Answer:
    """Return what the ranks measured as one answer: each row of its tables has its rank, seconds are of the slowest
    rank, and the rest is of the first."""
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
    job.send(ranks.receive(job)[0] | {"pid": os.getpid()})
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
            answer = join_answers(ranks.receive(job))
            if answer["event"] in ("oom", "failed"):
                report_failure(job, answer)
                return
            job.send(answer)
            if answer["event"] == "released":
                break
            if answer["event"] in ("ready", "timed"):
                ranks.send(job.recv())
    ranks.send(None)


def report_failure(job: Connection, answer: Answer) -> None:
    """Tell the job that a rank failed. The others wait for that rank in a collective: all end with this process."""
    job.send(answer | {"message": f"rank {answer['rank']}: {answer['message']}"})
    if answer["event"] == "oom":
        job.send({"event": "released"})


def redirect(log: str) -> None:
    """Write what this process prints to the file of its ranks' output."""
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
    ended: RankDiedError | None = None
    ranks: Ranks | None = None
    with Client(arguments.address) as job:
        try:
            ranks = Ranks(home, arguments.ranks, options)
            serve(job, ranks)
        except RankDiedError as died:
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
