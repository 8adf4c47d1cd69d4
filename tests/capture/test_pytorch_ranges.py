"""Ranges of PyTorch's own operations: names without numbers, phases, and backward linked to forward by number."""

import pytest

from profiler_job.analysis.capture.attribution import ATTRIBUTIONS, attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.pytorch_ranges import parse_names
from profiler_job.analysis.insight.summary import summarise

from .nsys_files import Export

_EVALUATE = "autograd::engine::evaluate_function: "


@pytest.fixture
def export():
    return Export()


def _operation(export, name, at, *, seq=None, sizes="", thread=1, kernel=True, long=8, **more):
    """An operation of PyTorch as emit_nvtx marks it, and its kernel."""
    _operation.id += 1
    number = f", seq = {seq}" if seq is not None else ""
    export.push(f"{name}{number}, op_id = {_operation.id}{sizes}", at, at + long, thread=thread, **more)
    if kernel:
        export.launch(at + 2, thread=thread, **more)


_operation.id = 0


def _node(export, name, at, seq, *, thread=2, **more):
    """A node of autograd's graph, which calls an operation that launches a kernel."""
    _operation(export, f"{_EVALUATE}{name}", at, thread=thread, kernel=False, long=30, **more)
    _operation(export, name, at + 2, seq=seq, thread=thread, kernel=False, long=20, **more)
    _operation(export, "aten::mm", at + 4, thread=thread, **more)


def _places(export, tmp_path):
    """(phase, module, attribution) of each kernel, by its start."""
    found = attribute(read(export.sqlite(tmp_path / "x.sqlite")))
    return [tuple(row) for row in found.kernels[["phase", "module", "attribution"]].astype(str).to_numpy()]


@pytest.mark.parametrize(
    ("name", "plain", "number"),
    [
        ("aten::linear, op_id = 318126", "aten::linear", -1),
        ("MmBackward0, seq = 1020, op_id = 4154", "MmBackward0", 1020),
        ("aten::mm, seq = 12, op_id = 5, sizes = [[2, 3], [3, 4]]", "aten::mm", 12),
        ("aten::mm, seq = 0, op_id = 5, sizes = [[2]], input_op_ids = [(3, 0)]", "aten::mm", 0),
        ("aten::mm, sizes = [[2, 3]]", "aten::mm", -1),
        ("aten::mm, seq = 12", "aten::mm", 12),
        (f"{_EVALUATE}MmBackward0, op_id = 9", f"{_EVALUATE}MmBackward0", -1),
        ("torch::autograd::CppNode<A, B>, seq = 3, op_id = 9", "torch::autograd::CppNode<A, B>", 3),
        ("batch, size = 3", "batch, size = 3", -1),
        ("aten::mm, seq = 99999999999999999999999", "aten::mm", -1),
    ],
)
def test_names_lose_the_numbers_of_pytorch(name, plain, number):
    named = parse_names([name])
    assert (named.plain, named.number.tolist()) == ([plain], [number])


def test_thousands_of_operations_are_rows_of_a_few_names(export, tmp_path):
    for i in range(500):
        _operation(export, "aten::mm", 10 * i, seq=i, sizes=f", sizes = [[{i}, 3]]")
        _operation(export, "aten::mul", 10_000 + 10 * i)
    rows = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["ranges"].set_index("name")
    assert rows["instances"].to_dict() == {"aten::mm": 500, "aten::mul": 500}
    assert rows["kernel_ns"].to_dict() == {"aten::mm": 2500, "aten::mul": 2500}


def test_backward_is_linked_to_forward_by_number_across_threads(export, tmp_path):
    _operation(export, "aten::mm", 10, seq=7)
    _operation(export, "aten::tanh", 20, seq=8)
    _node(export, "TanhBackward0", 100, 8)
    _node(export, "MmBackward0", 200, 7)
    assert _places(export, tmp_path) == [
        ("forward", "aten::mm", "exact"),
        ("forward", "aten::tanh", "exact"),
        ("backward", "aten::tanh", "linked"),
        ("backward", "aten::mm", "linked"),
    ]


