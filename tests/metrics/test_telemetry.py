"""What is read of the machine of each run becomes host speed, clocks, energy and the price of tokens."""

import pandas as pd
import pytest

from profiler_job.analysis.metrics import gpu_samples
from tests import frozen

RUNS = ("small-ctx128-fp32-naive-train_step", "small-ctx512-fp32-naive-train_step")


def processes(*loops_ms: float, run: str = RUNS[0], joules: float = 12.0) -> pd.DataFrame:
    """A process of 10 steps in 2 s for each time of the loop."""
    rows = [
        {
            "run_id": run,
            "rank": 0,
            "process": number,
            "cpu_model": "A CPU",
            "host_loop_ns": loop * 1e6,
            "energy_mj": joules * 1000 * 10,
            "energy_steps": 10,
            "energy_wall_ns": 2e9,
        }
        for number, loop in enumerate(loops_ms)
    ]
    return pd.DataFrame(rows)


def samples(*reasons: str, run: str = RUNS[0], clock: int = 1980, moment: str = "busy") -> pd.DataFrame:
    rows = [
        {
            "run_id": run,
            "rank": 0,
            "process": 0,
            "moment": moment,
            "sm_clock_mhz": clock,
            "temperature_celsius": 50,
            "throttle_reasons": reason,
        }
        for reason in reasons
    ]
    return pd.DataFrame(rows)


NO_SAMPLES = samples("none").head(0)


def test_a_host_is_slow_against_the_fastest_on_the_same_cpu():
    rows = gpu_samples.summarise_processes(processes(30, 36, 38, 60), NO_SAMPLES)
    assert rows["slow_host"].tolist() == [False, False, True, True]
    assert rows["host_ratio"].tolist() == pytest.approx([1, 1.2, 38 / 30, 2])
    other = processes(100, run=RUNS[1]).assign(cpu_model="an older CPU")
    rows = gpu_samples.summarise_processes(pd.concat([processes(30, 31), other]), NO_SAMPLES)
    assert not rows["slow_host"].any(), "another kind of CPU is not a slow one of this kind"


def test_energy_is_that_of_a_step_and_power_that_of_the_time():
    (row,) = gpu_samples.summarise_processes(processes(30, joules=12.0), NO_SAMPLES).to_dict("records")
    assert row["joules"] == pytest.approx(12)
    assert row["watts"] == pytest.approx(12 * 10 / 2)


def test_what_could_not_be_read_is_empty():
    given = processes(30).assign(host_loop_ns=None, energy_mj=None, energy_steps=None, energy_wall_ns=None)
    (row,) = gpu_samples.summarise_processes(given, NO_SAMPLES).to_dict("records")
    assert all(pd.isna(row[name]) for name in ("loop_ns", "joules", "watts", "samples", "lowest_mhz"))
    assert not row["slow_host"]


@pytest.mark.parametrize(
    ("reasons", "lowered", "said"),
    [
        (["none", "gpu_idle"], 0, ""),
        (["none", "sw_power_cap"], 1, "power cap"),
        (["sw_power_cap-gpu_idle", "hw_slowdown-sw_power_cap"], 2, "power cap, hardware slowdown"),
        (["bit11"], 1, "bit11"),
    ],
)
def test_only_what_holds_a_clock_down_counts(reasons, lowered, said):
    (row,) = gpu_samples.summarise_processes(processes(30), samples(*reasons)).to_dict("records")
    assert (row["samples"], row["lowered"]) == (len(reasons), lowered)
    assert list(dict.fromkeys(row["reasons"].split(", "))) == said.split(", ")


def test_samples_of_an_idle_gpu_are_left_out():
    rows = gpu_samples.summarise_processes(
        processes(30), pd.concat([samples("none"), samples("hw_slowdown", moment="before")])
    )
    assert rows["samples"].tolist() == [1] and rows["lowered"].tolist() == [0]


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rec = frozen.load_study("")
    return tuple(frame[frame["run_id"].astype(str).isin(RUNS)] for frame in (rec.runs, rec.steps))


def test_tokens_follow_from_the_unprofiled_step():
    runs, steps = tables()
    rows = gpu_samples.summarise_runs(runs, steps, processes(30, 31, 60), samples("none"), price=3.6).set_index(
        "run_id"
    )
    assert list(rows.index) == [RUNS[0]], "the other run has no telemetry"
    row = rows.loc[RUNS[0]]
    of_run = steps[(steps["run_id"] == RUNS[0]) & (steps["collector"] == "timer") & (steps["phase"] == "step")]
    assert row["step_ns"] == of_run["wall_ns"].median()
    assert row["tokens_per_s"] == pytest.approx(4 * 128 / (row["step_ns"] / 1e9))
    assert row["joules_per_1k"] == pytest.approx(12 / (4 * 128) * 1000)
    assert row["cost_per_million"] == pytest.approx(3.6 / 3600 * 1e6 / row["tokens_per_s"])
    assert (row["num_slow"], row["num_read"]) == (1, 3)


def test_without_a_price_there_is_no_cost():
    runs, steps = tables()
    assert "cost_per_million" not in gpu_samples.summarise_runs(runs, steps, processes(30), samples("none"))


def test_energy_that_one_rank_lacks_is_not_that_of_the_step():
    runs, steps = tables()
    other = processes(30).assign(rank=1)
    both = gpu_samples.summarise_runs(runs, steps, pd.concat([processes(30), other]), NO_SAMPLES)
    assert both["joules"].tolist() == [24.0]
    lacking = pd.concat([processes(30), other.assign(energy_mj=float("nan"))])
    assert gpu_samples.summarise_runs(runs, steps, lacking, NO_SAMPLES)["joules"].isna().all()


def test_steps_on_slow_hosts_are_held_against_those_on_others():
    step = {"run_id": RUNS[0], "rank": 0, "collector": "timer", "phase": "step"}
    walls = {0: (10, 11, 12), 1: (20, 22, 24)}
    steps = pd.DataFrame(
        [step | {"process": p, "step": n, "wall_ns": t} for p, of in walls.items() for n, t in enumerate(of)]
    )
    (row,) = gpu_samples.compare_slow_hosts(steps, processes(30, 60), NO_SAMPLES).to_dict("records")
    assert (row["slow_ns"], row["other_ns"], row["ratio"]) == (22, 11, 2)
    assert gpu_samples.compare_slow_hosts(steps, processes(30, 31), NO_SAMPLES).empty


def timed_on(run_ids, gpus, minutes):
    began = [f"2026-01-02T03:{minute:02}:00+00:00" for minute in minutes]
    return pd.DataFrame({"run_id": list(run_ids), "gpu_id": list(gpus), "started_at": began})


@pytest.mark.parametrize(
    ("gpus", "minutes", "at_once"), [("aaa", (0, 1, 2), 1), ("abab", (0, 0, 1, 1), 2), ("aabb", (0, 1, 50, 51), 1)]
)
def test_gpus_count_as_at_once_if_their_times_overlap(gpus, minutes, at_once):
    """A sweep that went on on another machine used two GPUs, and never two at once."""
    assert gpu_samples.gpus_at_once(timed_on(["r"] * len(gpus), gpus, minutes))["r"] == at_once


def test_runs_of_other_sessions_do_not_count_as_at_once():
    """Recordings of one study are joined, and one of them was timed on two GPUs."""
    processes = timed_on(["alone", "x", "x", "x", "x"], "cabab", (1, 20, 20, 21, 21))
    assert gpu_samples.gpus_at_once(processes)["alone"] == 1
