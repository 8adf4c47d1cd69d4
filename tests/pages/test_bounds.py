"""What bounds a run, on frozen runs and where something is missing."""

import dataclasses
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from profiler_job.analysis.metrics import kernel_time, roofline, step_limits
from profiler_job.analysis.pages.questions import bounds, forward_time
from profiler_job.analysis.render import chart_parts, charts, line_charts
from profiler_job.analysis.site import combine, page_context
from profiler_job.jobs.contract.step_limit import COMPUTE, MEMORY
from profiler_job.jobs.contract.studies import GPUS, LADDER, TRAINED
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests import frozen, synthetic

NONE = combine.find_rates([])
RATES = pd.DataFrame(
    [
        {"figure": figure, "unit": unit, "value": value, "low": value, "high": value, "repeats": 1, "gpu_name": ""}
        for figure, unit, value in (
            ("gemm_fp32", "FLOP/s", 5e13),
            ("copy", "bytes/s", 4e12),
            ("read", "bytes/s", 4e12),
            ("launch", "s", 5e-6),
        )
    ]
)


@pytest.fixture(scope="module")
def rates():
    return combine.find_rates([frozen.load("one_gpu")])


@pytest.fixture(scope="module")
def answer(rates):
    """Of runs of the default sweep: two contexts of the small model, and a forward pass of the largest."""
    return page_context.ask(bounds.QUESTION, frozen.load_study(""), calibration=rates)


def made_up(**options):
    return synthetic.recording(("small", "2.7B"), (128, 512), num_profiled=2, num_timed=3, **options)


def test_every_kernel_of_a_real_forward_pass_belongs_to_one_operation(answer):
    rows = answer.tables["every"].rows
    forward = rows[rows["phase"] == "forward"]
    named = forward.groupby("run_id")["time_ns"].sum()
    totals = kernel_time.kernel_totals(frozen.load_study("").kernels)
    kernels = totals[totals["run_id"].isin(named.index)].groupby("run_id")["time_ns"].sum()
    assert len(named) == len(kernels) == 3
    assert (named / kernels.loc[named.index]).between(0.98, 1.02).all()


def test_operations_and_families_are_the_same_time_and_work(answer):
    by_operation, by_family = answer.tables["operations"].rows, answer.tables["families"].rows
    assert set(by_operation["phase"]) == set(by_family["phase"]) == {"forward", "backward", "optimizer"}
    assert (by_operation.groupby("phase")["num_runs"].nunique() == 1).all(), "each run has every operation"


def test_matmuls_are_limited_by_compute_and_everything_else_by_memory(answer):
    rows = answer.tables["every"].rows
    gemms = rows["series"].isin((roofline.LINEAR, roofline.ATTENTION))
    assert set(rows[gemms]["limit"]) == {COMPUTE}
    assert set(rows[~gemms]["limit"]) == {MEMORY}
    assert rows[gemms]["reached"].max() < 1.02, "no matmul is faster than the measured peak"


def test_parts_of_a_run_add_up_to_its_unprofiled_step_and_the_largest_limits_it(answer):
    rows = answer.tables["runs"].rows
    rows = rows[rows["run_id"] != ""]
    assert (rows["above"] + rows["below"]).dropna().sub(1).abs().max() < 1e-9
    parts, causes = rows[[*step_limits.PARTS.values()]], rows[[*step_limits.CAUSES.values()]]
    assert (parts.sum(axis=1) - rows["timer_ns"]).abs().max() < 1 and (parts >= 0).all(axis=None)
    assert (causes.sum(axis=1) - rows["cpu_ns"]).abs().max() < 1
    largest = parts.idxmax(axis=1).map({column: name for name, column in step_limits.PARTS.items()})
    assert all(name in limit for name, limit in zip(largest, rows["limit"], strict=True))


def test_the_verdict_counts_every_run(answer):
    claim = answer.claims["counts"]
    assert claim.holds
    found = claim.values
    assert found["compute"] + found["memory"] + found["cpu"] + found["either"] == found["num_all"] == 7


