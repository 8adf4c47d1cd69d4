"""Log of ranges that are opened without a GPU."""

import threading

from profiler_job.jobs.follow import module_ranges


class Log:
    """The ranges that were opened, each with its thread and the names around it."""

    def __init__(self):
        self.open: dict[int, list[str]] = {}
        self.ranges: list[tuple[int, str]] = []

    def push(self, name: str) -> None:
        thread = threading.get_ident()
        self.open.setdefault(thread, []).append(name)
        self.ranges.append((thread, "/".join(self.open[thread])))

    def pop(self) -> None:
        self.open[threading.get_ident()].pop()

    def names(self) -> list[str]:
        return [name for _, name in self.ranges]

    def backward(self) -> list[str]:
        """Return the modules of the nodes, in the order in which they ran."""
        labels = (name.rsplit(module_ranges.PREFIX, 1)[-1] for name in self.names() if module_ranges.BACKWARD in name)
        return [label.removeprefix("backward/") for label in labels]
