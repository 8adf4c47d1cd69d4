"""What the site says about the shipped recordings: statements that were wrong once, computed again."""

import pandas as pd
import pytest

from profiler_job.analysis.metrics import differences, timing
from profiler_job.analysis.metrics.timing import select_steps
from profiler_job.analysis.pages import cuda_calls, environment, run_list
from profiler_job.analysis.pages.questions import (
    attention_cost,
    beyond_gemm,
    fused_attention,
    host,
    second_recording,
    softmax_detail,
    top_kernel,
    warm_up,
)
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference import gpus
from profiler_job.analysis.site import combine, methods_page, page_context
from tests.shipped.recordings import RECORDINGS, WITH_RATES, locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def main():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def again():
    return store.load(locate("again"))


@pytest.fixture(scope="module")
def bands(main, again):
    return differences.bands_of(main, again)


@pytest.fixture(scope="module")
def ask(main, bands):
    """A question's answer with the noise bands, from the recordings with the given names."""

    def answer(question, *names):
        rec = combine.select_finished_runs(combine.join_recordings([store.load(locate(name)) for name in names]))
        rates = combine.find_rates([store.load(locate(WITH_RATES))])
        return page_context.ask(question, rec, main=main, calibration=rates, bands=bands)

    return answer


@pytest.mark.nightly
def test_runs_recorded_twice_are_not_called_different(main, again, ask):
    """The second recording in place of each variant: what a page would call faster is chance."""
    found = ask(second_recording.QUESTION, "again")
    judged = found.claims["judged"].values
    assert judged["num_kernel"] + judged["num_step"] <= 0.05 * 2 * found.facts["num_runs"]
    assert found.claims["same"].holds, "the same kernels, as often"
    assert found.facts["noise"]["kernel"]["num_pairs"] == 450


def test_half_a_microsecond_of_44_ms_is_no_gain(ask):
    found = ask(host.QUESTION, "compile")
    added = found.claims["graphs_add"].rows.sort_values("ratio", ascending=False)
    assert added["timer_ns"].iloc[0] > 44e6 and 0.99 < added["ratio"].iloc[0] < 1, "a gain of less than 1%"
    assert not added["differs"].iloc[0] and added.groupby("mode")["differs"].sum().to_dict() == {
        "forward": 2,
        "train_step": 0,
    }


def test_the_fastest_backend_is_not_the_same_by_both_clocks(ask):
    found = ask(fused_attention.QUESTION, "attention_bf16", "attention_bf16_long", "attention_fp32")
    said = found.claims["fastest_timed"].values
    assert found.claims["fastest"].values["attention"] == said["attention"] == "cudnn"
    assert said["contexts"] == [128] and said["winners"] == ["efficient"] and said["num_apart"] == 0


def test_gpu_busy_has_one_definition(main):
    rows = (
        run_list.answer(main.runs, main.steps, main.kernels, main.memops, main.processes, main.telemetry)
        .tables["runs"]
        .rows.set_index("run_id")
    )
    busy = rows["busy_ratio"]["small-ctx1024-fp32-naive-forward"]
    assert busy == pytest.approx(0.974, abs=5e-4), "kernels alone would be 94.6%"
    gpu = timing.gpu_times(main.kernels, main.memops)
    assert (gpu["busy_ns"] <= gpu["projected_ns"]).all()


def test_the_most_frequent_top_kernel_leads_6_training_steps(main):
    claims = page_context.ask(top_kernel.QUESTION, main).claims
    assert claims["leads_training"].values["num_led"] == 6
    assert claims["partly_same"].values["num_same"] == 9, "the top kernel of each case, which is not always that one"


