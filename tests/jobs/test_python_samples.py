"""Samples of a script's Python: a second start under the fake nsys, and what is noted inside a script."""

import json
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler_job.analysis.answers.script_findings import format_findings
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight import wait_lines
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.pages.script_answers import answer_script
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference import python_libraries
from profiler_job.jobs.cli.script_notes import describe_batches, describe_collections, describe_samples
from profiler_job.jobs.contract.messages import COUNTED_CALLS, SAMPLED
from profiler_job.jobs.executor import python_samples, script
from profiler_job.jobs.follow import batch_times, host_waits, script_frames
from tests.capture.nsys_files import Export
from tests.jobs.profiled_scripts import TRAIN, ended

LONG_TRAIN = TRAIN.replace("WORKERS", "0")


@pytest.fixture
def measured(tmp_path, fake_nsys, monkeypatch):
    """Measure a script in this process; return the folder of its run, and what was noted."""

    def measure(**options):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.chdir(tmp_path)
        Path("train.py").write_text(LONG_TRAIN)
        plan = {"skip": 3, "steps": 3, "step": "auto", "goes_on": False, "samples": True} | options
        followed = script.Script(command=[sys.executable, "train.py"], name="train", **plan)
        folder, noted = script.measure(followed, tmp_path / "results")
        return folder / "train", noted

    return measure


@pytest.mark.long
def test_a_gpu_that_waits_has_its_script_started_once_more_with_samples(measured, monkeypatch, capfd):
    monkeypatch.setenv("FAKE_NSYS_SAMPLES", "1")
    run, noted = measured()
    assert noted["samples"]["num_samples"] > 10 and len(noted["samples"]["captured_ns"]) == 3
    assert capfd.readouterr().out.count("loss 0 ") == 2
    rows = summarise(read(run / "samples.sqlite")).sections["waits"]
    assert rows["where"].tolist() == ["train.py:9"], "relative to the folder of the script"
    kept = b"".join(file.read_bytes() for file in run.iterdir())
    assert str(run.parents[2]).encode() not in kept and b"/env/lib" not in kept
    assert "jsonText" not in str(read(run / "profile.sqlite").samples) and not len(read(run / "profile.sqlite").samples)
    record = json.loads((run / "run.json").read_text())
    assert {"samples.sqlite", "host_waits.json"} <= set(record["files"])


@pytest.mark.long
def test_profile_prints_what_its_page_has_found(profile, monkeypatch, tmp_path):
    """A step takes longer than the kernels of the fake capture, so that the GPU waits."""
    monkeypatch.setenv("FAKE_NSYS_SAMPLES", "1")
    source = LONG_TRAIN.replace("    optimizer.step()", "    __import__('time').sleep(0.04)\n    optimizer.step()")
    printed, code = ended(profile(source, "--skip", "3", "--steps", "3"))
    assert code == 0, printed
    answers = answer_script(store.load(tmp_path / "results" / "recordings" / "train"))
    assert format_findings(answers, 120) in printed
    assert "train.py:9" in printed.partition("Lines that the GPU waits for, in a step without a profiler")[2]


@pytest.mark.long
def test_waits_for_the_lock_are_traced_only_where_another_thread_works(measured, monkeypatch, tmp_path):
    """PyTorch gives the lock back in each operation: to record that slows the steps."""
    monkeypatch.setenv("FAKE_NSYS_SAMPLES", "1")
    started = []
    real = script.start_under_nsys
    monkeypatch.setattr(script, "start_under_nsys", lambda nsys, *rest: started.append(nsys) or real(nsys, *rest))
    measured()
    assert ["--trace=cuda,nvtx" in nsys for nsys in started] == [True, True]
    monkeypatch.setattr(script, "runs_other_threads", lambda noted: True)
    measured()
    assert python_samples.LOCK_TRACED in started[-1] and "--cuda-graph-trace=node" in started[-1]


