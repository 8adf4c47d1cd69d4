"""Progress that a sweep shows while it runs: the estimate, JSON events, lines without a terminal."""

import errno
import io
import json
import os
import pty

import pytest
from rich.console import Console

from profiler_job.jobs.cli.output import Output
from profiler_job.jobs.executor import events
from profiler_job.jobs.executor.events import Estimate, JsonEvents, Meter, Terminal, format_clock, list_stages
from profiler_job.jobs.sweep.batches import predict_batches, predict_sweep_seconds
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from profiler_job.jobs.sweep.prediction import predict_stages


@pytest.fixture
def at(monkeypatch):
    """Set the clock of `jobs.executor.events` to so many seconds after the start."""
    now = [0.0]
    monkeypatch.setattr(events.time, "monotonic", lambda: now[0])

    def set_clock(seconds: float) -> None:
        now[0] = seconds

    return set_clock


def test_clock_shows_hours_minutes_seconds():
    assert format_clock(3725.9) == "1:02:05"


def test_the_estimate_starts_from_predictions_and_follows_the_clock(at):
    estimate = Estimate({"a": 10, "b": 20, "c": 10})
    assert estimate.remaining_s == 40
    at(5)
    estimate.finish("a", 5)
    assert estimate.remaining_s == pytest.approx(15)
    at(15)
    estimate.finish("b", 10)
    assert estimate.remaining_s == pytest.approx(5)
    estimate.finish("c", 5)
    assert estimate.remaining_s == 0


def test_the_estimate_of_several_gpus_counts_them_once(at):
    estimate = Estimate(dict.fromkeys("abcdefgh", 10.0), num_gpus=2)
    assert estimate.remaining_s == 40
    at(10)
    estimate.finish("a", 10)
    estimate.finish("b", 10)
    assert estimate.remaining_s == pytest.approx(30)


def test_a_run_that_finishes_faster_than_a_smaller_one_does_no_harm(at):
    estimate = Estimate({"a": 10, "b": 20, "c": 30})
    at(12)
    estimate.finish("a", 10)
    estimate.finish("b", 2)
    assert 0 < estimate.remaining_s < 30


COMPILED = {
    "timer": [97, 106, 113, 117, 120, 127, 134],
    "timer-1": [153, 153, 155, 155, 155, 172, 172],
    "timer-2": [192, 192, 194, 194, 194, 214, 214],
    "nsys": [319, 326, 328, 331, 336, 343, 345],
}
"""When the stages of a sweep ended that compiles side by side, in seconds, on an H200; the sweep took 346 s."""


def test_the_estimate_of_a_sweep_that_compiles_side_by_side_is_near_what_was_left(at):
    sweep = load_sweep(DEFAULT_SWEEP.parent / "sweeps" / "trained_2.yaml")
    stages = {run: predict_stages(run, sweep.protocol) for run in sweep.runs}
    together = [(batch.before_s, list_stages(batch.running_s)) for batch in predict_batches(stages, sweep.protocol, 8)]
    estimate = Estimate({}, batches=together)
    assert estimate.remaining_s == pytest.approx(predict_sweep_seconds(sweep.runs, sweep.protocol))
    ended = {stage: iter(moments) for stage, moments in COMPILED.items()}
    for stage in [stage for _, running_s in together for stage in running_s]:
        moment = next(ended[stage[1]])
        at(moment)
        estimate.finish(stage, 1.0)
        assert estimate.remaining_s == pytest.approx(346 - moment, rel=0.2, abs=10), stage
    assert estimate.remaining_s == 0


def test_on_a_slower_gpu_the_estimate_of_batches_follows_the_clock(at):
    estimate = Estimate({}, batches=[(10, {("a", "timer"): 5, ("b", "timer"): 5}), (10, {("a", "nsys"): 10})])
    assert estimate.remaining_s == 40
    at(45)
    estimate.finish(("b", "timer"), 45)
    assert 25 < estimate.remaining_s < 75
    at(60)
    estimate.finish(("a", "timer"), 15)
    assert 35 < estimate.remaining_s < 60
    at(120)
    estimate.finish(("a", "nsys"), 60)
    assert estimate.remaining_s == 0


