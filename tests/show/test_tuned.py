"""A result of `tune` says how much faster, what to write and whether the losses are the same, on the first screen."""

import json
import os
import re
import shlex
import subprocess
import sys
from html import unescape

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.insight.tuned_ladder import (
    LOSS_WORDS,
    NO_PARTS,
    STEP_COLUMNS,
    TRIED_COLUMNS,
    chart_ladder,
    describe_losses,
    describe_ratio,
    interpret_tuning,
    name_tuned,
    shorten_label,
)
from profiler_job.analysis.show.tuned_forms import FORMS, format_tuned
from profiler_job.analysis.show.tuned_page import render_tuned
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.json_format import FORMAT_VERSION
from profiler_job.jobs.contract.tuning import (
    CodePatch,
    Confirmation,
    ExpectedRatio,
    LossDifference,
    Method,
    NoLossCode,
    NoPartsCode,
    Outcome,
    Tried,
    write_tuning,
)
from tests.show.tunings import DIFF, NO_SEED, make_ratio, make_step, make_tuning


@pytest.fixture
def ladder():
    return interpret_tuning(make_tuning())


def run(*arguments, columns=120):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("width", [80, 120])
def test_the_first_screen_answers(ladder, width):
    lines = format_tuned(ladder, "text", width).split("\n")
    first = "\n".join(lines[:24])
    assert "8.00 times as fast (95% interval 7.84 to 8.16): a step takes 25.0 ms, before 200.0 ms" in " ".join(
        first.split()
    )
    assert "Losses differ by 0.01% in the first step, by at most 0.13% in step 17" in " ".join(first.split())
    assert "What to write" in first and "train.py:9: model.compile() (by hand)" in first
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("times", "is_sure"), [(1.1, False), (1.5, True)])
def test_a_result_whose_interval_holds_1_is_no_measurable_difference(times, is_sure):
    """Processes of their own replace the ratio by turns where the CPU limits, and differ by more."""
    last = make_step("compile", ("compile",), 100, 1.2, ratio_base=make_ratio(times, 0.2))
    headline = interpret_tuning(make_tuning(ladder=[last])).headline
    assert headline.startswith("No measurable difference") != is_sure and f"{times:.2f} times as fast" in headline


def test_an_error_of_several_changes_may_be_one_of_the_script():
    """The script raised it in its 70th step, whatever was switched on."""
    failed = [Tried(change=name, outcome=Outcome.FAILED, message="the disk went away") for name in ("bf16", "foreach")]
    assert "2 changes ended with the same error" in " ".join(interpret_tuning(make_tuning(tried=failed)).notes)
    failed[0].message = "another"
    assert "same error" not in " ".join(interpret_tuning(make_tuning(tried=failed)).notes)


def test_code_without_a_patch_names_the_device_that_the_script_ran_on():
    for device_type in ("cuda", "cpu"):
        code = interpret_tuning(make_tuning(patch=None, device_type=device_type)).code
        assert f'torch.autocast("{device_type}", dtype' in code[0]


def test_numbers_are_derived_from_the_steps(ladder):
    steps = ladder.steps.set_index("change")
    assert tuple(ladder.steps.columns) == STEP_COLUMNS and tuple(ladder.tried.columns) == TRIED_COLUMNS
    assert steps["tokens_per_s"].tolist() == pytest.approx([20480, 40960, 81920, 163840])
    # 4.02 TFLOP in 200 ms are 20.1 TFLOP/s, of 67 in FP32; in 25 ms 160.8 of 989.4 in BF16
    assert steps.loc["", "mfu_share"] == pytest.approx(0.3)
    assert steps.loc["compile", "mfu_share"] == pytest.approx(160.8 / 989.4)
    assert steps.loc["compile", "usd_per_million"] == pytest.approx(4.59 / 3600 / 163840 * 1e6)
    assert steps.loc["compile", "loss_share"] == 1.3e-3 and steps["loss_share"].notna().sum() == 1
    assert steps.loc["compile", "num_losses"] == 20
    assert steps.loc["bf16", "label"] == "+ BF16 autocast, not TF32"


