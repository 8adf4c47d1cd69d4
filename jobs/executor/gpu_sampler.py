"""The state of the machine while a process measures unprofiled steps: its CPU, the clocks, temperature and power of its
GPU, why that is slowed down, and the energy of a step. Read from outside the process, never while a step is timed.

All of it is optional: what cannot be read is None, and the row of the process says why.
"""

import hmac
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from profiler_job.jobs.contract.messages import Measured
from profiler_job.jobs.executor.machine import count_cores
from profiler_job.jobs.executor.visible_gpus import open_visible_handles
from profiler_job.jobs.sweep.prediction import BUSY_S

SAMPLE_S = 0.1

THROTTLE_REASONS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "gpu_idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "applications_clocks_setting",
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display_clock_setting",
}
"""The bits of NVML's mask, by their names in nvml.h (nvmlClocksEventReasons)."""

Row = dict[str, Any]


def decode_throttle_reasons(mask: int) -> str:
    """The reasons in a mask, joined by dashes; `none` where no bit is set, and a bit of no name by its number."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return "-".join(THROTTLE_REASONS.get(bit, f"bit{bit.bit_length() - 1}") for bit in bits) or "none"


READINGS: dict[str, Callable[[Any], int | str]] = {
    "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
    "temperature_celsius": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    "power_mw": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu),
    "throttle_reasons": lambda gpu: decode_throttle_reasons(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
}


class GpuSensor:
    """The GPUs of a run, read through NVML. `gpus`: their indices as CUDA counts them, none on the CPU.

    Energy is the sum over all GPUs; other readings are of the first. `gpu_id`: UUID of the first, hashed with a salt,
    so that a recording distinguishes its GPUs without identifying them. `problems`: why a reading failed, by name."""

    def __init__(self, gpus: Sequence[int], salt: str):
        self.problems: dict[str, str] = {}
        self.handles: list[Any] = []
        try:
            visible = open_visible_handles() if gpus else []
            self.handles = [visible[gpu] for gpu in gpus]
        except (pynvml.NVMLError, IndexError) as error:
            self.problems["NVML"] = str(error)
        if not gpus:
            self.problems["NVML"] = "no GPU is used"
        uuid = self.read("gpu_id", pynvml.nvmlDeviceGetUUID)
        self.gpu_id = uuid and hmac.digest(salt.encode(), str(uuid).encode(), "sha256").hex()[:16]
        self.busy_s = 0.0 if self.read_energy() is None else BUSY_S

    @property
    def handle(self) -> Any:
        """NVML handle of the first GPU, None without one."""
        return self.handles[0] if self.handles else None

    def read(self, name: str, ask: Callable[[Any], Any]) -> Any:
        """Return what NVML answers for the first GPU, or None."""
        try:
            return None if self.handle is None else ask(self.handle)
        except pynvml.NVMLError as error:
            self.problems[name] = str(error)
            return None

    def read_energy(self) -> int | None:
        """Return the energy of all GPUs since the driver was loaded, in mJ."""
        ask = pynvml.nvmlDeviceGetTotalEnergyConsumption
        energy_mj: int | None = self.read("energy_mj", lambda first: sum(map(ask, self.handles)))
        return energy_mj

    def sample(self) -> Row:
        """Return a value or None for each of READINGS."""
        return {name: self.read(name, ask) for name, ask in READINGS.items()}


class Watch:
    """Readings of the GPU while one process measures unprofiled steps. Call it with the events of `Collector.measure`;
    then `tables` has the rows. Use it in `with`: a thread samples while the GPU is kept busy."""

    def __init__(self, sensor: GpuSensor, position: int):
        self.sensor, self.position = sensor, position
        self.samples: list[Row] = []
        self.energy_mj: int | None = None
        self.started_at, self._started = datetime.now(UTC), time.monotonic_ns()
        self._energy_before: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_repeatedly, daemon=True)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def __call__(self, event: str) -> None:
        """Note an event. `ready`: the steps are about to be measured. `timed`: they were measured, and the GPU is about
        to be kept busy. `measured`: all is done."""
        if event == "ready":
            self._sample("before")
        elif event == "timed":
            self._sample("after")
            self._energy_before = self.sensor.read_energy()
            self._thread.start()
        else:
            energy = self.sensor.read_energy()
            if energy is not None and self._energy_before is not None:
                self.energy_mj = energy - self._energy_before
            if self._energy_before is None:
                self._sample("after")
            self._ended.set()

    def tables(self, measured: Measured) -> dict[str, list[Row]]:
        """Return the rows of the tables `processes` (one) and `telemetry`."""
        busy = measured.get("busy")
        row = {
            "position": self.position,
            "started_at": self.started_at.isoformat(timespec="milliseconds"),
            "cpu_model": read_cpu_model(),
            "cpu_cores": count_cores(),
            "host_loop_ns": measured.get("host_loop_ns"),
            "gpu_id": self.sensor.gpu_id,
            "energy_mj": self.energy_mj,
            "energy_steps": busy["steps"] if busy else None,
            "energy_wall_ns": busy["wall_ns"] if busy else None,
            "not_read": "; ".join(f"{name}: {why}" for name, why in self.sensor.problems.items()),
        }
        return {"processes": [row], "telemetry": self.samples}

    def _sample_repeatedly(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample("busy")

    def _sample(self, moment: str) -> None:
        if self.sensor.handle is not None:
            at_ns = time.monotonic_ns() - self._started
            self.samples.append({"moment": moment, "at_ns": at_ns, **self.sensor.sample()})


@cache
def read_cpu_model() -> str | None:
    """Return the name of the CPU; None if the system does not give it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
