"""What a token costs: the parts of a step add up, prices are listed, and two GPUs are compared by equal steps."""

import dataclasses
import re
from collections import defaultdict

import pandas as pd
import pytest

from profiler_job.analysis.metrics import run_grid, utilisation
from profiler_job.analysis.pages import explore
from profiler_job.analysis.pages.question import Inputs
from profiler_job.analysis.pages.questions import token_cost
from profiler_job.analysis.pages.questions.ladder_single import draw_falls
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.table_schema import TABLES
from profiler_job.analysis.reference import flops
from profiler_job.analysis.reference.gpu_prices import find_price
from profiler_job.analysis.site import page_context
from tests.synthetic import recording

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


def make_recording(gpu, slower=1.0, kernels=1.0):
    rec = recording(("small",), (128, 256), modes=("forward", "train_step"))
    rec.runs["gpu_name"] = gpu
    rec.steps["wall_ns"] = (rec.steps["wall_ns"] * slower).astype("int64")
    for name in ("start_ns", "end_ns", "duration_ns"):
        if name in rec.kernels:
            rec.kernels[name] = (rec.kernels[name] * kernels).astype("int64")
    return store.Recording(manifest=rec.manifest, **{table: getattr(rec, table) for table in TABLES})


def ask(main, **studies):
    return token_cost.answer(Inputs(recording=main, main=main, studies=studies))


def test_parts_of_a_step_add_up_and_the_cost_is_the_price_over_the_tokens():
    rows = ask(make_recording(H200)).tables["costs_of_states"].rows
    assert len(rows) == 2 and (rows[[*token_cost.BUDGET]] >= 0).all(axis=None)
    assert rows[[*token_cost.BUDGET]].sum(axis=1).tolist() == pytest.approx([1, 1])
    wanted = find_price(H200).usd_per_hour / 3600 / rows["tokens_per_s"] * 1e6
    assert rows["cost"].tolist() == pytest.approx(wanted.tolist())


def test_two_gpus_are_compared_by_the_same_steps_the_cheaper_first():
    found = ask(make_recording(H200), attention=make_recording(H100, 1.5))
    rows = found.tables["gpus"].rows
    assert len(rows) == 2 and set(rows["gpu_name"]) == {H100} and set(rows["gpu_name_b"]) == {H200}
    assert rows["step_ratio"].tolist() == pytest.approx([1.5, 1.5], rel=1e-3)
    said = found.claims["gpus"].values
    assert (said["cheap"], said["dear"]) == ("H100", "H200") and said["price"] == pytest.approx(4.59 / 3.99)
    assert said["models"] == ["small (0.13B)"] and said["memory_gb"] == 141


def test_two_gpus_are_compared_by_the_fastest_process_of_each():
    """The median of three processes on the H100 stood against the fastest of three on the H200, whose runs took turns:
    a slow CPU made the H100 slower."""
    one, two = make_recording(H200), make_recording(H100)
    wall = pd.to_numeric(two.steps["wall_ns"])
    slower = two.steps.assign(process=1, wall_ns=wall * 3)
    slowest = two.steps.assign(process=2, wall_ns=wall * 4)
    two = dataclasses.replace(two, steps=pd.concat([two.steps, slower, slowest], ignore_index=True))
    found = ask(one, attention=two)
    rows = found.tables["gpus"].rows
    assert rows["step_ratio"].tolist() == pytest.approx([1.0, 1.0], rel=1e-3)
    assert rows["cost_ratio"].tolist() == pytest.approx([4.59 / 3.99] * 2, rel=1e-3)


def test_larger_models_that_only_the_dearer_gpu_ran_are_named():
    """ "Take the cheapest GPU" was said of all models, of which the smallest alone ran on both."""
    main = make_recording(H200)
    larger = recording(("2.7B",), (128, 256), modes=("train_step",))
    larger.runs["gpu_name"] = H200
    larger = store.Recording(manifest=larger.manifest, **{table: getattr(larger, table) for table in TABLES})
    asked = ask(main, attention=make_recording(H100, 1.5), trained=larger)
    assert asked.claims["gpus"].values["has_larger"]
    assert not ask(main, attention=make_recording(H100, 1.5)).claims["gpus"].values["has_larger"]


