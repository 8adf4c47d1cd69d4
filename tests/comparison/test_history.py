"""A metric over many entries: what is marked is what `compare` tells, and what cannot be compared is said."""

import csv
import dataclasses
import io
import json
import re
import shutil
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.comparison import history, history_forms, judge
from profiler_job.analysis.comparison.errors import ComparisonProblem
from profiler_job.analysis.recording import store, table_schema
from profiler_job.jobs.contract.quantities import format_time
from tests import frozen
from tests.capture.nsys_files import Export
from tests.comparison.refusals import refuse
from tests.packed import unpack, unpack_all

from .conftest import export
from .test_compare import HOSTILE

RUN = "small-ctx128-fp32-naive-forward"
DATA = Path(__file__).parents[1] / "data"
CAPTURES = DATA / "h200_captures"


def run(*arguments, command="history"):
    done = CliRunner().invoke(app, [command, *map(str, arguments)])
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def as_json(*arguments):
    return json.loads(run(*arguments, "--format", "json").stdout)


def changed(made):
    """Numbers of the entries that differ, of a history with one line."""
    ((line,),) = (group["lines"] for group in made["groups"])
    return [point["entry"] for point in line["points"] if point["verdict"] not in (None, "within")]


@pytest.fixture(scope="module")
def kernel_ms():
    """Return a function that formats the kernel time of a step of RUN, its kernels longer by `change`."""
    kernels = frozen.load("one_gpu").kernels.query("run_id == @RUN")
    sums = (kernels["end_ns"] - kernels["start_ns"]).groupby(kernels["step"]).sum()
    return lambda change=0.0: format_time(sums.median() * (1 + change))


@pytest.fixture(scope="module")
def step_ms():
    """The time of an unprofiled step of RUN, formatted."""
    steps = frozen.load("one_gpu").steps.query("run_id == @RUN and collector == 'timer' and phase == 'step'")
    return format_time(steps["wall_ns"].median())


@pytest.fixture
def record(tmp_path):
    """Writes a recording of one run, whose kernels are longer by `change`."""

    def write(name, change=0.0, at="", commit="aaaaaaa", runs=(RUN,), energies=(), **columns):
        rec = frozen.load("one_gpu")
        tables = {table: getattr(rec, table) for table in table_schema.TABLES}
        tables = {table: rows[rows["run_id"].astype(str).isin(runs)] for table, rows in tables.items()}
        kernels = tables["kernels"].drop(columns="family")
        longer = ((kernels["end_ns"] - kernels["start_ns"]) * (1 + change)).round().astype("int64")
        tables["kernels"] = kernels.assign(end_ns=kernels["start_ns"] + longer)
        tables["runs"] = tables["runs"].assign(commit=commit, **columns)
        processes = [
            {"run_id": RUN, "rank": 0, "process": number, "position": number, "energy_mj": energy, "energy_steps": 10}
            for number, energy in enumerate(energies)
        ]
        tables["processes"] = pd.DataFrame(processes, columns=rec.processes.columns)
        about = {"name": name, "recorded_from": at and f"2026-11-{at}T10:00:00Z", "commit": commit}
        store.write(tmp_path / "folder" / name, tables, rec.manifest | about)
        return tmp_path / "folder"

    return write


def dated(made: Export, at_s: int) -> Export:
    made.rows["TARGET_INFO_SESSION_START_TIME"].append({"utcEpochNs": at_s * 10**9, "utcTime": "", "localTime": ""})
    return made


