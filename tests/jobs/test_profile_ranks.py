"""`profile` of a script with several ranks, on one machine and on two, with the fake nsys."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ResultsError, ingest
from profiler_job.analysis.recording.merge import merge
from tests.jobs.profiled_scripts import HEAD, TORCHRUN, ddp, ended, losses, with_compiler
from tests.ports import find_free_ports
from tests.waiting import has_ended


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param((str(Path(sys.executable).parent / "torchrun"), *TORCHRUN[2:]), marks=pytest.mark.long),
        pytest.param((sys.executable, *TORCHRUN), marks=pytest.mark.nightly),
    ],
    ids=["torchrun", "module"],
)
def test_each_rank_is_followed_and_computes_what_it_does_alone(followed, tmp_path, launcher):
    printed, code, noted = followed(ddp(num_steps=14), *launcher, "train.py", goes_on=True)
    assert code == 0, printed
    assert [(one["rank"], one["ranks"], one["stage"]) for one in followed.ranks] == [(0, 2, "done"), (1, 2, "done")]
    assert {len(one[kind]) for one in followed.ranks for kind in ("steps", "captured_ns")} == {3}
    assert noted["model"] == "Sequential", "not what wraps it"
    bare = subprocess.run([*launcher, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert sorted(losses(printed)) == sorted(losses(bare.stdout)) and printed.count("loss ") == 28


ACCUMULATING = (
    HEAD.replace("nn.GELU()", "nn.GELU(), nn.Dropout(0.1)")
    + """
import os
from contextlib import nullcontext
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 8), torch.randint(0, 4, (640,)))
for step, (x, y) in enumerate(DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=True))):
    is_synchronized = step % 2 == 1
    with nullcontext() if is_synchronized else model.no_sync(), torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    if is_synchronized:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    weights = sum(parameter.double().sum() for parameter in model.parameters()).item().hex()
    drawn = torch.get_rng_state().sum().item()
    print(f"loss {rank} {step} {loss.item().hex()} {weights} {drawn}\\n", end="", flush=True)
