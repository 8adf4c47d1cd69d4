"""The image, built and run by a real engine. There is no GPU here: where a sweep runs, it runs on the CPU, with the
fake nsys mounted into the container."""

import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path

import pytest
import yaml

from tests.image.conftest import ROOT, build
from tests.image.engine import shown
from tests.image.package_repository import PACKAGE, package_repository
from tests.shipped.recordings import MANIFESTS, locate

pytestmark = pytest.mark.image

SWEEP = """
name: tiny
size: [tiny]
context_length: [16, 32, 48]
mode: [forward, train_step]
custom_sizes: {tiny: {d_model: 64, d_ff: 128, num_layers: 2, num_heads: 4}}
processes: 1
profiled_steps: 3
"""
COMMANDS = "\n".join((ROOT / name).read_text() for name in ("README.md", "site/guide/docker.md"))
HARDENED = tuple(
    shlex.split(re.search(r"--gpus all .*?(--read-only .*?no-new-privileges)", COMMANDS.replace("\\\n", ""))[1])
)
"""What README and the guide give to `docker run` in addition to the GPUs, the user and the results."""
FAKE_NSYS = (
    *("-v", f"{ROOT / 'tests' / 'fake_nsys'}:/fake-nsys/bin:ro", "-v", f"{ROOT / 'tests' / 'data'}:/fake-nsys/data:ro"),
    *("-e", "PATH=/fake-nsys/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"),
)


@pytest.fixture
def results(tmp_path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    return folder


@pytest.fixture
def sweep(tmp_path) -> tuple[str, ...]:
    """Options that mount a sweep that a CPU can run."""
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP)
    return "-v", f"{file}:/sweep.yaml:ro"


SCRIPTS = (
    "jobs/sweeps/ladder.sh",
    "tests/image/first_minutes.sh",
    "docker/pin_base_image.sh",
    "requirements/lock",
    "jobs/engines/slurm.sbatch",
    ".ci/run",
)
JOB_ON_CPU = ("job", "--device", "cpu", "--sweep", "/sweep.yaml")
ONE_RUN = ("--only", "context_length=16,mode=forward")


EXAMPLES = ("hugging_face.yaml", "nano_gpt.yaml", "triton_norm.yaml")


@pytest.fixture
def container(engine, image):
    """container(*options, command=(...)) runs the image with what the guide takes from it; returns exit code and
    output."""

    def run(*options, command=(), hardened=HARDENED):
        return engine("run", "--rm", "--network=none", *hardened, *options, image, *command)

    return run


def statuses(results: Path) -> dict[str, str]:
    return {file.parent.name: json.loads(file.read_text())["status"] for file in results.glob("tiny/*/run.json")}


def test_it_runs_as_a_user_asks_for_the_gpu_and_says_what_it_is(engine, image):
    config = json.loads(engine.output("image", "inspect", "--format", "{{json .Config}}", image))
    assert config["User"] == "1000:1000"
    assert config["Entrypoint"] == ["tini", "--", "profiler-job"]
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(config["Env"])
    assert "PROFILER_COMMIT=0123456789ab" in config["Env"]
    assert config["Labels"]["org.opencontainers.image.revision"] == "0123456789ab"


def test_the_program_is_installed_and_nothing_else_is_on_the_path(engine, image):
    show = "import sys, profiler_job; print(profiler_job.__file__, *sys.path[1:])"
    said = engine.output("run", "--rm", "--network=none", "--entrypoint", "python", image, "-c", show).split()
    assert said[0].startswith("/opt/venv/lib/") and not [path for path in said[1:] if path.startswith("/app")]


def test_it_holds_the_bytecode_of_what_it_imports(engine, image):
    """It could not be written where the file system is read-only."""
    show = "import importlib, os; names = ('profiler_job', 'torch', 'pandas', 'mkdocs.config')"
    show += "; print(*(os.path.isfile(importlib.import_module(name).__cached__) for name in names))"
    said = engine.output("run", "--rm", "--network=none", "--entrypoint", "python", image, "-c", show).split()
    assert said == ["True"] * 4


