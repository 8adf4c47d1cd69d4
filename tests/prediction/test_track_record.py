"""The track record in advice: how it is counted, and its words."""

import pandas as pd
import pytest

from profiler_job.analysis.prediction import score_ledgers
from profiler_job.analysis.reference.track_record import Record, format_record


def test_predictions_count_by_change_and_abstentions_apart():
    predicted = pd.DataFrame(
        {
            "changes": ["tf32", "tf32", "tf32", "bf16"],
            "predicted_ns": [10.0, 10.0, 10.0, float("nan")],
            "error": [0.1, -0.2, float("nan"), float("nan")],
        }
    )
    developed = pd.DataFrame({"changes": ["bf16", "bf16", "bf16"], "error": [0.05, 0.3, float("nan")]})
    assert score_ledgers.records(predicted, developed) == {
        "tf32": Record(kept=3, tested=2, close=1),
        "bf16": Record(abstained=1, pairs=2, close_pairs=1),
    }


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (Record(), "none yet"),
        (Record(abstained=3), "not tested yet, 3 abstentions and no prediction"),
        (Record(kept=15), "not tested yet, 15 predictions made"),
        (Record(pairs=9, close_pairs=8), "not tested yet; 8 of 9 development pairs within 10%"),
        (Record(kept=2, pairs=1), "not tested yet, 2 predictions made; 0 of 1 development pair within 10%"),
        (Record(kept=15, tested=14, close=12), "12 of 14 tested predictions within 10%"),
    ],
)
def test_it_is_said_in_words(record, words):
    assert format_record(record) == words
