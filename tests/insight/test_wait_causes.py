"""What each idle gap is for: launches, data, a synchronisation, or nothing; and the phases of a line."""

import time

import pandas as pd
import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.limit_lines import describe_waits, find_limit
from profiler_job.analysis.insight.summary import summarise
from profiler_job.jobs.contract.ranges import SLEEP_RANGE
from profiler_job.jobs.contract.step_limit import (
    COMPUTE,
    CPU,
    DATA,
    GAPS,
    LAUNCHES,
    NOTHING,
    SYNCHRONISATION,
    StepLimit,
    describe_causes,
    describe_limit,
)
from profiler_job.jobs.follow import host_waits
from tests.capture.nsys_files import Export
from tests.insight.test_waits import MS, STEP, TORCH, take_samples

LOADER = (("get", "/usr/lib/python3.12/queue.py", 5), ("__next__", f"{TORCH}/utils/data/dataloader.py", 7))
FETCH = (("__getitem__", "data.py", 4), ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 50))
TOKENIZER = (("encode", "/env/lib/python3.12/site-packages/tiktoken/core.py", 90),)
SAVE = (("dump", "/usr/lib/python3.12/pickle.py", 5), ("save", f"{TORCH}/serialization.py", 900))
REQUEST = (("readinto", "/usr/lib/python3.12/socket.py", 700), ("get", "/x/site-packages/requests/api.py", 70))
SLEEPING = ("train_step", "train.py", 16)


def make_gap(*frames, copies: bool = False) -> Export:
    """The GPU works at 0-1 and 9-10 ms; in between the thread that launches is in `frames` below a line of the user."""
    export = Export()
    export.launch(0, start=1000, end=MS)
    if copies:
        call = export.call(9 * MS - 1000, 9 * MS, name="cudaMemcpyAsync_v3020")
        export.copy(9 * MS, 10 * MS, call)
    else:
        export.launch(9 * MS - 1000, start=9 * MS, end=10 * MS)
    if frames:
        take_samples(export, 0, 10, *frames)
    return export


def measure(export: Export, folder) -> tuple[StepLimit, dict[str, float]]:
    """The limit of the capture, and the sums of its lines by cause (ms)."""
    summary = summarise(read(export.sqlite(folder / "x.sqlite")))
    limit = find_limit(summary)
    sums = summary.sections["waits"][["late_launch_ns", "data_ns", "nothing_ns"]].sum()
    assert limit.step_ns == 10 * MS - 1000 and sum(limit.causes.values()) == limit.parts[CPU]
    return limit, {name: ns / MS for name, ns in sums.items()}


@pytest.mark.parametrize("above", [LOADER, FETCH, TOKENIZER], ids=["next", "fetch", "token"])
def test_a_gap_in_a_data_loader_or_a_tokenizer_waits_for_data(above, tmp_path):
    limit, sums = measure(make_gap(*above, STEP), tmp_path)
    assert limit.causes[DATA] == pytest.approx(8 * MS, rel=0.01) and limit.cause == DATA
    assert sums == pytest.approx({"late_launch_ns": 8, "data_ns": 8, "nothing_ns": 0}, rel=0.01)
    assert describe_limit(limit).endswith("the GPU waits for data")


@pytest.mark.parametrize("frames", [(*SAVE, STEP), (*REQUEST, STEP)], ids=["checkpoint", "network"])
@pytest.mark.parametrize("copies", [False, True])
def test_a_gap_in_a_checkpoint_or_the_network_has_nothing_to_do(frames, copies, tmp_path):
    """Even before a copy from the host, as at the start of the next step."""
    limit, sums = measure(make_gap(*frames, copies=copies), tmp_path)
    assert limit.causes[NOTHING] == pytest.approx(8 * MS, rel=0.01) and limit.causes[DATA] == 0
    assert sums == pytest.approx({"late_launch_ns": 8, "data_ns": 0, "nothing_ns": 8}, rel=0.01)
    assert describe_causes(limit) == "CPU: nothing to do 8.00 ms"


def test_a_gap_in_own_code_keeps_its_answer(tmp_path):
    """Before a copy from the host it waits for data, else for launches."""
    (tmp_path / "copies").mkdir()
    assert measure(make_gap(STEP), tmp_path)[0].cause == LAUNCHES
    assert measure(make_gap(STEP, copies=True), tmp_path / "copies")[1]["data_ns"] == pytest.approx(8, rel=0.01)


ENGINE = (("_engine_run_backward", f"{TORCH}/autograd/graph.py", 800),)
ADAM = (("step", f"{TORCH}/optim/adam.py", 240),)