@pytest.mark.long
def test_no_time_is_taken_from_the_steps_with_samples(measured, monkeypatch):
    """The tables that are recorded are of the first start, with samples and without."""
    monkeypatch.setenv("FAKE_NSYS_SAMPLES", "1")
    run, noted = measured()
    steps = [row["wall_ns"] for row in json.loads((run / "timings.json").read_text())["steps"]]
    assert steps == [step["wall_ns"] for step in noted["steps"]]
    assert noted["samples"]["captured_ns"] != noted["captured_ns"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "variables", "reason"),
    [
        ({"samples": False}, {"FAKE_NSYS_SAMPLES": "1"}, ""),
        ({}, {}, python_samples.BUSY.format(100 * python_samples.LEAST_IDLE)),
        ({}, {"FAKE_NSYS_SAMPLES": "1", "FAKE_NSYS_IS_OLD": "1"}, python_samples.TOO_OLD),
    ],
    ids=["not wanted", "a busy GPU", "an old nsys"],
)
def test_without_samples_the_profile_goes_on_and_says_why(measured, monkeypatch, options, variables, reason):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not variables:
        monkeypatch.setattr(script, "measure_waiting_share", lambda database: 0.9 * python_samples.LEAST_IDLE)
    run, noted = measured(**options)
    assert noted["samples"] == {"why_not": reason}
    assert not (run / "samples.sqlite").exists() and (run / "run.json").is_file()
    assert describe_samples(noted) == ([f"no samples of its Python: {reason}"] if reason else [])


def test_a_free_threaded_python_is_not_sampled(monkeypatch, tmp_path):
    monkeypatch.setattr(script, "measure_waiting_share", lambda database: 0.5)
    followed = script.Script(command=["x"], name="x", skip=1, steps=2, step="auto", goes_on=False, samples=True)
    assert script.measure_samples(followed, tmp_path, {"has_gil": False}) == {"why_not": python_samples.NO_GIL}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/proj/data/loader.py", "data/loader.py"),
        ("/home/me/.venv/lib/python3.12/site-packages/torch/nn/x.py", "site-packages/torch/nn/x.py"),
        ("/usr/lib/python3.12/queue.py", "python3.12/queue.py"),
        ("/opt/secret/place/tool.py", "tool.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("../../me/x.py", "x.py"),
    ],
)
def test_paths_name_no_folder_of_the_machine(path, expected):
    assert python_samples.shorten_path(path, Path("/home/me/proj")) == expected


def test_a_path_of_a_package_begins_with_the_package(tmp_path):
    (tmp_path / "lib" / "mine").mkdir(parents=True)
    (tmp_path / "lib" / "mine" / "__init__.py").write_text("")
    assert python_samples.shorten_path(str(tmp_path / "lib" / "mine" / "x.py"), Path("/work")) == "mine/x.py"


def test_a_copy_from_the_host_is_waiting_and_one_on_the_gpu_is_not(tmp_path):
    export = Export()
    export.push("step", 100, 200)
    export.launch(90, start=100, end=140)
    export.copy(140, 180, 1, kind=1)
    export.copy(180, 200, 2, kind=8)
    assert python_samples.measure_waiting_share(export.sqlite(tmp_path / "x.sqlite")) == pytest.approx(0.4)


def test_the_idle_share_is_of_the_steps(tmp_path):
    export = Export()
    export.push("step", 100, 200)
    for start, end in ((50, 110), (105, 120), (190, 300)):
        export.launch(start - 20, start=start, end=end)
    assert python_samples.measure_waiting_share(export.sqlite(tmp_path / "x.sqlite")) == pytest.approx(0.7)


def test_of_several_gpus_the_one_that_waits_longest_counts(tmp_path):
    """The others run a kernel of communication meanwhile, which waits for it."""
    export = Export()
    export.push("step", 100, 200)
    for gpu, end in enumerate((200, 160, 195, 200)):
        export.launch(90, start=100, end=end, process=gpu + 1, device=gpu)
    assert python_samples.measure_waiting_share(export.sqlite(tmp_path / "x.sqlite")) == pytest.approx(0.4)


