"""The traces of torch.profiler that the ranks of a script wrote."""

import shutil
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.layout import TRACE, name_node_file

TRACE_ENDING = ".trace.json.gz"
"""Ending of the file that a rank writes its trace to, after its number."""


def keep_traces(folder: Path, run: Path, ranks: list[dict[str, Any]]) -> int:
    """Move the traces of all ranks to the folder of a run, and return the number of captured steps; 0 without a GPU,
    whose kernels would be recorded. Raises OSError."""
    for number, noted in enumerate(ranks):
        shutil.move(folder / f"{noted['rank']}{TRACE_ENDING}", run / name_node_file(TRACE, number))
    return len(ranks[0]["captured_ns"]) if ranks[0]["gpu_memory_bytes"] else 0
