"""`compare` on shipped recordings whose parts and verdicts once contradicted each other."""

import re

import pytest

from tests.comparison.test_compare import run
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long


def test_the_part_that_is_printed_goes_the_way_of_the_verdict():
    """The step under nsys waits longer for launches, the unprofiled one is faster: by its matmuls."""
    case = "size=small,context_length=512,mode=train_step"
    done = run(locate("h200-fp32"), locate("trained_6"), "--a", case, "--b", "compile=off")
    assert "B is faster" in done.stdout
    parts = re.findall(r"^ +([-+])\S+ ms  (\w+, \w+)", done.stdout, re.MULTILINE)
    assert parts[0] == ("-", "backward, block")


def test_parts_of_the_other_sign_are_said_to_be_apart_within_the_noise_band_as_well():
    """Else the only part that is printed contradicts the step above it."""
    done = run(locate("h200-fp32"), locate("again"), "--a", "size=medium,context_length=128,mode=train_step")
    said = "Unprofiled, a step differs by +2.679 ms; under the profiler, which slows the host, by -36.036 ms"
    assert "within the noise band" in done.stdout and said in " ".join(done.stdout.split())
