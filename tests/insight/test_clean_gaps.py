"""Samples show which line the GPU waits for; how long is of steps without samples."""

import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.selection import find_gpus
from profiler_job.analysis.insight.clean_gaps import CleanGaps
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.reference.kernel_families import BUILT_IN
from tests.capture.nsys_files import Export

US, MS = 1_000, 1_000_000
TOKENIZE, ADAM, PAUSE, ITEM = "train.py:8", "train.py:15", "train.py:30", "train.py:40"
KERNEL_NS = 2 * US


class Steps:
    """Steps on a GPU that runs dry before each of its operations. Python is sampled every 10 us if with_samples."""

    def __init__(self, with_samples: bool):
        self.export, self.with_samples = Export(), with_samples
        self.export.launch(0, start=10, end=20)
        self.now = 100

    def work(self, ns: float, line: str) -> None:
        """The CPU takes so long in a line."""
        for at in range(0, int(ns), 10 * US) if self.with_samples else ():
            self.export.sample(self.now + at, ("f", line.split(":")[0], int(line.split(":")[1])))
        self.now += int(ns)

    def wait(self, ns: float, line: str, calls: int = 0) -> None:
        """The CPU takes so long in a line, and makes so many calls meanwhile; then it launches a kernel."""
        for number in range(calls):
            self.export.call(self.now + 10 + number, self.now + 11 + number, name="cudaEventQuery_v3020")
        self.work(ns, line)
        self.export.launch(self.now, start=self.now + 10, end=self.now + 10 + KERNEL_NS)
        self.now += KERNEL_NS + 20

    def add(self, tokenize_ms: float, adam_us: float, num: int = 40, pause_ms: float = 0.0, calls: int = 0) -> None:
        begin = self.now
        self.wait(tokenize_ms * MS, TOKENIZE)
        for _ in range(num):
            self.wait(adam_us * US, ADAM, calls)
        self.work(pause_ms * MS, PAUSE)
        self.wait(0, ADAM)
        self.export.span("step", begin, self.now)
        self.export.push("forward", begin, self.now)
        self.now += 100

    def read(self, folder):
        path = folder / f"{self.with_samples}.sqlite"
        return read(path if path.exists() else self.export.sqlite(path))


def list_shares(sampled, folder, clean=None):
    rows = summarise(sampled.read(folder), clean=clean).sections["waits"]
    return dict(zip(rows["where"], rows["share"].astype(float)))


def measure(clean, folder, step_ns=None):
    capture = clean.read(folder)
    gpus = {name: find_gpus(capture, getattr(capture, name)) for name in ("kernels", "graphs", "memops")}
    return CleanGaps(capture, attribute(capture), gpus, BUILT_IN, step_ns)


def make_steps(with_samples, *steps):
    made = Steps(with_samples)
    for options in steps:
        made.add(**options)
    return made


CLEAN = {"tokenize_ms": 4, "adam_us": 10}
SLOW = {"tokenize_ms": 5, "adam_us": 200}


def test_a_line_that_samples_slow_most_has_the_share_of_steps_without_samples(tmp_path):
    """The optimizer waits 20 times as long with samples, the tokenizer 1.25 times."""
    sampled = make_steps(True, SLOW, SLOW, SLOW)
    assert list_shares(sampled, tmp_path)[ADAM] > 0.6
    shares = list_shares(sampled, tmp_path, measure(make_steps(False, CLEAN, CLEAN), tmp_path))
    assert shares[TOKENIZE] == pytest.approx(4 / 4.4, abs=0.02)
    assert shares[ADAM] == pytest.approx(0.4 / 4.4, abs=0.02)


def test_a_wait_that_clean_steps_do_not_have_counts_nothing(tmp_path):
    """The CPU is ahead of the GPU in the optimizer, unless samples slow it."""
    clean = make_steps(False, CLEAN | {"adam_us": 0}, CLEAN | {"adam_us": 0})
    shares = list_shares(make_steps(True, SLOW, SLOW), tmp_path, measure(clean, tmp_path))
    assert shares[TOKENIZE] > 0.98 and shares[ADAM] < 0.02