def test_a_users_range_around_the_forward_operation_is_the_module(export, tmp_path):
    export.push("step", 0, 1000)
    export.push("block_0", 5, 90)
    export.push("ffn", 8, 80)
    _operation(export, "aten::linear", 10, kernel=False, seq=7, long=30)
    _operation(export, "aten::addmm", 12, seq=7)
    _node(export, "AddmmBackward0", 200, 7)
    assert _places(export, tmp_path) == [("forward", "block_0/ffn", "exact"), ("backward", "block_0/ffn", "linked")]


def test_the_phase_that_a_user_marks_is_not_part_of_the_module(export, tmp_path):
    export.push("forward", 0, 90)
    export.push("block_0", 5, 80)
    _operation(export, "aten::mm", 10, seq=7)
    export.push("backward", 100, 900)
    _node(export, "MmBackward0", 200, 7)
    assert _places(export, tmp_path) == [("forward", "block_0", "exact"), ("backward", "block_0", "linked")]


def test_of_operations_with_one_number_the_last_made_the_node(export, tmp_path):
    _operation(export, "aten::t", 10, seq=7)
    _operation(export, "aten::mm", 20, seq=7)
    _node(export, "MmBackward0", 100, 7)
    _operation(export, "aten::relu", 400, seq=7)
    _node(export, "ReluBackward0", 500, 7)
    assert [place[1] for place in _places(export, tmp_path)[2:]] == ["aten::mm", "aten::relu", "aten::relu"]


def test_numbers_come_again_on_another_thread_and_the_name_decides(export, tmp_path):
    """A checkpoint runs forward again on autograd's thread, which counts on its own."""
    _operation(export, "aten::mm", 10, seq=7)
    _operation(export, "aten::tanh", 50, seq=7, thread=2)
    _node(export, "MmBackward0", 100, 7)
    _node(export, "TanhBackward0", 200, 7)
    assert [place[1] for place in _places(export, tmp_path)[2:]] == ["aten::mm", "aten::tanh"]


def test_numbers_of_another_process_do_not_count(export, tmp_path):
    _operation(export, "aten::mm", 10, seq=7, process=1)
    _operation(export, "aten::tanh", 50, seq=9, process=2)
    _node(export, "MmBackward0", 100, 7, process=2)
    assert _places(export, tmp_path)[2] == ("backward", "MmBackward0", "exact")


def test_a_number_after_the_node_is_of_the_next_step(export, tmp_path):
    _node(export, "MmBackward0", 100, 7)
    _operation(export, "aten::mm", 300, seq=7)
    assert _places(export, tmp_path)[0] == ("backward", "MmBackward0", "exact")


def test_operations_that_are_run_again_in_backward_are_backward(export, tmp_path):
    _operation(export, "CheckpointFunction", 10, seq=7)
    _operation(export, f"{_EVALUATE}CheckpointFunctionBackward", 100, thread=2, kernel=False, long=100)
    _operation(export, "CheckpointFunctionBackward", 102, seq=7, thread=2, kernel=False, long=90)
    _operation(export, "aten::mm", 110, seq=0, thread=2)
    assert _places(export, tmp_path)[1] == ("backward", "CheckpointFunction", "linked")


def test_sums_of_gradients_are_backward_without_a_link(export, tmp_path):
    _operation(export, f"{_EVALUATE}torch::autograd::AccumulateGrad", 100, thread=2, kernel=False, long=40)
    _operation(export, "torch::autograd::AccumulateGrad", 102, thread=2, kernel=False, long=30)
    _operation(export, "aten::add_", 104, thread=2)
    assert _places(export, tmp_path) == [("backward", "torch::autograd::AccumulateGrad", "exact")]


def test_sums_that_autograd_takes_for_a_node_are_linked_and_joined_branches_are_not(export, tmp_path):
    """The gradient of a broadcast tensor is summed outside the node, within the engine's range."""
    _operation(export, "aten::add", 10, seq=7)
    _operation(export, f"{_EVALUATE}AddBackward0", 100, thread=2, kernel=False, long=90)
    _operation(export, "AddBackward0", 102, seq=7, thread=2, kernel=False, long=20)
    _operation(export, "aten::sum", 130, thread=2)
    _operation(export, "aten::add_", 150, thread=2)
    assert _places(export, tmp_path)[1:] == [("backward", "aten::add", "linked"), ("backward", "aten::add_", "exact")]


