"""`profile --collector events`: phases and modules of a script by the clock, without nsys. On the CPU."""

import json
import threading
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from profiler_job.analysis.recording import store
from profiler_job.jobs.cli import event_summary
from profiler_job.jobs.follow import event_ranges
from tests.jobs.profiled_scripts import TRAIN, ended

MS = 1_000_000
SOURCE = TRAIN.replace("WORKERS", "0")


@pytest.fixture
def clock(monkeypatch):
    """Move the CPU's clock, and the GPU's `behind` it; both in ms."""
    state = SimpleNamespace(cpu=0.0, behind=0.0)

    class Event:
        def __init__(self, at: float):
            self.at = at

        def elapsed_time(self, end: "Event") -> float:
            return end.at - self.at

    def now() -> event_ranges.Moment:
        return event_ranges.Moment(round(state.cpu * MS), Event(state.cpu + state.behind))

    def advance(cpu: float, behind: float | None = None) -> None:
        state.cpu += cpu
        state.behind = state.behind if behind is None else behind

    monkeypatch.setattr(event_ranges.Moment, "now", now)
    return advance


def take_ranges(ranges, clock, *steps: tuple[str, float]) -> None:
    """Open a range for each name, or close one for "", and let the CPU take the ms after it."""
    for name, ms in steps:
        ranges.push(name) if name else ranges.pop()
        clock(ms)


def test_a_phase_has_the_time_of_the_gpu_and_how_far_it_is_behind(clock):
    ranges = event_ranges.EventRanges()
    ranges.begin()
    ranges.open_step(3)
    ranges.push("forward")
    clock(2, behind=10)
    ranges.pop()
    assert ranges.list_phases(range(3, 5)) == [
        {"step": 0, "phase": "forward", "wall_ns": 12 * MS, "issue_ns": 2 * MS, "lag_ns": 10 * MS}
    ]
    assert ranges.list_phases(range(3)) == []
    ranges.close_step()
    assert ranges.list_steps(range(3, 4)) == [12 * MS]


def test_a_module_has_the_time_that_none_inside_it_has(clock):
    ranges = event_ranges.EventRanges()
    ranges.open_step(0)
    take_ranges(ranges, clock, ("modules:forward", 1), ("Net", 2), ("head", 4), ("", 8), ("", 16), ("", 0))
    assert {(row["phase"], row["module"]): row["alone_ns"] / MS for row in ranges.list_modules(0)} == {
        ("forward", ""): 17,
        ("forward", "Net"): 10,
        ("forward", "Net/head"): 4,
    }


def test_a_thread_of_autograd_works_inside_the_open_phase(clock):
    ranges = event_ranges.EventRanges()
    ranges.open_step(0)
    ranges.push("modules:backward")
    node = [("modules:backward/Net/head", 3), ("", 0)]
    thread = threading.Thread(target=take_ranges, args=(ranges, clock, *node))
    thread.start()
    thread.join()
    take_ranges(ranges, clock, ("modules:backward/Net/head", 2), ("", 1), ("", 0))
    rows = ranges.list_modules(0)
    assert [(row["module"], row["alone_ns"] / MS, row["calls"]) for row in rows] == [("Net/head", 5, 2), ("", 1, 1)]


def test_between_steps_nothing_is_kept(clock):
    ranges = event_ranges.EventRanges()
    take_ranges(ranges, clock, ("forward", 1), ("", 1))
    assert not ranges.outermost


def phase(name: str, wall: float, issue: float, lag: float, step: int = 0) -> dict:
    return {"step": step, "phase": name, "wall_ns": wall * MS, "issue_ns": issue * MS, "lag_ns": lag * MS}


def test_phases_of_a_step_are_added_up_and_their_median_is_over_steps():
    rows = [phase("forward", wall, 1, 3, step) for step, wall in ((0, 2), (0, 3), (1, 7), (2, 9))]
    (forward,) = event_summary.average_phases(rows)
    assert forward == {"phase": "forward", "sum_ns": 21 * MS, "wall_ns": 7 * MS, "issue_ns": 1 * MS, "lag_ns": 3 * MS}


def test_a_phase_of_one_step_has_its_share_of_all():
    rows = [phase("decode", 3, 3, 0, step) for step in range(1, 5)] + [phase("prefill", 8, 8, 0, 0)]
    table = event_summary.build_phase_table(event_summary.average_phases(rows), [4.0 * MS] * 5, with_limit=False)
    assert list(table.columns[2].cells) == ["60.0%", "40.0%"]


