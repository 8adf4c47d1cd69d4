"""What each optimisation gives on top of those before it: on the recordings of the report, and on parts of them."""

import dataclasses
import statistics
from collections import defaultdict

import pandas as pd
import pytest

from profiler_job.analysis.comparison import noise
from profiler_job.analysis.metrics import differences, run_grid, trained_losses
from profiler_job.analysis.pages import study_runs
from profiler_job.analysis.pages.explore import Part
from profiler_job.analysis.pages.questions import ladder
from profiler_job.analysis.pages.questions.ladder_single import CHANGES_OF
from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context, write_site
from profiler_job.jobs.contract.plain import PLAIN
from profiler_job.jobs.contract.studies import AGAIN, LOSSES
from tests.jobs.ladder_runs import list_chosen
from tests.page_words import read_page
from tests.shipped.recordings import DATA, load_timed

pytestmark = pytest.mark.long

SIZES = ["small", "medium", "large", "xl", "2.7B"]

BANDS = differences.Bands(kernel=noise.SHIPPED.kernel, wall=noise.SHIPPED.wall)
"""Fitted to the two recordings of the default sweep, as the site has them."""


@pytest.fixture(scope="module")
def shipped():
    """(main recording, studies by name, noise bands)"""
    of_study = {}
    for folder in write_site.recordings_in(DATA):
        study = store.read_manifest(folder).get("study", "")
        if study in ("", LOSSES, ladder.STUDY, ladder.HOST, *ladder.HOLDS):
            rec = store.load(folder) if study == ladder.HOST else load_timed(folder)
            of_study.setdefault(study, []).append(rec)
    studies = {study: combine.join_recordings(parts) for study, parts in of_study.items()}
    return studies.pop(""), studies, BANDS


@pytest.fixture(scope="module")
def losses(shipped):
    return shipped[1][LOSSES]


@pytest.fixture(scope="module")
def answer(shipped, losses):
    main, studies, bands = shipped
    return ask(main, studies, bands=bands, losses=losses)


def ask(main, studies, **more):
    return page_context.ask(ladder.QUESTION, studies[ladder.STUDY], main=main, studies=studies, **more)


def ladder_steps_of(answer):
    rows = pd.concat([answer.tables["shown"].rows, answer.tables["rest"].rows])
    return rows.set_index(["size", "context_length", "ladder_step"])


def test_every_case_is_followed_from_fp32_to_fused_attention_and_some_beyond(answer):
    ladder_steps = ladder_steps_of(answer).reset_index()
    heights = ladder_steps.groupby(["size", "context_length"])["ladder_step"].agg(list)
    every = [*ladder.LADDER_STEPS]
    assert len(heights) == 22 and all(ladder_steps[:4] == every[:4] for ladder_steps in heights)
    whole = {case for case, ladder_steps in heights.items() if ladder_steps == every[:7]}
    assert whole == {
        *((size, context) for size in ("small", "large") for context in (512, 1024)),
        *(("xl", 512), ("2.7B", 1024), ("llama", 1024)),
    }
    assert heights["gpt2", 1024] == every and heights["xl", 1024] == every[:6]
    compiled = [case for case, ladder_steps in heights.items() if ladder_steps == [*every[:4], *every[5:7]]]
    assert compiled == [("large", 256), ("medium", 1024), ("small", 256)], "without fused AdamW alone"


def test_two_changes_at_once_are_no_gain_of_one(answer):
    ladder_steps = ladder_steps_of(answer)
    assert pd.isna(ladder_steps.loc[("medium", 1024, "+ torch.compile"), "gain"])
    assert ladder_steps.loc[("medium", 1024, "+ CUDA graphs"), "gain"] > 1
    assert ladder_steps.loc[("large", 1024, "+ torch.compile"), "gain"] > 1
    assert not ladder_steps.loc[("medium", 1024, "+ torch.compile"), "differs"]


def test_models_are_shown_at_the_context_that_was_followed_furthest(answer):
    ladder_steps = ladder_steps_of(answer).reset_index()
    assert not ladder_steps["run_id"].duplicated().any()
    shown = answer.tables["shown"].rows.drop_duplicates(["size", "context_length"])
    assert shown["size"].tolist() == ["gpt2", "small", "llama", *SIZES[1:]]
    context_of = dict(zip(shown["size"], shown["context_length"]))
    assert context_of["xl"] == 512, "it was followed further there than at 1024"
    assert context_of["small"] == 512 and context_of["medium"] == context_of["2.7B"] == 1024, "as they were chosen"
    assert context_of["large"] == 1024, "as far as at 256 and 512, and longer"


