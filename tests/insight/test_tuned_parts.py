"""The page of a tuned script begins with the parts of its step, from the traces next to the result."""

import pytest

from profiler_job.analysis.insight.tuned_ladder import interpret_tuning
from profiler_job.analysis.insight.tuned_parts import AS_IT_IS, TUNED, read_tuned_steps
from profiler_job.analysis.pages import tuned_script
from profiler_job.analysis.show.tuned import PAGE, show_tuned
from profiler_job.analysis.site.page_context import make_site
from profiler_job.analysis.site.tuned_pages import write_tuned
from profiler_job.jobs.contract.step_limit import COMPUTE
from profiler_job.jobs.contract.tuning import Accumulation, name_trace, write_tuning
from tests import synthetic
from tests.capture.traces import make_followed, make_training
from tests.insight.test_tuned_limits import make_kernels
from tests.page_words import read_page
from tests.show.tunings import make_step, make_tuning


@pytest.fixture
def tuning():
    """200 ms, of which the GPU waits for 50; 25 ms with all changes."""
    tuning = make_tuning()
    tuning.base.kernels = make_kernels(120e6, 60e6, 150e6)
    tuning.ladder[-1].kernels = make_kernels(20e6, 10e6, 20e6)
    return tuning


@pytest.fixture
def folder(tmp_path, tuning):
    folder = tmp_path / "data" / "tuned" / "train-tune"
    write_tuning(folder, tuning)
    make_followed(1).write(folder / name_trace(()))
    make_followed(1).write(folder / name_trace(tuning.winner.changes))
    return folder


def test_the_parts_are_of_modules_and_add_up_to_the_step_without_a_trace(folder, tuning):
    first, last = read_tuned_steps(folder, interpret_tuning(tuning))
    assert (first.title, last.title) == (AS_IT_IS, TUNED)
    assert first.parts["time_ns"].sum() == pytest.approx(200e6) and last.parts["time_ns"].sum() == pytest.approx(25e6)
    of_modules = first.parts.set_index(["phase", "module"])["kind"]
    assert of_modules["forward", "head"] == "matmul" and of_modules["backward", "gradient sums"] == "elementwise"
    matmuls = first.parts.loc[first.parts["kind"] == "matmul", "time_ns"].sum()
    assert matmuls == pytest.approx(first.limit.parts[COMPUTE]) == pytest.approx(100e6)


def test_a_trace_that_cannot_be_read_or_shows_no_kernels_leaves_its_step_out(folder, tuning):
    ladder = interpret_tuning(tuning)
    (folder / name_trace(())).write_bytes(b"{}")
    trace = make_training(0)
    trace.annotate("loop:step", 0, 1)
    trace.write(folder / name_trace(tuning.winner.changes))
    assert read_tuned_steps(folder, ladder) == []
    assert show_tuned(folder, "text", print, print, html=folder / PAGE) == 0
    assert 'class="ici"' not in (folder / PAGE).read_text()


def test_of_another_winner_no_step_is_shown(folder, tuning):
    del tuning.ladder[-1]
    assert [step.title for step in read_tuned_steps(folder, interpret_tuning(tuning))] == [AS_IT_IS]


def test_both_pages_begin_with_the_step_as_it_is(folder, tmp_path, tuning):
    assert show_tuned(folder, "text", print, print, html=folder / PAGE) == 0
    page = (folder / PAGE).read_text()
    assert page.count('class="ici"') == 2
    assert page.index(AS_IT_IS) < page.index("What limits a step") < page.index("What to write") < page.index(TUNED)
    write_tuned(make_site(synthetic.recording(("small",), (128,)), tmp_path / "docs"), tmp_path / "data", None)
    of_site = read_page(tmp_path / "docs" / "report" / "tuned" / "train-tune.md")
    assert "gradient sums" in of_site and of_site.index("do this next") < of_site.index("What to write")
    assert of_site.index("BF16 autocast") < of_site.index("What to write")


def test_the_card_of_larger_micro_batches_has_their_factor(folder, tuning):
    """It said twice as large of a winner whose were 40 times."""
    change = "fewer_accumulations"
    tuning.ladder = [make_step(change, (change,), 40, 5.0)]
    for factor in (40, 2):
        tuning.accumulation = Accumulation(rows=12, num_passes=40, factor=factor)
        ladder = interpret_tuning(tuning)
        (card,) = tuned_script.answer(ladder, read_tuned_steps(folder, ladder)).facts["screen"]["cards"]
        assert card["lines"] == [f"batch_size *= {factor}; accumulation_steps //= {factor}"]
