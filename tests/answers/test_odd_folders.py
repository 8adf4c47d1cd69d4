"""Folders as people leave them: names, formats, holes and errors."""

import os

import pandas as pd
import pytest

from profiler_job.analysis.answers.capture_facts import RANGE, FactsError, collect_facts, parse_name, parse_ranges
from profiler_job.jobs.contract.exit_codes import ExitCode
from tests.answers.answering import read_pages, read_table, run
from tests.answers.class_captures import FORWARD, GEMM, make_capture, make_step
from tests.capture.nsys_files import Export
from tests.capture.traces import make_training

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("small_ctx128_h100_forward", {"size": "small", "context_length": 128, "mode": "forward"}),
        ("b200_small_512_fwd", {"size": "small", "context_length": 512, "mode": "forward"}),
        ("small_ctx128_t4_fwd", {"size": "small", "context_length": 128, "mode": "forward"}),
        ("l4_small_256_train", {"size": "small", "context_length": 256, "mode": "train_step"}),
        ("d256_l4_h4_ctx128", {"d_model": 256, "num_layers": 4, "num_heads": 4, "context_length": 128}),
        ("small_512_s3_fwd", {"size": "small", "context_length": 512, "mode": "forward"}),
        ("small_128_no_backward", {"size": "small", "context_length": 128, "mode": "forward"}),
        ("medium_1k_fwd", {"size": "medium", "context_length": 1024, "mode": "forward"}),
        ("2-7b_len512", {"size": "2.7B", "context_length": 512}),
        ("medium@ctx=256 (forward)", {"size": "medium", "context_length": 256, "mode": "forward"}),
    ],
)
def test_a_name_gives_its_facts_and_no_others(name, known):
    assert parse_name(name) == known


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (["benchmark/medium ctx=512", "forward"], {"size": "medium", "context_length": 512}),
        (["2.7B", "seq_len: 1k", "batch_size=4"], {"size": "2.7B", "context_length": 1024, "batch_size": 4}),
        (["medium", "large", "context 128", "context 256"], {}),
        (
            [
                "aten::embedding, op_id = 3, sizes = [[50257, 768], [8, 512], [], [], []]",
                "aten::embedding, op_id = 4, sizes = [[1024, 768], [1, 512], [], [], []]",
                "aten::linear, op_id = 5, sizes = [[8, 512, 768], [768, 768], [768]]",
            ],
            {"batch_size": 8, "context_length": 512},
        ),
        (["h.11", "c 3", "batch_7", "step 512", "layer_64", "small_kernels", "aten::mm, seq = 512"], {}),
    ],
)
def test_names_of_ranges_give_what_they_do_not_contradict(names, known):
    assert parse_ranges(names) == known


def test_a_capture_is_placed_by_its_ranges_and_says_so(tmp_path):
    made, at = Export(), 1_000
    made.gpu(number=0, process=1, device=0)
    for _ in range(3):
        start, at = at, make_step(made, at + 10, "forward", 1, True)
        made.push("small seq_len=256", start, at)
    made.sqlite(tmp_path / "run7.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    assert read_table(read_pages(tmp_path / "answers")["a"])[-1][:2] == ["small", "256"]
    assert "its ranges gave size and context length" in " ".join(done.stderr.split())


def test_names_that_need_care_are_shown(tmp_path):
    names = [
        "small_ctx128_forward |x|`y`",
        "small_ctx256_forward\nline",
        "-small_ctx512_forward",
        "small_ctx64_fwd <b>",
    ]
    for name in names:
        make_capture(tmp_path / f"{name}.sqlite")
    assert run(tmp_path, "--out", tmp_path / "answers").exit_code == ExitCode.OK
    index = (tmp_path / "answers" / "index.html").read_text(encoding="utf-8")
    rows = index.partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")[:-1]
    assert [row.count("<td") for row in rows] == [8] * len(names) and "<b>" not in index


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("small_ctx128_tf32_forward", "is called tf32, but its matmuls ran in fp32"),
        ("small_ctx128_fp32_forward", ""),
    ],
)
def test_a_precision_that_its_kernels_contradict_is_said(name, said, tmp_path):
    make_capture(tmp_path / f"{name}.sqlite")
    stderr = " ".join(run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025).stderr.split())
    assert (said in stderr) if said else "is called" not in stderr


