"""Losses after training: of a run itself, of a run for losses alone, and of a model with dropout off."""

from types import SimpleNamespace

import pandas as pd
import pytest

from profiler_job.analysis.metrics import trained_losses
from profiler_job.jobs.contract.axes import Run

OFF = "resid_pdrop=0.0, attn_pdrop=0.0"
PADDED, AS_IS = "vocab_size=50304", "vocab_size=50257"
LOSSES = [*trained_losses.TRAINED, *trained_losses.BEFORE]


def run_of(options: str = "", **settings) -> dict:
    point = {"size": "gpt2", "context_length": 64, "mode": "train_step", "precision": "fp32", "attention": "naive"}
    run = Run(**point | settings, workload="hf", workload_options=options)
    return run.model_dump() | {"run_id": run.run_id, "gpu_name": "NVIDIA H100"}


def recording(*runs: tuple[dict, float, float]) -> SimpleNamespace:
    """Runs with their losses after training, and with the losses of their plain runs."""
    figures = [
        {"run_id": run["run_id"], "figure": name, "value": value}
        for run, *values in runs
        for name, value in zip(trained_losses.TRAINED, values)
    ]
    return SimpleNamespace(runs=pd.DataFrame([run for run, *_ in runs]), figures=pd.DataFrame(figures))


def measured(*runs: dict, **losses: float) -> pd.DataFrame:
    rows = pd.DataFrame(runs).assign(**dict.fromkeys(LOSSES, float("nan")), trained_on=None)
    return rows.assign(**losses, **({"trained_on": "NVIDIA H200"} if losses else {}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (OFF, ""),
        (f"{AS_IS}, {OFF}", AS_IS),
        (f"resid_pdrop=0.0, {AS_IS}", AS_IS),
        ("resid_pdrop=0.2", "resid_pdrop=0.2"),
        (AS_IS, AS_IS),
        ("", ""),
    ],
)
def test_a_run_has_the_id_of_the_one_whose_dropout_is_not_turned_off(options, said):
    run, as_it_is = (run_of(text, optimizer="fused", compile="default") for text in (options, said))
    assert trained_losses.id_as_it_is(run["run_id"], options) == as_it_is["run_id"]


def test_losses_of_a_model_with_dropout_are_of_runs_without_it():
    ladder_steps = measured(
        run_of(AS_IS, precision="bf16"), run_of(AS_IS, precision="tf32"), run_of(PADDED, precision="bf16")
    )
    losses = recording((run_of(f"{AS_IS}, {OFF}", precision="bf16"), 9.9, 10.0))
    rows = trained_losses.join_losses(ladder_steps, losses)
    assert rows["trained_millionths"].tolist()[0] == rows["numerics_millionths"].tolist()[0] == 10_000
    assert rows["no_dropout"].tolist() == [True, False, False]
    assert rows["trained_off"].isna().tolist() == [False, True, True], "of another precision, of another vocabulary"
    assert rows["trained_on"].tolist()[0] == "NVIDIA H100"


def test_another_rate_of_dropout_is_another_model():
    ladder_steps = measured(run_of("resid_pdrop=0.2", precision="bf16"))
    rows = trained_losses.join_losses(ladder_steps, recording((run_of(OFF, precision="bf16"), 9.9, 10.0)))
    assert rows["trained_off"].isna().all() and not rows["no_dropout"].any()


def test_losses_that_a_run_compared_itself_go_first():
    ladder_steps = measured(run_of(AS_IS, precision="bf16"), loss_trained=10.1, loss_trained_plain=10.0)
    rows = trained_losses.join_losses(ladder_steps, recording((run_of(f"{AS_IS}, {OFF}", precision="bf16"), 5.0, 10.0)))
    assert rows["trained_millionths"].tolist() == [10_000] and not rows["no_dropout"].any()
    assert rows["trained_on"].tolist() == ["NVIDIA H200"]


def test_of_two_runs_that_of_the_model_as_it_is_goes_first():
    """A model may drop nothing out by itself."""
    losses = recording((run_of(OFF, precision="bf16"), 5.0, 10.0), (run_of(precision="bf16"), 10.1, 10.0))
    rows = trained_losses.join_losses(measured(run_of(precision="bf16")), losses)
    assert rows["trained_millionths"].tolist() == [10_000] and not rows["no_dropout"].any()


def test_fused_adamw_is_held_against_its_formula_with_the_same_vocabulary():
    fused = [run_of(options, optimizer="fused") for options in (AS_IS, PADDED)]
    off = {options: f"{options}, {OFF}" for options in (AS_IS, PADDED)}
    losses = recording(
        (run_of(off[AS_IS], optimizer="fused"), 9.0, 10.0),
        (run_of(off[PADDED], optimizer="fused"), 7.2, 8.0),
        (run_of(off[AS_IS], optimizer="loop"), 9.0 * 1.0001, 10.0),
        (run_of(off[PADDED], optimizer="loop"), 7.2, 8.0),
    )
    rows = trained_losses.join_losses(measured(*fused), losses)
    assert rows["trained_off"].tolist() == pytest.approx([0.1, 0.1])
    assert rows["numerics_millionths"].tolist() == [100, 0]
    assert rows["formula_on"].tolist() == ["NVIDIA H100"] * 2


@pytest.mark.parametrize(("plain", "is_same"), [(10.0, True), (10.00003, True), (10.01, False)])
def test_a_loop_that_began_from_other_weights_says_nothing_of_fusing(plain, is_same):
    """A GPU of another kind may draw others; that a plain loss is rounded otherwise there is no such difference."""
    fused = measured(run_of(optimizer="fused"), loss_trained=9.0, loss_trained_plain=10.0)
    rows = trained_losses.join_losses(fused, recording((run_of(optimizer="loop"), 9.0, plain)))
    assert rows["numerics_off"].notna().tolist() == [is_same] and rows["trained_off"].notna().all()
    assert (rows["formula_on"].tolist() == ["NVIDIA H100"]) == is_same


def test_without_a_loop_or_without_losses_at_all_nothing_is_said_of_fusing():
    fused = measured(run_of(optimizer="fused"), loss_trained=9.0, loss_trained_plain=10.0)
    own = measured(run_of(precision="bf16"), loss_trained=9.9, loss_trained_plain=10.0)
    for losses in (None, recording((run_of(precision="tf32"), 9.0, 10.0))):
        rows = trained_losses.join_losses(pd.concat([fused, own], ignore_index=True), losses)
        assert rows["numerics_off"].isna().tolist() == [True, False]
