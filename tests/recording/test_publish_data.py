"""What becomes public is shown first, and nothing private does."""

import json
import socket
import subprocess
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import allowed, publish_data, store, table_schema
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.analysis.recording.publish_data import PublishError
from profiler_job.analysis.recording.scan import read_texts
from profiler_job.jobs.contract.integrity import read_facts
from profiler_job.jobs.contract.privacy import hash_names
from tests import frozen
from tests.doses import sampled
from tests.recording.planted import ALL, NAMES, PLANTED

RUN = "small-ctx128-fp32-naive-forward"


HASHED = hash_names(NAMES, "salt")


def results(folder, message="out of memory", run_id=RUN, hashed_names=()):
    """The results folder of a sweep with one run that went out of memory, and with what nobody should publish."""
    about = {
        "run_id": run_id,
        "status": "oom",
        "status_detail": {"phase": "forward", "message": message},
        "run": {"size": "small", "d_model": 8, "context_length": 128, "mode": "forward"},
        "machine": {"gpu_name": "NVIDIA H200", "hostname": "planted-host"},
        "hashed_names": list(hashed_names),
        "started_at": "2026-11-21T07:00:00Z",
        "wall_s": 1.5,
    }
    (folder / run_id).mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"sweep": "default", "runs": [run_id]}))
    (folder / run_id / "run.json").write_text(json.dumps(about))
    (folder / run_id / "log.txt").write_text("HF_TOKEN=planted-in-a-log")
    return folder


def publish(source, data, name="h200", answer=True):
    shown = []
    asked = []
    folder = publish_data.publish_data(source, name, data, lambda text: asked.append(text) or answer, shown.append)
    return folder, "\n".join(shown), asked


def test_results_are_shown_confirmed_and_published(tmp_path):
    folder, shown, asked = publish(results(tmp_path / "results"), tmp_path / "data")
    assert folder == tmp_path / "data" / "main" / "h200"
    assert store.load(folder).manifest["name"] == "h200"
    for table in store.read_manifest(folder)["tables"]:
        assert table in shown
    assert all(text in shown for text in ("gpu: NVIDIA H200", f"{RUN} ", "oom forward out of memory", "bytes in"))
    assert len(asked) == 1 and str(folder) in asked[0]
    assert b"planted" not in b"".join(file.read_bytes() for file in folder.iterdir())
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["main"]


def test_a_second_recording_of_the_same_runs_is_published_as_the_study_of_them(tmp_path):
    publish(results(tmp_path / "results"), tmp_path / "data")
    with pytest.raises(PublishError, match="cannot show a run twice"):
        publish(tmp_path / "results", tmp_path / "data", "again")
    arguments = ["publish-data", str(tmp_path / "results"), "again", "--data", str(tmp_path / "data"), "--yes"]
    done = CliRunner().invoke(app, [*arguments, "--study", "again"])
    assert done.exit_code == 0 and "  study: again" in done.output
    assert store.load(tmp_path / "data" / "again" / "again").manifest["study"] == "again"


def test_a_study_that_no_question_is_about_is_refused(tmp_path):
    with pytest.raises(PublishError, match=r"no question is about a study nonsense: choose one of .*again, .*warm_up"):
        publish_data.publish_data(results(tmp_path / "r"), "h200", tmp_path / "data", lambda _: True, study="nonsense")


def test_a_no_leaves_everything_as_it_was(tmp_path):
    folder, _, _ = publish(results(tmp_path / "results"), tmp_path / "data", answer=False)
    assert folder is None and list((tmp_path / "data").iterdir()) == []


def test_a_recording_is_published_under_its_new_name_without_what_else_lies_there(tmp_path):
    ingest(results(tmp_path / "results"), tmp_path / "recording")
    (tmp_path / "recording" / "notes.txt").write_text("private")
    folder, _, _ = publish(tmp_path / "recording", tmp_path / "data")
    assert store.load(folder).manifest["name"] == "h200"
    assert not (folder / "notes.txt").exists()


def test_a_recording_of_that_name_is_replaced_after_saying_so(tmp_path):
    publish(results(tmp_path / "one"), tmp_path / "data")
    _, _, asked = publish(results(tmp_path / "two", run_id="other"), tmp_path / "data")
    assert "in place of the recording of 20" in asked[0]
    assert list(store.load(tmp_path / "data" / "main" / "h200").runs["run_id"]) == ["other"]


SECRET = "s3cr3t-of-this-test-0123456789"


