import numpy as np
import pytest

from profiler_job.analysis.answers.capture_steps import BY_PHASES, BY_RANGES, BY_REPETITION, find_period, find_steps
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.jobs.contract import ranges as vocabulary
from tests.answers.class_captures import FORWARD, GEMM, MUL, make_capture, make_step
from tests.capture.nsys_files import Export


def steps_of(path, **more):
    return find_steps(read(path), {}, **more)


@pytest.mark.parametrize("mode", ["forward", "forward_backward", "train_step"])
def test_phases_with_ranges_are_steps_of_their_mode(mode, tmp_path):
    found = steps_of(make_capture(tmp_path / "a.sqlite", mode))
    assert (found.modes, found.how) == ([mode], BY_RANGES)
    assert found.steps["number"].tolist() == [0, 1, 2, 3]


def test_steps_in_a_range_called_warm_up_are_left_out(tmp_path):
    found = steps_of(make_capture(tmp_path / "a.sqlite", warmup=3))
    assert found.steps["number"].tolist() == [-1, -1, -1, 0, 1, 2, 3]
    assert found.notes == ["3 steps of forward in a range called warm-up: left out"]


def test_slow_steps_at_the_start_are_left_out_unless_a_number_is_given(tmp_path):
    made, at = Export(), 1_000
    for slow in (4, 4, 1, 1, 1, 1):
        at = make_step(made, at, slow=slow)
    path = made.sqlite(tmp_path / "a.sqlite")
    assert steps_of(path).steps["number"].tolist() == [-1, -1, 0, 1, 2, 3]
    assert steps_of(path, warmup=0).steps["number"].tolist() == [0, 1, 2, 3, 4, 5]
    assert steps_of(path, warmup=4).steps["number"].tolist() == [-1, -1, -1, -1, 0, 1]


def test_a_capture_with_two_loops_has_two_modes(tmp_path):
    made, at = Export(), 1_000
    for mode in ("forward", "forward", "train_step", "train_step"):
        at = make_step(made, at, mode)
    found = steps_of(made.sqlite(tmp_path / "a.sqlite"))
    assert found.modes == ["forward", "train_step"]
    assert found.steps["number"].tolist() == [0, 1, 0, 1]


def test_a_range_called_step_that_holds_only_the_optimizer_is_the_optimizer(tmp_path):
    made = Export()
    for number in range(3):
        at = 1_000 + 10_000 * number
        for phase, start in (("forward", at), ("backward", at + 2_000), ("step", at + 4_000)):
            made.push(phase, start, start + 1_500)
            made.launch(start + 10, start=start + 50, end=start + 90, name=GEMM)
    found = steps_of(made.sqlite(tmp_path / "a.sqlite"))
    assert found.modes == ["train_step"] and len(found.steps) == 3
    assert "counts as the optimizer" in found.notes[0]


def test_without_ranges_forward_passes_come_from_their_repetition(tmp_path):
    path = make_capture(tmp_path / "a.sqlite", with_ranges=False)
    found = steps_of(path, stated="forward")
    assert (found.how, len(found.steps)) == (BY_REPETITION, 4)
    assert found.modes == ["forward"]


def test_without_ranges_training_steps_come_from_the_phases_of_kernels(tmp_path):
    made, at = Export(), 1_000
    for _ in range(4):
        for name in ("fwd_kernel_forward", GEMM, "x_backward", MUL, "multi_tensor_apply_kernel"):
            made.launch(at, start=at + 50, end=at + 90, name=name)
            at += 200
    found = steps_of(made.sqlite(tmp_path / "a.sqlite"))
    assert (found.how, found.modes) == (BY_PHASES, ["train_step"])


@pytest.mark.parametrize(
    ("codes", "found"),
    [
        ([9, 8, *[1, 2, 3, 2] * 4], (2, 4)),
        ([1, 2, 3, 4, 5, 6, 7, 8], (0, 0)),
        ([1, 2] * 2, (0, 0)),
        ([], (0, 0)),
    ],
)
def test_the_period_of_a_sequence(codes, found):
    assert find_period(np.array(codes, np.int64)) == found


def test_a_period_holds_what_is_needed():
    codes = np.array([7, *[1, 2, 3] * 5, 7, *[1, 2, 3] * 5])
    assert find_period(codes) == (17, 3)
    assert find_period(codes, [7]) == (0, 0)
    assert find_period(np.tile(codes, 2), [7]) == (0, 16)


def test_a_range_around_several_passes_is_split(tmp_path):
    made, kernels = Export(), [f"kernel_{number % 7}" for number in range(24)] + ["head"]
    for number, name in enumerate(kernels * 4):
        at = 1_000 + 100 * number
        made.launch(at, start=at + 50, end=at + 90, name=name)
    made.push("forward", 900, at + 100)
    found = steps_of(made.sqlite(tmp_path / "a.sqlite"))
    assert found.steps["number"].tolist() == [0, 1, 2, 3]
    assert found.notes == ["a range of forward holds 4 passes: split by the order of their kernels"]


def test_the_layers_of_one_pass_are_no_passes(tmp_path):
    made, kernels = Export(), ["embedding", *[f"kernel_{number % 25}" for number in range(202)]]
    for number, name in enumerate(kernels):
        at = 1_000 + 100 * number
        made.launch(at, start=at + 50, end=at + 90, name=name)
    made.push("forward", 900, at + 100)
    assert len(steps_of(made.sqlite(tmp_path / "a.sqlite")).steps) == 1


def test_a_warm_up_without_phases_is_left_out(tmp_path):
    made, at = Export(), 1_000
    for step in range(5):
        if step == 2:
            made.push("warmup", 900, at - 50)
        for name in ("fwd_kernel_forward", GEMM, "x_backward", MUL, "multi_tensor_apply_kernel"):
            made.launch(at, start=at + 50, end=at + 90, name=name)
            at += 200
    found = steps_of(made.sqlite(tmp_path / "a.sqlite"))
    assert found.steps["number"].tolist() == [-1, -1, 0, 1, 2]


def test_both_processes_leave_out_the_same_steps(tmp_path):
    made = Export()
    for process, slow in ((1, (4, 1, 1, 1, 1)), (2, (4, 4, 1, 1, 1))):
        at = 1_000
        for each in slow:
            at = make_step(made, at, process=process, slow=each)
    steps = steps_of(made.sqlite(tmp_path / "a.sqlite")).steps
    assert steps.groupby("process")["number"].max().tolist() == [2, 2]
    assert len(FORWARD) == 5


def test_the_modules_of_a_followed_step_are_no_passes(tmp_path):
    """A sweep's capture ends with a step in whose ranges modules are followed: each layer was a step of its own."""
    made = Export()
    for number, name in enumerate(["step", "step", f"{vocabulary.FOLLOWED}step"]):
        start = 10_000 * number
        made.push(name, start, start + 9_000)
        made.push("forward" if number < 2 else f"{vocabulary.FOLLOWED}forward", start + 100, start + 8_900)
        for layer in range(4):
            at = start + 1_000 + 1_000 * layer
            made.push("embedding" if layer == 0 else "attention", at - 50, at + 700)
            made.launch(at, start=at + 50, end=at + 90, name=f"kernel_{layer}")
    found = steps_of(made.sqlite(tmp_path / "a.sqlite"))
    assert found.how == BY_RANGES and found.steps["start_ns"].tolist() == [0, 10_000]
