"""A question of the report: what it is called, what it reads, and how it is answered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pandas as pd

from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.recording.store import Recording
from profiler_job.analysis.render.answer import Answer

RATES = ("figure", "unit", "value", "low", "high", "repeats", "gpu_name")
"""Columns of the peak rates measured on a machine."""


class Section(StrEnum):
    """What a reader asks, in the order of the home page: first what helps with a model of his own."""

    LIMIT = "What limits it"
    CHANGE = "What to change"
    FIT = "Will it fit, what does it cost"
    TIME = "Where time goes"
    TRUST = "Trust"
    MORE = "More"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a question may read, by name: the tables of `recording`, which are properties here, and other facts.

    main: the recording of the default sweep. studies: other recordings, by study. calibration: the peak rates measured
    on the machine, with columns RATES; no rows if there are none. bands: the noise bands of times, fitted to runs that
    were recorded twice. losses: the recording whose runs compare losses. run_pages: the path of the page of a run, by
    its id and start. None: not recorded.
    """

    recording: Recording
    main: Recording
    studies: Mapping[str, Recording] = field(default_factory=dict)
    calibration: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(RATES)))
    bands: Bands | None = None
    losses: Recording | None = None
    run_pages: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def runs(self) -> pd.DataFrame:
        return self.recording.runs

    @property
    def steps(self) -> pd.DataFrame:
        return self.recording.steps

    @property
    def processes(self) -> pd.DataFrame:
        return self.recording.processes

    @property
    def telemetry(self) -> pd.DataFrame:
        return self.recording.telemetry

    @property
    def kernels(self) -> pd.DataFrame:
        return self.recording.kernels

    @property
    def api(self) -> pd.DataFrame:
        return self.recording.api

    @property
    def memops(self) -> pd.DataFrame:
        return self.recording.memops

    @property
    def memory(self) -> pd.DataFrame:
        return self.recording.memory

    @property
    def module_memory(self) -> pd.DataFrame:
        return self.recording.module_memory

    @property
    def figures(self) -> pd.DataFrame:
        return self.recording.figures


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, which a module of `pages.questions` answers, with a template that has the words.

    letter: names it in code. slug: names its page, and with underscores its template. section, place: where the
    navigation has it. needs: names of the inputs that it reads. answer: its docstring is the specification. study:
    whose recordings it is about; "" for the main recording, None if it is asked of the main recording and of
    steps as people train, eager and compiled. searched: what a reader may search for who has not read the page.
    also_as: further templates for the same answer. has_small_tables: whether it reads no operations of the GPU in any
    recording, and neither rates, bands, losses nor pages of runs, so that a process that is not given them can write
    its page. reads: other studies whose runs its figures and tables show, next to `recording` and, if it needs it,
    `main`.
    """

    letter: str
    slug: str
    title: str
    needs: tuple[str, ...]
    answer: Callable[[Inputs], Answer]
    section: Section = Section.MORE
    place: int = 0
    study: str | None = None
    searched: tuple[str, ...] = ()
    also_as: tuple[str, ...] = ()
    has_small_tables: bool = False
    reads: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """Path of its page below the site's folder."""
        return f"report/{self.slug}.md"

    @property
    def template(self) -> str:
        return f"{self.slug.replace('-', '_')}.md"
