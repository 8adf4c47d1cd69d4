"""A script's memory over a step and at its peak: by owner and by module, saved tensors, and what would free it."""

from collections.abc import Mapping

import pandas as pd

from profiler_job.analysis.render.answer import Chart, Column, Table
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.messages import (
    AT_PEAK,
    COMPILE,
    COULD_FREE,
    KEPT_IN,
    OVER_STEP,
    SAVED,
    UNKNOWN_MODULE,
)
from profiler_job.jobs.contract.quantities import format_quantity

KEYS = {AT_PEAK: "memory", KEPT_IN: "kept", SAVED: "saved", COULD_FREE: "could_free"}
"""Key of the table of scalars whose names begin so."""


BETWEEN = "between phases"


def build_memory_charts(scalars: Mapping[str, float]) -> list[Chart]:
    """Draw the bytes that are requested of the allocator over a step, by phase; nothing where that is not known."""
    names = sorted(name for name in scalars if name.startswith(OVER_STEP))
    if not names:
        return []
    phases = [name.removeprefix(OVER_STEP).partition("_")[2] or BETWEEN for name in names]
    rows = pd.DataFrame({"series": phases, "x": range(len(names)), "y": [scalars[name] / 2**30 for name in names]})
    rows["line"] = (rows["series"] != rows["series"].shift()).cumsum()
    order = [phase for phase in (*ranges.ALL_PHASES, BETWEEN) if phase in phases]
    axes = {"x_title": "allocations and releases, in order; each point the highest of its neighbours", "y_title": "GiB"}
    title = f"Memory over a step: at most {rows['y'].max():.3g} GiB, in {rows['series'][rows['y'].idxmax()]}"
    return [Chart("over-a-step", "traces", title, rows, options={"order": order, **axes})]


def describe_compiled_activations(scalars: Mapping[str, float]) -> str:
    """Describe in one sentence that nobody knows which module saved the activations of a compiled script; "" if that is
    known, or if the script is not compiled. scalars: by name, in bytes."""
    size = scalars.get(f"{KEPT_IN}{UNKNOWN_MODULE}")
    if not size or not (scalars.get(f"{COMPILE}graphs") or scalars.get(f"{COMPILE}cached_graphs")):
        return ""
    return (
        f"Which module or operation saved the {format_quantity('bytes', size)} of activations is not known, since "
        "torch.compile saves what backward needs of each graph as a whole."
    )


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
