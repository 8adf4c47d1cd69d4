"""No command replaces what it did not write itself, and what it writes appears as a whole."""

import ast
import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import merge as merging
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import data_readme, front_matter, write_site
from profiler_job.jobs.contract import integrity, outputs
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import MERGED
from profiler_job.jobs.contract.outputs import TargetError, is_merged, is_recording, replace_folder
from profiler_job.jobs.executor import install_nsys
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.sweep.plan import load_sweep
from tests.capture.nsys_files import Export
from tests.recording.test_verify import write_results
from tests.synthetic import recording as made_up

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "tests" / "data" / "recordings" / "attention"
FOREIGN = "print('worth more than a page')\n"


def run(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def list_drafts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


@pytest.fixture
def capture(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    export = Export()
    for number in range(1, 4):
        export.push("step", 1000 * number, 1000 * number + 900)
        export.launch(1000 * number + 100, name="gemm")
    return export.sqlite(tmp_path / "in" / "profile.sqlite")


def write_page(command: str, capture: Path, target: Path, *more: str):
    where = capture.parent if command == "history" else capture
    return run(command, where, *(("--metric", "busy") if command == "history" else ()), "--html", target, *more)


@pytest.fixture(params=["show", "history"])
def command(request) -> str:
    return request.param


def test_a_page_never_replaces_the_capture_it_is_about(command, capture):
    before = capture.read_bytes()
    done = write_page(command, capture, capture)
    assert (done.exit_code, capture.read_bytes()) == (ExitCode.USAGE, before)
    assert str(capture) in done.output.replace("\n", "")


@pytest.mark.parametrize(
    "content", [FOREIGN, "<!doctype html>\n<title>somebody's</title>\n", "<footer>Made by profiler-job"]
)
def test_a_page_replaces_no_file_but_a_page(command, capture, tmp_path, content):
    target = tmp_path / "train.py"
    target.write_text(content)
    done = write_page(command, capture, target)
    assert (done.exit_code, target.read_text()) == (ExitCode.USAGE, content)
    assert write_page(command, capture, target, "--force").exit_code == 0
    assert outputs.is_page(target)
    assert write_page(command, capture, target).exit_code == 0
    assert not list_drafts(tmp_path)


def test_an_empty_file_may_become_a_page(command, capture, tmp_path):
    (tmp_path / "new.html").touch()
    assert write_page(command, capture, tmp_path / "new.html").exit_code == 0


def test_the_target_of_a_link_is_judged_and_the_link_stays(command, capture, tmp_path):
    target, link = tmp_path / "train.py", tmp_path / "page.html"
    target.write_text(FOREIGN)
    link.symlink_to(target)
    done = write_page(command, capture, link)
    assert (done.exit_code, target.read_text()) == (ExitCode.USAGE, FOREIGN)
    target.unlink()
    assert write_page(command, capture, link).exit_code == 0
    assert link.is_symlink()
    assert outputs.is_page(target)


def test_a_folder_of_pages_replaces_nothing_unless_all_may_be_replaced(capture, tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    for name in ("index.html", "profile.html"):
        (folder / name).write_text(FOREIGN)
        done = run("show", capture.parent, "--html", folder)
        assert (done.exit_code, [path.name for path in folder.iterdir()]) == (ExitCode.USAGE, [name])
        assert (folder / name).read_text() == FOREIGN
        (folder / name).unlink()
    for _ in range(2):
        assert run("show", capture.parent, "--html", folder).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "profile.html"]


def test_a_page_may_go_to_standard_output(capture, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("show", capture, "--html", pipe).exit_code == 0
        assert os.read(reader, 15) == b"<!doctype html>"
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    finally:
        os.close(reader)


def test_force_without_a_page_is_refused(command, capture):
    assert run(command, capture, "--force").exit_code == ExitCode.USAGE


def test_a_page_that_cannot_be_written_leaves_the_old_one(capture, tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    assert run("show", capture, "--html", target).exit_code == 0
    before = target.read_bytes()

    def fail(draft, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(os, "replace", fail)
    done = run("show", capture, "--html", target)
    assert (done.exit_code, target.read_bytes()) == (ExitCode.CANNOT_WRITE, before)
    assert not list_drafts(tmp_path)


def test_a_page_keeps_the_permissions_of_the_old_one(capture, tmp_path):
    target = tmp_path / "page.html"
    for mode in (0o600, 0o664):
        assert run("show", capture, "--html", target).exit_code == 0
        target.chmod(mode)
        assert run("show", capture, "--html", target).exit_code == 0
        assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_file_that_appears_meanwhile_stays(tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    monkeypatch.setattr(outputs.integrity, "create", lambda path: target.write_text(FOREIGN) and integrity_create(path))
    with pytest.raises(TargetError):
        outputs.write_file(target, "new", outputs.is_page)
    assert target.read_text() == FOREIGN


integrity_create = integrity.create


@pytest.mark.parametrize("is_file", [True, False])
def test_a_recording_replaces_recordings_alone(tmp_path, is_file):
    target = tmp_path / "recording"
    if is_file:
        target.write_text(FOREIGN)
    else:
        target.mkdir()
        (target / "runs.parquet").write_text(FOREIGN)
    recording = made_up()
    tables = {name: getattr(recording, name) for name in store.TABLES}
    tables["kernels"] = tables["kernels"].drop(columns="family")
    with pytest.raises(TargetError):
        store.write(target, tables, recording.manifest)
    assert (target if is_file else target / "runs.parquet").read_text() == FOREIGN
    assert not list_drafts(tmp_path)


@pytest.mark.parametrize(
    ("is_own", "own", "others"),
    [
        (is_recording, {}, {"manifest.json": '{"manifest_version": 3}'}),
        (is_recording, {"manifest.json": '{"tables": {}}', "runs.parquet": ""}, {"notes.md": FOREIGN}),
        (is_recording, {"manifest.json": '{"tables"', "runs.parquet": ""}, {"mine.parquet/x": FOREIGN}),
        (is_merged, {}, {"merged.json": "[1]"}),
        (is_merged, {"merged.json": '{"shards": []}', "run-1/run.json": "{}"}, {"notes.md": FOREIGN}),
        (is_merged, {"merged.json": '{"shards": []}', "answers/index.md": ""}, {"mine/x": FOREIGN}),
    ],
)
def test_a_folder_of_a_known_name_with_anything_else_is_not_ones_own(tmp_path, is_own, own, others):
    """Programs of others call a file manifest.json or merged.json, too."""
    for files, is_replaced in ((own, True), (others, False)):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        assert not files or is_own(tmp_path) == is_replaced


@pytest.mark.parametrize("name", ["index.md", "report/mine.md"])
def test_pages_of_somebody_else_stay(tmp_path, name):
    (tmp_path / "docs" / "report").mkdir(parents=True)
    (tmp_path / "docs" / name).write_text("# Mine\n")
    done = run("site", "--pages-only", "--docs", tmp_path / "docs", "--recording", tmp_path / "none")
    assert (done.exit_code, (tmp_path / "docs" / name).read_text()) == (ExitCode.USAGE, "# Mine\n")


def test_pages_into_a_file_are_refused_before_they_are_made(tmp_path):
    (tmp_path / "train.py").write_text(FOREIGN)
    with pytest.raises(TargetError, match="a file"):
        write_site.publish([tmp_path / "none"], tmp_path / "train.py")
    assert (tmp_path / "train.py").read_text() == FOREIGN


def test_generated_pages_are_known_again(tmp_path):
    front = front_matter.complete({"title": "Overview"}, "Overview", "", {"name": "h200", "date": "2026-11-21"})
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "page.md").touch()
    (tmp_path / "index.md").write_text(front_matter.join(front, "# Overview\n"))
    write_site.check_docs(tmp_path)
    (tmp_path / "index.md").write_text("# Mine\n\nrecording: {\n")
    with pytest.raises(TargetError):
        write_site.check_docs(tmp_path)


def test_the_site_of_another_project_stays(tmp_path):
    index = tmp_path / "site" / "index.html"
    index.parent.mkdir()
    index.write_text("<title>profiler-job is great</title>")
    done = run("site", "--results", tmp_path, "--recording", tmp_path)
    assert (done.exit_code, index.read_text()[:7]) == (ExitCode.USAGE, "<title>")


def test_a_built_site_is_known_again(tmp_path):
    (tmp_path / "index.html").write_bytes(b"<head>" + outputs.SITE_MARK + b"</head>")
    assert outputs.is_site(tmp_path)
    theme = (ROOT / "analysis" / "site" / "theme" / "main.html").read_text()
    assert outputs.SITE_MARK.decode().replace('"profiler-job"', '"{{ config.site_name }}"') in theme
    assert (ROOT / "mkdocs.yml").read_text().startswith("site_name: profiler-job\n")


@pytest.mark.parametrize("place", ["site", "recordings/train"])
def test_profile_refuses_before_it_measures(tmp_path, place):
    precious = tmp_path / place / "precious.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text(FOREIGN)
    done = run("profile", "--results", tmp_path, "--", "python", "train.py")
    assert (done.exit_code, precious.read_text()) == (ExitCode.USAGE, FOREIGN)


def test_what_was_tuned_replaces_nothing_else(tmp_path):
    file = tmp_path / "train-tune" / "tune.json"
    file.parent.mkdir()
    file.write_text('["precious"]')
    done = run("tune", "--changes", "tf32", "--results", tmp_path, "--", "python", "train.py")
    assert (done.exit_code, file.read_text()) == (ExitCode.USAGE, '["precious"]')


def test_a_plan_replaces_plans_alone(tmp_path, tiny):
    sweep = load_sweep(tiny())
    results = Results(tmp_path / "results", sweep.name)
    results.folder.mkdir(parents=True)
    file = results.folder / "sweep.json"
    file.write_text('{"sweep": "of somebody"}')
    with pytest.raises(TargetError):
        results.save_sweep(sweep, sweep.runs)
    assert json.loads(file.read_text()) == {"sweep": "of somebody"}
    file.unlink()
    for _ in range(2):
        results.save_sweep(sweep, sweep.runs)


def test_nsys_is_installed_into_no_folder_of_something_else(tmp_path):
    (tmp_path / "tools").mkdir()
    precious = tmp_path / "tools" / "precious"
    precious.write_text(FOREIGN)
    done = run("install-nsys", "--to", tmp_path / "tools")
    assert (done.exit_code, precious.read_text()) == (ExitCode.USAGE, FOREIGN)
    start = tmp_path / "nsys" / "bin" / "nsys"
    start.parent.mkdir(parents=True)
    start.write_text(install_nsys.START)
    assert install_nsys.is_installed(tmp_path / "nsys")


def test_a_readme_of_somebody_else_stays(tmp_path):
    (tmp_path / "README.md").write_text(FOREIGN)
    done = run("publish-data", tmp_path / "none", "h200", "--data", tmp_path, "--yes")
    assert (done.exit_code, (tmp_path / "README.md").read_text()) == (ExitCode.USAGE, FOREIGN)
    (tmp_path / "README.md").unlink()
    for _ in range(2):
        data_readme.write_readme(tmp_path)


def test_names_in_the_readme_of_recordings_are_text(tmp_path):
    rec = made_up(("small",), (128,))
    hostile = rec.manifest | {"gpu": "<img src=x>|\x1b[31m[a](b)", "sweep": "my_sweep-2"}
    store.write(tmp_path / "main" / "x", {name: getattr(rec, name) for name in store.TABLES}, hostile)
    text = data_readme.describe_recordings(tmp_path)
    assert not any(part in text for part in ("<img", "\x1b", "[a](b)")) and "| my_sweep-2 |" in text


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """Results of a sweep."""
    return write_results(tmp_path_factory.mktemp("measured")).folder


WRITING_MODULES = {
    "jobs/contract/outputs.py",
    "jobs/contract/integrity.py",
    "jobs/contract/excerpt.py",
    # Inside folders that a job made, or a draft:
    *("analysis/answers/write_answers.py", "analysis/capture/capture_cache.py", "analysis/capture/cached_tables.py"),
    *("jobs/cli/follow_up.py", "jobs/executor/result_store.py", "jobs/executor/script.py"),
    *("jobs/executor/script_streams.py", "jobs/executor/script_traces.py", "jobs/executor/tuned_script.py"),
    *("jobs/executor/gated_processes.py", "jobs/executor/script_requests.py", "jobs/follow/program_requests.py"),
    *("jobs/follow/follow.py", "jobs/follow/turns.py", "jobs/executor/larger_micro_batches.py"),
    "jobs/follow/scratch_files.py",
    *("jobs/follow/trace_ranges.py", "analysis/recording/run_table.py"),
    *(
        "jobs/executor/collectors.py",
        "jobs/executor/nsys_cli.py",
        "jobs/executor/worker_process.py",
        "jobs/executor/temporary.py",
        "analysis/recording/allowed.py",
    ),
    *("jobs/follow/script_ranks.py", "analysis/recording/merge.py", "analysis/recording/merge_nodes.py"),
    "analysis/site/build_html.py",  # a temporary folder
    *("analysis/recording/store.py", "analysis/site/site_writer.py", "analysis/site/write_site.py"),
    "jobs/executor/install_nsys.py",  # needs nothing of this program
    "jobs/cli/output.py",  # the null device
    "analysis/capture/export_files.py",  # a temporary folder
    "analysis/render/card.py",
}
"""Modules that write files on their own."""


def test_all_others_write_through_the_module_that_judges():
    for side in ("jobs", "analysis"):
        for file in (ROOT / side).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            if name not in WRITING_MODULES:
                assert not list(find_writes(file)), name


def find_writes(file: Path):
    """Yield the calls in a module that write, rename or create a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [
            each.value for each in [*node.args, *(key.value for key in node.keywords)] if isinstance(each, ast.Constant)
        ]
        if called in ("write_text", "write_bytes", "to_parquet", "copyfile", "copytree", "write_table"):
            yield node
        if called == "open" and any(isinstance(mode, str) and mode.strip("b+t") in ("w", "a", "x") for mode in modes):
            yield node
        if ast.unparse(node.func) in ("os.replace", "os.rename", "shutil.move", "integrity.replace"):
            yield node


@pytest.mark.parametrize("is_there", [True, False], ids=["to a folder", "to nothing"])
def test_a_link_to_a_folder_stays_and_the_folder_is_replaced(tmp_path, is_there):
    target, link, draft = tmp_path / "disk" / "results", tmp_path / "link", tmp_path / "draft"
    target.parent.mkdir()
    if is_there:
        target.mkdir()
    link.symlink_to(target)
    for content in ('{"shards": ["first"]}', '{"shards": ["second"]}'):
        draft.mkdir()
        (draft / MERGED).write_text(content)
        replace_folder(draft, link, is_merged)
        assert link.is_symlink() and (target / MERGED).read_text() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    assert [path.name for path in target.parent.iterdir()] == ["results"]


def test_a_draft_on_another_disk_is_copied_next_to_its_target(tmp_path, monkeypatch):
    target, draft = tmp_path / "target", tmp_path / "draft"
    draft.mkdir()
    (draft / MERGED).touch()
    stat = Path.stat
    device = 77

    def stat_of_another_disk(path, **options):
        about = stat(path, **options)
        return os.stat_result((*about[:2], device, *about[3:])) if path == draft else about

    monkeypatch.setattr(Path, "stat", stat_of_another_disk)
    replace_folder(draft, target, is_merged)
    assert [path.name for path in tmp_path.iterdir()] == ["target"] and (target / MERGED).is_file()


def test_a_failed_merge_leaves_no_draft(tmp_path, monkeypatch):
    (tmp_path / "out").symlink_to(tmp_path / "nowhere" / "x")
    with pytest.raises(OSError):
        merging._write(tmp_path / "out", {}, {}, [])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_script_that_fails_leaves_nothing(tmp_path):
    results = tmp_path / "results"
    command = ["profile", "--collector", "events", "-o", str(results), "python", "-c", "raise SystemExit(3)"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == ExitCode.FAILED, done.output
    assert not results.exists() or list(results.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["site", "--pages-only", "--recording", str(RECORDING), "--docs", "{loop}"],
        ["merge", "{loop}", "--out", "{loop}"],
        ["history", "{loop}"],
        ["compare", "{loop}", "{loop}"],
        ["show", "{loop}"],
        ["ingest", "{loop}", "--out", "{loop}"],
        ["answers", "{loop}", "--out", "{loop}"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_link_to_itself_is_one_line(tmp_path, arguments):
    (tmp_path / "loop").symlink_to("loop")
    done = CliRunner().invoke(app, [each.format(loop=tmp_path / "loop") for each in arguments])
    assert done.exit_code in (ExitCode.USAGE, ExitCode.DAMAGED, ExitCode.CANNOT_WRITE), done.output
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1


WRITERS = {
    "answers": ["answers", str(RECORDING), "--out", "{target}"],
    "ingest": ["ingest", "{results}", "--out", "{target}"],
    "merge": ["merge", "{results}", "--out", "{target}"],
    "publish-data": ["publish-data", str(RECORDING), "name", "--data", "{above}", "--yes"],
    "site": ["site", "--pages-only", "--recording", str(RECORDING), "--docs", "{docs}"],
    "install-nsys": ["install-nsys", "--to", "{target}", "--force", "--repository", "http://127.0.0.1:9"],
}
"""Commands that write a file or a folder, with a target that is somebody else's."""


@pytest.mark.parametrize("kind", ["file", "folder", "link to a file", "link to a folder"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "ingest" else ()) for name in WRITERS]
)
def test_no_command_replaces_what_is_not_its_own(tmp_path, measured, name, kind):
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "data" / "main" / "name"
    elsewhere.mkdir()
    target.parent.mkdir(parents=True)
    where = elsewhere / "mine" if "link" in kind else target
    if "folder" in kind:
        where.mkdir()
        (where / "notes.md").write_text(FOREIGN)
    else:
        where.write_text(FOREIGN)
    if "link" in kind:
        target.symlink_to(where)
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").symlink_to(target)
    places = {"target": target, "above": tmp_path / "data", "docs": docs, "results": measured}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = run(*(each.format(**places) for each in WRITERS[name]))
    assert done.exit_code in (ExitCode.USAGE, ExitCode.CANNOT_WRITE), done.output
    assert {path: path.read_bytes() for path in before} == before
    assert target.is_symlink() == ("link" in kind) and not [path for path in tmp_path.rglob("*.draft")]
    expected = docs / "index.md" if name == "site" else target
    assert str(expected) in done.stderr.replace("\n", ""), done.stderr
