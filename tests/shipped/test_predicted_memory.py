"""Predicted memory against every shipped recording: its peak, its phases, and where it runs out."""

import pandas as pd
import pytest

from profiler_job.analysis.metrics import device_memory
from profiler_job.analysis.recording import store
from profiler_job.jobs import memory
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP
from tests.doses import sampled
from tests.jobs.test_memory import plan
from tests.shipped import recordings as shipped_data

STUDY = DEFAULT_SWEEP.parent / "sweeps" / "memory.yaml"


RECORDINGS = [folder.name for folder in shipped_data.RECORDINGS]


def table_of(name, table="runs") -> pd.DataFrame:
    """Return one table of a recording: all of its tables take far longer."""
    return store.load_table(shipped_data.locate(name), table)


def run_of(row) -> Run:
    return Run(**{field: getattr(row, field) for field in Run.model_fields if hasattr(row, field)})


def finished(runs) -> list:
    """Select the runs with a peak to predict: runs of the reference Transformer that are not compiled, and did not
    follow compiled runs in their process: since protocol 3 memory is of a process that a run has alone."""
    runs = runs[(runs["status"].astype(str) == "ok") & runs["peak_memory_bytes"].notna()]
    if "workload" in runs:
        runs = runs[runs["workload"].astype(str) != SCRIPT]
    if "compile" in runs:
        compiled = runs["compile"].astype(str) != "off"
        follows = (runs["protocol_version"] < 3) & (runs["started_at"] > runs.loc[compiled, "started_at"].min())
        runs = runs[~compiled & ~follows]
    return [row for row in runs.itertuples() if memory.is_predictable(run_of(row))]


PREDICTED = [name for name in RECORDINGS if len(finished(table_of(name)))]


@pytest.mark.nightly
@pytest.mark.parametrize("name", PREDICTED)
def test_the_predicted_peak_is_within_half_a_percent_of_every_finished_run(name):
    rows = finished(table_of(name))
    errors = {row.run_id: memory.predict_peak_bytes(run_of(row)) / row.peak_memory_bytes - 1 for row in rows}
    assert max(map(abs, errors.values())) < 0.005, max(errors.items(), key=lambda item: abs(item[1]))


def test_checkpointing_micro_batches_large_batches_and_long_contexts_are_among_the_predicted():
    ids = {row.run_id for name in PREDICTED if name.startswith("trained_") for row in finished(table_of(name))}
    parts = ("checkpoint_blocks", "accum4", "batch128", "ctx8192")
    assert len(ids) >= 27 and all(any(part in run_id for run_id in ids) for part in parts)


@pytest.mark.parametrize("name", [name for name in PREDICTED if name.startswith("trained_")])
def test_each_owner_is_predicted_within_five_percent_and_the_timeline_peaks_where_the_allocator_does(name):
    runs = table_of(name)
    runs = runs[runs["run_id"].isin([row.run_id for row in finished(runs)]) & (runs["mode"] == "train_step")]
    measured = device_memory.read_probes(table_of(name, "memory"), table_of(name, "figures"))
    cells = device_memory.predict_owners(runs).merge(measured, on="run_id")
    assert len(cells) == len(runs) and device_memory.find_owner_errors(cells).max() < 0.02
    for row in runs.itertuples():
        step = memory.predict_owners(memory.infer_shape(run_of(row)))
        assert max(size for _, size in step.timeline) == memory.predict_peak_bytes(run_of(row)) == step.allocated
        assert measured.set_index("run_id")["peak"][row.run_id] == row.peak_memory_bytes


def test_the_peak_of_a_forward_pass_in_float32_is_predicted_to_the_byte():
    rows = [row for row in finished(table_of("h200-fp32")) if row.mode == "forward"]
    assert len(rows) == 20
    for row in rows:
        assert memory.predict_peak_bytes(run_of(row)) == row.peak_memory_bytes, row.run_id


@pytest.mark.parametrize("name", sampled(PREDICTED, 12))
@pytest.mark.long
def test_the_predicted_peak_of_every_phase_is_within_one_percent(name):
    runs = {row.run_id: row for row in finished(table_of(name))}
    for row in table_of(name, "memory").astype({"run_id": str, "phase": str}).itertuples():
        if row.run_id in runs:
            predicted = memory.predict_peaks(run_of(runs[row.run_id]), 1)[row.phase]
            assert predicted == pytest.approx(row.peak_allocated_bytes, rel=0.01), (row.run_id, row.phase)


@pytest.mark.long
def test_what_ran_out_on_a_whole_gpu_was_predicted_to():
    rows = [row for name in RECORDINGS for row in table_of(name).itertuples() if row.status == "oom"]
    rows = [row for row in rows if not row.memory_limit_gib and memory.is_predictable(run_of(row))]
    assert rows
    for row in rows:
        assert memory.predict_failure(row, row.gpu_memory_bytes - memory.CUDA_CONTEXT_BYTES), row.run_id


def test_every_capped_run_fails_in_the_step_and_phase_that_were_predicted():
    runs = [row for row in table_of("memory").itertuples() if row.memory_limit_gib]
    assert len(runs) == 40
    for row in runs:
        failure = memory.predict_failure(row, memory.compute_allocator_limit(row))
        measured = (int(row.status_step), row.status_phase) if row.status == "oom" else None
        assert (failure and tuple(failure)) == measured, row.run_id


@pytest.mark.long
@pytest.mark.parametrize(("sold_gb", "cap"), [(24, 21.9), (80, 78.5)])
def test_the_plan_for_a_gpu_marks_the_runs_that_a_cap_of_its_size_stopped(sold_gb, cap):
    lines = plan("--sweep", STUDY, "--only", "memory_limit_gib=0.0", "--gpu-memory", sold_gb)
    capped = table_of("memory").query("memory_limit_gib == @cap").astype({"status_phase": str})
    assert len(capped) == 20
    for row in capped.itertuples():
        (line,) = (line for line in lines if line.startswith(row.run_id.removesuffix(f"-limit{cap:g}") + " "))
        wanted = f"{('first', 'second')[int(row.status_step)]} step, {row.status_phase}" if row.status == "oom" else ""
        assert line.rstrip().endswith(wanted) if wanted else " step, " not in line, line
    stopped = (capped["status"].astype(str) == "oom").sum()
    assert lines[-1] == f"{stopped} of 20 runs will not fit a GPU sold with {sold_gb} GB"


@pytest.mark.long
def test_the_plan_of_a_capped_sweep_marks_what_its_caps_will_stop():
    lines = plan("--sweep", STUDY)
    stopped = table_of("memory")["status"].astype(str).eq("oom").sum()
    assert lines[-1] == f"{stopped} of 60 runs will not fit the memory limit of the sweep"
