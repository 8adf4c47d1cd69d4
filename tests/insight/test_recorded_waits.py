"""What the GPU waits for in a measured script: from its results to the tables of a recording, its page, and what is
published."""

import gzip
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.answers.script_findings import CALLS_TITLE, format_findings
from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.insight.recorded_waits import READS, list_calls, read_waits
from profiler_job.analysis.insight.wait_lines import describe_recorded_waits, find_causes, scale_waits
from profiler_job.analysis.metrics.step_limits import find_limits
from profiler_job.analysis.pages.script_answers import answer_script
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.analysis.recording.publish_data import publish_data
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.show import show
from profiler_job.analysis.site.question_pages import write_script_page
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.messages import NEXT_BATCH
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import FOLLOWED_STEP, STEP, SYNC
from profiler_job.jobs.contract.step_limit import CPU, StepLimit
from tests.capture.nsys_files import Export
from tests.insight.test_one_meaning import read_words
from tests.page_words import read_page, read_shown

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


def write_record(run, compiled="off"):
    """Write what says of a folder that it is a finished run of a script with two captured steps."""
    about = {"size": "Net", "mode": "train_step", "workload": "script", "num_parameters": 5, "context_length": 8}
    about |= {
        "batch_size": 4,
        "precision": "fp32",
        "attention": "",
        "compile": compiled,
        "optimizer": "AdamW",
        "gpus": 1,
    }
    record = {"run_id": RUN, "status": "ok", "run": about, "machine": MACHINE}
    record |= {"warmup_steps": 3, "measured_steps": 2, "profiled_steps": 2, "started_at": "2026-11-21T07:00:00Z"}
    (run / "run.json").write_text(json.dumps(record | {"wall_s": 1.0}))
    (run.parent / "sweep.json").write_text(json.dumps({"sweep": RUN, "script": True, "runs": [RUN]}))


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
    batch = {"rank": 0, "where": "train.py:12", "function": "main", "call": NEXT_BATCH, "count": 1.0, "time_ns": 3 * MS}
    (run / "host_waits.json").write_text(json.dumps({"syncs": [call], "batches": [batch], "samples": {}}))
    write_record(run)
    return run.parent


@pytest.fixture
def recording(results, tmp_path):
    ingest(results, tmp_path / "recording", more_tables=[read_waits])
    return store.load(tmp_path / "recording")


def test_the_lines_are_tables_of_the_recording(recording):
    rows = recording.waits.set_index(recording.waits["where"].astype(str))
    assert set(rows.index) == set(LINES)
    assert rows["function"].astype(str).to_dict() == LINES
    assert rows.loc["train.py:8", "wait_ns"] > 2 * rows.loc["train.py:15", "wait_ns"]
    assert recording.sync_calls[["where", "call", "count", "time_ns"]].values.tolist() == [
        ["train.py:16", "synchronize", 1.0, -1],
        ["train.py:8", "memcpy Host-to-Device (pageable)", 0.5, -1],
        ["train.py:8", "cudaFree", 0.5, -1],
        ["train.py:12", NEXT_BATCH, 1.0, 3 * MS],
    ]


