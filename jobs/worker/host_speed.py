"""Speed of the CPU at the moment, by a loop of plain Python, since plain Python issues the kernels, too."""

import statistics
import time

ADDITIONS = 1_000_000
"""About 50 ms on the hosts of GPUs of 2023."""
REPEATS = 5


def measure_host_loop() -> int:
    """Median nanoseconds of a loop of ADDITIONS, of REPEATS."""
    return round(statistics.median(time_host_loop() for _ in range(REPEATS)))


def time_host_loop() -> int:
    """Nanoseconds of a loop of ADDITIONS."""
    start = time.perf_counter_ns()
    total = 0
    for number in range(ADDITIONS):
        total += number
    return time.perf_counter_ns() - start
