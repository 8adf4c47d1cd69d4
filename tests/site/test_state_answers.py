"""Questions are answered for steps as people train, eager and compiled, from what was recorded of these."""

import dataclasses

import pandas as pd
import pytest

from profiler_job.analysis.pages import home_cases
from profiler_job.analysis.pages.topics import ANATOMY
from profiler_job.analysis.prediction.measured import COLUMNS
from profiler_job.analysis.site.page_context import make_site
from profiler_job.analysis.site.site_writer import Part
from profiler_job.analysis.site.state_answers import answer_states
from profiler_job.analysis.site.topic_pages import StateAnswer, write_topic
from profiler_job.jobs.contract.changes import COMPILE
from profiler_job.jobs.contract.ranges import LOSS_MODULE
from tests.synthetic import recording

FUSED = "block_{}/(fused: norm 60% + attention 40%)"


@pytest.fixture(scope="module")
def eager():
    return recording(("small",), (128, 512), ("forward", "train_step"), num_profiled=1, num_timed=2)


def compile_runs(rec, precision="bf16", has_modules=False, num_profiled=1):
    """Return `rec` as if its runs had been compiled. has_modules: the kernels of norms and attention are fused ones,
    and backward was followed."""
    usual = home_cases.USUAL[home_cases.COMPILED if precision == "bf16" else home_cases.FP32_COMPILED]
    ids = {run_id: f"{run_id}-{precision}-compiled" for run_id in rec.runs["run_id"]}
    tables = {name: getattr(rec, name) for name in ("runs", "steps", "ranges", "kernels", "api", "memops", "memory")}
    tables = {name: frame.assign(run_id=frame["run_id"].map(ids)) for name, frame in tables.items()}
    tables["runs"] = tables["runs"].assign(precision=precision, profiled_steps=num_profiled, **usual)
    if not num_profiled:
        tables["kernels"] = tables["kernels"].head(0)
    return dataclasses.replace(rec, **tables | {"kernels": name_modules(tables["kernels"], has_modules)})


def name_modules(kernels, has_modules):
    if not has_modules:
        return kernels.assign(module="")
    is_fused = kernels["module"].str.contains("norm|softmax|rope") & (kernels["family"] != "gemm")
    block = kernels["module"].str.extract(r"block_(\d+)")[0].fillna("0")
    module = kernels["module"].where(~is_fused, [FUSED.format(number) for number in block])
    of_phase = kernels["phase"].map({"backward": LOSS_MODULE, "optimizer": "(all parameters)"})
    return kernels.assign(module=of_phase.fillna(module))


def keep_mode(rec, mode):
    runs = rec.runs[rec.runs["mode"] == mode]
    return dataclasses.replace(rec, runs=runs, kernels=rec.kernels[rec.kernels["run_id"].isin(runs["run_id"])])


@pytest.fixture
def ask(eager, tmp_path):
    """ask(*recordings, gains=None) answers from the eager recording and others."""
    return lambda *others, gains=None: answer_states(make_site(eager, tmp_path), [eager, *others], gains, None)


def read(answered, state=home_cases.COMPILED):
    """The label and the Markdown of each answer in a state."""
    return {
        letter: (answer.label, answer.part.markdown)
        for letter, answers in answered.answers.items()
        for answer in answers
        if answer.state == state
    }


def test_kernels_without_modules_answer_all_but_what_launches_them(eager, ask):
    compiled = ask(compile_runs(eager))
    said = read(compiled)
    assert compiled.note == "Which part of the model launches a kernel was not recorded."
    assert {label for label, _ in said.values()} == {"BF16 compiled"} and [*said] == ["a", "b", "c", "d", "e"]
    assert not read(compiled, home_cases.BF16)
    assert "A forward pass takes" in said["a"][1] and "Most often it is" in said["b"][1]
    assert "Kernels other than matmuls take" in said["c"][1] and "The backward pass takes" in said["d"][1]
    assert said["e"][1] == "Not known: which kernels compute softmax was not recorded."
    assert not [letter for letter, (_, words) in said.items() if "launche" in words.replace("launches for", "")]


def test_no_kernel_leads_most_often_if_each_forward_pass_has_another(eager, ask):
    """The first of two was called the most frequent."""
    compiled = compile_runs(eager)
    names = compiled.kernels["kernel_name"].astype(str) + "_" + compiled.kernels["run_id"].str.split("-").str[1]
    said = read(ask(dataclasses.replace(compiled, kernels=compiled.kernels.assign(kernel_name=names))))["b"][1]
    assert "Each forward pass has another, such as " in said and "Most often" not in said


