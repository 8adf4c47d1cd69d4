"""What to change first in a recorded run: waiting is taken from the steps without nsys."""

import pandas as pd
import pytest

from profiler_job.analysis.insight.run_advice import advise
from profiler_job.analysis.metrics.step_clocks import Clock, clocks, measure_host_limited
from profiler_job.jobs.contract.step_limit import (
    CAUSES,
    COMPUTE,
    CPU,
    DATA,
    GAPS,
    LAUNCHES,
    SYNCHRONISATION,
    UNKNOWN,
    StepLimit,
)

MS = 1_000_000
GB = 10**9
RUN = {"profiled_steps": 2, "gpu_name": "NVIDIA H200", "peak_memory_bytes": 14 * GB}
LOG_SOFTMAX = "void at::native::cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>(T1 *)"
GEMM = "nvjet_sm90_tst_96x128_64x7_2x1_v_bz_TNN"


def advised(step_ns=30 * MS, busy_ns=10 * MS, cause=LAUNCHES, num_gpus=1, attention=(), gemms=(), findings=(), **more):
    parts = {"kernels_ns": busy_ns, "communication_ns": 0, "copies_ns": 0, "late_launch_ns": 99 * MS, "between_ns": 0}
    elapsed = {"phase": "forward", "elapsed_ns": 109 * MS, "unknown_idle_ns": 0, "compute_ns": busy_ns} | parts
    elapsed = pd.DataFrame([elapsed | {"gpu": gpu} for gpu in range(num_gpus)])
    kernel = {"phase": "forward", "module": "", "family": "gemm", "kernel_name": GEMM}
    rows = gemms or [{"calls": 100 * num_gpus, "time_ns": busy_ns * num_gpus}]
    fused = {"module": "", "family": "attention", "kernel_name": FLASH, "time_ns": 0}
    kernels = [
        *(kernel | row for row in rows),
        *({"phase": phase, "calls": calls} | fused for phase, calls in dict(attention).items()),
    ]
    columns = ["kind", "time_ns", "count", "evidence", "launching_ns"]
    findings = pd.DataFrame([*findings], columns=columns).astype({"time_ns": float, "count": int})
    timed = {name: Clock(step_ns, step_ns) for name in ("forward", "step")}
    causes = dict.fromkeys(CAUSES, 0.0) | {cause: float(step_ns - busy_ns)}
    limit = StepLimit({COMPUTE: busy_ns, CPU: step_ns - busy_ns}, causes)
    api = pd.DataFrame({"name": ["cudaLaunchKernel"]})
    return advise(RUN | more, elapsed, findings, pd.DataFrame(kernels), api, timed, limit).set_index("change")


def test_the_time_that_a_change_concerns_is_of_the_steps_without_nsys():
    rows = advised()
    assert rows.loc["cuda_graphs", "time_ns"] == rows.loc["cuda_graphs", "ceiling_ns"] == 20 * MS
    assert rows.loc["cuda_graphs", "share"] == pytest.approx(20 / 30)


def test_of_several_gpus_it_is_that_of_one_of_them():
    """They step together: what each waits for, the step waits for once."""
    columns = ["time_ns", "ceiling_ns", "share"]
    assert advised(num_gpus=2)[columns].equals(advised()[columns])


@pytest.mark.parametrize("change", ["cuda_graphs", "larger_batch"])
@pytest.mark.parametrize("cause", [SYNCHRONISATION, DATA])
def test_fewer_launches_are_not_advised_for_what_else_the_gpu_waits_for(change, cause):
    assert change not in advised(cause=cause).index


def test_the_first_advice_fits_what_the_gpu_waits_for():
    assert advised().index[0] == "cuda_graphs" and advised()["fits_limit"].iloc[0]


def test_causes_that_may_be_as_large_are_what_a_change_must_relieve():
    """Data took 6.63 ms, late launches 6.58 and gaps 0.31: advice on data was behind all on launches."""
    for data_ns, targets in ((47, {LAUNCHES, DATA}), (44, {LAUNCHES}), (56, {DATA})):
        limit = StepLimit({CPU: 100.0}, {LAUNCHES: 47.0, GAPS: 3.0, DATA: float(data_ns)})
        assert limit.targets == targets
    assert StepLimit({CPU: 100.0}).targets == {UNKNOWN}
    assert StepLimit({COMPUTE: 90.0, CPU: 10.0}, {DATA: 10.0}).targets == {COMPUTE}


def test_nobody_is_advised_to_leave_out_the_synchronisations_of_our_timer():
    """A run that the timer synchronised was advised to call .item() less often, which it never calls."""
    assert "synchronisations" not in advised(cause=SYNCHRONISATION).index


