"""The parts of a difference sum to it exactly, and the first of them is the true cause."""

import dataclasses
import re
from fractions import Fraction

import pandas as pd
import pytest

from profiler_job.analysis.comparison import judge, noise, totals, waterfall
from tests.frozen import ATTENTION, ONE_GPU

from .recorded_sides import measure, pairs_along


def sides_of(kernels, num_steps=1, copies=(), wall_ns=1000):
    """Totals of a run whose steps each launch `kernels`: (phase, module, family, name, ns), one after another, 10 ns
    apart, launched 5 ns before they start."""
    rows, moved, steps = [], [], []
    for step in range(num_steps):
        at = step * 10 * wall_ns
        steps.append({"rank": 0, "collector": "nsys", "step": step, "phase": "step", "wall_ns": wall_ns})
        for phase, module, family, name, ns in kernels:
            times = {"launch_ns": at + 5, "launch_end_ns": at + 6, "start_ns": at + 10, "end_ns": at + 10 + ns}
            place = {"rank": 0, "device": 0, "step": step, "phase": phase, "module": module}
            rows.append(place | times | {"family": family, "kernel_name": name})
            at += 10 + ns
        for operation, ns in copies:
            times = {"launch_ns": at + 5, "launch_end_ns": at + 6, "start_ns": at + 10, "end_ns": at + 10 + ns}
            moved.append({"rank": 0, "device": 0, "step": step, "phase": "forward", "operation": operation} | times)
            at += 10 + ns
    columns = ["rank", "device", "step", "phase", "operation", "launch_ns", "launch_end_ns", "start_ns", "end_ns"]
    frames = pd.DataFrame(rows), pd.DataFrame(moved, columns=columns), pd.DataFrame(steps)
    integers = {name: "int64" for name in columns if name not in ("phase", "operation")}
    kernels, memops, ranges = (frame.assign(run_id="run") for frame in frames)
    (summed,) = totals.sum_totals_by_case(kernels, memops.astype(integers), ranges, [["run"]])
    return summed


def explain(first, second):
    return waterfall.explain(first, second, noise.SHIPPED)


def texts(made):
    return [cause.text for cause in made.causes if cause.kind not in ("idle", "overlap")]


GEMM = ("forward", "ffn", "gemm", "sgemm", 100)


def test_a_kernel_that_got_slower_is_named_with_its_share():
    made = explain(sides_of([GEMM, GEMM]), sides_of([GEMM, (*GEMM[:4], 150)]))
    assert texts(made) == ["forward, ffn: 2 kernels (gemm), 25.0% slower"]
    assert made.groups[[*waterfall.PARTS]].to_numpy().tolist() == [[0, 0, 0, 50]]


@pytest.mark.parametrize(("ns", "is_real"), [(1_000_100, False), (1_010_000, False), (1_100_000, True)])
def test_kernels_that_are_launched_as_often_count_beyond_several_noise_bands(ns, is_real):
    """There are many such parts, so that chance puts some beyond one band."""
    first, second = (sides_of([(*GEMM[:4], time_ns)], wall_ns=2_000_000) for time_ns in (1_000_000, ns))
    (cause,) = [cause for cause in explain(first, second).causes if cause.kind == "per_call"]
    assert cause.is_real == is_real and 5000 < cause.band_ns / waterfall.MANY < 10_000


def test_kernels_that_are_launched_otherwise_count_beyond_one_noise_band():
    first, second = (
        sides_of([(*GEMM[:3], name, ns)], wall_ns=2_000_000)
        for name, ns in (("sgemm", 1_000_000), ("hgemm", 1_010_000))
    )
    (cause,) = [cause for cause in explain(first, second).causes if cause.kind == "replaced"]
    assert cause.is_real and 5000 < cause.band_ns < 10_000


def test_what_is_tiny_against_the_largest_part_does_not_come_first():
    """A kernel of another name exceeds noise, next to a wait for launches that is a hundred times as long."""
    small, wait = ("loss", "", "reduce", "sum", 10_000), 4_000_000
    for gain, is_first in ((1000, False), (40_000, True)):
        other = ("loss", "", "reduce", "mean", 10_000 + gain)
        made = explain(sides_of([small], wall_ns=100_000), sides_of([other], wall_ns=100_000 + wait))
        assert (made.causes[0].kind == "replaced") is is_first
        assert [cause.kind for cause in made.first_causes] == (["replaced", "idle"] if is_first else ["idle"])


