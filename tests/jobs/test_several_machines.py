"""A run whose ranks are on two machines, for which two processes of this one stand, over gloo: it is one run, and what
happens to one of the machines ends it on both."""

import errno
import json
import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.jobs.cli import run_command, sweep_options
from profiler_job.jobs.contract.layout import LOG, PROTOCOL_VERSION, Protocol, RunRecord, TimedProcess
from profiler_job.jobs.contract.messages import KEY, Channel, send_greeting
from profiler_job.jobs.contract.ports import find_free_ports
from profiler_job.jobs.executor import collectors, gpu_sampler, together, worker_process
from profiler_job.jobs.executor.collectors import Timer
from profiler_job.jobs.executor.failures import CollectorError, RunFailed
from profiler_job.jobs.executor.nodes import Node, first_host, this_node
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.sweep_runner import SweepRunner
from profiler_job.jobs.executor.temporary import HELD, PREFIX
from profiler_job.jobs.executor.together import ANSWER_S, Line, Others, own_facts, work_for_first
from profiler_job.jobs.executor.worker_process import Part, processes_with
from profiler_job.jobs.sweep.shards import Shard
from profiler_job.jobs.worker import rank_group as worker_ranks
from tests.jobs.conftest import FAKE_NSYS, ROOT, command
from tests.jobs.test_several_gpus import run_of_two
from tests.waiting import HANGS_S, eventually

SWEEP = """name: several
custom_sizes: {tiny: {d_model: 16, d_ff: 32, num_layers: 2, num_heads: 2}}
size: [tiny]
context_length: [8]
mode: [train_step]
gpus: [1, 2]
parallel: [none, ddp]
processes: 1
warmup_steps: 2
measured_steps: 2
profiled_steps: 3
"""
UNPROFILED = SWEEP.replace("profiled_steps: 3", "profiled_steps: 0")
OF_NODE = "FAKE_NSYS_RANK"
JOB = {"SLURM_NNODES": "4", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "n[1-4]"}
"""Of Slurm, whose steps may each have a part of its machines."""


