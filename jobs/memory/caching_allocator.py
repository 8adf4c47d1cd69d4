"""Replay of PyTorch's CUDA caching allocator: which block a tensor gets, and so how many bytes count as allocated.

The rules are from c10/cuda/CUDACachingAllocator.cpp with its default settings and one stream. A tensor's size is
rounded up to 512 B. Up to 1 MiB it comes from segments of 2 MiB, below 10 MiB from segments of 20 MiB, and otherwise
from a separate segment, a multiple of 2 MiB. It gets the smallest free block that holds it; among equal blocks, the one
with the lowest address. The rest of the block is split off if it has 512 B (small) or more than 1 MiB (large); if not,
the whole block is handed out, and counts. A block given back joins its free neighbours.
"""

from bisect import bisect_left, insort
from math import inf
from typing import Any

MIB = 2**20
SMALLEST, LARGEST_SMALL = 512, MIB
SMALL_SEGMENT, SHARED_SEGMENT = 2 * MIB, 20 * MIB
LEAST_OWN, OWN_MULTIPLE = 10 * MIB, 2 * MIB


class SimulatedMemoryError(Exception):
    """Error when no block is free and a new segment would exceed the limit."""


class Block:
    """A piece of a segment, between its neighbours in it."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(self, address: int, size: int, pool: list[Any], before: "Block | None" = None):
        self.address, self.size, self.pool = address, size, pool
        self.before, self.free = before, True
        self.after: Block | None = None


class CachingAllocator:
    """`allocated` and `reserved` are in bytes, `peak` is the largest `allocated` since `reset_peak`. At most `limit` is
    reserved.

    Addresses are counted downwards, segment by segment. Where the driver puts them is not known, and only the choice
    among blocks of equal size depends on it. Of 736 recorded peaks of phases the worst is 0.5% off, counted upwards
    1.1%, and with addresses drawn at random 0.5 to 0.6%.
    """

    def __init__(self, limit: float = inf):
        self.limit = limit
        self.allocated = self.reserved = self.peak = self.peak_reserved = 0
        self.lowest_address = 0
        # Size and address of each free block, and the block, sorted.
        self.small: list[tuple[int, int, Block]] = []
        self.large: list[tuple[int, int, Block]] = []

    def allocate(self, num_bytes: int) -> Block:
        size = -(-num_bytes // SMALLEST) * SMALLEST or SMALLEST
        pool, least_rest = (self.small, SMALLEST) if size <= LARGEST_SMALL else (self.large, LARGEST_SMALL + 1)
        place = bisect_left(pool, (size,))
        block = pool.pop(place)[2] if place < len(pool) else self.segment(size, pool)
        taken_size = block.size
        if taken_size - size >= least_rest:
            rest = Block(block.address + size, taken_size - size, pool, block)
            rest.after, block.after, block.size = block.after, rest, size
            if rest.after:
                rest.after.before = rest
            insort(pool, (rest.size, rest.address, rest))
            taken_size = size
        block.free = False
        self.allocated += taken_size
        if self.allocated > self.peak:
            self.peak = self.allocated
        return block

    def segment(self, size: int, pool: list[Any]) -> Block:
        """A new segment that holds `size` bytes, as one block. Where the limit is met, free segments go back first."""
        segment_size = -(-size // OWN_MULTIPLE) * OWN_MULTIPLE if size >= LEAST_OWN else SHARED_SEGMENT
        segment_size = SMALL_SEGMENT if pool is self.small else segment_size
        if self.reserved + segment_size > self.limit:
            self.release_free_segments()
        if self.reserved + segment_size > self.limit:
            raise SimulatedMemoryError
        self.lowest_address -= segment_size
        block = Block(self.lowest_address, segment_size, pool)
        self.reserved += segment_size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def release_free_segments(self) -> None:
        for pool in (self.small, self.large):
            for size, _, block in pool:
                self.reserved -= 0 if block.before or block.after else size
            pool[:] = [entry for entry in pool if entry[2].before or entry[2].after]

    def free(self, block: Block) -> None:
        """Give a block back, and join it with its free neighbours. Written in one piece: it runs once for every
        tensor."""
        pool, before, after = block.pool, block.before, block.after
        self.allocated -= block.size
        if after and after.free:
            pool.pop(bisect_left(pool, (after.size, after.address)))
            block.size += after.size
            block.after = after = after.after
            if after:
                after.before = block
        if before and before.free:
            pool.pop(bisect_left(pool, (before.size, before.address)))
            before.size += block.size
            before.after = after
            if after:
                after.before = before
            block = before
        block.free = True
        insort(pool, (block.size, block.address, block))

    def reset_peak(self) -> None:
        self.peak = self.allocated
