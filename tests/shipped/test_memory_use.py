"""What fills the memory: the shipped recording's numbers hang together, and claims go where their grounds do."""

import re
from dataclasses import replace

import pytest

from profiler_job.analysis.metrics import device_memory
from profiler_job.analysis.pages.questions import memory_use
from profiler_job.analysis.render import chart_parts, charts, text
from profiler_job.analysis.site import combine, page_context
from profiler_job.jobs import memory
from tests import frozen
from tests.shipped.recordings import load_timed, locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def shipped():
    return tuple(combine.select_finished_runs(load_timed(locate(name))) for name in ("memory", "h200-fp32"))


@pytest.fixture(scope="module")
def recorded(shipped):
    """The study, with a few runs of the default sweep: changes of the study need no others."""
    return shipped[0], frozen.load_study("")


@pytest.fixture(scope="module")
def answer(shipped):
    study, main = shipped
    others = {name: load_timed(locate(name)) for name in ("attention_bf16", "changes_1", "compile")}
    return page_context.ask(memory_use.QUESTION, study, main=main, studies=others)


def asked(recorded, **changed):
    """The answer from the study's recording with some of its tables changed."""
    study, main = recorded
    return page_context.ask(memory_use.QUESTION, replace(study, **changed), main=main, studies={})


def holding(answer) -> set[str]:
    return {key for key, claim in answer.claims.items() if claim.holds}


@pytest.mark.long
def test_every_finished_run_is_in_the_table_of_errors_and_within_three_percent(answer, shipped):
    study, main = shipped
    errors = answer.tables["errors"].rows
    assert len(errors) == 60 + (study.runs["status"] == "ok").sum()
    assert set(main.runs["run_id"]) <= set(errors["run_id"])
    assert errors["error"].abs().max() < 0.03
    assert ((errors["predicted"] / errors["peak"] - 1 - errors["error"]).abs() < 1e-12).all()
    assert " · training step · " in answer.claims["exact"].values["run"], "a run is named by what it is"


@pytest.mark.long
def test_parts_of_the_memory_are_predicted_and_sum_to_the_predicted_peak(answer):
    claim = answer.claims["by_owner"]
    assert len(claim.rows) == 20 and claim.holds and claim.values["bound"] < 0.02
    owners = answer.tables["owners"].rows.set_index("run_id")[[*device_memory.AT_PEAK.values()]]
    fits = answer.tables["fits"].rows.set_index("run_id")
    assert (owners.sum(axis=1) == fits["predicted"]).all()


@pytest.mark.long
def test_what_fits_is_planned_of_sizes_that_nobody_measured(answer, shipped):
    plan = answer.tables["plan"].rows.set_index(["size", "setting", "context_length", "batch_size"]).sort_index()
    assert len(plan) == len(memory.MODEL_SIZES) * len(device_memory.CASES) * len(device_memory.SETTINGS)
    assert plan.loc["1.3B", "peak"].isna().all() and plan.loc["1.3B", "in_24"].nunique() > 1
    peaks = shipped[1].runs.astype({"run_id": str}).set_index("run_id")["peak_memory_bytes"]
    large = plan.loc["large", "FP32", 1024, 4]
    assert large["peak"] == peaks[large["run_id"]] == pytest.approx(large["predicted"], rel=0.03)
    assert (large["in_24"], large["in_80"]) != (device_memory.FITS,) * 2 and large["in_80"] == device_memory.FITS
    said = answer.claims["planned"].values
    fitting = plan.loc["1.3B"][plan.loc["1.3B", "in_24"] == device_memory.FITS]
    assert said["gb"] == 24 and {row["predicted"] for row in said["fitting"]} == {*fitting["predicted"]}


@pytest.mark.long
@pytest.mark.parametrize("key", ["exact", "elsewhere"])
def test_no_run_is_further_off_than_the_bound_that_is_printed(answer, key):
    claim = answer.claims[key]
    printed = float(text.percent(claim.values["bound"], 2).removesuffix("%")) / 100
    assert claim.rows["error"].abs().max() <= printed < claim.rows["error"].abs().max() + 2e-4


@pytest.mark.long
def test_forty_capped_runs_ended_in_the_step_and_phase_that_were_predicted(answer):
    claim = answer.claims["foreseen"]
    assert len(claim.rows) == 40 and claim.holds
    failures = answer.tables["failures"].rows
    assert len(failures) == 13
    assert (failures["place"] == failures["predicted_place"]).all()
    assert (failures["asked_bytes"] > 0).all() and (failures["unused_bytes"] < failures["cap_bytes"]).all()