def test_a_run_without_matmuls_has_advice():
    table = advised(gemms=[{"family": "elementwise", "kernel_name": "mul", "calls": 9, "time_ns": 10 * MS}])
    assert "cuda_graphs" in table.index


def test_a_loss_outside_of_a_compiled_model_counts_in_forward_too():
    """Its kernels have no module there, in the phase `loss`."""
    parts = [("forward", "GPT/head", GEMM), ("loss", "", LOG_SOFTMAX), ("backward", "(loss)", LOG_SOFTMAX)]
    kernels = [dict(zip(("phase", "module", "kernel_name"), part)) | {"calls": 1, "time_ns": 2 * MS} for part in parts]
    rows = advised(busy_ns=6 * MS, gemms=kernels, compile="on")
    assert rows.loc["fused_loss", "time_ns"] == 4 * MS
    assert "fused_loss" not in advised(busy_ns=6 * MS, gemms=kernels).index


def test_a_run_whose_limit_is_not_known_has_no_advice():
    columns = ["gpu", "phase", "elapsed_ns"]
    nothing = pd.DataFrame(columns=columns)
    assert advise(RUN, nothing, nothing, nothing, nothing, {}, None).empty


def test_a_busy_gpu_does_not_wait_for_launches():
    assert "cuda_graphs" not in advised(step_ns=10 * MS).index


def test_a_larger_batch_is_advised_where_memory_is_left():
    row = advised().loc["larger_batch"]
    assert row["evidence"] == "the GPU waits for launches, and peak allocated is 9.9% of its memory"
    assert advised(peak_memory_bytes=100 * GB).loc["larger_batch", "reason"].startswith("peak allocated is 70.9%")


@pytest.mark.parametrize("peak_bytes", [14 * GB, None])
def test_a_larger_batch_saves_at_most_half_of_a_step_for_the_same_tokens(peak_bytes):
    """Of a step of 65 ms it promised 57: twice the batch takes no less time than one step of these."""
    assert (
        advised(step_ns=65 * MS, busy_ns=8 * MS, peak_memory_bytes=peak_bytes).loc["larger_batch", "ceiling_ns"]
        == 32.5 * MS
    )


@pytest.mark.parametrize(
    ("peak_bytes", "reason"),
    [(14 * GB, ""), (100 * GB, "peak allocated is 70.9%"), (None, "it is not known how much memory is left")],
)
def test_a_larger_batch_halves_the_work_of_the_optimizer(peak_bytes, reason):
    """It runs once a step, whatever the batch: half of its 10 ms, and 6 ms of waiting."""
    optimizer = {"phase": "optimizer", "family": "optimizer", "kernel_name": "adamw", "calls": 4, "time_ns": 10 * MS}
    kernels = [{"calls": 100, "time_ns": 84 * MS}, optimizer]
    timings = {"busy_ns": 94 * MS, "step_ns": 100 * MS}
    rows = advised(gemms=kernels, peak_memory_bytes=peak_bytes, **timings)
    row = rows.loc["larger_batch"]
    assert row["reason"].startswith(reason) and bool(row["reason"]) == bool(reason)
    assert reason or row["ceiling_ns"] == 11 * MS
    short = [{"calls": 100, "time_ns": 92 * MS}, optimizer | {"time_ns": 6 * MS}]
    timings = {"busy_ns": 98 * MS, "step_ns": 99 * MS}
    assert "larger_batch" not in advised(gemms=short, **timings).index, "4 of 99 ms"


IN_ATTENTION = {"module": "block/attention/softmax", "family": "softmax", "kernel_name": "softmax", "calls": 1}
IN_ATTENTION["time_ns"] = 1 * MS
EAGER = {"kind": "unfused_attention", "time_ns": 2 * MS, "count": 20, "evidence": "softmax"}


@pytest.mark.parametrize(
    ("module", "matmuls_ns"), [("block/attention/attention_scores", 10 * MS), ("block/ffn", 4 * MS), ("", 10 * MS)]
)
def test_fused_attention_saves_no_matmuls_of_other_modules(module, matmuls_ns):
    """4 ms of matmuls are of attention, 6 ms of `module`; the GPU never waits."""
    of_attention = {"module": "block/attention/attention_output", "calls": 1, "time_ns": 4 * MS}
    gemms = [of_attention, IN_ATTENTION, {"module": module, "calls": 1, "time_ns": 6 * MS}]
    row = advised(step_ns=30 * MS, busy_ns=30 * MS, gemms=gemms, findings=[EAGER]).loc["fused_attention"]
    assert row["ceiling_ns"] == 1 * MS + matmuls_ns


