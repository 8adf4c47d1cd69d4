"""Predicted time against the shipped recording of an H200."""

from pathlib import Path

import pytest

from analysis.reading import recording
from jobs.plan import DEFAULT_SWEEP, Run, load_sweep
from jobs.prediction import predicted_seconds, timeout_seconds

RECORDING = Path(__file__).parents[2] / "site" / "data" / "h200-fp32"
SWEEP = load_sweep(DEFAULT_SWEEP)


def change(run: Run, **fields) -> Run:
    return Run(**run.model_dump(exclude={"num_parameters"}) | fields)


@pytest.fixture(scope="module")
def recorded():
    if not RECORDING.exists():
        pytest.skip("the recording h200-fp32 is not in site/data")
    return recording.load(RECORDING)


def test_no_run_came_near_its_timeout_and_no_timeout_is_longer_than_an_hour(recorded):
    walls = recorded.runs.set_index("run_id")["wall_s"]
    for run in SWEEP.runs:
        timeout = timeout_seconds(run, SWEEP.protocol)
        assert 5 * walls[run.run_id] < timeout < 3600


def test_the_timeout_grows_with_the_prediction():
    small, large = SWEEP.runs[0], SWEEP.runs[-1]
    longer = predicted_seconds(large, SWEEP.protocol) - predicted_seconds(small, SWEEP.protocol)
    assert timeout_seconds(large, SWEEP.protocol) - timeout_seconds(small, SWEEP.protocol) >= longer > 0


@pytest.mark.parametrize("run", SWEEP.runs[2::9], ids=lambda run: run.run_id)
def test_more_work_is_predicted_to_take_longer(run):
    for bigger in (
        change(run, context_length=2 * run.context_length),
        change(run, num_layers=2 * run.num_layers),
        change(run, batch_size=2 * run.batch_size),
    ):
        assert predicted_seconds(bigger, SWEEP.protocol) > predicted_seconds(run, SWEEP.protocol)
    assert predicted_seconds(change(run, precision="bf16"), SWEEP.protocol) < predicted_seconds(run, SWEEP.protocol)
