"""What of communication between GPUs is waiting, what is hidden, and when nothing can be said."""

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.capture import collective_time
from profiler_job.analysis.capture.collective_time import (
    compute_bus_factor,
    compute_critical_time,
    measure,
    parse_collective,
)
from profiler_job.analysis.capture.intervals import Union
from profiler_job.analysis.insight.communication_lines import LOOK_AT_CPU, NO_CAUSES, describe_ranks

COMPUTE = ""


def kernels(*rows: tuple, **more) -> pd.DataFrame:
    """Rows of (gpu, collective, start, end), in units of 1 ms; a rank for each GPU."""
    frame = pd.DataFrame(rows, columns=["gpu", "collective", "start_ns", "end_ns"])
    frame[["start_ns", "end_ns"]] = (frame[["start_ns", "end_ns"]] * 1_000_000).astype("int64")
    of_all = {
        "rank": frame["gpu"],
        "stream": 7,
        "launch_ns": -1,
        "bytes": -1,
        "communicator": -1,
        "is_matmul": False,
        "kind": 0,
        "kernel_name": "kernel",
    } | more
    frame = frame.assign(**of_all)
    frame["is_matmul"] &= frame["collective"] == COMPUTE
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)


def select_gpu(measured: collective_time.Communication, gpu: int) -> pd.Series:
    return measured.of_gpus.set_index("gpu").loc[gpu]


def ms(value) -> float:
    return float(value) / 1e6


def test_the_wait_for_the_last_rank_is_no_transfer():
    measured = measure(kernels((0, "AllReduce", 0, 10), (1, "AllReduce", 7, 10)))
    early, late = select_gpu(measured, 0), select_gpu(measured, 1)
    assert [ms(early[name]) for name in ("kernel_ns", "waiting_ns", "transfer_ns")] == [10, 7, 3]
    assert [ms(late[name]) for name in ("kernel_ns", "waiting_ns", "transfer_ns")] == [3, 0, 3]
    assert [ms(late["kept_waiting_ns"]), ms(early["kept_waiting_ns"])] == [7, 0]


def test_computation_on_the_same_gpu_hides_communication():
    measured = measure(
        kernels((0, "AllReduce", 0, 10), (1, "AllReduce", 0, 10), (0, COMPUTE, 2, 6), (1, COMPUTE, 20, 30))
    )
    assert [ms(select_gpu(measured, 0)[name]) for name in ("hidden_ns", "exposed_ns")] == [4, 6]
    assert [ms(select_gpu(measured, 1)[name]) for name in ("hidden_ns", "exposed_ns")] == [0, 10]


def test_of_exposed_communication_the_part_is_known_in_which_it_only_waits():
    """GPU 0 waits from 0 to 6, hidden from 0 to 2, and transfers from 6 to 10, hidden from 8 to 10."""
    measured = measure(
        kernels((0, "AllReduce", 0, 10), (1, "AllReduce", 6, 10), (0, COMPUTE, 0, 2), (0, COMPUTE, 8, 10))
    )
    row = select_gpu(measured, 0)
    assert [ms(row[name]) for name in ("exposed_ns", "exposed_waiting_ns")] == [6, 4]


def critical_ms(exchanges: list[tuple], computes: list[tuple], waits: tuple = ()) -> float:
    """Compute the critical ms of GPU 0 from exchanges (start, end), compute kernels (launch, start, end) and waits of
    the host (start, end). A kernel before all of them, launched as it starts, sets the clock."""
    exchanges, computes, waits = (
        [tuple(10 + time for time in times) for times in of] for of in (exchanges, computes, waits)
    )
    computes = [(0, 0, 1), *computes]
    frame = kernels(
        *((0, "AllReduce", *times) for times in exchanges),
        *((0, COMPUTE, start, end) for _, start, end in computes),
    )
    launches = {start: launch for launch, start, _ in computes}
    frame["launch_ns"] = [launches.get(start / 1e6, start / 1e6) * 1e6 for start in frame["start_ns"]]
    host_waits = (pd.DataFrame(waits, columns=["start_ns", "end_ns"]) * 1e6).assign(gpu=0)
    row = select_gpu(measure(frame.astype({"launch_ns": "int64"}), host_waits=host_waits), 0)
    assert 0 <= row["critical_ns"] <= row["exposed_ns"]
    return ms(row["critical_ns"])