@pytest.mark.parametrize(
    "environment, node",
    [
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "7"}, Node(1, 2, "a", 7)),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "0", "MASTER_ADDR": "a"}, Node(0, 2, "a", 29400)),
        ({"SLURM_NNODES": "3", "SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "n[04-06]"}, Node(2, 3, "n04", 29400)),
        (
            {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"},
            Node(1, 2, "10.0.0.1", 29400),
        ),
        ({"SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n1"}, None),
        (JOB | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[3-4]"}, Node(1, 2, "n3", 29400)),
        (JOB | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n4"}, None),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "a"}, None),
        ({"NNODES": "1:4", "NODE_RANK": "0", "MASTER_ADDR": "a"}, None),
        ({"NNODES": "2", "NODE_RANK": "0"}, None),
        ({}, None),
    ],
)
def test_the_environment_of_torchrun_slurm_or_skypilot_tells_which_machine_this_is(environment, node):
    assert this_node(environment) == node


@pytest.mark.parametrize(
    "hosts, first",
    [("gpu[001-004,7]", "gpu001"), ("a-1,a-2", "a-1"), ("n[3,5]-ib,x", "n3-ib"), ("one", "one"), ("", "")],
)
def test_the_first_host_of_slurms_list(hosts, first):
    assert first_host(hosts) == first


def start_node(tmp_path: Path, number: int, port: int, sweep: str, *options: str) -> subprocess.Popen:
    """`run` on one of two machines, each with an nsys that says its rank."""
    home = tmp_path / f"machine-{number}"
    home.mkdir()
    (home / "sweep.yaml").write_text(sweep)
    nsys = home / "nsys"
    nsys.write_text(
        f"""#!/bin/sh
[ "$1" != stop ] || touch '{home / "ending"}'
while [ "$1" = stop ] && [ -e '{tmp_path / "hold"}' ]; do sleep 0.05; done
{OF_NODE}="{number} of 2" exec "{sys.executable}" -S "{FAKE_NSYS / "nsys"}" "$@"
"""
    )
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    place = {"NNODES": "2", "NODE_RANK": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    path = os.pathsep.join((str(home), os.environ["PATH"]))
    return subprocess.Popen(
        command("run", "--sweep", home / "sweep.yaml", "--results", home / "results", "--device", "cpu", *options),
        cwd=ROOT,
        env=os.environ | place | {"PATH": path, "TMPDIR": str(home), "PROFILER_COMMIT": "this"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def machines(tmp_path):
    """Starts both; what still runs in the end is killed."""
    started: list[subprocess.Popen] = []

    def start(*options: str, sweep: str = SWEEP, of_second: str = "") -> list[subprocess.Popen]:
        (port,) = find_free_ports(1)
        for number, file in ((1, of_second or sweep), (0, sweep)):
            started.append(start_node(tmp_path, number, port, file, *options))
        return started[::-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.long
def test_a_sweep_on_two_machines_is_one_recording_with_the_ranks_of_both(machines, tmp_path):
    first, second = machines()
    said = [process.communicate(timeout=HANGS_S)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert not (tmp_path / "machine-1" / "results").exists(), "the first one has all"
    ingest(tmp_path / "machine-0" / "results" / "several", tmp_path / "recording")
    rec = store.load(tmp_path / "recording")
    assert rec.runs["status"].astype(str).tolist() == ["ok"] * 2
    for run_id, gpus in zip(rec.runs["run_id"].astype(str), rec.runs["gpus"]):
        for table in (rec.steps, rec.kernels, rec.ranges):
            assert sorted(table.loc[table["run_id"].astype(str) == run_id, "rank"].unique()) == list(range(gpus))
    kernels = rec.kernels
    assert (kernels["node"] == kernels["rank"]).all()
    sums = rec.nsys_sums.groupby("run_id", observed=True)["calls"].sum().tolist()
    assert sums[1] == 2 * sums[0] > 0


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_a_machine_that_is_lost_ends_the_sweep_on_the_other_and_leaves_no_process(machines, tmp_path, killed):
    both = machines("--only", "gpus=2", sweep=UNPROFILED.replace("ddp]", "ddp, fsdp]"))
    results = tmp_path / "machine-0" / "results" / "several"
    eventually(lambda: any(log.stat().st_size for log in results.glob("*/log.txt")))
    both[killed].kill()
    said, _ = both[1 - killed].communicate(timeout=HANGS_S)
    assert both[1 - killed].returncode == 69 and "is gone" in said, said
    for number in (0, 1):
        homes = list((tmp_path / f"machine-{number}").glob("profiler-*"))
        eventually(lambda homes=homes: not [pid for home in homes for pid in processes_with("TMPDIR", str(home))])


@pytest.mark.long
def test_a_capture_that_is_ending_is_kept_when_all_machines_are_told_to_end(machines, tmp_path):
    (tmp_path / "hold").touch()
    both = machines("--only", "gpus=2")
    eventually(lambda: all((tmp_path / f"machine-{number}" / "ending").exists() for number in range(2)))
    for process in both[::-1]:  # the one whose capture the first needs is told before
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
    (tmp_path / "hold").unlink()
    said = [process.communicate(timeout=HANGS_S)[0] for process in both]
    assert [process.returncode for process in both] == [143, 143], said
    (record,) = (tmp_path / "machine-0" / "results" / "several").glob("*/run.json")
    assert json.loads(record.read_text())["status"] == "ok"
    assert (record.parent / "profile-1.sqlite").exists()


@pytest.mark.long
def test_a_stop_of_the_first_machine_waits_for_no_program_that_is_stopped(machines, tmp_path):
    first, second = machines("--only", "gpus=2", sweep=UNPROFILED)
    results = tmp_path / "machine-0" / "results" / "several"
    eventually(lambda: any(log.stat().st_size for log in results.glob("*/log.txt")))
    second.send_signal(signal.SIGSTOP)
    eventually(lambda: list(results.glob("*/run.json")))  # and then it is to stop its ranks
    began = time.monotonic()
    first.terminate()
    said, _ = first.communicate(timeout=HANGS_S)
    assert first.returncode == 143 and time.monotonic() - began < ANSWER_S, said
    second.send_signal(signal.SIGCONT)
    said, _ = second.communicate(timeout=HANGS_S)
    assert second.returncode == 69, said
    homes = list((tmp_path / "machine-1").glob("profiler-*"))
    eventually(lambda: not [pid for home in homes for pid in processes_with("TMPDIR", str(home))])


@pytest.mark.long
def test_machines_with_other_sweeps_do_not_measure_together(machines):
    first, second = machines(of_second=UNPROFILED)
    said, _ = second.communicate(timeout=HANGS_S)
    assert second.returncode == 69 and "machine 2 came with another sweep" in " ".join(said.split()), said
    assert first.poll() is None, "its own machines may still come"
    first.terminate()
    first.communicate(timeout=HANGS_S)
    assert first.returncode == 143


@contextmanager
def timer_of_two():
    """A timer whose second rank is on the other machine: a thread stands for that one's program."""
    place = ("127.0.0.1", *find_free_ports(1))
    others = Others(Node(0, 2, *place))
    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            work_for_first(Node(1, 2, *place), "a sweep", "cpu", [0], with_nsys=False)
            ended.append(None)
        except CollectorError as error:
            ended.append(error)

    program = threading.Thread(target=work)
    program.start()
    timer = Timer("cpu", (), 2)
    try:
        others.wait("a sweep", own_facts(with_nsys=False))
        timer.twin = others.twin(timer, 2)
        yield timer
    finally:
        timer.stop()
        others.end()
        program.join(HANGS_S)
    assert ended == [None]


def pids_of(timer: Timer, rank: int) -> list[int]:
    assert timer.part is not None
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_with(KEY, timer.part.key)}
    return [pid for pid, line in lines.items() if f"--rank\0{rank}\0".encode() in line]


@pytest.mark.long
@pytest.mark.parametrize(
    "rank, sent, status, timeout_s",
    [
        (1, signal.SIGKILL, "machine", 120),
        (0, signal.SIGKILL, "machine", 120),
        (1, signal.SIGSTOP, "timeout", 15),
    ],
)
def test_a_rank_that_is_killed_or_stalls_ends_the_run_on_both_machines(tmp_path, rank, sent, status, timeout_s):
    options = {"warmup_steps": 2, "steps": 2, "folder": tmp_path}
    with timer_of_two() as timer:
        timer.measure(run_of_two(), timeout_s=120, **options)
        key = timer.part.key
        with pytest.raises(RunFailed) as failed:
            timer.measure(
                run_of_two(),
                timeout_s=timeout_s,
                between=lambda event: event == "ready" and os.kill(pids_of(timer, rank)[0], sent),
                **options,
            )
        assert failed.value.status == status
        log = (tmp_path / LOG).read_text()
        assert "\nmachine 2 of 2: timer: {" in log, f"what rank 1 printed: {log}"
        eventually(lambda: processes_with(KEY, key) == [])
        measured = timer.measure(run_of_two(), timeout_s=120, **options)
        assert {row["rank"] for row in measured["steps"]} == {0, 1}, "the sweep goes on"
        key = timer.part.key
    assert processes_with(KEY, key) == []


@pytest.mark.long
def test_a_rank_that_fails_on_the_other_machine_says_so(tmp_path):
    with timer_of_two() as timer, pytest.raises(RunFailed, match=r"rank [01]: "):
        run = run_of_two(num_heads=3)  # d_model is no multiple of it
        timer.measure(run, warmup_steps=2, steps=2, folder=tmp_path, timeout_s=120)
    shutil.rmtree(tmp_path)


def test_a_start_that_fails_says_what_was_printed_on_the_other_machine(monkeypatch):
    def refuse(*_):
        raise CollectorError("rank 1 did not connect")

    monkeypatch.setattr(collectors, "WorkerProcess", refuse)
    timer = Timer("cpu", (), 2)
    printed = {"machine 2 of 2": ["Traceback", "OSError: no route to host"]}
    timer.twin = SimpleNamespace(start=nullcontext, does=lambda *_: nullcontext(), printed=printed)
    with pytest.raises(CollectorError, match="rank 1 did not connect; machine 2 of 2: OSError: no route to host"):
        timer.start()


@pytest.fixture
def first():
    """What the first of two machines knows of the other, and where it listens."""
    place = ("127.0.0.1", *find_free_ports(1))
    others = Others(Node(0, 2, *place))
    yield others, place
    others.end()


def greet(place, **said) -> Line:
    """Say what a machine says first; leaves out what is None."""
    known = {"node": 1, "sweep": "a sweep", "facts": own_facts(with_nsys=False), "hashed_names": []} | said
    line = Line(connect(place))
    line.send({name: value for name, value in known.items() if value is not None})
    return line


def connect(place) -> socket.socket:
    deadline = time.monotonic() + HANGS_S
    while True:
        try:
            return socket.create_connection(place)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


NONSENSE = (b"[" * 100_000, b'{"files": {"a": 1e999}}', b'{"files": {"a": 0}}')


def test_who_says_nothing_or_nonsense_keeps_no_machine_out(first, monkeypatch):
    monkeypatch.setattr(together, "GREET_S", 0.2)
    others, place = first
    lines = []

    nonsense = (
        *NONSENSE,
        b'{"node": 1e999, "sweep": "a sweep", "facts": {}, "hashed_names": [], "files": {}}',
        b'{"node": 1, "sweep": "a sweep", "facts": {}, "hashed_names": [], "files": {"a": 0}}',
    )

    def come() -> None:
        lines.append(Line(connect(place)))
        for text in nonsense:
            lines.append(Line(connect(place)))
            lines[-1].file.write(text + b"\n")
            lines[-1].file.flush()
        lines.append(greet(place, facts=None))
        lines.append(greet(place))

    coming = threading.Thread(target=come)
    coming.start()
    others.wait("a sweep", own_facts(with_nsys=False))
    coming.join(HANGS_S)
    assert [line.is_closed() for line in lines] == [True] * (len(nonsense) + 2) + [False]
    assert set(others.lines) == {1}
    for line in lines:
        line.close()


MOST_DRIPS = 600


def drip(connected: socket.socket) -> int:
    """Send a byte at a time, none of them late, as long as they are accepted. Returns how many were."""
    with connected:
        for number in range(MOST_DRIPS):
            try:
                connected.sendall(b" ")
            except OSError:
                return number
            time.sleep(0.05)
    return MOST_DRIPS


def test_who_says_a_byte_at_a_time_keeps_no_machine_out(first, monkeypatch):
    monkeypatch.setattr(together, "GREET_S", 0.5)
    others, place = first

    def come() -> tuple[Future[int], Line]:
        return pool.submit(drip, connect(place)), greet(place)

    with ThreadPoolExecutor(2) as pool:
        coming = pool.submit(come)
        others.wait("a sweep", own_facts(with_nsys=False))
        dripping, line = coming.result(HANGS_S)
        assert dripping.result(HANGS_S) < MOST_DRIPS
    line.close()


def test_who_says_a_byte_at_a_time_keeps_no_rank_out(monkeypatch):
    monkeypatch.setattr(worker_ranks, "GREET_S", 0.5)
    monkeypatch.setenv(KEY, "secret")
    place = ("127.0.0.1", *find_free_ports(1))

    def come() -> tuple[Future[int], socket.socket]:
        dripping, connected = pool.submit(drip, connect(place)), connect(place)
        send_greeting(connected, {"key": "secret", "rank": 1})
        return dripping, connected

    with ThreadPoolExecutor(2) as pool:
        coming = pool.submit(come)
        with worker_ranks.listen(place[1]) as listener:
            (rank,) = worker_ranks.accept_others(listener, range(1, 2))
        dripping, connected = coming.result(HANGS_S)
        assert dripping.result(HANGS_S) < MOST_DRIPS
    rank.close()
    connected.close()


def test_who_has_another_sweep_is_answered_and_keeps_no_machine_out(first):
    others, place = first

    def come() -> list[Line]:
        return [greet(place, sweep="another", node=7), greet(place, sweep=None), greet(place)]

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come)
        others.wait("a sweep", own_facts(with_nsys=False))
        lines = coming.result(HANGS_S)
    said = [line.receive()["wrong"] for line in lines]
    assert ["another sweep" in wrong for wrong in said] == [True, True, False] and said[2] == ""
    for line in lines:
        line.close()


def test_who_came_with_another_sweep_is_named_when_a_machine_does_not_come(first, monkeypatch):
    others, place = first
    clock = SimpleNamespace(monotonic=lambda: 1000 * bool(others.stranger))
    monkeypatch.setattr(together, "time", clock)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(greet, place, sweep="another")
        with pytest.raises(CollectorError, match="1 of 2 machines came in 300 s; machine 2 came with another sweep"):
            others.wait("a sweep", own_facts(with_nsys=False))
        coming.result(HANGS_S).close()


def test_who_is_gone_before_the_answer_ends_nothing(first, second, monkeypatch):
    others, _ = first
    line = others.lines.pop(1)
    second.send({"node": 1, "sweep": "another", "facts": {}, "hashed_names": []})

    def refuse(*_):
        raise BrokenPipeError

    monkeypatch.setattr(line, "send", refuse)
    others._greet(line, "a sweep", {})
    assert not others.lines and "another sweep" in others.stranger


def test_a_machine_may_come_again_when_it_has_gone(first):
    others, place = first
    others.node = others.node._replace(size=3)

    def come() -> list[Line]:
        gone = greet(place)
        gone.receive()
        gone.close()
        return [greet(place), greet(place, node=2)]

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come)
        others.wait("a sweep", own_facts(with_nsys=False))
        lines = coming.result(HANGS_S)
    assert set(others.lines) == {1, 2} and not any(line.is_closed() for line in others.lines.values())
    for line in lines:
        line.close()


def test_a_machine_that_is_there_may_not_come_again(first):
    others, place = first
    others.node = others.node._replace(size=3)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(lambda: [greet(place), greet(place)])
        with pytest.raises(CollectorError, match="machine 2 of 3 is there already"):
            others.wait("a sweep", own_facts(with_nsys=False))
        lines = coming.result(HANGS_S)
    for line in lines:
        line.close()


@pytest.fixture
def draws(monkeypatch):
    """The ports that are drawn next, two at a time, and what has been drawn."""
    coming, drawn = [], []

    def draw(number: int) -> list[int]:
        drawn.append(coming.pop(0))
        return drawn[-1]

    monkeypatch.setattr(together, "find_free_ports", draw)
    return SimpleNamespace(coming=coming, drawn=drawn)


def test_ports_are_drawn_when_it_is_the_turn_of_a_start(first, draws):
    """Those of a start that goes on may not be in use yet."""
    others, _ = first
    draws.coming += [[1, 2], [3, 4]]
    earlier, later = (others.twin(Timer("cpu", (), 2), 2) for _ in range(2))

    def start() -> Part:
        with later.start() as part:
            return part

    with ThreadPoolExecutor(1) as pool:
        with earlier.start() as part:
            coming = pool.submit(start)
            time.sleep(0.3)
            assert draws.drawn == [[1, 2]] and part.meeting == "127.0.0.1:1"
        assert coming.result(HANGS_S).meeting == "127.0.0.1:3"


def test_no_two_collectors_have_the_same_port(first, draws):
    """Ranks that measure nothing yet have not met: their port looks free. Ports of an earlier start are."""
    others, _ = first
    draws.coming += [[1, 2], [3, 1], [3, 4], [1, 2]]
    addresses = []
    twins = [others.twin(Timer("cpu", (), 2), 2) for _ in range(2)]
    for twin in (*twins, twins[0]):
        with twin.start() as part:
            addresses.append((part.meeting[-1], part.address[-1]))
    assert addresses == [("1", "2"), ("3", "4"), ("1", "2")]


def test_what_killed_jobs_left_is_removed_on_the_other_machines_too(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(together, "JOIN_S", 0)
    left = tmp_path / f"{PREFIX}node-1"
    left.mkdir()
    (left / HELD).touch()
    with pytest.raises(CollectorError, match="out of reach"):
        work_for_first(Node(1, 2, "127.0.0.1", *find_free_ports(1)), "a sweep", "cpu", [0], with_nsys=False)
    assert not left.exists()


@pytest.mark.parametrize("kind", [Line, Channel])
def test_a_connection_whose_machine_is_lost_fails(kind):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    ends = [here.dup(), there.dup()]
    lines = [kind(here), kind(there)]
    for end in ends:
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
        assert [end.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [10, 10, 60_000]
        end.close()
    for line in lines:
        line.close()


@pytest.mark.parametrize("shard", ["1/2", "2/2"])
def test_a_machine_measures_for_the_first_whatever_is_in_a_shard(tmp_path, monkeypatch, shard):
    asked = []
    monkeypatch.setattr(run_command, "measure_for_first", lambda *about: asked.append(about))
    for name, value in {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    run_command.run(sweep=tmp_path / "sweep.yaml", results=tmp_path, shard=shard, device="cpu")
    assert len(asked) == 1 and len(asked[0][2]) == 1


@pytest.mark.parametrize(
    ("engine", "shard"),
    [
        ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "1"}, Shard(2, 2)),
        ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}, Shard(1, 1)),
    ],
)
def test_machines_that_measure_together_have_the_shard_of_their_task(tmp_path, monkeypatch, engine, shard):
    for name, value in {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", **engine}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    assert sweep_options.chosen(tmp_path / "sweep.yaml", "", "", 1)[2] == shard


@pytest.fixture
def second(first):
    """The other machine's end of its connection to the first."""
    others, _ = first
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Line(socket.create_connection(listener.getsockname()))
        others.lines[1] = Line(listener.accept()[0])
    yield line
    line.close()


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_and_files_that_none_asked_for_are_refused(first, second, text):
    others, _ = first
    second.file.write(text + b"\n")
    second.file.flush()
    with pytest.raises(ConnectionError, match="it speaks otherwise"):
        others.lines[1].receive()


@pytest.mark.parametrize(("error", "raised"), [(errno.ENOSPC, OSError), (errno.EIO, CollectorError)])
def test_a_disk_that_is_full_is_no_machine_that_is_gone(first, second, tmp_path, monkeypatch, error, raised):
    """It ends the sweep as a full disk does while one machine measures."""
    others, _ = first
    capture = tmp_path / "profile.sqlite"
    capture.write_bytes(b"some")
    second.send({}, [capture])

    def refuse(*_):
        raise OSError(error, os.strerror(error), "profile-1.sqlite")

    monkeypatch.setattr(together, "open", refuse, raising=False)
    with pytest.raises(raised) as refused, others.twin(Timer("cpu", (), 2), 2).does("end_capture", tmp_path):
        pass
    assert getattr(refused.value, "errno", None) == (error if raised is OSError else None)


def test_files_that_a_machine_cannot_write_are_told_as_its_own(first, monkeypatch):
    others, place = first

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(together, "_perform", refuse)
    program = threading.Thread(target=work_for_first, args=(Node(1, 2, *place), "a sweep", "cpu", [0], False))
    program.start()
    others.wait("a sweep", own_facts(with_nsys=False))
    with (
        pytest.raises(CollectorError, match=r"machine 2 of 2: .*No space left"),
        others.twin(Timer("cpu", (), 2), 2).does("end_capture"),
    ):
        pass
    others.end()
    program.join(HANGS_S)


def test_a_rank_that_does_not_connect_is_named(monkeypatch):
    monkeypatch.setattr(worker_ranks, "CONNECT_S", 0.1)
    (port,) = find_free_ports(1)
    said = f"rank 2 did not connect to port {port} of the first machine"
    with worker_ranks.listen(port) as listener, pytest.raises(worker_ranks.NotTogether, match=said):
        worker_ranks.accept_others(listener, range(2, 4))


def test_a_rank_that_ends_before_it_connects_is_told_by_its_machine(monkeypatch):
    """Also where the first machine begins to listen later."""
    monkeypatch.setenv(KEY, "secret")
    monkeypatch.setattr(worker_ranks, "DEATH_S", 0)
    monkeypatch.setattr(worker_ranks, "start", lambda *about, **_: start_that_ends(3 if about[1] == 2 else None))
    (port,) = find_free_ports(1)
    part = SimpleNamespace(first=1, here=2, address_of_first=f"127.0.0.1:{port}", meeting="")
    job, other_end = Pipe()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(worker_ranks.start_for_first, job, 3, (), part)
        assert other_end.recv()["event"] == "hello"
        with worker_ranks.listen(port) as listener, pytest.raises(worker_ranks.RankDied, match=r"rank 2 died \(exit 3"):
            worker_ranks.accept_others(listener, range(1, 3))
        starting.result(HANGS_S)


def start_that_ends(code: int | None) -> subprocess.Popen:
    """A process that ends with this code, or never."""
    what = "import time; time.sleep(1000)" if code is None else f"raise SystemExit({code})"
    return subprocess.Popen([sys.executable, "-S", "-c", what])


def test_ranks_whose_program_is_gone_are_told_as_ended(monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    monkeypatch.setattr(worker_ranks, "start", lambda *_, **__: start_that_ends(None))
    job, other_end = Pipe()
    with worker_ranks.listen(0) as listener, ThreadPoolExecutor(1) as pool:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        part = SimpleNamespace(first=1, here=1, address_of_first=place, meeting="")
        starting = pool.submit(worker_ranks.start_for_first, job, 2, (), part)
        assert other_end.recv()["event"] == "hello"
        other_end.close()
        with pytest.raises(worker_ranks.RankDied, match="rank 1 died"):
            worker_ranks.accept_others(listener, range(1, 2))
        starting.result(HANGS_S)


def test_only_who_knows_the_key_can_say_that_a_rank_has_ended(monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    with worker_ranks.listen(0) as listener:
        coming = [connect(listener.getsockname()[:2]) for _ in range(3)]
        for connected, said in zip(
            coming,
            (
                {"key": "guess", "rank": 1, "ended": 1},
                {"key": "secret", "rank": 7, "ended": 1},
                {"key": "secret", "rank": 1},
            ),
        ):
            send_greeting(connected, said)
        channels = worker_ranks.accept_others(listener, range(1, 2))
    assert len(channels) == 1
    for connected in [*coming, *channels]:
        connected.close()


def test_a_rank_of_the_first_machine_that_ends_is_noticed_while_others_are_waited_for(monkeypatch):
    ranks = worker_ranks.Ranks.__new__(worker_ranks.Ranks)
    ranks.processes = [start_that_ends(5)]
    with worker_ranks.listen(0) as listener, pytest.raises(worker_ranks.RankDied, match=r"rank 0 died \(exit 5"):
        worker_ranks.accept_others(listener, range(1, 2), ranks.look_at_processes)


@pytest.mark.long
def test_a_rank_that_is_killed_on_the_other_machine_as_it_starts_ends_the_start():
    with timer_of_two() as timer, ThreadPoolExecutor(1) as pool:
        starting = pool.submit(timer.start)
        eventually(lambda: timer.part and pids_of(timer, 1))
        key = timer.part.key
        os.kill(pids_of(timer, 1)[0], signal.SIGKILL)
        with pytest.raises(CollectorError, match=r"rank 1 died \(exit -9\)"):
            starting.result(HANGS_S)
        eventually(lambda: processes_with(KEY, key) == [])
        timer.start()


def test_a_rank_has_as_long_as_it_may_take_after_the_one_before_it(monkeypatch):
    """Two thirds of the time pass before each."""
    monkeypatch.setenv(KEY, "secret")
    passed, greeted = [], worker_ranks.greeted
    monkeypatch.setattr(worker_ranks, "greeted", lambda connected: passed.append(80) or greeted(connected))
    monkeypatch.setattr(worker_ranks, "time", SimpleNamespace(monotonic=lambda: sum(passed)))
    with worker_ranks.listen(0) as listener:
        coming = [connect(("127.0.0.1", listener.getsockname()[1])) for _ in range(3)]
        for rank, connected in enumerate(coming):
            send_greeting(connected, {"key": "secret", "rank": rank})
        channels = worker_ranks.accept_others(listener, range(3))
    assert sum(passed) > worker_ranks.CONNECT_S
    for connected in [*coming, *channels]:
        connected.close()


def test_ranks_of_other_machines_can_connect_before_those_of_the_first_have_started(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    place = ("127.0.0.1", *find_free_ports(1))
    coming = []

    def accepted(*_) -> None:
        coming.append(socket.create_connection(place))
        send_greeting(coming[-1], {"key": "secret", "rank": len(coming) + 1})

    monkeypatch.setattr(worker_ranks, "start", lambda *_, **__: SimpleNamespace(poll=lambda: None))
    monkeypatch.setattr(worker_ranks, "accepted", accepted)
    ranks = worker_ranks.Ranks(tmp_path, 4, (), 2, "", f"127.0.0.1:{place[1]}")
    assert len(ranks.sockets) == 4
    for connected in [*coming, *ranks.sockets[2:]]:
        connected.close()


@pytest.mark.long
def test_each_further_rank_may_take_its_time_to_start(monkeypatch):
    monkeypatch.setattr(worker_process, "START_TIMEOUT_S", 0)
    monkeypatch.setattr(worker_process, "RANK_START_S", HANGS_S)
    timer = Timer("cpu", (), 2)
    timer.start()
    timer.stop()


def test_a_port_that_another_program_has_is_named():
    with (
        socket.create_server(("", 0)) as listener,
        pytest.raises(worker_ranks.NotTogether, match=r"cannot connect to port .* in use"),
    ):
        worker_ranks.listen(listener.getsockname()[1])


class Planted:
    """Leaves a file where it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_only_ranks_that_know_the_key_are_taken_and_nothing_that_they_say_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    monkeypatch.setattr(worker_ranks, "GREET_S", 0.2)
    place = ("127.0.0.1", *find_free_ports(1))

    def knock(hello: bytes = b"", message: bytes = b"") -> Channel:
        connected = connect(place)
        if hello:
            connected.sendall(hello + b"\n")
        channel = Channel(connected)
        if message:
            channel.send_bytes(message)
        return channel

    def come() -> list[Channel]:
        wrong = [b"", b"[]", b"{", b"[" * 1000, b" " * 2000]
        wrong += [pickle.dumps(Planted(tmp_path / "hello")), b'{"key": "guess", "rank": 1}']
        wrong += [b'{"key": "secret", "rank": %b}' % rank for rank in (b"7", b"null", b"1e999")]
        return [
            *map(knock, wrong),
            knock(b'{"key": "secret", "rank": 2}', b'{"event": "hello", "of": 2}'),
            knock(b'{"key": "secret", "rank": 1}', pickle.dumps(Planted(tmp_path / "message"))),
        ]

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come)
        with worker_ranks.listen(place[1]) as listener:
            ranks = worker_ranks.accept_others(listener, range(1, 3))
        knocked = coming.result(HANGS_S)
    assert ranks[1].recv() == {"event": "hello", "of": 2}
    with pytest.raises(OSError, match="speaks otherwise"):
        ranks[0].recv()
    assert not [*tmp_path.iterdir()]
    for channel in [*ranks, *knocked]:
        channel.close()


def test_a_program_that_is_stopped_counts_as_gone(first, second, monkeypatch):
    monkeypatch.setattr(together, "ANSWER_S", 0.2)
    others, _ = first
    with (
        pytest.raises(CollectorError, match="machine 2 of 2: it is gone"),
        others.twin(Timer("cpu", (), 2), 2).does("stop"),
    ):
        pass


@pytest.mark.parametrize("sent", [b"", b'{"files": {"profile.sqlite": 1000}}\nsome'])
def test_a_stop_ends_the_wait_for_an_answer(first, second, sent, tmp_path):
    """Also where a part of it has come."""
    others, _ = first
    second.file.write(sent)
    second.file.flush()
    timer, began = Timer("cpu", (), 2), time.monotonic()
    with (
        pytest.raises(CollectorError, match="machine 2 of 2: it is gone"),
        others.twin(timer, 2).does("begin_capture", tmp_path),
    ):
        timer.stopping.set()
    assert time.monotonic() - began < ANSWER_S
    assert second.receive()["call"] == "begin_capture" and second.is_closed()


def test_after_a_stop_nothing_but_the_end_of_a_capture_begins_on_the_others(first, second):
    others, _ = first
    timer = Timer("cpu", (), 2)
    twins = others.twin(timer, 2)
    timer.stopping.set()
    for begin in (twins.start, lambda: twins.does("begin_capture"), lambda: twins.does("stop")):
        with pytest.raises(RunFailed, match="the sweep was stopped"), begin():
            pass
    second.send({})
    with twins.does("end_capture"):
        pass
    others.end()
    assert [second.receive()["call"] for _ in range(2)] == ["end_capture", "end"]


def test_a_capture_begins_when_another_one_has_ended_everywhere(first, second):
    """So says the guide: the other machines do a thing at a time."""
    others, _ = first
    ending, next_up = (others.twin(Timer("cpu", (), 2), 2) for _ in range(2))

    def begin() -> None:
        with next_up.does("begin_capture"):
            pass

    with ThreadPoolExecutor(1) as pool:
        with ending.does("end_capture"):
            coming = pool.submit(begin)
            assert second.receive()["call"] == "end_capture"
            with pytest.raises(TimeoutError):
                second.receive(left_s=together.count_down(0.3))
            second.send({})
        assert second.receive()["call"] == "begin_capture"
        second.send({})
        coming.result(HANGS_S)


def test_what_another_machine_does_ends_when_the_first_is_gone(first, monkeypatch):
    others, place = first
    working = threading.Event()

    def perform(*about) -> tuple:
        working.set()
        assert about[-1].wait(HANGS_S)
        return {}, ()

    monkeypatch.setattr(together, "_perform", perform)
    with ThreadPoolExecutor(1) as pool:
        program = pool.submit(work_for_first, Node(1, 2, *place), "a sweep", "cpu", [0], False)
        others.wait("a sweep", own_facts(with_nsys=False))
        others.lines[1].send({"call": "start", "collector": 0})
        working.wait(HANGS_S)
        others.lines[1].close()
        with pytest.raises(CollectorError, match="the first machine is gone"):
            program.result(HANGS_S)


def test_the_others_end_with_what_went_wrong_on_the_first(first):
    others, place = first
    failed = []

    def work() -> None:
        try:
            work_for_first(Node(1, 2, *place), "a sweep", "cpu", [0], with_nsys=False)
        except CollectorError as error:
            failed.append(str(error))

    program = threading.Thread(target=work)
    program.start()
    others.wait("a sweep", own_facts(with_nsys=False))
    others.end("the disk is full")
    program.join(HANGS_S)
    assert failed == ["the disk is full"]


@pytest.mark.parametrize("is_part", [True, False])
def test_energy_of_a_part_of_the_gpus_is_not_read(monkeypatch, is_part):
    monkeypatch.setattr(gpu_sampler, "open_visible_handles", lambda: ["a GPU"])
    monkeypatch.setattr(gpu_sampler.pynvml, "nvmlDeviceGetUUID", lambda handle: "GPU-1")
    monkeypatch.setattr(gpu_sampler.pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda handle: 7)
    sensor = gpu_sampler.GpuSensor((0,), "salt", is_part=is_part)
    assert sensor.read_energy() == (None if is_part else 7)
    assert (sensor.busy_s == 0) == is_part
    assert sensor.problems == ({"energy_mj": "other machines have GPUs of the run"} if is_part else {})


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_rank_that_died_is_told_before_one_that_failed_for_it(is_dead):
    """The collective of the one that is left fails at once."""
    ours, theirs = zip(*(Pipe() for _ in range(3)), strict=True)
    ranks = worker_ranks.Ranks.__new__(worker_ranks.Ranks)
    ranks.sockets, ranks.processes = list(ours), []
    theirs[0].send({"event": "failed", "message": "connection closed by peer"})
    theirs[1].send({"event": "failed", "message": "connection closed by peer"})
    if is_dead:
        theirs[2].close()
    job, _job = Pipe()
    if is_dead:
        with pytest.raises(worker_ranks.RankDied, match="rank 2 died"):
            ranks.receive(job)
    else:
        assert ranks.receive(job)[0]["event"] == "failed"


@pytest.mark.parametrize(("num_machines", "is_kept"), [(1, True), (2, False)])
def test_a_run_that_another_number_of_machines_had_begun_is_measured_anew(tmp_path, num_machines, is_kept):
    results, protocol, run = Results(tmp_path, "several"), Protocol(processes=2), run_of_two()
    about = {"protocol_version": PROTOCOL_VERSION, "run_id": run.run_id, "status": "timed", "run": run}
    begun = RunRecord(**about, **protocol.model_dump(), num_machines=num_machines, timed=[TimedProcess(position=0)])
    results.begin(run)
    results.keep_timings(run, {"steps": []}, 0)
    results.keep_timed(run, begun)
    runner = SweepRunner(results, protocol, lambda event, **_: None, device="cpu", gpus=(0, 1))
    assert runner._pending([run]) == [run]
    assert (run.run_id in runner.state.timed) == is_kept
