"""A part of a capture: `--gpu`, `--range`, `--between` and `--section` leave what they name, and say so."""

import csv
import io
import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.capture.chosen_part import Selection, parse_moments
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.selection import select
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.summary import summarise

from .nsys_files import Export
from .profiles import profile
from .real_captures import read_capture
from .test_summary import _random_capture


@pytest.fixture
def capture(tmp_path):
    """Two steps, the second on another GPU; a thread without ranges launches in backward."""
    export = Export()
    export.gpu(number=0, process=1, device=0)
    export.gpu(number=1, process=1, device=1)
    for step, at in enumerate((1_000_000, 3_000_000)):
        export.push("step", at, at + 1_500_000)
        export.push("forward", at + 1000, at + 500_000)
        export.push("inner", at + 2000, at + 400_000)
        export.launch(at + 3000, name=f"fwd_{step}", device=step)
        export.push("backward", at + 600_000, at + 900_000)
        export.launch(at + 610_000, name=f"bwd_{step}", thread=2, device=step)
        export.call(at + 700_000, at + 701_000, name="cudaMalloc")
        wait = export.call(at + 800_000, at + 850_000, name="cudaDeviceSynchronize")
        export.sync(at + 800_000, at + 850_000, wait, device=step)
        export.copy(
            at + 20_000, at + 21_000, export.call(at + 15_000, at + 15_500, name="cudaMemcpyAsync"), device=step
        )
    export.span("request", 3_000_000, 3_700_000, thread=9)
    return export.sqlite(tmp_path / "two.sqlite")


def _show(*arguments):
    done = CliRunner().invoke(app, ["show", *map(str, arguments)])
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def _json(*arguments):
    done = _show("--format", "json", *arguments)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def _names(rows):
    return {row["name"] for row in rows}


def test_all_of_it_is_no_selection(capture):
    found = _json(capture)
    assert found["capture"]["selection"] == {}
    assert "only:" not in _show(capture).stdout


def test_a_gpu_has_its_operations_and_the_calls_that_launched_them(capture):
    found = _json(capture, "--gpu", 1)
    assert _names(found["kernels"]) == {"fwd_1", "bwd_1"}
    assert [gpu["gpu"] for gpu in found["gpus"]] == [1]
    assert {call["name"]: call["calls"] for call in found["api"]} == {"cudaLaunchKernel": 2, "cudaMemcpyAsync": 1}
    assert [row["count"] for row in found["memops"] + found["syncs"]] == [1, 1]
    assert found["coverage"] == _json(capture)["coverage"]
    assert not found["missing"] or "launches of" not in str(found["missing"])


def test_a_gpu_has_the_ranges_of_the_processes_that_use_it(tmp_path):
    export = Export()
    for process in (1, 2):
        export.gpu(number=process - 1, process=process, device=0)
        export.push(f"forward of {process}", 0, 500, process=process)
        export.launch(100, process=process)
    found = _json(export.sqlite(tmp_path / "x.sqlite"), "--gpu", 1)
    assert _names(found["ranges"]) == {"forward of 2"}
    assert found["capture"]["processes"] == [2]


def test_a_range_has_what_was_launched_inside_by_its_thread(capture):
    found = _json(capture, "--range", "forward")
    assert _names(found["kernels"]) == {"fwd_0", "fwd_1"}
    assert _names(found["ranges"]) == {"forward", "inner"}
    assert {call["name"] for call in found["api"]} == {"cudaLaunchKernel", "cudaMemcpyAsync"}
    assert found["syncs"] == []
    assert [row["phase"] for row in found["phases"]] == ["forward"]
    assert not _json(capture, "--range", "backward")["kernels"], "another thread launched them"
    assert {row["kind"] for row in _json(capture, "--range", "backward")["syncs"]} == {"Context sync"}


def test_a_start_end_range_has_what_its_process_launched(capture):
    found = _json(capture, "--range", "request")
    assert _names(found["kernels"]) == {"fwd_1", "bwd_1"}
    assert found["capture"]["num_kernels"] == 2


