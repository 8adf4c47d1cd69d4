"""The page of a tuned script in its site."""

import json

import pandas as pd
import pytest

from profiler_job.analysis.insight.tuned_ladder import interpret_tuning
from profiler_job.analysis.pages import tuned_script
from profiler_job.analysis.pages.telemetry import Price
from profiler_job.analysis.site import write_site
from profiler_job.analysis.site.page_context import make_site
from profiler_job.analysis.site.tuned_pages import write_tuned
from profiler_job.jobs.contract.tuning import ExpectedRatio, Outcome, Tried, TuningError, write_tuning
from tests import synthetic
from tests.page_words import read_page
from tests.show.tunings import make_tuning


@pytest.fixture
def site(tmp_path):
    return make_site(synthetic.recording(("small",), (128,)), tmp_path)


def test_the_page_says_what_the_terminal_says(site, tmp_path):
    ladder = interpret_tuning(make_tuning())
    site.write("report/tuned/train.md", "tuned_script.md", tuned_script.answer(ladder))
    page = read_page(tmp_path / "report" / "tuned" / "train.md")
    for words in ("8.00 times as fast", "Losses differ by", "model.compile()", "not kept: the script would do"):
        assert words in page.replace("&#40;", "(").replace("&#41;", ")"), words
    assert page.index("What to write") < page.index("## The ladder") < page.index("## In numbers")
    assert "\n     import torch\n    +    torch.set_float32_matmul_precision" in page
    rows = pd.read_csv(next((tmp_path / "report").rglob("steps.csv")))
    assert rows["times_as_fast"].tolist() == pytest.approx([1, 2, 4, 8])


def test_what_was_expected_stands_next_to_what_was_measured(site, tmp_path):
    tried = make_tuning().tried
    tried[0].expected = ExpectedRatio(times_as_fast=1.9, low=1.8, high=2.1)
    site.write(
        "report/tuned/train.md", "tuned_script.md", tuned_script.answer(interpret_tuning(make_tuning(tried=tried)))
    )
    rows = pd.read_csv(next((tmp_path / "report").rglob("steps.csv")))
    assert rows["expected_times_as_fast"].dropna().tolist() == [1.9]
    assert rows["expected_low_times_as_fast"].dropna().tolist() == [1.8]
    tried[0].expected.is_of_kernels = True
    assert interpret_tuning(make_tuning(tried=tried)).steps["expected_times_as_fast"].isna().all()


def test_what_other_code_could_give_is_on_the_page(site, tmp_path):
    tuning = make_tuning()
    expected = ExpectedRatio(times_as_fast=1.08, low=1.05, high=1.12)
    tuning.tried.append(Tried(change="fused_loss", outcome=Outcome.NOT_POSSIBLE, expected=expected))
    site.write("report/tuned/train.md", "tuned_script.md", tuned_script.answer(interpret_tuning(tuning)))
    page = read_page(tmp_path / "report" / "tuned" / "train.md").replace("&#95;", "_")
    assert "What other code could give" in page and "fused loss" in page and "1.08" in page and "cross_entropy" in page


def test_results_have_pages_and_links(site, tmp_path):
    data = tmp_path / "data"
    assert write_tuned(site, data, None) == []
    write_tuning(data / "tuned" / "train-tune", make_tuning())
    (page,) = write_tuned(site, data, Price(9.0, pd.Timestamp("2026-11-27").date()))
    assert page["path"] == "report/tuned/train-tune" and "8.00 times as fast" in page["headline"]
    assert "9.00 USD an hour, as given" in (tmp_path / f"{page['path']}.md").read_text()


def test_a_damaged_result_is_an_error(site, tmp_path):
    folder = tmp_path / "data" / "tuned" / "train-tune"
    folder.mkdir(parents=True)
    (folder / "tune.json").write_text(json.dumps({"name": 1}))
    with pytest.raises(TuningError):
        write_tuned(site, tmp_path / "data", None)


def test_results_without_a_winner_or_a_step_have_pages(site):
    for name, tuning in (("none", make_tuning(ladder=[], patch=None)), ("empty", make_tuning(base=None, ladder=[]))):
        answer = tuned_script.answer(interpret_tuning(tuning))
        site.write(f"report/tuned/{name}.md", "tuned_script.md", answer)


@pytest.mark.long
def test_the_overview_of_a_script_links_to_its_tuning(tmp_path):
    recording = synthetic.recording(("small",), (128,), modes=("train_step",))
    recording.manifest["script"] = True
    docs = tmp_path / "docs"
    write_tuning(docs / "data" / "tuned" / "train-tune", make_tuning())
    write_site.write(recording, docs)
    index = (docs / "index.md").read_text()
    assert "](report/tuned/train-tune.md)" in index and (docs / "report" / "tuned" / "train-tune.md").is_file()
