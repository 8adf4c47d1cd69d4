"""Plain sums over traces against what is read of them."""

import pytest

from tests.bench.trace_sums import check
from tests.capture.traces import make_training


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_a_trace_that_is_read_has_the_sums_of_its_json(tmp_path, name):
    found = check(make_training().write(tmp_path / name))
    assert found["is_equal"] and found["kernels"] == 12 and found["kernel_ns"] == 3 * (5 + 2 + 6 + 2) * 1000
    assert (found["copies"], found["copy_ns"]) == (3, 3000)


def test_what_is_not_read_is_seen(tmp_path):
    trace = make_training()
    next(event for event in trace.events if event["cat"] == "kernel").pop("name")
    found = check(trace.write(tmp_path / "x.json"))
    assert not found["is_equal"] and found["kernels"] == found["plain"]["kernels"] - 1
