"""PyTorch's CUDA caching allocator replayed: which block a tensor gets, and so how many bytes count as allocated.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings and one stream. A tensor's size is
rounded up to 512 B. Up to 1 MiB it comes from segments of 2 MiB, below 10 MiB from segments of 20 MiB, and otherwise
from a segment of its own, a multiple of 2 MiB. It gets the smallest free block that holds it, of equal ones that with
the lowest address. What the block has over is split off where it is 512 B (small) or more than 1 MiB (large); if not,
the block is handed out whole, and counts whole. A block given back joins its free neighbours.
"""

from bisect import bisect_left, insort
from math import inf

MIB = 2**20
SMALLEST, LARGEST_SMALL = 512, MIB
SMALL_SEGMENT, SHARED_SEGMENT = 2 * MIB, 20 * MIB
LEAST_OWN, OWN_MULTIPLE = 10 * MIB, 2 * MIB


class OutOfMemory(Exception):
    """No block is free, and a new segment would exceed the limit."""


class Block:
    """A piece of a segment, between its neighbours in it."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(self, address: int, size: int, pool: list, before: "Block | None" = None):
        self.address, self.size, self.pool = address, size, pool
        self.before, self.after, self.free = before, None, False


class CachingAllocator:
    """`allocated` and `reserved` are in bytes, `peak` is the largest `allocated` since `reset_peak`. At most `limit` is
    reserved.

    Addresses are counted upwards, segment by segment: where the driver puts them is not known, and only the choice
    among blocks of equal size depends on it.
    """

    def __init__(self, limit: float = inf):
        self.limit = limit
        self.allocated = self.reserved = self.peak = self.peak_reserved = 0
        self.next_address = 0
        self.blocks: dict[int, Block] = {}
        # Sizes and addresses of free blocks, sorted.
        self.small: list[tuple[int, int]] = []
        self.large: list[tuple[int, int]] = []

    def allocate(self, num_bytes: int) -> Block:
        size = max(SMALLEST, -(-num_bytes // SMALLEST) * SMALLEST)
        pool, least_rest = (self.small, SMALLEST) if size <= LARGEST_SMALL else (self.large, LARGEST_SMALL + 1)
        place = bisect_left(pool, (size, 0))
        block = self.blocks[pool.pop(place)[1]] if place < len(pool) else self.segment(size, pool)
        if block.size - size >= least_rest:
            rest = Block(block.address + size, block.size - size, pool, block)
            rest.after, block.after, block.size = block.after, rest, size
            if rest.after:
                rest.after.before = rest
            self.put_back(rest)
        block.free = False
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def segment(self, size: int, pool: list) -> Block:
        """A new segment that holds `size` bytes, as one block. Where the limit is met, free segments go back first."""
        whole = -(-size // OWN_MULTIPLE) * OWN_MULTIPLE if size >= LEAST_OWN else SHARED_SEGMENT
        whole = SMALL_SEGMENT if pool is self.small else whole
        if self.reserved + whole > self.limit:
            self.release_free_segments()
        if self.reserved + whole > self.limit:
            raise OutOfMemory
        block = self.blocks[self.next_address] = Block(self.next_address, whole, pool)
        self.next_address += whole
        self.reserved += whole
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def release_free_segments(self) -> None:
        for block in [block for block in self.blocks.values() if block.free and not block.before and not block.after]:
            self.take_out(block)
            self.reserved -= block.size
            del self.blocks[block.address]

    def free(self, block: Block) -> None:
        self.allocated -= block.size
        before, after = block.before, block.after
        if after and after.free:
            self.take_out(after)
            self.join(block, after)
        if before and before.free:
            self.take_out(before)
            self.join(before, block)
            block = before
        self.put_back(block)

    def join(self, block: Block, after: Block) -> None:
        block.size += after.size
        block.after = after.after
        if block.after:
            block.after.before = block
        self.blocks.pop(after.address, None)

    def put_back(self, block: Block) -> None:
        block.free = True
        self.blocks[block.address] = block
        insort(block.pool, (block.size, block.address))

    def take_out(self, block: Block) -> None:
        block.pool.pop(bisect_left(block.pool, (block.size, block.address)))

    def reset_peak(self) -> None:
        self.peak = self.allocated
