"""Activation checkpointing, as shipped: what backward computes again is expected, counted, and no work of the model."""

import pytest

from profiler_job.analysis.metrics import utilisation
from profiler_job.analysis.pages import reconciliation_checks
from profiler_job.analysis.recording import store
from tests.shipped.recordings import locate

KEPT = "xl-ctx1024-bf16-sdpa-train_step-batch8-adamw_fused"
CHECKPOINTED = f"{KEPT}-checkpoint_blocks"
COUNTS = ("backward_layouts", "backward_matmuls", "gemm_family")


@pytest.fixture(scope="module")
def shipped():
    return store.load(locate("trained_6"))


def check(recording, runs):
    """Return the checks of how many matmuls there are."""
    names = ("steps", "kernels", "memops", "nsys_sums", "api", "processes")
    checks = reconciliation_checks.checks_of(runs, *(getattr(recording, name) for name in names))
    return checks[checks["check"].isin(COUNTS)].set_index(["run_id", "check"])


def test_the_matmuls_of_each_block_but_its_last_run_again(shipped):
    checks = check(shipped, shipped.runs)
    assert checks["passed"].all()
    again = checks["found"][CHECKPOINTED] - checks["found"][KEPT]
    assert again.to_dict() == {"backward_layouts": 0, "backward_matmuls": 6 * 48, "gemm_family": 6 * 48}


def test_a_run_that_names_the_wrong_checkpointing_breaches_every_count(shipped):
    swapped = shipped.runs["checkpointing"].astype(str).replace({"blocks": "off", "off": "blocks"})
    wrong = check(shipped, shipped.runs.assign(checkpointing=swapped))["passed"]
    assert not wrong[CHECKPOINTED].any() and not wrong[KEPT].any()


def test_what_is_computed_again_is_no_work_of_the_model(shipped):
    runs = shipped.runs.astype({"run_id": str}).set_index("run_id")
    assert utilisation.mfu(runs.loc[CHECKPOINTED], 1e9) == utilisation.mfu(runs.loc[KEPT], 1e9)
