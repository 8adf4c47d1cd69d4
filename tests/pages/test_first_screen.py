"""What to do next: gains before bounds, one of changes that are one choice."""

import math
import re
from datetime import date

import pandas as pd
import pytest

from profiler_job.analysis.changes import load_change
from profiler_job.analysis.insight import run_advice
from profiler_job.analysis.insight.advice_lines import (
    IN_ONE_PROCESS,
    MOST_OF,
    NOT_ADVISED,
    OR_NOTHING,
    format_run_advice,
)
from profiler_job.analysis.insight.limit_lines import describe_nothing_more
from profiler_job.analysis.insight.step_parts import COLUMNS
from profiler_job.analysis.pages import first_screen, run_page
from profiler_job.analysis.pages.first_screen import choose_cards
from profiler_job.analysis.pages.telemetry import Price
from profiler_job.analysis.prediction.measured import COLUMNS as COLUMNS_OF_GAINS
from profiler_job.analysis.prediction.measured import SETTINGS
from profiler_job.analysis.reference.gpu_prices import find_price
from profiler_job.analysis.render import text
from profiler_job.analysis.render.screen_source import (
    NOT_THE_LIMIT,
    ONLY_CHANGE,
    explain_gain,
    format_gain,
    to_markdown,
)
from profiler_job.analysis.site.page_context import NOTHING, make_site
from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.contract.step_limit import COMPUTE, CPU, MEMORY, StepLimit
from tests.synthetic import recording

OF_STEP = ("gpu_name", "same_step", *SETTINGS)
GAINS = [name for name in COLUMNS_OF_GAINS if name not in (*OF_STEP, "low_over_compile")]
RUN = {"mode": "train_step", "precision": "bf16", "attention": "sdpa", "optimizer": "fused"}


def measured(name, ratio, low, high):
    gain = {"changes": (name,), "do": "", "reason": "", "step_ns": 100.0, "gain_ns": 100 - 100 / ratio}
    known = {"measured_in": "main", "apart": None, "on_slow_host": False}
    return gain | {"times_as_fast": ratio, "low": low, "high": high} | known


def bounded(name, ceiling):
    entry = {"changes": (name,), "do": "", "reason": "", "step_ns": None, "gain_ns": None, "time_ns": 30.0}
    return entry | {"ceiling_ns": ceiling, "sure": "low"}


def choose(*entries):
    return [(card["changes"][0], card["kind"], card["ratio"]) for card in choose_cards(entries, 100.0)]


def test_what_is_known_comes_before_what_has_a_bound():
    cards = choose(bounded("padding", 80), measured("compile", 4, 3, 5), measured("fused_adamw", 2, 1.5, 3))
    assert cards == [("compile", "measured", 4), ("fused_adamw", "measured", 2), ("padding", "at most", 5)]


def test_of_what_has_a_bound_what_fits_the_limit_comes_first():
    cards = choose(bounded("padding", 80), bounded("fused_adamw", 50) | {"fits_limit": True})
    assert cards == [("fused_adamw", "at most", 2), ("padding", "at most", 5)]


def test_bounds_keep_the_order_of_the_advice():
    """Of a compiled GPT on an H200 `show` advised a fused loss first, the page the optimizer: its bound is larger."""
    cards = choose(bounded("fused_loss", 30), bounded("compile", 20), bounded("fused_adamw", 40))
    assert [change for change, *_ in cards] == ["fused_loss", "compile", "fused_adamw"]


def test_a_risk_that_was_not_measured_comes_last_and_never_first():
    """Keeping the model in BF16 was the first card of 13 compiled states, and no run has it."""
    risk, safe = bounded("casts", 80) | {"fits_limit": True}, bounded("fused_adamw", 50)
    assert [change for change, *_ in choose(risk, safe)] == ["fused_adamw", "casts"]
    assert choose(risk) == [] and [change for change, *_ in choose(risk | {"fits_limit": False}, safe)] == [
        "fused_adamw"
    ]
    table = pd.DataFrame([risk | {"change": "casts"}, safe | {"change": "fused_adamw"}])
    ranked = run_advice.rank_changes(table, pd.DataFrame(columns=GAINS))
    assert [entry["changes"] for entry in ranked] == [("fused_adamw",), ("casts",)]


