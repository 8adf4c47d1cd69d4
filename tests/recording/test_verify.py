"""Every fault that a file of results or of a recording can have is named, and nothing damaged passes as good."""

import json
import os
import shutil
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import ingest, merge, publish_data, store, table_schema
from profiler_job.analysis.recording.verify import verify
from profiler_job.analysis.site.write_site import recordings_in
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import (
    CAPTURE,
    LOG,
    RECORD,
    SWEEP,
    TIMINGS,
    Machine,
    Protocol,
    RunRecord,
    TimedProcess,
)
from profiler_job.jobs.executor.result_store import Results, write_json
from tests.doses import sampled
from tests.recording.test_ingest import _TIMINGS, _capture

RUNS = [
    Run(
        size="tiny",
        d_model=16,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        context_length=length,
        mode="train_step",
        precision="fp32",
        attention="naive",
    )
    for length in (16, 32)
]
FIRST, SECOND = (run.run_id for run in RUNS)
PROTOCOL = Protocol(profiled_steps=3, processes=1)
KNOWN = PROTOCOL.model_dump() | {"schema_version": 2, "protocol_version": 2, "timed": [TimedProcess(position=0)]}


def write_results(folder: Path) -> Results:
    """Two finished runs, as a job writes them."""
    results = Results(folder / "results", "tiny")
    for run in RUNS:
        folder = results.begin(run)
        facts = KNOWN | {"machine": Machine(gpu_name="H200")}
        record = RunRecord(run_id=run.run_id, status="timed", run=run, started_at="2026-11-22T07:00:00+00:00", **facts)
        results.keep_timings(run, _TIMINGS)
        results.resume(run, results.keep_timed(run, record))
        (folder / LOG).write_text("what the run printed\n")
        _capture(steps=3).sqlite(folder / CAPTURE)
        results.finish(run, record.model_copy(update={"status": "ok"}))
    write_json(results.folder / SWEEP, {"sweep": "tiny", "runs": [FIRST, SECOND]})
    return results


@pytest.fixture
def results(tmp_path) -> Results:
    return write_results(tmp_path)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory) -> Path:
    """A recording of such results; each test that needs one has a copy."""
    folder = tmp_path_factory.mktemp("ingested")
    ingest.ingest(write_results(folder).folder, folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def recording(ingested, tmp_path) -> Path:
    return shutil.copytree(ingested, tmp_path / "recordings" / "main" / "tiny")


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def change_last_digit(file: Path) -> None:
    text = file.read_bytes()
    at = max(text.rfind(digit) for digit in b"123456789")
    file.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])


WITHOUT_ROWS = {
    "compile_notes",
    "figures",
    "module_memory",
    "nsys_sums",
    "processes",
    "sync_calls",
    "telemetry",
    "wait_stacks",
    "waits",
}
"""Tables that have no rows in the small recording of these tests, and so no file."""
WITH_ROWS = [name for name in table_schema.TABLES if name not in WITHOUT_ROWS]

FAULTS = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-2]),
    "empty": lambda file: file.write_bytes(b""),
    "deleted": Path.unlink,
    "a bit flipped": flip_bit,
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "a digit changed": change_last_digit,
}


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_whole_results_and_recordings_are_verified(results, recording, tmp_path):
    verified = verify(tmp_path)
    assert (verified.num_runs, verified.num_recordings, verified.damage, verified.unsealed) == (2, 1, {}, [])
    shown = run("verify", tmp_path)
    assert shown.exit_code == 0
    assert shown.output == "2 finished runs and 1 recording: 0 damaged, 0 cannot be checked\n"


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: (file.unlink(), file.symlink_to(file))])
def test_a_run_whose_record_is_lost_is_named(results, lose):
    lose(results.folder / FIRST / RECORD)
    assert verify(results.root).unfinished == [results.folder / FIRST]
    shown = run("verify", results.root)
    assert shown.exit_code == 0 and f"{results.folder / FIRST}: not finished: it has no run.json" in shown.output
    assert "1 finished run and 0 recordings" in shown.output