def test_a_folder_of_a_user_may_hold_folders_of_our_names(container, results, sweep, tmp_path):
    """One of them is a package, and the other is not."""
    mine = tmp_path / "mine"
    for name in ("jobs", "analysis"):
        (mine / name).mkdir(parents=True)
        (mine / name / "mine.py").touch()
    (mine / "jobs" / "__init__.py").write_text("raise SystemExit('of the user')")
    options = (*FAKE_NSYS, *sweep, "-v", f"{results}:/results", "-v", f"{mine}:/mine:ro")
    code, said = container(*options, "--workdir", "/mine", "-e", "PYTHONPATH=.", command=(*JOB_ON_CPU, *ONE_RUN))
    assert code == 0, said
    assert len(statuses(results)) == 1 and (results / "site" / "index.html").is_file()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_planned_with_their_memory(container, example):
    there = ("--workdir", "/examples")
    code, said = container(*there, command=["plan", "--sweep", example, "--only", "mode=forward"])
    assert code == 0
    runs = [line.rstrip() for line in said.splitlines() if "-forward-" in line]
    assert runs and all(re.search(r" \d+\.\d +n/a$", run) for run in runs), "memory of a simulation, and no time"


def test_triton_finds_what_it_compiles_with(engine, image):
    """For the kernels of torch.compile and of users it builds a module of Python's, where they run."""
    source = """import subprocess, sysconfig
options = ["-shared", "-fPIC", "-I", sysconfig.get_paths()["include"], "-x", "c", "-", "-o", "/tmp/built.so"]
subprocess.run(["gcc", *options], input=b"#include <Python.h>", check=True)"""
    engine.output("run", "--rm", "--network=none", *HARDENED, "--entrypoint", "python", image, "-c", source)


def test_the_options_of_the_guide_leave_no_right_and_memory_for_nccl(engine, image):
    """No capability and no way to get one, nothing that can be written but /tmp and the results, 1 GiB of shared
    memory."""
    writes = "touch /tmp/x && echo tmp; touch /app/x 2> /dev/null || echo closed"
    script = f"cat /proc/self/status; df -k /dev/shm | tail -n 1; {writes}"
    said = engine.output("run", "--rm", "--network=none", *HARDENED, "--entrypoint", "sh", image, "-c", script)
    held = dict(line.split(":\t") for line in said.splitlines() if line.startswith(("Cap", "NoNewPrivs")))
    assert held.pop("NoNewPrivs") == "1"
    assert len(held) == 5 and {int(capabilities, 16) for capabilities in held.values()} == {0}
    assert re.search(r" 1048576 +\d+ +\d+ +\d+% +/dev/shm$", said, re.MULTILINE)
    assert {"tmp", "closed"} <= set(said.splitlines())


def test_without_a_gpu_it_says_so_and_ends_with_69(container, results):
    code, said = container("-v", f"{results}:/results")
    assert code == 69
    assert "no NVIDIA GPU is visible" in said and "--gpus all" in said and "nvidia-container-toolkit" in said
    assert "install-nsys" in said
    assert "`profiler-job site --shipped`" in said
    assert not list(results.iterdir())


def test_it_holds_every_shipped_recording(engine, image):
    inside = engine.output(
        "run", "--rm", "--network=none", "--entrypoint", "find", image, "/app/site/data", "-name", "*.json"
    )
    assert {str(Path("/app") / file.relative_to(ROOT)) for file in MANIFESTS} <= set(inside.split())


def test_it_renders_the_shipped_recordings_without_a_gpu_in_a_read_only_container(container, results, tmp_path):
    """Of one, which takes seconds: `make run` renders them all."""
    shipped = tmp_path / "shipped"
    shutil.copytree(locate("memory"), shipped / "memory" / "memory")
    data = ("-v", f"{shipped}:/app/site/data:ro")
    code, _ = container(*data, "-v", f"{results}:/results", command=["site", "--shipped"])
    assert code == 0
    assert (results / "site" / "index.html").stat().st_uid == 1000
    assert "memory" in (results / "site" / "report" / "data.html").read_text()


def test_read_only_without_a_temporary_folder_says_what_to_add(container, results):
    code, said = container("--read-only", "-v", f"{results}:/results", hardened=())
    assert code == 69
    assert "--tmpfs /tmp" in said


