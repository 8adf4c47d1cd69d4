"""The grid of predicted memory that the page's calculator reads."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.metrics import device_memory, memory_grid
from profiler_job.jobs.memory import CHANGES, GIB

SHIPPED = Path(__file__).parents[2] / "site/assets/memory_grid.js"
NUM_PREDICTED_AGAIN = 8


@pytest.fixture(scope="module")
def grid():
    content = json.loads(SHIPPED.read_text().removeprefix(f"{memory_grid.CALL}(").removesuffix(");\n"))
    peaks = [[int(peak, 36) / 100 for peak in cell.split(",")] for cell in content.pop("peaks").split(" ")]
    return content | {"gib": [gib for gib, *_ in peaks], "relieved": [relieved for _, *relieved in peaks]}


def test_the_shipped_grid_is_what_is_predicted(grid):
    cases = list(memory_grid.list_cases())
    assert len(cases) == len(grid["gib"]) == len(grid["fits"])
    for place in random.Random(1).sample(range(len(cases)), NUM_PREDICTED_AGAIN):
        shipped = (grid["gib"][place], int(grid["fits"][place]), grid["relieved"][place])
        assert memory_grid.predict_cell(*cases[place]) == shipped, cases[place]


def test_the_calculator_and_the_table_have_the_same_peak(grid):
    """They differed by the CUDA context, 3% of a step that just fits 24 GB."""
    cells = dict(zip(memory_grid.list_cases(), grid["gib"]))
    table = device_memory.plan(pd.DataFrame(columns=["run_id", "status", "mode", "compile", "workload"]))
    shown = {}
    for row in table.itertuples():
        axes = device_memory.SETTINGS[row.setting]
        case = (row.size, row.context_length, "train_step", axes["precision"], axes["attention"], row.batch_size)
        shown[case] = (f"{cells[case]:.2f}", f"{row.predicted / GIB:.2f}")
    assert len(shown) == 36 and {case: both for case, both in shown.items() if both[0] != both[1]} == {}


def test_its_choices_are_those_of_the_program(grid):
    assert {name: dict(values) for name, values in grid["choices"].items()} == memory_grid.list_choices()
    assert grid["changes"] == list(CHANGES)
    assert (tuple(grid["batches"]), tuple(grid["gpus"])) == (memory_grid.BATCHES, memory_grid.GPUS_GB)


def test_a_larger_batch_needs_as_much_but_for_rounding_and_no_smaller_gpu(grid):
    for start in range(0, len(grid["gib"]), len(memory_grid.BATCHES)):
        cells = slice(start, start + len(memory_grid.BATCHES))
        assert all(larger >= 0.99 * smaller for smaller, larger in pairwise(grid["gib"][cells]))
        assert list(grid["fits"][cells]) == sorted(grid["fits"][cells])
