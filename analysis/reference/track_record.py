"""How predictions of each change have done so far. They are predictions kept before the measurement that tests them,
and the pairs that the models were developed on.

The numbers are in track_record.json; `python -m profiler_job.analysis.prediction.score_ledgers` makes it anew from the
ledgers and recordings in site/data.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.changes import COMPILED, TF32
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.words import format_count

FILE = Path(__file__).resolve().with_suffix(".json")
SWEEP = "sweep"
AS_SCRIPT = "sweep, as a script"
TOGETHER = {*COMPILED, TF32}
"""Changes whose step of the reference Transformer is predicted AS_SCRIPT."""
CLOSE = 0.1
"""An error up to which a prediction counts as close."""


class Record(NamedTuple):
    """The record of one set of changes: predictions and abstentions in the ledgers, predictions tested since, and how
    many of them are within CLOSE; and the pairs its model was developed on, each predicted with the rates of other
    sizes, and how many of them are within CLOSE."""

    kept: int = 0
    abstained: int = 0
    tested: int = 0
    close: int = 0
    pairs: int = 0
    close_pairs: int = 0


@cache
def read(file: Path = FILE) -> dict[str, dict[str, Record]]:
    """Read the records of SWEEP, with known shapes and modules, of AS_SCRIPT and of scripts (layout.SCRIPT), by the
    names of the changes, joined by +."""
    parts = json.loads(file.read_text(encoding="utf-8"))
    return {of: {names: Record(**row) for names, row in rows.items()} for of, rows in parts.items()}


def choose_kind(run: Mapping[str, Any], changes: Collection[str] = ()) -> str:
    """Choose how the step of this run is predicted with these changes: SWEEP, AS_SCRIPT or layout.SCRIPT. Models other
    than the reference Transformer are predicted like a script. The compiled steps that were measured shape by shape
    have BF16 with fused attention. A compiled training step in FP32 or TF32 with eager attention is predicted like a
    script's, and was tested so; it has a separate record."""
    if run.get("workload", find_default("workload")) != find_default("workload"):
        return SCRIPT
    is_compiled = run.get("mode") == "train_step" and not {*changes}.isdisjoint(COMPILED)
    is_plain = run.get("precision") in ("fp32", "tf32") and run.get("attention") == "naive"
    return AS_SCRIPT if is_compiled and is_plain and TOGETHER.issuperset(changes) else SWEEP


def describe_record(names: Iterable[str], of: str) -> str:
    """Describe the record of these changes together. of: the result of `choose_kind`."""
    return format_record(read()[of].get("+".join(names), Record()))


def format_record(record: Record) -> str:
    """`not tested yet, 15 predictions made; 8 of 9 development pairs within 10%`"""
    within = f"within {CLOSE:.0%}"
    pairs = (
        f"; {record.close_pairs} of {format_count(record.pairs, 'development pair')} {within}" if record.pairs else ""
    )
    if record.tested:
        return f"{record.close} of {format_count(record.tested, 'tested prediction')} {within}{pairs}"
    if record.kept:
        return f"not tested yet, {format_count(record.kept, 'prediction')} made{pairs}"
    if record.pairs:
        return f"not tested yet{pairs}"
    if record.abstained:
        return f"not tested yet, {format_count(record.abstained, 'abstention')} and no prediction"
    return "none yet"
