"""What is kept of a capture saves reading it, and never shows anything else than reading would."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.capture import capture_cache, nsys_export
from profiler_job.analysis.capture.capture_cache import FOLDER, OFF
from profiler_job.analysis.recording.scan import scan_public

from .nsys_files import Export


@pytest.fixture(autouse=True)
def caching(monkeypatch):
    """Small captures are kept, too, and captures of a moment ago count as settled unless a test says otherwise."""
    monkeypatch.delenv(OFF, raising=False)
    monkeypatch.setattr(capture_cache, "LEAST_BYTES", 0)
    monkeypatch.setattr(capture_cache, "SETTLED_S", 0)


@pytest.fixture
def reads(monkeypatch):
    """The captures that were read."""
    found = []
    original = nsys_export.read

    def read(path, **options):
        found.append(str(path))
        return original(path, **options)

    monkeypatch.setattr(nsys_export, "read", read)
    return found


def _make(path, kernel_ns=5):
    export = Export()
    export.gpu()
    for step in range(3):
        export.push("step", step * 1000, step * 1000 + 900)
        export.push("forward", step * 1000 + 10, step * 1000 + 400)
        export.push("backward", step * 1000 + 500, step * 1000 + 880)
        export.kernel(step * 1000 + 60, step * 1000 + 60 + kernel_ns, export.call(step * 1000 + 50, step * 1000 + 55))
        export.launch(step * 1000 + 600, name="void add<float>(int)", thread=2)
        export.copy(step * 1000 + 700, step * 1000 + 710, export.call(step * 1000 + 650, step * 1000 + 655))
        export.sync(step * 1000 + 800, step * 1000 + 810, export.call(step * 1000 + 790, step * 1000 + 810))
    export.collected(5000)
    return export.sqlite(path) if path.suffix else export.parquetdir(path)


@pytest.fixture(params=["a.sqlite", "a"])
def capture(request, tmp_path):
    return _make(tmp_path / request.param)


def _run(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def _entries(capture, ending="parquet"):
    """What is kept next to a capture: its tables; or with another ending, what was printed of it."""
    folder = capture.parent / FOLDER
    return sorted(folder.glob(f"*.{ending}")) if folder.is_dir() else []


SHOWN = [(), ("--format", "json"), ("--format", "csv"), ("--format", "md"), ("--top", "0"), ("--range", "forward")]


@pytest.mark.parametrize("options", SHOWN, ids=" ".join)
def test_a_second_show_prints_the_same_and_reads_nothing(capture, reads, options):
    first = _run("show", capture, *options)
    assert len(reads) == 1 and _entries(capture)
    assert _run("show", capture, *options) == first == _run("show", capture, *options, "--no-cache")
    assert len(reads) == 2  # the first and the one of --no-cache


def test_forms_of_printing_share_what_is_kept(capture, reads):
    for options in SHOWN[:5]:
        _run("show", capture, *options)
    assert len(reads) == 1 and len(_entries(capture)) == 1


def test_a_page_is_the_same_from_what_was_kept(capture, reads, tmp_path):
    pages = [tmp_path / f"{number}.html" for number in range(2)]
    for page in pages:
        _run("show", capture, "--html", page)
    assert len(reads) == 1 and pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize("form", ["text", "json", "md"])
def test_compare_prints_the_same_from_what_was_kept(tmp_path, reads, form):
    pair = _make(tmp_path / "a.sqlite"), _make(tmp_path / "b.sqlite", kernel_ns=90)
    first = _run("compare", *pair, "--format", form)
    assert len(reads) == 2
    assert _run("compare", *pair, "--format", form) == first
    assert len(reads) == 2
    assert _run("compare", *pair, "--format", form, "--no-cache") == first
    assert _run("compare", *pair, "--skip", "1") != _run("compare", *pair)
    assert len(reads) == 6


def test_history_prints_the_same_and_shares_what_compare_kept(tmp_path, reads):
    pair = _make(tmp_path / "a.sqlite"), _make(tmp_path / "b.sqlite", kernel_ns=90)
    whole = _run("history", tmp_path, "--no-cache")
    _run("compare", *pair)
    assert len(reads) == 4
    assert _run("history", tmp_path) == whole == _run("history", tmp_path)
    assert len(reads) == 4
    _run("history", tmp_path, "--metric", "kernel", "--part", "phase=forward")  # counts kernels again
    assert len(reads) == 6


def test_a_changed_capture_is_read_even_if_its_size_and_its_time_are_the_same(tmp_path, reads):
    capture = _make(tmp_path / "a.sqlite")
    before = capture.stat()
    first = _run("show", capture, "--format", "json")
    with closing(sqlite3.connect(capture)) as connection:
        connection.execute('UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = "end" + 7')
        connection.commit()
    os.utime(capture, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert capture.stat().st_size == before.st_size and capture.stat().st_mtime_ns == before.st_mtime_ns
    assert _run("show", capture, "--format", "json") != first
    assert len(reads) == 2


def test_a_change_that_no_clock_shows_is_found_by_the_hash(tmp_path, reads, monkeypatch):
    """As on a file system with times of whole seconds: all of a capture that is new is hashed."""
    monkeypatch.setattr(capture_cache, "SETTLED_S", 60)
    monkeypatch.setattr(capture_cache, "_ALL_BYTES", 0)
    monkeypatch.setattr(capture_cache, "_SAMPLE_BYTES", 1)
    capture = _make(tmp_path / "a.sqlite")
    state = capture_cache._read_state(capture)
    monkeypatch.setattr(capture_cache, "_read_state", lambda file: state)
    _run("show", capture)
    with closing(sqlite3.connect(capture)) as connection:
        connection.execute('UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = "end" + 7')
        connection.commit()
    _run("show", capture)
    assert len(reads) == 2


@pytest.mark.parametrize("change", ["program", "rules", "phase", "copied"])
def test_what_changes_the_result_is_no_match(tmp_path, reads, monkeypatch, change):
    capture, rules = _make(tmp_path / "a.sqlite"), tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "x"\nfamily = "gemm"\npattern = "gemm"\n')
    options = ["--rules", rules] if change == "rules" else []
    _run("show", capture, *options)
    match change:
        case "program":
            monkeypatch.setattr(capture_cache, "_hash_program", lambda: "another")
        case "rules":
            rules.write_text('[[rule]]\nname = "x"\nfamily = "copy"\npattern = "gemm"\n')
        case "phase":
            options = ["--phase", "optimizer=backward"]
        case "copied":  # an entry that somebody sent with a capture is not trusted
            shutil.copytree(tmp_path / FOLDER, tmp_path / "other" / FOLDER)
            capture = tmp_path / "other" / capture.name
            shutil.copy2(tmp_path / capture.name, capture)
            os.chmod(capture.parent / FOLDER, 0o700)
    assert _run("show", capture, *options) == _run("show", capture, *options, "--no-cache")
    assert len(reads) == 3


@pytest.mark.parametrize("command", ["show", "compare"])
def test_what_is_printed_of_a_link_has_the_name_of_the_link(tmp_path, command):
    captures = [_make(tmp_path / "a.sqlite"), _make(tmp_path / "b.sqlite")]
    links = [tmp_path / "links" / f"{capture.stem}-link.sqlite" for capture in captures]
    links[0].parent.mkdir()
    for link, capture in zip(links, captures):
        link.symlink_to(capture)
    _run(command, *captures)
    printed = _run(command, *links)
    assert "a.sqlite" not in printed and printed == _run(command, *links, "--no-cache")


def _flip(content, place):
    return content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "text": lambda content: b"not a table",
    "head": partial(_flip, place=9),
    "middle": lambda content: _flip(content, len(content) // 2),
    "footer": lambda content: _flip(content, len(content) - 40),
    "longer": lambda content: content + b"x" * capture_cache.MOST_ENTRY_BYTES,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_ignored_and_written_anew(tmp_path, reads, damage):
    capture = _make(tmp_path / "a.sqlite")
    first = _run("show", capture)
    kept = [*_entries(capture), *_entries(capture, "json")]
    assert len(kept) == 2
    for entry in kept:
        entry.write_bytes(DAMAGE[damage](entry.read_bytes()))
    assert _run("show", capture) == first
    assert len(reads) == 2
    assert _run("show", capture) == first
    assert len(reads) == 2 and len(_entries(capture)) == len(_entries(capture, "json")) == 1


def test_an_entry_that_is_a_folder_is_no_error(tmp_path):
    capture = _make(tmp_path / "a.sqlite")
    first = _run("show", capture)
    for entry in (*_entries(capture), *_entries(capture, "json")):
        entry.unlink()
        entry.mkdir()
    assert _run("show", capture) == first


@pytest.mark.parametrize("place", ["link", "file", "open to others"])
def test_a_folder_that_is_not_ones_own_is_left_alone(tmp_path, reads, place):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    capture = _make(tmp_path / "a.sqlite")
    folder = tmp_path / FOLDER
    match place:
        case "link":
            folder.symlink_to(elsewhere)
        case "file":
            folder.write_text("mine")
        case "open to others":
            folder.mkdir()
            folder.chmod(0o777)
    assert _run("show", capture) == _run("show", capture)
    assert len(reads) == 2 and not any(elsewhere.iterdir())
    assert place != "file" or folder.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, reads, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    capture = _make(tmp_path / "a.sqlite")
    monkeypatch.setattr(capture_cache.Path, "mkdir", refuse)
    assert _run("show", capture) == _run("show", capture)
    assert len(reads) == 2 and not (tmp_path / FOLDER).exists()


def test_a_full_disk_leaves_no_draft(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    capture = _make(tmp_path / "a.sqlite")
    monkeypatch.setattr(capture_cache.os, "replace", refuse)
    _run("show", capture)
    assert [file.name for file in (tmp_path / FOLDER).iterdir()] == [".gitignore"]


def test_nothing_is_kept_of_a_small_capture_or_if_it_is_switched_off(tmp_path, monkeypatch):
    capture = _make(tmp_path / "a.sqlite")
    _run("show", capture, "--no-cache")
    monkeypatch.setenv(OFF, "1")
    _run("show", capture)
    monkeypatch.delenv(OFF)
    monkeypatch.setattr(capture_cache, "LEAST_BYTES", 4 << 20)
    _run("show", capture)
    assert not (tmp_path / FOLDER).exists()


def test_the_oldest_entries_go(tmp_path, monkeypatch):
    captures = [_make(tmp_path / f"{name}.sqlite") for name in "abc"]
    for age, capture in enumerate(reversed(captures)):
        _run("show", capture)
        entry = next(file for file in _entries(capture) if file.name.startswith(capture.name))
        os.utime(entry, (time.time() - 100 + age,) * 2)
    size = max(entry.stat().st_size for entry in _entries(captures[0]))
    monkeypatch.setattr(capture_cache, "MOST_BYTES", 2 * size + size // 2)
    _run("show", captures[0], "--section", "kernels")
    names = {entry.name.split(".")[0] for entry in _entries(captures[0])}
    assert names == {"a"}


def test_what_is_kept_is_no_capture_and_is_not_published(tmp_path, reads):
    _make(tmp_path / "a.sqlite")
    listed = _run("show", tmp_path)
    assert _run("show", tmp_path) == listed
    assert len(reads) == 1
    assert (tmp_path / FOLDER / ".gitignore").read_text() == "*\n"
    assert oct((tmp_path / FOLDER).stat().st_mode & 0o777) == "0o700"
    assert any(finding.where == FOLDER for finding in scan_public(tmp_path))


@pytest.mark.long
def test_two_processes_at_once_print_the_same(tmp_path):
    capture = _make(tmp_path / "a.sqlite")
    command = "import sys\nfrom profiler_job.analysis.capture import capture_cache\ncapture_cache.LEAST_BYTES = 0\n"
    command += "from profiler_job.__main__ import app\nsys.argv = ['profiler-job', 'show', sys.argv[1]]\napp()"
    begun = [subprocess.Popen([sys.executable, "-c", command, capture], stdout=subprocess.PIPE) for _ in range(3)]
    printed = {process.communicate()[0] for process in begun}
    assert len(printed) == 1 and all(process.returncode == 0 for process in begun)
    assert len(_entries(capture)) >= 1


COMMANDS = {"show": ["a.sqlite"], "compare": ["a.sqlite", "b.sqlite"], "history": ["."]}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_time_neither_reads_nor_imports_what_reads(tmp_path, command):
    _make(tmp_path / "a.sqlite"), _make(tmp_path / "b.sqlite", kernel_ns=90)
    code = "import atexit, sys\nfrom profiler_job.analysis.capture import capture_cache\n"
    code += "capture_cache.LEAST_BYTES = capture_cache.SETTLED_S = 0\n"
    code += "names = {'numpy', 'pandas', 'pyarrow', 'sqlite3'}\n"
    code += "atexit.register(lambda: print(sorted(names & sys.modules.keys()), file=sys.stderr))\n"
    code += "from profiler_job.__main__ import app\napp(sys.argv[1:], prog_name='profiler-job')"
    call = [sys.executable, "-c", code, command, *COMMANDS[command]]
    done = [subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True) for _ in range(2)]
    assert done[0].stdout == done[1].stdout != ""
    assert [one.stderr.strip() for one in done] == ["['numpy', 'pandas', 'pyarrow', 'sqlite3']", "[]"]


def test_what_was_printed_of_two_captures_counts_until_one_changes(tmp_path, reads):
    pair = _make(tmp_path / "a.sqlite"), _make(tmp_path / "b.sqlite", kernel_ns=90)
    first = _run("compare", *pair)
    pair[1].unlink()
    _make(pair[1], kernel_ns=70)
    assert _run("compare", *pair) != first and len(reads) == 3
    assert _run("compare", *reversed(pair)) != _run("compare", *pair)


@pytest.mark.parametrize("command", ["show", "history"])
def test_what_was_printed_of_a_folder_counts_until_a_file_comes_or_goes(tmp_path, command):
    _make(tmp_path / "a.sqlite"), _make(tmp_path / "b.sqlite", kernel_ns=90)
    printed = [_run(command, tmp_path)]
    third = _make(tmp_path / "c.sqlite", kernel_ns=70)
    printed.append(_run(command, tmp_path))
    third.unlink()
    printed.append(_run(command, tmp_path))
    assert _run(command, tmp_path) == printed[0] == printed[2] != printed[1]
    assert len(_entries(third, "json")) == 2  # of the folder with and without the third capture


def test_another_terminal_is_no_match(tmp_path, monkeypatch):
    capture = _make(tmp_path / "a.sqlite")
    printed = []
    for columns in ("70", "200", "70"):
        monkeypatch.setenv("COLUMNS", columns)
        printed.append(_run("show", capture))
    assert printed[0] == printed[2] != printed[1]


def test_nothing_that_was_printed_with_an_error_is_kept(tmp_path):
    capture = _make(tmp_path / "a.sqlite")
    (tmp_path / "damaged.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    done = [CliRunner().invoke(app, ["history", str(tmp_path)]) for _ in range(2)]
    assert done[0].output == done[1].output and done[0].exit_code == done[1].exit_code == 65
    assert not _entries(capture, "json")
