"""What to change first, and the recorded runs in which each change must not be advised."""

import re
from dataclasses import replace

import pytest

from profiler_job.analysis.prediction import development, predict, print_predictions, sweep_changes
from profiler_job.analysis.prediction.abstentions import AbstentionCode

STEP = "{}-fp32-naive-train_step"


@pytest.fixture
def advised(run, shipped):
    def names(recording, run_id):
        said = [predict.predict(run(recording, run_id), names, shipped) for names in sweep_changes.USUAL]
        return ["+".join(prediction.changes) for prediction in predict.select_advised(said)]

    return names


def test_where_matmuls_limit_it_the_ladder_is_advised_from_its_top(advised):
    ranked = advised("default", STEP.format("xl-ctx1024"))
    uncompiled = [names for names in ranked if "cuda_graphs" not in names and "compile" not in names]
    assert uncompiled[:2] == ["bf16+fused_attention+fused_adamw", "bf16+fused_attention"]
    assert {*ranked[:2]} == {f"bf16+fused_attention+fused_adamw+{name}" for name in ("compile", "cuda_graphs")}
    assert ranked.index("bf16") < ranked.index("tf32")


@pytest.mark.parametrize(
    ("recording", "run_id", "change"),
    [
        ("default", STEP.format("small-ctx128"), "tf32"),  # the host limits it: faster matmuls give nothing
        ("default", STEP.format("medium-ctx128"), "tf32"),
        ("default", STEP.format("small-ctx128"), "bf16"),  # and casts are more to launch
        ("default", STEP.format("medium-ctx128"), "bf16"),
        ("precision", "small-ctx512-tf32-naive-train_step", "tf32"),  # it is there already
        ("default", STEP.format("small-ctx128"), "bf16+fused_attention"),
        ("bf16", "small-ctx512-bf16-sdpa-train_step-adamw_fused", "fused_attention"),
        ("default", STEP.format("small-ctx128"), "fused_attention"),  # the host limits it
        ("precision", "xl-ctx512-tf32-naive-train_step", "fused_attention"),  # in TF32 no pair tells
        ("default", STEP.format("small-ctx512"), "compile"),  # nor in FP32
        ("default", STEP.format("small-ctx512"), "cuda_graphs"),
        ("ladder_compile", "xl-ctx512-bf16-sdpa-train_step-compile_default-adamw_fused", "compile"),  # it is there
        ("ladder_compile", "xl-ctx512-bf16-sdpa-train_step-compile_cudagraphs-adamw_fused", "cuda_graphs"),
        ("default", STEP.format("small-ctx128"), "larger_batch"),  # of these it is not known how much memory is left
        ("default", STEP.format("2.7B-ctx1024"), "fused_adamw"),  # 3% of the step: less than the errors
        ("default", "xl-ctx512-fp32-naive-forward", "fused_adamw"),  # there is no optimizer
        ("bf16", "small-ctx512-bf16-sdpa-train_step-adamw_fused", "fused_adamw"),
    ],
)
def test_it_is_not_advised_where_it_gives_nothing_or_nothing_is_known(advised, recording, run_id, change):
    assert change not in advised(recording, run_id)


def test_a_larger_batch_is_advised_where_it_fits_and_the_host_limits(run, shipped):
    """A step takes no less: it is compared for as many tokens."""
    before = run("default", STEP.format("small-ctx128"))

    def with_memory(peak):
        facts = {"peak_memory_bytes": peak, "gpu_memory_bytes": 150e9}
        return predict.predict(replace(before, run=dict(before.run) | facts), ["larger_batch"], shipped)

    said = with_memory(4e9)
    assert predict.select_advised([said]) == [said] and said.limited_by == "host"
    assert 0.9 < said.step_ns / said.baseline_ns < 1.1 and said.work == 2
    assert "for as many tokens" in print_predictions.advice([said], before.run)[1]
    assert "2 times the tokens" in print_predictions.as_line(said)
    refused = with_memory(140e9)
    assert refused.code is AbstentionCode.MEMORY_FULL and {"259", "140"} <= {*refused.reason.split()}


@pytest.mark.parametrize(
    "more", [{"gpus": 2, "parallel": "ddp"}, {"accumulation": 2}, {"workload": "hf"}, {"compile": "off"}]
)
def test_runs_that_differ_in_something_else_too_are_no_pair(recorded, more):
    """What two GPUs or micro-batches give would count as what the change gives."""
    run = dict(recorded["default"][0].run) | {"mode": "train_step"}
    assert development.difference(run, run | {"precision": "bf16"} | more) == (("bf16",) if "compile" in more else ())


def test_what_is_advised_made_recorded_steps_shorter(recorded, shipped):
    pairs = development.pairs([*recorded["default"], *recorded["bf16"]]) + development.pairs(recorded["precision"])
    taken = [pair for pair in pairs if predict.select_advised([predict.predict(pair.before, pair.changes, shipped)])]
    assert len(taken) > 50
    assert not [pair.before.run["run_id"] for pair in taken if pair.after.step_ns >= pair.before.step_ns]


def test_the_advice_tells_gain_interval_and_track_record(run, shipped):
    before = run("default", STEP.format("xl-ctx512"))
    said = [predict.predict(before, ["tf32"], shipped)]
    first, second = print_predictions.advice(said, before.run)
    assert first == "what to change first, expected:"
    said = r"  1\. tf32 to save 4\d\d ms \(4\d\d ms to 4\d\d ms\); track record: "
    assert re.fullmatch(
        said + r"\d+ of \d+ tested predictions within 10%; \d+ of \d+ development pairs within 10%", second
    )


def test_without_a_certain_gain_nothing_is_advised(run, shipped):
    before = run("default", STEP.format("small-ctx128"))
    said = [predict.predict(before, ["tf32"], shipped)]
    assert print_predictions.advice(said, before.run) == [
        "what to change first: nothing of this, no gain is certain enough"
    ]
