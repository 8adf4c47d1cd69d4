"""What contradicts what on one screen: the limit, the advice, and the reasons not to advise a change."""

from collections.abc import Iterator

import pandas as pd

from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.contract.step_limit import CPU, LAUNCHES, UNKNOWN, StepLimit

CLOSE = 0.1
"""Part of a step by which a time may exceed it: that of steps under nsys."""


def find_contradictions(limit: StepLimit, table: pd.DataFrame) -> list[str]:
    """Find what in a table of advice contradicts the limit, or itself: a name for each."""
    return [*_check_first(limit, table), *_check_times(limit, table), *_check_reasons(limit, table)]


def _check_first(limit: StepLimit, table: pd.DataFrame) -> Iterator[str]:
    advised = table[table["reason"] == ""]
    fits = [not limit.targets.isdisjoint(CHANGES[change].relieves) for change in advised["change"]]
    if len(advised):
        first = advised.iloc[0]
        if not (first["evidence"] and first["do"] and first["time_ns"] > 0):
            yield "no evidence"
        if any(fits) and not fits[0]:
            yield "the first does not fit the limit"
        if LAUNCHES in limit.targets and not any(fits):
            yield "launches limit, and nothing launches less"
    if fits != advised["fits_limit"].tolist():
        yield "a wrong mark of what fits"
    if table["change"].duplicated().any():
        yield "a change twice"


def _check_times(limit: StepLimit, table: pd.DataFrame) -> Iterator[str]:
    advised = table[table["reason"] == ""]
    if (advised["time_ns"] > advised["ceiling_ns"]).any():
        yield "more time than could be saved"
    if (advised["ceiling_ns"] > limit.step_ns * (1 + CLOSE)).any():
        yield "more could be saved than there is"


def _check_reasons(limit: StepLimit, table: pd.DataFrame) -> Iterator[str]:
    codes = set(table.loc[table["reason"] != "", "reason_code"])
    if not (table["reason"] != "").equals(table["reason_code"] != ""):
        yield "a reason without a code"
    if "cpu_limits" in codes and limit.names != (CPU,):
        yield "the CPU limits, and does not"
    if "idle_unexplained" in codes and (CPU not in limit.names or limit.cause not in (UNKNOWN, "")):
        yield "it is not known why the GPU waits, and it is"
    if "startup_included" in codes and limit.is_launches:
        yield "start-up is why the GPU waits, and launches are"
