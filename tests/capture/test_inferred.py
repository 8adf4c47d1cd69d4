"""Phases without ranges: from kernels and threads, always labelled, and only where a capture shows them."""

import random

import numpy as np
import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise

from .nsys_files import Export
from .profiles import profile

_FORWARD = ("indexSelectLargeIndex", "sgemm_tn", "add_kernel", "softmax_warp_forward", "nll_loss_forward")
_BACKWARD = ("nll_loss_backward", "softmax_warp_backward", "sgemm_nt", "sgemm_nn", "embedding_backward_feature_kernel")
_FUSED = ("multi_tensor_apply_kernel<FusedAdamMathFunctor>",) * 2
_PER_TENSOR = ("add_kernel", "mul_kernel", "addcmul_cuda_kernel", "sqrt_kernel", "addcdiv_cuda_kernel")
_CLIP = (
    "multi_tensor_apply_kernel<LpNormFunctor>",
    "lpnorm_cleanup",
    "reduce_kernel",
    "multi_tensor_apply_kernel<BinaryOpScalarTensorFunctor>",
)
_HAND_WRITTEN = ("elementwise_kernel<mul>", "elementwise_kernel<add>") * 20


class _Program:
    """Launches kernels one after the other; what phase each is of is known by its stream."""

    def __init__(self, process=1):
        self.export, self.at, self.process = Export(), 0, process
        self.truth: list[str] = []

    def run(self, phase, names, *, thread=1):
        for name in names:
            self.at += 100
            self.export.launch(self.at, start=self.at + 20, name=name, thread=thread, process=self.process)
            self.truth.append(phase)

    def step(self, *, backward_thread=2, clip=(), optimizer=_FUSED, forward=_FORWARD, zero_grad=()):
        self.run("forward", forward)
        self.run("backward", _BACKWARD, thread=backward_thread)
        self.run("clip", clip)
        self.run("optimizer", optimizer)
        self.run("zero_grad", zero_grad)

    def places(self, tmp_path):
        found = self.found(tmp_path)
        return found.kernels["phase"].astype(str).tolist(), set(found.kernels["attribution"].astype(str))

    def found(self, tmp_path):
        capture = read(self.export.sqlite(tmp_path / "x.sqlite"))
        return infer_phases(capture, attribute(capture))


@pytest.fixture
def program():
    return _Program()


@pytest.mark.parametrize("optimizer", [_FUSED, _PER_TENSOR * 3, _HAND_WRITTEN])
def test_backward_is_what_autograds_thread_launches(program, tmp_path, optimizer):
    for _ in range(3):
        program.step(optimizer=optimizer)
    assert program.places(tmp_path) == (program.truth, {"inferred"})


def test_clipping_comes_before_the_optimizer(program, tmp_path):
    for _ in range(2):
        program.step(clip=_CLIP)
    assert program.places(tmp_path)[0] == program.truth


def test_gradients_set_to_zero_by_one_kernel_are_told(program, tmp_path):
    for _ in range(2):
        program.step(zero_grad=["multi_tensor_apply_kernel<ZeroFunctor<float>>"])
    assert program.places(tmp_path)[0] == program.truth


def test_steps_that_gather_gradients_have_no_optimizer(program, tmp_path):
    for _ in range(2):
        program.step(optimizer=())
        program.step()
    assert program.places(tmp_path)[0] == program.truth


def test_a_short_run_of_elementwise_kernels_after_backward_is_no_optimizer(program, tmp_path):
    for _ in range(3):
        program.step(optimizer=(), forward=("elementwise_kernel<add>", *_FORWARD))
    assert set(program.places(tmp_path)[0]) == {"forward", "backward"}


def test_the_copy_of_the_next_batch_ends_the_optimizer(program, tmp_path):
    for _ in range(3):
        program.run("forward", ("elementwise_kernel<add>", *_FORWARD))
        program.run("backward", _BACKWARD, thread=2)
        program.run("optimizer", _HAND_WRITTEN)
        program.at += 100
        call = program.export.call(program.at, program.at + 2, name="cudaMemcpyAsync_v3020")
        program.export.copy(program.at + 5, program.at + 9, call)
    assert program.places(tmp_path)[0] == program.truth


def test_what_makes_the_model_is_not_forward(program, tmp_path):
    program.run("", ["distribution_elementwise_grid_stride_kernel<normal_and_transform>"] * 8 + ["fill_kernel"] * 2)
    for _ in range(2):
        program.step()
    phases, labels = program.places(tmp_path)
    assert phases == program.truth
    assert labels == {"inferred", "none"}


def test_one_thread_is_divided_by_kernels_that_say_what_they_are(program, tmp_path):
    for _ in range(3):
        program.step(backward_thread=1, optimizer=_PER_TENSOR * 3)
    assert program.places(tmp_path) == (program.truth, {"inferred"})


def test_on_one_thread_forward_after_backward_stays_unknown(program, tmp_path):
    """It may be a checkpoint, which runs forward again in backward."""
    program.step(backward_thread=1)
    program.run("forward", _FORWARD)
    program.run("backward", ["nll_loss_backward", "softmax_warp_forward", *_BACKWARD])
    program.run("forward", ["softmax_warp_forward"])
    program.run("backward", _BACKWARD)
    program.run("optimizer", _FUSED)
    phases, _ = program.places(tmp_path)
    wrong = [(told, true) for told, true in zip(phases, program.truth) if told not in ("", true)]
    assert not wrong
    assert "" in phases


