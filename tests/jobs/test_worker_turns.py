"""The measured process in which runs take turns: what they share, what each measures, and what fails."""

import json

import pytest
import torch

from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from profiler_job.jobs.worker import turns as worker_turns
from profiler_job.jobs.worker.stepper import Stepper
from profiler_job.jobs.worker.turns import Turns, take_turns
from profiler_job.jobs.workloads.adamw import build_optimizer, share_moments
from tests.jobs.test_worker import CPU, FIELDS, FakeConnection

SWEEP = load_sweep(DEFAULT_SWEEP.parent / "sweeps" / "changes_1.yaml")
OPTIMIZERS = ("own", "loop", "foreach", "fused")


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Make a task of tiny runs, each with some changes, whose output goes nowhere."""
    monkeypatch.setattr(worker_turns, "write_output_to", lambda log: None)
    monkeypatch.setattr(worker_turns, "time_host_loop", lambda: 50_000_000)
    before = torch.get_float32_matmul_precision()

    def make(*changes: dict) -> dict:
        runs = [FIELDS | each for each in changes]
        steps = {"warmup_steps": 2, "rounds": 3, "steps": 2, "seed": "0"}
        return {"runs": runs, "logs": [str(tmp_path)] * len(runs)} | steps

    yield make
    torch.set_float32_matmul_precision(before)


def carry_out(task: dict) -> list[dict]:
    connection = FakeConnection()
    take_turns(task, CPU, connection)
    assert connection.sent[-1]["event"] == "turned"
    return connection.sent


def test_the_speed_of_the_host_is_the_median_of_its_rounds(task, monkeypatch):
    loops = iter([30_000_000, 60_000_000, 50_000_000])
    monkeypatch.setattr(worker_turns, "time_host_loop", lambda: next(loops))
    assert {run["host_loop_ns"] for run in carry_out(task({}, {}))[-1]["runs"]} == {50_000_000}


def test_each_run_measures_its_turns(task):
    sent = carry_out(task({}, {"precision": "bf16"}, {"attention": "sdpa", "optimizer": "fused"}))
    assert [message["event"] for message in sent] == ["turn"] * 3 + ["ready"] + ["turn"] * 9 + ["turned"]
    orders = [message["number"] for message in sent if message["event"] == "turn"]
    assert all(sorted(orders[begin : begin + 3]) == [0, 1, 2] for begin in range(0, 12, 3))
    for run in sent[-1]["runs"]:
        steps = [(row["step"], row["round"]) for row in run["steps"] if row["phase"] == "step"]
        assert steps == [(step, step // 2) for step in range(6)]
        assert run["host_loop_ns"] == 50_000_000 and run["seconds"]["measure"] > 0
    assert [run["settings"]["float32_matmul_precision"] for run in sent[-1]["runs"]] == ["highest"] * 3
    json.dumps(sent)


def test_the_precision_of_a_run_is_set_in_its_turns_and_said(task):
    runs = carry_out(task({"precision": "tf32"}, {}))[-1]["runs"]
    assert [run["settings"]["float32_matmul_precision"] for run in runs] == ["high", "highest"]


def test_all_variants_of_precision_attention_and_optimizer_take_turns_in_one_process(task):
    """The variants of `changes_1.yaml`, in a tiny model."""
    group = group_runs(SWEEP.runs, SWEEP.protocol)[0]
    variants = [{axis: getattr(run, axis) for axis in SWEEP.turns} for run in group]
    assert {*variants[0]} == {"precision", "attention", "optimizer"} and len(variants) == 9
    runs = carry_out(task(*variants))[-1]["runs"]
    assert [len([row for row in run["steps"] if row["phase"] == "step"]) for run in runs] == [6] * 9
    precisions = [run["settings"]["float32_matmul_precision"] for run in runs]
    assert precisions == [PRECISIONS[each["precision"]].matmul for each in variants]


def test_runs_share_weights_gradients_and_moments(task):
    turns = Turns(task(*({"optimizer": name} for name in OPTIMIZERS)), CPU, FakeConnection())
    for number in range(len(OPTIMIZERS)):
        turns.attempt(turns.warm_up, number)
    first, *others = turns.steppers.values()
    for other in others:
        for mine, its in zip(first.model.parameters(), other.model.parameters(), strict=True):
            assert mine is its
            moments = [state for state in other.read_state(its) if state.dim()]
            assert [state.data_ptr() for state in moments] == [state.data_ptr() for state in first.read_state(mine)]
    assert first.optimizer.num_steps == 2
    assert [int(next(iter(other.optimizer.state.values()))["step"]) for other in others] == [4] * 3


@pytest.mark.parametrize("before", OPTIMIZERS)
@pytest.mark.parametrize("after", OPTIMIZERS)
def test_an_optimizer_that_goes_on_for_another_takes_the_same_steps(before, after):
    def train(*names: str) -> torch.Tensor:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(5, 3))
        inputs, former = torch.randn(7, 5), None
        for name in names:
            optimizer = build_optimizer(name, [weight])
            if former is not None:
                share_moments(optimizer, former)
            for _ in range(3):
                optimizer.zero_grad()
                (inputs @ weight).square().mean().backward()
                optimizer.step()
            former = optimizer
        return weight.detach()

    torch.testing.assert_close(train(before, after), train("own", "own"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("at", [0, 3])
def test_a_run_that_runs_out_of_memory_leaves_the_others(task, monkeypatch, at):
    forward = Stepper.forward

    def fail(self):
        if self.run["precision"] == "bf16" and self.num_steps == at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried\nand so on")
        forward(self)

    monkeypatch.setattr(Stepper, "forward", fail)
    sent = carry_out(task({"precision": "bf16"}, {}, {"attention": "sdpa"}))
    first, *others = sent[-1]["runs"]
    assert (first["event"], first["phase"], first["step"]) == ("oom", "forward", at)
    assert [len(run["steps"]) for run in others] == [6 * 5] * 2
    left = [message for message in sent if message["event"] == "turn"]
    assert len(left) == (3 + 2 * 3 if at == 0 else 3 + 1 + 2 * 3)


def test_another_failure_ends_the_process_in_the_turn_of_its_run(task, monkeypatch):
    def fail(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("profiler_job.jobs.workloads.adamw.AdamW.step", fail)
    connection = FakeConnection()
    with pytest.raises(SystemExit):
        take_turns(task({"optimizer": "fused"}, {}), CPU, connection)
    assert [message["event"] for message in connection.sent] == ["turn", "turn", "failed"]
    assert connection.sent[1]["number"] == 1


def test_models_with_other_parameters_are_refused():
    with pytest.raises(ValueError, match="these differ in the parameters"):
        Stepper(FIELDS | {"d_model": 32}, CPU, shared=Stepper(FIELDS, CPU))


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_a_run_keeps_no_output_while_others_take_their_turn(task, mode):
    turns = Turns(task({"mode": mode}), CPU, FakeConnection())
    turns.attempt(turns.warm_up, 0)
    assert turns.steppers[0].output is None and turns.steppers[0].loss_value is None


@pytest.mark.long
def test_compiled_runs_may_be_as_many_as_a_group_has(task, monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiler(model, backend="eager", fullgraph=True))
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    torch.compiler.reset()
    kinds = [
        {"precision": precision, "attention": attention, "mode": mode, "compile": "default"}
        for precision in ("fp32", "tf32", "bf16")
        for attention in ("naive", "sdpa")
        for mode in ("forward", "forward_backward")
    ]
    runs = carry_out(task(*kinds))[-1]["runs"]
    assert [run["event"] for run in runs] == ["measured"] * 12
    torch.compiler.reset()
