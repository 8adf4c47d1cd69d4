"""The committed Slurm script on real Slurm daemons of this one host: four shards of a sweep on the CPU, three of them
ended in the middle in three ways, queued again, merged, and compared with what one machine measures."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from profiler_job.analysis.recording import ingest, merge, store
from tests.ports import find_free_ports
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "jobs" / "engines" / "slurm.sbatch"
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel")
MISSING = [name for name in COMMANDS if not shutil.which(name)]
JOBS = f"{sys.executable} -m profiler_job"
NUM_SHARDS = 4
NUM_RUNS = 12
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}

SWEEP = """
name: tiny
size: [tiny]
context_length: [16, 24, 32, 40, 48, 56]
mode: [forward, train_step]
custom_sizes: {tiny: {d_model: 64, d_ff: 128, num_layers: 2, num_heads: 4}}
processes: 2
profiled_steps: 3
"""

SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
ReturnToService=2
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs={num} Gres=gpu:{num} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (apt install slurm-wlm munge)"),
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd starts jobs for their users, which only root may"),
]


@pytest.fixture(scope="module")
def slurm():
    """Run a Slurm command and return what it printed; munged, slurmctld and slurmd live as long as the module."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: the path of a socket has 107 characters at most
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    (folder / "state").mkdir()
    host = socket.gethostname().partition(".")[0]
    conf = SLURM_CONF.format(folder=folder, host=host, user="root", ports=find_free_ports(2), num=NUM_SHARDS)
    (folder / "slurm.conf").write_text(conf)
    for number in range(NUM_SHARDS):
        (folder / f"gpu{number}").touch()  # what Slurm counts as GPUs here
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{NUM_SHARDS - 1}]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment["SLURM_CONF"] = str(folder / "slurm.conf")
    files = {name: f"{folder}/munge.{name}" for name in ("socket", "pid", "log", "seed")}
    munge = ["--foreground", "--force", f"--key-file={key}", *(f"--{name}-file={file}" for name, file in files.items())]
    munge[munge.index(f"--socket-file={files['socket']}")] = f"--socket={files['socket']}"
    daemons = []

    def start(*command):
        log = open(folder / f"{command[0]}.out", "wb")  # noqa: SIM115  lives as long as the daemon
        daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    def run(*command, **more):
        done = subprocess.run(command, env=environment | more, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def logs():
        return "\n".join(f"{file.name}: {file.read_text()[-3000:]}" for file in folder.glob("*.out"))

    def idle():
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
        return done.stdout.strip() == "idle"

    def up(condition):
        """`condition`, for as long as all daemons live."""

        def holds():
            ended = [daemon.args[0] for daemon in daemons if daemon.poll() is not None]
            assert not ended, f"ended by themselves: {ended}\n{logs()}"
            return condition()

        return holds

    try:
        start("munged", *munge)
        eventually(up(Path(files["socket"]).exists), "the socket of munged", logs)
        start("slurmctld", "-D", "-i")
        start("slurmd", "-D", "-N", host)
        eventually(up(idle), "an idle node", logs)
        yield run
        run("scancel", "--full", "--user=root")
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)


def task(slurm, name):
    """The fields of `scontrol show job`."""
    return dict(field.split("=", 1) for field in slurm("scontrol", "show", "job", name).split() if "=" in field)


def is_in_the_middle(shard):
    """Return whether a shard has finished a pass of a run, and is measuring another."""
    finished = [*shard.glob("*/timed.json"), *shard.glob("*/run.json")]
    return bool(finished) and any(shard.glob("*/in_flight.json"))


def measured(results):
    """Return what two measurements of a sweep have in common: all but times and the place of an interruption."""
    records = {}
    for run_id in json.loads((results / "sweep.json").read_text())["runs"]:
        record = json.loads((results / run_id / "run.json").read_text())
        timings = json.loads((results / run_id / "timings.json").read_text())
        changing = ("started_at", "ended_at", "wall_s", "seconds", "files", "digest", "hashed_names")
        records[run_id] = {name: value for name, value in record.items() if name not in changing}
        records[run_id]["timed"] = [(one["step"], one["phase"]) for one in timings["steps"]]
    return records


