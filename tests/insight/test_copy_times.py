"""Copies that nothing waits for, by line: counted exactly in followed steps, and timed in clean ones."""

import json

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.modules import link_modules
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.copy_times import measure_marked_copies
from profiler_job.analysis.insight.recorded_waits import list_calls, read_waits
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.insight.sync_times import NO_LINE
from profiler_job.jobs.contract.ranges import COPY, FOLLOWED_STEP
from profiler_job.jobs.follow import host_copies
from tests.capture.nsys_files import Export
from tests.insight.test_recorded_waits import make_sections

US = 1000
TO_GPU, PAGEABLE = "memcpy Host-to-Device (pinned)", "memcpy Host-to-Device (pageable)"
PINNED_HOST, PAGEABLE_HOST = 1, 0


class Steps(Export):
    """Steps of 1 ms. The copies of each: how long the call takes (µs), the number of its range (None: no range), the
    memory of the host, and whether the CPU waits for it."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.launch(0)

    def step(self, *copies, followed=False):
        begin = self.now
        self.now += 1000 * US
        self.span(FOLLOWED_STEP if followed else "step", begin, self.now)
        at = begin + 100 * US
        for us, number, host, waits in copies:
            if followed and number is not None:
                self.push(f"{COPY}{number}", at - US, at + (us + 8) * US)
            correlation = self.call(at, at + us * US, name="cudaMemcpyAsync_v3020")
            self.copy(at + US, at + 2 * US, correlation, host=host)
            if waits:
                self.call(at + us * US + 500, at + (us + 5) * US, name="cudaStreamSynchronize_v3020")
            at += (us + 40) * US

    def measure(self, tmp_path):
        capture = read(self.sqlite(tmp_path / "profile.sqlite"), details=False)
        rows = measure_marked_copies(capture, attribute(capture))
        return [(row.number, row.text, row.count, row.time_ns / US) for row in rows.itertuples(index=False)]


def test_copies_have_the_number_of_the_range_around_them_and_the_time_of_clean_steps(tmp_path):
    steps = Steps()
    for us in (10, 20, 90, 90):
        copies = [(us, 1, PINNED_HOST, False), (us, 0, PAGEABLE_HOST, False), (us, 1, PINNED_HOST, False)]
        steps.step(*copies, followed=us == 90)
    assert steps.measure(tmp_path) == [(1, TO_GPU, 2, 30), (0, PAGEABLE, 1, 15)]


def test_a_copy_that_the_cpu_waits_for_is_left_out_and_one_without_a_range_has_no_line(tmp_path):
    steps = Steps()
    for followed in (False, True):
        steps.step((10, 3, PINNED_HOST, True), (10, None, PINNED_HOST, False), followed=followed)
    assert steps.measure(tmp_path) == [(NO_LINE, TO_GPU, 1, 10)]


def test_without_a_clean_step_with_the_same_copies_their_time_is_not_known(tmp_path):
    steps = Steps()
    steps.step((10, 0, PINNED_HOST, False), (10, 0, PINNED_HOST, False))
    steps.step((10, 0, PINNED_HOST, False), followed=True)
    ((number, text, count, time),) = steps.measure(tmp_path)
    assert (number, text, count) == (0, TO_GPU, 1) and np.isnan(time)


def test_a_script_without_followed_steps_has_none(tmp_path):
    steps = Steps()
    steps.step((10, 0, PINNED_HOST, False))
    assert steps.measure(tmp_path) == []


def test_ranges_around_copies_are_no_modules_and_in_no_table_of_ranges(tmp_path):
    export = Export()
    for name, begin in (("step", 0), (FOLLOWED_STEP, 1000 * US)):
        export.span(name, begin, begin + 900 * US)
        export.push("forward" if begin == 0 else "modules:forward", begin + US, begin + 800 * US)
        if begin:
            export.push("Net", begin + 2 * US, begin + 700 * US)
            export.push(f"{COPY}0", begin + 3 * US, begin + 40 * US)
        export.launch(begin + 5 * US)
    capture = read(export.sqlite(tmp_path / "x.sqlite"), details=False)
    attribution = attribute(capture)
    assert link_modules(capture, attribution).kernels["module"].astype(str).tolist() == ["Net", "Net"]
    ranges = summarise(capture).sections["ranges"]
    assert not ranges["name"].str.startswith(COPY).any() and ranges["name"].str.contains("Net").any()


@pytest.mark.parametrize("is_known", [True, False])
def test_pages_have_the_lines_of_copies_without_samples(tmp_path, is_known):
    steps = Steps()
    for followed in (False, True):
        steps.step((10, 0, PINNED_HOST, False), followed=followed)
    steps.sqlite(tmp_path / "profile.sqlite")
    (tmp_path / "timings.json").write_text(json.dumps({"steps": []}))
    line = {"rank": 0, "where": "train.py:7", "function": "main", "number": 0}
    (tmp_path / "host_waits.json").write_text(json.dumps({"syncs": [], "copies": [line] * is_known}))
    (row,) = read_waits(tmp_path)["sync_calls"].to_dict("records")
    place = ("train.py:7", "main") if is_known else ("", "")
    assert (row["where"], row["function"], row["call"], row["count"], row["time_ns"]) == (*place, TO_GPU, 1, 10 * US)


def test_samples_name_only_copies_that_no_range_is_around():
    """Of a kind of copies that all have one, nothing is taken from samples."""
    seen = [("a.py:1", "pinned", False, 2), ("b.py:2", "pinned", False, 2), ("", "pinned", False, 2)]
    place = {"rank": 0, "function": "f", "count": 1.0, "time_ns": 5}
    marked = place | {"where": "a.py:1", "call": "memcpy Device-to-Host (pinned)"}
    for unmarked, lines in (([], ["a.py:1"]), ([marked | {"where": ""}], ["a.py:1", "b.py:2", ""])):
        rows = pd.DataFrame(list_calls([], make_sections(seen), 2, [marked, *unmarked]))
        assert rows["where"].tolist() == lines
        assert rows["time_ns"].iloc[0] == 5


def make_allocations(tmp_path, *names, made):
    """Two clean steps and two followed ones with these calls, of 20 µs in clean steps and 90 µs in followed ones."""
    steps = Steps()
    for step in range(4):
        begin = steps.now
        steps.step(followed=step > 1)
        for number, name in enumerate(names):
            at = begin + (200 + 100 * number) * US
            steps.call(at, at + (90 if step > 1 else 10 * (number + 1)) * US, name=f"{name}_v3020")
    steps.sqlite(tmp_path / "profile.sqlite")
    (tmp_path / "timings.json").write_text(json.dumps({"steps": []}))
    calls = [{"rank": 0, "where": where, "function": "f", "call": call} for where, call in made]
    (tmp_path / "host_waits.json").write_text(json.dumps({"syncs": [], "copies": [], "allocations": calls}))
    rows = read_waits(tmp_path)["sync_calls"]
    return rows[["where", "call", "count", "time_ns"]].values.tolist()


def test_allocations_have_the_lines_that_the_allocator_shows_and_the_time_of_clean_steps(tmp_path):
    made = [("a.py:1", "cudaMalloc"), ("a.py:2", "cudaFree"), ("a.py:3", "cudaMalloc"), ("a.py:1", "cudaMalloc")]
    assert make_allocations(tmp_path, "cudaMalloc", "cudaFree", "cudaMalloc", "cudaMalloc", made=made) == [
        ["a.py:1", "cudaMalloc", 2, 50 * US],
        ["a.py:3", "cudaMalloc", 1, 30 * US],
        ["a.py:2", "cudaFree", 1, 20 * US],
    ]


def test_allocations_of_libraries_have_no_line_and_then_no_time_is_known(tmp_path):
    rows = make_allocations(tmp_path, "cudaMalloc", "cudaMalloc", made=[("a.py:1", "cudaMalloc")])
    assert rows == [["a.py:1", "cudaMalloc", 1, -1], ["", "cudaMalloc", 1, -1]]


def test_both_sides_have_the_same_name_of_a_range():
    assert host_copies.COPY == COPY
