"""What is known of steps under torch.compile, for the page on the anatomy of a step."""

from collections.abc import Mapping

import pandas as pd

from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.pages.extreme_rows import count_all, extremes
from profiler_job.analysis.pages.home_cases import BF16, COMPILED, FP32_COMPILED
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.answer import Answer, Claim, assemble
from profiler_job.jobs.contract.changes import COMPILE
from profiler_job.jobs.contract.modes import MODES

STATES = (COMPILED, FP32_COMPILED)
"""The states of compiled steps, the preferred one first."""


def answer(runs: pd.DataFrame, captured: Mapping[str, store.Recording], gains: pd.DataFrame | None) -> Answer:
    """Return how much faster BF16 training steps are if they are compiled, and which compiled runs were captured.

    runs: of `home_cases.list_runs`. captured: runs with kernels, by state. gains: as in `prediction.measured`.
    num_captured: the captured runs of the first of STATES; num_without_modules: captured runs of whose kernels no
    module is known.
    """
    num_captured = num_with_modules = 0
    if first := next((captured[state] for state in STATES if state in captured), None):
        totals = kernel_time.kernel_totals(first.kernels)
        num_captured, num_with_modules = len(first.runs), totals.loc[totals["module"] != "", "run_id"].nunique()
    steps = _select_gains(runs, gains)
    steady = steps[steps["apart"] <= MOST_APART]
    return assemble(
        {
            "num_captured": num_captured,
            "is_in_bf16": COMPILED in captured,
            "num_without_modules": num_captured - num_with_modules,
        },
        [
            Claim("faster", steady[steady["gains"]], facts=count_all(steady, extremes("speedup"))),
            Claim("unsteady", steps[steps["gains"]], lambda rows: steady.empty, facts=count_all(steps)),
            Claim("not_faster", steps, lambda rows: not rows["gains"].any()),
        ],
        [],
        [],
    )


def _select_gains(runs: pd.DataFrame, gains: pd.DataFrame | None) -> pd.DataFrame:
    """Select what compiling gives to BF16 training steps, with their `speedup`."""
    if gains is None:
        return pd.DataFrame({"gains": pd.Series(dtype=bool), "apart": [], "speedup": []})
    usual = runs[(runs["state"] == BF16) & (runs["mode"] == MODES[-1]) & (runs["distance"] <= 1)]
    is_compiled = gains["changes"].map(lambda names: names == (COMPILE,)).astype(bool)
    rows = gains[is_compiled & gains["run_id"].isin(usual["run_id"])]
    return rows.assign(gains=rows["gains"].astype(bool), speedup=rows["times_as_fast"])
