"""Summaries of many profiles, of which some cannot be read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from profiler_job.analysis.capture.nsys_export import ExportError, read
from profiler_job.analysis.capture.selection import Selection
from profiler_job.analysis.capture.summary import Predict, Summary, summarise
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.show.values import printable

Made = TypeVar("Made")


class Reader:
    """Summarises profiles one after another, with an error line for each that cannot be; `code` is then 2."""

    def __init__(
        self,
        taxonomy: kernel_families.Taxonomy,
        phases: Mapping[str, str],
        selection: Selection,
        err: Callable[[str], None],
        with_moments: bool = False,
        predict: Predict | None = None,
    ):
        self._options: dict[str, Any] = {"taxonomy": taxonomy, "chosen": phases, "selection": selection}
        self._options |= {"with_moments": with_moments, "predict": predict}
        self._err = err
        self.code = 0

    def each(self, profiles: Iterable[Path], make: Callable[[Summary], Made]) -> Iterator[Made]:
        """What is made of the summary of each."""
        for profile in profiles:
            try:
                made = make(summarise(read(profile, details=False), **self._options))
            except ExportError as error:
                self._fail(str(error))
            except Exception as error:  # a batch goes on, and a user sees no traceback, whatever a profile holds
                what = f"could not be summarised ({type(error).__name__}: {error})"
                self._fail(f"{profile}: {what}; please report it, with the profile if you can")
            else:
                yield made

    def _fail(self, what: str) -> None:
        self._err(printable(f"error: {what}"))
        self.code = 2
