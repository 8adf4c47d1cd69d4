"""The measured process: what each mode launches, under which settings, and how it reports what goes wrong."""

import os
import select
import socket
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest
import torch

from jobs import ranges, workload
from jobs.plan import Run
from jobs.workload import Workload, perform
from tests.jobs.test_model import Operations

CPU = torch.device("cpu")
FIELDS = Run(
    size="tiny",
    d_model=16,
    d_ff=32,
    num_layers=2,
    num_heads=2,
    vocab_size=50,
    context_length=8,
    batch_size=2,
    mode="train_step",
    precision="fp32",
    attention="naive",
).model_dump()


@pytest.fixture(autouse=True)
def settings_of_torch():
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)


def make(**changes) -> Workload:
    return Workload(FIELDS | changes, CPU)


@pytest.fixture
def opened():
    """Names of the ranges opened since."""
    names = []

    @contextmanager
    def record(name):
        names.append(name)
        yield

    ranges.use(record)
    yield names
    ranges.use(ranges._open_nothing)


@pytest.mark.parametrize(
    "mode, phases",
    [
        ("forward", ["forward"]),
        ("forward_backward", ["forward", "loss", "backward"]),
        ("train_step", ["forward", "loss", "backward", "optimizer"]),
    ],
)
def test_a_mode_runs_its_phases_only(mode, phases, opened):
    one = make(mode=mode)
    before = [parameter.detach().clone() for parameter in one.model.parameters()]
    with Operations() as operations:
        wall = one.step()
    assert list(wall) == [*phases, "step"]
    assert [name for name in opened if name in ranges.PHASES] == phases
    assert opened[0] == "step"
    assert operations.matrix_products == (9 * 2 + 1) + (18 * 2 + 2 if "backward" in phases else 0)
    has_gradient = {parameter.grad is not None for parameter in one.model.parameters()}
    assert has_gradient == {"backward" in phases}
    changed = any(not torch.equal(a, b) for a, b in zip(before, one.model.parameters()))
    assert changed == ("optimizer" in phases)
    assert bool(one.adamw.moments) == ("optimizer" in phases)


def test_phases_add_up_to_the_step():
    wall = [make().step() for _ in range(3)][-1]
    phases = sum(nanoseconds for name, nanoseconds in wall.items() if name != "step")
    assert 0.8 * wall["step"] < phases <= wall["step"]


def test_forward_keeps_nothing_for_backward():
    one = make(mode="forward")
    one.step()
    assert not one.logits.requires_grad


@pytest.mark.parametrize("precision, matmul", [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")])
def test_precision_sets_tf32_and_autocast(precision, matmul):
    one = make(precision=precision, mode="forward")
    one.step()
    assert torch.get_float32_matmul_precision() == matmul
    assert workload.settings()["float32_matmul_precision"] == matmul
    assert one.logits.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert {parameter.dtype for parameter in one.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_bf16_trains_too(attention):
    one = make(precision="bf16", attention=attention)
    one.step()
    assert all(parameter.grad.dtype == torch.float32 for parameter in one.model.parameters())


def test_two_workloads_of_one_run_are_equal():
    first, second = make(), make()
    assert torch.equal(first.tokens, second.tokens)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters()))


class FakeConnection:
    """Answers `go` and keeps what was sent."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def recv(self):
        return "go"


def task(**changes):
    return {"run": FIELDS | changes, "warmup_steps": 2, "steps": 3, "memory": True}


def test_measured_steps_are_annotated_and_the_last_warm_up_step_is_not(opened):
    connection = FakeConnection()
    perform(task(), CPU, connection)
    ready, measured = connection.sent
    assert ready == {"event": "ready"}
    assert opened.count("step") == 1 + 3  # one warm-up step before the capture
    assert measured["event"] == "measured"
    assert [row["phase"] for row in measured["steps"][:5]] == ["forward", "loss", "backward", "optimizer", "step"]
    assert {row["step"] for row in measured["steps"]} == {0, 1, 2}
    assert measured["memory"] == []


@pytest.mark.parametrize("phase", ["forward", "loss", "backward", "optimizer"])
def test_out_of_memory_names_phase_step_and_bytes_and_leaves_the_process_usable(monkeypatch, phase):
    method = {"optimizer": "jobs.optimizer.AdamW.step"}.get(phase, f"jobs.workload.Workload.{phase}")

    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand so on")

    monkeypatch.setattr(method, fail)
    monkeypatch.setattr(workload, "memory_state", lambda device: {"allocated_bytes": 1, "total_bytes": 2})
    connection = FakeConnection()
    perform(task(), CPU, connection)
    (answer,) = connection.sent
    assert (answer["event"], answer["phase"], answer["step"]) == ("oom", phase, 0)
    assert answer["message"] == "CUDA out of memory. Tried to allocate 2 GiB"
    assert (answer["allocated_bytes"], answer["total_bytes"]) == (1, 2)


def test_memory_can_run_out_in_the_second_step(monkeypatch):
    step = Workload.forward

    def second(self):
        if self.num_steps == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(self)

    monkeypatch.setattr(Workload, "forward", second)
    connection = FakeConnection()
    perform(task(), CPU, connection)
    assert (connection.sent[-1]["event"], connection.sent[-1]["step"]) == ("oom", 1)


@pytest.mark.parametrize(
    "error, event",
    [
        ("CUDA error: an illegal memory access was encountered", "failed"),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "oom"),
    ],
)
def test_an_error_that_may_have_broken_the_context_ends_the_process(monkeypatch, error, event):
    def fail(self):
        raise RuntimeError(error)

    monkeypatch.setattr(Workload, "backward", fail)
    connection = FakeConnection()
    with pytest.raises(SystemExit):
        perform(task(), CPU, connection)
    assert (connection.sent[-1]["event"], connection.sent[-1]["phase"]) == (event, "backward")


def test_the_process_ends_with_its_runner():
    """A forked child that is busy; its runner closes the socket."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        connection = Connection(theirs.detach())
        workload.end_with_runner(connection)
        while True:
            pass
    theirs.close()
    with open(os.pidfd_open(child), "rb", buffering=0) as end:
        assert not select.select([end], [], [], 0.5)[0]
        ours.send(b"a message does not end it")
        assert not select.select([end], [], [], 0.5)[0]
        ours.close()
        assert select.select([end], [], [], 10)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