def select_reference(studies):
    """The study's runs of the reference model alone."""
    rec = studies[ladder.STUDY]
    return dataclasses.replace(rec, runs=run_grid.select_known_shapes(rec.runs))


def make_hugging_face(rec, run_id, options):
    """The run as one of GPT-2 with these options, and no other."""
    name = f"gpt2-{run_id}-{options}"
    tables = {}
    for table in ("runs", "steps", "processes", "telemetry", "figures"):
        rows = getattr(rec, table)
        tables[table] = rows[rows["run_id"].astype(str) == run_id].assign(run_id=name)
    tables["runs"] = tables["runs"].assign(workload="hf", size="gpt2", workload_options=options, num_parameters=124e6)
    return dataclasses.replace(rec, **tables)


def test_a_model_of_hugging_face_is_a_case_and_its_padded_vocabulary_a_change(shipped):
    main, studies, bands = shipped
    at = "large-ctx1024-{}-train_step{}"
    settings = ((main, "fp32-naive", ""), (studies["trained"], "bf16-sdpa", "-adamw_fused"))
    gpt2 = [
        make_hugging_face(rec, at.format(*names), f"vocab_size={size}")
        for rec, *names in settings
        for size in (50257, 50304)
    ]
    others = {name: rec for name, rec in studies.items() if name != ladder.HOST}
    said = ask(main, {**others, ladder.STUDY: combine.join_recordings([select_reference(studies), *gpt2])}, bands=bands)
    ladder_steps, alone = (
        rows[rows["size"] == "gpt2"] for rows in (said.tables["shown"].rows, said.tables["alone"].rows)
    )
    assert ladder_steps["ladder_step"].tolist() == ["FP32", "+ fused AdamW"], (
        "padded is a ladder_step above CUDA graphs only"
    )
    assert alone["change"].tolist() == ["padded vocabulary"]
    assert "gpt2" in set(said.claims["each"].rows["size"])


def test_other_batches_are_no_rungs(shipped):
    """A run of a larger batch has the axes of a step of the ladder."""
    main, studies, bands = shipped
    rec = select_reference(studies)
    larger = dataclasses.replace(rec, runs=rec.runs.assign(batch_size=8))
    said = ask(main, {ladder.STUDY: larger}, bands=bands)
    assert set(ladder_steps_of(said).reset_index()["ladder_step"]) == {"FP32"}


def test_a_rung_is_the_median_of_all_unprofiled_steps(answer, shipped):
    steps = shipped[1][ladder.STUDY].steps
    run = "2.7B-ctx1024-bf16-sdpa-train_step-compile_cudagraphs-adamw_fused"
    timed = steps[(steps["run_id"] == run) & (steps["collector"] == "timer") & (steps["phase"] == "step")]["wall_ns"]
    ladder_step = ladder_steps_of(answer).loc[("2.7B", 1024, "+ CUDA graphs")]
    assert len(timed) == 30 and ladder_step["run_id"] == run
    assert ladder_step["ns"] == statistics.median(timed)
    assert ladder_step["speedup"] == ladder_steps_of(answer).loc[("2.7B", 1024, "FP32")]["ns"] / ladder_step["ns"] > 11


@pytest.fixture(scope="module")
def on_slow_host(shipped):
    """The answer if a run in BF16, which the CPU limits, had taken no turns and had a host at half the speed."""
    main, studies, bands = shipped
    rec = studies[ladder.STUDY]
    of_steps, of_processes = (
        table["run_id"].astype(str) == "small-ctx512-bf16-naive-train_step" for table in (rec.steps, rec.processes)
    )
    times = {name: rec.steps[name].where(~of_steps, rec.steps[name] * 2) for name in ("wall_ns", "issue_ns")}
    steps = rec.steps.assign(round=rec.steps["round"].where(~of_steps, -1), **times)
    loops = rec.processes["host_loop_ns"]
    slow = dataclasses.replace(
        rec, steps=steps, processes=rec.processes.assign(host_loop_ns=loops.where(~of_processes, loops * 2.6))
    )
    return ask(main, {**studies, ladder.STUDY: slow}, bands=bands)


