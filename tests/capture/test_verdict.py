"""The time of each GPU adds up to the nanosecond, causes are separate, and the sentences name them."""

import random

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.capture import chosen_part
from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.gpu_limit import PARTS
from profiler_job.analysis.insight.limit_lines import (
    FROM_CAPTURE,
    describe_gpus,
    describe_phases,
    describe_verdict,
    find_limit,
)
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.summary import Summary, summarise
from profiler_job.analysis.reference import cuda_api, kernel_families
from profiler_job.analysis.show.show_formats import as_markdown, as_text
from profiler_job.jobs.contract.step_limit import CAUSES, DATA, GAPS, LAUNCHES, UNKNOWN, StepLimit

from .nsys_files import Export
from .profiles import NAMES, profile
from .real_captures import FOLDER, read_capture

NAMES_OF_CAPTURES = sorted(path.name.removesuffix(".sqlite.packed") for path in FOLDER.glob("*.packed"))
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
MS = 1_000_000


def _summary(export: Export, tmp_path) -> Summary:
    return summarise(read(export.sqlite(tmp_path / "x.sqlite"), details=False))


def _parts(summary: Summary, gpu: int = 0) -> dict[str, int]:
    """The parts of one GPU that are not 0."""
    row = summary.sections["verdict"].set_index("gpu").loc[gpu]
    return {name: int(row[name]) for name in PARTS if row[name]}


def _sum_parts(export: Export, tmp_path, gpu: int = 0) -> dict[str, int]:
    return _parts(_summary(export, tmp_path), gpu)


# --------------------------------------------------------------------------------------------------------------- causes


def test_a_gap_before_a_late_launch_is_the_hosts(tmp_path):
    export = Export()
    export.launch(0)  # runs from 10 to 15: the shortest way
    export.launch(100)
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 10, "late_launch_ns": 95, "no_work_ns": 10}


def test_as_long_as_the_host_waits_a_launch_is_late_for_a_synchronisation(tmp_path):
    export = Export()
    export.launch(0)
    export.call(12, 60, name="cudaStreamSynchronize_v3020", thread=2)
    export.call(50, 70, name="cudaEventSynchronize_v3020")
    export.launch(100)
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 10, "late_launch_ns": 37, "sync_ns": 58, "no_work_ns": 10}


def test_what_another_process_waits_for_is_no_synchronisation(tmp_path):
    export = Export()
    export.launch(0)
    export.call(12, 60, name="cudaStreamSynchronize_v3020", process=2)
    export.launch(100)
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 10, "late_launch_ns": 95, "no_work_ns": 10}


def test_what_is_launched_and_not_started_waits_between_operations(tmp_path):
    export = Export()
    export.launch(0)
    export.launch(5, start=40)
    export.launch(20, start=60)  # ready at 30
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 15, "between_ns": 40, "no_work_ns": 10}


def test_a_gap_is_late_until_the_launch_and_between_operations_after_it(tmp_path):
    export = Export()
    export.launch(0)
    export.launch(50, start=100)  # ready at 60
    assert _sum_parts(export, tmp_path) == {
        "kernels_ns": 10,
        "late_launch_ns": 45,
        "between_ns": 40,
        "no_work_ns": 10,
    }


def test_a_call_that_takes_longer_than_usual_launches_late(tmp_path):
    """The first launch of a kernel loads its code inside the call."""
    export = Export()
    for at in (0, 20, 40, 60):
        export.launch(at)
    export.kernel(510, 515, export.call(80, 502))
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 25, "late_launch_ns": 480, "no_work_ns": 10}


@pytest.mark.parametrize("lead", [3, 12, 40])
def test_kernels_that_begin_before_their_launch_change_no_cause(tmp_path, lead):
    """The clocks of host and GPU differ: on the GPU's, all is `lead` + 10 ns earlier."""
    export = Export()
    export.push("step", 0, 3000)
    export.launch(1000, start=1000 - lead)
    export.launch(1050, start=1100 - lead)
    export.launch(1200, start=1200 - lead)
    found = _sum_parts(export, tmp_path)
    assert found == {"kernels_ns": 15, "late_launch_ns": 45 + 95, "between_ns": 50, "no_work_ns": 2795}


