"""Wherever the job starts in a container, it starts with the same few rights: in the documentation, in compose and in
the files of engines. `tests/image` runs it with them."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "site/guide/docker.md", "site/extend.md", "jobs/engines/skypilot.yaml")
HARDENED = {
    ("--read-only",),
    ("--tmpfs", "/tmp:exec"),
    ("--shm-size", "1g"),
    ("--cap-drop", "ALL"),
    ("--security-opt", "no-new-privileges"),
}
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["profiler-job"]
KUBERNETES = yaml.safe_load_all((ROOT / "jobs" / "engines" / "kubernetes.yaml").read_text())
POD = next(document["spec"]["template"]["spec"] for document in KUBERNETES if document["kind"] == "Job")


def find_commands(name: str) -> list[list[str]]:
    """Return the words of each `docker run` of a document, with the options of the array `hardened` in its place."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    if given := re.search(r"^hardened=\((.*)\)$", text, re.MULTILINE):
        text = text.replace('"${hardened[@]}"', given[1])
    return [shlex.split(command) for command in re.findall(r"^.*\bdocker run (.*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_command_takes_the_rights_away(name):
    commands = find_commands(name)
    assert commands
    for words in commands:
        given = {option for option in HARDENED if " ".join(option) in " ".join(words)}
        assert given == HARDENED, words
        assert "--gpus" in words


def test_no_other_document_has_a_command_of_its_own():
    written = [
        str(file.relative_to(ROOT))
        for pattern in ("*.md", "site/*.md", "site/guide/*.md", "jobs/engines/*")
        for file in ROOT.glob(pattern)
        if re.search(r"\bdocker run .*--gpus", file.read_text())
    ]
    assert sorted(written) == sorted(DOCUMENTS)


def test_compose_does_the_same():
    assert COMPOSE["read_only"] and COMPOSE["cap_drop"] == ["ALL"] and COMPOSE["tmpfs"] == ["/tmp:exec"]
    assert COMPOSE["security_opt"] == ["no-new-privileges:true"] and COMPOSE["shm_size"] == "1gb"


def test_a_pod_does_the_same():
    [container] = POD["containers"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert "emptyDir" in volumes[mounts["/tmp"]]


@pytest.mark.parametrize("name", ["kubernetes.yaml", "skypilot.yaml", "slurm.sbatch"])
def test_an_engine_says_how_to_name_the_image_by_its_digest(name):
    assert "profiler-job@sha256:" in (ROOT / "jobs" / "engines" / name).read_text()
