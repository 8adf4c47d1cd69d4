"""The whole job: from the checks to the site. Workers and nsys are fake."""

import inspect
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from profiler_job.jobs.cli import follow_up
from profiler_job.jobs.cli.follow_up import find_shipped_recordings
from profiler_job.jobs.cli.job_command import job as job_command
from profiler_job.jobs.cli.results_site import build_results_site, select_recordings
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import replace
from profiler_job.jobs.executor.result_store import Results
from tests.jobs.conftest import FAST_MKDOCS, ROOT, command, eventually, jobs, without_pages, write_no_pages
from tests.waiting import HANGS_S

ONE_RUN = {"context_length": [8], "mode": ["train_step"]}


@pytest.fixture
def arguments(tiny, tmp_path, fake_worker):
    return ["job", "--device", "cpu", "--sweep", tiny(**ONE_RUN), "--results", tmp_path / "results"]


@pytest.fixture
def mkdocs(fake_worker):
    """mkdocs(program) puts another program in the place of mkdocs, for which no pages are written."""
    write_no_pages(fake_worker.folder)
    return (fake_worker.folder / "mkdocs.py").write_text


@pytest.fixture(scope="module")
def first_measured(tmp_path_factory) -> Path:
    """Where `measured` keeps the results folder that it copies."""
    return tmp_path_factory.mktemp("measured") / "results"


@pytest.fixture
def measured(arguments, fake_worker, tmp_path, first_measured) -> Path:
    """The results folder of a job whose site was not built in earnest; the next one is."""
    results = tmp_path / "results"
    if first_measured.exists():
        return shutil.copytree(first_measured, results)
    with without_pages(fake_worker.folder):
        assert jobs(*arguments).returncode == 0
    shutil.copytree(results, first_measured)
    return results


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.long
def test_one_command_measures_and_makes_the_recording_and_the_site(arguments, tmp_path):
    done = jobs(*arguments, "--log-format", "json", "--price-per-hour", "3600")
    assert done.returncode == 0, done.stderr
    results = tmp_path / "results"
    assert names(results) == ["answers", "raw", "recordings", "site", "tiny"]
    assert names(results / "recordings") == ["lock", "tiny"]
    manifest = json.loads((results / "recordings" / "tiny" / "manifest.json").read_text())
    assert [run["status"] for run in manifest["runs"]] == ["ok"]
    assert "tiny-ctx8-fp32-naive-train_step" in (results / "site" / "report" / "runs.html").read_text()
    assert names(results / "site" / "data" / "main") == ["tiny"]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [event["step"] for event in events if event["event"] == "step_finished"]
    assert steps == ["recording", "answers", "pages", "site"]
    assert {"index.md", "a.md", "e.csv"} <= {*names(results / "answers" / "tiny")}
    assert {event["state"] for event in events if event["event"] == "check"} == {"ok"}
    first, last = events[0], events[-1]
    assert first["event"] == "check" and last["event"] == "job_finished"
    assert last["wall_s"] >= last["time"] - first["time"] - 0.1  # the checks and the report are paid for, too
    assert last["cost"] == pytest.approx(last["wall_s"], abs=0.1)


@pytest.mark.nightly
def test_a_report_that_fails_leaves_the_measurements_and_the_last_site_and_is_exit_70(arguments, mkdocs, tmp_path):
    assert jobs(*arguments).returncode == 0
    site = tmp_path / "results" / "site" / "index.html"
    before = site.read_text()
    mkdocs("raise SystemExit('no')")
    done = jobs(*arguments)
    assert done.returncode == 70
    assert "the step `site` failed (build_html copy, exit 1)" in done.stderr
    assert f"what was measured is kept in {tmp_path / 'results' / 'tiny'}" in done.stderr
    assert "`profiler-job job --render-only`" in done.stderr
    assert site.read_text() == before
    mkdocs(FAST_MKDOCS.replace("built", "built again"))
    assert jobs(*arguments, "--render-only").returncode == 0
    assert site.read_text() != before


FAILURES = {
    "a full disk": ("raise OSError(28, 'No space left on device', 'read', None, 'written')", ExitCode.CANNOT_WRITE),
    "a mistake": ("raise KeyError('page')", ExitCode.BUG),
}


