"""The time of a kernel of several modules is divided among them."""

import pandas as pd
import pytest

from profiler_job.analysis.capture.fused_kernels import divide, divide_fused, parse_fused, shorten_fused
from profiler_job.analysis.metrics.kernel_time import module_of, sum_by_kernel, sum_by_module, top_of_modules


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (100, [60, 40], [60, 40]),
        (10, [1, 1, 1], [4, 3, 3]),
        (7, [50, 30, 20], [4, 2, 1]),  # 3.5, 2.1 and 1.4
        (0, [1, 2], [0, 0]),
        (9, [0, 0], [5, 4]),
        (10.5, [1, 1], [5.5, 5]),
        (2**60 + 1, [1] * 7, None),
    ],
)
def test_a_time_is_divided_into_whole_nanoseconds_that_sum_to_it(total, weights, parts):
    divided = divide(total, weights)
    assert sum(divided) == total and all(part == int(part) for part in divided[1:])
    assert divided == parts or (parts is None and max(divided) - min(divided) == 1)


FUSED = "GPT/h.*/(fused: attn.c_attn 35% + ln_1 25%)"


def make_rows(*rows):
    return pd.DataFrame(rows, columns=["module", "time_ns"])


def divide_rows(*rows):
    divided = divide_fused(make_rows(*rows), ["time_ns"])
    return divided.groupby("module")["time_ns"].sum().to_dict()


def test_modules_have_their_parts_and_the_one_around_them_the_rest():
    parts = divide_rows((FUSED, 1001), ("GPT/h.*/attn", 7))
    assert parts == {"GPT/h.*/attn": 7, "GPT/h.*/attn/c_attn": 350, "GPT/h.*/ln_1": 250, "GPT/h.*": 401}


def test_a_fused_kernel_without_percents_has_equal_parts():
    assert divide_rows(("GPT/(fused: head + norm)", 3)) == {"GPT/head": 2, "GPT/norm": 1}


@pytest.mark.parametrize(
    ("fused", "others", "path"),
    [
        ("GPT/(fused: transformer.h.*.ln_1 100%)", ["GPT/transformer.h.*/mlp"], "GPT/transformer.h.*/ln_1"),
        ("GPT/(fused: transformer.h.*.ln_1 100%)", ["GPT/transformer/h.*/mlp"], "GPT/transformer/h.*/ln_1"),
        ("GPT/(fused: h.*.mlp[0].norm 100%)", [], "GPT/h.*/mlp/0/norm"),
        ("GPT/(fused: h.*[1].norm 100%)", [], "GPT/h.*/1/norm"),
        ("(fused: block.ffn 100%)", [], "block/ffn"),
        ("GPT/(fused: mlp.x 100%)", ["GPT/mlp.x"], "GPT/mlp.x"),
    ],
)
def test_a_part_has_the_path_that_the_module_has_elsewhere(fused, others, path):
    assert divide_rows((fused, 5), *((other, 0) for other in others))[path] == 5


def test_rows_without_fused_kernels_stay_as_they_are():
    rows = make_rows(("GPT/norm", 5), ("", 7))
    assert divide_fused(rows, ["time_ns"]).drop(columns="fused_into").equals(rows)


@pytest.mark.parametrize("name", ["GPT/(fused: )", "(fused: a 999% + b 2%)", "GPT/(fused: + + )", "(fused: 5%)"])
def test_an_odd_name_loses_no_time(name):
    assert sum(divide_rows((name, 1000)).values()) == 1000


@pytest.mark.parametrize(
    ("module", "short"),
    [
        (FUSED, "GPT/h.*/(fused: attn.c_attn + ln_1)"),
        ("GPT/(fused: head 96% + norm 4%)", "GPT/(fused: head)"),
        ("GPT/(fused: a 9% + b 9%)", "GPT/(fused: a + b)"),
        ("GPT/(fused: head + norm)", "GPT/(fused: head + norm)"),
        (f"(fused: {' + '.join(f'm{number} 1%' for number in range(100))})", "(fused: m0 + m1 + m2 + m3 + 96 more)"),
        ("GPT/norm", "GPT/norm"),
    ],
)
def test_a_short_name_has_the_largest_modules(module, short):
    assert shorten_fused(module) == short


def test_modules_of_a_list_have_the_sum_of_their_percents():
    assert module_of("GPT/(fused: h.0.norm 50% + head 30% + h.1.norm 20%)") == "GPT/(fused: h.*.norm 70% + head 30%)"
    assert parse_fused("GPT/(fused: h.*.norm 70% + head 30%)") == ("GPT", {"h.*.norm": 70, "head": 30})


def make_totals(*rows):
    kernels = pd.DataFrame(rows, columns=["phase", "module", "time_ns"])
    return kernels.assign(run_id="run", family="triton", kernel_name="k", calls=1.0)


def test_the_tree_has_a_line_for_a_fused_kernel_and_each_module_its_part():
    tree = sum_by_module(make_totals(("forward", FUSED, 1000.0), ("backward", "GPT/h.*/attn/c_attn", 50.0)))
    assert dict(zip(tree["module"], tree["total_ns"])) == {
        "GPT": 1050,
        "GPT/h.*": 1050,
        "GPT/h.*/attn": 400,
        "GPT/h.*/attn/c_attn": 400,
        "GPT/h.*/ln_1": 250,
        "GPT/h.*/(fused: attn.c_attn + ln_1)": 1000,
    }
    assert tree.loc[tree["is_fused"], ["module", "forward_ns", "backward_ns"]].to_numpy().tolist() == [
        ["GPT/h.*/(fused: attn.c_attn + ln_1)", 1000, 0]
    ]
    assert set(tree["module"][tree["is_leaf"]]) == {"GPT/h.*/attn/c_attn", "GPT/h.*/ln_1"}


def test_the_top_kernel_of_a_module_may_be_a_fused_one():
    top = top_of_modules(make_totals(("forward", FUSED, 1000.0), ("forward", "GPT/h.*/ln_1", 50.0)))
    assert top.set_index("module")["time_ns"].to_dict() == {
        "GPT/h.*/attn/c_attn": 350,
        "GPT/h.*": 400,
        "GPT/h.*/ln_1": 250,
    }


def test_a_kernel_is_launched_by_a_fused_kernel_of_a_short_name():
    names = ["GPT/(fused: h.*.norm 60% + head 40%)", "GPT/(fused: h.*.norm 61% + head 39%)"]
    totals = make_totals(*(("forward", name, 10.0) for name in names))
    assert sum_by_kernel(totals, ["run_id"])["modules"].tolist() == ["GPT/(fused: h.*.norm + head)"]