def test_what_nsys_adds_to_a_call_is_taken_off_by_calls(tmp_path):
    """With nsys the optimizer's waits take 40 us, and 10 calls are made in each; alone 20 us: 2 us a call."""
    steps = {"tokenize_ms": 4, "adam_us": 40, "calls": 10}
    clean = make_steps(False, steps, steps)
    alone = make_steps(False, steps | {"adam_us": 20})
    found = measure(clean, tmp_path, step_ns=alone.now)
    assert found.call_ns == pytest.approx(20_000 / 11, rel=0.1)
    shares = list_shares(make_steps(True, steps, steps), tmp_path, found)
    assert shares[ADAM] == pytest.approx(0.8 / 4.8, abs=0.02)


def make_steps_ahead(launch_us: float, num_steps: int = 4) -> Steps:
    """Steps of 100 kernels of 12 us, each launched after `launch_us`, and a time of 1 ms in which nothing is."""
    made = Steps(False)
    gpu = 0
    for _ in range(num_steps):
        begin = made.now
        made.now += 1 * MS
        for _ in range(100):
            made.now += int(launch_us * US)
            start = max(made.now + 1000, gpu + 500)
            gpu = start + 12 * US
            made.export.launch(made.now, start=start, end=gpu)
        made.export.push("forward", begin, made.now)
        made.export.span("step", begin, made.now)
        made.now += 10
    return made


def test_a_cpu_without_nsys_is_ahead_where_it_is_late_with_it(tmp_path):
    """Alone the CPU launches faster than the GPU works, and the GPU waits for 1 ms once a step; with nsys it waits
    before each kernel, too, and less after them."""
    alone, slow = make_steps_ahead(10), make_steps_ahead(16)
    (tmp_path / "alone").mkdir()
    known = measure(alone, tmp_path / "alone")._regular["ns"]
    with_nsys = measure(slow, tmp_path)._regular["ns"]
    found = measure(slow, tmp_path, step_ns=(alone.now - 100) / 4)
    assert found.call_ns == pytest.approx(6 * US, rel=0.15)
    assert with_nsys.max() / with_nsys.sum() < 0.75
    assert found._regular["ns"].max() == pytest.approx(known.max(), rel=0.1)
    assert found._regular["ns"].sum() == pytest.approx(known.sum(), rel=0.1)


def test_a_pause_of_one_step_in_three_keeps_its_share(tmp_path):
    """Such as a collection of garbage: it comes at other places in the steps with samples."""
    clean = make_steps(False, CLEAN, CLEAN | {"pause_ms": 6}, CLEAN)
    sampled = make_steps(True, CLEAN | {"pause_ms": 9}, CLEAN, CLEAN)
    shares = list_shares(sampled, tmp_path, measure(clean, tmp_path))
    assert shares[PAUSE] == pytest.approx(2 / 6.4, abs=0.03)


def test_steps_of_different_lengths_are_scaled_by_phase(tmp_path):
    clean = make_steps(False, CLEAN | {"num": 40}, CLEAN | {"num": 44})
    sampled = make_steps(True, SLOW | {"num": 40}, SLOW | {"num": 39})
    found = measure(clean, tmp_path)
    shares = list_shares(sampled, tmp_path, found)
    assert sum(shares.values()) == pytest.approx(1, abs=0.02)
    plain = list_shares(sampled, tmp_path)
    assert shares[ADAM] == pytest.approx(plain[ADAM], abs=0.02), "one phase: its lines keep their shares"


def test_a_clean_step_shorter_than_one_without_a_profiler_takes_nothing_off(tmp_path):
    clean = make_steps(False, CLEAN, CLEAN)
    assert measure(clean, tmp_path, step_ns=1e9).call_ns == 0


