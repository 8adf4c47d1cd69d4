"""A sweep that goes on: what was timed stays, and what other versions finished is not mixed with it."""

import json

import pytest

from profiler_job.jobs.executor import gpu_executor, sweep_runner
from tests.jobs.tiny_runs import FIRST, LAST, ORDER, RUNS, SECOND
from tests.records import rewrite

pytestmark = pytest.mark.usefixtures("no_worker_is_left")


class Killed(BaseException):
    """Error that ends a session as a kill would, with nothing tidied up in the results."""


@pytest.fixture
def killed_between_the_stages(session, monkeypatch):
    with monkeypatch.context() as patched:

        def kill(executor):
            raise Killed

        patched.setattr(gpu_executor.GpuExecutor, "profile_runs", kill)
        one = session()
        with pytest.raises(Killed):
            one.run()
    return one


def test_what_was_timed_is_not_timed_again(session, fake_worker, killed_between_the_stages):
    folder = killed_between_the_stages.results.folder
    timings = {run: (folder / run / "timings.json").read_bytes() for run in RUNS}
    started = json.loads((folder / FIRST / "timed.json").read_text())["started_at"]
    (folder / SECOND / "profile.sqlite").write_text("of a capture that was cut short")
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.events[0]["timed"] == len(RUNS)
    assert again.events[0]["predicted_s"].keys() == set(RUNS)
    assert {collector for one in again.events[0]["predicted_s"].values() for collector in one} == {"nsys"}
    assert again.stages("timer") == again.named("run_started") == []
    assert {run: (folder / run / "timings.json").read_bytes() for run in RUNS} == timings
    record = again.record(FIRST)
    assert record["started_at"] == started
    assert set(record["seconds"]) == {"nsys", "export"} and len(record["timed"]) == 1
    assert "timer: " in (folder / FIRST / "log.txt").read_text()
    assert not list(folder.glob("*/timed.json"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["timed.json", "timings.json"])
def test_a_run_whose_timings_are_cut_short_is_timed_again(session, killed_between_the_stages, name):
    path = killed_between_the_stages.results.folder / SECOND / name
    path.write_text(path.read_text()[:40])
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.stages("timer") == [SECOND]


def test_a_run_timed_on_another_machine_is_timed_again(session, killed_between_the_stages):
    path = killed_between_the_stages.results.folder / SECOND / "timed.json"
    timed = json.loads(path.read_text())
    rewrite(path, machine=timed["machine"] | {"gpu_name": "another"})
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.stages("timer") == again.named("run_repeated") == [SECOND]
    assert again.record(SECOND)["machine"]["gpu_name"] == "none"


def measure_elsewhere(folder, run_ids, **facts):
    """Change the records of finished runs to a machine with other facts."""
    for run_id in run_ids:
        path = folder / run_id / "run.json"
        rewrite(path, machine=json.loads(path.read_text())["machine"] | facts)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.long
@pytest.mark.parametrize("fact", ["gpu_name", "driver", "cuda", "torch", "nsys", "commit"])
def test_runs_finished_with_another_version_are_refused_before_anything_is_measured(session, fact):
    first = session()
    first.run()
    folder = first.results.folder
    measure_elsewhere(folder, RUNS[1:3], **{fact: "another"})
    (folder / FIRST / "run.json").unlink()
    before = contents(folder)
    again = session()
    with pytest.raises(sweep_runner.MixedVersionsError) as refused:
        again.run()
    here = first.record(LAST)["machine"][fact] or "unknown"
    said = str(refused.value)
    assert said.startswith(f"2 of 3 finished runs in {folder} were measured with other versions: ")
    assert f"{fact} another (2 runs), here {here};" in said
    assert all(way in said for way in ("another --results", "--allow-mix", "remove the folders of those runs"))
    assert again.named("run_started") == again.named("run_repeated") == []
    assert contents(folder) == before


def test_a_mix_that_is_allowed_is_told(session):
    first = session()
    first.run()
    folder = first.results.folder
    measure_elsewhere(folder, RUNS[1:3], torch="1.0", gpu_name="another")
    measure_elsewhere(folder, RUNS[3:], torch="2.0")
    (folder / FIRST / "run.json").unlink()
    again = session(allow_mix=True)
    assert again.run() == dict.fromkeys(RUNS, "ok")
    here = again.record(FIRST)["machine"]
    differences = {
        "gpu_name": {"here": "none", "runs": {"another": 2}},
        "torch": {"here": here["torch"], "runs": {"1.0": 2, "2.0": 1}},
    }
    told = {"event": "mixed_versions", "runs": 3, "differences": differences}
    assert [one for one in again.events if one["event"] == "mixed_versions"] == [told]
    assert again.named("run_started") == [FIRST]


@pytest.mark.long
def test_a_commit_that_is_not_known_equals_nothing_but_itself(session, monkeypatch):
    first = session()
    first.run()
    folder = first.results.folder
    measure_elsewhere(folder, RUNS[1:], commit="")
    (folder / FIRST / "run.json").unlink()
    with pytest.raises(sweep_runner.MixedVersionsError, match=r"commit unknown \(3 runs\), here this"):
        session().run()
    monkeypatch.setenv("PROFILER_COMMIT", "")
    assert session().run() == dict.fromkeys(RUNS, "ok")


@pytest.mark.parametrize("facts", [{"python": "3.1.1"}, {"gpu_memory_bytes": 1}])
def test_python_and_the_bytes_of_memory_make_no_mix(session, facts):
    first = session()
    first.run()
    measure_elsewhere(first.results.folder, RUNS[1:], **facts)
    (first.results.folder / FIRST / "run.json").unlink()
    assert session().run() == dict.fromkeys(RUNS, "ok")


def test_where_nothing_is_left_to_measure_nothing_is_refused(session):
    first = session()
    first.run()
    measure_elsewhere(first.results.folder, RUNS, torch="1.0")
    assert session().run() == dict.fromkeys(RUNS, "ok")


@pytest.mark.long
def test_failed_runs_that_are_measured_again_make_no_mix(session, fake_worker):
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "failed")})
    first = session()
    first.run()
    measure_elsewhere(first.results.folder, [FIRST], torch="1.0")
    fake_worker.fail({})
    assert session(retry=True).run() == dict.fromkeys(RUNS, "ok")


def test_a_changed_protocol_times_again_what_was_only_timed(session, killed_between_the_stages):
    again = session({"measured_steps": 3})
    again.run()
    assert again.stages("timer") == ORDER