def test_several_cards_say_that_their_gains_do_not_add_up(tmp_path):
    numbers = {"step_ns": 1e8, "tokens_per_s": None, "mfu": None, "peak_bytes": None, "cost": None, "num_steps": 0}
    parts, run = pd.DataFrame(columns=COLUMNS), RUN | {"run_id": "a", "gpu_name": "b"}
    site = make_site(recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2), tmp_path)
    gains = [measured("compile", 2, 1.9, 2.1), measured("bf16", 2, 1.9, 2.1)]
    for first in (gains, gains[:1]):
        screen = first_screen.describe_screen(run, parts, None, first, numbers)
        html = site.render_part("index.md", "first_screen.html", NOTHING, screen=screen, name="x", link="")
        said = [("do not add up" in page) for page in (html, to_markdown(screen, "a.csv"))]
        assert said == [len(first) > 1] * 2


@pytest.mark.parametrize("names", [("tf32", "bf16"), ("bf16", "tf32")])
def test_of_one_choice_what_was_measured_goes_before_a_bound(names):
    first, second = names
    assert choose(bounded(first, 80), measured(second, 1.5, 1.2, 2)) == [(second, "measured", 1.5)]


@pytest.mark.parametrize(
    ("apart", "why", "line"),
    [
        (0.05, "2.4× [2.0–3.8]", "2.40× as fast"),
        (0.051, "processes differ by 5%", "in processes that differ by 5.1%"),
        (float("inf"), "measured once", "in one process each"),
    ],
)
@pytest.mark.parametrize(("shown_ns", "where"), [(1.004e8, ""), (1.1e8, ", measured another time")])
def test_a_change_that_was_measured_has_its_times_and_a_ratio_only_if_processes_agree(
    apart, why, line, shown_ns, where
):
    """The times are those that the steps have everywhere, the ratio is of rounds if the runs took turns."""
    measured = pd.DataFrame([("a", ("compile",), 1e8, 4e7, 2.4, 2.0, 3.8, "host", apart, True, False)], columns=GAINS)
    advised = pd.DataFrame([bounded("compile", 9e7) | {"change": "compile", "fits_limit": True}])
    ranked = run_advice.rank_changes(advised, measured)
    [card] = choose_cards(ranked, shown_ns)
    assert (format_gain(card), explain_gain(card)) == ("100 → 40\u202fms", f"{why}{where}")
    [advice] = format_run_advice(ranked)
    assert f": measured, 40.0 ms instead of 100 ms, {line}; do: " in advice


@pytest.mark.parametrize(
    ("before_ns", "after_ns", "ratio", "gain", "words"),
    [
        (488e6, 247e6, (1.92, 1.90, 1.95), "1.92× as fast", "[1.90–1.95], both in one process"),
        (488e6, 254e6, (1.92, 1.90, 1.95), "488 → 254\u202fms", "1.92× [1.90–1.95]"),
        (2163e6, 519e6, (4.17, 4.15, 4.18), "2.16\u202fs → 519\u202fms", "4.17× [4.15–4.18]"),
    ],
    ids=["of other processes", "of the rounds", "two digits are too few"],
)
def test_two_times_give_the_ratio_next_to_them(before_ns, after_ns, ratio, gain, words):
    """488 → 247 ms, which is 1.98, stood next to 1.92× [1.90–1.95]."""
    row = ("a", ("compile",), before_ns, after_ns, *ratio, "h", 0.0, True, False)
    measured = pd.DataFrame([row], columns=GAINS)
    [card] = choose_cards(run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured), before_ns)
    assert (format_gain(card), explain_gain(card)) == (gain, words)
    [line] = format_run_advice(run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured))
    is_in_one = IN_ONE_PROCESS in words
    assert ("instead of" in line) != is_in_one and (IN_ONE_PROCESS in line) == is_in_one


@pytest.mark.parametrize(("is_slow", "words"), [(False, ""), (True, " on a slow CPU")])
def test_a_ratio_by_turns_that_is_far_from_that_of_the_times_stands_alone(is_slow, words):
    """A card had 34 → 13 ms and 3.8×: the fastest process of one variant was far faster than the others. The ratio is
    another one on a fast CPU."""
    row = ("a", ("compile",), 34e6, 13e6, 3.8, 3.4, 4.1, "trained", 0.0, True, is_slow)
    measured = pd.DataFrame([row], columns=GAINS)
    [card] = choose_cards(run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured), 34e6)
    assert (format_gain(card), explain_gain(card)) == ("3.8× as fast", "[3.4–4.1], both in one process" + words)