def test_clocks_that_drift_apart_do_not_hide_late_launches(tmp_path):
    export = Export()
    for at in range(1, 10**10, 10**8):
        export.launch(at, start=at + 5000 + at // 250_000, end=at + 6000 + at // 250_000)
    found = _sum_parts(export, tmp_path)
    assert "between_ns" not in found
    assert found["late_launch_ns"] == pytest.approx(99 * 10**8, rel=1e-4)


def test_without_api_calls_no_cause_is_given(tmp_path):
    export = Export()
    export.launch(0)
    export.launch(100)
    export.drop("CUPTI_ACTIVITY_KIND_RUNTIME")
    summary = _summary(export, tmp_path)
    assert _parts(summary) == {"kernels_ns": 10, "unknown_idle_ns": 95}
    assert summary.launches["dry_ns"] is None
    limit = find_limit(summary)
    assert (limit.names, limit.cause, limit.is_launches) == (("CPU",), UNKNOWN, False)


def test_one_operation_of_unknown_launch_is_unknown_alone(tmp_path):
    export = Export()
    export.launch(0)
    export.kernel(30, 35, 999)
    export.launch(100)
    found = _sum_parts(export, tmp_path)
    assert found == {"kernels_ns": 15, "unknown_idle_ns": 15, "late_launch_ns": 75, "no_work_ns": 10}


# ---------------------------------------------------------------------------------------------------------- what runs


def test_copies_beside_kernels_are_hidden(tmp_path):
    export = Export()
    export.launch(0, start=10, end=50)
    export.copy(30, 90, export.call(2, 4, name="cudaMemcpyAsync"))
    export.memset(40, 100, export.call(5, 6, name="cudaMemsetAsync"))
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 40, "copies_ns": 50, "no_work_ns": 10}


def test_communication_counts_where_no_kernel_hides_it(tmp_path):
    export = Export()
    export.launch(0, start=10, end=110, name=NCCL, stream=8)
    export.launch(1, start=30, end=50)
    export.launch(2, start=90, end=200)
    export.copy(20, 40, export.call(3, 4, name="cudaMemcpyAsync"))
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 130, "communication_ns": 60, "no_work_ns": 10}


def test_kernels_of_streams_that_overlap_count_once(tmp_path):
    export = Export()
    export.launch(0, start=10, end=100, stream=1)
    export.launch(1, start=20, end=40, stream=2)
    export.launch(2, start=30, end=130, stream=3)
    export.launch(3, start=130, end=140, stream=2)
    assert _sum_parts(export, tmp_path) == {"kernels_ns": 130, "no_work_ns": 10}


def test_whole_graph_executions_count_as_graphs(tmp_path):
    export = Export()
    export.launch(0, start=10, end=30)
    export.graph(20, 90, export.call(2, 8, name="cudaGraphLaunch_v10000"))
    export.graph(150, 190, export.call(100, 140, name="cudaGraphLaunch_v10000"))
    summary = _summary(export, tmp_path)
    # The call of the second ends at 140, and is taken to need the 10 ns that the kernel's needed.
    assert _parts(summary) == {"kernels_ns": 20, "graphs_ns": 100, "late_launch_ns": 60, "no_work_ns": 10}
    assert describe_verdict(summary)[0] == (
        "GPU 0: limited by the GPU, 55.6% of 180 ns: the GPU runs work whose kernels are not seen"
    )


def test_gaps_inside_a_graph_are_the_gpus_own(tmp_path):
    export = Export()
    export.launch(0)
    call = export.call(50, 90, name="cudaGraphLaunch_v10000")
    for start in (100, 110, 130):
        export.kernel(start, start + 5, call, graph_node=start)
    assert _sum_parts(export, tmp_path) == {
        "kernels_ns": 20,
        "late_launch_ns": 85,
        "between_ns": 20,
        "no_work_ns": 10,
    }


