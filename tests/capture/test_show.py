"""`show` is readable, its JSON is a stable interface, and nothing a profile holds can break it."""

import csv
import io
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing

import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis import show
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.waits import OF_WAITS

from .nsys_files import Export
from .pages import check_inert
from .profiles import nsys_csv, profile

_KEYS = {"capture", "coverage", "launches", *SECTIONS, "sentences"}


@pytest.fixture
def capture(tmp_path):
    export = Export()
    export.gpu()
    export.push("step", 0, 1000)
    export.push("forward", 10, 400)
    export.push("backward", 500, 900)
    export.launch(50, name="void gemm<float>(int)")
    export.launch(600, name="void add<float>(int)", thread=2)
    export.copy(700, 710, export.call(650, 655, name="cudaMemcpyAsync_v3020"))
    export.sync(900, 910, export.call(800, 910, name="cudaDeviceSynchronize_v3020"))
    return export.sqlite(tmp_path / "good.sqlite")


def _show(*arguments):
    done = CliRunner().invoke(app, ["show", *map(str, arguments)])
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def test_text_is_a_readable_summary(capture):
    done = _show(capture)
    assert done.exit_code == 0
    for expected in (
        "good.sqlite",
        "NVTX ranges",
        "forward",
        "void gemm<float>(int)",
        "cudaLaunchKernel",
        "NVIDIA Test",
    ):
        assert expected in done.stdout
    assert "50.0% of kernel time attributed exactly, 50.0% to a phase by time" in done.stdout


def test_json_is_the_documented_interface(capture):
    found = json.loads(_show(capture, "--format", "json").stdout)
    assert set(found) == {"format_version"} | _KEYS
    assert found["coverage"] == {"exact": 0.5, "early": 0, "linked": 0, "phase": 0.5, "inferred": 0, "none": 0}
    assert all(key in show.__doc__ for key in found["capture"])
    assert found["capture"]["kernel_share"] == 1
    for name, columns in SECTIONS.items():
        for row in found[name]:
            assert set(row) == set(columns), name
    kernel = found["kernels"][0]
    assert {"name", "family", "calls", "total_ns"} <= set(kernel)
    assert (kernel["calls"], kernel["total_ns"]) == (1, 5)
    forward = next(row for row in found["ranges"] if row["name"] == "forward")
    assert forward == {
        "name": "forward",
        "style": "PushPop",
        "instances": 1,
        "kernel_calls": 1,
        "kernel_ns": 5,
        "busy_ns": 5,
        "projected_ns": 5,
        "host_ns": 390,
        **dict.fromkeys(("host_mean_ns", "host_median_ns", "host_min_ns", "host_max_ns"), 390),
    }
    assert [row["phase"] for row in found["phases"]] == ["forward", "backward"]
    assert found["api"][0]["latency_median_ns"] is None
    assert found["missing"][0].keys() == {"what", "consequence"}


@pytest.mark.parametrize(
    ("collected", "expected"),
    [
        (119_440_000_000, "300 ms of events in a collection of 119 s"),
        (350_000_000, "300 ms of events"),
        (None, "300 ms of events"),
    ],
)
def test_the_span_of_the_events_comes_first_and_a_long_collection_beside_it(tmp_path, collected, expected):
    export = Export()
    export.push("step", 5_000_000_000, None)  # left open: ends with the last event, not with the collection
    export.launch(5_100_000_000, start=5_290_000_000, end=5_300_000_000)
    if collected:
        export.collected(collected)
    path = export.sqlite(tmp_path / "x.sqlite")
    fact = next(line for line in _show(path).stdout.splitlines() if " of events" in line)
    assert fact.strip().split("; ")[0] == expected
    facts = json.loads(_show(path, "--format", "json").stdout)["capture"]
    assert (facts["events_ns"], facts["duration_ns"]) == (300_000_000, collected or 300_000_000)


