"""Every state that home lets a reader choose says what to do next, or why there is nothing, and the lines of a run have
the order of its cards."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.comparison.noise import choose_bands
from profiler_job.analysis.insight import run_advice
from profiler_job.analysis.insight.advice_lines import MOST
from profiler_job.analysis.pages import home_cases, run_page
from profiler_job.analysis.pages.other_cases import fill_cards
from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.screen_source import explain_gain, format_gain
from profiler_job.analysis.site.combine import join_recordings, name_recordings, select_finished_runs
from profiler_job.analysis.site.home_page import describe_screens, list_recordings
from profiler_job.jobs.contract.changes import LABELS, LARGER_BATCH
from profiler_job.jobs.contract.studies import AGAIN, GPUS, LOSSES
from tests.shipped.recordings import RECORDINGS

pytestmark = pytest.mark.long
PEAK = re.compile(r"take \d+% of it, at \d+% of the data-sheet peak")


@pytest.fixture(scope="module")
def recordings():
    """The main recording and the studies, as the site has them."""
    parts: dict[str, list[store.Recording]] = {}
    for rec in map(store.load, RECORDINGS):
        parts.setdefault(rec.manifest.get("study", ""), []).append(rec)
    joined = {study: select_finished_runs(join_recordings(recs)) for study, recs in parts.items() if study != LOSSES}
    return joined.pop(""), joined


@pytest.fixture(scope="module")
def gains(recordings):
    main, studies = recordings
    return measure_gains(name_recordings(main, studies), choose_bands(main, studies[AGAIN]).wall)


@pytest.fixture(scope="module")
def states(recordings, gains):
    """Each state that can be chosen, by its case and name, with its first screen."""
    shown = list_recordings(*recordings)
    cases = home_cases.list_cases(shown)
    screens = describe_screens(shown, cases, gains, {})
    return {(*case.at, state): fill_cards(case, state, cases, screens) for case in cases for state in case.runs}


def test_each_state_has_cards_or_says_why_there_are_no_more(states):
    """10 states had no card and no number in its place."""
    assert len(states) >= 80
    for at, screen in states.items():
        num_cards = len(screen["cards"])
        assert (num_cards == run_advice.MOST_CARDS) != bool(screen["nothing_more"]), at
        assert num_cards or PEAK.search(screen["nothing_more"]), at
        assert all(format_gain(card) and explain_gain(card) for card in screen["cards"]), at


def test_a_gain_of_another_gpu_is_named_as_such(states):
    of_h100 = [card for (*_, gpu, _), screen in states.items() if gpu == "H100" for card in screen["cards"]]
    elsewhere = [card for card in of_h100 if card.get("elsewhere")]
    assert elsewhere, "steps of an H100 whose changes were measured on an H200 alone"
    for card in elsewhere:
        assert card["kind"] == "at most" and format_gain(card).endswith("on an H200")


@pytest.fixture(scope="module")
def answers(recordings, gains):
    """The answers on the runs of the main recording and of the study of several GPUs."""
    main, studies = recordings
    nothing = pd.DataFrame(columns=["run_id"])
    made = {}
    for rec in (main, studies[GPUS]):
        tables = {name: getattr(rec, name) for name in run_page.TABLES}
        made |= dict(run_page.answers(**tables, checks=nothing, measured=gains))
    return made


def test_the_lines_of_a_run_begin_with_its_cards_in_their_order(answers):
    """Lines of 20 runs in FP32 began with sets of changes, CUDA graphs before torch.compile, the cards with BF16."""
    checked = 0
    for run_id, answer in answers.items():
        lines = [line for (line,) in answer.facts["insight"].sentences.advice if not line.startswith("Not advised")]
        cards = [card["changes"] for card in answer.facts["screen"]["cards"]]
        named = [", ".join(LABELS[name] for name in names) for names in cards]
        assert len(lines) <= MOST
        for line, names in zip(lines, named, strict=False):
            assert line.startswith(names), f"{run_id}: {line}"
        assert len(lines) >= len(named), run_id
        checked += len(named)
    assert checked > 100


def test_runs_of_several_gpus_have_what_was_measured(answers):
    """Large at 256 tokens could save `an unknown part of 101 ms`, and torch.compile took 41 ms in another recording."""
    card = answers["large-ctx256-bf16-sdpa-train_step-adamw_fused"].facts["screen"]["cards"][0]
    assert card["changes"] == ("compile",) and format_gain(card).startswith("101 → 41")
    of_two = [answer for run_id, answer in answers.items() if "2gpus" in run_id]
    explained = [format_gain(card) for answer in of_two for card in answer.facts["screen"]["cards"]]
    assert sum("on one H200" in words for words in explained) >= len(of_two) / 2


def test_twice_the_batch_gives_at_most_twice_the_tokens(answers):
    """FSDP was to give up to 2.5 times the tokens: kernels that run at the same time are longer together."""
    cards = [card for answer in answers.values() for card in answer.facts["screen"]["cards"]]
    bounds = [card["ratio"] for card in cards if card["changes"] == (LARGER_BATCH,) and card["kind"] == "at most"]
    assert len(bounds) > 10 and max(bounds) <= 2.001
