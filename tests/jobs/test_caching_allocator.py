"""The replayed allocator follows PyTorch's rules: which block a tensor gets, and what counts as allocated."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler_job.jobs.memory.caching_allocator import MIB, CachingAllocator, SimulatedMemoryError


def test_a_small_tensor_counts_in_multiples_of_512_bytes_and_takes_a_segment_of_two_mib():
    allocator = CachingAllocator()
    assert [allocator.allocate(size).size for size in (1, 512, 513)] == [512, 512, 1024]
    assert (allocator.allocated, allocator.reserved) == (2048, 2 * MIB)


@pytest.mark.parametrize(
    ("size", "segment"), [(MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB + 1, 12 * MIB)]
)
def test_a_segment_is_as_long_as_the_size_of_its_first_tensor_asks_for(size, segment):
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert allocator.reserved == segment


@pytest.mark.parametrize(("spare", "counted"), [(MIB, 14 * MIB), (MIB + 512, 13 * MIB - 512)])
def test_a_large_block_is_handed_out_whole_where_at_most_a_mib_would_be_left(spare, counted):
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(14 * MIB))
    assert allocator.allocate(14 * MIB - spare).size == counted == allocator.allocated


def test_the_smallest_free_block_that_fits_is_taken():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (40, 20, 30)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(19 * MIB) is blocks[1]


def test_blocks_given_back_join_their_neighbours_in_the_segment():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    assert allocator.reserved == 20 * MIB
    for place in (1, 3, 2):
        allocator.free(blocks[place])
    assert allocator.allocate(12 * MIB).address == blocks[1].address and allocator.reserved == 20 * MIB


def test_free_segments_go_back_before_the_limit_is_an_error():
    allocator = CachingAllocator(limit=40 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(36 * MIB)
    assert allocator.reserved == allocator.peak_reserved == 36 * MIB
    with pytest.raises(SimulatedMemoryError):
        allocator.allocate(20 * MIB)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50 * MIB), st.integers(0, 100)), max_size=60))
def test_blocks_never_overlap_and_their_sizes_add_up(calls):
    allocator, live = CachingAllocator(), []
    for gives_back, size, which in calls:
        if gives_back and live:
            allocator.free(live.pop(which % len(live)))
        else:
            live.append(allocator.allocate(size))
            assert live[-1].size >= size
    assert allocator.allocated == sum(block.size for block in live) <= allocator.peak <= allocator.peak_reserved
    ends = sorted((block.address, block.address + block.size) for block in live)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    for block in live:
        allocator.free(block)
    allocator.release_free_segments()
    assert allocator.reserved == 0 and not allocator.small and not allocator.large
