"""Modules of an eager run and of a compiled one, whose kernels are fused, are lined up."""

import pandas as pd
import pytest

from profiler_job.analysis.capture.compiled_graphs import Graph, Launch, name_inside
from profiler_job.analysis.comparison.compare_formats import describe_fused_modules
from profiler_job.analysis.comparison.fused_modules import add_fused, list_fused_modules
from profiler_job.analysis.metrics.kernel_time import module_of

from .test_waterfall import explain, sides_of

PLACE = ["process", "thread", "phase", "kernel_name", "module"]


@pytest.mark.parametrize(
    ("module", "parts"),
    [
        ("GPT/h.*/(fused: ln_1 + attn.c_attn)", ["GPT.h.*.ln_1", "GPT.h.*.attn.c_attn"]),
        ("GPT/(fused: transformer.h.*.mlp[0].norm + head)", ["GPT.transformer.h.*.mlp.0.norm", "GPT.head"]),
        ("(fused: block.ffn + norm)", ["block.ffn", "norm"]),
        ("GPT/h.*/(fused: ln_1)", ["GPT.h.*.ln_1"]),
        ("GPT/h.*/ln_1", []),
        ("GPT (compiled)", []),
        ("", []),
    ],
)
def test_the_modules_of_a_fused_kernel_have_the_names_of_an_eager_run(module, parts):
    assert list_fused_modules(module) == parts


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("GPT/h.3/(fused: ln_1 + attn.c_attn)", "GPT/h.*/(fused: ln_1 + attn.c_attn)"),
        ("GPT/(fused: h.0.norm + h.1.norm + head)", "GPT/(fused: h.*.norm + head)"),
        ("GPT/(fused: value_embeds.1 + value_embeds.3)", "GPT/(fused: value_embeds.*)"),
        ("GPT/(fused: h.0[1].norm + h.1.mlp[0])", "GPT/(fused: h.*[1].norm + h.*.mlp[0])"),
    ],
)
def test_modules_of_a_list_are_one_in_a_fused_kernel(path, module):
    assert module_of(path) == module


def test_a_module_shows_the_fused_kernels_that_compute_it():
    fused, other = "GPT/h.*/(fused: ln_1 + mlp)", "GPT/(fused: h.*.ln_1 + wte)"
    rows = [
        ("forward", "GPT/h.*/ln_1", 9100, 0),
        ("forward", "GPT/h.*/mlp", 5000, 4000),
        ("backward", "GPT/h.*/ln_1", 700, 600),
        ("forward", fused, 0, 2300),
        ("forward", other, 0, 100),
    ]
    sums = pd.DataFrame(rows, columns=["phase", "module", "first_ns", "second_ns"])
    shown = add_fused(sums)
    assert shown["second_fused_ns"].tolist() == [2400, 2300, 0, 0, 0]
    assert shown["first_fused_ns"].tolist() == [0] * 5
    assert shown["fused_into"].tolist() == [
        "(fused: ln_1 + mlp); (fused: h.*.ln_1 + wte)",
        "(fused: ln_1 + mlp)",
        *[""] * 3,
    ]
    assert shown[sums.columns].equals(sums)


def test_a_norm_of_an_eager_run_is_compared_with_the_fused_kernels_that_compute_it():
    norm, fused = "GPT/h.0/norm", "GPT/h.0/(fused: norm + qkv)"
    eager = sides_of([("forward", norm, "elementwise", "norm", 90), ("forward", "GPT/h.0/qkv", "gemm", "gemm", 50)])
    compiled = sides_of([("forward", fused, "triton", "triton_0", 20), ("forward", "GPT/h.0/qkv", "gemm", "gemm", 50)])
    (ns, text), (other, _) = describe_fused_modules(explain(eager, compiled))
    assert (ns, other) == (-90, 0)
    assert text.startswith("forward, GPT/h.*/norm: ") and "of B in (fused: norm + qkv)" in text
    assert describe_fused_modules(explain(eager, eager)) == []


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
        [Graph(1, False, "GPT", (Launch("triton_0", (module, "head")),))],
    )
    eager = sides_of([("forward", f"GPT/{module}", "elementwise", "norm", 90)])
    compiled = sides_of([("forward", fused, "triton", "triton_0", 20)])
    ((ns, text),) = describe_fused_modules(explain(eager, compiled))
    assert ns == -90 and text.startswith(f"forward, {module_of(f'GPT/{module}')}: ")


def test_another_module_of_a_sequence_is_not_in_a_fused_kernel():
    eager = sides_of([("forward", "GPT/mlp/2", "gemm", "gemm", 90)])
    compiled = sides_of([("forward", "GPT/(fused: mlp[0] + norm)", "triton", "triton_0", 20)])
    assert describe_fused_modules(explain(eager, compiled)) == []
