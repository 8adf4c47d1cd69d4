"""What to do next: gains before bounds, one of changes that are one choice."""

import pandas as pd
import pytest

from profiler_job.analysis.changes import load_change
from profiler_job.analysis.insight import run_advice
from profiler_job.analysis.insight.advice_lines import format_run_advice
from profiler_job.analysis.insight.step_parts import COLUMNS
from profiler_job.analysis.pages import first_screen, run_page
from profiler_job.analysis.pages.first_screen import choose_cards
from profiler_job.analysis.prediction.measured import COLUMNS as COLUMNS_OF_GAINS
from profiler_job.analysis.render import text
from profiler_job.analysis.render.screen_source import explain_gain, format_gain, to_markdown
from profiler_job.analysis.site.page_context import NOTHING, make_site
from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.contract.step_limit import COMPUTE, CPU, MEMORY, StepLimit
from tests.synthetic import recording

GAINS = [name for name in COLUMNS_OF_GAINS if name != "gpu_name"]
RUN = {"mode": "train_step", "precision": "bf16", "attention": "sdpa", "optimizer": "fused"}


def measured(name, ratio, low, high):
    gain = {"changes": (name,), "do": "", "reason": "", "step_ns": 100.0, "gain_ns": 100 - 100 / ratio}
    return gain | {"times_as_fast": ratio, "low": low, "high": high, "measured_in": "main", "apart": None}


def bounded(name, ceiling):
    entry = {"changes": (name,), "do": "", "reason": "", "step_ns": None, "gain_ns": None, "time_ns": 30.0}
    return entry | {"ceiling_ns": ceiling, "sure": "low"}


def choose(*entries):
    return [(card["changes"][0], card["kind"], card["ratio"]) for card in choose_cards(entries, 100.0)]


def test_what_is_known_comes_before_what_has_a_bound():
    cards = choose(bounded("casts", 80), measured("compile", 4, 3, 5), measured("fused_adamw", 2, 1.5, 3))
    assert cards == [("compile", "measured", 4), ("fused_adamw", "measured", 2), ("casts", "at most", 5)]


def test_of_what_has_a_bound_what_fits_the_limit_comes_first():
    cards = choose(bounded("casts", 80), bounded("fused_adamw", 50) | {"fits_limit": True})
    assert cards == [("fused_adamw", "at most", 2), ("casts", "at most", 5)]


def test_bounds_keep_the_order_of_the_advice():
    """Of a compiled GPT on an H200 `show` advised a fused loss first, the page to drop casts: its bound is larger."""
    cards = choose(bounded("fused_loss", 30), bounded("fused_adamw", 20), bounded("casts", 40))
    assert [change for change, *_ in cards] == ["fused_loss", "fused_adamw", "casts"]


@pytest.mark.parametrize("names", [("tf32", "bf16"), ("bf16", "tf32")])
def test_of_one_choice_what_was_measured_goes_before_a_bound(names):
    first, second = names
    assert choose(bounded(first, 80), measured(second, 1.5, 1.2, 2)) == [(second, "measured", 1.5)]


@pytest.mark.parametrize(
    ("apart", "why", "line"),
    [
        (0.05, "2.4× [2.0–3.8]", "2.40× as fast"),
        (0.051, "varies by 5%", "in processes that differ by 5.1%"),
        (float("inf"), "measured once", "in one process each"),
    ],
)
@pytest.mark.parametrize(("shown_ns", "where"), [(1.004e8, ""), (1.1e8, ", in another recording")])
def test_a_change_that_was_measured_has_its_times_and_a_ratio_only_if_processes_agree(
    apart, why, line, shown_ns, where
):
    """The times are those that the steps have everywhere, the ratio is of rounds if the runs took turns."""
    measured = pd.DataFrame([("a", ("compile",), 1e8, 4e7, 2.4, 2.0, 3.8, "host", apart, True)], columns=GAINS)
    advised = pd.DataFrame([bounded("compile", 9e7) | {"change": "compile", "fits_limit": True}])
    ranked = run_advice.rank_changes(advised, measured)
    [card] = choose_cards(ranked, shown_ns)
    assert (format_gain(card), explain_gain(card)) == ("100 → 40\u202fms", f"{why}{where}")
    [advice] = format_run_advice(ranked)
    assert f": measured, 40.0 ms instead of 100 ms, {line}; do: " in advice


