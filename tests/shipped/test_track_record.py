"""The track record in advice is what the shipped ledgers and recordings hold."""

import pytest

from profiler_job.analysis.prediction import (
    development,
    ledger,
    predict,
    rates,
    score_ledgers,
    script_rates,
    scripts,
)
from profiler_job.analysis.prediction.baseline import read_run
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference.track_record import AS_SCRIPT, SWEEP, Record, read
from profiler_job.analysis.site.combine import join_recordings
from profiler_job.jobs.contract.layout import SCRIPT
from tests.shipped.recordings import DATA, RECORDINGS, locate


@pytest.fixture(scope="module")
def shipped():
    return rates.load()


def test_the_shipped_record_has_every_kept_prediction_and_every_pair(shipped):
    predicted = ledger.compare_with_measured(ledger.read_all(DATA / ledger.FOLDER), [])
    as_scripts = predicted["tested_by"].str.contains("llama|gpt2|32-naive-train_step-compile")
    of_sweeps = predicted[~as_scripts & (predicted["source"] != "")]
    made = score_ledgers.records(of_sweeps, predict.predict_development(shipped))
    untested = {names: record._replace(tested=0, close=0) for names, record in read()[SWEEP].items()}
    assert untested == made


def test_compiled_steps_of_the_reference_have_a_record_of_their_own():
    """The page of a Llama claimed that TF32 with compile had been right four times: in no step of a Llama."""
    made = read()
    assert made[AS_SCRIPT]["tf32+compile"] == Record(kept=4, tested=4, close=4) and "tf32+compile" not in made[SCRIPT]
    assert (made[SCRIPT]["compile"].tested, made[SCRIPT]["compile"].close) == (8, 4)
    assert made[AS_SCRIPT]["compile"] == Record(kept=4, abstained=3, tested=4, close=4)


def test_scripts_have_a_record_of_their_own():
    """BF16 on a script got the record of the sweep, whose shapes and modules are known."""
    sweep, script = read()[SWEEP]["bf16"], read()[SCRIPT]["bf16"]
    assert (script.tested, script.close) == (6, 1) and sweep.tested == 23
    assert script.pairs == 70 and read()[SCRIPT]["compile"].pairs == 13


def read_test(name):
    """The predictions of a test of sweeps with its runs, joined as for the site."""
    ledgers = [ledger.read(file) for file in sorted((DATA / ledger.FOLDER).glob(f"{name}_*.json"))]
    recordings = [store.load(folder) for folder in RECORDINGS if name in folder.name]
    return ledger.compare_with_measured(ledgers, [join_recordings(recordings)])


@pytest.fixture(scope="module")
def compared():
    return ledger.compare_with_measured(ledger.read_all(DATA / ledger.FOLDER), ledger.recordings(DATA))


@pytest.mark.parametrize("change", ["foreach", "casts", "copies", "synchronisations", "padding", "checkpointing"])
def test_every_change_that_no_pair_tells_of_was_tested_by_itself(compared, change):
    alone = compared[(compared["source"] == "") & (compared["changes"] == change) & compared["error"].notna()]
    assert len(alone) >= 1


@pytest.mark.nightly
def test_later_intervals_know_the_errors_of_the_third_test(shipped):
    """Errors of earlier tests are among the recorded pairs, with their kernels. Errors of the fourth test, and
    what the seventh has of the models of sweeps, are no part of the intervals."""
    tested = read_test("third")
    assert len(shipped.tested) == len(tested)
    mine = sorted(error["ratio"] for error in shipped.tested)
    assert mine == pytest.approx(sorted(tested["measured_ns"] / tested["predicted_ns"]), rel=1e-4)
    unknown = development.errors_of_tests(DATA, [*shipped.errors, *shipped.tested])
    fourth = read_test("fourth").dropna(subset="error")["measured_ns"]
    [alone] = ledger.spans_of_steps(store.load(locate("attention_alone")).steps)["measured_ns"]
    assert sorted(error["measured_ns"] for error in unknown) == sorted([*fourth, alone])


@pytest.mark.nightly
def test_the_shipped_record_is_that_of_the_shipped_recordings():
    assert read() == score_ledgers.score_folder(DATA)


@pytest.mark.long
def test_no_ceiling_of_today_would_have_been_beaten_by_a_script():
    """The nearest is 91% of its step."""
    recordings, of_scripts = ledger.recordings(DATA), script_rates.load()
    held = ledger.compare_with_measured(ledger.read_all(DATA / ledger.FOLDER), recordings)
    tested = held[(held["source"] == "") & held["measured_ns"].notna()]
    parts = []
    for recording in recordings:
        for run_id in recording.kernels["run_id"].astype(str).unique():
            rows = tested.loc[tested["run_id"] == run_id, ["changes", "measured_ns"]]
            if len(rows):
                step = scripts.step_of(read_run(recording, run_id), of_scripts)
                parts += [
                    scripts.compute_ceiling(step, names.split("+")) / time_ns for names, time_ns in rows.to_numpy()
                ]
    assert len(parts) > 50 and 0.85 < max(parts) < 0.95
