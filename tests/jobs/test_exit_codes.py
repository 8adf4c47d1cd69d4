"""Ends of commands: one table of exit codes, and no traceback, whatever happens."""

import errno
import pickle
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from profiler_job import __main__
from profiler_job.__main__ import app
from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.jobs.cli import measure_script
from profiler_job.jobs.cli.follow_up import StepError, fail_step
from profiler_job.jobs.contract.errors import OutputError, ProfilerError, describe_bug, end_with
from profiler_job.jobs.contract.exit_codes import MEANINGS, ExitCode
from profiler_job.jobs.executor.failures import RunFailedError
from profiler_job.jobs.executor.preflight import Check
from tests.jobs.conftest import ROOT, command

CAPTURE = ROOT / "tests" / "data" / "h200_parquetdir"


def test_every_exit_code_has_a_meaning():
    assert list(MEANINGS) == list(ExitCode)


def test_the_exit_codes_stay_the_same():
    """Scripts of users depend on the numbers."""
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 65, 69, 70, 74, 75, 129, 130, 143]


def all_subclasses(cls: type) -> set[type]:
    return {each for child in cls.__subclasses__() for each in (child, *all_subclasses(child))}


def test_every_error_of_the_project_has_an_exit_code():
    import profiler_job.analysis.cli.show_command
    import profiler_job.jobs.cli.job_command  # noqa: F401

    errors = all_subclasses(ProfilerError)
    assert len(errors) > 8
    assert {error.exit_code for error in errors} <= set(ExitCode)