@pytest.mark.parametrize(
    ("low", "high", "words"), [(1.03, 1.2, "1.10× [1.03–1.20]"), (1.08, 1.12, "1.10× [1.08–1.12]")]
)
def test_an_interval_never_reads_as_if_it_held_1_or_had_no_width(low, high, words):
    measured = pd.DataFrame([("a", ("compile",), 1e8, 1e8 / 1.1, 1.1, low, high, "h", 0.0, True, False)], columns=GAINS)
    [card] = choose_cards(run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured), 1e8)
    assert explain_gain(card) == words


@pytest.mark.parametrize(
    ("rate", "after_ns", "gain", "words"),
    [
        (50e3, 2e7, "50.0k → 100k tokens/s", "2.0× [1.8–2.2]"),
        (None, 2e7, "2.0× the tokens/s", "[1.8–2.2]"),
        (50e3, 1e7, "2.0× the tokens/s", "[1.8–2.2], both in one process"),
    ],
    ids=["known", "unknown tokens", "times give another ratio"],
)
def test_twice_the_batch_gives_more_tokens_a_second(rate, after_ns, gain, words):
    """Its step is longer: `40 → 20 ms for the same tokens` is the time of no step."""
    row = ("a", ("larger_batch",), 4e7, after_ns, 2.0, 1.8, 2.2, "h", 0.0, True, False)
    measured = pd.DataFrame([row], columns=GAINS)
    ranked = run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured)
    [card] = choose_cards(ranked, 4e7, rate)
    assert (format_gain(card), explain_gain(card)) == (gain, words)
    [line] = format_run_advice(ranked)
    assert ": measured, 2.00× the tokens/s; do: " in line


def test_what_was_measured_and_is_not_faster_has_no_card_with_a_bound():
    measured = pd.DataFrame(
        [("a", ("tf32",), 38e6, 34e6, 1.1, 0.7, 1.2, "prediction", 0.6, False, False)], columns=GAINS
    )
    advised = pd.DataFrame([bounded("tf32", 2e7) | {"change": "tf32", "fits_limit": True}])
    assert choose_cards(run_advice.rank_changes(advised, measured), 38e6) == []


@pytest.mark.parametrize(
    ("ratio", "low", "high", "gains", "state"),
    [
        (1.13, 1.12, 1.14, True, "card"),
        (1.016, 1.010, 1.022, True, "little"),
        (0.98, 0.95, 1.04, False, "little"),
        (1.23, 0.94, 1.61, False, "uncertain"),
        (0.98, 0.71, 1.36, False, "uncertain"),
    ],
)
def test_what_was_measured_is_faster_or_little_faster_or_not_known(ratio, low, high, gains, state):
    """Compiling 2.7B and TF32 for xl were said to be measured, and not faster: the first was 1.13 times as fast, and
    of the second only the interval held 1."""
    rows = [("a", ("tf32",), 1e8, 1e8 / ratio, ratio, low, high, "main", 0.01, gains, False)]
    ranked = run_advice.rank_changes(pd.DataFrame(columns=["change"]), pd.DataFrame(rows, columns=GAINS))
    little, uncertain = first_screen.list_without_gain(ranked)
    known = {"card": choose_cards(ranked, 1e8), "little": little, "uncertain": uncertain}
    assert {name: len(given) for name, given in known.items()} == dict.fromkeys(known, 0) | {state: 1}
    limit = StepLimit({COMPUTE: 7.0, MEMORY: 3.0})
    words = describe_nothing_more(limit, 0, little, uncertain).lower()
    assert (load_change("tf32").ACTION.lower() in words) == (state != "card")


def test_a_bound_is_shown_as_the_time_that_it_could_save():
    [card] = choose_cards([bounded("padding", 62e6) | {"fits_limit": True}], 115e6)
    assert (format_gain(card), explain_gain(card)) == (
        "could save up to 62\u202fms",
        "of 115\u202fms, not measured",
    )