@pytest.mark.long
def test_a_cell_fits_every_larger_gpu_and_was_tried_on_all_three(answer):
    fits = answer.tables["fits"].rows
    assert len(fits) == 20
    for small, large in ((24, 80), (80, 141)):
        assert not ((fits[f"predicted_{small}"] == "fits") & (fits[f"predicted_{large}"] != "fits")).any()
    for size in memory_use.GPU_SIZES:
        assert (fits[f"predicted_{size}"] == fits[f"measured_{size}"]).all()
    assert (fits["tried"] == "3 of 3").all()


@pytest.mark.long
def test_the_failure_of_the_second_step_is_one_whose_first_step_fits(answer):
    rows = answer.claims["second_step"].rows
    assert len(rows) and (rows["first_peak"] <= rows["cap_bytes"]).all()
    assert (rows["later_peak"] > rows["cap_bytes"]).all()


@pytest.mark.long
def test_modules_add_up_to_what_forward_left_allocated(answer):
    rows = answer.tables["modules"].rows
    whole = rows[["attention", "ffn", "norm", "ends", "between"]].sum(axis=1)
    assert (whole == rows["activations"]).all()
    assert (rows["softmax"] < rows["attention"]).all()


@pytest.mark.long
def test_the_parts_of_the_chart_add_up_to_the_peak_and_none_is_negative(answer):
    parts = answer.charts["peak"].rows
    assert (parts["bytes"] >= 0).all()
    peaks = answer.tables["fits"].rows.set_index("run_id")["peak"]
    assert (parts.groupby("run_id")["bytes"].sum().sort_index() == peaks.sort_index()).all()


@pytest.mark.long
@pytest.mark.parametrize("width", [chart_parts.WIDE, chart_parts.NARROW])
def test_the_chart_is_a_valid_drawing_as_wide_as_its_page(answer, width):
    chart = answer.charts["peak"]
    assert charts.specification(chart.kind, chart.rows, chart_parts.Drawing(), width, **chart.options)
    drawing = charts.render(chart.kind, chart.rows, "peak", width, chart.title, **chart.options)
    assert float(re.search(r'viewBox="0 0 ([\d.]+)', drawing)[1]) <= width + 10
    assert all(f">{size} GB<" in drawing for size in memory_use.GPU_SIZES)


@pytest.mark.long
def test_a_float32_parameter_takes_sixteen_bytes_with_gradient_and_moments(answer):
    assert answer.tables["uses"].rows["parameter_bytes"].between(16, 17).all()


@pytest.mark.long
def test_the_peak_of_sharded_steps_is_predicted_within_one_percent():
    runs = load_timed(locate("gpus")).runs
    sharded = runs[runs["parallel"] == "fsdp"]
    errors = [
        memory.predict_relieved_peak(memory.infer_shape(run), memory.Relief(gpus=run.gpus)) / run.peak_memory_bytes - 1
        for run in sharded.itertuples()
    ]
    assert len(errors) == 4 and max(map(abs, errors)) < 0.01


def test_a_peak_that_the_formula_misses_is_said_to_be_missed(recorded):
    runs = recorded[0].runs.copy()
    runs.loc[0, "peak_memory_bytes"] *= 1.1
    found = asked(recorded, runs=runs)
    assert "inexact" in holding(found) and "exact" not in holding(found)


@pytest.mark.long
def test_runs_of_other_studies_are_told_apart_and_those_after_compiled_ones_are_left_out(answer, recorded):
    rows = answer.claims["elsewhere"].rows
    assert set(rows["sweep"]) <= {"attention_bf16", "changes_1", "compile"}
    assert not set(answer.tables["errors"].rows["sweep"]) & set(rows["sweep"])
    assert not set(answer.claims["followers"].rows["run_id"]) & set(rows[rows["sweep"] == "compile"]["run_id"])
    assert rows["error"].abs().max() < 0.01
    assert "elsewhere" not in holding(asked(recorded))


@pytest.mark.long
def test_the_table_of_accuracy_counts_every_run_of_the_errors_and_of_the_other_studies(answer):
    rows = answer.tables["accuracy"].rows
    told = [answer.tables["errors"].rows, answer.claims["elsewhere"].rows]
    assert rows["num_runs"].sum() == sum(map(len, told))
    assert rows["num_exact"].sum() == sum((one["error"] == 0).sum() for one in told) > 0
    assert rows["largest"].max() == max(one["error"].abs().max() for one in told)


@pytest.mark.long
def test_copies_of_weights_take_more_than_their_sizes_and_the_prediction_knows(answer):
    rows = answer.claims["casts"].rows
    assert len(rows) == 16 and (rows["kept"] > rows["casts"]).all()
    assert rows["error"].abs().max() < 0.003
    assert (rows["kept"] - rows["casts"]).max() > 0.03 * rows["peak"].min()


