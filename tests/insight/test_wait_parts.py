"""What costs time in several lines at once: garbage, Python's lock, logging and progress bars, printing."""

import pytest

from profiler_job.analysis.capture.python_samples import PythonFrame
from profiler_job.analysis.insight.stack_places import find_place
from profiler_job.analysis.insight.wait_lines import NAMED_PARTS, describe_parts
from profiler_job.analysis.reference.python_libraries import GARBAGE, LOCK, LOGGING, PRINTING

MS = 1_000_000
PACKAGES = "/env/lib/python3.12/site-packages"


@pytest.mark.parametrize("part", [GARBAGE, LOCK, LOGGING, PRINTING])
def test_a_part_is_named_from_a_hundredth_of_a_step(part):
    assert part in NAMED_PARTS
    assert describe_parts({part: 0.1}, 1.05 * MS, 10 * MS) == [f"In all lines together: {part} 105 µs"]
    assert not describe_parts({part: 0.1}, 0.95 * MS, 10 * MS)


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("/usr/lib/python3.12/logging/__init__.py", LOGGING),
        (f"{PACKAGES}/tqdm/std.py", LOGGING),
        (f"{PACKAGES}/rich/progress.py", LOGGING),
        (f"{PACKAGES}/wandb/sdk/wandb_run.py", LOGGING),
        (f"{PACKAGES}/torch/_tensor_str.py", PRINTING),
    ],
)
def test_logging_and_progress_bars_are_known_by_their_files(file, part):
    place = find_place((PythonFrame("write", file, 5), PythonFrame("train", "train.py", 9)))
    assert (place.below, place.line) == (part, 9)
