"""Whatever is installed is pinned by what it holds, and the lock files agree with pyproject.toml."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKED = {file.stem: file.read_text() for file in sorted((ROOT / "requirements").glob("*.txt"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]
EXTRAS = PROJECT["project"]["optional-dependencies"]


def locked(name: str) -> dict[str, str]:
    """The versions of a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCKED[name], re.MULTILINE))


@pytest.mark.parametrize("name", LOCKED)
def test_every_package_has_hashes(name):
    entries = re.sub(r"\s*\\\n\s+", " ", LOCKED[name]).splitlines()
    packages = [entry for entry in entries if not entry.lstrip().startswith("#")]
    assert packages
    assert not [entry for entry in packages if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["base"], DEPENDENCIES),
        (["site"], EXTRAS["site"]),
        (["torch"], EXTRAS["gpu"]),
        (["hf"], EXTRAS["hf"]),
        (["hf", "dev"], EXTRAS["dev"]),
    ],
)
def test_what_pyproject_asks_for_is_locked_in_a_version_it_allows(names, wanted):
    versions = {package: version for name in names for package, version in locked(name).items()}
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version and version in requirement.specifier, f"{requirement}: {version} is locked; run make lock"


def test_the_lock_files_agree():
    versions = {package for name in LOCKED for package in locked(name).items()}
    assert len(versions) == len(dict(versions))
    others = {package for name in LOCKED if name != "dev" for package in locked_everywhere(name)}
    assert not others & {*locked("dev")}, "it is installed with the others"


def locked_everywhere(name: str) -> list[str]:
    """The packages that a lock file has for all platforms."""
    return re.findall(r"^([a-z0-9-]+)==[^ ;]+ \\$", LOCKED[name], re.MULTILINE)


def test_what_is_needed_everywhere_is_locked_for_all_platforms():
    """colorama, say: typer needs it on Windows only, and what builds the site on every platform."""
    assert "colorama" in locked("base") and "colorama" not in locked_everywhere("base")
    assert "colorama" in locked_everywhere("site")


def test_the_files_that_are_installed_side_by_side_share_no_package():
    """Two programs that write one package may leave half of it. Windows cannot run the Makefile."""
    on_windows = re.findall(r"^([a-z0-9-]+)==\S+ ; sys_platform == 'win32'", LOCKED["base"], re.MULTILINE)
    assert {*locked("base")} & {*locked("site")} <= {*on_windows}


def test_what_continuous_integration_installs_has_hashes():
    """pip and pipx take lock files alone, npm its own, and images are named with a digest, or by the Dockerfile's."""
    files = [ROOT / ".ci" / "run", *(ROOT / ".github" / "workflows").glob("*.yml")]
    text = "\n".join(line.partition("# ")[0] for file in files for line in file.read_text().splitlines())
    assert not re.findall(r"\b(?:pipx?|npm) install .*|\bnpx .*|\bFROM (?!%s)[^@\s]+(?:\s|\\n).*", text)
    packages = json.loads((ROOT / ".ci" / "package-lock.json").read_text())["packages"]
    about = packages.pop("")
    assert packages and about["dependencies"] == json.loads((ROOT / ".ci" / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"sha512-[\w+/]{86}==", package["integrity"]) for package in packages.values())


def test_the_base_image_is_pinned_by_digest_and_the_key_of_nsys_by_fingerprint():
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    assert re.fullmatch(r"nvidia/cuda:[\w.-]+@sha256:[0-9a-f]{64}", arguments["BASE_IMAGE"])
    assert re.fullmatch(r"[0-9A-F]{40}", arguments["NSYS_KEY"])


@pytest.mark.parametrize(("answer", "pinned"), [(f"sha256:{'a' * 64}", True), ("", False)], ids=["digest", "nothing"])
def test_the_digest_that_the_registry_gives_is_written_into_the_dockerfile(tmp_path, answer, pinned):
    for name in ("Dockerfile", "pin_base_image.sh"):
        shutil.copy(ROOT / "docker" / name, tmp_path)
    before = (tmp_path / "Dockerfile").read_text()
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$*" >"$0.asked"\necho "{answer}"\n')
    docker.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "pin_base_image.sh"], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    tag = re.search(r"^ARG BASE_IMAGE=(.+)@", before, re.MULTILINE)[1]
    assert (tmp_path / "docker.asked").read_text().endswith(f" {tag}\n")
    assert (done.returncode == 0) == pinned
    expected = re.sub(r"^(ARG BASE_IMAGE=.+@).*", rf"\g<1>{answer}", before, flags=re.MULTILINE) if pinned else before
    assert (tmp_path / "Dockerfile").read_text() == expected
