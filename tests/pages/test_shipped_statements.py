"""What the site says of the shipped recordings: statements that were wrong once, computed again."""

from pathlib import Path

import pytest

from analysis.metrics import timing
from analysis.pages import run_list
from analysis.recording import store

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[2] / "site" / "data"


@pytest.fixture(scope="module")
def main():
    return store.load(DATA / "h200-fp32")


def test_gpu_busy_has_one_definition(main):
    rows = run_list.answer(main.runs, main.steps, main.kernels, main.memops).tables["runs"].rows.set_index("run_id")
    busy = rows["busy_ratio"]["small-ctx1024-fp32-naive-forward"]
    assert busy == pytest.approx(0.984, abs=5e-4), "kernels alone would be 95.5%"
    gpu = timing.gpu_times(main.kernels, main.memops)
    assert (gpu["busy_ns"] <= gpu["projected_ns"]).all()
