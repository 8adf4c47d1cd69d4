"""Starts and ends are stored as gaps and durations, and are the same when they are loaded. Launches are rounded."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler_job.analysis import pages
from profiler_job.analysis.recording import allowed, store, table_schema, times
from profiler_job.analysis.recording.store import RecordingError
from tests import synthetic

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
TABLES = ("kernels", "memops", "ranges")


def _recording(folder):
    made = synthetic.recording(("small",), (128, 256))
    store.write(folder, {name: getattr(made, name) for name in table_schema.TABLES}, {"name": "test"})
    return store.load(folder)


def _write_former_form(folder):
    """As an older version wrote it, whose manifest tells no SHA-256: with the times in its files."""
    loaded = _recording(folder)
    for name in table_schema.TABLES:
        file = folder / f"{name}.parquet"
        nothing = pa.schema(store.arrow_types(name).items()).empty_table()
        pq.write_table(store.read_table(name, file) if file.exists() else nothing, file)
    store.write_manifest(folder, {"name": "test"})
    return loaded


def _assert_the_same(one, other):
    for name in table_schema.TABLES:
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
    calls = loaded.kernels["launch_end_ns"] - loaded.kernels["launch_ns"]
    assert (stored["launch_duration_ticks"] * times.TICK_NS).equals(calls)
    summed = stored["range_step"].groupby(stored["run_id"], observed=True).cumsum()
    assert summed.tolist() == loaded.kernels["range_id"].tolist()


def _launches(num: int = 20_000):
    """Times of calls and starts, some of them unknown, some before their launch, many close to it."""
    draw = np.random.default_rng(0)
    start = draw.integers(-(2**40), 2**40, num)
    launch = start - draw.integers(-300, 3000, num)
    launch[::7] = start[::7]
    end = launch + draw.integers(0, 5000, num)
    end[::14] = start[::14]
    return launch, end, start


@pytest.mark.parametrize("has_ends", [True, False])
def test_launches_are_rounded_to_the_nearest_tick_and_stay_on_their_side_of_the_start(has_ends):
    launch, end, start = _launches()
    rounded, ends = times.round_launches(launch, end if has_ends else None, start)
    unknown = (launch == start) & ((end == start) | (not has_ends))
    assert (rounded[unknown] == start[unknown]).all()
    known = ~unknown
    assert not (rounded[known] % times.TICK_NS).any()
    off = rounded - launch
    assert abs(off).max() < times.TICK_NS
    nearest = (launch + times.TICK_NS // 2) // times.TICK_NS * times.TICK_NS
    stays = np.where(launch <= start, nearest < start, nearest > start)
    assert (rounded == nearest)[known & stays].all()
    assert ((rounded <= start) >= (launch <= start)).all() and ((rounded > start) == (launch > start)).all()
    assert not ((rounded == start) & (launch != start)).any(), "no known launch becomes unknown"
    if has_ends:
        assert (ends >= rounded).all()
        assert abs((ends - end)[ends > rounded]).max() <= times.TICK_NS // 2


def test_rounding_has_no_bias_and_is_done_once():
    launch = np.arange(-(10**5), 10**5)
    start = launch + 10**6
    rounded, ends = times.round_launches(launch, launch + 1000, start)
    assert abs((rounded - launch).mean()) < 1 and abs((ends - launch - 1000).mean()) < 1
    again, ends_again = times.round_launches(rounded, ends, start)
    assert (again == rounded).all() and (ends_again == ends).all()


@pytest.mark.parametrize("has_ends", [True, False])
def test_rounded_launches_come_back_from_ticks(has_ends):
    launch, end, start = _launches()
    runs = pa.array(np.repeat(["a", "b", "c", "a"], len(start) // 4)).dictionary_encode()
    columns = {"run_id": runs, "launch_ns": launch, **({"launch_end_ns": end} if has_ends else {}), "start_ns": start}
    table = pa.table(columns)
    stored = times.to_differences(table, [])
    assert stored["launch_gap_ticks"].null_count > 0, "of unknown launches"
    rounded, ends = times.round_launches(launch, end if has_ends else None, start)
    loaded = times.to_times(stored, [])
    assert loaded["launch_ns"].to_numpy().tolist() == rounded.tolist()
    assert not has_ends or loaded["launch_end_ns"].to_numpy().tolist() == ends.tolist()
    assert times.to_differences(loaded, []).equals(stored)


def test_a_table_whose_launches_are_all_unknown_comes_back():
    start = np.array([5, 17, 300])
    table = pa.table({"run_id": ["a", "a", "b"], "launch_ns": start, "launch_end_ns": start, "start_ns": start})
    stored = times.to_differences(table, [])
    assert stored["launch_gap_ticks"].null_count == stored["launch_duration_ticks"].null_count == 3
    assert times.to_times(stored, []).equals(table)


def test_what_is_written_twice_is_the_same(tmp_path):
    first = _recording(tmp_path / "first")
    store.write(tmp_path / "second", {name: getattr(first, name) for name in table_schema.TABLES}, {"name": "test"})
    second = store.load(tmp_path / "second")
    for name in TABLES:
        written = getattr(first, name)
        pd.testing.assert_frame_equal(getattr(second, name)[[*written]], written)


def test_launches_that_older_versions_wrote_exactly_are_read(tmp_path):
    table = pa.table(
        {
            "run_id": ["a", "a", "b"],
            "launch_gap_ns": [5, 7, 9],
            "launch_duration_ns": [1, 1, 1],
            "start_ns": [50, 70, 90],
        }
    )
    assert times.to_times(table, [])["launch_ns"].to_pylist() == [5, 13, 9]


@pytest.mark.parametrize("name", TABLES)
def test_the_lines_of_the_data_page_give_the_times_back(tmp_path, name):
    loaded = getattr(_recording(tmp_path), name)
    page = Path(pages.__file__).with_name("data_page.md").read_text(encoding="utf-8")
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "cumsum" in block)
    lines = lines.replace('"kernels.parquet"', repr(str(tmp_path / f"{name}.parquet")))
    exec(lines, {"pandas": pd}, found := {})
    pd.testing.assert_frame_equal(found["kernels"][["start_ns", "end_ns"]], loaded[["start_ns", "end_ns"]])


def test_a_recording_in_the_former_form_is_loaded_and_rewritten_in_the_new_one(tmp_path):
    loaded = _write_former_form(tmp_path / "former")
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
        (lambda table: table.drop_columns("duration_ns"), "lacks column launch_ns, launch_end_ns, start_ns, end_ns"),
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
        (_with("end_ns", lambda values: [[str(value) for value in values]]), "no numbers"),
        (_with("end_ns", lambda values: [[[value] for value in values]]), "no numbers"),
    ],
)
def test_times_of_the_former_form_that_are_none_are_refused(tmp_path, change, said):
    _write_former_form(tmp_path)
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
        return _with("launch_gap_ticks", lambda gaps: [[gaps[0] + 10 * abs(starts[0]) + 100, *gaps[1:]]])(table)

    _changed(tmp_path / "old", "kernels", change)
    kernels = store.load(tmp_path / "old").kernels
    assert (kernels["launch_ns"] > kernels["start_ns"]).iloc[0]
    assert kernels["attribution"].astype(str).tolist() == ["early", *("linked" for _ in others)]
    allowed.rewrite(tmp_path / "old", tmp_path / "new", store.read_manifest(tmp_path / "old"))
    stored = pd.read_parquet(tmp_path / "new" / "kernels.parquet")
    assert stored["attribution"].astype(str).tolist() == kernels["attribution"].astype(str).tolist()
