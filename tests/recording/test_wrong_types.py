"""Values of wrong types in the files of a run are reported in one line, whichever they are."""

import copy
import json
import random
import shutil

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.integrity import add_digest, read_facts
from profiler_job.jobs.contract.layout import CALIBRATION, IN_FLIGHT, RECORD, SWEEP, TIMINGS
from profiler_job.jobs.executor.sweep_runner import SweepRunner
from tests.recording.test_verify import FIRST, PROTOCOL, RUNS, SECOND, results  # noqa: F401 a fixture

pytestmark = pytest.mark.long

WRONG = [None, "x", -1, 1e308, [], {}, [1], {"a": 1}, True]


def places(value, at=()):
    """Where something is in a JSON value; of a list the first."""
    yield at
    for key, below in value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if value else ():
        if isinstance(below, dict | list):
            yield from places(below, (*at, key))
        else:
            yield (*at, key)


def replace_at(value, at, new):
    if not at:
        return new
    value = here = copy.deepcopy(value)
    for key in at[:-1]:
        here = here[key]
    here[at[-1]] = new
    return value


def write(results, name, at, new):  # noqa: F811
    """Put a value into a file of the first run, or of the sweep, as if a job had written it so."""
    run = results.folder / FIRST
    file = (results.folder if name in (SWEEP, CALIBRATION) else run) / name
    content = replace_at(json.loads(file.read_text()), at, new)
    file.write_text(json.dumps(add_digest(content) if name == RECORD and isinstance(content, dict) else content))
    if name == TIMINGS:
        record = json.loads((run / RECORD).read_text())
        record["files"][TIMINGS] = read_facts(file).model_dump()
        (run / RECORD).write_text(json.dumps(add_digest(record)))


def ingest(results, out):  # noqa: F811
    """Ingest, and return the lines that it printed; every problem is in a line, and nothing damaged passes as good."""
    done = CliRunner().invoke(app, ["ingest", str(results.folder), "--out", str(out)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1, 65)
    merged = CliRunner().invoke(app, ["merge", str(results.folder), "--out", str(out.with_name("merged"))])
    assert merged.exception is None or isinstance(merged.exception, SystemExit), merged.exception
    return done


@pytest.mark.parametrize(
    ("name", "at", "value", "said"),
    [
        (
            RECORD,
            ("run", "size"),
            [],
            "run.json is not a valid record of a run (run.size is [], where category should be)",
        ),
        (RECORD, ("run", "d_model"), "x", '(run.d_model is "x", where int64 should be)'),
        (RECORD, ("run", "d_model"), 1e308, "(run.d_model is 1e+308, where int64 should be)"),
        (TIMINGS, ("steps",), None, "timings.json: steps is not a list of rows with step, phase, wall_ns"),
        (TIMINGS, ("steps", 0), {}, "timings.json: steps is not a list of rows with step, phase, wall_ns"),
        (TIMINGS, ("steps", 0, "step"), "x", 'timings.json: steps: step is "x", where int32 should be'),
        (TIMINGS, ("steps", 0, "phase"), [], "timings.json: steps: phase is [], where category should be"),
        (TIMINGS, ("memory",), None, "timings.json: memory is not a list of rows with "),
        (TIMINGS, ("memory", 0), 1, "timings.json: memory is not a list of rows with "),
        (TIMINGS, ("memory", 0, "peak_allocated_bytes"), "x", 'peak_allocated_bytes is "x", where int64 should be'),
        (SWEEP, ("runs",), None, "sweep.json: runs is not what a sweep has"),
        (SWEEP, ("runs", 0), 1.5, "sweep.json: runs.0 is not what a sweep has"),
        (SWEEP, ("runs", 0), "\ud800", "sweep.json cannot be read ('utf-8' codec can't encode"),
        (RECORD, ("run", "attention"), "\ud800", "run.json is not a valid record of a run ('utf-8' codec can't encode"),
    ],
)
def test_a_wrong_type_is_told_by_file_and_key(results, tmp_path, name, at, value, said):  # noqa: F811
    write(results, name, at, value)
    done = ingest(results, tmp_path / "out")
    assert said in done.output and done.exit_code == (1 if name == TIMINGS else 65)
    if name == TIMINGS:
        assert store.load(tmp_path / "out").runs["status"].tolist() == ["failed", "ok"]
        assert set(store.load(tmp_path / "out").steps["run_id"].astype(str)) == {SECOND}


def test_a_mark_without_a_state_is_of_an_interrupted_run(results):  # noqa: F811
    results.begin(RUNS[0])
    (results.folder / FIRST / IN_FLIGHT).write_text("{}")
    assert results.read_in_flight(RUNS[0]) == "interrupted"


@pytest.mark.parametrize("rates", [[1], [{"gpu_name": []}], [], {}])
def test_rates_that_are_none_are_measured_again(results, rates):  # noqa: F811
    class Executor:
        class machine:
            gpu_name = "H200"

        class timer:
            @staticmethod
            def calibrate(log):
                return ["measured"]

    (results.folder / CALIBRATION).write_text(json.dumps(rates))
    runner = SweepRunner(results, PROTOCOL, lambda event, **fields: None, calibrate=True)
    runner._calibrate(Executor)
    assert json.loads((results.folder / CALIBRATION).read_text()) == ["measured"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", [RECORD, TIMINGS, SWEEP])
def test_no_value_of_any_type_anywhere_is_a_traceback(results, tmp_path, name):  # noqa: F811
    shutil.copytree(results.folder, tmp_path / "kept")
    file = next((tmp_path / "kept").glob(f"{FIRST}/{name}"), tmp_path / "kept" / name)
    chance = random.Random(name)
    for at in places(json.loads(file.read_text())):
        for value in chance.sample(WRONG, 3):
            shutil.rmtree(results.folder)
            shutil.copytree(tmp_path / "kept", results.folder)
            write(results, name, at, value)
            ingest(results, tmp_path / "out")
            record = results.finished(RUNS[0], PROTOCOL)
            assert (results.timed(RUNS[0], PROTOCOL), results.read_in_flight(RUNS[0])) == (None, None)
            assert record is None or isinstance(record.wall_s, float)
            results.damage(RUNS[0])
