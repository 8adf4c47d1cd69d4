"""Processes of a script that take turns at a gate: what they measure, and what becomes of those that end or hang."""

import os
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from profiler_job.jobs.cli import tune_command
from profiler_job.jobs.cli.tune_command import ScriptEngine
from profiler_job.jobs.contract.paired_ratio import compare_variant_processes
from profiler_job.jobs.contract.tuning import BaseStep, Tuning
from profiler_job.jobs.executor import gated_processes
from profiler_job.jobs.executor.gated_processes import GatedProcess, GatedProcesses, take_gated_turns
from profiler_job.jobs.executor.tune_processes import measure_pairs
from profiler_job.jobs.executor.tuned_script import (
    FollowedProcess,
    GatePlan,
    OverBudgetError,
    TunedScript,
    VariantFailedError,
    run_variant,
)
from profiler_job.jobs.follow.follow import Follower
from profiler_job.jobs.follow.plan import Stage
from profiler_job.jobs.follow.turns import TurnsFollower
from tests.waiting import HANGS_S, eventually
from tests.without_compiler import WITHOUT_COMPILER

# ------------------------------------------------------------------------------------------------ simulated processes


@dataclass
class SimulatedProcess:
    """In place of FollowedProcess and its requests: answers of steps of `step_ns`, or none."""

    step_ns: float = 10.0
    ends: VariantFailedError | None = None
    answers: bool = True
    not_applied: dict = field(default_factory=dict)
    num_asked: int = 0
    is_ended: bool = False

    @property
    def requests(self):
        return self

    def send(self, request):
        assert not self.is_ended
        self.num_asked += 1

    def read_answer(self):
        if not self.answers or self.ends:
            return None
        known = {"losses": [], "num_losses_per_step": 1.0, "peak_bytes": 0, "not_applied": self.not_applied}
        return {"steps": [self.step_ns, 99 * self.step_ns, self.step_ns]} | known

    @property
    def has_ended(self):
        return self.ends is not None

    def explain_end(self):
        return self.ends

    def end(self):
        self.is_ended = True


OVER = VariantFailedError("it ended (exit code 0)", is_short=True)
BROKEN = VariantFailedError("it ended (exit code 1)")
PLAN = GatePlan(num_each=2, num_rounds=3, turn_s=0.2, ready_s=60.0, seed=0)


@pytest.fixture
def gated(monkeypatch):
    """Two processes of each of two variants."""
    monkeypatch.setattr(gated_processes, "HANGS_S", 0.01)
    made = [GatedProcess(variant, SimulatedProcess(10.0 * (1 + variant))) for variant in (0, 1, 0, 1)]
    return GatedProcesses(made, time.monotonic() + HANGS_S)


def test_each_process_has_one_turn_in_each_round(gated):
    noted: list = []
    gated.take_rounds(PLAN, lambda runs: noted.append([[len(run.times_ns) for run in each] for each in runs]))
    assert noted == [[[number] * 2] * 2 for number in (1, 2, 3)], "both processes of both variants"
    assert [process.running.num_asked for process in gated.processes] == [3] * 4
    assert [process.times_ns for process in gated.processes] == [[10.0] * 3, [20.0] * 3] * 2, "medians of turns"
    assert gated.processes[1].make_run().step_ns == 20.0


@pytest.mark.parametrize("change", [{"ends": BROKEN}, {"answers": False}, {"not_applied": {"bf16": "it has it"}}])
def test_a_process_that_ends_or_hangs_leaves_the_others(gated, change):
    lost = gated.processes[1]
    vars(lost.running).update(change)
    gated.take_rounds(PLAN, print)
    assert lost.running.is_ended and lost not in gated.processes and not lost.times_ns
    assert [len(process.times_ns) for process in gated.processes] == [3] * 3


@pytest.mark.parametrize("change", [{"ends": BROKEN}, {"answers": False}])
def test_the_last_process_of_a_variant_is_an_error(gated, change):
    for process in gated.processes[1::2]:
        vars(process.running).update(change)
    with pytest.raises(VariantFailedError):
        gated.take_rounds(PLAN, print)


def test_a_script_that_takes_few_steps_leaves_the_rounds_before(gated):
    process = gated.processes[2].running
    process.send = lambda request: setattr(process, "ends", OVER if len(gated.processes[2].times_ns) == 2 else None)
    gated.take_rounds(PLAN, print)
    assert [len(process.times_ns) for process in gated.processes] == [2] * 4
    gated.processes[0].running.ends = OVER
    with pytest.raises(VariantFailedError):
        gated.take_rounds(PLAN, print)