def test_what_a_slow_host_explains_is_no_difference(on_slow_host):
    """On a host at half the speed BF16 looks slower than TF32."""
    before, ladder_step = (ladder_steps_of(on_slow_host).loc[("small", 512, name)] for name in ("TF32", "BF16"))
    assert ladder_step["gain"] < 0.85 and ladder_step["host_ratio"] > 2 and ladder_step["host_limited"] > 0.9
    assert ladder_step["at_most"] == pytest.approx(
        ladder_step["gain"] * ladder_step["host_ratio"] / before["host_ratio"]
    )
    assert not ladder_step["differs"]
    cases = on_slow_host.claims["by_host"].rows[["size", "context_length"]]
    assert [*cases.itertuples(index=False, name=None)] == [("small", 512)]
    assert on_slow_host.claims["compile"].values["at_least"][0] > 1


def test_the_gain_of_runs_that_took_turns_is_within_rounds(answer):
    """Their hosts are one, so that its speed explains nothing."""
    ladder_step = ladder_steps_of(answer).loc[("2.7B", 1024, "+ torch.compile")]
    assert ladder_step["at_least"] < ladder_step["gain"] < ladder_step["at_most"] and ladder_step["differs"]
    assert ladder_step["slower_host"] == 1


def test_a_step_that_the_gpu_limits_differs_by_little_more_than_noise(answer):
    ladder_step = ladder_steps_of(answer).loc[("2.7B", 1024, "BF16")]
    assert (
        ladder_step["host_limited"] < 0.01
        and ladder_step["differs"]
        and ladder_step["gain"] == pytest.approx(1.30, abs=0.01)
    )


ALONE_TOO = [("large", 128), ("large", 512), ("2.7B", 512)]
"""In addition to the ladders that are shown, cases in which compiling was measured alone."""


def test_each_change_of_a_ladder_that_is_told_was_measured_alone(answer):
    alone = answer.tables["alone"].rows
    by_case = {case: rows["change"].tolist() for case, rows in alone.groupby(["size", "context_length"])}
    unpadded = [name for name in ladder.SINGLE if name != "padded vocabulary"]
    assert all(by_case[case] == unpadded for case in TOLD_WITH_LOSSES)
    assert by_case["gpt2", 1024] == [*unpadded, "padded vocabulary"]
    compiled = alone[alone["change"].isin(ladder.COMPILED_ALONE)]
    cases = set(map(tuple, compiled[["size", "context_length"]].to_numpy()))
    told = {*TOLD_WITH_LOSSES, ("gpt2", 1024), ("small", 128), ("medium", 128)}
    assert cases == told | {*ALONE_TOO} and len(compiled) == 2 * len(cases)
    assert compiled["gains"].all(), "each is faster, where the GPU limits it, too"


def test_compiling_alone_does_not_change_the_loss(answer):
    costs = answer.tables["alone_costs"].rows
    compiled = costs[costs["change"].isin(ladder.COMPILED_ALONE)].set_index(["size", "context_length"]).sort_index()
    for case in [*TOLD_WITH_LOSSES, ("gpt2", 1024)]:
        assert (compiled.loc[[case], "trained_millionths"] <= 1).all(), case


@pytest.mark.parametrize("tables", [("shown", "costs"), ("alone", "alone_costs")])
def test_rungs_and_single_changes_have_all_that_was_measured_of_them(answer, losses, tables):
    times, costs = (answer.tables[name] for name in tables)
    assert times.rows["run_id"].tolist() == costs.rows["run_id"].tolist()
    keys = {column.key for column in costs.columns}
    assert {"ns", "tokens_per_s", "peak_bytes", "reserved_bytes", "joules", "loss_millionths"} <= keys
    rows = costs.rows
    assert rows[["tokens_per_s", "reserved_bytes"]].notna().all(axis=None)
    assert not (rows["peak_bytes"] > rows["reserved_bytes"]).any()
    assert set(rows.loc[rows["loss_off"].isna(), "why_loss"]) <= {ladder.NOT_PROBED, ladder.REFERENCE_LOSS}
    is_probed = rows["precision"].ne("fp32") & rows["attention"].eq("naive") & rows["compile"].eq("off")
    assert rows["loss_off"].notna().equals(is_probed & ~rows["size"].isin(_without_losses(losses)))


