"""The benchmark page shows what was measured, missed promises included, and nothing else."""

from profiler_job.analysis.pages import benchmarks
from profiler_job.analysis.site.site_writer import Site
from tests.bench.site_speed import targets
from tests.page_words import read_page

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


def test_a_part_whose_runs_were_all_lost_was_not_measured_and_its_promise_not_kept():
    lost = {"gpus_ratio": None, "kernel_time_difference": None}
    rows = benchmarks.answer(JOB | {"gpus": lost}, {}).tables["targets"].rows
    assert rows["measured"].isna().sum() == 2
    assert not rows.loc[rows["measured"].isna(), "met"].any()


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


def test_faults_are_counted_by_kind_and_by_how_they_ended(tmp_path):
    step = {"points": {"write": 3, "rename": 1}, "struck": 12, "outcomes": {"told": 8, "killed": 4}, "wrong": ["one"]}
    faults = {"steps": {"ingest": step | {"recorded": "2026-01-02T00:00:00Z", "commit": "abc"}}}
    answer = benchmarks.answer({}, {}, faults)
    row = {"step": "ingest", "write": 3, "rename": 1, "struck": 12, "whole": 0, "told": 8, "killed": 4, "wrong": 1}
    row |= {"recorded": "2026-01-02", "commit": "abc"}
    assert answer.tables["faults"].rows.to_dict("records") == [row]
    site = Site(tmp_path, (), {}, ("size",))
    site.write("benchmarks.md", "benchmarks.md", answer)
    page = read_page(tmp_path / "benchmarks.md")
    assert "was ended at points at which it changes files" in page and "abc" in page


def test_what_pages_take_to_be_painted_stands_with_the_promise_for_the_slowest(tmp_path):
    pages = [
        {"page": "home", "width": width, "bytes": 90_000, "paint_s": paint_s}
        for width, paint_s in ((1280, 0.2), (390, 1.2))
    ]
    site = {"machine": {"cpu": "a processor", "cores_used": 2}, "recorded": "2026-01-02T00:00:00Z", "repeat": 5}
    site |= {"pages": [page | {"longest_s": 2.0} for page in pages], "targets": targets(30.0, pages)}
    answer = benchmarks.answer({}, {}, site=site)
    assert answer.tables["targets"].rows["met"].tolist() == [True, False]
    assert answer.tables["pages"].rows["paint_s"].tolist() == [0.2, 1.2]
    Site(tmp_path, (), {}, ("size",)).write("benchmarks.md", "benchmarks.md", answer)
    assert "5 loads of each page; 2 cores of a processor" in read_page(tmp_path / "benchmarks.md")
