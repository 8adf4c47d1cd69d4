"""The command: forms, exit codes of the gate, what is refused, and names that nobody chose for a terminal."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.comparison import common_work, compare_formats, gate, judge, noise
from profiler_job.analysis.comparison.align import align
from profiler_job.analysis.comparison.errors import NotComparableError
from tests import freeze, frozen
from tests.capture.test_summary import _random_capture
from tests.frozen import ATTENTION, ONE_GPU
from tests.packed import unpack, unpack_all

from .conftest import export
from .recorded_sides import measure, select

TRAIN = "context_length=512,mode=train_step"
FP32, BF16 = f"{TRAIN},precision=fp32", f"{TRAIN},precision=bf16"
FORWARD = "compile=off,context_length=128,mode=forward"
HOSTILE = "evil \x1b[31m</td><script>alert(1)</script> | `x` [a](javascript:1)\n# head \u202e"


def run(*arguments):
    done = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def copy_of(path):
    """Another measurement that happens to be the same."""
    target = path.with_name(f"copy of {path.name}")
    return shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)


def fp32_to_bf16(*more):
    return run(ONE_GPU, ONE_GPU, "--a", FP32, "--b", BF16, *more)


def off_to_default(*more):
    case = "context_length=128,mode=forward"
    return run(ONE_GPU, ONE_GPU, "--a", f"compile=off,{case}", "--b", f"compile=default,{case}", *more)


def test_text_says_what_differs_by_how_much_and_why_in_80_columns():
    done = fp32_to_bf16()
    assert done.exit_code == 0
    assert "precision: A has fp32, B has bf16" in done.stdout
    assert "and the noise bands of h200-fp32 and again" in " ".join(done.stdout.split())
    assert re.search(r"^step +\S+ ms +\S+ ms +-\S+ ms +-\S+% +±\S+ ms +faster$", done.stdout, re.MULTILINE)
    why = " ".join(done.stdout.split("Why:")[1].split())
    assert re.search(r"\(kernels -\S+ ms, copies and fills -\S+ ms, idle \+\S+ ms\)", why)
    assert why.index("backward, block/ffn") < why.index("forward, block/ffn")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_markdown_is_tables_for_a_pull_request():
    text = off_to_default("--format", "md", "--fail-if", "step > 3%").stdout
    assert "| kernel time |" in text and "| difference | part |" in text
    assert r"| step \> 3% |" in text or "| step &gt; 3% |" in text


def test_json_sums_exactly():
    made = json.loads(off_to_default("--format", "json").stdout)
    (pair,) = made["pairs"]
    waterfall = pair["waterfall"]
    assert sum(cause["difference_ns"] for cause in waterfall["causes"]) == waterfall["difference_ns"]
    assert waterfall["second_ns"] - waterfall["first_ns"] == waterfall["difference_ns"]
    assert made["differences"] == {"compile": ["off", "default"]}
    assert pair["metrics"]["kernel"]["verdict"] == "faster"
    assert pair["first_runs"] == ["small-ctx128-fp32-naive-forward"]


@pytest.fixture(scope="module")
def longer_context():
    """One program, context 512 compared with 128, per token."""
    first, second = (select(f"compile=off,mode=forward,context_length={number}") for number in (128, 512))
    return judge.compare(first, second, noise.SHIPPED, align(first, second, per_token=True))


def test_per_token_says_so_and_sums_exactly(longer_context):
    made = json.loads(compare_formats.as_json(longer_context, [], 0))
    (pair,) = made["pairs"]
    waterfall = pair["waterfall"]
    assert made["per_token"] and made["differences"] == {"context_length": ["128", "512"]}
    assert sum(cause["difference_ns"] for cause in waterfall["causes"]) == waterfall["difference_ns"]
    assert waterfall["tokens"] % (2 * 4 * 512) == 0 and waterfall["tokens"] % 1000 == 0 and waterfall["steps"] == 2
    of_sides = zip(
        ("first", "second"), (4 * 128, 4 * 512), (longer_context.pairs[0].first, longer_context.pairs[0].second)
    )
    for side, tokens, alone in of_sides:
        judged = pair["metrics"]
        assert judged["step"][side] == pytest.approx(alone.clocks["timer"] * 1000 / tokens)
        assert judged["kernel"][side] == pytest.approx(alone.kernel_ns * 1000 / tokens)
        assert judged["memory"][side] == alone.memory_bytes
    assert "| 1,000 tokens | A | B |" in compare_formats.as_markdown(longer_context, [], 0)


def test_per_token_is_an_option():
    every_mode = "compile=off,optimizer=own,precision=fp32,context_length="
    done = run(ONE_GPU, ONE_GPU, "--a", f"{every_mode}128", "--b", f"{every_mode}512", "--per-token")
    assert done.exit_code == 0 and max(map(len, done.stdout.splitlines())) <= 80
    assert "step per 1,000 tokens: " in done.stdout and "tokens/s: " not in done.stdout, "it is not counted again"


def test_per_token_bands_are_scaled_along():
    """Against itself, as if its steps had other tokens: nothing but the scale changes."""
    of_run = measure("small-ctx128-fp32-naive-forward")
    steps, tokens = (
        judge.judge(of_run, of_run, "timer", noise.SHIPPED, True, per_token=per_token) for per_token in (False, True)
    )
    for of_steps, of_tokens in zip(steps, tokens, strict=True):
        scale = 1000 / 512 if of_tokens.per_token else 1
        assert of_tokens.per_token == (of_tokens.metric not in ("memory", "throughput"))
        assert of_tokens.band == pytest.approx(of_steps.band * scale)


def test_throughput_is_the_step_in_other_words(longer_context):
    (pair,) = longer_context.pairs
    per_token = {
        made.metric: made for made in judge.judge(pair.first, pair.second, "timer", noise.SHIPPED, False, True)
    }
    assert per_token["throughput"].second == pytest.approx(1e12 / per_token["step"].second)
    slower = dataclasses.replace(pair.first, clocks={"timer": 1.5 * pair.first.clocks["timer"]})
    of_steps = {made.metric: made for made in judge.judge(pair.first, slower, "timer", noise.SHIPPED, False)}
    assert of_steps["throughput"].first == pytest.approx(1e9 * 4 * 128 / of_steps["step"].first)
    for judged in (per_token, of_steps):
        step, throughput = judged["step"], judged["throughput"]
        assert throughput.verdict == step.verdict
        assert abs(throughput.difference) / throughput.band == pytest.approx(abs(step.difference) / step.band)


def test_of_several_pairs_the_largest_part_stands_beside_the_first_where_it_is_within_noise():
    sides = [select(f"attention={name},context_length=128", folder=ATTENTION) for name in ("naive", "flash")]
    made = judge.compare(*sides, noise.SHIPPED)
    text, markdown = compare_formats.as_text(made, [], 10), compare_formats.as_markdown(made, [], 10).replace("\\", "")
    of_first = text.split("small context 128 forward pass\n")[1].split("\n\n")[0]
    named = re.findall(r"[-+]\S+ ms  (forward|idle)", of_first)
    assert named == ["forward", "idle"] and "(within noise)" in of_first
    assert "what changed" in markdown and re.search(r"ms forward, block/attention: .*; -\S+ ms idle, forward", markdown)


def test_several_pairs_are_counted():
    done = run(ONE_GPU, ONE_GPU, "--a", "compile=off,mode=forward", "--b", "compile=default")
    assert "kernel time: 2 faster" in done.stdout
    assert "without a partner in A, 1 run" in done.stdout.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("kernel > 5%", 1),
        ("kernel > 100%", 0),
        ("kernel > 0.1us", 1),
        ("kernel > 30ns", 1),
        ("busy > 5%", 3),
        ("step > 1ns", 3),
        ("step > 1s", 0),
        ("memory > 1%", 2),
        ("throughput > 3%", 2),
        ("steps > 1%", 2),
        ("kernel < 1%", 2),
        ("kernel > 5 MiB", 2),
    ],
)
def test_the_exit_code_is_that_of_the_gate(tmp_path, condition, code):
    a, b = export([("forward", "gemm", 3000)] * 2), export([("forward", "gemm", 3800)] * 2)
    done = run(a.sqlite(tmp_path / "a.sqlite"), b.sqlite(tmp_path / "b.sqlite"), "--fail-if", condition)
    assert done.exit_code == code, done.output
    if code == 2:
        assert done.output.startswith("error: --fail-if") and done.output.count("\n") == 1


def test_the_worst_condition_wins(tmp_path, capture):
    arguments = [capture, copy_of(capture), "--fail-if", "step > 1s"]
    assert run(*arguments).exit_code == 0
    assert run(*arguments, "--fail-if", "step > 0ns").exit_code == 3


def test_not_enough_data_says_how_many_processes_would_be():
    widths = (noise.Width(of="processes", half=6e6),)
    judged = {"step": judge.Judgement(metric="step", first=100e6, second=101e6, band=6e6, widths=widths)}

    class Measured:
        num_steps = 10

    class Pair:
        judgements, first, second, clock = judged, Measured, Measured, "timer"

    (outcome,) = gate.check(gate.parse_condition("step > 3%"), [Pair])
    assert outcome.code == gate.UNKNOWN
    assert "noise band is ±6.00 ms: not enough data to tell; about 7 processes of each (" in outcome.text
    assert "limit of 3.00 ms" in outcome.text


@pytest.mark.parametrize("text", ["step>3%", "idle > 2 ms", "memory > 100 MiB", "busy > 0.5%"])
def test_conditions_are_understood(text):
    assert gate.parse_condition(text).text == text


@pytest.mark.parametrize("text", ["", "step", "step > ", "step > -3%", "step > 3 %%", "time > 3%", "step > nan%"])
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(NotComparableError):
        gate.parse_condition(text)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nowhere", ONE_GPU], "does not exist"),
        ([ONE_GPU, ONE_GPU, "--a", "size=small", "--b", "size=2.7B"], "model is small in A and 2.7B in B"),
        ([ONE_GPU, ONE_GPU, "--skip", "1"], "--skip is for captures"),
        (
            [ONE_GPU, ONE_GPU, "--a", "compile=off", "--b", "compile=default", "--noise", ONE_GPU, ONE_GPU],
            "needs 20 pairs of times",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_exit_code_2(arguments, what):
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.output.startswith("error: ") and what in done.output and done.output.count("\n") == 1


def test_runs_that_were_only_timed_cannot_be_compared(tmp_path):
    rec = frozen.load("one_gpu")
    none = {name: getattr(rec, name).head(0) for name in ("kernels", "ranges", "memops", "api", "nsys_sums")}
    freeze.write(dataclasses.replace(rec, **none), tmp_path / "timed")
    done = run(tmp_path / "timed", tmp_path / "timed", "--a", FP32, "--b", BF16)
    assert done.exit_code == 2 and "not profiled" in done.output and done.output.count("\n") == 1


SHAPES = "captures record neither batch nor context: check that these are of the same work"


def test_captures_are_compared_with_a_warning_that_their_shapes_are_not_known(tmp_path, capture):
    """Another context or batch would look like a slowdown."""
    other = export([("forward", "gemm", 90)]).sqlite(tmp_path / "b.sqlite")
    assert SHAPES in run(capture, other).stdout
    assert f"- {SHAPES}" in run(capture, other, "--format", "md").stdout.replace("\\", "")
    assert json.loads(run(capture, other, "--format", "json").stdout)["cautions"] == [SHAPES]
    assert json.loads(fp32_to_bf16("--format", "json").stdout)["cautions"] == []


MASKED_FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::masked_fill_kernel>"
WITH_MASK = [("forward", MASKED_FILL, 80), ("forward", "gemm", 90), ("optimizer", MASKED_FILL, 300)]


@pytest.mark.parametrize("option", [(), ("--format", "json"), ("--fail-if", "kernel > 3%")])
def test_captures_whose_elementwise_kernels_have_other_grids_are_refused(tmp_path, option):
    """A context of 512 instead of 128 does not count as a slowdown."""
    short, long = (export(WITH_MASK, blocks=n).sqlite(tmp_path / f"{n}.sqlite") for n in (3072, 49152))
    done = run(short, long, *option)
    assert done.exit_code == 2 and done.output.count("\n") == 1
    said = (
        "error: shape: elementwise kernels of A have 3,072 blocks, and the same ones of B 49,152 (mean): another batch"
    )
    assert done.output.startswith(said)
    assert run(short, long, "--per-token").exit_code == 2


@pytest.mark.parametrize(
    ("kernels", "blocks"),
    [
        (WITH_MASK, 3000),  # sentences are not all of one length
        (WITH_MASK, 0),  # an export without grids
        ([*WITH_MASK, ("forward", MASKED_FILL, 80)], 49152),  # another program
        ([("forward", "gemm", 90), ("optimizer", "gemm", 90)], 49152),
        ([("forward", "void at::native::vectorized_elementwise_kernel<4, gelu>", 500), *WITH_MASK], 49152),
    ],
)
def test_captures_that_may_be_of_the_same_shapes_are_compared(tmp_path, kernels, blocks):
    first = export(WITH_MASK, blocks=3072).sqlite(tmp_path / "a.sqlite")
    done = run(first, export(kernels, num_steps=2, blocks=blocks).sqlite(tmp_path / "b.sqlite"))
    assert done.exit_code == 0 and SHAPES in done.stdout


@pytest.mark.parametrize("order", [1, -1])
def test_training_is_not_held_against_inference_where_no_phase_is_named_and_a_gate_gets_2(tmp_path, order):
    """Public captures without ranges: a GPT-2 that trains, and a Llama that does not."""
    files = []
    for name in ("gpt2_plain", "infer_plain")[::order]:
        packed = Path(__file__).parents[1] / "data" / "h200_captures" / f"{name}.sqlite.packed"
        files.append(unpack(packed, tmp_path / f"{name}.sqlite"))
    done = run(*files, "--fail-if", "kernel > 3%")
    trains, other = "AB"[::order]
    assert done.exit_code == 2 and done.output.count("\n") == 1
    said = (
        f"error: mode: {trains} launches kernels of a backward pass and {other} launches none: training is other work"
    )
    assert done.output.startswith(said)


@pytest.mark.long
def test_a_copy_is_said_to_be_one(tmp_path, capture):
    said = "A and B have the same times to the nanosecond: one is a copy of the other"
    shutil.copytree(ONE_GPU, tmp_path / "copy")
    for first, second in ((ONE_GPU, tmp_path / "copy"), (capture, copy_of(capture))):
        arguments = [first, second, "--fail-if", "step > 1s"]
        assert said in " ".join(run(*arguments).stdout.split()) and run(*arguments).exit_code == 0
    assert said not in " ".join(fp32_to_bf16().stdout.split())


def test_a_step_that_no_part_explains_is_said_to_be_one():
    one_run = select(FORWARD)
    made = judge.compare(one_run, with_unprofiled_steps(one_run, 50_000_000), OF_ONE)
    assert made.pairs[0].is_unexplained
    assert "The first says how much, and none of them explains the first" in " ".join(
        compare_formats.as_text(made, [], 0).split()
    )
    assert not judge.compare(one_run, one_run, OF_ONE).pairs[0].is_unexplained


@pytest.mark.long
def test_kernels_that_vanished_and_appeared_are_named_in_all_forms():
    text, markdown = fp32_to_bf16().stdout, fp32_to_bf16("--format", "md").stdout
    assert re.search(
        r"^vanished: A has \d+ kernel names that the other has not, \S+ ms in all\n +\S+ ms +\S+ x ", text, re.M
    )
    assert re.search(r"^appeared: B has \d+ kernel names", text, re.M) and max(map(len, text.splitlines())) <= 80
    (pair,) = json.loads(fp32_to_bf16("--format", "json").stdout)["pairs"]
    names = pair["waterfall"]["names_of_one_side"]
    assert len(names) == pair["waterfall"]["num_names_of_one_side"] <= 2 * compare_formats.MOST_NAMED
    assert {bool(row["first_calls"]) for row in names} == {True, False}
    assert all(bool(row["first_calls"]) != bool(row["second_calls"]) for row in names)
    assert markdown.count("| in a step | calls | kernel |") == 2
    assert sum(
        "| :-- |" not in line and line.count("|") == 4 for line in markdown.split("vanished")[1].splitlines()
    ) >= len(names)


def test_of_many_runs_without_a_partner_few_are_named_in_text_and_all_in_json(tmp_path):
    second = shutil.copytree(ONE_GPU, tmp_path / "second")
    arguments = [ONE_GPU, second, "--a", FORWARD]
    text, made = " ".join(run(*arguments).stdout.split()), json.loads(run(*arguments, "--format", "json").stdout)
    assert "without a partner in B, 14 runs: " in text and "and 9 others" in text
    assert len(made["second"]["without_partner"]) == 14


def test_why_a_run_has_no_numbers_is_said_where_it_is_chosen(tmp_path):
    oom = "small-ctx512-bf16-naive-train_step"
    name = tmp_path / "lost"
    freeze.write(frozen.lose_run(frozen.load("attention"), oom), name)
    done = run(name, name, "--a", f"run_id={oom}")
    assert done.exit_code == 2 and f"{oom} (OOM" in done.output and "has no numbers: choose another" in done.output


def test_a_part_of_some_nanoseconds_is_not_printed_as_minus_zero():
    assert [compare_formats._format_ms(ns, 2) for ns in (-24, 0, 999, -1000, 3e6)] == [
        "-12 ns",
        "0.000 ms",
        "+500 ns",
        "-0.001 ms",
        "+1.500 ms",
    ]


@pytest.mark.parametrize("more", [(), ("--a", "size=small"), ("--fail-if", "step > 3%")])
def test_the_same_runs_given_twice_are_refused_and_pass_no_gate(tmp_path, capture, more):
    link = tmp_path / "link"
    link.symlink_to(ONE_GPU)
    done = run(ONE_GPU, link, *more)
    assert done.exit_code == 2 and done.output.count("\n") == 1
    assert f"error: A and B are the same runs of {ONE_GPU}, which differ in nothing: give two" in done.output
    assert run(capture, capture).exit_code == 2
    assert fp32_to_bf16().exit_code == 0, "other runs of one recording are compared"


def test_a_folder_of_several_or_of_nothing_is_said_to_be_one(tmp_path, capture):
    done = run(frozen.FOLDER, ONE_GPU)
    assert done.exit_code == 2 and done.output.count("\n") == 1
    assert re.match(
        rf"error: {frozen.FOLDER} is a folder that holds 2 recordings: give one of them, such as {ATTENTION}",
        done.output,
    )
    done = run(capture, tmp_path)
    assert done.exit_code == 2 and f"{tmp_path} is a folder that holds 1 capture: give one of them" in done.output
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"error: {empty} is empty: give the folder of a recording" in run(empty, capture).output
    (empty / "notes.txt").touch()
    assert (
        f"error: {empty} holds no recording, no results of a sweep and no capture: give" in run(empty, capture).output
    )


def test_warm_up_steps_of_captures_can_be_left_out(tmp_path, capture):
    again = copy_of(capture)
    assert "3 profiled steps" in run(capture, again).stdout
    assert "2 profiled steps" in run(capture, again, "--skip", "1").stdout
    done = run(capture, again, "--skip", "3")
    assert done.exit_code == 2 and "has no step left: give a smaller --skip" in done.output


def test_a_capture_without_steps_is_one_step(tmp_path):
    made = export(num_steps=0)
    made.launch(100, start=200, end=300, name="gemm")
    made.graph(400, 900, made.call(350, 360, name="cudaGraphLaunch_v10000"))
    whole = made.sqlite(tmp_path / "whole.sqlite")
    done = run(whole, copy_of(whole))
    assert done.exit_code == 0
    assert "has no range of a step: all of it counts as one step" in done.stdout.replace("\n  ", " ")
    assert "under the profiler, a step" not in done.stdout and "from its first to its last event" in done.stdout
    assert "1 CUDA graph execution in whole.sqlite" in done.stdout.replace("\n  ", " ")


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_names_inside_captures_are_harmless(tmp_path, form):
    a = export([("forward", HOSTILE, 50)], hostile=HOSTILE).sqlite(tmp_path / "a.sqlite")
    b = export([("forward", "other", 90)], hostile=HOSTILE).sqlite(tmp_path / "b\x1b[2J<b>.sqlite")
    done = run(a, b, "--format", form, "--top", "0")
    assert done.exit_code == 0
    assert not set("\x1b\u202e") & set(done.output)
    if form == "md":
        assert "<script" not in done.output and "](javascript" not in done.output and "<b>" not in done.output
        assert not re.search(r"^# head", done.output, re.MULTILINE)
    if form == "json":
        json.loads(done.output)
    else:
        assert "evil" in done.output


@pytest.mark.parametrize("seed", range(4))
def test_any_two_captures_are_compared_exactly(tmp_path, seed, monkeypatch):
    """Several processes, threads and devices, overlaps, open ranges, and no step; little of their work is the same."""
    monkeypatch.setattr(common_work, "keep_common_work", lambda first, second: (first, second))
    files = [_random_capture(number).sqlite(tmp_path / f"{number}.sqlite") for number in (seed, seed + 4)]
    done = run(*files, "--format", "json")
    assert done.exit_code == 0, done.output
    waterfall = json.loads(done.stdout)["pairs"][0]["waterfall"]
    assert sum(cause["difference_ns"] for cause in waterfall["causes"]) == waterfall["difference_ns"]


@pytest.mark.long
def test_the_results_of_a_sweep_are_compared_as_they_are(h200_results):
    done = run(h200_results, copy_of(h200_results))
    assert done.exit_code == 0, done.output
    assert "A is followed" in done.stdout


@pytest.fixture
def h200_results(tmp_path):
    """A results folder with the one run that comes with the tests."""
    folder = tmp_path / "followed"
    shutil.copytree(Path(__file__).parents[1] / "data" / "h200_followed", folder)
    unpack_all(folder)
    return folder


def with_unprofiled_steps(run, change_ns):
    """The run, its unprofiled steps so much longer: nsys saw nothing of it."""
    timed = run.steps["collector"].astype(str) == "timer"
    return dataclasses.replace(run, steps=run.steps.assign(wall_ns=run.steps["wall_ns"] + change_ns * timed))


OF_ONE = dataclasses.replace(noise.SHIPPED, num_timed=(1, 1))
"""Bands that are narrow enough for one process to show that a step waits."""


@pytest.mark.parametrize(("change_ns", "is_said"), [(-30_000_000, True), (50_000_000, True), (0, False), (100, False)])
def test_parts_that_sum_to_another_difference_than_that_of_the_step_are_said_to(change_ns, is_said):
    one_run = select(FORWARD)
    made = judge.compare(one_run, with_unprofiled_steps(one_run, change_ns), OF_ONE)
    text, markdown = compare_formats.as_text(made, [], 0), compare_formats.as_markdown(made, [], 0)
    (pair,) = json.loads(compare_formats.as_json(made, [], 0))["pairs"]
    slowed = "under the profiler, which slows the host, by 0.000 ms"
    said = f"Unprofiled, a step differs by {change_ns / 1e6:+.3f} ms; {slowed}"
    assert (said in " ".join(text.split())) is (said in markdown.replace("\\", "")) is is_said
    assert (pair["parts_apart"] or "").startswith(said) is is_said
    assert max(map(len, text.splitlines())) <= 80


def test_what_to_know_of_the_parts_is_printed_before_them():
    sides = select(FP32), with_unprofiled_steps(select(BF16), -30_000_000)
    text = compare_formats.as_text(judge.compare(*sides, OF_ONE), [], 10).split("Why:")[1]
    assert text.index("Unprofiled, a step differs by") < text.index("backward, block/ffn")


def test_of_several_pairs_those_whose_parts_are_apart_are_named():
    runs = select("compile=off,mode=forward,size=small")
    made = judge.compare(runs, with_unprofiled_steps(runs, 50_000_000), OF_ONE)
    assert "in 2 of 2 pairs the unprofiled step and the profiled one change" in compare_formats.as_markdown(made, [], 0)
    assert compare_formats.as_text(made, [], 0).count("Unprofiled, a step differs by") == 2


def pairs_with_steps(*seconds, band=1.0):
    """Pairs whose steps of A take 100."""

    class Pair:
        def __init__(self, second):
            self.judgements = {"step": judge.Judgement(metric="step", first=100.0, second=second, band=band)}

    return [Pair(second) for second in seconds]


@pytest.mark.parametrize(
    ("seconds", "code"),
    [([101.5], 1), ([101.5, 100, 100], 3), ([103, 100, 100], 1), ([101.5] * 3 + [100], 1), ([100] * 5, 0)],
)
def test_of_many_pairs_a_few_that_chance_puts_beyond_a_limit_do_not_fail(seconds, code):
    outcomes = gate.check(gate.parse_condition("step > 1%"), pairs_with_steps(*seconds, band=1.0))
    codes = {outcome.code for outcome in outcomes}
    assert next((code for code in (1, 3) if code in codes), 0) == code
    assert any("so many may differ by chance" in outcome.text for outcome in outcomes) is (code == 3)


def test_values_are_listed_in_their_order():
    wanted = run(ONE_GPU, ATTENTION, "--a", "context_length=64")
    assert wanted.exit_code == 2
    contexts = re.search(r"it has ([\d, ]+)", wanted.output)[1].split(", ")
    assert len(contexts) > 2 and contexts == sorted(contexts, key=int)
