"""What the site says of the shipped recordings: statements that were wrong once, computed again."""

from pathlib import Path

import pytest

from analysis import write_site
from analysis.metrics import differences, timing
from analysis.pages import run_list
from analysis.pages.questions import fused_attention, host, optimizer_cost, second_recording
from analysis.recording import store

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[2] / "site" / "data"


@pytest.fixture(scope="module")
def main():
    return store.load(DATA / "h200-fp32")


@pytest.fixture(scope="module")
def again():
    return store.load(DATA / "again")


@pytest.fixture(scope="module")
def bands(main, again):
    return differences.bands_of(main, again)


@pytest.fixture(scope="module")
def ask(main, bands):
    """A question's answer with the noise bands, from the recordings with the given names."""

    def answer(question, *names):
        rec = write_site.of_finished_runs(write_site.together([store.load(DATA / name) for name in names]))
        rates = write_site.rates_of([store.load(DATA / "precision")])
        return write_site.ask(question, rec, main=main, calibration=rates, bands=bands)

    return answer


def test_runs_recorded_twice_are_not_called_different(main, again, ask):
    """The second recording in place of each variant: what a page would call faster is chance."""
    found = ask(second_recording, "again")
    assert found.claims["apart"].holds and len(found.claims["apart"].rows) > 30, "by the ranges of the steps"
    assert found.facts["noise"]["kernel"]["num_pairs"] == 450


def test_half_a_microsecond_of_44_ms_is_no_gain(ask):
    found = ask(host, "compile")
    added = found.claims["graphs_add"].rows.sort_values("ratio", ascending=False)
    assert not added["differs"].iloc[0] and not found.claims["graphs_add"].holds
    assert found.claims["graphs_add_nothing"].holds


def test_65_06_ms_are_no_slower_than_64_99_ms(ask):
    found = ask(optimizer_cost, "optimizer")
    slower = found.claims["loop_slower"].rows
    assert "2.7B" not in set(slower["size"])
    rows = found.tables["cost"].rows.set_index(["size", "optimizer"])
    assert rows.loc[("2.7B", "loop"), "kernel_ns"] > rows.loc[("2.7B", "own"), "kernel_ns"]


def test_the_fastest_backend_is_not_the_same_by_both_clocks(ask):
    found = ask(fused_attention, "attention_bf16", "attention_bf16_long", "attention_fp32")
    said = found.claims["fastest_timed"].values
    assert found.claims["fastest"].values["attention"] == said["attention"] == "cudnn"
    assert said["contexts"] == [128, 512, 1024] and said["num_apart"] == 0


def test_gpu_busy_has_one_definition(main):
    rows = run_list.answer(main.runs, main.steps, main.kernels, main.memops).tables["runs"].rows.set_index("run_id")
    busy = rows["busy_ratio"]["small-ctx1024-fp32-naive-forward"]
    assert busy == pytest.approx(0.984, abs=5e-4), "kernels alone would be 95.5%"
    gpu = timing.gpu_times(main.kernels, main.memops)
    assert (gpu["busy_ns"] <= gpu["projected_ns"]).all()