def test_what_all_changes_give_is_of_all_cases_that_were_compiled(answer):
    said, tops = answer.claims["together"].values, answer.claims["together"].rows
    assert tops["ladder_step"].isin(ladder.WITH_COMPILE).all() and not tops.duplicated("size").any()
    assert said["is_compiled"] and tops["quotable"].all() and tops["size"].tolist() == ["llama", "large", "xl", "2.7B"]
    assert said["num_without"] == 4 and 1 < said["low"]["speedup"] < said["high"]["speedup"]


def _without_losses(losses):
    """GPT-2 has dropout: without runs with it off no loss of it is compared."""
    return {"gpt2"} - {*losses.runs["size"].astype(str)}


TOLD_WITH_LOSSES = [("small", 512), ("medium", 1024), ("xl", 512), ("2.7B", 1024), ("llama", 1024)]


def test_each_rung_of_the_ladders_that_are_told_has_its_loss_after_training(answer, losses):
    ladder_steps = ladder_steps_of(answer).sort_index()
    for size, context_length in [*TOLD_WITH_LOSSES, ("gpt2", 1024)]:
        of_case = ladder_steps.loc[(size, context_length), "trained_millionths"]
        is_compared = (of_case.index.to_series() != ladder.BASE) & (size not in _without_losses(losses))
        assert of_case.notna().equals(is_compared), size
    assert set(answer.claims["trained"].values["gpus"]) <= {*losses.runs["gpu_name"].astype(str), "NVIDIA H200"}


def test_what_fused_adamw_does_to_the_loss_is_its_formula_and_not_fusing(answer, losses):
    said = answer.claims["formula"].values
    assert said["high"]["trained_off"] > 0.02 and said["fused_off"] < 1e-6
    is_loop = losses.runs["optimizer"].astype(str) == "loop"
    assert said["num_rows"] == len(losses.runs[is_loop].drop_duplicates(ladder.CASE))
    assert answer.claims["trained"].values["high"]["numerics_off"] < 1e-3


LOOP_OF_GPT2 = "gpt2-ctx1024-fp32-naive-train_step-adamw_loop-hf-vocab_size{}"
DROPOUT_OFF = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def test_the_script_chooses_the_runs_that_compare_the_losses_of_the_ladder(answer, tmp_path):
    rows = pd.concat([answer.tables["costs"].rows, answer.tables["alone_costs"].rows])
    ladder_steps = rows[(rows["size"] == "gpt2") & (rows["why_loss"] != ladder.REFERENCE_LOSS)]["run_id"]
    wanted = {*ladder_steps, *(LOOP_OF_GPT2.format(size) for size in (50257, 50304))}
    off = "".join(f"-{name}0.0" for name in DROPOUT_OFF)
    chosen = list_chosen(tmp_path)
    assert {*chosen["ladder_losses_gpt2"]} == {run_id + off for run_id in wanted} and len(wanted) == 13
    assert chosen["ladder_losses_llama"] == ["llama-ctx1024-fp32-naive-train_step-adamw_loop-hf"]


@pytest.fixture(scope="module")
def losses_of_gpt2(shipped, losses):
    """The losses, with invented ones of GPT-2 without dropout: of its steps and of AdamW in a loop."""
    rec = shipped[1][ladder.STUDY]
    of_gpt2 = rec.runs[rec.runs["size"].astype(str) == "gpt2"]
    plain = (of_gpt2[[*PLAIN]].astype(str) == pd.Series(PLAIN)).all(axis=1)
    loops = of_gpt2[plain].assign(optimizer=trained_losses.NOT_FUSED)
    loops["run_id"] = loops["workload_options"].astype(str).map(lambda said: LOOP_OF_GPT2.format(said[-5:]))
    runs = pd.concat([of_gpt2[~plain], loops]).astype({"run_id": str, "workload_options": str})
    runs["run_id"] += "".join(f"-{name}0.0" for name in DROPOUT_OFF)
    runs["workload_options"] += "".join(f", {name}=0.0" for name in DROPOUT_OFF)
    values = [(run_id, name, 10.0) for run_id in runs["run_id"] for name in trained_losses.TRAINED]
    figures = pd.DataFrame(values, columns=["run_id", "figure", "value"]).assign(rank=0, unit="")
    others = losses.runs["size"].astype(str) != "gpt2"
    of_others = losses.figures["run_id"].isin(losses.runs.loc[others, "run_id"])
    return dataclasses.replace(
        losses,
        runs=pd.concat([losses.runs[others], runs], ignore_index=True),
        figures=pd.concat([losses.figures[of_others], figures], ignore_index=True),
    )


