"""What the command `try` asks of recordings: what is expected of changes before they are tried, and what they gave.

    python -m profiler_job.analysis.prediction.judge_tries expect RECORDING SET...
    python -m profiler_job.analysis.prediction.judge_tries judge BEFORE AFTER EXPECTED
    python -m profiler_job.analysis.prediction.judge_tries code CHANGE...

Answers are JSON on standard output: times in ns, and `lines`, one fact each, for whoever reads along.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.changes import join_code
from profiler_job.analysis.comparison import print_comparison as comparing
from profiler_job.analysis.comparison.compare_formats import format_verdict
from profiler_job.analysis.comparison.errors import NotComparableError
from profiler_job.analysis.comparison.judge import Judgement
from profiler_job.analysis.insight import run_advice, run_limit
from profiler_job.analysis.metrics import kernel_time, step_clocks, step_limits
from profiler_job.analysis.prediction.predict import Abstention, Prediction
from profiler_job.analysis.prediction.scripts import predict_script
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ResultsError
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.changes import LABELS
from profiler_job.jobs.contract.quantities import format_quantities, format_quantity, format_time
from profiler_job.jobs.contract.step_limit import name_limits


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What changes save of a step at most, by the advice from its capture; None where it does not say. reason: why they
    are not advised."""

    save_ns: float | None
    reason: str = ""