@pytest.mark.parametrize("tokens", [(128, 256), (384, 7), (1000, 1000), (1, 999_983)])
def test_per_token_all_stays_exact_and_kernels_are_counted_by_step(tokens):
    first = sides_of([GEMM, ("optimizer", "", "elementwise", "add", 33)], num_steps=3, copies=[("memset", 7)])
    second = sides_of([(*GEMM[:4], 217), ("optimizer", "", "elementwise", "add", 33)], num_steps=2, wall_ns=1111)
    made = waterfall.explain(first, second, noise.SHIPPED, tokens=tokens)
    assert sum(cause.ns for cause in made.causes) == made.difference_ns == made.second_ns - made.first_ns
    num_tokens = made.num * waterfall.TOKENS
    walls = [Fraction(ns, num_tokens) for ns in (made.first_ns, made.second_ns)]
    assert walls == [Fraction(1000, tokens[0]), Fraction(1111, tokens[1])]
    assert made.num_steps == 6 and list(made.groups["first_calls"]) == list(made.groups["second_calls"]) == [6, 6]
    assert {cause.kind for cause in made.causes if cause.phase == "optimizer"} <= {"per_call", "idle"}


def test_per_token_of_as_many_tokens_says_what_steps_say():
    sides = sides_of([GEMM, GEMM], num_steps=2), sides_of([GEMM, (*GEMM[:4], 150)], num_steps=2)
    of_steps, of_tokens = explain(*sides), waterfall.explain(*sides, noise.SHIPPED, tokens=(1000, 1000))
    assert [(cause.text, cause.is_real) for cause in of_tokens.causes] == [
        (cause.text, cause.is_real) for cause in of_steps.causes
    ]
    for steps, tokens in zip(of_steps.causes, of_tokens.causes, strict=True):
        assert tokens.ns / of_tokens.num == steps.ns / of_steps.num
        assert tokens.band_ns / of_tokens.num == pytest.approx(steps.band_ns / of_steps.num)


def test_blocks_are_one_module():
    first = sides_of([("forward", f"block_{i}/ffn", "gemm", "sgemm", 100) for i in range(3)])
    second = sides_of([("forward", f"block_{i}/ffn", "gemm", "hgemm", 40) for i in range(3)])
    assert texts(explain(first, second)) == ["forward, block/ffn: 3 kernels (gemm) became others"]


def test_calls_that_pytorch_numbers_are_one_module():
    first, second = (
        [("forward", f"aten::mm, op_id = {i + number}", "gemm", "sgemm", ns) for i in range(2)]
        for number, ns in ((7, 100), (90, 150))
    )
    assert texts(explain(sides_of(first), sides_of(second))) == ["forward, aten::mm: 2 kernels (gemm), 50.0% slower"]


def test_what_takes_the_place_of_several_modules_is_of_the_module_around_them():
    first = [("forward", f"attention/{name}", "elementwise", name, 100) for name in ("scores", "softmax", "output")]
    second = [("forward", "attention/fused", "attention", "flash", 90)]
    made = explain(sides_of([*first, GEMM]), sides_of([*second, GEMM]))
    assert texts(made) == ["forward, attention: 3 kernels (elementwise) became 1 (attention)"]
    assert made.groups[list(waterfall.PARTS)].sum().tolist() == [-300, 90, 0, 0]


def test_modules_are_held_against_each_other_where_both_sides_know_them():
    loss = ("backward", "(loss)", "elementwise", "mul", 5)
    followed = [GEMM, ("backward", "block/ffn", "gemm", "k", 100), loss]
    library = [GEMM, ("backward", "cub::Sort", "gemm", "k", 100), ("backward", "", *loss[2:])]
    assert not texts(explain(sides_of(library), sides_of(followed)))
    assert texts(explain(sides_of(followed), sides_of([*followed, followed[1]]))) == [
        "backward, block/ffn: 1 kernel (gemm) appeared"
    ]


def test_kernels_that_only_appear_or_vanish_stay_in_their_module():
    made = explain(
        sides_of([GEMM, ("backward", "", "copy", "cast", 30)]), sides_of([GEMM, ("loss", "x", "fill", "set", 7)])
    )
    assert set(texts(made)) == {"backward: 1 kernel (copy) vanished", "loss, x: 1 kernel (fill) appeared"}


def test_a_name_that_is_called_more_often_is_no_slower_kernel():
    made = explain(sides_of([GEMM]), sides_of([GEMM, GEMM, GEMM]))
    assert texts(made) == ["forward, ffn: 2 kernels (gemm) appeared"]
    assert made.groups[list(waterfall.PARTS)].to_numpy().tolist() == [[0, 0, 200, 0]]


def test_copies_and_idle_time_are_parts():
    made = explain(sides_of([GEMM]), sides_of([GEMM], copies=[("memset", 20)], wall_ns=1500))
    said = {cause.text: cause.ns for cause in made.causes}
    assert said["forward: memset, 0 became 1"] == 20
    assert sum(said.values()) == made.difference_ns == 500