@pytest.mark.parametrize("form", ["text", "md"])
def test_coverage_says_of_how_much_gpu_time_it_speaks(tmp_path, form):
    export = Export()
    export.push("forward", 0, 100)
    export.launch(10, start=100, end=125)
    export.graph(200, 275, export.call(20, 30, name="cudaGraphLaunch_v10000"))
    path = export.sqlite(tmp_path / "x.sqlite")
    found = json.loads(_show(path, "--format", "json").stdout)
    assert found["coverage"] == {"exact": 1, "early": 0, "linked": 0, "phase": 0, "inferred": 0, "none": 0}
    assert (found["capture"]["kernel_share"], found["capture"]["graph_ns"]) == (0.25, 75)
    shown = " ".join(_show(path, "--format", form).stdout.replace("\\", "").split())
    assert "100.0% of kernel time attributed exactly" in shown
    assert "(kernel time is 25.0% of GPU time; graphs hide the rest)" in shown


@pytest.mark.parametrize("event", ["push", "memset", "sync"])
def test_every_event_tells_its_process(tmp_path, event):
    export = Export()
    first = {"push": "forward", "memset": 5, "sync": 5}[event]
    arguments = (first, 5, 10) if event == "push" else (first, 10, 1)
    getattr(export, event)(*arguments, process=7)
    found = json.loads(_show(export.sqlite(tmp_path / "x.sqlite"), "--format", "json").stdout)
    assert found["capture"]["processes"] == [7]


def test_a_capture_of_graphs_alone_covers_nothing(tmp_path):
    export = Export()
    export.graph(200, 275, export.call(20, 30, name="cudaGraphLaunch_v10000"))
    path = export.sqlite(tmp_path / "x.sqlite")
    assert "no kernels to attribute (kernel time is 0.0% of GPU time" in _show(path).stdout
    assert json.loads(_show(path, "--format", "json").stdout)["capture"]["kernel_share"] == 0


def test_json_of_several_is_an_array_and_of_one_an_object(capture):
    assert isinstance(json.loads(_show(capture, "--format", "json").stdout), dict)
    both = json.loads(_show(capture, capture, "--format", "json").stdout)
    assert [one["capture"]["source"] for one in both] == ["good.sqlite", "good.sqlite"]


def test_csv_is_one_long_table(capture):
    rows = list(csv.DictReader(io.StringIO(_show(capture, capture, "--format", "csv").stdout)))
    assert list(rows[0]) == ["profile", "section", "row", "column", "value"]
    assert {row["section"] for row in rows} == _KEYS - {
        "sentences",
        *OF_WAITS,
        "matmuls",
        "problems",
        "communication",
        "collectives",
        "messages",
        "late_kernels",
        "modules",
    }, "one GPU, nothing wrong, and no step that follows modules"
    totals = [row["value"] for row in rows if row["section"] == "kernels" and row["column"] == "total_ns"]
    assert totals == ["5", "5"] * 2


def test_markdown_shows_names_as_they_are(capture):
    text = _show(capture, "--format", "md").stdout
    assert text.startswith(r"# good.sqlite")
    assert r"void gemm&lt;float&gt;\(int\)" in text


def test_top_limits_rows_and_never_what_is_missing(tmp_path):
    export = Export()
    for i in range(30):
        export.launch(100 * i, name=f"kernel_number_{i}")
    path = export.sqlite(tmp_path / "x.sqlite")
    limited, whole = _show(path, "--top", 3).stdout, _show(path, "--top", 0).stdout
    assert limited.count("kernel_number_") == 3
    assert "... and 27 more" in limited
    assert whole.count("kernel_number_") == 30
    assert limited.count("no NVTX ranges") == 1
    assert json.loads(_show(path, "--format", "json").stdout)["capture"]["num_kernels"] == 30


def test_a_batch_goes_on_past_what_cannot_be_read(capture, tmp_path):
    (tmp_path / "bad.sqlite").write_text("no")
    (tmp_path / "x.nsys-rep").write_bytes(b"")
    done = _show(tmp_path / "bad.sqlite", capture, tmp_path / "x.nsys-rep", tmp_path / "none.sqlite")
    assert done.exit_code == 65
    assert "good.sqlite" in done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: ") for line in lines)
    assert "is not an SQLite file" in lines[0]


