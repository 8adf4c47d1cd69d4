"""The first ten minutes of a user, in clean containers of Ubuntu 22.04 and 24.04. README's line that installs is kept;
only the place of the packages is another one."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from tests.image.conftest import CACHE, ROOT
from tests.image.engine import Engine, shown
from tests.image.package_repository import package_repository

pytestmark = [pytest.mark.image, pytest.mark.nightly]

ARCHIVE = "https://archive.ubuntu.com/ubuntu"
LOCKED = ("base", "site", "gpu")
BASE_PYTHON = os.path.realpath(sys.executable)


@dataclass(frozen=True)
class Ubuntu:
    """A release, and the Python that its `python3` is."""

    codename: str
    version: str
    python: str


JAMMY, NOBLE = Ubuntu("jammy", "22.04", "3.10"), Ubuntu("noble", "24.04", "3.12")
AS_USER = """echo /python/lib >/etc/ld.so.conf.d/python.conf && ldconfig &&
exec setpriv --reuid=1000 --regid=1000 --clear-groups "$@"
"""
"""What root does before the user comes: another Python finds its library."""


def make_release(ubuntu: Ubuntu) -> Path:
    """A release as its archive has it, with Python. It is kept."""
    if not shutil.which("mmdebstrap"):
        pytest.skip("the image was not tested: no mmdebstrap to make Ubuntu's")
    system = CACHE / f"{ubuntu.codename}.tar"
    if not system.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        packages = "python3,python3-pip,python3-venv,gpgv,ca-certificates"
        options = ["--variant=apt", "--dpkgopt=force-unsafe-io", f"--include={packages}"]
        # Debian has no package of the archive's keys: its certificate is what shows that it is Ubuntu's.
        suites = (ubuntu.codename, f"{ubuntu.codename}-updates")
        sources = [f"deb [trusted=yes] {ARCHIVE} {suite} main universe" for suite in suites]
        draft = system.with_suffix(".draft.tar")
        code, said = shown(["mmdebstrap", *options, ubuntu.codename, str(draft), *sources])
        if code:
            pytest.skip(f"Ubuntu's archive gives no {ubuntu.codename}: {said[-300:]}")
        draft.rename(system)
    return system


def import_release(engine: Engine, ubuntu: Ubuntu) -> str:
    """The name of the image of a release."""
    image = f"profiler-job-test:{ubuntu.codename}"
    engine.output("import", make_release(ubuntu), image)
    return image


def as_user(*command: str) -> tuple[str, ...]:
    """A command of user 1000, as the engine runs it."""
    return ("sh", "-c", AS_USER, "sh", *command)


def download(python: str, target: Path) -> bool:
    """Put the wheels of the program and of all it needs for a version of Python into a folder; return whether torch is
    among them, in the build that this environment has."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--no-deps"]
    command += ["--python-version", python, "--dest", str(target)]
    locked = [f"--requirement={ROOT / 'requirements' / name}.txt" for name in LOCKED]
    for wanted in (["--require-hashes", *locked], ["uv"]):
        code, said = shown([*command, *wanted])
        assert code == 0, said
    build_wheel(target)
    version = metadata.version("torch")
    return "+" in version and shown([*command, f"torch=={version}"])[0] == 0  # one of CUDA takes gigabytes


def build_wheel(target: Path) -> None:
    """Put the wheel of what is committed into a folder. It is built from a copy: a build leaves files behind."""
    source = target.parent / "source"
    source.mkdir()
    committed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "--exclude=*.parquet", "-C", source], input=committed, check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    code, said = shown([*build, "--wheel-dir", str(target), str(source)])
    assert code == 0, said


@pytest.mark.parametrize(
    ("ubuntu", "own"),
    [(JAMMY, False), (NOBLE, False), (NOBLE, True)],
    ids=["22.04", "24.04", "24.04 with its Python"],
)
def test_the_first_minutes_of_a_user(engine: Engine, ubuntu, own, tmp_path):
    """own: with the release's Python, or with one that uv would fetch; this machine's Python takes its place."""
    image = import_release(engine, ubuntu)
    wheels, home = tmp_path / "wheels", tmp_path / "home"
    home.mkdir()
    os.chown(home, 1000, 1000)
    python, program = ubuntu.python, f"python{ubuntu.python}"
    options = ["-e", "HOME=/home/user", "-e", "COLUMNS=80"]
    if not own:
        python, program = f"{sys.version_info.major}.{sys.version_info.minor}", f"/python/bin/{Path(BASE_PYTHON).name}"
        options += ["-v", f"{sys.base_prefix}:/python:ro"]
        code, _ = engine("run", "--rm", *options, image, *as_user(program, "-c", "import ctypes, lzma, sqlite3, ssl"))
        if code:
            pytest.skip(f"the Python of this machine does not run on Ubuntu {ubuntu.version}")
    has_torch = download(python, wheels)
    mounts = [(wheels, "/wheels"), (ROOT / "tests" / "data" / "h200_parquetdir", "/captures")]
    mounts += [(ROOT / "tests" / "image" / "first_minutes.sh", "/first_minutes.sh")]
    options += [option for source, place in mounts for option in ("-v", f"{source}:{place}:ro")]
    options += ["-v", f"{home}:/home/user"]
    extras = "site,gpu" if has_torch else "site"
    with package_repository(tmp_path, importer=True, distribution=f"ubuntu{ubuntu.version.replace('.', '')}") as signed:
        script = as_user("/first_minutes.sh", program, extras, signed["NSYS_REPOSITORY"], signed["NSYS_KEY"])
        code, said = engine("run", "--rm", "--network=host", *options, image, *script)
    assert code == 0, said[-3000:]
    assert ("== All as expected" if has_torch else "== As expected, but without torch") in said
    assert said.count("Traceback") == (0 if has_torch else 1)  # of the user's own script
    assert "no NVIDIA GPU is visible" in said and "`profiler-job install-nsys` installs it" in said
    assert "is signed by" in said and "installed: /home/user/" in said
    assert "collects, but cannot make a report" in said
    if not has_torch:
        assert f"uv tool install --python {python} 'profiler-job[site,gpu]'" in said
        pytest.skip(
            f"no script and no sweep was measured on Ubuntu {ubuntu.version}: there is no CPU build of torch"
            f" {metadata.version('torch')} for Python {python}; the rest passed"
        )


def test_an_older_python_is_refused_by_pip_with_the_version_that_would_do(engine: Engine, tmp_path):
    image, wheels = import_release(engine, JAMMY), tmp_path / "wheels"
    build_wheel(wheels)
    run = ("run", "--rm", "--network=none", "-v", f"{wheels}:/wheels:ro", image, "python3", "-m", "pip", "install")
    code, said = engine(*run, "--no-deps", *(f"/wheels/{wheel.name}" for wheel in wheels.iterdir()))
    assert code != 0 and JAMMY.python in said and ">=3.11" in said