def test_a_ladder_has_one_ratio_also_if_the_last_change_took_no_turns_with_the_script_as_it_is():
    """Turns of another moment took 46.4 ms after 37.7 ms, and were 1.09 times as fast. A median of ratios is not the
    ratio of medians, of 88.8 ms and 35.0 ms."""
    first = make_step("bf16", ("bf16",), 35.0, 88.8 / 37.7, "bf16", ratio_base=make_ratio(88.8 / 37.7))
    last = make_step("fused_adamw", ("bf16", "fused_adamw"), 46.4, 1.09, "bf16", ratio_base=None)
    tuning = make_tuning(confirmation=Confirmation(base_ns=(88.8e6,), winner_ns=(34e6,)), ladder=[first, last])
    tuning.base.step_ns = 88.8e6
    ladder = interpret_tuning(tuning)
    steps = ladder.steps
    assert steps["step_ns"].tolist() == pytest.approx([88.8e6, 37.7e6, 37.7e6 / 1.09])
    assert steps["times_as_fast"].tolist() == pytest.approx([1.0, 88.8 / 37.7, 88.8 / 37.7 * 1.09])
    for end in ("low", "high"):
        ends = [getattr(ratio, end) for ratio in (first.ratio_base, last.ratio_before)]
        assert steps[f"{end}_times_as_fast"].iloc[-1] == pytest.approx(ends[0] * ends[1])
    assert steps["tokens_per_s"].is_monotonic_increasing
    assert ladder.headline.startswith("About 2.57 times as fast (")
    assert ladder.headline.endswith("): a step takes 34.6 ms, before 88.8 ms")
    assert any("is the product of those" in note for note in ladder.notes) and "confirm the ratio" in ladder.check
    rows = chart_ladder(ladder)
    assert rows["value"].iloc[-1] == pytest.approx(88.8 / 37.7 * 1.09) and rows["text"].iloc[-1] == "2.57×, 34.6 ms"
    for form in FORMS:
        assert "46.4" not in format_tuned(ladder, form, 120)
    render_tuned(ladder)


def test_a_given_price_replaces_the_listed_one():
    given = interpret_tuning(make_tuning(), usd_per_hour=9.0)
    assert given.steps["usd_per_million"].iloc[-1] == pytest.approx(9 / 3600 / 163840 * 1e6)
    assert any("9.00 USD an hour, as given" in fact for fact in given.facts)
    unknown = interpret_tuning(make_tuning(gpu_name="Another"))
    assert unknown.price is None and unknown.steps["usd_per_million"].isna().all()
    assert unknown.steps["mfu_share"].isna().all() and not any("USD" in fact for fact in unknown.facts)


def test_what_did_not_help_says_why(ladder):
    verdicts = dict(zip(ladder.tried["change"], ladder.tried["verdict"]))
    assert verdicts == {
        "foreach": "no measurable difference",
        "synchronisations": "not kept: the script would do something else",
        "larger_batch": "out of memory",
        "loader_workers": "not reached",
    }
    assert ladder.not_reached["change"].tolist() == ["loader_workers"] and len(ladder.not_helping) == 3
    assert describe_ratio(make_ratio(0.9)) == "measurably slower"
    assert describe_ratio(make_ratio(1.1)) == "measurably faster"


def test_a_change_counts_once_and_does_not_help_and_not_help():
    """CUDA graphs were kept with TF32, which was no faster alone; what could not be measured was not tried."""
    graphs = make_step("cuda_graphs", ("tf32", "cuda_graphs"), 25, 2, "tf32")
    outcomes = {"fused_adamw": Outcome.NOT_FASTER, "foreach": Outcome.NOT_POSSIBLE, "padding": Outcome.NOT_FASTER}
    tried = [Tried(change=change, outcome=outcome) for change, outcome in outcomes.items()]
    ladder = [graphs, make_step("fused_adamw", (*graphs.changes, "fused_adamw"), 20, 1.2, "tf32")]
    result = interpret_tuning(make_tuning(tried=tried, ladder=ladder))
    assert name_tuned(result).endswith(": 4 changes tried, 3 kept")
    assert [*result.not_helping["change"]] == ["padding", "foreach"]


