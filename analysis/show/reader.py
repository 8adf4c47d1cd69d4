"""Summaries of many profiles, some of them unreadable."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from profiler_job.analysis.capture.cached_tables import ENDING, keep_tables, load_tables
from profiler_job.analysis.capture.capture_cache import open_entry
from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.show.cached_summary import list_options, pack_summary, unpack_summary
from profiler_job.jobs.contract.errors import describe_bug
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import make_printable

Made = TypeVar("Made")


class Reader:
    """Summarises profiles one after another, with an error line for each that cannot be; `code` is the exit code of
    these errors, of several the largest. rules: file with rules of further kernel families, which was checked. caches:
    whether summaries are kept next to the profiles."""

    def __init__(
        self,
        phases: Mapping[str, str],
        selection: Selection,
        err: Callable[[str], None],
        *,
        rules: Path | None = None,
        with_moments: bool = False,
        skips_startup: bool = True,
        caches: bool = True,
    ):
        self._phases, self._selection, self._rules = phases, selection, rules
        self._with_moments = with_moments
        self._skips_startup, self._caches = skips_startup, caches
        self._options = list_options(
            phases,
            selection,
            rules=rules,
            with_moments=with_moments,
            skips_startup=skips_startup,
        )
        self._err = err
        self.code = ExitCode.OK

    def make_each(self, profiles: Iterable[Path], make: Callable[[Summary], Made]) -> Iterator[Made]:
        """What is made of the summary of each."""
        for profile in profiles:
            try:
                made = make(self._summarise(profile))
            except ExportError as error:
                self._fail(str(error), error.exit_code)
            except Exception as error:  # a batch goes on, and a user sees no traceback, whatever a profile holds
                self._fail(f"{profile}: could not be summarised: {describe_bug(error)}", ExitCode.BUG)
            else:
                yield made

    def _summarise(self, profile: Path) -> Summary:
        """Summarise a profile, or load what was kept of it. Raises ExportError."""
        entry = open_entry([profile], self._options, ENDING, is_wanted=self._caches)
        if kept := load_tables(entry):
            return unpack_summary(kept)
        # What reads a profile takes as long to import as all the rest.
        from profiler_job.analysis.capture.nsys_export import read
        from profiler_job.analysis.insight.summary import summarise
        from profiler_job.analysis.reference import kernel_families

        taxonomy = kernel_families.add_user_rules(self._rules) if self._rules else kernel_families.BUILT_IN
        summary = summarise(
            read(profile, details=False),
            taxonomy=taxonomy,
            chosen=self._phases,
            selection=self._selection,
            with_moments=self._with_moments,
            skips_startup=self._skips_startup,
        )
        if entry:
            keep_tables(entry, pack_summary(summary))
        return summary

    def _fail(self, what: str, code: ExitCode) -> None:
        self._err(make_printable(f"error: {what}"))
        self.code = max(self.code, code)
