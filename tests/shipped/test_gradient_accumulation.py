"""A batch in micro-batches against the same batch in one piece, as shipped."""

import pytest

from profiler_job.analysis.pages import reconciliation_checks
from profiler_job.analysis.pages.questions import gradient_accumulation
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context
from profiler_job.jobs.contract.studies import TRAINED
from tests.shipped.recordings import DATA, locate


@pytest.fixture(scope="module")
def shipped():
    return store.load(locate("accumulation"))


def test_on_an_h200_four_micro_batches_launch_four_times_as_much_and_take_as_much_longer(shipped):
    found = page_context.ask(gradient_accumulation.QUESTION, shipped)
    rows = found.tables["gpu"].rows.set_index(["size", "accumulation"])
    assert rows.loc[("small", 4), "more_launches"] == pytest.approx(4.16, abs=0.01)
    assert rows.loc[("small", 4), "launch_wait"] > 0.6
    steps = found.tables["steps"].rows.set_index(["size", "accumulation"])
    assert steps.loc[("small", 4), "step_ratio"] == pytest.approx(4.00, abs=0.01)
    assert steps.loc[("xl", 4), "step_ratio"] < steps.loc[("small", 4), "step_ratio"]
    assert found.claims["more_memory"].rows["memory_ratio"].tolist() == pytest.approx([1.045], abs=1e-3)


def test_what_micro_batches_cost_is_the_time_of_the_step_with_its_condition(shipped):
    """The page gave the GPU's 1.8 to 2.3 times first, and steps take 3.5 to 4.0."""
    answer = page_context.ask(gradient_accumulation.QUESTION, shipped)
    assert not answer.claims["quoted"].holds, "the CPUs of its processes differ"
    assert answer.claims["rough"].values["apart"] > 0.05
    assert answer.claims["rough"].values["step"] == pytest.approx((3.48, 4.00), abs=0.01)
    condition = answer.facts["condition"]
    assert "512 tokens" in condition
    assert "uncompiled" in condition


@pytest.mark.long
def test_micro_batches_of_four_long_sequences_cost_nothing(shipped):
    trained = store.load(DATA / "trained" / "trained_6")
    both = combine.join_recordings([store.load(folder) for folder in sorted((DATA / "trained").iterdir())])
    answer = page_context.ask(gradient_accumulation.QUESTION, shipped, studies={TRAINED: both})
    free = answer.claims["free"]
    assert free.holds and set(free.rows["run_id"]) <= {*trained.runs["run_id"].astype(str)}
    assert free.values["step_ns"] == pytest.approx(459e6, rel=0.01)
    assert free.values["separate_ns"] == pytest.approx(472e6, rel=0.01)
    rows = answer.tables["separate"].rows.set_index("run_id")
    one = rows.loc[free.values["run_id"]]
    assert one["separate_ns"] == pytest.approx(4 * one["alone_ns"])
    assert one["alone_ns"] * 3 < one["one_optimizer_ns"] < one["step_ns"], "separate steps have an optimizer step each"


def test_the_shipped_runs_in_micro_batches_hold_all_checks(shipped):
    tables = (
        getattr(shipped, name) for name in ("runs", "steps", "kernels", "memops", "nsys_sums", "api", "processes")
    )
    checks = reconciliation_checks.checks_of(*tables)
    assert checks["passed"].all()
    counted = checks[checks["check"] == "forward_matmuls"].set_index("run_id")["found"]
    assert counted.filter(like="accum4").tolist() == [4 * (7 * 12 + 1), 4 * (7 * 48 + 1)]
