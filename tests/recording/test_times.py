"""Starts and ends are stored as gaps and durations, and are the same times when they are loaded."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler_job.analysis import pages
from profiler_job.analysis.recording import allowed, store, times
from profiler_job.analysis.recording.store import RecordingError
from tests import synthetic

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
TABLES = ("kernels", "memops", "ranges")


def _recording(folder):
    made = synthetic.recording(("small",), (128, 256))
    store.write(folder, {name: getattr(made, name) for name in store.TABLES}, {"name": "test"})
    return store.load(folder)


def _in_the_former_form(folder):
    """As an older version wrote it, whose manifest tells no SHA-256: with the times in its files."""
    loaded = _recording(folder)
    for name in store.TABLES:
        pq.write_table(store.read_table(name, file := folder / f"{name}.parquet"), file)
    store.write_manifest(folder, {"name": "test"})
    return loaded


def _assert_the_same(one, other):
    for name in store.TABLES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))


def _changed(folder, name, change):
    """`change` makes a new table of the stored one."""
    file = folder / f"{name}.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    store.write_manifest(folder, {"name": "test"})


@pytest.mark.parametrize("runs", [[], ["a"], ["a"] * 50, [*"aaaabbbcd"] * 3, [*"ab"] * 20])
@pytest.mark.parametrize("least, most", [(0, 9), (-9, 9), (LEAST, MOST)])
def test_all_times_come_back(runs, least, most):
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(least, most, len(runs), endpoint=True) for pair in times.PAIRS for name in pair[:2]}
    table = pa.table({"run_id": pa.array(runs, pa.string()).dictionary_encode(), **columns})
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    stored = times.to_differences(chunked, times.PAIRS)
    assert stored.column_names == ["run_id", *(name for pair in times.PAIRS for name in pair[2:])]
    assert times.to_times(stored, times.PAIRS).equals(table)


def test_files_hold_gaps_and_durations(tmp_path):
    loaded = _recording(tmp_path)
    for name in TABLES:
        frame = getattr(loaded, name).astype({"run_id": str})
        stored = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert not {"start_ns", "end_ns"} & {*stored}
        before = frame.groupby("run_id")["end_ns"].shift(1, fill_value=0)
        assert stored["gap_ns"].equals(frame["start_ns"] - before), name
        assert stored["duration_ns"].equals(frame["end_ns"] - frame["start_ns"]), name
    stored = pd.read_parquet(tmp_path / "kernels.parquet")
    assert stored["launch_duration_ns"].equals(loaded.kernels["launch_end_ns"] - loaded.kernels["launch_ns"])


@pytest.mark.parametrize("name", TABLES)
def test_the_lines_of_the_data_page_give_the_times_back(tmp_path, name):
    loaded = getattr(_recording(tmp_path), name)
    page = Path(pages.__file__).with_name("data_page.md").read_text(encoding="utf-8")
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "cumsum" in block)
    lines = lines.replace('"kernels.parquet"', repr(str(tmp_path / f"{name}.parquet")))
    exec(lines, {"pandas": pd}, found := {})
    pd.testing.assert_frame_equal(found["kernels"][["start_ns", "end_ns"]], loaded[["start_ns", "end_ns"]])


def test_a_recording_in_the_former_form_is_loaded_and_rewritten_in_the_new_one(tmp_path):
    loaded = _in_the_former_form(tmp_path / "former")
    assert {"start_ns", "end_ns"} <= {*pq.read_schema(tmp_path / "former" / "kernels.parquet").names}
    former = store.load(tmp_path / "former")
    _assert_the_same(former, loaded)
    assert allowed.rewrite(tmp_path / "former", tmp_path / "new", former.manifest) == []
    assert {"gap_ns", "duration_ns"} <= {*pq.read_schema(tmp_path / "new" / "kernels.parquet").names}
    _assert_the_same(store.load(tmp_path / "new"), loaded)


def _with(column, make):
    return lambda table: table.set_column(table.column_names.index(column), column, make(table[column].to_pylist()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_with("duration_ns", lambda values: [[-1, *values[1:]]]), "ends before it starts"),
        (_with("gap_ns", lambda values: [[MOST, *values[1:]]]), "ends before it starts"),
        (
            _with("gap_ns", lambda values: [[None, *values[1:]]]),
            "gap_ns is int64, 1 of it absent",
        ),
        (_with("gap_ns", lambda values: [[str(value) for value in values]]), "gap_ns is string"),
        (_with("gap_ns", lambda values: [[value + 0.5 for value in values]]), "gap_ns is double"),
        (_with("gap_ns", lambda values: pa.array([2**64 - 1] * len(values), pa.uint64())), "cannot be read"),
        (lambda table: table.append_column("gap_ns", table["gap_ns"]), "cannot be read"),
        (lambda table: table.drop_columns("duration_ns"), "lacks column start_ns, end_ns"),
        (lambda table: table.drop_columns("run_id"), "lacks column run_id"),
    ],
)
def test_differences_that_are_none_are_refused(tmp_path, change, said):
    _recording(tmp_path)
    _changed(tmp_path, "kernels", change)
    with pytest.raises(RecordingError, match=rf"kernels\.parquet.*{said}"):
        store.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_with("end_ns", lambda values: [[-1, *values[1:]]]), "ends before it starts"),
        (_with("end_ns", lambda values: [[str(value) for value in values]]), "times that are no numbers"),
        (_with("end_ns", lambda values: [[[value] for value in values]]), "times that are no numbers"),
    ],
)
def test_times_of_the_former_form_that_are_none_are_refused(tmp_path, change, said):
    _in_the_former_form(tmp_path)
    _changed(tmp_path, "kernels", change)
    with pytest.raises(RecordingError, match=rf"kernels\.parquet has .*{said}"):
        store.load(tmp_path)


def test_a_table_of_no_times_may_hold_a_start_without_an_end(tmp_path):
    _recording(tmp_path)
    _changed(tmp_path, "runs", lambda table: table.append_column("start_ns", pa.array([1] * len(table))))
    assert "start_ns" in store.load(tmp_path).runs


def test_kernels_before_their_launch_are_early_in_recordings_that_call_them_exact(tmp_path):
    """On loading, and once rewritten in the file, too. What is known in another way stays what it is."""
    loaded = _recording(tmp_path / "old")
    starts = loaded.kernels["start_ns"].tolist()
    _, *others = loaded.kernels["attribution"].astype(str)
    told = ["exact", *("linked" for _ in others)]

    def change(table):
        table = _with("attribution", lambda _: pa.array(told).dictionary_encode())(table)
        table = _with("launch_gap_ns", lambda gaps: [[gaps[0] + 10 * abs(starts[0]) + 100, *gaps[1:]]])(table)
        return table

    _changed(tmp_path / "old", "kernels", change)
    kernels = store.load(tmp_path / "old").kernels
    assert (kernels["launch_ns"] > kernels["start_ns"]).iloc[0]
    assert kernels["attribution"].astype(str).tolist() == ["early", *("linked" for _ in others)]
    allowed.rewrite(tmp_path / "old", tmp_path / "new", store.read_manifest(tmp_path / "old"))
    stored = pd.read_parquet(tmp_path / "new" / "kernels.parquet")
    assert stored["attribution"].astype(str).tolist() == kernels["attribution"].astype(str).tolist()