PREDICTED = {run: {"timer": 6.0, "nsys": 4.0} for run in "bc"}


def tell(emit) -> None:
    emit("sweep_started", runs=3, finished=1, timed=0, stages=6, predicted_s=PREDICTED)
    emit("run_started", run="b", gpu=0)
    emit("stage_started", run="b", stage="timer")
    emit("stage_finished", run="b", stage="timer", collector="timer", wall_s=5.0)
    emit("run_repeated", run="b", why="nsys recorded 2 of 3 steps")
    emit("stage_finished", run="b", stage="nsys", collector="nsys", wall_s=4.0)
    emit("run_finished", run="b", status="ok", detail=None, wall_s=9.0)
    emit("run_finished", run="c", status="oom", detail={"phase": "backward", "message": "out [of] memory"}, wall_s=3.0)
    emit("sweep_finished", statuses={"a": "ok", "b": "ok", "c": "oom"})
    emit.close()


def test_json_events_are_one_object_a_line(capsys):
    tell(JsonEvents())
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events][:2] == ["sweep_started", "run_started"]
    assert all(event["time"] > 1e9 for event in events)
    assert events[7]["detail"] == {"phase": "backward", "message": "out [of] memory"}


def test_without_a_terminal_each_stage_is_a_plain_line(capsys, at):
    emit = Terminal(Meter(price_per_hour=3.6))
    at(10)
    emit("sweep_started", runs=3, finished=1, timed=0, stages=6, predicted_s=PREDICTED)
    at(60)
    emit("stage_finished", run="b", stage="timer", collector="timer", wall_s=6.0)
    at(110)
    emit("stage_finished", run="b", stage="nsys", collector="nsys", wall_s=4.0)
    emit("run_finished", run="b", status="ok", detail=None, wall_s=10.0)
    emit("run_finished", run="c", status="oom", detail={"phase": "backward", "message": "out [of] memory"}, wall_s=3)
    emit("sweep_finished", statuses={"a": "ok", "b": "ok", "c": "oom"})
    emit.close()
    at(130)
    emit("job_finished", exit_code=0, **emit.meter.read())
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\r" not in out
    assert out.splitlines() == [
        "3 runs, 1 of them already finished",
        "[3/6] b  timed  6.0 s  (0:01:00 elapsed, about 0:01:56 left | cost 0.06)",
        "[4/6] b  ok  10.0 s  (0:01:50 elapsed, about 0:01:40 left | cost 0.11)",
        "[6/6] c  oom: backward: out [of] memory  3.0 s  (0:01:50 elapsed, about 0:00:00 left | cost 0.11)",
        "finished: 2 ok, 1 oom in 0:01:40",
        "in all 0:02:10 | cost 0.13",
    ]


def test_runs_that_are_exported_side_by_side_are_counted_when_they_are_said(capsys):
    emit = Terminal()
    emit("sweep_started", runs=2, finished=0, timed=0, stages=2, predicted_s={run: {"nsys": 4.0} for run in "ab"})
    for run in "ab":
        emit("stage_finished", run=run, stage="nsys", collector="nsys", wall_s=4.0)
    for run in "ab":
        emit("run_finished", run=run, status="ok", detail=None, wall_s=4.0)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["[1/2]", "[2/2]"]


def test_a_run_says_how_many_of_its_processes_are_to_come(capsys, at):
    emit = Terminal()
    predicted = {"a": {"timer": 6.0, "timer-1": 6.0, "timer-2": 6.0, "nsys": 4.0}}
    batches = [{"before_s": 10.0, "running_s": {"a": {"timer": 3.0}}}]
    emit("sweep_started", runs=1, finished=0, timed=0, stages=4, predicted_s=predicted, batches=batches)
    assert emit.estimate.remaining_s == 10 + 3 + 6 + 6 + 4
    for stage in ("timer", "timer-1", "timer-2"):
        emit("stage_finished", run="a", stage=stage, collector="timer", wall_s=6.0)
    out = capsys.readouterr().out.splitlines()
    said = ["a  timed, 2 processes to come", "a  timed, 1 process to come", "a  timed"]
    assert [line.split("  6.0 s")[0].partition("] ")[2] for line in out[1:]] == said


