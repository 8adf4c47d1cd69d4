"""Predictions compared with runs that were recorded with the change. Errors here are of pairs that the rates know."""

import dataclasses

import pytest

from profiler_job.analysis.prediction import development, predict
from profiler_job.analysis.prediction.abstentions import AbstentionCode
from profiler_job.analysis.prediction.predict import Abstention, Prediction
from tests.prediction.conftest import no_host_times

BEFORE = "{}-ctx512-fp32-naive-train_step"
SIZES = ("small", "medium", "large", "xl", "2.7B")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_precision_is_predicted(run, shipped, size, precision):
    said = predict.predict(run("precision", BEFORE.format(size)), [precision], shipped)
    measured = run("precision", BEFORE.format(size).replace("fp32", precision)).step_ns
    assert said.step_ns == pytest.approx(measured, rel=0.08)
    assert said.ceiling_ns <= said.low_ns <= said.step_ns <= said.high_ns
    assert said.ceiling_ns < measured


@pytest.mark.parametrize("size", SIZES)
def test_fused_adamw_is_predicted_without_host_times(run, shipped, size):
    """The recording is older than the host's issue times: the other phases stay as they are."""
    before = f"{size}-ctx128-fp32-naive-train_step"
    said = predict.predict(run("optimizer", before), ["fused_adamw"], shipped)
    measured = run("optimizer", f"{before}-adamw_fused").step_ns
    assert said.step_ns == pytest.approx(measured, rel=0.12)
    assert said.ceiling_ns < measured


@pytest.mark.parametrize("size", ["small", "xl"])
def test_fused_attention_is_predicted_in_fp32(run, shipped, size):
    said = predict.predict(run("default", BEFORE.format(size)), ["fused_attention"], shipped)
    measured = run("ladder_attention_fp32", f"{size}-ctx512-fp32-sdpa-train_step").step_ns
    assert said.step_ns == pytest.approx(measured, rel=0.08)
    assert said.ceiling_ns < measured


@pytest.mark.parametrize("case", ["medium-ctx1024", "xl-ctx512", "2.7B-ctx1024"])
@pytest.mark.parametrize(("name", "value"), [("compile", "default"), ("cuda_graphs", "cudagraphs")])
def test_compiling_is_predicted_on_top_and_as_a_set(run, shipped, case, name, value):
    measured = run("ladder_compile", f"{case}-bf16-sdpa-train_step-compile_{value}-adamw_fused").step_ns
    above = run("bf16", f"{case}-bf16-sdpa-train_step-adamw_fused")
    below = run("default", f"{case}-fp32-naive-train_step")
    for before, names in ((above, ()), (below, ("bf16", "fused_attention", "fused_adamw"))):
        said = predict.predict(before, [*names, name], shipped)
        assert said.step_ns == pytest.approx(measured, rel=0.10)
        assert said.low_ns <= measured <= said.high_ns and said.ceiling_ns < measured


def test_a_larger_batch_takes_about_as_long_as_a_longer_context(run, shipped):
    """With fused attention the same tokens differ by attention alone. No run with another batch is recorded."""
    facts = {"peak_memory_bytes": 40e9, "gpu_memory_bytes": 150e9}
    for case, longer in (("2.7B-ctx256", "2.7B-ctx512"), ("xl-ctx512", "xl-ctx1024")):
        before, after = (run("bf16", f"{at}-bf16-sdpa-train_step-adamw_fused") for at in (case, longer))
        said = predict.predict(dataclasses.replace(before, run=dict(before.run) | facts), ["larger_batch"], shipped)
        assert 0.9 < said.step_ns / after.step_ns < 1.0
        assert said.work == 2


@pytest.mark.parametrize("size", SIZES)
def test_fused_attention_is_predicted_in_bf16(run, shipped, size):
    before = run("precision", BEFORE.format(size).replace("fp32", "bf16"))
    said = predict.predict(before, ["fused_attention", "fused_adamw"], shipped)
    measured = run("bf16", f"{size}-ctx512-bf16-sdpa-train_step-adamw_fused").step_ns
    assert said.step_ns == pytest.approx(measured, rel=0.10)


def test_a_set_is_no_sum(run, shipped):
    """Each alone leaves the host to limit the step; the gains of both together are not the sum of their gains."""
    before = run("default", BEFORE.format("small"))
    alone = [predict.predict(before, [name], shipped).step_ns for name in ("bf16", "fused_adamw")]
    both = predict.predict(before, ["fused_attention", "bf16", "fused_adamw"], shipped)
    assert both.changes == ("bf16", "fused_attention", "fused_adamw")
    assert both.step_ns < min(alone)
    assert both.limited_by == "host"


def test_a_phase_that_is_not_touched_is_as_measured(run, shipped):
    before = run("default", BEFORE.format("xl"))
    said = predict.predict(before, ["fused_adamw"], shipped)
    gained = before.clocks["optimizer"].wall_ns - (before.step_ns - said.step_ns)
    busy = run("bf16", "xl-ctx512-bf16-sdpa-train_step-adamw_fused").clocks["optimizer"].wall_ns
    assert gained == pytest.approx(busy, rel=0.05)
    assert [reason.split()[0] for reason in said.reasons] == ["optimizer"]


