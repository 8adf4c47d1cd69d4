"""Shards become the results that one machine would have written, and nothing is lost or doubled in silence."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording.ingest import ResultsError
from profiler_job.analysis.recording.merge import merge
from profiler_job.jobs.contract.outputs import TargetError

AXES = {"size": ["small"], "context_length": [128, 256], "mode": ["forward", "train_step"], "batch_size": 4}
PLAN = {"sweep": "default", **AXES, "custom_sizes": {}, "warmup_steps": 5}
RUNS = [f"small-ctx{length}-{mode}" for length in AXES["context_length"] for mode in AXES["mode"]]


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1))


def add_run(shard, run_id, **changes):
    _, length, mode = run_id.split("-")
    run = {"size": "small", "context_length": int(length[3:]), "mode": mode, "batch_size": 4}
    record = {"run_id": run_id, "status": "ok", "run": run, "machine": {"gpu_name": "H200"}, "warmup_steps": 5}
    write(shard / run_id / "run.json", record | changes)
    write(shard / run_id / "timings.json", {"steps": [run_id]})
    (shard / run_id / "profile.sqlite").write_text(f"capture of {run_id}")


@pytest.fixture
def sweep(tmp_path):
    """A sweep in two shards: the first and the last run, and the two between."""
    folder = tmp_path / "results" / "default"
    for index, runs in ((1, [RUNS[0], RUNS[3]]), (2, RUNS[1:3])):
        shard = folder / f"shard-{index}-of-2"
        write(shard / "sweep.json", PLAN | {"runs": runs, "runs_of_all_shards": RUNS})
        (shard / "lock").write_text("pid 1 on secret-host")
        for run_id in runs:
            add_run(shard, run_id)
    (folder.parent / "raw" / "default" / "shard-1-of-2").mkdir(parents=True)
    return folder


def test_the_merged_folder_is_what_one_machine_writes(sweep, tmp_path):
    said = []
    merged = merge([sweep], tmp_path / "merged", said.append)
    assert (merged.runs, merged.missing, merged.copies, said) == (RUNS, {}, {}, [])
    assert json.loads((tmp_path / "merged" / "sweep.json").read_text()) == PLAN | {"runs": RUNS}
    assert sorted(path.name for path in (tmp_path / "merged").iterdir()) == sorted([*RUNS, "sweep.json", "merged.json"])
    for run_id in RUNS:
        assert (tmp_path / "merged" / run_id / "profile.sqlite").read_text() == f"capture of {run_id}"


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "endless"])
def test_what_is_no_file_is_not_copied(sweep, tmp_path, plant):
    plant(sweep / "shard-1-of-2" / RUNS[0] / "more.csv")
    with pytest.raises(ResultsError, match=r"more\.csv is not a file"):
        merge([sweep], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_shards_are_found_from_any_folder_above_and_each_only_once(sweep, tmp_path):
    shards = sorted(sweep.glob("shard-*"))
    for number, given in enumerate(([sweep.parent], [sweep], shards, shards[::-1], [sweep, *shards])):
        assert merge(given, tmp_path / str(number)).runs == RUNS


def test_a_run_that_no_shard_finished_is_missing(sweep, tmp_path):
    (sweep / "shard-1-of-2" / RUNS[0] / "run.json").unlink()
    said = []
    merged = merge([sweep], tmp_path / "merged", said.append)
    assert merged.runs == RUNS[1:]
    assert list(merged.missing) == RUNS[:1]
    assert "shard-1-of-2 began it and did not finish" in said[0]
    assert not (tmp_path / "merged" / RUNS[0]).exists()


def test_a_run_whose_capture_was_not_copied_is_missing(sweep, tmp_path):
    add_run(sweep / "shard-1-of-2", RUNS[0], profiled_steps=3)
    assert merge([sweep], tmp_path / "whole").missing == {}
    (sweep / "shard-1-of-2" / RUNS[0] / "profile.sqlite").unlink()
    missing = merge([sweep], tmp_path / "cut").missing
    assert list(missing) == [RUNS[0]] and "profile.sqlite is not there" in missing[RUNS[0]]
    add_run(sweep / "shard-1-of-2", RUNS[0], profiled_steps=0)
    (sweep / "shard-1-of-2" / RUNS[0] / "profile.sqlite").unlink()
    assert merge([sweep], tmp_path / "timed").missing == {}


def test_a_shard_that_is_not_given_is_missing_with_all_its_runs(sweep, tmp_path):
    merged = merge([sweep / "shard-2-of-2"], tmp_path / "merged")
    assert merged.runs == RUNS[1:3]
    assert list(merged.missing) == [RUNS[0], RUNS[3]]


def test_equal_copies_are_kept_once_and_told(sweep, tmp_path):
    shutil.copytree(sweep / "shard-1-of-2" / RUNS[0], sweep / "shard-2-of-2" / RUNS[0])
    said = []
    merged = merge([sweep], tmp_path / "merged", said.append)
    assert (merged.runs, list(merged.copies)) == (RUNS, RUNS[:1])
    assert "2 equal copies, kept once" in said[0]


@pytest.mark.parametrize("name", ["run.json", "timings.json", "profile.sqlite"])
def test_two_measurements_of_a_run_are_an_error_that_names_both(sweep, tmp_path, name):
    copy = sweep / "shard-2-of-2" / RUNS[0]
    shutil.copytree(sweep / "shard-1-of-2" / RUNS[0], copy)
    (copy / name).write_text((copy / name).read_text() + "\n")
    with pytest.raises(ResultsError) as raised:
        merge([sweep], tmp_path / "merged")
    assert all(text in str(raised.value) for text in ("shard-1-of-2", "shard-2-of-2", RUNS[0], name))
    assert not (tmp_path / "merged").exists()


def test_a_run_left_over_from_an_earlier_sweep_is_missing(sweep, tmp_path):
    add_run(sweep / "shard-1-of-2", RUNS[0], warmup_steps=7)
    merged = merge([sweep], tmp_path / "merged")
    assert "another warmup_steps" in merged.missing[RUNS[0]]


def test_a_record_of_another_version_merges_and_a_file_that_is_none_is_named(sweep, tmp_path):
    file = sweep / "shard-1-of-2" / RUNS[0] / "run.json"
    record = json.loads(file.read_text())
    write(file, record | {"run": record["run"] | {"sliding_window": 64}, "a_new_key": 1})
    assert merge([sweep], tmp_path / "merged").runs == RUNS
    write(file, {"run": {}})
    with pytest.raises(ResultsError) as raised:
        merge([sweep], tmp_path / "merged")
    assert str(file) in str(raised.value) and "status: Field required" in str(raised.value)


def test_a_run_outside_the_sweep_is_left_out_and_told(sweep, tmp_path):
    add_run(sweep / "shard-1-of-2", "small-ctx512-forward")
    said = []
    assert merge([sweep], tmp_path / "merged", said.append).runs == RUNS
    assert "small-ctx512-forward" in said[0] and "not in the sweep" in said[0]


def test_shards_of_different_sweeps_do_not_merge(sweep, tmp_path):
    plan = PLAN | {"warmup_steps": 9, "runs": RUNS[1:3], "runs_of_all_shards": RUNS}
    write(sweep / "shard-2-of-2" / "sweep.json", plan)
    with pytest.raises(ResultsError, match=r"differ in warmup_steps"):
        merge([sweep], tmp_path / "merged")


@pytest.mark.parametrize("fact", ["driver", "cuda", "torch", "nsys", "commit"])
def test_shards_of_different_versions_are_refused_or_told(sweep, tmp_path, fact):
    for run_id in RUNS[1:3]:
        add_run(sweep / "shard-2-of-2", run_id, machine={"gpu_name": "A100", fact: "2"})
    for run_id in (RUNS[0], RUNS[3]):
        add_run(sweep / "shard-1-of-2", run_id, machine={"gpu_name": "H200", fact: "1"})
    different = ["gpu_name: H200 (2 runs), A100 (2 runs)", f"{fact}: 1 (2 runs), 2 (2 runs)"]
    with pytest.raises(ResultsError) as refused:
        merge([sweep], tmp_path / "merged")
    assert f"different versions ({'; '.join(different)})" in str(refused.value) and "--allow-mix" in str(refused.value)
    assert not (tmp_path / "merged").exists()
    said = []
    assert merge([sweep], tmp_path / "merged", said.append, allow_mix=True).runs == RUNS
    assert said == [f"shards were measured with different {one}" for one in different]


def test_several_machines_with_the_same_versions_are_no_mix(sweep, tmp_path):
    add_run(sweep / "shard-1-of-2", RUNS[0], machine={"gpu_name": "H200", "python": "3.12.3", "gpu_memory_bytes": 1})
    said = []
    assert merge([sweep], tmp_path / "merged", said.append).runs == RUNS
    assert said == [
        "shards were measured with different gpu_memory_bytes: unknown (3 runs), 1 (1 run)",
        "shards were measured with different python: unknown (3 runs), 3.12.3 (1 run)",
    ]


def test_only_what_a_merge_wrote_is_replaced(sweep, tmp_path):
    out = tmp_path / "merged"
    merge([sweep / "shard-2-of-2"], out)
    merge([sweep], out)
    assert (out / RUNS[0]).is_dir()
    (out / "merged.json").unlink()
    with pytest.raises(TargetError):
        merge([sweep], out)
    with pytest.raises(ResultsError, match="holds the shards themselves"):
        merge([sweep], sweep)


@pytest.mark.parametrize(("damage", "code"), [(None, 0), ("missing", 1), ("conflict", 2), ("nothing", 2), ("mix", 2)])
def test_exit_codes(sweep, tmp_path, damage, code):
    if damage == "missing":
        (sweep / "shard-1-of-2" / RUNS[0] / "run.json").unlink()
    if damage == "conflict":
        add_run(sweep / "shard-2-of-2", RUNS[0], wall_s=1)
    if damage == "mix":
        add_run(sweep / "shard-1-of-2", RUNS[0], machine={"gpu_name": "A100"})
    given = tmp_path if damage == "nothing" else sweep
    done = CliRunner().invoke(app, ["merge", str(given), "--out", str(tmp_path / "merged")])
    assert done.exit_code == code, done.output
    if damage == "mix":
        done = CliRunner().invoke(app, ["merge", str(given), "--out", str(tmp_path / "merged"), "--allow-mix"])
        assert done.exit_code == 0, done.output
