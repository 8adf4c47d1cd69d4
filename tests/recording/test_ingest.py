"""A results folder becomes a recording, and no run looks better than it was."""

import json
import re
import time

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.capture import nsys_reports
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.metrics import timing
from profiler_job.analysis.recording import ingest as ingesting
from profiler_job.analysis.recording import store, times
from profiler_job.analysis.recording.ingest import ResultsError, ingest
from profiler_job.jobs.contract.privacy import scrub_text
from tests.capture.nsys_files import Export
from tests.capture.profiles import profile

RUN = "small-ctx128-fp32-naive-train_step"


def _capture(steps=2, kernels=True) -> Export:
    export = Export()
    for i in range(steps):
        at = 1000 * (i + 1)
        export.push("step", at, at + 900)
        export.push("forward", at + 10, at + 400)
        export.push("block_0", at + 20, at + 300)
        export.push("backward", at + 410, at + 800)
        if kernels:
            export.launch(at + 30, name="gemm")
            export.launch(at + 500, name="add")
            export.copy(at + 60, at + 70, export.call(at + 50, at + 55, name="cudaMemcpyAsync_v3020"))
    export.launch(5000, name="after every step")
    return export


def _about(**changes) -> dict:
    run = {"size": "small", "d_model": 768, "context_length": 128, "mode": "train_step", "num_parameters": 5}
    about = {
        "run_id": RUN,
        "status": "ok",
        "status_detail": None,
        "run": run,
        "machine": {"gpu_name": "NVIDIA H200", "torch": "2.13.0", "hostname": "secret-host"},
        "autograd_multithreading": False,
        "float32_matmul_precision": "highest",
        "warmup_steps": 5,
        "measured_steps": 10,
        "profiled_steps": 2,
        "started_at": "2026-11-21T07:00:00Z",
        "wall_s": 90.5,
    }
    return about | changes


_TIMINGS = {
    "steps": [{"step": 0, "phase": "forward", "wall_ns": 500}, {"step": 0, "phase": "step", "wall_ns": 900}],
    "memory": [
        {
            "phase": phase,
            "peak_allocated_bytes": peak,
            "peak_reserved_bytes": peak + 1,
            "allocated_before_bytes": 1,
            "allocated_after_bytes": 2,
        }
        for phase, peak in (("forward", 50), ("backward", 70))
    ],
}


@pytest.fixture
def results(tmp_path):
    """Writes runs into a results folder."""
    folder = tmp_path / "results"

    def add(run_id=RUN, about=None, timings=_TIMINGS, capture=None):
        run = folder / run_id
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps(about or _about(run_id=run_id)))
        if timings is not None:
            (run / "timings.json").write_text(json.dumps(timings))
        if capture is not False:
            (capture or _capture()).sqlite(run / "profile.sqlite")
        return folder

    return add


def _ingested(folder, tmp_path):
    said = []
    ingest(folder, tmp_path / "recording", said.append)
    return store.load(tmp_path / "recording"), said


def test_a_run_becomes_rows_of_every_table(results, tmp_path):
    found, said = _ingested(results(), tmp_path)
    assert said == []
    assert list(found.runs["status"]) == ["ok"]
    assert found.runs["peak_memory_bytes"].tolist() == [70]
    kernels = found.kernels
    assert list(kernels["step"]) == [0, 0, 1, 1]
    assert list(kernels["phase"].astype(str)) == ["forward", "backward", "forward", "backward"]
    assert list(kernels["module"].astype(str)) == ["block_0", "", "block_0", ""]
    assert list(kernels["attribution"].astype(str)) == ["exact"] * 4
    assert list(found.memops["operation"].astype(str)) == ["memcpy Host-to-Device"] * 2
    api = found.api[found.api["name"].astype(str) == "cudaLaunchKernel"]
    assert api["calls"].sum() == 4
    assert len(found.memory) == 2


