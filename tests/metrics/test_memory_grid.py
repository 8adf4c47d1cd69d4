"""The grid of predicted memory that the page's calculator reads."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from profiler_job.analysis.metrics import memory_grid
from profiler_job.jobs import memory

SHIPPED = Path(__file__).parents[2] / "site/assets/memory_grid.js"
NUM_PREDICTED_AGAIN = 8


@pytest.fixture(scope="module")
def grid():
    return json.loads(SHIPPED.read_text().removeprefix(f"{memory_grid.CALL}(").removesuffix(");\n"))


def test_the_shipped_grid_is_what_is_predicted(grid):
    cases = list(memory_grid.list_cases())
    assert len(cases) == len(grid["mib"]) == len(grid["fits"])
    for place in random.Random(1).sample(range(len(cases)), NUM_PREDICTED_AGAIN):
        shipped = (grid["mib"][place], int(grid["fits"][place]), grid["relieved"][place])
        assert memory_grid.predict_cell(*cases[place]) == shipped, cases[place]


def test_its_choices_are_those_of_the_program(grid):
    assert {name: dict(values) for name, values in grid["choices"].items()} == memory_grid.list_choices()
    assert grid["changes"] == list(memory.CHANGES)
    assert (tuple(grid["batches"]), tuple(grid["gpus"])) == (memory_grid.BATCHES, memory_grid.GPUS_GB)


def test_a_larger_batch_needs_as_much_but_for_rounding_and_no_smaller_gpu(grid):
    for start in range(0, len(grid["mib"]), len(memory_grid.BATCHES)):
        cells = slice(start, start + len(memory_grid.BATCHES))
        assert all(larger >= 0.99 * smaller for smaller, larger in pairwise(grid["mib"][cells]))
        assert list(grid["fits"][cells]) == sorted(grid["fits"][cells])
