"""Predicted time and output of a sweep, also against captures of an H200."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from profiler_job.jobs.sweep.prediction import (
    EVENT_BYTES,
    EXPORT_BYTES,
    compute_timeout,
    predict_export_bytes,
    predict_seconds,
    predict_stages,
)
from profiler_job.jobs.workloads.transformer.costs import step_seconds
from tests.packed import unpack

CAPTURES = sorted((Path(__file__).parents[1] / "data" / "h200_runs").glob("*/profile.sqlite.packed"))
SWEEP = load_sweep(DEFAULT_SWEEP)


def change(run: Run, **fields) -> Run:
    return Run(**run.model_dump() | fields)


def test_the_timeout_grows_with_the_prediction():
    small, large = SWEEP.runs[0], SWEEP.runs[-1]
    longer = predict_seconds(large, SWEEP.protocol) - predict_seconds(small, SWEEP.protocol)
    assert compute_timeout(large, SWEEP.protocol) - compute_timeout(small, SWEEP.protocol) >= longer > 0


def test_the_steps_of_the_plain_model_before_a_run_are_predicted():
    plain = SWEEP.runs[-1]
    fused = change(plain, optimizer="fused")
    of_plain, of_fused = (predict_stages(run, SWEEP.protocol) for run in (plain, fused))
    assert (
        of_fused["timer"] > of_fused["timer-1"] + 3 * step_seconds(plain) and of_plain["timer"] == of_plain["timer-1"]
    )


@pytest.mark.parametrize("run", SWEEP.runs[2::9], ids=lambda run: run.run_id)
def test_more_work_is_never_predicted_to_take_less_time_and_takes_longer_where_the_gpu_limits(run):
    layers, batch = change(run, num_layers=2 * run.num_layers), change(run, batch_size=64 * run.batch_size)
    for bigger in (layers, batch):
        assert predict_seconds(bigger, SWEEP.protocol) > predict_seconds(run, SWEEP.protocol)
    assert step_seconds(change(run, context_length=2 * run.context_length)) >= step_seconds(run)
    assert step_seconds(change(batch, precision="bf16")) < step_seconds(batch)


def test_the_cpu_takes_as_long_to_launch_a_short_step_as_one_of_less_work():
    run = SWEEP.runs[2]
    assert run.context_length == 128 and step_seconds(change(run, batch_size=1)) == step_seconds(run)
    assert step_seconds(change(run, compile="cudagraphs")) < step_seconds(run)


def test_the_first_process_of_a_compiled_run_compiles_it_as_the_capture_does_and_the_others_find_most_of_it():
    run = change(SWEEP.runs[2], compile="default")
    stages = predict_stages(run, SWEEP.protocol)
    assert 20 < stages["timer"] < stages["nsys"] and stages["timer-1"] == stages["timer-2"] < stages["timer"] / 2


@pytest.mark.parametrize("file", CAPTURES, ids=lambda file: file.parent.name)
def test_a_real_export_is_as_large_as_its_events_say(file, tmp_path):
    path = unpack(file, tmp_path / "profile.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        kept = [name for name in tables if name.startswith(("CUPTI_", "NVTX_"))]
        events = sum(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in kept)
    predicted = EXPORT_BYTES + EVENT_BYTES * events
    assert 0.85 * predicted < path.stat().st_size <= predicted


def test_warm_up_steps_are_in_a_capture_too_and_without_profiled_steps_there_is_none():
    run, protocol = SWEEP.runs[0], SWEEP.protocol
    twice = protocol.model_copy(update={"warmup_steps": 2 * protocol.warmup_steps + protocol.profiled_steps})
    one, two = (predict_export_bytes(run, each) - EXPORT_BYTES for each in (protocol, twice))
    assert two == 2 * one
    assert predict_export_bytes(run, protocol.model_copy(update={"profiled_steps": 0})) == 0