@pytest.mark.long
@pytest.mark.parametrize(("program", "code"), FAILURES.values(), ids=FAILURES)
def test_a_site_that_cannot_be_built_is_one_line_and_no_traceback(measured, arguments, mkdocs, program, code):
    mkdocs(program)
    done = jobs("job", "--render-only", *arguments[1:])
    assert done.returncode == code and "Traceback" not in done.stderr
    reason = "error: written: No space left" if code == ExitCode.CANNOT_WRITE else "KeyError: 'page'"
    assert reason in done.stderr and f"build_html copy, exit {code}" in done.stderr


@pytest.mark.long
def test_a_failed_run_is_reported_and_still_exit_1(arguments, mkdocs, fake_worker, tmp_path):
    fake_worker.fail({"tiny-ctx8-fp32-naive-train_step/timer": ("warm-up", "failed")})
    assert jobs(*arguments).returncode == 1
    manifest = json.loads((tmp_path / "results" / "recordings" / "tiny" / "manifest.json").read_text())
    assert [run["status"] for run in manifest["runs"]] == ["failed"]
    assert (tmp_path / "results" / "site" / "index.html").exists()


@pytest.mark.nightly
def test_a_run_that_cannot_be_read_when_the_recording_is_made_is_exit_1(arguments, mkdocs, tmp_path):
    mkdocs(FAST_MKDOCS)
    assert jobs(*arguments).returncode == 0
    next((tmp_path / "results").glob("tiny/*/profile.sqlite")).write_bytes(b"")
    done = jobs(*arguments, "--render-only")
    assert done.returncode == 1
    assert (
        "profile.sqlite has 0 bytes" in done.stderr
        and "1 of 1 run was measured and cannot be recorded, see above" in done.stderr
    )
    manifest = json.loads((tmp_path / "results" / "recordings" / "tiny" / "manifest.json").read_text())
    assert [run["status"] for run in manifest["runs"]] == ["failed"]


@pytest.mark.nightly
def test_what_a_killed_job_left_of_another_recording_does_no_harm(arguments, mkdocs, tmp_path):
    left = tmp_path / "results" / "recordings" / ".draft" / "another"
    left.mkdir(parents=True)
    done = jobs(*arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "recordings" / "tiny" / "manifest.json").exists()
    assert left.exists()


@pytest.mark.long
def test_termination_while_the_report_is_made_ends_at_once_with_143(arguments, mkdocs, tmp_path):
    mkdocs("import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(3600)")
    process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually((tmp_path / "fake_worker" / "begun").exists)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 143
    assert "terminated while the recording or the site was made; what was measured is kept in" in err
    assert not (tmp_path / "results" / "site").exists()


def test_termination_during_the_checks_ends_with_143_and_says_so_last(arguments, scripted_nsys, tmp_path):
    begun = tmp_path / "begun"
    scripted_nsys(f"import pathlib; pathlib.Path({str(begun)!r}).touch(); time.sleep(3600)")
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*arguments, "--log-format", "json"), **options) as process:
        eventually(begun.exists)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 143 and "terminated before it began to measure" in err
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["exit_code"]) == ("job_finished", 143)


WAITING_MKDOCS = f"""
import pathlib, time
here = pathlib.Path(__file__)
here.with_name("begun").touch()
while not here.with_name("go").exists():
    time.sleep(0.02)
{FAST_MKDOCS}"""


@pytest.mark.long
@pytest.mark.parametrize("second", ["job --render-only", "site"])
def test_a_second_report_is_refused_with_75_and_the_first_is_whole(measured, arguments, mkdocs, tmp_path, second):
    """The first job begins with a site in place, which must be there all the time."""
    mkdocs(WAITING_MKDOCS)
    fake, results = tmp_path / "fake_worker", measured
    with subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        eventually((fake / "begun").exists)
        name, *options = second.split()
        given = ["--results", results] if name == "site" else arguments[1:]
        done = jobs(name, *given, *options)
        assert done.returncode == 75
        assert f"{results / 'recordings'} is being written by another job (pid {first.pid} on " in done.stderr
        assert "wait for it, then run this again" in done.stderr
        assert (results / "site" / "index.html").exists()
        (fake / "go").touch()
        assert "the site:" in first.communicate(timeout=HANGS_S)[0]
    assert first.returncode == 0
    assert names(results) == ["answers", "raw", "recordings", "site", "tiny"]
    assert (results / "site" / "index.html").exists()