def test_backward_has_other_tiles_than_forward(main):
    answer = page_context.ask(top_kernel.QUESTION, main)
    said = answer.claims["tile"].values
    assert said["most"] == {"forward": "128x128", "backward": "256x128"} and said["num_all"] == 20
    share = answer.claims["unaligned"].values["share"]
    assert share["forward"][1] < 0.02 < 0.2 < share["backward"][0]
    rows = answer.tables["every_tile"].rows
    assert rows["flops"].notna().all(), "of each matmul the module is known"
    rates = rows["flop_rate"].dropna()
    assert rates.min() > 0 and rates.max() < 67, "TFLOP/s of the data sheet"


def test_elementwise_is_the_largest_other_family_in_all_cases(main):
    said = page_context.ask(beyond_gemm.QUESTION, main).claims["leading_family"].values
    assert (said["num_cases"], said["num_all"]) == (20, 20)


def test_softmax_norms_and_optimizer_have_their_part_of_a_training_step(main):
    rows = page_context.ask(beyond_gemm.QUESTION, main).tables["parts"].rows
    assert len(rows) == 20
    of_step = main.kernels[
        (main.kernels["run_id"] == "small-ctx512-fp32-naive-train_step") & (main.kernels["step"] >= 0)
    ]
    time_ns = of_step["end_ns"] - of_step["start_ns"]
    found = rows.set_index("run_id").loc["small-ctx512-fp32-naive-train_step"]
    module = of_step["module"].astype(str)
    for name, inside in (
        ("softmax", module.str.endswith("/softmax")),
        ("norm", module.str.fullmatch(r"norm|block_\d+/norm")),
        ("(gradient accumulation)", module == "(gradient accumulation)"),
    ):
        inside &= of_step["phase"] != "optimizer"
        assert found[f"part_{name}"] == pytest.approx(time_ns[inside].sum() / time_ns.sum()), name
    assert found["part_optimizer"] == pytest.approx(time_ns[of_step["phase"] == "optimizer"].sum() / time_ns.sum())


def test_each_module_of_a_training_step_has_its_top_kernels_and_what_is_no_matmul(main):
    """In the largest model at the longest context, each phase of a module adds up to the time of its kernels as they
    were recorded."""
    run_id = "2.7B-ctx1024-fp32-naive-train_step"
    kernels = select_steps(main.kernels)
    kernels = kernels[kernels["run_id"] == run_id]
    is_ffn = kernels["module"].astype(str).str.fullmatch(r"block_\d+/ffn")
    ffn = kernels[is_ffn].assign(ns=kernels["end_ns"] - kernels["start_ns"])
    ffn = ffn.astype({"phase": str, "kernel_name": str, "family": str})
    step_ns = (kernels["end_ns"] - kernels["start_ns"]).sum()

    answer = page_context.ask(top_kernel.QUESTION, main)
    rows = answer.tables["every_module"].rows.query("run_id == @run_id and module == 'block/ffn'").set_index("phase")
    assert list(rows.index) == ["forward", "backward", "optimizer"]
    for phase, of_phase in ffn.groupby("phase"):
        by_name = of_phase.groupby("kernel_name")["ns"].sum()
        assert rows["kernel_name"][phase] == by_name.idxmax()
        assert rows["share"][phase] == pytest.approx(by_name.max() / by_name.sum())
        assert rows["step_share"][phase] == pytest.approx(by_name.sum() / step_ns)
    facts = answer.claims["of_modules"].values
    assert (facts["num_others"], facts["num_modules"]) == (87, 108)

    rest = page_context.ask(beyond_gemm.QUESTION, main).tables["rest_modules"].rows
    row = rest.query("run_id == @run_id and module == 'block/ffn'").iloc[0]
    others = ffn[ffn["family"] != "gemm"].groupby("phase")["ns"].sum() / 5
    assert {phase: row[f"{phase}_ns"] for phase in others.index} == pytest.approx(others.to_dict())
    assert row["step_share"] == pytest.approx(others.sum() * 5 / step_ns)


def test_softmax_is_held_against_both_matmuls(main):
    rows = page_context.ask(attention_cost.QUESTION, main).tables["cost"].rows
    both = rows["scores_ns"] + rows["output_ns"]
    assert (rows["both_time_ratio"] == rows["softmax_ns"] / both).all()
    assert rows["both_cost_ratio"].between(60, 83).all()


