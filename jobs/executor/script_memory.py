"""Memory of a script's step at its peak: what would free it, and all of it as scalars of a recording."""

import re
from collections import defaultdict
from typing import Any

from profiler_job.jobs.contract.messages import AT_PEAK, COULD_FREE, KEPT_IN, OVER_STEP, SAVED

NUM_GPUS = 8
LEAST_SHARE = 0.01
"""Of the peak, that a change has to free to be named."""
LOSS = "(loss)"
BLOCK = re.compile(r"^(.*?)\.(\d+)(?=/|$)")
"""Path of a module inside a list of them."""


def list_savings(noted: dict[str, Any]) -> dict[str, int]:
    """List changes that would free memory, with the bytes that each frees at most of what is there at the peak; the
    peak may lie elsewhere then. noted: of a rank. Empty if the owners are not known.

    Checkpointing keeps the activations of the largest block, which is computed again; inputs of blocks are not taken
    off. A loss that is fused with the output layer keeps nothing; the logits that nothing keeps come on top.
    """
    memory = noted.get("memory_owners", {})
    owners = memory.get("owners", {})
    blocks: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for module, size in memory.get("modules", {}).items():
        if block := BLOCK.match(module):
            blocks[block[1]][block[2]] += size
    model = {name: owners.get(name, 0) for name in ("parameters", "gradients", "optimizer state")}
    freed = {"checkpoint each block": max((sum(s.values()) - max(s.values()) for s in blocks.values()), default=0)}
    freed["fused loss"] = memory.get("modules", {}).get(LOSS, 0)
    if set(noted.get("parameter_dtypes", {})) == {"torch.float32"}:
        freed["optimizer state in BF16"] = model["optimizer state"] // 2
    if noted.get("world", 1) == 1:
        freed[f"FSDP on {NUM_GPUS} GPUs"] = sum(model.values()) * (NUM_GPUS - 1) // NUM_GPUS
    least = LEAST_SHARE * memory.get("peak_bytes", 0)
    ranked = sorted(freed.items(), key=lambda change: -change[1])
    return {change: size for change, size in ranked if owners and size > least}


def list_scalars(noted: dict[str, Any]) -> dict[str, int]:
    """List the memory of a step in bytes by name: AT_PEAK by owner, KEPT_IN a module (`*` in place of a number), SAVED
    by kind of tensor, COULD_FREE by change, and OVER_STEP by number and phase."""
    memory = noted.get("memory_owners", {})
    kept: dict[str, int] = defaultdict(int)
    for module, size in memory.get("modules", {}).items():
        kept[BLOCK.sub(r"\1.*", module)] += size
    scalars = {f"{AT_PEAK}{owner}": size for owner, size in memory.get("owners", {}).items()}
    scalars |= {f"{KEPT_IN}{module}": size for module, size in kept.items()}
    scalars |= {f"{SAVED}{name_kind(kind)}": kind["bytes"] * kind["num"] for kind in memory.get("saved", ())}
    scalars |= {f"{COULD_FREE}{change}": size for change, size in list_savings(noted).items()}
    timeline = enumerate(memory.get("timeline", ()))
    return scalars | {f"{OVER_STEP}{i:03d}_{phase}": size for i, (phase, size) in timeline}


def name_kind(kind: dict[str, Any]) -> str:
    """Name saved tensors of a kind: `Exp in GPT/blocks.*/attn, 12 x float32 (4, 12, 512, 512)`."""
    shape = ", ".join(map(str, kind["shape"]))
    operation = kind["operation"] or "an operation"
    return f"{operation} in {kind['module']}, {kind['num']} x {kind['dtype']} ({shape})"
