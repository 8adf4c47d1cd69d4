"""The benchmark's captures are what they claim to be, and both containers hold the same."""

import pandas as pd

from analysis.reading.attribution import attribute
from analysis.reading.nsys_export import read
from analysis.reading.summary import summarise

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


def _end_of_parent(ranges):
    parent = ranges["parent_id"].to_numpy()
    end = ranges["end_ns"].to_numpy()
    return pd.Series(end[parent]).where(parent >= 0, end.max()).to_numpy()
