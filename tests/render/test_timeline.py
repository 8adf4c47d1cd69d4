"""Traces say what the tables say: every kernel, its time and its ranges, in both formats."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.render import timeline
from profiler_job.analysis.site import run_pages
from profiler_job.analysis.site.home_page import find_opening_runs
from tests import frozen, synthetic

ROOT = Path(__file__).parents[2]
RUNS = ("small-ctx128-fp32-naive-forward", "small-ctx512-fp32-naive-train_step")


def select_run(rec, run_id):
    tables = [frame[frame["run_id"].astype(str) == run_id] for frame in (rec.ranges, rec.kernels, rec.memops)]
    return [frame.reset_index(drop=True) for frame in tables]


@pytest.fixture(scope="module", params=[*RUNS, "synthetic"])
def run(request):
    if request.param == "synthetic":
        tables = select_run(synthetic.recording(("small",), (128,)), "small-ctx128-fp32-naive-train_step")
    else:
        tables = select_run(frozen.load("one_gpu"), request.param)
    step = timeline.median_step(tables[0])
    trace = timeline.trace_step(request.param, step, *tables)
    return trace, [frame[frame["step"] == step] for frame in tables]


def complete(document, category=None):
    events = [one for one in json.loads(document)["traceEvents"] if one["ph"] == "X"]
    return [one for one in events if category is None or one["cat"] == category]


def ns(microseconds):
    return round(microseconds * 1000)


def calls(profile, frames):
    """(name, file, start, end, names around it) of every call of an evented profile; fails where it does not nest."""
    inside, found, before = [], [], 0
    for event in profile["events"]:
        assert event["at"] >= before
        before = event["at"]
        if event["type"] == "O":
            inside.append((event["frame"], event["at"]))
        else:
            frame, start = inside.pop()
            assert frame == event["frame"]
            around = [frames[number]["name"] for number, _ in inside]
            found.append((frames[frame]["name"], frames[frame].get("file"), start, event["at"], around))
    assert not inside and before <= profile["endValue"]
    return sorted(found, key=lambda call: call[2])


def test_every_kernel_is_there_with_its_time_grid_and_full_name(run):
    trace, (_, kernels, _) = run
    shown = [one for one in complete(timeline.chrome(trace)) if "kernel" in one.get("args", {})]
    assert len(shown) == len(kernels)
    assert sum(ns(one["dur"]) for one in shown) == (kernels["end_ns"] - kernels["start_ns"]).sum()
    grids = kernels[["grid_x", "grid_y", "grid_z"]].astype(str).agg("x".join, axis=1)
    expected = zip(kernels["kernel_name"].astype(str), grids, kernels["registers"], kernels["end_ns"])
    zero = kernels["start_ns"].min() - min(ns(one["ts"]) for one in shown)
    found = [
        (one["args"]["kernel"], one["args"]["grid"], one["args"]["registers"], ns(one["ts"]) + ns(one["dur"]) + zero)
        for one in shown
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.long
def test_speedscope_has_the_same_kernels_under_their_ranges(run):
    trace, (_, kernels, memops) = run
    document = json.loads(timeline.speedscope(trace))
    frames = document["shared"]["frames"]
    shown = [call for p in document["profiles"] if p["name"].startswith("GPU") for call in calls(p, frames)]
    ran = [call for call in shown if call[1]]
    assert sum(end - start for _, _, start, end, _ in ran) == (kernels["end_ns"] - kernels["start_ns"]).sum()
    ordered = kernels.sort_values("start_ns", kind="stable")
    paths = (ordered["phase"].astype(str) + "/" + ordered["module"].astype(str)).str.strip("/")
    assert [file for _, file, *_ in ran] == ordered["kernel_name"].astype(str).tolist()
    assert ["/".join(around) for *_, around in ran] == paths.tolist()
    copies = [call for call in shown if call[0] in set(memops["operation"].astype(str))]
    assert len(copies) == len(memops)


def test_ranges_nest_as_in_the_table(run):
    trace, (ranges, _, _) = run
    document = json.loads(timeline.speedscope(trace))
    host = [p for p in document["profiles"] if p["name"].startswith("Host thread")]
    shown = [call for p in host for call in calls(p, document["shared"]["frames"])]
    assert sorted("/".join([*around, name]) for name, _, _, _, around in shown) == sorted(ranges["path"].astype(str))
    assert sum(call[3] - call[2] for call in shown) == (ranges["end_ns"] - ranges["start_ns"]).sum()


def test_an_arrow_leads_from_every_launch_to_its_kernels(run):
    trace, (_, kernels, _) = run
    events = complete(timeline.chrome(trace))
    launches = {one["bind_id"]: one for one in events if one.get("flow_out")}
    arrivals = [one for one in events if one.get("flow_in")]
    assert len(arrivals) == len(kernels)
    assert len(launches) == len(kernels.drop_duplicates(["launch_ns", "launch_end_ns"]))
    assert all(ns(launches[one["bind_id"]]["ts"]) <= ns(one["ts"]) for one in arrivals)


def test_a_gpu_clock_that_runs_early_is_moved_until_no_kernel_begins_before_its_launch():
    trace = trace_of([kernel(20, 30, launch=25), kernel(40, 45, launch=50)])
    assert trace.shift == 10
    gpu = next(track for track in trace.tracks if track.process == "GPU 0")
    assert [(one.start, one.end) for one in gpu.slices if one.details] == [(30, 40), (50, 55)]
    assert trace_of([kernel(26, 30, launch=25)]).shift == 0


def test_slices_of_a_track_nest_or_follow_one_another(run):
    for track in run[0].tracks:
        inside = []
        for one in track.slices:
            while inside and inside[-1].end <= one.start:
                inside.pop()
            assert not inside or one.end <= inside[-1].end, track.name
            inside.append(one)


def test_the_step_of_median_length_is_shown():
    steps = pd.DataFrame({"step": [-1, 0, 1, 1, 2, 3], "start_ns": [0, 0, 0, 2, 0, 0], "end_ns": [9, 7, 5, 3, 6, 8]})
    steps["rank"] = 0
    assert timeline.median_step(steps) == 2
    assert timeline.median_step(steps[steps["step"] < 0]) is None


def kernel(start, end, name="k", stream=7, launch=0, attribution="exact", range_id=1):
    sizes = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), 1)
    shared = dict.fromkeys(("registers", "static_shared_bytes", "dynamic_shared_bytes"), 0)
    return {
        "rank": 0, "step": 0, "range_id": range_id, "phase": "forward", "module": "ffn", "attribution": attribution,
        "kernel_name": name, "family": "other", "launch_ns": launch, "launch_end_ns": launch + 1,
        "start_ns": start, "end_ns": end, "device": 0, "stream": stream, **sizes, **shared,
    }  # fmt: skip


RANGE = {"rank": 0, "range_id": 1, "parent_id": -1, "step": 0, "phase": "", "path": "step", "thread": 0}
NO_MEMOPS = pd.DataFrame(
    columns=[
        "rank",
        "step",
        "phase",
        "module",
        "operation",
        "bytes",
        "launch_ns",
        "start_ns",
        "end_ns",
        "device",
        "stream",
    ],
)


def test_device_0_of_another_rank_is_another_gpu():
    other = RANGE | {"rank": 1, "range_id": 2, "thread": 1, "name": "step", "start_ns": 0, "end_ns": 100}
    trace = trace_of([kernel(10, 50), kernel(20, 60, range_id=2) | {"rank": 1}], [other])
    assert [(track.process, track.name) for track in trace.tracks] == [
        ("rank 0 · GPU 0", "stream 7 (kernels under their ranges)"),
        ("rank 0 · Host", "thread 0 (NVTX)"),
        ("rank 1 · GPU 0", "stream 7 (kernels under their ranges)"),
        ("rank 1 · Host", "thread 1 (NVTX)"),
    ]
    launches = [one for track in trace.tracks for one in track.slices if trace.frames[one.frame].name == "launch"]
    assert len(launches) == 2  # at one time, and still two calls


def test_the_slowest_rank_says_how_long_a_step_lasts():
    steps = pd.DataFrame({"rank": [0, 0, 0, 1, 1, 1], "step": [0, 1, 2] * 2, "start_ns": [0, 10, 20, 5, 15, 25]})
    assert timeline.median_step(steps.assign(end_ns=[4, 13, 22, 6, 24, 28])) == 0


def trace_of(kernels, ranges=()):
    ranges = pd.DataFrame([RANGE | {"name": "step", "start_ns": 0, "end_ns": 100}, *ranges])
    return timeline.trace_step("x", 0, ranges, pd.DataFrame(kernels), NO_MEMOPS)


def test_kernels_that_overlap_in_one_stream_get_tracks_of_their_own():
    trace = trace_of([kernel(10, 20), kernel(15, 30), kernel(20, 25), kernel(12, 14, stream=9)])
    gpu = [track for track in trace.tracks if track.process.startswith("GPU")]
    names = [track.name.removesuffix(" (kernels under their ranges)") for track in gpu]
    assert names == ["stream 7", "stream 7 (kernels under their ranges) (2)", "stream 9"]
    assert [len([one for one in track.slices if one.details]) for track in gpu] == [2, 1, 1]


def test_launches_from_a_thread_that_is_not_known_have_their_own_track():
    trace = trace_of([kernel(10, 20, launch=5, attribution="phase"), kernel(30, 40, launch=8)])
    assert [track.name for track in trace.tracks if track.process == "Host"] == [
        "thread 0 (NVTX)",
        "other threads (launches)",
    ]


def test_ranges_that_overlap_without_nesting_are_drawn_apart():
    other = [
        RANGE | {"range_id": n, "name": f"r{n}", "start_ns": s, "end_ns": e} for n, s, e in ((2, 5, 50), (3, 40, 90))
    ]
    trace = trace_of([kernel(10, 20)], other)
    for profile in json.loads(timeline.speedscope(trace))["profiles"]:
        calls(profile, [{"name": frame.name} for frame in trace.frames])
    assert [track.name for track in trace.tracks if track.process == "Host"] == [
        "thread 0 (NVTX)",
        "thread 0 (NVTX) (2)",
    ]


def test_names_are_data_whatever_they_hold():
    strange = '</script><img src=x onerror=alert(1)>"\n\x00|`\u2028🚀' + "x" * 4000
    twin = strange + "y"
    trace = trace_of([kernel(10, 20, strange), kernel(20, 30, twin)])
    for document in (timeline.speedscope(trace), timeline.chrome(trace)):
        document.encode("ascii")
        json.loads(document)
    files = [frame.get("file") for frame in json.loads(timeline.speedscope(trace))["shared"]["frames"]]
    assert {strange, twin} <= set(files)
    assert len({frame.name for frame in trace.frames if frame.full}) == 2


def test_a_step_without_kernels_or_ranges_is_a_trace_too():
    empty = trace_of([kernel(10, 20) | {"step": 1}])
    assert [track.name for track in empty.tracks] == ["thread 0 (NVTX)"]
    assert empty.end == 100


def test_the_same_trace_packs_to_the_same_bytes():
    trace = trace_of([kernel(10, 20)])
    packed = timeline.pack(timeline.chrome(trace))
    assert packed == timeline.pack(timeline.chrome(trace))
    assert gzip.decompress(packed).decode() == timeline.chrome(trace)


def test_of_many_runs_the_longest_training_steps_have_whole_timelines_and_of_few_all():
    """Those of 60 runs were 14 MB."""
    runs = synthetic.recording(("small", "2.7B"), (128, 512, 1024)).runs
    assert {*run_pages._choose_runs_in_full(runs)} == {
        f"{size}-ctx1024-fp32-naive-train_step" for size in ("small", "2.7B")
    }
    few = runs.head(run_pages.MOST_IN_FULL)
    assert run_pages._choose_runs_in_full(few) == few["run_id"].tolist()


def test_the_step_that_home_opens_on_has_a_timeline_to_open():
    """Its page, in a comparison, had none when home opened on another step."""
    rec = synthetic.recording(("small", "medium"), (128, 512))
    assert find_opening_runs(rec, {}) == ["medium-ctx512-fp32-naive-train_step"]
    assert find_opening_runs(replace(rec, runs=rec.runs.head(0)), {}) == []