def test_every_outcome_has_a_verdict():
    tried = [Tried(change="foreach", outcome=outcome) for outcome in Outcome]
    rows = interpret_tuning(make_tuning(tried=tried)).tried
    assert {*rows["outcome"]} == {*Outcome} - {Outcome.KEPT} and rows["verdict"].str.len().min() > 5
    assert rows["outcome"].iloc[-1] == Outcome.NOT_REACHED


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({"num": 9, "largest": 0.0}, "Losses are the same (9 compared)"),
        ({"num": 9, "largest": 5e-5, "step": 2}, "but for rounding: they differ by at most 0.005% in step 2"),
        ({"num": 9, "largest": 1.2e-7, "step": 8}, "they differ by less than 0.001% in step 8"),
        ({"num": 9, "largest": 0.02, "repeated": 0.03}, "Losses differ by at most 2% (9 compared; two runs"),
        ({"num": 9, "largest": 15.0, "first": 1.5}, "differ by 150% in the first step, by at most 1,500%"),
        ({"num": 9, "largest": 0.02, "repeated": 0.001}, "Losses differ by at most 2% (9 compared; two runs"),
        ({"num": 0}, "no call of backward"),
        ({"reason": NoLossCode.NOT_FINITE, "step": 4}, "not finite without changes either, from step 4 on"),
        ({"reason": NoLossCode.BROKEN, "step": 4}, "not finite, and without changes they are, from step 4 on"),
    ],
)
def test_losses_in_one_sentence(losses, words):
    assert words in describe_losses(LossDifference(**losses))


def test_every_reason_without_losses_has_words():
    assert all(len(describe_losses(LossDifference(reason=code))) > 15 for code in NoLossCode)
    assert "seed" in describe_losses(NO_SEED)


def test_each_step_of_the_ladder_shows_how_much_its_losses_differ():
    tuning = make_tuning()
    tuning.ladder[0].losses = LossDifference(num=20, first=0.0, largest=0.0, step=1)
    for reason, words in LOSS_WORDS.items() | {(NoLossCode.NOT_MEASURED, "not compared")}:
        tuning.ladder[1].losses = LossDifference(reason=reason)
        ladder = interpret_tuning(tuning)
        assert [*ladder.steps["losses"].iloc[1:]] == ["the same", words, "0.13%"]
        for shown in (format_tuned(ladder, "text", 120), format_tuned(ladder, "md", 80), render_tuned(ladder)):
            assert words in shown and "0.13%" in shown and "loss differs" in shown
        assert any("difference of the first 20 from losses" in note for note in ladder.notes)
        is_late = any("losses of 1 step are not compared: the budget ended" in note for note in ladder.notes)
        assert is_late == (reason is NoLossCode.NOT_MEASURED)
    del tuning.ladder[:-1]
    assert not any("from one seed" in note for note in interpret_tuning(tuning).notes), "the sentence has it"


def test_what_other_code_could_give_has_a_table_of_its_own():
    """With what to write; not what the script has already, of which nothing is expected."""
    expected = ExpectedRatio(times_as_fast=1.08, low=1.05, high=1.12)
    tried = [
        Tried(change="fused_loss", outcome=Outcome.NOT_POSSIBLE, expected=expected, on_top_of=("bf16",)),
        Tried(change="fused_adamw", outcome=Outcome.NOT_POSSIBLE, message="the script has it already"),
    ]
    ladder = interpret_tuning(make_tuning(tried=tried))
    assert ladder.other_code["change"].tolist() == ["fused_loss"]
    assert ladder.not_helping["change"].tolist() == ["fused_adamw"]
    for shown in (format_tuned(ladder, "text", 120), format_tuned(ladder, "md", 80), render_tuned(ladder)):
        assert "What other code could give" in shown and "1.08" in shown and "cross" in shown
    rows = json.loads(format_tuned(ladder, "json", 80))["tried"]
    assert rows[0]["expected_times_as_fast"] == 1.08 and rows[1]["expected_times_as_fast"] is None