@pytest.mark.parametrize("form", ["text", "json", "csv", "md"])
def test_one_bad_profile_is_one_line_and_exit_code_65(tmp_path, form):
    (tmp_path / "bad.sqlite").write_text("no")
    done = _show(tmp_path / "bad.sqlite", "--format", form)
    assert done.exit_code == 65
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("form", ["text", "md", "csv", "html"])
def test_names_cannot_drive_the_terminal_or_the_page(tmp_path, form):
    export = Export()
    export.push("[bold red]x[/]\x1b[2J<script>alert(1)</script>\n| a | b |", 0, 100)
    export.launch(5, name="k\x07\x1b]0;title\x07<img src=x>")
    export.gpu(name="\x1b[31mgpu")
    for row in export.rows["META_DATA_EXPORT"]:
        row["value"] = "2025\x1b[2J\n<script>"
    path = export.sqlite(tmp_path / "x.sqlite")
    page = tmp_path / "x.html"
    text = _show(path, *(("--html", page) if form == "html" else ("--format", form))).stdout
    text = page.read_text() if form == "html" else text
    assert "\x1b" not in text
    assert "\x07" not in text
    if form == "html":
        assert "<script>alert(1)</script>" in check_inert(text).text
    elif form == "md":
        assert "<script>" not in text
        assert "<img" not in text
    else:
        assert "[bold red]x[/]" in text


def test_names_that_begin_alike_stay_different_in_text(tmp_path):
    export = Export()
    for ending in ("alpha", "omega"):
        export.launch(len(ending) * 10, name=f"void {'very_' * 100}{ending}(int)")
    text = _show(export.sqlite(tmp_path / "x.sqlite")).stdout
    assert "…alpha" in text
    assert "…omega" in text