def test_autograd_on_the_calling_thread_is_told_apart_as_well(export, tmp_path):
    _operation(export, "aten::mm", 10, seq=7)
    _node(export, "MmBackward0", 100, 7, thread=1)
    assert _places(export, tmp_path)[1] == ("backward", "aten::mm", "linked")


def test_the_optimizer_and_zero_grad_and_the_loader_mark_themselves(export, tmp_path):
    names = (
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#AdamW.step",
        "Optimizer.zero_grad#AdamW.zero_grad",
    )
    for i, name in enumerate(names):
        _operation(export, name, 100 * i, kernel=False, long=50)
        _operation(export, "aten::_foreach_add_", 100 * i + 10, seq=3)
    assert [place[::2] for place in _places(export, tmp_path)] == [
        ("data", "exact"),
        ("optimizer", "exact"),
        ("zero_grad", "exact"),
    ]


def test_a_closure_that_the_optimizer_calls_is_forward_and_backward(export, tmp_path):
    """As Lightning runs a step: all of it within the optimizer's range."""
    export.push("[pl][profile]run_training_batch", 0, 1000)
    export.push("Optimizer.step#AdamW.step", 10, 900)
    export.push("[pl][profile][Strategy]SingleDeviceStrategy.training_step", 20, 100)
    export.launch(50)
    export.push("[pl][profile][Strategy]SingleDeviceStrategy.backward", 200, 500)
    export.launch(300)
    export.launch(400, thread=2)
    export.launch(600)
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite")))
    phases = summary.sections["phases"].set_index("phase")
    assert phases["kernel_calls"].to_dict() == {"forward": 1, "backward": 2, "optimizer": 1}
    assert phases["host_ns"].to_dict() == {"forward": 80, "backward": 300, "optimizer": 890 - 80 - 300}
    assert summary.coverage == dict.fromkeys(ATTRIBUTIONS, 0) | {"exact": 0.75, "phase": 0.25}


def test_what_is_launched_beside_the_operations_of_forward_is_inferred(export, tmp_path):
    _operation(export, "aten::mm", 10, seq=7)
    export.launch(30)
    _operation(export, "aten::cos", 40)  # without gradients, so without a number
    _operation(export, "aten::mm", 60, seq=8)
    _node(export, "MmBackward0", 100, 8)
    _operation(export, "aten::_foreach_norm", 200)
    _operation(export, "Optimizer.step#SGD.step", 300, long=50)
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite")))
    phases = summary.sections["phases"].set_index("phase")
    assert phases["kernel_calls"].to_dict() == {"forward": 4, "backward": 1, "clip": 1, "optimizer": 1}
    assert phases["inferred_share"].to_dict() == {"forward": 0.5, "backward": 0, "clip": 1, "optimizer": 0}
    assert sum(summary.coverage.values()) == pytest.approx(1)


def test_numbered_operations_between_backward_and_the_optimizer_are_no_forward(export, tmp_path):
    _operation(export, "aten::mm", 10, seq=7)
    _node(export, "MmBackward0", 100, 7)
    _operation(export, "aten::linalg_vector_norm", 200, seq=8)
    _operation(export, "Optimizer.step#SGD.step", 300, long=50)
    phases = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["phases"].set_index("phase")
    assert phases["kernel_calls"]["clip"] == 1
    assert phases["inferred_share"]["clip"] == 1


def test_the_loss_between_a_users_ranges_stays_the_loss(export, tmp_path):
    export.push("step", 0, 1000)
    export.push("forward", 5, 50)
    _operation(export, "aten::mm", 10, seq=7)
    _operation(export, "aten::nll_loss", 60, seq=8)
    export.push("backward", 90, 500)
    _node(export, "NllLossBackward0", 100, 8)
    assert _places(export, tmp_path)[1][::2] == ("loss", "phase")


def test_what_pytorch_marks_in_an_optimizer_before_backward_is_its_closures_forward(export, tmp_path):
    """Lightning runs all of a step in a closure that the optimizer calls."""
    _operation(export, "Optimizer.step#AdamW.step", 10, kernel=False, long=900)
    _operation(export, "aten::mm", 20, seq=7)
    _operation(export, "aten::cos", 40)
    _node(export, "MmBackward0", 100, 7)
    _operation(export, "aten::_foreach_add_", 300, seq=8)
    assert [place[0] for place in _places(export, tmp_path)] == ["forward", "forward", "backward", "optimizer"]


