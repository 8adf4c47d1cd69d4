"""When the GPU waits for the host, as shipped: five sizes, a Llama and a GPT-2."""

import pytest

from profiler_job.analysis.comparison import noise
from profiler_job.analysis.metrics import differences
from profiler_job.analysis.pages.questions import host
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context, write_site
from tests.shipped.recordings import DATA, locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def main():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def shipped(main):
    return page_context.ask(host.QUESTION, store.load(locate("compile")), main=main)


@pytest.fixture(scope="module")
def joined():
    """All recordings of the study."""
    folders = [
        folder for folder in write_site.recordings_in(DATA) if store.read_manifest(folder)["study"] == host.STUDY
    ]
    return combine.join_recordings([store.load(folder) for folder in folders])


@pytest.fixture(scope="module")
def every(main, joined):
    return page_context.ask(host.QUESTION, joined, main=main)


def test_cases_of_several_sweeps_are_those_that_were_measured(every):
    """Every size was shown with every context and mode of the others: 54 of 84 rows said "not measured"."""
    steps = every.tables["steps"].rows
    assert len(steps) == 30 and steps["timer_ns"].notna().all()
    assert "workload" not in steps, "the name of its size tells it"


def test_the_queue_is_drawn_where_the_gpu_waits_longest_and_shortest(every, shipped):
    drawn = [chart.title for chart in every.charts.values() if chart.key.startswith("queue")]
    assert len(drawn) == 2 and drawn[0].endswith("small · 128") and drawn[1].endswith("2.7B · 1024")
    assert len([key for key in shipped.charts if key.startswith("queue")]) == 2


def test_steps_of_small_and_large_models_are_drawn_as_parts_of_those_without_compile(every):
    """In ms the bar of the small one, 20 of 2,200, could not be seen."""
    rows = every.charts["times"].rows
    parts = rows.groupby(["size", "context_length", "compile"])["of_base"].sum()
    assert parts.xs("off", level="compile").tolist() == pytest.approx([1.0] * 8)
    assert 0.5 < parts["small", 128, "cudagraphs"] < 0.6 and 0.88 < parts["2.7B", 1024, "default"] < 0.89


def test_where_the_gpu_limits_a_step_compiling_saves_work_and_no_idling(every):
    saved = every.tables["saved"].rows.set_index(["size", "context_length", "compile"])
    assert (saved["differs"] & (saved["saved_ns"] > 0)).all()
    largest, waiting = saved.loc[("2.7B", 1024, "default")], saved.loc[("medium", 128, "default")].squeeze()
    assert largest["saved_busy_ns"] > 0.99 * largest["saved_ns"]
    assert waiting["saved_idle_ns"] > 0.7 * waiting["saved_ns"]
    assert every.claims["left"].holds and every.claims["saved"].values["low"]["host_part"] < 0, "the GPU idles longer"


def test_shipped_reasons_are_those_of_most_of_the_idle_time(shipped):
    helped, left = shipped.claims["helped"], shipped.claims["left"]
    assert helped.values["base_launch_part"] > 0.5
    assert left.holds and (left.rows["part"] > 0.5).all()


def test_graphs_are_advised_first_only_if_they_add_to_compile(every):
    """They were, while the page said that they add nothing measurable in 8 of 10 cases."""
    claim = every.claims["graphs_add_nothing"]
    assert claim.holds and (claim.values["num_found"], len(claim.rows)) == (2, 10)
    assert not every.claims["graphs_add"].holds and not every.facts["advise_graphs"]


def test_the_answer_is_of_one_case_and_its_ratio_has_an_interval(main, joined):
    bands = differences.Bands(kernel=noise.SHIPPED.kernel, wall=noise.SHIPPED.wall)
    answer = page_context.ask(host.QUESTION, joined, main=main, bands=bands)
    said = answer.claims["helped"].values
    assert (said["size"], said["context_length"]) == ("small", 128) and answer.facts["precisions"] == ["FP32"]
    assert 1 < said["least"] < said["speedup"] < said["most"] and said["idle_share"] < said["base_idle_share"]