@pytest.mark.parametrize(("slower", "better"), [(1.0, "H100"), (1.3, "H200")])
def test_the_gpu_to_rent_is_the_one_whose_work_costs_less(slower, better):
    found = ask(make_recording(H200), attention=make_recording(H100, slower=slower, kernels=slower))
    said = found.claims["gpus"].values
    assert said["better"] == better and said["busy"] == pytest.approx((slower, slower), rel=1e-3)
    assert said["work"] == pytest.approx((4.59 / 3.99 / slower,) * 2, rel=1e-3)


def test_measured_ratios_are_next_to_those_of_the_data_sheets():
    table = ask(make_recording(H200), attention=make_recording(H100)).tables["sheets"]
    rows = table.rows.set_index("what")
    assert table.title.startswith("H200 over H100: ")
    assert rows["sheet"]["matmuls and attention, FP32"] == 1 and rows["sheet"]["other kernels"] == pytest.approx(
        4.8 / 3.35
    )
    assert rows["sheet"]["memory"] == pytest.approx(141 / 80) and rows.loc[
        "all GPU work", ["low", "high"]
    ].tolist() == [1, 1]


def test_a_state_with_other_settings_says_so():
    """BF16 on an H100 had other attention and another optimizer than on an H200."""
    other = make_recording(H100)
    runs = other.runs.astype({name: str for name in ("run_id", "precision", "attention")})
    other.runs[["precision", "attention"]] = runs.assign(precision="bf16", attention="cudnn")[
        ["precision", "attention"]
    ]
    rows = ask(make_recording(H200), attention=other).tables["costs_of_states"].rows
    assert dict(zip(rows["gpu"], rows["others"])) == {"H200": "", "H100": "fused attention (cudnn) and reference AdamW"}


def test_one_gpu_or_an_unlisted_one_says_less():
    found = ask(make_recording("a GPU nobody lists"))
    assert not found.claims["gpus"].holds and not found.claims["prices"].holds and found.facts["prices"] == []


def test_the_best_mfu_is_that_of_explore_and_long_contexts_gain_nothing_from_masked_scores():
    """One page had 52%, another 58% and a third 54%: scores that nothing computes counted at long contexts."""
    rec = make_recording(H200)
    found = ask(rec).claims["best_fp32"].values
    part = explore.Part(name="main", page="", run_pages=defaultdict(str), rec=rec)
    [best] = explore.answer([part], None).facts["best"]
    assert best["mfu"] == found["mfu"] == ask(rec).tables["costs_of_states"].rows["mfu"].max()
    assert best["words"] == "small (0.13B), 256 tokens, batch 4"
    run = run_grid.select_measured_runs(rec.runs).query("mode == 'train_step'").iloc[-1]
    full = flops.step_flops(run_grid.shape_of(run), "train_step") / (1e-3 * 67e12)
    assert utilisation.mfu(run, 1e6) < full == pytest.approx(utilisation.measure_eager_matmuls(run, 1e6))


def test_prices_are_of_one_context_batch_gpu_and_state():
    """They were of small at 1,024 tokens, compiled, and of medium at 512, in FP32."""
    both = recording(("small", "large"), (128, 256), modes=("forward", "train_step"))
    both.runs["gpu_name"] = H200
    claim = ask(both).claims["prices"]
    assert claim.holds and claim.rows[["context_length", "batch_size", "gpu", "state"]].nunique().eq(1).all()
    assert claim.values["low"]["model"] == "small (0.13B)" and claim.values["low"]["cost"] == claim.rows["cost"].min()


