"""What bounds the runs of the shipped default sweep."""

import pytest

from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.pages.questions import bounds
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context
from tests.pages.test_bounds import test_matmuls_are_limited_by_compute_and_everything_else_by_memory  # noqa: F401
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def main():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def answer(main):
    return page_context.ask(bounds.QUESTION, main, calibration=combine.find_rates([store.load(locate("precision"))]))


def test_every_kernel_of_a_real_forward_pass_belongs_to_one_operation(main, answer):
    rows = answer.tables["every"].rows
    forward = rows[rows["phase"] == "forward"]
    named = forward.groupby("run_id")["time_ns"].sum()
    totals = kernel_time.kernel_totals(main.kernels)
    kernels = totals[totals["run_id"].isin(named.index)].groupby("run_id")["time_ns"].sum()
    assert len(named) == len(kernels) == 20
    assert (named / kernels.loc[named.index]).between(0.98, 1.02).all()


def test_the_verdict_counts_every_run(answer):
    claim = answer.claims["counts"]
    assert claim.holds
    found = claim.values
    assert sum(found[part] for part in ("compute", "memory", "cpu", "either")) == found["num_all"] == 60
    assert found["memory"] == 0, "in FP32; backward counts as its matmuls, of whichever modules"