@pytest.mark.parametrize(
    "exchanges, computes, waits, critical",
    [
        pytest.param([(0, 10)], [(1, 10, 12)], (), 9, id="GPU late: the next kernel was there from 1 on"),
        pytest.param([(0, 10)], [(11, 11, 12)], (), 0, id="host late: nothing else was launched yet"),
        pytest.param([(0, 10)], [(4, 6, 8), (4, 12, 13)], (), 4, id="hidden and after it: 4 to 6, and 8 to 10"),
        pytest.param([(0, 4), (6, 9)], [(0, 4, 6), (2, 9, 11)], (), 7, id="several collectives add up"),
        pytest.param([(0, 4)], [(0, 4, 6), (9, 9, 11)], (), 0, id="what is won is lost to a host that is late after"),
        pytest.param([(0, 4)], [(0, 4, 6), (3, 6, 11)], (), 3, id="but as far as the next one was there, it is not"),
        pytest.param([(0, 4), (11, 14)], [(0, 4, 6), (9, 9, 11), (10, 14, 15)], (), 3, id="and is won again later"),
        pytest.param(
            [(2, 8)], [(0, 0, 2), (9, 9, 10)], [(1, 8)], 6, id="at the end of backward, the host waits for it"
        ),
        pytest.param([(2, 8)], [(0, 0, 2), (1, 8, 10)], (), 6, id="at the end of backward, the optimizer waits for it"),
        pytest.param([(2, 8)], [(0, 0, 2), (9, 9, 10)], [(5, 8)], 3, id="the host waits for a part of it"),
        pytest.param(
            [(2, 8), (12, 15)],
            [(0, 0, 2), (9, 9, 12), (16, 16, 17)],
            [(1, 8), (10, 15)],
            9,
            id="a host that goes on earlier launches all earlier, and waits again",
        ),
        pytest.param([(20, 25)], [(0, 0, 2)], (), 0, id="nothing waits for the last one"),
    ],
)
def test_exposed_communication_is_critical_as_far_as_work_waited_for_it(exchanges, computes, waits, critical):
    assert critical_ms(exchanges, computes, waits) == pytest.approx(critical, abs=1e-3), "but for the clocks' drift"


def run_step(ops: list[tuple[str, int, int, bool]], exchange_takes: int) -> tuple[list[tuple], list[tuple], int]:
    """A host that launches (kind, after ns, takes ns, whether it waits for all communication before it), on a GPU with
    a stream for each kind; a communication kernel waits for all computation before it. Gives kernels (kind, launch,
    start, end), waits of the host and when all has ended."""
    ended, host, launched, waits = {"compute": 0, "exchange": 0}, 0, [], []
    for kind, after, takes, waits_too in ops:
        host += after
        if kind == "wait":
            waits.append((host, host := max(host, *ended.values())))
            continue
        start = max(host, ended[kind], ended["compute"], ended["exchange"] if waits_too else 0)
        ended[kind] = start + takes * (exchange_takes if kind == "exchange" else 1)
        launched.append((kind, host, start, ended[kind]))
    return launched, waits, max(host, *ended.values())


