"""What a compiled model keeps, simulated without compiling. Inductor makes its patterns for half a minute."""

import pytest

from profiler_job.jobs.memory import Owner, infer_shape, predict_owners
from profiler_job.jobs.memory.caching_allocator import MIB
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from profiler_job.jobs.worker import simulation
from profiler_job.jobs.worker.simulation import simulate, simulate_whole

SMALL = {"d_model": 32, "d_ff": 64, "num_layers": 7, "num_heads": 2, "vocab_size": 50, "context_length": 16}
RUN = next(run for run in load_sweep(DEFAULT_SWEEP).runs if run.mode == "train_step").model_copy(update=SMALL)


def peaks_of(run, **changes):
    return simulate(run.model_copy(update=changes).model_dump())["peaks"][1]


def owners_of(run, **changes):
    return simulate(run.model_copy(update=changes).model_dump())["owners"]


def test_the_peaks_of_a_step_are_divided_by_owner_as_the_reference_predicts():
    """In FP32, where no cast is kept. The gradient of logits is of the loss in one, and a temporary in the other."""
    run, owner = RUN.model_copy(update={"batch_size": 4}), Owner
    simulated, expected = simulate(run.model_dump()), predict_owners(infer_shape(run))
    assert {phase: sum(of_phase.values()) for phase, of_phase in simulated["owners"].items()} == simulated["peaks"][1]
    found = simulated["owners"][expected.phase]
    for name in (owner.PARAMETERS, owner.OPTIMIZER_STATE):
        assert found[name] == expected.left[name]
    assert found[owner.ACTIVATIONS] == pytest.approx(expected.owners[owner.ACTIVATIONS], rel=0.02)
    assert simulated["owners"]["optimizer"][owner.GRADIENTS] == found[owner.PARAMETERS]


def test_a_storage_counts_by_the_block_that_the_allocator_gives():
    """13 of 1.5 MiB fill a segment of 20 MiB but for 0.5 MiB, too little to be split off the last."""
    with FakeTensorMode(), simulation.LiveBytes() as counted:
        tensors = [torch.empty(3 * MIB // 2, dtype=torch.uint8) for _ in range(13)]
        assert counted.allocator.allocated == counted.peak == 20 * MIB
        tensors.pop()
        assert counted.allocator.allocated == 18 * MIB


@pytest.mark.long
@pytest.mark.parametrize("compiled", ["default", "cudagraphs"])
def test_a_compiled_step_keeps_less(compiled):
    eager, less = peaks_of(RUN), peaks_of(RUN, compile=compiled)
    assert list(less) == ["forward", "loss", "backward", "optimizer"]
    assert less["forward"] < 0.95 * eager["forward"]
    assert less["optimizer"] == pytest.approx(eager["optimizer"], rel=0.05)


@pytest.mark.long
def test_activations_alone_are_less():
    eager, compiled = owners_of(RUN)["forward"], owners_of(RUN, compile="default")["forward"]
    for owner in (Owner.PARAMETERS, Owner.OPTIMIZER_STATE):
        assert compiled[owner] == pytest.approx(eager[owner], rel=1e-3), owner
    assert compiled[Owner.ACTIVATIONS] < 0.9 * eager[Owner.ACTIVATIONS]


@pytest.mark.long
def test_the_first_step_needs_no_more_than_the_second():
    """It has no optimizer state yet. Tracing the graphs makes tensors, which no GPU would have."""
    first, second = simulate(RUN.model_copy(update={"compile": "default"}).model_dump())["peaks"]
    assert all(first[phase] <= second[phase] for phase in second)


@pytest.mark.long
def test_layers_that_are_not_simulated_add_as_much_as_the_others():
    run = RUN.model_copy(update={"compile": "default"}).model_dump()
    assert simulate(run)["peaks"][1] == pytest.approx(simulate_whole(run)["peaks"][1], rel=1e-3)
    assert simulate(run)["num_parameters"] == simulate_whole(run)["num_parameters"]


@pytest.mark.long
def test_what_cannot_be_traced_needs_at_most_what_it_needs_uncompiled(monkeypatch):
    run = RUN.model_copy(update={"compile": "default"}).model_dump()

    def refuse(asked):
        if asked["compile"] != "off":
            raise ImportError("cannot import name 'lazy_init'")
        return {"peaks": [{"forward": 9}], "num_parameters": 1}

    monkeypatch.setattr(simulation, "simulate", refuse)
    assert simulation.answer(run)["peaks"] == [{"forward": 9}]