@pytest.mark.parametrize(
    ("recording", "run_id", "names", "code"),
    [
        ("precision", "small-ctx512-bf16-naive-train_step", ["bf16"], AbstentionCode.ALREADY_MADE),
        ("precision", "small-ctx512-tf32-naive-train_step", ["bf16"], AbstentionCode.OTHER_PRECISION),
        ("bf16", "small-ctx512-bf16-sdpa-forward-adamw_fused", ["fused_attention"], AbstentionCode.ALREADY_MADE),
        ("precision", "small-ctx512-tf32-naive-train_step", ["fused_attention"], AbstentionCode.NO_PAIR),
        ("default", "small-ctx512-fp32-naive-train_step", ["compile"], AbstentionCode.NO_PAIR),
        ("bf16", "small-ctx512-bf16-sdpa-forward-adamw_fused", ["compile"], AbstentionCode.OTHER_MODE),
        ("default", "small-ctx512-fp32-naive-train_step", ["compile", "cuda_graphs"], AbstentionCode.ONE_CHOICE),
        ("default", "small-ctx512-fp32-naive-train_step", ["larger_batch"], AbstentionCode.MEMORY_UNKNOWN),
        ("default", "small-ctx512-fp32-naive-train_step", ["padding"], AbstentionCode.NO_MODEL),
        ("default", "small-ctx512-fp32-naive-forward", ["fused_adamw"], AbstentionCode.OTHER_MODE),
        ("bf16", "small-ctx512-bf16-sdpa-train_step-adamw_fused", ["fused_adamw"], AbstentionCode.ALREADY_MADE),
        ("optimizer", "small-ctx128-fp32-naive-train_step", ["bf16"], AbstentionCode.MODULES_UNKNOWN),
        ("default", "small-ctx512-fp32-naive-train_step", ["tf32", "bf16"], AbstentionCode.ONE_CHOICE),
        ("default", "small-ctx512-fp32-naive-train_step", ["faster"], AbstentionCode.UNKNOWN_CHANGE),
        ("default", "small-ctx512-fp32-naive-train_step", [], AbstentionCode.NO_CHANGE),
    ],
)
def test_it_abstains_with_a_reason(run, shipped, recording, run_id, names, code):
    said = predict.predict(run(recording, run_id), names, shipped)
    assert isinstance(said, Abstention) and said.code is code
    assert said.reason and "\n" not in said.reason


@pytest.mark.parametrize("name", ["tf32", "bf16", "fused_adamw"])
def test_of_somebody_elses_program_nothing_is_predicted(run, shipped, name):
    """A profiled script has the default of every axis in its row: reference AdamW it need not have."""
    before = run("default", BEFORE.format("small"))
    theirs = dataclasses.replace(before, run=dict(before.run) | {"workload": "script"})
    assert predict.predict(theirs, [name], shipped).code is AbstentionCode.OTHER_WORKLOAD


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"gpu_name": "NVIDIA A100"}, AbstentionCode.OTHER_GPU),
        ({"gpus": 2}, AbstentionCode.SEVERAL_GPUS),
        ({"workload": "hf"}, AbstentionCode.OTHER_WORKLOAD),
        ({"compile": "default"}, AbstentionCode.NO_PAIR),
    ],
)
def test_it_abstains_for_other_programs_and_machines(run, shipped, facts, code):
    before = run("default", BEFORE.format("small"))
    said = predict.predict(dataclasses.replace(before, run=dict(before.run) | facts), ["bf16"], shipped)
    assert said.code is code


def test_it_abstains_without_errors_of_other_sizes(run, shipped):
    errors = [error for error in shipped.errors if error["size"] == "small"]
    few = dataclasses.replace(shipped, errors=errors, tested=())
    said = predict.predict(run("default", BEFORE.format("small")), ["bf16"], few)
    assert said.code is AbstentionCode.FEW_PAIRS


def test_without_host_times_the_host_is_as_in_the_recorded_runs(run, shipped):
    before = run("default", BEFORE.format("large"))
    said = predict.predict(no_host_times(before), ["bf16"], shipped)
    assert isinstance(said, Prediction)
    assert predict.host_speed(no_host_times(before), shipped) == 1


def test_no_recorded_pair_beats_its_ceiling_and_the_errors_are_those_that_are_told(shipped):
    predicted = [error for error in shipped.errors if "ratio" in error]
    assert len(predicted) >= 80
    assert not [error for error in predicted if error["measured_ns"] < error["ceiling_ns"]]
    off = sorted(abs(1 / error["ratio"] - 1) for error in predicted)
    assert off[len(off) // 2] < 0.08
    assert off[int(0.9 * len(off))] < 0.20


@pytest.mark.nightly
def test_the_shipped_rates_are_made_of_these_runs(recorded, shipped):
    """Which are the same recordings, times rounded to ns; steps compiled in FP32 are predicted as in scripts."""
    known = [runs for name, runs in recorded.items() if name != "compile_larger"]
    made = development.develop_rates(known, shipped.peaks, shipped.gpu)
    assert made.times.keys() == shipped.times.keys()
    for mine, theirs in zip(made.errors, shipped.errors, strict=True):
        assert mine.get("reason") == theirs.get("reason")
        assert mine.get("ratio", 0) == pytest.approx(theirs.get("ratio", 0), rel=1e-3)