def test_tokens_are_drawn_by_context_of_a_model_with_most_contexts():
    """A model of one context stood in the middle, and its line was a point; that of most has some on another GPU."""
    middle = recording(("medium",), (128,), modes=("forward", "train_step"))
    both = recording(("small", "large"), (128, 256), modes=("forward", "train_step"))
    other = make_recording(H100)
    longer = recording(("small",), (512,), modes=("forward", "train_step"))
    longer.runs["gpu_name"] = H100
    both.runs["gpu_name"] = middle.runs["gpu_name"] = H200
    chart = ask(both, attention=middle, optimizer=other, precision=longer).charts["tokens_by_context"]
    assert set(chart.rows["size"]) == {"large"} and chart.rows["context_length"].nunique() == 2


def test_each_change_of_a_ladder_falls_from_where_the_one_before_ended():
    ladder_steps = [("FP32", 1.0), ("TF32", 2.0), ("BF16", 4.0), ("+ a", 3.99), ("+ b", 3.0)]
    rows = pd.DataFrame([("2.7B", 1024, name, 100e6 / gain, gain) for name, gain in ladder_steps])
    rows.columns = ["size", "context_length", "ladder_step", "ns", "speedup"]
    bars = draw_falls(rows).rows
    assert bars["series"].tolist() == ["the step", "shorter", "within 2%", "longer", "the step"]
    assert bars["end_ns"].tolist()[:-2] == bars["begin_ns"].tolist()[1:-1]
    assert bars["end_ns"].iloc[-1] == bars["end_ns"].iloc[-2] == pytest.approx(100e6 / 3)
    assert not len(draw_falls(rows.head(0)).rows)


def test_what_the_cpu_changes_has_two_digits(tmp_path):
    """Unprofiled steps repeat within more than 5%: `0.774× to 1.09× as much` said more than was measured."""
    main = make_recording(H200)
    found = ask(main, attention=make_recording(H100, 1.234, kernels=1.123))
    site = page_context.make_site(main, tmp_path)
    question = token_cost.QUESTION
    words = site.render_blocks(question.page, question.slug, question.template, found, ("findings",)).markdown
    assert "the step of the fastest process was 1.2× as fast, and tokens cost 0.93× as much." in words
    assert not re.findall(r"\d\.\d% of (?:the|its)", words)


def test_csv_files_carry_no_log_of_a_run():
    """Five files had the last lines that each run printed, 530 KB in all."""
    main = make_recording(H200)
    main.runs["log"] = "step 1\nstep 2"
    answer = ask(main, attention=make_recording(H100))
    tables = [*answer.tables.values(), *answer.charts.values()]
    assert tables and not any("log" in of.rows for of in tables)


def test_a_figure_has_each_step_of_both_gpus_next_to_the_data_sheets():
    answer = ask(make_recording(H200), attention=make_recording(H100, 1.5))
    chart, pairs = answer.charts["gpu_ratios"], answer.tables["gpus"].rows
    assert len(chart.rows) == len(pairs) * len(token_cost.DRAWN) and "2 steps: small" in chart.options["unit"]
    of_memory = chart.rows.loc[chart.rows["clock"] == token_cost.DRAWN["memory"], "ratio"]
    assert of_memory.tolist() == pytest.approx(pairs["memory_ratio"].tolist())
    sheets = answer.tables["sheets"].rows.set_index("sheet_of")["sheet"]
    wanted = [sheets["dense peak"], sheets["list price"], sheets["memory bandwidth"]]
    assert [*chart.options["limits"].values()] == pytest.approx(wanted)
    assert ask(make_recording(H200)).charts["gpu_ratios"].rows.empty


def test_costs_and_parts_of_a_step_name_the_step(tmp_path):
    """`At 1,024 tokens a step is 10-56% matmuls` had no batch and no GPU, and a cost had no batch."""
    main = make_recording(H200)
    answer = ask(main, attention=make_recording(H100, 1.5))
    known = answer.claims["budget"].values
    site = page_context.make_site(main, tmp_path)
    for block, key in (("verdict", "prices"), ("findings", "budget")):
        words = str(site.block("index.md", "token_cost.md", answer, block))
        if answer.claims[key].holds:
            assert re.search(rf"{known['context']} tokens with batch {known['batch']} on an {known['gpu']},", words)
