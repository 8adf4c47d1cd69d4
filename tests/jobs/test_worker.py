"""The measured process: what each mode launches, under which settings, and how it reports what goes wrong."""

import os
import select
import socket
import time
import weakref
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.plain import TRAINED_STEPS, count_plain_steps
from profiler_job.jobs.follow.compiled_graphs import CompiledGraphs
from profiler_job.jobs.follow.module_ranges import ModuleRanges
from profiler_job.jobs.worker import answers, probes, service
from profiler_job.jobs.worker.service import perform
from profiler_job.jobs.worker.stepper import Stepper
from profiler_job.jobs.workloads import annotation
from tests.follow.range_log import Log
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


def make(**changes) -> Stepper:
    return Stepper(FIELDS | changes, CPU)


@pytest.fixture
def opened():
    """List the names of the ranges opened since."""
    names = []

    @contextmanager
    def record(name):
        names.append(name)
        yield

    annotation.use(record)
    yield names
    annotation.use(annotation._open_nothing)


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
    assert operations.num_matmuls == (9 * 2 + 1) + (18 * 2 + 2 if "backward" in phases else 0)
    has_gradient = {parameter.grad is not None for parameter in one.model.parameters()}
    assert has_gradient == {"backward" in phases}
    changed = any(not torch.equal(a, b) for a, b in zip(before, one.model.parameters()))
    assert changed == ("optimizer" in phases)
    assert bool(one.optimizer.moments) == ("optimizer" in phases)


def test_micro_batches_add_up_their_gradients_before_one_optimizer_step(opened):
    one = make(batch_size=4, accumulation=2)
    assert one.batch[0].shape[0] == 2, "half of the batch"
    with Operations() as operations:
        wall = one.step()
    assert [name for name in opened if name in ranges.PHASES] == ["forward", "loss", "backward"] * 2 + ["optimizer"]
    assert list(wall) == ["forward", "loss", "backward", "optimizer", "step"], "the times of all micro-batches together"
    assert sum(host.wall for name, host in wall.items() if name != "step") <= wall["step"].wall
    assert operations.num_matmuls == 2 * (27 * 2 + 3)
    alike = make(batch_size=2)
    alike.step()
    for parameter, other in zip(one.model.parameters(), alike.model.parameters()):
        assert torch.allclose(parameter.grad, other.grad), "both micro-batches have the same tokens: their mean"


def test_phases_add_up_to_the_step():
    wall = [make().step() for _ in range(3)][-1]
    phases = sum(host.wall for name, host in wall.items() if name != "step")
    assert 0.8 * wall["step"].wall < phases <= wall["step"].wall


def test_the_time_to_issue_is_without_the_waits_for_the_device(monkeypatch):
    one = make()
    one.step()
    monkeypatch.setattr(one, "synchronize", lambda: time.sleep(0.02))
    times = one.step()
    phases = [host for name, host in times.items() if name != "step"]
    assert all(host.wall - host.issue >= 20_000_000 for host in phases)
    waits = sum(host.wall - host.issue for host in phases)
    assert times["step"].wall - times["step"].issue == pytest.approx(waits, abs=len(phases) * 10_000)


def test_forward_keeps_nothing_for_backward():
    one = make(mode="forward")
    one.step()
    assert not one.output.requires_grad


