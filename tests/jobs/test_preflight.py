"""The checks before a sweep: each one that fails says what to do."""

from types import SimpleNamespace

import pynvml
import pytest

from jobs import preflight
from jobs.failures import CollectorError
from jobs.memory import predicted_memory_bytes
from jobs.plan import DEFAULT_SWEEP, load_sweep

RUNS = load_sweep(DEFAULT_SWEEP).runs
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
    assert preflight.visible_gpus() == []
    assert preflight.check_gpu_memory(RUNS).state == preflight.check_other_processes().state == "failed"


def test_an_idle_gpu_is_ok(monkeypatch):
    FakeNvml(monkeypatch)
    assert preflight.check_gpu().found == "NVIDIA H200"
    assert preflight.check_gpu_memory(RUNS).state == preflight.check_other_processes().state == "ok"
    assert preflight.visible_gpus() == [0]


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


def test_idle_workers_of_nsys_take_memory_too(monkeypatch):
    run = RUNS[0]
    FakeNvml(monkeypatch, free=predicted_memory_bytes(run) + 10**8)
    assert preflight.check_gpu_memory([run]).state == "warning"
    assert preflight.check_gpu_memory([run], with_nsys=False).state == "ok"


@pytest.mark.parametrize("visible, expected", [("2,3", [0, 1]), ("", []), ("GPU-x", [0])])
def test_visible_gpus_are_counted_as_cuda_counts_them(monkeypatch, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert preflight.visible_gpus() == expected


def test_a_disk_too_small_for_the_predicted_output_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=GIB))
    assert preflight.check_disk(tmp_path / "new" / "folder", RUNS).state == "failed"
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=100 * GIB))
    assert preflight.check_disk(tmp_path / "new" / "folder", RUNS).state == "ok"


def test_a_folder_that_cannot_be_written_names_the_user_and_the_fix(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: False)
    monkeypatch.setattr(preflight.os, "getuid", lambda: 1234)
    check = preflight.check_writable(tmp_path / "results")
    assert check.state == "failed"
    assert "1234" in check.found + check.fix
    assert "--user" in check.fix


def test_nsys_is_asked_to_make_a_report(stand_in_nsys):
    check = preflight.check_nsys()
    assert (check.state, "stand-in" in check.found) == ("ok", True)


def test_an_nsys_without_importer_is_found_out(monkeypatch):
    monkeypatch.setattr(preflight, "nsys", lambda *arguments: "version 1")
    check = preflight.check_nsys()
    assert check.state == "failed"
    assert "importer" in check.found + check.fix


def test_no_nsys_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    check = preflight.check_nsys()
    assert check.state == "failed"
    assert "nsight-systems-cli" in check.fix


def test_a_torch_without_cuda_is_found_out():
    torch = pytest.importorskip("torch")
    if torch.version.cuda:
        pytest.skip("this torch is built for CUDA")
    check = preflight.check_torch()
    assert check.state == "failed"
    assert "without CUDA" in check.found
    assert "CUDA build of torch" in check.fix


def test_on_a_cpu_nothing_of_a_gpu_is_checked(stand_in_nsys, tmp_path):
    names = {check.name for check in preflight.checks(tmp_path, RUNS[:1], "cpu")}
    assert names >= {"results folder", "disk", "nsys"}
    assert not names & {"GPU", "torch", "GPU memory", "other processes"}


def test_where_no_step_is_profiled_nsys_is_not_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "nsys" not in {check.name for check in preflight.checks(tmp_path, RUNS[:1], "cpu", with_nsys=False)}


def test_every_check_that_fails_says_what_to_do(no_gpu, monkeypatch, tmp_path):
    def missing(*arguments):
        raise CollectorError("nsys is not on PATH")

    monkeypatch.setattr(preflight, "nsys", missing)
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: False)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    failed = [check for check in preflight.checks(tmp_path, RUNS) if check.state == "failed"]
    assert len(failed) >= 6
    assert all(check.found and check.fix for check in failed)
