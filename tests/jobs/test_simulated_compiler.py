"""What a compiled model keeps, simulated without compiling."""

import pytest

from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep

pytest.importorskip("torch")

from profiler_job.jobs.worker import simulation
from profiler_job.jobs.worker.simulation import simulate, simulate_whole

SMALL = {"d_model": 32, "d_ff": 64, "num_layers": 7, "num_heads": 2, "vocab_size": 50, "context_length": 16}
RUN = next(run for run in load_sweep(DEFAULT_SWEEP).runs if run.mode == "train_step").model_copy(update=SMALL)


def peaks_of(run, **changes):
    return simulate(run.model_copy(update=changes).model_dump())["peaks"][1]


pytestmark = pytest.mark.long  # Inductor makes its patterns for half a minute


@pytest.mark.parametrize("compiled", ["default", "cudagraphs"])
def test_a_compiled_step_keeps_less(compiled):
    eager, less = peaks_of(RUN), peaks_of(RUN, compile=compiled)
    assert list(less) == ["forward", "loss", "backward", "optimizer"]
    assert less["forward"] < 0.95 * eager["forward"]
    assert less["optimizer"] == pytest.approx(eager["optimizer"], rel=0.05)


def test_layers_that_are_not_simulated_add_as_much_as_the_others():
    run = RUN.model_copy(update={"compile": "default"}).model_dump()
    assert simulate(run)["peaks"][1] == pytest.approx(simulate_whole(run)["peaks"][1], rel=1e-3)
    assert simulate(run)["num_parameters"] == simulate_whole(run)["num_parameters"]


def test_what_cannot_be_traced_needs_at_most_what_it_needs_uncompiled(monkeypatch):
    run = RUN.model_copy(update={"compile": "default"}).model_dump()

    def refuse(asked):
        if asked["compile"] != "off":
            raise ImportError("cannot import name 'lazy_init'")
        return {"peaks": [{"forward": 9}], "num_parameters": 1}

    monkeypatch.setattr(simulation, "simulate", refuse)
    assert simulation.answer(run)["peaks"] == [{"forward": 9}]
