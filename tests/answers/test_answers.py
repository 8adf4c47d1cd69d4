import json
import re
import shutil

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.answers import markdown_text as md
from profiler_job.analysis.answers.bar_figure import Bar, draw_bars
from profiler_job.analysis.answers.capture_facts import collect_facts
from profiler_job.analysis.answers.captures_recording import record_captures
from profiler_job.analysis.answers.derived_modes import derive_modes
from profiler_job.analysis.answers.five_answers import LETTERS
from profiler_job.analysis.answers.write_answers import MOST_LINES, ask, select_finished
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.analysis.render.answer import Column
from profiler_job.analysis.render.tables import to_csv, to_html
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.handouts import HANDOUTS, count_parameters
from tests import frozen
from tests.answers.answering import read_pages, read_table, run
from tests.answers.class_captures import GEMM, make_capture, make_empty_capture, make_step
from tests.capture.nsys_files import Export
from tests.packed import unpack

RUNS = frozen.FOLDER.parent / "h200_runs"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "profiles"
    made.mkdir()
    for mode in ("forward", "train_step"):
        make_capture(made / f"small_ctx128_{mode}.sqlite", mode, warmup=2)
    return made


def test_a_folder_gives_five_pages_that_a_code_host_shows(folder, tmp_path):
    done = run(folder, "--out", tmp_path / "answers", "--handout", 2025)
    assert done.exit_code == ExitCode.OK
    for letter, page in read_pages(tmp_path / "answers").items():
        lines = page.splitlines()
        assert lines[0].startswith(f"# ({letter}) ") and len(lines) <= MOST_LINES
        assert not lines[2].startswith(("|", "!", "#", "Not measured")), "the answer comes first"
        assert re.findall(r"<(?!!--)", page) == []
        widths = {len(row) for row in read_table(page)}
        assert len(widths) == 1
        shown = MarkdownIt("commonmark").enable("table").render(page)
        assert (shown.count("<h1>"), shown.count("<table>"), shown.count("<img ")) == (1, 1, 1)
        assert "|" not in re.sub(r"<table>.*?</table>", "", shown, flags=re.DOTALL) and "**" not in shown
        for name in re.findall(r"\]\(([\w.-]+)\)", page):
            assert (tmp_path / "answers" / name).is_file()
    index = (tmp_path / "answers" / "index.md").read_text(encoding="utf-8")
    assert all(f"({letter}.md)" in index for letter in LETTERS)
    assert "in a range called warm-up: left out" in index


def test_the_numbers_are_those_of_the_capture(folder, tmp_path):
    run(folder, "--out", tmp_path / "answers", "--handout", 2025)
    table = pd.read_csv(tmp_path / "answers" / "b.csv").set_index("mode")
    assert table.loc["forward", "calls"] == 3 and table.loc["forward", "time_ns"] == 600
    assert table.loc["train_step", "calls"] == 4 and table.loc["train_step", "time_ns"] == 1500
    cost = pd.read_csv(tmp_path / "answers" / "e.csv").iloc[0]
    assert (cost["scores_ns"], cost["softmax_ns"], cost["output_ns"]) == (100, 300, 100)
    mix = pd.read_csv(tmp_path / "answers" / "d.csv").iloc[0]
    assert mix["gemm_forward [fraction]"] == pytest.approx(600 / 1100, abs=1e-6)
    assert mix["gemm_train_step [fraction]"] == pytest.approx(1500 / 2550, abs=1e-6)