def test_fresh_processes_confirm_or_differ(ladder):
    assert "They confirm the ratio: 200.0 ms and 25.0 ms, 8.00 times" in ladder.check
    other = interpret_tuning(make_tuning(confirmation=Confirmation(base_ns=(200e6,), winner_ns=(40e6,))))
    assert "another ratio" in other.check and "5.00 times" in other.check


@pytest.mark.parametrize(
    ("num_pairs", "num_rounds", "how"),
    [(6, 0, "one after another"), (3, 10, "by turns in 10 rounds")],
)
def test_pairs_of_processes_that_are_the_result_are_not_said_to_confirm_it(num_pairs, num_rounds, how):
    times = {"base_ns": (12e6,) * num_pairs, "winner_ns": (8e6,) * num_pairs}
    pairs = Confirmation(**times, num_rounds=num_rounds, by_turns=make_ratio(1.84))
    step = make_step("cuda_graphs", ("cuda_graphs",), 8, 1.5)
    for step.method, where in ((Method.PROCESSES, "In processes"), (Method.TURNS, "By turns")):
        ladder = interpret_tuning(make_tuning(ladder=[step], confirmation=pairs, patch=None))
        assert any(note.startswith(where) and "it was 1.84 times as fast" in note for note in ladder.notes)
    words = f"{num_pairs} processes of it and {num_pairs} of the script as it is, {how}. The ratio is theirs"
    assert ladder.check.endswith(words)


@pytest.mark.parametrize("is_bare", [True, False])
def test_losses_of_compiled_code_in_the_patch_are_told_to_draw_other_numbers(is_bare):
    step = make_step("compile", ("compile",), 8, 1.5)
    step.losses = LossDifference(num=10, first=0.002, largest=0.003, step=2, repeated=0.0)
    pairs = Confirmation(base_ns=(12e6,), winner_ns=(8e6,), num_rounds=9, by_turns=make_ratio(1.8), is_bare=is_bare)
    notes = interpret_tuning(make_tuning(ladder=[step], confirmation=pairs, patch=None)).notes
    assert any("other random numbers" in note for note in notes) == is_bare


@pytest.mark.parametrize(
    ("is_bare", "patch", "words"),
    [
        (True, CodePatch(diff=DIFF), "Checked: the patched script ran alone"),
        (False, CodePatch(diff=DIFF), "not run: it cannot be timed alone"),
        (False, make_tuning().patch, "not run: the patch leaves lines to write"),
        (False, None, "not run: there is no patch"),
    ],
)
def test_it_is_shown_whether_the_patched_script_ran(is_bare, patch, words):
    pairs = Confirmation(base_ns=(12e6,), winner_ns=(8e6,), by_turns=make_ratio(1.8), is_bare=is_bare)
    assert words in interpret_tuning(make_tuning(confirmation=pairs, patch=patch)).check


@pytest.mark.parametrize(("digest", "is_other"), [("1", False), ("2", True), ("", True)])
def test_a_patch_that_was_not_measured_is_not_called_checked(digest, is_other):
    pairs = Confirmation(base_ns=(12e6,), winner_ns=(8e6,), by_turns=make_ratio(1.8), is_bare=True, patch_digest="1")
    tuning = make_tuning(confirmation=pairs, patch=CodePatch(diff=DIFF, digest=digest))
    check = interpret_tuning(tuning).check
    assert check.startswith("This patch was not measured") == is_other and ("Checked" in check) != is_other
    assert not tuning.model_copy(update={"patch": None}).is_other_patch


@pytest.mark.parametrize(
    ("reason", "words"), [(NoLossCode.NOT_MEASURED, "the budget ended"), (NoLossCode.FAILED, "the script failed")]
)
def test_a_winner_that_was_not_checked_shows_why(reason, words):
    tuning = make_tuning(confirmation=Confirmation())
    tuning.winner.losses = LossDifference(reason=reason)
    check = interpret_tuning(tuning).check
    assert check.startswith("Not checked") and words in check
    assert not interpret_tuning(make_tuning(ladder=[])).check


