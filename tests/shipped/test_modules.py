"""The module of each kernel: of backward in two recordings, and of every run in BF16."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract import ranges
from tests.shipped.recordings import RECORDINGS, locate

BLOCK = re.compile(r"block_\d+")
LEAST_IN_MODULES = 0.97
ATTENTION = ("attention_scores", "attention_output", "fused_attention", "softmax")


NUM_RUNS = {"h200-fp32": (40, 20), "trained_4": (5, 5)}
"""Runs with a backward pass, and with an optimizer, that are not compiled."""


@pytest.fixture(scope="module", params=NUM_RUNS)
def recorded(request):
    """Kernel time and launches of each run, phase, module and kernel name, over its steps, and NUM_RUNS."""
    columns = ["run_id", "step", "phase", "module", "kernel_name", "duration_ns"]
    rows = pd.read_parquet(locate(request.param) / "kernels.parquet", columns=columns)
    rows = rows[(rows["step"] >= 0) & ~rows["run_id"].astype(str).str.contains("-compile_")]
    rows = rows.rename(columns={"duration_ns": "time_ns"})
    by = ["run_id", "phase", "module", "kernel_name"]
    sums = rows.groupby(by, observed=True)["time_ns"].agg(["size", "sum"]).reset_index()
    return sums.astype(dict.fromkeys(by, str)), NUM_RUNS[request.param]


def test_nearly_all_of_backward_is_of_a_module_or_adds_up_gradients(recorded):
    kernels, (num_backward, _) = recorded
    backward = kernels[kernels["phase"] == ranges.BACKWARD]
    placed = backward["sum"].where(~backward["module"].isin(("", ranges.LOSS_MODULE)), 0)
    shares = placed.groupby(backward["run_id"]).sum() / backward.groupby("run_id")["sum"].sum()
    assert len(shares) == num_backward
    least = 0.99 if "fp32" in shares.index[0] else 0.98
    assert shares.min() >= least, "the rest is the gradient of the loss, 1.9% of a small model in BF16"
    loss = backward[backward["module"] == ranges.LOSS_MODULE]
    assert not len(backward[backward["module"] == ""]) and loss["run_id"].nunique() == num_backward


def test_every_kernel_of_the_optimizer_has_a_module(recorded):
    kernels, (_, num_updates) = recorded
    optimizer = kernels[kernels["phase"] == ranges.OPTIMIZER]
    assert optimizer["run_id"].nunique() == num_updates and (optimizer["module"] != "").all()


def test_a_module_multiplies_twice_as_often_and_about_twice_as_long_in_backward(recorded):
    """The gradients of both operands of each matmul; of a linear layer these are the input and the weights."""
    kernels, (num_backward, _) = recorded
    families = {name: kernel_families.classify(name).family for name in kernels["kernel_name"].unique()}
    rows = kernels[kernels["kernel_name"].map(families) == "gemm"]
    main = rows["kernel_name"].map({name: kernel_families.is_main_gemm(name) for name in families})
    rows = rows.assign(module=rows["module"].str.replace(BLOCK, "block", regex=True), main=rows["size"].where(main, 0))
    sums = rows.pivot_table(index=["run_id", "module"], columns="phase", values=["main", "sum"], aggfunc="sum")
    sums = sums.dropna()
    assert sums.index.get_level_values("run_id").nunique() == num_backward
    assert (sums["main"]["backward"] == 2 * sums["main"]["forward"]).all()
    ratio = sums["sum"]["backward"] / sums["sum"]["forward"]
    of_run = sums["sum"].groupby("run_id").sum()
    assert ratio.between(1.25, 2.75).all() and ratio.groupby("module").median().between(1.6, 2.3).all()
    assert (of_run["backward"] / of_run["forward"]).between(1.75, 2.45).all()


def measure_shares_in_modules(folder) -> pd.DataFrame:
    """Measure the share of kernel time that has a module, of each run in BF16 in each phase of a step but the loss,
    which is outside of the model. The time of a kernel that does the work of several modules is divided among them."""
    runs = pd.read_parquet(folder / "runs.parquet")
    bf16 = runs.loc[(runs["precision"] == "bf16") & (runs["status"] == "ok"), "run_id"].astype(str)
    columns = ["run_id", "step", "phase", "module", "duration_ns"]
    rows = pd.read_parquet(folder / "kernels.parquet", columns=columns)
    rows = rows[(rows["step"] >= 0) & rows["run_id"].isin(bf16)].astype({"run_id": str, "phase": str, "module": str})
    rows = rows[rows["phase"].isin((ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER))]
    by = [rows["run_id"], rows["phase"]]
    placed = rows["duration_ns"].where(rows["module"] != "", 0).groupby(by).sum()
    return (placed / rows["duration_ns"].groupby(by).sum()).unstack()


def test_nearly_all_kernel_time_of_each_run_in_bf16_has_a_module_whether_it_is_compiled_or_not():
    found = [measure_shares_in_modules(folder) for folder in RECORDINGS if (folder / "kernels.parquet").is_file()]
    shares = pd.concat(found)
    is_compiled = shares.index.str.contains("compile_")
    assert is_compiled.sum() >= 29 and (~is_compiled).sum() >= 95
    least = shares.groupby(is_compiled)[[ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER]].min()
    assert (least >= LEAST_IN_MODULES).all(axis=None), least
