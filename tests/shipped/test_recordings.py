"""What the recordings in site/data promise, checked over every run of them."""

import pytest

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages import reconciliation
from profiler_job.analysis.recording import store
from tests.shipped.recordings import RECORDINGS as FOLDERS
from tests.shipped.recordings import load_timed, locate

pytestmark = pytest.mark.skipif(not FOLDERS, reason="no recording in site/data")


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def loaded(request):
    return store.load(request.param)


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def timed(request):
    return load_timed(request.param)


def test_every_run_has_a_status_and_unfinished_ones_a_reason(timed):
    unfinished = timed.runs[timed.runs["status"].astype(str) != "ok"]
    assert unfinished["status_message"].astype(str).str.len().gt(0).all()


@pytest.mark.nightly
def test_every_check_of_every_finished_run_holds(loaded):
    tables = reconciliation.answer(
        loaded.runs, loaded.steps, loaded.kernels, loaded.memops, loaded.nsys_sums, loaded.api, loaded.processes
    ).tables
    breaches = tables["breaches"].rows
    assert breaches.empty, breaches[["run_id", "check", "found", "at_least", "at_most"]].to_string()
    checks = set(tables["checks"].rows["check"])
    if len(loaded.kernels):  # a sweep may be timed alone
        of_reference = {"forward_matmuls", "in_module"} if len(run_grid.select_known_shapes(loaded.runs)) else set()
        assert {"in_phase", *of_reference} <= checks


def test_what_was_timed_was_timed_by_three_processes(timed):
    """Except runs that compare losses, whose times are not reported, scripts, which are one process, and runs of
    warm-up: each of these is one process of five with the same settings."""
    known = timed.processes["run_id"].astype(str).value_counts()
    ok = timed.runs[timed.runs["status"].astype(str) == "ok"].astype({"run_id": str})
    if timed.manifest["study"] == "warm_up":
        assert (ok.groupby(["size", "context_length"], observed=True).size() == 5).all()
    elif timed.manifest["study"] not in ("losses", "generation"):
        assert (ok["run_id"].map(known) >= 3).all()


@pytest.mark.long
def test_no_kernel_is_unclassified(loaded):
    assert "other" not in set(loaded.kernels["family"].astype(str))


def test_all_together_stay_below_40_mib():
    assert sum(path.stat().st_size for folder in FOLDERS for path in folder.iterdir()) <= 40 * 2**20


def test_that_of_several_gpus_stays_below_6_mib():
    assert sum(path.stat().st_size for path in locate("gpus").iterdir()) <= 6 * 2**20


def test_it_stays_small():
    for folder in FOLDERS:
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 25 * 2**20
