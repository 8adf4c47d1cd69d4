"""Whether a GPU has a precision is known by its compute capability, too, where its name is in no table."""

import sqlite3
from pathlib import Path

import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise
from tests.packed import unpack

CAPTURE = Path(__file__).parents[1] / "data" / "clm_fp32.sqlite.packed"


@pytest.mark.parametrize(
    "major, minor, code",
    [(8, 6, ""), (7, 5, "gpu_cannot"), (None, None, "gpu_unknown")],
    ids=["Ampere", "Turing", "not known"],
)
def test_a_gpu_of_no_table_has_what_its_compute_capability_has(tmp_path, major, minor, code):
    path = unpack(CAPTURE, tmp_path / "x.sqlite")
    with sqlite3.connect(path) as database:
        update = "UPDATE TARGET_INFO_GPU SET name = 'NVIDIA GeForce RTX 3070 Ti', computeMajor = ?, computeMinor = ?"
        database.execute(update, (major, minor))
    database.close()
    advice = summarise(read(path)).sections["advice"].set_index("change")
    assert advice.loc["tf32", "reason_code"] == code