def expect(path: Path, sets: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
    """What is expected of each set of changes, from the recording without them. Raises RecordingError."""
    recording = store.load(path)
    advised = advise(recording)
    step_ns = step_clocks.clocks(recording.steps)[str(recording.runs["run_id"].iloc[0])][ranges.STEP].wall_ns
    return [expectation(predict_script(recording, names), ceiling(advised, names, step_ns)) for names in sets]


def advise(recording: store.Recording) -> dict[str, Ceiling]:
    """Return what each change could save at most, by the advice from the only run of a recording. The advice sums over
    the GPUs; the result is a time of one step."""
    run = recording.runs.iloc[0]
    parts = run_limit.split_steps(recording.kernels, recording.memops)
    limits = step_limits.find_limits(recording.steps, recording.kernels, recording.memops)
    table = run_advice.advise(
        run,
        parts,
        run_limit.find(recording.kernels, recording.memops),
        kernel_time.kernel_totals(recording.kernels),
        recording.api,
        step_clocks.clocks(recording.steps).get(str(run["run_id"]), {}),
        limits.get(str(run["run_id"])),
    )
    num_gpus = max(parts["gpu"].nunique(), 1)
    return {
        row["change"]: Ceiling(save_ns=None, reason=row["reason"])
        if row["reason"]
        else Ceiling(save_ns=row["ceiling_ns"] / num_gpus)
        for row in table.to_dict("records")
    }


def ceiling(advised: dict[str, Ceiling], names: tuple[str, ...], step_ns: float) -> Ceiling:
    """Return the ceiling of a set: the sum of the ceilings of its changes. None if that is the whole step, which limits
    nothing."""
    nothing = Ceiling(save_ns=None, reason="the capture has no evidence for it")
    each = {name: advised.get(name, nothing) for name in names}
    if why := {name: said.reason for name, said in each.items() if said.save_ns is None}:
        reasons = why.values() if len(names) == 1 else (f"{LABELS[name]}: {reason}" for name, reason in why.items())
        return Ceiling(save_ns=None, reason="; ".join(reasons))
    save_ns = sum(said.save_ns or 0.0 for said in each.values())
    return Ceiling(save_ns=save_ns if save_ns < step_ns else None)


def expectation(said: Prediction | Abstention, most: Ceiling) -> dict[str, Any]:
    """As JSON: `prediction`: a step with the changes, low_ns to high_ns, null where there is none; `save_ns`: the
    ceiling of the advice, null where there is none."""
    if isinstance(said, Abstention):
        prediction, lines = None, [f"no prediction: {said.reason}"]
    else:
        prediction = {name: getattr(said, name) for name in ("step_ns", "low_ns", "high_ns", "ceiling_ns")}
        step, low, high = (format_time(prediction[name]) for name in ("step_ns", "low_ns", "high_ns"))
        faster = f"{said.baseline_ns / said.step_ns:.2f} times as fast"
        lines = [f"predicted: a step of {step} ({low} to {high}), {faster}; {name_limits(said.limit)}"]
    if most.reason:
        lines.append(f"not advised: {most.reason}")
    elif most.save_ns is not None:
        lines.append(f"advice: at most {format_time(most.save_ns)} of it can be saved")
    return {"prediction": prediction, "save_ns": most.save_ns, "lines": lines}


def judge(before: Path, after: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Compare the recordings without and with the changes, and the result with what was expected. Returns `lines`, and
    `first_ns`, `second_ns` and `band_ns` of the step: each null if the two cannot be compared."""
    try:
        comparison = comparing.load(comparing.Request(first=before, second=after))
    except (NotComparableError, store.RecordingError, ResultsError, ExportError, OSError) as error:
        return {"lines": [f"cannot be compared: {error}"], **dict.fromkeys(("first_ns", "second_ns", "band_ns"))}
    step = comparison.pairs[0].judgements["step"]
    lines = format_step(step)
    lines += judge_prediction(step, expected["prediction"]) + judge_ceiling(step, expected["save_ns"])
    return {"lines": lines, "first_ns": step.first, "second_ns": step.second, "band_ns": step.band}


def format_step(step: Judgement) -> list[str]:
    """How much faster the step is, and whether that exceeds the noise band."""
    first, second = format_quantities("time", step.first, step.second)
    slowest, quickest = step.second + step.band, step.second - step.band
    high = f"{step.first / quickest:.2f}" if quickest > 0 else "any number"
    interval = f"{step.first / slowest:.2f} to {high}"
    lines = [f"{step.first / step.second:.2f} times as fast ({interval}): {first} -> {second}"]
    off = format_quantity("time", step.difference, is_signed=True)
    if step.is_real:
        return [*lines, f"{off} exceeds the noise band of {format_time(step.band)}: {format_verdict(step)}"]
    return [*lines, f"{off} is {format_verdict(step)}: it may be none"]


def judge_prediction(step: Judgement, prediction: dict[str, float] | None) -> list[str]:
    """Whether the measured step is in the predicted interval, and not below the predicted ceiling."""
    if prediction is None:
        return []
    low, high = prediction["low_ns"], prediction["high_ns"]
    held = "held" if low <= step.second <= high else "did not hold"
    expected, shortest, longest = (format_time(ns) for ns in (prediction["step_ns"], low, high))
    lines = [
        f"the prediction {held}: {format_time(step.second)}, and {expected} ({shortest} to {longest}) was expected"
    ]
    if step.second + step.band < prediction["ceiling_ns"]:
        lines.append(f"its ceiling did not hold: no step was to take less than {format_time(prediction['ceiling_ns'])}")
    return lines


def judge_ceiling(step: Judgement, save_ns: float | None) -> list[str]:
    """Whether the changes saved at most `save_ns`."""
    if save_ns is None:
        return []
    saved = -step.difference
    if saved > save_ns + step.band:
        return [
            f"the ceiling did not hold: {format_time(saved)} was saved, and at most {format_time(save_ns)} could be"
        ]
    was = f"{format_time(saved)} was saved" if saved > 0 else "nothing was saved"
    return [f"the ceiling held: {was}, of at most {format_time(save_ns)}"]


def main(task: str, *arguments: str) -> None:
    if task == "expect":
        path, *sets = arguments
        said: Any = expect(Path(path), [tuple(text.split(",")) for text in sets])
    elif task == "code":
        said = join_code(arguments)
    else:
        before, after, expected = arguments
        said = judge(Path(before), Path(after), json.loads(expected))
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
