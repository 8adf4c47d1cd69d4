"""Excerpts keep the beginning and the end of long outputs, in whole lines, and say what was cut."""

import pytest

from profiler_job.jobs.contract.excerpt import Excerpt, read_excerpt, shorten, trim

LINES = "".join(f"line {number}\n" for number in range(1000))


def test_what_is_short_stays(tmp_path):
    assert shorten("a\nb", 2) == "a\nb"
    (tmp_path / "log").write_text("a\nb\n")
    trim(tmp_path / "log", 2)
    trim(tmp_path / "missing", 2)
    assert (tmp_path / "log").read_text() == "a\nb\n"


def test_of_what_is_long_both_ends_stay_in_whole_lines_and_it_says_how_much_was_cut(tmp_path):
    (tmp_path / "log").write_text(LINES)
    text = read_excerpt(tmp_path / "log", 20)
    assert text == f"line 0\nline 1\n[{len(LINES) - 13 - 18} bytes were cut here]\nline 998\nline 999\n"
    assert shorten(LINES, 20) == text
    trim(tmp_path / "log", 20)
    assert (tmp_path / "log").read_text() == text
    assert [one.name for one in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_it_is_the_same_however_it_comes(size):
    excerpt = Excerpt(20)
    for start in range(0, len(LINES), size):
        excerpt.add(LINES[start : start + size].encode())
    assert excerpt.text == shorten(LINES, 20)


def test_of_one_long_line_no_part_is_shown():
    assert shorten(f"TOKEN={'x' * 100}", 20) == "[106 bytes were cut here]\n"
