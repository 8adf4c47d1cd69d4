"""The command line: exit codes, messages, forms of output. Workers are fake unless a test says otherwise."""

import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest
import yaml
from typer.testing import CliRunner

from profiler_job.__main__ import COMMANDS, Subcommand, app
from profiler_job.jobs.cli import run_command
from profiler_job.jobs.executor.sweep_runner import SweepRunner
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP
from tests.jobs.conftest import ROOT, command, eventually, jobs
from tests.jobs.tiny_runs import FIRST, RUNS, SECOND
from tests.records import rewrite
from tests.waiting import HANGS_S


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name):
    command_ = Subcommand(name, COMMANDS[name]).load()
    assert " ".join(command_.help.split()).startswith(COMMANDS[name].line.removesuffix("."))
    assert all(parameter.help for parameter in command_.params if parameter.name != "help")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_help_of_a_command_fits_one_screen(name):
    """A screen has 80 columns and 45 lines, and the prompt takes one. Flags take no value, so no type is shown."""
    done = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [*filter(None, [name]), "-h"])
    lines = done.output.splitlines()
    assert done.exit_code == 0 and len(lines) <= 44 and max(map(len, lines)) <= 80
    assert "<bool>" not in done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_one_line_in_the_list_of_all(name):
    shown = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, ["-h"]).output
    assert re.search(rf" {name} +{re.escape(COMMANDS[name].line)} +│", shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_paragraph_of_help_is_broken_where_the_terminal_ends_and_not_where_the_code_breaks_it(name):
    command_ = Subcommand(name, COMMANDS[name]).load()
    assert not any("\n" in paragraph for paragraph in command_.help.split("\n\n"))


def test_help_needs_neither_torch_nor_pandas():
    program = (
        "import sys\nfrom profiler_job.__main__ import app\nsys.argv = ['profiler-job', '--help']\n"
        "try: app()\nexcept SystemExit: print({'torch', 'pandas', 'pyarrow', 'altair'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


def test_help_lists_every_command():
    out = jobs("--help").stdout
    assert all(name in out for name in COMMANDS)


def test_every_exit_code_of_run_is_documented():
    text = " ".join(inspect.getdoc(run_command.run).split())
    for code in ("0 every", "1 some", "2 configuration", "69 ", "74 ", "75 ", "129 ", "130 ", "143 "):
        assert code in text


@pytest.fixture
def run(tiny, tmp_path, fake_worker):
    """Run the tiny sweep, with changes, on the CPU."""

    def start(*arguments, changes=None, results=tmp_path / "results", **options):
        sweep = tiny(**(changes or {}))
        return jobs("run", "--device", "cpu", "--sweep", sweep, "--results", results, *arguments, **options)

    return start


@pytest.fixture
def started(tiny, tmp_path, fake_worker):
    """Start `run` of the tiny sweep without waiting for it."""
    processes = []

    def start(*arguments) -> subprocess.Popen:
        sweep = ["--sweep", tiny(), "--results", tmp_path / "results"]
        process = subprocess.Popen(
            command("run", "--device", "cpu", *sweep, *arguments),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.terminate()  # which ends its workers too
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.long
def test_plain_lines_without_a_terminal_then_status(run, tiny, tmp_path):
    done = run("--price-per-hour", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    first, *runs, finished, last = done.stdout.splitlines()
    assert first == "4 runs, 0 of them already finished"
    told = [line.split()[:3] for line in runs]
    assert [number for number, *_ in told] == [f"[{i}/8]" for i in range(1, 9)]
    assert sorted(one for _, *one in told[:4]) == sorted([run, "timed"] for run in RUNS)  # in a shuffled order
    assert sorted(one for _, *one in told[4:]) == sorted([run, "ok"] for run in RUNS)  # exported side by side
    assert all("elapsed, about" in line and "| cost 0.0" in line for line in runs)
    assert finished.startswith("finished: 4 ok in 0:00:")
    assert last.startswith("in all 0:00:") and "| cost 0.0" in last

    status = jobs("status", "--sweep", tiny(), "--results", tmp_path / "results")
    assert [line.split()[:2] for line in status.stdout.splitlines()[:4]] == [[one, "ok"] for one in RUNS]
    assert status.stdout.splitlines()[4:] == [
        "4 ok; no job is writing here",
        "of 4 runs 4 timed, 4 profiled, 4 finished",
    ]


@pytest.mark.long
def test_status_names_a_damaged_run(run, tiny, tmp_path):
    run()
    (tmp_path / "results" / "tiny" / RUNS[0] / "timings.json").unlink()
    lines = jobs("status", "--sweep", tiny(), "--results", tmp_path / "results").stdout.splitlines()
    assert lines[0].split(maxsplit=1) == [RUNS[0], "damaged  timings.json is missing"]
    assert lines[4] == "3 ok, 1 damaged; no job is writing here"


@pytest.mark.parametrize(
    ("folders", "options", "said"),
    [
        ([], [], "{results}: no such folder; give the results folder of a job with --results"),
        (["recordings"], [], "{results}: has no results of tiny; no job has begun there"),
        (["mine", "raw/mine", "a/shard-1-of-2"], [], "{results}: has no results of tiny; it has a, mine"),
        (["mine"], ["--shard", "1/2"], "{results}: has no results of tiny; it has mine"),
        (["tiny"], ["--shard", "1/2"], "{results}/tiny: has no results of shard-1-of-2; no job has begun there"),
        (
            ["tiny/shard-10-of-12", "tiny/shard-2-of-12"],
            ["--shard", "1/2"],
            "{results}/tiny: has no results of shard-1-of-2; it has shard-2-of-12, shard-10-of-12",
        ),
        (["tiny/shard-1-of-2"], [], "{results}/tiny: measured in shards; give --shard I/N; it has shard-1-of-2"),
    ],
)
def test_status_of_what_is_not_there_is_an_error(tiny, tmp_path, folders, options, said):
    results = tmp_path / "results"
    for folder in folders:
        (results / folder).mkdir(parents=True)
        if folder not in ("recordings", "tiny", "raw/mine"):
            (results / folder / "sweep.json").write_text("{}")
    done = jobs("status", "--sweep", tiny(), "--results", results, *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {said.format(results=results)}\n")


@pytest.mark.parametrize(("folder", "options"), [("tiny", []), ("tiny/shard-1-of-2", ["--shard", "1/2"])])
def test_status_says_that_a_sweep_has_not_begun(tiny, tmp_path, folder, options):
    (tmp_path / "results" / folder).mkdir(parents=True)
    done = jobs("status", "--sweep", tiny(), "--results", tmp_path / "results", *options)
    assert done.returncode == 0
    assert re.search(r"^\d waiting; the sweep has not begun$", done.stdout, re.MULTILINE), done.stdout


def test_json_events_are_one_object_a_line_and_nothing_else(run):
    done = run("--log-format", "json", "--only", "mode=forward", "--price-per-hour", "3600")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    counts = Counter(event["event"] for event in events if event["event"] != "stage_started")
    assert counts == {
        "sweep_started": 1,
        "run_started": 2,
        "stage_finished": 4,
        "run_finished": 2,
        "sweep_finished": 1,
        "job_finished": 1,
    }
    assert (events[0]["runs"], events[0]["stages"]) == (2, 4)
    assert set(events[0]["predicted_s"]) == {run for run in RUNS if run.endswith("forward")}
    assert {event["stage"] for event in events if event["event"] == "stage_started"} == {"timer", "nsys", "export"}
    sweep, job = events[-2:]
    assert sweep["event"] == "sweep_finished"
    assert set(sweep["statuses"].values()) == {"ok"}
    assert (job["event"], job["exit_code"]) == ("job_finished", 0)
    assert 0 < job["wall_s"] == pytest.approx(job["cost"], abs=0.1)


def test_the_last_event_tells_how_a_job_ended(run):
    done = run("--log-format", "json", "--gpus", "2")
    [last] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (last["event"], last["exit_code"], last["cost"]) == ("job_finished", 2, None)


@pytest.mark.parametrize("log_format", ["text", pytest.param("json", marks=pytest.mark.long)])
def test_a_sweep_goes_on_when_nobody_reads_its_output_any_more(started, tmp_path, log_format):
    process = started("--log-format", log_format)
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()
    assert process.wait(HANGS_S) == 0
    assert len(list(tmp_path.glob("results/tiny/*/run.json"))) == 4


def test_a_failed_run_is_exit_1_and_out_of_memory_is_a_result(run, fake_worker, tiny, tmp_path):
    short = {"context_length": [8]}
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "oom")})
    assert run(changes=short).returncode == 0
    fake_worker.fail({f"{SECOND}/timer": ("warm-up", "failed")})
    short |= {"measured_steps": 3}
    done = run(changes=short)
    assert done.returncode == 1
    assert "failed: forward: RuntimeError: no" in done.stdout
    assert "finished: 1 failed, 1 ok" in done.stdout
    status = jobs("status", "--sweep", tiny(**short), "--results", tmp_path / "results")
    assert "1 ok, 1 failed; no job is writing here" in status.stdout


@pytest.mark.long
def test_a_shard_measures_its_part_in_a_folder_of_its_own(run, tmp_path):
    assert run("--shard", "2/2").returncode == 0
    folder = tmp_path / "results" / "tiny" / "shard-2-of-2"
    measured = {path.parent.name for path in folder.glob("*/run.json")}
    plan = json.loads((folder / "sweep.json").read_text())
    assert measured == set(plan["runs"])
    assert 0 < len(measured) < 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--only", "size=huge"], "--only size=huge: no run has this size; this sweep has: tiny"),
        (["--shard", "3/2"], "--shard 3/2: expected I/N"),
        (["--log-format", "yaml"], "is not one of"),
        (["--gpus", "-1"], "greater than or equal to 0"),
        (["--gpus", "2"], "--gpus 2: 1 visible; give fewer"),
        (["--price-per-hour", "much"], "Invalid value for '--price-per-hour'"),
    ],
)
def test_a_wrong_option_is_exit_2(run, arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


@pytest.mark.long
def test_finished_runs_of_another_version_are_exit_2_or_allowed(run, tmp_path, monkeypatch):
    folder = tmp_path / "results" / "tiny"
    assert run().returncode == 0
    (folder / FIRST / "run.json").unlink()
    monkeypatch.setenv("PROFILER_COMMIT", "that")
    refused = run("--log-format", "json")
    assert refused.returncode == 2
    (line,) = [line for line in refused.stderr.splitlines() if line]
    what = f"{len(RUNS) - 1} of {len(RUNS) - 1} finished runs in {folder} were measured with other versions: "
    assert f"error: {what}commit this ({len(RUNS) - 1} runs), here that; give another --results" in line
    assert json.loads(refused.stdout.splitlines()[-1])["exit_code"] == 2
    allowed = run("--log-format", "json", "--allow-mix")
    assert allowed.returncode == 0
    told = [one for one in map(json.loads, allowed.stdout.splitlines()) if one["event"] == "mixed_versions"]
    assert [one["differences"] for one in told] == [{"commit": {"here": "that", "runs": {"this": len(RUNS) - 1}}}]
    assert run().returncode == 0  # nothing is left to measure


def test_a_wrong_sweep_is_exit_2_with_file_key_and_values(run):
    done = run(changes={"mode": ["training"]})
    assert done.returncode == 2
    assert "tiny.yaml: mode.0: should be 'forward', 'forward_backward' or 'train_step', not 'training'" in done.stderr


def test_without_nsys_a_cpu_is_timed_and_nothing_is_captured(run, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = run()
    assert done.returncode == 0, done.stderr
    assert "no nsys here" in done.stderr
    records = [json.loads(file.read_text()) for file in tmp_path.rglob("run.json")]
    assert records and {(record["status"], record["profiled_steps"]) for record in records} == {("ok", 0)}
    status = jobs("status", "--sweep", tiny(), "--results", tmp_path / "results").stdout.splitlines()
    assert status[-1] == f"of {len(RUNS)} runs {len(RUNS)} timed, 0 profiled, {len(RUNS)} finished"


def test_without_a_gpu_it_is_exit_69_and_names_the_doctor(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = jobs("run", "--sweep", tiny(), "--results", tmp_path / "results")
    assert (done.returncode, done.stderr) == (69, "error: no NVIDIA GPU is visible; `doctor` says what is missing\n")


@pytest.mark.long
def test_a_second_job_on_one_folder_is_exit_75(run, started, fake_worker):
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "hang")})
    first = started()
    eventually(lambda: fake_worker.tasks)
    second = run()
    assert second.returncode == 75
    assert f"is being written by another job (pid {first.pid} on " in second.stderr
    assert first.poll() is None


