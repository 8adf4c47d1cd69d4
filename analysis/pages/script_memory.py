"""Tables of a script's memory at the peak of a step: by owner and by module, saved tensors, and what would free it."""

from collections.abc import Mapping

import pandas as pd

from profiler_job.analysis.render.answer import Column, Table
from profiler_job.jobs.contract.messages import AT_PEAK, COULD_FREE, KEPT_IN, SAVED

KEYS = {AT_PEAK: "memory", KEPT_IN: "kept", SAVED: "saved", COULD_FREE: "could_free"}
"""Key of the table of scalars whose names begin so."""


def build_memory_tables(scalars: Mapping[str, float]) -> list[Table]:
    """Build the tables from scalars by name, in bytes: most first, and empty where nothing is known."""
    headings = {
        AT_PEAK: ("At the peak of a step, by what the memory belongs to", "owner", "of the peak"),
        KEPT_IN: ("Activations at the peak, by the module that saved them for backward", "module", "of them"),
        SAVED: ("Tensors that forward saves for backward, the kinds that take most", "saved by", "of these"),
        COULD_FREE: ("What would free memory, each change alone and at most", "change", "of the peak"),
    }
    return [_build_table(scalars, prefix, *texts) for prefix, texts in headings.items()]


def _build_table(scalars: Mapping[str, float], prefix: str, title: str, heading: str, share: str) -> Table:
    sizes = {name.removeprefix(prefix): size for name, size in scalars.items() if name.startswith(prefix)}
    rows = pd.DataFrame({"name": list(sizes), "bytes": list(sizes.values())})
    shared = AT_PEAK if prefix == COULD_FREE else prefix
    rows["share"] = rows["bytes"] / (sum(size for name, size in scalars.items() if name.startswith(shared)) or 1)
    rows = rows.sort_values("bytes", ascending=False, kind="stable")
    kind = "text" if prefix in (AT_PEAK, COULD_FREE) else "code"
    amounts = Column("bytes", "memory", "bytes"), Column("share", share, "share", bar=True)
    return Table(KEYS[prefix], title, (Column("name", heading, kind), *amounts), rows)
