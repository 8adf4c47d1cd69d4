"""The reference Transformer on several GPUs that each have a part of every matrix of a block, as Megatron-LM divides
them: the first matrices of attention and of the feed-forward by columns, the last by rows.

Each GPU has its heads and its part of d_ff. So a block needs two all-reduces of its activations [B, T, D] in forward,
after the last matrix of each half, and two in backward, of the gradient of the input of each half. Norms, embedding and
head are whole on each GPU, which computes them for all sequences.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from profiler_job.jobs.workloads.transformer.model import CausalSelfAttention, TransformerLM

HALVES = {"attention": (("q_proj", "k_proj", "v_proj"), "o_proj"), "ffn": (("w1", "w3"), "w2")}
"""The halves of a block: the matrices divided by columns, and the one divided by rows."""
NUM_REDUCED = 2 * len(HALVES)
"""All-reduces of a block in a training step."""


def divide_blocks(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the blocks of a TransformerLM, in place, among the GPUs of a mesh of one dimension."""
    assert isinstance(model, TransformerLM)  # `jobs.sweep.block` refuses other workloads
    plan: dict[str, ParallelStyle] = {}
    for half, (first, last) in HALVES.items():
        # Once for all matrices of a half, so that the gradients of its input add up before they are reduced.
        plan[half] = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
        plan |= {f"{half}.{name}": ColwiseParallel() for name in first}
        plan[f"{half}.{last}"] = RowwiseParallel()
    for block in model.blocks:
        attention = block.attention
        assert isinstance(attention, CausalSelfAttention)
        attention.num_heads //= mesh.size()
        parallelize_module(block, mesh, plan)