def test_modules_of_compiled_kernels_are_named_once_they_are_recorded(eager, ask):
    compiled = ask(compile_runs(eager, has_modules=True))
    said = read(compiled)
    assert compiled.note == ""
    assert "the top kernel of forward is launched by" in said["b"][1]
    assert "`block/(fused: attention + norm)` takes most of the time outside matmuls" in said["c"][1]
    assert "` costs most in" in said["d"][1]


def test_runs_in_fp32_answer_if_none_in_bf16_was_captured(eager, ask):
    compiled = ask(compile_runs(eager, num_profiled=0), compile_runs(eager, "fp32"))
    assert {label for label, _ in read(compiled).values()} == {"FP32 compiled"}
    assert compiled.note == (
        "Such steps were timed, not captured by nsys, so most answers are of 4 runs in FP32. "
        "Which part of the model launches a kernel was not recorded."
    )


def test_the_forward_phase_of_training_steps_answers_what_no_forward_pass_does(eager, ask, tmp_path):
    """Runs in FP32 did, though training steps in BF16 were captured."""
    compiled = ask(keep_mode(compile_runs(eager, has_modules=True), "train_step"), compile_runs(eager, "fp32"))
    said = read(compiled)
    assert [letter for letter, (label, _) in said.items() if label == "BF16 compiled"] == ["a", "b", "c", "d"]
    assert said["e"][0] == "FP32 compiled", "no kernel of the synthetic runs is fused attention"
    assert compiled.note == ""
    assert said["a"][1].startswith("In a compiled training step the forward phase takes **")
    assert "the top kernel takes **" in said["b"][1] and ", launched by " in said["b"][1]
    assert said["c"][1].startswith("Kernels other than matmuls take **")
    assert "takes most of the time outside matmuls" in said["c"][1]
    [page] = compiled.pages["a"]
    page.write(title="How long?", searched=[], state=page.label, switch={"FP32": "forward-time", page.label: ""})
    written = (tmp_path / "report" / "compiled-forward-time.md").read_text()
    assert "\n<!-- switch -->\n- [FP32](forward-time.md)\n- **BF16 compiled**\n" in written
    assert "| small | " in written and "Few forward passes" in written


def test_a_question_that_no_compiled_run_answers_says_so_and_has_no_page(eager, ask):
    compiled = ask(keep_mode(compile_runs(eager), "forward"))
    assert read(compiled)["d"][1] == "No compiled run that shows this was captured."
    assert [letter for letter, pages in compiled.pages.items() if pages] == ["a", "b", "c", "e"]


def test_no_answer_is_of_other_states_if_no_compiled_run_was_captured(eager, ask):
    compiled = ask(compile_runs(eager, num_profiled=0))
    assert compiled.note == "Such steps were timed, not captured by nsys: which kernels they run is not known."
    assert compiled.answers == {}


def test_the_question_on_bf16_is_answered_by_what_compiling_gives(eager, ask):
    runs = eager.runs.assign(precision="bf16", **home_cases.USUAL[home_cases.BF16])
    runs = runs.assign(run_id=runs["run_id"] + "-bf16")
    steps = runs.loc[runs["mode"] == "train_step", "run_id"]
    row = dict.fromkeys(COLUMNS, 0) | {"changes": (COMPILE,), "gains": True}
    times = [{"times_as_fast": 1.5, "apart": 0.01}, {"times_as_fast": 2.4, "apart": 0.3}]
    rows = [row | {"run_id": run_id} | of for run_id, of in zip(steps, times, strict=True)]
    gains = pd.DataFrame([*rows, rows[1] | {"changes": ("tf32",)}, rows[1] | {"run_id": eager.runs["run_id"].iloc[0]}])
    compiled = ask(dataclasses.replace(eager, runs=runs), gains=gains)
    assert read(compiled)["t"] == (
        "BF16 compiled",
        "Compiling makes a BF16 training step **1.5×** as fast, in the only repeatable case.",
    )


