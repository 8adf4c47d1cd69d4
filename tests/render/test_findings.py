"""Behind a finding stand the rows that its sentence names and the columns that it reads."""

import pandas as pd
import pytest
from markupsafe import Markup

from profiler_job.analysis.render import finding_rows
from profiler_job.analysis.render.answer import Claim, Column, Table

CASE = Column("size", "model")
SPEED = Table("speed", "", (CASE, Column("time_ns", "time", "ms"), Column("ratio", "ratio", "ratio")), pd.DataFrame())
MEMORY = Table(
    "memory",
    "",
    (CASE, Column("peak", "peak", "bytes"), Column("kept", "kept", "bytes"), Column("freed", "freed", "bytes")),
    pd.DataFrame(),
)
ROWS = pd.DataFrame(
    {"size": list("abc"), "run_id": list("xyz"), "time_ns": 1.0, "ratio": 2.0, "peak": 3, "kept": 4, "freed": 5}
)


def keys(claim, read):
    return [column.key for column in finding_rows.table(claim, [SPEED, MEMORY], read).columns]


def test_what_a_sentence_reads_is_noted_in_rows_inside_its_facts_too():
    read = {}
    row = pd.Series({"time_ns": 7, "peak": 8})
    facts = finding_rows.noted({"low": row, "of": {"TF32": {"ratio": 2}}, "best": [row], "never": 1}, read)
    assert facts["low"]["time_ns"] == 7 and facts["best"][0].get("peak") == 8
    assert [values["ratio"] for values in facts["of"].values()] == [2]
    assert {"low", "time_ns", "best", "peak", "of", "ratio"} <= set(read) and "never" not in read
    assert read["time_ns"] == [7]


def test_columns_are_those_of_the_table_that_has_what_the_sentence_reads():
    claim = Claim("one", ROWS)
    assert keys(claim, {"time_ns": [1.0]}) == ["size", "time_ns", "ratio"]
    assert keys(claim, {"peak": [3]}) == ["size", "peak", "kept", "freed"]


def test_what_it_reads_of_another_table_follows():
    assert keys(Claim("one", ROWS), {"time_ns": [1.0], "ratio": [2.0], "peak": [3]}) == [
        *("size", "time_ns", "ratio"),
        "peak",
    ]


def test_a_column_whose_spread_the_rows_lack_is_left_out():
    spread = Table("spread", "", (CASE, Column("time_ns", "t", "ms", lower="low", upper="high")), pd.DataFrame())
    shown = finding_rows.table(Claim("one", ROWS), [spread], {"time_ns": [1.0]})
    assert [column.key for column in shown.columns] == ["size"]


def test_rows_like_those_of_no_table_are_shown_whole():
    claim = Claim("one", pd.DataFrame({"other": [1]}))
    assert [column.label for column in finding_rows.table(claim, [SPEED], {}).columns] == ["other"]


@pytest.mark.parametrize(("named", "first"), [([], "r00"), (["r20"], "r20")])
def test_the_rows_that_the_sentence_names_come_first(named, first):
    rows = pd.DataFrame({"run_id": [f"r{number:02}" for number in range(24)], "size": "a"})
    shown = finding_rows.table(Claim("one", rows), [SPEED], {"run_id": named}).rows
    assert shown["run_id"].iloc[0] == first and len(shown) == finding_rows.NUM_ROWS
    assert "r01" in set(shown["run_id"])


def test_the_rows_are_called_by_the_sentence_that_they_are_of():
    said = Markup("**GEMMs** take 7&#37; more, in all of the runs that were measured twice.")
    title = finding_rows.table(Claim("disturbed", ROWS), [SPEED], {}, said).title
    assert title == "Rows of: GEMMs take 7% more, in all of the runs that were measured …"


def test_a_sentence_is_told_as_text():
    words = Markup('**Up to** [small · 128](x.md "A (b)"): `exp` of QKᵀ, a&#95;b &lt; 1')
    assert finding_rows.plain(words) == "Up to small · 128: exp of QK\u1d40, a_b < 1"