def test_a_piece_of_time_has_what_starts_in_it(capture):
    found = _json(capture, "--between", "0,1.9")
    assert _names(found["kernels"]) == {"fwd_0", "bwd_0"}
    assert next(row for row in found["ranges"] if row["name"] == "step")["instances"] == 1
    assert found["capture"]["selection"] == {"start_ns": 0, "end_ns": 1_900_000}


def test_a_kernel_that_was_launched_before_keeps_its_launch(tmp_path):
    export = Export()
    export.push("forward", 0, 1_000_000)
    export.launch(10, start=900_000, end=950_000, name="late")
    export.call(850_000, 851_000, name="cudaMalloc")
    found = _json(export.sqlite(tmp_path / "x.sqlite"), "--between", "800us,1ms")
    assert found["coverage"]["exact"] == 1
    assert found["launches"]["latency_max_ns"] == 899_990
    assert {call["name"] for call in found["api"]} == {"cudaMalloc", "cudaLaunchKernel"}


def test_several_are_taken_together_and_said_on_top(capture):
    arguments = ("--gpu", 1, "--range", "step", "--between", "2ms,3ms", "--section", "kernels", "--section", "api")
    found = _json(capture, *arguments)
    assert _names(found["kernels"]) == {"fwd_1"}
    assert set(found) == {"format_version", "capture", "coverage", "launches", "kernels", "api"}
    chosen = {"gpu": 1, "range": "step", "start_ns": 2_000_000, "end_ns": 3_000_000, "sections": ["kernels", "api"]}
    assert found["capture"]["selection"] == chosen
    lines = _show(capture, *arguments).stdout.splitlines()
    assert lines[1] == "  only: GPU 1; range step; 2 to 3 ms; sections kernels, api"
    assert "NVTX ranges" not in lines


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("10,20", (10_000_000, 20_000_000)),
        ("1.5s,2s", (1_500_000_000, 2_000_000_000)),
        (" 5us , 1 ms", (5_000, 1_000_000)),
        ("0,7ns", (0, 7)),
    ],
)
def test_moments_have_units(text, ns):
    assert parse_moments(text) == ns


@pytest.mark.parametrize("text", ["", "5", "1,2,3", "a,b", "2,1", "1,1", "-1,2", "1h,2h", "inf,nan", "1e3,2e3"])
def test_what_is_no_piece_of_time_is_one_clear_line(capture, text):
    done = _show(capture, f"--between={text}")
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --between ")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--gpu", 7), "ran nothing on GPU 7; it used GPU 0, 1"),
        (("--range", "nothing"), "has no range called 'nothing'; the section `ranges` lists their names"),
        (("--between", "1s,2s"), "ends 3.50 ms after its first event"),
        (("--section", "nothing"), "there is no section 'nothing': choose from verdict, "),
    ],
)
def test_what_a_capture_does_not_have_is_one_clear_line(capture, option, said):
    done = _show(capture, *option)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_ranges_of_a_domain_are_called_as_the_section_calls_them(tmp_path):
    export = Export()
    export.domain(5, "lib:a")
    export.push("x:y", 0, 100, domain=5)
    export.push("x:y", 200, 300)
    export.launch(10, name="of_domain")
    export.launch(210, name="of_default")
    path = export.sqlite(tmp_path / "x.sqlite")
    (name,) = _names(_json(path)["ranges"]) - {"x:y"}
    assert name == "lib:a:x:y"
    assert _names(_json(path, "--range", name)["kernels"]) == {"of_domain"}
    assert _names(_json(path, "--range", "x:y")["kernels"]) == {"of_domain", "of_default"}


