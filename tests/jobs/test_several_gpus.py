"""Runs of several GPUs, with two processes on the CPU: the plan of a sweep, what the ranks measure together, and the
end of a run when one rank does not end."""

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe

import pytest
import torch
import typer
from torch import distributed

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.jobs.cli import measure_sweep
from profiler_job.jobs.cli.run_command import run as run_sweep
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.messages import LINK_MESSAGE, LINK_RATE, SILENT
from profiler_job.jobs.executor import worker_process
from profiler_job.jobs.executor.collectors import Timer
from profiler_job.jobs.executor.failures import RunFailedError
from profiler_job.jobs.executor.worker_process import processes_with
from profiler_job.jobs.sweep.plan import Sweep, SweepError, load_sweep
from profiler_job.jobs.worker import parallel, probes, rank_group
from profiler_job.jobs.worker.parallel import find_layers
from profiler_job.jobs.worker.rank_group import RankDiedError, Ranks, join_answers
from profiler_job.jobs.workloads.transformer.build import build
from tests.jobs.conftest import jobs
from tests.waiting import HANGS_S

AXES = {"name": "several", "size": ["small"], "context_length": [128], "mode": ["train_step"]}
TINY = """name: several
custom_sizes: {tiny: {d_model: 16, d_ff: 32, num_layers: 2, num_heads: 2}}
size: [tiny]
context_length: [8]
mode: [train_step]
gpus: [1, 2]
parallel: [none, ddp, fsdp]
processes: 1
warmup_steps: 2
measured_steps: 2
profiled_steps: 0
"""


def sweep_of(**changes) -> Sweep:
    return Sweep.model_validate(AXES | changes)


def test_one_gpu_goes_alone_and_several_share_the_work_each_way():
    runs = sweep_of(gpus=[1, 2, 4], parallel=["none", "ddp", "fsdp"]).runs
    ways = {(n, way) for n in (2, 4) for way in ("ddp", "fsdp")}
    assert {(run.gpus, run.parallel) for run in runs} == {(1, "none"), *ways} and len(runs) == 5
    assert all(run.run_id.endswith(f"-{run.gpus}gpus-{run.parallel}") == (run.gpus > 1) for run in runs)


def test_each_way_to_share_the_work_has_its_own_exchanges():
    ways = {"gpus": [1, 2], "parallel": ["none", "ddp", "fsdp", "tp"], "precision": ["bf16"]}
    runs = sweep_of(exchange=["default", "buckets", "prefetch", "keep", "half"], **ways).runs
    found = {way: [run.exchange for run in runs if run.parallel == way] for way in ways["parallel"]}
    assert found == {
        "none": ["default"],
        "ddp": ["default", "buckets", "half"],
        "fsdp": ["default", "prefetch", "keep", "half"],
        "tp": ["default"],
    }


@pytest.mark.parametrize("scaling, batches", [("weak", {1: 8, 2: 8, 4: 8}), ("strong", {1: 8, 2: 4, 4: 2})])
def test_the_batch_is_that_of_each_gpu_or_divided_among_them(scaling, batches):
    runs = sweep_of(gpus=[1, 2, 4], parallel=["none", "ddp"], batch_size=8, scaling=scaling).runs
    assert {run.gpus: run.batch_size for run in runs} == batches


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"gpus": [2]}, "gpus: 2 need parallel"),
        ({"parallel": ["ddp"]}, "parallel: ddp is for several GPUs"),
        ({"gpus": [1, 2], "parallel": ["ddp"]}, "gpus: 1 needs none"),
        ({"gpus": [3], "parallel": ["ddp"], "scaling": "strong"}, "4 cannot be divided among 3 GPUs"),
        ({"gpus": [0], "parallel": ["none"]}, "greater than or equal to 1"),
        ({"gpus": [2], "parallel": ["ddp"], "exchange": ["keep"]}, "exchange: keep is not for parallel ddp"),
        (
            {"gpus": [2], "parallel": ["ddp"], "exchange": ["half"]},
            "exchange: half sends BF16, and is not for precision fp32",
        ),
        ({"gpus": [5], "parallel": ["tp"]}, "tp cannot divide the 12 heads and d_ff 3072 of small among 5 GPUs"),
        ({"gpus": [2], "parallel": ["tp"], "workload": "models:build", "size": ["mine"]}, "tp is for the reference"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, said):
    file = tmp_path / "sweep.yaml"
    file.write_text("\n".join(f"{key}: {value}" for key, value in (AXES | changes).items()).replace("'", ""))
    with pytest.raises(SweepError, match=said):
        load_sweep(file)