def test_a_peak_has_what_graphs_took_while_they_were_captured(monkeypatch):
    follower = TurnsFollower.__new__(TurnsFollower)
    monkeypatch.setattr(Follower, "enter", lambda follower, stage: setattr(follower, "stage", stage))
    monkeypatch.setattr(TurnsFollower, "choose_steps", lambda follower: iter([None]))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    resets = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: resets.append("after warm-up"))
    follower.enter(Stage.TIMED)
    assert not resets


@pytest.mark.parametrize(("code", "words"), [(0, "takes too few steps"), (1, "ended (exit code 1): ValueError: no")])
def test_the_end_of_a_process_says_why(code, words, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("ValueError: no\n")
    script = TunedScript(command=["python"], folder=tmp_path, log=log, skip=1, steps=1, step="auto", seed=0)
    process = SimpleNamespace(poll=lambda: code)
    error = FollowedProcess(process=process, plan="", folder=tmp_path, script=script, begin=0).explain_end()
    assert words in str(error) and error.is_short is (code == 0)


def test_no_round_goes_on_after_the_end_of_the_time(gated):
    last = gated.processes[3]
    last.running.send = lambda request: setattr(gated, "end", time.monotonic() - 1 if last.times_ns else gated.end)
    last.running.read_answer = lambda known=last.running.read_answer: None if gated.end < time.monotonic() else known()
    gated.take_rounds(PLAN, print)
    assert [len(process.times_ns) for process in gated.processes] == [1] * 4, "of a part of a round nothing is kept"
    for process in gated.processes:
        process.running.answers = False
    with pytest.raises(OverBudgetError):
        gated.take_round(0.2, gated_processes.random.Random(0))


# ----------------------------------------------------------------------------------------------------- real processes

SCRIPT = (
    WITHOUT_COMPILER
    + """
import fcntl, os, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader
here = Path(__file__).parent
torch.manual_seed(0)
torch.set_num_threads(1)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        is_changed = torch.is_autocast_enabled("cpu")
        IN_FORWARD
        time.sleep((0.01 if is_changed else 0.04) * float((here / "speed").read_text()))
        return self.layer(x)

running = open(here / "running", "w")
fcntl.flock(running, fcntl.LOCK_SH)

def is_alone():
    try:
        fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        fcntl.flock(running, fcntl.LOCK_SH)
    return True

model = Slow()
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while True:
    x = torch.randn(8, 16)
    loss = (model(x).float() - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
"""
)
"""The model takes 40 ms, and 10 in BF16, times what the file `speed` says."""


@pytest.fixture
def script(tmp_path):
    """Make a script in which `in_forward` runs in each step."""

    def make(in_forward: str = "pass", source: str = SCRIPT) -> TunedScript:
        (tmp_path / "train.py").write_text(source.replace("IN_FORWARD", in_forward))
        (tmp_path / "speed").write_text("1")
        (tmp_path / "out").mkdir()
        return TunedScript(
            command=[sys.executable, str(tmp_path / "train.py")],
            folder=tmp_path / "out",
            log=tmp_path / "log.txt",
            skip=3,
            steps=10,
            step="auto",
            seed=0,
        )

    return make


VARIANTS = ((), ("bf16",))
LONG_PLAN = GatePlan(num_each=2, num_rounds=4, turn_s=0.1, ready_s=HANGS_S, seed=0)


def list_times(runs):
    return [[run.times_ns for run in of_variant] for of_variant in runs]


@pytest.mark.long
def test_a_machine_that_gets_slower_in_the_middle_changes_no_ratio_of_turns(script, tmp_path, monkeypatch):
    """One after another the second variant would run on the slow machine, and seem as slow as the first."""
    made, take_round = script(), GatedProcesses.take_round

    def slow_down(gated, *args):
        (tmp_path / "speed").write_text("4" if gated.processes[0].times_ns[1:] else "1")
        take_round(gated, *args)

    with monkeypatch.context() as patched:
        patched.setattr(GatedProcesses, "take_round", slow_down)
        runs, _ = take_gated_turns(made, VARIANTS, LONG_PLAN, HANGS_S, print)
    first = runs[0][0].times_ns
    assert len(first) == 4 and min(first[2:]) > 2 * max(first[:2]), "it got slower"
    ratio = compare_variant_processes(*list_times(runs), spread=0.0)
    assert 2.0 < ratio.times_as_fast < 4.2
    assert [len(run.losses) for run in runs[0]] == [13, 13] and runs[0][0].losses == runs[0][1].losses
    (tmp_path / "speed").write_text("1")
    before = run_variant(made, (), HANGS_S)
    (tmp_path / "speed").write_text("4")
    after = run_variant(made, ("bf16",), HANGS_S)
    assert before.step_ns / after.step_ns < 1.5


@pytest.mark.long
def test_a_process_that_waits_takes_no_time_of_the_cpu_and_ends_with_the_program(script):
    running = script().start("gated", "gate", changes=[], times_only=True)
    try:
        running.requests.send({"turn_s": 0.0})
        eventually(running.requests.read_answer)

        def read_cpu_s() -> float:
            words = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

        before = read_cpu_s()
        time.sleep(1.0)
        assert read_cpu_s() - before < 0.1
        running.requests.close()  # as the system does when the program is gone
        eventually(lambda: running.has_ended)
        assert running.process.returncode == 0
    finally:
        running.end()


@pytest.mark.nightly
def test_batches_that_workers_fetched_during_a_pause_do_not_count(script):
    source = SCRIPT.replace("while True:", "for x in Batches():").replace("    x = torch.randn(8, 16)\n", "")
    batches = """
class Fetched(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        time.sleep(0.08)
        return torch.randn(8, 16)

def Batches():
    return DataLoader(Fetched(), batch_size=None, num_workers=1, prefetch_factor=4)

model = Slow()"""
    made = script(source=source.replace("\nmodel = Slow()", batches))
    runs, _ = take_gated_turns(made, VARIANTS, LONG_PLAN, HANGS_S, print)
    for run in (*runs[0], *runs[1]):
        assert run.step_ns > 65e6, "a step takes as long as its batch"


def make_search(script: TunedScript, said: list[str]):
    base = BaseStep(step_ns=40e6)
    return SimpleNamespace(
        engine=ScriptEngine(script, ["bf16"], script.folder),
        runs={},
        tuning=Tuning(name="train", command=("python",), budget_s=HANGS_S, base=base),
        say=said.append,
        left_s=HANGS_S,
        starts_s=5.0,
        compiles_s=0.0,
        room=4,
    )


@pytest.mark.parametrize(("alone_s", "ready_s", "starts_s"), [(5.0, 18.0, 5.0), (60.0, 18.0, 18.0)])
def test_processes_that_share_the_cores_say_little_of_how_long_one_takes_to_start(
    script, monkeypatch, alone_s, ready_s, starts_s
):
    """After two for another candidate, the time for the winner's was estimated as three times of what one needs, so
    that nothing was confirmed. A first start that found no cache is longer than later ones."""
    tuned = script()
    engine = ScriptEngine(tuned, Tuning(name="x", command=("python",), budget_s=60), ["bf16"], tuned.folder)
    engine.starts_s = alone_s
    monkeypatch.setattr(tune_command, "take_gated_turns", lambda *given: ([], ready_s))
    engine.take_turns(VARIANTS, LONG_PLAN, HANGS_S, print)
    assert engine.starts_s == starts_s


DIES = "if is_changed and step == 8 and not (here / 'died').exists(): (here / 'died').mkdir(), os._exit(3)"
FULL = """if is_changed and not is_alone():
            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')"""


@pytest.mark.nightly
def test_a_process_that_dies_leaves_the_other_of_its_variant(script):
    said: list[str] = []
    made = script(DIES)
    pairs = measure_pairs(make_search(made, said), *VARIANTS, num_in_sequence=2)
    assert (len(pairs.before), len(pairs.after)) == (2, 1) and pairs.num_rounds and not said
    assert 2.0 < pairs.compare(0.0).times_as_fast < 4.2


@pytest.mark.nightly
def test_variants_that_have_no_memory_together_run_one_after_another(script, tmp_path):
    said: list[str] = []
    made = script(FULL)
    pairs = measure_pairs(make_search(made, said), *VARIANTS, num_in_sequence=2)
    assert len(pairs.after) == 2 and not pairs.num_rounds
    assert "out of memory" in said[0] and "one after another" in said[0]
    assert "out of memory" in (tmp_path / "log.txt").read_text(), "what processes printed is kept"
    assert 2.0 < pairs.compare(0.0).times_as_fast < 4.2


RANKS = (
    WITHOUT_COMPILER
    + """
import torch
from torch import distributed
distributed.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 4)).mean().backward()
    distributed.all_reduce(model.weight.grad)
    optimizer.step()
"""
)


@pytest.mark.long
def test_a_script_of_several_ranks_answers_once_and_all_end_without_an_error(script, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    made = script(source=RANKS)
    made = replace(made, command=[*torchrun, *made.command[1:]])
    running = made.start("turns", "turns", changes=["bf16"])
    try:
        running.requests.send({"kind": "describe"})
        eventually(running.requests.read_answer)
        assert running.requests.read_answer()["world"] == 2
        eventually(lambda: running.has_ended)
        assert running.process.returncode == 0, (tmp_path / "log.txt").read_text()
    finally:
        running.end()