def test_of_a_model_with_dropout_each_rung_has_a_loss_without_it(shipped, losses_of_gpt2, undrawn, tmp_path):
    main, studies, bands = shipped
    said = ask(main, studies, bands=bands, losses=losses_of_gpt2)
    ladder_steps = ladder_steps_of(said).sort_index().loc[("gpt2", 1024)]
    above = ladder_steps.drop(ladder.BASE)
    assert (above["trained_millionths"] == 0).all() and (above["numerics_millionths"] == 0).all() and len(above) == 7
    assert said.claims["trained"].values["no_dropout"] == said.facts["no_dropout"] == ["gpt2"]
    alone = said.tables["alone_costs"].rows
    padded = alone[alone["change"] == "padded vocabulary"]
    assert set(padded["why_loss"]) == {ladder.REFERENCE_LOSS}, "others of its vocabulary are compared with it"
    assert "gpt2" in set(said.claims["formula"].rows["size"])
    assert "without dropout" in page_of(said, main, tmp_path)


def test_without_such_losses_the_page_says_nothing_of_dropout_turned_off(shipped, losses, undrawn, tmp_path):
    main, studies, bands = shipped
    others = losses.runs["size"].astype(str) != "gpt2"
    said = ask(main, studies, bands=bands, losses=dataclasses.replace(losses, runs=losses.runs[others]))
    assert ladder_steps_of(said).sort_index().loc[("gpt2", 1024), "trained_millionths"].isna().all()
    assert said.facts["no_dropout"] == [] and "without dropout" not in page_of(said, main, tmp_path)


def page_of(said, main, folder):
    page_context.make_site(main, folder).write(
        "report/ladder.md", "ladder.md", said, letter="u", title=ladder.QUESTION.title
    )
    return read_page(folder / "report" / "ladder.md")


def test_runs_that_compare_losses_of_a_model_with_dropout_off_have_sections(losses_of_gpt2):
    part = Part(name=LOSSES, page="", run_pages=defaultdict(str), rec=losses_of_gpt2)
    of_gpt2 = study_runs.answer(part, [], is_of_losses=True).facts["by_model"]["gpt2"]
    assert len(of_gpt2) == len({run["title"] for run in of_gpt2}) == 14
    assert all(run["losses"] == {"trained": 10.0, "trained_plain": 10.0} for run in of_gpt2)
    assert all("attn_pdrop 0.0" in run["title"] for run in of_gpt2)


def test_the_chart_says_what_the_answer_says(answer):
    """Its title was of the cases drawn alone, and the answer of all that were compiled."""
    said, chart = answer.claims["together"].values, answer.charts["ladder"]
    tops = chart.rows.drop_duplicates(ladder.CASE, keep="last")
    drawn = tops.loc[tops["series"] == ladder.AGREED, "value"]
    assert (drawn.min(), drawn.max()) == (said["low"]["speedup"], said["high"]["speedup"]), "of the filled bars"
    assert ladder.BASE not in set(chart.rows["ladder_step"]), "which is 1 in each"


def test_a_step_of_the_ladder_whose_gain_the_host_explains_in_part_is_an_outline(answer, on_slow_host):
    rows = on_slow_host.charts["ladder"].rows
    slower = on_slow_host.claims["by_host"].rows["run_id"]
    assert len(slower) == 1 and {*slower} < {*rows.loc[rows["series"] == ladder.OF_HOST, "run_id"]}
    rows = answer.charts["ladder"].rows
    steady = answer.tables["shown"].rows.set_index("run_id")["steady"].reindex(rows["run_id"]).to_numpy(dtype=bool)
    assert (rows.loc[rows["low"].notna(), "series"] == ladder.AGREED).all() and rows["low"].notna().any()
    assert (rows.loc[~steady & rows["low"].isna(), "series"] == ladder.OF_HOST).all()