def test_one_case_is_not_called_the_most(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    run(tmp_path, "--out", tmp_path / "answers")
    pages = read_pages(tmp_path / "answers")
    assert all("most in" not in page for page in pages.values())
    (answer,) = [line for line in pages["b"].splitlines() if "The top kernel" in line]
    assert answer.count("54.5%") == 1


def test_a_missing_mode_is_taken_from_a_larger_step_and_says_so(tmp_path):
    make_capture(tmp_path / "small_ctx128.sqlite", "train_step")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert done.exit_code == ExitCode.OK
    pages = read_pages(tmp_path / "answers")
    assert "this is from the forward phase of the training step" in pages["a"].splitlines()[2]
    assert [row[3] for row in read_table(pages["b"])[2:]] == ["training step"] * 3
    sources = pd.read_csv(tmp_path / "answers" / "captures.csv")
    assert sources["derived_from"].dropna().tolist() == ["train_step", "train_step"]


def test_a_mode_without_any_capture_is_a_gap(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    run(tmp_path, "--out", tmp_path / "answers", "--batch-size", 4)
    page = read_pages(tmp_path / "answers")["d"]
    assert page.splitlines()[2].startswith("Not measured")
    assert "No run of train_step: small, 128 tokens" in page


def test_a_hole_by_memory_is_told_from_what_was_not_tried(folder, tmp_path):
    (folder / "captures.toml").write_text(
        'handout = 2025\n[[capture]]\nsize = "small"\ncontext_length = 1024\nstatus = "oom"\n'
    )
    done = run(folder, "--out", tmp_path / "answers")
    assert done.exit_code == ExitCode.OK
    rows = read_table(read_pages(tmp_path / "answers")["a"])
    assert rows[-1][:3] == ["small", "1,024", "OOM"]


def test_a_sentence_leaves_out_what_is_not_known_of_a_case():
    row = {"size": "xl", "context_length": 512, "precision": "unknown"}
    assert md.case(row, [*row]) == "xl, 512 tokens"


@pytest.mark.long
def test_two_gpus_are_said_and_counted(tmp_path):
    make_capture(tmp_path / "small_ctx128_train_step.sqlite", "train_step", processes=(1, 2))
    done = run(tmp_path, "--out", tmp_path / "answers", "--batch-size", 4)
    assert "2 GPUs: times are of the slowest, kernel times sums over all" in done.stderr
    table = pd.read_csv(tmp_path / "answers" / "b.csv").set_index("mode")
    assert table.loc["train_step", "calls"] == 8


def test_a_capture_without_kernels_answers_how_long_ranges_take(tmp_path):
    make_empty_capture(tmp_path / "small_ctx128_forward.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers", "--handout", 2026)
    assert done.exit_code == ExitCode.OK
    pages = read_pages(tmp_path / "answers")
    assert "By its NVTX range under nsys, a forward pass takes **10.0 µs**" in pages["a"]
    assert "No kernels were captured" in pages["a"]
    for letter in "bcde":
        assert "No kernels captured: small, 128 tokens" in pages[letter]


def test_a_name_that_its_ranges_contradict_is_said(tmp_path):
    make_capture(tmp_path / "small_ctx128_train.sqlite", "forward")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert "is called train_step, but its steps are forward" in done.stderr


@pytest.mark.long
def test_a_range_that_matches_no_phase_is_named(tmp_path):
    made, at = Export(), 1_000
    for _ in range(3):
        made.push("train_step", at, at + 3_000)
        for name, kernel, start in (("model_eval", GEMM, at), ("backward", GEMM, at + 1_000)):
            made.push(name, start + 10, start + 900)
            made.launch(start + 40, start=start + 60, end=start + 600, name=kernel)
        at += 4_000
    made.sqlite(tmp_path / "small_ctx128.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert "match no phase (model_eval): name them, such as --phase forward=model_eval" in " ".join(done.stderr.split())
    done = run(tmp_path, "--out", tmp_path / "answers", "--phase", "forward=model_eval")
    assert "match no phase" not in done.stderr
    assert pd.read_csv(tmp_path / "answers" / "a.csv")["projected_ns"].tolist() == [540]


def test_a_report_without_nsys_says_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "small_ctx128_forward.nsys-rep").write_bytes(b"x" * 100)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert done.exit_code == ExitCode.MISSING
    assert "install-nsys" in done.stderr


def test_two_captures_of_one_case_are_not_mixed(tmp_path):
    for name in ("small_ctx128_forward", "again_small_ctx128_forward"):
        make_capture(tmp_path / f"{name}.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert "the same case and mode (forward)" in done.stderr


def test_what_is_missing_is_an_error_that_names_it(tmp_path):
    make_capture(tmp_path / "run7.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert done.exit_code == ExitCode.USAGE and "run7: size and context_length" in done.stderr
    assert not (tmp_path / "answers").exists()


@pytest.mark.long
def test_a_damaged_capture_is_named_and_the_others_are_used(folder, tmp_path):
    (folder / "small_ctx256_forward.sqlite").write_bytes(b"no database")
    done = run(folder, "--out", tmp_path / "answers", "--handout", 2025)
    assert done.exit_code == ExitCode.FAILED
    assert "small_ctx256_forward: cannot be read" in done.stderr
    assert "Failed in reading the capture: small, 256 tokens" in read_pages(tmp_path / "answers")["a"]


def test_nothing_usable_is_damage(tmp_path):
    (tmp_path / "small_ctx256.sqlite").write_bytes(b"no database")
    assert run(tmp_path, "--out", tmp_path / "answers").exit_code == ExitCode.DAMAGED
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", "--out", tmp_path / "answers").exit_code == ExitCode.USAGE


@pytest.mark.long
def test_a_folder_of_somebody_else_is_not_replaced(folder, tmp_path):
    out = tmp_path / "answers"
    assert run(folder, "--out", out, "--handout", 2025).exit_code == ExitCode.OK
    assert run(folder, "--out", out, "--handout", 2025).exit_code == ExitCode.OK
    (out / "notes.txt").write_text("mine")
    assert run(folder, "--out", out, "--handout", 2025).exit_code == ExitCode.USAGE
    assert (out / "notes.txt").is_file()
    assert run(folder, "--out", folder).exit_code == ExitCode.USAGE


def test_python_times_are_compared_with_nsys(folder, tmp_path):
    lines = ["capture,phase,ms", *["small_ctx128_forward,forward,0.004"] * 3]
    (folder / "timings.csv").write_text("\n".join(lines))
    run(folder, "--out", tmp_path / "answers", "--handout", 2025)
    page = read_pages(tmp_path / "answers")["a"]
    assert "Timed by Python without a profiler, a forward pass takes **4.00 µs**" in page
    assert "Nsight Systems shows 1.25×" in page


@pytest.mark.long
def test_a_pass_that_is_timed_as_a_pass_and_as_a_step_counts_once(folder, tmp_path):
    times = [("forward", 0.004), ("step", 0.009)] * 3
    (folder / "timings.csv").write_text(
        "\n".join(["capture,phase,ms", *(f"small_ctx128_forward,{phase},{ms}" for phase, ms in times)])
    )
    run(folder, "--out", tmp_path / "answers", "--handout", 2025)
    row = pd.read_csv(tmp_path / "answers" / "a-times.csv").iloc[0]
    assert (row["timer_n"], row["timer_ns"]) == (3, 4_000)


def test_layers_with_numbers_are_one_module(tmp_path):
    made, at = Export(), 1_000
    for _ in range(3):
        start = at
        for layer in range(3):
            made.push(f"layer{layer}", at + 20, at + 900)
            made.push("mlp", at + 30, at + 800)
            made.launch(at + 40, start=at + 60, end=at + 90, name=GEMM)
            at += 1_000
        made.push("forward", start, at)
    made.sqlite(tmp_path / "small_ctx128_forward.sqlite")
    run(tmp_path, "--out", tmp_path / "answers")
    assert pd.read_csv(tmp_path / "answers" / "b.csv")["modules"].dropna().tolist() == ["mlp"]


def test_a_range_around_several_passes_gives_no_time_on_the_cpu(tmp_path):
    made = Export()
    for number, name in enumerate([*(f"kernel_{number % 7}" for number in range(24)), "head"] * 4):
        at = 1_000 + 100 * number
        made.launch(at, start=at + 50, end=at + 90, name=name)
    made.push("forward", 900, at + 100)
    made.sqlite(tmp_path / "small_ctx128_forward.sqlite")
    run(tmp_path, "--out", tmp_path / "answers")
    page = read_pages(tmp_path / "answers")["a"]
    assert page.splitlines()[2].startswith("On the GPU it spans **2.44 µs**")
    assert "A range around one forward pass, for its time on the CPU: small, 128 tokens." in page


def test_without_ranges_inside_attention_the_answer_asks_for_them(tmp_path):
    made, at = Export(), 1_000
    for _ in range(3):
        made.push("forward", at, at + 900)
        made.launch(at + 40, start=at + 60, end=at + 90, name=GEMM)
        at += 1_000
    made.sqlite(tmp_path / "small_ctx128_forward.sqlite")
    run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    page = read_pages(tmp_path / "answers")["e"]
    assert read_table(page)[2] == ["small", "128", "no such ranges"]
    assert "Ranges inside attention: `attention_scores`" in page


def test_fused_attention_needs_no_ranges_but_an_eager_run(tmp_path):
    made, at = Export(), 1_000
    for _ in range(3):
        made.push("forward", at, at + 900)
        made.launch(at + 40, start=at + 60, end=at + 90, name=GEMM)
        made.launch(at + 140, start=at + 160, end=at + 190, name="flash_fwd_kernel")
        at += 1_000
    made.sqlite(tmp_path / "small_ctx128_forward.sqlite")
    run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    page = read_pages(tmp_path / "answers")["e"]
    assert "Fused attention has no softmax of its own; measure eager attention: small, 128 tokens." in page
    assert "Ranges inside attention" not in page


def test_a_json_of_times_by_case_is_read(folder, tmp_path):
    (folder / "bench.json").write_text(
        '[{"model_size": "small", "context_length": 128, "mode": "forward", "forward_mean_s": 0.000004}]'
    )
    run(folder, "--out", tmp_path / "answers", "--handout", 2025)
    assert "**4.00 µs**" in read_pages(tmp_path / "answers")["a"]


def test_names_from_a_capture_cannot_break_a_page(tmp_path):
    made, at = Export(), 1_000
    for _ in range(3):
        made.push("<script>`|x|`", at + 50, at + 900)
        at = make_step(made, at)
    made.sqlite(tmp_path / "small_ctx128_forward.sqlite")
    assert run(tmp_path, "--out", tmp_path / "answers").exit_code == ExitCode.OK
    page = (tmp_path / "answers" / "b.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert len({len(row) for row in read_table(read_pages(tmp_path / "answers")["b"])}) == 1


@pytest.mark.parametrize("text", ["a|b", "<b>", "[x](y)", "`c`", "*d*", "1. e", "- f", "_g_", "a\nb"])
def test_text_is_shown_as_it_is(text):
    markdown = pytest.importorskip("markdown")
    cells = markdown.markdown(f"| h |\n| --- |\n| {md.escape(text)} |", extensions=["tables"])
    shown = re.findall(r"<td>(.*?)</td>", cells)
    assert [one.replace("&lt;", "<").replace("&gt;", ">") for one in shown] == [text.replace("\n", " ")]


def test_a_figure_is_a_file_of_its_own_in_both_colours():
    figure = draw_bars("<title>", [Bar("a", "s", 2.0, "2 ms"), Bar("b", "t", 1.0, "1 ms")])
    assert "max-width:100%" in figure, "it fits a narrow page that it is a part of"
    assert "prefers-color-scheme:dark" in figure and "&lt;title&gt;" in figure and "http" not in figure.split(">", 1)[1]


# ------------------------------------------------------------------------------- the same answers as a recording's


def add_run(results, plain, name):
    """Put a real run into a results folder, and its capture and its times by Python into a plain folder."""
    run_folder = results / name
    run_folder.mkdir(parents=True)
    unpack(RUNS / name / "profile.sqlite.packed", run_folder / "profile.sqlite")
    plain.mkdir(exist_ok=True)
    shutil.copy(run_folder / "profile.sqlite", plain / f"{name}.sqlite")
    size, context, precision, attention, mode = name.split("-")
    axes = {"size": size, "context_length": int(context[3:]), "precision": precision, "attention": attention}
    shape = HANDOUTS[2025].sizes[size]
    about = Run(**axes, **shape._asdict(), mode=mode, vocab_size=10_000, batch_size=4).model_dump()
    about["num_parameters"] = count_parameters(shape, 10_000)
    machine = {"gpu_name": "NVIDIA H200"}
    record = {"run_id": name, "status": "ok", "run": about, "machine": machine, "profiled_steps": None}
    (run_folder / "run.json").write_text(json.dumps(record))
    times = [20_000_000, 21_000_000, 20_500_000]
    steps = [
        {"step": step, "phase": phase, "wall_ns": ns} for step, ns in enumerate(times) for phase in ("forward", "step")
    ]
    (run_folder / "timings.json").write_text(json.dumps({"steps": steps}))
    with open(plain / "timings.csv", "a") as opened:
        opened.write("" if opened.tell() else "capture,phase,ms\n")
        opened.writelines(f"{name},{row['phase']},{row['wall_ns'] / 1e6}\n" for row in steps if row["phase"] != "step")


@pytest.mark.long
def test_plain_captures_answer_as_the_recording_of_their_sweep(tmp_path):
    results, plain = tmp_path / "results", tmp_path / "plain"
    for name in ("medium-ctx256-fp32-naive-forward", "2.7B-ctx1024-fp32-naive-forward"):
        add_run(results, plain, name)
    assert run(results, "--out", tmp_path / "of_recording").exit_code == ExitCode.OK
    assert run(plain, "--out", tmp_path / "of_captures", "--handout", 2025).exit_code == ExitCode.OK
    recorded, captured = (read_pages(tmp_path / name) for name in ("of_recording", "of_captures"))
    for letter in LETTERS:
        assert read_table(captured[letter]) == read_table(recorded[letter])
        assert captured[letter].splitlines()[2] == recorded[letter].splitlines()[2]
    assert "**20.5 ms**" in captured["a"]


@pytest.mark.long
def test_a_merge_of_shards_leaves_the_answers_of_all_of_them(tmp_path):
    names = ["medium-ctx256-fp32-naive-forward", "2.7B-ctx1024-fp32-naive-forward"]
    for number, name in enumerate(names, 1):
        shard = tmp_path / "results" / "pair" / f"shard-{number}-of-2"
        add_run(shard, tmp_path / "plain", name)
        plan = {"sweep": "pair", "runs": [name], "runs_of_all_shards": names}
        (shard / "sweep.json").write_text(json.dumps(plan))
    out = tmp_path / "merged"
    for _ in range(2):  # a second merge replaces the first one with its answers
        done = CliRunner().invoke(app, ["merge", str(tmp_path / "results" / "pair"), "--out", str(out)])
        assert done.exit_code == ExitCode.OK, done.output
        assert len(read_table((out / "answers" / "a.md").read_text(encoding="utf-8"))) == 2 + len(names)
    assert run(out, "--out", tmp_path / "again").exit_code == ExitCode.OK
    assert read_pages(out / "answers") == read_pages(tmp_path / "again")


def test_kernels_of_a_training_step_are_placed_as_in_its_recording(tmp_path):
    name = "small-ctx512-fp32-naive-train_step"
    add_run(tmp_path / "results", tmp_path / "plain", name)
    ingest(tmp_path / "results", tmp_path / "recording")
    recorded = store.load(tmp_path / "recording")
    captures = collect_facts(tmp_path / "plain", {}, handout=2025)
    captured = record_captures(tmp_path / "plain", captures, {}).recording
    for table in ("kernels", "memops"):
        expected, mine = getattr(recorded, table), getattr(captured, table)
        mine = mine[mine["run_id"].astype(str).str.contains("-train_step-batch4$")]
        columns = [column for column in expected if column != "run_id"]
        pd.testing.assert_frame_equal(
            mine[columns].reset_index(drop=True).astype(str), expected[columns].reset_index(drop=True).astype(str)
        )


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.long
def test_a_recording_is_answered_to_the_last_digit_of_the_site(letter, tmp_path):
    assert run(frozen.ONE_GPU, "--out", tmp_path / "answers").exit_code == ExitCode.OK
    rec = derive_modes(select_finished(store.load(frozen.ONE_GPU))).recording
    answer = ask(letter, rec)
    key = {"a": "times", "b": "top", "c": "wide", "d": "compared", "e": "cost"}[letter]
    table = answer.tables[key]
    assert (tmp_path / "answers" / f"{letter}-{key}.csv").read_text(encoding="utf-8") == to_csv(
        table.rows, table.columns
    )
    if letter == "d":  # whose rows are set side by side, with digits of their own
        return
    html = str(to_html(table, "x.csv", "", {}))
    shown = {*re.findall(r">([\d,.]+)(?:<| <small>)", html), *re.findall(r">([\w.]+)<", html)}
    head, _, *rows = read_table(read_pages(tmp_path / "answers")[letter])
    of_site = [column.label for column in table.columns]
    for row in rows:
        for label, cell in zip(head, row):
            if label.rpartition(" (")[0] in of_site and re.match(r"\d", cell):
                assert cell.split(" ")[0] in shown


def test_a_table_is_cut_and_its_csv_is_not():
    rows = pd.DataFrame({"size": [f"m{number}" for number in range(100)], "not_measured": ""})
    assert len(md.table(rows, [Column("size", "model")])) == md.MOST_ROWS + 2


@pytest.mark.long
def test_a_results_folder_is_ingested_first(tmp_path):
    shutil.copytree(frozen.ONE_GPU, tmp_path / "recording")
    assert run(tmp_path / "recording", "--out", tmp_path / "answers").exit_code == ExitCode.OK