@pytest.mark.parametrize("precision, matmul", [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")])
def test_precision_sets_tf32_and_autocast(precision, matmul):
    one = make(precision=precision, mode="forward")
    one.step()
    assert torch.get_float32_matmul_precision() == matmul
    assert answers.read_settings()["float32_matmul_precision"] == matmul
    assert one.output.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert {parameter.dtype for parameter in one.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_bf16_trains_too(attention):
    one = make(precision="bf16", attention=attention)
    one.step()
    assert all(parameter.grad.dtype == torch.float32 for parameter in one.model.parameters())


def test_two_workloads_of_one_run_are_equal():
    first, second = make(), make()
    assert torch.equal(first.batch[0], second.batch[0])
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
    of_task = {"warmup_steps": 2, "steps": 3, "probe": True, "compare": False, "busy_s": 0.0, "waits": False}
    return {"run": FIELDS | changes} | of_task


def test_measured_steps_are_annotated_and_warm_up_steps_are_not(opened):
    connection = FakeConnection()
    perform(task(), CPU, connection)
    ready, measured = connection.sent
    assert ready == {"event": "ready"}
    assert opened.count("step") == 3
    assert measured["event"] == "measured"
    assert [row["phase"] for row in measured["steps"][:5]] == ["forward", "loss", "backward", "optimizer", "step"]
    assert {row["step"] for row in measured["steps"]} == {0, 1, 2}
    assert measured["memory"] == []


@pytest.mark.parametrize("compiled", ["off", pytest.param("default", marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", ["forward", "train_step"])
def test_a_process_that_waits_has_compiled_all_and_taken_no_step(monkeypatch, mode, compiled):
    """Backward, too, which PyTorch compiles when it first runs."""
    seen, stepped = [], []

    class Waiting(FakeConnection):
        def send(self, message):
            super().send(message)
            if message["event"] == "compiled":
                seen.append((len(stepped), len(service.GRAPHS.graphs)))

    step, log, connection = Stepper.step, Log(), Waiting()
    service.GRAPHS.forget()  # those of other tests
    monkeypatch.setattr(Stepper, "step", lambda stepper, *args: stepped.append(step(stepper, *args)) or stepped[-1])
    perform(task(mode=mode, compile=compiled) | {"waits": True}, CPU, connection, ModuleRanges(log.push, log.pop))
    assert [message["event"] for message in connection.sent] == ["compiled", "ready", "measured"]
    assert seen == [(0, {"off": 0, "default": 1 + (mode == "train_step")}[compiled])]


def test_what_is_probed_of_the_host_and_the_busy_block_are_told_beside_the_steps():
    connection = FakeConnection()
    perform(task() | {"busy_s": 0.05}, CPU, connection)
    assert [message["event"] for message in connection.sent] == ["ready", "timed", "measured"]
    measured = connection.sent[-1]
    assert measured["busy"]["steps"] >= 1 and measured["busy"]["wall_ns"] >= 50_000_000
    assert measured["host_loop_ns"] > 0
    assert {row["step"] for row in measured["steps"]} == {0, 1, 2}


def test_modules_are_followed_in_one_more_step_with_names_of_its_own(opened):
    log = Log()
    perform(task(), CPU, FakeConnection(), ModuleRanges(log.push, log.pop))
    assert opened.count("step") == 3
    step = "modules:step"
    assert log.names()[0] == step
    forward = [name.removeprefix(f"{step}/modules:forward/") for name in log.names() if "modules:forward/" in name]
    measured = opened[opened.index("forward") + 1 : opened.index("loss")]
    assert [name.rsplit("/")[-1] for name in forward] == measured
    assert "block_1/attention/softmax" in forward
    modules = set(log.backward())
    assert {"(loss)", "(gradient accumulation)", "embedding", "block_0/attention/qkv_proj", "lm_head"} <= modules
    assert {label for label in modules if not label.startswith("(")} == {name for name in forward if name in modules}
    optimizer = {name.rsplit("modules:optimizer/")[-1] for name in log.names() if "modules:optimizer/" in name}
    assert optimizer == {"embedding", "norm", "lm_head"} | {
        f"block_{i}/{name}" for i in (0, 1) for name in ("norm", "attention/qkv_proj", "attention/o_proj", "ffn")
    }


def test_a_workload_without_ranges_has_the_names_of_its_modules():
    log = Log()
    run = {"workload": "tests.follow.workload:build", "mode": "forward_backward"}
    perform(task(**run), CPU, FakeConnection(), ModuleRanges(log.push, log.pop))
    forward = [name.rsplit("modules:forward/")[-1] for name in log.names() if "modules:forward/" in name]
    assert forward == ["Sequential", "Sequential/0", "Sequential/1", "Sequential/2"]
    modules = [label for label in log.backward() if not label.startswith("(")]
    assert list(dict.fromkeys(modules)) == ["Sequential/2", "Sequential/1", "Sequential/0"]
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


@pytest.mark.parametrize("phase", ["forward", "loss", "backward", "optimizer"])
def test_out_of_memory_names_phase_step_and_bytes_and_leaves_the_process_usable(monkeypatch, phase):
    method = {"optimizer": "profiler_job.jobs.workloads.adamw.AdamW.step"}.get(
        phase, f"profiler_job.jobs.worker.stepper.Stepper.{phase}"
    )

    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand so on")

    monkeypatch.setattr(method, fail)
    monkeypatch.setattr(answers, "read_memory_state", lambda device: {"allocated_bytes": 1, "total_bytes": 2})
    connection = FakeConnection()
    perform(task(), CPU, connection)
    (answer,) = connection.sent
    assert (answer["event"], answer["phase"], answer["step"]) == ("oom", phase, 0)
    assert answer["message"] == "CUDA out of memory. Tried to allocate 2 GiB"
    assert (answer["allocated_bytes"], answer["total_bytes"]) == (1, 2)


def test_memory_can_run_out_in_the_second_step(monkeypatch):
    step = Stepper.forward

    def second(self):
        if self.num_steps == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(self)

    monkeypatch.setattr(Stepper, "forward", second)
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

    monkeypatch.setattr(Stepper, "backward", fail)
    connection = FakeConnection()
    with pytest.raises(SystemExit):
        perform(task(), CPU, connection)
    assert (connection.sent[-1]["event"], connection.sent[-1]["phase"]) == (event, "backward")


def test_the_process_ends_with_its_runner_and_leaves_no_folder(tmp_path):
    """A forked child that is busy; its runner closes the socket."""
    home = tmp_path / "profiler-home"
    (home / "nsys").mkdir(parents=True)
    (home / "nsys" / "part.qdstrm").write_text("of a capture")
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        connection = Connection(theirs.detach())
        service.end_with_runner(connection, str(home))
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
    assert not home.exists()


def test_without_warm_up_the_first_step_of_all_is_measured(monkeypatch):
    numbers = []
    step = Stepper.step
    monkeypatch.setattr(Stepper, "step", lambda self, *around: numbers.append(self.num_steps) or step(self, *around))
    connection = FakeConnection()
    perform(task() | {"warmup_steps": 0}, CPU, connection)
    assert connection.sent[-1]["event"] == "measured"
    assert numbers == [0, 1, 2]


@pytest.mark.parametrize("optimizer", ["own", "loop", "foreach", "fused"])
def test_every_optimizer_makes_the_same_step(optimizer):
    own, other = make(), make(optimizer=optimizer)
    for one in (own, other):
        one.step()
        one.step()
    for expected, parameter in zip(own.model.parameters(), other.model.parameters()):
        torch.testing.assert_close(parameter, expected, atol=2e-5, rtol=0)  # a step changes by 1e-4
    num_elements = sum(parameter.numel() for parameter in other.model.parameters())
    assert sum(state.numel() for state in other.optimizer_state() if state.dim()) == 2 * num_elements


def test_a_compiled_model_computes_the_same_and_has_no_ranges_inside(monkeypatch, opened):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiler(model, backend="eager", fullgraph=True))
    plain, compiled = make(), make(compile="default")
    plain.step()
    del opened[:]
    compiled.step()
    assert opened == ["step", "forward", "loss", "backward", "optimizer"]
    for expected, parameter in zip(plain.model.parameters(), compiled.model.parameters()):
        torch.testing.assert_close(parameter, expected)


class HoldsMemory:
    """Compiles to code that holds a tensor, as CUDA graphs hold their pool; `held` are weak references to them."""

    def __init__(self):
        self.held = []

    def __call__(self, graph, inputs):
        pool = torch.zeros(1000)
        self.held.append(weakref.ref(pool))
        return lambda *arguments: (pool, graph.forward(*arguments))[1]


def test_a_compiled_run_leaves_nothing_behind(monkeypatch):
    """Its model, parameters and optimizer state are gone, and what its compiled code held."""
    compiler, backend = torch.compile, HoldsMemory()
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiler(model, backend=backend))
    kept = []
    step = Stepper.step

    def keep(self, *around):
        wall = step(self, *around)
        kept[:] = map(weakref.ref, [self, self.model, *self.model.parameters(), *self.optimizer_state()])
        return wall

    monkeypatch.setattr(Stepper, "step", keep)
    perform(task(compile="default"), CPU, FakeConnection())
    assert len(kept) > 20
    assert backend.held and all(pool() is not None for pool in backend.held)
    answers.release(CPU, was_compiled=True)
    assert [one() for one in kept if one() is not None] == []
    assert [pool() for pool in backend.held if pool() is not None] == []


@pytest.mark.parametrize(("warmup_steps", "num_late"), [(2, 0), (0, 1)])
def test_a_followed_run_logs_graphs_of_measured_steps_and_what_is_missing(warmup_steps, num_late, monkeypatch, capsys):
    graphs = CompiledGraphs()
    graphs.is_on, graphs.errors, graphs.num_late = True, ["skip_code: gone"], 7  # of the run before

    def compile_graph(graph, inputs):
        graphs.num_late += graphs.is_measured
        return graph.forward

    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiler(model, backend=compile_graph))
    monkeypatch.setattr(service, "GRAPHS", graphs)
    ranges = ModuleRanges(lambda name: None, lambda: None)
    perform(task(compile="default") | {"warmup_steps": warmup_steps}, CPU, FakeConnection(), ranges)
    late = [f"torch.compile: graphs that were compiled in measured steps: {num_late}"] * bool(num_late)
    assert capsys.readouterr().out.splitlines() == [*late, "torch.compile: skip_code: gone"]


def test_a_followed_step_that_fails_leaves_no_ranges_behind(monkeypatch):
    """The process measures the next run, whose calls were to be as without ranges."""
    stepper, ranges, graphs = Stepper(FIELDS, CPU), ModuleRanges(print, print), CompiledGraphs()
    monkeypatch.setattr(stepper, "step", lambda follow: 1 / 0)
    used, plain = [], nn.Module.__call__
    monkeypatch.setattr(graphs.calls, "use", used.append)
    with pytest.raises(ZeroDivisionError):
        stepper.follow_modules(ranges, graphs)
    assert used == [ranges, None] and nn.Module.__call__ is plain


def test_every_task_is_followed_by_a_release(monkeypatch, tmp_path):
    done = []
    monkeypatch.setattr(service.os, "dup2", lambda *descriptors: None)
    monkeypatch.setattr(service, "perform", lambda task, *_: done.append(task["run"]["compile"]))
    monkeypatch.setattr(service.calibration, "measure_rates", lambda device: done.append("rates"))
    monkeypatch.setattr(service, "release", lambda device, was_compiled: done.append(was_compiled))
    about = {"collector": "timer", "log": str(tmp_path / "log.txt")}
    tasks = [{"calibrate": True}, {"run": FIELDS}, {"run": FIELDS | {"compile": "default"}}]

    class Tasks(FakeConnection):
        def recv(self):
            if not tasks:
                raise EOFError
            return tasks.pop(0) | about

    connection = Tasks()
    service.serve(connection, CPU)
    assert done == ["rates", False, "off", False, "default", True]
    assert [one["event"] for one in connection.sent] == ["hello", "calibrated", *3 * ["released"]]


def test_what_was_allocated_before_a_run_was_built_is_a_figure_of_it(monkeypatch):
    monkeypatch.setattr(service, "allocated_before", lambda device: {"allocated_before_bytes": 7})
    connection = FakeConnection()
    perform(task(), CPU, connection)
    figure = {"figure": "allocated_before_build", "unit": "bytes", "value": 7}
    assert connection.sent[-1]["figures"] == [figure]
    connection = FakeConnection()
    perform(task() | {"probe": False}, CPU, connection)
    assert connection.sent[-1]["figures"] == []


def test_a_run_out_of_memory_says_what_was_allocated_before_it(monkeypatch):
    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Stepper, "forward", fail)
    monkeypatch.setattr(service, "allocated_before", lambda device: {"allocated_before_bytes": 7})
    connection = FakeConnection()
    perform(task(), CPU, connection)
    assert connection.sent[-1]["allocated_before_bytes"] == 7


def test_numerics_compare_with_float32_and_leave_the_precision_of_the_run():
    one = make(precision="bf16")
    figures = {row["figure"]: row["value"] for row in probes.probe_numerics(one)}
    assert 0 < figures["logits_rms_difference"] < 0.1 * figures["logits_rms_fp32"]
    assert figures["loss"] != figures["loss_fp32"] == pytest.approx(figures["loss"], rel=0.05)
    one.forward()
    assert one.output.dtype == torch.bfloat16


PROBED = {"compare": True, "warmup_steps": 5, "steps": 1}
FASTER = [
    {"precision": "bf16"},
    {"attention": "sdpa"},
    {"optimizer": "fused"},
    {"compile": "default"},
    {"precision": "bf16", "attention": "sdpa", "optimizer": "fused"},
]


@pytest.mark.parametrize("changes", FASTER, ids=str)
def test_the_loss_after_training_is_held_against_that_of_the_plain_model(changes, monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiler(model, backend="eager"))
    connection = FakeConnection()
    perform(task() | PROBED | {"run": FIELDS | changes}, CPU, connection)
    figures = {row["figure"]: row["value"] for row in connection.sent[-1]["figures"]}
    plain, wrong = (probes.measure_trained_loss(make(), steps) for steps in (TRAINED_STEPS, 0))
    assert figures["loss_trained_plain"] == plain != wrong
    assert figures["loss_trained"] == pytest.approx(plain, rel=0.01 if "precision" in changes else 1e-5)
    assert abs(figures["loss_trained"] - plain) < 0.1 * abs(wrong - plain), "training changed it by more"


def test_an_optimizer_that_does_something_else_shows_in_the_loss(monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)
    connection = FakeConnection()
    perform(task() | PROBED | {"run": FIELDS | {"optimizer": "fused"}}, CPU, connection)
    figures = {row["figure"]: row["value"] for row in connection.sent[-1]["figures"]}
    assert figures["loss_trained"] > figures["loss_trained_plain"]


@pytest.mark.parametrize(
    ("changes", "warmup_steps", "ranks", "compared"),
    [
        ({"compile": "cudagraphs"}, 5, 1, True),
        ({}, 5, 1, False),  # it is plain itself
        ({"precision": "bf16"}, 4, 1, False),  # the steps are part of warm-up
        ({"precision": "bf16"}, 5, 2, False),
        ({"precision": "bf16", "mode": "forward"}, 5, 1, False),
    ],
)
def test_losses_after_training_are_probed_of_one_rank_that_trains(changes, warmup_steps, ranks, compared):
    assert (count_plain_steps(FIELDS | changes | {"gpus": ranks}, warmup_steps) > 0) == compared


def test_without_room_for_the_plain_model_a_run_has_no_such_loss(monkeypatch):
    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    steps = []
    step = Stepper.step
    monkeypatch.setattr(Stepper, "step", lambda self, *around: steps.append(1) or step(self, *around))
    monkeypatch.setattr(probes, "measure_trained_loss", fail)
    connection = FakeConnection()
    perform(task() | PROBED | {"run": FIELDS | {"optimizer": "fused"}}, CPU, connection)
    message = connection.sent[-1]
    assert message["event"] == "measured" and message["figures"] == [] and len(steps) == 5 + 1


def test_of_a_model_with_dropout_no_losses_are_compared(monkeypatch):
    monkeypatch.setattr(probes, "draws_masks", lambda model: True)
    connection = FakeConnection()
    perform(task() | PROBED | {"run": FIELDS | {"precision": "bf16"}}, CPU, connection)
    assert connection.sent[-1]["event"] == "measured"
    assert [row for row in connection.sent[-1]["figures"] if row["figure"].startswith(("loss", "logits"))] == []


def test_dropout_is_seen_in_modules_and_in_what_a_configuration_says_of_attention():
    def with_config(**values) -> torch.nn.Module:
        model = torch.nn.Linear(1, 1)
        model.config = SimpleNamespace(to_dict=lambda: values)
        return model

    assert probes.draws_masks(torch.nn.Sequential(torch.nn.Dropout(0.1)))
    assert probes.draws_masks(with_config(attention_dropout=0.1))
    assert not probes.draws_masks(with_config(attention_dropout=0.0, summary_first_dropout=0.1))
    assert not probes.draws_masks(torch.nn.Sequential(torch.nn.Dropout(0.0)))
    assert not probes.draws_masks(torch.nn.Sequential(torch.nn.Dropout(0.1)).eval())


def test_losses_after_training_are_steps_of_warm_up(monkeypatch):
    steps = []
    step = Stepper.step
    monkeypatch.setattr(Stepper, "step", lambda self, *around: steps.append(self.run) or step(self, *around))
    perform(task() | PROBED | {"run": FIELDS | {"optimizer": "fused"}}, CPU, FakeConnection())
    assert [run["optimizer"] for run in steps] == ["own"] * (TRAINED_STEPS + 1) + ["fused"] * (5 + 1)


def test_bytes_kept_by_a_range_are_those_allocated_when_it_ends(monkeypatch):
    levels = iter([100, 110, 150, 170])  # before outer, before inner, after inner, after outer
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(levels))
    kept = probes.KeptBytes(CPU)
    with kept.open("block_0"), kept.open("ffn"):
        pass
    assert kept.rows == [
        {"phase": "forward", "module": "block_0", "kept_bytes": 70},
        {"phase": "forward", "module": "block_0/ffn", "kept_bytes": 40},
    ]


@pytest.mark.parametrize(
    "changes, compared",
    [
        ({"precision": "bf16"}, True),
        ({"precision": "tf32"}, True),
        ({}, False),
        ({"precision": "bf16", "attention": "flash"}, False),
        ({"precision": "bf16", "compile": "default"}, False),
    ],
)
def test_numerics_are_observed_where_the_same_code_has_float32(changes, compared):
    assert service.compares_with_fp32(FIELDS | changes) == compared
