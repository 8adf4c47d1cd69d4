"""The table of all runs: what tokens cost, and which numbers a picture may be over."""

import pytest

from profiler_job.analysis.pages import explore
from profiler_job.analysis.pages.explore import Part
from profiler_job.analysis.reference.gpu_prices import find_price
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


def test_precisions_are_spelled_as_in_prose():
    assert set(ask().tables["explore"].rows["precision"]) == {"FP32"}