def test_every_gpu_has_the_same_elapsed_time(tmp_path):
    export = Export()
    export.launch(0, start=10, end=500)
    export.launch(100, start=110, end=200, device=1)
    export.launch(300, device=1)
    export.push("step", 0, 1000)
    summary = _summary(export, tmp_path)
    assert summary.sections["verdict"]["elapsed_ns"].tolist() == [1000, 1000]
    assert _parts(summary) == {"kernels_ns": 490, "no_work_ns": 510}
    assert _parts(summary, 1) == {"kernels_ns": 95, "late_launch_ns": 110, "no_work_ns": 795}


def test_an_idle_time_has_the_phase_of_the_operation_that_ends_it(tmp_path):
    export = Export()
    export.push("forward", 0, 100)
    export.push("backward", 200, 300)
    for at in (0, 50, 220, 400):
        export.launch(at)
    summary = _summary(export, tmp_path)
    rows = summary.sections["verdict_phases"].set_index("phase")
    assert rows["elapsed_ns"].to_dict() == {"forward": 55, "backward": 170, "": 190}
    assert rows["kernels_ns"].to_dict() == {"forward": 10, "backward": 5, "": 5}
    assert rows["late_launch_ns"].to_dict() == {"forward": 45, "backward": 165, "": 175}
    assert rows["no_work_ns"].to_dict() == {"forward": 0, "backward": 0, "": 10}
    assert describe_verdict(summary)[3] == (
        "By phase, with what limits it: forward 55 ns (CPU 81.8%), backward 170 ns (CPU 97.1%), "
        "in no phase 180 ns (CPU 97.2%)"
    )


def test_a_phase_of_two_gpus_takes_what_it_takes_one_in_the_mean():
    """GPUs run at the same time: a sum of theirs would be longer than the capture."""
    parts = {"phase": "forward", "kernels_ns": 300}
    rows = [{"gpu": 0, "elapsed_ns": 400, "between_ns": 100}, {"gpu": 1, "elapsed_ns": 600, "between_ns": 300}]
    rows = pd.DataFrame([row | parts for row in rows])
    assert describe_phases(rows) == ["By phase, mean of 2 GPUs, with what limits it: forward 500 ns (memory 60.0%)"]


def test_an_inferred_phase_is_labelled_so_and_a_tiny_one_left_out(tmp_path):
    export = Export()
    export.push("forward", 0, 100)
    export.push("optimizer", 9_000, 9_001)
    export.launch(0)
    export.launch(9_000)
    export.launch(10_000)
    summary = _summary(export, tmp_path)
    phases = summary.sections["phases"]
    phases.loc[phases["phase"] == "optimizer", "inferred_share"] = 1.0
    assert describe_verdict(summary)[3] == (
        "By phase, with what limits it: optimizer 9.00 µs (CPU 99.9%, inferred), in no phase 1.00 µs (CPU 99.5%)"
    )


# ------------------------------------------------------------------------------------------------------------ exactness


def _plain(capture: Capture, gpu: int) -> dict[tuple[str, str], int]:
    """(part, phase) -> ns of one GPU, worked out one nanosecond at a time; clocks do not drift in so short a time."""
    place, kinds = attribute(capture), ["kernels_ns", "graphs_ns", "communication_ns", "copies_ns"]
    operations, calls = [], capture.api
    for name in ("kernels", "graphs", "memops"):
        frame = getattr(capture, name).join(getattr(place, name)[["api", "phase"]])
        for row in frame[frame["device"] == gpu].itertuples():
            kind = {"kernels": "kernels_ns", "graphs": "graphs_ns", "memops": "copies_ns"}[name]
            if name == "kernels" and kernel_families.find_family(row.kernel_name) == "communication":
                kind = "communication_ns"
            operations.append((row.start_ns, row.end_ns, kind, row.phase, row.api))
    operations.sort(key=lambda operation: operation[0])
    api = {number: (row.start_ns, row.end_ns, row.process) for number, row in enumerate(calls.itertuples())}
    launched = [*place.kernels["api"], *place.graphs["api"], *place.memops["api"]]
    shared = {call for call in launched if call >= 0 and launched.count(call) > 1}
    known = [operation for operation in operations if operation[4] >= 0]
    nodes = [kind == "graphs_ns" or call in shared for _, _, kind, _, call in known]
    least = min(start - api[call][0] for (start, *_, call), is_node in zip(known, nodes) if not is_node)
    usual = int(np.median([api[call][1] - api[call][0] for *_, call in known]))
    syncs = [row for row in calls.itertuples() if cuda_api.find_group(row.name) == "synchronisation"]
    frames = (capture.kernels, capture.graphs, capture.memops, capture.api, capture.ranges, capture.syncs)
    begin = min(frame["start_ns"].min() for frame in frames if len(frame))
    found: dict[tuple[str, str], int] = {}
    first, last = operations[0][0], max(end for _, end, *_ in operations)
    seen: set[int] = set()
    later = set()
    for number, (*_, call) in enumerate(operations):
        if call in seen and call in shared:
            later.add(number)
        seen.add(call)
    for now in range(begin, begin + capture.events_ns):
        running = [operation for operation in operations if operation[0] <= now < operation[1]]
        if running:
            kind = min((operation[2] for operation in running), key=kinds.index)
            key = (kind, next(operation[3] for operation in running if operation[2] == kind))
        elif not first <= now < last:
            key = ("no_work_ns", "")
        else:
            number, (_, _, kind, phase, call) = next(
                (number, operation) for number, operation in enumerate(operations) if operation[0] > now
            )
            key = (_cause(now, kind, call, api, shared, number in later, least, usual, syncs), phase)
        found[key] = found.get(key, 0) + 1
    return found