def with_compiled_neighbours(recorded, excess):
    """The answer where two uncompiled runs followed a compiled one and peaked so many bytes higher than predicted."""
    study, main = recorded
    kept = study.runs[study.runs["memory_limit_gib"] == 0].iloc[:3]
    kept = kept.assign(compile=["default", "off", "off"], started_at=["2026-01-01", "2026-01-02", "2026-01-03"])
    memory = study.memory[study.memory["run_id"].isin(kept["run_id"].iloc[1:])].copy()
    extra = memory["run_id"].map(dict(zip(kept["run_id"].iloc[1:], excess))).astype("int64")
    memory["peak_allocated_bytes"] += extra
    other = replace(study, runs=kept, memory=memory)
    return page_context.ask(memory_use.QUESTION, study, main=main, studies={"host": other})


def test_what_compiled_runs_left_behind_is_told_where_every_phase_has_it(recorded):
    found = with_compiled_neighbours(recorded, (2**30, 2**30))
    assert "followers" in holding(found) and "elsewhere" not in holding(found)
    assert found.claims["followers"].rows["run_id"].nunique() == 2
    assert "followers" not in holding(with_compiled_neighbours(recorded, (2**30, 2**28)))
    assert "followers" not in holding(with_compiled_neighbours(recorded, (0, 0)))


@pytest.mark.long
def test_activations_have_no_share_of_a_peak_in_the_optimizer(answer):
    phases = answer.tables["phases"].rows.set_index("run_id")["highest"]
    later = phases.index[phases == "optimizer"]
    shares = answer.tables["uses"].rows.set_index("run_id")["activations_share"]
    assert len(later) and shares[later].isna().all() and shares.drop(later).notna().all()
    assert not set(answer.claims["activations"].rows["run_id"]) & set(later)


@pytest.mark.long
def test_at_short_contexts_the_model_is_most_of_the_peak_or_that_is_not_said(answer, recorded):
    assert "turns" in holding(answer) and "fills" not in holding(answer)
    memory = recorded[0].memory.copy()
    memory["peak_allocated_bytes"] *= 4
    assert "turns" not in holding(asked(recorded, memory=memory))
    assert "fills" in holding(asked(recorded, memory=memory))


def test_a_failure_in_another_phase_than_predicted_is_not_foreseen(recorded):
    runs = recorded[0].runs.astype({"status_phase": object})
    runs.loc[runs.index[runs["status"] == "oom"][0], "status_phase"] = "loss"
    found = asked(recorded, runs=runs)
    assert "unforeseen" in holding(found) and "foreseen" not in holding(found)


@pytest.mark.long
def test_no_table_links_to_pages_of_runs_that_a_study_does_not_have(answer):
    assert not [column for table in answer.tables.values() for column in table.columns if column.kind == "run"]


def test_without_failures_nothing_is_said_of_them(recorded):
    study = recorded[0]
    runs = study.runs[study.runs["status"] == "ok"].drop(columns=[c for c in study.runs if c.startswith("status_")])
    runs = runs.assign(status_phase=None, status_message=None)
    found = asked(recorded, runs=runs)
    assert not holding(found) & {"phases", "second_step", "unused", "unforeseen"}
    assert not len(found.tables["failures"].rows)
    assert found.facts["num_context"] == 0


def test_an_uncapped_run_that_ran_out_has_a_reason_and_no_numbers(recorded):
    study = recorded[0]
    runs = study.runs.astype({"status": object, "status_phase": object})
    lost = runs["run_id"] == "2.7B-ctx1024-fp32-naive-train_step"
    runs.loc[lost, ["status", "status_phase", "peak_memory_bytes"]] = ["oom", "backward", float("nan")]
    kept = {
        name: frame[frame["run_id"] != runs["run_id"][lost].item()]
        for name in ("memory", "module_memory", "figures")
        for frame in [getattr(study, name)]
    }
    found = asked(recorded, runs=runs, **kept)
    row = found.tables["uses"].rows.iloc[-1]
    assert row["not_measured"] == "OOM in backward"
    assert row[["parameters", "activations", "activations_share"]].isna().all()
    assert "2.7B-ctx1024-fp32-naive-train_step" not in set(found.claims["activations"].rows["run_id"])


def test_an_empty_main_recording_and_no_observations_leave_the_capped_runs(recorded):
    study, main = recorded
    empty = {name: getattr(study, name).head(0) for name in ("memory", "module_memory", "figures")}
    found = page_context.ask(
        memory_use.QUESTION, replace(study, **empty), main=replace(main, runs=main.runs.head(0)), studies={}
    )
    assert {"foreseen", "exact"} <= holding(found)
    assert not holding(found) & {"activations", "softmax", "parameters", "peak_phase", "reserved"}
    assert not len(found.charts["peak"].rows)
