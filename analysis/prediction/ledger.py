"""Predictions in files that are never edited: written before the runs that test them are measured, and compared with
those by the id of the run. A measurement counts where it started after the prediction was made, on the same GPU."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from profiler_job.analysis.prediction import sweep_changes as changes
from profiler_job.analysis.prediction.predict import HOST, Abstention, Prediction
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.analysis.reference.track_record import choose_kind
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import add_digest, find_folders, is_intact, load_json
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import MANIFEST, SCRIPT, name_changed
from profiler_job.jobs.contract.outputs import TargetError, write_new
from profiler_job.jobs.contract.program import find_commit
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.contract.studies import GPUS, LOSSES

FOLDER = "predictions"
"""Below site/data."""
MEASURED = ("measured_ns", "measured_min_ns", "measured_max_ns")
BY_MACHINE = 0.03
"""Part of a script's step by which it differs between machines with such a GPU: kept predictions are wider by it.
`run_clm.py` with a small GPT-2 in FP32 took 189.5 ms on one and 184.4 on another, there in another version."""
MOST_OFF = 0.2
"""Error that a kept prediction may have at an end of its interval where the host limits the step."""


class LedgerError(RecordingError):
    """A ledger that cannot be used. The message is one line: which file, what is wrong, what to do."""


class Entry(BaseModel):
    """One prediction, in ns, or the reason why there is none. run_id: of the baseline; tested_by: of the run that will
    show whether it holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    run_id: str
    tested_by: str
    size: str
    context_length: int
    mode: str
    changes: tuple[str, ...]
    baseline_ns: float = Field(gt=0)
    predicted_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    ceiling_ns: float | None = None
    limited_by: str = ""
    reason: str = ""

    @model_validator(mode="after")
    def check(self) -> "Entry":
        times = (self.ceiling_ns, self.low_ns, self.predicted_ns, self.high_ns)
        if self.reason:
            if any(time_ns is not None for time_ns in times):
                raise ValueError("an abstention has times")
            return self
        if any(time_ns is None for time_ns in times):
            raise ValueError("a prediction needs ceiling_ns, low_ns, predicted_ns and high_ns")
        if list(times) != sorted(times):  # type: ignore[type-var]
            raise ValueError("ceiling_ns, low_ns, predicted_ns and high_ns are not in order")
        return self