def test_a_sweep_over_four_tasks_with_three_interruptions_equals_one_machine(slurm, tmp_path):
    sweep, results = tmp_path / "tiny.yaml", tmp_path / "results"
    sweep.write_text(SWEEP)
    sharded = results / "tiny"
    arguments = ["--device", "cpu", "--sweep", str(sweep), "--results", str(results)]
    one_core = tmp_path / "profiler"  # a core a task: eight workers with a thread for each core are in each other's way
    one_core.write_text(f'#!/bin/sh\nexec taskset -c $((${{SLURM_ARRAY_TASK_ID:-0}} % $(nproc))) {JOBS} "$@"\n')
    one_core.chmod(0o755)
    fake_nsys = f"{ROOT / 'tests' / 'fake_nsys'}{os.pathsep}{os.environ['PATH']}"
    tools = {"PATH": fake_nsys, "PROFILER": str(one_core), "PROFILER_COMMIT": "this"}
    job = slurm("sbatch", "--parsable", f"--output={tmp_path}/%a.log", str(SCRIPT), *arguments, **tools)

    def logs():
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(tmp_path.glob("*.log")))

    def shard(index):
        return sharded / f"shard-{index}-of-{NUM_SHARDS}"

    for index in (2, 3, 4):
        eventually(lambda: is_in_the_middle(shard(index)), f"shard {index} in the middle", logs)  # noqa: B023
        done_before = {file: file.read_bytes() for file in shard(index).glob("*/run.json")}
        if index == 2:  # preempted, or its node is drained: SIGTERM to every process of the task
            slurm("scontrol", "requeue", f"{job}_{index}")
        elif index == 3:  # its node is lost: everything dies at once
            slurm("scancel", "--full", "--signal=KILL", f"{job}_{index}")
            ended = lambda: task(slurm, f"{job}_{index}")["JobState"] in ENDED  # noqa: B023, E731
            eventually(ended, f"the end of task {index}", logs)
            slurm("scontrol", "requeue", f"{job}_{index}")
        else:  # its time is nearly up: the script gets a signal, stops and queues itself again
            slurm("scancel", "--batch", "--signal=USR1", f"{job}_{index}")
        assert len(done_before) < NUM_RUNS / NUM_SHARDS
        for file, content in done_before.items():
            assert file.read_bytes() == content

    def states():
        return [task(slurm, f"{job}_{index}") for index in range(1, NUM_SHARDS + 1)]

    eventually(lambda: {one["JobState"] for one in states()} <= ENDED, "the end of all tasks", logs)
    assert [one["JobState"] for one in states()] == ["COMPLETED"] * NUM_SHARDS, logs()
    assert [one["Restarts"] for one in states()] == ["0", "1", "1", "1"]

    for index in range(1, NUM_SHARDS + 1):  # the whole job: checks first, and a recording of the shard
        assert "nsys: NVIDIA Nsight Systems" in (tmp_path / f"{index}.log").read_text()
        assert (results / "recordings" / f"tiny-shard-{index}-of-{NUM_SHARDS}" / "manifest.json").is_file()

    said = []
    merged = merge.merge([results], tmp_path / "merged" / "tiny", said.append)
    assert (len(merged.runs), merged.missing, merged.copies, said) == (NUM_RUNS, {}, {}, [])

    one_machine = [str(one_core), "run", *arguments[:-1], str(tmp_path / "alone")]
    subprocess.run(one_machine, cwd=ROOT, env=os.environ | tools, check=True, capture_output=True)
    alone = tmp_path / "alone" / "tiny"
    assert (tmp_path / "merged" / "tiny" / "sweep.json").read_text() == (alone / "sweep.json").read_text()
    assert measured(tmp_path / "merged" / "tiny") == measured(alone)

    recordings = []
    for name, folder in (("merged", tmp_path / "merged" / "tiny"), ("alone", alone)):
        ingest.ingest(folder, tmp_path / "recordings" / name)
        recordings.append(store.load(tmp_path / "recordings" / name))
    first, second = recordings
    assert first.manifest["runs"] == second.manifest["runs"]
    assert {one["status"] for one in first.manifest["runs"]} == {"ok"}
    for name in ("ranges", "kernels", "api", "memops"):
        assert getattr(first, name).equals(getattr(second, name)), name
    restarts = ", ".join(f"{one['ArrayTaskId']}: {one['JobState']} after {one['Restarts']}" for one in states())
    print(f"tasks (restarts): {restarts}; merged {len(merged.runs)} of {NUM_RUNS} runs, 0 missing, 0 doubled")