def test_a_planted_slowdown_is_marked_and_a_small_change_is_not(record, kernel_ms):
    for day, change in enumerate((0.0, 0.002, 0.03)):
        folder = record(f"r{day}", change, f"0{day + 1}")
    done = run(folder, "--metric", "kernel")
    assert done.exit_code == 0, done.output
    assert re.search(
        rf"^2 +2026-11-02 10:00 +aaaaaaa +r1 +{kernel_ms(0.002)} +\+0.2% +±0.8% +·●·+$", done.stdout, re.MULTILINE
    )
    assert re.search(rf"^3 +.* r2 +{kernel_ms(0.03)} +\+3.0% +±0.8% +·+◆$", done.stdout, re.MULTILINE)
    assert "1 measurable change in 2 points:" in done.stdout
    assert f"#3 r2 against #1, small context 128 forward pass: {kernel_ms()} -> {kernel_ms(0.03)}" in done.stdout
    assert "forward, block/ffn: 48 kernels (gemm), 3.0% slower" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    made = as_json(folder, "--metric", "kernel")
    assert changed(made) == [3]
    told = json.loads(run(folder / "r0", folder / "r2", "--format", "json", command="compare").stdout)
    (line,) = made["groups"][0]["lines"]
    of_compare = told["pairs"][0]["metrics"]["kernel"]
    assert {name: line["points"][2][name] for name in ("difference", "band", "verdict")} == {
        name: of_compare[name] for name in ("difference", "band", "verdict")
    }
    assert made["groups"][0]["noise"] == [told["noise"]]


@pytest.mark.long
def test_a_slow_drift_is_marked_once_it_is_beyond_noise(record):
    for day in range(5):
        folder = record(f"r{day}", 0.004 * day, f"0{day + 1}")
    made = as_json(folder, "--metric", "kernel")
    assert changed(made) == [4]
    assert [point["against"] for point in made["groups"][0]["lines"][0]["points"]] == [None, 1, 1, 1, 4]


@pytest.mark.long
def test_a_part_of_kernel_time_is_followed(record):
    record("a", 0.0, "01")
    folder = record("b", 0.03, "02")
    of_gemm = as_json(folder, "--metric", "kernel", "--part", "family=gemm,module=block")
    whole = as_json(folder, "--metric", "kernel")
    (part,), (line,) = (made["groups"][0]["lines"] for made in (of_gemm, whole))
    assert 0 < part["points"][0]["value"] < line["points"][0]["value"]
    assert part["points"][1]["share"] == pytest.approx(0.03, abs=1e-3) and changed(of_gemm) == [2]
    assert as_json(folder, "--metric", "kernel", "--part", "phase=forward")["groups"][0]["lines"][0]["points"][0][
        "value"
    ] == pytest.approx(line["points"][0]["value"])


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--metric", "kernel", "--part", "family=nothing"], "no entry has kernels of family nothing; of family there"),
        (["--metric", "kernel", "--part", "name=gemm"], "--part name=gemm: give KEY=VALUE once"),
        (["--part", "family=gemm"], "--part is of kernel time: give --metric kernel with it"),
        (["--run", "precission=fp32"], "precission=fp32 chooses no runs"),
        (["--run", "size=huge"], "has nothing to show"),
        (["--format", "md", "--html", "x.html"], "--html writes a page, and --format is for printing"),
    ],
)
def test_what_cannot_be_shown_is_one_line_and_exit_code_2(capture, arguments, what):
    done = run(capture, *arguments)
    assert done.exit_code == 2
    assert done.output.startswith("error: ") and what in done.output and done.output.count("\n") == 1


def test_an_empty_folder_is_said_to_be_one(tmp_path):
    done = run(tmp_path)
    assert done.exit_code == 2 and done.output.startswith("error: ") and str(tmp_path) in done.output


@pytest.mark.long
def test_the_order_is_of_when_it_was_recorded_or_by_commit(record, step_ms):
    record("b", at="02", commit="bbbbbbb")
    record("c", at="03")
    record("undated", commit="")
    folder = record("z", at="01")
    made = as_json(folder)
    assert [entry["name"] for entry in made["entries"]] == ["z", "b", "c", "undated"]
    assert made["entries"][0] == {
        "entry": 1,
        "name": "z",
        "recorded": "2026-11-01T10:00:00Z",
        "commit": "aaaaaaa",
        "notes": [],
    }
    assert made["entries"][3]["recorded"] is None and made["entries"][3]["commit"] is None
    said = run(folder, "--by", "commit").stdout
    assert re.findall(rf"^\d  .*(?:  | )(\w+) +{step_ms}", said, re.MULTILINE) == ["z", "c", "b", "undated"]
    assert "when it was measured is not recorded: #4" in said and "the commit is not recorded: #4" in said


