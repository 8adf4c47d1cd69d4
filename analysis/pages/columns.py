"""Columns that tables of several questions share."""

from analysis.answer import Column
from jobs.contract.axes import label_of

COUNTS = ("context_length", "batch_size")


def case_headings(by: list[str], linked: bool = True) -> tuple[Column, ...]:
    """The columns that name a case; `linked` makes the size a link to the run. Runs of a study have no pages."""
    kinds = dict.fromkeys(COUNTS, "count") | ({"size": "run"} if linked else {})
    return tuple(Column(name, "GPU" if name == "gpu_name" else label_of(name), kinds.get(name, "text")) for name in by)


def band_column(value: str) -> Column:
    """Half the noise band of a comparison: two times differ where they are further apart."""
    return Column(value, "noise band, ±", "ms", absent="n/a")


def spread_column(clock: str, label: str) -> Column:
    """A median with its minimum and maximum below it."""
    return Column(f"{clock}_ns", label, "ms", lower=f"{clock}_min_ns", upper=f"{clock}_max_ns")
