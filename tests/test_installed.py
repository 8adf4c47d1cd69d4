"""The program works where it is installed, from a wheel or as an editable copy, outside any checkout: every command, in
a folder of a user that holds `jobs/` and `analysis/`, whatever is on PYTHONPATH."""

import gzip
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import yaml
from pathspec import GitIgnoreSpec

from profiler_job.__main__ import COMMANDS
from tests.capture.profiles import NAMES, profile
from tests.jobs.conftest import TINY, fake_nsys, fake_worker, without_pages
from tests.waiting import HANGS_S
from tests.without_compiler import WITHOUT_COMPILER

__all__ = ["fake_nsys", "fake_worker"]

ROOT = Path(__file__).parents[1]
SOURCES = "profiler_job/site_sources/"
FORMS = ("wheel", "editable")
CASES = {
    f"{form}, {'with' if package else 'without'} __init__.py, {'with' if on_path else 'without'} PYTHONPATH": (
        form,
        package,
        on_path,
    )
    for form, package, on_path in product(FORMS, (True, False), (True, False))
}
SITE = "site"
SCRIPT = f"""{WITHOUT_COMPILER}
import torch
import jobs.mine, analysis.mine
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
"""
"""A script that imports the user's own packages."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of what is built: a build leaves files behind. Recordings and what a report generates are not in it."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, folder)
    left_out = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", symlinks=True, ignore=left_out)
    for name in ("jobs", "analysis", "site"):
        left_out = shutil.ignore_patterns("__pycache__", "data", "report")
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    return folder


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def wheel(copy) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", copy / "dist", copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def install(copy, tmp_path_factory, request) -> Callable[[str], Path]:
    """install(form) gives the program in an environment of its own, with the dependencies of this one."""

    @cache
    def installed(form: str) -> Path:
        environment = tmp_path_factory.mktemp(form)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        (packages,) = environment.glob("lib/python*/site-packages")
        # Only this path: what is installed there in development mode is not followed.
        dependencies = Path(find_spec("pandas").origin).parents[1]
        (packages / "dependencies.pth").write_text(f"{dependencies}\n")
        sources = ["--editable", copy] if form == "editable" else [request.getfixturevalue("wheel")]
        python = environment / "bin" / "python"
        pip("--python", python, "install", "--no-deps", "--no-build-isolation", *sources)
        return environment / "bin" / "profiler-job"

    return installed


class User:
    """Somebody who works in a folder with packages `jobs` and `analysis`."""

    def __init__(self, folder: Path, command: Path, package: bool, on_path: bool):
        self.folder, self.command = folder, command
        for name in ("jobs", "analysis"):
            (folder / name).mkdir(parents=True)
            (folder / name / "mine.py").touch()
            for ours in ("cli", "contract", "worker", "site"):  # were these imported, the program would end
                (folder / name / f"{ours}.py").write_text("raise SystemExit('imported instead of ours')\n")
            if package:
                (folder / name / "__init__.py").touch()
        inherited = [path for path in [os.environ.get("PYTHONPATH", "")] if path]
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment["JUPYTER_PATH"] = f"{sys.prefix}/share/jupyter"  # templates of the shared dependencies
        if path := os.pathsep.join(["."] * on_path + inherited):
            self.environment["PYTHONPATH"] = path

    def run(self, *arguments: object) -> str:
        """Run the program to its end and return what it printed, on both streams. It must succeed."""
        done = subprocess.run(
            [self.command, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANGS_S,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}"
        assert "imported instead of ours" not in done.stdout
        return done.stdout


@pytest.fixture
def user(request, install, tmp_path) -> User:
    """Of a case of CASES, which the test names."""
    form, package, on_path = request.param
    return User(tmp_path / "mine", install(form), package, on_path)


def parametrize_cases(first: pytest.MarkDecorator | None, last: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Run a test for the first and the last case with a mark each, and for the others in the night."""
    marks = [pytest.mark.nightly] * len(CASES)
    marks[0], marks[-1] = first or (), last
    cases = [pytest.param(case, id=name, marks=mark) for (name, case), mark in zip(CASES.items(), marks)]
    return pytest.mark.parametrize("user", cases, indirect=True)


