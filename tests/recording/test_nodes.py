"""A run with ranks on several machines: a capture of each, one recording, and no result that mixes two clocks."""

import json
from pathlib import Path

import pytest

from profiler_job.analysis.metrics.exchange import communication_of
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ResultsError, ingest
from profiler_job.analysis.recording.merge import merge
from profiler_job.jobs.contract.integrity import add_digest, read_all_facts
from profiler_job.jobs.contract.layout import SCHEMA_VERSION
from tests.capture.nsys_files import Export

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
LATER = 7_000_000
"""Offset of the second machine's clock."""


def capture(rank: int, world: int = 2) -> Export:
    export, zero = Export(), rank * LATER
    export.push(f"modules:rank {rank} of {world}", zero + 5, zero + 6)
    for start in (zero + 100, zero + 1100):
        export.push("step", start, start + 900)
        export.push("backward", start + 10, start + 800)
        export.launch(start + 30, start=start + 40, end=start + 140, name="gemm")
        export.launch(start + 50, start=start + 150, end=start + 350 + 50 * rank, name=NCCL)
    return export


def add_node(results: Path, rank: int, **changes) -> Path:
    """What `profile` leaves on the machine of a rank."""
    folder = results / f"train-node-{rank}"
    run = folder / folder.name
    run.mkdir(parents=True)
    capture(rank).sqlite(run / "profile.sqlite")
    steps = [{"rank": rank, "step": step, "phase": "step", "wall_ns": 900 + rank} for step in (0, 1)]
    (run / "timings.json").write_text(json.dumps({"steps": steps, "memory": [], "figures": []}))
    record = {
        "schema_version": SCHEMA_VERSION,
        "run_id": folder.name,
        "status": "ok",
        "run": {"size": "Net", "gpus": 2, "mode": "train_step", "workload": "script"},
        "machine": {"gpu_name": "H200"},
        "profiled_steps": 2,
        "shared_id": "a1",
        "started_at": f"2026-11-24T16:00:0{rank}+00:00",
        "files": {name: facts.model_dump() for name, facts in read_all_facts(run.iterdir()).items()},
    }
    (run / "run.json").write_text(json.dumps(add_digest(record | changes)))
    (folder / "sweep.json").write_text(json.dumps({"sweep": folder.name, "script": True, "runs": [folder.name]}))
    return folder


def test_what_two_machines_measured_is_one_run_with_the_ranks_of_both(tmp_path):
    nodes = [add_node(tmp_path, rank) for rank in (1, 0)]
    merged = merge(nodes, tmp_path / "train")
    assert (merged.sweep, merged.runs, merged.missing) == ("train", ["train"], {})
    ingest(tmp_path / "train", tmp_path / "recording")
    rec = store.load(tmp_path / "recording")
    assert rec.runs[["run_id", "status"]].astype(str).values.tolist() == [["train", "ok"]]
    kernels = rec.kernels.sort_values(["rank", "start_ns"])
    assert kernels["rank"].tolist() == kernels["node"].tolist() == [0] * 4 + [1] * 4
    of_rank = [kernels.loc[kernels["rank"] == rank, "start_ns"].tolist() for rank in (0, 1)]
    assert of_rank[0] == of_rank[1], "each counts from its own first step"
    ranges = rec.ranges.set_index("range_id")
    assert ranges.index.is_unique and ranges.groupby("rank")["thread"].nunique().tolist() == [1, 1]
    assert (ranges.loc[kernels["range_id"], "rank"].to_numpy() == kernels["rank"].to_numpy()).all()
    inner = ranges[ranges["parent_id"] >= 0]
    assert (ranges.loc[inner["parent_id"], "rank"].to_numpy() == inner["rank"].to_numpy()).all()
    timed = rec.steps[rec.steps["collector"].astype(str) == "timer"]
    assert timed["wall_ns"].tolist() == [900, 900, 901, 901]


def test_of_two_machines_nothing_is_said_of_waiting(tmp_path):
    merge([add_node(tmp_path, rank) for rank in (0, 1)], tmp_path / "train")
    ingest(tmp_path / "train", tmp_path / "recording")
    rec = store.load(tmp_path / "recording")
    row = communication_of(rec.kernels, rec.runs).iloc[0]
    assert row["unknown"] == "the ranks are on 2 machines, each with a clock of its own"
    assert row[["waiting_ns", "transfer_ns"]].isna().all() and row["exposed_ns"] == (200 + 250) / 2


def test_of_one_of_two_machines_neither(tmp_path):
    ingest(add_node(tmp_path, 0), tmp_path / "recording")
    rec = store.load(tmp_path / "recording")
    assert communication_of(rec.kernels, rec.runs)["unknown"].tolist() == [
        "1 of 2 ranks are here, and the clocks of the others' machines are not known"
    ]


@pytest.mark.parametrize(
    "ranks, changes, said",
    [
        ([0, 1], {"shared_id": "b2"}, "are not said to be of one run"),
        ([0, 1], {"shared_id": ""}, "are not said to be of one run"),
        ([0], {}, "no folder has rank 1"),
        ([0, 1], {"machine": {"gpu_name": "H100"}}, "different versions"),
        ([0, 1], {"files": {"profile.sqlite": {"bytes": 1, "sha256": ""}}}, "copy it again"),
    ],
)
def test_what_is_not_all_of_one_run_is_not_joined(tmp_path, ranks, changes, said):
    nodes = [add_node(tmp_path, rank, **changes if rank == 1 else {}) for rank in ranks]
    with pytest.raises(ResultsError, match=said):
        merge(nodes, tmp_path / "train")
    assert not (tmp_path / "train").exists()


def test_a_rank_that_two_machines_have_is_not_recorded(tmp_path):
    nodes = [add_node(tmp_path / str(copy), 0) for copy in (1, 2)]
    with pytest.raises(ResultsError, match="both have rank 0"):
        merge(nodes, tmp_path / "train")
    run = nodes[0] / nodes[0].name
    capture(0).sqlite(run / "profile-1.sqlite")
    ingest(nodes[0], tmp_path / "recording")
    runs = store.load(tmp_path / "recording").runs
    assert runs["status_message"].tolist() == ["captures of several machines have the same rank"]


def test_nsyss_own_sums_are_those_of_all_machines(tmp_path):
    folder = add_node(tmp_path, 0)
    for name, calls in (("nvtx_kern_sum.csv", 3), ("nvtx_kern_sum-1.csv", 4)):
        lines = ["NVTX Range,Kernel Name,Kern Inst,Total Time (ns)", f":step,gemm,{calls},{100 * calls}"]
        (folder / folder.name / name).write_text("\n".join(lines))
    capture(1).sqlite(folder / folder.name / "profile-1.sqlite")
    ingest(folder, tmp_path / "recording")
    sums = store.load(tmp_path / "recording").nsys_sums
    assert sums[["calls", "total_ns"]].values.tolist() == [[7, 700]]
    (folder / folder.name / "nvtx_kern_sum-1.csv").unlink()
    ingest(folder, tmp_path / "of-one-machine")
    assert store.load(tmp_path / "of-one-machine").nsys_sums.empty
