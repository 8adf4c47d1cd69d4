"""A recording divides a step's time as `show` divides the capture that it is made from."""

import re

import pandas as pd
import pytest

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight import gpu_limit, run_limit
from profiler_job.analysis.insight.finding_lines import describe_findings
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.metrics import timing
from profiler_job.analysis.reference import kernel_families
from tests.capture.nsys_files import Export
from tests.synthetic import recording

FFMA = "ampere_sgemm_128x64_tn"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
US = 1_000


@pytest.fixture
def export() -> Export:
    """A step with late launches, a queue, copies next to and between kernels, communication, and a graph."""
    export = Export()
    export.push("step", 0, 900 * US)
    for number, phase in enumerate(("forward", "backward")):
        at = 400 * US * number
        export.push(phase, at, at + 300 * US)
        for call in range(10):
            launch, start = at + call * 20 * US, at + call * 20 * US + (5 * US if call < 7 else 40 * US)
            export.launch(launch, start=start, end=start + 15 * US, name=FFMA if call % 2 else NCCL)
        call = export.call(at + 210 * US, at + 230 * US, name="cudaGraphLaunch")
        for lag in (30, 45):
            export.kernel(at + (210 + lag) * US, at + (220 + lag) * US, call, name=FFMA)
        call = export.call(at + 250 * US, at + 251 * US, name="cudaMemcpyAsync")
        export.copy(at + 262 * US, at + 290 * US, call)
    return export


def _recorded(capture, attribution) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of a recording, as far as they are needed here."""
    frames = []
    for name in ("kernels", "memops"):
        place = getattr(attribution, name)[["launch_ns", "launch_end_ns", "step", "phase"]]
        frames.append(getattr(capture, name).join(place).rename(columns={"process": "rank"}).assign(run_id="run"))
    kernels, memops = frames
    family = kernels["kernel_name"].map(kernel_families.find_family)
    return kernels.assign(family=family), memops.drop(columns=["launch_end_ns", "host_memory"])


def test_a_recording_and_its_capture_have_the_same_parts(export, tmp_path):
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    attribution = attribute(capture)
    of_capture = summarise(capture, attribution).sections["verdict_phases"].set_index("phase")
    rows = run_limit.split_steps(*_recorded(capture, attribution)).set_index("phase")
    assert list(rows.index) == ["forward", "backward"]
    assert (of_capture.loc[rows.index, list(run_limit.PARTS)] == rows[list(run_limit.PARTS)]).all(axis=None)
    assert (rows[["late_launch_ns", "between_ns", "communication_ns", "copies_ns"]] > 0).all(axis=None)
    assert (rows[list(run_limit.PARTS)].sum(axis=1) == rows["elapsed_ns"]).all()


def test_a_recording_and_its_capture_have_the_same_findings(export, tmp_path):
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    attribution = attribute(capture)
    in_capture = summarise(capture, attribution).sections["findings"]
    found = run_limit.find(*_recorded(capture, attribution))
    assert {"fp32_gemms", "communication", "host_to_device"} <= set(found["kind"])
    both = in_capture[in_capture["kind"].isin(found["kind"])].reset_index(drop=True)
    columns = ["kind", "time_ns", "share", "of", "count"]
    assert found[columns].equals(both[columns])
    assert set(in_capture["kind"]) - set(found["kind"]) <= {
        "idle",
        "waiting_calls",
        "allocation_calls",
        "loading_calls",
        "tiny_kernels",
    }


def test_a_synchronisation_counts_as_launched_late(export, tmp_path):
    export.call(300 * US, 390 * US, name="cudaDeviceSynchronize")
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    attribution = attribute(capture)
    of_capture = summarise(capture, attribution).sections["verdict"].iloc[0]
    rows = run_limit.split_steps(*_recorded(capture, attribution))
    assert of_capture["sync_ns"] > 0
    assert rows["late_launch_ns"].sum() == of_capture["late_launch_ns"] + of_capture["sync_ns"]
    assert rows["elapsed_ns"].sum() == of_capture["elapsed_ns"] - of_capture["no_work_ns"]


def test_gpus_of_a_run_are_numbered_by_rank_and_each_step_stands_alone(export, tmp_path):
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    kernels, memops = _recorded(capture, attribute(capture))
    later = {"start_ns": 10**9, "end_ns": 10**9, "launch_ns": 10**9}
    once = run_limit.split_steps(kernels, memops)
    both = [pd.concat([frame, frame.assign(rank=frame["rank"] + 1)]) for frame in (kernels, memops)]
    of_ranks = run_limit.split_steps(*both)
    assert of_ranks["gpu"].tolist() == [0, 0, 1, 1]
    assert of_ranks.loc[of_ranks["gpu"] == 1].drop(columns="gpu").to_dict("list") == once.drop(columns="gpu").to_dict(
        "list"
    )
    twice = [
        pd.concat([frame, frame.assign(step=1, **{name: frame[name] + by for name, by in later.items()})])
        for frame in (kernels.assign(launch_end_ns=kernels["launch_ns"]), memops)
    ]
    assert run_limit.split_steps(*twice)["elapsed_ns"].tolist() == once["elapsed_ns"].tolist()


def test_the_busy_parts_are_what_gpu_busy_is():
    rec = recording(("small",), (128, 512))
    rows = run_limit.split_steps(rec.kernels, rec.memops)
    gpu = timing.gpu_times(rec.kernels, rec.memops)
    mean = gpu[gpu["phase"] == "step"].groupby("run_id")[["busy_ns", "projected_ns"]].mean()
    of_runs = rows.groupby("run_id")[["elapsed_ns", *run_limit.PARTS]].sum()
    assert of_runs[[*run_limit.BUSY]].sum(axis=1).to_dict() == pytest.approx(mean["busy_ns"].to_dict())
    assert of_runs["elapsed_ns"].to_dict() == pytest.approx(mean["projected_ns"].to_dict())


def test_findings_of_a_run_are_described_in_one_step():
    """Attention took 747 ms in a step of 790 ms: that was the sum over its five profiled steps."""
    lines = []
    for num_profiled in (1, 4):
        rec = recording(("small",), (128,), ("train_step",), num_profiled=num_profiled)
        found = run_limit.find(rec.kernels, rec.memops)
        assert (found["num_steps"] == num_profiled).all()
        lines.append(describe_findings(found))
    numbers = [[re.findall(r"\d+ kernels|per step: \d+|: (\d+) in|(\d+) times", line) for line in of] for of in lines]
    assert numbers[0] and numbers[0] == numbers[1]
    assert all(" a step" in line for line in lines[1])


def test_an_operation_of_unknown_launch_has_no_cause(export, tmp_path):
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    kernels, memops = _recorded(capture, attribute(capture))
    lost = kernels.assign(launch_ns=kernels["start_ns"], launch_end_ns=kernels["start_ns"])
    rows = run_limit.split_steps(lost, memops)
    assert rows["unknown_idle_ns"].sum() > 0 and set(run_limit.PARTS) < set(gpu_limit.PARTS)


def test_a_run_without_operations_has_no_rows():
    rec = recording(("small",), (128,))
    assert run_limit.split_steps(rec.kernels.head(0), rec.memops.head(0)).empty
    assert run_limit.find(rec.kernels.head(0), rec.memops.head(0)).empty