distributed.destroy_process_group()
"""
)
"""Two processes that send their gradients in every other batch, as under `accelerate`."""


@pytest.mark.nightly
def test_ranks_that_accumulate_gradients_draw_and_compute_what_they_do_alone(followed, tmp_path):
    """Losses, weights and the state of random numbers are equal to the bit, in and between all kinds of steps."""
    command = (sys.executable, *TORCHRUN, "train.py")
    printed, code, _ = followed(ACCUMULATING, *command, goes_on=True)
    assert code == 0, printed
    assert [(one["stage"], one["forwards"]) for one in followed.ranks] == [("done", 2)] * 2
    bare = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert sorted(losses(printed)) == sorted(losses(bare.stdout)) and len(losses(printed)) == 80


@pytest.mark.long
def test_two_ranks_end_with_a_recording_of_both(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NSYS_RANKS", "2")
    printed, code = ended(
        profile(with_compiler(ddp()), "--skip", "3", "--steps", "3", launcher=TORCHRUN, is_whole=True)
    )
    assert code == 0, printed
    assert printed.count("11 steps were followed, the script ends here") == 1
    recording = store.load(tmp_path / "results" / "recordings" / "train")
    for table in (recording.steps.query("collector == 'timer'"), recording.kernels, recording.ranges):
        assert set(table["rank"]) == {0, 1}
    assert recording.steps.groupby(["rank", "collector"], observed=True)["step"].nunique().tolist() == [3] * 4
    page = (tmp_path / "results" / "site" / "index.html").read_text()
    assert "By rank" in page and "sums over 2 ranks" in page


@pytest.mark.long
def test_each_of_two_machines_ends_with_a_recording_of_its_own_ranks(profile, tmp_path, monkeypatch):
    """This machine plays both, with a rank each: the same command but for the number of the machine."""
    rendezvous = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(*find_free_ports(1)))
    started = []
    for node in range(2):
        monkeypatch.setenv("FAKE_NSYS_RANK", f"{node} of 2")
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "1", *rendezvous, "--node-rank", str(node))
        is_whole = node == 1  # pages take longest
        started.append(profile(ddp(), "--skip", "3", "--steps", "3", launcher=launcher, is_whole=is_whole))
    for node, process in enumerate(started):
        printed, code = ended(process)
        assert code == 0, printed
        said = " ".join(printed.split())
        assert f"rank {node} of 2 measured: the other machines have recordings of their own" in said
        recording = store.load(tmp_path / "results" / "recordings" / f"train-node-{node}")
        assert recording.runs["gpus"].tolist() == [2]
        for table in (recording.steps, recording.kernels, recording.ranges):
            assert set(table["rank"]) == {node}
        assert (tmp_path / "results" / f"site-node-{node}" / "index.html").is_file()
    page = (tmp_path / "results" / "site-node-1" / "index.html").read_text()
    assert "Of a run of 2 ranks this is one machine's part: rank 1." in page.replace("’", "'")
    nodes = [tmp_path / "results" / f"train-node-{node}" for node in range(2)]
    assert merge(nodes[::-1], tmp_path / "results" / "train").runs == ["train"]
    ingest(tmp_path / "results" / "train", tmp_path / "joined")
    joined = store.load(tmp_path / "joined")
    assert joined.runs["run_id"].tolist() == ["train"] and joined.runs["gpus"].tolist() == [2]
    for name in ("steps", "kernels", "ranges"):
        parts = [len(getattr(store.load(tmp_path / "results" / "recordings" / node.name), name)) for node in nodes]
        assert getattr(joined, name).groupby("rank").size().tolist() == parts
    assert joined.kernels.groupby("rank")["node"].unique().tolist() == [[0], [1]]
    assert not joined.ranges["range_id"].duplicated().any()
    with pytest.raises(ResultsError, match="no folder has rank 1"):
        merge(nodes[:1], tmp_path / "results" / "half")


@pytest.mark.long
def test_a_capture_that_lacks_a_rank_is_refused(profile):
    printed, code = ended(profile(ddp(), "--skip", "3", "--steps", "3", launcher=TORCHRUN))
    assert code == 1
    assert "nsys recorded steps of 1 process, and 2 took them" in " ".join(printed.split())


@pytest.mark.parametrize(
    "died",
    [
        pytest.param("os._exit(7)", marks=pytest.mark.long),
        pytest.param("os.kill(os.getpid(), 9)", marks=pytest.mark.nightly),
        pytest.param("int('died')", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_dies_ends_all(profile, tmp_path, died):
    source = ddp(f"Path(f'pid{{rank}}').write_text(str(os.getpid())); step == 5 and rank and {died}")
    source = "from pathlib import Path\n" + source
    printed, code = ended(profile(source, "--skip", "3", "--steps", "3", launcher=TORCHRUN))
    assert code == 1
    assert "of the 11 steps that are needed" in " ".join(printed.split()), printed
    assert all(has_ended(int((tmp_path / f"pid{rank}").read_text())) for rank in (0, 1))
    assert not (tmp_path / "results" / "train").exists()


@pytest.mark.parametrize(
    "number, code, is_deaf",
    [
        pytest.param(signal.SIGINT, 130, False, marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, 143, False, marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, 130, True, marks=pytest.mark.long),
    ],
)
def test_what_is_interrupted_leaves_no_rank(profile, number, code, is_deaf):
    """One of them sleeps and the other waits for it; torchrun gives those that hear no signal half a minute."""
    ignore = "import signal; [signal.signal(number, signal.SIG_IGN) for number in (2, 15)]; " if is_deaf else ""
    wait = ignore + r"print(f'{os.getpid()}\n', end='', flush=True); import time; rank and time.sleep(9999)"
    process = profile(ddp(wait), launcher=TORCHRUN)
    lines = (line.strip() for line in process.stdout)
    pids = [int(next(line for line in lines if line.isdigit())) for _ in range(2)]
    process.send_signal(number)
    printed, found = ended(process)
    assert found == code, printed
    assert all(map(has_ended, pids))