def test_losses_of_a_run_of_its_own_go_before_those_of_another_recording(shipped, losses):
    main, studies, bands = shipped
    rec = studies[ladder.STUDY]
    run = "medium-ctx1024-bf16-sdpa-train_step-compile_default-adamw_fused"
    figures = pd.DataFrame({"figure": ["loss_trained", "loss_trained_plain"], "value": [10.001, 10.0], "unit": ""})
    figures = pd.concat([rec.figures.astype({"figure": object, "run_id": object}), figures.assign(run_id=run)])
    studies = {**studies, ladder.STUDY: dataclasses.replace(rec, figures=figures)}
    case = ("medium", 1024, "+ torch.compile")
    alone, both = (ask(main, studies, bands=bands, losses=others) for others in (None, losses))
    assert (
        ladder_steps_of(alone).loc[case, "trained_millionths"]
        == ladder_steps_of(both).loc[case, "trained_millionths"]
        == 100
    )
    assert ladder_steps_of(alone)["numerics_millionths"].drop(case).count() == 3  # llama's, which are of its own runs
    assert not alone.claims["formula"].holds


def test_of_a_step_that_replays_graphs_the_memory_is_what_is_reserved(answer):
    ladder_steps = ladder_steps_of(answer)
    graphs = ladder_steps.index.get_level_values("ladder_step").isin(["+ CUDA graphs", "+ padded vocabulary"])
    memory = ladder_steps["peak_bytes"]
    assert memory[graphs].isna().all() and memory[~graphs].notna().all()
    reserved = ladder_steps.loc[[("2.7B", 1024, "+ torch.compile"), ("2.7B", 1024, "+ CUDA graphs")], "reserved_bytes"]
    assert [round(size / 2**30, 1) for size in reserved] == [63.8, 70.4]


def test_the_change_to_make_first_is_the_one_that_gives_most_alone(answer):
    alone = answer.tables["alone"].rows
    fastest = alone.sort_values(["gains", "speedup"], ascending=False).drop_duplicates(["size", "context_length"])
    best = fastest.set_index(["size", "context_length"])
    said = answer.claims["each"].values["cases"]
    assert [one["size"] for one in said] == ["gpt2", "small", "llama", *SIZES[1:]]
    for one in said:
        assert one["change"] == best.loc[(one["size"], one["context_length"]), "change"]
    assert best.loc[("small", 128), "change"] == "CUDA graphs", "the host limits it"


def test_a_compiled_step_is_held_against_the_one_beside_it(answer, shipped):
    """The main recording was made on a slower host: against its step CUDA graphs would give 1.83 times."""
    alone = answer.tables["alone"].rows.set_index(["size", "context_length", "change"])
    graphs = alone.loc[("small", 128, "CUDA graphs")]
    steps = shipped[1][ladder.HOST].steps
    beside = steps[(steps["run_id"] == "small-ctx128-fp32-naive-train_step") & (steps["collector"] == "timer")]
    assert graphs["base_ns"] == beside.loc[beside["phase"] == "step", "wall_ns"].median()
    assert graphs["gains"] and graphs["speedup"] == pytest.approx(1.71, abs=0.01)
    said = answer.tables["first"].rows.set_index("size")
    assert said.loc["small", "128"].startswith("CUDA graphs 1.71× (1.29–2.27)")
    assert said.loc["medium", "128"].startswith("CUDA graphs 1.63× (1.29–2.05)")
    assert answer.claims["launches"].values["high"]["size"] == "small"
    assert set(answer.claims["launches"].rows["context_length"]) == {128}
    assert answer.claims["fusion"].values["high"]["speedup"] == pytest.approx(1.34, abs=0.01), "medium at 1024"


def test_a_cell_names_its_interval_and_the_candidates_that_were_not_measured_there(answer):
    cells = answer.tables["first"].rows.set_index("size")
    assert cells.loc["medium", "256"].startswith("none measurably; most: TF32 1.35× (")
    assert cells.loc["medium", "256"].endswith("not measured: torch.compile, CUDA graphs")
    assert "not measured" not in cells.loc["xl", "512"]
    assert "padded vocabulary" not in " ".join(cells.loc["small"]), "no such model was measured with it"
    alone = answer.tables["alone"].rows
    assert ((alone["least"] > 1) == alone["gains"]).all()
    assert alone["speedup"].between(alone["least"], alone["most"]).all()


@pytest.fixture(scope="module")
def of_pair(shipped):
    """What cards have, by run and changes."""
    main, studies, bands = shipped
    others = {name: rec for name, rec in studies.items() if name not in (AGAIN, LOSSES)}
    gains = measure_gains({"main": main, **others}, bands.wall)
    gains = gains[gains["gpu_name"].isin(main.runs["gpu_name"].astype(str))]
    return {(gain["run_id"], gain["changes"]): gain for gain in gains.to_dict("records")}