def test_other_numbers_of_steps_stay_exact():
    first, second = sides_of([GEMM], num_steps=2), sides_of([(*GEMM[:4], 101)], num_steps=3, wall_ns=1001)
    made = explain(first, second)
    assert (made.num, made.difference_ns) == (6, 6)
    assert Fraction(made.first_ns, made.num) == 1000 and Fraction(made.second_ns, made.num) == 1001
    assert sum(cause.ns for cause in made.causes) == 6
    assert texts(made) == ["forward, ffn: 1 kernel (gemm), 1.0% slower"]


def test_the_rest_sums_to_what_it_stands_for():
    made = explain(sides_of([GEMM]), sides_of([GEMM], copies=[("memset", 20), ("memcpy", 30), ("fill", 5)]))
    shortened = made.shorten(1)
    rest = {cause.text: cause.ns for cause in shortened if cause.kind == "rest"}
    assert shortened[0] == made.causes[0] and len(shortened) == 1 + len(rest)
    assert rest == {"the rest of copies and fills, 2 parts": 25, "the rest of idle, 2 parts": -55}
    assert sum(cause.ns for cause in shortened) == made.difference_ns == sum(made.sums.values())
    assert made.shorten(0) == made.causes


@pytest.mark.parametrize("num", [1, 2, 5, 10])
def test_no_part_of_a_rest_is_larger_than_what_is_shown(num):
    run = "small-ctx512-fp32-naive-train_step"
    made = explain(measure(run).totals, measure(run.replace("fp32", "bf16")).totals)
    shown = [cause for cause in made.shorten(num) if cause.kind != "rest"]
    hidden = [cause for cause in made.causes if cause not in shown]
    assert len(shown) == num and shown[0] == made.causes[0]
    assert num == 1 or max(abs(cause.ns) for cause in hidden) <= min(abs(cause.ns) for cause in shown[1:])


def test_work_after_the_range_of_its_step_is_negative_idle_time():
    made = explain(sides_of([GEMM], wall_ns=50), sides_of([GEMM], wall_ns=90))
    assert sides_of([GEMM], wall_ns=50).idle["ends"] == -50
    assert [cause.ns for cause in made.causes] == [40]


def is_exact(made):
    kernels = [cause.ns for cause in made.causes if cause.kind in ("replaced", "per_call")]
    parts = made.groups[list(waterfall.PARTS)].sum().sum()
    all_are_integers = all(isinstance(cause.ns, int) for cause in made.causes)
    return sum(cause.ns for cause in made.causes) == made.difference_ns and sum(kernels) == parts and all_are_integers


WAITS_FOR_OTHERS = r"^idle, .*: the GPU waits for a launch; [\d,]+ launches became [\d,]+$"


def names_the_axis(axis, pair, made):
    """Whether the first part of a difference is what the axis changes. If the CPU is slower than the GPU, the first
    part may be the wait for launches, since the axis makes more or fewer of them; then it is the first part of the
    GPU's work."""
    first = made.causes[0]
    if not all("compile" in run for run in pair) and re.search(WAITS_FOR_OTHERS, first.text):
        first = next(cause for cause in made.causes if not cause.text.startswith("idle"))
    match axis:
        case "precision":
            return first.kind == "replaced" and "gemm" in first.families
        case "attention":
            return "attention" in first.module or "attention" in first.families
        case "optimizer":
            return first.phase == "optimizer"
    if all("compile" in run for run in pair):  # the same kernels by the launches of a few CUDA graphs
        was, now = re.search(r"^idle, .*; (\d+) launches became (\d+)$", first.text).groups()
        return first.is_regrouped and int(now) < int(was) / 10
    return first.kind == "replaced" and bool({"triton", "gemm"} & set(first.families))


def check_axis(axis, pairs):
    """Count the pairs. The axis alone explains the first part, and also as `compare` orders the parts, for which the
    step counts. pairs: folder of the recording, run_id of A and of B."""
    num = 0
    for folder, a, b in pairs:
        first, second = measure(a, folder), measure(b, folder)
        step, *_ = judge.judge(first, second, "timer", noise.SHIPPED, False)
        for off_ns in (0.0, step.difference if step.is_real else 0.0):
            made = waterfall.explain(first.totals, second.totals, noise.SHIPPED, step_off_ns=off_ns)
            assert is_exact(made), (a, b)
            assert names_the_axis(axis, (a, b), made), (a, b, made.causes[0].text)
        num += 1
    return num


