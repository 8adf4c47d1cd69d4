"""What a change would give in training scripts of others, as they were recorded on an H200: see
tests/recording/test_scripts.py."""

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.prediction import script_development, script_rates, scripts
from profiler_job.analysis.prediction.abstentions import AbstentionCode, AbstentionError
from profiler_job.analysis.prediction.baseline import ATTENTION
from profiler_job.analysis.prediction.predict import GPU, HOST, Abstention, Prediction
from profiler_job.analysis.prediction.script_changes import Behind
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from tests.packed import unpack_all

DATA = Path(__file__).parents[1] / "data" / "h200_scripts"


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    @cache
    def record(name: str) -> store.Recording:
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(DATA / name, folder / "results")
        unpack_all(folder / "results")
        ingest(folder / "results", folder / name, emit=lambda line: None)
        return store.load(folder / name)

    return record


@pytest.fixture(scope="module")
def rates():
    return script_rates.load()


@pytest.fixture
def step() -> scripts.Step:
    """In FP32, limited by the GPU; by phase and kind: launches and time."""
    rows = {
        ("forward", "linear"): (50, 17e6),
        ("forward", "rest"): (300, 8e6),
        ("backward", "linear"): (110, 30e6),
        ("backward", "rest"): (530, 12e6),
        ("optimizer", "rest"): (54, 5e6),
    }
    parts = pd.DataFrame(rows, index=["launches", "time_ns"]).T.rename_axis(["phase", "kind"])
    run = {"precision": "fp32", "compile": "off", "optimizer": "AdamW", "num_parameters": 124_000_000}
    host = {"forward": 5e6, "backward": 6e6, "optimizer": 1e6}
    return scripts.Step(run=run, step_ns=73e6, parts=parts, gap_ns=1000.0, host_ns=host)


def predicted(step, *names, rates=None) -> Prediction:
    said = scripts.predict_step(step, names, rates or script_rates.load())
    assert isinstance(said, Prediction), said
    assert said.ceiling_ns <= said.low_ns <= said.step_ns <= said.high_ns
    return said


def refused(step, *names) -> AbstentionCode:
    said = scripts.predict_step(step, names, script_rates.load())
    assert isinstance(said, Abstention) and said.reason
    return said.code


def test_the_shipped_rates_are_of_kinds_that_scripts_have(step, rates):
    """Matmuls of two tensors were under another name: no script that has them could be predicted."""
    kinds = {name.rpartition("/")[2] for name in [*rates.times, *rates.launches]}
    assert kinds == {script_rates.LINEAR, script_rates.ATTENTION_GEMMS, script_rates.REST, ATTENTION}
    of_two = step.parts.rename(index={script_rates.LINEAR: script_rates.ATTENTION_GEMMS}, level="kind")
    for change in ("tf32", "bf16"):
        assert predicted(replace(step, parts=of_two), change).step_ns < step.gpu_ns


@pytest.mark.parametrize("change", ["tf32", "bf16", "fused_adamw", "compile", "cuda_graphs"])
def test_each_change_makes_a_step_shorter_that_the_gpu_limits(step, change):
    said = predicted(step, change)
    assert said.step_ns < step.gpu_ns and said.limited_by == GPU


def test_a_host_that_is_slower_than_the_gpu_limits_the_step(step):
    slow = replace(step, host_ns={"forward": 30e6, "backward": 35e6})
    said = predicted(slow, "tf32")
    assert said.limited_by == HOST
    assert said.step_ns > predicted(step, "tf32").step_ns


def test_what_is_not_known_of_the_host_widens_the_interval(step):
    slow = replace(step, host_ns={"forward": 30e6, "backward": 35e6})
    unsure = replace(slow, host_span=(0.8, 1.3))
    narrow, wide = predicted(slow, "tf32"), predicted(unsure, "tf32")
    assert (wide.low_ns < narrow.low_ns) and (wide.high_ns > narrow.high_ns)


def test_bf16_gives_less_from_tf32_than_from_fp32(step):
    """Both had one factor: a step of 71 ms in TF32 was said to take 16 ms in BF16."""
    recorded = [error for error in script_rates.load().errors if error["changes"] == "bf16"]
    assert all(0.6 < error["ratio"] < 1.2 for error in recorded)
    from_tf32 = predicted(replace(step, run=step.run | {"precision": "tf32"}), "bf16")
    assert from_tf32.step_ns > 1.3 * predicted(step, "bf16").step_ns


def test_a_compiled_step_is_as_unsure_as_compiled_steps_were(step, rates):
    """None of the first four that were tested had been in an interval made of TF32 and BF16."""
    tested = [error for error in scripts.errors_of(step, ["bf16", "compile"], rates) if error in rates.tested]
    assert len(tested) == 15 and len(scripts.errors_of(step, ["tf32"], rates)) == len(rates.errors) + len(rates.tested)
    said = predicted(step, "bf16", "compile")
    assert said.high_ns > 1.3 * said.step_ns


def left(step, rates, change="compile") -> pd.Series:
    """Time of the elementwise kernels that compiling leaves, by phase."""
    parts = scripts.apply_changes(step, [change], rates).parts["time_ns"]
    return parts.xs("rest", level="kind")


@pytest.mark.parametrize("change", ["compile", "cuda_graphs"])
def test_what_compiling_leaves_is_told_from_matmuls(step, rates, change):
    """Where kernels are fused already, as many have to stay as where more are launched for the same."""
    known, factor = replace(step, passes_ns=1.5e6), rates.passes[f"{change}/32/forward"]
    assert left(known, rates, change)["forward"] == pytest.approx(factor * 1.5e6)
    written_out = step.parts.copy()
    written_out.loc[("forward", "rest")] *= 3
    assert left(replace(known, parts=written_out), rates, change)["forward"] == pytest.approx(factor * 1.5e6)
    assert left(replace(step, passes_ns=1e9), rates, change)["forward"] == 8e6, "never more than before"
    by_kind = left(step, rates, change)["forward"]
    assert by_kind == pytest.approx(rates.times[f"{change}/32/forward/rest"][0] * 8e6, rel=0.01)