@pytest.mark.long
def test_other_axes_begin_a_new_line_and_say_why(record):
    record("a", at="01")
    record("b", at="02", precision="bf16")
    record("c", at="03", context_length=256)
    record("d", at="04", torch="9.9")
    folder = record("e", at="05", num_parameters=7)
    made = as_json(folder)
    assert [group["entries"] for group in made["groups"]] == [[1, 4], [2], [3], [5]]
    _, precision, shape, model = (group["reason"] for group in made["groups"])
    assert precision == "precision is bf16, and fp32 in a"
    assert "context is 128 in A and 256 in B" in shape or "context is" in shape
    assert "not the same model" in model or "context is" in model
    assert made["groups"][0]["settings"]["4"]["torch"] == ["2.11.0+cu130", "9.9"]
    assert "A new line: precision is bf16, and fp32 in a" in run(folder).stdout


@pytest.mark.long
def test_runs_that_all_entries_have_are_lines(record):
    more = RUN.replace("forward", "train_step")
    record("a", at="01", runs=(RUN, more))
    folder = record("b", at="02")
    made = as_json(folder)
    assert [line["run"] for line in made["groups"][0]["lines"]] == ["small context 128 forward pass"]
    assert made["groups"][0]["not_in_all"] == {"1": [more]}
    chosen = as_json(folder, "--run", "mode=train_step")
    assert [entry["name"] for entry in chosen["entries"]] == ["a"]
    assert "has no such finished run with mode=train_step" in chosen["left_out"]["b"] and chosen["exit_code"] == 0


def test_damaged_entries_are_named_and_the_others_are_shown(record, step_ms):
    record("a", at="01")
    folder = record("damaged", at="03")
    (folder / "damaged" / "kernels.parquet").write_bytes(b"no table")
    (folder / "broken.sqlite").write_bytes(b"no export")
    done = run(folder)
    assert done.exit_code == 65
    errors = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "broken.sqlite" in errors[0] and "damaged: kernels.parquet" in errors[1]
    assert re.search(rf"^1 .* a +{step_ms}", done.output, re.MULTILINE)


def test_captures_have_the_date_of_their_session(tmp_path):
    for name, at_s, ns in (("b", 1_700_000_000, 3000), ("a", 1_700_100_000, 3800), ("c", 1_699_900_000, 3000)):
        dated(export([("forward", "gemm", ns)] * 2), at_s).sqlite(tmp_path / f"{name}.sqlite")
    export([("forward", "gemm", 3000)] * 2).sqlite(tmp_path / "d.sqlite")
    made = as_json(tmp_path, "--metric", "kernel")
    assert [entry["name"] for entry in made["entries"]] == ["c.sqlite", "b.sqlite", "a.sqlite", "d.sqlite"]
    assert made["entries"][1]["recorded"] == "2023-11-14T22:13:20Z"
    assert "captures record neither batch nor context" in run(tmp_path).stdout


def test_captures_of_other_shapes_have_a_line_of_their_own(tmp_path):
    kernels = [("forward", "void at::native::vectorized_elementwise_kernel<4, gelu>", 300)]
    for blocks in (3072, 49152):
        export(kernels, blocks=blocks).sqlite(tmp_path / f"{blocks}.sqlite")
    assert "elementwise kernels of A have" in " ".join(run(tmp_path).stdout.split())


def test_captures_of_other_phases_have_a_line_of_their_own(tmp_path):
    export().sqlite(tmp_path / "a.sqlite")
    export([("forward", "gemm", 50), ("backward", "gemm", 50)]).sqlite(tmp_path / "b.sqlite")
    made = as_json(tmp_path)
    assert [group["entries"] for group in made["groups"]] == [[1], [2]]
    assert "mode: steps have the phases" in made["groups"][1]["reason"]


