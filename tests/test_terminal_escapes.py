"""No name that somebody else chose drives the terminal, or becomes a formula of a spreadsheet."""

import csv
import io
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis import show as showing
from profiler_job.analysis.capture import nsys_reports
from profiler_job.analysis.comparison import print_comparison, print_history
from profiler_job.analysis.recording import store
from profiler_job.analysis.show import explain
from profiler_job.jobs.cli.console import PlainConsole, fail
from profiler_job.jobs.contract.errors import ProfilerError, end_with
from profiler_job.jobs.contract.integrity import read_facts
from profiler_job.jobs.contract.printable import make_lines_printable
from tests.capture.nsys_files import Export

ROOT = Path(__file__).parents[1]
CLEAR = "\x1b[31m\x1b[2J"
NAME = f"{CLEAR}\x9b1Abad\u202ename"


def run(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert "Traceback" not in done.output
    return done


def check_plain(text: str) -> None:
    assert not [char for char in text if not char.isprintable() and char != "\n"]


def test_lines_stay_lines():
    assert make_lines_printable("one\ntwo\x1b[2J") == "one\ntwo\N{REPLACEMENT CHARACTER}[2J"


def test_keys_of_a_sweep_are_printed_plainly(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text('name: tiny\nsize: [small]\n"\\e[31m\\e[2J": 1\n')
    done = run("plan", "--sweep", file)
    assert done.exit_code == 2
    assert "unknown key" in done.output
    check_plain(done.output)


@pytest.mark.parametrize("report", sorted(nsys_reports.REPORTS))
@pytest.mark.parametrize("name", [NAME, "=cmd|' /C calc'!A1", "+1", "@SUM(A1)", "-2"])
def test_names_in_a_report_are_plain_and_no_formulas(tmp_path, report, name):
    export = Export()
    export.push(name, 10, 500)
    export.launch(100, name=name)
    export.copy(300, 320, export.call(200, 205, name=name))
    done = run("show", export.sqlite(tmp_path / "x.sqlite"), "--report", report)
    assert done.exit_code == 0
    check_plain(done.output)
    cells = [cell for row in csv.reader(io.StringIO(done.stdout)) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "-2"))]


@pytest.mark.parametrize(
    ("module", "function", "arguments"),
    [
        (showing, "show", ["show", "x.sqlite"]),
        (showing, "show_report", ["show", "x.sqlite", "--report", "nvtx_sum"]),
        (explain, "explain", ["show", "--explain", "gemm"]),
        (print_comparison, "run", ["compare", "a", "b"]),
        (print_history, "run", ["history", "."]),
    ],
)
def test_whatever_a_command_prints_is_plain(module, function, arguments, monkeypatch):
    """A sentence about a GPU has its name."""

    def print_name(*given, **options):
        out = next(one for one in (*given, *options.values()) if callable(one))
        out(f"recorded on {NAME}\nsecond line")
        return 0

    monkeypatch.setattr(module, function, print_name)
    done = run(*arguments)
    assert "second line" in done.output.splitlines()
    check_plain(done.output)


def test_errors_are_plain(capsys):
    end_with(ProfilerError(NAME))
    fail(NAME, 2)
    PlainConsole(file=sys.stdout).print(NAME)
    said = capsys.readouterr()
    check_plain(said.out + said.err)


def test_columns_that_are_left_out_when_published_are_named_plainly(tmp_path, capsys):
    """as are all lines about a recording of somebody else."""
    recording = shutil.copytree(ROOT / "tests" / "data" / "recordings" / "attention", tmp_path / "rec")
    file = recording / "processes.parquet"
    table = pq.read_table(file).append_column("\x1b[31mred", pa.array(["x"] * pq.read_metadata(file).num_rows))
    pq.write_table(table, file)
    manifest = {key: value for key, value in store.read_manifest(recording).items() if key != "digest"}
    manifest["tables"]["processes"] |= read_facts(file).model_dump()
    store.write_manifest(recording, manifest)
    command = ["publish-data", str(recording), "name", "--data", str(tmp_path / "data"), "--yes"]
    done = CliRunner().invoke(app, command)
    assert "[31mred" in done.output and "\x1b" not in done.output