def test_a_bound_that_does_not_fit_the_limit_says_why_it_comes_after_smaller_ones():
    fitting, other = choose_cards([bounded("compile", 62e6), bounded("fused_adamw", 31e6) | {"fits_limit": True}], 1e8)
    assert (fitting["changes"], other["changes"]) == (("fused_adamw",), ("compile",))
    assert NOT_THE_LIMIT not in explain_gain(fitting) and explain_gain(other).endswith(NOT_THE_LIMIT)


def test_a_card_of_a_precision_says_that_it_changes_nothing_else():
    """A card promised 540 ms in BF16, and the state BF16, which also has fused attention and AdamW, took 269."""
    for name, is_alone in (("bf16", True), ("tf32", True), ("compile", False)):
        [card] = choose_cards([measured(name, 2, 1.9, 2.1)], 100.0)
        assert explain_gain(card).endswith(ONLY_CHANGE) == is_alone


def test_a_change_that_rounds_more_has_a_caution_on_its_card(tmp_path):
    caution = load_change("casts").CAUTION
    numbers = {"step_ns": 1e8, "tokens_per_s": None, "mfu": None, "peak_bytes": None, "cost": None, "num_steps": 0}
    parts, run = pd.DataFrame(columns=COLUMNS), RUN | {"run_id": "a", "gpu_name": "b"}
    site = make_site(recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2), tmp_path)
    for name in ("casts", "compile"):
        first = [bounded("fused_adamw", 3e7) | {"fits_limit": True}, bounded(name, 3e7) | {"fits_limit": True}]
        screen = first_screen.describe_screen(run, parts, None, first, numbers)
        html = site.render_part("index.md", "first_screen.html", NOTHING, screen=screen, name="x", link="")
        assert (caution in html) == (caution in to_markdown(screen, "a.csv")) == (name == "casts")


def test_a_larger_batch_saves_time_of_the_same_work_and_not_of_its_step():
    [card] = choose_cards([bounded("larger_batch", 53e6) | {"fits_limit": True}], 115e6)
    assert (format_gain(card), explain_gain(card)) == ("could give up to 1.9× the tokens/s", "not measured")
    [card] = choose_cards([bounded("larger_batch", 17.6e6)], 35.2e6)
    assert (format_gain(card), explain_gain(card)) == ("could give up to 2.0× the tokens/s", NOT_THE_LIMIT)


def test_a_step_without_an_optimizer_has_no_risk_for_its_updates():
    """A script that only runs forward was told that small updates are lost."""
    first = [bounded("compile", 5.0) | {"fits_limit": True}, bounded("casts", 3.0) | {"fits_limit": True}]
    for kind in ("elementwise", "optimizer"):
        parts = pd.DataFrame([("a", 10.0, "forward", "FFN", kind, 10.0)], columns=COLUMNS)
        screen = first_screen.describe_screen(RUN, parts, None, first, {"step_ns": 10.0, "tokens_per_s": None})
        assert bool(screen["cards"][1]["cautions"]) == (kind == "optimizer")


def test_a_line_and_a_card_have_one_bound():
    """A card had an unknown part of 79 ms, the terminal up to 72.2 ms."""
    [card] = choose_cards([bounded("compile", 72.2e6)], 79e6)
    [line] = format_run_advice([bounded("compile", 72.2e6)], 79e6)
    assert format_gain(card) == f"{MOST_OF} 79\u202fms" and explain_gain(card).startswith(OR_NOTHING)
    assert f"{MOST_OF} 79.0 ms, {OR_NOTHING};" in line
    assert "could save up to 40.0 ms;" in format_run_advice([bounded("compile", 40e6)], 79e6)[0]


@pytest.mark.parametrize(
    ("change", "ceiling", "gain"),
    [
        ("compile", 80e6, "could save up to 80\u202fms"),
        ("compile", 81e6, "could save most of 100\u202fms"),
        ("bf16", 81e6, "could save up to 81\u202fms"),
    ],
)
def test_a_bound_of_nearly_the_whole_step_is_no_number(change, ceiling, gain):
    """Compiling could save up to 46 of 50 ms: all waiting, and all kernels that might be fused. The peak rates bound
    what a precision gives."""
    [card] = choose_cards([bounded(change, ceiling)], 1e8)
    assert format_gain(card) == gain


def test_times_of_two_units_each_have_theirs():
    [card] = choose_cards([measured("bf16", 4, 3.9, 4.1) | {"step_ns": 2e9, "gain_ns": 1.5e9}], 2e9)
    assert format_gain(card) == "2.0\u202fs → 500\u202fms"


