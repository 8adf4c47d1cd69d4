"""The parts of each difference between two shipped runs sum to it exactly, and the first of them is the true cause."""

import itertools
from fractions import Fraction

import pytest

from profiler_job.analysis.comparison import noise, waterfall
from tests.comparison.recorded_sides import pairs_along
from tests.comparison.test_waterfall import check_axis, explain, is_exact
from tests.shipped.recordings import locate
from tests.shipped.sides import AXES, measured, side


def list_pairs(axis):
    """List the pairs along an axis in the recordings of its study."""
    return [pair for name in AXES[axis] for pair in pairs_along(axis, locate(name))]


@pytest.mark.long
@pytest.mark.parametrize(
    ("axis", "num_pairs"), [("precision", 12), ("optimizer", 11), ("attention", 71), ("compile", 12)]
)
def test_what_an_axis_changes_is_named_and_sums_exactly(axis, num_pairs):
    assert check_axis(axis, list_pairs(axis)) == num_pairs


@pytest.mark.nightly
def test_two_recordings_of_the_same_runs_sum_exactly():
    runs = side("h200-fp32").runs["run_id"]
    assert len(runs) == 60
    for run in runs:
        assert is_exact(explain(measured("h200-fp32", run).totals, measured("again", run).totals)), run


@pytest.mark.long
def test_the_parts_of_a_token_sum_to_the_nanosecond_on_every_two_contexts():
    runs = side("h200-fp32").runs
    num_pairs = 0
    for _, group in runs.groupby(["size", "mode"]):
        tokens = dict(zip(group["run_id"], group["context_length"] * group["batch_size"]))
        for a, b in itertools.pairwise(tokens):
            totals = [measured("h200-fp32", run).totals for run in (a, b)]
            made = waterfall.explain(*totals, noise.SHIPPED, tokens=(int(tokens[a]), int(tokens[b])))
            assert sum(cause.ns for cause in made.causes) == made.difference_ns, (a, b)
            walls = [Fraction(of.wall_ns, of.num * int(tokens[run])) for of, run in zip(totals, (a, b))]
            assert [Fraction(ns, made.num * 1000) for ns in (made.first_ns, made.second_ns)] == walls
            num_pairs += 1
    assert num_pairs == 45
