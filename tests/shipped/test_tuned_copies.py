"""What `tune` said of scripts of others, against copies with its patch that ran alone, and what the guide says."""

import json

import pytest

from tests.shipped.recordings import DATA

COPIES = json.loads((DATA / "benchmarks" / "tuned_copies.json").read_text())
TESTED = (DATA.parent / "guide" / "tested.md").read_text()
BY_GPU, BY_CPU = 0.05, 0.10
"""By how much a copy that runs alone may differ, where the GPU or the CPU limits it."""


def measure_distance(copy):
    return abs(copy["pairs"]["times_as_fast"] / copy["said"]["times_as_fast"] - 1)


@pytest.mark.parametrize("copy", COPIES, ids=[copy["script"] for copy in COPIES])
def test_a_copy_is_what_tune_said_of_it(copy):
    assert copy["used_s"] <= copy["budget_s"] + 1
    assert copy["is_bare"] and not copy["to_write"]
    assert measure_distance(copy) < (BY_CPU if copy["is_cpu_limited"] else BY_GPU)
    stated, seen = copy["losses_said"], copy["losses"]
    assert stated["first"] == pytest.approx(seen["first"], rel=0.01, abs=1e-4)
    if stated["num"] == seen["num"]:
        assert stated["largest"] == pytest.approx(seen["largest"], rel=0.01, abs=1e-4)
    else:  # of each of several backward passes of a step, and of their sum
        assert stated["num"] > seen["num"] and seen["largest"] < stated["largest"]


def test_the_guide_has_its_figures():
    said = [copy["said"]["times_as_fast"] for copy in COPIES]
    assert f"| H200 | {min(said):.1f} to {max(said):.1f} times as fast |" in TESTED
    by_gpu, by_cpu = (
        max(measure_distance(copy) for copy in COPIES if copy["is_cpu_limited"] == by_cpu) for by_cpu in (False, True)
    )
    assert f"within {100 * by_gpu:.0f}% if the GPU limits the step, {100 * by_cpu:.0f}% if the CPU does |" in TESTED
    lost = [copy["losses"]["largest"] for copy in COPIES]
    worst = max(COPIES, key=lambda copy: copy["losses"]["largest"])
    said, most = worst["losses_said"], f"{100 * max(lost):.0f}% (step {worst['losses_said']['step']} of chargpt in BF16"
    first = f"the first by {100 * said['first']:.2f}%), the others less than 1%"
    assert f"in {said['num']} steps by at most {most}, {first}" in TESTED and "chargpt" in worst["script"]
    assert sorted(lost)[-2] < 0.01
