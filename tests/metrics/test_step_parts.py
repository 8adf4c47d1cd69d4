"""The parts of a training step add up to it, and each run is kept apart from the others."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.metrics import step_parts
from profiler_job.analysis.metrics.step_parts import WAITING
from profiler_job.analysis.pages import overview
from profiler_job.analysis.render import step_figure
from profiler_job.jobs.contract import ranges
from tests.synthetic import recording


@pytest.fixture(scope="module")
def rec():
    return recording(("small",), (128, 512))


@pytest.fixture(scope="module")
def parts(rec):
    return step_parts.parts_of_steps([rec])


def slow(rec, factor):
    """The recording with steps that took so many times as long by the timer."""
    timed = rec.steps["collector"].astype(str) == "timer"
    return dataclasses.replace(
        rec, steps=rec.steps.assign(wall_ns=rec.steps["wall_ns"].where(~timed, rec.steps["wall_ns"] * factor))
    )


def test_parts_add_up_to_the_unprofiled_step(rec):
    parts = step_parts.parts_of_steps([slow(rec, 4)])
    sums = parts.groupby("run_id").agg(step=("step_ns", "first"), sum=("time_ns", "sum"))
    assert len(sums) == 2
    assert sums["sum"].tolist() == pytest.approx(sums["step"].tolist(), abs=50)
    assert (parts.loc[parts["phase"] == WAITING, "time_ns"] > 0).all()


def test_a_step_shorter_than_its_kernels_is_left_out(rec):
    assert not len(step_parts.parts_of_steps([slow(rec, 0.01)]))


def test_phases_come_in_order_and_their_longest_module_first(parts):
    of_step = parts[parts["run_id"] == parts["run_id"].iloc[0]]
    phases = list(dict.fromkeys(of_step["phase"]))
    assert phases == [phase for phase in (*ranges.ALL_PHASES, WAITING) if phase in phases]
    forward = of_step[(of_step["phase"] == "forward") & (of_step["module"] != step_parts.REST)]
    times = forward.groupby("module", sort=False)["time_ns"].sum().tolist()
    assert len(times) > 1 and times == sorted(times, reverse=True)


def test_runs_of_two_recordings_are_told_apart_by_what_varies(rec):
    runs = rec.runs.astype({"precision": str, "attention": str}).assign(precision="bf16", attention="sdpa")
    parts = step_parts.parts_of_steps([rec, dataclasses.replace(rec, runs=runs)])
    assert set(parts["variant"]) == {"FP32 · eager attention", "BF16 · fused attention"}


def test_without_training_steps_there_are_no_parts(rec):
    runs = rec.runs[rec.runs["mode"].astype(str) == "forward"]
    assert not len(step_parts.parts_of_steps([dataclasses.replace(rec, runs=runs)]))


def test_the_figure_shows_one_step_and_carries_all(rec):
    pages = {(run, start): f"report/runs-a/{run}" for run, start in zip(rec.runs["run_id"], rec.runs["started_at"])}
    table = overview.answer(rec.runs, rec.steps, rec.kernels, rec.manifest, run_pages=pages).tables["step"]
    figure = step_figure.to_html(table, "x.csv", "", {"gemm": "GEMM", "elementwise": "Element<wise>"})
    assert figure.count("&#34;at&#34;") == 2 and figure.count('name="step-context_length"') == 2
    assert "Element&lt;wise&gt;" in figure and "<wise>" not in figure
    assert 'href="report/runs-a/small-ctx512-fp32-naive-train_step.html"' in figure
    rows = table.rows[table.rows["context_length"] == 512]
    longest = rows.groupby(["phase", "module"])["time_ns"].sum().max() / rows["step_ns"].iloc[0]
    assert f"{longest:.0%} of this training step</span>" in figure


def test_a_family_without_a_colour_of_its_own_is_drawn_all_the_same():
    rows = pd.DataFrame(
        [["a-train_step", "a", 1, "FP32", 2e6, "forward", "", "strange", 2e6]], columns=step_parts.COLUMNS
    )
    table = overview._step_table(rows, {})
    figure = step_figure.to_html(table, "x.csv", "", {"gemm": "GEMM"})
    assert "width:100.00%;background:var(--family-other)" in figure and "hidden> · this run" in figure
