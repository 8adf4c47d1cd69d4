"""The five kernels of softmax, on frozen runs and where they are not five."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.pages.questions import softmax_detail
from profiler_job.analysis.site import combine, page_context
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests import frozen
from tests.pages.test_bounds import NONE, RATES
from tests.synthetic import recording as made_up

WORD = {
    "max": "MaxOps",
    "subtract": "CUDAFunctor_add",
    "exp": "exp_kernel",
    "sum": "sum_functor",
    "divide": "DivFunctor",
}


@pytest.fixture(scope="module")
def rec():
    return frozen.load_study("")


@pytest.fixture(scope="module")
def few(rec):
    """Forward passes of two sizes."""
    return frozen.keep_runs(rec, rec.runs["mode"].astype(str) == "forward")


@pytest.fixture(scope="module")
def answer(rec):
    return page_context.ask(softmax_detail.QUESTION, rec, calibration=combine.find_rates([rec]))


def test_the_order_of_launches_names_each_kernel_as_its_own_name_does(answer):
    rows = answer.tables["every"].rows
    assert len(rows) == 5 * rows["run_id"].nunique() > 0
    for row in rows.itertuples():
        assert WORD[row.kernel] in row.kernel_name


def test_bytes_are_eight_passes_over_the_scores_and_a_little(answer):
    rows = answer.tables["bound"].rows.dropna(subset="chain_ns")
    assert len(rows) == 3
    passes = rows["chain_bytes"] / (rows["num_layers"] * rows["score_bytes"])
    assert passes.between(8, 8.05).all()
    assert (rows["least_bytes"] == 2 * rows["num_layers"] * rows["score_bytes"]).all()


def test_the_time_of_the_chain_is_the_kernel_time_of_softmax_in_question_e(rec, answer):
    from profiler_job.analysis.pages.questions import attention_cost

    cost = page_context.ask(attention_cost.QUESTION, rec).tables["cost"].rows.set_index("run_id")["softmax_ns"]
    chain = answer.tables["bound"].rows.set_index("run_id")["chain_ns"]
    assert len(chain) and (chain - cost.loc[chain.index]).abs().max() < 1


def test_the_bound_is_below_what_was_measured(answer):
    rows = answer.tables["bound"].rows.dropna(subset="chain_ns")
    assert (rows["bound_ns"] < rows["chain_ns"]).all()


def test_the_verdict_is_of_scores_that_the_cache_cannot_hold(answer):
    claim = answer.claims["beyond_cache"]
    assert claim.holds and not answer.claims["small_only"].holds
    assert (claim.rows["score_bytes"] > 60 * 2**20).all()
    assert len(claim.rows) < len(answer.claims["bound"].rows)


def test_faster_than_memory_means_faster_than_every_bandwidth_measured(rec, answer):
    rates = combine.find_rates([rec])
    assert not len(answer.claims["cache"].rows)
    slow = rates.assign(value=rates["value"] / 2, high=rates["high"] / 2)
    rows = page_context.ask(softmax_detail.QUESTION, rec, calibration=slow).claims["cache"].rows
    assert len(rows) and (rows["rate"] * 1e9 > slow.loc[slow["unit"] == "bytes/s", "high"].max()).all()


def test_without_a_measured_bandwidth_no_share_is_guessed(few):
    answer = page_context.ask(softmax_detail.QUESTION, few, calibration=NONE)
    assert answer.tables["every"].rows["share"].isna().all()
    assert answer.tables["bound"].rows["bound_ns"].isna().all()
    holding = {key for key, claim in answer.claims.items() if claim.holds}
    assert holding == {"no_peaks", "traffic", "vectorised"}
    assert not len(answer.charts["shares"].rows)


def test_a_softmax_of_another_number_of_kernels_is_left_out_and_says_so():
    rec = made_up(("small",), (128, 512))
    answer = page_context.ask(softmax_detail.QUESTION, rec, calibration=RATES)
    assert not len(answer.tables["every"].rows)
    assert set(answer.tables["kernels"].rows[NOT_MEASURED]) == {"not these five kernels"}
    assert not any(claim.holds for claim in answer.claims.values())


def test_a_run_that_ran_out_of_memory_says_so(few):
    cut = combine.select_finished_runs(frozen.lose_run(few, "2.7B-ctx1024-fp32-naive-forward", "forward"))
    rows = page_context.ask(softmax_detail.QUESTION, cut, calibration=RATES).tables["kernels"].rows
    failed = rows[(rows["size"] == "2.7B") & (rows["context_length"] == 1024)]
    assert set(failed[NOT_MEASURED]) == {"OOM in forward"}
    assert failed[["chain_rate", "exp_share", "score_bytes"]].isna().all(axis=None)


def test_vectorised_is_only_said_where_the_names_and_times_say_it(few):
    renamed = few.kernels["kernel_name"].astype(str).str.replace("vectorized_elementwise", "elementwise")
    answer = page_context.ask(
        softmax_detail.QUESTION,
        dataclasses.replace(few, kernels=few.kernels.assign(kernel_name=renamed)),
        calibration=RATES,
    )
    assert not answer.claims["vectorised"].holds


def test_half_precision_is_left_out(few):
    runs = few.runs.astype({"precision": str}).assign(precision="bf16")
    answer = page_context.ask(softmax_detail.QUESTION, dataclasses.replace(few, runs=runs), calibration=RATES)
    assert not any(claim.holds for claim in answer.claims.values())
    assert pd.isna(answer.tables["bound"].rows["bound_ns"]).all()