def test_the_command_that_writes_the_patch_is_whole():
    options = ("--results", "my results", "--changes", "bf16,tf32")
    ladder = interpret_tuning(make_tuning(options=options))
    command = "profiler-job tune --results 'my results' --changes bf16,tf32 --write -- python train.py"
    assert ladder.apply == command and f"\n    {command}\n" in format_tuned(ladder, "text", 80)
    assert command in format_tuned(ladder, "md", 80) and shlex.quote("my results") in unescape(
        str(render_tuned(ladder))
    )
    written = make_tuning(patch=CodePatch(diff=DIFF, written=("train.py",)))
    for tuning in (written, make_tuning(ladder=[]), make_tuning(patch=None)):
        assert not interpret_tuning(tuning).apply


def test_ratios_of_two_digits_have_three():
    step = make_step("bf16", ("bf16",), 9.09, 22.0, "bf16", ratio_base=make_ratio(22.0, 0.1364))
    assert interpret_tuning(make_tuning(ladder=[step])).headline.startswith(
        "22.0 times as fast (95% interval 19.0 to 25.0)"
    )


def test_it_is_said_why_nothing_is_expected():
    notes = interpret_tuning(make_tuning(no_parts=NoPartsCode.COMPILED)).notes
    assert any("Nothing was expected of changes: the script compiles its model" in note for note in notes)
    assert {*NO_PARTS} == {*NoPartsCode}


def test_slower_fresh_processes_do_not_confirm_a_small_gain():
    small = make_step("tf32", ("tf32",), 190, 1.05)
    slower = Confirmation(base_ns=(200e6,), winner_ns=(204e6,))
    check = interpret_tuning(make_tuning(ladder=[small], confirmation=slower, patch=None)).check
    assert "another ratio" in check and "0.98 times" in check


def test_processes_that_gave_a_ratio_do_not_confirm_it():
    last = make_step("loader_workers", ("loader_workers",), 100, 2)
    for method, is_told in ((Method.TURNS, True), (Method.PROCESSES, False)):
        last.method = method
        assert ("8.00 times as fast" in interpret_tuning(make_tuning(ladder=[last])).check) == is_told


def test_the_last_ratio_agrees_with_its_steps_if_processes_gave_it():
    """It said 2.49 times as fast as the step before, of 7.44 ms and 3.63 ms: one was by turns, the other was not."""
    last = make_step("compile", ("bf16", "compile"), 40, 2.5, "bf16", ratio_base=make_ratio(5.0, 0.1))
    ladder = [make_step("bf16", ("bf16",), 100, 2.0, "bf16"), last]
    for by_turns in (make_ratio(6.0), None):
        confirmed = Confirmation(base_ns=(200e6,), winner_ns=(40e6,), num_rounds=9, by_turns=by_turns)
        steps = interpret_tuning(make_tuning(ladder=ladder, confirmation=confirmed)).steps
        assert steps["before_times_as_fast"].iloc[1] == 2.0 and steps["before_times_as_fast"].iloc[2] == 2.5
        if by_turns is not None:
            assert steps["step_ns"].iloc[1] / steps["step_ns"].iloc[2] == pytest.approx(2.5)
            assert steps["before_low_times_as_fast"].iloc[2] == pytest.approx(4.5 / 2.04)
            assert steps["before_high_times_as_fast"].iloc[2] == pytest.approx(5.5 / 1.96)
    last.ratio_before, last.ratio_base = make_ratio(3.0), make_ratio(4.0)
    steps = interpret_tuning(make_tuning(ladder=ladder, confirmation=Confirmation(by_turns=make_ratio(6.0)))).steps
    assert steps["before_times_as_fast"].iloc[2] == pytest.approx(2.0)


def test_mfu_names_its_precision_if_the_ladder_has_several(ladder):
    """It fell from 55 to 9%, of another peak, while the step was 2.3 times as fast."""
    for shown in (format_tuned(ladder, "text", 160), format_tuned(ladder, "md", 80), render_tuned(ladder)):
        assert "30.0% of FP32" in shown and "of BF16" in shown
    one = interpret_tuning(make_tuning(ladder=[make_step("fused_adamw", ("fused_adamw",), 100, 2.0)]))
    assert "30.0% of FP32" not in format_tuned(one, "md", 80) and "30.0%" in format_tuned(one, "md", 80)


