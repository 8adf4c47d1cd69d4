"""Advise what to change first, from one capture: changes that it has evidence for, with the time that each could save.

A capture holds no unprofiled step, so nothing here is a prediction. `time_ns` is the time that the capture spends on
what the change removes. `ceiling_ns` is the most that the change could save: all of that time and, of the time that the
GPU waits, as much as the CPU gets faster at most. If launches vanish, the CPU's part of the waiting counts by their
number, and at most by the time that the CPU takes to come to them. If start-up is in a capture, its GPUs idle for that,
and no idle time counts. Ceilings do not add up: several changes concern the same kernels. If the capture does not show
enough, a change is not advised, and the reason explains why.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.changes import describe_code, find_evidence
from profiler_job.analysis.changes.evidence import CaptureEvidence, WithheldError
from profiler_job.analysis.changes.waiting_lines import HELD, ScriptLine
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.jobs.contract.changes import CHANGES

COLUMNS = SECTIONS["advice"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A row of the section: an advice, or with a reason none."""

    change: str
    time_ns: int | None = None
    share: float | None = None
    ceiling_ns: int | None = None
    do: str = ""
    evidence: str = ""
    sure: str = ""
    reason: str = ""
    reason_code: str = ""
    fits_limit: bool = False
    where: str = ""
    line_share: float = 0.0


def advise(capture: Mapping[str, Any], sections: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """List what to change first: a row per change with COLUMNS. Advised changes come first, those
    that fit the limit before the others, sorted by the time they could save at most, then the others with the reason.
    No rows if no kernel ran.

    capture: facts, like `Summary.capture`. is_slowed: False if the idle times come from steps without nsys.
    memory_used: share of the GPU's memory, if known. limit: of the unprofiled step, if known, or else of the capture.
    has_pytorch: False if the program is known to run without it. recomputed: how often backward launches forward's
    attention, for each launch in forward. own_python_ns: if known. compute_capabilities: major and
    minor by name of the GPU. The section `lines` has the rows of `wait_lines.bound_savings`, if there are samples.
    """
    seen = CaptureEvidence(capture, sections)
    rows = list(_make_advice(seen)) if seen.whole_ns and seen.has_kernels else []
    for line in seen.lines if rows else []:
        rows = _name_line(rows, line, seen)
    return make_advice_table(rows)


def make_advice_table(rows: list[Advice]) -> pd.DataFrame:
    """Make the table of advice with COLUMNS: what fits the limit first, then what is about a line that holds
    the waiting, then what could save most."""
    rows = sorted(rows, key=lambda row: (not row.fits_limit, row.line_share < HELD, -(row.ceiling_ns or 0)))
    table = pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))
    return table.astype({name: "Int64" for name in COLUMNS if name.endswith("_ns")} | {"share": "Float64"})


def _make_advice(seen: CaptureEvidence) -> Iterator[Advice]:
    for name in CHANGES:
        code = describe_code(name, seen.has_pytorch, seen.is_compiled)
        if code is None:
            continue
        try:
            shown = find_evidence(name, seen)
        except WithheldError as why:
            yield Advice(change=name, reason=str(why), reason_code=why.code)
            continue
        if shown:
            ceiling_ns = min(max(shown.ceiling_ns, shown.time_ns), seen.whole_ns)
            time_ns = min(shown.time_ns, ceiling_ns)
            line = shown.line
            yield Advice(
                change=name,
                time_ns=round(time_ns),
                share=time_ns / seen.whole_ns,
                ceiling_ns=round(ceiling_ns),
                do=line.do if line else code,
                evidence=shown.evidence,
                sure=shown.sure,
                fits_limit=_fits_limit(name, seen),
                where=line.where if line else "",
                line_share=line.share if line else 0.0,
            )


def _fits_limit(name: str, seen: CaptureEvidence) -> bool:
    return not seen.limit.targets.isdisjoint(CHANGES[name].relieves)


def _name_line(rows: list[Advice], line: ScriptLine, seen: CaptureEvidence) -> list[Advice]:
    """Name a line in the advice that does what it needs, so that one cause has one advice: in the first of its changes
    that is advised, or else in its only change, which the line is the evidence for."""
    by_change = {row.change: row for row in rows}
    advised = [name for name in line.changes if name in by_change and not by_change[name].reason]
    name = next(iter(advised or line.changes[: len(line.changes) == 1]), None)
    if name is None or (advised and by_change[name].where) or describe_code(name, seen.has_pytorch) is None:
        return rows
    ceiling_ns, time_ns, evidence = line.ceiling_ns, line.wait_ns, line.evidence
    do, sure = line.do, "medium: steps differ, and what else the line does stays"
    if advised:
        row = by_change[name]
        ceiling_ns, time_ns = max(ceiling_ns, row.ceiling_ns or 0), max(time_ns, row.time_ns or 0)
        evidence, do, sure = f"{row.evidence}; {evidence}", row.do, row.sure
    ceiling_ns = min(ceiling_ns, seen.whole_ns)
    time_ns = min(time_ns, ceiling_ns)
    named = Advice(
        change=name,
        time_ns=round(time_ns),
        share=time_ns / seen.whole_ns,
        ceiling_ns=round(ceiling_ns),
        do=do,
        evidence=evidence,
        sure=sure,
        fits_limit=_fits_limit(name, seen),
        where=line.where,
        line_share=line.share,
    )
    return [*(row for row in rows if row.change != name), named]