def test_samples_in_a_database_keep_their_strings(tmp_path):
    export = Export()
    export.launch(0)
    export.sample(0, ("f", "/home/me/p/a.py", 3))
    path = export.sqlite(tmp_path / "x.sqlite")
    from profiler_job.jobs.executor.nsys_cli import scrub

    scrub(path, with_samples=True)
    assert python_samples.keep_samples(path, Path("/home/me/p")) == 1
    ((frame,),) = read(path).stacks
    assert frame == ("f", "a.py", 3)
    scrub(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(jsonText) FROM NVTX_EVENTS").fetchone() == (0,)
        assert not connection.execute("SELECT * FROM StringIds WHERE value = 'a.py'").fetchall()


# -------------------------------------------------------------------------------------------- inside a script


def test_collections_of_garbage_have_ranges():
    import gc

    opened = []
    ranges = host_waits.GarbageRanges(opened.append, lambda: opened.append("pop"))
    ranges.begin()
    gc.collect()
    ranges.end()
    gc.collect()
    assert opened == ["modules:garbage collection 2", "pop"]
    assert ranges.num == 1 and ranges.ns > 0


def test_other_threads_of_python_are_noted_by_their_time_of_the_cpu():
    """One that works counts, one that waits does not, nor the time before `begin` and after `end`."""
    over, began = threading.Event(), threading.Event()

    def work():
        while not over.is_set():
            began.set()

    threads = host_waits.OtherThreads()
    waiting = threading.Thread(target=over.wait, daemon=True)
    waiting.start()
    threads.begin()
    threads.end()
    assert threads.ns < 5e6
    threads.begin()
    working = threading.Thread(target=work, daemon=True)
    working.start()
    began.wait(10)
    clock, start = time.pthread_getcpuclockid(working.ident), time.monotonic()
    while time.clock_gettime(clock) < 0.02 and time.monotonic() < start + 30:
        time.sleep(0.001)
    threads.end()
    over.set()
    assert threads.ns > 1e7


@pytest.mark.parametrize(("other_ns", "expected"), [(0, False), (90_000, False), (110_000, True)])
def test_waits_for_the_lock_are_recorded_where_other_threads_work(other_ns, expected):
    noted = {"steps": [{"wall_ns": 10_000_000}] * 3, "other_threads_ns": other_ns}
    assert python_samples.runs_other_threads(noted) is expected


def test_calls_that_wait_are_noted_by_line_and_other_warnings_are_shown(monkeypatch):
    """The warning of PyTorch comes from C++ at the line that waits, as `warnings.warn` does here. A stream's
    `synchronize` warns, too, and was counted twice. Each call leaves a mark when it has waited."""
    import warnings

    import torch

    shown, marks = [], []
    modes = ["default"]
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: marks.append("waited"))
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda _: warnings.warn(host_waits.WARNED, stacklevel=1))
    before = warnings.filters[:]
    syncs = host_waits.SyncCalls(marks.append)
    syncs.begin()
    for _ in range(4):
        warnings.warn(host_waits.WARNED, stacklevel=1)
    warnings.warn("something else", stacklevel=1)
    torch.cuda.synchronize()
    torch.cuda.Stream.synchronize(None)
    syncs.end()
    assert marks == [0, 0, 0, 0, "waited", 1, 2]
    torch.cuda.synchronize()
    assert [(Path(call["file"]).name, call["call"], call["number"], call["count"]) for call in syncs.list_calls(2)] == [
        ("test_python_samples.py", "reads a value or copies", 0, 2.0),
        ("test_python_samples.py", "synchronize", 1, 0.5),
        ("test_python_samples.py", "synchronize", 2, 0.5),
    ]
    assert {call["call"] for call in syncs.list_calls(2)} == {*COUNTED_CALLS}
    assert shown == ["something else"]
    assert modes == ["default", "warn", "default"]
    assert warnings.filters[:] == before


class Reader:
    """Its methods note how they are called, as PyTorch's warning does."""

    def note(self, *_):
        frame = sys._getframe(1)
        self.read = host_waits.name_read(frame.f_code, frame.f_lasti)
        return 1.0

    item = cpu = mine = __float__ = __getitem__ = __setitem__ = note


def test_what_a_script_reads_a_value_with_is_named(tmp_path):
    """Nothing is if it is not listed, or if there is no source."""
    lines = {
        "é = 0; x.item()": " with item",
        "a = (x.cpu(\n), 3)": " with cpu",
        "float(x)": " with float",
        "x[x]": " with indexing",
        "x[x] = 3": " with indexing",
        "x.mine()": "",
    }
    named = {}
    for number, line in enumerate(lines):
        file = tmp_path / f"script{number}.py"
        file.write_text(line)
        exec(compile(line, str(file), "exec"), {"x": (x := Reader())})
        named[line] = x.read.removeprefix(host_waits.READS)
    assert named == lines
    exec(compile("x.item()", "gone.py", "exec"), {"x": x})
    assert x.read == host_waits.READS


def test_a_file_that_inductor_wrote_is_not_the_script():
    names = {"find": lambda: script_frames.find_own_frame(sys._getframe(1))}
    exec(compile("def call(): return find()", f"/cache/7z/c7z46zo4vtixzq2oy{'a' * 35}.py", "exec"), names)
    assert names["call"]().f_code.co_filename == __file__
    assert script_frames.GENERATED.pattern == python_libraries.GENERATED, "what reads samples has the same files"


def test_a_script_that_notes_such_calls_itself_is_left_alone(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: pytest.fail("changed"))
    host_waits.SyncCalls().begin()