def test_what_other_code_would_hardly_give_is_no_advice():
    """A fused loss of 1.02 (0.85 to 1.22) was, for a model whose winner compiles it."""
    ratios = {"fused_loss": (1.02, 0.85, 1.22), "larger_batch": (1.3, 0.95, 1.7), "padding": (1.02, 1.01, 1.03)}
    tried = [
        Tried(
            change=name,
            outcome=Outcome.NOT_POSSIBLE,
            expected=ExpectedRatio(times_as_fast=times, low=low, high=high),
        )
        for name, (times, low, high) in ratios.items()
    ]
    result = interpret_tuning(make_tuning(tried=tried))
    assert [*result.other_code["change"]] == ["larger_batch", "padding"]
    assert [*result.not_helping["verdict"]] == ["about as fast, by its parts"]


def test_a_bound_that_shows_no_difference_is_none():
    tried = [Tried(change="synchronisations", outcome=Outcome.BOUND, ratio=make_ratio(1.01))]
    assert [*interpret_tuning(make_tuning(tried=tried)).tried["verdict"]] == ["no measurable difference"]


def test_a_search_without_a_measurement_does_not_tell_what_it_showed():
    left = make_tuning(ladder=[], patch=None, tried=[Tried(change="bf16", outcome=Outcome.NOT_REACHED)])
    assert interpret_tuning(left).headline.startswith("No change was measured")


def test_a_search_that_is_not_complete_says_how_to_go_on():
    """After how long in all: each time that the command goes on, it has a budget of its own."""
    notes = interpret_tuning(make_tuning(is_complete=False, asked=("tf32",), used_s=900)).notes
    assert any("not complete after 15.0 min, and 1 change had" in note and "--budget" in note for note in notes)
    assert any("Only what --changes names was tried: TF32" in note for note in notes)
    assert any("The same command goes on" in note for note in notes)
    short = interpret_tuning(make_tuning(is_complete=False, used_s=60)).notes
    assert not any("The same command goes on" in note for note in short), "what is left needs more than this budget"


def test_results_without_a_winner_or_a_step_can_be_read():
    nothing = interpret_tuning(make_tuning(ladder=[], patch=None))
    assert "Nothing that was tried" in nothing.headline and not nothing.code and len(nothing.steps) == 1
    empty = interpret_tuning(make_tuning(base=None, ladder=[], tried=[], patch=None))
    for each in (nothing, empty):
        for form in FORMS:
            assert format_tuned(each, form, 80)
        render_tuned(each)


def test_without_a_patch_the_code_of_each_change_is_named():
    code = interpret_tuning(make_tuning(patch=None)).code
    assert len(code) == 2 and "torch.autocast" in code[0] and "compile" in code[1]


def test_json_has_rows_sentences_and_the_patch(ladder):
    content = json.loads(format_tuned(ladder, "json", 80))
    assert content["format_version"] == FORMAT_VERSION and content["patch"]["diff"] == DIFF
    assert [row["change"] for row in content["steps"]] == ["", "tf32", "bf16", "compile"]
    assert content["price"]["usd_per_hour"] == 4.59 and content["sentences"]["headline"] == ladder.headline
    assert content["tried"][0]["outcome"] == "not_faster" and content["steps"][0]["low_times_as_fast"] is None


def test_the_patch_keeps_its_tabs_and_cannot_leave_its_fence():
    diff = DIFF + "+```\n+\x1b[2Jevil\n"
    tuning = make_tuning(patch=make_tuning().patch.model_copy(update={"diff": diff}))
    text = format_tuned(interpret_tuning(tuning), "md", 80)
    assert "\n````diff\n" in text and "+\ttorch.set" in text and "\x1b" not in text


