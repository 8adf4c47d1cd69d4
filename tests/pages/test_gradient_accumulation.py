"""A batch in micro-batches against the same batch in one piece: on made-up runs that can be worked out by hand."""

import dataclasses
import re

import pandas as pd
import pytest

from profiler_job.analysis.pages.questions import gradient_accumulation
from profiler_job.analysis.site import page_context, question_pages
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.studies import TRAINED
from tests import synthetic
from tests.page_words import read_page
from tests.pages.question_page import only_questions

TABLES = ("runs", "steps", "kernels", "memops", "memory", "processes", "telemetry")
CASES = [("small", 512), ("2.7B", 512)]


def cut_in_two(rec):
    """`rec` with the same training steps cut in two, too: twice the kernels of forward and backward, the step a fifth
    longer, three quarters of the memory."""
    tables = {}
    for name in TABLES:
        frame = getattr(rec, name)
        cut = frame.assign(run_id=frame["run_id"].astype(str) + "-accum2")
        if name == "runs":
            cut = cut.assign(accumulation=2, peak_memory_bytes=cut["peak_memory_bytes"] * 3 // 4)
            frame = frame.assign(accumulation=1)
        if name == "steps":
            cut = cut.assign(wall_ns=cut["wall_ns"] * 12 // 10)
        if name == "kernels":
            again = cut[cut["phase"] != ranges.OPTIMIZER]
            later = again["end_ns"].max()
            times = {key: again[key] + later for key in ("launch_ns", "launch_end_ns", "start_ns", "end_ns")}
            cut = pd.concat([cut, again.assign(**times)], ignore_index=True)
        tables[name] = pd.concat([frame, cut], ignore_index=True)
    return dataclasses.replace(rec, **tables)


@pytest.fixture(scope="module")
def rec():
    whole = synthetic.recording(("small", "2.7B"), (512,), modes=("train_step",), oom={})
    return cut_in_two(whole)


@pytest.fixture(scope="module")
def answer(rec):
    return page_context.ask(gradient_accumulation.QUESTION, rec)


def test_a_step_in_micro_batches_is_held_against_the_whole_batch_of_its_case(answer):
    rows = answer.tables["steps"].rows
    assert list(zip(rows["size"], rows["accumulation"])) == [("small", 1), ("small", 2), ("2.7B", 1), ("2.7B", 2)]
    cut = rows[rows["accumulation"] == 2]
    assert cut["step_ratio"].tolist() == pytest.approx([1.2, 1.2], rel=1e-6)
    assert cut["memory_ratio"].tolist() == pytest.approx([0.75, 0.75], rel=1e-6)
    assert rows.loc[rows["accumulation"] == 1, ["step_ratio", "memory_ratio"]].isna().all(axis=None)
    tokens = 4 * 512
    assert (rows["tokens_per_s"] == (tokens / rows["step_ns"] * 1e9).round()).all(), "tokens of the whole batch"


def test_launches_of_forward_and_backward_are_doubled_and_those_of_the_optimizer_are_not(answer):
    rows = answer.tables["gpu"].rows.set_index(["size", "accumulation"])
    for size in ("small", "2.7B"):
        whole, cut = rows.loc[(size, 1), "launches"], rows.loc[(size, 2), "launches"]
        assert whole < cut < 2 * whole
        assert rows.loc[(size, 2), "more_launches"] == cut / whole


def test_sentences_say_what_it_costs_and_what_it_saves(answer):
    assert answer.claims["costs"].values["most"] == 2
    assert answer.claims["slower"].holds and not answer.claims["not_slower"].holds
    assert answer.claims["memory"].holds and answer.claims["busier"].holds


def test_micro_batches_that_take_no_longer_than_their_steps_alone_are_said_to_cost_nothing(rec):
    """Only the slow case of 512 tokens was told, and not that large batches of 1,024 tokens lose nothing."""
    runs = rec.runs.assign(batch_size=rec.runs["batch_size"] * rec.runs["accumulation"])
    trained = dataclasses.replace(rec, runs=runs)
    asked = page_context.ask(gradient_accumulation.QUESTION, rec, studies={TRAINED: trained})
    rows = asked.claims["free"].rows
    assert set(rows["accumulation"]) == {2} and len(rows) == 2
    assert (rows["step_ns"] / rows["separate_ns"]).tolist() == pytest.approx([0.6, 0.6], rel=1e-6)
    slow = rec.steps.assign(wall_ns=rec.steps["wall_ns"].where(~rec.steps["run_id"].str.endswith("accum2"), 10**12))
    slower = page_context.ask(
        gradient_accumulation.QUESTION, rec, studies={TRAINED: dataclasses.replace(trained, steps=slow)}
    )
    assert not slower.claims["free"].holds


def test_runs_that_were_never_cut_say_nothing_of_it(rec):
    runs = rec.runs[rec.runs["accumulation"] == 1]
    found = page_context.ask(gradient_accumulation.QUESTION, dataclasses.replace(rec, runs=runs))
    assert not [key for key, claim in found.claims.items() if claim.holds and key != "waits"]


@pytest.mark.long
def test_a_page_shows_it(tmp_path, rec, undrawn):
    study = dataclasses.replace(rec, manifest=rec.manifest | {"study": gradient_accumulation.STUDY})
    with only_questions(gradient_accumulation.QUESTION):
        question_pages.write_questions(rec, tmp_path, {gradient_accumulation.STUDY: study})
    page = read_page(tmp_path / "report" / "gradient-accumulation.md")
    first = page.split("What was measured")[0]
    assert "2 micro-batches" in first and "**1.2×**" in first
    assert "rough" in first, "of one process a run the CPU's part is not known"
    assert re.search(r"\| small +\| +512 \| +2 \| +13\.4 \(13\.4–13\.4\) \| +1\.20 \|", page)
    assert "- **Batch**: 4 in 1 and 2 micro-batches" in page