@pytest.mark.parametrize("name", [RECORD, SWEEP, TIMINGS])
def test_a_file_that_is_nested_too_deep_is_told(results, tmp_path, name):
    file = results.folder / (SWEEP if name == SWEEP else f"{FIRST}/{name}")
    file.write_text('{"a":' * 100_000)
    assert results.finished(RUNS[0], PROTOCOL) is None or name == SWEEP
    assert verify(results.root).damage
    assert run("ingest", results.folder, "--out", tmp_path / "out").exit_code in (1, 65)
    assert run("merge", results.folder, "--out", tmp_path / "merged").exit_code in (1, 65)


@pytest.mark.parametrize("content", ["[" * 100_000, "null", "[]", '"x"', '{"hashed_names": 1}'])
def test_a_manifest_that_is_none_is_told(recording, tmp_path, content):
    (recording / "manifest.json").write_text(content)
    assert run("verify", recording).exit_code == 1 or content.startswith("{")
    done = run("check-public", recording)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


@pytest.mark.parametrize(("name", "fault"), sampled(product([CAPTURE, TIMINGS, LOG], FAULTS), 4))
def test_a_damaged_file_of_a_run_is_named_by_everything_that_reads_it(results, tmp_path, name, fault):
    FAULTS[fault](results.folder / FIRST / name)
    assert results.finished(RUNS[0], PROTOCOL) is None  # so that it is measured again
    assert results.damage(RUNS[0]).startswith(name)
    assert results.finished(RUNS[1], PROTOCOL) is not None and not results.damage(RUNS[1])

    shown = run("verify", results.root)
    assert shown.exit_code == 1 and f"{results.folder / FIRST}: {name}" in shown.output

    out = tmp_path / "recording"
    shown = run("ingest", results.folder, "--out", out)
    assert shown.exit_code == 1
    assert f"{FIRST}: failed reading the files {name}" in shown.output
    assert "1 of 2 runs was measured and cannot be recorded, see above" in shown.output
    recorded = store.load(out)
    assert recorded.runs["status"].tolist() == ["failed", "ok"]
    assert set(recorded.kernels["run_id"].astype(str)) == set(recorded.steps["run_id"].astype(str)) == {SECOND}

    merged = merge.merge([results.folder], tmp_path / "merged")
    assert merged.runs == [SECOND] and f"finished it, but {name}" in merged.missing[FIRST]

    with pytest.raises(publish_data.PublishError, match=f"measured and cannot be recorded, see above: {FIRST}"):
        publish_data.publish_data(results.folder, "tiny", tmp_path / "data", lambda text: True)
    assert not (tmp_path / "data" / "main" / "tiny").exists()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "deleted"])
def test_a_damaged_record_is_no_record(results, tmp_path, fault):
    FAULTS[fault](results.folder / FIRST / RECORD)
    assert results.finished(RUNS[0], PROTOCOL) is None
    assert results.damage(RUNS[0]).startswith("run.json is not a valid record of a run")
    assert verify(results.root).damage.keys() == {results.folder / FIRST}
    with pytest.raises(ingest.ResultsError, match="run the sweep again to measure it anew"):
        ingest.ingest(results.folder, tmp_path / "recording")
    assert not (tmp_path / "recording").exists()


def test_a_digest_that_was_removed_is_damage(results):
    file = results.folder / FIRST / RECORD
    content = json.loads(file.read_text())
    del content["digest"]
    file.write_text(json.dumps(content))
    assert "its digest differs" in results.damage(RUNS[0])


def test_damaged_timings_of_a_timed_run_are_measured_again(results):
    folder = results.begin(RUNS[0])
    record = RunRecord(run_id=FIRST, status="timed", run=RUNS[0], **KNOWN)
    results.keep_timings(RUNS[0], _TIMINGS)
    results.keep_timed(RUNS[0], record)
    assert results.timed(RUNS[0], PROTOCOL) is not None
    change_last_digit(folder / TIMINGS)
    assert results.timed(RUNS[0], PROTOCOL) is None
    assert results.damage(RUNS[0]).startswith(TIMINGS)


