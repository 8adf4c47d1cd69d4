"""Tiles of GEMMs: what names say, and the FLOPs of their matmuls."""

import dataclasses

import pytest

from profiler_job.analysis.metrics import run_grid, tiles
from profiler_job.analysis.pages.questions import top_kernel
from profiler_job.analysis.reference import flops
from profiler_job.analysis.site import page_context
from tests.synthetic import GEMM, recording

SMALL = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x32x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"


@pytest.fixture(scope="module")
def rec():
    """One training step whose o_proj has a smaller tile, and in whose backward pass modules were followed."""
    made = recording(("small",), (512,), ("train_step",), num_profiled=1)
    kernels = made.kernels.copy()
    forward = kernels[(kernels["phase"] == "forward") & kernels["kernel_name"].str.contains("sgemm")]
    backward = kernels["phase"].eq("backward") & kernels["kernel_name"].str.contains("sgemm")
    kernels.loc[backward, "module"] = forward["module"].repeat(2).to_numpy()
    kernels.loc[kernels["module"].str.endswith("o_proj") & (kernels["phase"] == "forward"), "kernel_name"] = SMALL
    return dataclasses.replace(made, kernels=kernels)


def select_tile(rows, phase, tile):
    (found,) = rows[(rows["phase"] == phase) & (rows["tile"] == tile)].to_dict("records")
    return found


def test_time_and_flops_of_a_tile_are_those_of_its_kernels(rec):
    rows = tiles.list_matmul_tiles(rec.runs, rec.kernels)
    small = select_tile(rows, "forward", "64x32")
    shape = run_grid.shape_of(rec.runs.iloc[0])
    cost, number = flops.matmul_costs(shape)["o_proj"]
    assert (small["alignment"], small["layouts"], small["calls"]) == ("align4", "tn", number)
    assert small["flops"] == cost.flops * number
    time_ns = (rec.kernels["end_ns"] - rec.kernels["start_ns"])[rec.kernels["kernel_name"] == SMALL].sum()
    assert small["time_ns"] == time_ns and small["flop_rate"] == pytest.approx(small["flops"] / time_ns / 1e3)


@pytest.mark.parametrize("phase", tiles.PASSES)
def test_flops_of_all_tiles_are_those_of_the_phase_and_shares_add_up(rec, phase):
    rows = tiles.list_matmul_tiles(rec.runs, rec.kernels).query("phase == @phase")
    assert rows["flops"].sum() == flops.matmul_flops(run_grid.shape_of(rec.runs.iloc[0]), phase)
    assert rows["share"].sum() == pytest.approx(1)


def test_a_module_with_another_number_of_matmuls_has_no_flops(rec):
    lost = rec.kernels.index[(rec.kernels["kernel_name"] == GEMM) & rec.kernels["module"].str.endswith("block_0/ffn")]
    rows = tiles.list_matmul_tiles(rec.runs, rec.kernels.drop(lost[0]))
    assert select_tile(rows, "forward", "256x128")["flops"] != select_tile(rows, "forward", "256x128")["flops"], (
        "which is NaN"
    )
    assert select_tile(rows, "forward", "64x32")["flops"] > 0


def test_modules_that_were_not_followed_have_no_flops_in_backward():
    made = recording(("small",), (512,), ("train_step",), num_profiled=1)
    rows = tiles.list_matmul_tiles(made.runs, made.kernels)
    assert rows[rows["phase"] == "backward"]["flop_rate"].isna().all()


def test_a_small_tile_is_held_against_the_largest_of_the_same_pass(rec):
    found = tiles.ends(tiles.list_matmul_tiles(rec.runs, rec.kernels), 0.01)
    assert found[["phase", "small", "large"]].values.tolist() == [["forward", "64x32", "256x128"]]
    assert (found["ratio"] == found["small_rate"] / found["large_rate"]).all()
    assert not len(tiles.ends(tiles.list_matmul_tiles(rec.runs, rec.kernels), 0.9))


def test_without_a_gemm_there_are_no_tiles(rec):
    answer = page_context.ask(
        top_kernel.QUESTION, dataclasses.replace(rec, kernels=rec.kernels[rec.kernels["family"] != "gemm"])
    )
    assert not len(answer.tables["tiles"].rows) and not len(answer.tables["tile_matrix"].rows)
    assert not any(answer.claims[key].holds for key in ("tile", "unaligned", "small_tiles"))