def test_a_users_own_rules_win(capture, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "mine"\nfamily = "attention"\npattern = "add<"\n')
    kernels = json.loads(_show(capture, "--format", "json", "--rules", rules).stdout)["kernels"]
    assert ("attention", "mine") in {(row["family"], row["rule"]) for row in kernels}
    rules.write_text("[[rule]]\n")
    done = _show(capture, "--rules", rules)
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_every_command_has_help():
    for command in ("ingest", "show"):
        done = CliRunner().invoke(app, [command, "--help"])
        assert done.exit_code == 0
        assert "Usage" in done.output


@pytest.mark.parametrize("form", ["text", "json", "csv", "md"])
@pytest.mark.parametrize("name", ["train_threads", "graph", "forward_whole"])
def test_real_profiles_are_shown_in_every_form(name, form):
    done = _show(profile(name), "--format", form)
    assert done.exit_code == 0
    assert len(done.stdout) > 500


@pytest.mark.parametrize("form", ["text", "json", "csv", "md"])
@pytest.mark.parametrize("fact", ["id", "totalMemory", "clockRate", "smCount"])
@pytest.mark.parametrize("value", ["lots", b"\x00\xff", float("inf")])
def test_facts_of_a_gpu_that_are_no_numbers_are_one_clear_line(tmp_path, form, fact, value):
    export = Export()
    export.gpu()
    export.launch(5)
    path = export.sqlite(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE TARGET_INFO_GPU SET {fact} = ?", (value,))
    done = _show(path, "--format", form)
    assert (done.exit_code, done.stdout) == (65, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "holds values that no nsys writes" in done.stderr


def _years_of_kernels(export):
    for _ in range(9):
        export.kernel(0, 2**52, export.call(0, 1))


def _two_distant_kernels(export):
    export.launch(0)
    export.launch(2**54)


def _more_bytes_than_there_are(export):
    for _ in range(2):
        export.copy(0, 1, export.call(0, 1), bytes=2**62)


def _negative_bytes(export):
    export.memset(0, 1, export.call(0, 1), bytes=-1)


@pytest.mark.parametrize(
    "damage", [_years_of_kernels, _two_distant_kernels, _more_bytes_than_there_are, _negative_bytes]
)
def test_numbers_whose_sums_would_overflow_are_one_clear_line(tmp_path, recwarn, damage):
    export = Export()
    export.push("outer", 0, 2**40)
    export.launch(5)
    damage(export)
    done = _show(export.sqlite(tmp_path / "x.sqlite"))
    assert (done.exit_code, done.stdout) == (65, "")
    assert "holds values that no nsys writes" in done.stderr
    assert not recwarn.list


def test_a_phase_without_a_range_of_its_own_has_no_host_time(tmp_path):
    """The loss that is found between forward and backward: nobody measured how long the host took for it."""
    export = Export()
    export.push("step", 0, 1000)
    export.push("forward", 10, 100)
    export.launch(20)
    export.launch(150, name="nll_loss")
    export.push("backward", 200, 300)
    export.launch(220)
    path = export.sqlite(tmp_path / "x.sqlite")
    phases = json.loads(_show(path, "--format", "json").stdout)["phases"]
    assert {row["phase"]: row["host_ns"] for row in phases} == {"forward": 90, "loss": None, "backward": 100}


def test_facts_are_whole_numbers_beside_a_gpu_without_facts(tmp_path):
    export = Export()
    export.gpu()
    export.launch(5)
    export.launch(50, device=1)
    gpus = json.loads(_show(export.sqlite(tmp_path / "x.sqlite"), "--format", "json").stdout)["gpus"]
    assert [repr(gpu["sm_count"]) for gpu in gpus] == ["100", "None"]


def test_a_terminal_of_another_encoding_gets_the_summary_too(capture):
    command = [sys.executable, "-m", "profiler_job", "show", str(capture)]
    done = subprocess.run(command, check=False, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"NVTX ranges" in done.stdout


@pytest.mark.parametrize("report", ["nvtx_kern_sum", "cuda_gpu_kern_sum", "cuda_api_sum"])
def test_a_report_of_nsys_is_printed_with_its_columns_and_numbers(report):
    printed = _show("--report", report, profile("train")).stdout
    ours, theirs = pd.read_csv(io.StringIO(printed)), pd.read_csv(nsys_csv("train", report))
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)
    assert ours["Total Time (ns)"].sum() == theirs["Total Time (ns)"].sum()


def test_of_several_profiles_a_line_before_each_report_says_what_it_is(capture, tmp_path):
    other = tmp_path / "other.sqlite"
    other.write_bytes(capture.read_bytes())
    table = _show("--report", "nvtx_kern_sum", capture).stdout
    assert table.startswith("NVTX Range,")
    done = _show("--report", "nvtx_kern_sum", capture, tmp_path / "none.sqlite", other)
    assert done.stdout == f"# nvtx_kern_sum of {capture}\n{table}\n# nvtx_kern_sum of {other}\n{table}"
    assert done.exit_code == 2 and "none.sqlite" in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        *(
            ("--format", "json"),
            ("--top", "3"),
            ("--rules", "mine.toml"),
            ("--phase", "data=mine"),
            ("--section", "api"),
            ("--range", "step"),
        ),
        *(("--gpu", "0"), ("--between", "1,2"), ("--html", "x.html")),
    ],
)
def test_an_option_of_summaries_is_refused_beside_a_report(capture, option):
    done = _show("--report", "nvtx_kern_sum", *option, capture)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {option[0]} ") and "--report" in line


def test_a_report_of_what_is_no_profile_is_an_error(tmp_path):
    done = _show("--report", "nvtx_kern_sum", tmp_path / "none.sqlite")
    assert done.exit_code == 2
    assert "does not exist" in done.stderr


def test_help_imports_neither_torch_nor_pandas():
    program = (
        "import sys\nfrom profiler_job.__main__ import app\nsys.argv = ['profiler-job', '--help']\n"
        "try: app()\nexcept SystemExit: pass\n"
        "print([one for one in ('torch', 'pandas', 'numpy', 'pyarrow', 'pydantic') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def unmatched(tmp_path):
    """A program whose ranges have names of its own."""
    export = Export()
    export.push("main", 0, 1000)
    export.push("fwd_x", 10, 400)
    export.push("block", 20, 300)
    export.push("bwd_x", 500, 900)
    for at in (50, 350, 600):
        export.launch(at)
    return export.sqlite(tmp_path / "unmatched.sqlite")


def test_the_largest_ranges_that_match_no_phase_are_named(unmatched):
    (hint,) = (line for line in _show(unmatched).stdout.splitlines() if "match no phase" in line)
    expected = "The largest ranges match no phase (fwd_x, bwd_x): name them with --phase, such as --phase forward=fwd_x"
    assert hint.strip() == expected
    found = json.loads(_show(unmatched, "--format", "json").stdout)
    assert found["capture"]["unmatched_ranges"] == ["fwd_x", "bwd_x"]


def test_nothing_is_to_be_named_where_all_ranges_match(capture):
    assert "match no phase" not in _show(capture).stdout


def test_a_user_names_the_ranges_of_a_phase(unmatched):
    options = ("--phase", "forward=fwd_x", "--phase", "backward=bwd_x", "--phase", "data=absent")
    found = json.loads(_show(unmatched, *options, "--format", "json").stdout)
    assert {row["phase"]: row["kernel_calls"] for row in found["phases"]} == {"forward": 2, "backward": 1}
    assert found["coverage"]["exact"] == 1
    absent = {"what": "ranges called absent", "consequence": "--phase data=absent marks nothing"}
    assert absent in found["missing"]


def test_phases_and_ranges_count_the_same_kernels(tmp_path):
    """The range `opt`: what lies in it is of the optimizer, in the coverage, the phases and the ranges alike."""
    export = Export()
    for at, name in ((0, "fwd"), (200, "bwd"), (400, "opt")):
        export.push(name, at, at + 100)
        export.launch(at + 10)
        export.launch(at + 20)
    found = json.loads(_show(export.sqlite(tmp_path / "x.sqlite"), "--format", "json").stdout)
    phases = {row["phase"]: (row["kernel_calls"], row["kernel_ns"]) for row in found["phases"]}
    ranges = {row["name"]: (row["kernel_calls"], row["kernel_ns"]) for row in found["ranges"]}
    assert phases == {"forward": ranges["fwd"], "backward": ranges["bwd"], "optimizer": ranges["opt"]}
    assert found["coverage"]["none"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["optimizer"], "--phase optimizer: write PHASE=RANGE"),
        (["training=loop"], "the phases are setup, data, forward"),
        (["forward="], "write PHASE=RANGE"),
        (["forward=a", "backward=a"], "the range a is forward already"),
    ],
)
def test_a_phase_that_is_none_is_one_clear_line(capture, options, said):
    done = _show(capture, *(part for option in options for part in ("--phase", option)))
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and said in line


