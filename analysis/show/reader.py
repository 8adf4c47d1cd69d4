"""Summaries of many profiles, some of them unreadable."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.selection import Selection
from profiler_job.analysis.insight.summary import Predict, Summary, summarise
from profiler_job.analysis.reference.rules import Taxonomy
from profiler_job.jobs.contract.errors import describe_bug
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import make_printable

Made = TypeVar("Made")


class Reader:
    """Summarises profiles one after another, with an error line for each that cannot be; `code` is the exit code of
    these errors, of several the largest."""

    def __init__(
        self,
        taxonomy: Taxonomy,
        phases: Mapping[str, str],
        selection: Selection,
        err: Callable[[str], None],
        with_moments: bool = False,
        predict: Predict | None = None,
        skips_startup: bool = True,
    ):
        self._options: dict[str, Any] = {"taxonomy": taxonomy, "chosen": phases, "selection": selection}
        self._options |= {"with_moments": with_moments, "predict": predict, "skips_startup": skips_startup}
        self._err = err
        self.code = ExitCode.OK

    def make_each(self, profiles: Iterable[Path], make: Callable[[Summary], Made]) -> Iterator[Made]:
        """What is made of the summary of each."""
        for profile in profiles:
            try:
                made = make(summarise(read(profile, details=False), **self._options))
            except ExportError as error:
                self._fail(str(error), error.exit_code)
            except Exception as error:  # a batch goes on, and a user sees no traceback, whatever a profile holds
                self._fail(f"{profile}: could not be summarised: {describe_bug(error)}", ExitCode.BUG)
            else:
                yield made

    def _fail(self, what: str, code: ExitCode) -> None:
        self._err(make_printable(f"error: {what}"))
        self.code = max(self.code, code)
