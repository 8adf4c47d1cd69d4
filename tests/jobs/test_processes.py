"""Several fresh processes for each run: order, resume, failures in a later one, and what is recorded of them."""

import json

import pytest

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.jobs.executor import gpu_executor, gpu_sampler
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.sweep_runner import StoppedError
from profiler_job.jobs.sweep.batches import shuffle_pass
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from tests.jobs.conftest import jobs
from tests.jobs.test_sweep_runner import stop_when
from tests.jobs.tiny_runs import RUNS
from tests.records import rewrite

pytestmark = pytest.mark.usefixtures("fake_worker")

PROCESSES = 3
STAGES = ("timer", "timer-1", "timer-2")
THREE = {"processes": PROCESSES, "seed": 7}
SWEEP = load_sweep(DEFAULT_SWEEP)


def orders(one) -> list[list[str]]:
    return [[run.run_id for run in shuffle_pass(one.sweep.runs, 7, process)] for process in range(PROCESSES)]


def timed(one) -> list[tuple[str, str]]:
    """(run, stage) of the timer, in the order in which they began."""
    started = [(event["run"], event["stage"]) for event in one.events if event["event"] == "stage_started"]
    return [(run, stage) for run, stage in started if stage.startswith("timer")]


def all_stages(one) -> list[tuple[str, str]]:
    return [(run, stage) for stage, order in zip(STAGES, orders(one)) for run in order]


def test_the_order_is_shuffled_anew_for_each_process_and_depends_on_the_seed_alone():
    order = shuffle_pass(SWEEP.runs, 0, 0)
    assert set(order) == set(SWEEP.runs) and order != SWEEP.runs
    assert order == shuffle_pass(SWEEP.runs, 0, 0)
    assert len({tuple(shuffle_pass(SWEEP.runs, seed, process)) for seed in (0, 1) for process in range(3)}) == 6


def test_every_process_of_a_run_is_a_fresh_one_and_the_runs_are_shuffled(session, fake_worker):
    one = session(THREE)
    assert one.run() == dict.fromkeys(RUNS, "ok")
    assert timed(one) == all_stages(one)
    pids = [pid for name, pid in fake_worker.tasks if name.endswith("/timer")]
    assert len(pids) == len(set(pids)) == PROCESSES * len(RUNS)
    assert [name for name, _ in fake_worker.tasks].count(f"{RUNS[0]}/nsys") == 1
    for run in RUNS:
        record = one.record(run)
        places = [order.index(run) for order in orders(one)]
        assert [process["position"] for process in record["timed"]] == places
        assert (record["protocol_version"], record["processes"], record["seed"]) == (2, 3, 7)
        assert {"timings.json", "timings-1.json", "timings-2.json"} <= record["files"].keys()
    assert one.events[0]["stages"] == 4 * len(RUNS)
    assert list(one.events[0]["predicted_s"][RUNS[0]]) == [*STAGES, "nsys"]


