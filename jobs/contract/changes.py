"""Changes that make a training script faster: the label of each, and its code."""

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
"""Changes that can be applied to a script from outside, without editing it."""
COMPILED = ("compile", "cuda_graphs")
CHOICES = (("tf32", "bf16"), ("fused_adamw", "foreach"), COMPILED)
"""A set of changes has at most one change of each choice."""


class ChangeSetError(ProfilerError, ValueError):
    """Changes cannot be tried; the message gives the reason in one line."""


def parse_sets(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Return sets of changes from texts of names joined by commas. Names are in the order in which they name runs;
    repeated sets are dropped. Raises ChangeSetError."""
    sets: dict[frozenset[str], tuple[str, ...]] = {}
    for text in texts:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in names:
            if name not in LABELS:
                raise ChangeSetError(
                    f"{name or 'an empty name'} is not a known change; the known ones are: {', '.join(TRIABLE)}"
                )
            if name not in TRIABLE:
                raise ChangeSetError(
                    f"{name} needs a change of code: {DO[name]}. Make it, and compare both with `profiler-job compare`"
                )
        for choice in CHOICES:
            if set(choice) <= set(names):
                raise ChangeSetError(f"{' and '.join(choice)} are one choice: give each a --change of its own")
        sets.setdefault(frozenset(names), tuple(name for name in TRIABLE if name in names))
    return list(sets.values())
