"""What the shipped recordings lead with: no ratio between fresh processes whose hosts make part of it."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.insight import run_advice
from profiler_job.analysis.insight.advice_lines import format_run_advice
from profiler_job.analysis.metrics import differences
from profiler_job.analysis.metrics.turns import find_turned_runs
from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context
from profiler_job.jobs.contract.quantities import UNITS
from tests.pages.test_leads import OF_STEPS
from tests.shipped.recordings import RECORDINGS, locate

pytestmark = pytest.mark.long
MODULES = {question.answer.__module__.rsplit(".", 1)[1]: question for question in ALL_QUESTIONS.values()}
MOST_APART = 0.05


@pytest.fixture(scope="module")
def main():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def bands(main):
    return differences.bands_of(main, store.load(locate("again")))


@pytest.fixture(scope="module")
def studies():
    parts: dict[str, list[store.Recording]] = {}
    for path in RECORDINGS:
        if path.parent.name not in ("main", "losses"):
            parts.setdefault(path.parent.name, []).append(store.load(path))
    joined = {name: combine.join_recordings(recs) for name, recs in parts.items()}
    finished = {name: combine.select_finished_runs(rec) for name, rec in joined.items()}
    return {**finished, **combine.find_studies_by_turns(finished)}


def measure_apart(rec):
    """How far the medians of the processes of each run are apart, by run id: computed as simply as can be."""
    steps = rec.steps[(rec.steps["collector"].astype(str) == "timer") & (rec.steps["phase"].astype(str) == "step")]
    steps = steps.astype({"run_id": str}).groupby(["run_id", "process", "step"])["wall_ns"].max()
    medians = steps.groupby(["run_id", "process"]).median().groupby("run_id")
    return medians.max() / medians.min() - 1


@pytest.mark.parametrize(("module", "key"), [(name, key) for name, keys in OF_STEPS.items() for key in sorted(keys)])
def test_a_lead_has_steps_whose_processes_agree(module, key, main, studies, bands):
    question = MODULES[module]
    answer = page_context.ask(question, studies[question.study], main=main, studies=studies, bands=bands)
    claim = answer.claims[key]
    assert claim.holds or claim.rows.empty
    read = [main, *studies.values()] if module == "ladder" else [studies[question.study], main]
    known = [measure_apart(rec) for rec in read]
    turned = {run_id for rec in read for run_id in find_turned_runs(rec.steps)}  # within rounds, whatever processes say
    for row in claim.rows.to_dict("records"):
        ids = [str(row[name]) for name in row if name == "run_id" or name.endswith("_run_id")]
        apart = [[distances[run_id] for distances in known if run_id in distances] for run_id in {*ids} - turned]
        assert ids and all(distances[0] <= MOST_APART for distances in apart), row


def test_measured_cards_have_intervals_above_1_and_a_ratio_only_if_processes_agree(main, studies, bands):
    measured = measure_gains({"main": main, **studies}, bands.wall)
    assert (measured["apart"] > MOST_APART).sum() > 20, "most pairs of this kind show their hosts"
    for _, rows in measured.groupby(["run_id", "gpu_name"]):
        advised = pd.DataFrame(columns=["change", "reason", "fits_limit"])
        for entry in run_advice.rank_changes(advised, rows):
            if not entry["reason"]:
                [row] = rows[rows["changes"] == entry["changes"]].to_dict("records")
                assert entry["low"] > 1 and (entry["apart"] is None) == (row["apart"] <= MOST_APART)


def test_two_times_next_to_a_ratio_give_it_within_its_interval(main, studies, bands):
    """A page had `13.2 ms instead of 34.0 ms, 3.43x as fast`, which is 2.6."""
    measured = measure_gains({"main": main, **studies}, bands.wall)
    shown, alone = 0, 0
    for _, rows in measured.groupby(["run_id", "gpu_name"]):
        for entry in run_advice.rank_changes(pd.DataFrame(columns=["change", "reason", "fits_limit"]), rows):
            if entry["reason"] or entry["apart"] is not None or entry["times_as_fast"] < run_advice.LEAST_RATIO:
                continue
            [line] = format_run_advice([entry])
            [ratio] = [float(number) for number in re.findall(r"([\d.]+)× (?:as fast|the tokens/s)", line)]
            assert ratio == pytest.approx(entry["times_as_fast"], rel=5e-3)
            if times := re.search(r"measured, (\S+)\s(\S+) instead of (\S+)\s(\S+),", line):
                after, before = (float(times[at]) * UNITS["time"][times[at + 1]] for at in (1, 3))
                assert entry["low"] * 0.99 <= before / after <= entry["high"] * 1.01, line
            shown, alone = shown + bool(times), alone + (not times)
    assert shown > 100 and alone > 0