@pytest.mark.long
def test_a_script_with_samples_takes_no_steps_with_modules(followed):
    printed, code, noted = followed(LONG_TRAIN, followed=0, samples=True)
    assert code == 0, printed
    assert noted["stage"] == "done" and len(noted["captured_ns"]) == 3 and not noted["followed_ns"]
    assert "9 steps were followed" in printed


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_time_of_batches_is_measured_in_steps_without_a_profiler(followed, workers):
    slow = "collate_fn=lambda rows: (time.sleep(0.02), collate(rows))[1]"
    source = TRAIN.replace("num_workers=WORKERS", f"num_workers={workers}, {slow}")
    source = source.replace(
        "data = Tensor", "import time\nfrom torch.utils.data import default_collate as collate\ndata = Tensor"
    )
    printed, code, noted = followed(source)
    assert code == 0, printed
    batches = noted["batches"]
    assert (batches["num"], batches["num_workers"], batches["is_pinned"]) == (1.0, int(workers), False)
    assert batches["ns"] < sum(step["host_ns"] for step in noted["steps"]) / 3
    (line,) = noted["batch_lines"]
    assert source.splitlines()[line["line"] - 1].startswith("for ") and line["file"].endswith("train.py")
    assert (line["count"], line["ns"]) == (1.0, batches["ns"])
    if workers == "0":
        assert batches["ns"] >= 20_000_000 and batches["worker_ns"] == 0
    else:
        assert batches["worker_ns"] >= 20_000_000


def test_workers_add_up_their_times_in_memory_of_the_script(monkeypatch):
    times = batch_times.WorkerTimes()
    assert times.fetch(lambda index: index, 3) == 3 and not any(times.shared), "not in a worker"
    workers = []
    monkeypatch.setattr(batch_times, "get_worker_info", lambda: SimpleNamespace(id=number))
    for number, is_on in enumerate((False, True, True, False)):
        times.switch(is_on)
        worker = os.fork()
        if not worker:
            times.fetch(time.sleep, 0.05 * number)
            os._exit(0)
        os.waitpid(worker, 0)
        workers.append(worker)
    assert sum(times.shared[1::3]) == 2 and times.measure_batch(workers) >= 75_000_000
    each = times.measure_batches(workers)
    assert list(each) == [1, 2] and each[1] >= 50_000_000 and each[2] >= 100_000_000
    assert times.measure_batches(workers[2:3]) == {2: each[2]} and not times.measure_batch([])
    batches = batch_times.Batches()
    batches.workers = times
    batches.note(1_000, SimpleNamespace(_workers=[SimpleNamespace(pid=worker) for worker in workers]))
    described = batches.describe(1)
    assert {name: described[name] for name in described if "worker_" in name[:8]} == {
        "worker_ns": times.measure_batch(workers),
        "worker_1_ns": each[1],
        "worker_2_ns": each[2],
    }


def watch_loaders():
    """Batches, and a class of DataLoaders that it watches."""
    from torch.utils.data import DataLoader

    batches = batch_times.Batches()
    batches.is_on = True
    called = DataLoader.__iter__

    class Loader(DataLoader):
        def __iter__(self):
            iterator = called(self)
            while True:
                try:
                    yield batches.fetch(next, iterator)
                except StopIteration:
                    return

    return batches, Loader


def repeat(loader):
    while True:
        yield from loader


def test_loaders_are_kept_apart_by_the_lines_that_take_their_batches():
    """A function that repeats a loader is shared: then it is the line that calls it. Their workers were mixed."""
    batches, Loader = watch_loaders()
    train, test = (Loader(range(4), batch_size=2) for _ in range(2))
    first = repeat(train)
    taken = [next(first).tolist() for _ in range(3)]
    second = repeat(test)
    taken += [next(second).tolist()]
    for batch in test:
        taken.append(batch.tolist())
    assert taken == [[0, 1], [2, 3], [0, 1], [0, 1], [0, 1], [2, 3]]
    source = Path(__file__).read_text().splitlines()
    rows = {source[row["line"] - 1].strip(): row["count"] for row in batches.list_loaders(1)}
    assert rows["taken = [next(first).tolist() for _ in range(3)]"] == 3
    assert rows["taken += [next(second).tolist()]"] == 1
    assert batches.describe(2)["num"] == 3, "the end of an epoch is no batch"


def test_a_loader_that_is_made_anew_for_each_epoch_is_one():
    """Each was another DataLoader, and none of them was said to take as long as all."""
    batches, Loader = watch_loaders()
    kept = [Loader(range(4), batch_sampler=[[0], [1, 2]]) for _ in range(2)]  # a list has no weak references
    for loader in [Loader(range(4), batch_size=2), *kept]:
        for batch in loader:
            assert len(batch)
    assert [row["count"] for row in batches.list_loaders(1)] == [2, 2, 2], "the lines are shared, the loaders are not"
    batches, Loader = watch_loaders()
    for _ in range(3):
        for batch in Loader(range(4), batch_size=2):
            assert len(batch)
    (row,) = batches.list_loaders(1)
    assert row["count"] == 6


