"""How long the calls of a line wait for the GPU in steps that nothing slows."""

import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.sync_times import measure_sync_times, name_waited_copies
from profiler_job.jobs.contract.ranges import FOLLOWED_STEP, SYNC
from profiler_job.jobs.follow import host_waits
from tests.capture.nsys_files import Export

WAIT, ALL = "cudaStreamSynchronize_v3020", "cudaDeviceSynchronize_v3020"
US = 1000


class Steps(Export):
    """Steps of 1 ms. The calls of each: name, how long it takes (µs), and the numbers of the marks after it."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.launch(0)

    def step(self, *calls, followed=False, thread=1):
        begin = self.now
        self.now += 1000 * US
        self.span(FOLLOWED_STEP if followed else "step", begin, self.now)
        at = begin + 100 * US
        for name, us, *numbers in calls:
            self.call(at, at + us * US, name=name, thread=thread)
            at += us * US
            for number in numbers if followed else ():
                self.push(f"{SYNC}{number}", at + 10, at + 20, thread=thread)
                at += 100
            at += 20 * US

    def measure(self, tmp_path):
        capture = read(self.sqlite(tmp_path / "capture.sqlite"), details=False)
        times = measure_sync_times(capture, attribute(capture))
        return {number: ns / US for of_process in times.values() for number, ns in of_process.items()}


def test_calls_of_clean_steps_have_the_line_of_the_call_at_their_place(tmp_path):
    steps = Steps()
    for us in (30, 50):
        steps.step((WAIT, us), (WAIT, 5), (ALL, 7))
    steps.step((WAIT, 300, 1), (WAIT, 90), (ALL, 80, 0), followed=True)
    assert steps.measure(tmp_path) == {1: 40, 0: 7}, "the second call is a library's, which no mark follows"


def test_an_operation_that_waits_twice_leaves_two_marks(tmp_path):
    steps = Steps()
    calls = ((WAIT, 3), (WAIT, 4), (WAIT, 5, 0, 0), (WAIT, 6, 1))
    steps.step(*calls)
    steps.step(*calls, followed=True)
    assert steps.measure(tmp_path) == {0: 9, 1: 6}


def test_a_copy_counts_for_the_call_that_waits_for_it(tmp_path):
    """From pageable memory the copy waits, and what follows takes a microsecond."""
    steps = Steps()
    for followed in (False, True):
        at = steps.now + 50 * US
        correlation = steps.call(at, at + 46 * US, name="cudaMemcpyAsync_v3020")
        steps.copy(at + 40 * US, at + 45 * US, correlation, kind=2)
        steps.step((WAIT, 1, 0), followed=followed)
    assert steps.measure(tmp_path) == {0: 51}
    capture = read(tmp_path / "capture.sqlite", details=False)
    (kinds,) = name_waited_copies(capture, attribute(capture)).values()
    assert kinds == {0: ["memcpy Device-to-Host (pageable)"]}


@pytest.mark.parametrize("other", [[(WAIT, 5)], [(WAIT, 5), (ALL, 5)], [(WAIT, 5), (WAIT, 5), (WAIT, 5)]])
def test_a_step_with_other_calls_than_the_followed_ones_has_no_times(tmp_path, other):
    steps = Steps()
    steps.step(*other)
    steps.step((WAIT, 5, 0), (WAIT, 5, 1), followed=True)
    assert steps.measure(tmp_path) == {}


def test_of_steps_that_differ_those_with_the_calls_of_a_followed_one_count(tmp_path):
    steps = Steps()
    steps.step((WAIT, 10))
    steps.step((WAIT, 500), (WAIT, 9))  # it logs
    steps.step((WAIT, 20, 0), followed=True)
    assert steps.measure(tmp_path) == {0: 10}


def test_equal_calls_of_different_lines_are_of_none(tmp_path):
    steps = Steps()
    steps.step((WAIT, 10))
    for number in range(2):
        steps.step((WAIT, 20, number), followed=True)
    assert steps.measure(tmp_path) == {}


def test_a_mark_of_another_thread_names_no_call(tmp_path):
    """Autograd's thread waits, and PyTorch warns where backward was called."""
    steps = Steps()
    steps.step((WAIT, 10))
    steps.step((WAIT, 10), followed=True)
    steps.push(f"{SYNC}0", steps.now - 100, steps.now - 50, thread=2)
    assert steps.measure(tmp_path) == {}


def test_each_thread_has_its_own_calls(tmp_path):
    steps = Steps()
    for followed in (False, True):
        steps.step((WAIT, 10, 0), followed=followed)
        for extra in range(2 if followed else 1):
            at = steps.now - 100 * US + extra * 10 * US
            steps.call(at, at + US, name=WAIT, thread=2)  # another number in each step
    assert steps.measure(tmp_path) == {0: 10}


def test_both_sides_have_the_same_name_of_a_mark():
    assert host_waits.SYNC == SYNC