def test_a_phase_waits_for_launches_for_as_long_here_as_in_question_a():
    """One definition for all pages, and none by a threshold on the time that the GPU is busy."""
    rec = made_up(oom={})
    of_a = page_context.ask(forward_time.QUESTION, rec).tables["inside"].rows
    here = page_context.ask(bounds.QUESTION, rec, calibration=RATES).tables["phases"].rows.query("phase == 'forward'")
    both = here.merge(of_a, on="run_id", suffixes=("", "_of_a"))
    assert len(both) == len(here) > 0 and (both["launch_wait"] == both["launch_wait_of_a"]).all()
    assert both["launch_wait"].nunique() > 1


def test_what_bounds_a_run_is_said_with_its_precision():
    template = Path(bounds.__file__).with_suffix(".md").read_text()
    (words,) = re.findall(r'claim\("compute"\)(.*?)endcall', template, re.S)
    assert "facts.precisions" in words and "only" in words
    assert page_context.ask(bounds.QUESTION, made_up(oom={}), calibration=RATES).facts["precisions"] == ["fp32"]


def test_the_verdict_says_how_long_the_gpu_waits_in_a_training_step(answer):
    """It said 43%, of a forward and backward pass, after a sentence on training steps."""
    found = answer.claims["waits"].values["of_step"]
    rows = answer.claims["waits"].rows
    training = rows[rows["mode"].astype(str) == "train_step"]
    assert found["mode"] == "train_step" and found["launch_wait"] == training["launch_wait"].max()


def test_the_verdict_has_the_limits_in_bf16_next_to_those_in_fp32():
    """Home showed a step in BF16 that memory limits, and below it that memory limits none of 60 runs."""
    first = made_up(oom={})
    trained = dataclasses.replace(first, runs=first.runs.assign(precision="bf16", attention="sdpa"))
    assert page_context.ask(bounds.QUESTION, first, calibration=RATES).claims["counts"].values["bf16"] is None
    answer = page_context.ask(bounds.QUESTION, first, calibration=RATES, studies={TRAINED: trained})
    found, rows = answer.claims["counts"].values, answer.tables["regimes"].rows.query("precision == 'bf16'")
    of_bf16 = found["bf16"]
    assert 0 < of_bf16["num"] <= of_bf16["num_all"] == len(rows) and of_bf16["attention"] == "fused attention"
    name = of_bf16["limit"].removeprefix("the ")
    assert of_bf16["num"] == (rows["limit"].str.lower() == name.lower()).sum()


def test_another_recording_of_a_run_may_have_other_bounds():
    first = made_up(oom={})
    late = first.steps["wall_ns"].where(first.steps["collector"] != "timer", 20 * first.steps["wall_ns"])
    again = dataclasses.replace(
        first, runs=first.runs.assign(started_at="2027-01-01"), steps=first.steps.assign(wall_ns=late)
    )
    answer = page_context.ask(bounds.QUESTION, first, calibration=RATES, studies={"again": again})
    rows = answer.tables["runs"].rows
    found = answer.claims["recordings"].values
    assert (rows["num_recordings"] == 2).all() and found["num_rows"] == len(rows)
    assert found["num_ever"] == rows["cpu_limits_in"].isin(["1 of 2", "2 of 2"]).sum()
    assert (rows["wait_high"] > rows["wait_low"]).any()


def test_without_measured_peaks_all_matmuls_count_as_compute_and_it_is_said():
    answer = page_context.ask(bounds.QUESTION, made_up(oom={}), calibration=NONE)
    assert answer.claims["without_ridge"].holds
    assert answer.tables["operations"].rows[["limit", "reached"]].isna().all(axis=None)
    assert not len(answer.charts["roofline"].rows)
    for key in ("compute", "memory", "never_memory", "linear", "from_cache"):
        assert not answer.claims[key].holds, key


def test_a_run_out_of_memory_has_no_derived_number():
    rec = combine.select_finished_runs(made_up())
    rows = page_context.ask(bounds.QUESTION, rec, calibration=RATES).tables["runs"].rows
    failed = rows[rows[NOT_MEASURED].str.startswith("OOM")]
    assert len(failed)
    assert failed[["busy_share", "above", "limit", "timer_ns"]].isna().all(axis=None)


