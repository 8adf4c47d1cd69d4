"""Which processes ran on a slow host, of those in which the same variants took turns.

A host runs some processes at half the speed of others, and the ratio is then another one if the CPU limits either
variant. So a sweep measures further processes (`MOST_EXTRA`), and a ratio leaves the slow ones out.
"""

from collections.abc import Sequence

MOST_SLOWER = 1.1
"""The median step of a variant in a process over that in the fastest process, at most, if the process counts."""
SLOW_HOST = 1.25
"""A host is called slow if a loop of plain Python takes this many times as long as in the fastest process on the same
kind of CPU. In 84 recorded processes it took 31 to 45 ms, or 52 to 70. Where two differ by less than 1.35 times, the
steps of runs that the CPU limits were slower in the one with the slower loop in 11 of 22; where by more, in 10 of 11.
"""
ENOUGH, MOST_EXTRA = 2, 2
"""How many fast processes a group needs, and how many it may have in addition to the planned ones to get them."""


def find_slow(medians: Sequence[Sequence[float]]) -> list[bool]:
    """Find the processes in which a variant is more than MOST_SLOWER times as slow as in the fastest one. medians: the
    step of each variant, of each process: the median of its turns, each with the median of its steps."""
    fastest = min(medians, key=sum)
    return [any(ns > MOST_SLOWER * least for ns, least in zip(process, fastest)) for process in medians]