@pytest.mark.parametrize("seed", range(30))
def test_critical_is_how_much_earlier_the_same_launches_would_end_without_communication(seed):
    draw = np.random.default_rng(seed)
    kinds = draw.choice(["compute", "exchange", "wait"], 60, p=[0.65, 0.3, 0.05])
    quick_host = draw.choice([20, 100, 200])
    ops = [(str(kind), *map(int, draw.integers(1, (quick_host, 100))), bool(draw.random() < 0.4)) for kind in kinds]
    ops = [("compute", 0, 1, False), *ops, ("wait", 0, 0, False)]
    launched, waits, ends = run_step(ops, 1)
    rows = pd.DataFrame(launched, columns=["kind", "launch_ns", "start_ns", "end_ns"])
    is_exchange = rows["kind"] == "exchange"
    exchanging = Union(*(rows.loc[is_exchange, name].to_numpy() for name in ("start_ns", "end_ns")))
    critical = compute_critical_time(
        rows[~is_exchange], exchanging, pd.DataFrame(waits, columns=["start_ns", "end_ns"])
    )
    assert critical == ends - run_step(ops, 0)[2]


@pytest.mark.parametrize("launch_ns, waits", [(-1, True), (0, False)])
def test_what_is_critical_is_not_known_without_the_launches_and_waits_of_the_host(launch_ns, waits):
    frame = kernels((0, "AllReduce", 0, 10), (1, "AllReduce", 0, 10), (0, COMPUTE, 10, 12), launch_ns=launch_ns)
    host_waits = pd.DataFrame(columns=["gpu", "start_ns", "end_ns"], dtype="int64")
    row = select_gpu(measure(frame, host_waits=host_waits if waits else None), 0)
    assert pd.isna(row["critical_ns"]) and ms(row["exposed_ns"]) == 10


def test_what_the_last_rank_did_meanwhile_is_said():
    """It computed from 1 to 4, and its host launched the collective at 6: it idled for it from 0 to 1 and 4 to 6."""
    frame = kernels((0, "AllReduce", 0, 10), (1, COMPUTE, 1, 4), (1, "AllReduce", 7, 10))
    frame.loc[(frame["gpu"] == 1) & (frame["collective"] != ""), "launch_ns"] = 6_000_000
    row = select_gpu(measure(frame), 1)
    assert [ms(row[name]) for name in ("kept_waiting_ns", "kept_computing_ns", "kept_late_ns")] == [7, 3, 3]


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_the_kernel_that_a_late_gpu_runs_longer_than_the_others_is_found(num_gpus):
    """All run 3 ms of one kernel; the last also runs two others, of 2 ms each. The others wait for it for 4 ms."""
    last = num_gpus - 1
    extra = [(last, COMPUTE, 3, 5), (last, COMPUTE, 5, 7)]
    rows = [(gpu, COMPUTE, 0, 3) for gpu in range(num_gpus)] + extra
    rows += [(gpu, "AllReduce", 7 if gpu == last else 3, 9) for gpu in range(num_gpus)]
    frame = kernels(*rows)
    frame["kernel_name"] = np.where(frame["start_ns"].isin([3_000_000, 5_000_000]), "extra", "same")
    frame = frame.astype({"kernel_name": "category"})
    measured = measure(frame)
    assert measured.late_kernels.to_dict("records") == [
        {"gpu": last, "name": "extra", "more_ns": 4_000_000, "more_calls": 2}
    ]
    row = select_gpu(measured, last)
    assert ms(row["kept_waiting_ns"]) == 4 * last and ms(row["kept_computing_ns"]) == 4 * last
    said = describe_ranks(
        measured.of_gpus.astype("float64").assign(unknown=""), NO_CAUSES._replace(late_kernels=measured.late_kernels)
    )
    assert any(f"GPU {last}" in line and "extra 4.00 ms longer" in line and "2 calls more" in line for line in said)


def test_a_gpu_that_runs_what_the_others_run_has_no_late_kernel():
    measured = measure(kernels((0, COMPUTE, 0, 3), (1, COMPUTE, 1, 4), (0, "AllReduce", 3, 6), (1, "AllReduce", 5, 6)))
    assert not len(measured.late_kernels)