def test_one_section_of_csv_is_wide(capture):
    rows = list(csv.reader(io.StringIO(_show(capture, "--format", "csv", "--section", "kernels").stdout)))
    assert rows[0] == list(SECTIONS["kernels"])
    assert [row[0] for row in rows[1:]] == ["fwd_0", "bwd_0", "fwd_1", "bwd_1"]
    both = _show(capture, capture, "--format", "csv", "--section", "kernels").stdout
    assert both.splitlines()[0].startswith("profile,name,") and both.count("two.sqlite,fwd_0") == 2
    done = _show(capture, "--format", "csv", "--section", "kernels", "--section", "api")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "one --section at a time" in done.stderr


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_those_of_a_plain_count(tmp_path, seed):
    capture = read(_random_capture(seed).sqlite(tmp_path / "x.sqlite"))
    attribution = attribute(capture)
    total = summarise(capture, attribution)
    for name in {str(name) for name in capture.ranges["name"]}:
        part = summarise(capture, attribution, selection=Selection(range=name))
        wanted = total.sections["ranges"][total.sections["ranges"]["name"].str.fullmatch(rf"(.*:)?{name}")]
        styles = set(wanted["style"])
        if len(wanted) == 1 and styles == {"PushPop"}:
            assert part.capture["num_kernels"] == wanted["kernel_calls"].sum()
            mine = part.sections["ranges"]
            assert mine[mine["name"] == wanted["name"].iloc[0]]["kernel_ns"].sum() == wanted["kernel_ns"].sum()
    parts = [
        summarise(capture, attribution, selection=Selection(gpu=int(gpu))) for gpu in total.sections["gpus"]["gpu"]
    ]
    assert sum(part.capture["num_kernels"] for part in parts) == total.capture["num_kernels"]
    assert sum(part.sections["kernels"]["total_ns"].sum() for part in parts) == total.capture["kernel_ns"]
    half = capture.events_ns // 2
    halves = [Selection(between=piece) for piece in ((0, half), (half, capture.events_ns + 1))]
    kernels = [select(capture, attribution, piece)[0].kernels for piece in halves]
    assert sum(map(len, kernels)) == len(capture.kernels)


def test_a_part_has_its_own_row_numbers(tmp_path):
    capture = read(_random_capture(1).sqlite(tmp_path / "x.sqlite"))
    attribution = attribute(capture)
    part, placed = select(capture, attribution, Selection(between=(capture.events_ns // 3, capture.events_ns)))
    row = placed.kernels["api"].to_numpy()
    launched = row >= 0
    same = part.api["correlation"].to_numpy()[row[launched]] == part.kernels["correlation"].to_numpy()[launched]
    assert same.all()
    parents = placed.ranges["parent_id"]
    assert parents.max() < len(placed.ranges) and (parents[parents >= 0] != parents.index[parents >= 0]).all()
    assert len(placed.api) == len(part.api) and placed.api["range_id"].max() < len(placed.ranges)
    pd.testing.assert_series_equal(placed.ranges["start_ns"], part.ranges["start_ns"])


def test_one_gpu_keeps_what_it_waited_for_the_others(tmp_path):
    capture = read_capture("ddp_plain", tmp_path)
    attribution = attribute(capture)
    both = summarise(capture, attribution)
    assert both.sections["communication"]["waiting_ns"].notna().all()
    for gpu in (0, 1):
        one = summarise(capture, attribution, selection=Selection(gpu=gpu))
        for name in ("communication", "collectives", "messages"):
            rows = both.sections[name]
            rows = rows[rows["gpu"] == gpu].reset_index(drop=True)
            pd.testing.assert_frame_equal(one.sections[name], rows)
        facts = ("communication_ranks", "ranks_apart_ns", "no_waiting_because")
        assert {name: one.capture[name] for name in facts} == {name: both.capture[name] for name in facts}


def test_nothing_may_be_left_and_is_summarised(capture):
    found = _json(capture, "--between", "1.8,1.9")
    assert (found["capture"]["num_kernels"], found["kernels"], found["gpus"]) == (0, [], [])
    assert _show(capture, "--between", "1.8,1.9").exit_code == 0


def test_the_capture_itself_stays_whole(capture):
    loaded = read(capture)
    before = loaded.kernels.copy()
    summarise(loaded, selection=Selection(gpu=0))
    pd.testing.assert_frame_equal(loaded.kernels, before)
    with pytest.raises(ExportError) as refused:
        summarise(loaded, selection=Selection(gpu=9))
    assert refused.value.code is ExportProblem.NOTHING_SELECTED


@pytest.mark.parametrize(
    "chosen", [Selection(range="forward"), Selection(between=(10**7, 2 * 10**7)), Selection(gpu=0)]
)
def test_a_part_of_a_real_export(chosen):
    summary = summarise(read(profile("train_threads"), details=False), selection=chosen)
    assert 0 < summary.capture["num_kernels"] <= 5848
    assert summary.coverage["none"] == pytest.approx(0, abs=0.01)