@pytest.mark.parametrize(
    "error",
    [
        ExportError(ExportProblem.NSYS_MISSING, "a.nsys-rep", "no nsys", "install it", ExitCode.MISSING),
        NotComparableError(ComparisonProblem.NO_RUN, "no run", "; choose one"),
        RunFailedError("oom", phase="backward", message="out of memory"),
        OutputError("a full disk"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_passes_from_one_process_to_another_as_it_is(error):
    """The helping process of the site could not pass on errors with codes: TypeError, exit code 70."""
    passed = pickle.loads(pickle.dumps(error))
    assert type(passed) is type(error) and str(passed) == str(error)
    assert vars(passed) == vars(error) and passed.exit_code == error.exit_code


@pytest.fixture
def with_a_bug(monkeypatch, tmp_path):
    """`status` with a mistake in it, and the folder of temporary files."""

    def break_down(*arguments):
        raise ZeroDivisionError("a mistake\nof two lines")

    monkeypatch.setattr("profiler_job.jobs.cli.status_command.choose_runs", break_down)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_mistake_of_the_program_is_one_line_and_a_file_with_the_traceback(with_a_bug):
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == ExitCode.BUG
    (line,) = done.stderr.splitlines()
    (file,) = with_a_bug.glob("*.traceback")
    assert str(file) in line and "ZeroDivisionError: a mistake of two lines" in line
    assert "Traceback" in file.read_text() and "break_down" in file.read_text()


def test_a_mistake_is_one_line_where_nothing_can_be_written_either(with_a_bug, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(with_a_bug / "missing"))
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == ExitCode.BUG
    assert len(done.stderr.splitlines()) == 1 and "could not be kept" in done.stderr


def test_an_error_for_the_user_that_no_command_handles_is_one_line(monkeypatch):
    def refuse(*arguments):
        raise ProfilerError("no such thing; give another", exit_code=ExitCode.DAMAGED)

    monkeypatch.setattr("profiler_job.jobs.cli.status_command.choose_runs", refuse)
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == ExitCode.DAMAGED and done.stderr == "error: no such thing; give another\n"


@pytest.mark.parametrize("arguments", [["show", str(CAPTURE)], ["plan"], ["status", "--help"]])
@pytest.mark.long
def test_a_full_standard_output_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(command(*arguments), stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == ExitCode.CANNOT_WRITE, done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: "), done.stderr


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize(
    "arguments", [["status", "--help"], ["doctor", "--device", "cpu", "--results", "{results}"], ["show", str(CAPTURE)]]
)
def test_closed_standard_streams_stop_no_command(tmp_path, arguments, closed):
    words = [word.format(results=tmp_path / "results") for word in arguments]
    done = subprocess.run(["bash", "-c", f'exec "$@" {closed}', "-", *command(*words)], cwd=ROOT, capture_output=True)
    assert done.returncode == ExitCode.OK and b"error" not in done.stderr + done.stdout


def test_a_closed_standard_stream_is_open_in_what_the_program_starts(tmp_path):
    """Else the first file that a script opens gets its number, and the script prints into it."""
    script = tmp_path / "script.py"
    script.write_text("import os\nfor number in range(3):\n    os.fstat(number)\nopen('reached', 'w').close()\n")
    words = ["profile", "--collector", "events", "--results", str(tmp_path / "results"), sys.executable, str(script)]
    done = subprocess.run(["bash", "-c", 'exec "$@" 0<&- 1>&-', "-", *command(*words)], cwd=tmp_path)
    assert done.returncode == ExitCode.FAILED and (tmp_path / "reached").exists()


def test_the_help_may_lose_its_reader():
    with subprocess.Popen(command("--help"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.close()
        assert process.wait() == ExitCode.OK and not process.stderr.read()


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", "{shard}", "--out", "{file}/below"],
        ["show", str(CAPTURE), "--html", "{file}/below/page.html"],
        ["history", str(CAPTURE), "--html", "{file}/below/page.html"],
        ["publish-data", "{shard}", "name", "--data", "{file}/below", "--yes"],
    ],
)
def test_a_folder_that_cannot_be_written_is_no_traceback(tmp_path, arguments):
    file = tmp_path / "file"
    file.touch()
    shard = tmp_path / "shard"
    shard.mkdir()
    given = [text.format(file=file, shard=shard) for text in arguments]
    done = CliRunner().invoke(app, given)
    assert done.exit_code in (ExitCode.CANNOT_WRITE, ExitCode.USAGE)
    assert done.stderr.startswith("error: ") and "Traceback" not in done.output


def test_a_damaged_capture_is_not_a_mistake_of_the_user(tmp_path):
    damaged, absent = tmp_path / "damaged.sqlite", tmp_path / "absent.sqlite"
    damaged.write_bytes(b"SQLite format 3\x00" + bytes(200))
    assert CliRunner().invoke(app, ["show", str(damaged)]).exit_code == ExitCode.DAMAGED
    assert CliRunner().invoke(app, ["show", str(absent)]).exit_code == ExitCode.USAGE
    assert CliRunner().invoke(app, ["compare", str(CAPTURE), str(damaged)]).exit_code == ExitCode.DAMAGED
    assert CliRunner().invoke(app, ["compare", str(CAPTURE), str(absent)]).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("code, expected", [(74, ExitCode.CANNOT_WRITE), (65, ExitCode.DAMAGED), (2, ExitCode.BUG)])
def test_a_step_that_fails_ends_the_job_with_its_code(code, expected):
    error = fail_step("site", ["profiler_job.analysis.site.build_html", "copy"], code)
    assert isinstance(error, StepError) and error.exit_code == expected


def test_an_output_error_is_an_error_of_the_operating_system():
    assert isinstance(OutputError("standard output"), OSError)
    assert end_with(OutputError("standard output")) == ExitCode.CANNOT_WRITE


def test_the_line_about_a_mistake_says_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        [].pop()
    except IndexError as error:
        assert f"in {Path(__file__).name}, line" in describe_bug(error)


@pytest.mark.parametrize(
    "arguments, advice",
    [
        (["shwo"], "show"),
        (["status", "--shrad", "1/2"], "--shard"),
        (["compare", "a", "b", "--per-tokens"], "--per-token"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_meant(arguments, advice):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == ExitCode.USAGE and advice in done.stderr


def test_a_command_that_is_like_no_other_is_answered_with_help():
    done = CliRunner().invoke(app, ["xyzzy"])
    assert done.exit_code == ExitCode.USAGE and "--help" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_version_is_that_of_the_package():
    done = CliRunner().invoke(app, ["--version"])
    version = metadata.version("profiler-job")
    assert done.exit_code == 0 and done.output.startswith(f"profiler-job {version} (")


@pytest.mark.parametrize("name", ["", *__main__.COMMANDS])
def test_h_is_help(name):
    done = CliRunner().invoke(app, [*filter(None, [name]), "-h"])
    assert done.exit_code == 0 and "--help" in done.output


def test_the_help_has_four_groups():
    shown = CliRunner().invoke(app, ["--help"]).output
    groups = [entry.group for entry in __main__.COMMANDS.values()]
    assert list(dict.fromkeys(groups)) == ["Measure", "Your own script", "Read", "Publish"]
    assert all(f" {group} " in shown for group in groups)


def test_ctrl_c_is_130():
    program = (
        "import profiler_job.jobs.cli.status_command as status\n"
        "def interrupt(*arguments): raise KeyboardInterrupt\n"
        "status.choose_runs = interrupt\n"
        "import sys; sys.argv = ['profiler-job', 'status']\n"
        "from profiler_job.__main__ import app; app()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == ExitCode.INTERRUPTED and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "new"), [("report", "site"), ("render", "site"), ("try", "tune --changes"), ("predict", "tune")]
)
def test_an_old_name_names_the_command_that_took_its_place(name, new):
    done = CliRunner().invoke(app, [name, "--recording", "x"])
    assert done.exit_code == ExitCode.USAGE and f"`profiler-job {new}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("collector", ["nsys", "events"])
@pytest.mark.parametrize(
    "words, advice",
    [
        (["./train.py", "--lr", "1"], "python ./train.py --lr 1"),
        (["train.py"], "python train.py"),
        (["no-such-program"], "a shell"),
    ],
)
def test_a_script_that_is_no_program_is_a_mistake_of_the_user(tmp_path, monkeypatch, collector, words, advice):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print()\n")
    done = CliRunner().invoke(app, ["profile", "--collector", collector, *words])
    assert done.exit_code == ExitCode.USAGE and done.stderr.rstrip().endswith(advice)
    tried = CliRunner().invoke(app, ["tune", "--changes", "tf32", *words])
    assert (tried.exit_code, tried.stderr) == (ExitCode.USAGE, done.stderr)


def test_a_program_that_does_not_start_is_a_mistake_of_the_user(tmp_path):
    program = tmp_path / "train"
    program.write_text("no program\n")
    program.chmod(0o755)
    results = str(tmp_path / "results")
    done = CliRunner().invoke(app, ["profile", "--collector", "events", "-o", results, str(program)])
    assert done.exit_code == ExitCode.USAGE and "cannot be started" in done.stderr


@pytest.mark.parametrize("command", ["profile", "tune"])
def test_an_option_of_python_that_hides_the_profiler_is_a_usage_error_before_the_script_runs(tmp_path, command):
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    results = tmp_path / "results"
    done = CliRunner().invoke(app, [command, "--results", str(results), "--", "python3", "-I", str(script)])
    assert done.exit_code == ExitCode.USAGE and "hide the profiler" in done.stderr
    assert not (tmp_path / "ran").exists() and not results.exists()


def test_results_that_cannot_be_written_are_no_mistake_of_the_script():
    done = CliRunner().invoke(app, ["profile", "--collector", "events", "-o", "/proc/x", sys.executable, "-c", "pass"])
    assert done.exit_code == ExitCode.CANNOT_WRITE and "--results" in done.stderr


@pytest.fixture
def without_nsys(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize("arguments", [["show"], ["history"], ["answers"]])
def test_a_report_of_nsys_without_nsys_is_69(tmp_path, without_nsys, arguments):
    (tmp_path / "captures").mkdir()
    report = tmp_path / "captures" / "x.nsys-rep"
    report.write_bytes(b"report")
    facts = ["--size", "small", "--context-length", "128"]
    out = ["--out", str(tmp_path / "out"), *facts] if arguments == ["answers"] else []
    done = CliRunner().invoke(app, [*arguments, str(report.parent if out else report), *out])
    assert done.exit_code == ExitCode.MISSING and "install-nsys" in done.stderr


def test_a_history_ends_with_the_code_of_what_cannot_be_read(tmp_path, without_nsys):
    """damage is worse than a missing nsys; a folder without entries is a mistake of the user."""
    report, recording = tmp_path / "x.nsys-rep", tmp_path / "recording"
    report.write_bytes(b"report")
    recording.mkdir()

    def end(*paths: Path) -> int:
        return CliRunner().invoke(app, ["history", *map(str, paths)]).exit_code

    assert end(recording) == ExitCode.USAGE
    (recording / "manifest.json").write_text("[]")
    assert end(recording) == ExitCode.DAMAGED
    assert end(CAPTURE, report) == ExitCode.MISSING
    assert end(CAPTURE, report, recording) == ExitCode.DAMAGED


def test_doctor_fails_for_want_of_torch_only_if_a_sweep_is_to_be_measured(monkeypatch):
    found = [Check("torch", "failed", "not installed", "install it")]
    monkeypatch.setattr("profiler_job.jobs.cli.doctor_command.run_checks", lambda *arguments: found)
    for options, code in (([], ExitCode.OK), (["--sweep", "tiny"], ExitCode.MISSING), (["--only", "size=xl"], 69)):
        done = CliRunner().invoke(app, ["doctor", *options])
        assert done.exit_code == code, options
        assert ("only a sweep needs it" in done.output) == (not options)


def test_where_python_is_called_python3_the_command_says_so(tmp_path, monkeypatch):
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["profile", "python", "train.py"])
    assert done.exit_code == ExitCode.USAGE and done.stderr.endswith("python3 train.py\n")


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False)])
def test_only_a_full_disk_needs_space(tmp_path, monkeypatch, capsys, number, is_full):
    monkeypatch.setattr(measure_script, "handle_termination", lambda handler: None)
    with pytest.raises(typer.Exit) as ended, measure_script.hold_results(tmp_path, "train"):
        raise OSError(number, "refused", "written")
    printed = " ".join(capsys.readouterr().err.split())
    assert ended.value.exit_code == ExitCode.CANNOT_WRITE and "written cannot be written (refused)" in printed
    assert ("free some space" in printed) == is_full and "--results" in printed