def _cause(now, kind, call, api, shared, is_later, least, usual, syncs) -> str:
    if call < 0:
        return "unknown_idle_ns"
    begin, end, process = api[call]
    made = begin + max(end - begin - usual, 0) * (kind != "copies_ns")
    ready = (end if kind == "graphs_ns" or call in shared else made) + least
    if is_later or now >= ready:
        return "between_ns"
    waits = any(sync.process == process and sync.start_ns <= now - least < sync.end_ns for sync in syncs)
    return "sync_ns" if waits else "late_launch_ns"


def _random_capture(seed: int) -> Export:
    rng, export = random.Random(seed), Export()
    for process in (1, 2):
        at = rng.randint(0, 300)
        export.push("forward", at, at + 200, process=process)
        export.push("backward", at + 300, at + 500, process=process)
        for thread in (1, 2):
            for _ in range(rng.randint(3, 25)):
                at, device = rng.randrange(1200), rng.randrange(2)
                start = at + rng.randint(-5, 150)
                end = start + rng.choice([0, 1, 20, 60, 200])
                call = export.call(at, at + rng.choice([2, 3, 3, 50]), process=process, thread=thread)
                where = {"process": process, "device": device}
                match rng.choice(["kernel", "kernel", "nccl", "copy", "memset", "graph", "nodes", "lost", "sync"]):
                    case "kernel" | "lost" as kind:
                        export.kernel(start, end, call if kind == "kernel" else 10**6 + at, **where)
                    case "nccl":
                        export.kernel(start, end, call, name=NCCL, **where)
                    case "nodes":
                        export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["nameId"] = export.string("cudaGraphLaunch")
                        for lag in (0, 30, 50):
                            export.kernel(start + lag, start + lag + 10, call, **where)
                    case "sync":
                        wait = at + rng.randint(0, 200)
                        export.call(at, wait, process=process, thread=thread, name="cudaDeviceSynchronize")
                    case kind:
                        getattr(export, kind)(start, end, call, **where)
        export.launch(1300, process=process)
        export.launch(1300, process=process, device=1)
    return export


@pytest.mark.parametrize("seed", range(16))
def test_the_parts_equal_a_plain_count_on_random_captures(tmp_path, seed):
    capture = read(_random_capture(seed).sqlite(tmp_path / "x.sqlite"))
    summary = summarise(capture)
    phases = summary.sections["verdict_phases"]
    for gpu in (0, 1):
        rows = phases[phases["gpu"] == gpu].set_index("phase")[list(PARTS)].stack()
        assert {(part, phase): ns for (phase, part), ns in rows.items() if ns} == _plain(capture, gpu)
    _check_sums(summary)


