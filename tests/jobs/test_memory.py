"""Predicted memory: what needs more, what a step of a run needs, and what a plan prints."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from profiler_job.analysis.metrics import device_memory
from profiler_job.jobs import memory
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from tests import frozen

SWEEP = load_sweep(DEFAULT_SWEEP)
SIZE = {"d_model": 64, "d_ff": 256, "num_layers": 3, "num_heads": 4, "vocab_size": 100}
SIZE |= {"context_length": 256, "batch_size": 2}


def change(run: Run, **fields) -> Run:
    return Run(**run.model_dump() | fields)


def plan(*arguments) -> list[str]:
    command = [sys.executable, "-m", "profiler_job", "plan", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_plan_without_a_limit_marks_nothing():
    assert not any("will not fit" in line for line in plan("--only", "size=small"))


def test_adams_state_is_there_from_the_second_step_on():
    run = next(run for run in SWEEP.runs if run.mode == "train_step")
    first, second, third = (memory.predict_peaks(run, step) for step in range(3))
    assert first["forward"] + 8 * run.num_parameters < second["forward"] * 1.01
    assert second == third


def test_what_does_not_fit_at_all_fails_while_it_is_built():
    run = SWEEP.runs[0]
    assert memory.predict_failure(run, 100 * memory.MIB) == (0, "build")
    assert memory.predict_failure(run, memory.GIB) is None


def test_a_run_fits_what_it_reserves_and_not_less_than_its_peak():
    run = next(run for run in SWEEP.runs if run.mode == "train_step")
    reserved = memory.predict_outcome(memory.infer_shape(run)).reserved
    assert memory.predict_failure(run, reserved) is None
    assert memory.predict_failure(run, memory.predict_peak_bytes(run) - 1) is not None


def test_runs_that_need_the_same_are_predicted_once():
    run = next(run for run in SWEEP.runs if run.mode == "forward_backward")
    for fields in ({"precision": "tf32"}, {"optimizer": "fused"}, {"repeat": 1}, {"compile": "default"}):
        assert memory.infer_shape(change(run, **fields)) == memory.infer_shape(run)
    of_bf16 = {a: memory.infer_shape(change(run, precision="bf16", attention=a)) for a in ("sdpa", "flash", "cudnn")}
    assert len(set(of_bf16.values())) == 1
    fused = [memory.infer_shape(change(run, attention=attention)) for attention in ("sdpa", "efficient")]
    assert fused[0] == fused[1] != of_bf16["flash"]


@pytest.mark.long
def test_the_runs_that_need_most_are_predicted_first():
    shapes = [memory.infer_shape(run) for run in SWEEP.runs]
    first = memory.find_most_demanding(shapes)
    assert set(first) == set(shapes)
    assert first[0] == shapes[-1]
    needed = [max(memory.predict_outcome(shape).peaks[1].values()) for shape in first]
    larger = [before / now for before, now in pairwise(needed)]
    assert min(larger) > 0.5, "the order is about the order by memory"


@pytest.mark.parametrize("run", SWEEP.runs[2::9], ids=lambda run: run.run_id)
def test_more_work_is_predicted_to_need_more(run):
    for bigger in (
        change(run, context_length=2 * run.context_length),
        change(run, num_layers=2 * run.num_layers),
        change(run, batch_size=2 * run.batch_size),
    ):
        assert memory.predict_memory_bytes(bigger) > memory.predict_memory_bytes(run) * 0.999
    assert memory.predict_memory_bytes(change(run, attention="sdpa")) <= memory.predict_memory_bytes(run)


def test_the_peaks_of_recorded_runs_are_predicted():
    """Within one percent, and to the byte for forward passes. Compiled runs are not predicted."""
    runs = frozen.load("one_gpu").runs.query("compile == 'off'")
    errors = {}
    for row in runs.itertuples():
        run = Run(**{field: getattr(row, field) for field in Run.model_fields})
        errors[row.run_id] = memory.predict_peak_bytes(run) / row.peak_memory_bytes - 1
    assert len(errors) == 12 and max(map(abs, errors.values())) < 0.01
    of_forward = [error for run_id, error in errors.items() if run_id.endswith("-forward")]
    assert of_forward == [0, 0, 0]


def test_the_timeline_of_a_step_peaks_in_each_phase_where_the_prediction_does():
    run = next(run for run in SWEEP.runs if run.mode == "train_step")
    step = memory.predict_owners(memory.infer_shape(run))
    assert step.phases == memory.predict_peaks(run, 1)
    assert (step.phase, step.allocated) == max(step.timeline, key=lambda change: change[1])
    assert sum(step.owners.values()) == step.allocated


def test_memory_at_the_peak_is_predicted_by_owner():
    """FP32 with eager attention peaks in backward, when the first gradients are there and most activations."""
    run = change(SWEEP.runs[0], **SIZE, mode="train_step")
    step, owner = memory.predict_owners(memory.infer_shape(run)), memory.Owner
    num_parameters = memory.ModelSize(64, 256, 3, 4).num_parameters(100)
    assert step.phase == "backward"
    assert step.owners[owner.PARAMETERS] == 4 * num_parameters
    assert step.owners[owner.OPTIMIZER_STATE] == 8 * num_parameters
    assert 0 < step.owners[owner.GRADIENTS] < 4 * num_parameters
    assert sum(step.activations.values()) == step.owners[owner.ACTIVATIONS]
    scores = 4 * 2 * 4 * 256 * 256  # bytes of a matrix of scores: batch 2, 4 heads
    assert scores < step.activations["block_0/attention/softmax"] == step.activations["block_2/attention/softmax"]
    assert owner.CASTS not in step.owners


def test_copies_of_weights_by_autocast_have_an_owner_of_their_own():
    run = change(SWEEP.runs[0], **SIZE, mode="forward", precision="bf16")
    step = memory.predict_owners(memory.infer_shape(run))
    blocks, projections = 2 * (4 * 64 * 64 + 3 * 64 * 256), 3 * 64 * 64
    assert step.owners[memory.Owner.CASTS] == 2 * (blocks + projections), "it peaks in attention of the last block"
    assert memory.Owner.GRADIENTS not in step.owners


def test_each_owner_of_recorded_runs_is_predicted_within_five_percent():
    rec = frozen.load("one_gpu")
    probes = device_memory.read_probes(rec.memory, rec.figures)
    runs = device_memory.plain_runs(rec.runs)
    cells = device_memory.predict_owners(runs).merge(probes, on="run_id")
    errors = device_memory.find_owner_errors(cells)
    assert len(errors) == 7 and errors.max() < 0.05


def test_what_frees_memory_frees_what_it_is_about():
    """A step that peaks in backward, with large activations and a large vocabulary."""
    run = change(SWEEP.runs[0], **SIZE | {"vocab_size": 20_000, "num_layers": 8}, mode="train_step")
    shape = memory.infer_shape(run)
    now = memory.predict_peak_bytes(run)
    peaks = {name: memory.predict_relieved_peak(shape, relief) for name, relief in memory.CHANGES.items()}
    num_parameters = memory.ModelSize(64, 256, 8, 4).num_parameters(20_000)
    logits = 4 * 2 * 256 * 20_000
    assert now - peaks["fused loss"] > 1.5 * logits
    assert now - peaks["optimizer state in BF16"] == pytest.approx(4 * num_parameters, rel=0.05)
    assert peaks["all of these"] == min(peaks.values())
    few_words = shape._replace(vocab_size=100)
    each, every_two, every_four = [memory.predict_relieved_peak(few_words, memory.Relief(k)) for k in (1, 2, 4)]
    assert each < every_two < every_four < memory.predict_relieved_peak(few_words, memory.Relief())


@pytest.mark.long
def test_checkpointing_each_block_needs_the_least_memory_in_the_models_of_the_class():
    for run in SWEEP.runs:
        if run.mode == "train_step" and run.context_length == 1024:
            shape = memory.infer_shape(run)
            peaks = [memory.predict_relieved_peak(shape, memory.Relief(segment)) for segment in (1, 2, 3, 4, 6, 8)]
            assert peaks == sorted(peaks), run.run_id
