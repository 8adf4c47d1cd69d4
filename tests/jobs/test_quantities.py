"""One number reads the same everywhere."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiler_job.analysis.recording.table_schema import TABLES
from profiler_job.analysis.reference import columns
from profiler_job.analysis.render import text
from profiler_job.jobs.contract.quantities import (
    MOST_DECIMALS,
    UNITS,
    choose_form,
    format_quantities,
    format_quantity,
    format_rounded,
    format_share,
    format_thousands,
    parse_quantity,
)

KINDS = sorted(UNITS)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("time", 0, "0 ns"),
        ("time", 5, "5 ns"),
        ("time", 0.5321, "0.532 ns"),
        ("time", 1_500, "1.50 µs"),
        ("time", 999_400, "999 µs"),
        ("time", 999_600, "1.00 ms"),
        ("time", 9_996_000, "10.0 ms"),
        ("time", -12_345_678, "-12.3 ms"),
        ("time", 1.234e12, "1,234 s"),
        ("time", math.inf, "∞"),
        ("time", math.nan, "n/a"),
        ("bytes", 512, "512 B"),
        ("bytes", 1000 * 2**10, "1,000 KiB"),
        ("bytes", 1023.7 * 2**10, "1.00 MiB"),
        ("bytes", 3 * 2**30, "3.00 GiB"),
        ("share", 0.4812, "48.1%"),
        ("share", 0.0003, "<0.1%"),
        ("share", 0, "0.0%"),
        ("count", 1_234, "1,234"),
        ("count", 12.34, "12.3"),
        ("count", 66_460.7, "66,461"),
        ("ratio", 1.2345, "1.23×"),
        ("bytes/s", 3.35e12, "3,350 GB/s"),
        ("FLOP/s", 9.896e14, "990 TFLOP/s"),
        ("FLOP", 1.61e9, "1.61 GFLOP"),
        ("FLOP/byte", 295.2, "295 FLOP/byte"),
        ("J", 0.0123, "12.3 mJ"),
        ("W", 312.4, "312 W"),
        ("Hz", 1.98e9, "1,980 MHz"),
        ("tokens/s", 66_460.7, "66,461 tokens/s"),
    ],
)
def test_a_quantity_has_the_unit_that_suits_it_and_three_digits(kind, value, shown):
    assert format_quantity(kind, value) == shown


def test_two_digits_of_a_small_number_are_both_shown():
    """$0.005 stood on home for the 0.0048 of the table of costs."""
    assert [format_rounded("number", value) for value in (0.0048, 0.00241, 0.037, 12.3)] == [
        *("0.0048", "0.0024", "0.037", "12")
    ]


def test_a_change_has_its_sign():
    assert [format_quantity("time", ns, is_signed=True) for ns in (1500, -1500, 0)] == ["+1.50 µs", "-1.50 µs", "0 ns"]
    assert format_quantity("share", 0.0002, is_signed=True) == "+0.0%"


def test_quantities_that_are_read_together_have_one_unit_and_show_what_they_differ_by():
    assert format_quantities("time", 223_400_000, 540_000) == ["223.400 ms", "0.540 ms"]
    assert choose_form("time", [1, 2e9]).decimals == MOST_DECIMALS
    assert choose_form("time", []).unit == "ns"


SIZES = st.floats(min_value=1e-3, max_value=1e15)


@given(kind=st.sampled_from(KINDS), value=SIZES)
@example(kind="time", value=999_499_999.9)
@example(kind="bytes", value=2.0**30 - 1)
def test_what_a_quantity_reads_as_is_its_value_rounded(kind, value):
    form = choose_form(kind, [value])
    read = parse_quantity(kind, format_quantity(kind, value))
    resolution = form.size * 10.0**-form.decimals
    assert abs(read - value) <= resolution * 0.5001 or (kind == "share" and value < resolution == read)


@given(kind=st.sampled_from(KINDS), value=SIZES)
def test_no_number_reaches_the_next_unit(kind, value):
    form = choose_form(kind, [value])
    larger = [size for size in UNITS[kind].values() if size > form.size]
    assert not larger or parse_quantity(kind, format_quantity(kind, value)) < min(larger)


@given(kind=st.sampled_from(KINDS), first=SIZES, second=SIZES)
def test_a_larger_quantity_never_reads_smaller(kind, first, second):
    low, high = (parse_quantity(kind, format_quantity(kind, value)) for value in sorted((first, second)))
    assert low <= high


@given(value=SIZES)
def test_pages_and_terminals_have_the_same_digits_and_unit(value):
    for column, unit in (("total_ns", "ns"), ("memory_bytes", "bytes"), ("busy_share", "share")):
        on_page = text.plain(text.quantity(value, unit))
        assert on_page == columns.format_cell(column, value)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [("time", "250us", 250e3), ("time", "1.5s", 1.5e9), ("share", "3%", 0.03), ("time", "\u22121.50\u202fms", -1.5e6)],
)
def test_what_users_write_and_what_pages_show_is_read(kind, written, value):
    assert parse_quantity(kind, written) == pytest.approx(value)


@pytest.mark.parametrize("written", ["", "ms", "3", "3 GiB", "3 ms more"])
def test_what_is_not_a_time_is_refused(written):
    with pytest.raises(ValueError, match="time"):
        parse_quantity("time", written)


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("total_ns", 1_500, "1.50 µs"),
        ("bus_bytes_per_s", 361e9, "361 GB/s"),
        ("clock_hz", 1_980e6, "1,980 MHz"),
        ("power_mw", 312_400, "312 W"),
        ("wall_s", 61.2, "61.2 s"),
        ("calls", 12_345, "12,345"),
        ("calls", 2.5, "2.50"),
        ("calls", None, "n/a"),
        ("name", "a\x1b[2J\nb", "a\N{REPLACEMENT CHARACTER}[2J b"),
        ("name", "", "(none)"),
        ("is_known", True, "True"),
    ],
)
def test_the_name_of_a_column_gives_the_format_of_its_cells(column, value, shown):
    assert columns.format_cell(column, value) == shown


def test_the_unit_in_the_data_dictionary_is_what_the_name_of_the_column_says():
    named = {(table, column.name): column.unit for table, known in TABLES.items() for column in known}
    wrong = {at: unit for at, unit in named.items() if (ending := columns.find_ending(at[1])) and ending[1] != unit}
    assert not wrong


SCALED = re.compile(r"(?:1e[369]|2\s*\*\*\s*[123]0|1024):")
ELSEWHERE = {
    "text.py": "parameters of a model: millions and billions",
    "facts.py": "moments that a user gave, with all digits",
    "data_readme.py": "sizes of files in a table in kB",
}


def test_no_other_module_scales_a_number_to_print_it():
    analysis = Path(__file__).parents[2] / "analysis"
    scaling = {path.name for path in analysis.rglob("*.py") if SCALED.search(path.read_text(encoding="utf-8"))}
    assert scaling == set(ELSEWHERE)


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.696, "70%"), (0.699, "70%"), (0.286, "29%"), (0.015, "2%"), (0.002, "<1%"), (0.0, "0%"), (0.996, "100%")],
)
def test_a_share_is_rounded_by_itself_and_not_so_that_parts_add_up(share, shown):
    """A bar showed 69% for 69.6%, so that its parts added up, next to a heading and a table of 70%."""
    assert format_share(share, 0) == shown


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (15_231, "15.2k"),
        (16_979, "17.0k"),
        (4_999.9, "5.00k"),
        (99_960, "100k"),
        (376_434, "376k"),
        (1_234_567, "1230k"),
        (12, "12"),
        (7.25, "7.25"),
        (999.4, "999"),
    ],
)
def test_a_rate_has_three_digits(rate, text):
    """Two rates of one card were 15.2k and 17k."""
    assert format_thousands(rate) == text
