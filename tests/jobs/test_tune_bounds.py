"""What changes could save at most, from shares of a step."""

import pytest

from profiler_job.jobs.contract.changes import TRIABLE
from profiler_job.jobs.executor.tune_bounds import bound_saving, find_precision

KINDS = ("attention", "convolution", "matmul", "fill", "pageable", "copy", "other", "matmul_fp32", "unaligned")


def shares(num_syncs=0, phases=None, **kernels):
    parts = dict.fromkeys(KINDS, 0.0) | kernels
    parts.setdefault("busy", sum(parts[kind] for kind in KINDS[:7]))
    kernel_ns = {name: 100.0 * part for name, part in parts.items()}
    known = {
        "step_ns": 100.0,
        "kernels": kernel_ns,
        "phases": {name: 100 * part for name, part in (phases or {}).items()},
    }
    return known | {"num_syncs": num_syncs, "num_alloc_retries": 0, "float32_matmul_precision": "highest"}


def bound(name, known, changes=(), precision="fp32"):
    return bound_saving(name, known, changes, precision)


def test_lower_precision_saves_matmuls_and_less_where_the_gpu_waits():
    busy, waiting = shares(matmul=0.8, other=0.2), shares(matmul=0.2, other=0.05)
    assert bound("bf16", busy) > 0.7 > 0.1 > bound("bf16", waiting)
    assert bound("bf16", busy, precision="bf16") == 0.0
    assert bound("tf32", busy) > 0.6 and bound("tf32", busy, precision="bf16") == 0.0


def test_what_launches_less_saves_idle_time():
    waiting = shares(matmul=0.2, other=0.05)
    assert bound("cuda_graphs", waiting) > bound("compile", waiting) > 0.5
    busy = shares(matmul=0.7, other=0.3)
    assert bound("compile", busy) > bound("cuda_graphs", busy)


def test_a_compiled_script_is_not_compiled_again_but_may_get_graphs():
    known = shares(matmul=0.6, other=0.2)
    assert bound("compile", known, ("compile",)) == bound("compile_blocks", known, ("compile",)) == 0.0
    assert bound("cuda_graphs", known, ("compile",)) == pytest.approx(0.2 - 0.03)


def test_bounds_of_a_script_that_compiles_itself_are_of_compiled_code():
    known = shares(attention=0.2, matmul=0.4, other=0.2)
    compiled = {name: bound_saving(name, known, (), "bf16", is_compiled=True) for name in TRIABLE}
    assert compiled["cuda_graphs"] == pytest.approx(0.2 - 0.03), "what could be fused is"
    assert compiled["compile"] == compiled["compile_blocks"] == 0.0
    assert compiled["cudnn_attention"] == 0.0 < bound("cudnn_attention", known, precision="bf16")


def test_an_optimizer_saves_its_own_time():
    known = shares(phases={"optimizer": 0.2}, matmul=0.8, other=0.2)
    assert bound("fused_adamw", known) == bound("foreach", known) == pytest.approx(0.18)


@pytest.mark.parametrize(
    "name, known",
    [
        ("padding", shares(matmul=0.5, unaligned=0.3)),
        ("cudnn_attention", shares(attention=0.3, matmul=0.6)),
        ("cudnn_benchmark", shares(convolution=0.9)),
        ("copies", shares(matmul=0.5, pageable=0.1)),
        ("synchronisations", shares(matmul=0.5, num_syncs=3)),
        ("loader_workers", shares(matmul=0.5, phases={"data": 0.4})),
        ("dropped_gradients", shares(matmul=0.5, phases={"zero_grad": 0.05})),
    ],
)
def test_a_change_is_bounded_by_what_it_makes_faster(name, known):
    assert bound(name, known) >= 0.01 > bound(name, shares(matmul=0.5, other=0.5))


def test_without_kernels_phases_bound_a_change():
    known = shares(phases={"optimizer": 0.5}) | {"kernels": None}
    assert bound("bf16", known) == pytest.approx(0.45) and bound("fused_adamw", known) == pytest.approx(0.45)


def test_every_change_has_a_bound_within_a_step():
    for known in (shares(matmul=0.9, other=0.4), shares(matmul=0.1) | {"kernels": None}):
        assert all(0.0 <= bound(name, known) < 1.0 for name in TRIABLE)


@pytest.mark.parametrize(
    "changes, autocast, dtypes, matmuls, precision",
    [
        ((), "", {"torch.float32": 9}, "highest", "fp32"),
        ((), "", {"torch.float32": 9}, "high", "tf32"),
        (("tf32",), "", {"torch.float32": 9}, "highest", "tf32"),
        (("bf16",), "", {"torch.float32": 9}, "highest", "bf16"),
        ((), "torch.bfloat16", {"torch.float32": 9}, "highest", "bf16"),
        ((), "torch.float16", {"torch.float32": 9}, "highest", "fp16"),
        ((), "", {"torch.bfloat16": 9, "torch.float32": 1}, "highest", "bf16"),
    ],
)
def test_the_precision_of_a_variant(changes, autocast, dtypes, matmuls, precision):
    assert find_precision({"float32_matmul_precision": matmuls}, changes, autocast, dtypes) == precision
