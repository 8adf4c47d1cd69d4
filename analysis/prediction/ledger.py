"""Predictions that were written down before the runs that test them were measured: ledgers, which are never edited. The
two fitted predictors that made them are gone; their predictions and the measured runs stay as data."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from profiler_job.analysis.recording.store import RecordingError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import is_intact, load_json
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import name_changed

FOLDER = "predictions"
"""Below site/data."""
MEASURED_FILE = "measured.csv"
"""The measured runs, next to the ledgers."""
MEASURED_COLUMNS = (
    "run_id",
    "gpu_name",
    "started_at",
    "measured_ns",
    "measured_min_ns",
    "measured_max_ns",
    "recording",
)
"""Each run that tests a prediction, as often as it was measured: its unprofiled step, the median, least and most of its
steps; and the recording that it was measured for."""


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
    """Predictions that were made at one time from one recording, and with what. program: its commit; in the first
    ledgers its version alone. rates: digest of the fitted rates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    made_at: AwareDatetime
    program: str
    rates: str
    gpu: str
    recording: Mapping[str, str]
    predictions: tuple[Entry, ...]


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


def read_measured(folder: Path) -> pd.DataFrame:
    """Read the runs that test the ledgers in a folder: MEASURED_COLUMNS; no rows without such a file."""
    file = folder / MEASURED_FILE
    return pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=[*MEASURED_COLUMNS])


def compare_with_measured(ledgers: Iterable[Ledger], measured: pd.DataFrame) -> pd.DataFrame:
    """Compare predictions with the runs that test them, as `read_measured` gives these.

    A row for each prediction: the fields of an Entry; made_at; source, the name of the recording that it was made from,
    "" for a script; and, if its run was measured since: measured_ns, error (predicted over measured, less 1), inside
    (the interval), beaten (the ceiling). The first measurement counts. again_ns is the median of the later ones,
    again_inside whether the interval holds it.
    """
    started = pd.to_datetime(measured["started_at"], utc=True, format="ISO8601", errors="coerce")
    rows = []
    for ledger in ledgers:
        for prediction in ledger.predictions:
            row = prediction.model_dump() | {"made_at": ledger.made_at, "changes": "+".join(prediction.changes)}
            is_script = prediction.tested_by == name_changed(prediction.run_id, prediction.changes)
            row["source"] = "" if is_script else ledger.recording["name"]
            on_gpu, since = measured["gpu_name"] == ledger.gpu, started > ledger.made_at
            is_test = on_gpu & since & (measured["run_id"] == prediction.tested_by)
            tests_ns = measured["measured_ns"][started[is_test].sort_values(kind="stable").index].astype(float)
            row["measured_ns"] = tests_ns.iloc[0] if len(tests_ns) else float("nan")
            rows.append(row | {"again_ns": tests_ns.iloc[1:].median()})
    table = pd.DataFrame(rows, columns=[*Entry.model_fields, "made_at", "source", "measured_ns", "again_ns"])
    table = table.astype(dict.fromkeys((name for name in table if name.endswith("_ns")), float))
    known = table["measured_ns"].notna() & table["predicted_ns"].notna()
    table["error"] = table["predicted_ns"] / table["measured_ns"] - 1
    table["inside"] = table["measured_ns"].between(table["low_ns"], table["high_ns"]) & known
    table["again_inside"] = table["again_ns"].between(table["low_ns"], table["high_ns"]) & known
    table["beaten"] = (table["measured_ns"] < table["ceiling_ns"]) & known
    return table