@pytest.mark.parametrize("name", ["gpt2_plain", pytest.param("ddp_plain", marks=pytest.mark.long)])
def test_real_captures_show_what_was_planted_in_them(tmp_path, name):
    packed = CAPTURES / f"{name}.sqlite.packed"
    for file, change in (("a", 0.0), ("b", 0.002), ("c", 0.03)):
        target = unpack(packed, tmp_path / f"{file}.sqlite")
        with sqlite3.connect(target) as connection:
            longer = f"end = start + CAST((end - start) * {1 + change} AS INTEGER)"
            connection.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {longer}")
        connection.close()
    made = as_json(tmp_path, "--metric", "kernel")
    assert changed(made) == [3], made["groups"]


@pytest.mark.parametrize("form", ["text", "md", "csv", "json", pytest.param("html", marks=pytest.mark.long)])
def test_names_inside_entries_are_harmless(tmp_path, form):
    folder = tmp_path / "folder"
    folder.mkdir()
    for file, ns in (("a", 3000), ("b\x1b[2J<b>=x\u202e", 3800)):
        export([("forward", HOSTILE, ns)] * 2, hostile=HOSTILE).sqlite(folder / f"{file}.sqlite")
    page = tmp_path / "page.html"
    done = run(folder, "--metric", "kernel", *(["--html", page] if form == "html" else ["--format", form]))
    assert done.exit_code == 0, done.output
    said = page.read_text() if form == "html" else done.output
    assert not set("\x1b\u202e") & set(said) and "2J" in said
    if form in ("md", "html"):
        assert "<script" not in said and "<b>=x" not in said
    if form == "md":
        assert "](javascript" not in said
    if form == "text":
        assert max(map(len, said.splitlines())) <= 80
    if form == "csv":
        assert len(list(csv.DictReader(io.StringIO(said)))) == 2


@pytest.mark.long
def test_the_page_needs_nothing_else(record, tmp_path, kernel_ms):
    record("a", at="01")
    folder = record("b", 0.03, "02")
    page = tmp_path / "out" / "page.html"
    done = run(folder, "--metric", "kernel", "--html", page)
    assert done.stdout == f"{page}: 2 entries\n"
    text = page.read_text()
    assert text.count("<svg") == 1 and f"#2 b, 2026-11-02 10:00: {kernel_ms(0.03)}, slower" in text
    assert not re.search(r"(src|href)=|url\(http|<script", text)
    assert run(folder, "--html", folder).exit_code == 74


@pytest.mark.long
def test_csv_has_a_row_for_each_point(record):
    record("a", at="01")
    folder = record("b", 0.03, "02")
    rows = list(csv.DictReader(io.StringIO(run(folder, "--metric", "kernel", "--format", "csv").stdout)))
    assert [(row["entry"], row["against"], row["verdict"]) for row in rows] == [("1", "", ""), ("2", "1", "slower")]


@pytest.mark.long
def test_results_of_sweeps_and_recordings_stand_side_by_side(record, tmp_path):
    folder = record("a", at="01")
    for entry in (DATA / "h200_followed").iterdir():
        shutil.copytree(entry, folder / "results" / entry.name)
    unpack_all(folder / "results")
    made = as_json(folder)
    assert sorted(entry["name"] for entry in made["entries"]) == ["a", "results"]
    assert len(made["groups"]) == 2


def test_a_part_is_chosen_once():
    assert history.parse_part(["phase=backward,family=gemm"]) == history.KernelPart(phase="backward", family="gemm")
    assert dataclasses.astuple(history.parse_part([])) == ("", "", "")
    with refuse(ComparisonProblem.BAD_OPTION, "family=softmax"):
        history.parse_part(["family=gemm", "family=softmax"])


def test_captures_of_one_name_are_told_apart_by_their_folders(tmp_path):
    paths = []
    for folder in ("monday", "tuesday"):
        (tmp_path / "kept" / folder / "nsys").mkdir(parents=True)
        paths.append(export([("forward", "gemm", 3000)]).sqlite(tmp_path / "kept" / folder / "nsys" / "profile.sqlite"))
    made = as_json(*paths)
    assert [entry["name"] for entry in made["entries"]] == ["monday", "tuesday"]
    said = run(*paths).stdout
    assert re.search(r"^1 .*monday", said, re.MULTILINE) and re.search(r"^2 .*tuesday", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["a/x.sqlite", "b/x.sqlite"], ["a", "b"]),
        (["a/1/x.sqlite", "a/2/x.sqlite", "c"], ["1", "2", "c"]),
        (["a/1/n/x", "b/2/n/x", "b/1/n/x"], ["a/1", "b/2", "b/1"]),
        (["a/x", "a/b/x"], ["x", "b"]),
        (["x", "y"], ["x", "y"]),
        (["a/x", "a/../a/x"], ["x", "x"]),
    ],
)
def test_names_are_as_short_as_tells_them_apart(paths, labels):
    assert list(history._label_paths([Path("/r") / path for path in paths]).values()) == labels