@pytest.mark.parametrize(
    "message",
    [
        "failed: HF_TOKEN=hf_abcdefghijklmnopqrstuvwx",
        "failed with hf_abcdefghijklmnopqrstuvwx",
        "failed: AKIAIOSFODNN7EXAMPLE was refused",
        "{'api_key': 'abc'}",
        "WORLD_SIZE_X=4 is wrong",
        "no route to 10.1.2.3",
        "box-of-ada is down",
        f"it printed {SECRET} and died",
        "-----BEGIN RSA PRIVATE KEY",
    ],
)
def test_nothing_private_is_published_and_the_message_does_not_repeat_it(tmp_path, monkeypatch, message):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setattr(socket, "gethostname", lambda: "box-of-ada")
    with pytest.raises(PublishError, match=r"(?s)look private.*runs\.parquet, column status_message") as raised:
        publish(results(tmp_path / "results", message), tmp_path / "data")
    assert SECRET not in str(raised.value) and "hf_abcdefghijkl" not in str(raised.value)
    assert list((tmp_path / "data").iterdir()) == []


def test_nothing_private_of_a_log_is_recorded(tmp_path):
    folder = results(tmp_path / "results", hashed_names=HASHED)
    lines = [line for text in ALL for line in (text, f"[rank0] it said '{text}'")]
    (folder / RUN / "log.txt").write_text("\n".join([*lines, "Error: it died"]))
    publish(folder, tmp_path / "data")
    log = store.load(tmp_path / "data" / "main" / "h200").runs["log"].iloc[0].splitlines()
    assert log[-1] == "Error: it died"
    assert not [text for text in ALL for line in log if text in line]
    assert published_of(tmp_path / "data" / "main" / "h200", ALL) == []


def test_nothing_of_a_key_of_many_lines_is_recorded(tmp_path):
    """Its first line shows that it is a key; the other lines are base64, and the last may be short."""
    folder = results(tmp_path / "results")
    key = [
        "-----BEGIN RSA PRIVATE" + " KEY-----",
        "MIIEpAIBAAKCAQEA0Z3VS5" * 3,
        "Zz9x" * 16,
        "QmZ5eQ==",
        "-----END RSA KEY-----",
    ]
    (folder / RUN / "log.txt").write_text("\n".join(["it began", *key, "it died", *("Zz9x" * 16 for _ in range(3))]))
    publish(folder, tmp_path / "data")
    assert store.load(tmp_path / "data" / "main" / "h200").runs["log"].iloc[0] == "it began\nit died"


def published_of(folder, planted):
    """Which of the texts are in the published files, as texts or as bytes."""
    texts = "\n".join(text for file in sorted(folder.iterdir()) for _, text in read_texts(file))
    content = b"".join(file.read_bytes() for file in folder.iterdir())
    return [text for text in planted if text in texts or text.encode() in content]


@pytest.mark.parametrize("text", sampled((texts[0] for texts in PLANTED.values()), 5))
def test_what_a_recording_says_is_refused_if_private(tmp_path, text):
    folder = tmp_path / "recording"
    ingest(results(tmp_path / "results", hashed_names=HASHED), folder)
    manifest = store.read_manifest(folder)
    runs = pq.read_table(folder / "runs.parquet")
    planted = runs.set_column(runs.column_names.index("log"), "log", pa.array([f"it said\n{text}"], pa.large_string()))
    pq.write_table(planted, folder / "runs.parquet")
    manifest["tables"]["runs"] |= read_facts(folder / "runs.parquet").model_dump()
    store.write_manifest(folder, manifest | {"sweep": f"of {text}"})
    with pytest.raises(PublishError, match=r"(?s)look private.*runs\.parquet, column log") as raised:
        publish(folder, tmp_path / "data")
    assert "manifest.json, sweep" in str(raised.value) and text not in str(raised.value)
    assert list((tmp_path / "data").iterdir()) == []


UNKNOWN = {
    "string": pa.array(["\n".join(ALL)]),
    "large_string": pa.array(["\n".join(ALL)], pa.large_string()),
    "binary": pa.array(["\n".join(ALL).encode()]),
    "list": pa.array([ALL]),
    "struct": pa.array([{text: text for text in ALL}]),
    "map": pa.array([list(zip(ALL, ALL))], pa.map_(pa.string(), pa.string())),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(ALL)),
}


