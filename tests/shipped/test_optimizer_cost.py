"""AdamW in the shipped recording of five sizes."""

import pytest

from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine
from tests.pages.test_optimizer_cost import ask
from tests.shipped.recordings import locate


@pytest.fixture(scope="module")
def shipped():
    return store.load(locate("optimizer"))


@pytest.fixture(scope="module")
def answer(shipped):
    return ask(shipped, combine.find_rates(store.load(locate(name)) for name in ("optimizer", "precision")))


@pytest.mark.long
def test_reference_adamw_launches_eight_kernels_for_each_tensor(shipped, answer):
    rows = answer.tables["cost"].rows.set_index("run_id")
    layers = shipped.runs.astype({"run_id": str}).set_index("run_id")["num_layers"]
    written_out = rows[rows["optimizer"].isin(["own", "loop"])]
    assert len(written_out) == 10 and (written_out["launches"] == 8 * (9 * layers[written_out.index] + 3)).all()


def test_no_kernel_outruns_memory(answer):
    assert answer.tables["cost"].rows["of_copy"].between(0.5, 1.05).all()


def test_foreach_holds_one_more_copy_of_the_weights_and_fused_none(answer):
    extra = answer.tables["whole"].rows.groupby("optimizer")["extra_copies"]
    assert extra.min()["foreach"] > 0.99 and extra.max()["foreach"] < 1.1
    assert extra.max()["fused"] == 0
    assert extra.max()["own"] < 0.2
