"""The page of telemetry says what was read of the machine of the runs, and so does the page of a run."""

import dataclasses
from datetime import date
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.pages import run_list, run_page, telemetry
from profiler_job.analysis.pages.telemetry import Price
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import page_context, run_pages
from profiler_job.analysis.site.site_writer import Site
from tests import synthetic
from tests.page_words import read_page

RUNS = ("small-ctx128-fp32-naive-train_step", "small-ctx256-fp32-naive-train_step")


def recording(loops_ms: tuple[int, ...] = (30, 30, 60), reason: str = "sw_power_cap") -> store.Recording:
    """Two runs, with a process for each time of the loop, and one sample of each."""
    rec = synthetic.recording(("small",), (128, 256), modes=("train_step",))
    processes, samples = [], []
    for run in RUNS:
        for number, loop in enumerate(loops_ms):
            of = {"run_id": run, "rank": 0, "process": number}
            energy = {"energy_mj": 120_000, "energy_steps": 10, "energy_wall_ns": 2_000_000_000}
            processes.append(of | {"cpu_model": "A CPU", "host_loop_ns": loop * 1_000_000} | energy)
            clocks = {"sm_clock_mhz": 1635, "temperature_celsius": 60, "throttle_reasons": reason}
            samples.append(of | {"moment": "busy"} | clocks)
    return dataclasses.replace(rec, processes=pd.DataFrame(processes), telemetry=pd.DataFrame(samples))


def page(rec: store.Recording, tmp_path: Path, price: Price | None = None) -> str:
    site = Site(tmp_path, (), {}, ("size", "context_length"))
    site.write(
        "report/telemetry.md",
        "telemetry.md",
        telemetry.answer(rec.runs, rec.steps, rec.processes, rec.telemetry, price),
    )
    return read_page(tmp_path / "report/telemetry.md")


def test_slow_hosts_clocks_and_energy_are_said(tmp_path):
    said = page(recording(), tmp_path)
    assert "**2 of 6 processes** ran on a slow host" in said
    assert "something held the GPU's clock down" in said
    assert "power cap" in said and "1,635" in said
    assert "1,000 tokens take 11.7" in said and "23.4" in said
    assert "price of 1M tokens" not in said


def test_where_all_is_well_that_is_said(tmp_path):
    said = page(recording((30, 31, 32), "none"), tmp_path)
    assert "No process ran on a slow host" in said
    assert "Nothing held a GPU's clock down" in said


def test_the_list_of_runs_gives_tokens_their_energy_and_their_price():
    price = Price(3.6, date(2026, 1, 2))
    rec = recording()
    table = run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry, price).tables[
        "runs"
    ]
    assert {"tokens_per_s", "joules_per_1k", "cost_per_million"} <= {column.key for column in table.columns}
    row = table.rows.iloc[0]
    assert row["tokens_per_s"] == round(4 * 128 / row["timer_ns"] * 1e9)
    assert row["joules_per_1k"] == round(12 / (4 * 128) * 1000, 2), "120 J in 10 steps"
    assert row["cost_per_million"] == pytest.approx(3.6 / 3600 / row["tokens_per_s"] * 1e6, abs=1e-4)
    free = run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry).tables["runs"]
    assert "cost_per_million" not in {column.key for column in free.columns}


def test_a_price_is_shown_with_its_day(tmp_path):
    said = page(recording(), tmp_path, Price(3.6, date(2026, 1, 2)))
    assert "price of 1M tokens" in said and "2026" in said and "3.60" in said


@pytest.mark.long
@pytest.mark.parametrize("price, shown", [(Price(3.6, date(2026, 1, 2)), True), (None, False)])
def test_a_run_shows_what_its_tokens_cost_where_a_price_was_given(tmp_path, price, shown):
    rec = recording()
    checks = page_context.check_recording(rec).tables["checks"].rows
    run_pages.write_runs(rec, tmp_path, checks, {}, price)
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "report" / "runs").glob("*.md")]
    assert pages and {"at 3.60 an hour" in said for said in pages} == {shown}


def test_a_recording_without_it_says_so(tmp_path):
    said = page(synthetic.recording(("small",), (128, 256), modes=("train_step",)), tmp_path)
    assert "This recording has none" in said and "<table" not in said


@pytest.mark.parametrize(
    ("loops", "reason", "slow", "lowered"), [((30, 60), "none", 1, 0), ((30, 31), "hw_slowdown", 0, 2)]
)
def test_a_run_says_it_beside_its_numbers(loops, reason, slow, lowered):
    rec = recording(loops, reason)
    names = ("runs", "steps", "kernels", "api", "memops", "memory", "processes", "telemetry")
    tables = {name: getattr(rec, name) for name in names}
    checks = page_context.check_recording(rec).tables["checks"].rows
    for _, answer in run_page.answers(**tables, checks=checks):
        assert (answer.facts["machine"]["num_slow"], answer.facts["machine"]["lowered"]) == (slow, lowered)


def test_a_hostile_name_of_a_reason_is_inert(tmp_path):
    said = page(recording((30,), "<script>alert(1)</script>"), tmp_path)
    assert "<script" not in said