def _check_sums(summary: Summary) -> None:
    rows, phases = summary.sections["verdict"], summary.sections["verdict_phases"]
    assert (rows[list(PARTS)] >= 0).all(axis=None)
    assert rows[list(PARTS)].sum(axis=1).tolist() == rows["elapsed_ns"].tolist()
    assert rows["elapsed_ns"].tolist() == [summary.capture["events_ns"]] * len(rows)
    assert rows["gpu"].tolist() == summary.sections["gpus"]["gpu"].tolist()
    busy = rows[["kernels_ns", "graphs_ns", "communication_ns", "copies_ns"]].sum(axis=1)
    assert busy.tolist() == summary.sections["gpus"]["busy_ns"].tolist()
    if len(phases):
        assert phases[list(PARTS)].sum(axis=1).tolist() == phases["elapsed_ns"].tolist()
        of_gpus = phases.drop(columns="phase").groupby("gpu").sum().reset_index()
        assert of_gpus.to_dict("list") == rows.to_dict("list")


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_real_capture_add_up(name):
    _check_sums(summarise(read(profile(name), details=False)))


def test_a_capture_of_nanoseconds_and_one_of_days_add_up(tmp_path):
    day = 86400 * 10**9
    for number, ends in enumerate([0, 90 * day]):
        export = Export()
        export.kernel(0, 0, 5)
        export.kernel(ends, ends, 6)
        summary = summarise(read(export.sqlite(tmp_path / f"{number}.sqlite")))
        _check_sums(summary)
        assert describe_verdict(summary)[0].startswith("GPU 0: ")


# ------------------------------------------------------------------------------------------------------------ sentences


def _lines(export: Export, tmp_path) -> list[str]:
    return describe_verdict(_summary(export, tmp_path))


def test_a_capture_that_copies_is_limited_by_memory(tmp_path):
    export = Export()
    at = 0
    for number in range(10):
        export.copy(at, at + 92 * MS, export.call(number, number + 1, name="cudaMemcpyAsync"))
        export.launch(number + 2, start=at + 92 * MS, end=at + 96 * MS)
        at += 97 * MS
    limit, parts, *_ = _lines(export, tmp_path)
    assert limit == "GPU 0: limited by memory, 99.1% of 969 ms: copies from and to the CPU's memory take 920 ms"
    assert parts == "969 ms = memory 960 ms (99.1%) + CPU 9.00 ms (0.9%)"


def test_a_queue_that_runs_dry_is_said_beside_its_mean(tmp_path):
    export = Export()
    for number in range(281):
        export.launch(number, start=10 + number * 1000, end=1010 + number * 1000)
    export.launch(7_781_010, start=7_781_020, end=7_781_030)
    summary = _summary(export, tmp_path)
    assert summary.launches["queue_mean"] > 135
    assert summary.launches["dry_ns"] == 7_500_010
    text = " ".join(as_text(summary, 20, 120).split())
    assert "queue 138 kernels in the median, 138.5 on average, 279 at most; empty for 7.50 ms while a GPU idled" in text


def test_the_cpu_is_named_with_how_long_the_gpu_waits(tmp_path):
    export = Export()
    for number in range(100):
        export.launch(100 * number, start=100 * number + 10, end=100 * number + 45)
    assert _lines(export, tmp_path) == [
        "GPU 0: limited by the CPU, 64.8% of 9.94 µs: the GPU waits for launches",
        "9.94 µs = memory 3.50 µs (35.2%) + CPU 6.43 µs (64.8%)",
        "CPU: launches 6.43 µs",
        FROM_CAPTURE,
    ]


def test_gaps_between_kernels_that_were_launched_are_no_wait_for_launches(tmp_path):
    export = Export()
    for number in range(100):
        export.launch(number, start=1000 + 100 * number, end=1035 + 100 * number)
    first, _, causes, *_ = _lines(export, tmp_path)
    assert "limited by the CPU" in first and CAUSES[GAPS] in first and CAUSES[LAUNCHES] not in first
    assert CAUSES[GAPS] in causes and CAUSES[LAUNCHES] not in causes


def test_communication_that_nothing_hides_is_named(tmp_path):
    export = Export()
    export.launch(0, start=10, end=90, name=NCCL)
    export.launch(1, start=90, end=110)
    assert _lines(export, tmp_path)[0] == ("GPU 0: limited by communication, 80.0% of 100 ns: only communication runs")


