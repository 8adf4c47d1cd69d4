"""The exports of six runs of the default sweep, compared with nsys's own statistics from the machine that measured."""

import functools
import io
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.capture import nsys_reports
from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from tests.capture.test_nsys_reports import assert_agrees
from tests.packed import unpack

ROOT = Path(__file__).resolve().parents[2]
RUNS = sorted(path.parent for path in (ROOT / "tests" / "data" / "h200_runs").glob("*/profile.sqlite.packed"))


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Function from a run's folder to its capture and attribution, each read once."""
    unpacked = tmp_path_factory.mktemp("exports")

    @functools.cache
    def export(folder: Path):
        database = unpack(folder / "profile.sqlite.packed", unpacked / f"{folder.name}.sqlite")
        capture = read(database)
        return capture, attribute(capture)

    return export


@functools.cache
def printed(folder: Path) -> dict[str, pd.DataFrame]:
    """What nsys printed, by report. Reports of tables that the capture does not have are left out."""
    with tarfile.open(folder / "nsys_stats.tar.xz") as archive:
        texts = {Path(name).stem: archive.extractfile(name).read().decode() for name in archive.getnames()}
    return {name: pd.read_csv(io.StringIO(text)) for name, text in texts.items() if "," in text}


def test_there_are_at_least_five_such_runs():
    assert len(RUNS) >= 5
    assert {folder.name for folder in RUNS} <= {run.run_id for run in load_sweep(DEFAULT_SWEEP).runs}


@pytest.mark.parametrize("report", nsys_reports.REPORTS)
@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_export_agrees_with_nsys_to_the_nanosecond(exports, folder, report):
    if report not in printed(folder):
        pytest.skip(f"nsys printed no {report} for {folder.name}")
    assert_agrees(nsys_reports.REPORTS[report](*exports(folder)), printed(folder)[report])
