"""The shipped recordings as sides of a comparison."""

from profiler_job.analysis.comparison import judge, sides
from tests.comparison import recorded_sides
from tests.shipped.recordings import locate

AXES = {
    "precision": ("changes_1", "changes_2"),
    "optimizer": ("changes_1", "changes_2"),
    "attention": ("attention_bf16", "attention_bf16_long", "attention_fp32"),
    "compile": ("compile",),
}
"""The studies of an axis, by axis."""


def side(name: str) -> sides.Side:
    return recorded_sides.load_recorded_side(locate(name))


def measured(name: str, run_id: str) -> judge.MeasuredCase:
    return recorded_sides.measure(run_id, locate(name))