def make_batches(with_samples: bool, batch_ms: float) -> Steps:
    """Steps that wait for a batch in a phase of its own, and then launch for 2 ms."""
    made = Steps(with_samples)
    for _ in range(3):
        begin = made.now
        made.work(batch_ms * MS, TOKENIZE)
        made.export.push("data", begin, made.now)
        made.wait(0, TOKENIZE)
        start = made.now
        for _ in range(40):
            made.wait(50 * US, ADAM)
        made.export.push("forward", start, made.now)
        made.export.span("step", begin, made.now)
        made.now += 100
    return made


def test_waiting_for_batches_has_its_time_without_a_profiler(tmp_path):
    """Workers go on while a profiler makes the rest slower: a step takes 10 ms in all three cases, and waits for its
    batch for 9 ms alone, 8 ms in a clean step, and 4 ms with samples."""
    capture = make_batches(False, 8).read(tmp_path)
    gpus = {name: find_gpus(capture, getattr(capture, name)) for name in ("kernels", "graphs", "memops")}
    clean = CleanGaps(capture, attribute(capture), gpus, BUILT_IN, 10 * MS, 9 * MS)
    assert clean.call_ns == pytest.approx(10_000), (
        "40 calls make the rest 1 ms longer: no more than the limit is taken off"
    )
    shares = list_shares(make_batches(True, 4), tmp_path, clean)
    assert shares[TOKENIZE] == pytest.approx(9 / (9 + 1.6), abs=0.02)


def add_rank(made: Steps) -> Steps:
    """The same steps once more, of another process on a GPU of its own."""
    for rows in made.export.rows.values():
        owned = [row for row in rows if "globalTid" in row or "globalPid" in row]
        ids = ("globalTid", "globalPid")
        rows += [row | {key: row[key] + (1 << 24) for key in ids if key in row} | {"deviceId": 1} for row in owned]
    return made


def test_two_ranks_wait_for_their_batches_as_one_does(tmp_path):
    clean = add_rank(make_batches(False, 8)).read(tmp_path)
    gpus = {name: find_gpus(clean, getattr(clean, name)) for name in ("kernels", "graphs", "memops")}
    found = CleanGaps(clean, attribute(clean), gpus, BUILT_IN, 10 * MS, 9 * MS)
    shares = list_shares(add_rank(make_batches(True, 4)), tmp_path, found)
    assert shares[TOKENIZE] == pytest.approx(9 / (9 + 1.6), abs=0.02)


def test_the_time_of_the_cpu_in_a_step_is_the_same_with_two_ranks(tmp_path):
    """It bounds what a step could save."""
    times = []
    for number, made in enumerate((make_batches(True, 4), add_rank(make_batches(True, 4)))):
        (tmp_path / str(number)).mkdir()
        summary = summarise(made.read(tmp_path / str(number)))
        rows = summary.sections["waits"].set_index("where")["cpu_ns"]
        times.append(rows[TOKENIZE] / summary.capture["num_sampled_steps"])
    assert times[0] == pytest.approx(4 * MS, rel=0.01)
    assert times[1] == times[0]


def test_a_wait_of_one_step_in_four_is_a_quarter_of_a_wait_in_each(tmp_path):
    """The GPU never waits in the other steps: what is late with nsys alone is not in the median step."""
    made = Steps(False)
    gpu = 0
    for number in range(4):
        begin = made.now
        made.now += 3 * MS * (number == 2)
        for _ in range(20):
            start = max(made.now + 10, gpu)
            gpu = start + 50 * US
            made.export.launch(made.now, start=start, end=gpu)
            made.now += 5 * US
        made.export.push("forward", begin, made.now)
        made.export.span("step", begin, made.now)
        made.now += 100
    found = measure(made, tmp_path)
    assert found.num_steps == 4
    assert found._regular["ns"].sum() < 100
    assert MS / 4 < found._excess_ns < 3 * MS / 4