def test_batches_of_a_loader_inside_a_dataset_are_part_of_its_batches():
    """Their time was added to that of the batches in which they were taken."""
    batches = batch_times.Batches()
    batches.is_on = True
    assert batches.fetch(lambda _: batches.fetch(lambda _: 3, object()), object()) == 3
    batches.fetch(lambda _: 4, object())
    assert batches.describe(1)["num"] == 2


def test_batches_that_a_thread_takes_ahead_make_no_step_wait():
    """Their time counted as waiting of the step, though a queue of batches hid it. A thread that takes the steps waits
    for its batches."""

    def take(switches: bool) -> None:
        if switches:
            batches.switch(True)
        batches.fetch(lambda _: 3, object())

    batches = batch_times.Batches()
    batches.switch(True)
    for switches, expected in ((False, None), (True, 1)):
        thread = threading.Thread(target=take, args=(switches,))
        thread.start()
        thread.join()
        described = batches.describe(1)
        assert (described and described["num"]) == expected
    batches.fetch(lambda _: 4, object())
    assert batches.describe(1)["num"] == 2


def test_an_iterator_of_the_script_s_own_is_no_error():
    batches = batch_times.Batches()
    batches.is_on = True
    assert batches.fetch(lambda _: 3, SimpleNamespace(_num_workers="many", _workers=None)) == 3


def test_each_of_several_loaders_is_described_with_its_line():
    workers = {"num_workers": 2, "is_pinned": True, "worker_ns": 4e6, "worker_0_ns": 3e6, "worker_1_ns": 5e6}
    without = {"num_workers": 0, "is_pinned": False, "worker_ns": 0}
    place = {"file": "/x/train.py", "function": "main", "count": 1.0}
    lines = [place | {"line": 4, "ns": 6e6, "workers": workers}, place | {"line": 9, "ns": 2e6, "workers": without}]
    noted = {"steps": [{"wall_ns": 1e7}], "batches": {"num": 2, "ns": 8e6} | workers, "batch_lines": lines}
    (printed,) = describe_batches(noted)
    scalars = python_samples.list_wait_scalars(noted)
    assert scalars["batches_ns"] == 8e6 and scalars["batches_1_ns"] == 2e6
    assert scalars["batches_0_worker_1_ns"] == 5e6
    loaders = wait_lines.list_loaders(scalars)
    assert [loader["num_workers"] for loader in loaders] == [2, 0]
    assert wait_lines.list_workers(loaders[0]) == {0: 3e6, 1: 5e6} and not wait_lines.list_workers(loaders[1])
    of_page = wait_lines.describe_batches(scalars, 1e7, ["train.py:4", "train.py:9"])
    assert "2 lines" in printed and "2 lines" in of_page[0], "which may be of one DataLoader"
    for first, second in (printed.split("; "), of_page[1:]):
        assert "train.py:4" in first and "2 workers" in first and "train.py:9" in second and "2.00 ms" in second
    alone = noted | {"batch_lines": lines[:1]}
    assert not [name for name in python_samples.list_wait_scalars(alone) if name.startswith("batches_0_")]


def test_collections_of_garbage_are_named_without_samples_from_a_hundredth_on():
    noted = {"captured_ns": [10_000_000] * 3, "garbage": {"num": 1.5, "ns": 2e5}}
    scalars = python_samples.list_wait_scalars(noted)
    (printed,), (of_page,) = describe_collections(noted), wait_lines.describe_collections(scalars, 1e7)
    assert "200 µs" in printed and "200 µs" in of_page and python_libraries.DO[python_libraries.GARBAGE] in of_page
    sampled = {f"{SAMPLED}{wait_lines.PART}{python_libraries.GARBAGE}": 0.1}
    assert not wait_lines.describe_collections(scalars | sampled, 1e7), "samples have named them"
    assert not wait_lines.describe_collections(scalars, 1e8)
    assert not describe_collections(noted | {"captured_ns": [100_000_000]})


def test_batches_are_described_if_they_cost_a_hundredth():
    noted = {"steps": [{"wall_ns": 10_000_000}], "batches": {"num": 1, "ns": 9e6, "num_workers": 1, "is_pinned": True}}
    (line,) = describe_batches(noted)
    assert "9.00 ms of a step of 10.0 ms" in line and "1 worker" in line and "pinned" in line
    noted["batches"]["ns"] = 5e4
    assert not describe_batches(noted) and not describe_batches({"steps": [], "batches": None})