def test_from_compiled_kernels_to_a_cuda_graph_of_them_the_launches_are_named_and_not_the_copy_of_its_input():
    run = "small-ctx128-fp32-naive-forward-compile"
    made = explain(*(measure(f"{run}_{value}").totals for value in ("default", "cudagraphs")))
    assert made.causes[0].text == "idle, forward: the GPU waits for a launch; 254 launches became 2"
    assert [cause.text for cause in made.causes if "copy" in cause.text] == ["forward: 1 kernel (copy) appeared"]
    assert is_exact(made)


@pytest.mark.parametrize(
    ("step_off_ns", "first"), [(0.0, "attention"), (50.0, "attention"), (-50.0, "ffn"), (-20_000.0, "attention")]
)
def test_what_goes_the_way_of_the_step_comes_first_and_tiny_parts_explain_nothing(step_off_ns, first):
    before = [("forward", "ffn", "gemm", "sgemm", 10_000), ("forward", "attention", "gemm", "k", 10_000)]
    after = [("forward", "ffn", "gemm", "hgemm", 9_940), ("forward", "attention", "gemm", "l", 10_400)]
    bands = dataclasses.replace(noise.SHIPPED, kernel=dataclasses.replace(noise.SHIPPED.kernel, factor=1e-9))
    made = waterfall.explain(sides_of(before), sides_of(after), bands, step_off_ns=step_off_ns)
    named = [cause.module for cause in made.causes if cause.kind == "replaced"]
    assert named[0] == first and set(named) == {"ffn", "attention"} and is_exact(made)


def test_kernels_that_only_one_side_launches_are_named_with_their_calls_and_time():
    add = ("backward", "", "elementwise", "add", 7)
    made = explain(
        sides_of([GEMM, GEMM, add], num_steps=2), sides_of([(*GEMM[:3], "hgemm", 40), ("loss", *add[1:])], num_steps=2)
    )
    columns = ["kernel_name", "first_calls", "second_calls", "first_ns", "second_ns"]
    assert made.names[columns].to_numpy().tolist() == [["sgemm", 4, 0, 400, 0], ["hgemm", 0, 2, 0, 80]], "add moved"


@pytest.mark.parametrize(
    ("axis", "folder", "num_pairs"),
    [("precision", ONE_GPU, 3), ("optimizer", ONE_GPU, 6), ("compile", ONE_GPU, 4), ("attention", ATTENTION, 12)],
)
def test_what_an_axis_changes_is_named_and_sums_exactly(axis, folder, num_pairs):
    assert check_axis(axis, pairs_along(axis, folder)) == num_pairs


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_the_parts_of_a_token_sum_to_the_nanosecond(mode):
    short, long = (measure(f"small-ctx{context}-fp32-naive-{mode}").totals for context in (128, 512))
    made = waterfall.explain(short, long, noise.SHIPPED, tokens=(4 * 128, 4 * 512))
    assert sum(cause.ns for cause in made.causes) == made.difference_ns
    walls = [Fraction(of.wall_ns, of.num * tokens) for of, tokens in ((short, 4 * 128), (long, 4 * 512))]
    assert [Fraction(ns, made.num * 1000) for ns in (made.first_ns, made.second_ns)] == walls


def test_kernels_that_a_compiler_fused_are_named_apart_from_matmuls():
    first = [GEMM, *(("forward", "ffn", "elementwise", name, 50) for name in ("add", "mul", "gelu"))]
    second = [(*GEMM[:3], "hgemm", 90), ("forward", "ffn", "triton", "triton_fused", 40)]
    made = explain(sides_of(first), sides_of(second))
    assert set(texts(made)) == {
        "forward, ffn: 3 kernels (elementwise) became 1 fused (triton)",
        "forward, ffn: 1 kernel (gemm) became others",
    }
    assert is_exact(made)


@pytest.mark.parametrize(
    ("num_layers", "said"),
    [
        (2, "forward, attention: 3 kernels a layer (elementwise) became 1 (attention)"),
        (4, "forward, attention: 6 kernels (elementwise) became 2 (attention)"),
        (0, "forward, attention: 6 kernels (elementwise) became 2 (attention)"),
    ],
)
def test_kernels_are_counted_by_layer_where_these_are_known(num_layers, said):
    first = [("forward", "attention", "elementwise", name, 100) for name in ("scores", "softmax", "output")]
    second = [("forward", "attention", "attention", "flash", 90)]
    made = waterfall.explain(sides_of(2 * first), sides_of(2 * second), noise.SHIPPED, num_layers=num_layers)
    assert texts(made) == [said]


def test_a_pair_of_recordings_knows_its_layers():
    assert measure("small-ctx128-fp32-naive-forward").num_layers == 12
