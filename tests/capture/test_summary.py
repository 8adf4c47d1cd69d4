"""The fast summaries equal slow, plain ones on random captures, and facts differ from gaps."""

import random

import numpy as np
import pytest

from profiler_job.analysis.capture import (
    attribution,
    blocks,
    export_columns,
    kernel_overlaps,
    nsys_reports,
    parquet_tables,
    sqlite_tables,
)
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight import range_times
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.summary import summarise

from .nsys_files import Export
from .profiles import NAMES, profile


def _nested(export, rng, low, high, depth, **where):
    """Random ranges within low..high, some of one name inside each other."""
    at = low
    while at < high - 4 and rng.random() < 0.8:
        start = rng.randint(at, high - 3)
        end = rng.randint(start + 1, high - 1)
        export.push(rng.choice("abc"), start, end, **where)
        if depth:
            _nested(export, rng, start + 1, end, depth - 1, **where)
        at = end + 1


def _random_capture(seed: int, longest: int = 60) -> Export:
    rng, export = random.Random(seed), Export()
    for process in (1, 2):
        export.domain(5, "lib", process=process)
        for thread in (1, 2):
            _nested(export, rng, 0, 1000, 3, process=process, thread=thread)
            _nested(export, rng, 0, 1000, 1, process=process, thread=thread, domain=5)
            for _ in range(3):
                start = rng.randint(0, 900)
                export.span(rng.choice("sa"), start, rng.randint(start, 1100), process=process, thread=thread)
            for at in sorted(rng.sample(range(1000), 30)):
                start = at + rng.randint(2, 300)
                name, device = rng.choice(["gemm", "add", "mul"]), rng.randint(0, 1)
                if rng.random() < 0.9:
                    end = start + rng.randint(0, longest)
                    export.launch(at, start=start, end=end, name=name, process=process, thread=thread, device=device)
                else:
                    call = export.call(at, at + 1, process=process, thread=thread, name="cudaMemcpyAsync")
                    export.copy(start, start + 5, call, process=process, device=device)
    return export


def _union(intervals) -> int:
    covered = set()
    for start, end in intervals:
        covered.update(range(start, end))
    return len(covered)


def _slow_ranges(export: Export) -> dict:
    """(name, style) -> what the `ranges` section must say, worked out row by row."""
    nvtx = [row for row in export.rows["NVTX_EVENTS"] if row["eventType"] in (59, 60)]
    calls = {(row["globalTid"] >> 24, row["correlationId"]): row for row in export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]}
    kernels = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
    copies = export.rows["CUPTI_ACTIVITY_KIND_MEMCPY"]

    def inside(operation, span):
        call = calls[operation["globalPid"] >> 24, operation["correlationId"]]
        if span["eventType"] == 59:
            mine = call["globalTid"] == span["globalTid"]
        else:
            mine = call["globalTid"] >> 24 == span["globalTid"] >> 24
        return mine and span["start"] <= call["start"] < span["end"]

    def key(row):
        return (f"lib:{row['text']}" if row["domainId"] else row["text"], row["eventType"])

    found = {}
    for name in sorted({key(row) for row in nvtx}):
        spans = [row for row in nvtx if key(row) == name]
        if name[1] == 59:

            def within(row, other):
                same = other["globalTid"] == row["globalTid"] and other is not row
                return same and other["start"] <= row["start"] and row["end"] <= other["end"]

            spans = [row for row in spans if not any(within(row, other) for other in spans)]
        held = [kernel for kernel in kernels if any(inside(kernel, span) for span in spans)]
        projected = 0
        for span in spans:
            kinds = (kernels, copies) if name[1] == 59 else (kernels,)
            operations = [one for kind in kinds for one in kind if inside(one, span)]
            if operations:
                projected += max(one["end"] for one in operations) - min(one["start"] for one in operations)
        found[name] = {
            "instances": len(spans),
            "kernel_calls": len(held),
            "kernel_ns": sum(one["end"] - one["start"] for one in held),
            "busy_ns": sum(_union((k["start"], k["end"]) for k in held if k["deviceId"] == gpu) for gpu in (0, 1)),
            "projected_ns": projected,
            "host_ns": sum(span["end"] - span["start"] for span in spans),
        }
        times = [span["end"] - span["start"] for span in spans]
        statistics = {"mean": np.mean, "median": np.median, "min": min, "max": max}
        found[name] |= {f"host_{word}_ns": round(float(of(times))) for word, of in statistics.items()}
    return found


def _fast_ranges(section) -> dict:
    return {
        (row["name"], 59 if row["style"] == "PushPop" else 60): {
            name: row[name] for name in row if name not in ("name", "style")
        }
        for row in section.to_dict("records")
    }


