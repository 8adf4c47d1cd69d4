"""Collections of garbage in a capture without samples."""

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.finding_lines import describe_findings
from profiler_job.analysis.insight.garbage_times import measure_collections
from profiler_job.analysis.insight.summary import summarise
from profiler_job.jobs.contract.ranges import GARBAGE_RANGE
from profiler_job.jobs.follow import host_waits
from tests.capture.nsys_files import Export

MS = 1_000_000


def make_step(process: int = 1, device: int = 0) -> Export:
    """The GPU runs at 0-10 and 20-100 ms, and garbage is collected at 8-18 ms."""
    export = Export()
    add_step(export, process, device)
    export.push(f"{GARBAGE_RANGE} 2", 8 * MS, 18 * MS)
    return export


def add_step(export: Export, process: int, device: int, at: int = 0) -> None:
    for start, end in ((at, at + 10), (at + 20, at + 100)):
        export.launch(start * MS, start=start * MS, end=end * MS, process=process, device=device)


def test_the_gpu_waits_for_the_part_of_a_collection_in_which_it_idles(tmp_path):
    capture = read(make_step().sqlite(tmp_path / "x.sqlite"), details=False)
    assert measure_collections(capture) == (8 * MS, 1, 10 * MS)
    findings = summarise(capture).sections["findings"]
    row = findings.set_index("kind").loc["garbage"]
    assert (row["time_ns"], row["count"], round(row["share"], 3)) == (8 * MS, 1, 0.08)
    (line,) = (line for line in describe_findings(findings) if "garbage" in line)
    assert "8.00 ms" in line and "1 collection" in line


def test_before_the_first_operation_and_after_the_last_nothing_waits(tmp_path):
    export = Export()
    add_step(export, 1, 0, at=10)
    for start, end in ((1, 8), (109, 120)):
        export.push(f"{GARBAGE_RANGE} 1", start * MS, end * MS)
    capture = read(export.sqlite(tmp_path / "x.sqlite"), details=False)
    assert measure_collections(capture).idle_ns == 0


def test_a_gpu_waits_for_its_own_process_alone(tmp_path):
    export = make_step()
    add_step(export, 2, 1)
    capture = read(export.sqlite(tmp_path / "x.sqlite"), details=False)
    assert measure_collections(capture).idle_ns == 8 * MS


def test_below_a_hundredth_or_without_collections_there_is_no_finding(tmp_path):
    export = Export()
    add_step(export, 1, 0)
    export.push(f"{GARBAGE_RANGE} 0", 12 * MS, 12 * MS + MS // 2)
    for name in ("short", "none"):
        capture = read(export.sqlite(tmp_path / f"{name}.sqlite"), details=False)
        assert "garbage" not in set(summarise(capture).sections["findings"]["kind"])
        export.rows["NVTX_EVENTS"] = []


def test_both_sides_have_the_same_name_of_the_range():
    assert host_waits.GARBAGE == GARBAGE_RANGE