@pytest.mark.nightly
def test_a_job_that_has_measured_waits_for_the_report_of_another(arguments, mkdocs, tmp_path):
    results = tmp_path / "results"
    report = Results(results, "recordings").lock()
    with subprocess.Popen(command(*arguments), cwd=ROOT, stderr=subprocess.PIPE, text=True) as job, report:
        assert any("waiting for it" in line for line in job.stderr)
        assert not (results / "site").exists()
    assert job.returncode == 0
    assert (results / "site" / "index.html").exists()


@pytest.mark.nightly
def test_shards_that_end_together_do_not_wait_for_each_other(arguments, tmp_path):
    results = tmp_path / "results"
    with Results(results, "tiny", "shard-2-of-2").lock(), Results(results, "recordings").lock():
        done = jobs(*arguments, "--shard", "1/2")
    assert done.returncode == 0 and "waiting" not in done.stderr


@pytest.mark.nightly
def test_the_report_is_made_when_nobody_reads_what_it_says(arguments, mkdocs, tmp_path):
    mkdocs(FAST_MKDOCS + "print('a warning', flush=True)\n")
    with subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        process.stdout.close()
        assert process.wait(HANGS_S) == 0
    assert (tmp_path / "results" / "site" / "index.html").exists()


@pytest.mark.long
def test_a_shard_makes_its_recording_and_leaves_the_site_to_the_merge(arguments, tmp_path):
    assert jobs(*arguments, "--shard", "1/2").returncode == 0
    assert names(tmp_path / "results") == ["raw", "recordings", "tiny"]
    assert names(tmp_path / "results" / "recordings") == ["tiny-shard-1-of-2"]


