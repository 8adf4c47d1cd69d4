"""What torch.compile did in a script that was measured, from what was noted of it."""

from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.compiling import Compiling, GraphBreak, Recompilation
from profiler_job.jobs.contract.privacy import scrub_text
from profiler_job.jobs.executor.python_samples import name_line


def build_compiling(noted: dict[str, Any], folder: Path) -> Compiling:
    """Build the record of a rank. noted: of the rank. folder: of the script, to which paths are relative."""
    return Compiling(
        rank=noted["rank"],
        graphs=noted["graphs"],
        late_graphs=noted["late_graphs"],
        cached_graphs=noted["cached_graphs"],
        seconds=noted["compiling_s"],
        breaks=[
            GraphBreak(
                reason=scrub_text(each["reason"]),
                where=name_line(each, folder),
                function=each["function"],
                graphs=each["graphs"],
            )
            for each in noted["graph_breaks"]
        ],
        recompilations=[
            Recompilation(
                reason=scrub_text(each["reason"]),
                where=name_line(each, folder),
                function=each["function"],
                gave_up=each["gave_up"],
            )
            for each in noted["recompilations"]
        ],
        errors=list(map(scrub_text, noted["graphs_errors"])),
        compiled_autograd=scrub_text(noted["compiled_autograd"]),
    )
