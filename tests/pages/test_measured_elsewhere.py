"""What a change gave in the same step on another GPU, or with other settings, is told with where it was, and is no gain
of the run."""

import math

import pandas as pd
import pytest

from profiler_job.analysis.insight import run_advice
from profiler_job.analysis.insight.advice_lines import NOT_HERE, format_run_advice
from profiler_job.analysis.pages.first_screen import choose_cards
from profiler_job.analysis.pages.measured_elsewhere import find_elsewhere
from profiler_job.analysis.prediction.measured import COLUMNS, name_same_step
from profiler_job.analysis.render.screen_source import NOT_THE_LIMIT, explain_gain, format_gain
from profiler_job.jobs.contract.axes import Run

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
AXES = {"size": "small", "context_length": 512, "batch_size": 4, "mode": "train_step", "precision": "bf16"}
RUN = AXES | {"attention": "cudnn", "optimizer": "own", "gpus": 1, "gpu_name": H100}


def make_gain(changes=("compile",), ratio=2.5, **other):
    """A row of `measure_gains`: 100 ms on an H200, as usual when training."""
    row = dict.fromkeys(COLUMNS) | {"run_id": "a", "gpu_name": H200, "changes": changes, "before_ns": 1e8}
    row |= {"after_ns": 1e8 / ratio, "times_as_fast": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "apart": 0.0}
    row |= {"gains": True, "on_slow_host": False, "low_over_compile": math.nan}
    return row | {"attention": "sdpa", "optimizer": "fused", "gpus": 1} | other


def bound(name, ceiling_ns, fits_limit=True):
    entry = {"change": name, "do": "code", "reason": "", "time_ns": 1e7, "sure": "low", "fits_limit": fits_limit}
    return entry | {"ceiling_ns": ceiling_ns}


def rank(elsewhere, *bounds):
    return run_advice.rank_changes(pd.DataFrame(bounds), pd.DataFrame(columns=[*COLUMNS]), elsewhere)


def test_the_same_step_has_another_gpu_optimizer_or_backend_of_fused_attention():
    same = name_same_step(RUN)
    for other in ({"attention": "flash"}, {"optimizer": "fused"}, {"gpus": 2, "parallel": "ddp"}):
        assert name_same_step(RUN | other) == same == Run(**AXES, attention="sdpa").run_id
    for other in ({"attention": "naive"}, {"precision": "fp32"}, {"context_length": 128}, {"batch_size": 8}):
        assert name_same_step(RUN | other) != same


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ({}, ("on an H200", "with PyTorch's attention and fused AdamW")),
        ({"attention": "cudnn", "optimizer": "own"}, ("on an H200", "")),
        ({"attention": "cudnn", "optimizer": "own", "gpus": 2}, ("on 2 H200", "")),
        ({"attention": "cudnn", "gpu_name": H100}, ("", "with fused AdamW")),
    ],
)
def test_it_is_told_where_it_was_measured(other, where):
    gain = find_elsewhere(RUN, pd.DataFrame([make_gain(**other)]))[("compile",)]
    assert (gain["gpu"], gain["settings"]) == where


def test_the_nearest_counts_and_the_run_itself_does_not():
    own = make_gain(gpu_name=H100, attention="cudnn", optimizer="own")
    near = make_gain(ratio=2.0, attention="cudnn", optimizer="own")
    for rows in ([own, make_gain(), near], [near, make_gain(), own]):
        known = find_elsewhere(RUN, pd.DataFrame(rows))
        assert known[("compile",)]["times_as_fast"] == 2.0
    assert find_elsewhere(RUN, pd.DataFrame([own])) == {}