def test_a_step_without_casts_has_its_weights_in_bf16():
    casts = {"casts": Behind(time_ns=1e6)}
    assert scripts.casts_weights({"precision": "bf16"}, casts, 50e6)
    assert not scripts.casts_weights({"precision": "bf16"}, {}, 50e6)
    assert scripts.casts_weights({"precision": "fp32"}, {}, 50e6), "under autocast it will have them"


def test_compiling_leaves_casts_of_weights(step, rates):
    in_bf16 = replace(step, run=dict(step.run) | {"precision": "bf16"}, passes_ns=1.5e6)
    casts_ns = 6 * 124e6 / rates.bandwidth * 1e9
    without = left(replace(in_bf16, casts_weights=False), rates)
    assert (left(in_bf16, rates) - without)["forward"] == pytest.approx(casts_ns)
    unknown = replace(in_bf16, run=dict(in_bf16.run) | {"num_parameters": None})
    assert (left(unknown, rates) >= without).all(), "at least what is not cast"


def test_a_graph_is_one_launch_in_any_precision(step):
    slow = replace(step, host_ns={"forward": 30e6, "backward": 35e6})
    host = sum(scripts.apply_changes(slow, ["cuda_graphs"], script_rates.load()).host_ns.values())
    assert host < 0.1 * 65e6


def test_what_is_outside_of_phases_no_change_touches(script):
    """It was spread over the phases, and a step with 80 ms of Python around them was said to take 27 ms."""
    recording = script("gpt2")
    steps = recording.steps.astype({"phase": str, "collector": str})
    steps.loc[steps["phase"] == "step", "wall_ns"] += 80e6
    step = scripts.step_of(replace(recording, steps=steps), script_rates.load())
    assert step.host_ns[scripts.OUTSIDE] == pytest.approx(80e6, rel=0.3)
    assert sum(step.host_ns.values()) == pytest.approx(step.step_ns)
    assert predicted(step, "cuda_graphs").step_ns > 80e6


def test_what_a_change_leaves_as_it_is_is_not_unsure(step):
    said = predicted(step, "fused_adamw")
    assert (said.high_ns - said.low_ns) / said.step_ns < 0.05


@pytest.mark.parametrize(
    ("run", "change", "code"),
    [
        ({"precision": "bf16"}, "tf32", AbstentionCode.ALREADY_MADE),
        ({"precision": "bf16"}, "bf16", AbstentionCode.ALREADY_MADE),
        ({"compile": "default"}, "compile", AbstentionCode.ALREADY_MADE),
        ({"optimizer": "SGD"}, "fused_adamw", AbstentionCode.OTHER_OPTIMIZER),
        ({"num_parameters": 10**9}, "fused_adamw", AbstentionCode.ALREADY_MADE),
        ({}, "quantize", AbstentionCode.UNKNOWN_CHANGE),
    ],
)
def test_where_no_pair_tells_there_is_a_reason_instead(step, run, change, code):
    assert refused(replace(step, run=step.run | run), change) is code


def test_changes_that_exclude_each_other_are_refused(step):
    assert refused(step, "tf32", "bf16") is AbstentionCode.ONE_CHOICE


def test_gemms_of_two_tensors_are_told_from_layers_by_the_modules_inside(script):
    parts = scripts.parts_of(script("gpt2"))
    assert ("forward", "linear") in parts.index and ("backward", "rest") in parts.index
    recording = script("gpt2")
    kernels = recording.kernels[recording.kernels["step"] >= 0]
    time_ns = (kernels["end_ns"] - kernels["start_ns"]).sum() / kernels["step"].nunique()
    assert parts["time_ns"].sum() == pytest.approx(time_ns, rel=0.02), "and with copies nothing is left out"


def test_an_own_script_is_predicted_from_its_recording(script):
    rates = script_rates.load()
    said = scripts.predict_step(scripts.step_of(script("gpt2"), rates), ["compile"], rates)
    assert isinstance(said, Prediction)
    assert 0 < said.step_ns < said.baseline_ns


def test_several_ranks_are_refused(script):
    with pytest.raises(AbstentionError) as refused:
        scripts.step_of(script("acc2"), script_rates.load())
    assert refused.value.code is AbstentionCode.SEVERAL_GPUS


def test_another_gpu_is_refused(script, rates):
    with pytest.raises(AbstentionError) as refused:
        scripts.step_of(script("gpt2"), replace(rates, gpu="NVIDIA B200"))
    assert refused.value.code is AbstentionCode.OTHER_GPU


@pytest.mark.nightly
def test_the_shipped_rates_are_made_of_the_recorded_runs(recorded, shipped, rates):
    """The shipped times are rounded to ns."""
    made = script_development.develop_rates([run for runs in recorded.values() for run in runs], shipped)
    assert made.host == pytest.approx(rates.host, rel=1e-3)
    assert made.passes == pytest.approx(rates.passes, rel=1e-3)
    for mine, theirs in zip(made.errors, rates.errors, strict=True):
        assert mine["ratio"] == pytest.approx(theirs["ratio"], rel=1e-3)


def test_rates_are_kept_as_they_are(rates, tmp_path):
    script_rates.save(rates, tmp_path / "rates.json")
    assert script_rates.load(tmp_path / "rates.json") == rates
