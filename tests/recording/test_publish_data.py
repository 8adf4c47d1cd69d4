"""What becomes public is shown first, and nothing private does."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analysis.recording import publish_data, store
from analysis.recording.ingest import ingest
from analysis.recording.publish_data import PublishError
from jobs.__main__ import app

RUN = "small-ctx128-fp32-naive-forward"
SHIPPED = sorted(path.parent for path in (Path(__file__).parents[2] / "site" / "data").glob("*/manifest.json"))


def results(folder, message="out of memory", run_id=RUN):
    """The results folder of a sweep with one run that went out of memory, and with what nobody should publish."""
    about = {
        "run_id": run_id,
        "status": "oom",
        "status_detail": {"phase": "forward", "message": message},
        "run": {"size": "small", "d_model": 8, "context_length": 128, "mode": "forward"},
        "machine": {"gpu_name": "NVIDIA H200", "hostname": "planted-host"},
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
    assert folder == tmp_path / "data" / "h200"
    assert store.load(folder).manifest["name"] == "h200"
    for table in store.TABLES:
        assert table in shown
    assert all(text in shown for text in ("gpu: NVIDIA H200", f"{RUN} ", "oom forward out of memory", "bytes in"))
    assert len(asked) == 1 and str(folder) in asked[0]
    assert b"planted" not in b"".join(file.read_bytes() for file in folder.iterdir())
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["h200"]


def test_a_second_recording_of_the_same_runs_is_published_as_the_study_of_them(tmp_path):
    publish(results(tmp_path / "results"), tmp_path / "data")
    with pytest.raises(PublishError, match="cannot show a run twice"):
        publish(tmp_path / "results", tmp_path / "data", "again")
    arguments = ["publish-data", str(tmp_path / "results"), "again", "--data", str(tmp_path / "data"), "--yes"]
    done = CliRunner().invoke(app, [*arguments, "--study", "again"])
    assert done.exit_code == 0 and "  study: again" in done.output
    assert store.load(tmp_path / "data" / "again").manifest["study"] == "again"


def test_a_study_that_no_question_is_about_is_refused(tmp_path):
    with pytest.raises(PublishError, match=r"no question is about a study nonsense: choose one of again, .*warm_up"):
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
    assert list(store.load(tmp_path / "data" / "h200").runs["run_id"]) == ["other"]


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
        f"{socket.gethostname()} is down",
        f"it printed {SECRET} and died",
        "-----BEGIN RSA PRIVATE KEY",
    ],
)
def test_nothing_private_is_published_and_the_message_does_not_repeat_it(tmp_path, monkeypatch, message):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    with pytest.raises(PublishError, match=r"(?s)look private.*runs\.parquet, status_message") as raised:
        publish(results(tmp_path / "results", message), tmp_path / "data")
    assert SECRET not in str(raised.value) and "hf_abcdefghijkl" not in str(raised.value)
    assert list((tmp_path / "data").iterdir()) == []


def test_paths_and_hosts_in_the_manifest_are_found(tmp_path):
    ingest(results(tmp_path / "results"), tmp_path / "recording")
    manifest = tmp_path / "recording" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("NVIDIA H200", "/home/someone/gpu of someone@gpu-box"))
    found = publish_data.scan(tmp_path / "recording", publish_data.private_patterns({}))
    assert {one.kind for one in found if "manifest.json" in one.where} == {"path", "user and host"}


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_nothing_of_the_shipped_recordings_looks_private(folder):
    everywhere = {kind: one for kind, one in publish_data.private_patterns({}).items() if kind in publish_data.PRIVATE}
    assert publish_data.scan(folder, everywhere) == []


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
    assert (tmp_path / "data" / "h200").exists() == (code == 0)


def test_a_recording_that_is_not_whole_is_not_published(tmp_path):
    ingest(results(tmp_path / "results"), tmp_path / "recording")
    (tmp_path / "recording" / "steps.parquet").unlink()
    with pytest.raises(store.RecordingError, match=r"steps\.parquet is missing"):
        publish(tmp_path / "recording", tmp_path / "data")


def test_the_command_says_what_is_wrong(tmp_path):
    done = CliRunner().invoke(app, ["publish-data", str(tmp_path), "h200", "--data", str(tmp_path / "data"), "--yes"])
    assert done.exit_code == 2
