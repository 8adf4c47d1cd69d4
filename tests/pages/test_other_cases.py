"""Cards of home that lead to another measured case."""

import pytest

from profiler_job.analysis.pages.first_screen import AT_MOST
from profiler_job.analysis.pages.home_cases import BF16, COMPILED, CaseNumbers, HomeCase
from profiler_job.analysis.pages.other_cases import fill_cards
from profiler_job.analysis.render.screen_source import explain_gain, format_gain
from profiler_job.jobs.contract.changes import LARGER_BATCH


def make_cases(*steps, state=COMPILED):
    """A case and the screen of its run for each (context, batch, step in ms, settings)."""
    cases, screens = [], {}
    for number, (context, batch, step_ms, settings) in enumerate(steps):
        at = ("large (0.97B)", f"{context:,}", str(batch), "H200")
        numbers = CaseNumbers(1e9, context, batch, "NVIDIA H200")
        cases.append(HomeCase(at=at, numbers=numbers, runs={state: (0, str(number))}, others={}, apart=0.0))
        of_step = {"step_ns": step_ms * 1e6, "shortest_ns": step_ms * 1e6, "longest_ns": step_ms * 1.01e6}
        numbers = of_step | {"num_processes": 3}
        texts = {"nothing_more": "nothing", "nothing_else": "nothing else"}
        screens[0, str(number)] = {"cards": [], "settings": settings, "numbers": numbers, **texts}
    return cases, screens


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ((1024, 4, 69, "a"), "context_length = 1024"),
        ((256, 4, 15, "a"), "context_length = 256"),
        ((512, 16, 120, "a"), "batch_size = 16"),
        ((512, 2, 15, "a"), ""),  # a smaller batch is not advised
        ((1024, 4, 69, "b"), ""),  # other settings
        ((1024, 8, 60, "a"), ""),  # two choices differ
        ((1024, 4, 89, "a"), ""),  # 1% faster
    ],
)
def test_a_state_with_few_cards_shows_the_case_that_is_faster_per_token(other, line):
    cases, screens = make_cases((512, 4, 45, "a"), other)
    screen = fill_cards(cases[0], COMPILED, cases, screens)
    assert [card["lines"] for card in screen["cards"]] == [[line]] * bool(line)
    assert screen["nothing_more"].startswith("nothing else" if line else "nothing")
    assert not screens[0, "0"]["cards"]


def test_the_step_of_the_other_case_has_more_tokens_a_second():
    cases, screens = make_cases((512, 4, 45, "a"), (1024, 4, 69, "a"))
    [card] = fill_cards(cases[0], COMPILED, cases, screens)["cards"]
    assert card["after_ns"] == 34.5e6 and card["ratio"] == pytest.approx(90 / 69)
    assert format_gain(card) == "45.5k → 59.4k tokens/s" and explain_gain(card).startswith("1.30× [")


def test_three_cards_stay_as_they_are():
    cases, screens = make_cases((512, 4, 45, "a"), (1024, 4, 69, "a"), state=BF16)
    screens[0, "0"] |= {"cards": [{"changes": (name,), "kind": "measured"} for name in "abc"], "nothing_more": ""}
    assert fill_cards(cases[0], BF16, cases, screens) == screens[0, "0"]


def test_what_was_measured_comes_before_a_bound_of_what_does_not_limit_the_step():
    """A larger batch, up to 1.1 times the tokens, stood above a context that gives 1.13 times."""
    cases, screens = make_cases((512, 4, 45, "a"), (1024, 4, 69, "a"), state=BF16)
    batch = {"changes": (LARGER_BATCH,), "kind": AT_MOST, "elsewhere": None, "cautions": [], "lines": ["batch"]}
    for fits_limit in (True, False):
        screens[0, "0"]["cards"] = [batch | {"fits_limit": fits_limit}]
        first, _ = fill_cards(cases[0], BF16, cases, screens)["cards"]
        assert (first["lines"] == ["batch"]) == fits_limit