def test_every_package_and_every_template_is_in_the_wheel(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"profiler_job/{path.relative_to(ROOT)}"
        for side in ("jobs", "analysis")
        for path in (ROOT / side).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert not wanted - held
    assert "profiler_job/py.typed" in held


def test_the_sources_of_the_site_are_in_the_wheel_without_recordings_and_what_is_generated(wheel):
    held = {name.removeprefix(SOURCES) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(SOURCES)}
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    excluded = GitIgnoreSpec.from_lines([*settings["exclude_docs"].splitlines(), "/data/", "/report/", "/index.md"])
    site = {path.relative_to(ROOT / "site").as_posix() for path in (ROOT / "site").rglob("*") if path.is_file()}
    assert held == {"mkdocs.yml", *(f"site/{name}" for name in excluded.match_files(site, negate=True))}


@pytest.mark.nightly
def test_a_source_distribution_gives_the_same_wheel(copy, wheel, tmp_path):
    build = f"import setuptools.build_meta as build; build.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    (archive,) = tmp_path.glob("*.tar.gz")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, archive)
    (again,) = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize(("name", "label"), [("REPOSITORY_URL", "Repository"), ("SITE_URL", "Documentation"), ("", "")])
def test_addresses_come_from_the_environment_of_the_build(copy, monkeypatch, tmp_path, name, label):
    for other in ("REPOSITORY_URL", "SITE_URL"):
        monkeypatch.delenv(other, raising=False)
    if name:
        monkeypatch.setenv(name, "https://example.org/")
    build = f"import setuptools.build_meta as build; build.prepare_metadata_for_build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    (metadata,) = tmp_path.glob("*/METADATA")
    assert "Requires-Python: >=3.11\n" in metadata.read_text()  # pip ends with this line on an older one
    urls = [line for line in metadata.read_text().splitlines() if line.startswith("Project-URL")]
    assert urls == ([f"Project-URL: {label}, https://example.org/"] if name else [])


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_the_installed_program_is_that_of_its_environment(install, form, copy, tmp_path):
    command = install(form)
    show = "from profiler_job.jobs.contract.program import PACKAGE; print(PACKAGE)"
    done = subprocess.run([command.with_name("python"), "-c", show], cwd=tmp_path, capture_output=True, text=True)
    wanted = copy / "src" if form == "editable" else next(command.parents[1].glob("lib/python*/site-packages"))
    assert Path(done.stdout.strip()) == wanted / "profiler_job"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_it_shows_a_real_export(install, tmp_path, name):
    user = User(tmp_path / "mine", install("wheel"), package=True, on_path=True)
    assert "Kernel families" in user.run("show", profile(name))


@parametrize_cases(None, pytest.mark.long)
def test_it_reads_and_plans(user, tmp_path):
    capture = tmp_path / "mine" / "capture.sqlite"
    capture.write_bytes(gzip.decompress((ROOT / "tests" / "data" / "graph_node.sqlite.gz").read_bytes()))
    shutil.copy(capture, capture.with_name("again.sqlite"))
    assert "Kernel families" in user.run("show", "capture.sqlite")
    assert "again.sqlite" in user.run("compare", "capture.sqlite", "again.sqlite")
    assert "12 runs" in user.run("plan", "--only", "size=small")


@pytest.mark.parametrize("name", COMMANDS)
@parametrize_cases(pytest.mark.long, pytest.mark.nightly)
def test_every_command_has_help(user, name):
    assert "Usage" in user.run(name, "--help")


@parametrize_cases(pytest.mark.long, pytest.mark.nightly)
def test_a_job_measures_and_makes_its_site_which_can_be_built_again(fake_worker, user):
    sweep = TINY | {"context_length": [8], "mode": ["forward"]}
    (user.folder / "tiny.yaml").write_text(yaml.safe_dump(sweep))
    with without_pages(fake_worker.folder):
        user.run("job", "--device", "cpu", "--sweep", "tiny.yaml")
    page = user.folder / "results" / "site" / "index.html"
    assert "tiny" not in page.read_text()
    user.run(SITE)
    assert "tiny" in page.read_text()


@parametrize_cases(pytest.mark.long, pytest.mark.nightly)
def test_a_script_that_imports_packages_of_our_names_is_profiled_with_its_site(fake_nsys, user):
    (user.folder / "train.py").write_text(SCRIPT)
    user.run("profile", "--skip", "3", "--steps", "3", "--", sys.executable, "train.py")
    assert "A step takes" in (user.folder / "results" / "site" / "index.html").read_text()
