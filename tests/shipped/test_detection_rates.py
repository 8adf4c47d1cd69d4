"""How small a change is found in the shipped recordings, and the table of it in the guide."""

import numpy as np
import pytest

from tests.comparison.simulated_turns import NOISE
from tests.shipped.detection_rates import GUIDE, judge_steps, measure_twice, plant, replace_table
from tests.shipped.sides import side

pytestmark = pytest.mark.long


def test_the_table_of_the_guide_is_what_was_measured():
    text = GUIDE.read_text(encoding="utf-8")
    assert replace_table(text) == text


def test_the_smallest_change_seen_is_found_nine_times_out_of_ten():
    found = []
    for pairs in measure_twice().values():
        for first, second in pairs:
            judged = judge_steps(first, second)
            share = judged.smallest_seen / judged.first
            found += [judge_steps(first, plant(second, change)).is_real for change in (share, -min(share, 0.9))]
    assert np.mean(found) >= 0.9


@pytest.mark.parametrize(("limit", "name", "part"), [("the GPU", "h200-fp32", 0.75), ("the CPU", "accumulation", 0.5)])
def test_simulated_steps_spread_as_shipped_ones(limit, name, part):
    steps = side(name).steps
    steps = steps[(steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == "step")]
    logs = np.log(steps["wall_ns"].astype(float))
    by = [steps["run_id"].astype(str), steps["process"]]
    spread = logs.groupby(by).diff().groupby(by).std() / np.sqrt(2)
    of_run = spread.groupby(level=0).median()
    assert of_run.quantile(part) == pytest.approx(NOISE[limit].step, rel=0.15)
