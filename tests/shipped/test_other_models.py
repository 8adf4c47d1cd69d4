"""Runs of a sweep with models of Hugging Face, as they were captured on an H200."""

from dataclasses import replace

import pytest

from profiler_job.analysis.prediction import ledger, other_models, rates, script_rates, scripts
from profiler_job.analysis.prediction.baseline import baselines
from profiler_job.analysis.prediction.known import list_known_runs
from profiler_job.analysis.prediction.predict import GPU, HOST, Abstention, select_advised
from profiler_job.analysis.prediction.sweep_changes import AbstentionError
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference.track_record import AS_SCRIPT, SWEEP, choose_kind
from profiler_job.jobs.contract.layout import SCRIPT
from tests.shipped.recordings import DATA, locate


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request):
    return request.param


@pytest.fixture(scope="module")
def recording(model):
    return store.load(DATA / ledger.FOLDER / f"capture_{model}")


@pytest.fixture(scope="module")
def baseline(recording):
    return next(baselines(recording))


@pytest.fixture
def step(baseline, recording):
    return other_models.step_of(baseline, recording, script_rates.load(), rates.load())


def test_a_step_without_changes_takes_what_was_measured(step, baseline):
    assert step.is_in_phases and step.limited_by == GPU
    assert step.take() == pytest.approx(baseline.step_ns, rel=0.04)


def test_the_host_of_one_phase_does_not_work_ahead_in_another(step):
    """A sweep waits for the GPU at the end of each phase, a script does not."""
    late = replace(step, host_ns={**step.host_ns, "optimizer": 30e6})
    assert late.take() - step.take() == pytest.approx(30e6 - max(step.host_ns["optimizer"], _gpu(step, "optimizer")))
    assert replace(late, is_in_phases=False).take() == replace(step, is_in_phases=False).take()
    slow = replace(step, host_ns=dict.fromkeys(step.host_ns, 200e6))
    assert slow.limited_by == HOST


def _gpu(step, phase):
    return step.gpu_ns_by_phase[phase]


def test_rungs_that_the_gpu_limits_are_told_within_what_such_models_were_off(recording, model):
    """No rate was fitted to them: they take up to a third longer than expected."""
    ladder = store.load(locate(f"ladder_{model}"))
    steps = ladder.steps[ladder.steps["phase"].astype(str) == "step"]
    measured = steps.groupby(steps["run_id"].astype(str))["wall_ns"].median()
    [known] = list_known_runs(recording)
    for names in (["tf32"], ["bf16"], ["fused_adamw"], ["bf16", "fused_attention", "fused_adamw", "cuda_graphs"]):
        said = known.predict(names)
        assert 0.95 < measured[ledger.run_id_after(known.run, names)] / said.step_ns < 1.4
        assert said.low_ns <= said.step_ns <= said.high_ns and said.ceiling_ns <= said.low_ns


def test_fused_adamw_adds_what_the_host_needs_to_sort_all_tensors(step):
    after = scripts.apply_changes(step, ["fused_adamw"], script_rates.load())
    optimizer = after.gpu_ns_by_phase["optimizer"]
    assert after.host_ns["optimizer"] == 0 and optimizer > step.host_ns["optimizer"] / 8
    assert optimizer < max(_gpu(step, "optimizer"), step.host_ns["optimizer"])


def test_what_no_pair_tells_of_is_not_predicted(baseline, recording):
    elsewhere = replace(baseline, run={**baseline.run, "gpu_name": "NVIDIA A100"})
    two = replace(baseline, run={**baseline.run, "gpus": 2})
    for run in (elsewhere, two):
        with pytest.raises(AbstentionError):
            other_models.step_of(run, recording, script_rates.load(), rates.load())
    [known] = list_known_runs(recording)
    assert isinstance(known.predict(["synchronisations"]), Abstention), "those are the timer's"


def test_fused_attention_in_fp32_is_not_advised_where_it_may_give_nothing(recording, model):
    """It was to save the Llama 21 of 140 ms, and took 3 ms more."""
    [known] = list_known_runs(recording)
    alone, in_bf16 = known.predict(["fused_attention"]), known.predict(["bf16", "fused_attention"])
    assert select_advised([alone]) == [] and select_advised([in_bf16]) == [in_bf16]
    if model == "llama":
        steps = store.load(locate("ladder_llama")).steps
        of_run = steps["run_id"].astype(str) == ledger.run_id_after(known.run, ["fused_attention"])
        measured_ns = steps.loc[of_run & (steps["phase"].astype(str) == "step"), "wall_ns"].median()
        assert measured_ns > known.step_ns


def test_they_have_the_track_record_of_scripts(baseline):
    assert choose_kind(baseline.run) == SCRIPT


@pytest.mark.parametrize(("names", "value"), [(["compile"], "default"), (["cuda_graphs"], "cudagraphs")])
def test_the_reference_compiled_without_bf16_and_fused_attention_is_predicted_as_they_are(names, value):
    """Of it the model of sweeps abstained. With rates of the small model alone the larger ones were as near: 1.2%."""
    beside = store.load(locate("compile_larger"))
    steps = beside.steps[(beside.steps["phase"].astype(str) == "step")]
    measured = steps[steps["collector"].astype(str) == "timer"].groupby(steps["run_id"].astype(str))["wall_ns"].median()
    known = [run for run in list_known_runs(beside) if run.run["compile"] == "off"]
    assert [run.run["size"] for run in known] == ["medium", "xl", "2.7B"]
    for run in known:
        said = run.predict(names)
        assert said.step_ns == pytest.approx(measured[f"{run.run['run_id']}-compile_{value}"], rel=0.015)
        assert said.ceiling_ns <= said.low_ns < 0.95 * said.step_ns and said.high_ns > 1.05 * said.step_ns


def test_how_the_reference_is_predicted_depends_on_the_changes(baseline):
    run = {"workload": "transformer", "mode": "train_step", "precision": "fp32", "attention": "naive"}
    assert (
        choose_kind(run)
        == choose_kind(run, ["tf32"])
        == choose_kind(run, ["bf16", "fused_attention", "compile"])
        == SWEEP
    )
    assert choose_kind(run, ["compile"]) == choose_kind(run, ["tf32", "cuda_graphs"]) == AS_SCRIPT
    assert choose_kind(run | {"precision": "bf16", "attention": "sdpa"}, ["compile"]) == SWEEP
    assert choose_kind(run | {"mode": "forward"}, ["compile"]) == SWEEP, "it abstains"


@pytest.fixture(scope="module")
def small_run():
    """The smallest training step of the default sweep."""
    main = store.load(locate("h200-fp32"))
    return next(run for run in list_known_runs(main) if run.run["run_id"] == "small-ctx128-fp32-naive-train_step")


@pytest.mark.long
@pytest.mark.parametrize("with_it", ["bf16", "fused_attention", "fused_adamw", "foreach", "larger_batch"])
def test_what_no_test_told_of_compiled_steps_of_the_reference_is_not_predicted(small_run, with_it):
    """BF16 with compile was to be faster than both with fused attention, at 17.5 against 24.1 ms, and advised first."""
    assert isinstance(small_run.predict([with_it, "compile"]), Abstention)