@pytest.mark.parametrize(("num_layers", "is_said"), [(3, True), (12, False)])
def test_layers_that_contradict_the_size_are_said(num_layers, is_said, tmp_path):
    made = Export()
    for at in (10_000, 60_000, 110_000):
        made.push("forward", at, at + 40_000)
        for layer in range(num_layers):
            start = at + 100 + 3_000 * layer
            made.push(f"layer_{layer}", start, start + 2_000)
            made.launch(start + 40, start=start + 60, end=start + 600, name=GEMM)
    made.sqlite(tmp_path / "small_ctx128_forward.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert ("its ranges are of 3 layers, but small has 12" in done.stderr) == is_said


def test_captures_of_two_gpus_with_one_case_are_two_cases(tmp_path):
    for number, name in enumerate(("A", "B")):
        made = Export()
        made.gpu(name=f"GPU {name}")
        make_step(made, make_step(made, 1_000))
        made.sqlite(tmp_path / f"run{number}_small_ctx128_forward.sqlite")
    assert run(tmp_path, "--out", tmp_path / "answers").exit_code == ExitCode.OK
    assert [row[2] for row in read_table(read_pages(tmp_path / "answers")["a"])[2:]] == ["GPU A", "GPU B"]


def test_a_shape_that_is_known_of_some_captures_is_no_axis(tmp_path):
    make_capture(tmp_path / "small_ctx128_bs4_forward.sqlite")
    make_capture(tmp_path / "small_ctx256_forward.sqlite")
    run(tmp_path, "--out", tmp_path / "answers")
    assert read_table(read_pages(tmp_path / "answers")["a"])[0][:3] == ["model", "context", "NVTX range (ms)"]


def test_a_row_that_names_no_capture_is_an_error_or_a_hole(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    facts = tmp_path / "captures.csv"
    facts.write_text("file,size,context_length,status\nsmal_ctx128_forward.sqlite,small,256,\n")
    with pytest.raises(FactsError, match="no capture smal_ctx128_forward"):
        collect_facts(tmp_path, {})
    facts.write_text("file,size,context_length,mode,status\nsmall_ctx1024_train.nsys-rep,small,1024,train,OOM\n")
    absent = collect_facts(tmp_path, {})[-1]
    assert (absent.path, absent.known["status"], absent.known["context_length"]) == (None, "oom", 1024)
    facts.write_text("file,status\n,tired\n")
    with pytest.raises(FactsError) as raised:
        collect_facts(tmp_path, {})
    assert str(raised.value).count("captures.csv") == 1


def test_a_capture_of_a_run_that_did_not_fit_counts_as_a_hole(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    make_capture(tmp_path / "small_ctx1024_forward.sqlite")
    (tmp_path / "captures.toml").write_text('[[capture]]\nfile = "small_ctx1024_forward.sqlite"\nstatus = "oom"\n')
    run(tmp_path, "--out", tmp_path / "answers")
    assert read_table(read_pages(tmp_path / "answers")["a"])[-1][:3] == ["small", "1,024", "OOM"]


def test_a_step_that_an_error_cut_off_does_not_count(tmp_path):
    made, at = Export(), 1_000
    for _ in range(3):
        at = make_step(made, at, "train_step")
    for number, (_, kernel, ns) in enumerate(FORWARD):
        start = at + 1_000 * number
        made.launch(start + 10, start=start + 50, end=start + 50 + ns, name=kernel)
    made.push("forward", at, at + 5_000)
    made.launch(at + 5_100, start=at + 5_200, end=at + 6_100, name=GEMM)
    made.push("backward", at + 5_050, at + 6_200)
    made.sqlite(tmp_path / "small_ctx128_train_step.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert "the last step was cut off" in done.stderr
    sources = pd.read_csv(tmp_path / "answers" / "captures.csv")
    assert sources["derived_from"].fillna("").tolist() == ["", "train_step", "train_step"]
    assert set(sources["steps"]) == {3}


def test_a_whole_forward_pass_at_the_end_is_not_cut_off(tmp_path):
    made, at = Export(), 1_000
    for mode in ("train_step", "train_step", "forward"):
        at = make_step(made, at, mode)
    made.sqlite(tmp_path / "small_ctx128_train_step.sqlite")
    assert "cut off" not in run(tmp_path, "--out", tmp_path / "answers").stderr


@pytest.mark.parametrize("end", [None, 4_000])
def test_a_training_step_that_ends_in_its_first_forward_is_no_forward_pass(end, tmp_path):
    made = Export()
    made.launch(1_010, start=1_050, end=1_450, name=GEMM)
    made.push("forward", 1_000, end)
    made.sqlite(tmp_path / "small_ctx1024_train_step.sqlite")
    make_capture(tmp_path / "small_ctx128_train_step.sqlite", "train_step")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert "small_ctx1024_train_step: " in done.stderr and 'status = "oom"' in done.stderr
    table = pd.read_csv(tmp_path / "answers" / "a.csv").set_index("context_length")
    assert table["projected_ns"].notna().to_dict() == {128: True, 1024: False}


def test_what_is_wrong_with_the_data_is_said(tmp_path):
    path = make_capture(tmp_path / "small_ctx128_forward.sqlite")
    with open(path, "r+b") as file:  # a database in WAL mode whose log was not copied
        file.seek(18)
        file.write(bytes([2, 2]))
    assert "WAL" in run(tmp_path, "--out", tmp_path / "answers").stderr


def test_one_capture_in_several_formats_counts_once(tmp_path):
    report = tmp_path / "small_ctx128_forward.nsys-rep"
    report.write_bytes(b"older than its export")
    os.utime(report, (1, 1))
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    made = Export()
    make_step(made, make_step(made, 1_000))
    made.parquetdir(tmp_path / "small_ctx128_forward_pqtdir")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert done.exit_code == ExitCode.OK
    assert "small_ctx128_forward_pqtdir: the same case and mode (forward)" in done.stderr
    assert len(pd.read_csv(tmp_path / "answers" / "captures.csv")) == 1


def test_a_trace_is_placed_by_the_sizes_of_its_tokens(tmp_path):
    trace = make_training()
    trace.operate("aten::embedding", 1022, 2, **{"Input Dims": [[10000, 768], [4, 256], [], [], []]})
    trace.write(tmp_path / "small_train.json")
    (facts,) = collect_facts(tmp_path, {}, handout=2025)
    assert (facts.known["context_length"], facts.where["context_length"]) == (256, RANGE)


def test_traces_of_pytorch_are_answered_without_naming_nsys(tmp_path):
    make_training(5).write(tmp_path / "small_ctx128_train.pt.trace.json.gz")
    run(tmp_path, "--out", tmp_path / "answers", "--handout", 2025)
    assert "By its range under the profiler" in read_pages(tmp_path / "answers")["a"].splitlines()[2]


def test_many_captures_that_cannot_be_used_are_a_short_error(tmp_path):
    for context in (64, 128, 256, 512):
        (tmp_path / f"small_ctx{context}.sqlite").write_bytes(b"no database")
    done = run(tmp_path, "--out", tmp_path / "answers")
    error = done.stderr.splitlines()[-1]
    assert done.exit_code == ExitCode.DAMAGED and error.startswith("error: ") and error.count("cannot be read") == 1


def test_a_pattern_that_matches_no_name_is_named(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    with pytest.raises(FactsError, match=r"\{size\}-\{mode\}.* does not match 1 of these names"):
        collect_facts(tmp_path, {}, "{size}-{mode}")


def test_a_size_of_another_year_keeps_its_shape(tmp_path):
    make_capture(tmp_path / "2.7B_ctx128_forward.sqlite")
    (facts,) = collect_facts(tmp_path, {}, handout=2026)
    assert facts.known["d_model"] == 2560


def test_more_steps_to_leave_out_than_there_are_keeps_the_last(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    done = run(tmp_path, "--out", tmp_path / "answers", "--warmup", 50)
    assert "as asked: 50, but the last step counts" in done.stderr


def test_answers_that_cannot_be_written_leave_nothing(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    (tmp_path / "file").write_text("x")
    assert run(tmp_path, "--out", tmp_path / "file" / "answers").exit_code == ExitCode.CANNOT_WRITE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "small_ctx128_forward.sqlite"]
