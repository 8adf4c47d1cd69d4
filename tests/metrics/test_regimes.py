"""The map of what limits a step has a panel a precision, and leads to runs."""

import dataclasses

import pytest

from profiler_job.analysis.metrics import regimes, run_grid, step_limits
from profiler_job.analysis.render import regime_map
from profiler_job.analysis.render.answer import Table
from profiler_job.jobs.contract.step_limit import MEMORY
from tests.synthetic import recording

PEAKS = {"gemm_fp32": 50e12, "copy": 4e12}


@pytest.fixture(scope="module")
def rec():
    return recording(("small", "2.7B"), (128, 1024))


def test_each_precision_has_a_panel_whose_cells_lead_to_runs(rec):
    lower = rec.runs.astype({"precision": str, "run_id": str}).assign(precision="bf16")
    lower["run_id"] = lower["run_id"].str.replace("fp32", "bf16")
    lower = dataclasses.replace(rec, runs=lower)
    rows = regimes.regimes_of([rec, lower, lower], PEAKS, None)
    assert rows.groupby("precision").size().to_dict() == {"fp32": 4, "bf16": 4}, "a case is there once"
    runs = [run for of in (rec, lower) for run in zip(of.runs["run_id"], of.runs["started_at"])]
    pages = run_grid.page_by_id([rec, lower], {run: f"report/runs-{run[0]}" for run in runs})
    rows = rows.assign(leads_to=rows["run_id"].map(pages), limit=MEMORY, timer_ns=1.0)
    rows = rows.assign(**dict.fromkeys(step_limits.PARTS.values(), 0.25))
    rows.loc[rows.index[-1], "leads_to"] = ""
    html = regime_map.to_html(Table("regimes", "Limits", (), rows), "x.csv", "../")
    assert html.index("<caption>FP32") < html.index("<caption>BF16")
    linked = [run_id for run_id in rows["run_id"] if f'<a href="runs-{run_id}.html">' in html]
    assert linked == rows["run_id"].tolist()[:-1], "the last has no page"


def test_a_run_out_of_memory_says_so(rec):
    lost = rec.runs["run_id"].astype(str).str.startswith("2.7B-ctx1024")
    runs = rec.runs.assign(status=rec.runs["status"].astype(str).where(~lost, "oom"))
    kept = {name: getattr(rec, name) for name in ("steps", "kernels", "memops")}
    kept = {name: of[~of["run_id"].astype(str).str.startswith("2.7B-ctx1024")] for name, of in kept.items()}
    rows = regimes.regimes_of([dataclasses.replace(rec, runs=runs, **kept)], PEAKS, None)
    html = regime_map.to_html(Table("regimes", "Limits", (), rows.assign(leads_to="")), "x.csv", "../")
    assert '<td class="why">OOM' in html


def test_the_models_of_a_panel_come_by_size_with_their_parameters(rec):
    """`medium` came last, since another recording had it; no name had its parameters."""
    numbers = rec.runs["size"].astype(str).map({"small": 0.13e9, "2.7B": 3.4e9})
    rec = dataclasses.replace(rec, runs=rec.runs.assign(num_parameters=numbers))
    is_small = rec.runs["size"].astype(str) == "small"
    parts = [dataclasses.replace(rec, runs=rec.runs[chosen]) for chosen in (~is_small, is_small)]
    table = Table("regimes", "Limits", (), regimes.regimes_of(parts, PEAKS, None).assign(leads_to=""))
    for drawn in (regime_map.to_html(table, "x.csv", "../"), regime_map.to_markdown(table, "x.csv", "../")):
        assert 0 < drawn.find("small (0.13B)") < drawn.find("2.7B (3.4B)")
