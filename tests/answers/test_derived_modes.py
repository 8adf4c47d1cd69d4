import pandas as pd
import pytest

from profiler_job.analysis.answers.derived_modes import derive_modes
from profiler_job.analysis.answers.five_answers import LETTERS
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.modes import MODE_PHASES
from tests import frozen
from tests.answers.answering import read_pages, read_table, run
from tests.answers.class_captures import ADDCDIV, GEMM, make_capture, make_step
from tests.capture.nsys_files import Export

pytestmark = pytest.mark.long


def select_runs(rec, keep):
    """Return the tables and the manifest of a recording with some of its runs."""
    ids = rec.runs.loc[keep, "run_id"].astype(str)
    tables = {}
    for name in store.TABLES:
        frame = getattr(rec, name).drop(columns="family", errors="ignore")
        tables[name] = frame[frame["run_id"].astype(str).isin(ids)].reset_index(drop=True)
    return tables, {"name": "part", "study": "", "runs": []}


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """The frozen recording, and a folder with its training steps of the small model alone."""
    rec = store.load(frozen.ONE_GPU)
    folder = tmp_path_factory.mktemp("training") / "recording"
    keep = (rec.runs["mode"].astype(str) == "train_step") & (rec.runs["size"].astype(str) == "small")
    store.write(folder, *select_runs(rec, keep))
    return rec, folder


def test_a_recording_of_training_steps_answers_all_questions(training, tmp_path):
    _, folder = training
    assert run(folder, "--out", tmp_path / "answers").exit_code == ExitCode.OK
    pages = read_pages(tmp_path / "answers")
    for letter in LETTERS:
        assert "the forward phase of the training step" in pages[letter].splitlines()[2]
        head, _, *rows = read_table(pages[letter])
        place = head.index("forward from" if letter == "d" else "from steps of")
        assert {row[place] for row in rows} == {"training step"}
    assert "* forward from a larger step" in (tmp_path / "answers" / "b.svg").read_text(encoding="utf-8")


def test_derived_runs_have_the_rows_of_their_phases(training):
    _, folder = training
    rec = store.load(folder)
    derived = derive_modes(rec)
    assert set(derived.larger.values()) == {"train_step"} and len(derived.larger) == 2 * len(rec.runs)
    for new, old in derived.sources.items():
        mode = derived.recording.runs.set_index("run_id").loc[new, "mode"]
        mine = rec.kernels[rec.kernels["run_id"] == old]
        expected = mine[mine["phase"].astype(str).isin(MODE_PHASES[mode])]
        kernels = derived.recording.kernels
        assert kernels.loc[kernels["run_id"] == new, "start_ns"].tolist() == expected["start_ns"].tolist()


def test_a_script_whose_micro_batches_are_not_known_is_derived_from(training):
    rec = store.load(training[1])
    rec.runs["accumulation"] = pd.Series([None] * len(rec.runs), dtype="Int64")
    assert len(derive_modes(rec).larger) == 2 * len(rec.runs)


def test_a_whole_grid_has_nothing_to_derive(training):
    rec, _ = training
    derived = derive_modes(rec)
    measured = rec.runs[rec.runs["status"].astype(str) == "ok"]
    assert derived.recording is rec or len(derived.larger) < len(measured)
    cases = measured.astype(str).groupby(["size", "context_length"])["mode"].agg(set)
    assert not derived.larger or (cases.map(len) < len(MODE_PHASES)).any()


def test_a_recording_without_runs_is_an_error(training, tmp_path):
    rec, _ = training
    store.write(tmp_path / "recording", *select_runs(rec, rec.runs["mode"].isna()))
    assert run(tmp_path / "recording", "--out", tmp_path / "answers").exit_code == ExitCode.USAGE