class Ledger(BaseModel):
    """Predictions that were made at one time from one recording, and with what. program: its commit, as of a recording;
    of the first ledgers its version alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    made_at: AwareDatetime
    program: str
    rates: str
    gpu: str
    recording: Mapping[str, str]
    predictions: tuple[Entry, ...]


def entry(run: Mapping[str, Any], baseline_ns: float, said: Prediction | Abstention) -> Entry:
    """A prediction as a ledger keeps it. run: the run that it starts from, whose step takes baseline_ns."""
    facts: dict[str, Any] = {"run_id": str(run["run_id"]), "tested_by": run_id_after(run, said.changes)}
    facts |= {"size": str(run["size"]), "context_length": int(run["context_length"]), "mode": str(run["mode"])}
    facts |= {"changes": said.changes, "baseline_ns": round(baseline_ns)}
    if reason := said.reason if isinstance(said, Abstention) else explain_one_host(said):
        return Entry(**facts, reason=reason)
    assert isinstance(said, Prediction)
    by_machine = BY_MACHINE if str(run.get("workload")) == SCRIPT else 0.0
    times = {
        "low_ns": max((1 - by_machine) * said.low_ns, said.ceiling_ns),
        "high_ns": (1 + by_machine) * said.high_ns,
        "ceiling_ns": said.ceiling_ns,
        "predicted_ns": said.step_ns,
    }
    facts |= {name: round(time_ns) for name, time_ns in times.items()}
    return Entry(**facts, limited_by=said.limited_by)


def explain_one_host(said: Prediction) -> str:
    """Why a prediction is kept without its times; empty where it has them. A kept prediction may be tested on any
    machine with such a GPU, so it has none where the host sets the pace and hosts differ by more than MOST_OFF."""
    if said.limited_by != HOST or farthest_error(said.step_ns, said.low_ns, said.high_ns) <= MOST_OFF:
        return ""
    span = f"{format_time(said.low_ns)} to {format_time(said.high_ns)}"
    return f"the host sets its pace, and recorded hosts differ by more than {MOST_OFF:.0%}: {span}"


def farthest_error(predicted_ns: Any, low_ns: Any, high_ns: Any) -> Any:
    """Largest absolute error of a prediction, or of each of several, whose interval holds the measured step."""
    return np.maximum(predicted_ns / low_ns - 1, 1 - predicted_ns / high_ns)


def run_id_after(run: Mapping[str, Any], names: Iterable[str]) -> str:
    """Id of the run that `run` is with the changes; of a script, the name of its recording with them. Empty if no sweep
    can have such a run, as a recording of somebody else may say."""
    if str(run.get("workload")) == SCRIPT:
        return name_changed(str(run["run_id"]), names)
    fields = {name: run[name] for name in Run.model_fields if name in run and not pd.isna(run[name])}
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in fields.items()}
    for name in names:
        plain |= changes.CHANGES[name].settings(plain) if name in changes.CHANGES else {}
    try:
        return Run(**plain).run_id
    except ValidationError:
        return ""


def made_now(manifest: Mapping[str, Any], rates_files: Iterable[Path], entries: Sequence[Entry]) -> Ledger:
    """A ledger of these predictions, made now by this program with the rates in those files."""
    return Ledger(
        made_at=datetime.now(UTC).replace(microsecond=0),
        program=find_commit(),
        rates=hashlib.sha256(b"".join(file.read_bytes() for file in rates_files)).hexdigest()[:12],
        gpu=str(manifest["gpu"]),
        recording={key: str(manifest.get(key, "")) for key in ("name", "created", "commit")},
        predictions=tuple(entries),
    )


def write(file: Path, ledger: Ledger) -> None:
    """Write a new ledger. Raises LedgerError where the file is there already: what was predicted is not changed."""
    text = json.dumps(add_digest(ledger.model_dump(mode="json", exclude_defaults=True)), indent=1) + "\n"
    try:
        write_new(file, text, "predictions are never changed")
    except TargetError as error:
        raise LedgerError(str(error), exit_code=error.exit_code) from error


def read(file: Path) -> Ledger:
    """Raises LedgerError."""
    try:
        content = load_json(file)
    except (OSError, ValueError, RecursionError) as error:
        raise LedgerError(f"{file} cannot be read as a ledger of predictions ({error}): take it from git") from error
    if not isinstance(content, dict) or not is_intact(content):
        raise LedgerError(f"{file} is not what was written (its digest differs): take it from git")
    try:
        return Ledger(**{key: value for key, value in content.items() if key != "digest"})
    except ValidationError as error:
        why = ": ".join(filter(None, describe_invalid(error)))
        raise LedgerError(f"{file} is not a ledger ({why}): take it from git") from error


def read_all(folder: Path) -> list[Ledger]:
    """The ledgers in a folder, which need not exist, the oldest first. Raises LedgerError, also where one is there
    twice: its predictions would count twice."""
    ledgers: dict[Path, Ledger] = {}
    for file in sorted(folder.glob("*.json")):
        ledger = read(file)
        for other, known in ledgers.items():
            if known == ledger:
                raise LedgerError(
                    f"{file} holds the same predictions as {other.name}: leave one out", exit_code=ExitCode.USAGE
                )
        ledgers[file] = ledger
    return sorted(ledgers.values(), key=lambda ledger: ledger.made_at)


def recordings(data: Path) -> list[store.Recording]:
    """The recordings that do nothing but test predictions, as of scripts: those in the folder of the ledgers below
    `data`. Raises RecordingError."""
    return [store.load(folder) for folder in find_folders(data / FOLDER, MANIFEST)]


def compare_with_measured(ledgers: Iterable[Ledger], recordings: Iterable[Any]) -> pd.DataFrame:
    """Every prediction, one row each: the fields of an Entry; made_at; source, the name of the recording that it was
    made from, "" for a script; kind, as `track_record.choose_kind` gives it; and, if the run that tests it was measured
    since: MEASURED, error (predicted over measured, less 1), inside (the interval), beaten (the ceiling). The first
    measurement counts. again_ns is the median of the later ones, again_inside whether the interval holds it."""
    # Some runs of these studies have the ids of runs that test a prediction, and none was planned for one: a sweep of
    # one and several GPUs, and one that times a single step.
    recordings = [kept for kept in recordings if getattr(kept, "manifest", {}).get("study") not in (GPUS, LOSSES)]
    names = ["run_id", "gpu_name", "started_at", *MEASURED]
    measured = pd.concat([pd.DataFrame(columns=names), *(_steps(recording) for recording in recordings)])
    of_run = {str(run["run_id"]): run for kept in recordings for run in kept.runs.to_dict("records")}
    started = pd.to_datetime(measured["started_at"], utc=True, format="ISO8601", errors="coerce")
    rows = []
    for ledger in ledgers:
        for prediction in ledger.predictions:
            row = prediction.model_dump() | {"made_at": ledger.made_at, "changes": "+".join(prediction.changes)}
            is_script = prediction.tested_by == name_changed(prediction.run_id, prediction.changes)
            row["source"] = "" if is_script else ledger.recording["name"]
            run = of_run.get(prediction.run_id, {})
            row["kind"] = SCRIPT if is_script else choose_kind(run, prediction.changes)
            on_gpu, since = measured["gpu_name"] == ledger.gpu, started > ledger.made_at
            is_test = on_gpu & since & (measured["run_id"] == prediction.tested_by)
            tests = measured[is_test].iloc[np.argsort(started[is_test], kind="stable")]
            row |= {name: _take_first(tests, name) for name in MEASURED}
            rows.append(row | {"again_ns": float(tests["measured_ns"].iloc[1:].median())})
    table = pd.DataFrame(rows, columns=[*Entry.model_fields, "made_at", "source", "kind", *MEASURED, "again_ns"])
    table = table.astype(dict.fromkeys((name for name in table if name.endswith("_ns")), float))
    known = table["measured_ns"].notna() & table["predicted_ns"].notna()
    table["error"] = table["predicted_ns"] / table["measured_ns"] - 1
    table["inside"] = table["measured_ns"].between(table["low_ns"], table["high_ns"]) & known
    table["again_inside"] = table["again_ns"].between(table["low_ns"], table["high_ns"]) & known
    table["beaten"] = (table["measured_ns"] < table["ceiling_ns"]) & known
    return table


def _take_first(rows: pd.DataFrame, name: str) -> float:
    return float(rows[name].iloc[0]) if len(rows) else float("nan")


def spans_of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The unprofiled step of each run in ns, by run_id: measured_ns (median), measured_min_ns, measured_max_ns."""
    rows = steps[(steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == STEP)]
    spans = rows.groupby(rows["run_id"].astype(str))["wall_ns"].agg(["median", "min", "max"])
    return spans.set_axis([*MEASURED], axis=1).rename_axis("run_id")


def _steps(recording: Any) -> pd.DataFrame:
    """Each finished run that was timed: run_id, gpu_name, started_at, MEASURED."""
    runs = recording.runs[recording.runs["status"].astype(str) == "ok"]
    runs = runs[["run_id", "gpu_name", "started_at"]].astype(str)
    return runs.merge(spans_of_steps(recording.steps).reset_index(), on="run_id")
