"""What nsys's own statistics said on the machine that measured: of six runs of the default sweep, whose exports are
here, and of every run of the shipped recordings, which hold the sums that nsys printed."""

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
from tests.shipped.recordings import locate

ROOT = Path(__file__).resolve().parents[1]
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


@pytest.mark.long
@pytest.mark.parametrize(("name", "num_runs"), [("h200-fp32", 60), ("h200-bf16", 60), ("precision", 15)])
def test_a_recording_agrees_with_nsys_to_the_nanosecond(name, num_runs):
    """Kernel calls and time by name inside the steps and inside each phase, against nsys's rows for those ranges."""
    kernels, nsys = (pd.read_parquet(locate(name) / f"{table}.parquet") for table in ("kernels", "nsys_sums"))
    assert nsys["run_id"].nunique() == num_runs
    kernels = kernels[kernels["step"] >= 0]
    total = kernels.rename(columns={"duration_ns": "total_ns"})
    by = ["run_id", "range", "kernel_name"]
    places = [total.assign(range="step"), total.rename(columns={"phase": "range"})]
    rows = pd.concat([place[[*by, "total_ns"]].astype(dict.fromkeys(by, str)) for place in places])
    ours = rows.groupby(by)["total_ns"].agg(["size", "sum"])
    theirs = nsys.astype(dict.fromkeys(by, str)).set_index(by)[["calls", "total_ns"]]
    assert ours.index.sort_values().equals(theirs.index.sort_values())
    assert (ours.to_numpy() == theirs.loc[ours.index].to_numpy()).all()