def test_what_no_recording_has_stays_behind(tmp_path):
    folder = tmp_path / "recording"
    ingest(results(tmp_path / "results", hashed_names=HASHED), folder)
    manifest = store.read_manifest(folder)
    told = {f"key {number}": text for number, text in enumerate(ALL)} | {text: "x" for text in ALL}
    written = [name for name in table_schema.TABLES if (folder / f"{name}.parquet").is_file()]
    assert "runs" in written
    for name in written:
        table = pq.read_table(folder / f"{name}.parquet")
        for kind, values in UNKNOWN.items():
            table = table.append_column(f"x_{kind}", values if len(table) else values.slice(1))
        table = table.append_column(ALL[0], pa.nulls(len(table)))
        fields = [field.with_metadata(told) for field in table.schema]
        pq.write_table(table.cast(pa.schema(fields, told)), folder / f"{name}.parquet")
        manifest["tables"][name] |= read_facts(folder / f"{name}.parquet").model_dump()
    manifest["runs"][0] |= told
    store.write_manifest(folder, manifest | {"told": told})
    assert len(published_of(folder, ALL)) == len(ALL)

    _, shown, _ = publish(folder, tmp_path / "data")
    published = tmp_path / "data" / "main" / "h200"
    assert published_of(published, ALL) == [] and published_of(published, HASHED) == []
    assert "left out, since no recording has it: runs.parquet: column x_struct" in shown
    assert "left out, since no recording has it: manifest.json: told" in shown
    for name in written:
        columns = table_schema.TABLES[name]
        schema = pq.read_schema(published / f"{name}.parquet")
        assert not {*schema.names} & {*ALL, *(f"x_{kind}" for kind in UNKNOWN)} and not schema.metadata
        table = store.read_table(name, published / f"{name}.parquet")
        assert table.column_names == [column.name for column in columns]
        assert table.schema.types == list(store.arrow_types(name).values())
        assert not any(field.metadata for field in schema)


def test_a_word_that_no_row_uses_stays_behind(tmp_path):
    folder = tmp_path / "recording"
    ingest(results(tmp_path / "results"), folder)
    manifest = store.read_manifest(folder)
    runs = pq.read_table(folder / "runs.parquet")
    words = pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), pa.array([ALL[0], "H200"], pa.large_string()))
    pq.write_table(runs.set_column(runs.column_names.index("gpu_name"), "gpu_name", words), folder / "runs.parquet")
    manifest["tables"]["runs"] |= read_facts(folder / "runs.parquet").model_dump()
    store.write_manifest(folder, manifest)
    publish(folder, tmp_path / "data")
    assert published_of(tmp_path / "data" / "main" / "h200", ALL) == []
    assert store.load(tmp_path / "data" / "main" / "h200").runs["gpu_name"].tolist() == ["H200"]


@pytest.mark.parametrize(
    ("column", "kind"), sampled(product(["log", "gpu_name", "repeat"], ["binary", "list", "struct", "map"]), 5)
)
def test_a_column_of_another_type_is_refused(tmp_path, column, kind):
    folder = tmp_path / "recording"
    ingest(results(tmp_path / "results"), folder)
    manifest = store.read_manifest(folder)
    runs = pq.read_table(folder / "runs.parquet")
    pq.write_table(runs.set_column(runs.column_names.index(column), column, UNKNOWN[kind]), folder / "runs.parquet")
    manifest["tables"]["runs"] |= read_facts(folder / "runs.parquet").model_dump()
    store.write_manifest(folder, manifest)
    with pytest.raises(store.RecordingError, match=rf"runs\.parquet: column {column} is .*\b{kind}\b.*, and should be"):
        publish(folder, tmp_path / "data")


def test_a_field_of_another_type_is_refused(tmp_path):
    ingest(results(tmp_path / "results"), tmp_path / "recording")
    manifest = store.read_manifest(tmp_path / "recording")
    store.write_manifest(tmp_path / "recording", manifest | {"driver": {"told": ALL[0]}})
    with pytest.raises(store.RecordingError, match=r"manifest\.json .*driver: should be a valid string"):
        publish(tmp_path / "recording", tmp_path / "data")