def test_the_line_that_only_a_late_gpu_waits_for_is_named():
    row = dict.fromkeys(("hidden_ns", "exposed_ns", "transfer_ns", "waiting_ns", "alone_ns", "beside_ns"), 0)
    row |= {"gpu": 1, "kernel_ns": 10_000_000, "calls": 4, "exposed_waiting_ns": 0, "critical_ns": 0, "unknown": ""}
    row |= {"kept_waiting_ns": 7_000_000, "kept_computing_ns": 0, "kept_late_ns": 7_000_000}
    waits = [("train.py:7", "main", -1), ("train.py:48", "train_step", 1), ("train.py:50", "train_step", 1)]
    causes = NO_CAUSES._replace(waits=pd.DataFrame(waits, columns=["where", "function", "gpu"]))
    lines = describe_ranks(pd.DataFrame([row]), causes)
    assert any("train.py:48 train_step, at least twice" in line and LOOK_AT_CPU in line for line in lines)
    assert not any("train.py:48" in line for line in describe_ranks(pd.DataFrame([row | {"gpu": 0}]), causes))


def test_kernels_of_several_ranks_meet_in_their_order():
    measured = measure(
        kernels(
            *((0, "AllReduce", start, start + 5) for start in (0, 10)),
            *((1, "AllReduce", start, end) for start, end in ((4, 5), (13, 15))),
            *((gpu, "AllGather", 20, 21) for gpu in (0, 1)),
        )
    )
    table = measured.collectives.set_index(["gpu", "collective"])
    assert ms(table.loc[(0, "AllReduce"), "waiting_ns"]) == 4 + 3
    assert ms(table.loc[(0, "AllGather"), "waiting_ns"]) == 0


@pytest.mark.parametrize(
    "rows, why",
    [
        ([(0, "AllReduce", 0, 1)], "one rank only"),
        ([(0, "AllReduce", 0, 1), (1, "AllReduce", 0, 1), (0, "AllReduce", 2, 3)], "different numbers of AllReduce"),
        ([(0, "AllReduce", 0, 5), (1, "AllReduce", 0, 6)], "clocks differ too much"),
        ([(0, "SendRecv", 0, 1), (1, "SendRecv", 0, 1)], "which ranks exchange data"),
        (
            [(gpu, "AllReduce", 9 * gpu, 9 * gpu + 0.01) for gpu in (0, 1)]
            + [(gpu, "AllReduce", start, start + 1) for gpu in (0, 1) for start in (20, 30, 40)],
            "not the same ones",
        ),
    ],
)
def test_where_kernels_cannot_be_matched_it_is_said_why(rows, why):
    measured = measure(kernels(*rows))
    assert why in measured.why_not
    assert measured.of_gpus["waiting_ns"].isna().all() and measured.of_gpus["kernel_ns"].notna().all()


def test_of_ranks_on_other_machines_nothing_is_said_of_waiting():
    """Another machine's rank may have come last."""
    frame = kernels((0, "AllReduce", 0, 10), (1, "AllReduce", 7, 10))
    assert collective_time.measure(frame, world=2).why_not == ""
    measured = collective_time.measure(frame, world=4)
    assert measured.why_not == "2 of 4 ranks are here, and the clocks of the others' machines are not known"
    assert measured.of_gpus["waiting_ns"].isna().all() and measured.of_gpus["exposed_ns"].notna().all()


def test_several_groups_of_more_than_two_ranks_are_not_guessed():
    rows = [(gpu, "AllReduce", start, start + 1) for gpu in range(4) for start in (0, 5)]
    frame = kernels(*rows)
    assert measure(frame).why_not == ""
    frame["stream"] = np.where(frame["start_ns"] == 0, 7, 8)
    assert "several groups of ranks" in measure(frame).why_not