def test_long_names_take_the_room_of_the_chart_and_keep_their_ends(record):
    for day, name in enumerate(("nightly-of-main-4711", "nightly-of-main-4712"), 1):
        folder = record(name, at=f"0{day}")
    said = run(folder, "--metric", "kernel").stdout
    assert re.search(r"^1 .*4711 ", said, re.MULTILINE) and re.search(r"^2 .*4712 ", said, re.MULTILINE)
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.long
def test_energy_and_throughput_are_followed(record, tmp_path):
    record("a", at="01", energies=(50_000, 50_500, 51_000))
    folder = record("b", at="02", energies=(90_000, 90_500, 91_000))
    energy = run(folder, "--metric", "energy")
    assert re.search(r"^2 .* b +9.05 J +\+79.2% ", energy.stdout, re.MULTILINE), energy.output
    assert changed(as_json(folder, "--metric", "energy")) == [2]
    throughput = as_json(folder, "--metric", "throughput")
    (of_steps,) = as_json(folder)["groups"][0]["lines"]
    (line,) = throughput["groups"][0]["lines"]
    assert [point["value"] for point in line["points"]] == [
        pytest.approx(1e9 * 4 * 128 / point["value"]) for point in of_steps["points"]
    ]
    page = tmp_path / "page.html"
    assert run(folder, "--metric", "energy", "--html", page).exit_code == 0
    assert "9.05 J" in page.read_text()


@pytest.mark.long
def test_energy_of_one_process_is_followed_without_a_band(record, tmp_path):
    record("a", at="01", energies=(50_000,))
    folder = record("b", at="02", energies=(90_000,))
    assert "not known" in run(folder, "--metric", "energy").stdout
    made = as_json(folder, "--metric", "energy")
    assert made["groups"][0]["lines"][0]["points"][1]["band"] is None
    page = tmp_path / "page.html"
    assert run(folder, "--metric", "energy", "--html", page).exit_code == 0 and "not known" in page.read_text()
    record("c", at="03")
    assert "energy is not recorded in all of these entries" in run(folder, "--metric", "energy").stdout


def test_names_that_are_the_same_once_cut_stand_above_their_rows():
    name = f"{'a' * 35}{{}}{'z' * 40}"
    _, *lines = history_forms._format_table([["run", "first"], *([name.format(n), "1.00 ms"] for n in "12")], "Lr")
    assert lines[::2] == [name.format(n) for n in "12"]
    assert [line.split() for line in lines[1::2]] == [["1.00", "ms"]] * 2
    _, *cut = history_forms._format_table([["run", "first"], *([f"{'a' * 90}{n}", "1.00 ms"] for n in "12")], "Lr")
    assert [line.endswith(f"a{n}  1.00 ms") and len(line) == 80 for n, line in zip("12", cut, strict=True)] == [
        True
    ] * 2


def capture_of(at: int, blocks: int = 100) -> Export:
    """A capture of two steps, whose one elementwise kernel has so many blocks."""
    made = Export()
    for step in range(2):
        start = 100_000 * (step + 1)
        made.push("step", start, start + 90_000)
        made.launch(start + 100, name="void at::native::vectorized_elementwise_kernel<4>(int)", blocks=blocks)
    return dated(made, at)


def test_each_entry_is_aligned_with_a_fixed_number_of_others(tmp_path, monkeypatch):
    calls = []
    plain = history.align
    monkeypatch.setattr(history, "align", lambda *sides: calls.append(sides) or plain(*sides))
    num = 20
    for at in range(num):
        capture_of(at + 1).sqlite(tmp_path / f"{at:02}.sqlite")
    made = as_json(tmp_path, "--metric", "busy")
    assert len(made["entries"]) == num
    assert len(calls) <= 2 * num


