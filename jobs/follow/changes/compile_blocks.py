"""Regional compilation: `block.compile()` of each block that a model repeats, which compiles one of them."""

from collections.abc import Sequence

from torch import nn

from ..module_ranges import is_compiled
from .compile import Compiled


class CompiledBlocks(Compiled):
    reason = "no model with repeated blocks was called"

    def before_call(self, model: nn.Module) -> None:
        blocks = find_blocks(model)
        if any(is_compiled(part) for part in model.modules()):
            super().before_call(model)  # which knows whether it is compiled here
            return
        for block in blocks:
            self.compile(block)
            self.reason = ""

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return super().explain_obstacle(models) or ("" if any(map(find_blocks, models)) else self.reason)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Find the blocks that a model repeats: members of its outermost lists of modules of one class."""
    repeated: list[nn.Module] = []
    for child in model.children():
        blocks = list(child) if isinstance(child, nn.ModuleList | nn.Sequential) else []
        if len(blocks) > 1 and len({type(block) for block in blocks}) == 1 and next(blocks[0].children(), None):
            repeated += blocks
        else:
            repeated += find_blocks(child)
    return repeated


CHANGE = CompiledBlocks