def test_a_gpu_that_mostly_has_no_work_is_said_to_have_none(tmp_path):
    export = Export()
    export.push("load", 0, 900)
    export.launch(900, start=910, end=1000)
    assert _lines(export, tmp_path) == [
        "GPU 0: limited by memory, 100.0% of 90 ns: other kernels and copies run",
        "90 ns = memory 90 ns (100.0%)",
        "910 ns more without work, before its first and after its last operation",
        FROM_CAPTURE,
    ]


def _with_start_up(loads: list[int]) -> Export:
    """A kernel each 10 ms of a second, and calls that load code."""
    export = Export()
    for number in range(100):
        export.launch(10 * number * MS, start=10 * number * MS + 10, end=10 * number * MS + MS)
    for at in loads:
        export.call(at, at + MS, name="cuLibraryLoadData")
    export.call(1200 * MS, 1201 * MS, name="cuLibraryUnload")
    return export


@pytest.mark.parametrize(
    ("loads", "between"),
    [
        ([100 * MS, 399 * MS], "400ms,991ms"),
        ([60 * MS], "61000us,991ms"),
        ([], None),
        ([10 * MS], None),  # the first steps hide nothing
        ([300 * MS, 980 * MS], "301ms,991ms"),  # the last comes after a long pause
        ([300 * MS, 700 * MS, 980 * MS], None),  # nothing comes after it
        ([1100 * MS], None),  # no GPU works any more
    ],
)
def test_start_up_that_hides_what_comes_after_it_is_said_with_how_to_leave_it_out(tmp_path, loads, between):
    path = _with_start_up(loads).sqlite(tmp_path / "x.sqlite")
    summary = summarise(read(path))
    lines = [line for line in describe_verdict(summary) if line.startswith("Start-up is in these numbers")]
    assert len(lines) == (between is not None)
    if between:
        assert f"--between {between} " in lines[0]
        start, end = chosen_part.parse_moments(between)
        assert start >= summary.capture["loading_end_ns"] and end >= summary.capture["work_end_ns"]
        steady = summarise(read(path), selection=chosen_part.Selection(between=(start, end)))
        assert not any(line.startswith("Start-up") for line in describe_verdict(steady))
        assert steady.capture["work_start_ns"] > start


def test_a_few_gpus_have_a_line_each_and_many_a_summary(tmp_path):
    for number, gpus in enumerate((2, 9)):
        export = Export()
        for device in range(gpus):
            export.launch(0, start=10, end=100 + device, device=device)
            if gpus == 9:
                export.launch(190, start=200, end=210, device=device)
        lines = describe_verdict(summarise(read(export.sqlite(tmp_path / f"{number}.sqlite"))))
        if gpus == 2:
            assert [line.split(":")[0] for line in lines] == ["GPU 0", "GPU 1", FROM_CAPTURE.split(":")[0]]
            assert "90 ns = memory 90 ns (100.0%). 11 ns more without work" in lines[0]
        else:
            assert lines[0] == "9 GPUs, together: limited by either memory or the CPU, 52.0% and 48.0% of 1.80 µs"
            assert lines[-2] == "By GPU, it waits for the CPU 46.0% (GPU 8) to 50.0% (GPU 0) of the time"


@pytest.mark.parametrize(
    ("parts", "interval_ns", "names"),
    [
        ({"compute": 50, "CPU": 40, "memory": 10}, 0, ("compute",)),
        ({"compute": 50, "CPU": 47, "memory": 3}, 0, ("compute", "CPU")),
        ({"compute": 50, "CPU": 40, "memory": 10}, 11, ("compute", "CPU")),
        ({"communication": 50, "CPU": 40}, 0, ("communication",)),
        ({"memory": 57, "compute": 30, "CPU": 13}, 40, ("memory",)),
        ({"CPU": 74, "memory": 19, "compute": 7}, 60, ("CPU",)),
        ({"CPU": 60, "memory": 31, "compute": 9}, 60, ("CPU", "memory")),
        ({}, 0, ()),
    ],
)
def test_the_largest_part_limits_a_step_or_either_of_two_within_its_interval(parts, interval_ns, names):
    """Intervals of steps are of waiting. A page had `CPU (74%) or memory (19%) limits this step`."""
    assert StepLimit(parts, interval_ns=interval_ns).names == names


