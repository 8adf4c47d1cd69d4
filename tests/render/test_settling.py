"""Writing a report over an older one: only what changed is touched, and a report that fails changes nothing."""

import pytest

from analysis import write_site
from analysis.pages import run_list
from tests.synthetic import recording


def files(docs):
    return {path.relative_to(docs): path.stat().st_mtime_ns for path in docs.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def rec():
    return recording(("small",), (128, 256), ("forward",))


def test_files_that_did_not_change_keep_their_time(tmp_path, rec):
    write_site.write(rec, tmp_path)
    before = files(tmp_path)
    (tmp_path / "report" / "runs.md").write_text("old")
    write_site.write(rec, tmp_path)
    after = files(tmp_path)
    assert before.keys() == after.keys()
    changed = {str(path) for path in before if before[path] != after[path]}
    assert changed == {"report/runs.md"}


def test_pages_of_runs_that_are_gone_go_too(tmp_path, rec):
    write_site.write(rec, tmp_path)
    (tmp_path / "report" / "csv" / "old").mkdir()
    (tmp_path / "report" / "csv" / "old" / "old.csv").write_text("")
    (tmp_path / "extend.md").write_text("written by hand")
    write_site.write(rec, tmp_path)
    assert not (tmp_path / "report" / "csv" / "old").exists()
    assert (tmp_path / "extend.md").is_file()


def test_a_report_that_fails_leaves_the_last_one_as_it_is(tmp_path, rec, monkeypatch):
    write_site.write(rec, tmp_path)
    before = files(tmp_path)

    def answer(runs):
        raise ZeroDivisionError

    monkeypatch.setattr(run_list, "answer", answer)
    with pytest.raises(ZeroDivisionError):
        write_site.write(rec, tmp_path)
    assert files(tmp_path) == before