@contextmanager
def hang_ups(handler: signal.Handlers):
    """Set what a process that is started meanwhile inherits: SIGHUP ends it, or is ignored, as under nohup."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.long
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_in_mid_sweep_marks_the_run_and_keeps_the_rest(
    run, started, fake_worker, tiny, tmp_path, number, code
):
    fake_worker.fail({f"{SECOND}/nsys": ("measured", "hang")})
    with hang_ups(signal.SIG_DFL):
        process = started()
    eventually(lambda: len(fake_worker.tasks) == 6 and list(tmp_path.glob("results/*/*/run.json")))
    status = ["status", "--sweep", tiny(), "--results", tmp_path / "results"]
    assert jobs(*status).stdout.splitlines()[4:] == [
        "2 timed, 1 ok, 1 running; a job is writing here",
        "of 4 runs 4 timed, 1 profiled, 1 finished",
    ]
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_S)
    assert (process.returncode, err) == (code, "")
    assert f"{SECOND}  interrupted: this stage will be measured again" in out
    assert "1 interrupted" in jobs(*status).stdout
    fake_worker.fail({})
    assert "4 runs, 1 of them already finished, 3 timed" in run().stdout


def test_a_signal_as_the_sweep_ends_is_heeded(tiny, tmp_path, monkeypatch):
    def ended(runner, runs):
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    monkeypatch.setattr(SweepRunner, "run", ended)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        arguments = ["run", "--device", "cpu", "--sweep", str(tiny()), "--results", str(tmp_path / "results")]
        assert CliRunner().invoke(app, arguments).exit_code == 143
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("closed, code", [("1", 0), ("2", 2)])
def test_a_stream_that_is_closed_from_the_start_stops_nothing(run, tiny, tmp_path, closed, code):
    arguments = (
        ["--sweep", tmp_path / "missing.yaml"] if code else ["--sweep", tiny(), "--results", tmp_path / "results"]
    )
    (tmp_path / "results" / "tiny").mkdir(parents=True)
    command = [sys.executable, "-m", "profiler_job", "status", *arguments]
    done = subprocess.run(["bash", "-c", f'exec "$@" {closed}>&-', "-", *command], cwd=ROOT)
    assert done.returncode == code


@pytest.mark.long
def test_only_what_is_left_to_measure_needs_room(run, tiny, tmp_path):
    def predicted(*options):
        told = jobs("doctor", "--device", "cpu", "--sweep", tiny(), "--results", tmp_path / "results", *options).stdout
        return re.search(r"at most (.+) predicted", told)[1]

    fresh = predicted()
    run()
    assert predicted() == predicted("--retry") == "0 MiB" != fresh
    for path in tmp_path.glob("results/*/*/run.json"):
        rewrite(path, status="failed")
    assert predicted() == "0 MiB" and predicted("--retry") == fresh


@pytest.mark.long
def test_nohup_keeps_a_sweep_going_when_its_terminal_hangs_up(started, tmp_path, monkeypatch):
    with hang_ups(signal.SIG_IGN):
        process = started()
    process.stdout.readline()  # the sweep has started
    process.send_signal(signal.SIGHUP)
    assert process.wait(HANGS_S) == 0


def test_results_that_cannot_be_written_are_exit_74(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = run(results=tmp_path / "file")
    assert done.returncode == 74
    assert "Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def mount(tmp_path):
    """Mount a small file system at a new folder and return the folder."""
    mounted = []

    def make(options: str):
        folder = tmp_path / "mount"
        folder.mkdir(exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True)
        if done.returncode:
            pytest.skip("needs the right to mount a file system")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", folder])


def test_a_read_only_folder_is_exit_74_with_the_fix(run, mount):
    done = run(results=mount("ro,size=1m") / "results")
    assert done.returncode == 74
    assert "Read-only file system" in done.stderr
    assert "--user" in done.stderr


def test_what_cannot_be_written_for_another_reason_is_not_called_a_full_disk(run, monkeypatch, tmp_path):
    folder = tmp_path / (120 * "x")  # too long for a worker's socket
    folder.mkdir()
    done = run(env=os.environ | {"TMPDIR": str(folder)})
    assert done.returncode == 74
    assert "AF_UNIX path too long; what was measured so far is kept. To resume, fix this and run again" in done.stderr


@pytest.mark.long
def test_a_full_disk_stops_the_sweep_and_keeps_what_was_measured(run, mount, fake_worker):
    """After one run there is room for an export or none, not for three; then there is room again."""
    folder = mount("size=16m")
    assert run("--only", "mode=forward,context_length=8", results=folder).returncode == 0
    filler = folder / "filler"
    filler.write_bytes(b"x" * int(13.9 * 2**20))
    done = run(results=folder)
    assert done.returncode == 74
    assert "No space left on device (disk full); what was measured so far is kept" in done.stderr
    assert "Traceback" not in done.stderr
    finished = {path.parent.name: path.read_text() for path in folder.glob("tiny/*/run.json")}
    assert FIRST in finished
    assert all(json.loads(text)["status"] == "ok" for text in finished.values())
    assert len(finished) < 4

    filler.unlink()
    again = run(results=folder)
    assert again.returncode == 0
    assert f"4 runs, {len(finished)} of them already finished" in again.stdout
    assert all((folder / "tiny" / one / "run.json").read_text() == text for one, text in finished.items())


@pytest.mark.long
def test_doctor_says_what_to_do(tiny, tmp_path, fake_nsys):
    arguments = ["--sweep", tiny(), "--results", tmp_path / "results"]
    assert jobs("doctor", "--device", "cpu", *arguments).returncode == 0
    environment = os.environ | {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    done = jobs("doctor", *arguments, env=environment)
    assert done.returncode == 69
    lines = done.stdout.splitlines()
    failed = [i for i, line in enumerate(lines) if line.startswith("failed")]
    assert failed
    assert all(lines[i + 1].strip().startswith("-> ") for i in failed)


def test_plan_needs_neither_gpu_nor_torch(tiny, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('the plan imports torch')")
    done = jobs("plan", "--only", "size=small", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0
    assert "small-ctx128-fp32-naive-forward   " in done.stdout
    assert "129 M" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("12 runs; memory and time are predictions")
    done = jobs("plan", "--only", "size=small,mode=forward,context_length=128")
    assert done.stdout.splitlines()[-1].startswith("1 run; memory and time are predictions")


@pytest.mark.long
@pytest.mark.parametrize("axes", [{"repeats": 200}, {"context_length": [*range(16, 12_816, 16)]}])
def test_12000_runs_are_planned_in_seconds(tmp_path, axes):
    sweep = tmp_path / "large.yaml"
    sweep.write_text(yaml.safe_dump(yaml.safe_load(DEFAULT_SWEEP.read_text()) | axes))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = jobs("plan", "--sweep", sweep)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10
    assert "\n12,000 runs; " in done.stdout
    assert ("  GiB  " in done.stdout) == ("repeats" in axes)
    assert ("the memory of 12,000 different shapes takes about" in done.stdout) == ("repeats" not in axes)


def test_memory_that_takes_long_to_predict_is_left_out_unless_it_is_asked_for(tiny, monkeypatch):
    def plan(*options):
        done = CliRunner().invoke(app, ["plan", "--sweep", str(tiny(memory_limit_gib=[1])), *options])
        assert done.exit_code == 0
        return done.stdout, done.stderr

    quick = plan()
    monkeypatch.setattr("profiler_job.jobs.cli.plan_command.QUICK_S", 0)
    takes = "the memory of 4 different shapes takes about 0:00:00 to predict"
    without, told = plan()
    assert without.splitlines()[0].split() == ["run", "parameters", "batch", "time", "(s)"]
    assert without.endswith(f"{takes}, and is left out; --memory shows it all the same\n") and not told
    patient, told = plan("--memory")
    owners = ["weights", "gradients", "optimizer", "activations", "rest"]
    assert patient.splitlines()[0].split() == [
        "run",
        "parameters",
        "batch",
        "GiB",
        *owners,
        "time",
        "(s)",
        "will",
        "not",
        "fit",
    ]
    assert patient.splitlines()[1].split()[:4] == quick[0].splitlines()[1].split()[:4] and told == takes + "\n"
    limited, told = plan("--gpu-memory", "24")
    assert limited.endswith("0 of 4 runs will not fit a GPU sold with 24 GB\n") and told == takes + "\n"


@pytest.mark.long
def test_the_whole_path_with_the_real_workload(tiny, tmp_path, fake_nsys):
    sweep = tiny(context_length=[8], mode=["train_step"], precision=["fp32", "bf16"])
    done = jobs("run", "--device", "cpu", "--sweep", sweep, "--results", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    timings = json.loads((tmp_path / "tiny" / SECOND / "timings.json").read_text())
    assert [row["phase"] for row in timings["steps"]] == 2 * ["forward", "loss", "backward", "optimizer", "step"]
    record = json.loads((tmp_path / "tiny" / SECOND / "run.json").read_text())
    assert record["autograd_multithreading"] is False
    assert "(fake)" in record["machine"]["nsys"]