@pytest.mark.parametrize("seed", range(12))
def test_ranges_equal_a_plain_count_on_random_captures(tmp_path, seed):
    export = _random_capture(seed)
    section = summarise(read(export.sqlite(tmp_path / "x.sqlite"), details=False)).sections["ranges"]
    assert _fast_ranges(section) == _slow_ranges(export)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("container", ["sqlite", "parquetdir"])
def test_the_size_of_a_block_changes_nothing(tmp_path, monkeypatch, seed, container):
    export = _random_capture(seed, longest=10)
    path = getattr(export, container)(tmp_path / "x")
    whole = summarise(read(path)).as_json()
    for module in (blocks, export_columns, parquet_tables, sqlite_tables, kernel_overlaps):
        monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr(sqlite_tables.SqliteTables, "CHUNK", 3)
    in_blocks = summarise(read(path))
    assert in_blocks.as_json() == whole
    assert _fast_ranges(in_blocks.sections["ranges"]) == _slow_ranges(export)


@pytest.mark.parametrize("seed", range(6))
def test_push_pop_ranges_worked_out_in_parts_give_the_same(tmp_path, monkeypatch, seed):
    export = _random_capture(seed)
    plain = {key: value for key, value in _slow_ranges(export).items() if key[1] == 59}
    monkeypatch.setattr(range_times, "_MOST_PAIRS", 100)
    section = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["ranges"]
    assert _fast_ranges(section[section["style"] == "PushPop"]) == plain


@pytest.mark.parametrize("seed", range(6))
def test_start_end_ranges_worked_out_in_parts_give_the_same(tmp_path, monkeypatch, seed):
    export = _random_capture(seed)
    monkeypatch.setattr(range_times, "_MOST_PAIRS", 120)
    section = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["ranges"]
    plain = _slow_ranges(export)
    for row in section[section["style"] == "StartEnd"].dropna().to_dict("records"):
        assert row["busy_ns"] == plain[row["name"], 60]["busy_ns"]
    assert section[section["style"] == "StartEnd"]["busy_ns"].notna().any()


def test_thousands_of_start_end_ranges_of_different_names_are_summarised(tmp_path):
    export, number = Export(), 3000
    for i in range(number):
        export.span(f"request {i}", 100 * i, 100 * i + 250)
        export.launch(100 * i + 1, start=100 * i + 5, end=100 * i + 120)
    rows = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["ranges"].set_index("name")
    assert rows.loc["request 0", ["kernel_calls", "kernel_ns", "busy_ns", "projected_ns"]].tolist() == [
        3,
        345,
        315,
        315,
    ]
    assert rows["kernel_calls"].sum() == 3 * number - 3


@pytest.mark.parametrize("seed", range(4))
def test_gpus_equal_a_plain_count_on_random_captures(tmp_path, seed):
    export = _random_capture(seed)
    section = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["gpus"].set_index("gpu")
    operations = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"] + export.rows["CUPTI_ACTIVITY_KIND_MEMCPY"]
    for gpu in (0, 1):
        mine = [(row["start"], row["end"]) for row in operations if row["deviceId"] == gpu]
        assert section["busy_ns"][gpu] == _union(mine)
        assert section["span_ns"][gpu] == max(end for _, end in mine) - min(start for start, _ in mine)
        assert section["idle_share"][gpu] == pytest.approx(1 - section["busy_ns"][gpu] / section["span_ns"][gpu])


@pytest.mark.parametrize("name", NAMES)
def test_sections_agree_with_the_reports_that_agree_with_nsys(name):
    capture = read(profile(name))
    sections = summarise(capture).sections
    ours = sections["kernels"].set_index("name")
    theirs = nsys_reports.cuda_gpu_kern_sum(capture).set_index("Name")
    assert ours["total_ns"].to_dict() == theirs["Total Time (ns)"].to_dict()
    assert ours["calls"].to_dict() == theirs["Instances"].to_dict()
    projected = nsys_reports.nvtx_gpu_proj_sum(capture).set_index("Range")["Total Proj Time (ns)"].to_dict()
    ranges = sections["ranges"].set_index("name")
    assert {f":{one}": value for one, value in ranges["projected_ns"].items() if value} == projected
    api = nsys_reports.cuda_api_sum(capture).set_index("Name")["Total Time (ns)"].to_dict()
    assert sections["api"].set_index("name")["total_ns"].to_dict() == api


def test_shares_sum_to_one():
    sections = summarise(read(profile("train_threads"))).sections
    for name in ("kernels", "families", "phases"):
        assert sections[name]["share"].sum() == pytest.approx(1)


