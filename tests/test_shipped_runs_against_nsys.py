"""Six runs of the shipped recording, with the export they were made from and what nsys's own statistics printed for it
on the machine that recorded them."""

import functools
import io
import lzma
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from analysis.capture import nsys_reports
from analysis.capture.attribution import attribute
from analysis.capture.nsys_export import read
from analysis.recording import store
from tests.capture.test_nsys_reports import assert_agrees

ROOT = Path(__file__).resolve().parents[1]
RUNS = sorted(path.parent for path in (ROOT / "tests" / "data" / "h200_runs").glob("*/profile.sqlite.xz"))


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Function from a run's folder to its capture and attribution, each read once."""
    unpacked = tmp_path_factory.mktemp("exports")

    @functools.cache
    def export(folder: Path):
        database = unpacked / f"{folder.name}.sqlite"
        database.write_bytes(lzma.decompress((folder / "profile.sqlite.xz").read_bytes()))
        capture = read(database)
        return capture, attribute(capture)

    return export


@functools.cache
def printed(folder: Path) -> dict[str, pd.DataFrame]:
    """What nsys printed, by report. Reports of tables that the capture does not have are left out."""
    with tarfile.open(folder / "nsys_stats.tar.xz") as archive:
        texts = {Path(name).stem: archive.extractfile(name).read().decode() for name in archive.getnames()}
    return {name: pd.read_csv(io.StringIO(text)) for name, text in texts.items() if "," in text}


@functools.cache
def shipped() -> store.Recording:
    return store.load(ROOT / "site" / "data" / "h200-fp32")


def test_there_are_at_least_five_such_runs():
    assert len(RUNS) >= 5
    assert {folder.name for folder in RUNS} <= set(shipped().runs["run_id"].astype(str))


@pytest.mark.parametrize("report", nsys_reports.REPORTS)
@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_export_agrees_with_nsys_to_the_nanosecond(exports, folder, report):
    if report not in printed(folder):
        pytest.skip(f"nsys printed no {report} for {folder.name}")
    assert_agrees(nsys_reports.REPORTS[report](*exports(folder)), printed(folder)[report])


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_recording_agrees_with_nsys_to_the_nanosecond(folder):
    """Kernel calls and time by name inside the steps and inside each phase, against nsys's rows for those ranges."""
    kernels = shipped().kernels
    kernels = kernels[kernels["run_id"] == folder.name]
    nsys = printed(folder)["nvtx_kern_sum"]
    total = kernels.assign(time=kernels["end_ns"] - kernels["start_ns"], name=kernels["kernel_name"].astype(str))
    for name, inside in [("step", total), *total.groupby("phase", observed=True)]:
        theirs = nsys[nsys["NVTX Range"] == f":{name}"].set_index("Kernel Name")[["Kern Inst", "Total Time (ns)"]]
        ours = inside.groupby("name")["time"].agg(["size", "sum"])
        assert dict(zip(ours.index, ours.to_numpy().tolist())) == dict(zip(theirs.index, theirs.to_numpy().tolist()))
