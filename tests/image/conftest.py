"""The image is tested by `make test-image` (pytest -m image -s tests/image), not by a plain pytest: it needs a
container engine and some minutes."""

import os
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.image.engine import Engine, NoEngineError, an_engine, shown

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "test-image"
IMAGE = "profiler-job:test"
SYSTEM_PYTHON = Path("/usr/bin/python3")


def pytest_configure(config):
    config.addinivalue_line("markers", "image: needs a container engine; run by `make test-image`")


def pytest_collection_modifyitems(config, items):
    if "image" not in config.option.markexpr:
        leave_out(config, items, "image", "tests of the image were not run: make test-image runs them")


@pytest.fixture(scope="session")
def engine():
    try:
        with an_engine() as engine:
            engine("version")
            yield engine
    except NoEngineError as error:
        pytest.skip(f"the image was not tested: {error}")


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """The image to build upon: TEST_IMAGE_BASE, or this machine's own Debian release with the packages this machine's
    pip finds, so that nothing is pulled from a registry of images."""
    if "TEST_IMAGE_BASE" in os.environ:
        return os.environ["TEST_IMAGE_BASE"]
    if not shutil.which("mmdebstrap"):
        pytest.skip("the image was not tested: no mmdebstrap to make a base image; give one with TEST_IMAGE_BASE")
    folder = CACHE / "base"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ThreadPoolExecutor() as pool:  # one waits for the network where the other reads and checks wheels
        wheels = pool.submit(download_wheels, folder / "wheels")
        engine.output("import", make_system(), "profiler-job-test:system")
        wheels.result()
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    (folder / "Dockerfile").write_text(
        "FROM profiler-job-test:system\nCOPY wheels /wheels\nCOPY pip.conf /etc/pip.conf\n"
    )
    engine.output("build", "--progress=plain", "-t", "profiler-job-test:base", folder)
    return "profiler-job-test:base"


def make_system() -> Path:
    """This machine's own Debian release as an archive, which is kept. Packages are unpacked without a sync to the disk
    for each file, there and in what is built upon it."""
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    system = CACHE / f"{codename}.tar"
    if not system.exists():
        draft = system.with_suffix(".draft.tar")
        options = ["--variant=apt", "--components=main", "--dpkgopt=force-unsafe-io"]
        code, _ = shown(["mmdebstrap", *options, codename, str(draft)])
        assert code == 0
        draft.rename(system)
    return system


def download_wheels(target: Path) -> None:
    """What the image installs, for the Python of this machine's Debian; torch as this environment has it."""
    kept = CACHE / "wheels"
    _, version = shown([str(SYSTEM_PYTHON), "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"])
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--no-deps"]
    download += ["--python-version", version.strip(), "--find-links", str(kept), "--dest", str(kept)]
    locked = [f"--requirement={ROOT / 'requirements' / name}.txt" for name in ("base", "site", "gpu", "hf")]
    for wanted in (["--require-hashes", *locked], [f"torch=={metadata.version('torch')}"]):
        code, said = shown([*download, *wanted])
        assert code == 0, said
    shutil.copytree(kept, target, copy_function=os.link)


def build(engine: Engine, base_image: str, tag: str, **arguments: str) -> tuple[int, str]:
    """Build the committed Dockerfile."""
    options = [f"--build-arg={name}={value}" for name, value in ({"BASE_IMAGE": base_image} | arguments).items()]
    file = ROOT / "docker" / "Dockerfile"
    return engine("build", "--progress=plain", "--network=host", "-f", file, "-t", tag, *options, ROOT)


@pytest.fixture(scope="session")
def image(engine: Engine, base_image: str) -> str:
    """The image, without nsys (NVIDIA's repository need not be reachable) and with whatever torch this machine has."""
    code, _ = build(engine, base_image, IMAGE, TORCH="torch", NSYS_PACKAGE="", PROFILER_COMMIT="0123456789ab")
    assert code == 0
    engine("image", "ls", IMAGE)
    engine("history", IMAGE)
    return IMAGE
