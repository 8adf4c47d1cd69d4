"""Pages that compare steps with steps say what tokens take in them: time, energy, and money where a price is given."""

from datetime import date

import pytest

from profiler_job.analysis.pages import token_costs
from profiler_job.analysis.pages.questions import STUDIES
from profiler_job.analysis.pages.telemetry import Price
from profiler_job.analysis.site import question_pages
from tests import frozen
from tests.page_words import read_page
from tests.pages.question_page import only_questions


@pytest.fixture(scope="module")
def rec():
    return frozen.load_study("optimizer")


def with_costs(rec, price=None):
    answer = question_pages._answer_not_recorded(STUDIES["k"])
    return token_costs.with_costs(answer, rec.runs, rec.steps, rec.processes, rec.telemetry, price).tables["costs"]


def test_tokens_energy_and_price_follow_from_the_step(rec):
    rows = with_costs(rec, Price(3.6, date(2026, 1, 2))).rows.set_index("run_id")
    runs = rec.runs.astype({"run_id": str}).set_index("run_id")
    assert set(rows.index) == set(runs.index[runs["status"].astype(str) == "ok"])
    tokens = (runs["batch_size"] * runs["context_length"]).astype(int).reindex(rows.index)
    assert rows["tokens_per_s"].tolist() == pytest.approx((tokens / rows["step_ns"] * 1e9).tolist(), abs=0.5)
    seconds_of_a_million = 1e6 / tokens * rows["step_ns"] / 1e9
    assert rows["cost_per_million"].tolist() == pytest.approx((seconds_of_a_million * 3.6 / 3600).tolist(), abs=1e-4)
    assert (rows["joules_per_1k"] > 0).all()


def test_without_a_price_none_is_shown(rec):
    assert "cost_per_million" not in {column.key for column in with_costs(rec).columns}


def test_every_study_that_holds_steps_against_steps_has_the_table():
    known = {(question.study or "") for question in STUDIES.values()}
    assert set(token_costs.STUDIES) <= known
    assert known - set(token_costs.STUDIES) - {""} == {"again", "generation", "memory", "prediction", "warm_up"}


@pytest.mark.long
def test_a_page_of_a_study_says_the_price_that_its_report_was_given(rec, undrawn, tmp_path):
    price = Price(3.6, date(2026, 1, 2))
    chosen = [question for question in STUDIES.values() if question.slug in ("optimizer-cost", "warm-up")]
    with only_questions(*chosen):
        question_pages.write_questions(frozen.load_study(""), tmp_path, {"optimizer": rec}, price=price)
    page = read_page(tmp_path / "report" / "optimizer-cost.md")
    assert (
        "## Tokens and energy" in page and "price of 1M tokens" in page and "2026-01-02" in page.replace("&#45;", "-")
    )
    assert "## Tokens and energy" not in read_page(tmp_path / "report" / "warm-up.md")