def test_each_answer_is_shown_in_its_state_and_others_in_the_rest(eager, tmp_path):
    answers = {"a": [*home_cases.STATES], "t": ["", "BF16 compiled"], "b": ["FP32"], "c": [""]}
    members = [
        {
            "letter": letter,
            "title": letter,
            "slug": f"slug-{letter}",
            "answers": [StateAnswer(state, state, Part(f"answer to {letter} {state}".strip(), {})) for state in states],
        }
        for letter, states in answers.items()
    ]
    extra = {"states": [], "shown": "", "words": "", "compiled": None}
    write_topic(make_site(eager, tmp_path), ANATOMY, "anatomy.md", members, home_cases.STATES, **extra)
    page = (tmp_path / ANATOMY.page).read_text()
    for state, place in zip(home_cases.STATES, ("of-1", "of-2", "of-3"), strict=True):
        assert f'<div class="answer {place}" markdown>\n\n**{state}:** answer to a {state}\n\n</div>' in page
    assert '<div class="answer of-1 of-2" markdown>\n\nanswer to t\n\n</div>' in page
    assert '<div class="answer of-1" markdown>\n\n**FP32:** answer to b FP32\n\n</div>' in page
    assert page.rstrip().endswith("## [c](slug-c.md)\n\nanswer to c")


def train_in_bf16(rec, **axes):
    """Return `rec` as a recording of the study of steps as people train: eager ones in BF16."""
    ids = {run_id: f"{run_id}-bf16{''.join(map(str, axes.values()))}" for run_id in rec.runs["run_id"]}
    tables = {name: getattr(rec, name) for name in ("runs", "steps", "ranges", "kernels", "api", "memops", "memory")}
    tables = {name: frame.assign(run_id=frame["run_id"].map(ids)) for name, frame in tables.items()}
    settings = {"precision": "bf16", **home_cases.USUAL[home_cases.BF16], **axes}
    tables["runs"] = tables["runs"].assign(profiled_steps=1, **settings)
    return dataclasses.replace(rec, manifest={"study": "trained"}, **tables)


def test_eager_steps_as_people_train_answer_for_bf16(eager, ask, tmp_path):
    answered = ask(train_in_bf16(eager), compile_runs(eager))
    assert [*read(answered, home_cases.BF16)] == [*read(answered)] == ["a", "b", "c", "d", "e"]
    assert {letter: [page.slug for page in pages] for letter, pages in answered.pages.items()}["d"] == [
        "bf16-training-mix",
        "compiled-training-mix",
    ]
    first = {"letter": "a", "answers": [StateAnswer("", "", Part("first", {}))]}
    [member] = answered.add_to([first], [home_cases.FP32, home_cases.BF16])
    assert [answer.label for answer in member["answers"]] == ["FP32", "BF16"]
    [member] = answered.add_to([first], [home_cases.FP32])
    assert [answer.label for answer in member["answers"]] == [""]


def test_few_forward_passes_leave_the_answer_to_the_forward_phase_which_names_them(eager, ask, tmp_path):
    rec = train_in_bf16(eager)
    longer = rec.runs["context_length"] > 128
    rec = dataclasses.replace(rec, runs=rec.runs[(rec.runs["mode"] == "train_step") | longer])
    answered = ask(rec)
    assert read(answered, home_cases.BF16)["a"][1].startswith("In a training step the forward phase takes **")
    [page] = answered.pages["a"]
    assert page.answer.claims["alone"].values["num_rows"] == 1
    assert page.answer.tables["forward"].rows["alone_ns"].notna().tolist() == [False, True]


def test_other_batches_and_checkpointing_are_not_among_the_runs_of_a_state(eager, ask):
    others = [train_in_bf16(eager, batch_size=8), train_in_bf16(eager, checkpointing="blocks")]
    [page] = ask(train_in_bf16(eager), *others).pages["d"]
    tables = [table.rows for table in page.answer.tables.values() if "run_id" in table.rows]
    assert page.conditions["batch_size"] == ["4"]
    assert not [run for rows in tables for run in rows["run_id"] if not run.endswith("-bf16")]
    [page] = ask(others[0]).pages["d"]
    assert page.conditions["batch_size"] == ["8"], "if no run has the batch of the main recording"


def test_a_main_recording_in_bf16_answers_by_itself(eager, ask, tmp_path):
    main = train_in_bf16(eager)
    answered = answer_states(make_site(main, tmp_path), [main, eager], None, None)
    assert not read(answered, home_cases.BF16) and answered.main == "BF16"


def test_runs_of_another_study_answer_if_none_is_of_steps_as_people_train(eager, ask):
    """A recording of the study "bf16" was made by an earlier version."""
    earlier = dataclasses.replace(train_in_bf16(eager), manifest={"study": "bf16"})
    assert [*read(ask(earlier), home_cases.BF16)] == ["a", "b", "c", "d", "e"]
