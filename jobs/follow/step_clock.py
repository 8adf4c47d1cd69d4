"""A clock of steps: by the GPU from the end of one to the end of the next, by the CPU where there is no GPU."""

from time import perf_counter_ns
from typing import Any

import torch


class StepClock:
    """Ends of steps, each on the CPU and in the order of what was launched. has_begun: the first step begins now."""

    def __init__(self, has_begun: bool = True):
        self.ends: list[tuple[int, Any]] = []
        if has_begun:
            self.note_end()

    def note_end(self) -> None:
        event = None
        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self.ends.append((perf_counter_ns(), event))

    def list_steps(self) -> tuple[int, list[dict[str, int]]]:
        """Return the time from the begin until now, and `wall_ns` and `host_ns` of each step. The GPU has to be done
        with them."""
        took = perf_counter_ns() - self.ends[0][0]
        steps = []
        for (host, event), (next_host, next_event) in zip(self.ends, self.ends[1:]):
            wall = round(event.elapsed_time(next_event) * 1e6) if event else next_host - host
            steps.append({"wall_ns": wall, "host_ns": next_host - host})
        return took, steps
