"""Every JSON output has the version of its format."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.jobs.contract.json_format import FORMAT_VERSION
from profiler_job.jobs.contract.tuning import Tuning, write_tuning
from profiler_job.jobs.executor.events import JsonEvents

CAPTURE = Path(__file__).parent / "data" / "h200_parquetdir"


def print_json(*arguments: object):
    done = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", ["compare", "history"])
def test_two_captures(command, tmp_path):
    again = shutil.copytree(CAPTURE, tmp_path / "again")
    options = ("--metric", "kernel") if command == "history" else ()
    assert print_json(command, CAPTURE, again, *options)["format_version"] == FORMAT_VERSION


def test_each_summary_of_captures():
    assert print_json("show", CAPTURE)["format_version"] == FORMAT_VERSION
    assert [each["format_version"] for each in print_json("show", CAPTURE, CAPTURE)] == [FORMAT_VERSION] * 2


def test_a_plan():
    plan = print_json("plan", "--only", "size=small,mode=forward", "--gpu-memory", "80")
    assert plan["format_version"] == FORMAT_VERSION and plan["sweep"]
    first = plan["runs"][0]
    assert first["num_parameters"] > 1e8 and first["memory_bytes"] > 4 * first["num_parameters"]
    assert first["time_s"] > 0 and first["will_not_fit"] is None


def test_each_event(capsys):
    JsonEvents()("step_started", step="recording")
    assert json.loads(capsys.readouterr().out)["format_version"] == FORMAT_VERSION


def test_the_file_of_tune(tmp_path):
    write_tuning(tmp_path, Tuning(name="train", command=("train",), budget_s=1.0))
    assert json.loads((tmp_path / "tune.json").read_text())["format_version"] == FORMAT_VERSION