def test_matmuls_and_attention_are_compute_and_all_else_is_memory(tmp_path):
    export = Export()
    for number, name in enumerate(("nvjet_sm90_tst_96x128_64x7_2x1_v_bz_TNN", "flash_fwd_kernel", "mul_kernel")):
        export.launch(number, start=10 + 100 * number, end=110 + 100 * number, name=name)
    limit = find_limit(_summary(export, tmp_path))
    assert limit.parts == {"compute": 200, "memory": 100, "communication": 0, "CPU": 0, "GPU": 0}


def test_waiting_before_a_copy_from_the_host_is_for_data(tmp_path):
    export = Export()
    export.launch(0)
    export.copy(500, 510, export.call(480, 490, name="cudaMemcpyAsync"), kind=1)
    export.launch(505)
    limit = find_limit(_summary(export, tmp_path))
    assert limit.cause == DATA and limit.causes[DATA] > 400


@pytest.mark.parametrize(
    ("copied_ns", "sentence"),
    [
        (600, "copies from and to the CPU's memory take 600 ns"),
        (200, "other kernels and copies run"),
    ],
)
def test_copies_from_the_host_are_named_where_they_take_most_of_a_step(copied_ns, sentence, tmp_path):
    """A step with 14.8 of 25 ms of pageable copies was said to be limited by memory, without a word of them. What a
    kernel hides, and copies inside the GPU, count for none."""
    export = Export()
    export.launch(0, start=10, end=410, name="mul_kernel")
    export.copy(310, 410 + copied_ns, export.call(300, 400, name="cudaMemcpyAsync"), kind=1)
    export.copy(410 + copied_ns, 510 + copied_ns, export.call(405, 406, name="cudaMemcpyAsync"), kind=8)
    summary = _summary(export, tmp_path)
    limit = find_limit(summary)
    assert limit.host_copies_ns == copied_ns and limit.parts["memory"] == 500 + copied_ns
    assert describe_verdict(summary)[0].endswith(sentence)


def test_a_capture_without_gpu_work_says_so(tmp_path):
    export = Export()
    export.push("load", 0, 900)
    summary = _summary(export, tmp_path)
    assert [len(summary.sections[name]) for name in ("verdict", "verdict_phases")] == [0, 0]
    assert describe_verdict(summary) == ["No kernels in 900 ns of events: nothing shows what limits a GPU"]


def test_the_verdict_stands_before_all_other_facts(tmp_path):
    export = Export()
    export.launch(0)
    summary = _summary(export, tmp_path)
    assert as_text(summary, 20, 120).splitlines()[1].startswith("  GPU 0: limited by memory")
    assert as_markdown(summary, 20).splitlines()[2].startswith("- GPU 0: limited by memory")
    assert list(SECTIONS)[:2] == ["verdict", "verdict_phases"]


@pytest.mark.parametrize("name", NAMES_OF_CAPTURES)
def test_the_first_screen_has_the_limit_and_three_things_to_do(tmp_path, name):
    summary = summarise(read_capture(name, tmp_path), skips_startup=True)
    screen = as_text(summary, 20, 80).splitlines()[:25]
    assert any("limited by" in line for line in screen) and any("By phase" in line for line in screen)
    advised = summary.sections["advice"]["reason"] == ""
    numbered = [line for line in screen if line.strip()[:3] in ("1. ", "2. ", "3. ")]
    assert len(numbered) == min(3, int(advised.sum())) > 0


def test_a_mean_over_steps_with_a_fraction_of_a_nanosecond_has_no_time_without_work():
    rows = pd.DataFrame({"gpu": [0], "elapsed_ns": [300.5], "kernels_ns": [200.25], "between_ns": [100.25]})
    _, parts, _ = describe_gpus(rows)
    assert parts == "300 ns = memory 200 ns (66.6%) + CPU 100 ns (33.4%)"