def test_the_l2_cache_is_that_of_the_gpu(ask, main):
    found = ask(softmax_detail.QUESTION, "h200-fp32")
    assert found.facts["l2_bytes"] == 60 * 2**20
    beyond = found.claims["beyond_cache"].rows
    assert beyond["score_bytes"].min() == 64 * 2**20, "which 64 MiB as the limit would leave out"


def test_every_copy_of_a_step_is_from_the_device_to_the_device(main):
    said = cuda_calls.answer(main.runs, main.steps, main.kernels, main.api, main.memops).claims["copies"].values
    assert said["of"] == [{"direction": "Device-to-Device", "copies": 27560}]


def test_conditions_are_those_of_the_runs(main):
    assert environment.conditions(main.runs) == {
        "precision": ["fp32"],
        "batch_size": ["4"],
        "attention": ["naive"],
        "compile": ["off"],
        "gpu_name": ["NVIDIA H200"],
        "optimizer": ["own"],
        "driver": ["580.159.04"],
        "torch": ["2.11.0+cu130"],
        "nsys": ["2025.3.1.0"],
        "dates": ["2026-11-22"],
        "num_processes": (3, 3),
        "num_steps": (10, 10),
        "num_profiled": (5, 5),
    }


def test_a_number_that_holds_within_a_session_is_not_said_to_hold_between_them(main, again):
    study, others = store.load(locate("warm_up")), {"host": store.load(locate("compile")), "again": again}
    others["memory"] = store.load(locate("memory"))  # one step of each run, which gives no number of a case
    found = page_context.ask(warm_up.QUESTION, study, main=main, studies=others)
    said = found.claims["sessions"].values
    assert found.facts["session_s"] < 60
    assert [(row["recording"], round(row["main_ns"] / 1e6, 1)) for row in said["numbers"]] == [
        ("compile", 35.6),
        ("again", 37.5),
        ("h200-fp32", 38.2),
    ]


def test_a_recording_on_another_gpu_is_no_other_recording_of_a_run(main):
    study = store.load(locate("attention_fp32"))
    assert set(study.runs["run_id"].astype(str)) & set(main.runs["run_id"].astype(str))
    assert differences.select_repeated_runs(main.runs, study.runs).empty


def test_runs_whose_clock_was_held_down_are_counted_beside_their_numbers():
    parts = [store.load(locate(name)) for name in ("attention_bf16_long", "attention_fp32")]
    states = [pd.concat([getattr(part, name) for part in parts]) for name in ("runs", "processes", "telemetry")]
    said = environment.machines(*states)
    # The loop of the fastest process of either recording is the measure of both.
    assert (said["num_slow"], said["num_read"], said["num_lowered"], said["busy_mhz"]) == (55, 75, 3, 1980)
    assert said["longest"] == {
        "run": "small · 8192 · forward pass · FP32 · fused attention (efficient)",
        "share": 1.0,
        "reasons": "power cap",
    }


def test_every_gpu_that_was_recorded_on_has_all_its_checks():
    names = {name for folder in RECORDINGS for name in store.load_table(folder, "runs")["gpu_name"].astype(str)}
    assert names == {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}
    assert all(gpus.lookup(name).l2_bytes for name in names)


def test_the_profiler_stretches_the_span_of_runs_whose_gpu_waits(main):
    table = timing.measure_stretch(main.steps, main.kernels, main.memops)
    waiting = table[table["waits"] > methods_page.WAITS]
    assert len(waiting) and (waiting["longer_ns"] > 0).all()
    assert table["busy_ratio"].max() < 1.02, "kernels themselves are hardly longer"


def test_how_many_runs_have_the_steps_of_the_main_recording_is_counted(main):
    study = store.load(locate("warm_up"))
    assert methods_page._num_usual(main, [main, study]) == (60, 60 + len(study.runs))
