"""Tables fit the terminal, and names in them stay different; a folder is a table of its captures; a page needs nothing
else."""

import gzip
import json
import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.answers.script_findings import COLUMNS as OF_SCRIPT
from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.short_names import shorten
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.show.index import COLUMNS
from profiler_job.analysis.show.page import render_page
from profiler_job.analysis.show.show_formats import as_text
from profiler_job.analysis.show.table_columns import DROPPED, NAMES
from profiler_job.analysis.show.tuned_forms import SHOWN
from tests.capture import profiles
from tests.packed import unpack

from .nsys_files import Export
from .pages import check_inert

DATA = Path(__file__).parents[1] / "data"
ROOT = DATA.parents[1]
WIDTHS = (80, 120, 200)
PACKED = [
    *sorted(DATA.glob("h200_scripts/*/*/profile.sqlite.*")),
    *sorted(DATA.glob("h200_runs/*/profile.sqlite.packed")),
    DATA / "graph_node.sqlite.gz",
]


@cache
def _summary(path: Path):
    return summarise(read(path, details=False), with_moments=True)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Function from a packed export to its summary."""
    folder = tmp_path_factory.mktemp("unpacked")

    def summary(path: Path):
        target = folder / f"{path.parent.name}.sqlite"
        if not target.exists():
            if path.suffix == ".gz":
                target.write_bytes(gzip.decompress(path.read_bytes()))
            else:
                unpack(path, target)
        return _summary(target)

    return summary


def _show(*arguments, columns=None):
    environment = {"COLUMNS": str(columns)} if columns else {"COLUMNS": ""}
    done = CliRunner().invoke(app, ["show", *map(str, arguments)], env=environment)
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def check_text(summary):
    """Of every width: no line is longer, and the names of a table are as many as they were."""
    for width in WIDTHS:
        lines = as_text(summary, 20, width).splitlines()
        assert max(map(cell_len, lines)) <= width
        for section, title in (("kernels", "Kernels"), ("ranges", "NVTX ranges")):
            names = summary.sections[section]["name"].head(20)
            at = lines.index(title) + 1 if len(names) else 0
            start = lines[at].find("name")
            printed = [line[start:] for line in lines[at + 1 : at + 1 + len(names)]] if len(names) else []
            assert len(set(printed)) == names.nunique(), (section, width)


# --------------------------------------------------------------------------------------------------- text and its width


@pytest.mark.parametrize("name", profiles.NAMES)
def test_the_top_names_of_a_real_export_are_distinct_in_every_width(name):
    check_text(_summary(profiles.profile(name)))


@pytest.mark.parametrize("path", PACKED, ids=lambda path: path.parent.name)
def test_the_top_names_of_a_packed_export_are_distinct_in_every_width(unpacked, path):
    check_text(unpacked(path))


@pytest.mark.parametrize("width", [16, 20, 30, 50, 72])
@pytest.mark.parametrize(
    "names",
    [
        [f"void {'very_' * 100}{ending}(int)" for ending in ("alpha", "omega")],
        [
            f"sm80_xmma_gemm_f32f32_{a}_n_tilesize{b}_stage3_ffma_cublas"
            for a in ("tn", "nt")
            for b in ("64x64", "64x128")
        ],
        [f"void at::native::elementwise_kernel<(int){a}, {b}>(int, T2)" for a in (1, 2) for b in ("float", "double")],
        ["x" * 400 + end for end in ("", "a", "b")],
        ["x" * 4000 + middle + "x" * 4000 for middle in ("", "a", "b")],
        ["(" * 90, "(" * 91, ")" * 90, ""],
        ["\N{CJK UNIFIED IDEOGRAPH-6F22}" * count for count in range(30, 90, 7)],
        [f"{'ab' * 30}{number}" for number in range(300)],
        ["at::native::x" * 9, "c10::native::x" * 9, "x" * 9],
    ],
    ids=lambda names: names[0][:12],
)
def test_names_that_differ_stay_different_and_fit(names, width):
    short = shorten(names, width)
    assert list(short) == names
    assert len(set(short.values())) == len(names)
    assert all(cell_len(text) <= width for text in short.values())
    assert all(short[name] == name for name in names if cell_len(name) <= width)


def test_what_tells_gemms_apart_is_what_is_kept():
    names = [
        f"sm80_xmma_gemm_f32f32_f32f32_f32_{layout}_n_tilesize{tile}_stage3_warpsize1x4x1_ffma_aligna4_alignc4_cublas"
        for layout, tile in (("tn", "64x64x8"), ("nt", "64x64x8"), ("nt", "64x128x8"))
    ]
    for name, text in shorten(names, 32).items():
        layout, tile = re.search(r"_([nt]{2})_n_tilesize([\dx]+)", name).groups()
        assert re.search(rf"\b{layout}\b.*tilesize{tile}", text.replace("_", " "))


def test_the_columns_that_go_are_those_of_sections_and_never_all_names():
    known = {**SECTIONS, "captures": COLUMNS, "script_waits": OF_SCRIPT} | {
        f"tuned_{table}": columns for table, columns in SHOWN.items()
    }
    assert all(set(columns) < set(known[section]) for section, columns in DROPPED.items())
    names = {section: set(known[section]) & set(NAMES) for section in DROPPED}
    assert all(names[section] - set(columns) for section, columns in DROPPED.items() if names[section])


def test_a_narrow_terminal_loses_columns_and_says_which():
    path = profiles.profile("train")
    narrow, wide, whole = (_show(path, columns=80), _show(path, columns=200), _show(path, "--top", 0, columns=80))
    heads = [re.search(r"^family +.*name$", done.stdout, re.MULTILINE)[0].split() for done in (narrow, wide, whole)]
    assert heads[0] == ["family", "calls", "total", "share", "mean", "name"]
    assert heads[1] == heads[2] == ["family", "rule", "calls", "total", "share", "mean", "min", "max", "name"]
    said = " ".join(narrow.stdout.split("Not in 80 columns (show --top 0 shows all): ")[1].split())
    assert "Kernels: rule, min, max; NVTX ranges: style, " in said
    assert "Not in" not in wide.stdout + whole.stdout


@pytest.mark.parametrize(("columns", "width"), [("", 120), ("80", 80), ("10", 60)])
def test_the_width_is_the_terminals_and_120_where_there_is_none(tmp_path, columns, width):
    export = Export()
    export.launch(5, name="word_" * 100)
    lines = _show(export.sqlite(tmp_path / "x.sqlite"), columns=columns).stdout.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert max(map(cell_len, lines)) > width * 0.8


def test_long_sentences_and_wide_characters_fit(tmp_path):
    export = Export()
    export.push("\N{CJK UNIFIED IDEOGRAPH-6F22}" * 200, 0, 100)
    export.launch(5, name="kernel")
    export.collected(-5)
    lines = _show(export.sqlite(tmp_path / ("long name " * 12 + ".sqlite")), columns=60).stdout.splitlines()
    assert max(map(cell_len, lines)) <= 60
    assert "how long nsys collected is unknown" in " ".join(" ".join(lines).split())


def test_the_mean_and_the_extremes_of_a_call(tmp_path):
    export = Export()
    for at, duration in ((100, 5), (200, 11), (300, 6)):
        export.launch(at, start=at + 10, end=at + 10 + duration, name="k")
    export.launch(400, name="other")
    (row, other) = json.loads(_show(export.sqlite(tmp_path / "x.sqlite"), "--format", "json").stdout)["kernels"]
    assert (row["mean_ns"], row["min_ns"], row["max_ns"]) == (22 / 3, 5, 11)
    assert (other["mean_ns"], other["min_ns"], other["max_ns"]) == (5, 5, 5)


# -------------------------------------------------------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path):
    """A folder with a capture of every kind, and one that cannot be read."""
    target = tmp_path / "runs"
    target.mkdir()
    for number, name in enumerate(("a b", "index", "c")):
        export = Export()
        export.push("forward", 0, 900)
        export.launch(10, name="void gemm<float>(int)", end=100 + number)
        export.sqlite(target / f"{name}.sqlite")
    export.parquetdir(target / "tables")
    (target / "broken.sqlite").write_text("no")
    (target / "notes.txt").write_text("no")
    (target / "empty").mkdir()
    return target


def test_a_folder_is_a_table_of_its_captures(folder):
    done = _show(folder)
    assert done.exit_code == 65
    (error,) = done.stderr.splitlines()
    assert "broken.sqlite: is not an SQLite file" in error
    head, *rows = done.stdout.splitlines()
    assert head.split("  ")[-1] == "source"
    assert [row.rsplit("  ", 1)[1] for row in rows] == ["a b.sqlite", "c.sqlite", "index.sqlite", "tables"]
    assert "compute 100.0%" in rows[0]
    table = _show(folder, "--format", "md").stdout.splitlines()
    assert len(table) == 6 and table[0].startswith("| source |")
    assert len(json.loads(_show(folder, "--format", "json").stdout)) == 4
    assert "NVTX ranges" in _show(folder, "--section", "ranges").stdout
    assert _show(folder, "--report", "cuda_gpu_kern_sum").stdout.count("# cuda_gpu_kern_sum of ") == 4


def test_of_a_report_and_its_export_one_is_read(folder):
    report = folder / "c.nsys-rep"
    report.write_bytes(b"")
    os.utime(report, (0, 0))
    assert "c.nsys-rep" not in _show(folder).stderr
    os.utime(report, (2**33, 2**33))
    assert "c.nsys-rep: is empty" in _show(folder).stderr
    assert "c.sqlite" not in _show(folder).stdout


def test_a_folder_without_captures_is_one_clear_line(tmp_path):
    done = _show(tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is a folder without .parquet files" in done.stderr


# ---------------------------------------------------------------------------------------------------------------- pages


def test_a_folder_becomes_a_folder_of_pages(folder, tmp_path):
    done = _show(folder, "--html", tmp_path / "out")
    assert done.exit_code == 65 and "broken.sqlite" in done.stderr
    pages = {path.name: check_inert(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(pages) == {"index.html", "a_b.html", "index-2.html", "c.html", "tables.html"}
    links = [value for name, value in pages["index.html"].attributes if name == "href"]
    assert sorted(links) == sorted(set(pages) - {"index.html"})
    assert all(("href", "index.html") in page.attributes for name, page in pages.items() if name != "index.html")


def test_one_page_has_all_that_the_text_has():
    path = profiles.profile("train")
    summary = _summary(path)
    page = check_inert(render_page(summary, top=20))
    words = " ".join(page.text.split())
    assert words.index("GPU 0: limited by the CPU") < words.index("100 ms of events")
    for title in ("GPU busy over time", "Kernel time by phase", "Kernel time by family", "NVTX ranges", "Kernels"):
        assert title in words
    assert "32 more rows" in words
    for name in summary.sections["kernels"]["name"]:
        assert name in page.text
    assert page.tags.count("details") > page.tags.count("h2") - 4
    assert "http" not in render_page(summary).replace('http-equiv="Content', "")


def test_a_page_says_what_was_chosen(folder, tmp_path):
    out = tmp_path / "new" / "x.html"
    assert _show(folder / "c.sqlite", "--range", "forward", "--html", out).exit_code == 0
    assert "only: range forward" in check_inert(out.read_text()).text
    assert _show(folder / "c.sqlite", "--section", "kernels", "--html", out).exit_code == 0
    assert "NVTX ranges" not in check_inert(out.read_text()).text


def test_a_page_that_cannot_be_written_is_one_clear_line(folder, tmp_path):
    (tmp_path / "file").write_text("")
    done = _show(folder / "c.sqlite", "--html", tmp_path / "file" / "x.html")
    assert (done.exit_code, done.stdout) == (74, "")
    assert len(done.stderr.splitlines()) == 1
    done = _show(folder / "c.sqlite", "--html", tmp_path / "x.html", "--format", "json")
    assert done.exit_code == 2 and "--html writes pages" in done.stderr


def test_a_page_of_a_very_long_table_stays_small(tmp_path):
    export = Export()
    for number in range(1_200):
        export.push(f"range {number}", 10 * number, 10 * number + 5)
    path = export.sqlite(tmp_path / "x.sqlite")
    _show(path, "--html", tmp_path / "x.html")
    page = check_inert((tmp_path / "x.html").read_text())
    assert "and 200 more: `--format csv --section ranges` has all of them" in page.text
    _show(path, "--html", tmp_path / "x.html", "--top", 0)
    assert "range 1199" in check_inert((tmp_path / "x.html").read_text()).text


def test_a_capture_without_anything_on_a_gpu_has_a_page(tmp_path):
    export = Export()
    export.push("only a range", 0, 100)
    _show(export.sqlite(tmp_path / "x.sqlite"), "--html", tmp_path / "x.html")
    page = check_inert((tmp_path / "x.html").read_text())
    assert "only a range" in page.text and "svg" not in page.tags


def test_the_colours_of_families_and_of_icicles_are_the_sites():
    ours, sites = ((ROOT / path).read_text() for path in ("analysis/render/document.css", "site/assets/report.css"))
    colours = [sorted(re.findall(r"--(?:family|ici|on-ici)-\w+: #\w+", text)) for text in (ours, sites)]
    assert colours[0] == colours[1] and any("--ici" in colour for colour in colours[0])
    assert {name for name in re.findall(r"--family-(\w+):", ours)} == set(FAMILIES)


def test_busy_shares_are_those_of_the_union():
    start, end = np.array([0, 5, 20, 21, 40]), np.array([10, 12, 30, 22, 40])
    edges = np.array([0.0, 8, 12, 20, 25, 50])
    assert intervals.measure_busy_shares(start, end, edges).tolist() == [1, 1, 0, 1, 0.2]
    rng = np.random.default_rng(5)
    start = rng.integers(0, 1000, 200)
    end = start + rng.integers(0, 30, 200)
    plain = np.zeros(1100, bool)
    for low, high in zip(start, end):
        plain[low:high] = True
    shares = intervals.measure_busy_shares(start, end, np.arange(0, 1101, 11.0))
    assert shares == pytest.approx(plain.reshape(100, 11).mean(axis=1))


def test_times_of_the_host_that_are_sums_over_processes_say_so(tmp_path):
    export = Export()
    for process, end in ((1, 500), (2, 800)):
        export.push("forward", 0, end, process=process)
        export.launch(100, process=process)
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite"), details=False))
    phases, ranges = summary.sections["phases"], summary.sections["ranges"]
    assert (phases["host_ns"].tolist(), ranges["host_ns"].tolist()) == ([800], [1300])
    assert as_text(summary, 20, 120).count("Times on the host are sums over 2 processes") == 2, "of ranges and of calls"


def test_times_of_the_host_of_one_process_are_no_sums(tmp_path):
    export = Export()
    export.push("forward", 0, 500)
    export.launch(100)
    assert "Times on the host" not in as_text(summarise(read(export.sqlite(tmp_path / "x.sqlite"))), 20, 120)