@pytest.mark.parametrize(
    ("changed", "ratio", "words"),
    [
        ({}, "2.5× as fast on an H200", NOT_HERE),
        ({"on_slow_host": True}, "2.5× as fast on an H200", "on a slow CPU"),
        ({"optimizer": "fused"}, "2.5× as fast on an H200", "with fused AdamW"),
        ({"gpu_name": H100, "optimizer": "fused"}, "2.5× as fast with fused AdamW", NOT_HERE),
        ({"apart": 0.33}, "100 → 40 ms on an H200", "processes differ by 33%"),
        ({"apart": math.inf}, "100 → 40 ms on an H200", "measured once"),
    ],
)
def test_a_gain_of_elsewhere_takes_the_place_of_a_bound(changed, ratio, words):
    """A card had up to 39 ms, and below it 1.6 times, which saves 26; another `not measured` and 2.5 times."""
    known = find_elsewhere(RUN, pd.DataFrame([make_gain(**{"attention": "cudnn", "optimizer": "own"} | changed)]))
    for ceiling_ns in (3e7, 9e7):
        ranked = rank(known, bound("compile", ceiling_ns))
        [card] = choose_cards(ranked, 1e8)
        assert (format_gain(card), explain_gain(card), card["kind"]) == (ratio, words, "at most")
        [line] = format_run_advice(ranked, 1e8)
        assert line.startswith(f"torch.compile: {ratio}, {words}; do: ")


def test_a_larger_batch_has_rates_where_processes_are_too_far_apart():
    """A card had no more than `more tokens/s`, and a line up to 19 ms of a step that does not get shorter."""
    row = make_gain(("larger_batch",), 1.6, attention="cudnn", optimizer="own", apart=0.33)
    ranked = rank(find_elsewhere(RUN, pd.DataFrame([row])), bound("larger_batch", 5e7))
    [card], [line] = choose_cards(ranked, 1e8), format_run_advice(ranked, 1e8)
    assert (format_gain(card), explain_gain(card)) == (
        "20.5k → 32.8k tokens/s on an H200",
        "processes differ by 33%",
    )
    assert line.startswith(f"larger batch: {format_gain(card)}, {explain_gain(card)}; do: ")
    [line] = format_run_advice([entry | {"elsewhere": None} for entry in ranked], 1e8)
    assert line.startswith("larger batch: could give up to 2.0× the tokens/s; do: ")
    measured = pd.DataFrame([row | {"apart": 0.68}])
    ranked = run_advice.rank_changes(pd.DataFrame(columns=["change"]), measured)
    [line] = format_run_advice(ranked, 1e8, tokens=2048)
    assert line.startswith("larger batch: measured, 20.5k → 32.8k tokens/s, in processes that differ by 68.0%; ")


@pytest.mark.parametrize("gain", [{"gains": False}, {"ratio": 1.04}])
def test_what_gave_nothing_elsewhere_has_no_card_and_no_line(gain):
    """A fused optimizer could save up to 7.5 ms, and made no measurable difference on an H200."""
    ranked = rank(find_elsewhere(RUN, pd.DataFrame([make_gain(**gain)])), bound("compile", 3e7))
    assert choose_cards(ranked, 1e8) == format_run_advice(ranked, 1e8) == []


def test_what_helped_most_elsewhere_comes_first():
    """Fused attention, 1.2 times as fast, stood above torch.compile, 1.3 times as fast."""
    known = find_elsewhere(RUN, pd.DataFrame([make_gain(ratio=2.0), make_gain(("fused_adamw",), 1.5)]))
    ranked = rank(known, bound("fused_adamw", 4e7), bound("compile", 3e7, fits_limit=False))
    assert [entry["changes"][0] for entry in ranked] == ["compile", "fused_adamw"]


def test_what_helped_elsewhere_comes_before_other_bounds_and_after_what_was_measured():
    known = find_elsewhere(RUN, pd.DataFrame([make_gain()]))
    ranked = rank(known, bound("fused_adamw", 4e7), bound("compile", 3e7, fits_limit=False), bound("casts", 3e7))
    assert [entry["changes"][0] for entry in ranked] == ["compile", "fused_adamw", "casts"]
    assert NOT_THE_LIMIT not in explain_gain(choose_cards(ranked, 1e8)[0])
    here = pd.DataFrame([make_gain(("fused_adamw",), 1.2)])
    ranked = run_advice.rank_changes(pd.DataFrame([bound("compile", 3e7)]), here, known)
    assert [entry["changes"][0] for entry in ranked] == ["fused_adamw", "compile"]