def test_a_run_of_an_older_version_cannot_be_checked(results):
    file = results.folder / FIRST / RECORD
    content = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("digest", "files")}
    file.write_text(json.dumps(content | {"schema_version": 1}))
    verified = verify(results.root)
    assert (verified.damage, verified.unsealed) == ({}, [results.folder / FIRST])
    assert results.finished(RUNS[0], PROTOCOL) is not None


@pytest.mark.parametrize(("name", "fault"), sampled(product((f"{name}.parquet" for name in WITH_ROWS), FAULTS), 5))
def test_a_damaged_table_is_named_and_not_loaded(recording, tmp_path, name, fault):
    FAULTS[fault](recording / name)
    with pytest.raises(store.RecordingError, match=f"{name}.*ingest again"):
        store.load(recording)
    shown = run("verify", recording)
    assert shown.exit_code == 1 and name in shown.output
    with pytest.raises(store.RecordingError, match=name):
        publish_data.publish_data(recording, "tiny", tmp_path / "data", lambda text: True)
    assert not (tmp_path / "data" / "main" / "tiny").exists()


@pytest.mark.parametrize("fault", sampled(FAULTS, 3))
def test_a_damaged_manifest_is_named_and_not_loaded(recording, fault):
    FAULTS[fault](recording / "manifest.json")
    with pytest.raises(store.RecordingError, match=r"manifest\.json"):
        store.load(recording)


def test_a_recording_mixed_from_two_does_not_load(results, recording, tmp_path):
    shutil.rmtree(results.folder / SECOND)
    other = tmp_path / "recordings" / "other"
    ingest.ingest(results.folder, other)
    shutil.copy(other / "steps.parquet", recording / "steps.parquet")
    with pytest.raises(store.RecordingError, match=r"steps\.parquet has .* bytes"):
        store.load(recording)


