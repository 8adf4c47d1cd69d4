"""Every engine starts the whole job: its checks notice a GPU that another program keeps busy."""

import re
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "jobs" / "engines").iterdir())
STARTS = r"""(?:args: \[|"\$IMAGE" |-m profiler_job\} )(\w+)"""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_starts_the_job_with_its_checks(file):
    assert re.findall(STARTS, file.read_text()) == ["job"]