def test_captures_that_drift_apart_leave_the_group_of_the_first(tmp_path):
    for at, blocks in enumerate((100, 106, 112, 118)):
        capture_of(at + 1, blocks).sqlite(tmp_path / f"{at}.sqlite")
    made = as_json(tmp_path, "--metric", "busy")
    assert [[point["entry"] for point in group["lines"][0]["points"]] for group in made["groups"]] == [[1, 2], [3, 4]]


@pytest.mark.long
def test_many_small_captures_are_read_in_several_processes_with_the_same_answer(tmp_path, monkeypatch):
    for at in range(6):
        capture_of(at + 1).sqlite(tmp_path / f"{at}.sqlite")
    (tmp_path / "damaged.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    alone = run(tmp_path, "--metric", "busy", "--format", "json")
    monkeypatch.setattr(history, "MANY", 3)
    monkeypatch.setattr(history.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(history, "_measure_entry", None)  # here nothing is measured
    together = run(tmp_path, "--metric", "busy", "--format", "json")
    assert (together.output, together.exit_code) == (alone.output, alone.exit_code)
    assert len(json.loads(together.stdout)["entries"]) == 6


def test_small_captures_are_measured_together_with_the_same_answer(tmp_path, monkeypatch):
    """With and without steps and copies, and among some that cannot be read or have no kernel."""
    for at in range(3):
        capture_of(at + 1).sqlite(tmp_path / f"{at}.sqlite")
    bare = Export()
    bare.launch(100, name="gemm")
    bare.copy(400, 500, bare.call(300, 310))
    dated(bare, 9).sqlite(tmp_path / "bare.sqlite")
    dated(export([("forward", "gemm", 50), ("backward", "gemm", 50)]), 10).sqlite(tmp_path / "phases.sqlite")
    (tmp_path / "damaged.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    Export().sqlite(tmp_path / "empty.sqlite")
    calls = []
    plain = judge.sum_totals_by_case
    monkeypatch.setattr(judge, "sum_totals_by_case", lambda *given: calls.append(given) or plain(*given))
    together = run(tmp_path, "--metric", "step", "--format", "json")
    assert len(calls) == 1 and len(json.loads(together.stdout)["entries"]) == 5
    monkeypatch.setattr(history, "BATCH", 1)
    alone = run(tmp_path, "--metric", "step", "--format", "json")
    assert len(calls) == 6
    assert (together.output, together.exit_code) == (alone.output, alone.exit_code)


def test_captures_of_which_one_cannot_be_measured_are_measured_alone(tmp_path, monkeypatch):
    for at in range(3):
        capture_of(at + 1).sqlite(tmp_path / f"{at}.sqlite")
    whole = run(tmp_path, "--metric", "busy", "--format", "json")
    plain = judge.sum_totals_by_case

    def refuse_many(kernels, memops, steps, cases):
        if len(cases) > 1:
            raise ValueError("too many")
        return plain(kernels, memops, steps, cases)

    monkeypatch.setattr(judge, "sum_totals_by_case", refuse_many)
    assert run(tmp_path, "--metric", "busy", "--format", "json").output == whole.output


def test_a_module_has_its_part_of_fused_kernels():
    modules = ["GPT/h.0/(fused: norm 60% + qkv 30%)", "GPT/h.1/qkv", "GPT/head", "GPT/(fused: head 50% + h.1.norm 50%)"]
    kernels = pd.DataFrame({"phase": "forward", "module": modules, "family": "triton"})

    def find(**part):
        return history.KernelPart(**part).find_shares(kernels).tolist()

    assert find(module="GPT/h.*") == [1, 1, 0, 0.5]
    assert find(module="GPT/h.*/norm", phase="forward") == [0.6, 0, 0, 0.5]
    assert find(module="GPT/h.*/norm", phase="backward") == [0, 0, 0, 0] and find(family="triton") == [1, 1, 1, 1]