def test_a_folder_the_user_cannot_write_is_refused_with_the_fix(container, tmp_path):
    folder = tmp_path / "root-only"
    folder.mkdir(mode=0o755)
    shutil.copytree(locate("memory"), folder / "recordings" / "memory")
    for command, code_wanted in ((), 69), (("site",), 74):
        code, said = container("-v", f"{folder}:/results", command=command)
        assert code == code_wanted
        assert "/results is not writable for user 1000:1000" in said and "--user $(id -u):$(id -g)" in said
    checks = ("doctor", "--device", "cpu")
    code, said = container("-v", f"{folder}:/results", *FAKE_NSYS, command=checks)
    assert code == 69 and "/results is not writable" in said
    code, said = container("-v", f"{folder}:/results", *FAKE_NSYS, "--user", "0:0", command=checks)
    assert code == 0 and "/results is writable" in said


def test_results_that_would_be_lost_with_the_container_are_pointed_out(container):
    code, said = container(command=["doctor"], hardened=())
    assert code == 69
    assert "lost with this container" in said and '-v "$PWD/results:/results"' in said
    code, said = container(command=["doctor"])  # nothing else can be written
    assert code == 69
    assert "/results is not writable" in said and '-v "$PWD/results:/results"' in said


def test_the_whole_job_with_the_fake_nsys_as_any_user_in_a_read_only_container(container, results, sweep, tmp_path):
    os.chown(results, 4321, 4321)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("processes: 1", "processes: 2"))
    options = ("--user", "4321:4321", *FAKE_NSYS, *sweep, "-v", f"{results}:/results")
    code, said = container(*options, command=(*JOB_ON_CPU, "--only", "context_length=16"))
    assert code == 0
    assert "(fake)" in said
    assert list(statuses(results).values()) == ["ok"] * 2
    assert len(list((results / "raw" / "tiny").glob("*.nsys-rep"))) == 2
    manifest = json.loads((results / "recordings" / "tiny" / "manifest.json").read_text())
    assert len(manifest["runs"]) == 2 and manifest["commit"] == "0123456789ab"
    assert "(fake)" in manifest["nsys"]
    assert (results / "site" / "index.html").is_file()
    assert (results / "site" / "data" / "main" / "tiny" / "kernels.parquet").is_file()
    assert sorted(path.name for path in results.iterdir()) == ["answers", "raw", "recordings", "site", "tiny"]


def wait_until(happened, engine, name: str) -> None:
    """However long it takes on a busy machine, but not longer than the container runs."""
    while not happened():
        assert engine.output("inspect", "--format", "{{.State.Running}}", name) == "true", engine("logs", name)
        time.sleep(1)


@pytest.fixture
def hold_captures(tmp_path) -> tuple[Path, tuple[str, ...]]:
    """A folder, and options that mount it: nsys captures one run, and no other while the file `closed` is there. It
    writes `reached` when it waits."""
    folder = tmp_path / "held"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "closed").touch()
    nsys = folder / "nsys"
    nsys.write_text(
        """#!/bin/sh
if [ "$1" = start ] && [ -e /held/closed ] && ! mkdir /held/first; then
  touch /held/reached; sleep 3600
fi
exec /fake-nsys/bin/nsys "$@"
"""
    )
    nsys.chmod(0o755)
    return folder, ("-v", f"{folder}:/held", "-e", "PATH=/held:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin")


def test_termination_in_mid_sweep_keeps_what_is_finished_and_marks_the_run_in_flight(
    engine, image, container, results, sweep, hold_captures
):
    """While it runs, another container that measures the same sweep into the same folder is refused."""
    folder, waits = hold_captures
    options = (*FAKE_NSYS, *sweep, *waits, "-v", f"{results}:/results")
    command = (*JOB_ON_CPU, "--only", "context_length=16")
    name = engine.output("run", "--detach", "--network=none", *HARDENED, *options, image, *command)
    try:
        wait_until(lambda: (folder / "reached").exists() and statuses(results), engine, name)
        code, said = container(*options, command=command)
        assert code == 75 and "another job" in said, said
        assert engine.output("exec", name, "cat", "/proc/1/comm") == "tini"
        engine("stop", "--time", "60", name)
        engine("logs", name)
        assert engine.output("inspect", "--format", "{{.State.ExitCode}}", name) == "143"
    finally:
        engine("rm", "--force", name)
    finished = statuses(results)
    assert list(finished.values()) == ["ok"]
    marks = [json.loads(file.read_text())["state"] for file in results.glob("tiny/*/in_flight.json")]
    assert marks == ["interrupted"]

    (folder / "closed").unlink()
    written = {run: (results / "tiny" / run / "run.json").stat().st_mtime_ns for run in finished}
    code, said = container(*options, command=("run", *command[1:]))
    assert code == 0
    assert "2 runs, 1 of them already finished" in said
    assert list(statuses(results).values()) == ["ok"] * 2
    assert written == {run: (results / "tiny" / run / "run.json").stat().st_mtime_ns for run in finished}