@pytest.mark.long
@pytest.mark.parametrize("place", [0, 2])
def test_a_resume_in_the_second_stage_measures_only_what_lacks(session, fake_worker, place):
    one = session(THREE)
    run = orders(one)[1][place]
    begun = {"event": "stage_started", "run": run, "stage": "timer-1"}

    keep_timings = Results.keep_timings

    def keep(results, kept, tables, process):
        keep_timings(results, kept, tables, process)
        if (process, kept.run_id) == before:
            fake_worker.fail({f"{run}/timer": ("measured", "hang")})

    before = (1, orders(one)[1][place - 1]) if place else (0, orders(one)[0][-1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Results, "keep_timings", keep)
        assert isinstance(stop_when(one, lambda one: begun in one.events), StoppedError)
    assert one.named("run_interrupted") == [run]
    kept = {path: path.read_bytes() for path in one.results.folder.glob("*/timings*.json")}
    assert len(kept) == len(RUNS) + place
    fake_worker.fail({})
    again = session(THREE)
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert timed(again) == all_stages(again)[len(RUNS) + place :]
    assert {path: path.read_bytes() for path in kept} == kept
    assert [stage for stage in again.events[0]["predicted_s"][run]] == ["timer-1", "timer-2", "nsys"]
    assert again.events[0]["timed"] == 0


def fail_in_process(monkeypatch, fake_worker, run, process, fault):
    """The fault happens in one process of a run alone."""
    time_run = gpu_executor.GpuExecutor.time

    def time(executor, timed, number, position, passage):
        mine = (timed.run_id, number) == (run, process)
        fake_worker.fail({f"{run}/timer": fault} if mine else {})
        time_run(executor, timed, number, position, passage)

    monkeypatch.setattr(gpu_executor.GpuExecutor, "time", time)


def test_out_of_memory_in_a_later_process_is_the_end_of_the_run_and_says_in_which(session, fake_worker, monkeypatch):
    fail_in_process(monkeypatch, fake_worker, RUNS[1], 1, ("measured", "oom"))
    one = session(THREE)
    assert one.run() == dict.fromkeys(RUNS, "ok") | {RUNS[1]: "oom"}
    record = one.record(RUNS[1])
    detail = record["status_detail"]
    assert (detail["collector"], detail["process"], detail["phase"]) == ("timer", 1, "backward")
    assert len(record["timed"]) == 1 and "timings.json" in record["files"]
    assert (RUNS[1], "timer-2") not in timed(one)
    assert len(timed(one)) == PROCESSES * len(RUNS) - 1


def test_a_process_that_somebody_killed_is_measured_again_and_the_others_stay(session, fake_worker, monkeypatch):
    with monkeypatch.context() as patched:
        fail_in_process(patched, fake_worker, RUNS[2], 1, ("measured", "killed"))
        first = session(THREE)
        assert first.run() == dict.fromkeys(RUNS, "ok") | {RUNS[2]: "machine"}
    folder = first.results.folder / RUNS[2]
    kept = (folder / "timings.json").read_bytes()
    fake_worker.fail({})
    again = session(THREE)
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert timed(again) == [(RUNS[2], "timer-1"), (RUNS[2], "timer-2")]
    assert (folder / "timings.json").read_bytes() == kept


def test_what_another_protocol_measured_is_measured_again(session):
    first = session({"context_length": [8], "mode": ["forward"]})
    first.run()
    path = first.results.folder / RUNS[0] / "run.json"
    rewrite(path, protocol_version=1)
    again = session({"context_length": [8], "mode": ["forward"]})
    again.run()
    assert again.named("run_started") == [RUNS[0]]


def test_status_tells_by_how_many_processes_a_run_was_timed(session, tiny, tmp_path, monkeypatch):
    one = session(THREE)
    last = orders(one)[1][0]
    keep_timed = Results.keep_timed

    def stop(results, run, record):
        written = keep_timed(results, run, record)
        if len(record.timed) == 2:
            one.runner.stop()
        return written

    monkeypatch.setattr(Results, "keep_timed", stop)
    with pytest.raises(StoppedError):
        one.run()
    told = jobs("status", "--sweep", tiny(**THREE), "--results", tmp_path / "results").stdout.splitlines()
    states = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in told[: len(RUNS)]}
    assert states == {run: f"timed by {2 if run == last else 1} of 3 processes" for run in RUNS}
    assert told[-1] == "of 4 runs 0 timed, 0 profiled, 0 finished"


