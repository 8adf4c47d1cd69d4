"""The built wheel works on its own: in an environment that has its dependencies and not this checkout."""

import os
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from pathspec import GitIgnoreSpec

from tests.capture.profiles import NAMES, profile

ROOT = Path(__file__).parents[1]
SOURCES = "profiler_job/site_sources/"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(
        ROOT / "src", folder / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    for name in ("jobs", "analysis", "site"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "data", "report"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder / "dist",
        folder,
    ]
    subprocess.run(command, check=True)
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory):
    """profiler-job as installed from the wheel; the dependencies are those that run this test."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, wheel], check=True)
    # Only this path: what is installed there in development mode is not followed.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "profiler-job"


def run(command, *arguments, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, cwd=folder, env=environment)


def test_every_package_and_every_template_is_in_the_wheel(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"profiler_job/{path.relative_to(ROOT)}"
        for side in ("jobs", "analysis")
        for path in (ROOT / side).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert not wanted - held


def test_the_sources_of_the_site_are_in_the_wheel_without_recordings_and_what_is_generated(wheel):
    held = {name.removeprefix(SOURCES) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(SOURCES)}
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    excluded = GitIgnoreSpec.from_lines([*settings["exclude_docs"].splitlines(), "/data/", "/report/", "/index.md"])
    site = {path.relative_to(ROOT / "site").as_posix() for path in (ROOT / "site").rglob("*") if path.is_file()}
    assert held == {"mkdocs.yml", *(f"site/{name}" for name in excluded.match_files(site, negate=True))}


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.long) for name in NAMES[1:])])
def test_the_installed_program_shows_a_real_export(command, tmp_path, name):
    done = run(command, "show", profile(name), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Kernel families" in done.stdout


@pytest.mark.long
def test_the_installed_program_is_the_wheels_and_plans_the_default_sweep(command, tmp_path):
    where = run(
        command.with_name("python"),
        "-c",
        "from profiler_job import analysis, jobs; print(jobs.__file__)",
        folder=tmp_path,
    )
    assert str(command.parents[1]) in where.stdout
    done = run(command, "plan", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "60 runs" in done.stdout
