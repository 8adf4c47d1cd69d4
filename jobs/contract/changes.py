"""What can be changed of a training script to make it faster: what each change is called, and the code of it."""

from collections.abc import Iterable

from profiler_job.jobs.contract.errors import ProfilerError

LABELS = {
    "tf32": "TF32",
    "bf16": "BF16 autocast",
    "fused_attention": "fused attention",
    "fused_adamw": "fused optimizer",
    "foreach": "foreach optimizer",
    "compile": "torch.compile",
    "cuda_graphs": "CUDA graphs",
    "padding": "padded dimensions",
    "casts": "fewer casts",
    "copies": "pinned memory",
    "synchronisations": "fewer synchronisations",
    "larger_batch": "larger batch",
    "checkpointing": "activation checkpointing",
}
DO = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "bf16": 'with torch.autocast("cuda", dtype=torch.bfloat16): around forward pass and loss',
    "fused_attention": "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "fused_adamw": "torch.optim.AdamW(..., fused=True)",
    "foreach": "foreach=True, PyTorch's default, for an optimizer that has no fused=True",
    "compile": "model = torch.compile(model)",
    "cuda_graphs": 'torch.cuda.make_graphed_callables(...), or torch.compile(model, mode="reduce-overhead")',
    "padding": "pad the dimension to a multiple of 64, such as a vocabulary of 50257 to 50304",
    "casts": "keep weights and activations in one type, as model.to(torch.bfloat16) does, or use torch.compile",
    "copies": "DataLoader(..., pin_memory=True) and tensor.to(device, non_blocking=True)",
    "larger_batch": "twice the batch size, with a learning rate for it",
    "synchronisations": "call .item(), .cpu() and print(loss) once in many steps",
    "checkpointing": "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",
}
TRIABLE = ("tf32", "bf16", "fused_adamw", "compile", "cuda_graphs")
"""Those that a script can be given from outside, as it is."""
COMPILED = ("compile", "cuda_graphs")
CHOICES = (("tf32", "bf16"), ("fused_adamw", "foreach"), COMPILED)
"""Of each of these a set has at most one."""


class Refused(ProfilerError, ValueError):
    """Why changes cannot be tried, in one line."""


def parse_sets(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Sets of changes, each given as names joined by commas, and each in the order in which runs are named by them; a
    set that is given again is left out. Raises Refused."""
    sets: dict[frozenset[str], tuple[str, ...]] = {}
    for text in texts:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in names:
            if name not in LABELS:
                raise Refused(f"{name or 'an empty name'} is no change that is known; these are: {', '.join(TRIABLE)}")
            if name not in TRIABLE:
                raise Refused(
                    f"{name} needs a change of code: {DO[name]}. Make it, and hold both against each other with "
                    "`profiler-job compare`"
                )
        for choice in CHOICES:
            if set(choice) <= set(names):
                raise Refused(f"{' and '.join(choice)} are one choice: give each a --change of its own")
        sets.setdefault(frozenset(names), tuple(name for name in TRIABLE if name in names))
    return list(sets.values())