def test_of_several_gpus_no_memory_is_predicted(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(TINY)
    lines = jobs("plan", "--sweep", file, "--memory").stdout.splitlines()
    assert [line.split()[4] for line in lines[1:4]] == ["0.7", "n/a", "n/a"]
    alone = jobs("plan", "--sweep", file, "--only", "gpus=2").stdout.splitlines()
    assert "time is a prediction" in alone[-1], "which several GPUs have, too"


def test_what_ranks_measured_is_one_answer_whose_rows_say_their_rank():
    def measured(wall_ns: int, build: float) -> dict:
        rows = {"steps": [{"step": 0, "wall_ns": wall_ns}], "memory": [], "figures": [], "module_memory": []}
        return {"event": "measured", "settings": {"num_parameters": 5}, "seconds": {"build": build}} | rows

    answer = join_answers([measured(10, 1.0), measured(20, 3.0)])
    assert answer["steps"] == [{"rank": 0, "step": 0, "wall_ns": 10}, {"rank": 1, "step": 0, "wall_ns": 20}]
    assert (answer["seconds"], answer["settings"]) == ({"build": 3.0}, {"num_parameters": 5})


def test_fsdp_gathers_a_layer_at_a_time():
    run = {"d_model": 16, "d_ff": 32, "num_layers": 3, "num_heads": 2, "vocab_size": 64, "context_length": 8}
    model, *_ = build(run | {"batch_size": 1, "attention": "naive"}, torch.device("cpu"))
    layers = list(find_layers(model))
    assert len(layers) == 3 and len({type(layer) for layer in layers}) == 1


CPU = torch.device("cpu")


@pytest.fixture
def alone(tmp_path):
    """A rank without others."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def limit_ones(num_bytes: int):
    """Return `torch.ones` with an allocator that is limited to so many bytes."""
    ones = torch.ones

    def allocate(size: int, **options) -> torch.Tensor:
        if 4 * size > num_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return ones(size, **options)

    return allocate


@pytest.mark.parametrize("part, measured", [(1, 1), (2, 2), (4, 4), (8, None)])
def test_the_link_is_measured_with_what_memory_there_is_and_a_run_is_never_out_of_memory_for_it(
    alone, monkeypatch, part, measured
):
    whole = probes.LINK_BYTES["cpu"]
    monkeypatch.setattr(torch, "ones", limit_ones(whole // part))
    figures = {row["figure"]: row["value"] for row in probes.measure_link_rates(CPU, "fsdp")}
    assert figures.get(LINK_MESSAGE) == (whole // measured if measured else None)
    assert len(figures) == (3 if measured else 0)


def test_all_reduces_are_measured_by_size_down_to_the_smallest(alone):
    figures = [row["figure"] for row in probes.measure_link_rates(CPU, "ddp")]
    least, most = probes.LEAST_LINK_BYTES["cpu"], probes.LINK_BYTES["cpu"]
    assert (least, most) == (2**18, 2**20)
    assert figures == [LINK_MESSAGE, *(f"{LINK_RATE}AllReduce{size}" for size in ("", f"/{2**19}", f"/{2**18}"))]
    assert [row["figure"] for row in probes.measure_link_rates(CPU, "tp")] == figures


def test_the_link_is_not_measured_where_another_rank_has_no_room(alone, monkeypatch):
    monkeypatch.setattr(parallel, "find_least", lambda value, device: 0)
    assert probes.measure_link_rates(CPU, "ddp") == []


@pytest.mark.parametrize("free_gib, has_room", [(4, True), (3.9, False)])
def test_a_gpu_has_room_for_the_link_where_four_times_the_message_is_free(monkeypatch, free_gib, has_room):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free_gib * 2**30), 80 * 2**30))
    assert probes.has_room(2**30, torch.device("cuda")) is has_room


@pytest.mark.long
def test_a_sweep_of_one_and_two_gpus_is_one_recording_with_ranks(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(TINY)
    ran = jobs("run", "--sweep", file, "--results", tmp_path / "results", "--device", "cpu")
    assert ran.returncode == 0, ran.stderr
    ingest(tmp_path / "results" / "several", tmp_path / "recording")
    recording = store.load(tmp_path / "recording")
    steps = recording.steps.astype({"run_id": str})
    ranks = steps.groupby("run_id")["rank"].unique().map(sorted).map(list)
    assert sorted(ranks.tolist()) == [[0], [0, 1], [0, 1]]
    shape = recording.runs.set_index("parallel")[["gpus", "num_parameters", "batch_size"]]
    assert shape.loc["fsdp"].tolist() == [2, *shape.loc["none"].tolist()[1:]], "a model is as large in parts"
    assert (steps.groupby(["run_id", "rank"])["step"].nunique() == 2).all()
    of_link = recording.figures[recording.figures["figure"].astype(str).str.startswith(LINK_RATE)]
    of_way = of_link.groupby([of_link["run_id"].astype(str).str.rsplit("-").str[-1], "rank"])["figure"].agg(set)
    assert {key: {name for name in names if "/" not in name} for key, names in of_way.to_dict().items()} == {
        (way, rank): {LINK_MESSAGE, *(f"{LINK_RATE}{name}" for name in probes.LINK_COLLECTIVES[way])}
        for way in ("ddp", "fsdp")
        for rank in (0, 1)
    }
    silent = recording.figures[recording.figures["figure"].astype(str) == SILENT]
    assert len(silent) == 4 and (silent["value"] > 0).all()
    assert (of_link["value"] > 0).all()


def run_of_two(**changes) -> Run:
    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 64}
    axes = {"size": "tiny", "context_length": 8, "mode": "train_step", "precision": "fp32", "attention": "naive"}
    return Run.model_validate(sizes | axes | {"gpus": 2, "parallel": "ddp"} | changes)


def pid_of_rank(timer: Timer, rank: int) -> int:
    for pid in processes_with("TMPDIR", str(timer.running.home)):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if f"--rank\0{rank}\0".encode() in file.read():
                return pid
    raise AssertionError(f"rank {rank} does not run")


@pytest.mark.long
@pytest.mark.parametrize(
    "sent, status, said, timeout_s",
    [
        pytest.param(signal.SIGKILL, "machine", "killed", 120, marks=pytest.mark.nightly),
        (signal.SIGSTOP, "timeout", "no answer within", 30),
    ],
)
def test_a_rank_that_is_killed_or_stalls_ends_the_run_and_leaves_no_process(tmp_path, sent, status, said, timeout_s):
    timer = Timer("cpu", (), 2)
    folder = tmp_path / "run"
    folder.mkdir()
    options = {"warmup_steps": 2, "steps": 2, "folder": folder}
    try:
        timer.measure(run_of_two(), timeout_s=120, **options)
        home = str(timer.running.home)

        def harm(event: str) -> None:
            if event == "ready":
                os.kill(pid_of_rank(timer, 1), sent)

        with pytest.raises(RunFailedError, match=said) as failed:
            timer.measure(run_of_two(), timeout_s=timeout_s, between=harm, **options)
        assert failed.value.status == status
        assert processes_with("TMPDIR", home) == []
        measured = timer.measure(run_of_two(), timeout_s=120, **options)  # the sweep goes on
        assert {row["rank"] for row in measured["steps"]} == {0, 1}
    finally:
        timer.stop()


@pytest.mark.long
def test_a_rank_that_fails_says_which_it_is(tmp_path):
    timer = Timer("cpu", (), 2)
    folder = tmp_path / "run"
    folder.mkdir()
    try:
        with pytest.raises(RunFailedError, match=r"rank [01]: "):
            run = run_of_two(num_heads=3)  # it does not divide d_model
            timer.measure(run, warmup_steps=2, steps=2, folder=folder, timeout_s=120)
    finally:
        timer.stop()


@pytest.mark.long
def test_each_further_rank_may_take_its_time_to_start(monkeypatch):
    monkeypatch.setattr(worker_process, "START_TIMEOUT_S", 0)
    monkeypatch.setattr(worker_process, "RANK_START_S", HANGS_S)
    timer = Timer("cpu", (), 2)
    timer.start()
    timer.stop()


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_rank_that_died_is_told_before_one_that_failed_for_it(is_dead):
    """The collective of the one that is left fails at once."""
    ours, theirs = zip(*(Pipe() for _ in range(3)), strict=True)
    ranks = Ranks.__new__(Ranks)
    ranks.sockets = list(ours)
    ranks.processes = [subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) for _ in range(3)]
    theirs[0].send({"event": "failed", "message": "connection closed by peer"})
    theirs[1].send({"event": "failed", "message": "connection closed by peer"})
    if is_dead:
        theirs[2].close()
    job, _job = Pipe()
    if is_dead:
        with pytest.raises(RankDiedError, match=r"rank 2 died \(exit 3\)"):
            ranks.receive(job)
    else:
        assert ranks.receive(job)[0]["event"] == "failed"
    ranks.kill()


@pytest.mark.long
def test_all_ranks_start_before_the_first_is_waited_for(tmp_path, monkeypatch):
    accept, started = rank_group.accept_rank, []

    def note(listener, process, rank):
        started.append((rank, len(ranks.processes)))
        return accept(listener, process, rank)

    ranks = Ranks.__new__(Ranks)
    monkeypatch.setattr(rank_group, "accept_rank", note)
    ranks.__init__(tmp_path, 3, ["--device", "cpu"])
    ranks.kill()
    assert started == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.long
def test_a_rank_that_ends_as_it_starts_ends_the_others(tmp_path):
    with pytest.raises(RankDiedError, match=r"rank 0 died \(exit 2\)"):
        Ranks(tmp_path, 2, ["--device", "none"])


def test_a_run_of_more_gpus_than_the_machine_has_is_refused(tmp_path, monkeypatch, capsys):
    file = tmp_path / "sweep.yaml"
    file.write_text(TINY)
    monkeypatch.setattr(measure_sweep, "find_visible_gpus", lambda: [0])
    with pytest.raises(typer.Exit) as ended:
        run_sweep(sweep=file, results=tmp_path / "results")
    assert ended.value.exit_code == measure_sweep.ExitCode.MISSING
    assert "some runs need 2 GPUs, and 1 would be used" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
