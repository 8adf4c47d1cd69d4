"""A report of recordings whose kernels are read in parts is the report of the same recordings held in memory."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.metrics import kernel_time, timing
from profiler_job.analysis.recording import load_parts, store
from profiler_job.analysis.recording.load_parts import LARGE, load_recordings
from profiler_job.analysis.recording.publish_data import publish_data
from profiler_job.analysis.recording.run_table import RunTable, count_rows, keep_runs, read_whole
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.analysis.recording.verify import verify as verify_recordings
from profiler_job.analysis.site import write_site
from tests import frozen
from tests.synthetic import recording as made_up


def write(rec, folder):
    store.write(folder, {name: getattr(rec, name) for name in store.TABLES}, rec.manifest)
    return folder


def read_in_parts(folder, scratch, monkeypatch):
    """The recording of `folder`, with a part for each run."""
    monkeypatch.setattr(load_parts, "MOST_KERNELS", 0)
    monkeypatch.setattr(load_parts, "PART_KERNELS", 1)
    scratch.mkdir()
    (rec,) = load_recordings([folder], scratch)
    assert all(isinstance(getattr(rec, name), RunTable) for name in LARGE)
    return rec


@pytest.fixture
def folder(tmp_path):
    return write(made_up(("small", "2.7B"), (128, 1024)), tmp_path / "recording")


def test_parts_hold_the_rows_of_the_whole_table(folder, tmp_path, monkeypatch):
    whole, parts = store.load(folder), read_in_parts(folder, tmp_path / "scratch", monkeypatch)
    for name in LARGE:
        pd.testing.assert_frame_equal(read_whole(getattr(parts, name)), getattr(whole, name))
    assert len(parts.kernels.parts) == whole.kernels["run_id"].nunique() > 1
    assert {run for part in parts.kernels.parts for run in part.run_ids} == {*whole.runs["run_id"].astype(str)}


def test_batches_that_end_within_a_run_are_joined(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(load_parts, "BATCH_ROWS", 7)
    parts = read_in_parts(folder, tmp_path / "scratch", monkeypatch)
    pd.testing.assert_frame_equal(read_whole(parts.kernels), store.load(folder).kernels)


def test_measures_of_parts_are_those_of_the_whole_table(folder, tmp_path, monkeypatch):
    whole, parts = store.load(folder), read_in_parts(folder, tmp_path / "scratch", monkeypatch)
    for measure in (kernel_time.kernel_totals, kernel_time.num_steps_of_ranks, timing.num_devices, count_rows):
        expected = measure(whole.kernels)
        is_frame = isinstance(expected, pd.DataFrame)
        compare = pd.testing.assert_frame_equal if is_frame else pd.testing.assert_series_equal
        compare(measure(parts.kernels), expected)
    assert timing.clock_lead(parts.kernels) == timing.clock_lead(whole.kernels)


def test_kept_runs_are_read_from_their_parts_alone(folder, tmp_path, monkeypatch):
    whole, parts = store.load(folder), read_in_parts(folder, tmp_path / "scratch", monkeypatch)
    run = str(whole.kernels["run_id"].iloc[-1])
    for file in (tmp_path / "scratch").rglob("kernels-*"):
        if file not in {part.file for part in parts.kernels.parts if run in part.run_ids}:
            file.unlink()
    kept = read_whole(keep_runs(parts.kernels, {run}))
    assert len(kept) == (whole.kernels["run_id"].astype(str) == run).sum() > 0


def test_small_recordings_stay_in_memory(folder, tmp_path):
    (rec,) = load_recordings([folder], tmp_path)
    assert isinstance(rec.kernels, pd.DataFrame)


def test_runs_in_another_order_are_refused(folder, tmp_path, monkeypatch):
    rec = store.load(folder)
    monkeypatch.setattr(store, "_ordered", lambda name, frame, run_ids: frame)
    turned = dataclasses.replace(rec, kernels=rec.kernels.iloc[::-1].sort_values("run_id", ascending=False))
    write(turned, tmp_path / "turned")
    with pytest.raises(RecordingError, match="order"):
        read_in_parts(tmp_path / "turned", tmp_path / "scratch", monkeypatch)


@pytest.mark.nightly
def test_the_report_is_the_same(tmp_path, monkeypatch):
    main = frozen.load_study("")
    recs = [main, frozen.measure_again(main), *map(frozen.load_study, ("precision", "optimizer", "host"))]
    attention = frozen.load("attention")
    recs.append(
        dataclasses.replace(attention, manifest=attention.manifest | {"name": "attention", "study": "attention"})
    )
    folders = [write(rec, tmp_path / "data" / str(number)) for number, rec in enumerate(recs)]
    reports = {}
    for most in (10**9, 0):
        monkeypatch.setattr(load_parts, "MOST_KERNELS", most)
        monkeypatch.setattr(load_parts, "PART_KERNELS", 1)
        docs = tmp_path / f"docs{most}"
        docs.mkdir()
        write_site.publish(folders, docs)
        reports[most] = {path.relative_to(docs): path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    in_memory, in_parts = reports.values()
    assert in_parts.keys() == in_memory.keys()
    assert [path for path, content in in_memory.items() if in_parts[path] != content] == []


def test_verify_and_publication_read_a_large_recording_in_parts(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(load_parts, "MOST_KERNELS", 0)
    monkeypatch.setattr(load_parts, "PART_KERNELS", 1)
    monkeypatch.delattr(store, "load")
    assert not verify_recordings(folder).damage
    assert publish_data(folder, "large", tmp_path / "data", confirm=lambda question: True, show=lambda line: None)
    assert not list((tmp_path / "data").rglob("parts"))
