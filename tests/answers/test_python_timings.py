import json

import pytest

from profiler_job.analysis.answers.python_timings import ANY_CONTEXT, read_times
from tests.answers.answering import read_pages, run
from tests.answers.class_captures import make_capture

SMALL = ("small", 128, "")


@pytest.mark.parametrize(
    ("name", "text", "times"),
    [
        ("b.csv", ",Model Size,Context Length,Forward Mean (ms),Forward Std (ms)\n0,small,128.0,2,9\n", [SMALL]),
        ("b.csv", "model;ctx;mode;mean_time_ms;std_time_ms\nsmall;128;fwd;2;1\n", [("small", 128, "forward")]),
        ("b.tsv", "size\tcontext\tforward_only\tms\nsmall\t128\tTrue\t2\n", [("small", 128, "forward")]),
        ("b.csv", "size,context_length,forward_ms\nsmall,128,2 ± 0.1\nsmall,256,OOM\nsmall,512,nan\n", [SMALL]),
        ("b.json", json.dumps([{"model": "small", "avg_forward_time_ms": 2.0}]), [("small", ANY_CONTEXT, "")]),
        ("b.jsonl", '{"size": "2p7b", "seq_len": 128, "forward_s": [0.002]}\n', [("2.7B", 128, "")]),
        ("b.csv", "file,forward_ms_p50,forward_ms_p99\nx.nsys-rep,2,9\n", ["x.nsys-rep"]),
    ],
)
def test_times_as_scripts_write_them(name, text, times, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    read, problems = read_times(tmp_path)
    assert [(time.case, time.phase, time.wall_ns) for time in read] == [(case, "forward", 2_000_000) for case in times]
    assert not problems


def test_a_column_of_a_mode_is_a_step_of_it(tmp_path):
    (tmp_path / "b.csv").write_text("size,context,fwd_ms,fwd_bwd_ms,train_step_ms\nsmall,128,1,2,3\n")
    read, _ = read_times(tmp_path)
    assert [(time.case[2], time.phase, time.wall_ns) for time in read] == [
        ("", "forward", 1_000_000),
        ("forward_backward", "step", 2_000_000),
        ("train_step", "step", 3_000_000),
    ]


@pytest.mark.parametrize(
    ("name", "text", "has_problem"),
    [
        ("b.csv", "model_size,context_length,fwd_mean,fwd_std\nsmall,128,0.02,0.01\n", True),
        ("b.json", json.dumps({"small": {"128": {"forward_mean_ms": 2}}}), True),
        ("b.csv", "Time (%),Total Time (ns),Instances,Name\n1,2,3,forward\n", False),
        ("b.csv", "\x00", False),
        ("b.json", "{", False),
        ("b.json", "[1, null]", False),
        ("b.csv", "", False),
    ],
)
def test_a_file_that_seems_to_have_times_says_why_none_is_read(name, text, has_problem, tmp_path):
    (tmp_path / name).write_text(text)
    times, problems = read_times(tmp_path)
    assert not times and list(problems) == ["b" + name[1:]] * has_problem


def test_times_of_no_capture_are_said(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    (tmp_path / "b.csv").write_text("size,ctx,mode,ms\nsmall,128,forward,0.004\nsmall,512,forward,3\n")
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert "b.csv: 1 time of no capture here: small, 512, forward" in done.stderr
    assert "**4.00 µs**" in read_pages(tmp_path / "answers")["a"]


@pytest.mark.parametrize("contexts", [(128,), (128, 256)])
def test_a_time_without_a_context_is_only_of_captures_that_have_one(contexts, tmp_path):
    for context in contexts:
        make_capture(tmp_path / f"small_ctx{context}_forward.sqlite")
    (tmp_path / "b.json").write_text('[{"model": "small", "mode": "forward", "ms": 0.004}]')
    done = run(tmp_path, "--out", tmp_path / "answers")
    assert ("**4.00 µs**" in read_pages(tmp_path / "answers")["a"]) == (len(contexts) == 1)
    assert "b.json: " in done.stderr
