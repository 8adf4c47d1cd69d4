"""The runs of a recording that can be predicted from, each with the model that knows most of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from analysis.metrics.run_grid import has_known_shape
from analysis.prediction import changes, other_models, rates, script_rates, scripts
from analysis.prediction.baseline import Tables, baselines, of_run
from analysis.prediction.predict import Abstention, Prediction, predict
from jobs.contract.layout import SCRIPT


@dataclass(frozen=True, kw_only=True)
class Known:
    """run: its row of `runs`. predict: what its step would take with some changes, or why that cannot be said."""

    run: Mapping[str, Any]
    step_ns: float
    predict: Callable[[Sequence[str]], Prediction | Abstention]


def known_runs(recording: Tables) -> Iterator[Known]:
    """Every finished run that was timed and profiled, in its order. Raises changes.Abstains where that of a script
    tells nothing."""
    of_script = script_rates.load()
    if recording.manifest.get(SCRIPT):
        step = scripts.step_of(recording, of_script)
        yield Known(run=step.run, step_ns=step.step_ns, predict=partial(scripts.predict_step, step, rates=of_script))
        return
    made = rates.load()
    for baseline in baselines(recording):
        said: Callable[[Sequence[str]], Prediction | Abstention] = partial(predict, baseline, rates=made)
        if str(baseline.run.get("workload")) == SCRIPT:  # one of several in one recording
            mine = of_run(recording, str(baseline.run["run_id"]))
            said = partial(_of_step, cache(partial(scripts.step_of, mine, of_script)), of_script)
        elif not has_known_shape(baseline.run):
            of_model = partial(other_models.step_of, baseline, recording, of_script, made)
            said = partial(_of_step, cache(of_model), of_script)
        yield Known(run=baseline.run, step_ns=baseline.step_ns, predict=said)


def usual_sets(recording: Tables) -> tuple[tuple[str, ...], ...]:
    """The sets of changes that are predicted where none is named."""
    return scripts.USUAL if recording.manifest.get(SCRIPT) else changes.USUAL


def _of_step(
    step: Callable[[], scripts.Step], known: script_rates.ScriptRates, names: Sequence[str]
) -> Prediction | Abstention:
    """step: takes as long as many predictions, so it is asked for once."""
    try:
        return scripts.predict_step(step(), names, known)
    except changes.Abstains as reason:
        return Abstention(changes=tuple(names), reason=str(reason))
