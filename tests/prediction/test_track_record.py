"""What advice says of predictions so far is what ledgers and recordings hold."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.prediction import development, ledger, predict, track_record
from analysis.recording import store
from analysis.reference.track_record import SWEEP, Record, in_words, read
from analysis.write_site import together
from jobs.contract.integrity import find_folders
from jobs.contract.layout import SCRIPT

DATA = Path(__file__).parents[2] / "site" / "data"


def test_predictions_count_by_change_and_abstentions_apart():
    predicted = pd.DataFrame(
        {
            "changes": ["tf32", "tf32", "tf32", "bf16"],
            "predicted_ns": [10.0, 10.0, 10.0, float("nan")],
            "error": [0.1, -0.2, float("nan"), float("nan")],
        }
    )
    developed = pd.DataFrame({"changes": ["bf16", "bf16", "bf16"], "error": [0.05, 0.3, float("nan")]})
    assert track_record.records(predicted, developed) == {
        "tf32": Record(kept=3, tested=2, close=1),
        "bf16": Record(abstained=1, pairs=2, close_pairs=1),
    }


def test_the_shipped_record_has_every_kept_prediction_and_every_pair(shipped):
    predicted = ledger.held_against(ledger.read_all(DATA / ledger.FOLDER), [])
    made = track_record.records(predicted[predicted["source"] != ""], predict.development(shipped))
    untested = {names: record._replace(tested=0, close=0) for names, record in read()[SWEEP].items()}
    assert untested == made


def test_scripts_have_a_record_of_their_own():
    """BF16 on a script was said to have the record of the sweep, of which shapes and modules are known."""
    sweep, script = read()[SWEEP]["bf16"], read()[SCRIPT]["bf16"]
    assert (script.tested, script.close) == (2, 0) and sweep.tested == 23
    assert script.pairs == 70 and read()[SCRIPT]["compile"].pairs == 3


def test_the_aims_of_predictions_are_reached_but_for_their_intervals():
    """The first test, on a host faster than that of the runs they were made from: too few intervals held."""
    recordings = [store.load(folder) for folder in find_folders(DATA, store.MANIFEST) if "ladder" in folder.name]
    tested = ledger.held_against(ledger.read_all(DATA / ledger.FOLDER), recordings).dropna(subset="error")
    errors = tested["error"].abs()
    assert (len(tested), tested["beaten"].sum()) == (65, 0)
    assert errors.median() < 0.08 and errors.quantile(0.9) < 0.2
    assert tested["inside"].mean() == 0.6
    assert errors[tested["limited_by"] == "GPU"].max() < 0.06


LATER = ("fourth_attention", "fourth_batch_fp32", "fourth_bf16_optimizer", "fourth_optimizer_xl")


def held(name):
    """The predictions of a test of sweeps, beside its runs, which are put together as for the site."""
    ledgers = [ledger.read(file) for file in sorted((DATA / ledger.FOLDER).glob(f"{name}_*.json"))]
    recordings = [store.load(folder) for folder in find_folders(DATA, store.MANIFEST) if name in folder.name]
    return ledger.held_against(ledgers, [together(recordings)])


def test_the_third_test_misses_the_90th_percentile_by_steps_that_the_host_limits():
    """One process each, on a host whose loop took 32 to 61 ms from one process to the next."""
    tested = held("third")
    errors, by_gpu = tested["error"].abs(), tested["limited_by"] == "GPU"
    assert (len(tested), tested["predicted_ns"].isna().sum(), tested["beaten"].sum()) == (30, 0, 0)
    assert errors.median() < 0.05 and tested["inside"].mean() >= 0.8
    assert errors.quantile(0.9) > 0.2
    assert by_gpu.sum() == 21 and errors[by_gpu].quantile(0.9) < 0.08 and tested.loc[by_gpu, "inside"].mean() > 0.9


def test_the_fourth_test_reaches_its_aims_with_a_miss_where_the_host_limited_the_step_after_all():
    """Its halves are of two hosts: on the slower one the host limited four steps that the GPU was to limit."""
    rows = held("fourth")
    tested = rows[rows["error"].notna()]
    errors, by_gpu = tested["error"].abs(), tested["measured_limit"] == "GPU"
    counts = len(rows), rows["measured_ns"].notna().sum(), len(tested), rows["predicted_ns"].isna().sum()
    assert counts == (38, 38, 31, 7) and not tested["beaten"].any()
    assert errors.median() < 0.08 and errors.quantile(0.9) < 0.2 and tested["inside"].mean() >= 0.8
    assert (by_gpu.sum(), tested.loc[by_gpu, "inside"].sum()) == (26, 24) and errors[by_gpu].quantile(0.9) < 0.06
    assert (tested.loc[~by_gpu, "inside"].sum(), (~by_gpu).sum()) == (1, 5) and errors[~by_gpu].min() > 0.1
    assert (tested.loc[~by_gpu, "limited_by"] == "GPU").sum() == 4


def test_the_halves_of_the_fourth_test_came_out_as_the_guide_says():
    rows = held("fourth")
    text = (DATA.parent / "guide" / "predict.md").read_text()
    later = {run for name in LATER for run in store.load(DATA / name).runs["run_id"].astype(str)}
    for is_later in (False, True):
        half = rows[(rows["tested_by"].isin(later) == is_later) & rows["error"].notna()]
        assert set(half["gpus_at_once"]) == {1 if is_later else 2}
        median = f"{half['error'].abs().median():.1%}"
        assert f"({half['inside'].sum()} of {len(half)} inside, median error {median}" in text


def test_of_compiled_steps_as_many_are_in_their_intervals_as_the_guide_says():
    for name, inside in (("third", 1), ("fourth", 4)):
        rows = held(name)
        compiled = rows[rows["changes"].isin(["compile", "cuda_graphs"]) & rows["error"].notna()]
        said = f"{inside} of {len(compiled)}"
        assert compiled["inside"].sum() == inside
        assert said in (DATA.parent / "guide" / "predict.md").read_text()


def test_nothing_is_said_of_how_a_run_ended_that_was_interrupted():
    """Time was up. It was measured later, and has a recording of its own."""
    recording = store.load(DATA / "fourth_optimizer")
    name = "xl-ctx1024-tf32-naive-train_step-adamw_fused"
    assert recording.manifest["not_run"] == [name]
    assert name not in set(recording.runs["run_id"]) and set(recording.runs["status"]) == {"ok"}


@pytest.mark.long
def test_later_intervals_know_the_errors_of_the_third_test(shipped):
    """Those of earlier tests are among the recorded pairs, with their kernels. Those of the fourth are not part of the
    intervals."""
    tested = held("third")
    assert len(shipped.tested) == len(tested)
    mine = sorted(error["ratio"] for error in shipped.tested)
    assert mine == pytest.approx(sorted(tested["measured_ns"] / tested["predicted_ns"]), rel=1e-4)
    unknown = development.errors_of_tests(DATA, [*shipped.errors, *shipped.tested])
    fourth = held("fourth").dropna(subset="error")
    assert sorted(error["measured_ns"] for error in unknown) == sorted(fourth["measured_ns"])


@pytest.mark.long
def test_the_shipped_record_is_that_of_the_shipped_recordings():
    assert read() == track_record.of_folder(DATA)


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
    assert in_words(record) == words
