"""The bytes of collectives that a recording keeps, from NCCL's own ranges around the launches."""

import dataclasses

import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.collective_messages import find_messages
from profiler_job.analysis.capture.nsys_export import read

from .nsys_files import Export

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
STARTS = (110, 130, 150, 310)
"""Of NCCL's ranges: three in a step, the last of them the only all-gather, and one after it."""


def find_message_bytes(tmp_path, sizes: list[int]) -> list[int]:
    """The messages of the kernels of a capture, a matmul last, whose ranges at STARTS say these sizes, as far as there
    are some."""
    export = Export()
    for name, start, end in (("step", 100, 200), ("backward", 105, 195)):
        export.push(name, start, end)
    for start in STARTS:
        export.push("ncclAllGather" if start == 150 else "ncclAllReduce", start, start + 9)
        export.launch(start + 2, start=start + 5, end=start + 8, name=ALL_GATHER if start == 150 else ALL_REDUCE)
    export.launch(370, start=375, end=380, name="gemm")
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    ranges = capture.ranges[capture.ranges["start_ns"].isin(STARTS)].sort_values("start_ns")
    said = ranges[["start_ns", "thread"]].head(len(sizes)).assign(bytes=sizes, communicator=0)
    capture = dataclasses.replace(capture, messages=said.reset_index(drop=True))
    return find_messages(capture, attribute(capture))["bytes"].tolist()


@pytest.mark.parametrize("sizes", [[4, 8, 16, 1000], [4, 8], []])
def test_each_kernel_has_the_message_of_the_range_around_its_launch_and_none_is_guessed(tmp_path, sizes):
    assert find_message_bytes(tmp_path, sizes) == sizes + [-1] * (5 - len(sizes))
