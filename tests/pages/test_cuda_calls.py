"""What CUDA API calls cost the host, on a recording that can be worked out by hand."""

import pytest

from profiler_job.analysis.pages import cuda_calls
from tests import synthetic

RUN = "small-ctx128-fp32-naive-train_step"


@pytest.fixture
def rec():
    return synthetic.recording(("small",), (128, 512), modes=("forward", "train_step"))


def ask(rec):
    return cuda_calls.answer(rec.runs, rec.steps, rec.kernels, rec.api, rec.memops)


def test_calls_are_grouped_and_counted_over_all_runs(rec):
    answer = ask(rec)
    assert answer.facts["tables"] == ["calls-launch", "calls-synchronisation"]
    row = answer.tables["calls-launch"].rows.iloc[0]
    assert (row["name"], row["num_runs"], row["each_ns"]) == ("cudaLaunchKernel", 4, 3_000)
    assert row["calls"] == len(rec.kernels)
    assert answer.claims["one_each"].holds


def test_a_run_has_its_launches_and_waits_per_step(rec):
    rows = ask(rec).tables["host"].rows.set_index("run_id")
    kernels = rec.kernels[rec.kernels["run_id"] == RUN]
    assert rows.loc[RUN, "launches"] == len(kernels) / 3
    assert rows.loc[RUN, "launch_ns"] == 3_000 * len(kernels) / 3
    assert rows.loc[RUN, "wait_ns"] == 4 * 20_000
    step = rec.steps[(rec.steps["run_id"] == RUN) & (rec.steps["collector"] == "nsys") & (rec.steps["phase"] == "step")]
    assert rows.loc[RUN, "wait_share"] == pytest.approx(80_000 / step["wall_ns"].mean())


def test_launches_that_cost_the_same_everywhere_did_not_wait_for_the_queue(rec):
    assert not ask(rec).claims["queue"].holds
    slow = rec.api["run_id"].eq(RUN) & rec.api["name"].eq("cudaLaunchKernel")
    rec.api.loc[slow, "total_ns"] *= 10
    claim = ask(rec).claims["queue"]
    assert claim.holds
    assert claim.values["high"]["run_id"] == RUN


def test_unknown_calls_are_said_to_be(rec):
    rec.api.loc[rec.api["name"] == "cudaDeviceSynchronize", "name"] = "cudaOfTomorrow"
    found = ask(rec).tables["calls-"].rows
    assert found["explanation"].tolist() == ["not described yet"]


def test_a_graph_launch_is_told(rec):
    assert ask(rec).claims["no_graphs"].holds and not ask(rec).claims["graphs"].holds
    rec.api.loc[rec.api.index[0], "name"] = "cudaGraphLaunch"
    assert ask(rec).claims["graphs"].holds and not ask(rec).claims["no_graphs"].holds


def test_without_calls_there_is_a_page_that_claims_nothing(rec):
    answer = cuda_calls.answer(rec.runs, rec.steps, rec.kernels, rec.api.head(0), rec.memops)
    assert answer.facts == {"tables": [], "num_calls": 0}
    assert not [claim.key for claim in answer.claims.values() if claim.holds]