def test_what_would_read_as_once_as_fast_has_no_card():
    cards = choose(measured("compile", 1.04, 1.03, 1.05), measured("bf16", 1.06, 1.05, 1.07), bounded("casts", 4))
    assert cards == [("bf16", "measured", 1.06)]


def test_there_are_three_cards_at_most():
    names = ("bf16", "compile", "fused_attention", "fused_adamw", "larger_batch")
    assert len(choose(*(measured(name, 2, 1.5, 2.5) for name in names))) == first_screen.MOST_CARDS


@pytest.mark.parametrize("low, chosen", [(2.5, "compile"), (2.65, "compile"), (2.7, "cuda_graphs")])
def test_of_one_choice_the_later_needs_more_for_certain(low, chosen):
    """CUDA graphs were advised for 191 ms where compile alone takes 191 ms."""
    cards = choose(measured("cuda_graphs", 3, low, 3.3), measured("compile", 2.6, 2, 3))
    assert [name for name, _, _ in cards] == [chosen]


def test_cuda_graphs_that_were_measured_to_be_faster_than_compile_are_the_choice():
    """Small at 512 tokens had compile first, 33 to 13 ms by turns, and CUDA graphs take 9, in processes that differ."""
    graphs, compiled = measured("cuda_graphs", 3.9, 1.9, 8), measured("compile", 2.5, 2.4, 2.6)
    for low, chosen in ((1.17, "cuda_graphs"), (1.01, "compile"), (float("nan"), "compile")):
        assert [name for name, _, _ in choose(compiled, graphs | {"low_over_compile": low})] == [chosen]


def test_gains_are_ranked_by_what_they_give_at_least():
    """Twice the batch, 134 to 81 ms in processes that differ by 42%, came before compile, 134 to 83."""
    cards = choose(measured("larger_batch", 1.64, 1.42, 2.3), measured("compile", 1.59, 1.44, 2.2))
    assert [change for change, *_ in cards] == ["compile", "larger_batch"]


def test_a_run_lists_one_of_compile_and_cuda_graphs_with_the_code_that_was_measured():
    """CUDA graphs, 68.4 ms in processes that differ by 32%, came before compile, 68.5 ms, with code of both ways."""
    compiled = ("a", ("compile",), 1.18e8, 6.85e7, 1.72, 1.70, 1.75, "trained", 0.0, True, False, math.nan)
    graphs = ("a", ("cuda_graphs",), 1.18e8, 6.84e7, 1.73, 1.6, 2.3, "prediction", 0.32, True, False)
    columns = [name for name in COLUMNS_OF_GAINS if name not in OF_STEP]
    for low, chosen in ((math.nan, "compile"), (1.2, "cuda_graphs")):
        rows = pd.DataFrame([(*graphs, low), compiled], columns=columns)
        ranked = run_advice.rank_changes(pd.DataFrame(columns=["change"]), rows)
        assert [entry["changes"] for entry in ranked] == [(chosen,)]
        assert "make_graphed_callables" not in ranked[0]["do"]
    bounds = pd.DataFrame(
        [bounded(name, 5e7) | {"change": name} for name in ("compile", "cuda_graphs", "tf32", "bf16")]
    )
    ranked = run_advice.rank_changes(bounds, pd.DataFrame(columns=columns))
    assert [entry["changes"][0] for entry in ranked] == ["compile", "tf32", "bf16"]


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
    screen = first_screen.describe_screen(RUN, parts, limit, [], {"step_ns": 10.0, "tokens_per_s": None})
    assert screen["headline"] == "The GPU waits for the CPU 60% of this step"
    assert {of["name"]: of["kinds"] for of in screen["limits"] if of["share"]} == {
        "compute": ["matmul"],
        "CPU": ["wait"],
    }