def test_forward_passes_of_two_kinds_are_told_apart(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    make_capture(tmp_path / "small_ctx256_train_step.sqlite", "train_step")
    run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    pages = read_pages(tmp_path / "answers")
    for letter in "abce":
        assert "in 1 of 2 cases this is from the forward phase of the training step" in pages[letter].splitlines()[2]
    assert [row[2] for row in read_table(pages["a"])[2:]] == ["forward", "training step"]
    assert "No run of train_step: small, 128 tokens" in pages["d"]
    assert "256 *" in (tmp_path / "answers" / "a.svg").read_text(encoding="utf-8")


def test_without_flops_the_forward_phase_is_named_too(tmp_path):
    make_capture(tmp_path / "small_ctx128_train_step.sqlite", "train_step")
    run(tmp_path, "--out", tmp_path / "answers")
    page = read_pages(tmp_path / "answers")["e"]
    assert "FLOPs not known" in page and "this is from the forward phase" in page.splitlines()[2]
    head, _, row = read_table(page)
    assert row[head.index("from steps of")] == "training step" and row[head.index("softmax (ms)")] == "0.000"


def test_a_first_sentence_counts_the_cases_that_it_is_about(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    make_capture(tmp_path / "small_ctx256_train_step.sqlite", "train_step")
    made, at = Export(), 1_000
    for _ in range(3):
        for phase, kernel in (("forward", GEMM), ("backward", GEMM), ("optimizer", ADDCDIV)):
            made.push(phase, at, at + 900)
            made.launch(at + 40, start=at + 60, end=at + 600, name=kernel)
            at += 1_000
    made.sqlite(tmp_path / "small_ctx512_train_step.sqlite")
    (tmp_path / "timings.csv").write_text("capture,phase,ms\nsmall_ctx128_forward,forward,0.004\n")
    done = run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    assert "from 3 runs" in done.stdout, "not those that are derived from them"
    pages = read_pages(tmp_path / "answers")
    assert "from the forward phase" not in pages["a"].splitlines()[2], "Python timed forward alone"
    assert "in 2 of 3 cases this is from the forward phase" in pages["c"].splitlines()[2]
    assert "in 1 of 2 cases this is from the forward phase" in pages["e"].splitlines()[2], "one has no softmax range"


def test_a_capture_with_neither_kernels_nor_ranges_gives_no_forward_pass(tmp_path):
    made = Export()
    made.call(1_000, 1_100)
    made.sqlite(tmp_path / "small_ctx128_train_step.sqlite")
    make_capture(tmp_path / "small_ctx256_train_step.sqlite", "train_step")
    run(tmp_path, "--out", tmp_path / "answers")
    page = read_pages(tmp_path / "answers")["a"]
    assert "No run of forward: small, 128 tokens." in page
    assert "since no run has them alone: small, 256 tokens." in page


def test_captures_without_a_batch_size_are_derived_from_too(tmp_path):
    make_capture(tmp_path / "ctx128.sqlite", "train_step")
    run(tmp_path, "--out", tmp_path / "answers", "--size", "mine")
    assert len(pd.read_csv(tmp_path / "answers" / "a.csv")["projected_ns"].dropna()) == 1


def test_steps_of_several_passes_give_no_forward_pass(tmp_path):
    made, at = Export(), 1_000
    for _ in range(3):
        start = at
        for _ in range(4):
            at = make_step(made, at, "forward_backward")
        made.push("optimizer", at, at + 900)
        made.launch(at + 10, start=at + 60, end=at + 300, name=ADDCDIV)
        at += 1_000
        made.push("train_step", start, at)
    made.sqlite(tmp_path / "small_ctx128_train_step.sqlite")
    run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    page = read_pages(tmp_path / "answers")["a"]
    assert page.splitlines()[2].startswith("Not measured")
    assert "from steps with 4 of them: small, 128 tokens" in page


def test_python_times_of_the_forward_phase_come_with_it(tmp_path):
    make_capture(tmp_path / "small_ctx128_train_step.sqlite", "train_step")
    (tmp_path / "timings.csv").write_text("capture,phase,ms\nsmall_ctx128_train_step,forward,0.004\n")
    run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    assert pd.read_csv(tmp_path / "answers" / "a.csv")["timer_ns"].tolist() == [4_000]