@pytest.mark.parametrize(("column", "value"), [("precision", "bf16"), ("attention", "flash"), ("compile", "default")])
def test_kernels_without_a_formula_have_no_rate(column, value):
    rec = made_up(oom={})
    rec = dataclasses.replace(rec, runs=rec.runs.assign(**{column: value}))
    answer = page_context.ask(bounds.QUESTION, rec, calibration=RATES)
    assert not len(answer.tables["every"].rows)
    assert answer.tables["runs"].rows["above"].isna().all()
    assert not answer.claims["unfused"].holds


def test_a_busy_gpu_that_mostly_moves_bytes_is_bound_by_memory():
    rec = made_up(oom={})
    slow = rec.kernels["end_ns"].where(rec.kernels["family"] == "gemm", rec.kernels["end_ns"] * 2)
    steps = rec.steps.assign(wall_ns=1)
    answer = page_context.ask(
        bounds.QUESTION,
        dataclasses.replace(rec, kernels=rec.kernels.assign(end_ns=slow), steps=steps),
        calibration=RATES,
    )
    assert set(answer.tables["runs"].rows["limit"]) == {MEMORY}
    assert answer.claims["memory"].holds
    assert not answer.claims["never_memory"].holds


@pytest.mark.parametrize("width", [chart_parts.WIDE, chart_parts.NARROW])
def test_the_roofline_names_every_operation_and_the_roof_of_every_precision(answer, rates, width):
    chart = answer.charts["roofline"]
    assert charts.specification(chart.kind, chart.rows, chart_parts.Drawing(), width, **chart.options)
    svg = charts.render(chart.kind, chart.rows, "r", width, chart.title, **chart.options)
    peaks = rates.set_index("figure")["value"]
    for precision in ("fp32", "tf32", "bf16"):
        assert f"{precision.upper()} {peaks[f'gemm_{precision}'] / 1e12:.3g} TFLOP/s" in svg
    assert f"memory {peaks['copy'] / 1e9:,.0f} GB/s" in svg
    every = answer.tables["every"].rows
    assert {*chart.rows["label"]} == {*every.loc[every["flops"] > 0, "operation"]}
    words = ElementTree.fromstring(svg).itertext()
    assert {*chart.rows["label"]} <= {*words}


def test_names_in_the_roofline_stand_below_one_another(answer):
    rows = answer.charts["roofline"].rows.rename(columns={"label": "name"})
    for below in (False, True):
        placed = line_charts.named_beside(rows, 1.0, 380, 0.01, 1000.0, below=below)
        heights = placed["y"].map(math.log) * 380 / math.log(1000.0 / 0.01)
        assert (-heights.diff().dropna() > 14.9).all() and placed["y"].between(0.01, 1000).all()


def test_the_area_of_a_mark_is_its_part_of_its_runs_kernel_time(answer):
    points, every = answer.charts["roofline"].rows.set_index("label"), answer.tables["every"].rows
    of_adamw = every[every["operation"] == "AdamW"]
    share = (of_adamw["time_ns"] / of_adamw["kernel_ns"]).median()
    assert points.loc["AdamW", "time_share"] == pytest.approx(share) and 0 < share < 0.5


def test_backward_is_compared_within_one_run(answer):
    rows = answer.tables["ratio"].rows.dropna(subset="kernel_ratio")
    assert len(rows) == 2 and (
        rows["kernel_ratio"]
        .between(rows[["gemm_ratio", "rest_ratio"]].min(axis=1), rows[["gemm_ratio", "rest_ratio"]].max(axis=1))
        .all()
    )
    assert (rows["timer_ratio_min"] <= rows["timer_ratio"]).all()


def test_the_rates_name_their_gpu_or_say_that_it_is_not_recorded():
    def answer_for_gpu(gpu_name):
        return page_context.ask(bounds.QUESTION, made_up(oom={}), calibration=RATES.assign(gpu_name=gpu_name)).facts[
            "calibrated_on"
        ]

    assert answer_for_gpu("Example 1") == "Example 1"
    assert answer_for_gpu("") == "GPU not recorded"


