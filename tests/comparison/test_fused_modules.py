"""Modules of an eager run and of a compiled one, whose kernels are fused, are lined up."""

import pandas as pd
import pytest

from profiler_job.analysis.capture.compiled_graphs import Graph, Launch, name_inside
from profiler_job.analysis.capture.fused_kernels import divide, weigh_fused
from profiler_job.analysis.comparison.compare_formats import describe_fused_modules
from profiler_job.analysis.comparison.fused_modules import divide_among_modules
from profiler_job.analysis.metrics.kernel_time import module_of
from tests.capture.test_compiled_graphs import link_recorded

from .test_waterfall import explain, sides_of

PLACE = ["process", "thread", "phase", "kernel_name", "module"]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("GPT/h.3/(fused: ln_1 + attn.c_attn)", "GPT/h.*/(fused: attn.c_attn + ln_1)"),
        ("GPT/(fused: h.0.norm + h.1.norm + head)", "GPT/(fused: h.*.norm + head)"),
        ("GPT/(fused: value_embeds.1 + value_embeds.3)", "GPT/(fused: value_embeds.*)"),
        ("GPT/(fused: h.0[1].norm + h.1.mlp[0])", "GPT/(fused: h.*.mlp[0] + h.*[1].norm)"),
    ],
)
def test_modules_of_a_list_are_one_in_a_fused_kernel(path, module):
    assert module_of(path) == module


def test_each_module_has_its_part_of_the_kernels_that_one_side_fuses():
    """And what both sides have in all phases and modules is what they had in the kernels."""
    fused, other = "GPT/h.*/(fused: ln_1 60% + mlp 40%)", "GPT/(fused: h.*.ln_1 50% + wte 30%)"
    rows = [
        ("forward", "GPT/h.*/ln_1", 9100, 0),
        ("forward", "GPT/h.*/mlp", 5000, 4000),
        ("backward", "GPT/h.*/ln_1", 700, 600),
        ("forward", fused, 0, 2301),
        ("forward", other, 0, 101),
    ]
    kernels = pd.DataFrame(rows, columns=["phase", "module", "first_ns", "second_ns"])
    divided = divide_among_modules(kernels)
    sums = divided.groupby(["phase", "module", "fused_into"])[["first_ns", "second_ns"]].sum()
    both = "(fused: ln_1 + mlp); (fused: h.*.ln_1 + wte)"
    assert {key: tuple(row) for key, row in zip(sums.index, sums.to_numpy().tolist())} == {
        ("forward", "GPT/h.*/ln_1", both): (9100, 1381 + 51),
        ("forward", "GPT/h.*/mlp", "(fused: ln_1 + mlp)"): (5000, 4000 + 920),
        ("forward", "GPT/wte", "(fused: h.*.ln_1 + wte)"): (0, 30),
        ("forward", "GPT", "(fused: h.*.ln_1 + wte)"): (0, 20),
        ("backward", "GPT/h.*/ln_1", ""): (700, 600),
    }
    assert divided[["first_ns", "second_ns"]].sum().equals(kernels[["first_ns", "second_ns"]].sum())


def test_a_norm_of_an_eager_run_is_compared_with_its_part_of_the_fused_kernels():
    norm, fused = "GPT/h.0/norm", "GPT/h.0/(fused: norm 75% + qkv 25%)"
    eager = sides_of([("forward", norm, "elementwise", "norm", 90), ("forward", "GPT/h.0/qkv", "gemm", "gemm", 50)])
    compiled = sides_of([("forward", fused, "triton", "triton_0", 20), ("forward", "GPT/h.0/qkv", "gemm", "gemm", 50)])
    made = explain(eager, compiled)
    (first, norm_text), (second, qkv_text) = describe_fused_modules(made)
    assert (first, second) == (-75, 5)
    assert norm_text.startswith("forward, GPT/h.*/norm: ") and norm_text.endswith(", fused into norm + qkv")
    assert qkv_text.startswith("forward, GPT/h.*/qkv: ") and qkv_text.endswith(", fused into norm + qkv")
    assert made.by_module[["first_ns", "second_ns"]].sum().tolist() == [140, 70]
    assert describe_fused_modules(explain(eager, eager)) == []


def test_percents_that_differ_between_compiled_runs_make_no_other_kernels():
    """Another batch size has other shares of bytes."""
    sides = (
        sides_of([("forward", f"GPT/(fused: norm {percent}% + qkv 10%)", "triton", "triton_0", ns)])
        for percent, ns in ((80, 20), (81, 30))
    )
    made = explain(*sides)
    assert [cause.kind for cause in made.causes if cause.phase and cause.kind != "idle"] == ["per_call"]
    assert "(fused: norm + qkv)" in next(cause.text for cause in made.causes if cause.kind == "per_call")


@pytest.mark.parametrize(
    "module",
    [
        "transformer.h.0/ln_1",
        "transformer.h.0/mlp/0",
        "transformer/h.0/mlp/0/norm",
        "h.0/ln_1",
        "mlp/0",
        "value_embeds.3",
    ],
    ids=str,
)
def test_a_module_of_an_eager_run_is_found_in_a_fused_kernel_that_names_it(module):
    """As in llm.c and nanochat, whose blocks are in a ModuleDict, and in a Sequential."""
    (fused,) = name_inside(
        pd.DataFrame([(1, 1, "forward", "triton_0", "GPT (compiled)")], columns=PLACE),
        [Graph(1, False, "GPT", (Launch("triton_0", (module, "head"), (50, 50)),))],
    )
    eager = sides_of([("forward", f"GPT/{module}", "elementwise", "norm", 90)])
    compiled = sides_of([("forward", fused, "triton", "triton_0", 20)])
    (ns, text), *_ = describe_fused_modules(explain(eager, compiled))
    assert ns == -80 and text.startswith(f"forward, {module_of(f'GPT/{module}')}: ")


def test_another_module_of_a_sequence_is_not_in_a_fused_kernel():
    eager = sides_of([("forward", "GPT/mlp/2", "gemm", "gemm", 90)])
    compiled = sides_of([("forward", "GPT/(fused: mlp[0] 60% + norm 40%)", "triton", "triton_0", 20)])
    named = {text.partition(": ")[0] for _, text in describe_fused_modules(explain(eager, compiled))}
    assert named == {"forward, GPT/mlp/0", "forward, GPT/norm"}


@pytest.mark.parametrize("name", ["gpt-12", "nanochat", "llama-8"])
def test_modules_of_a_recorded_step_have_all_its_kernel_time(name):
    """And have no more or less if the fused kernels are launched as one kernel for each module instead."""
    rows, modules = link_recorded(name, has_shares=True)
    weights = weigh_fused(modules)
    compiled, eager = [], []
    for phase, module, kernel, ns in zip(rows["phase"], modules, rows["kernel_name"], rows["ns"]):
        compiled.append((phase, module, "other", kernel, ns))
        inside = weights.get(module, {module: 1})
        eager += [(phase, path, "other", kernel, part) for path, part in zip(inside, divide(ns, list(inside.values())))]
    made = explain(sides_of(eager, wall_ns=10**9), sides_of(compiled, wall_ns=10**9))
    by_module = made.by_module
    assert by_module[["first_ns", "second_ns"]].sum().tolist() == [rows["ns"].sum()] * 2
    assert ((by_module["second_ns"] - by_module["first_ns"]).abs() <= len(rows)).all()
    assert (by_module["fused_into"] != "").any() and not by_module["module"].str.contains("fused").any()
