"""What bounds the runs of the shipped default sweep."""

import pytest

from profiler_job.analysis.metrics import differences, kernel_time, step_limits
from profiler_job.analysis.pages import home_cases
from profiler_job.analysis.pages.questions import bounds
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context
from profiler_job.jobs.contract.studies import TRAINED
from tests.pages.test_bounds import test_matmuls_are_limited_by_compute_and_everything_else_by_memory  # noqa: F401
from tests.shipped.recordings import DATA, RECORDINGS, WITH_RATES, locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def main():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def answer(main):
    return page_context.ask(bounds.QUESTION, main, calibration=combine.find_rates([store.load(locate(WITH_RATES))]))


def test_every_kernel_of_a_real_forward_pass_belongs_to_one_operation(main, answer):
    rows = answer.tables["every"].rows
    forward = rows[rows["phase"] == "forward"]
    named = forward.groupby("run_id")["time_ns"].sum()
    totals = kernel_time.kernel_totals(main.kernels)
    kernels = totals[totals["run_id"].isin(named.index)].groupby("run_id")["time_ns"].sum()
    assert len(named) == len(kernels) == 20
    assert (named / kernels.loc[named.index]).between(0.98, 1.02).all()


def test_the_verdict_counts_every_run(answer):
    claim = answer.claims["counts"]
    assert claim.holds
    found = claim.values
    assert sum(found[part] for part in ("compute", "memory", "cpu", "either")) == found["num_all"] == 60
    assert found["memory"] == 0, "in FP32; backward counts as its matmuls, of whichever modules"


@pytest.fixture(scope="module")
def recordings():
    parts: dict[str, list[store.Recording]] = {}
    for path in RECORDINGS:
        if path.parent.name not in ("main", "losses"):
            parts.setdefault(path.parent.name, []).append(store.load(path))
    return {name: combine.select_finished_runs(combine.join_recordings(recs)) for name, recs in parts.items()}


def test_the_map_has_the_limit_that_the_page_of_the_run_and_home_have(main, recordings):
    """The map had another interval, and limits in 3 of its cells that its links contradicted."""
    rates = combine.find_rates([main, *recordings.values()])
    bands = differences.bands_of(main, recordings["again"])
    answer = page_context.ask(bounds.QUESTION, main, studies=recordings, calibration=rates, bands=bands)
    cells = answer.tables["regimes"].rows.dropna(subset="limit")
    every = [main, *recordings.values()]
    of_runs = [step_limits.find_limits(rec.steps, rec.kernels, rec.memops) for rec in every]
    for row in cells.to_dict("records"):
        assert row["limit"] in {limits[row["run_id"]].name for limits in of_runs if row["run_id"] in limits}, row
    states = {("fp32", "off"): home_cases.FP32, ("bf16", "off"): home_cases.BF16}
    states["bf16", "default"] = home_cases.COMPILED
    at_home = {}
    for case in home_cases.list_cases(every):
        for state, (number, run_id) in case.runs.items():
            limit = of_runs[number].get(run_id)
            at_home[run_id, case.numbers.context_length, state] = limit and limit.name
    compared = 0
    for row in cells.to_dict("records"):
        name = states.get((row["precision"], row["compile"]))
        if (limit := at_home.get((row["run_id"], row["context_length"], name))) is not None:
            assert row["limit"] == limit, row
            compared += 1
    assert compared >= 40
    of_main = answer.tables["runs"].rows.dropna(subset="limit")
    assert all(row.limit == of_runs[0][row.run_id].name for row in of_main.itertuples())


def test_the_badge_covers_the_runs_of_the_map(main):
    """It said "reference AdamW" of the main recording alone, and the map in BF16 is of runs with fused AdamW."""
    asked = page_context.ask(bounds.QUESTION, main, studies={TRAINED: store.load(DATA / "trained" / "trained_1")})
    shown = asked.facts["in_map"]
    assert {"fused", "reference"} & {*shown["optimizer"]} >= {"fused"} and len(shown["optimizer"]) == 2
    assert len(shown["dates"]) == 2


def test_runs_whose_gpu_is_busy_for_longer_than_the_timer_are_explained(answer):
    over = (answer.tables["runs"].rows["busy_share"] > 1).sum()
    assert answer.facts["num_over"] == over > 0
