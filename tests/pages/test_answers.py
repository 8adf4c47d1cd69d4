"""Each question on a recording whose answers are known."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.insight import run_advice
from profiler_job.analysis.pages import (
    environment,
    explore,
    home,
    reconciliation,
    reconciliation_checks,
    run_list,
    run_page,
    titles,
)
from profiler_job.analysis.pages.questions import (
    QUESTIONS,
    attention_cost,
    beyond_gemm,
    forward_time,
    in_bf16,
    top_kernel,
    training_mix,
)
from profiler_job.analysis.prediction.measured import COLUMNS, SETTINGS
from profiler_job.analysis.render.answer import assemble
from profiler_job.analysis.site import page_context
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.words import NOT_MEASURED
from tests.synthetic import EXP, FAMILIES, GEMM, MAX, NUM_LAYERS, forward_kernels, phase_kernels, recording


@pytest.fixture(scope="module")
def rec():
    return recording(("small", "2.7B"), (128, 512, 1024))


def ask(question, rec):
    return page_context.ask(question, rec)


def row(answer, table, **where):
    rows = answer.tables[table].rows
    for column, value in where.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1, f"{len(rows)} rows with {where}"
    return rows.iloc[0]


def test_a_gives_each_clock_with_its_spread(rec):
    found = row(ask(forward_time.QUESTION, rec), "times", size="small", context_length=512)
    timed = rec.steps[(rec.steps["run_id"] == found["run_id"]) & (rec.steps["collector"] == "timer")]
    forward = timed[timed["phase"] == "forward"]["wall_ns"]
    assert (found["timer_ns"], found["timer_min_ns"], found["timer_max_ns"]) == (
        forward.median(),
        forward.min(),
        forward.max(),
    )
    assert found["busy_ns"] == sum(ns for _, _, ns in forward_kernels("small", 512))
    assert found["timer_n"] == 10
    assert found["host_n"] == 3
    assert found["projected_ns"] >= found["busy_ns"]


def test_a_gives_mean_and_deviation_of_all_timed_steps(rec):
    answer = ask(forward_time.QUESTION, rec)
    found = row(answer, "steps", size="small", context_length=512)
    timed = rec.steps[(rec.steps["run_id"] == found["run_id"]) & (rec.steps["collector"] == "timer")]
    forward = timed[timed["phase"] == "forward"]["wall_ns"]
    assert (found["timer_ns"], found["timer_mean_ns"]) == (forward.median(), forward.mean())
    assert found["timer_std_ns"] == pytest.approx(forward.std(ddof=1))
    shown = [column.key for column in answer.tables["steps"].columns]
    assert "of_processes_ns" not in shown and not answer.claims["processes"].holds, (
        "of one process there is no interval"
    )


def test_a_gives_the_interval_of_the_processes_that_timed_a_run(rec):
    timer = rec.steps["collector"] == "timer"
    steps = pd.concat(
        rec.steps[timer].assign(process=number, wall_ns=rec.steps["wall_ns"] + 1_000_000 * number)
        for number in range(3)
    )
    answer = ask(
        forward_time.QUESTION, dataclasses.replace(rec, steps=pd.concat([rec.steps[~timer].assign(process=0), steps]))
    )
    found, of_one = (
        row(asked, "steps", size="small", context_length=512) for asked in (answer, ask(forward_time.QUESTION, rec))
    )
    assert (found["timer_n"], found["num_processes"]) == (30, 3)
    assert found["of_processes_ns"] == of_one["timer_ns"] + 1_000_000
    assert found["of_processes_high_ns"] - found["of_processes_low_ns"] == 2_000_000
    assert found["timer_std_ns"] > of_one["timer_std_ns"]
    said = answer.claims["processes"].values
    assert said["num_processes"] == (3, 3) and said["high"]["width"] == answer.claims["processes"].rows["width"].max()


def test_t_gives_intervals_of_both_sides_where_both_have_three_processes():
    small = recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2)
    steps = pd.concat(small.steps.assign(process=number) for number in range(3))
    of_three = dataclasses.replace(small, steps=steps[(steps["collector"] == "timer") | (steps["process"] == 0)])
    rows = page_context.ask(in_bf16.QUESTION, of_three, main=of_three).tables["processes"].rows
    assert rows[["main_num_processes", "bf16_num_processes"]].values.tolist() == [[3, 3]]
    assert not len(page_context.ask(in_bf16.QUESTION, small, main=of_three).tables["processes"].rows)


def test_a_gives_the_wait_for_launches_as_a_part_of_the_idle_time(rec):
    answer = ask(forward_time.QUESTION, rec)
    table = answer.tables["times"].rows.dropna(subset="busy_ratio")
    assert (table["launch_wait"] <= (1 - table["busy_ratio"]).clip(lower=0)).all()
    assert answer.claims["waits"].values["high"]["launch_wait"] == table["launch_wait"].max() > 0
    assert "recordings" not in {key for key, claim in answer.claims.items() if claim.holds}


def test_b_counts_calls_of_a_single_pass_under_the_full_name(rec):
    found = row(ask(top_kernel.QUESTION, rec), "top", size="small", context_length=512, scope="forward")
    assert found["kernel_name"] == GEMM
    assert found["calls"] == 8 * NUM_LAYERS + 1, "AV has another layout, and so another kernel"
    assert set(found["modules"].split(", ")) >= {"block/ffn", "lm_head", "block/attention/attention_scores"}
    kernels = forward_kernels("small", 512)
    assert found["share"] == pytest.approx(
        sum(ns for _, name, ns in kernels if name == GEMM) / sum(ns for _, _, ns in kernels)
    )


def test_b_says_whether_the_training_step_has_the_same_top_kernel(rec):
    answer = ask(top_kernel.QUESTION, rec)
    found = row(answer, "top", size="small", context_length=128, scope="training step")
    step = [
        kernel
        for phase in ("forward", "loss", "backward", "optimizer")
        for kernel in phase_kernels("small", 128, phase)
    ]
    time = {name: sum(ns for _, one, ns in step if one == name) for name in FAMILIES}
    assert found["kernel_name"] == max(time, key=time.get)
    assert found["same"] == (found["kernel_name"] == GEMM)


def test_b_has_the_top_kernel_of_each_model_across_contexts(rec):
    answer = ask(top_kernel.QUESTION, rec)
    found = row(answer, "matrix", size="2.7B", scope="forward + backward")
    assert list(answer.tables["matrix"].rows["scope"].unique()) == ["forward", "forward + backward"]
    for context in (128, 512):
        top = row(answer, "top", size="2.7B", scope="forward + backward", context_length=context)
        assert found[f"at_{context}"] == top["kernel_name"]
    assert found["at_1024"] is None, "which ran out of memory"


def test_b_gives_tiles_and_alignment_of_both_passes(rec):
    answer = ask(top_kernel.QUESTION, rec)
    rows = answer.tables["tiles"].rows.set_index(["phase", "tile"])
    assert set(rows.index) == {("forward", "256x128"), ("forward", "sums of split-K"), ("backward", "256x128")}
    assert rows.loc[("forward", "256x128"), "layouts"] == "nn, tn"
    assert set(answer.tables["tile_matrix"].rows["at_512"].dropna()) == {"256x128 align1"}
    said = answer.claims["unaligned"].values
    assert said["share"]["backward"] == (1, 1) and said["share"]["forward"][1] < 1 and said["rates"] is None
    assert not answer.claims["small_tiles"].holds, "of one tile there is no smaller one"


def test_c_puts_split_k_with_the_gemms_and_adds_up(rec):
    answer = ask(beyond_gemm.QUESTION, rec)
    found = row(answer, "wide", size="small", context_length=512)
    kernels = forward_kernels("small", 512)
    gemm = sum(ns for _, name, ns in kernels if FAMILIES[name] == "gemm") / sum(ns for _, _, ns in kernels)
    assert found["gemm"] == pytest.approx(gemm)
    assert found["gemm"] + found["rest"] == pytest.approx(1)
    assert found[["share_elementwise", "share_reduce", "share_copy"]].sum() == pytest.approx(found["rest"])
    assert "gemm" not in set(answer.tables["families"].rows["family"].dropna())


def test_d_shares_add_up_in_every_scope_and_phase(rec):
    answer = ask(training_mix.QUESTION, rec)
    compared = answer.tables["compared"].rows
    whole = (
        compared.dropna(subset=["forward", "train_step"])
        .groupby(["size", "context_length"])[["forward", "train_step"]]
        .sum()
    )
    assert whole.to_numpy() == pytest.approx(1)
    phases = answer.tables["phases"].rows
    shares = [column for column in phases if column.startswith("share_")]
    assert phases.dropna(subset="phase")[shares].sum(axis=1).to_numpy() == pytest.approx(1)
    found = row(answer, "phase_shares", size="small", context_length=128)
    assert found[["in_forward", "in_loss", "in_backward", "in_optimizer"]].sum() == pytest.approx(1)


def test_e_compares_time_with_flops(rec):
    found = row(ask(attention_cost.QUESTION, rec), "cost", size="small", context_length=512)
    kernels = forward_kernels("small", 512)
    scores = sum(ns for module, name, ns in kernels if module.endswith("attention_scores") and name == GEMM)
    softmax = sum(ns for module, _, ns in kernels if module.endswith("softmax"))
    assert (found["scores_ns"], found["softmax_ns"]) == (scores, softmax)
    assert softmax == sum(ns for m, name, ns in kernels if m.endswith("softmax") and name in (EXP, MAX))
    assert found["scores_flops"] == NUM_LAYERS * 1_610_612_736
    assert found["flop_ratio"] == pytest.approx(5 / (2 * 64))
    assert found["cost_ratio"] == pytest.approx(softmax / scores / (5 / 128))


def test_a_run_that_ran_out_of_memory_shows_no_number_and_says_why(rec):
    answer = ask(training_mix.QUESTION, rec)
    found = row(answer, "phase_shares", size="2.7B", context_length=1024)
    assert found[NOT_MEASURED] == "OOM in forward"
    assert found[["kernel_ns", "in_forward", "in_backward"]].isna().all()


def test_every_check_holds_and_a_lost_kernel_breaks_one(rec):
    assert (
        reconciliation.answer(
            rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes
        ).facts["num_breaches"]
        == 0
    )
    first = rec.kernels.index[(rec.kernels["kernel_name"] == GEMM) & (rec.kernels["run_id"] == rec.runs["run_id"][0])][
        0
    ]
    broken = reconciliation.answer(
        rec.runs, rec.steps, rec.kernels.drop(first), rec.memops, rec.nsys_sums, rec.api, rec.processes
    )
    assert list(broken.tables["breaches"].rows["check"]) == [
        "forward_layouts",
        "forward_matmuls",
        "gemm_family",
        "launch_calls",
        "module_matmuls",
        "nsys_sums",
    ]
    assert broken.claims["breaches"].holds and not broken.claims["all_agree"].holds


def test_every_micro_batch_has_the_matmuls_of_the_architecture(rec):
    trained = rec.runs[(rec.runs["mode"] == "train_step") & (rec.runs["status"] == "ok")].head(1).assign(accumulation=2)
    kernels = rec.kernels[rec.kernels["run_id"].isin(trained["run_id"])]
    twice = pd.concat([kernels, kernels[kernels["phase"] != "optimizer"]], ignore_index=True)
    counted = ["forward_matmuls", "backward_matmuls", "forward_layouts", "backward_layouts"]

    def breached(of_kernels):
        checks = reconciliation_checks.checks_of(
            trained, rec.steps, of_kernels, rec.memops, rec.nsys_sums.head(0), rec.api, rec.processes
        )
        return set(checks.loc[~checks["passed"] & checks["check"].isin(counted), "check"])

    assert not breached(twice)
    assert breached(kernels) == set(counted), "one micro-batch of two is missing"


def test_a_nanosecond_that_nsys_counts_otherwise_is_a_breach_and_no_statistics_are_none(rec):
    other = rec.nsys_sums.copy()
    other.loc[0, "total_ns"] += 1
    breaches = (
        reconciliation.answer(rec.runs, rec.steps, rec.kernels, rec.memops, other, rec.api, rec.processes)
        .tables["breaches"]
        .rows
    )
    assert list(breaches["check"]) == ["nsys_sums"] and list(breaches["found"]) == [1]
    unknown = reconciliation.answer(
        rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums.head(0), rec.api, rec.processes
    )
    assert "nsys_sums" not in set(unknown.tables["checks"].rows["check"]) and not unknown.facts["num_breaches"]


def test_a_finished_run_without_timings_is_a_breach(rec):
    first = rec.runs["run_id"][0]
    steps = rec.steps[(rec.steps["run_id"] != first) | (rec.steps["collector"] != "timer")]
    breaches = (
        reconciliation.answer(rec.runs, steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes)
        .tables["breaches"]
        .rows
    )
    assert set(breaches["run_id"]) == {first}
    assert {"timed_steps", "phase_sum"} <= set(breaches["check"])


@pytest.fixture(scope="module")
def pages(rec):
    checks = (
        reconciliation.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes)
        .tables["checks"]
        .rows
    )
    tables = {
        name: getattr(rec, name)
        for name in ("runs", "steps", "kernels", "api", "memops", "memory", "processes", "telemetry")
    }
    return dict(run_page.answers(**tables, checks=checks))


@pytest.mark.long
def test_every_run_has_a_page_and_its_neighbours(rec, pages):
    assert set(pages) == set(rec.runs["run_id"])
    axes = {axis["name"]: axis for axis in pages["small-ctx512-fp32-naive-forward"].facts["axes"]}
    around = {name: ([stop["run_id"] for stop in axis["stops"]], axis["here"]) for name, axis in axes.items()}
    runs, here = around["context"]
    assert runs[here - 1 : here + 2 : 2] == ["small-ctx128-fp32-naive-forward", "small-ctx1024-fp32-naive-forward"]
    assert axes["context"]["stops"][here + 1]["label"] == "1,024"
    assert around["model"][1] == 0
    runs, here = around["mode"]
    assert runs[here + 1] == "small-ctx512-fp32-naive-forward_backward"
    modes = [stop["label"] for stop in axes["mode"]["stops"]]
    assert modes == ["forward pass", "forward and backward pass", "training step"]
    lost = pages["2.7B-ctx1024-fp32-naive-train_step"]
    assert lost.facts["why"] == "OOM in forward"
    assert all(not len(table.rows) for table in lost.tables.values())


def test_a_run_page_has_mean_and_deviation_of_each_phase(rec, pages):
    name = "small-ctx512-fp32-naive-train_step"
    rows = pages[name].tables["steps"].rows.set_index("phase")
    timed = rec.steps[(rec.steps["run_id"] == name) & (rec.steps["collector"] == "timer")]
    of_phase = timed.groupby("phase")["wall_ns"]
    assert set(rows.index) == set(timed["phase"]) and rows["timer_mean_ns"].to_dict() == of_phase.mean().to_dict()
    assert rows["timer_std_ns"].to_dict() == pytest.approx(of_phase.std().to_dict())


def test_a_run_page_says_what_limits_its_gpu_and_what_stands_out_as_show_does(pages):
    answer = pages["small-ctx512-fp32-naive-train_step"]
    said = answer.facts["insight"].sentences
    limit, parts, *_, phases = said.verdict
    assert limit.startswith("limited by compute, ") and " ms = compute " in parts
    assert phases.startswith("Under the profiler, by phase, with what limits it: forward ")
    assert any(line.startswith("FP32 GEMMs run without tensor cores: ") for line in said.findings)
    columns = [column.key for column in answer.tables["elapsed"].columns]
    assert "gpu" not in columns and "communication_ns" not in columns, "one GPU does not communicate"


@pytest.mark.parametrize(
    ("axes", "title"),
    [
        ({}, "small · 128 · training step · FP32"),
        ({"precision": "tf32"}, "small · 128 · training step · TF32"),
        (
            {"precision": "bf16", "attention": "sdpa", "optimizer": "fused"},
            "small · 128 · training step · BF16 · fused attention · fused AdamW",
        ),
        ({"attention": "flash"}, "small · 128 · training step · FP32 · fused attention (flash)"),
        ({"mode": "forward", "optimizer": "fused"}, "small · 128 · forward pass · FP32"),
        ({"compile": "cudagraphs", "batch_size": 8},
         "small · 128 · training step · FP32 · torch.compile with CUDA graphs · batch 8"),
    ],
)  # fmt: skip
def test_the_title_of_a_run_says_what_tells_it_from_others(axes, title):
    run = {"size": "small", "context_length": 128, "mode": "train_step", "precision": "fp32", "attention": "naive"}
    assert titles.title_of(run | axes) == title


def test_a_run_is_described_by_all_that_was_chosen_for_it():
    run = {"size": "small", "context_length": 128, "mode": "train_step", "precision": "bf16", "attention": "sdpa"}
    run |= {"compile": "off", "optimizer": "fused", "batch_size": 4, "gpu_name": "NVIDIA H200"}
    said = titles.description_of(run, has_shape=True)
    assert said == (
        "Training step of small at context 128 in BF16, fused attention (PyTorch's choice), not compiled, fused AdamW,"
        " batch 4, on NVIDIA H200"
    )
    other = {"mode": "forward", "gpus": 2, "parallel": "ddp", "compile": "default"}
    said = titles.description_of(run | other, has_shape=False)
    assert said == (
        "Forward pass of small at context 128 in BF16, torch.compile, batch 4, on 2 × NVIDIA H200,"
        " DistributedDataParallel"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("naive", "unfused (eager) attention"),
        ("sdpa", "fused attention (PyTorch's choice)"),
        ("flash", "fused attention (flash)"),
        ("own", "own attention"),
    ],
)
def test_an_attention_is_called_as_the_site_calls_it(value, said):
    assert titles.attention_of(value) == said


@pytest.mark.parametrize(("gpus", "name"), [(2, "2 × NVIDIA H200"), (1, "NVIDIA H200"), (float("nan"), "NVIDIA H200")])
def test_the_gpus_of_a_run_are_counted(gpus, name):
    """The page of a run on two named one."""
    assert titles.name_gpus({"gpus": gpus, "gpu_name": "NVIDIA H200"}) == name


def test_a_run_page_says_what_to_change_first(pages):
    answer = pages["small-ctx512-fp32-naive-train_step"]
    said = [line for (line,) in answer.facts["insight"].sentences.advice]
    assert said[0].startswith("TF32: could save up to "), "of one choice the one that asks less, as on cards"
    assert "; how sure: " in said[0] and not any("predicted" in line for line in said)
    advised = [entry for entry in answer.facts["first"] if not entry["reason"]]
    for entry in advised:
        assert entry["gain_ns"] is None and 0 < entry["time_ns"] <= entry["ceiling_ns"]
    bounds = [(entry["fits_limit"], entry["ceiling_ns"]) for entry in advised]
    assert bounds == sorted(bounds, reverse=True)


@pytest.mark.long
def test_a_run_page_says_what_was_measured_before_what_has_a_bound(rec):
    run_id, gpu = "small-ctx512-fp32-naive-train_step", str(rec.runs["gpu_name"].iloc[0])
    measured = pd.DataFrame(
        [
            (run_id, gpu, ("tf32",), 30e6, 20e6, 1.5, 1.4, 1.6, "precision", 0.04, True, False),
            (run_id, gpu, ("fused_adamw",), 30e6, 29e6, 1.03, 0.9, 1.1, "optimizer", 0.04, False, False),
            (run_id, gpu, ("compile",), 30e6, 10e6, 3.0, 2.9, 3.1, "host", 0.04, True, False),
            (run_id, "NVIDIA of another kind", ("bf16",), 30e6, 1e6, 30.0, 29, 31, "elsewhere", 0.04, True, False),
        ],
        columns=[name for name in COLUMNS if name not in ("low_over_compile", "same_step", *SETTINGS)],
    ).reindex(columns=[*COLUMNS])
    checks = pd.DataFrame(columns=["run_id", "check", "found", "at_least", "at_most", "passed"])
    names = ("runs", "steps", "kernels", "api", "memops", "memory", "processes", "telemetry")
    tables = {name: getattr(rec, name) for name in names}
    found = dict(run_page.answers(**tables, checks=checks, measured=measured))
    first = [line for (line,) in found[run_id].facts["insight"].sentences.advice]
    assert first[0].startswith("torch.compile: measured, 10.0 ms instead of 30.0 ms, 3.00× as fast; do: ")
    assert first[1].startswith("TF32: measured, 20.0 ms instead of 30.0 ms, 1.50× as fast; do: ")
    assert not [line for line in first if "TF32" in line and "could save" in line]
    assert not [line for line in first if "BF16" in line and "measured" in line], "on another GPU"
    assert f"Not advised, fused optimizer: {run_advice.UNCERTAIN}" in first, "its interval holds 1"


def test_nothing_is_said_of_where_the_time_of_an_unfinished_run_went(pages):
    lost = pages["2.7B-ctx1024-fp32-naive-train_step"]
    said = lost.facts["insight"].sentences
    assert not any((said.verdict, said.communication, said.findings, said.advice))


def test_the_home_page_counts_what_is_there(rec):
    answer = home.answer(rec.runs, rec.manifest)
    assert (answer.facts["num_runs"], answer.facts["num_ok"], answer.facts["num_planned"]) == (18, 15, 18)
    assert len(answer.tables["unfinished"].rows) == 3 and not answer.claims["not_run"].holds


def test_the_home_page_names_the_runs_of_the_sweep_that_were_never_run(rec):
    manifest = rec.manifest | {"not_run": ["xl-ctx128-fp32-naive-forward"]}
    finished = rec.runs[rec.runs["status"] == "ok"]
    answer = home.answer(finished, manifest)
    assert answer.facts["num_planned"] == len(finished) + 1
    assert list(answer.claims["not_run"].rows["run_id"]) == ["xl-ctx128-fp32-naive-forward"]


def test_the_environment_names_the_runs_that_differ_and_in_what(rec):
    alike = environment.answer(rec.runs, rec.manifest)
    assert alike.claims["same"].holds and not alike.claims["differ"].holds
    runs = rec.runs.copy()
    runs.loc[0, ["driver", "warmup_steps"]] = ["590.0", 1]
    runs.loc[1, "python"] = None
    answer = environment.answer(runs, rec.manifest)
    of_gpus = environment.answer(runs, rec.manifest, rec.processes, rec.telemetry).tables["environment"].rows
    assert {*environment.OF_GPUS.values()} <= {*of_gpus["property"]}
    others = answer.tables["others"].rows
    assert set(others["run_id"]) == {runs["run_id"][0]}, "what was not recorded and makes no mix is not said to differ"
    assert list(zip(others["property"], others["value"], others["usual"])) == [
        ("driver", "590.0", "580.0"),
        ("warm-up steps", "1", "5"),
    ]
    assert answer.facts["of"]["driver"] == "580.0, 590.0" and not answer.claims["same"].holds


def test_conditions_name_the_optimizer_of_training_steps_alone(rec):
    runs = rec.runs.copy()
    training = runs["mode"] == "train_step"
    runs.loc[~training, "optimizer"] = "fused"
    runs.loc[0, ["processes", "measured_steps"]] = [3, 20]
    found = environment.conditions(runs)
    assert found["optimizer"] == ["own"] and environment.conditions(runs[~training])["optimizer"] == []
    assert (found["num_processes"], found["num_steps"]) == ((1, 3), (10, 20))
    assert environment.conditions(runs.assign(workload="my_models:build"))["attention"] == [], "which it does not say"


def test_a_badge_opens_to_all_that_runs_were_measured_in(rec, tmp_path):
    """Values of an axis are joined by a word that is no fact; a script says itself what it computes in."""
    runs = recording(("small",), (128,), precisions=("fp32", "tf32")).runs
    site = Site(tmp_path, (), {}, ("size",))
    for name, of in (("both", runs), ("script", rec.runs.assign(workload=SCRIPT))):
        site.write(f"report/{name}.md", "badge.md", assemble({}, [], [], []), conditions=environment.conditions(of))
    both, script = ((tmp_path / "report" / f"{name}.md").read_text() for name in ("both", "script"))
    assert "<summary>FP32, TF32 · " in both and " or TF32\n" in both and "- **Compiled**: not compiled\n" in both
    assert "- **GPU**: " in script and "**Precision**" not in script and "**Compiled**" not in script


def test_a_matrix_precision_that_goes_with_the_precision_of_a_run_is_no_difference():
    runs = recording(("small",), (128,), precisions=("fp32", "tf32")).runs
    runs.loc[runs["precision"] == "tf32", "float32_matmul_precision"] = "high"
    assert environment.answer(runs, {}).claims["same"].holds


def test_the_list_of_runs_gives_no_numbers_for_unfinished_ones(rec):
    rows = (
        run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry).tables["runs"].rows
    )
    unfinished = rows[rows["status"] != "ok"]
    assert len(unfinished) == 3
    assert unfinished[["timer_ns", "busy_ns", "peak_memory_bytes"]].isna().all(axis=None)


def test_runs_whose_machine_was_not_read_have_their_tokens_per_second(rec, pages):
    rows = (
        run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry).tables["runs"].rows
    )
    listed = rows.set_index("run_id")["tokens_per_s"].dropna()
    assert rec.processes.empty and len(listed)
    for run_id, answer in pages.items():
        assert answer.facts["screen"]["numbers"]["tokens_per_s"] == pytest.approx(listed.get(run_id), abs=0.5)


@pytest.mark.parametrize("letter", QUESTIONS)
def test_columns_that_a_table_shows_are_there(letter, rec):
    for table in ask(QUESTIONS[letter], rec).tables.values():
        shown = {key for column in table.columns for key in (column.key, column.lower, column.upper) if key}
        assert shown <= set(table.rows.columns)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["NVIDIA H200", "NVIDIA H100 80GB HBM3"], ["H200", "H100"]),
        (["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"], ["A100-SXM4-80GB", "A100-SXM4-40GB"]),
        (["NVIDIA RTX A6000", "NVIDIA RTX A5000"], ["NVIDIA RTX A6000", "NVIDIA RTX A5000"]),
        ([""], [""]),
    ],
)
def test_explore_says_gpus_in_short_where_that_tells_them_apart(names, said):
    assert list(explore.shorten_names(names).values()) == said
