"""Captures that were answered wrongly, made from a recorded one by SQL: what they mean now."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.comparison.common_work import find_longest_run, keep_common_work
from profiler_job.analysis.comparison.errors import ComparisonProblem
from profiler_job.analysis.comparison.load_sides import load_side
from profiler_job.analysis.insight.summary import summarise
from tests import packed
from tests.capture.nsys_files import Export
from tests.comparison.refusals import refuse

RUN = Path(__file__).parents[1] / "data" / "h200_runs" / "small-ctx512-fp32-naive-train_step" / "profile.sqlite.packed"
STEPS = Selection(range="step")
EVENTS = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    *("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_RUNTIME"),
)


def change(path: Path, *statements: str) -> Path:
    """Make the recorded capture at `path`, changed."""
    path.unlink(missing_ok=True)
    packed.unpack(RUN, path)
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


def list_tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master")}


def share_of(summary, phase: str) -> float:
    phases = summary.sections["phases"].set_index("phase")["share"]
    return float(phases.get(phase, 0.0))


def test_an_optimizer_inside_a_range_of_backward_is_separated_and_labelled(tmp_path):
    known = summarise(read(change(tmp_path / "known.sqlite"), details=False), selection=STEPS)
    name = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
    of_other = "coalesce(o.text, (SELECT value FROM StringIds WHERE id = o.textId))"
    longer = f"""UPDATE NVTX_EVENTS AS b SET end = (SELECT min(o.end) FROM NVTX_EVENTS o WHERE o.start >= b.end
        AND {of_other} = 'optimizer') WHERE {name} = 'backward'"""
    merged = change(tmp_path / "merged.sqlite", longer, f"DELETE FROM NVTX_EVENTS WHERE {name} = 'optimizer'")
    found = summarise(read(merged, details=False), selection=STEPS)
    assert share_of(known, "optimizer") > 0.03
    assert share_of(found, "optimizer") == pytest.approx(share_of(known, "optimizer"), abs=0.002)
    phases = found.sections["phases"].set_index("phase")
    assert phases.loc["optimizer", "inferred_share"] == 1 and phases.loc["backward", "inferred_share"] == 0
    of_both = [of.sections["findings"].set_index("kind")["time_ns"]["per_tensor_optimizer"] for of in (known, found)]
    assert of_both[1] == pytest.approx(of_both[0], rel=0.01), "the same optimizer works tensor by tensor in both"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("cudaDeviceSynchronize_v3020", "Context sync"),
        ("cudaStreamSynchronize_v3020", "Stream sync"),
        ("cudaEventSynchronize_v3020", "Event sync"),
        ("cudaFree_v3020", "Unknown"),
    ],
)
def test_the_call_tells_the_kind_of_a_synchronisation_whose_type_is_not_in_the_export(tmp_path, call, kind):
    export = Export()
    export.launch(0)
    export.sync(30, 40, export.call(20, 50, name=call), kind=0)
    assert read(export.sqlite(tmp_path / "x.sqlite")).syncs["kind"].tolist() == [kind]


def test_nsys_2023_names_its_version_in_a_table_of_another_name(tmp_path):
    path = change(tmp_path / "x.sqlite", "ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA")
    assert read(path, details=False).nsys_version.startswith("2025.3")


def test_ranges_that_cover_a_part_leave_the_rest_to_be_inferred_and_labelled(tmp_path):
    name = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
    first = f"(SELECT min(end) FROM NVTX_EVENTS WHERE {name} = 'step')"
    path = change(tmp_path / "x.sqlite", f"DELETE FROM NVTX_EVENTS WHERE start > {first}")
    phases = summarise(read(path, details=False)).sections["phases"].set_index("phase")
    assert 0.5 < phases.loc["optimizer", "inferred_share"] < 0.9
    assert phases.loc["optimizer", "kernel_calls"] >= 3 * 888


def make_windows(folder: Path, stretch: float) -> tuple[Path, Path]:
    """Make two windows of equal length of one program without ranges. In the second everything takes as long, and
    starts `stretch` times as late."""
    paths = [folder / f"{name}.sqlite" for name in ("before", "after")]
    tables = [name for name in EVENTS if name in list_tables(change(paths[0], "DELETE FROM NVTX_EVENTS"))]
    with closing(sqlite3.connect(paths[0])) as database:
        begin, end = database.execute(f"SELECT min(start), max(end) FROM {EVENTS[0]}").fetchone()
    late = [
        f"UPDATE {table} SET end = CAST({begin} + (start - {begin}) * {stretch} AS INTEGER) + end - start, "
        f"start = CAST({begin} + (start - {begin}) * {stretch} AS INTEGER)"
        for table in tables
    ]
    cut = [f"DELETE FROM {table} WHERE end > {end}" for table in tables]
    change(paths[1], "DELETE FROM NVTX_EVENTS", *late, *cut)
    return paths[0], paths[1]


def test_windows_of_equal_length_are_compared_by_the_work_that_both_have(tmp_path):
    first, second = map(load_side, make_windows(tmp_path, 1.15))
    assert len(second.kernels) < len(first.kernels)
    first, second = keep_common_work(first, second)
    assert len(first.kernels) == len(second.kernels)
    walls = [float(side.steps["wall_ns"].iloc[0]) for side in (first, second)]
    assert walls[1] / walls[0] == pytest.approx(1.15, abs=0.01), "the second is slower"
    assert any("that both have" in note for note in first.notes)


def test_windows_with_little_work_in_common_are_refused(tmp_path):
    sides = []
    for name in ("a", "b"):
        export = Export()
        for number in range(10):
            export.launch(100 * number, name=f"{name}{number}" if number else "same")
        sides.append(load_side(export.sqlite(tmp_path / f"{name}.sqlite")))
    with refuse(ComparisonProblem.LITTLE_IN_COMMON, "1 of 10 kernels"):
        keep_common_work(*sides)


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_run_is_found_as_by_trying_all(seed):
    random = np.random.default_rng(seed)
    first, second = (random.integers(0, 3, 40) for _ in range(2))
    tried = max(
        (length, -start)
        for start in range(40)
        for length in range(41 - start)
        if any(np.array_equal(first[start : start + length], second[at : at + length]) for at in range(41 - length))
    )
    starts, length = find_longest_run(first, second)
    assert length == tried[0]
    assert np.array_equal(first[starts[0] : starts[0] + length], second[starts[1] : starts[1] + length])