@pytest.mark.filterwarnings("error")
def test_a_capture_without_steps_has_no_clean_gaps(tmp_path):
    made = Steps(False)
    for _ in range(3):
        made.export.launch(made.now, start=made.now + 10, end=made.now + 20)
        made.now += 10
    found = measure(made, tmp_path, step_ns=1 * MS)
    assert found.num_steps == found.call_ns == 0 and not len(found._regular)


def test_a_sample_of_another_phase_does_not_count(tmp_path):
    """Python is sampled every 5 ms: the last sample before the batch is of the optimizer."""
    made = make_batches(True, 4)
    made.export.rows["NVTX_EVENTS"] = [
        row for row in made.export.rows["NVTX_EVENTS"] if row["eventType"] != 34 or row["start"] % (500 * US) < 10 * US
    ]
    capture = make_batches(False, 4).read(tmp_path)
    gpus = {name: find_gpus(capture, getattr(capture, name)) for name in ("kernels", "graphs", "memops")}
    shares = list_shares(made, tmp_path, CleanGaps(capture, attribute(capture), gpus, BUILT_IN, None))
    assert shares[TOKENIZE] == pytest.approx(4 / 6, abs=0.02)


def make_synchronised_steps(launch_us: float, with_samples: bool = False, pause_us: float = 0) -> Steps:
    """Four steps of 100 short kernels, launched after `launch_us` each, and one of 1.1 ms, for which the CPU waits.
    In each step another launch takes `pause_us` more."""
    made = Steps(with_samples)
    for step in range(4):
        begin = gpu = made.now
        for number in range(101):
            made.work((launch_us + pause_us * (number == 20 * step + 15)) * US, ADAM)
            start = max(made.now + 1000, gpu)
            gpu = start + (KERNEL_NS if number < 100 else 1100 * US)
            made.export.launch(made.now, start=start, end=gpu)
        made.export.call(made.now + 100, gpu + 5000, name="cudaStreamSynchronize_v3020")
        made.work(gpu + 5000 - made.now, ITEM)
        made.export.push("forward", begin, gpu + 5000)
        made.export.span("step", begin, gpu + 6000)
        made.now = gpu + 6010
    return made


def test_a_synchronisation_costs_what_it_costs_without_nsys(tmp_path):
    """Alone the CPU launches 100 kernels in 1 ms, which a kernel of 1.1 ms hides; with nsys it takes 2 ms, and half of
    that is late without the synchronisation, too."""
    alone = make_synchronised_steps(10)
    step_ns = (alone.now - 100) / 4
    slow = make_synchronised_steps(20)

    def measure_share(found):
        waits = found._regular["ns"].groupby(level="at").sum()
        return waits[-2] / waits.sum()

    assert measure_share(measure(slow, tmp_path)) < 0.7
    found = measure(slow, tmp_path, step_ns)
    assert found.call_ns == pytest.approx(10 * US, rel=0.1)
    (tmp_path / "alone").mkdir()
    of_alone = measure_share(measure(alone, tmp_path / "alone"))
    assert of_alone > 0.85 and measure_share(found) == pytest.approx(of_alone, abs=0.02)


def test_what_a_synchronisation_costs_before_another_operation_in_each_step_is_of_its_line(tmp_path):
    """One launch of a step takes 300 us more, in each step another one: the GPU would do what is before it, if the CPU
    had not waited for it."""
    clean = measure(make_synchronised_steps(5, pause_us=300), tmp_path)
    gaps = clean._regular["ns"].groupby(level="at").sum()
    assert gaps[-2] == pytest.approx(600 * US, rel=0.2)
    sampled = make_synchronised_steps(5, with_samples=True, pause_us=300)
    rows = summarise(sampled.read(tmp_path), clean=clean).sections["waits"].set_index("where")
    assert rows.loc[ITEM, "sync_ns"] / 4 == pytest.approx(gaps[-2], rel=0.05)
