"""What the GPU waits for in a measured script: from its results to the tables of a recording, its page, and what is
published."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.insight.recorded_waits import read_waits
from profiler_job.analysis.insight.wait_lines import describe_recorded_waits, scale_waits
from profiler_job.analysis.metrics.step_limits import find_limits
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.analysis.recording.publish_data import publish_data
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.site.question_pages import write_script_page
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.step_limit import CPU, StepLimit
from tests.capture.nsys_files import Export
from tests.insight.test_one_meaning import read_words
from tests.page_words import read_page

MS = 1_000_000
RUN = "train"
MACHINE = {"gpu_name": "NVIDIA H200", "gpu_memory_bytes": 1 << 37, "driver": "1", "cuda": "13.0", "torch": "2.11.0"}
MACHINE |= {"nsys": "2025.3", "python": "3.12.0", "commit": "abc"}
LINES = {"train.py:8": "tokenize", "train.py:15": "main"}


def add_steps(export: Export, step_ms: int) -> None:
    """Two steps of `step_ms`: the GPU runs for 2 ms at the end of each."""
    for number in range(2):
        begin = number * step_ms * MS
        export.span("step", begin, begin + step_ms * MS)
        export.push("forward", begin, begin + step_ms * MS)
        for at in (0, step_ms - 2):
            start = begin + at * MS
            export.launch(start, start=start + 1000, end=start + (MS if at == 0 else 2 * MS))


def write_samples(run, step_ms: int) -> None:
    """Two steps of `step_ms` with samples: of 3 parts in 4 they tokenize."""
    sampled = Export()
    add_steps(sampled, step_ms)
    for half in range(4 * step_ms):
        line = "train.py:15" if half % (2 * step_ms) > 1.5 * step_ms - 1 else "train.py:8"
        sampled.sample(half * MS // 2, (LINES[line], "train.py", int(line.split(":")[1])))
    sampled.copy(2 * MS, 3 * MS, sampled.call(2 * MS, 3 * MS, name="cudaMemcpyAsync_v3020"))
    sampled.call(3 * MS, 4 * MS, name="cudaFree_v3020")
    sampled.sqlite(run / "samples.sqlite")


@pytest.fixture
def results(tmp_path):
    """A script whose step takes 10 ms alone, and 14 ms with samples: of 3 parts in 4 it tokenizes."""
    run = tmp_path / "results" / RUN
    run.mkdir(parents=True)
    clean = Export()
    add_steps(clean, 10)
    clean.sqlite(run / "profile.sqlite")
    write_samples(run, 14)
    steps = [{"step": step, "phase": "step", "wall_ns": 10 * MS} for step in range(2)]
    (run / "timings.json").write_text(json.dumps({"steps": steps, "memory": []}))
    call = {"rank": 0, "where": "train.py:16", "function": "main", "call": "synchronize", "count": 1.0}
    (run / "host_waits.json").write_text(json.dumps({"syncs": [call], "samples": {}}))
    about = {"size": "Net", "mode": "train_step", "workload": "script", "num_parameters": 5, "context_length": 8}
    about |= {"batch_size": 4, "precision": "fp32", "attention": "", "compile": "off", "optimizer": "AdamW", "gpus": 1}
    record = {"run_id": RUN, "status": "ok", "run": about, "machine": MACHINE}
    record |= {"warmup_steps": 3, "measured_steps": 2, "profiled_steps": 2, "started_at": "2026-11-21T07:00:00Z"}
    (run / "run.json").write_text(json.dumps(record | {"wall_s": 1.0}))
    (run.parent / "sweep.json").write_text(json.dumps({"sweep": RUN, "script": True, "runs": [RUN]}))
    return run.parent


@pytest.fixture
def recording(results, tmp_path):
    ingest(results, tmp_path / "recording", read_waits=read_waits)
    return store.load(tmp_path / "recording")


def test_the_lines_are_tables_of_the_recording(recording):
    rows = recording.waits.set_index(recording.waits["where"].astype(str))
    assert set(rows.index) == set(LINES)
    assert rows["function"].astype(str).to_dict() == LINES
    assert rows.loc["train.py:8", "wait_ns"] > 2 * rows.loc["train.py:15", "wait_ns"]
    assert recording.sync_calls[["where", "call", "count"]].values.tolist() == [
        ["train.py:16", "synchronize", 1.0],
        ["train.py:8", "memcpy Host-to-Device (pageable)", 0.5],
        ["train.py:8", "cudaFree", 0.5],
    ]


def test_no_other_table_changes_by_the_steps_with_samples(results, recording, tmp_path):
    """So that no published time is of slower steps."""
    (results / RUN / "samples.sqlite").unlink()
    ingest(results, tmp_path / "plain", read_waits=read_waits)
    plain = store.load(tmp_path / "plain")
    assert not len(plain.waits)
    for name in ("runs", "steps", "kernels", "memops", "api", "ranges"):
        assert getattr(plain, name).equals(getattr(recording, name)), name


def test_without_captures_nothing_of_the_steps_with_samples_is_published(results, recording, tmp_path):
    assert recording.figures["figure"].astype(str).str.startswith("python_samples_").any()
    options = {"with_captures": False, "read_waits": read_waits}
    folder = publish_data(results, "mine", tmp_path / "data", lambda text: True, lambda line: None, **options)
    kept = store.load(folder)
    assert kept.sync_calls[["where", "call"]].values.tolist() == [["train.py:16", "synchronize"]]
    assert not kept.figures["figure"].astype(str).str.startswith("python_samples_").any()
    assert not len(kept.waits)


def test_how_slow_steps_with_samples_are_changes_no_time_of_a_line(results, recording, tmp_path):
    """They show which line; its time is of steps without samples."""
    (results / RUN / "samples.sqlite").unlink()
    write_samples(results / RUN, 42)
    ingest(results, tmp_path / "slow", read_waits=read_waits)
    slow = store.load(tmp_path / "slow")
    scalars = dict(zip(slow.figures["figure"].astype(str), slow.figures["value"]))
    assert scalars["python_samples_step_ns"] > 30 * MS
    times = [
        table.set_index(table["where"].astype(str))["wait_ns"].to_dict() for table in (slow.waits, recording.waits)
    ]
    assert times[0] == pytest.approx(times[1], abs=0.7 * MS)
    assert sum(times[0].values()) == pytest.approx(7 * MS, rel=0.01)


def test_times_are_scaled_to_the_waiting_of_a_step_without_a_profiler(recording):
    limit = find_limits(recording.steps, recording.kernels, recording.memops)[RUN]
    scaled = scale_waits(recording.waits, limit)
    assert scaled["wait_ns"].sum() == pytest.approx(limit.parts[CPU], rel=0.02)
    scalars = dict(zip(recording.figures["figure"].astype(str), recording.figures["value"]))
    assert scalars["python_samples_waiting_ns"] > 1.4 * scaled["wait_ns"].sum()
    first, *lines = describe_recorded_waits(recording.waits, scalars, limit)
    assert "a step of 10.0 ms" in first
    assert lines[0].startswith(f"{scaled['wait_ns'].max() / MS:.2f} ms: train.py:8 tokenize")
    assert "In 2 steps with samples" in lines[-1] and "__next__" not in " ".join(lines)
    (last,) = describe_recorded_waits(recording.waits, scalars | {"python_samples_call_ns": 10_000.0}, limit)[-1:]
    assert "10.0 µs a CUDA call that nsys adds, the most that is taken off" in last
    scalars |= {"batches_ns": 2e6, "batches_num_workers": 1.0, "batches_is_pinned": 0.0}
    assert "2.00 ms: 1 worker, pageable memory" in " ".join(describe_recorded_waits(recording.waits, scalars, limit))


def test_a_line_could_save_its_time_on_the_cpu_and_no_more_than_all_waiting():
    """Its own waiting is too little: without the line the CPU is ahead, and the GPU waits less elsewhere."""
    rows = pd.DataFrame({"share": [0.2, 0.5, 0.3], "cpu_ns": [3 * MS, 1 * MS, -1], "copies_ns": [0, 0, 0]})
    scaled = scale_waits(rows, StepLimit({CPU: 2.0 * MS}))
    assert scaled["wait_ns"].tolist() == pytest.approx([0.4 * MS, MS, 0.6 * MS])
    assert scaled["ceiling_ns"].tolist() == pytest.approx([2 * MS, MS, float("nan")], nan_ok=True)


def test_copies_that_nothing_hides_count_as_waiting_of_a_step():
    rows = pd.DataFrame({"share": [1.0], "cpu_ns": [9 * MS], "copies_ns": [6 * MS]})
    assert scale_waits(rows, StepLimit({CPU: 2.0 * MS, "memory": 7.0 * MS}))["wait_ns"].tolist() == [8 * MS]


def test_the_page_of_the_script_names_them(recording, tmp_path):
    one = recording
    labels = {key: family.label for key, family in FAMILIES.items()}
    answer = write_script_page(Site(tmp_path, (), labels, ("size", "context_length")), one)
    page = read_words(read_page(tmp_path / "index.md"))
    assert "Lines that make the GPU wait" in page and "train.py:8" in page and "train.py:16" in page
    assert not [line for line in answer.facts["waits"] if line not in page]
    assert "The line that the GPU waits for most is `train.py:8`" in page


@pytest.mark.parametrize("options", [(), ("--private",)])
def test_publishing_shows_the_lines_first_and_private_leaves_them_out(results, tmp_path, options):
    arguments = ["publish-data", str(results), "mine", "--data", str(tmp_path / "data"), "--yes", *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert ("train.py:8 tokenize" in done.output) == (not options)
    (folder,) = (tmp_path / "data").glob("*/mine")
    published = store.load(folder)
    assert len(published.waits) == len(published.sync_calls) == 0 if options else len(published.waits) == 2
    kept = b"".join(file.read_bytes() for file in folder.iterdir())
    assert (b"tokenize" in kept) == (not options)


def test_a_damaged_capture_of_samples_is_a_problem_and_the_run_is_recorded(results, tmp_path):
    (results / RUN / "samples.sqlite").write_bytes(b"SQLite format 3\0damaged")
    said = []
    ingest(results, tmp_path / "recording", said.append, read_waits=read_waits)
    assert store.load(tmp_path / "recording").runs["status"].tolist() == ["ok"]
    assert any("no line is known that the GPU waits for" in line for line in said)
