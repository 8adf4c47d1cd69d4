"""What `tune` said of scripts of others, against copies with its patch that ran alone, and what the guide says."""

import json

import pytest

from tests.shipped.recordings import DATA

COPIES = json.loads((DATA / "benchmarks" / "tuned_copies.json").read_text())
TESTED = (DATA.parent / "guide" / "tested.md").read_text()
BY_GPU, BY_CPU = 0.05, 0.101
"""By how much a copy that runs alone may differ, where the GPU or the CPU limits it."""


@pytest.mark.parametrize("copy", COPIES, ids=[copy["script"] for copy in COPIES])
def test_a_copy_is_what_tune_said_of_it(copy):
    said, alone = copy["said"], copy["pairs"]
    assert copy["used_s"] <= copy["budget_s"] and not copy["to_write"]
    assert abs(alone["times_as_fast"] / said["times_as_fast"] - 1) < (BY_CPU if copy["is_cpu_limited"] else BY_GPU)
    assert said["low"] <= alone["high"] and alone["low"] <= said["high"]
    stated, seen = copy["losses_said"], copy["losses"]
    assert seen["largest"] < 0.01
    if stated["num"]:
        assert stated["first"] == pytest.approx(seen["first"], abs=1e-4)
        assert seen["num"] < stated["num"] or stated["largest"] == pytest.approx(seen["largest"], abs=1e-4)


def test_losses_are_not_compared_where_the_search_left_no_time():
    assert [copy["script"] for copy in COPIES if not copy["losses_said"]["num"]] == ["GPT-2 124M of Transformers"]


@pytest.mark.parametrize("copy", COPIES, ids=[copy["script"] for copy in COPIES])
def test_the_guide_has_its_figures(copy):
    row = next(line for line in TESTED.splitlines() if line.startswith(f"| {copy['script']}"))
    before, after = copy["median_ms"]
    said, alone = copy["said"], copy["pairs"]["times_as_fast"]
    assert f"| {said['times_as_fast']:.2f} [{said['low']:.2f}, {said['high']:.2f}] | {alone:.2f} |" in row
    assert row.endswith(f"| {before:.1f} to {after:.1f} |")
    losses = [each["largest"] for each in (copy["losses_said"], copy["losses"])]
    shown = ["none" if loss is None else f"{100 * loss:.2g}%" for loss in losses]
    assert f"| {', '.join(shown)} |" in row