def test_a_step_of_the_ladder_has_the_ratios_that_cards_have(answer, of_pair):
    """TF32 for xl at 128 tokens was 1.46 times as fast here and 1.44 times on its card: two hosts."""
    rows = ladder_steps_of(answer).reset_index()
    rows["before"] = rows.groupby(ladder.CASE, sort=False)["run_id"].shift()
    num_pairs = 0
    for row in rows.to_dict("records"):
        changes = ladder.SETS.get(row["ladder_step"], ())
        if of_base := of_pair.get((row["base_run_id"], changes)):
            shown = [row[name] for name in ("speedup", "base_ns", "recording")]
            assert shown == [of_base[name] for name in ("times_as_fast", "before_ns", "measured_in")], row["run_id"]
        last = of_pair.get((row["before"], changes[-1:]))
        if last and pd.notna(row["gain"]):
            shown = [row[name] for name in ("gain", "at_least", "at_most")]
            assert shown == [last[name] for name in ("times_as_fast", "low", "high")], row["run_id"]
        num_pairs += bool(of_base) + bool(last)
    assert num_pairs > 150
    tf32 = ladder_steps_of(answer).loc[("xl", 128, "TF32")]
    assert tf32["speedup"] == tf32["gain"] == pytest.approx(1.44, abs=0.005)


def test_a_single_change_has_the_interval_that_cards_have(answer, of_pair):
    """BF16 for large at 1,024 tokens was 2.70 to 2.73 times as fast on home, and 2.70 to 3.81 here."""
    known = answer.tables["alone"].rows.dropna(subset="recording")
    assert len(known) == 100
    for row in known.to_dict("records"):
        gain = of_pair[row["base_run_id"], CHANGES_OF[row["change"]]]
        shown = [row[name] for name in ("speedup", "least", "most", "base_ns", "ns", "gains", "recording")]
        names = ("times_as_fast", "low", "high", "before_ns", "after_ns", "gains", "measured_in")
        assert shown == [gain[name] for name in names], row["run_id"]


def test_a_count_is_of_changes_that_every_counted_case_has(answer):
    facts = answer.claims["decided"].values
    assert facts["common"] == ["TF32", "BF16 autocast", "fused AdamW"]
    assert {one["change"] for one in facts["of"]} <= {*facts["common"]}
    assert sum(one["num"] for one in facts["of"]) == facts["num_rows"] == 18 and facts["num_all"] == 22
    assert {one["change"]: (one["num"], one["num_all"]) for one in facts["others"]} == {
        "torch.compile": (2, 11),
        "CUDA graphs": (2, 11),
    }


def test_without_the_study_of_the_host_fewer_compiled_steps_stand_alone(shipped):
    main, studies, bands = shipped
    fewer = {name: rec for name, rec in studies.items() if name != ladder.HOST}
    said = ask(main, fewer, bands=bands)
    alone = said.tables["alone"].rows
    compiled = alone[alone["change"].isin(ladder.COMPILED_ALONE)]
    assert set(map(tuple, compiled[["size", "context_length"]].to_numpy())) == {("medium", 128), *ALONE_TOO}
    assert not said.claims["launches"].holds, "medium at 128 is within the noise of two hosts"


def test_without_its_other_recordings_there_are_fewer_rungs_and_no_guess(shipped):
    main, studies, _ = shipped
    alone = ask(main, {ladder.STUDY: select_reference(studies)})
    assert set(ladder_steps_of(alone).index.get_level_values("ladder_step")) == {
        "FP32",
        "TF32",
        "BF16",
        "+ fused attention",
    } | {
        "+ fused AdamW",
        "+ torch.compile",
        "+ CUDA graphs",
    }


def test_without_a_base_nothing_is_said(shipped, undrawn, tmp_path):
    main, studies, bands = shipped
    nothing = dataclasses.replace(main, runs=main.runs.head(0), steps=main.steps.head(0))
    only = {ladder.STUDY: select_reference(studies)}
    empty = ask(nothing, only, bands=bands)
    assert not any(claim.holds for claim in empty.claims.values())
    site = page_context.make_site(main, tmp_path)
    site.write("report/ladder.md", "ladder.md", empty, letter="u", title=ladder.QUESTION.title)
    assert "not measured" in read_page(tmp_path / "report" / "ladder.md")
