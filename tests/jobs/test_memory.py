"""Predicted memory against every recording that comes with this: its peak, its phases, and where it runs out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.reading import recording
from jobs import memory
from jobs.plan import DEFAULT_SWEEP, Run, load_sweep

DATA = Path(__file__).parents[2] / "site" / "data"
STUDY = DEFAULT_SWEEP.parent / "sweeps" / "memory.yaml"
SWEEP = load_sweep(DEFAULT_SWEEP)
RECORDINGS = sorted(manifest.parent.name for manifest in DATA.glob("*/manifest.json"))


def load(name):
    if name not in RECORDINGS:
        pytest.skip(f"the recording {name} is not in site/data")
    return recording.load(DATA / name)


def run_of(row) -> Run:
    return Run(**{field: getattr(row, field) for field in Run.model_fields if hasattr(row, field)})


def change(run: Run, **fields) -> Run:
    return Run(**run.model_dump(exclude={"num_parameters"}) | fields)


def errors(runs) -> dict[str, float]:
    observed = runs[(runs["status"].astype(str) == "ok") & runs["peak_memory_bytes"].notna()].itertuples()
    return {row.run_id: memory.predicted_peak_bytes(run_of(row)) / row.peak_memory_bytes - 1 for row in observed}


@pytest.mark.parametrize("name", ["h200-fp32", "memory"])
def test_the_predicted_peak_is_within_three_percent_of_every_finished_run(name):
    found = errors(load(name).runs)
    assert len(found) > 40
    assert max(map(abs, found.values())) < 0.03, max(found.items(), key=lambda item: abs(item[1]))


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name not in ("compile", "warm_up")])
def test_other_precisions_attentions_and_optimizers_are_within_three_percent_but_for_blocks_longer_than_casts(name):
    found = load(name)
    runs = {row.run_id: row for row in found.runs.itertuples()}
    kept = found.module_memory.astype({"run_id": str, "module": str})
    kept = kept[kept["module"].str.fullmatch(r"block_\d+")].groupby("run_id")["kept_bytes"].sum()
    off = errors(found.runs)
    assert off
    for run_id in [run_id for run_id, error in off.items() if abs(error) >= 0.03]:
        row = runs[run_id]
        assert (row.precision, row.mode) == ("bf16", "forward") and off[run_id] > -0.04, run_id
        casts = memory.BF16 * (row.num_parameters - 2 * row.vocab_size * row.d_model)
        longer = kept[run_id] - casts
        assert memory.predicted_peak_bytes(run_of(row)) + longer == pytest.approx(row.peak_memory_bytes, rel=0.01)


@pytest.mark.parametrize("name", ["h200-fp32", "memory"])
def test_the_predicted_peak_of_every_phase_is_within_four_percent(name):
    found = load(name)
    runs = {row.run_id: row for row in found.runs.itertuples() if row.status == "ok"}
    for row in found.memory.astype({"run_id": str, "phase": str}).itertuples():
        if row.run_id in runs:
            predicted = memory.peaks(run_of(runs[row.run_id]), 1)[row.phase]
            assert predicted == pytest.approx(row.peak_allocated_bytes, rel=0.04), (row.run_id, row.phase)


def test_every_capped_run_fails_in_the_step_and_phase_that_were_predicted():
    runs = [row for row in load("memory").runs.itertuples() if row.memory_limit_gib]
    assert len(runs) == 40
    for row in runs:
        failure = memory.predicted_failure(row, memory.allocator_limit_bytes(row))
        measured = (int(row.status_step), row.status_phase) if row.status == "oom" else None
        assert (failure and tuple(failure)) == measured, row.run_id


def plan(*arguments) -> list[str]:
    command = [sys.executable, "-m", "jobs", "plan", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("sold_gb", "cap"), [(24, 21.9), (80, 78.5)])
def test_the_plan_for_a_gpu_marks_the_runs_that_a_cap_of_its_size_stopped(sold_gb, cap):
    lines = plan("--sweep", STUDY, "--only", "memory_limit_gib=0.0", "--gpu-memory", sold_gb)
    capped = load("memory").runs.query("memory_limit_gib == @cap").astype({"status_phase": str})
    assert len(capped) == 20
    for row in capped.itertuples():
        (line,) = (line for line in lines if line.startswith(row.run_id.removesuffix(f"-limit{cap:g}") + " "))
        wanted = f"{('first', 'second')[int(row.status_step)]} step, {row.status_phase}" if row.status == "oom" else ""
        assert line.rstrip().endswith(wanted) if wanted else " step, " not in line, line
    stopped = (capped["status"].astype(str) == "oom").sum()
    assert lines[-1] == f"{stopped} of 20 runs will not fit a GPU sold with {sold_gb} GB"


def test_the_plan_of_a_capped_sweep_marks_what_its_caps_will_stop():
    lines = plan("--sweep", STUDY)
    stopped = load("memory").runs["status"].astype(str).eq("oom").sum()
    assert lines[-1] == f"{stopped} of 60 runs will not fit the memory limit of the sweep"


def test_a_plan_without_a_limit_marks_nothing():
    assert not any("will not fit" in line for line in plan("--only", "size=small"))


def test_a_run_of_one_phase_has_no_second_step_that_differs():
    run = next(run for run in SWEEP.runs if run.mode == "forward_backward")
    assert memory.peaks(run, 0) == memory.peaks(run, 1)


@pytest.mark.parametrize("run", SWEEP.runs[2::9], ids=lambda run: run.run_id)
def test_more_work_is_predicted_to_need_more(run):
    for bigger in (
        change(run, context_length=2 * run.context_length),
        change(run, num_layers=2 * run.num_layers),
        change(run, batch_size=2 * run.batch_size),
    ):
        assert memory.predicted_memory_bytes(bigger) > memory.predicted_memory_bytes(run) * 0.999
    assert memory.predicted_memory_bytes(change(run, attention="sdpa")) <= memory.predicted_memory_bytes(run)
