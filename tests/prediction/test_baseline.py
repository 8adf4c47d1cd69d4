import pytest

from profiler_job.analysis.metrics import timing
from profiler_job.analysis.metrics.kernel_time import kernel_totals, num_profiled_steps
from profiler_job.analysis.prediction.baseline import baselines
from tests import synthetic


@pytest.fixture(scope="module")
def recording():
    return synthetic.recording()


def test_every_finished_run_is_a_baseline(recording):
    ok = set(recording.runs.loc[recording.runs["status"].astype(str) == "ok", "run_id"].astype(str))
    assert {one_run.run["run_id"] for one_run in baselines(recording)} == ok


def test_its_parts_are_the_kernels_and_copies_of_a_step(recording):
    totals = kernel_totals(recording.kernels).groupby("run_id")["time_ns"].sum()
    memops = recording.memops[recording.memops["step"] >= 0]
    steps = num_profiled_steps(recording.kernels)
    for baseline in baselines(recording):
        mine = memops[memops["run_id"].astype(str) == baseline.run["run_id"]]
        copies = (mine["end_ns"] - mine["start_ns"]).sum() / steps[baseline.run["run_id"]]
        assert baseline.parts["time_ns"].sum() == pytest.approx(totals[baseline.run["run_id"]] + copies)


def test_its_clocks_are_the_unprofiled_medians(recording):
    times = timing.host_times(recording.steps, "timer", "timer").set_index(["run_id", "phase"])["timer_ns"]
    for baseline in baselines(recording):
        assert baseline.step_ns == times[baseline.run["run_id"], "step"]
        assert baseline.phases == [
            phase for phase in ("forward", "loss", "backward", "optimizer") if phase in baseline.clocks
        ]