def test_a_run_without_capture_is_read_from_its_timings(results, tmp_path):
    timings = _TIMINGS | {
        "module_memory": [{"phase": "forward", "module": "block_0/ffn", "kept_bytes": 7}],
        "figures": [{"figure": "loss", "unit": "", "value": 9.25}],
    }
    folder = results(about=_about(profiled_steps=0), timings=timings, capture=False)
    found, said = _ingested(folder, tmp_path)
    assert said == []
    assert list(found.runs["status"]) == ["ok"]
    assert len(found.kernels) == 0
    assert list(found.module_memory["kept_bytes"]) == [7]
    assert list(found.figures["value"]) == [9.25]


def test_the_manifest_holds_the_study_and_the_rates_of_the_machine(results, tmp_path):
    folder = results()
    rate = {"figure": "copy", "unit": "bytes/s", "value": 4e12, "low": 3e12, "high": 5e12, "repeats": 10}
    (folder / "sweep.json").write_text(json.dumps({"sweep": "x", "study": "precision", "runs": [RUN]}))
    (folder / "calibration.json").write_text(json.dumps([rate]))
    found, _ = _ingested(folder, tmp_path)
    assert found.manifest["study"] == "precision"
    assert found.manifest["calibration"] == [rate | {"gpu_name": ""}]
    (folder / "calibration.json").write_text(json.dumps([rate | {"gpu_name": "NVIDIA H200"}]))
    assert _ingested(folder, tmp_path)[0].manifest["calibration"] == [rate | {"gpu_name": "NVIDIA H200"}]
    (folder / "calibration.json").write_text("{}")
    with pytest.raises(ResultsError, match="is not a list of rates"):
        ingest(folder, tmp_path / "again")


def test_what_lies_outside_every_measured_step_is_not_recorded(results, tmp_path):
    found, _ = _ingested(results(), tmp_path)
    assert "after every step" not in set(found.kernels["kernel_name"].astype(str))
    assert min(found.api["step"].min(), found.memops["step"].min(), found.kernels["step"].min()) == 0


def test_times_count_from_the_first_step(results, tmp_path):
    found, _ = _ingested(results(), tmp_path)
    first = found.ranges[found.ranges["name"].astype(str) == "step"].iloc[0]
    assert (first["start_ns"], first["end_ns"]) == (0, 900)
    launches = found.kernels["launch_ns"]
    assert (launches % times.TICK_NS == 0).all(), "rounded"
    assert launches.tolist() == pytest.approx([30, 500, 1030, 1500], abs=times.TICK_NS)
    assert found.kernels["launch_end_ns"].tolist() == pytest.approx([32, 502, 1032, 1502], abs=times.TICK_NS)


def test_host_times_of_phases_come_from_ranges(results, tmp_path):
    found, _ = _ingested(results(), tmp_path)
    nsys = found.steps[found.steps["collector"].astype(str) == "nsys"]
    walls = {(row.step, str(row.phase)): row.wall_ns for row in nsys.itertuples()}
    assert walls[0, "step"] == 900
    assert walls[1, "forward"] == 390
    assert walls[1, "backward"] == 390
    assert len(found.steps) == 2 + 6


def test_ranges_keep_their_parents(results, tmp_path):
    found, _ = _ingested(results(), tmp_path)
    ranges = found.ranges.set_index("range_id")
    block = ranges[ranges["path"].astype(str) == "step/forward/block_0"].iloc[0]
    assert str(ranges["path"][block["parent_id"]]) == "step/forward"
    kernel = found.kernels.iloc[0]
    assert str(ranges["name"][kernel["range_id"]]) == "block_0"