def test_without_captures_what_was_timed_stays_and_nsys_has_no_part_in_it(tmp_path):
    source, whole = frozen.ONE_GPU, frozen.load("one_gpu")
    shown: list[str] = []
    folder = publish_data.publish_data(
        source, "compile", tmp_path / "data", lambda text: True, shown.append, with_captures=False
    )
    kept = store.load(folder)
    assert "left out, as asked: what nsys recorded" in shown
    assert kept.manifest["without_captures"] and kept.manifest["protocol"]["profiled_steps"] == [0]
    assert set(kept.runs["profiled_steps"]) == {0}
    assert all(getattr(kept, name).empty for name in allowed.OF_CAPTURES)
    timed = whole.steps[whole.steps["collector"].astype(str) == "timer"]
    assert kept.steps["wall_ns"].tolist() == timed["wall_ns"].tolist()
    assert len(kept.memory) == len(whole.memory) and len(kept.processes) == len(whole.processes)


def test_the_log_is_shown_before_the_question(tmp_path):
    folder = results(tmp_path / "results")
    (folder / RUN / "log.txt").write_text("it began\n\x1b[2Jand \x1b[31mdied\n")
    shown = []

    def confirm(text):
        assert f"log of {RUN}:\n  it began\n   [2Jand  [31mdied" in "\n".join(shown)
        return False

    publish_data.publish_data(folder, "h200", tmp_path / "data", confirm, shown.append)


def test_nothing_that_is_shown_moves_the_cursor(tmp_path):
    _, shown, _ = publish(results(tmp_path / "results", message="it \x1b[2J\x1b]0;died"), tmp_path / "data")
    assert "it  [2J ]0;died" in shown and "\x1b" not in shown


def test_what_a_killed_publication_left_is_removed(tmp_path):
    (tmp_path / "data" / ".h200.draft").mkdir(parents=True)
    (tmp_path / "data" / ".h200.draft" / "private.txt").write_text("x")
    publish(results(tmp_path / "results"), tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["main"]


def test_git_takes_nothing_that_a_killed_publication_left():
    root = Path(__file__).parents[2]
    names = ("site/data/.h200.draft/ingested/runs.parquet", "site/data/.h200.old/runs.parquet")
    done = subprocess.run(["git", "check-ignore", *names], cwd=root, capture_output=True, text=True)
    assert done.stdout.split() == list(names)


def test_a_damaged_recording_can_be_replaced(tmp_path):
    publish(results(tmp_path / "results"), tmp_path / "data")
    manifest = tmp_path / "data" / "main" / "h200" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    _, _, asked = publish(tmp_path / "results", tmp_path / "data")
    assert "in place of the recording of an unknown time" in asked[0]
    assert len(store.load(tmp_path / "data" / "main" / "h200").runs) == 1


def test_runs_cannot_be_on_the_site_twice(tmp_path):
    publish(results(tmp_path / "one"), tmp_path / "data", name="first")
    with pytest.raises(PublishError, match=r"first has 1 of the same runs"):
        publish(results(tmp_path / "two"), tmp_path / "data", name="second")


def test_what_is_too_large_for_git_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(publish_data, "LARGEST_BYTES", 1000)
    with pytest.raises(PublishError, match="too large for git"):
        publish(results(tmp_path / "results"), tmp_path / "data")


@pytest.mark.parametrize("name", ["", "../up", "H 200", "a/b", ".hidden"])
def test_a_name_is_one_plain_folder(tmp_path, name):
    with pytest.raises(PublishError, match="cannot be a name"):
        publish(tmp_path, tmp_path / "data", name=name)


@pytest.mark.parametrize(("arguments", "typed", "code"), [(["--yes"], "", 0), ([], "y\n", 0), ([], "n\n", 1)])
def test_the_command_asks_unless_told_not_to(tmp_path, arguments, typed, code):
    source = str(results(tmp_path / "results"))
    command = ["publish-data", source, "h200", "--data", str(tmp_path / "data"), *arguments]
    done = CliRunner().invoke(app, command, input=typed)
    assert done.exit_code == code, done.output
    assert (tmp_path / "data" / "main" / "h200").exists() == (code == 0)


def test_a_recording_that_is_not_whole_is_not_published(tmp_path):
    ingest(results(tmp_path / "results"), tmp_path / "recording")
    (tmp_path / "recording" / "runs.parquet").unlink()
    with pytest.raises(store.RecordingError, match=r"runs\.parquet is missing"):
        publish(tmp_path / "recording", tmp_path / "data")


def test_the_command_says_what_is_wrong(tmp_path):
    done = CliRunner().invoke(app, ["publish-data", str(tmp_path), "h200", "--data", str(tmp_path / "data"), "--yes"])
    assert done.exit_code == 2