def test_names_are_escaped_on_the_page():
    page = render_tuned(interpret_tuning(make_tuning(name="<script>alert(1)</script>")))
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert page.count("<svg") == 2 and 'class="chart narrow"' in page


def test_the_figure_has_a_bar_for_each_step(ladder):
    rows = chart_ladder(ladder)
    assert rows["value"].tolist() == pytest.approx([1, 2, 4, 8]) and rows["label"].iloc[2] == "+ BF16 autocast"
    assert (rows["low"] <= rows["value"]).all() and (rows["high"] >= rows["value"]).all()


@pytest.mark.parametrize(
    ("label", "short"),
    [
        ("as it is", "as it is"),
        ("+ BF16 autocast, not TF32", "+ BF16 autocast"),
        ("+ TF32 + CUDA graphs", "+ TF32 + CUDA graphs"),
        ("+ fused optimizer + padded dimensions + CUDA graphs", "+ CUDA graphs + 2 more"),
    ],
)
def test_a_figure_has_room_for_its_labels(label, short):
    """Of three changes the first was cut in half."""
    assert shorten_label(label) == short


def test_the_page_shows_what_to_write_and_the_figure_before_numbers(ladder):
    """On a phone nine lines of numbers were the whole first screen."""
    page = render_tuned(ladder)
    places = [page.index(part) for part in (ladder.headline, "What to write", "<svg", "In numbers", "The ladder")]
    assert places == sorted(places) and "`" not in page.partition("The patch</h2>")[0]


def test_show_prints_the_folder_of_a_result(tmp_path):
    write_tuning(tmp_path / "train", make_tuning())
    for path in (tmp_path / "train", tmp_path / "train" / "tune.json"):
        done = run("show", path)
        assert done.exit_code == 0 and "8.00 times as fast" in done.stdout and "--- a/train.py" in done.stdout
    assert json.loads(run("show", path, "--format", "json").stdout)["name"] == "train"
    assert run("show", path, "--format", "csv").stdout.startswith("change,step_ns")
    assert "peak allocated" in run("show", path, "--top", 0, columns=80).stdout.partition("What did not help")[0]
    page = tmp_path / "page.html"
    assert run("show", path, "--html", page).exit_code == 0 and "8.00 times" in page.read_text()


def test_show_refuses_what_it_cannot_print(tmp_path):
    write_tuning(tmp_path / "train", make_tuning())
    assert run("show", tmp_path / "train", "--format", "speedscope").exit_code == ExitCode.USAGE
    assert run("show", tmp_path / "train", tmp_path).exit_code == ExitCode.USAGE
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    assert run("show", tmp_path / "train", "--html", mine).exit_code == ExitCode.USAGE and mine.read_text() == "mine"
    written = (tmp_path / "train" / "tune.json").read_text()
    for damaged in ("{}", re.sub(r'"step_ns": [\d.e+]+', '"step_ns": 0', written)):
        assert damaged != written
        (tmp_path / "train" / "tune.json").write_text(damaged)
        assert run("show", tmp_path / "train").exit_code == ExitCode.DAMAGED


def test_the_step_of_the_winner_on_another_gpu_is_estimated_by_the_data_sheets():
    ladder = make_tuning().ladder
    ladder[-1].kernels = {"matmul": 12e6, "attention": 2e6, "busy": 24e6}
    (fact,) = [fact for fact in interpret_tuning(make_tuning(ladder=ladder)).facts if "H100" in fact]
    assert "25" in fact and "29" in fact, "half of the other 10 ms are 1.43 times as long there at most"
    ladder[-1].kernels["busy"] = 15e6
    assert not [fact for fact in interpret_tuning(make_tuning(ladder=ladder)).facts if "H100" in fact]


def test_the_page_is_written_if_nobody_reads_the_text(tmp_path):
    write_tuning(tmp_path, make_tuning())
    reading, writing = os.pipe()
    os.close(reading)
    module = [sys.executable, "-m", "profiler_job.analysis.show.tuned", str(tmp_path), "text"]
    done = subprocess.run(module, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 0 and not done.stderr and "8.00 times" in (tmp_path / "tune.html").read_text()
