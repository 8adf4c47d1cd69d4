"""The Kubernetes manifest keeps to the schema of the API and agrees with what the job expects."""

from pathlib import Path

import pytest
import yaml

from profiler_job.jobs.sweep.shards import detect_shard

MANIFEST = Path(__file__).parents[2] / "jobs" / "engines" / "kubernetes.yaml"
DOCUMENTS = {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}
SPEC = DOCUMENTS["Job"]["spec"]
POD = SPEC["template"]["spec"]
[CONTAINER] = POD["containers"]


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("version", ["1.31", "1.33", ""])
def test_it_keeps_to_the_schema_strictly(kind, version):
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    schemas.validate(DOCUMENTS[kind], version or schemas.latest_version(), strict=True)


def test_a_mistake_would_be_found():
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    wrong = {**DOCUMENTS["Job"], "spec": {**SPEC, "completion": 4}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, "1.33", strict=True)


def test_each_pod_finds_its_shard():
    environment = {one["name"]: one["value"] for one in CONTAINER["env"]}
    assert SPEC["completionMode"] == "Indexed"  # Kubernetes then sets JOB_COMPLETION_INDEX
    shards = [detect_shard(environment | {"JOB_COMPLETION_INDEX": str(index)}) for index in range(SPEC["completions"])]
    assert [(shard.index, shard.count) for shard, _ in shards] == [(i, SPEC["completions"]) for i in range(1, 5)]
    assert SPEC["parallelism"] <= SPEC["completions"]


def test_what_the_api_server_checks_beyond_the_schema():
    assert POD["restartPolicy"] == "Never"  # required by backoffLimitPerIndex and podFailurePolicy
    [codes] = [rule["onExitCodes"] for rule in SPEC["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert codes["containerName"] == CONTAINER["name"]
    assert codes["values"] == sorted(set(codes["values"])) and 0 not in codes["values"]
    volumes = {volume["name"] for volume in POD["volumes"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == volumes
    claims = {one["persistentVolumeClaim"]["claimName"] for one in POD["volumes"] if "persistentVolumeClaim" in one}
    assert claims == {DOCUMENTS["PersistentVolumeClaim"]["metadata"]["name"]}


def test_it_gets_one_gpu_and_no_privilege():
    assert CONTAINER["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert POD["securityContext"]["runAsNonRoot"] and CONTAINER["securityContext"]["capabilities"]["drop"] == ["ALL"]
    results = next(mount["mountPath"] for mount in CONTAINER["volumeMounts"] if mount["name"] == "results")
    assert CONTAINER["args"] == ["job", "--results", results]