def test_a_recording_takes_the_place_of_another_as_a_whole(results, recording, monkeypatch):
    before = {file.name: file.read_bytes() for file in recording.iterdir()}
    monkeypatch.setattr(store, "write_manifest", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(store.RecordingError, match=r"cannot be written \(No space left\)"):
        ingest.ingest(results.folder, recording)
    assert {file.name: file.read_bytes() for file in recording.iterdir()} == before
    assert [one.name for one in recording.parent.iterdir()] == [recording.name]


def test_what_a_killed_publication_left_is_no_recording(recording, tmp_path):
    """It was refused as one with the same runs."""
    data = tmp_path / "data"
    for _ in range(2):
        publish_data.publish_data(recording, "tiny", data, lambda text: True)
        shutil.copytree(data / "main" / "tiny", data / "main" / ".tiny.old", dirs_exist_ok=True)
    assert recordings_in(data) == [data / "main" / "tiny"]


@pytest.mark.parametrize(
    "path", sampled(["load", "list", "pages", "site", "ingest", "publish another", "publish it"], 3)
)
def test_a_recording_that_a_killed_replacement_hid_is_put_back(results, recording, tmp_path, path):
    """Killed between the two renames of `integrity.replace`; whatever comes of the step that notices it."""
    before = {file.name: file.read_bytes() for file in recording.iterdir()}
    recording.rename(recording.with_name(f".{recording.name}.old"))
    match path:
        case "load":
            store.load(recording)
        case "list":
            assert recordings_in(recording.parent) == [recording]
        case "pages":
            run("site", "--pages-only", "--recording", recording, "--docs", tmp_path / "docs")
        case "site":
            run("site", "--shipped", "--results", tmp_path, "--recording", recording)
        case "ingest":
            assert run("ingest", tmp_path / "missing", "--out", recording).exit_code == 2
        case "publish another":
            with pytest.raises(publish_data.PublishError, match="cannot show a run twice"):
                publish_data.publish_data(results.folder, "other", recording.parents[1], lambda text: True)
        case "publish it":
            publish_data.publish_data(recording, "tiny", tmp_path / "data", lambda text: True)
    assert {file.name: file.read_bytes() for file in recording.iterdir()} == before
    assert not [one.name for one in recording.parent.glob(".*")]


def test_what_cannot_be_put_back_is_named(recording, monkeypatch):
    old = recording.with_name(f".{recording.name}.old")
    recording.rename(old)
    denied = OSError(30, "Read-only file system", str(old), None, str(recording))
    monkeypatch.setattr(store, "restore", lambda folder: (_ for _ in ()).throw(denied))
    with pytest.raises(store.RecordingError, match=rf"{old} .*{recording} again \(Read-only file system\): rename it"):
        store.load(recording)


def test_a_folder_with_other_files_is_not_replaced(results, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all my work")
    shown = run("ingest", results.folder, "--out", tmp_path / "mine")
    assert shown.exit_code == 2 and "thesis.tex" in shown.output
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_folder_without_results_is_an_error(tmp_path):
    shown = run("verify", tmp_path / "missing")
    assert shown.exit_code == 2 and "holds no finished run and no recording" in shown.output


@pytest.mark.parametrize("name", ["run.json", TIMINGS, CAPTURE])
def test_a_pipe_among_the_files_of_a_run_hangs_nothing(results, name):
    (results.folder / FIRST / name).unlink()
    os.mkfifo(results.folder / FIRST / name)
    assert "not a regular file" in run("verify", results.root).output.replace("cannot be read (", "")
    assert results.finished(RUNS[0], PROTOCOL) is None


def test_a_pipe_in_place_of_a_table_hangs_nothing(recording):
    (recording / "kernels.parquet").unlink()
    os.mkfifo(recording / "kernels.parquet")
    with pytest.raises(store.RecordingError, match=r"kernels\.parquet cannot be read"):
        store.load(recording)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tables", [1], "tables: "),
        ("tables", {"kernels": "x"}, "tables.kernels: "),
        ("tables", {"kernels": {"rows": 1}}, "tables.kernels.bytes: "),
        ("runs", {"x": 1}, "runs: "),
        ("runs", ["x"], "runs.0: "),
    ],
)
def test_a_manifest_of_wrong_types_is_named(recording, key, value, said):
    change_manifest(recording, key, value)
    shown = run("verify", recording)
    assert shown.exit_code == 1 and f"manifest.json is not a manifest ({said}" in shown.output


def change_manifest(recording: Path, key: str, value: object) -> None:
    """As by hand: without a digest, as older manifests are."""
    file = recording / "manifest.json"
    told = json.loads(file.read_text()) | {key: value}
    del told["digest"]
    file.write_text(json.dumps(told))


def test_a_recording_whose_manifest_does_not_tell_of_its_tables_is_not_called_whole(recording):
    change_manifest(recording, "tables", {})
    for name in WITHOUT_ROWS:  # such versions wrote them, too
        empty = pa.schema(store.arrow_types(name).items()).empty_table()
        store.write_table(name, empty, recording / f"{name}.parquet")
    verified = verify(recording)
    assert verified.unsealed == [recording] and not verified.damage


def test_a_table_that_is_in_no_manifest_is_named_beside_one_that_is_damaged(recording):
    """It passed as a recording of an older version."""
    shutil.copy(recording / "steps.parquet", recording / "extra.parquet")
    shown = run("verify", recording)
    assert shown.exit_code == 1 and "manifest.json does not list extra.parquet" in shown.output
    assert "1 damaged, 0 cannot be checked" in shown.output
    flip_bit(recording / "kernels.parquet")
    shown = run("verify", recording)
    assert shown.exit_code == 1 and "kernels.parquet" in shown.output and "extra.parquet" in shown.output
