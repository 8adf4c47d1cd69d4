"""The table of all runs: what tokens cost, and which numbers a picture may be over."""

import re

import pytest

from profiler_job.analysis.pages import explore
from profiler_job.analysis.pages.explore import Part
from profiler_job.analysis.reference.gpu_prices import find_price
from profiler_job.analysis.render.tables import to_html
from profiler_job.jobs.contract.axes import find_value_label
from profiler_job.jobs.contract.modes import MODES
from tests.synthetic import recording

H200 = "NVIDIA H200"


def ask(**axes):
    rec = recording(("small",), (128, 256))
    rec.runs["gpu_name"] = H200
    for name, values in axes.items():
        rec.runs[name] = values
    pages = {(str(run), str(start)): "x" for run, start in zip(rec.runs["run_id"], rec.runs["started_at"])}
    return explore.answer([Part(name="main", page="report/runs", run_pages=pages, rec=rec)], None)


def test_a_million_tokens_cost_what_the_gpus_cost_in_their_time():
    rows = ask().tables["explore"].rows
    wanted = find_price(H200).usd_per_hour / 3600 / rows["tokens_per_s"] * 1e6
    assert rows["cost"].tolist() == pytest.approx(wanted.tolist())
    of_two = ask(gpus=2).tables["explore"].rows  # twice the tokens in the same time
    assert of_two["cost"].tolist() == pytest.approx(wanted.tolist())
    unlisted = ask(gpu_name="a GPU nobody lists")
    assert unlisted.tables["explore"].rows["cost"].isna().all() and not unlisted.facts["has_costs"]


def test_batch_is_an_axis_and_a_filter_if_it_differs():
    """It was offered as an axis of a table that had no such column."""
    assert [column.key for column in ask().facts["counts"]] == ["context_length"]
    answer = ask(batch_size=[4, 8] * 3)
    assert [column.key for column in answer.facts["counts"]] == ["context_length", "batch_size"]
    assert "batch_size" in [facet["key"] for facet in answer.facts["facets"]]


def test_parameters_are_an_axis_and_no_filter_if_they_differ():
    """The model chooses the same runs, but has no place on an axis."""
    answer = ask(num_parameters=[128_625_408] * 3 + [969_411_840] * 3)
    assert [column.key for column in answer.facts["counts"]] == ["context_length", "num_parameters"]
    assert "num_parameters" not in [facet["key"] for facet in answer.facts["facets"]]


def test_the_gpus_are_named_as_in_the_table():
    """`NVIDIA H100 80GB HBM3, NVIDIA H200` took a line of a phone, for what the table and home call H100 and H200."""
    answer = ask(gpu_name="NVIDIA H100 80GB HBM3")
    assert answer.facts["gpus"] == list(answer.tables["explore"].rows["gpu_name"].unique()) == ["H100"]


def test_precisions_are_spelled_as_in_prose():
    assert set(ask().tables["explore"].rows["precision"]) == {"FP32"}


def test_modes_and_models_are_shown_in_words_and_chosen_by_their_names_in_recordings():
    """Addresses keep the names of recordings, so that links of before still choose the same runs."""
    answer = ask(num_parameters=128_625_408, mode=["train_step", "forward", "forward_backward"] * 2)
    facets = {facet["key"]: facet["values"] for facet in answer.facts["facets"]}
    assert [value["key"] for value in facets["mode"]] == [*MODES]
    assert [value["label"] for value in facets["mode"]] == [find_value_label("mode", mode) for mode in MODES]
    table = to_html(answer.tables["explore"], "x.csv", "../", {})
    assert '<td data-k="train_step">training step</td>' in table
    assert re.search('<td data-k="small"><a href="[^"]*">small \\(0.13B\\)</a></td>', table)