def test_what_is_wrong_is_said_beside_the_coverage(tmp_path):
    export = Export()
    export.push("forward", 0, 100)
    for at in (10, 20):
        export.launch(at, correlation=5)
    export.collected(-5)
    path = export.sqlite(tmp_path / "x.sqlite")
    text = _show(path).stdout
    assert "Coverage: 100.0% of kernel time in no phase" in text
    assert "Wrong: a collection of -5 ns; how long nsys collected is unknown" in text
    assert "Wrong: 2 of 2 kernels have the correlation id of several API calls; their launch is not believed" in text
    facts = json.loads(_show(path, "--format", "json").stdout)["capture"]
    assert facts["duration_ns"] == facts["events_ns"]


def test_chosen_sections_are_all_that_is_printed(capture):
    lines = _show(capture, "--section", "phases").stdout.splitlines()
    assert lines[:4] == ["good.sqlite", "  only: section phases", "", "Phases"]
    assert len(lines) == 7
    assert _show(capture, "--section", "memops", "--range", "backward").stdout.splitlines()[-1] != ""
    assert "The section syncs has no rows here" in _show(capture, "--section", "syncs", "--range", "forward").stdout
    assert "no rows here" not in _show(capture).stdout


@pytest.mark.parametrize("name", ["=cmd|'/C calc'!A0", "@SUM(1)", "+1", " -1"])
def test_a_name_is_no_formula_in_csv_and_no_command_in_a_hint(tmp_path, name):
    export = Export()
    export.push(f"{name} $(id)", 0, 100)
    export.launch(10, name=name)
    path = export.sqlite(tmp_path / "x.sqlite")
    for arguments in (["--format", "csv"], ["--format", "csv", "--section", "kernels"]):
        rows = list(csv.reader(io.StringIO(_show(path, *arguments).stdout)))
        assert any(f"'{name}" in row for row in rows)
        assert not any(cell.lstrip().startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    hint = " ".join(_show(path).stdout.split()).split("such as --phase ")[1]
    assert hint.startswith(shlex.quote(" ".join(f"PHASE={name} $(id)".split())))
