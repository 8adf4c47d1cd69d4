"""The benchmark page shows what was measured, missed promises included, and nothing else."""

from analysis.questions import benchmarks

JOB = {
    "targets": {"gpu_busy_share": 0.5, "process_per_run_ratio": 2.5, "gpus_ratio": 1.8, "kernel_time_difference": 0.02},
    "whole": {"num_runs": 60, "wall_s": 700.0, "gpu_busy_share": 0.7, "parts_s": {"sweep": 650.0, "pages": 50.0}},
    "process_per_run": {"process_per_run_ratio": 1.1},
    "gpus": {"gpus_ratio": 1.9, "kernel_time_difference": -0.03},
}


def test_a_missed_promise_stays_in_the_table():
    rows = benchmarks.answer(JOB, {}).tables["targets"].rows.set_index("measured")["met"]
    assert rows.to_dict() == {0.7: True, 1.1: False, 1.9: True, -0.03: False}


def test_parts_that_were_not_run_are_absent():
    answer = benchmarks.answer({name: JOB[name] for name in ("targets", "whole")}, {})
    assert list(answer.tables["targets"].rows["measured"]) == [0.7]
    assert answer.facts["gpus"] is None and answer.facts["shown"] == ["targets", "parts"]


def test_without_benchmarks_nothing_is_shown():
    assert benchmarks.answer({}, {}).facts["shown"] == []


def test_growth_is_shown_as_it_was_measured_and_promises_nothing():
    grown = [{"container": "sqlite", "kernels": [1, 5], "seconds": 5.3, "peak_bytes": 3.7}]
    answer = benchmarks.answer({}, {"growth": grown})
    assert answer.facts["growth"] == grown
    assert "targets" not in answer.tables


def test_why_a_tool_was_not_measured_stands_beside_it():
    ours = {"tool": "profiler-job", "container": "sqlite", "kernels": 7, "seconds": 1.0, "kernels_counted": 7}
    ours |= {"peak_bytes": 100}
    theirs = {"tool": "nsys-ai", "container": "sqlite", "kernels": 7, "problem": "not done after 600 s"}
    reader = benchmarks.answer({}, {"results": [ours, theirs]}).tables["reader"]
    assert list(reader.rows["problem"]) == ["", "not done after 600 s"]
    assert "problem" in {column.key for column in reader.columns}
    without = benchmarks.answer({}, {"results": [ours]}).tables["reader"]
    assert "problem" not in {column.key for column in without.columns}