@pytest.mark.parametrize(("step_ns", "waiting_ns"), [(30 * MS, 0), (31 * MS, 0), (40 * MS, 10 * MS)])
def test_fused_attention_saves_at_most_the_kernels_of_attention_and_waiting_that_counts(step_ns, waiting_ns):
    """A card had 226 ms, and attention took 195: kernels of other modules ran between its matmuls, and 1.7% waited."""
    matmuls = {"module": "block/attention/attention_output", "calls": 1, "time_ns": 4 * MS}
    between = EAGER | {"time_ns": 6 * MS}
    kernels = [matmuls, IN_ATTENTION, IN_ATTENTION | {"module": "block/norm"}]
    row = advised(step_ns=step_ns, busy_ns=30 * MS, gemms=kernels, findings=[between]).loc["fused_attention"]
    assert row["ceiling_ns"] == 5 * MS + waiting_ns and row["time_ns"] <= row["ceiling_ns"]


def test_without_modules_of_attention_any_matmul_may_be_one():
    gemms = [{"module": "layers/mlp", "calls": 1, "time_ns": 6 * MS}]
    row = advised(step_ns=30 * MS, busy_ns=30 * MS, gemms=gemms, findings=[EAGER]).loc["fused_attention"]
    assert row["ceiling_ns"] == 7 * MS


def test_what_removes_launches_saves_no_more_than_the_cpu_takes_to_come_to_them():
    """Of two profiled steps, in which the CPU takes 6 ms to come to the launches; the GPU waits for 20 ms of each."""
    optimizer = EAGER | {"kind": "per_tensor_optimizer", "launching_ns": 6 * MS}
    row = advised(findings=[optimizer]).loc["fused_adamw"]
    assert row["ceiling_ns"] == 1 * MS + 3 * MS
    assert advised(findings=[optimizer | {"launching_ns": None}]).loc["fused_adamw", "ceiling_ns"] == 1 * MS + 20 * MS


def test_checkpointing_is_never_advised_for_speed():
    assert "checkpointing" not in advised().index
    full = advised(peak_memory_bytes=135 * GB).loc["checkpointing", "reason"]
    assert "the GPU's memory is allocated" in full and full.endswith("and makes a step slower")


FLASH = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x64_4x1x1_kernel0"


@pytest.mark.parametrize(
    ("in_backward", "peak_bytes", "code"),
    [(10, 14 * GB, ""), (10, 100 * GB, "memory_full"), (10, None, "memory_unknown"), (0, 14 * GB, None)],
)
def test_checkpointing_with_memory_to_spare_costs_a_forward_pass(in_backward, peak_bytes, code):
    rows = advised(peak_memory_bytes=peak_bytes, attention={"forward": 10, "backward": in_backward})
    assert ("keep_activations" in rows.index) == (code is not None)
    if code is not None:
        row = rows.loc["keep_activations"]
        assert row["reason_code"] == code
        assert code or (row["evidence"].startswith("100.0% of forward's attention") and row["time_ns"] > 0)


@pytest.mark.parametrize("more", [{"peak_memory_bytes": None}, {"gpu_name": "another"}])
def test_a_larger_batch_is_less_sure_if_the_memory_is_not_known(more):
    assert advised(**more).loc["larger_batch", "sure"] == "low: it is not known how much memory is left"


def test_a_run_without_timings_has_no_advice():
    steps = pd.DataFrame(columns=["run_id", "collector", "phase", "wall_ns", "issue_ns"])
    assert clocks(steps) == {}


def test_phases_whose_time_goes_into_issuing_work_are_limited_by_the_host():
    names = ["run_id", "collector", "phase", "wall_ns", "issue_ns"]
    rows = [("a", "timer", "forward", 100, 99), ("a", "timer", "backward", 200, 150), ("a", "timer", "step", 300, 249)]
    rows += [("b", "timer", "forward", 70, None), ("b", "nsys", "forward", 900, 900)]
    limited = measure_host_limited(pd.DataFrame(rows, columns=names))
    assert limited == {"a": 100, "b": 70}, "where it is not known, it may be the host"


def test_the_slowest_host_of_several_ranks_limits_all_of_them():
    names = ["run_id", "collector", "rank", "step", "phase", "wall_ns", "issue_ns"]
    rows = [
        ("a", "timer", rank, step, "forward", 100, 99 - 60 * (rank == step % 2)) for rank in (0, 1) for step in (0, 1)
    ]
    assert measure_host_limited(pd.DataFrame(rows, columns=names)) == {"a": 100}, "they take turns"
