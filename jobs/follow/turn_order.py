"""The order of variants that take turns in one process, for the scripts of users and for the worker of sweeps.

What changes from minute to minute is in all turns of a round, so ratios are taken within a round. The order in a round
is random, so that chance alone decides which variant comes first. The first step of a turn does not count: the variant
before may have left caches, clocks and memory in another state.
"""

import random
from collections.abc import Iterator


def draw_turns(num_variants: int, num_rounds: int, seed: int | str) -> Iterator[tuple[int, int]]:
    """Yield the turns, round by round: the number of the round and of the variant, both from 0. In each round each
    variant has one turn."""
    draw = random.Random(seed)
    for number in range(num_rounds):
        order = list(range(num_variants))
        draw.shuffle(order)
        for variant in order:
            yield number, variant
