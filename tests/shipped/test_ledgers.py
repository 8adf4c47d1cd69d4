"""The shipped predictions, made before the runs that tested them."""

import pytest

from profiler_job.analysis.pages import predictions
from profiler_job.analysis.prediction import ledger
from tests.shipped.recordings import DATA

SHIPPED = DATA / ledger.FOLDER


@pytest.fixture(scope="module")
def compared():
    return ledger.compare_with_measured(ledger.read_all(SHIPPED), ledger.read_measured(SHIPPED))


def test_fewer_than_a_third_of_the_shipped_predictions_are_none():
    entries = [entry for made in ledger.read_all(SHIPPED) for entry in made.predictions]
    assert 0 < sum(bool(entry.reason) for entry in entries) < len(entries) / 3


def test_nearly_all_predictions_were_tested(compared):
    predicted = compared[compared["predicted_ns"].notna()]
    assert (len(compared), len(predicted), predicted["measured_ns"].notna().sum()) == (300, 256, 253)


def test_each_measured_run_tests_a_prediction(compared):
    assert {*ledger.read_measured(SHIPPED)["run_id"]} <= {*compared["tested_by"]}


def test_the_score_is_what_it_was_when_the_recordings_were_there(compared):
    """Errors and intervals as they were computed from the recordings, before these were removed."""
    facts = predictions.answer({}, compared).facts
    assert {one["change"]: (one["measured"], round(one["median"], 3)) for one in facts["by_change"]} == SCORE
    assert round(facts["fitted"]["inside"], 3) == 0.791


SCORE = {
    "fused AdamW": (29, 0.003),
    "BF16 with fused AdamW": (9, 0.009),
    "fused attention with fused AdamW": (8, 0.013),
    "TF32 with fused AdamW": (11, 0.018),
    "larger batch": (25, 0.02),
    "CUDA graphs": (15, 0.023),
    "fused attention": (10, 0.031),
    "torch.compile": (15, 0.036),
    "TF32": (29, 0.043),
    "BF16": (29, 0.146),
    "BF16 with fused attention": (29, 0.159),
}
"""By change: tests, and the median error."""
