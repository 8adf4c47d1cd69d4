"""How long a GPU waits for launches: on steps small enough to work out by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest

from profiler_job.analysis.metrics import waiting
from profiler_job.analysis.metrics.differences import Band

BAND = Band(kind="wall", relative=0.01, ratio=100.0, factor=1.0, num_pairs=20)


def kernels(*rows, phase="forward"):
    """(launch, start, end): one profiled step of one run."""
    frame = pd.DataFrame(rows, columns=["launch_ns", "start_ns", "end_ns"])
    ends = {"launch_end_ns": frame["launch_ns"] + 4}
    return frame.assign(run_id="r", rank=0, device=0, step=0, phase=phase, **ends)


def walls(timer_ns, nsys_ns, phases=("forward", "step")):
    rows = [
        {"run_id": "r", "rank": 0, "process": 0, "step": 0, "collector": collector, "phase": phase, "wall_ns": ns}
        for collector, ns in (("timer", timer_ns), ("nsys", nsys_ns))
        for phase in phases
    ]
    return pd.DataFrame(rows)


def measure_forward(ops, steps, band=BAND):
    table = waiting.launch_waits(steps, ops, ops.head(0), band)
    return table[table["phase"] == "forward"].iloc[0]


LATE = kernels((0, 10, 50), (90, 100, 150), (91, 155, 200))
"""Busy for 135; idle for 50 before a late launch, and for 5 on its own."""


def test_idle_time_is_divided_as_the_profiled_step_divides_it():
    found = measure_forward(LATE, walls(timer_ns=180, nsys_ns=200))
    assert found["busy_share"] == pytest.approx(135 / 180)
    assert found["launch_wait"] == pytest.approx(45 / 180 * 50 / (50 + 5 + 10))
    assert found["boundary_wait"] == pytest.approx(45 / 180 * 10 / (50 + 5 + 10))
    assert found["launch_wait_ns"] == pytest.approx(180 * found["launch_wait"])


def test_a_gpu_that_is_idle_before_few_launches_does_not_wait_for_them():
    prepared_for_long = kernels((500, 510, 600), (501, 600, 700), phase="forward")
    found = measure_forward(prepared_for_long, walls(timer_ns=700, nsys_ns=750))
    assert found["busy_share"] < 0.3, "less than any limit of busy time"
    assert (found["launch_wait"], found["waits"]) == (0, False)
    assert found["boundary_wait"] == pytest.approx(1 - 190 / 700)


def test_what_was_launched_in_time_is_not_waited_for():
    found = measure_forward(kernels((0, 10, 50), (1, 100, 150)), walls(timer_ns=150, nsys_ns=150))
    assert found["launch_wait"] == 0


def test_a_gpu_busy_for_longer_than_the_unprofiled_step_waits_for_nothing():
    found = measure_forward(LATE, walls(timer_ns=100, nsys_ns=200))
    assert (found["launch_wait"], found["waits"]) == (0, False)


def test_a_wait_within_the_noise_is_not_told_from_none():
    steps = walls(timer_ns=180, nsys_ns=200)
    wide = Band(kind="wall", relative=0.5, ratio=100.0, factor=1.0, num_pairs=20)
    assert measure_forward(LATE, steps)["waits"] and not measure_forward(LATE, steps, wide)["waits"]
    unsteady = pd.concat([steps, walls(timer_ns=400, nsys_ns=200).query("collector == 'timer'").assign(step=1)])
    assert measure_forward(LATE, steps, None)["waits"] and not measure_forward(LATE, unsteady, None)["waits"]


def test_the_same_run_is_counted_in_each_recording_that_has_it():
    def rec(started_at, run_id="r", timer_ns=180, gpu="NVIDIA H200"):
        runs = {"run_id": [run_id], "num_parameters": 1, "batch_size": 4, "status": "ok", "started_at": started_at}
        runs |= {"gpu_name": gpu}
        case = {"size": "small", "d_model": 8, "num_layers": 1, "context_length": 128, "mode": "forward"}
        tables = {"steps": walls(timer_ns, 200), "kernels": LATE, "memops": LATE.head(0)}
        tables = {name: frame.assign(run_id=run_id) for name, frame in tables.items()}
        return SimpleNamespace(runs=pd.DataFrame(runs | case), **tables)

    first = rec("2026-01-01")
    waits = waiting.launch_waits(first.steps, first.kernels, first.memops, BAND)
    others = [rec("2026-01-02", timer_ns=400), rec("2026-01-03", "another"), first, rec("2026-01-04", timer_ns=130)]
    others.append(rec("2026-01-05", timer_ns=400, gpu="NVIDIA H100 80GB HBM3"))
    known = waiting.compute_other_waits(first.runs, others, BAND)
    assert list(known["recording"].unique()) == [1, 4], "neither another run nor the same recording"
    found = waiting.count_recordings(waits, known).set_index("phase").loc["forward"]
    assert (found["num_recordings"], found["num_claimed"]) == (3, 2)
    assert (found["wait_low"], found["wait_high"]) == (0, known["launch_wait"].max())
    alone = waiting.count_recordings(waits, waiting.compute_other_waits(first.runs, [], BAND))
    assert (alone["num_recordings"] == 1).all()
