"""A step on an H100, estimated from recordings of an H200, compared with recordings of an H100, and the other way."""

import pandas as pd
import pytest

from profiler_job.analysis.insight.other_gpus import estimate_on, list_others
from profiler_job.analysis.reference.gpus import lookup
from profiler_job.analysis.reference.kernel_families import find_family
from tests.shipped.recordings import DATA

H200, H100 = lookup("NVIDIA H200"), lookup("NVIDIA H100 80GB HBM3")
RUNS = ("small-ctx512-fp32-naive-train_step", "small-ctx512-fp32-naive-forward")


def read_run(folder: str, run: str) -> tuple[dict[str, float], float]:
    """Read what the GPU does in a step of a run, and the median step, in ns."""
    tables = {name: pd.read_parquet(DATA / folder / f"{name}.parquet") for name in ("kernels", "steps")}
    kernels, steps = (table[table["run_id"].astype(str) == run] for table in tables.values())
    kernels = kernels[kernels["step"] >= 0]
    families = kernels["kernel_name"].astype(str).map(find_family)
    times = kernels["duration_ns"].astype(float).groupby(families).sum() / kernels["step"].nunique()
    kinds = {"matmul": times["gemm"], "attention": times.get("attention", 0.0), "busy": times.sum()}
    timed = steps[(steps["collector"] == "timer") & (steps["phase"] == "step")]
    return kinds, float(timed["wall_ns"].median())


@pytest.mark.parametrize("run", RUNS)
def test_steps_on_the_other_gpu_are_inside_what_is_estimated(run):
    recorded = {"H200": read_run("again/again", run), "H100": read_run("attention/attention_fp32", run)}
    for gpu, other in ((H200, H100), (H100, H200)):
        kernels, step_ns = recorded[gpu.key[:4]]
        low, high = estimate_on(other, gpu, kernels, step_ns, "fp32")
        measured = recorded[other.key[:4]][1]
        assert 0.97 * low <= measured <= 1.03 * high
        assert abs((low + high) / 2 / measured - 1) < 0.05


def test_recorded_steps_that_wait_for_the_cpu_are_not_estimated():
    """In BF16 both GPUs have these runs; the CPU of one machine made them 1.2 to 1.7 times as long as the other's."""
    for context_length in (128, 512, 1024):
        kernels, step_ns = read_run("attention/attention_bf16", f"small-ctx{context_length}-bf16-naive-train_step")
        assert kernels["busy"] < 0.85 * step_ns and estimate_on(H200, H100, kernels, step_ns, "bf16") is None


def test_a_step_that_waits_for_the_cpu_is_not_estimated():
    kernels = {"matmul": 5e6, "busy": 8e6}
    assert estimate_on(H100, H200, kernels, 10e6, "bf16") is None
    assert estimate_on(H100, H200, kernels, 9e6, "bf16") is not None
    assert [gpu.key for gpu in list_others(H200)] == [H100.key] and not list_others(lookup("NVIDIA L4"))
