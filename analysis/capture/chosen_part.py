"""What a user may choose of a capture: one GPU, ranges of a name, a piece of its time, sections of its summary."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from profiler_job.jobs.contract.quantities import parse_quantity

_MOMENT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs|ns)?\s*")


STEADY_SHARE = 0.02
"""Least part of the time from first to last operation, both before and after the end of start-up, to leave it out."""


@dataclass(frozen=True)
class Selection:
    """What to summarise of a capture.

    gpu: operations on the GPU of that number, and the API calls that launched them
    range: what was launched inside ranges of that name (as the section `ranges` writes it): by a push/pop range's
           thread, by a start/end range's process; the API calls and ranges inside them, and themselves
    between: what starts in [start, end), ns from the start of the first event, and the API calls that launched it
    sections: names of the sections to give; all where there are none
    after_startup: whether `between` was chosen to leave start-up out
    """

    gpu: int | None = None
    range: str | None = None
    between: tuple[int, int] | None = None
    sections: tuple[str, ...] = ()
    after_startup: bool = False

    def restricts(self) -> bool:
        """Whether some events may be left out."""
        return (self.gpu, self.range, self.between) != (None, None, None)

    def as_json(self) -> dict[str, Any]:
        """Return what was chosen, by name; nothing if all of the capture is."""
        start, end = self.between or (None, None)
        chosen: dict[str, Any] = {"gpu": self.gpu, "range": self.range, "start_ns": start, "end_ns": end}
        chosen["sections"] = list(self.sections) or None
        chosen["after_startup"] = self.after_startup or None
        return {name: value for name, value in chosen.items() if value is not None}


ALL = Selection()


def parse_moments(text: str) -> tuple[int, int]:
    """The two moments of `START,END` in ns; a number without a unit is in milliseconds. Raises ValueError."""
    moments = [_MOMENT.fullmatch(part) for part in text.split(",")]
    if len(moments) != 2 or not all(moments):
        raise ValueError(f"{text!r} is not START,END: give two moments after the first event, such as 10,20 or 1.5s,2s")
    start, end = (round(parse_quantity("time", f"{moment[1]}{moment[2] or 'ms'}")) for moment in moments if moment)
    if start >= end:
        raise ValueError(f"{text!r} ends before it starts: give START,END with the earlier moment first")
    return start, end


ShowFormat = Literal["text", "json", "csv", "md", "speedscope"]
ReportName = Literal[
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_kern_exec_sum",
    "nvtx_sum",
    "nvtx_kern_sum",
    "nvtx_gpu_proj_sum",
]
"""Tables of `nsys stats` that `nsys_reports` computes."""
