"""The benchmark of the job says which runs were lost, and reports all the same: workers are fake, nsys is, too."""

import json

import pytest

from profiler_job.jobs.executor.failures import CaptureLostError
from profiler_job.jobs.sweep.plan import load_sweep, select
from tests.bench import sweep_speed
from tests.jobs.conftest import fake_nsys, fake_worker, tiny  # noqa: F401  fixtures

FIRST, SECOND = "tiny-ctx8-fp32-naive-forward", "tiny-ctx8-fp32-naive-train_step"


@pytest.fixture
def bench(tiny, tmp_path, monkeypatch, fake_worker):  # noqa: F811
    """bench(part): the figures of a part of the benchmark, of two runs."""

    def run(part: str) -> dict:
        out = tmp_path / "job.json"
        arguments = ["sweep_speed", part, "--device", "cpu", "--only", "size=tiny", "--out", str(out)]
        monkeypatch.setattr("sys.argv", [*arguments, "--sweep", str(tiny(context_length=[8]))])
        sweep_speed.main()
        return json.loads(out.read_text())[part.replace("-", "_")]

    return run


def test_warm_workers_are_held_against_a_process_for_each_run(bench):
    figures = bench("process-per-run")
    assert (figures["num_runs"], figures["warm_complete"], figures["process_per_run_complete"]) == (2, 2, 2)
    assert figures["process_per_run_ratio"] == pytest.approx(figures["process_per_run_s"] / figures["warm_s"])
    assert 0 < figures["process_per_run_profiled_s"] < figures["process_per_run_s"]
    assert figures["warm_lost"] == figures["process_per_run_lost"] == {}


def test_the_command_to_repeat_names_the_runs_that_were_chosen(bench):
    assert bench("process-per-run")["command"].endswith("sweep_speed process-per-run --only size=tiny")


@pytest.mark.long
def test_what_a_part_showed_before_stays(bench):
    first, second = bench("gpus"), bench("gpus")
    assert first["earlier"] == []
    assert [one["value"] for one in second["earlier"]] == [first["gpus_ratio"]]
    assert [one["value"] for one in bench("gpus")["earlier"]] == [first["gpus_ratio"], second["gpus_ratio"]]


def test_a_file_of_an_older_version_is_gone_on_with():
    before = {"recorded": "2026-01-02T00:00:00Z", "gpus_ratio": 1.9}
    assert sweep_speed.earlier("gpus", before) == [{"recorded": before["recorded"], "commit": "", "value": 1.9}]


def test_unless_told_otherwise_it_measures_the_runs_of_the_targets():
    runs = load_sweep(sweep_speed.DEFAULT_SWEEP).runs
    assert {part: len(select(runs, only)) for part, only in sweep_speed.RUNS.items()} == {
        "process-per-run": 12,
        "gpus": 24,
    }


@pytest.mark.long
def test_a_lost_run_is_named_with_its_reason_on_both_sides(bench, fake_worker):  # noqa: F811
    fake_worker.fail({f"{SECOND}/nsys": ("measured", "segfault")})
    figures = bench("process-per-run")
    assert (figures["warm_complete"], figures["process_per_run_complete"]) == (1, 1)
    assert "measured steps: worker process died" in figures["warm_lost"][SECOND]
    assert "worker process died" in figures["process_per_run_lost"][SECOND]
    assert figures["process_per_run_ratio"] > 0


def test_of_several_gpus_only_runs_that_both_measured_are_compared(bench, fake_worker):  # noqa: F811
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "oom")})
    figures = bench("gpus")
    assert (figures["one_gpu_complete"], figures["all_gpus_complete"], figures["num_gpus"]) == (1, 1, 2)
    assert figures["kernel_time_differences"] == {SECOND: 0}
    assert figures["gpus_ratio"] == pytest.approx(figures["one_gpu_s"] / figures["all_gpus_s"])


def test_a_run_that_is_lost_counts_for_no_throughput():
    one, two = (sweep_speed.Measured(10.0, complete, {}, 0) for complete in (4, 3))
    assert two.throughput / one.throughput == pytest.approx(0.75)


@pytest.mark.long
def test_a_process_profiled_by_hand_ends_in_its_own_time_and_leaves_nsys_its_temporary_folder(
    tiny,  # noqa: F811
    tmp_path,
    monkeypatch,
    fake_nsys,  # noqa: F811
):
    (tmp_path / "sitecustomize.py").write_text("import atexit, time\natexit.register(time.sleep, 0.5)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sweep = load_sweep(tiny(context_length=[8], mode=["forward"]))
    profiler = sweep_speed.ProcessPerRun("cpu")
    try:
        profiler.profile(sweep.runs[0], sweep.protocol, tmp_path)
        assert profiler.worker.process.returncode == 0
    finally:
        profiler.stop()


def test_repeated_captures_are_counted(tiny, tmp_path, fake_worker, monkeypatch):  # noqa: F811
    counts = iter([False])
    monkeypatch.setattr(
        "profiler_job.jobs.executor.attempt.Attempt.check", lambda attempt, database: next(counts, True) or lose()
    )
    sweep = load_sweep(tiny(context_length=[8], mode=["forward"]))
    measured = sweep_speed.measure(sweep.runs, sweep.protocol, tmp_path, [0], "cpu")
    assert (measured.complete, measured.repeated, measured.lost) == (1, 1, {})


def lose():
    raise CaptureLostError("export", "nsys recorded 2 of 3 steps")