def test_the_cost_runs_from_the_start_of_the_job_and_is_unknown_without_a_price(at):
    paid, unpaid = Meter(price_per_hour=2), Meter()
    at(1800)
    assert paid.read() == {"wall_s": 1800, "cost": 1.0}
    assert unpaid.read() == {"wall_s": 1800, "cost": None}


@pytest.fixture
def unread_pipe():
    """The writing end of a pipe whose reader went away."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        yield stream


@pytest.fixture
def hung_up_terminal():
    controller, terminal = pty.openpty()
    os.close(controller)
    with open(terminal, "w") as stream:
        yield stream


@pytest.mark.parametrize("stream, number", [("unread_pipe", errno.EPIPE), ("hung_up_terminal", errno.EIO)])
def test_what_nobody_reads_goes_nowhere(stream, number, request, monkeypatch):
    stream = request.getfixturevalue(stream)
    with pytest.raises(OSError) as raised:
        os.write(stream.fileno(), b"x")
    assert raised.value.errno == number
    monkeypatch.setattr("sys.stdout", Output(stream))
    for emit in JsonEvents(), Terminal():
        tell(emit)
    os.write(stream.fileno(), b"what is written past the stream goes nowhere, too")


def test_a_full_disk_is_no_reader_that_went_away():
    with open("/dev/full", "w") as stream:
        output = Output(stream)
        output.write("x")
        with pytest.raises(OSError, match="No space left"):
            output.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # so that it can be closed


def test_one_more_process_is_said_of_all_runs_that_take_turns(capsys):
    emit = Terminal()
    emit("sweep_started", runs=3, finished=1, timed=0, stages=6, predicted_s=PREDICTED)
    emit("process_added", run="b", others=["c"], why="the CPU was slow")
    for run in "bc":
        emit("stage_started", run=run, stage="timer-3")
    emit("process_left_out", run="c", others=["b"], why="warm-up: [/]")
    assert not emit.stages
    emit.close()
    out = capsys.readouterr().out
    assert "b and 1 other run  one more process: the CPU was slow" in out
    assert "c and 1 other run  without one more process: warm-up: [/]" in out and "again" not in out


def test_what_nsys_says_is_no_markup(capsys, at):
    emit = Terminal()
    emit("sweep_started", runs=3, finished=1, timed=0, stages=6, predicted_s=PREDICTED)
    emit("run_repeated", run="b", why="stop: lost [/] of [red]")
    differences = {"gpu_name": {"here": "C", "runs": {"A[/]": 2, "B": 1}}, "commit": {"here": "", "runs": {"a": 3}}}
    emit("mixed_versions", runs=3, differences=differences)
    emit("run_finished", run="b", status="failed", detail={"phase": "stop", "message": "[/] [red]"}, wall_s=1.0)
    emit.close()
    out = capsys.readouterr().out
    assert "b  measured again: stop: lost [/] of [red]" in out
    assert "b  failed: stop: [/] [red]  1.0 s" in out
    what = "gpu_name A[/] (2 runs), B (1 run), here C; commit a (3 runs), here unknown"
    assert f"a mix: finished runs that stay, measured with other versions: 3 ({what}); every page" in out


def test_a_terminal_gets_a_bar_with_run_phase_time_and_cost(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(events, "Console", lambda **_: Console(file=screen, force_terminal=True, width=160))
    emit = Terminal(Meter(price_per_hour=2.5), num_gpus=2)
    emit("sweep_started", runs=2, finished=0, timed=0, stages=4, predicted_s=PREDICTED)
    emit("run_started", run="b", gpu=0)
    emit("stage_started", run="b", stage="nsys")
    emit.progress.refresh()
    emit.close()
    assert "b (nsys)" in screen.getvalue()
    assert "0/4" in screen.getvalue()
    assert "about 0:00:10 left | cost 0.00" in screen.getvalue()