def test_coverage_tells_exact_from_by_time():
    exact = summarise(read(profile("train"))).coverage
    threads = summarise(read(profile("train_threads"))).coverage
    assert exact["exact"] > 0.99
    assert threads["phase"] == pytest.approx(0.559, abs=0.01)
    assert threads["none"] == 0


def test_latency_runs_from_the_call_to_the_kernel_and_queues_are_counted(tmp_path):
    export = Export()
    for at, start in ((0, 10), (20, 100), (40, 200), (300, 310)):
        export.launch(at, start=start, end=start + 5)
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite")))
    assert summary.launches == {
        "kernels": 4,
        "latency_median_ns": 45.0,  # of 10, 80, 160, 10
        "latency_max_ns": 160,
        "queue_mean": 0.25,  # the third was launched while the second waited
        "queue_median": 0.0,
        "queue_max": 1,
        "dry_ns": 120,  # from 15 to 30 and from 205 to 310, on the GPU's clock, which the shortest way of 10 ns tells
    }


def test_long_captures_of_many_gpus_do_not_overflow(tmp_path):
    export, second = Export(), 10**9
    for gpu in range(6):
        for at in (0, 1000 * second):
            export.launch(at + gpu, start=at, end=at + second, device=gpu)
    gpus = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["gpus"]
    assert gpus["busy_ns"].tolist() == [2 * second] * 6
    assert gpus["span_ns"].tolist() == [1001 * second] * 6


def test_device_0_of_another_process_can_be_another_gpu(tmp_path):
    export = Export()
    export.launch(0, start=10, end=110, process=1, device=0)
    export.launch(0, start=10, end=60, process=2, device=0)
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    assert summarise(capture).sections["gpus"]["busy_ns"].tolist() == [100]
    capture.gpu_of = {(1, 0): 0, (2, 0): 1}
    assert summarise(capture).sections["gpus"]["busy_ns"].tolist() == [100, 50]


@pytest.mark.parametrize("name", ["step", "step_{}"])
def test_ranges_that_are_never_popped_are_summarised(tmp_path, name):
    """A push without its pop, in a loop: each range lies in all before it."""
    export, number = Export(), 3000
    for i in range(number):
        export.push(name.format(i), 10 * i, None)
        export.launch(10 * i + 1, start=10 * i + 5, end=10 * i + 20)
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    found = attribution.attribute(capture)
    assert found.ranges["depth"].tolist() == list(range(number))
    assert found.ranges["path"].astype(str).str.len().max() < 2000
    rows = summarise(capture, found).sections["ranges"].set_index("name")
    assert rows.loc[name.format(0), ["instances", "kernel_calls", "projected_ns"]].tolist()[1:] == [
        number,
        10 * (number - 1) + 15,
    ]
    if name == "step":
        assert rows.loc["step", "busy_ns"] == 10 * (number - 1) + 15


def test_busy_time_of_too_many_ranges_is_not_guessed(tmp_path, monkeypatch):
    export = Export()
    for i in range(100):
        export.push(f"step_{i}", 10 * i, None)
        export.launch(10 * i + 1, start=10 * i + 5, end=10 * i + 20)
    monkeypatch.setattr(range_times, "_MOST_PAIRS", 400)
    rows = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["ranges"]
    assert rows["busy_ns"].isna().all()
    assert rows["kernel_ns"].max() == 1500


def test_a_capture_without_nvtx_still_summarises_kernels(tmp_path):
    export = Export()
    export.launch(0)
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite")))
    assert summary.coverage == dict.fromkeys(attribution.ATTRIBUTIONS, 0) | {"none": 1}
    assert summary.sections["ranges"].empty
    assert summary.sections["phases"].empty
    assert "NVTX_EVENTS" in set(summary.sections["missing"]["what"])


def test_a_capture_without_kernels_still_summarises_the_host(tmp_path):
    export = Export()
    export.push("forward", 0, 100)
    export.call(10, 30)
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite")))
    assert summary.coverage == dict.fromkeys(attribution.ATTRIBUTIONS)
    assert summary.launches["kernels"] == 0
    assert summary.sections["api"]["total_ns"].tolist() == [20]
    assert summary.sections["ranges"]["host_ns"].tolist() == [100]
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in set(summary.sections["missing"]["what"])


def test_every_column_of_every_section_is_explained(tmp_path):
    export = _random_capture(0)
    sections = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections
    assert list(sections) == list(SECTIONS)
    for name, frame in sections.items():
        assert list(frame.columns) == list(SECTIONS[name]), name
        assert all(SECTIONS[name].values())
