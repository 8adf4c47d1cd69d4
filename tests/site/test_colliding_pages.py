"""No run's page replaces another run's."""

import dataclasses
import re

import pytest

from profiler_job.analysis.recording.store import RecordingError
from profiler_job.analysis.site import write_site
from profiler_job.analysis.site.combine import refuse_colliding_pages
from tests.synthetic import recording as made_up


def rename_runs(*names: str):
    """A recording whose first runs have these names."""
    recording = made_up()
    runs = recording.runs.head(len(names)).assign(run_id=list(names))
    return dataclasses.replace(recording, runs=runs)


@pytest.mark.parametrize(
    "names",
    [("a/b", "a_b"), ("a_b", "A_B"), ("a b", "a?b"), ("x" * 120 + "1", "x" * 120 + "2")],
)
def test_runs_whose_pages_would_have_one_name_are_refused(names, tmp_path):
    with pytest.raises(RecordingError, match=f"{re.escape(names[0])} and {re.escape(names[1])}"):
        write_site.write(rename_runs(*names), tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_names_are_not_refused():
    refuse_colliding_pages(rename_runs("a-b", "a_b", "ab"))
