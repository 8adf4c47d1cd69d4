"""SkyPilot's own library accepts the task, and each of its nodes finds its shard."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from profiler_job.jobs.sweep.shards import Shard, detect_shard

FILE = Path(__file__).parents[2] / "jobs" / "engines" / "skypilot.yaml"
TASK = yaml.safe_load(FILE.read_text())

LOAD = """
import sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
[resources] = task.resources
storage = task.storage_mounts["/results"]
print(task.name, task.num_nodes, resources.use_spot, resources.accelerators, storage.mode.value, storage.name)
"""


def load(file, home):
    """Return what SkyPilot read, in a process with a temporary home: the library writes settings and logs there."""
    environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    return subprocess.run([sys.executable, "-c", LOAD, str(file)], env=environment, capture_output=True, text=True)


def test_skypilot_loads_the_task(tmp_path):
    pytest.importorskip("sky", reason="pip install skypilot")
    done = load(FILE, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = "profiler-job 2 True {'H100': 1} MOUNT_CACHED profiler-job-results"
    assert done.stdout.splitlines()[-1] == expected


def test_skypilot_would_find_a_mistake(tmp_path):
    pytest.importorskip("sky", reason="pip install skypilot")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(FILE.read_text().replace("use_spot: true", "use_spots: true"))
    done = load(wrong, tmp_path)
    assert done.returncode != 0 and "use_spots" in done.stderr


def test_each_node_finds_its_shard_inside_the_container():
    for name in ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"):
        assert f"--env {name}" in TASK["run"]
    for rank in range(TASK["num_nodes"]):
        environment = {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": str(TASK["num_nodes"])}
        assert detect_shard(environment) == (Shard(rank + 1, TASK["num_nodes"]), "SkyPilot")


def test_results_go_to_the_bucket():
    [(mount, storage)] = TASK["file_mounts"].items()
    assert f"--volume {mount}:/results" in TASK["run"] and storage["mode"] == "MOUNT_CACHED"
    assert subprocess.run(["bash", "-n", "-c", TASK["run"]]).returncode == 0