def test_bytes_and_transfer_give_the_rate_of_a_link():
    """An all-reduce of n ranks sends and receives 2(n-1)/n of its message over each link."""
    frame = kernels((0, "AllReduce", 0, 10), (1, "AllReduce", 8, 10), bytes=4_000_000)
    rate = measure(frame).collectives.set_index("gpu")["bus_bytes_per_s"]
    assert rate.tolist() == [4e6 * 1 / 2e-3] * 2
    sizes = measure(frame).messages
    assert sizes[["gpu", "calls", "message_bytes"]].values.tolist() == [[gpu, 1, 4_000_000] for gpu in (0, 1)]
    assert sizes["bus_bytes_per_s"].tolist() == rate.tolist()
    assert [compute_bus_factor(name, 4) for name in ("AllReduce", "AllGather", "Broadcast", "SendRecv")] == [
        1.5,
        3,
        None,
        None,
    ]


def test_matmuls_beside_communication_are_held_against_the_same_ones_alone():
    alone = [(0, COMPUTE, start, start + 1) for start in (0, 2, 4)]
    rows = [*alone, (0, COMPUTE, 10, 12), (0, "AllReduce", 10, 13), (1, "AllReduce", 10, 13)]
    row = select_gpu(measure(kernels(*rows, is_matmul=True)), 0)
    assert [ms(row[name]) for name in ("beside_ns", "alone_ns")] == [2, 1]


def test_a_name_that_stands_for_matmuls_of_several_sizes_is_held_against_nothing():
    alone = [(0, COMPUTE, start, start + length) for start, length in ((0, 1), (2, 3), (6, 1))]
    rows = [*alone, (0, COMPUTE, 10, 12), (0, "AllReduce", 10, 13), (1, "AllReduce", 10, 13)]
    row = select_gpu(measure(kernels(*rows, is_matmul=True)), 0)
    assert [row[name] for name in ("beside_ns", "alone_ns")] == [0, 0]


def test_matmuls_quicker_beside_communication_than_alone_are_other_ones():
    """One name and grid may cover several depths of the product. If only deep ones run alone, that shows nothing about
    the shallow ones that overlap communication."""
    alone = [(0, COMPUTE, start, start + 3) for start in (0, 4, 8)]
    beside = [(0, COMPUTE, 12, 13), (0, COMPUTE, 13, 17)]
    rows = [*alone, *beside, (0, "AllReduce", 12, 17), (1, "AllReduce", 12, 17)]
    row = select_gpu(measure(kernels(*rows, is_matmul=True)), 0)
    assert [row[name] for name in ("beside_ns", "alone_ns")] == [0, 0]


@pytest.mark.parametrize(
    "name, collective",
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "AllReduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)", "ReduceScatter"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "AllGather"),
        ("ncclSymkDevKernel_AllGather_ST(ncclSymkDevWorkArgs)", "AllGather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", "SendRecv"),
        ("void nvshmem_alltoall<float>(float*)", "other"),
    ],
)
def test_a_kernels_name_tells_the_collective(name, collective):
    assert parse_collective(name) == collective


def test_no_communication_is_no_row():
    measured = measure(kernels((0, COMPUTE, 0, 1)))
    assert not len(measured.of_gpus) and not len(measured.collectives)


@pytest.mark.parametrize(("late_ns", "is_said"), [(6 * 1_000_000, True), (1 * 1_000_000, False)])
def test_a_gpu_that_others_wait_for_because_its_cpu_is_late_is_where_to_look(late_ns, is_said):
    row = dict.fromkeys(("hidden_ns", "exposed_ns", "transfer_ns", "waiting_ns", "alone_ns", "beside_ns"), 0)
    row |= {"gpu": 1, "kernel_ns": 10 * 1_000_000, "calls": 4, "exposed_waiting_ns": 0, "critical_ns": 0, "unknown": ""}
    row |= {"kept_waiting_ns": 7 * 1_000_000, "kept_computing_ns": 7 * 1_000_000 - late_ns, "kept_late_ns": late_ns}
    lines = describe_ranks(pd.DataFrame([row]))
    assert any(LOOK_AT_CPU in line for line in lines) == is_said
