"""A mistake in what a run records about itself breaches a check against a second source."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.pages import reconciliation_checks, second_sources
from profiler_job.analysis.site import write_site
from tests import frozen
from tests.pages.question_page import only_questions


@pytest.fixture(scope="module")
def rec():
    return frozen.load_study("")


def list_breaches(rec) -> set[str]:
    tables = (rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes)
    table = reconciliation_checks.checks_of(*tables)
    return {*table.loc[~table["passed"], "check"]}


def relabel(rec, run_id=None, **columns):
    """`rec` with other values in columns of its runs, or of one of them."""
    runs = rec.runs.copy()
    chosen = runs["run_id"].astype(str).eq(run_id) if run_id else slice(None)
    for name, value in columns.items():
        runs[name] = runs[name].astype(object)
        runs.loc[chosen, name] = value
        runs[name] = runs[name].infer_objects()
    return dataclasses.replace(rec, runs=runs)


def scale(rec, table, column, factor, keep=lambda rows: rows.index == rows.index):
    rows = getattr(rec, table).copy()
    rows[column] = rows[column].where(~keep(rows), rows[column] * factor)
    return dataclasses.replace(rec, **{table: rows})


def test_frozen_runs_hold_them(rec):
    table = reconciliation_checks.checks_of(
        rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes
    )
    assert table["passed"].all()
    made = table[table["check"].isin(second_sources.MEANING)]
    assert set(made["check"]) == set(second_sources.MEANING), "each was made of some run"


@pytest.mark.parametrize("declared", ["tf32", "bf16"])
def test_another_precision_than_the_matmuls_ran_in(rec, declared):
    fp32 = next(run for run in rec.runs["run_id"].astype(str) if "fp32" in run)
    assert "math_path" in list_breaches(relabel(rec, fp32, precision=declared))


def test_another_gpu_than_the_memory_is_of(rec):
    assert "gpu_memory" in list_breaches(relabel(rec, gpu_name="NVIDIA H100 80GB HBM3"))


@pytest.mark.parametrize("factor", [0.5, 0.97, 1.03, 2.0])
def test_other_parameters_than_the_optimizer_updates(rec, factor):
    wrong = rec.runs["num_parameters"].astype(float) * factor
    found = list_breaches(dataclasses.replace(rec, runs=rec.runs.assign(num_parameters=wrong)))
    assert found & {"updated_parameters", "largest_update"}, "half of them looks like another version of PyTorch"


@pytest.mark.parametrize("vocab_size", [9_000, 10_100, 50_257])
def test_another_vocabulary_than_the_optimizer_updates(rec, vocab_size):
    assert "largest_update" in list_breaches(relabel(rec, vocab_size=vocab_size))


@pytest.mark.parametrize("factor", [1.1, 1.5])
def test_a_clock_that_is_too_slow(rec, factor):
    def is_timed(rows):
        return rows["collector"].astype(str) == "timer"

    assert "profiler" in list_breaches(scale(rec, "steps", "wall_ns", factor, is_timed))


def test_a_clock_that_is_too_fast(rec):
    def is_timed(rows):
        return rows["collector"].astype(str) == "timer"

    assert "busy_in_time" in list_breaches(scale(rec, "steps", "wall_ns", 1 / 1.5, is_timed))


@pytest.mark.parametrize("factor", [0.2, 200])
def test_a_peak_of_memory_that_cannot_be(rec, factor):
    assert "peak_memory" in list_breaches(scale(rec, "runs", "peak_memory_bytes", factor))


@pytest.mark.parametrize("parallel", ["fsdp", "tp"])
def test_ranks_that_hold_parts_of_the_parameters_may_use_less_memory(rec, parallel):
    less = scale(rec, "runs", "peak_memory_bytes", 0.2)
    shared = dataclasses.replace(less, runs=less.runs.assign(gpus=2, parallel=parallel))
    assert "peak_memory" not in list_breaches(shared)


def test_more_power_than_the_board_may_have(rec):
    assert "power" in list_breaches(scale(rec, "processes", "energy_mj", 2.0))


def test_a_copy_that_is_counted_as_a_matmul_or_the_other_way_round(rec):
    for chosen, family in (("gemm", "elementwise"), ("elementwise", "gemm")):
        kernels = rec.kernels.astype({"family": str})
        first = kernels.index[(kernels["family"] == chosen) & (kernels["phase"].astype(str) == "forward")][0]
        kernels.loc[first, "family"] = family
        wrong = dataclasses.replace(rec, kernels=kernels.astype({"family": "category"}))
        assert "gemm_family" in list_breaches(wrong), family


def test_a_power_of_a_gpu_that_is_not_known_is_no_check(rec):
    table = reconciliation_checks.checks_of(
        *(relabel(rec, gpu_name="NVIDIA Nothing").runs, rec.steps, rec.kernels, rec.memops),
        *(rec.nsys_sums, rec.api, rec.processes),
    )
    assert not {"power", "gpu_memory"} & set(table["check"])
    assert isinstance(table, pd.DataFrame)


@pytest.mark.long
def test_modules_of_other_kernels_are_seen_and_the_report_is_written(rec, undrawn, tmp_path):
    rec = frozen.keep_runs(rec, rec.runs["context_length"] == 128)
    modules = rec.kernels["module"].to_numpy()[np.random.default_rng(0).permutation(len(rec.kernels))]
    shuffled = dataclasses.replace(rec, kernels=rec.kernels.assign(module=modules))
    assert "module_matmuls" in list_breaches(shuffled)
    with only_questions():
        assert write_site.write(shuffled, tmp_path, {}).breaches