def test_a_ratio_by_turns_that_is_far_from_that_of_the_times_stands_alone():
    """A card had 34 → 13 ms and 3.8×: the fastest process of one variant was far faster than the others."""
    measured = pd.DataFrame([("a", ("compile",), 34e6, 13e6, 3.8, 3.4, 4.1, "trained", 0.0, True)], columns=GAINS)
    [card] = choose_cards(run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured), 34e6)
    assert (format_gain(card), explain_gain(card)) == ("3.8× as fast", "[3.4–4.1], by turns")


@pytest.mark.parametrize(
    ("low", "high", "words"), [(1.03, 1.2, "1.10× [1.03–1.20]"), (1.08, 1.12, "1.10× [1.08–1.12]")]
)
def test_an_interval_never_reads_as_if_it_held_1_or_had_no_width(low, high, words):
    measured = pd.DataFrame([("a", ("compile",), 1e8, 1e8 / 1.1, 1.1, low, high, "h", 0.0, True)], columns=GAINS)
    [card] = choose_cards(run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured), 1e8)
    assert explain_gain(card) == words


def test_twice_the_batch_is_for_the_same_tokens():
    measured = pd.DataFrame([("a", ("larger_batch",), 4e7, 2e7, 2.0, 1.8, 2.2, "h", 0.0, True)], columns=GAINS)
    [card] = choose_cards(run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured), 4e7)
    assert explain_gain(card) == "2.0× [1.8–2.2], for the same tokens"


def test_what_was_measured_and_is_not_faster_has_no_card_with_a_bound():
    measured = pd.DataFrame([("a", ("tf32",), 38e6, 34e6, 1.1, 0.7, 1.2, "prediction", 0.6, False)], columns=GAINS)
    advised = pd.DataFrame([bounded("tf32", 2e7) | {"change": "tf32", "fits_limit": True}])
    assert choose_cards(run_advice.rank_changes(advised, measured), 38e6) == []


def test_a_bound_is_shown_as_the_time_that_it_could_save():
    [card] = choose_cards([bounded("casts", 62e6)], 115e6)
    assert (format_gain(card), explain_gain(card)) == (
        "could save up to 62\u202fms",
        "of 115\u202fms, not measured",
    )


def test_a_larger_batch_saves_time_of_the_same_work_and_not_of_its_step():
    [card] = choose_cards([bounded("larger_batch", 53e6)], 115e6)
    assert explain_gain(card) == "for the work of 115\u202fms, not measured"


def test_times_of_two_units_each_have_theirs():
    [card] = choose_cards([measured("bf16", 4, 3.9, 4.1) | {"step_ns": 2e9, "gain_ns": 1.5e9}], 2e9)
    assert format_gain(card) == "2.0\u202fs → 500\u202fms"


def test_what_would_read_as_once_as_fast_has_no_card():
    cards = choose(measured("compile", 1.04, 1.03, 1.05), measured("bf16", 1.06, 1.05, 1.07), bounded("casts", 4))
    assert cards == [("bf16", "measured", 1.06)]


def test_there_are_three_cards_at_most():
    names = ("bf16", "compile", "fused_attention", "fused_adamw", "larger_batch")
    assert len(choose(*(measured(name, 2, 1.5, 2.5) for name in names))) == first_screen.MOST_CARDS


@pytest.mark.parametrize("low, chosen", [(2.5, "compile"), (2.7, "cuda_graphs")])
def test_of_one_choice_the_later_needs_more_for_certain(low, chosen):
    cards = choose(measured("cuda_graphs", 3, low, 3.3), measured("compile", 2.6, 2, 3))
    assert [name for name, _, _ in cards] == [chosen]


def test_what_is_not_advised_and_what_bounds_nothing_has_no_card():
    assert choose(measured("bf16", 2, 1, 3) | {"reason": "no"}, bounded("casts", 100)) == []