class FakeNvml:
    """Fake of NVML. `lacking`: the functions that this GPU does not support."""

    def __init__(self, monkeypatch, lacking=()):
        self.energy_mj = 1_000
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda gpu: "GPU-12345678-1234-1234-1234-123456789012",
            "nvmlDeviceGetClockInfo": lambda gpu, clock: {gpu_sampler.pynvml.NVML_CLOCK_SM: 1980}.get(clock, 3201),
            "nvmlDeviceGetTemperature": lambda gpu, sensor: 41,
            "nvmlDeviceGetPowerUsage": lambda gpu: 350_123,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x4 | 0x20 | 1 << 40,
            "nvmlDeviceGetTotalEnergyConsumption": self.read_energy,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(gpu_sampler.pynvml, name, self.refuse if name in lacking else answer)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def read_energy(self, gpu) -> int:
        self.energy_mj += 500
        return self.energy_mj

    def refuse(self, *_):
        raise gpu_sampler.pynvml.NVMLError(gpu_sampler.pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def with_gpu(monkeypatch):
    """Have sensors read GPU 0, though workers are on the CPU."""
    sensor = gpu_sampler.GpuSensor
    monkeypatch.setattr(gpu_executor, "GpuSensor", lambda gpus, salt, **part: sensor([0], salt))


def recorded(one, tmp_path) -> store.Recording:
    ingest(one.results.folder, tmp_path / "recording")
    return store.load(tmp_path / "recording")


ONE_RUN = {"context_length": [8], "mode": ["forward"], "profiled_steps": 0, "processes": 2}


def test_telemetry_of_each_process_is_recorded(session, tmp_path, monkeypatch, with_gpu):
    FakeNvml(monkeypatch)
    one = session(ONE_RUN)
    assert one.run() == {RUNS[0]: "ok"}
    rec = recorded(one, tmp_path)
    assert rec.processes["process"].tolist() == [0, 1] and set(rec.processes["position"]) == {0}
    assert rec.processes["energy_mj"].tolist() == [500, 500]
    assert rec.processes["energy_steps"].tolist() == [10, 10]
    assert rec.processes["host_loop_ns"].tolist() == [50_000_000] * 2
    assert set(rec.processes["not_read"]) == {""}
    (gpu,) = rec.processes["gpu_id"].astype(str).unique()
    assert len(gpu) == 16 and "12345678" not in gpu
    sample = rec.telemetry.iloc[0]
    assert (sample["sm_clock_mhz"], sample["memory_clock_mhz"], sample["temperature_celsius"]) == (1980, 3201, 41)
    assert (sample["power_mw"], sample["throttle_reasons"]) == (350_123, "sw_power_cap-sw_thermal_slowdown-bit40")
    for _, rows in rec.telemetry.groupby("process"):
        assert [moment for moment in rows["moment"].astype(str) if moment != "busy"] == ["before", "after"]
    assert "GPU-1234" not in "".join(path.read_text() for path in one.results.folder.rglob("*.json"))


def test_what_nvml_does_not_say_is_null_with_its_reason(session, tmp_path, monkeypatch, with_gpu):
    FakeNvml(monkeypatch, lacking=("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"))
    one = session(ONE_RUN)
    one.run()
    rec = recorded(one, tmp_path)
    assert rec.processes[["energy_mj", "energy_steps", "energy_wall_ns"]].isna().all(axis=None)
    assert set(rec.processes["not_read"]) == {"energy_mj: Not Supported; power_mw: Not Supported"}
    assert rec.telemetry["power_mw"].isna().all() and (rec.telemetry["sm_clock_mhz"] == 1980).all()
    assert rec.telemetry["moment"].astype(str).tolist() == ["before", "after"] * 2


def test_without_a_gpu_there_is_no_telemetry_and_the_processes_are_recorded_all_the_same(session, tmp_path):
    one = session(ONE_RUN | {"seed": 3})
    one.run()
    rec = recorded(one, tmp_path)
    assert rec.telemetry.empty
    assert set(rec.processes["not_read"]) == {"NVML: no GPU is used"}
    assert rec.processes["gpu_id"].isna().all() and rec.processes["cpu_cores"].min() >= 1
    steps = rec.steps[rec.steps["phase"].astype(str) == "step"]
    assert steps[["process", "step"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert set(steps["issue_ns"]) == {600}
    expected = {"protocol_version": [2], "processes": [2], "seed": [3], "warmup_steps": [2], "measured_steps": [2]}
    assert rec.manifest["protocol"] == expected | {"profiled_steps": [0]}


def test_the_salt_is_one_for_all_that_is_measured_into_a_folder(tmp_path):
    one, two = Results(tmp_path, "a"), Results(tmp_path, "b")
    assert one.salt() == one.salt() == Results(tmp_path, "a").salt() != two.salt()


def test_a_profiled_run_has_steps_of_all_processes_and_of_nsys(session, tmp_path):
    one = session({"context_length": [8], "mode": ["forward"], "processes": 2})
    assert one.run() == {RUNS[0]: "ok"}
    steps = recorded(one, tmp_path).steps
    assert steps.groupby(["collector", "process"], observed=True)["step"].nunique().to_dict() == {
        ("nsys", 0): 3,
        ("timer", 0): 2,
        ("timer", 1): 2,
    }
    assert steps[steps["collector"].astype(str) == "nsys"]["issue_ns"].isna().all()
    assert json.loads((one.results.folder / RUNS[0] / "run.json").read_text())["processes"] == 2
