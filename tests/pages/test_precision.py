"""What lower precision makes faster: on frozen runs, and on changes of them that say something else."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.metrics import precisions
from profiler_job.analysis.metrics.differences import Band, Bands
from profiler_job.analysis.pages.questions import precision
from profiler_job.analysis.reference import element_types, flops, kernel_families
from profiler_job.analysis.site import combine, page_context
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests import frozen
from tests.page_words import read_page

NONE = combine.find_rates([])
FFMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
)


@pytest.fixture(scope="module")
def recorded():
    """One training step of the small model in each precision."""
    return frozen.load_study("precision")


@pytest.fixture(scope="module")
def answer(recorded):
    return ask(recorded)


def ask(rec, calibrated=True):
    rates = combine.find_rates([rec]) if calibrated else NONE
    return page_context.ask(precision.QUESTION, combine.select_finished_runs(rec), main=rec, calibration=rates)


def select_run(frame, words):
    return frame["run_id"].astype(str).str.contains(words)


def timed(rec, words, factor):
    steps = rec.steps.copy()
    steps["wall_ns"] = steps["wall_ns"].where(~select_run(steps, words), (steps["wall_ns"] * factor).astype("int64"))
    return dataclasses.replace(rec, steps=steps)


def stretched(rec, those, factor):
    """`rec` with `those` kernels taking `factor` times as long."""
    kernels = rec.kernels.copy()
    longer = kernels["start_ns"] + (factor * (kernels["end_ns"] - kernels["start_ns"])).astype("int64")
    kernels["end_ns"] = kernels["end_ns"].where(~those, longer)
    return dataclasses.replace(rec, kernels=kernels)


def slower(rec, words, factor):
    """`rec` with some runs `factor` times as slow, on the GPU and by the timer."""
    kernels = rec.kernels.copy()
    those = select_run(kernels, words)
    for end in ("start_ns", "end_ns"):
        kernels[end] = kernels[end].where(~those, (factor * kernels[end]).astype("int64"))
    return dataclasses.replace(timed(rec, words, factor), kernels=kernels)


def page(tmp_path, answer):
    folder = Path(precision.__file__).parent
    labels = {key: family.label for key, family in kernel_families.FAMILIES.items()}
    site = Site(tmp_path, (folder,), labels, ("size", "context_length", "precision"))
    site.write("report/precision.md", "precision.md", answer, letter="j", title=precision.QUESTION.title)
    return read_page(tmp_path / "report" / "precision.md")


def list_holding(answer):
    return {key for key, claim in answer.claims.items() if claim.holds}


def test_every_matmul_has_a_math_path_and_none_is_missing(recorded, answer):
    paths = answer.tables["paths"].rows
    gemms = paths.groupby("run_id")["gemms"].sum()
    layers = recorded.runs.astype({"run_id": str}).set_index("run_id")["num_layers"]
    assert (gemms == 3 * (9 * layers[gemms.index] + 1)).all()
    np.testing.assert_allclose(paths.groupby("run_id")["share"].sum(), 1)
    assert "proven" in list_holding(answer) and "not_as_declared" not in list_holding(answer)


def test_gemms_and_all_other_kernels_make_up_the_families(answer):
    parts = answer.tables["parts"].rows.set_index(["size", "precision"])
    families = answer.tables["families"].rows.groupby("size")[[f"{one}_ns" for one in precisions.FRACTION_BITS]].sum()
    for one in precisions.FRACTION_BITS:
        whole = parts.xs(one, level="precision")[["gemms_ns", "rest_ns"]].sum(axis=1)
        np.testing.assert_allclose(families[f"{one}_ns"].sort_index(), whole.sort_index())


def test_no_step_is_faster_than_its_limit_and_no_rate_above_its_peak(answer):
    lower = answer.tables["parts"].rows.dropna(subset="busy_speedup")
    assert (lower["busy_speedup"] < lower["ceiling"]).all()
    use = answer.tables["use"].rows
    assert use["gemm_use"].between(0, 1).all()
    assert (use["mfu_measured"] < use["gemm_use"]).all()


def test_casts_are_what_autocast_adds_to_the_copies(recorded, answer):
    table = answer.tables["unchanged"].rows.set_index("run_id")
    copies = recorded.kernels[recorded.kernels["family"].astype(str) == "copy"]
    copies = copies.groupby(copies["run_id"].astype(str)).size() / frozen.NUM_STEPS
    for run_id, row in table[table["precision"] == "bf16"].iterrows():
        assert row["casts"] == copies[run_id] - copies[run_id.replace("bf16", "fp32")]


def test_bfloat16_is_further_from_fp32_than_tf32_for_every_model(answer):
    rows = answer.tables["numerics"].rows.pivot(index="size", columns="precision", values="logits_ratio")
    assert (rows["bf16"] > rows["tf32"]).all()
    assert (rows["tf32"] > 0).all()


def test_the_page_says_what_was_measured(tmp_path, answer):
    words = page(tmp_path, answer)
    assert "Not measured." not in words
    assert len(words) < 250_000


@pytest.mark.long
def test_a_run_out_of_memory_keeps_its_place_and_gives_no_number(tmp_path, recorded):
    gone = "small-ctx512-bf16-naive-train_step"
    answer = ask(frozen.lose_run(recorded, gone))
    row = answer.tables["speed"].rows.set_index("run_id").loc[gone]
    assert row[NOT_MEASURED] == "OOM in backward"
    assert row[["step_ns", "step_speedup", "busy_share", "mfu_measured", "peak_memory_bytes"]].isna().all()
    assert "OOM in backward" in page(tmp_path, answer)


def test_a_step_within_the_spread_is_not_called_faster(recorded):
    slow = slower(recorded, "tf32", 2.5)
    steps = slow.steps.copy()
    base = steps[select_run(steps, "fp32")].reset_index(drop=True)
    steps.loc[select_run(steps, "tf32"), "wall_ns"] = base["wall_ns"].to_numpy()
    answer = ask(dataclasses.replace(slow, steps=steps))
    assert "small-ctx512-tf32-naive-train_step" in set(answer.claims["not_faster"].rows["run_id"])


def test_a_slower_step_is_not_called_faster(recorded):
    answer = ask(slower(recorded, "tf32|bf16", 3.5))
    assert "faster" not in list_holding(answer)
    assert len(answer.claims["not_faster"].rows) == 2


def test_the_wait_for_launches_is_said_by_its_value(answer):
    found = answer.claims["waits"].values
    assert found["num_rows"] == 2 * answer.tables["speed"].rows["size"].nunique()
    assert 0 < found["high"]["launch_wait_fp32"] < found["high"]["launch_wait"] < 1


def test_a_step_is_told_from_fp32s_the_less_the_longer_the_gpu_waits(recorded):
    bands = Bands(
        kernel=Band(kind="kernel", relative=0.01, ratio=1.0, factor=1.0, num_pairs=20),
        wall=Band(kind="wall", relative=0.01, ratio=30.0, factor=1.0, num_pairs=20),
    )
    for factor, said in ((1, {"faster"}), (1.3, {"not_faster"})):
        rec = combine.select_finished_runs(timed(recorded, "tf32|bf16", factor))
        rates = combine.find_rates([rec])
        answer = page_context.ask(precision.QUESTION, rec, main=rec, calibration=rates, bands=bands)
        assert {"faster", "not_faster"} & list_holding(answer) == said


def test_families_that_gain_are_named_only_beyond_the_spread(answer):
    rows = answer.claims["families_faster"].rows
    assert set(rows["precision"]) == {"bf16"} and precisions.GEMM not in set(rows["family"])
    assert (rows["time_max_ns"] < rows["base_min_ns"]).all() and (rows["speedup"] > precisions.UNCHANGED).all()
    assert {"elementwise", "reduce", "fill"} <= set(rows["family"])
    assert "copy" in set(answer.claims["families_slower"].rows["family"])


def test_a_family_that_gains_in_tf32_ends_the_claim_that_only_gemms_do(recorded):
    kernels = recorded.kernels
    fills = select_run(kernels, "tf32") & (kernels["family"].astype(str) == "fill")
    assert "tf32_bytes" in list_holding(ask(recorded))
    assert "tf32_bytes" not in list_holding(ask(stretched(recorded, fills, 0.5)))


@pytest.mark.parametrize("family, factor, key", [("gemm", 100, "gemms_not_always"), ("elementwise", 0.1, "rest_too")])
def test_the_verdict_is_never_blank(tmp_path, recorded, family, factor, key):
    those = select_run(recorded.kernels, "tf32|bf16") & (recorded.kernels["family"].astype(str) == family)
    answer = ask(stretched(recorded, those, factor))
    assert {"rest_as_long", "rest_too", "gemms_not_always"} & list_holding(answer) == {key}
    assert "Not measured." not in page(tmp_path, answer)


def test_a_gemm_on_another_path_is_reported(recorded):
    kernels = recorded.kernels.astype({"kernel_name": str})
    first = (select_run(kernels, "bf16") & (kernels["family"].astype(str) == "gemm")).idxmax()
    kernels.loc[first, "kernel_name"] = FFMA
    answer = ask(dataclasses.replace(recorded, kernels=kernels))
    assert "not_as_declared" in list_holding(answer) and "proven" not in list_holding(answer)


def test_casts_in_fp32_silence_what_is_said_of_autocast(recorded):
    kernels = recorded.kernels.astype({"kernel_name": str})
    cast = kernels["kernel_name"][kernels["kernel_name"].map(element_types.is_cast)].iloc[0]
    kernels.loc[(select_run(kernels, "fp32")).idxmax(), "kernel_name"] = cast
    assert "casts" not in list_holding(ask(dataclasses.replace(recorded, kernels=kernels)))


def test_other_kernels_that_gain_are_not_said_to_stay(recorded):
    others = select_run(recorded.kernels, "tf32|bf16") & (recorded.kernels["family"].astype(str) != "gemm")
    assert "rest_as_long" in list_holding(ask(recorded))
    assert "rest_as_long" not in list_holding(ask(stretched(recorded, others, 0.5)))


def test_without_measured_peaks_nothing_is_said_of_them(tmp_path, recorded):
    answer = ask(recorded, calibrated=False)
    assert not {"mfu", "rate_agrees"} & list_holding(answer)
    assert answer.tables["use"].rows["mfu_sheet"].notna().all()
    assert "n/a: not calibrated" in page(tmp_path, answer)


@pytest.mark.parametrize("only", ["fp32", "tf32"])
def test_one_precision_alone_is_compared_with_nothing(tmp_path, recorded, only):
    answer = ask(frozen.keep_runs(recorded, recorded.runs["precision"].astype(str) == only))
    assert not {"faster", "not_faster", "rest", "casts", "ceiling", "coarser"} & list_holding(answer)
    page(tmp_path, answer)


def test_flops_of_a_step_are_the_numerator(recorded, answer):
    row = answer.tables["use"].rows.iloc[0]
    run = recorded.runs.astype({"run_id": str}).set_index("run_id").loc[row["run_id"]]
    names = ("batch_size", "context_length", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size")
    work = flops.step_flops(flops.StepShape(**{name: int(run[name]) for name in names}), "train_step", skip_masked=True)
    wall = answer.tables["speed"].rows.set_index("run_id").loc[row["run_id"], "step_ns"]
    assert row["step_rate"] == pytest.approx(work / wall / 1e3)


@pytest.mark.parametrize(
    "name, found, cast",
    [
        (
            "vectorized_elementwise_kernel<8, bfloat16_copy_kernel_cuda(TensorIteratorBase &)::[lambda(float)]>",
            "mixed",
            1,
        ),
        ("unrolled_elementwise_kernel<direct_copy_kernel_cuda(float), memory::LoadWithCast<(int)1>>", "mixed", 1),
        ("elementwise_kernel<gpu_kernel_impl_nocast<direct_copy_kernel_cuda::[lambda(c10::BFloat16)]>>", "bf16", 0),
        ("elementwise_kernel<gpu_kernel_impl_nocast<direct_copy_kernel_cuda::[lambda(float)]>>", "fp32", 0),
        ("elementwise_kernel<gpu_kernel_impl<BinaryFunctor<float, float, float, MulFunctor<float>>>>", "mixed", 0),
        ("vectorized_elementwise_kernel<8, BinaryFunctor<c10::BFloat16, c10::BFloat16, MulFunctor<float>>>", "bf16", 0),
        ("FillFunctor<long>", "", 0),
    ],
)
def test_a_name_tells_the_type_of_the_elements(name, found, cast):
    assert element_types.parse_element_type(name) == found
    assert element_types.is_cast(name) == bool(cast)
    assert found in element_types.ELEMENT_TYPES


def test_rows_of_a_case_stand_in_order_of_exactness(answer):
    rows = answer.tables["speed"].rows
    assert list(rows["precision"].head(3)) == list(precisions.FRACTION_BITS)
    assert isinstance(rows, pd.DataFrame) and rows["size"].nunique() * 3 == len(rows)
