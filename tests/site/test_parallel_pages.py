"""A part of a task in a process of its own."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from profiler_job.analysis.site import parallel_pages, write_site
from tests import synthetic
from tests.waiting import eventually, has_ended
from tests.work import refuse, twice, wait, write_on


def test_what_it_gives_comes_from_another_process():
    with parallel_pages.helping(True) as helper:
        helper.give(twice, 21)
        number, pid = helper.result()
    assert number == 42 and pid != os.getpid()


@pytest.mark.parametrize(("is_worth_it", "processors"), [(False, 2), (True, 1), (True, None)])
def test_what_is_not_worth_it_is_done_here(monkeypatch, is_worth_it, processors):
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    with parallel_pages.helping(is_worth_it) as helper:
        helper.give(twice, 21)
        assert helper.result() == (42, os.getpid())


@pytest.mark.parametrize("processors", [1, 2])
def test_results_come_in_the_order_of_work(monkeypatch, processors):
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    with parallel_pages.helping(True) as helper:
        helper.give(twice, 1)
        helper.give(refuse, "h200")
        helper.give(twice, 2)
        assert helper.result()[0] == 2
        with pytest.raises(ValueError, match="h200 is damaged"):
            helper.result()
        assert helper.result()[0] == 4


@pytest.mark.parametrize("size", [1, 1 << 24])
def test_it_goes_on_while_nobody_takes_its_results(tmp_path, size):
    """A result larger than the pipe held up all further work until it was asked for."""
    with parallel_pages.helping(True) as helper:
        helper.give(bytes, size)
        helper.give(Path.touch, tmp_path / "done")
        eventually((tmp_path / "done").exists)
        assert len(helper.result()) == size


def test_one_that_was_killed_is_told():
    with parallel_pages.helping(True) as helper:
        helper.give(wait)
        os.kill(helper._process.pid, signal.SIGKILL)
        with pytest.raises(ChildProcessError, match="exit code -9"):
            helper.result()


def test_it_ends_with_the_block():
    with pytest.raises(ValueError), parallel_pages.helping(True) as helper:
        helper.give(wait)
        refuse("h200")
    assert not helper._process.is_alive()


def test_where_a_report_fails_its_draft_is_gone_and_the_reason_is_told(monkeypatch, tmp_path):
    """The helper wrote on while the draft was removed: "Directory not empty" was the only message."""

    def fail(rec, studies, draft, measured, downloads, compared, price, helper) -> None:
        helper.give(write_on, draft)
        eventually(lambda: any(draft.iterdir()))
        raise ValueError("a ledger is damaged")

    monkeypatch.setattr(write_site, "_draft", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="a ledger is damaged"), parallel_pages.helping(True) as helper:
        write_site.write(synthetic.recording(("small",), (128,)), tmp_path / "docs", helper=helper)
    assert not [*tmp_path.iterdir()]


def test_it_ends_with_its_parent():
    program = """if __name__ == "__main__":
        import os, signal
        from profiler_job.analysis.site import parallel_pages
        from tests.work import wait
        with parallel_pages.helping(True) as helper:
            helper.give(wait)
            print(helper._process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)"""
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(started.stdout.readline())
    assert started.stdout.read() == "", "ends when the helper has closed it, too"
    assert started.wait() == -signal.SIGKILL
    eventually(lambda: has_ended(pid))
