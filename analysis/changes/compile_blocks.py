"""torch.compile of the blocks that a model repeats: it compiles one of them, and so for a shorter time. It saves what
torch.compile saves, which is advised; `tune` measures both."""

from profiler_job.analysis.changes.model_code import compile_blocks
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "for block in model.blocks: block.compile(), before the first step"
ACTION = "Compile each block"
LINE = "for block in model.blocks: block.compile()"


def find_edits(program: Program) -> FoundEdits:
    return compile_blocks(program, CODE)