@pytest.mark.long
def test_a_machine_that_cannot_measure_shows_how_to_build_the_shipped_site(tiny, tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    done = jobs("job", "--sweep", tiny(), "--results", tmp_path / "results", env=environment)
    assert done.returncode == 69
    assert "this machine cannot measure" in done.stderr and "`profiler-job site --shipped`" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kept", ["nothing", "a folder"])
def test_nothing_measured_cannot_be_rendered_and_nothing_is_created(arguments, tmp_path, kept):
    results = tmp_path / "results"
    if kept != "nothing":
        results.mkdir()
    done = jobs(*arguments, "--render-only")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {results}: ")
    assert not list(results.iterdir()) if kept != "nothing" else not results.exists()


def test_a_site_that_cannot_be_written_is_exit_74_with_the_fix(tmp_path):
    """The results folder comes from the environment here, as in the image where no folder is mounted."""
    file = tmp_path / "file"
    file.write_text("")
    done = jobs("site", "--shipped", env=os.environ | {"PROFILER_RESULTS": str(file / "results")})
    assert done.returncode == 74
    assert f"{file} is not writable" in done.stderr and ":/results" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.nightly
def test_site_shows_what_jobs_recorded_and_not_the_shipped_recordings(measured):
    shutil.rmtree(measured / "site")
    shutil.copytree(measured / "recordings" / "tiny", measured / "recordings" / ".tiny.old")  # as a kill leaves it
    done = jobs("site", "--results", measured)
    assert done.returncode == 0, done.stderr
    assert names(measured / "site" / "data" / "main") == ["tiny"]
    assert "tiny-ctx8-fp32-naive-train_step" in (measured / "site" / "report" / "runs.html").read_text()


@pytest.mark.parametrize("kept", ["nothing", "a folder"])
def test_a_site_without_a_recording_is_exit_2_and_creates_nothing(mkdocs, tmp_path, kept):
    results = tmp_path / "results"
    if kept != "nothing":
        results.mkdir()
    done = jobs("site", "--results", results)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{results / 'recordings'} holds no recording" in line and "--recording" in line and "--shipped" in line
    assert not list(results.iterdir()) if kept != "nothing" else not results.exists()


@pytest.mark.nightly
def test_recordings_of_the_same_runs_are_named_and_one_can_be_chosen(measured):
    before = (measured / "site" / "index.html").read_text()
    recordings = measured / "recordings"
    shutil.copytree(recordings / "tiny", recordings / "older")
    done = jobs("site", "--results", measured)
    assert done.returncode == 65
    (line,) = [line for line in done.stderr.splitlines() if "tiny-ctx8" in line]
    assert "recordings older, tiny hold the same runs" in line and "choose one with --recording" in line
    assert (measured / "site" / "index.html").read_text() == before
    done = jobs("site", "--results", measured, "--recording", recordings / "older")
    assert done.returncode == 0, done.stderr
    assert names(measured / "site" / "data" / "main") == ["older"]


def test_two_recordings_of_one_name_are_exit_2_and_both_are_named(tmp_path):
    given = [tmp_path / "mine" / "h200", tmp_path / "yours" / "h200", tmp_path / "yours" / "h100"]
    for folder in given:
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    options = [word for folder in given for word in ("--recording", folder)]
    done = jobs("site", "--results", tmp_path / "results", *options)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(given[0]) in line and str(given[1]) in line and "rename one" in line
    assert not (tmp_path / "results").exists()


def test_the_folder_that_one_is_in_is_a_recording_with_a_name(tmp_path, monkeypatch):
    folder = tmp_path / "h200"
    folder.mkdir()
    (folder / "manifest.json").touch()
    monkeypatch.chdir(folder)
    assert select_recordings(tmp_path / "results", [Path(".")], shipped=False) == [folder]


def test_a_crash_while_the_recording_is_made_keeps_the_last_one_and_is_told(tmp_path, monkeypatch):
    """Python's exit code after a crash is also the code of `ingest` for damaged results."""
    recording, left = tmp_path / "recordings" / "tiny", tmp_path / "recordings" / ".draft" / "tiny"
    for folder in (recording, left):  # a draft that a killed job left
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(folder.parent.name)
    monkeypatch.setattr(follow_up, "_run_step", lambda *arguments, **options: ExitCode.FAILED)
    with pytest.raises(follow_up.StepError, match="left no recording, see above"):
        follow_up.ingest(tmp_path, recording, lambda event, **fields: None)
    assert (recording / "manifest.json").read_text() == "recordings"


@pytest.mark.nightly
def test_a_damaged_recording_is_named_by_its_own_folder(tmp_path):
    given = [tmp_path / "mine" / "tiny", tmp_path / "mine" / "tiny-2"]
    for folder, manifest in zip(given, ("{}", "{")):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(manifest)
    for folder in given:
        done = jobs("site", "--results", tmp_path / "results", "--recording", folder)
        assert done.returncode == 65
        assert f"error: {folder}/" in done.stderr and "profiler-site-" not in done.stderr
    done = jobs("site", "--results", tmp_path / "results", *("--recording", given[0], "--recording", given[1]))
    assert any(f"error: {folder}/" in done.stderr for folder in given) and "profiler-site-" not in done.stderr


@pytest.mark.long
def test_shipped_recordings_are_shown_on_request_where_they_replace_nothing(mkdocs, monkeypatch, tmp_path):
    """A function call, since all of what is shipped takes its time."""
    built = []
    monkeypatch.setattr(
        "profiler_job.jobs.cli.results_site.build_site",
        lambda recordings, site, report, page_options: built.append((recordings, site)),
    )
    build_results_site(tmp_path / "new", shipped=True)
    assert built == [(find_shipped_recordings(), tmp_path / "new" / "site")]
    for own in ("site", "recordings/mine"):
        results = tmp_path / own.partition("/")[0]
        (results / own).mkdir(parents=True)
        (results / own / "manifest.json").touch()
        done = jobs("site", "--shipped", "--results", results)
        assert done.returncode == 2
        assert f"--shipped: {results / own} is there already, which stays; give another --results" in done.stderr
        assert names(results) == [own.partition("/")[0]]
    done = jobs("site", "--shipped", "--recording", tmp_path, "--results", tmp_path / "both")
    assert done.returncode == 2 and "give one of them" in done.stderr


def test_a_recording_is_shipped():
    assert find_shipped_recordings()


def test_replace_leaves_only_the_new_folder(tmp_path):
    for name in ("draft", "target", ".target.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    replace(tmp_path / "draft", tmp_path / "target")
    assert names(tmp_path) == ["target"] and names(tmp_path / "target") == ["draft"]


def test_a_draft_that_cannot_be_put_in_place_leaves_the_target(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "before").touch()
    with pytest.raises(OSError):
        replace(tmp_path / "no-draft", target)
    assert names(tmp_path) == ["target"] and names(target) == ["before"]


def test_what_a_kill_left_aside_stays_until_the_new_folder_is_in_place(tmp_path):
    (tmp_path / ".target.old").mkdir()
    with pytest.raises(OSError):
        replace(tmp_path / "no-draft", tmp_path / "target")
    assert names(tmp_path) == ["target"]


def test_exit_codes_are_documented():
    assert "70 when" in inspect.getdoc(job_command)
    assert "75 " in inspect.getdoc(job_command)
