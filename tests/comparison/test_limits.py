"""A comparison says what limits each side, in the words of a run's page."""

import pytest

from profiler_job.analysis.comparison import print_comparison
from profiler_job.analysis.comparison.compare_formats import as_text, describe_limits
from profiler_job.analysis.insight import run_limit
from profiler_job.analysis.insight.insight import interpret_run
from profiler_job.analysis.metrics import step_limits
from tests import frozen

COMMON = "size=small,context_length=512,mode=train_step"


@pytest.mark.long
def test_a_pair_has_the_limits_that_the_pages_of_its_runs_have():
    rec = frozen.load("one_gpu")
    paths = dict.fromkeys(("first", "second"), frozen.ONE_GPU)
    only = {"only_first": [f"{COMMON},precision=fp32"], "only_second": [f"{COMMON},precision=bf16"]}
    comparison = print_comparison.load(print_comparison.Request(**paths, **only))
    (pair,) = comparison.pairs
    elapsed = run_limit.split_steps(rec.kernels, rec.memops)
    limits = step_limits.find_limits(rec.steps, rec.kernels, rec.memops)
    wanted = []
    for (run_id,) in (pair.case.first, pair.case.second):
        nothing = rec.kernels.head(0)
        findings = run_limit.find(nothing, rec.memops.head(0))
        mine = elapsed[elapsed["run_id"] == run_id]
        wanted.append(interpret_run(mine, nothing, findings, [], limits[run_id]).sentences.verdict[0])
    assert describe_limits(comparison) == wanted and wanted[0] != wanted[1]
    text = " ".join(as_text(comparison, [], 3).split())
    assert all(f"{letter}: {limit}" in text for letter, limit in zip("AB", wanted, strict=True))
