"""The foot of the home page names the recording of the figure."""

from dataclasses import replace

from profiler_job.analysis.pages.home_cases import CaseNumbers, HomeCase
from profiler_job.analysis.site.home_page import name_recordings_of
from profiler_job.analysis.site.page_context import join_versions
from tests.synthetic import recording


def test_the_foot_names_the_recordings_of_the_case_that_is_shown():
    """It named h200-fp32 of 22 November under a figure from trained_1 of the 29th."""
    main = recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2)
    parts = [
        {"name": f"trained_{day}", "recorded_to": f"2026-11-{day}", "commit": "c", "runs": [{"run_id": f"run{day}"}]}
        for day in (28, 29)
    ]
    joined = replace(main, manifest={"name": "trained_28, trained_29", "parts": parts})
    numbers = CaseNumbers(1, 128, 4, "NVIDIA H200")
    case = HomeCase(at=("small",), numbers=numbers, runs={"BF16": (1, "run29")}, others={}, apart=0.0)
    versions = name_recordings_of(case, [main, joined])
    assert versions == [{"name": "trained_29", "date": "2026-11-29", "commit": "c"}]


def test_each_recording_of_the_figure_has_its_own_days():
    """h200-fp32 of 22 November was dated 29 November, like trained_1 next to it."""
    main = recording(("small",), (128,), ("train_step",), num_profiled=1, num_timed=2)
    numbers = CaseNumbers(1, 128, 4, "NVIDIA H200")
    runs = {"BF16": (1, "b"), "FP32": (0, "a")}
    case = HomeCase(at=("small",), numbers=numbers, runs=runs, others={}, apart=0.0)
    ends = {"recorded_from": "2026-11-22T18:13:19", "recorded_to": "2026-11-22T20:48:31"}
    first = replace(main, manifest={"name": "h200-fp32", "commit": "c", "runs": [{"run_id": "a"}]} | ends)
    ends = {"recorded_from": "2026-11-28T23:10:00", "recorded_to": "2026-11-29T00:20:00"}
    second = replace(main, manifest={"name": "trained_1", "commit": "d", "runs": [{"run_id": "b"}]} | ends)
    versions = name_recordings_of(case, [first, second])
    dates = {version["name"]: version["date"] for version in versions}
    assert dates == {"h200-fp32": "2026-11-22", "trained_1": "2026-11-28 to 2026-11-29"}
    assert join_versions(versions)["date"] == "2026-11-22 to 2026-11-29"
