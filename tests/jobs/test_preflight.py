"""The checks before a sweep: each one that fails says what to do."""

import re
import socket
from contextlib import nullcontext
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import pynvml
import pytest

from profiler_job.jobs.contract import extras
from profiler_job.jobs.executor import preflight
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.memory import predict_memory_bytes
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep

SWEEP = load_sweep(DEFAULT_SWEEP)
RUNS, PROTOCOL = SWEEP.runs, SWEEP.protocol
GIB = 2**30


class FakeNvml:
    """One GPU: used and free memory in bytes, pids of the processes on it."""

    def __init__(self, monkeypatch, used=0, free=140 * GIB, pids=()):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 0,
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=used, free=free, total=used + free),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid) for pid in pids],
        }.items():
            monkeypatch.setattr(pynvml, name, lambda *_, value=value: value)


@pytest.fixture
def no_gpu(monkeypatch):
    def fail(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_without_a_gpu_the_check_says_what_docker_needs(no_gpu):
    check = preflight.check_gpu()
    assert check.state == "failed"
    assert "--gpus all" in check.fix
    assert preflight.find_visible_gpus() == []
    assert preflight.check_gpu_memory(RUNS).state == preflight.check_other_processes().state == "failed"


@pytest.mark.long
def test_an_idle_gpu_is_ok(monkeypatch):
    FakeNvml(monkeypatch)
    assert preflight.check_gpu().found == "NVIDIA H200"
    assert preflight.check_gpu_memory(RUNS).state == preflight.check_other_processes().state == "ok"
    assert preflight.find_visible_gpus() == [0]


def test_a_busy_gpu_is_a_warning(monkeypatch):
    FakeNvml(monkeypatch, used=8 * GIB, pids=[123])
    assert preflight.check_gpu_memory(RUNS).state == "warning"
    assert "8.0 GiB in use" in preflight.check_gpu_memory(RUNS).found
    assert "123" in preflight.check_other_processes().found


def test_runs_that_will_not_fit_are_named(monkeypatch):
    FakeNvml(monkeypatch, free=80 * GIB)
    check = preflight.check_gpu_memory(RUNS)
    assert check.state == "warning"
    assert "2.7B-ctx1024-fp32-naive-train_step" in check.found
    assert "small" not in check.found


def test_of_many_shapes_the_most_demanding_are_looked_at(monkeypatch):
    monkeypatch.setattr("profiler_job.jobs.memory.QUICK_S", 0.2)
    FakeNvml(monkeypatch, free=80 * GIB)
    found = preflight.check_gpu_memory(RUNS).found
    assert re.search(r"predicted for the [1-9]\d? most demanding of 60 different shapes; .* not to fit: ", found), found
    assert "2.7B-ctx1024-fp32-naive-train_step" in found


def test_of_many_runs_that_will_not_fit_some_are_named(monkeypatch):
    monkeypatch.setattr(preflight, "MOST_NAMED", 2)
    FakeNvml(monkeypatch, free=GIB)
    assert preflight.check_gpu_memory(RUNS).found.endswith("small-ctx128-fp32-naive-forward_backward and 58 more")


def test_idle_workers_of_nsys_take_memory_too(monkeypatch):
    run = RUNS[0]
    FakeNvml(monkeypatch, free=predict_memory_bytes(run) + 10**8)
    assert preflight.check_gpu_memory([run]).state == "warning"
    assert preflight.check_gpu_memory([run], with_nsys=False).state == "ok"


@pytest.mark.parametrize("visible, expected", [("2,3", [0, 1]), ("", []), ("GPU-x", [0])])
def test_visible_gpus_are_counted_as_cuda_counts_them(monkeypatch, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert preflight.find_visible_gpus() == expected


class Gpus:
    """Four GPUs of a machine, each of its own name; handles are their indices."""

    def __init__(self, monkeypatch):
        for name, value in {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 4,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid.removeprefix("GPU-")),
            "nvmlDeviceGetName": lambda handle: f"GPU {handle}",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=handle * 10 * GIB, free=140 * GIB),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=100 + handle)] * handle,
        }.items():
            monkeypatch.setattr(pynvml, name, value)


