"""A history of the two shipped recordings of the same runs."""

import pytest

from profiler_job.analysis.recording import store
from tests.comparison.test_history import as_json, run
from tests.shipped.recordings import locate


@pytest.mark.long
def test_the_shipped_recordings_of_the_same_runs_are_a_history():
    made = as_json(locate("h200-fp32"), locate("again"), "--metric", "kernel")
    (group,) = made["groups"]
    assert [entry["name"] for entry in made["entries"]] == ["h200-fp32", "again"]
    assert len(group["lines"]) == 60
    marked = [line for line in group["lines"] if line["points"][1]["verdict"] != "within"]
    assert len(marked) <= 3
    assert [entry["commit"] for entry in made["entries"]] == ["d9d54b851022", "bb609d20d7df"]


@pytest.mark.nightly
def test_every_name_is_printed_whole_and_no_change_is_said():
    done = run(locate("again"), locate("h200-fp32"))
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in done.stdout
    names = store.load(locate("again")).runs
    for size, context, mode in names[["size", "context_length", "mode"]].itertuples(index=False):
        assert sum(line.startswith(f"{size} context {context} {mode} ") for line in lines) == 1
    assert "No measurable change in 60 points" in lines
