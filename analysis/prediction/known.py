"""The runs of a recording that can be predicted from, each with the model that knows most of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from profiler_job.analysis.prediction import other_models, rates, script_changes, script_rates, scripts, sweep_changes
from profiler_job.analysis.prediction.abstentions import AbstentionError
from profiler_job.analysis.prediction.baseline import Baseline, Tables, baselines, read_run
from profiler_job.analysis.prediction.predict import Abstention, Prediction, predict
from profiler_job.analysis.reference.track_record import SWEEP, choose_kind
from profiler_job.jobs.contract.layout import SCRIPT


@dataclass(frozen=True, kw_only=True)
class Known:
    """run: its row of `runs`. predict: what its step would take with some changes, or why that cannot be said."""

    run: Mapping[str, Any]
    step_ns: float
    predict: Callable[[Sequence[str]], Prediction | Abstention]


def list_known_runs(recording: Tables) -> Iterator[Known]:
    """Every finished run that was timed and profiled, in its order. Raises AbstentionError if the recording of a script
    shows nothing."""
    of_script = script_rates.load()
    if recording.manifest.get(SCRIPT):
        only = scripts.step_of(recording, of_script)
        yield Known(run=only.run, step_ns=only.step_ns, predict=partial(scripts.predict_step, only, rates=of_script))
        return
    made = rates.load()
    for baseline in baselines(recording):
        step: Callable[[], script_changes.Step]
        if str(baseline.run.get("workload")) == SCRIPT:  # one of several in one recording
            step = partial(scripts.step_of, read_run(recording, str(baseline.run["run_id"])), of_script)
        else:
            step = partial(other_models.step_of, baseline, recording, of_script, made)
        said = partial(_predict, baseline, made, cache(step), of_script)
        yield Known(run=baseline.run, step_ns=baseline.step_ns, predict=said)


def usual_sets(recording: Tables) -> tuple[tuple[str, ...], ...]:
    """The sets of changes that are predicted where none is named."""
    return scripts.USUAL if recording.manifest.get(SCRIPT) else sweep_changes.USUAL


def _predict(
    baseline: Baseline,
    made: rates.Rates,
    step: Callable[[], script_changes.Step],
    of_script: script_rates.ScriptRates,
    names: Sequence[str],
) -> Prediction | Abstention:
    """By shapes and modules where they are known, and else by `step`, which takes as long as many predictions, so that
    it is asked for once."""
    if choose_kind(baseline.run, names) == SWEEP:
        return predict(baseline, names, rates=made)
    try:
        return scripts.predict_step(step(), names, of_script)
    except AbstentionError as reason:
        return Abstention(changes=tuple(names), code=reason.code, reason=str(reason))