@pytest.mark.parametrize(
    "visible, names, state",
    [("2,3", "GPU 2, GPU 3", "warning"), ("GPU-2, 0", "GPU 2, GPU 0", "warning"), ("0", "GPU 0", "ok")],
)
def test_the_gpus_that_are_checked_are_those_that_cuda_sees(monkeypatch, visible, names, state):
    Gpus(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert preflight.check_gpu().found == names
    assert preflight.check_gpu_memory(RUNS).state == preflight.check_other_processes().state == state


def test_of_several_gpus_only_those_that_are_used_are_checked(monkeypatch):
    Gpus(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert preflight.check_gpu_memory(RUNS, gpus=1).state == preflight.check_other_processes(1).state == "ok"
    assert preflight.check_gpu_memory(RUNS).state == preflight.check_other_processes().state == "warning"


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_gpus_that_are_hidden_from_cuda_are_not_there(monkeypatch, visible):
    Gpus(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert preflight.find_visible_gpus() == []
    check = preflight.check_gpu()
    assert check.state == preflight.check_gpu_memory(RUNS).state == "failed"
    assert "CUDA_VISIBLE_DEVICES" in check.fix


def free_bytes(monkeypatch, free: float) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_a_disk_too_small_for_the_predicted_output_fails(monkeypatch, tmp_path):
    free_bytes(monkeypatch, GIB / 4)
    assert preflight.check_disk(tmp_path / "new" / "folder", RUNS, PROTOCOL).state == "failed"
    no_capture = PROTOCOL.model_copy(update={"profiled_steps": 0})
    assert preflight.check_disk(tmp_path / "new" / "folder", RUNS, no_capture).state == "ok"
    free_bytes(monkeypatch, 10 * GIB)
    assert preflight.check_disk(tmp_path / "new" / "folder", RUNS, PROTOCOL).state == "ok"


def test_a_temporary_folder_too_small_for_captures_in_progress_fails(monkeypatch):
    free_bytes(monkeypatch, 10 * 2**20)
    check = preflight.check_temporary(RUNS, PROTOCOL)
    assert check.state == "failed"
    assert "TMPDIR" in check.fix
    assert preflight.check_temporary(RUNS, PROTOCOL.model_copy(update={"profiled_steps": 0})).state == "ok"


@pytest.mark.parametrize("extra, state", [(0, "ok"), (1, "failed")])
def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_fails(monkeypatch, tmp_path, extra, state):
    """A real socket tells."""
    length = preflight.LONGEST_TEMPORARY + extra
    folder = tmp_path / ("x" * (length - len(str(tmp_path)) - 1))
    folder.mkdir()
    monkeypatch.setattr(preflight, "gettempdir", lambda: str(folder))
    assert preflight.check_temporary(RUNS, PROTOCOL).state == state
    path = Path(mkdtemp(prefix="profiler-", dir=folder)) / "socket"
    with socket.socket(socket.AF_UNIX) as listener, nullcontext() if state == "ok" else pytest.raises(OSError):
        listener.bind(str(path))


def test_a_folder_that_cannot_be_written_names_the_user_and_the_fix(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: False)
    monkeypatch.setattr(preflight.os, "getuid", lambda: 1234)
    check = preflight.check_writable(tmp_path / "results")
    assert check.state == "failed"
    assert "1234" in check.found + check.fix
    assert "--user" in check.fix


def test_a_read_only_container_without_a_mount_needs_one(monkeypatch, tmp_path):
    folder = tmp_path / "results"
    monkeypatch.setenv(preflight.RESULTS_OF_IMAGE, str(folder))
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: False)
    check = preflight.check_writable(folder)
    assert check.state == "failed" and '-v "$PWD/results:/results"' in check.fix


def test_a_folder_of_the_sweep_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    results = Results(tmp_path, "default", "shard-1-of-2")
    (tmp_path / "raw").mkdir()
    assert preflight.check_writable(*results.written).state == "ok"
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: path.name != "raw")
    check = preflight.check_writable(*results.written)
    assert check.state == "failed" and f"{tmp_path / 'raw'} is not writable" in check.found


def test_nsys_is_asked_to_make_a_report(fake_nsys):
    check = preflight.check_nsys()
    assert (check.state, "(fake)" in check.found) == ("ok", True)


def test_an_nsys_without_importer_is_found_out(monkeypatch):
    monkeypatch.setattr(preflight, "run_nsys", lambda *arguments: "version 1")
    check = preflight.check_nsys()
    assert check.state == "failed"
    assert "importer" in check.found + check.fix


def test_no_nsys_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    check = preflight.check_nsys()
    assert check.state == "failed"
    assert "install-nsys" in check.fix


@pytest.mark.long
def test_a_torch_without_cuda_is_found_out():
    torch = pytest.importorskip("torch")
    if torch.version.cuda:
        pytest.skip("needs a torch that is built without CUDA")
    check = preflight.check_torch()
    assert check.state == "failed"
    assert "without CUDA" in check.found
    assert "CUDA build of torch" in check.fix


def test_a_cuda_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(preflight, "TORCH_TIMEOUT_S", 0.01)
    check = preflight.check_torch()
    assert check.state == "failed"
    assert "does not answer" in check.found
    assert "nvidia-smi" in check.fix


def test_on_a_cpu_nothing_of_a_gpu_is_checked(fake_nsys, tmp_path):
    names = {check.name for check in preflight.run_checks(Results(tmp_path, "default"), RUNS[:1], PROTOCOL, "cpu")}
    assert names >= {"results folder", "disk", "nsys"}
    assert not names & {"GPU", "torch", "GPU memory", "other processes"}


def test_on_a_cpu_too_torch_has_to_be_installed(fake_nsys, monkeypatch, tmp_path):
    monkeypatch.setitem(extras.MODULES, "gpu", ("no_such_module",))
    found = preflight.run_checks(Results(tmp_path, "default"), RUNS[:1], PROTOCOL, "cpu")
    (failed,) = (check for check in found if check.state == "failed")
    assert failed.name == "torch" and failed.fix == extras.install_command("gpu")


def test_where_no_step_is_profiled_nsys_is_not_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nonexistent")
    no_capture = PROTOCOL.model_copy(update={"profiled_steps": 0})
    assert "nsys" not in {
        check.name for check in preflight.run_checks(Results(tmp_path, "default"), RUNS[:1], no_capture, "cpu")
    }


def test_every_check_that_fails_says_what_to_do(no_gpu, monkeypatch, tmp_path):
    def missing(*arguments):
        raise CollectorError("nsys is not on PATH")

    monkeypatch.setattr(preflight, "run_nsys", missing)
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: False)
    free = {tmp_path: 0}
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, GIB)))
    failed = [
        check for check in preflight.run_checks(Results(tmp_path, "default"), RUNS, PROTOCOL) if check.state == "failed"
    ]
    assert len(failed) >= 6
    assert all(check.found and check.fix for check in failed)