@pytest.mark.parametrize("kinds", [("matmul", "elementwise"), ("matmul", "attention", "elementwise")])
def test_the_heading_names_attention_only_if_kernels_of_it_run(kinds):
    """In FP32 matmuls took 69% of a step and eager attention 16% more, and the heading gave 69% to both."""
    parts = pd.DataFrame([("a", 10.0, "forward", "FFN", kind, 2.0) for kind in kinds], columns=COLUMNS)
    limit = StepLimit({COMPUTE: 7.0, MEMORY: 3.0})
    screen = first_screen.describe_screen(RUN, parts, limit, [], {"step_ns": 10.0, "tokens_per_s": None})
    assert ("attention" in screen["headline"]) == ("attention" in kinds) and "70%" in screen["headline"]


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
    assert words in screen["nothing_more"]
    site = make_site(recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2), tmp_path)
    html = site.render_part("index.md", "first_screen.html", NOTHING, screen=screen, name="x", link="")
    assert words in html and words in to_markdown(screen, "a.csv")
    with_card = first_screen.describe_screen(screen["run"], parts, limit, [measured("bf16", 2, 1.9, 2.1)], numbers)
    assert re.search(" (other|else) ", with_card["nothing_more"]) and len(with_card["cards"]) == 1


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_has_a_heading_and_a_short_line_of_code(name):
    change = load_change(name)
    assert change.ACTION and len(change.ACTION) <= 30 and len(change.LINE) <= 55


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_tokens_of_a_script_have_a_price(gpus):
    """The home of a script had tokens a second of each rank, and no price."""
    run = RUN | {"gpu_name": "NVIDIA H200", "gpus": gpus}
    listed = find_price("NVIDIA H200").usd_per_hour
    numbers = run_page.describe_rate(run, 1000.0, None)
    assert numbers["currency"] == "$" and numbers["cost"] == pytest.approx(listed / 3.6)
    given = run_page.describe_rate(run, 1000.0, Price(7.2, date(2026, 11, 30)))
    assert given["currency"] == "" and given["cost"] == pytest.approx(2.0 / gpus)


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


def test_lines_and_cards_have_one_order_and_sets_come_after_single_changes():
    """Lines of runs in FP32 began with CUDA graphs and three other changes together, the cards with BF16 alone."""
    ladder = ("bf16", "fused_attention", "fused_adamw")
    sets = [
        measured("bf16", ratio, ratio - 0.1, ratio + 0.1) | {"changes": (*ladder, last)}
        for ratio, last in ((12, "cuda_graphs"), (11.9, "compile"))
    ]
    first = [*sets, bounded("padding", 50), measured("compile", 1.2, 1.1, 1.3), measured("bf16", 3, 2.9, 3.1)]
    chosen = [entry["changes"] for entry in run_advice.select_first(first, 100.0)]
    assert chosen == [("bf16",), ("compile",), ("padding",), (*ladder, "compile")]
    assert [card["changes"] for card in choose_cards(first, 100.0)] == chosen[:3]
    starts = [line.split(":")[0] for line in format_run_advice(first, 100.0)]
    labels = [", ".join(CHANGES[name].label for name in names) for names in chosen]
    assert starts == [*labels[:3], f"{labels[3]}, together"]


def test_what_is_not_known_to_help_alone_is_told_so_if_a_set_with_it_helps():
    """A line advised BF16 with fused attention, the next one neither."""
    pair = measured("bf16", 1.41, 1.3, 1.5) | {"changes": ("bf16", "fused_attention")}
    withheld = [measured(name, 1.0, 0.9, 1.1) | {"reason": run_advice.UNCERTAIN} for name in ("bf16", "fused_adamw")]
    starts = [line.split(":")[0] for line in format_run_advice([pair, *withheld], 100.0)[1:]]
    labels = [CHANGES[name].label for name in ("fused_adamw", "bf16")]
    assert starts == [f"{NOT_ADVISED}, {labels[0]}", f"{NOT_ADVISED} alone, {labels[1]}"]


def test_a_screen_without_cards_says_how_near_the_peak_the_step_is():
    limit = StepLimit({COMPUTE: 6.0, MEMORY: 4.0})
    assert "take 60% of it, at 50% of the data-sheet peak" in describe_nothing_more(limit, 0, (), (), 0.3)
    assert "peak" not in describe_nothing_more(limit, 0, (), ()) + describe_nothing_more(limit, 1, (), (), 0.3)
    for name, words in ((CPU, "the GPU waits for the CPU"), (MEMORY, "reading and writing memory takes")):
        limit = StepLimit({name: 6.0, COMPUTE: 4.0})
        assert f"{words} 60% of it." in describe_nothing_more(limit, 0, (), (), 0.3).replace(": The", ": the")
