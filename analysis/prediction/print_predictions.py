"""From a recording to its predictions: printed, and kept in a ledger."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.load_sides import load_side
from profiler_job.analysis.comparison.sides import is_capture
from profiler_job.analysis.prediction import ledger, rates, script_rates, scripts
from profiler_job.analysis.prediction.abstentions import AbstentionError
from profiler_job.analysis.prediction.known import list_known_runs, usual_sets
from profiler_job.analysis.prediction.predict import Abstention, Prediction, select_advised
from profiler_job.analysis.recording.ingest import ResultsError
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.analysis.reference import track_record
from profiler_job.jobs.contract.json_format import add_format_version
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.quantities import format_size, format_time
from profiler_job.jobs.contract.step_limit import name_limits

RATES = {track_record.SWEEP: rates.FILE, track_record.AS_SCRIPT: script_rates.FILE, SCRIPT: script_rates.FILE}
"""By the way in which a step is predicted (`track_record.choose_kind`)."""

Format = Literal["text", "json"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """recording: folder of a recording, or of the results of a sweep. sets: each one set of changes, their names joined
    by commas. only: KEY=VALUE of the runs. ledger: the file to write the predictions to."""

    recording: Path
    sets: Sequence[str] = ()
    only: Sequence[str] = ()
    ledger: Path | None = None
    form: Format = "text"


def run(request: Request, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Give each prediction to `out`, or one line to `err` where there can be none. Returns the exit code."""
    try:
        if is_capture(request.recording):
            raise NotComparableError(
                ComparisonProblem.NOT_A_RECORDING,
                f"{request.recording} is not a recording: a prediction needs the times of the unprofiled pass",
            )
        sets = [tuple(name.strip() for name in one_set.split(",")) for one_set in request.sets]
        side = load_side(request.recording, request.only)
        assert side.recording  # a capture was handled above
        for names in sets:
            scripts.sort_changes(names)
        sets, wanted = sets or [*usual_sets(side.recording)], set(side.runs["run_id"].astype(str))
        known = [one_run for one_run in list_known_runs(side.recording) if str(one_run.run["run_id"]) in wanted]
        if not known:
            raise NotComparableError(
                ComparisonProblem.NO_RUN, f"{request.recording} has no finished run that was timed and profiled"
            )
        said = [(one_run, one_run.predict(names)) for one_run in known for names in sets]
        if request.ledger:
            entries = [ledger.entry(one_run.run, one_run.step_ns, one_said) for one_run, one_said in said]
            kinds = {track_record.choose_kind(one_run.run, names) for one_run in known for names in sets}
            files = dict.fromkeys(file for kind, file in RATES.items() if kind in kinds)
            ledger.write(request.ledger, ledger.made_now(side.recording.manifest, files, entries))
    except (NotComparableError, RecordingError, ResultsError, ExportError, AbstentionError) as error:
        err(f"error: {error}")
        return error.exit_code
    if request.form == "json":
        runs = [
            {
                "run_id": str(one_run.run["run_id"]),
                "step_ns": float(one_run.step_ns),
                "predictions": [describe_prediction(guess) for predicted, guess in said if predicted is one_run],
            }
            for one_run in known
        ]
        out(json.dumps(add_format_version({"runs": runs}), indent=2))
        return 0
    for one_run in known:
        out(f"{one_run.run['run_id']}: {format_time(one_run.step_ns)} a step, measured")
        of_run = [one_said for said_of, one_said in said if said_of is one_run]
        for one_said in of_run:
            out(f"  {as_line(one_said)}")
            if request.ledger and isinstance(one_said, Prediction) and (why := ledger.explain_one_host(one_said)):
                out(f"    kept without a time: {why}")
        for line in advice(of_run, one_run.run):
            out(f"  {line}")
    return 0


def describe_prediction(said: Prediction | Abstention) -> dict[str, Any]:
    """Return a prediction, or why there is none, as the JSON has it: times in ns, null for what is not known."""
    if isinstance(said, Abstention):
        return {"changes": list(said.changes), "no_prediction_because": said.reason}
    times = {name: float(getattr(said, name)) for name in ("step_ns", "low_ns", "high_ns", "ceiling_ns")}
    frees_bytes = None if math.isnan(said.frees_bytes) else float(said.frees_bytes)
    facts: dict[str, Any] = {"limited_by": said.limited_by, "limit": said.limit.name}
    facts |= {"work": float(said.work), "frees_bytes": frees_bytes}
    return {"changes": list(said.changes)} | times | facts


def advice(said: Sequence[Prediction | Abstention], run: Mapping[str, Any]) -> list[str]:
    """What to change first in a run, in lines."""
    ranked = select_advised(said)
    if not ranked:
        return ["what to change first: nothing of this, no gain is certain enough"]
    lines = []
    for place, prediction in enumerate(ranked, start=1):
        record = track_record.describe_record(prediction.changes, track_record.choose_kind(run, prediction.changes))
        saved, least, most = (
            format_time(prediction.saved_ns(time_ns))
            for time_ns in (prediction.step_ns, prediction.high_ns, prediction.low_ns)
        )
        gain = saved + (" for as many tokens" if prediction.work > 1 else "")
        span = f"{least} to {most}"
        lines.append(f"  {place}. {','.join(prediction.changes)} to save {gain} ({span}); track record: {record}")
    return ["what to change first, expected:", *lines]


def as_line(said: Prediction | Abstention) -> str:
    """A prediction in one line."""
    names = ",".join(said.changes)
    if isinstance(said, Abstention):
        return f"{names}: no prediction, {said.reason}"
    times_ns = (said.step_ns, said.low_ns, said.high_ns, said.ceiling_ns)
    step, low, high, floor = map(format_time, times_ns)
    faster = f"{said.work * said.baseline_ns / said.step_ns:.2f} times as fast"
    faster += f" with {said.work:g} times the tokens" if said.work > 1 else ""
    faster += f", never below {floor}" if said.ceiling_ns else ""
    if said.frees_bytes > 0:
        faster += f", and frees at most {format_size(said.frees_bytes)}"
    return f"{names}: {step} expected ({low} to {high}), {faster}; {name_limits(said.limit)}"