def test_a_new_field_of_run_and_only_known_fields_of_the_machine(results, tmp_path):
    about = _about()
    about["run"]["sliding_window"] = 64
    found, _ = _ingested(results(about=about), tmp_path)
    assert found.runs["sliding_window"].tolist() == [64]
    written = "".join(path.read_bytes().decode("latin-1") for path in (tmp_path / "recording").iterdir())
    assert "secret-host" not in written


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ('{"status": "ok"', "Expecting"),
        ("[]", "should be a valid dictionary"),
        ('{"run": {}}', "status: Field required"),
        ('{"status": "ok"}', "run: Field required"),
        ('{"status": "ok", "run": {}, "machine": "H200"}', "machine: "),
        ('{"status": "ok", "run": {}, "wall_s": "long"}', "wall_s: "),
    ],
)
def test_a_file_that_is_no_record_is_one_line_with_its_path_and_what_to_do(results, tmp_path, content, reason):
    file = results() / RUN / "run.json"
    file.write_text(content)
    done = CliRunner().invoke(app, ["ingest", str(tmp_path / "results"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 65
    [line] = done.output.splitlines()
    assert line.startswith(f"error: {file} is not a valid record of a run (") and reason in line
    assert line.endswith(": run the sweep again to measure it anew")
    assert not (tmp_path / "out").exists()


def _two_ranks(steps_of_second=2) -> Export:
    """Two processes with a GPU each and steps of 100 ns side by side; process 2 begins first, but not with a step."""
    export = Export()
    export.push("set-up", 900, 950, process=2)
    for process, steps in ((2, 2), (9, steps_of_second)):
        for i in range(steps):
            at = 1000 * (i + 1) + process
            export.push("step", at, at + 100, process=process)
            export.push("forward", at, at + 90, process=process)
            export.launch(at + 10, start=at + 20, end=at + 70, process=process)
            export.copy(at + 70, at + 80, export.call(at + 30, at + 35, process=process), process=process)
    return export


def test_two_ranks_of_100_ns_are_no_step_of_200_ns(results, tmp_path):
    found, said = _ingested(results(capture=_two_ranks()), tmp_path)
    assert said == []
    steps = found.steps[(found.steps["collector"].astype(str) == "nsys") & (found.steps["phase"].astype(str) == "step")]
    assert list(zip(steps["rank"], steps["step"], steps["wall_ns"])) == [
        (0, 0, 100),
        (0, 1, 100),
        (1, 0, 100),
        (1, 1, 100),
    ]
    for name in ("kernels", "memops"):
        rows = getattr(found, name)
        assert list(zip(rows["rank"], rows["step"])) == [(0, 0), (0, 1), (1, 0), (1, 1)], name
    launched = found.api.groupby(["rank", "step"])["calls"].sum()
    assert launched.tolist() == [2] * 4
    assert found.memory["rank"].tolist() == [0, 0]
    gpu = timing.gpu_times(found.kernels, found.memops)
    assert gpu["busy_ns"].tolist() == [60] * 8, "a kernel of 50 and a copy of 10 in each step and phase"
    assert timing.host_times(found.steps, "nsys", "host").set_index("phase")["host_max_ns"]["step"] == 100


def test_a_process_that_says_its_rank_has_it(results, tmp_path):
    capture = _two_ranks()
    for rank, process in ((1, 2), (0, 9)):
        capture.push(f"modules:rank {rank}", 960, 961, process=process)
    steps = _ingested(results(capture=capture), tmp_path)[0].ranges.query("name == 'step'")
    first = steps.groupby("rank")["start_ns"].min()
    assert first.tolist() == [7, 0], "process 9 begins its steps 7 ns later"


def test_timings_may_be_of_several_ranks(results, tmp_path):
    of_second = [row | {"rank": 1, "wall_ns": row["wall_ns"] + 7} for row in _TIMINGS["steps"]]
    timings = _TIMINGS | {"steps": [*_TIMINGS["steps"], *of_second]}
    steps = _ingested(results(capture=_two_ranks(), timings=timings), tmp_path)[0].steps.query("collector == 'timer'")
    assert list(zip(steps["rank"], steps["wall_ns"])) == [(0, 500), (0, 900), (1, 507), (1, 907)]


def test_ranges_are_numbered_through_all_ranks_of_a_run(results, tmp_path):
    ranges = _ingested(results(capture=_two_ranks()), tmp_path)[0].ranges.set_index("range_id")
    assert ranges.index.is_unique
    inside = ranges[ranges["parent_id"] >= 0]
    assert (ranges["rank"][inside["parent_id"]].to_numpy() == inside["rank"].to_numpy()).all()
    assert sorted(inside["rank"]) == [0, 0, 1, 1]


def test_a_process_without_steps_is_not_rank_0(results, tmp_path):
    capture = _capture()
    capture.push("data loader", 1, 9000, process=7)
    ranges = _ingested(results(capture=capture), tmp_path)[0].ranges
    assert set(ranges["rank"][ranges["step"] >= 0]) == {0}
    assert ranges["rank"][ranges["name"].astype(str) == "data loader"].tolist() == [1]


@pytest.mark.parametrize(
    ("capture", "about", "status", "message"),
    [
        (False, {}, "failed", "profile.sqlite does not exist"),
        (_capture(kernels=False), {}, "failed", "no kernel of the capture lies in a range `step`"),
        (_capture(steps=0), {}, "failed", "no kernel of the capture lies in a range `step`"),
        (_capture(steps=1), {}, "failed", "the capture holds 1 step, and 2 were profiled"),
        (_two_ranks(1), {}, "failed", "the capture holds 1 step of one of 2 processes, and 2 were profiled"),
    ],
)
def test_a_run_that_says_ok_is_checked_against_its_capture(results, tmp_path, capture, about, status, message):
    found, said = _ingested(results(capture=capture, about=_about(**about)), tmp_path)
    assert found.runs["status"].astype(str).tolist() == [status]
    assert found.runs["status_message"].tolist() == [message]
    assert found.runs["status_phase"].tolist() == ["reading the capture"]
    assert found.kernels.empty
    assert len(said) == 1
    assert found.manifest["runs"][0]["status"] == status


def test_a_capture_without_kernels_is_no_kernels(results, tmp_path):
    capture = _capture()
    capture.drop("CUPTI_ACTIVITY_KIND_KERNEL")
    found, _ = _ingested(results(capture=capture), tmp_path)
    assert found.runs["status"].astype(str).tolist() == ["no_kernels"]


def test_a_capture_that_cannot_be_used_is_not_called_unreadable(results, tmp_path):
    folder = results(capture=_capture(steps=1))
    done = CliRunner().invoke(app, ["ingest", str(folder), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    reason, error = [line for line in done.output.splitlines() if RUN in line or "error" in line]
    assert "the capture holds 1 step, and 2 were profiled" in reason
    assert error == "error: 1 of 1 run was measured and cannot be recorded, see above"


def test_a_truncated_capture_is_a_failed_run(results, tmp_path):
    folder = results()
    path = folder / RUN / "profile.sqlite"
    path.write_bytes(path.read_bytes()[:-4096])
    found, said = _ingested(folder, tmp_path)
    assert found.runs["status"].astype(str).tolist() == ["failed"]
    assert "cut off" in found.runs["status_message"][0]
    assert str(tmp_path) not in json.dumps(found.manifest) + "".join(said)


def test_a_run_without_timings_is_not_ok(results, tmp_path):
    found, _ = _ingested(results(timings=None), tmp_path)
    assert found.runs["status_message"].tolist() == ["timings.json holds no steps"]


def test_a_run_out_of_memory_keeps_its_phase_and_shows_no_kernels(results, tmp_path):
    detail = {"phase": "backward", "message": "CUDA out of memory in /home/someone/model.py", "total_bytes": 99}
    about = _about(status="oom", status_detail=detail)
    found, said = _ingested(results(about=about, capture=False), tmp_path)
    run = found.runs.iloc[0]
    assert (run["status"], run["status_phase"], run["status_total_bytes"]) == ("oom", "backward", 99)
    assert run["status_message"] == "CUDA out of memory in model.py"
    assert found.kernels.empty
    assert said == [f"{RUN}: oom backward CUDA out of memory in model.py"]


def test_runs_keep_the_order_of_the_sweep_and_those_not_run_are_listed(results, tmp_path):
    for name in ("b", "a", "c"):
        folder = results(run_id=name)
    (folder / "sweep.json").write_text(json.dumps({"sweep": "default", "runs": ["c", "b", "a", "d"]}))
    found, said = _ingested(folder, tmp_path)
    assert list(found.runs["run_id"].astype(str)) == ["c", "b", "a"]
    assert list(dict.fromkeys(found.kernels["run_id"].astype(str))) == ["c", "b", "a"]
    assert found.manifest["not_run"] == ["d"]
    assert said == ["d: in the sweep, and not run"]


def test_the_manifest_says_where_and_when(results, tmp_path):
    found, _ = _ingested(results(), tmp_path)
    manifest = found.manifest
    assert manifest["gpu"] == "NVIDIA H200"
    assert manifest["recorded_from"] == "2026-11-21T07:00:00Z"
    assert manifest["recorded_to"] == "2026-11-21T07:01:30Z"
    assert manifest["nsys_schema"] == "3.20.3"
    assert manifest["tables"]["kernels"]["rows"] == 4


def test_a_run_whose_stages_lie_far_apart_says_when_it_ended(results, tmp_path):
    found, _ = _ingested(results(about=_about(ended_at="2026-11-21T08:00:00+00:00")), tmp_path)
    assert found.manifest["recorded_to"] == "2026-11-21T08:00:00Z"


def test_the_only_sweep_of_a_folder_of_sweeps_is_taken(results, tmp_path):
    folder = results()
    (folder / "sweep.json").write_text(json.dumps({"sweep": "default", "runs": [RUN]}))
    found, _ = _ingested(folder.parent, tmp_path)
    assert found.manifest["sweep"] == "default"


def test_a_folder_without_a_sweep_says_so(tmp_path):
    with pytest.raises(ResultsError, match="holds no sweep"):
        ingest(tmp_path, tmp_path / "out")
    with pytest.raises(ResultsError, match="is not a folder"):
        ingest(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ResultsError, match="has no run"):
        ingest(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in /home/bob/x/model.py:12", "in model.py:12"),
        ("~/work/model.py", "model.py"),
        (r"C:\Users\bob\model.py", "model.py"),
        ("bob@host.example said", "... said"),
        ("3/4 of 80 GiB; forward/block_0", "3/4 of 80 GiB; forward/block_0"),
        ("CUDA out of memory. If reserved but unallocated memory is large try setting X=1", "CUDA out of memory."),
    ],
)
def test_messages_are_scrubbed_of_their_machine(text, expected):
    assert scrub_text(text) == expected


def test_the_last_lines_of_the_log_are_kept_without_the_machine(results, tmp_path):
    folder = results()
    lines = [
        *map(str, range(50)),
        '  File "/home/bob/job/model.py", line 3',
        "KEY_ID=plain",
        "a Token: x",
        "Error: <b>",
    ]
    (folder / RUN / "log.txt").write_text("\n".join(lines) + "\n")
    ingest(folder, tmp_path / "out")
    log = store.load(tmp_path / "out").runs["log"].iloc[0]
    assert log.splitlines()[-2:] == ['  File "model.py", line 3', "Error: <b>"]
    assert len(log.splitlines()) == 12 and "plain" not in log and "Token" not in log


def test_a_long_word_of_a_log_takes_no_time(results, tmp_path):
    """Of 60 kB it took 29 s."""
    folder = results()
    (folder / RUN / "log.txt").write_text("x" * 200_000)
    started = time.process_time()
    ingest(folder, tmp_path / "out")
    assert time.process_time() - started < 3
    assert len(store.load(tmp_path / "out").runs["log"].iloc[0]) == 1000


@pytest.mark.parametrize(
    ("end", "last"),
    [("the end", "the end"), ("x" * 200, "(a line of more than 100 bytes is left out)")],
)
def test_of_a_long_log_the_end_is_read(results, tmp_path, monkeypatch, end, last):
    monkeypatch.setattr(ingesting, "LOG_BYTES", 100)
    folder = results()
    (folder / RUN / "log.txt").write_text(f"{'much ' * 1000}\n{'KEY_ID=plain' * 9}\n{end}\n")
    ingest(folder, tmp_path / "out")
    assert store.load(tmp_path / "out").runs["log"].iloc[0] == last


def test_a_clock_that_was_set_back_is_told_and_no_run_ends_before_it_begins(results, tmp_path):
    about = _about(started_at="2026-11-21T07:00:00+00:00", ended_at="2026-11-21T06:00:00+00:00")
    found, said = _ingested(results(about=about), tmp_path)
    assert said == [f"{RUN}: ended before it began, by the clock of its machine; it took 90.5 s"]
    assert found.manifest["recorded_to"] == "2026-11-21T07:01:30Z"


def test_a_run_without_a_log_has_none(results, tmp_path):
    ingest(results(), tmp_path / "out")
    assert store.load(tmp_path / "out").runs["log"].isna().all()


def test_the_command_reports_what_it_wrote(results, tmp_path):
    folder = results()
    done = CliRunner().invoke(app, ["ingest", str(folder), "--out", str(tmp_path / "x")])
    assert done.exit_code == 0
    assert re.search(r"1 run, 1 ok, 4 kernels, [\d.]+ KiB", done.output)
    done = CliRunner().invoke(app, ["ingest", str(tmp_path / "nothing"), "--out", str(tmp_path / "y")])
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_a_real_capture_costs_few_bytes_a_kernel(results, tmp_path):
    """60 runs of 850 000 kernels in all are to stay under 25 MiB: 30 bytes a kernel, everything included."""
    folder = results(about=_about(profiled_steps=2))
    (folder / RUN / "profile.sqlite").write_bytes(profile("train").read_bytes())
    found, _ = _ingested(folder, tmp_path)
    assert len(found.kernels) == 5848
    assert found.manifest["tables"]["kernels"]["bytes"] / 5848 < 20


def _with_doubtful_launches(number: int) -> Export:
    export = _capture()
    for i in range(number):
        export.launch(1040 + i, correlation=900, name="doubtful")
    return export


def test_launches_that_are_not_believed_are_told_and_recorded(results, tmp_path):
    said = []
    manifest = ingest(results(capture=_with_doubtful_launches(2)), tmp_path / "recording", said.append)
    problem = "2 of 7 kernels have the correlation id of several API calls"
    assert said[0].startswith(f"{RUN}: {problem}")
    assert manifest["problems"][RUN][0].startswith(problem)
    assert "doubtful" not in set(store.load(tmp_path / "recording").kernels["kernel_name"])


def test_a_run_most_of_whose_launches_are_not_believed_failed(results, tmp_path):
    said = []
    manifest = ingest(results(capture=_with_doubtful_launches(20)), tmp_path / "recording", said.append)
    (run,) = manifest["runs"]
    assert (run["status"], run["phase"]) == ("failed", "reading the capture")
    assert "the launches of most kernels are not to be believed (20 of 25 kernels" in run["message"]


def test_a_sound_recording_tells_of_no_problems(results, tmp_path):
    assert "problems" not in ingest(results(), tmp_path / "recording")


def test_the_tables_of_nsys_stats_are_written_as_text_next_to_the_capture(results, tmp_path):
    folder = results()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / RUN / "profile.stats.txt").symlink_to(victim)
    ingest(folder, tmp_path / "out")
    text = (folder / RUN / "profile.stats.txt").read_text()
    assert [line for line in text.splitlines() if line in nsys_reports.REPORTS] == list(nsys_reports.REPORTS)
    kernels = nsys_reports.cuda_gpu_kern_sum(read(folder / RUN / "profile.sqlite"))
    assert str(kernels["Total Time (ns)"].iloc[0]) in text and kernels["Name"].iloc[0][:40] in text
    assert victim.read_text() == "mine", "a planted link is replaced"


def test_results_that_cannot_be_written_are_ingested_without_these_tables(results, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("profiler_job.analysis.recording.ingest.create", refuse)
    folder = results()
    assert ingest(folder, tmp_path / "out")["runs"][0]["status"] == "ok"
    assert not list(folder.rglob("*.stats.txt"))