@pytest.mark.parametrize("lag, name", [(5.0, "GPU"), (0.1, "CPU")], ids=["behind", "done"])
def test_what_limits_is_whether_the_gpu_is_behind_at_the_end_of_phases(lag, name):
    phases = [phase("forward", 3, 3, lag), phase("backward", 6, 6, lag)]
    assert event_summary.find_limit(phases).names == (name,)
    said, of_compiled = (event_summary.format_limit(phases, is_compiled) for is_compiled in (False, True))
    assert ("Launch less" in said) == ("Launch less" in of_compiled) == (name == "CPU")
    assert ("torch.compile" in said) == (name == "CPU") and "torch.compile" not in of_compiled


@pytest.mark.long
def test_without_nsys_a_script_ends_with_phases_modules_and_a_recording(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without the fake nsys
    printed, code = ended(profile(SOURCE, "--collector", "events", "--skip", "3", "--steps", "3"))
    assert code == 0, printed
    assert "11 steps were followed" in printed
    for said in ("A step takes", "samples/s", "Sequential/2", "│ clip "):
        assert said in printed
    phases = " ".join(printed.split()).partition("Phases, in a step that times them, too: ")[2]
    phases, _, missing = phases.partition("Not shown")
    assert "GPU" not in phases and "GPU" in missing, "there is none"
    assert "captured" not in printed, "nothing is"
    recording = store.load(tmp_path / "results" / "recordings" / "train")
    assert recording.runs[["status", "profiled_steps"]].values.tolist() == [["ok", 0]]
    phases = recording.steps.groupby("phase", observed=True)["step"].nunique()
    assert phases.to_dict() == dict.fromkeys(
        ("step", "data", "forward", "zero_grad", "backward", "clip", "optimizer"), 3
    )
    modules = json.loads((tmp_path / "results" / "train" / "train" / "modules.json").read_text())
    assert {row["module"] for row in modules if row["phase"] == "optimizer"} >= {"Sequential/0", "Sequential/2"}


def test_what_is_printed_fits_80_columns():
    noted = {
        "steps": [{"wall_ns": 5 * MS}] * 5,
        "compiled": False,
        "gpu_memory_bytes": 80 << 30,
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "inputs": [{"shape": [8, 1024], "dtype": "torch.int64"}],
        "forwards": 4,
        "memory": [{"phase": "backward", "peak_allocated_bytes": 5 << 30}],
        "phases": [phase("forward", 2, 1, 3), phase("backward", 2, 1, 3)],
        "profiled_ns": [5 * MS],
        "modules": [
            {"phase": "forward", "module": f"Net/layers.{i}/attn", "alone_ns": MS, "calls": 1} for i in range(3)
        ],
    }
    console = Console(file=StringIO(), width=80)
    event_summary.print_summary(noted, console)
    printed = console.file.getvalue()
    assert "Throughput: 6,553,600 tokens/s, 32,768 tokens a step." in printed
    assert "Net/layers.*/attn" in printed and "install-nsys" in printed


def test_names_of_modules_cannot_drive_the_terminal_and_a_stopped_clock_is_no_error():
    noted = {
        "steps": [{"wall_ns": 0}] * 2,
        "gpu_memory_bytes": 0,
        "inputs": [{"shape": [8, 4], "dtype": "torch.float32"}],
        "forwards": 1,
        "memory": [],
        "phases": [phase("forward", 0, 0, 0)],
        "profiled_ns": [0],
        "modules": [{"phase": "forward", "module": "Net/\x1b[2J\x1b]0;x\x07", "alone_ns": 0, "calls": 1}],
    }
    console = Console(file=StringIO(), width=80)
    event_summary.print_summary(noted, console)
    assert "\x1b" not in console.file.getvalue() and "Net/" in console.file.getvalue()


@pytest.mark.long
def test_a_script_that_changes_the_clock_is_measured_by_the_real_one(profile, tmp_path):
    changed = "import time\ntime.perf_counter_ns = time.monotonic = lambda: 0\n"
    place = SOURCE.index("\n", SOURCE.index("import torch")) + 1
    source = SOURCE[:place] + changed + SOURCE[place:]
    printed, code = ended(profile(source, "--collector", "events", "--skip", "3", "--steps", "3"))
    assert code == 0, printed
    recording = store.load(tmp_path / "results" / "recordings" / "train")
    assert (recording.steps["wall_ns"] > 0).any()
