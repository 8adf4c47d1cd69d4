"""What torch.compile did in a script that was measured, from what was noted of it."""

from pathlib import Path
from typing import Any

from profiler_job.jobs.contract.compiling import Compiling, GraphBreak
from profiler_job.jobs.contract.privacy import scrub_text
from profiler_job.jobs.executor.python_samples import shorten_path


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
                where=f"{shorten_path(each['file'], folder)}:{each['line']}" if each["file"] else "",
                function=each["function"],
                graphs=each["graphs"],
            )
            for each in noted["graph_breaks"]
        ],
        errors=list(map(scrub_text, noted["graphs_errors"])),
        compiled_autograd=scrub_text(noted["compiled_autograd"]),
    )
