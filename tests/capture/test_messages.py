"""The bytes of collectives that a recording keeps, from NCCL's own ranges around the launches."""

import dataclasses

import pandas as pd
import pytest

from analysis.capture.attribution import attribute
from analysis.capture.communication import message_figures
from analysis.capture.nsys_export import read

from .nsys_files import Export

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
STARTS = (110, 130, 150, 310)
"""Of NCCL's ranges: three in a step, the last of them the only all-gather, and one after it."""


def figures(tmp_path, sizes: list[int]) -> dict[str, float]:
    """What is kept of a capture whose ranges at STARTS say messages of these sizes, as far as there are some."""
    export = Export()
    for name, start, end in (("step", 100, 200), ("backward", 105, 195)):
        export.push(name, start, end)
    for start in STARTS:
        export.push("ncclAllGather" if start == 150 else "ncclAllReduce", start, start + 9)
        export.launch(start + 2, start=start + 5, end=start + 8, name=ALL_GATHER if start == 150 else ALL_REDUCE)
    export.launch(170, start=175, end=180, name="gemm")
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    ranges = capture.ranges[capture.ranges["start_ns"].isin(STARTS)].sort_values("start_ns")
    said = ranges[["start_ns", "thread"]].head(len(sizes)).assign(bytes=sizes, communicator=0)
    rows = message_figures(dataclasses.replace(capture, messages=said.reset_index(drop=True)), attribute(capture))
    assert set(rows["unit"]) <= {"bytes"} and set(rows["process"]) <= set(capture.kernels["process"])
    return dict(zip(rows["figure"], rows["value"]))


def test_messages_of_steps_are_summed_by_collective(tmp_path):
    assert figures(tmp_path, [4, 8, 16, 1000]) == {"message_AllReduce": 12, "message_AllGather": 16}


@pytest.mark.parametrize("sizes, kept", [([4, 8], {"message_AllReduce": 12}), ([4], {}), ([], {})])
def test_of_a_collective_with_a_message_that_is_not_known_nothing_is_kept(tmp_path, sizes, kept):
    assert figures(tmp_path, sizes) == kept


def test_a_capture_without_nccl_keeps_none(tmp_path):
    export = Export()
    export.push("step", 100, 200)
    export.launch(110, start=115, end=120, name="gemm")
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    rows = message_figures(capture, attribute(capture))
    assert isinstance(rows, pd.DataFrame) and not len(rows)