def test_copies_and_allocations_have_the_times_of_clean_steps(results):
    """With samples they take ten times as long here."""
    run = results / RUN
    for name, us in (("profile", 60), ("samples", 600)):
        (run / f"{name}.sqlite").unlink()
        export = Export()
        add_steps(export, 10)
        for step in range(2):
            at = 10 * step * MS + 3 * MS
            for kind, call in enumerate(("cudaMemcpyAsync_v3020", "cudaMalloc_v3020")):
                correlation = export.call(at, at + us * (kind + 1) * 1000, name=call)
                if kind == 0:
                    export.copy(at, at + us * 1000, correlation, host=1)
                at += 2 * MS
        for half in range(40):
            export.sample(half * MS // 2, ("tokenize", "train.py", 8))
        export.sqlite(run / f"{name}.sqlite")
    rows = read_waits(run)["sync_calls"]
    times = dict(zip(rows["call"], rows["time_ns"]))
    assert times["memcpy Host-to-Device (pinned)"] == 60_000
    assert times["cudaMalloc"] == 120_000


def test_a_line_in_a_forward_has_the_module_of_the_clean_steps(results, tmp_path):
    """Steps with samples have no ranges of modules. Layers of a list count together."""
    for name, modules in (("profile", ("h.0", "h.1")), ("samples", ())):
        export = Export()
        add_steps(export, 10)
        for number, module in enumerate(modules * 2):
            export.push("Net", number * 5 * MS + 1, (number + 1) * 5 * MS - 1)
            export.push(module, number * 5 * MS + 2, (number + 1) * 5 * MS - 2)
        for half in range(0 if modules else 40):
            call = ("_call_impl", "/env/lib/python3.12/site-packages/torch/nn/modules/module.py", 5)
            frames = [("forward", "train.py", 9), call] if half % 20 < 12 else []
            export.sample(half * MS // 2, *frames, ("main", "train.py", 15))
        (results / RUN / f"{name}.sqlite").unlink()
        export.sqlite(results / RUN / f"{name}.sqlite")
    ingest(results, tmp_path / "recording", more_tables=[read_waits])
    one = store.load(tmp_path / "recording")
    modules = dict(zip(one.waits["where"].astype(str), one.waits["module"].astype(str)))
    assert modules == {"train.py:9": "Net/h.*", "train.py:15": ""}
    labels = {key: family.label for key, family in FAMILIES.items()}
    write_script_page(Site(tmp_path, (), labels, ("size", "context_length")), one)
    assert "Net/h.*" in read_words(read_page(tmp_path / "index.md")).partition("Lines that make the GPU wait")[2]


@pytest.mark.parametrize("with_samples", [True, False])
def test_counted_calls_have_the_times_of_clean_steps_of_their_rank(tmp_path, with_samples):
    """Without samples, too; they were n/a where calls are shorter than the time between two samples."""
    clean = Export()
    for rank, number in ((0, 5), (1, 2)):
        for step in range(3):
            begin, us = 10 * step * MS, (40, 60, 900)[step] * (rank + 1) * 1000
            clean.span((STEP, STEP, FOLLOWED_STEP)[step], begin, begin + 8 * MS, process=rank + 1)
            clean.launch(begin, start=begin + MS, end=begin + 2 * MS, process=rank + 1, device=rank)
            clean.call(begin + MS, begin + MS + us, name="cudaStreamSynchronize_v3020", process=rank + 1)
        clean.push(f"{SYNC}{number}", 24 * MS, 24 * MS + 500, process=rank + 1)
    for rank in (0, 1):
        clean.push(f"modules:rank {rank} of 2", rank, rank + 1, process=rank + 1)
    clean.sqlite(tmp_path / "profile.sqlite")
    if with_samples:
        write_samples(tmp_path, 14)
    (tmp_path / "timings.json").write_text(json.dumps({"steps": []}))
    calls = [count_call("a.py:1", READS, 1.0, rank) | {"number": 5 - 3 * rank} for rank in (0, 1)]
    calls.append(count_call("a.py:2", READS, 1.0) | {"number": 0})
    (tmp_path / "host_waits.json").write_text(json.dumps({"syncs": calls}))
    rows = read_waits(tmp_path)["sync_calls"]
    assert rows["time_ns"].tolist()[:3] == [50_000, 100_000, -1] and "number" not in rows


def make_sections(copies: list[tuple]) -> SimpleNamespace:
    """copies: where, memory, whether the CPU waits, count."""
    copied = pd.DataFrame(copies, columns=["where", "host_memory", "is_waited", "count"])
    copied = copied.assign(function="f", operation="memcpy Device-to-Host", time_ns=MS)
    nothing = pd.DataFrame(columns=["where", "function", "call", "count", "time_ns"])
    return SimpleNamespace(sections={"copy_lines": copied, "allocation_lines": nothing})


def count_call(where: str, call: str, count: float, rank: int = 0) -> dict:
    return {"rank": rank, "where": where, "function": "f", "call": call, "count": count, "time_ns": 3 * MS}


def test_calls_that_were_counted_inside_the_script_are_not_counted_again_from_samples():
    copies = [("a.py:1", "pinned", True, 4), ("", "pinned", True, 2), ("b.py:2", "pageable", True, 2)]
    summary = make_sections([*copies, ("a.py:1", "pinned", False, 2)])
    rows = pd.DataFrame(list_calls([count_call("a.py:1", f"{READS} with item", 3.0)], summary, 2, []))
    assert rows[["where", "call", "count", "time_ns"]].values.tolist() == [
        ["a.py:1", f"{READS} with item: memcpy Device-to-Host (pinned)", 3.0, 3 * MS],
        ["b.py:2", "waits for memcpy Device-to-Host (pageable)", 1.0, MS // 2],
        ["a.py:1", "memcpy Device-to-Host (pinned)", 1.0, MS // 2],
    ]
    without = pd.DataFrame(list_calls([], summary, 2, []))
    assert without.set_index("where").loc["", "call"] == "waits for memcpy Device-to-Host (pinned)"


def test_show_of_the_folder_finds_the_lines_in_the_capture_with_samples(results, capsys):
    """It showed the clean capture alone, and said that it had no samples."""
    said: list[str] = []
    selection = Selection(sections=("waits",))
    assert show([results / RUN], "text", 20, print, said.append, selection=selection) == 0
    assert "train.py:8" in capsys.readouterr().out and not said
    assert show([results / RUN], "speedscope", 20, print, said.append) == 0
    assert "tokenize" in capsys.readouterr().out and not said
    assert show([results / RUN], "text", 20, print, said.append) == 0
    assert "train.py:8" not in capsys.readouterr().out and "samples.sqlite" in said[0]


def test_no_other_table_changes_by_the_steps_with_samples(results, recording, tmp_path):
    """So that no published time is of slower steps."""
    (results / RUN / "samples.sqlite").unlink()
    ingest(results, tmp_path / "plain", more_tables=[read_waits])
    plain = store.load(tmp_path / "plain")
    assert not len(plain.waits)
    for name in ("runs", "steps", "kernels", "memops", "api", "ranges"):
        assert getattr(plain, name).equals(getattr(recording, name)), name


def test_without_captures_nothing_of_the_steps_with_samples_is_published(results, recording, tmp_path):
    """What reads a value is counted by PyTorch; what it copies, and how long that takes, is of the capture."""
    noted = json.loads((results / RUN / "host_waits.json").read_text())
    noted["syncs"].append(noted["syncs"][0] | {"where": "train.py:8", "call": f"{READS} with item"})
    (results / RUN / "host_waits.json").write_text(json.dumps(noted))
    assert recording.figures["figure"].astype(str).str.startswith("python_samples_").any()
    options = {"with_captures": False, "more_tables": [read_waits]}
    folder = publish_data(results, "mine", tmp_path / "data", lambda text: True, lambda line: None, **options)
    kept = store.load(folder)
    assert kept.sync_calls[["where", "call", "time_ns"]].values.tolist() == [
        ["train.py:16", "synchronize", -1],
        ["train.py:8", f"{READS} with item", -1],
        ["train.py:12", NEXT_BATCH, 3 * MS],
    ]
    assert not kept.figures["figure"].astype(str).str.startswith("python_samples_").any()
    assert not len(kept.waits)


def test_how_slow_steps_with_samples_are_changes_no_time_of_a_line(results, recording, tmp_path):
    """They show which line; its time is of steps without samples."""
    (results / RUN / "samples.sqlite").unlink()
    write_samples(results / RUN, 42)
    ingest(results, tmp_path / "slow", more_tables=[read_waits])
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
    scalars = dict(zip(recording.figures["figure"].astype(str), recording.figures["value"]))
    scaled = scale_waits(recording.waits, scalars, limit)
    assert scaled["wait_ns"].sum() == pytest.approx(limit.parts[CPU], rel=0.02)
    assert scalars["python_samples_period_ns"] == MS / 2
    assert scalars["python_samples_waiting_ns"] > 1.4 * scaled["wait_ns"].sum()
    first, *lines = describe_recorded_waits(recording.waits, scalars, limit)
    assert "a step of 10.0 ms" in first
    assert lines[0].startswith(f"{scaled['wait_ns'].max() / MS:.2f} ms: train.py:8 tokenize")
    assert (
        "from 2 steps with samples" in lines[-1] and "14.0 ms a step" in lines[-1] and "__next__" not in " ".join(lines)
    )
    (last,) = describe_recorded_waits(recording.waits, scalars | {"python_samples_call_ns": 10_000.0}, limit)[-1:]
    assert "less the 10.0 µs that nsys adds to a CUDA call: no more is taken off" in last
    scalars |= {"batches_ns": 2e6, "batches_num_workers": 1.0, "batches_is_pinned": 0.0}
    assert "2.00 ms: 1 worker, pageable memory" in " ".join(describe_recorded_waits(recording.waits, scalars, limit))
    of_workers = {"worker_ns": 31e6, "worker_0_ns": 30e6, "worker_1_ns": 33e6, "worker_2_ns": 29e6}
    scalars |= {f"batches_{name}": value for name, value in of_workers.items()}
    said = " ".join(describe_recorded_waits(recording.waits, scalars, limit))
    assert "takes 31.0 ms for a batch (29.0 ms in worker 2 to 33.0 ms in worker 1)" in said


def bound(rows, limit_ns=20.0 * MS, **sampled):
    frame = pd.DataFrame(rows, columns=["where", "share", "cpu_ns"]).assign(copies_ns=0)
    scalars = {f"python_samples_{name}": value for name, value in sampled.items()}
    return scale_waits(frame, scalars, StepLimit({CPU: limit_ns}))["ceiling_ns"].tolist()


def test_a_line_could_save_its_time_on_the_cpu_and_no_more_than_all_waiting():
    """Its own waiting is too little: without the line the CPU is ahead, and the GPU waits less elsewhere."""
    rows = [("a.py:1", 0.1, 18 * MS), ("a.py:2", 0.5, 5 * MS), ("a.py:3", 0.3, 1 * MS), ("a.py:4", 0.1, -1)]
    assert bound(rows) == pytest.approx([20 * MS, 12 * MS, 7.2 * MS, float("nan")], nan_ok=True)


def test_rows_of_one_line_could_be_saved_together():
    """Collections of garbage in a generator and in its line saved more than either."""
    rows = [("a.py:1", 0.2, 5 * MS), ("a.py:1", 0.2, 3 * MS), ("a.py:2", 0.1, 1 * MS)]
    assert bound(rows) == pytest.approx([9.6 * MS, 9.6 * MS, 2.4 * MS])


def test_the_cpu_s_time_in_a_line_is_scaled_if_the_steps_with_samples_were_faster():
    """A process of its own may be: Python in a model took 51.7 ms of 50.9."""
    rows = [("a.py:1", 0.1, 10 * MS)]
    assert bound(rows, step_ns=16.0 * MS) == pytest.approx([15 * MS])
    assert bound(rows, step_ns=40.0 * MS) == pytest.approx([12 * MS])


def test_few_samples_of_a_line_make_its_bound_wider():
    """Batches took 1.09 ms of at most 0.84: one or two samples a step."""
    rows = [("a.py:1", 0.01, 0.84 * MS)]
    assert bound(rows, period_ns=0.5 * MS, steps=8.0) == pytest.approx([1.33 * MS], rel=0.01)
    assert bound(rows, period_ns=0.5 * MS, steps=8e6) == pytest.approx([1.2 * 0.84 * MS], rel=0.01)


def test_copies_that_nothing_hides_count_as_waiting_of_a_step():
    rows = pd.DataFrame({"where": ["a.py:1"], "share": [1.0], "cpu_ns": [9 * MS], "copies_ns": [6 * MS]})
    assert scale_waits(rows, {}, StepLimit({CPU: 2.0 * MS, "memory": 7.0 * MS}))["wait_ns"].tolist() == [8 * MS]


def test_older_recordings_keep_the_causes_of_their_captured_steps(recording):
    limit = find_limits(recording.steps, recording.kernels, recording.memops)[RUN]
    assert find_causes(limit, recording.waits.assign(data_ns=-1, nothing_ns=-1)) == limit
    data = recording.waits.assign(data_ns=recording.waits["late_launch_ns"], share=0.25)  # half of it in no line
    assert find_causes(limit, data).causes["data"] == pytest.approx(limit.parts[CPU] / 2, rel=0.02)


def test_the_page_of_the_script_names_them(recording, tmp_path):
    workers = {f"batches_worker_{number}_ns": 30.4e6 + number * MS for number in range(2)}
    more = pd.DataFrame({"figure": workers.keys(), "value": workers.values()}).assign(run_id=RUN, rank=0, unit="")
    one = replace(recording, figures=pd.concat([recording.figures.astype({"run_id": str, "figure": str}), more]))
    labels = {key: family.label for key, family in FAMILIES.items()}
    answer = write_script_page(Site(tmp_path, (), labels, ("size", "context_length")), one)
    page = read_words(read_page(tmp_path / "index.md"))
    assert "Lines that make the GPU wait" in page and "train.py:8" in page and "train.py:16" in page
    assert not [line for line in answer.facts["waits"] if line not in page]
    next_steps = page.partition("do this next")[2].partition("Compile the model")[0]
    assert "Change a line of the script: train.py:8 tokenize" in next_steps and "move it out of the step" in next_steps
    assert "The line that the GPU waits for most is `train.py:8`" in page
    tables = {
        title: page.split(title)[1].split("in a step")[1]
        for title in (
            *("Calls that make the CPU wait", "Other copies from and to the CPU"),
            *("Allocations of GPU memory", "Batches of a DataLoader"),
        )
    }
    waits, copies, allocations, batches = tables.values()
    assert "train.py:12" in batches and "3.00" in batches and "not sampled" in batches
    assert "train.py:12" not in waits and "30.4" in batches and "31.4" in batches
    assert "synchronize" in waits and "memcpy" not in waits and "cudaFree" not in waits
    assert "memcpy Host-to-Device (pageable)" in copies and "cudaFree" not in copies
    assert "cudaFree" in allocations
    assert "Open the stacks" in page
    boxes = re.findall(r'<b title="([^:]+:\d+\)): ', read_shown(tmp_path, "index.md"))
    assert boxes == ["tokenize (train.py:8)", "main (train.py:15)"]
    assert answer.facts["stacks"]["wait_ns"].sum() == pytest.approx(answer.tables["waits"].rows["wait_ns"].sum())
    (file,) = (tmp_path / "report" / "timelines").glob("train.waits.speedscope.json.gz")
    frames = json.loads(gzip.decompress(file.read_bytes()))["shared"]["frames"]
    assert {frame["name"] for frame in frames} == {*boxes}


@pytest.mark.parametrize("width", [80, 120])
def test_profile_prints_the_scaled_times_of_its_page(recording, width):
    """It printed sums over the steps with samples, which take 14 ms instead of 10."""
    answers = answer_script(recording)
    printed = format_findings(answers, width)
    assert max(map(len, printed.splitlines())) <= width
    words = " ".join(printed.split())
    rows = answers.of_script.tables["waits"].rows
    assert rows["wait_ns"].sum() == pytest.approx(7 * MS, rel=0.02)
    for row in rows.itertuples():
        cells = (f"{row.where} {row.function}", format_time(row.wait_ns), format_time(row.ceiling_ns))
        assert any(all(cell in " ".join(line.split()) for cell in cells) for line in printed.splitlines())
    assert not [line for line in answers.of_script.facts["waits"] if line not in words]
    calls = printed.partition(CALLS_TITLE)[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in calls[2:]] == ["train.py:16", "train.py:8", "train.py:8"]
    assert " synchronize " in calls[2] and all(len(line) <= width for line in calls)
    first = next(entry for entry in answers.of_run.facts["first"] if not entry["reason"])
    assert first["where"] == "train.py:8 tokenize"
    assert words.partition("What to change first 1. ")[2].startswith("line of the script (train.py:8 tokenize)")


def test_a_step_that_waits_for_nothing_without_a_profiler_has_a_page_that_says_so(recording, tmp_path):
    """It was a division by zero: the GPU waited in captured steps alone, and the site was not built."""
    busy = recording.kernels.assign(end_ns=recording.kernels["start_ns"] + 20 * MS)
    one = replace(recording, kernels=busy)
    labels = {key: family.label for key, family in FAMILIES.items()}
    answer = write_script_page(Site(tmp_path, (), labels, ("size", "context_length")), one)
    page = read_words(read_page(tmp_path / "index.md"))
    said = "The GPU waits 0.0% of the time: no line of the script makes it wait"
    assert answer.facts["waits"] == [said] and said in page
    assert said in format_findings(answer_script(one), 120)
    assert not len(answer.tables["waits"].rows) and "Open the stacks" not in page


@pytest.mark.parametrize("options", [(), ("--private",)])
def test_publishing_shows_the_lines_first_and_private_leaves_them_out(results, tmp_path, options):
    arguments = ["publish-data", str(results), "mine", "--data", str(tmp_path / "data"), "--yes", *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert ("train.py:8 tokenize" in done.output) == (not options)
    (folder,) = (tmp_path / "data").glob("*/mine")
    published = store.load(folder)
    tables = published.waits, published.sync_calls, published.wait_stacks
    assert [len(table) > 0 for table in tables] == [not options] * 3
    kept = b"".join(file.read_bytes() for file in folder.iterdir())
    assert (b"tokenize" in kept) == (not options)


def test_a_damaged_capture_of_samples_is_a_problem_and_the_run_is_recorded(results, tmp_path):
    (results / RUN / "samples.sqlite").write_bytes(b"SQLite format 3\0damaged")
    said = []
    ingest(results, tmp_path / "recording", said.append, more_tables=[read_waits])
    assert store.load(tmp_path / "recording").runs["status"].tolist() == ["ok"]
    assert any("no line is known that the GPU waits for" in line for line in said)


def add_loaders(results) -> None:
    """Have a script take batches of two DataLoaders, copy them, and collect garbage."""
    workers = {"num_workers": 2.0, "is_pinned": 1.0, "worker_ns": 4e6, "worker_0_ns": 3e6, "worker_1_ns": 5e6}
    scalars = {"batches_ns": 3e6, "batches_0_ns": 2e6, "batches_1_ns": 1e6, "garbage_ns": 1e6, "garbage_num": 2.0}
    scalars |= {f"batches_{name}": value for name, value in workers.items()}
    scalars |= {f"batches_0_{name}": value for name, value in workers.items()}
    scalars |= {f"batches_1_{name}": 0.0 for name in ("num_workers", "is_pinned", "worker_ns")}
    timings = json.loads((results / RUN / "timings.json").read_text())
    timings["figures"] = [{"rank": 0, "figure": name, "unit": "", "value": scalars[name]} for name in scalars]
    (results / RUN / "timings.json").write_text(json.dumps(timings))
    noted = json.loads((results / RUN / "host_waits.json").read_text())
    test = noted["batches"][0] | {"where": "test.py:40", "time_ns": MS}
    noted["batches"] = [noted["batches"][0] | {"time_ns": 2 * MS}, test]
    (results / RUN / "host_waits.json").write_text(json.dumps(noted))


@pytest.mark.parametrize("with_samples", [True, False])
def test_the_page_keeps_loaders_apart_and_names_garbage_without_samples(results, tmp_path, with_samples):
    add_loaders(results)
    if not with_samples:
        (results / RUN / "samples.sqlite").unlink()
    ingest(results, tmp_path / "recording", more_tables=[read_waits])
    answers = answer_script(store.load(tmp_path / "recording"))
    lines = answers.of_script.facts["waits"]
    (number,) = (number for number, line in enumerate(lines) if "DataLoaders" in line and "2 lines" in line)
    first, second = lines[number + 1 : number + 3]
    assert "train.py:12" in first and "2.00 ms" in first and "2 workers" in first
    assert "test.py:40" in second and "1.00 ms" in second and "pageable" in second
    rows = answers.of_script.tables["workers"].rows
    assert rows[["where", "worker", "batch_ns"]].values.tolist() == [
        ["train.py:12", 0, 3 * MS],
        ["train.py:12", 1, 5 * MS],
    ]
    assert any("garbage" in line for line in lines)
    assert answers.of_script.facts["worker_ns"] is None, "two loaders have no common time"
    assert first.replace(" ", "") in re.sub(r"\s", "", format_findings(answers, 100))


@pytest.mark.parametrize(("flop_per_s", "shown"), [(98.95e12, "10%"), (0.0, "")], ids=["known", "not known"])
def test_the_first_page_of_a_script_has_the_mfu_if_its_flops_are_known(recording, tmp_path, flop_per_s, shown):
    """`tune` had it, and `profile` did not. 989.5 TFLOP/s in BF16 are the sheet peak."""
    step_ns = answer_script(recording).of_run.facts["step_ns"]
    row = {"run_id": str(recording.runs["run_id"].iloc[0]), "rank": 0, "figure": "flops_per_step", "unit": ""}
    row["value"] = flop_per_s * step_ns / 1e9
    scalars = pd.concat([recording.figures, pd.DataFrame([row])[[*recording.figures]]], ignore_index=True)
    runs = recording.runs.assign(gpu_name="NVIDIA H200", precision="bf16")
    one = replace(recording, runs=runs, figures=scalars)
    labels = {key: family.label for key, family in FAMILIES.items()}
    write_script_page(Site(tmp_path, (), labels, ("size", "context_length")), one)
    html, page = read_shown(tmp_path, "index.md"), read_page(tmp_path / "index.md")
    assert (f"MFU <b>{shown}</b>" in html) == ("MFU" in html) == ("MFU" in page) == bool(shown)
