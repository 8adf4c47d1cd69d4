"""Runs of a workload that only measurements are known of: the pages are there, and nothing on them is
computed from a shape that nobody gave."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages import home, reconciliation, run_list
from profiler_job.analysis.pages.questions import (
    attention_cost,
    bounds,
    fused_attention,
    memory_use,
    optimizer_cost,
    precision,
    softmax_detail,
)
from profiler_job.analysis.site import page_context, write_site
from tests.page_words import OF_PROGRAM, read_page
from tests.synthetic import recording

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]

FOREIGN = "my_models:build"
SHAPE = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size")
MODES = ("forward", "train_step")
STUDIES = ("attention", "memory", "optimizer", "precision")
RATES = pd.DataFrame(
    [
        {"figure": figure, "unit": unit, "value": value, "low": value, "high": value, "repeats": 3, "gpu_name": "H200"}
        for figure, unit, value in (
            ("gemm_fp32", "FLOP/s", 5e13),
            ("copy", "B/s", 4e12),
            ("read", "B/s", 4e12),
            ("launch", "s", 3e-6),
        )
    ]
)


def foreign(sizes=("small", "medium")):
    """What no formula may touch, and one run without even its number of parameters."""
    rec = recording(sizes, (128, 256), MODES, oom={("small", 256, "train_step"): "backward"})
    for table in ("runs", "steps", "ranges", "kernels", "api", "memops", "memory", "nsys_sums"):
        frame = getattr(rec, table)
        setattr(rec, table, frame.assign(run_id=frame["run_id"] + "-my_models.build"))
    rec.runs = rec.runs.assign(workload=FOREIGN, **dict.fromkeys(SHAPE, 0))
    rec.runs.loc[rec.runs["status"] != "ok", "num_parameters"] = 0
    return rec


def mixed():
    """The same sizes of the reference, in runs without a workload, as old ones, next to foreign ones."""
    rec, other = recording(("small", "medium"), (128, 256), MODES, oom={}), foreign()
    rec.runs["workload"] = "transformer"
    for table in ("runs", "steps", "ranges", "kernels", "api", "memops", "memory", "nsys_sums"):
        setattr(rec, table, pd.concat([getattr(rec, table), getattr(other, table)], ignore_index=True))
    return rec


@pytest.fixture(scope="module", params=[foreign, mixed], ids=["foreign", "mixed"])
def rec(request):
    return request.param()


def answers(rec):
    """Answers of every question that has a formula."""
    asked = (attention_cost, bounds, fused_attention, memory_use, optimizer_cost, precision, softmax_detail)
    given = {"calibration": RATES, "studies": {"memory": rec}}
    return {module: page_context.ask(module.QUESTION, rec, **given) for module in asked}


def select_foreign(rows):
    return rows[rows["run_id"].astype(str).str.endswith("my_models.build")]


@pytest.mark.parametrize(
    "rec", [pytest.param(foreign, marks=pytest.mark.nightly), mixed], indirect=True, ids=["foreign", "mixed"]
)
def test_every_page_is_written(rec, tmp_path):
    write_site.write(rec, tmp_path, dict.fromkeys(STUDIES, rec))
    pages = {path.name: read_page(path) for path in tmp_path.rglob("*.md")}
    assert len([name for name in pages if name.endswith("my_models.build.md")]) == 8
    of_runs = {name: text for name, text in pages.items() if name not in OF_PROGRAM}
    assert not [name for name, text in of_runs.items() if re.search(r"\b(nan|inf|NaN|None)\b", text)]
    page = pages["small-ctx128-fp32-naive-forward-my_models.build.md"]
    assert FOREIGN in page and "layers ×" not in page
    assert "MFU" not in page, "its FLOPs are not known"
    assert "parameters · " not in pages["small-ctx256-fp32-naive-train_step-my_models.build.md"]


def test_the_models_have_no_made_up_sizes(rec):
    sizes = home.answer(rec.runs, rec.manifest).tables["models"].rows
    assert len(sizes) == len(rec.runs[["workload", "size"]].drop_duplicates())
    assert not (sizes == 0).any(axis=None) and sizes["num_parameters"].notna().all()


def test_options_tell_models_and_cases_apart():
    rec = foreign(("small",))
    wide = rec.runs.assign(workload_options="width=256", run_id=rec.runs["run_id"] + "-width256", num_parameters=99)
    runs = pd.concat([rec.runs.assign(workload_options="width=64"), wide], ignore_index=True)
    sizes = home.answer(runs, rec.manifest).tables["models"].rows
    assert set(sizes["size"]) == {"small, width=64", "small, width=256"} and sizes["num_parameters"].nunique() == 2
    assert run_grid.case_columns(runs) == ["size", "context_length", "workload_options"]
    assert len(run_grid.cases(runs, "forward")) == 4


def test_there_is_no_mfu_of_unknown_flops(rec):
    table = (
        run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry).tables["runs"].rows
    )
    assert select_foreign(table)["mfu"].isna().all()
    known = table[~table["run_id"].isin(select_foreign(table)["run_id"])]
    assert known["mfu"].gt(0).all()


NEEDS_A_SHAPE = {
    attention_cost: ("dearer", "cheaper_somewhere", "time", "longer", "never_longer"),
    bounds: ("compute", "memory", "linear", "attention", "adamw", "unfused"),
    fused_attention: ("replaced", "inside", "skips", "rate", "before"),
    memory_use: ("exact", "inexact", "elsewhere", "foreseen", "unforeseen", "casts"),
    optimizer_cost: ("bytes", "rate"),
    precision: ("mfu",),
    softmax_detail: ("largest", "smallest", "bound", "traffic"),
}


@pytest.mark.long
def test_claims_from_shapes_do_not_hold_of_foreign_runs():
    found = answers(foreign())
    held = [
        (one.QUESTION.slug, key) for one, keys in NEEDS_A_SHAPE.items() for key in keys if found[one].claims[key].holds
    ]
    assert not held


@pytest.mark.long
def test_claims_from_shapes_are_of_the_others():
    """The sentences about both are the sentences about the reference alone."""
    rec = mixed()
    alone = recording(("small", "medium"), (128, 256), MODES, oom={})
    together, apart = answers(rec), answers(alone)
    for question, keys in NEEDS_A_SHAPE.items():
        for key in keys:
            claim, expected = together[question].claims[key], apart[question].claims[key]
            assert claim.holds == expected.holds, (question.slug, key)
            if claim.holds and "run_id" in claim.rows:
                assert not len(select_foreign(claim.rows)), (question.slug, key)
    assert sum(together[question].claims[key].holds for question, keys in NEEDS_A_SHAPE.items() for key in keys) > 5


def test_matmuls_are_counted_against_the_reference_only(rec):
    checks = (
        reconciliation.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes)
        .tables["checks"]
        .rows
    )
    of_shape = {"forward_matmuls", "backward_matmuls", "forward_layouts", "backward_layouts", "in_module"}
    theirs = select_foreign(checks)
    assert len(theirs) and not of_shape & set(theirs["check"]) and theirs["passed"].all()
    others = checks[~checks["run_id"].isin(theirs["run_id"])]
    assert not len(others) or of_shape <= set(others["check"])
    assert others["passed"].all()


def test_runs_without_a_workload_are_of_the_reference():
    runs = recording(("small",), (128,)).runs
    assert "workload" not in runs
    assert run_grid.select_known_shapes(runs).equals(runs)
    assert run_grid.has_known_shape(runs.iloc[0])
