"""A strip shows one block of the model, with its gaps, in a few hundred bytes."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.render import strip

LABELS = {"gemm": "GEMM", "copy": "Copy", "memory": "Memory", "other": "Other"}
NO_MEMOPS = pd.DataFrame(columns=["device", "rank", "start_ns", "end_ns"])


def kernels(*rows):
    frame = pd.DataFrame(rows, columns=["module", "family", "start_ns", "end_ns"])
    return frame.assign(phase="forward", device=0, rank=0)


BLOCKS = (
    ("block_0/ffn", "gemm", 0, 900),
    ("block_1/ffn", "gemm", 1000, 1350),
    ("block_1/norm", "strange", 1525, 1700),
    ("block_2/ffn", "copy", 1900, 2000),
)


def test_the_middle_block_is_shown_with_its_gaps():
    block = strip.draw_block(kernels(*BLOCKS), NO_MEMOPS, LABELS)
    assert (block.block, block.span_ns, block.families) == ("block_1", 700, ["gemm", "other"])
    assert block.idle == pytest.approx(0.25, abs=0.01)
    [(_, svg)] = block.lanes
    assert (
        f"<title>{strip.WAITS}</title>" in svg
        and 'd="M0 5h350"' in svg
        and 'd="M525 5h175"' in svg
        and "var(--family-other)" in svg
    )


def test_copies_are_no_gaps():
    memops = pd.DataFrame([[0, 0, 1350, 1525]], columns=NO_MEMOPS.columns)
    block = strip.draw_block(kernels(*BLOCKS), memops, LABELS)
    assert "memory" in block.families and block.idle == 0


def test_many_kernels_shorter_than_a_pixel_are_few_lines():
    tiny = [("layers.3/mlp", "gemm", start, start + 9) for start in range(0, 100_000, 10)]
    block = strip.draw_block(kernels(*tiny), NO_MEMOPS, LABELS)
    assert block.block == "layers.3" and len(block.lanes[0].svg) < 500
    assert block.idle == pytest.approx(0.1, abs=0.01)


def test_names_are_escaped_and_models_without_blocks_have_no_strip():
    assert strip.draw_block(kernels(("mlp", "gemm", 0, 9)), NO_MEMOPS, LABELS) is None
    assert strip.draw_block(kernels(), NO_MEMOPS, LABELS) is None
    hostile = strip.draw_block(kernels(('<b a="1">.0/x', "gemm", 0, 9)), NO_MEMOPS, LABELS)
    assert "<b" not in hostile.lanes[0].svg


def draw_two_ranks():
    """Rank 1 begins later; both communicate from 900 to 1000, next to computation on rank 0."""
    first = kernels(("block_0/ffn", "gemm", 0, 1000), ("", "communication", 900, 1000))
    second = kernels(("block_0/ffn", "gemm", 500, 900), ("", "communication", 900, 1000)).assign(rank=1)
    return pd.concat([first, second], ignore_index=True)


def test_of_several_ranks_each_has_two_strips_by_one_clock():
    lanes = strip.draw_ranks(draw_two_ranks(), NO_MEMOPS, LABELS | {"communication": "Communication"})
    assert (lanes.num_ranks, lanes.span_ns, lanes.families) == (2, 1000, ["gemm", "communication"])
    drawn = {lane.label: lane.svg for lane in lanes.lanes}
    assert list(drawn) == [f"rank {rank}, {what}" for rank in (0, 1) for what in ("computation", "communication")]
    assert 'd="M0 5h700"' in drawn["rank 0, computation"] and 'd="M350 5h280"' in drawn["rank 1, computation"]
    assert all('d="M630 5h70"' in drawn[f"rank {rank}, communication"] for rank in (0, 1))


def test_a_rank_that_does_not_communicate_has_an_empty_strip():
    frame = draw_two_ranks()
    lanes = strip.draw_ranks(frame[frame["family"] == "gemm"], NO_MEMOPS, LABELS)
    assert [("<path" in lane.svg) for lane in lanes.lanes] == [True, False, True, False]


def test_one_rank_alone_has_no_strips_of_ranks():
    assert strip.draw_ranks(kernels(*BLOCKS), NO_MEMOPS, LABELS) is None


@pytest.mark.parametrize("share", [14, 30])
def test_short_kernels_far_from_each_other_are_no_empty_strip(share):
    """A rank with kernels in 14% of its step looked idle: no pixel was filled by half."""
    short = [("layers.3/mlp", "gemm", start, start + share) for start in range(0, 100_000, 100)]
    svg = str(strip.draw_block(kernels(*short), NO_MEMOPS, LABELS).lanes[0].svg)
    drawn = sum(int(length) for length in re.findall(r"M\d+ 5h(\d+)", svg))
    assert drawn == pytest.approx(share / 100 * strip.PIXELS, rel=0.05) and len(svg) < 3000


def place_step(shift=0):
    """Ranges and kernels of a step: forward and backward last 400 ns each on the CPU, and the GPU runs 100 to 950 but
    for a gap of 250. shift: by which the GPU's times are early."""
    named = pd.DataFrame(
        [("step", 0, 800), ("forward", 0, 400), ("backward", 400, 800), ("block_0", 0, 300)],
        columns=["name", "start_ns", "end_ns"],
    )
    launched = kernels(("block_0/ffn", "gemm", 100, 500), ("block_0/norm", "copy", 750, 950))
    launched["launch_ns"], launched["launch_end_ns"] = [50, 600], [90, 640]
    launched[["start_ns", "end_ns"]] -= shift
    return named, launched


def test_a_step_has_lanes_of_the_cpu_and_the_gpu():
    named, launched = place_step()
    lanes = strip.draw_step(named, launched, NO_MEMOPS, LABELS)
    assert (lanes.span_ns, lanes.launched_ns) == (950, 640)
    assert (lanes.phases, lanes.families) == (["forward", "backward"], ["gemm", "copy"])
    assert lanes.idle == pytest.approx(350 / 950, abs=0.01)
    on_cpu, launching, on_gpu = (str(lane.svg) for lane in lanes.lanes)
    assert "var(--series-0)" in on_cpu and "var(--series-1)" in on_cpu and "<title>forward</title>" in on_cpu
    assert "<title>launches of kernels</title>" in launching and launching.count("M") == 2
    assert "var(--family-gemm)" in on_gpu and "var(--family-copy)" in on_gpu
    assert f"<title>{strip.WAITS}</title>" in on_gpu, "a gap was white, without a word"
    assert strip.WAITS not in on_cpu + launching, "the CPU has no queue that may be empty"


def test_a_gpu_whose_times_are_early_is_moved_behind_its_launches():
    named, launched = place_step(shift=75)  # the first kernel would begin 25 ns before its launch
    lanes = strip.draw_step(named, launched, NO_MEMOPS, LABELS)
    assert lanes.span_ns == 950 - 75 + 25


def test_a_step_without_phases_or_launches_or_of_several_ranks_has_no_lanes():
    named, launched = place_step()
    assert strip.draw_step(named.head(1), launched, NO_MEMOPS, LABELS) is None
    assert strip.draw_step(named, launched.assign(launch_end_ns=0), NO_MEMOPS, LABELS) is None
    assert strip.draw_step(named, launched.assign(rank=[0, 1]), NO_MEMOPS, LABELS) is None