def test_modules_that_nsys_marks_are_forward_and_no_modules_of_the_user(export, tmp_path):
    """As `nsys --pytorch=functions-trace` does, in a domain of its own."""
    export.domain(3, "PyTorch")
    export.push("block_0", 0, 60)
    export.push("torch.nn.modules.Module.__call__", 5, 50, domain=3)
    export.push("torch.nn.modules.Linear.forward", 8, 45, domain=3)
    _operation(export, "aten::linear", 10, seq=7)
    export.launch(35)
    _operation(export, "aten::nll_loss", 70, seq=8)
    _node(export, "LinearBackward0", 100, 7)
    assert _places(export, tmp_path) == [
        ("forward", "block_0", "exact"),
        ("forward", "block_0", "exact"),
        ("forward", "aten::nll_loss", "exact"),
        ("backward", "block_0", "linked"),
    ]


def test_what_a_user_records_is_a_users_range(export, tmp_path):
    """`record_function` has numbers under emit_nvtx, and DistributedDataParallel marks its forward so."""
    _operation(export, "aten::cat", 2, seq=6)  # what makes the model
    _operation(export, "DistributedDataParallel.forward", 20, kernel=False, long=40)
    _operation(export, "block_0", 25, kernel=False, long=30)
    _operation(export, "aten::mm", 30, seq=7)
    _operation(export, "aten::nll_loss", 70, seq=8)
    _node(export, "MmBackward0", 100, 7)
    summary = summarise(read(export.sqlite(tmp_path / "y.sqlite")))
    places = _places(export, tmp_path)
    assert (places[1], places[3]) == (("forward", "block_0", "exact"), ("backward", "block_0", "linked"))
    phases = summary.sections["phases"].set_index("phase")
    assert phases["kernel_calls"].to_dict() == {"setup": 1, "forward": 1, "loss": 1, "backward": 1}
    assert phases["inferred_share"]["loss"] == 1


def _with_set_up(export, *, phase="forward", step=None, process=1) -> None:
    """PyTorch's operations begin at 100, and the first phase at 500."""
    where = {"process": process}
    for at in (99, 100, 499):
        export.launch(at, thread=9, **where)
    _operation(export, "aten::cat", 100, kernel=False, long=1, **where)
    _operation(export, "aten::randn", 300, **where)
    if step:
        export.push("step", *step, **where)
    export.push(phase, 500, 600, **where)
    export.launch(500, **where)
    export.launch(601, thread=9, **where)


def test_what_comes_before_the_first_step_is_set_up_to_the_nanosecond(export, tmp_path):
    _with_set_up(export)
    phases = [place[::2] for place in _places(export, tmp_path)]
    assert phases == [
        ("", "none"),
        ("setup", "phase"),
        ("setup", "phase"),
        ("setup", "phase"),
        ("forward", "exact"),
        ("", "none"),
    ]


@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_before_a_phase_that_no_step_begins_with_steps_may_be_unmarked(export, tmp_path, phase):
    _with_set_up(export, phase=phase)
    assert "setup" not in {place[0] for place in _places(export, tmp_path)}


def test_what_lies_in_a_step_is_no_set_up(export, tmp_path):
    _with_set_up(export, step=(200, 700))
    assert [place[0] for place in _places(export, tmp_path)] == ["", "setup", "", "", "forward", ""]


def test_without_operations_of_pytorch_steps_before_the_first_range_may_be_unmarked(export, tmp_path):
    export.push("init", 0, 100)
    export.launch(50)
    export.push("forward", 200, 300)
    export.launch(250)
    assert [place[0] for place in _places(export, tmp_path)] == ["", "forward"]


def test_set_up_is_that_of_its_process_and_the_sums_hold(export, tmp_path):
    _with_set_up(export)
    _with_set_up(export, process=2, phase="backward")
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite")))
    phases = summary.sections["phases"].set_index("phase")
    assert phases["kernel_calls"].to_dict() == {"setup": 3, "forward": 1, "backward": 1, "": 7}
    assert phases["kernel_ns"].sum() == summary.capture["kernel_ns"] and phases.loc["setup", "phase_share"] == 1
    assert sum(summary.coverage.values()) == pytest.approx(1)
    assert summary.coverage["phase"] == phases.loc["setup", "kernel_ns"] / summary.capture["kernel_ns"]
