"""Lower precision in the shipped recording of five sizes."""

import pytest

from profiler_job.analysis.metrics import precisions
from profiler_job.analysis.recording import store
from tests.pages.test_precision import ask, list_holding
from tests.shipped.recordings import locate


@pytest.fixture(scope="module")
def shipped():
    return store.load(locate("precision"))


@pytest.fixture(scope="module")
def answer(shipped):
    return ask(shipped)


def test_every_matmul_has_a_math_path_and_none_is_missing(shipped, answer):
    paths = answer.tables["paths"].rows
    gemms = paths.groupby("run_id")["gemms"].sum()
    layers = shipped.runs.astype({"run_id": str}).set_index("run_id")["num_layers"]
    assert len(gemms) == 15 and (gemms == 3 * (9 * layers[gemms.index] + 1)).all()
    assert "proven" in list_holding(answer) and "not_as_declared" not in list_holding(answer)


def test_no_step_is_faster_than_its_limit_and_no_rate_above_its_peak(answer):
    lower = answer.tables["parts"].rows.dropna(subset="busy_speedup")
    assert (lower["busy_speedup"] < lower["ceiling"]).all()
    use = answer.tables["use"].rows
    assert use["gemm_use"].between(0, 1).all()
    assert (use["mfu_measured"] < use["gemm_use"]).all()


def test_bfloat16_is_further_from_fp32_than_tf32_for_every_model(answer):
    rows = answer.tables["numerics"].rows.pivot(index="size", columns="precision", values="logits_ratio")
    assert len(rows) == 5 and (rows["bf16"] > rows["tf32"]).all() and (rows["tf32"] > 0).all()


def test_the_wait_for_launches_is_said_by_its_value(answer):
    found = answer.claims["waits"].values
    assert found["num_rows"] == 10
    assert 0 < found["high"]["launch_wait_fp32"] < found["high"]["launch_wait"] < 1


def test_families_that_gain_are_named_only_beyond_the_spread(answer):
    rows = answer.claims["families_faster"].rows
    assert set(rows["precision"]) == {"bf16"} and precisions.GEMM not in set(rows["family"])
    assert (rows["time_max_ns"] < rows["base_min_ns"]).all() and (rows["speedup"] > precisions.UNCHANGED).all()
    assert {"elementwise", "reduce", "fill"} <= set(rows["family"])
    assert "copy" in set(answer.claims["families_slower"].rows["family"])
