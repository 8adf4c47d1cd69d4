"""The benchmark's captures are what they claim to be, and both containers hold the same."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise

from . import compare_speed, history_speed
from .__main__ import growth, targets, write
from .generate import tables, write_parquetdir, write_sqlite


def test_generated_captures_are_sound(tmp_path):
    data = tables(20_000)
    write_sqlite(data, tmp_path / "x.sqlite")
    write_parquetdir(data, tmp_path / "x")
    one, two = read(tmp_path / "x.sqlite"), read(tmp_path / "x")
    for name in ("kernels", "memops", "api", "ranges"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(two, name))
    assert len(one.kernels) == 20_000
    assert one.kernels["process"].nunique() == 2
    assert one.api["thread"].nunique() == 4
    found = attribute(one)
    assert (found.kernels["attribution"] == "exact").all()
    assert found.ranges["depth"].max() == 3
    assert (found.ranges["end_ns"].to_numpy() <= _end_of_parent(found.ranges)).all()


def test_every_kernel_lies_in_one_block(tmp_path):
    data = tables(20_000)
    write_sqlite(data, tmp_path / "x.sqlite")
    ranges = summarise(read(tmp_path / "x.sqlite")).sections["ranges"]
    blocks = ranges[ranges["name"].str.startswith("block_")]
    assert blocks["kernel_calls"].sum() == 20_000


@pytest.mark.long
def test_peak_memory_is_of_the_measured_process_alone(tmp_path):
    write_sqlite(tables(100), tmp_path / "x.sqlite")
    ballast = np.ones(2**27)  # a gigabyte here must not show there
    command = [sys.executable, "-m", "tests.bench.measure", str(tmp_path / "x.sqlite")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert 2**25 < json.loads(done.stdout)["peak_bytes"] < ballast.nbytes / 2


def test_a_new_benchmark_keeps_what_was_measured_against_nsys(tmp_path):
    path = tmp_path / "new" / "reader.json"
    write({"results": [1], "targets": []}, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nsys_stats": {"kernels": 7}}))
    write({"results": [2], "targets": []}, path)
    assert json.loads(path.read_text()) == {"results": [2], "targets": [], "nsys_stats": {"kernels": 7}}


@pytest.mark.parametrize("of_five_s, times, is_met", [(10.9, 5.45, True), (11.1, 5.55, False)])
def test_five_million_kernels_may_take_so_many_times_as_long_as_one_million(of_five_s, times, is_met):
    rows = [
        {"tool": "profiler-job", "container": "sqlite", "kernels": kernels, "seconds": seconds, "peak_bytes": peak}
        for kernels, seconds, peak in ((1_000_000, 2.0, 100 * 2**20), (5_000_000, of_five_s, 4401 * 2**20))
    ]
    assert [(one["limit"], one["met"]) for one in targets(rows)] == [(3.0, True), (700 * 2**20, True), (5.5, is_met)]
    assert growth(rows) == [
        {"container": "sqlite", "kernels": [1_000_000, 5_000_000], "seconds": times, "peak_bytes": 44.01}
    ]
    assert growth(rows[:1]) == [] and len(targets(rows[:1])) == 2


def test_compare_may_cost_so_many_times_one_show():
    rows = [
        {"container": "sqlite", "kernels": 10, "times": 1.9},
        {"container": "parquetdir", "kernels": 10, "times": 2.6},
    ]
    before = {"targets": [{"what": "kept"}, *compare_speed.targets({"results": rows})], "machine": {}}
    made = compare_speed.joined(before, {"results": rows})
    assert made["targets"][0] == {"what": "kept"} and len(made["targets"]) == 3
    assert [target["met"] for target in made["targets"][1:]] == [True, False] and "machine" in made


@pytest.mark.nightly
def test_compare_is_measured_against_show():
    rows = compare_speed.measure(20_000, 1)["results"]
    assert [row["container"] for row in rows] == ["sqlite", "parquetdir"]
    assert all(row["compare_cpu_s"] > row["show_cpu_s"] / 2 > 0 for row in rows)


@pytest.mark.parametrize("seconds, is_met", [(19.9, True), (20.1, False)])
def test_a_history_of_400_captures_may_take_20_s(seconds, is_met):
    assert history_speed.make_target({"captures": 400, "kernels": 480, "seconds": seconds})["met"] is is_met


@pytest.mark.long
def test_a_history_of_generated_captures_is_measured():
    assert history_speed.measure(3)["seconds"] > 0


def _end_of_parent(ranges):
    parent = ranges["parent_id"].to_numpy()
    end = ranges["end_ns"].to_numpy()
    return pd.Series(end[parent]).where(parent >= 0, end.max()).to_numpy()