@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_that_only_runs_forward_is_forward(program, tmp_path, threads):
    """Kernels of forward are there whose counterparts in backward are not."""
    for _ in range(3):
        for thread in range(threads):
            program.run("forward", _FORWARD, thread=1 + thread)
    assert program.places(tmp_path) == (program.truth, {"inferred"})


def test_what_makes_the_model_of_inference_and_what_follows_it_is_not_forward(program, tmp_path):
    program.run("", ["distribution_elementwise_grid_stride_kernel<normal_and_transform>"] * 8 + ["fill_kernel"] * 20)
    for _ in range(3):
        program.run("forward", ("sgemm_tn", "softmax_warp_forward", "sgemm_tn"))
        program.run("forward", ["distribution_elementwise_grid_stride_kernel<uniform_and_transform>"])  # samples
    program.run("", ["elementwise_kernel<add>"] * 20)
    phases, _ = program.places(tmp_path)
    wrong = [number for number, (told, true) in enumerate(zip(phases, program.truth)) if told != true]
    assert len(wrong) <= 3, "at each end as many as lie between two of forward's own may be its"
    assert phases[:8] == [""] * 8 and phases[-10:] == [""] * 10


@pytest.mark.parametrize("names", [("sgemm_tn", "add_kernel"), ("my_kernel",)])
def test_without_traces_of_a_phase_nothing_is_inferred(program, tmp_path, names):
    for _ in range(3):
        program.run("", names)
    assert program.places(tmp_path) == (program.truth, {"none"})


def test_processes_stand_alone(tmp_path):
    """Two ranks at the same time, one a little late; what one launches is nothing to the other."""
    first, second = _Program(process=1), _Program(process=2)
    second.export, second.at = first.export, 33
    rng = random.Random(1)
    for _ in range(3):
        for program in rng.sample([first, second], 2):
            program.step(optimizer=_PER_TENSOR * 2)
    third = _Program(process=3)
    third.export, third.at = first.export, 55
    third.run("forward", _FORWARD * 9)
    capture = read(first.export.sqlite(tmp_path / "x.sqlite"))
    found = infer_phases(capture, attribute(capture)).kernels["phase"].astype(str)
    for program in (first, second, third):
        assert found[capture.kernels["process"] == 0x1000000 + program.process].tolist() == program.truth


def test_a_phase_that_a_range_marks_is_not_inferred(program, tmp_path):
    """Only the optimizer has no range here, and only it is inferred."""
    for _ in range(3):
        begin = program.at + 50
        program.run("forward", _FORWARD)
        program.export.push("forward", begin, program.at + 50)
        begin = program.at + 50
        program.run("backward", _BACKWARD, thread=2)
        program.export.push("backward", begin, program.at + 50)
        program.run("optimizer", _FUSED)
        program.run("", ["sgemm_tn"])
    found = program.found(tmp_path).kernels
    assert found["phase"].astype(str).tolist() == program.truth
    assert found.groupby("phase", observed=True)["attribution"].agg(set).to_dict() == {
        "forward": {"exact"},
        "backward": {"phase"},
        "optimizer": {"inferred"},
        "": {"none"},
    }


def test_rollouts_of_a_script_that_was_followed_have_no_phase(program, tmp_path):
    """PPO launched seven of eight kernels between its updates: they were forward, and its step's largest part."""
    for prefix in ("", "modules:"):
        for _ in range(2):
            program.run("", _FORWARD * 8)
            for phase, names, thread in (
                ("forward", _FORWARD, 1),
                ("backward", _BACKWARD, 2),
                ("optimizer", _FUSED, 1),
            ):
                begin = program.at + 50
                program.run(phase, names, thread=thread)
                program.export.push(f"{prefix}{phase}", begin, program.at + 50)
    assert program.found(tmp_path).kernels["phase"].astype(str).tolist() == program.truth


def test_coverage_sums_to_one_and_phases_say_what_is_inferred(program, tmp_path):
    for _ in range(2):
        program.step()
    summary = summarise(read(program.export.sqlite(tmp_path / "x.sqlite")))
    assert summary.coverage == {"exact": 0, "early": 0, "linked": 0, "phase": 0, "inferred": 1, "none": 0}
    phases = summary.sections["phases"]
    assert phases["inferred_share"].tolist() == [1] * 3
    assert phases["host_ns"].isna().all()
    assert phases["kernel_ns"].sum() == summary.capture["kernel_ns"]


@pytest.mark.parametrize("name", ["train_threads", "train", "train_tf32", "train_bf16_sdpa"])
def test_inferred_phases_are_those_that_ranges_tell(name):
    """A capture with ranges, read without them."""
    capture = read(profile(name))
    truth = attribute(capture).kernels["phase"].astype(str).replace("loss", "forward").to_numpy()
    capture.ranges = capture.ranges.iloc[:0]
    found = infer_phases(capture, attribute(capture)).kernels
    duration = (capture.kernels["end_ns"] - capture.kernels["start_ns"]).to_numpy()
    told = found["phase"].astype(str).to_numpy()
    assert np.sum(duration[told == truth]) / duration.sum() > 0.995
    assert set(found["attribution"][found["phase"] != ""]) == {"inferred"}
