"""What torch.compile keeps in memory, without compiling: the forward and backward graphs that Inductor would get, run
operation by operation.

Which tensors forward keeps for backward is decided before there is any code: by the partitioner of AOTAutograd, on the
joint graph of both passes. So the sizes are known on the CPU, from tensors without data. What fused kernels never write
is written here, for the time of an operation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import detect_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes, lazy_init
from torch._inductor.virtualized import V


def compile_without_code(module: nn.Module) -> Callable[..., Any]:
    """Return a function that computes what `module` does, as two graphs. Raises what tracing raises, when it is called
    first. The module is of FakeTensorMode, which is on."""
    values = dict(module.named_parameters()) | dict(module.named_buffers())

    def compute(values: Sequence[torch.Tensor], *inputs: Any) -> Any:
        return torch.func.functional_call(module, dict(zip(names, values)), inputs)

    names = list(values)
    made = aot_function(
        compute,
        fw_compiler=make_freeing,
        bw_compiler=make_freeing,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    return lambda *inputs: made(list(values.values()), *inputs)


def prepare() -> None:
    """Make the patterns that Inductor looks for in graphs, once. It makes them from tensors, which would count."""
    lazy_init()


def partition(joint: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Divide a joint graph into forward and backward as Inductor does."""
    with V.set_fake_mode(detect_fake_mode(inputs)):  # where dropout is in the graph, passes ask for it
        joint_graph_passes(joint)
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)


def make_freeing(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Return a function that runs a graph and, as generated code does, gives up each value after its last use, those
    that it was called with, too."""

    def run(values: list[Any]) -> Any:
        return torch.fx.Interpreter(gm).boxed_run(values)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark of such a function
    return run
