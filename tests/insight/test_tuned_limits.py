"""What limits the steps of a tuned script: the kinds of kernels as parts of the unprofiled step."""

import pandas as pd
import pytest

from profiler_job.analysis.insight.tuned_ladder import interpret_tuning
from profiler_job.analysis.insight.tuned_limits import (
    SCOPES,
    chart_tuned_limits,
    describe_tuned_limits,
    find_tuned_limits,
)
from profiler_job.analysis.pages import tuned_script
from profiler_job.analysis.show.tuned_page import render_tuned
from profiler_job.jobs.contract.step_limit import COMPUTE, CPU, MEMORY
from tests.show.tunings import make_tuning


def make_kernels(matmul, other, busy):
    kinds = {"attention": 0.0, "convolution": 0.0, "matmul": matmul, "copy": 0.0, "other": other}
    return kinds | {"matmul_fp32": matmul, "unaligned": 0.0, "busy": busy}


@pytest.fixture
def ladder():
    """200 ms, of which the GPU waits for 50; 25 ms with all changes, which tracing lengthens to 30."""
    tuning = make_tuning()
    tuning.base.kernels = make_kernels(120e6, 60e6, 150e6)
    tuning.ladder[-1].kernels = make_kernels(20e6, 10e6, 30e6)
    return interpret_tuning(tuning)


def test_the_parts_of_each_profiled_step_add_up_to_its_unprofiled_time(ladder):
    first, last = find_tuned_limits(ladder).values()
    assert first.parts == pytest.approx({COMPUTE: 100e6, MEMORY: 50e6, CPU: 50e6})
    assert last.parts == pytest.approx({COMPUTE: 25e6 * 2 / 3, MEMORY: 25e6 / 3, CPU: 0})


def test_both_pages_draw_the_steps_and_name_the_limit_of_the_first_and_the_last(ladder):
    words = describe_tuned_limits(find_tuned_limits(ladder))
    assert words == (
        "As it is: matmuls and attention take 50% of this step. Tuned: matmuls and attention take 67% of this step."
    )
    page = render_tuned(ladder)
    assert words in page and page.count("<svg") == 4 and page.index(words) < page.index("What to write")
    answer = tuned_script.answer(ladder)
    assert answer.facts["limits"] == words
    chart = answer.charts["limits"]
    assert chart.rows.groupby("label", sort=False)["time_ns"].sum().tolist() == pytest.approx([200e6, 25e6])
    assert set(chart.rows["scope"]) == {*SCOPES.values()}


def test_without_kernels_nothing_is_drawn():
    ladder = interpret_tuning(make_tuning())
    limits = find_tuned_limits(ladder)
    assert (
        not limits
        and describe_tuned_limits(limits) == ""
        and chart_tuned_limits(limits).equals(pd.DataFrame(columns=["label", "scope", "time_ns"]))
    )
    assert render_tuned(ladder).count("<svg") == 2
    assert [*tuned_script.answer(ladder).charts] == ["ladder"]


def test_a_script_that_nothing_made_faster_has_one_bar():
    tuning = make_tuning(ladder=[], patch=None)
    tuning.base.kernels = make_kernels(20e6, 10e6, 30e6)
    limits = find_tuned_limits(interpret_tuning(tuning))
    assert [limit.names for limit in limits.values()] == [(CPU,)]
    assert describe_tuned_limits(limits) == "As it is: the GPU waits for the CPU 85% of this step."
