"""What a change gave in the same step on another GPU, or with other settings, is told with where it was, and is no gain
of the run."""

import math

import pandas as pd
import pytest

from profiler_job.analysis.insight import run_advice
from profiler_job.analysis.insight.advice_lines import format_run_advice
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
        ({}, "on an H200 with sdpa and fused AdamW"),
        ({"attention": "cudnn", "optimizer": "own"}, "on an H200"),
        ({"attention": "cudnn", "optimizer": "own", "gpus": 2}, "on 2 H200"),
        ({"attention": "cudnn", "gpu_name": H100}, "with fused AdamW"),
    ],
)
def test_it_is_told_where_it_was_measured(other, where):
    assert find_elsewhere(RUN, pd.DataFrame([make_gain(**other)]))[("compile",)]["where"] == where


def test_the_nearest_counts_and_the_run_itself_does_not():
    own = make_gain(gpu_name=H100, attention="cudnn", optimizer="own")
    near = make_gain(ratio=2.0, attention="cudnn", optimizer="own")
    for rows in ([own, make_gain(), near], [near, make_gain(), own]):
        known = find_elsewhere(RUN, pd.DataFrame(rows))
        assert known[("compile",)]["times_as_fast"] == 2.0
    assert find_elsewhere(RUN, pd.DataFrame([own])) == {}


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        ({}, "on an H200: 2.5× as fast"),
        ({"on_slow_host": True}, "on an H200: 2.5× as fast on a slow CPU"),
        ({"gains": False}, "on an H200: no measurable difference"),
        ({"apart": 0.33}, "on an H200: 40\u202fms instead of 100\u202fms, in processes that differ by 33.0%"),
    ],
)
def test_a_card_and_a_line_keep_their_bound_and_say_what_it_gave_elsewhere(gain, words):
    settings = {"attention": "cudnn", "optimizer": "own"}
    known = find_elsewhere(RUN, pd.DataFrame([make_gain(**settings, **gain)]))
    for ceiling_ns, bounded, in_line in (
        (3e7, "could save up to 30\u202fms", "could save up to 30.0 ms; "),
        (9e7, "not measured in this step", "not measured in this step; "),
    ):
        ranked = rank(known, bound("compile", ceiling_ns))
        [card] = choose_cards(ranked, 1e8)
        assert format_gain(card) == bounded and explain_gain(card).replace("\u202f", " ").endswith(
            words.replace("\u202f", " ")
        )
        assert card["kind"] == "at most"
        [line] = format_run_advice(ranked, 1e8)
        assert in_line + words.replace("\u202f", " ") in line.replace("\u202f", " ")


def test_what_helped_elsewhere_comes_before_other_bounds_and_after_what_was_measured():
    known = find_elsewhere(RUN, pd.DataFrame([make_gain()]))
    ranked = rank(known, bound("fused_adamw", 4e7), bound("compile", 3e7, fits_limit=False), bound("casts", 3e7))
    assert [entry["changes"][0] for entry in ranked] == ["compile", "fused_adamw", "casts"]
    assert NOT_THE_LIMIT not in explain_gain(choose_cards(ranked, 1e8)[0])
    here = pd.DataFrame([make_gain(("fused_adamw",), 1.2)])
    ranked = run_advice.rank_changes(pd.DataFrame([bound("compile", 3e7)]), here, known)
    assert [entry["changes"][0] for entry in ranked] == ["fused_adamw", "compile"]
