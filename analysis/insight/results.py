"""What a capture or a run means, as a result: the tables and sentences that every form prints.

Nothing is computed here, so that a result that was kept can be printed without importing what makes one.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.insight.section_columns import SECTIONS

NUM_MOMENTS = 240
"""Into which the time of a capture is cut, to see when its GPUs are busy."""


@dataclass(frozen=True, kw_only=True)
class InsightSentences:
    """Plain text. verdict: what limits each GPU and where its time goes. advice: the lines of each change to make
    first, and of each reason not to advise one. advice_note: what all advice refers to. waits: the lines of the script
    that GPUs wait for."""

    verdict: list[str]
    communication: list[str]
    findings: list[str]
    advice: list[list[str]]
    advice_note: str = ""
    waits: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Insight:
    """gpus, phases: the time of each GPU by its cause, idle time by cause included, and the same by phase.
    communication: what it costs each GPU. findings: what stands out. advice: what to change first. Times of a capture
    are sums; times of a run are of one step."""

    gpus: pd.DataFrame
    phases: pd.DataFrame
    communication: pd.DataFrame
    findings: pd.DataFrame
    advice: pd.DataFrame
    sentences: InsightSentences


@dataclass(kw_only=True)
class Summary:
    """capture: facts; coverage: shares of kernel time by attribution; sections: a frame for each of SECTIONS; shown:
    the sections that are asked for; busy: for each GPU the busy share of NUM_MOMENTS equal pieces of the events' time,
    if `summarise` was asked for it; form_sentences: says in sentences what the summary means."""

    capture: dict[str, Any]
    coverage: dict[str, float | None]
    launches: dict[str, Any]
    form_sentences: Callable[["Summary"], InsightSentences]
    sections: dict[str, pd.DataFrame] = field(default_factory=dict)
    shown: tuple[str, ...] = tuple(SECTIONS)
    busy: dict[int, np.ndarray] = field(default_factory=dict)

    @cached_property
    def insight(self) -> Insight:
        """What it means: computed once, and printed in every form."""
        tables = self.sections
        return Insight(
            gpus=tables["verdict"],
            phases=tables["verdict_phases"],
            communication=tables["communication"],
            findings=tables["findings"],
            advice=tables["advice"],
            sentences=self.form_sentences(self),
        )

    def as_json(self) -> dict[str, Any]:
        """The stable interface: capture, coverage, launches, one list of objects for each section that is shown, and
        the sentences, if all are."""
        rows = {name: _make_records(self.sections[name]) for name in self.shown}
        is_whole = len(self.shown) == len(SECTIONS)
        sentences = {"sentences": self.insight.sentences.as_json()} if is_whole else {}
        return {"capture": self.capture, "coverage": self.coverage, "launches": self.launches} | rows | sentences


def _make_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return plain.to_dict("records")