def test_rates_of_an_older_recording_do_not_name_their_gpu():
    row = {"figure": "copy", "unit": "bytes/s", "value": 1.0, "low": 1.0, "high": 1.0, "repeats": 1}
    older = dataclasses.replace(made_up(oom={}), manifest={"calibration": [row]})
    assert list(combine.find_rates([older])["gpu_name"]) == [""]


def test_linear_layers_in_bf16_lie_at_their_rate_and_intensity():
    rec = synthetic.recording(("small",), (128,), precisions=("bf16",), num_profiled=2, num_timed=3)
    fused = rec.runs.assign(attention="sdpa")
    points = roofline.place_linear_layers(fused, rec.kernels, {"gemm_bf16": 8e14, "copy": 4e12})
    forward = next(point for point in points.itertuples() if "forward" in point.label)
    run = fused[fused["mode"] == "forward"].iloc[0]
    weights = run["num_layers"] * (4 * run["d_model"] ** 2 + 3 * run["d_model"] * run["d_ff"])
    weights += run["d_model"] * run["vocab_size"]
    kernels = rec.kernels[rec.kernels["run_id"].astype(str) == run["run_id"]]
    matmuls = kernels[(kernels["family"] == "gemm") & ~kernels["module"].astype(str).str.contains("attention_")]
    seconds = (matmuls["end_ns"] - matmuls["start_ns"]).sum() / 2 / 1e9
    flops = 2 * run["batch_size"] * 128 * weights
    assert forward.flop_rate == pytest.approx(flops / seconds / 1e12)
    assert forward.reached == pytest.approx(flops / seconds / 8e14)
    assert forward.limit == (COMPUTE if forward.intensity > 200 else MEMORY)
    assert not len(roofline.place_linear_layers(rec.runs, rec.kernels, {})), "eager attention has matmuls of its own"


def test_compiled_steps_have_a_panel_and_are_not_counted_with_those_in_bf16():
    first = made_up(oom={})
    runs = first.runs.astype({"run_id": str}).assign(precision="bf16", attention="sdpa", optimizer="fused")
    both = pd.concat([runs.assign(compile="off"), runs.assign(compile="default", run_id=runs["run_id"] + "-c")])
    tables = {name: getattr(first, name) for name in ("steps", "kernels", "memops")}
    twice = {
        name: pd.concat([rows.assign(run_id=rows["run_id"].astype(str) + end) for end in ("", "-c")], ignore_index=True)
        for name, rows in tables.items()
    }
    trained = dataclasses.replace(first, runs=both, **twice)
    answer = page_context.ask(bounds.QUESTION, first, calibration=RATES, studies={TRAINED: trained})
    rows = answer.tables["regimes"].rows
    num_of = rows.groupby(["precision", "compile"]).size()
    found = answer.claims["counts"].values
    assert num_of["bf16", "off"] == num_of["bf16", "default"] == found["bf16"]["num_all"]
    assert found["compiled"] == found["bf16"]


def test_a_step_that_was_profiled_for_the_study_of_several_gpus_is_in_the_map():
    """Home showed its limit, and the map called it not profiled: another study had timed it alone."""
    first = made_up(oom={})
    fused = first.runs.astype({"run_id": str}).assign(precision="bf16", attention="sdpa", optimizer="fused")
    two = fused.assign(gpus=2, parallel="ddp", run_id=fused["run_id"] + "-2gpus-ddp")
    gpus = dataclasses.replace(first, runs=pd.concat([fused.assign(gpus=1), two], ignore_index=True))
    timed = dataclasses.replace(first, runs=fused, kernels=first.kernels.head(0), memops=first.memops.head(0))
    answer = page_context.ask(bounds.QUESTION, first, calibration=RATES, studies={LADDER: timed, GPUS: gpus})
    rows = answer.tables["regimes"].rows.query("precision == 'bf16'")
    assert len(rows) and rows["limit"].notna().all() and not rows["run_id"].str.contains("2gpus").any()