@pytest.fixture
def small_disk(engine, image):
    """small_disk(MiB): the name of a volume of that size, and of a container that fills and frees it."""
    names = []

    def make(mebibytes: int) -> str:
        name = f"profiler-job-test-{os.getpid()}"
        size = f"o=size={mebibytes}m,mode=1777"
        engine.output("volume", "create", "--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", size, name)
        names.append(name)
        holder = ("--detach", "--network=none", "--name", name, "-v", f"{name}:/results", "--entrypoint", "sleep")
        engine.output("run", *holder, image, "3600")  # an unused volume of memory is empty again
        return name

    yield make
    for name in names:
        engine("rm", "--force", name)
        engine("volume", "rm", name)


@pytest.mark.nightly
def test_a_full_disk_ends_the_sweep_with_74_and_it_goes_on_when_there_is_space(engine, container, small_disk, sweep):
    disk = small_disk(64)
    options = (*FAKE_NSYS, *sweep, "-v", f"{disk}:/results")
    fill = "head -c 1G /dev/zero >/results/ballast; truncate -s -40K /results/ballast; df -k /results"
    engine("exec", disk, "sh", "-c", fill)
    command = ("run", *JOB_ON_CPU[1:], *ONE_RUN)
    code, said = container(*options, command=command)
    assert code == 74 and "No space left on device" in said and "what was measured so far is kept" in said
    engine.output("exec", disk, "rm", "/results/ballast")
    code, said = container(*options, command=command)
    assert code == 0 and "finished: 1 ok" in said


def test_a_disk_that_is_too_small_is_found_before_anything_is_measured(container, small_disk, sweep):
    options = (*FAKE_NSYS, *sweep, "-v", f"{small_disk(1)}:/results")
    code, said = container(*options, command=JOB_ON_CPU)
    assert code == 69 and re.search(r"failed +disk: .* free in /results, at most", said)
    assert "free some space" in said and "already finished" not in said


@pytest.mark.nightly
def test_a_report_that_fails_leaves_the_measurements(container, results, sweep, tmp_path):
    broken = tmp_path / "mkdocs.yml"
    broken.write_text("site_name: [")
    options = (*FAKE_NSYS, *sweep, "-v", f"{results}:/results")
    code, said = container(*options, "-v", f"{broken}:/app/mkdocs.yml:ro", command=(*JOB_ON_CPU, *ONE_RUN))
    assert code == 70
    assert "the step `site` failed" in said and "what was measured is kept in /results/tiny" in said
    assert len(statuses(results)) == 1 and not (results / "site").exists()
    code, _ = container(*options, command=("job", "--sweep", "/sweep.yaml", "--render-only"))
    assert code == 0 and (results / "site" / "index.html").is_file()


@pytest.mark.parametrize(("importer", "built"), [(True, True), (False, False)], ids=["whole", "without importer"])
def test_nsys_comes_from_a_signed_repository_and_the_build_fails_without_its_importer(
    engine, base_image, image, tmp_path, importer, built
):
    with package_repository(tmp_path, importer=importer) as arguments:
        code, said = build(engine, base_image, "profiler-job:nsys", TORCH="torch", **arguments)
    assert (code == 0) == built
    assert ("NVIDIA Nsight Systems version 0.0.0 (fake)" in said) == built
    if not built:
        assert "the package has no QdstrmImporter" in said
        return
    inside = ("run", "--rm", "--network=none", "--entrypoint")
    assert "0.0.0 (fake)" in engine.output(*inside, "nsys", "profiler-job:nsys", "--version")
    bom = json.loads(engine.output(*inside, "cat", "profiler-job:nsys", "/usr/share/profiler-job/sbom.cdx.json"))
    assert f"pkg:deb/nvidia/{PACKAGE}@0.0.0?arch=all" in {one["purl"] for one in bom["components"]}


