"""The foot of the home page names the recording of the figure."""

from dataclasses import replace

from profiler_job.analysis.pages.home_cases import CaseNumbers, HomeCase
from profiler_job.analysis.site.home_page import name_recordings_of
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
    version = name_recordings_of(case, [main, joined])
    assert version == {"name": "trained_29", "date": "2026-11-29", "commit": "c"}
