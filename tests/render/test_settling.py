"""Writing a report over an older one: only what changed is touched, and a report that fails changes nothing."""

import shutil

import pytest

from profiler_job.analysis.pages import run_list
from profiler_job.analysis.site import write_site
from tests.pages.question_page import only_questions
from tests.synthetic import recording


def files(docs):
    return {path.relative_to(docs): path.stat().st_mtime_ns for path in docs.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def rec():
    return recording(("small",), (128, 256), ("forward",))


@pytest.fixture(scope="module")
def written(rec, undrawn, tmp_path_factory):
    docs = tmp_path_factory.mktemp("written")
    with only_questions():
        write_site.write(rec, docs)
    return docs


@pytest.fixture
def docs(written, tmp_path):
    """A folder with a report of `rec`."""
    return shutil.copytree(written, tmp_path / "docs")


@pytest.mark.nightly
def test_files_that_did_not_change_keep_their_time(docs, rec):
    """Of a whole report."""
    write_site.write(rec, docs)
    before = files(docs)
    (docs / "report" / "runs.md").write_text("old")
    write_site.write(rec, docs)
    after = files(docs)
    assert before.keys() == after.keys()
    changed = {str(path) for path in before if before[path] != after[path]}
    assert changed == {"report/runs.md"}


@pytest.mark.long
def test_pages_of_runs_that_are_gone_go_too(docs, rec):
    (docs / "report" / "csv" / "old").mkdir()
    (docs / "report" / "csv" / "old" / "old.csv").write_text("")
    (docs / "extend.md").write_text("written by hand")
    with only_questions():
        write_site.write(rec, docs)
    assert not (docs / "report" / "csv" / "old").exists()
    assert (docs / "extend.md").is_file()


@pytest.mark.long
def test_a_report_that_fails_leaves_the_last_one_as_it_is(docs, rec, monkeypatch):
    before = files(docs)

    def answer(*tables):
        raise ZeroDivisionError

    monkeypatch.setattr(run_list, "answer", answer)
    with pytest.raises(ZeroDivisionError), only_questions():
        write_site.write(rec, docs)
    assert files(docs) == before
