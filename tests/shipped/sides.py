"""The shipped recordings as sides of a comparison, each loaded once."""

from dataclasses import replace
from functools import cache

from profiler_job.analysis.comparison import judge, sides
from tests.shipped.recordings import locate

AXES = {
    "precision": ("precision",),
    "optimizer": ("optimizer",),
    "attention": ("attention_bf16", "attention_bf16_long", "attention_fp32"),
    "compile": ("compile",),
}
"""The studies of an axis, by axis."""


@cache
def side(name: str) -> sides.Side:
    return sides.load_side(locate(name))


@cache
def _measured_runs(name: str) -> dict[str, judge.MeasuredCase]:
    runs = side(name).runs["run_id"]
    return dict(zip(runs, judge.measure(side(name), [(run,) for run in runs]), strict=True))


def measured(name: str, run_id: str) -> judge.MeasuredCase:
    """A run alone; all of a recording are measured at once, since each alone looks through its tables."""
    return _measured_runs(name)[run_id]


def select(name: str, *only: str) -> sides.Side:
    return sides.select_runs(replace(side(name)), only, locate(name))


def pairs_along(axis: str):
    """(recording, run_id of A, run_id of B) of each two runs that differ in nothing but `axis`."""
    for name in AXES[axis]:
        runs = side(name).runs
        others = [other for other in ("size", "context_length", "mode") if other != axis]
        for _, group in runs.groupby(others, sort=False):
            ids = list(group["run_id"])
            yield from ((name, a, b) for i, a in enumerate(ids) for b in ids[i + 1 :])
