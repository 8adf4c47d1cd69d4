"""The benchmark's captures are what they claim to be, and both containers hold the same."""

import json

import pandas as pd

from analysis.reading.attribution import attribute
from analysis.reading.nsys_export import read
from analysis.reading.summary import summarise

from .__main__ import targets, write
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


def test_a_new_benchmark_keeps_what_was_measured_against_nsys(tmp_path):
    path = tmp_path / "new" / "reader.json"
    write({"results": [1], "targets": []}, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nsys_stats": {"kernels": 7}}))
    write({"results": [2], "targets": []}, path)
    assert json.loads(path.read_text()) == {"results": [2], "targets": [], "nsys_stats": {"kernels": 7}}


def test_growth_is_promised_in_time_and_in_memory():
    rows = [
        {"tool": "profiler-job", "container": "sqlite", "kernels": kernels, "seconds": seconds, "peak_bytes": peak}
        for kernels, seconds, peak in ((1_000_000, 2.0, 100), (5_000_000, 10.0, 600))
    ]
    growth = {one["what"]: (one["measured"], one["met"]) for one in targets(rows) if "against 1 M" in one["what"]}
    assert growth == {
        "5 M kernels against 1 M from sqlite: times the time": (5.0, True),
        "5 M kernels against 1 M from sqlite: times the peak memory": (6.0, False),
    }


def _end_of_parent(ranges):
    parent = ranges["parent_id"].to_numpy()
    end = ranges["end_ns"].to_numpy()
    return pd.Series(end[parent]).where(parent >= 0, end.max()).to_numpy()
