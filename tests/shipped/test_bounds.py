"""What bounds the runs of the shipped default sweep."""

import pytest

from profiler_job.analysis.metrics import kernel_time, roofline
from profiler_job.analysis.pages.questions import bounds
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def main():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def shipped(main):
    return page_context.ask(bounds.QUESTION, main, calibration=combine.find_rates([store.load(locate("precision"))]))


def test_every_kernel_of_a_real_forward_pass_belongs_to_one_operation(main, shipped):
    rows = shipped.tables["every"].rows
    forward = rows[rows["phase"] == "forward"]
    named = forward.groupby("run_id")["time_ns"].sum()
    totals = kernel_time.kernel_totals(main.kernels)
    kernels = totals[totals["run_id"].isin(named.index)].groupby("run_id")["time_ns"].sum()
    assert len(named) == len(kernels) == 20
    assert (named / kernels.loc[named.index]).between(0.98, 1.02).all()


def test_matmuls_are_limited_by_compute_and_everything_else_by_memory(shipped):
    rows = shipped.tables["every"].rows
    gemms = rows["series"].isin((roofline.LINEAR, roofline.ATTENTION))
    assert set(rows[gemms]["limit"]) == {roofline.COMPUTE}
    assert set(rows[~gemms]["limit"]) == {roofline.MEMORY}
    assert rows[gemms]["reached"].max() < 1.02, "no matmul is faster than the measured peak"


def test_the_verdict_counts_every_run(shipped):
    claim = shipped.claims["counts"]
    assert claim.holds
    found = claim.values
    assert sum(found[part] for part in ("compute", "memory", "cpu", "either")) == found["num_all"] == 60
    assert found["memory"] == 0, "in FP32; backward counts as its matmuls, of whichever modules"
