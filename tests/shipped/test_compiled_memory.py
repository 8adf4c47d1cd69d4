"""Memory of compiled steps, as simulated on the CPU, against what was measured on an H200."""

import pytest

from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.memory import Owner, simulate_runs
from tests.shipped import recordings as shipped_data

CASES = [
    ("compile", "small-ctx128-fp32-naive-train_step-compile_default"),
    ("compile_larger", "medium-ctx1024-fp32-naive-train_step-compile_default"),
    ("compile", "small-ctx512-fp32-naive-train_step-compile_default"),
    ("third_compile", "large-ctx512-bf16-sdpa-train_step-compile_default-adamw_fused"),
    ("trained_1", "large-ctx1024-bf16-sdpa-train_step-compile_default-adamw_fused"),
    ("trained_1", "1.3B-ctx2048-bf16-sdpa-train_step-compile_default-adamw_fused"),
    *(
        ("trained_2", f"{size}-ctx1024-bf16-sdpa-train_step-compile_default-adamw_fused")
        for size in ("small", "xl", "2.7B")
    ),
]


@pytest.mark.nightly
def test_the_peaks_of_compiled_steps_and_what_holds_them_are_within_five_percent():
    runs = []
    for name, run_id in CASES:
        (row,) = (
            row for row in store.load_table(shipped_data.locate(name), "runs").itertuples() if row.run_id == run_id
        )
        runs.append(Run(**{field: getattr(row, field) for field in Run.model_fields if hasattr(row, field)}))
    for (name, run_id), simulated in zip(CASES, simulate_runs(runs, patient=True)):
        memory = store.load_table(shipped_data.locate(name), "memory").query("run_id == @run_id")
        measured = dict(zip(memory["phase"].astype(str), memory["peak_allocated_bytes"]))
        assert simulated.peaks[1] == pytest.approx(measured, rel=0.05), run_id
        assert simulated.peak_bytes == pytest.approx(max(measured.values()), rel=0.05), run_id
        figures = store.load_table(shipped_data.locate(name), "figures").query("run_id == @run_id")
        by_use = dict(zip(figures["figure"].astype(str), figures["value"]))
        forward = memory[memory["phase"] == "forward"].iloc[0]
        kept = int(forward["allocated_after_bytes"] - forward["allocated_before_bytes"])
        for owner, predicted in sum_owners(simulated).items():
            assert predicted == pytest.approx({"kept": kept, **by_use}[owner], rel=0.05, abs=50e6), (run_id, owner)


def sum_owners(simulated):
    """Bytes of what the figures of a recording know: kept is what forward leaves allocated."""
    after, before = simulated.owners["forward"], simulated.owners["optimizer"]
    return {
        "memory_parameters": after[Owner.PARAMETERS],
        "memory_gradients": before[Owner.GRADIENTS],
        "memory_optimizer_state": after[Owner.OPTIMIZER_STATE],
        "kept": after[Owner.ACTIVATIONS] + after[Owner.LOGITS],
    }