def test_a_set_of_changes_comes_if_no_single_change_helps():
    together = measured("bf16", 3, 2, 4) | {"changes": ("bf16", "fused_adamw")}
    assert choose(together, measured("compile", 2, 1.5, 2.5)) == [("compile", "measured", 2)]
    assert choose(together) == [("bf16", "measured", pytest.approx(3))]


def test_the_limits_name_the_kinds_of_their_parts():
    parts = pd.DataFrame(
        [("a", 10.0, "forward", "FFN", "matmul", 4.0), ("a", 10.0, "forward", "", "wait", 6.0)], columns=COLUMNS
    )
    limit = StepLimit({COMPUTE: 4.0, MEMORY: 0.0, CPU: 6.0})
    screen = first_screen.describe_screen(RUN, parts, limit, [], {"step_ns": 10.0})
    assert screen["headline"] == "The GPU waits for the CPU 60% of this step"
    assert {of["name"]: of["kinds"] for of in screen["limits"] if of["share"]} == {
        "compute": ["matmul"],
        "CPU": ["wait"],
    }


@pytest.mark.parametrize(
    ("low", "high", "words"), [(1.396, 1.442, "1.42× [1.40–1.44]"), (1.36, 1.46, "1.4× [1.4–1.5]")]
)
def test_an_interval_has_three_digits_if_its_ends_would_read_the_same(low, high, words):
    """A card of 1.42 [1.40, 1.44] had no interval: both ends were 1.4."""
    [card] = choose_cards([measured("compile", 1.42, low, high)], 100.0)
    assert explain_gain(card) == words


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (None, "Not known, since nsys did not capture this step."),
        (StepLimit({COMPUTE: 7.0, MEMORY: 3.0}), "a faster GPU, FP8 or a smaller model"),
        (StepLimit({CPU: 7.0, MEMORY: 3.0}), "a larger batch or a faster CPU"),
    ],
)
def test_a_screen_without_cards_says_why_and_what_to_do(limit, words, tmp_path):
    parts = pd.DataFrame(columns=COLUMNS)
    numbers = {"step_ns": 10.0, "tokens_per_s": None, "mfu": None, "peak_bytes": None, "cost": None, "num_steps": 0}
    screen = first_screen.describe_screen(RUN | {"run_id": "a", "gpu_name": "b"}, parts, limit, [], numbers)
    assert words in screen["why_no_cards"]
    site = make_site(recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2), tmp_path)
    html = site.render_part("index.md", "first_screen.html", NOTHING, screen=screen, name="x", link="")
    assert words in html and words in to_markdown(screen, "a.csv")
    with_card = first_screen.describe_screen(screen["run"], parts, limit, [measured("bf16", 2, 1.9, 2.1)], numbers)
    assert with_card["why_no_cards"] == ""


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_has_a_heading_and_a_short_line_of_code(name):
    change = load_change(name)
    assert change.ACTION and len(change.ACTION) <= 30 and len(change.LINE) <= 48


def test_a_run_that_was_timed_and_not_captured_shows_its_phases(tmp_path):
    rec = recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2)
    tables = {name: getattr(rec, name).head(0) for name in ("kernels", "api", "memops")}
    tables |= {name: getattr(rec, name) for name in ("runs", "memory", "processes", "telemetry")}
    steps = rec.steps[rec.steps["collector"] == "timer"]
    [(_, answer)] = run_page.answers(**tables, steps=steps, checks=pd.DataFrame(columns=["run_id"]))
    screen = answer.facts["screen"]
    assert [*screen["numbers"]["phases"]] == ["forward", "loss", "backward", "optimizer"]
    html = make_site(rec, tmp_path).render_part(
        "index.md", "first_screen.html", NOTHING, screen=screen, name="x", link=""
    )
    times = [text.rounded(ns, "ns") for ns in screen["numbers"]["phases"].values()]
    assert (
        f"Its phases: forward {times[0]}, loss {times[1]}, backward {times[2]}, optimizer {times[3]}. Its time" in html
    )