def test_a_repository_with_another_key_than_the_pinned_one_is_not_trusted(engine, base_image, image, tmp_path):
    with package_repository(tmp_path, importer=True) as arguments:
        key = arguments.pop("NSYS_KEY")
        code, said = build(engine, base_image, "profiler-job:nsys", TORCH="torch", **arguments)
    assert code != 0
    assert f"is signed by {key}, not by AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80" in said and "--key" in said
    assert "NVIDIA Nsight Systems version" not in said


@pytest.fixture
def compose(engine):
    """compose(file, *arguments) runs docker compose with the engine; returns exit code and output."""
    forms = [["docker", "compose"], ["docker-compose"]]
    command = next((form for form in forms if shutil.which(form[0]) and shown([*form, "version"])[0] == 0), None)
    if command is None:
        pytest.skip("neither docker compose nor docker-compose is installed")
    return lambda file, *arguments: shown([*command, "-f", str(file), *arguments], engine.environment)


def test_the_compose_file_is_valid(compose):
    code, said = compose(ROOT / "docker" / "compose.yaml", "config")
    assert code == 0
    assert "read_only: true" in said and "- gpu" in said


def test_the_service_of_compose_does_the_job_without_any_privilege(compose, image, results, sweep, tmp_path):
    """All that is changed of it: the image is built, there is no GPU, and nsys is the fake one."""
    service = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["profiler-job"]
    del service["build"], service["deploy"]
    service |= {"image": image, "network_mode": "none", "command": [*JOB_ON_CPU, *ONE_RUN]}
    service["volumes"] = [f"{results}:/results", *(option for option in (*FAKE_NSYS, *sweep) if ":ro" in option)]
    service["environment"] = [option for option in FAKE_NSYS if option.startswith("PATH=")]
    rights = service | {"entrypoint": ["cat"], "command": ["/proc/self/status"]}
    services = {"profiler-job": service, "rights": rights}
    file = tmp_path / "compose.yaml"
    file.write_text(yaml.safe_dump({"version": "2.4", "services": services}))
    code, said = compose(file, "run", "--rm", "-T", "rights")
    held = dict(line.split(":\t") for line in said.splitlines() if line.startswith(("Cap", "NoNewPrivs")))
    assert code == 0 and held.pop("NoNewPrivs") == "1"
    assert len(held) == 5 and {int(capabilities, 16) for capabilities in held.values()} == {0}
    code, _ = compose(file, "run", "--rm", "-T", "profiler-job")
    assert code == 0 and list(statuses(results).values()) == ["ok"]


def test_the_image_lists_what_it_is_made_of(engine, base_image, image):
    inside = ("run", "--rm", "--network=none", "--entrypoint")
    text = engine.output(*inside, "cat", image, "/usr/share/profiler-job/sbom.cdx.json")
    bom = json.loads(text)
    assert bom["metadata"]["component"]["properties"][0]["value"] == base_image
    listed = {tuple(one["purl"].removeprefix("pkg:").split("@")[0].split("/")[::2]) for one in bom["components"]}
    assert {("deb", "libdw1"), ("deb", "tini"), ("deb", "python3")} <= listed
    versions = {one["name"]: one["version"] for one in bom["components"] if one["purl"].startswith("pkg:pypi/")}
    installed = json.loads(engine.output(*inside, "python", image, "-m", "pip", "list", "--format=json"))
    assert versions == {re.sub("[-_.]+", "-", one["name"]).lower(): one["version"] for one in installed}
    json_schema = pytest.importorskip("cyclonedx.validation.json", reason="pip install -e '.[dev]'")
    schema_version = pytest.importorskip("cyclonedx.schema").SchemaVersion.V1_6
    assert json_schema.JsonStrictValidator(schema_version).validate_str(text) is None


@pytest.mark.parametrize("linter", [["hadolint", "docker/Dockerfile"], ["shellcheck", *SCRIPTS]])
def test_the_linters_find_nothing(linter):
    if not shutil.which(linter[0]):
        pytest.skip(
            f"{linter[0]} is not installed (pip install {linter[0]}-{'bin' if linter[0] == 'hadolint' else 'py'})"
        )
    code, said = shown([linter[0], *(str(ROOT / file) for file in linter[1:])])
    assert (code, said) == (0, "")