@pytest.mark.parametrize("above", [ENGINE, ADAM], ids=["backward", "optimizer"])
def test_a_gap_in_an_optimizer_before_a_copy_waits_for_launches(above, tmp_path):
    """The next batch comes after it: 30% of the waiting for minGPT's optimizer was for data."""
    limit, sums = measure(make_gap(*above, STEP, copies=True), tmp_path)
    assert limit.cause == LAUNCHES and limit.causes[DATA] < 0.1 * MS
    assert sums["data_ns"] == 0 and sums["late_launch_ns"] == pytest.approx(8, rel=0.01)


def sleep_as_range(export: Export) -> None:
    export.push(SLEEP_RANGE, 2 * MS, 8 * MS)


def sleep_as_call(export: Export) -> None:
    export.os_call("clock_nanosleep", 2 * MS, 8 * MS)
    export.os_call("clock_nanosleep", 0, 10 * MS, thread=9)
    export.os_call("poll", 0, 10 * MS)


@pytest.mark.parametrize("sleep", [sleep_as_range, sleep_as_call])
@pytest.mark.parametrize("frames", [(), (SLEEPING,)], ids=["without samples", "with samples"])
def test_a_thread_that_sleeps_has_nothing_to_do(sleep, frames, tmp_path):
    export = make_gap(*frames)
    sleep(export)
    limit, _ = measure(export, tmp_path)
    assert limit.causes[NOTHING] == pytest.approx(6 * MS, rel=0.01)
    assert limit.causes[LAUNCHES] == pytest.approx(2 * MS, rel=0.01)
    assert describe_limit(limit).endswith("the GPU has nothing to do")


def test_a_data_set_that_sleeps_makes_data(tmp_path):
    export = make_gap(*FETCH, STEP)
    export.push("data", MS, 9 * MS - 2000)
    sleep_as_range(export)
    assert measure(export, tmp_path)[0].causes[NOTHING] == 0


def test_what_a_script_sleeps_has_a_range(monkeypatch):
    opened = []
    ranges = host_waits.SleepRanges(opened.append, lambda: opened.append("pop"))
    ranges.begin()
    time.sleep(0)
    ranges.end()
    time.sleep(0)
    assert opened == [host_waits.SLEEP, "pop"] == [SLEEP_RANGE, "pop"]


@pytest.mark.parametrize(
    ("in_forward", "expected"), [(3, "backward 57%; forward 43%"), (6.5, "forward")], ids=["both", "nearly one"]
)
def test_a_line_of_several_phases_has_each_with_its_share(in_forward, expected, tmp_path):
    """A helper that forward and backward call."""
    export = Export()
    middle = round((1 + in_forward) * MS)
    for at, end in ((0, MS), (middle, middle + 1000), (8 * MS, 9 * MS)):
        export.launch(at, start=at + 10, end=end)
    export.push("forward", 0, middle + 2000)
    export.push("backward", middle + 3000, 9 * MS)
    take_samples(export, 0, 9, ("helper", "train.py", 3), STEP)
    rows = summarise(read(export.sqlite(tmp_path / "x.sqlite"))).sections["waits"].set_index("where")
    assert rows.loc["train.py:3", "phase"] == expected


@pytest.mark.parametrize(
    ("causes", "expected", "named"),
    [
        ({LAUNCHES: 40, DATA: 37}, (LAUNCHES, DATA), "waits for data and launches"),
        ({LAUNCHES: 20, GAPS: 21, SYNCHRONISATION: 40}, (LAUNCHES, SYNCHRONISATION), "waits for synchronisation and"),
        ({DATA: 40, NOTHING: 41}, (NOTHING, DATA), "waits for data and has nothing to do"),
        ({LAUNCHES: 40, DATA: 35}, (LAUNCHES,), "waits for launches"),
        ({GAPS: 40, DATA: 10}, (LAUNCHES,), "waits in gaps between kernels"),
    ],
)
def test_two_causes_that_take_about_as_long_are_both_named(causes, expected, named):
    """The second was hidden, though which is larger may change from step to step."""
    limit = StepLimit({CPU: float(sum(causes.values())), COMPUTE: 9.0}, causes)
    assert limit.main_causes == expected and limit.cause == expected[0]
    assert f": the GPU {named}" in describe_limit(limit)
    assert set(limit.main_causes) <= limit.targets
    assert limit.is_launches == (LAUNCHES in expected)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"kernels_ns": 60, "late_launch_ns": 30, "between_ns": 10}, "mostly for launches"),
        ({"kernels_ns": 60, "late_launch_ns": 10, "between_ns": 30}, "mostly in gaps between kernels"),
        ({"kernels_ns": 60, "late_launch_ns": 40, "sync_ns": 0, "data_ns": 30}, "mostly for data"),
        ({"kernels_ns": 60, "unknown_idle_ns": 40}, ""),
        ({"kernels_ns": 999, "late_launch_ns": 1}, ""),
    ],
)
def test_what_a_gpu_waits_for_most_is_named_if_it_is_known(row, words):
    assert describe_waits(pd.DataFrame([row])) == words
