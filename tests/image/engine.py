"""A container engine for the tests: the one that runs on this machine, or else one started for them alone."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import HANGS_S


class NoEngineError(Exception):
    """No engine runs here and none can be started; the message says why."""


class Engine:
    """Runs docker commands and prints what they print, line by line, as they run."""

    def __init__(self, docker: str, environment: Mapping[str, str]):
        self.docker, self.environment = docker, {**os.environ, "DOCKER_BUILDKIT": "1", **environment}

    def __call__(self, *arguments: str | Path) -> tuple[int, str]:
        """Run `docker ARGUMENTS`; returns its exit code and what it printed."""
        return shown([self.docker, *map(str, arguments)], self.environment)

    def output(self, *arguments: str | Path) -> str:
        """What `docker ARGUMENTS` printed. Fails the test if it failed."""
        code, text = self(*arguments)
        assert code == 0, text
        return text.strip()


def shown(command: list[str], environment: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """Run a command, printing it and what it prints; returns its exit code and what it printed, both streams."""
    print(f"\n$ {' '.join(command)}", flush=True)
    lines = []
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        hangs = threading.Event()
        # However little it prints: a command that hangs says nothing.
        clock = threading.Timer(HANGS_S, lambda: (hangs.set(), process.kill()))
        clock.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        process.wait()
        clock.cancel()
    assert not hangs.is_set(), f"`{' '.join(command)}` did not end within {HANGS_S} s: {''.join(lines[-20:])}"
    print(f"[exit {process.returncode}]", flush=True)
    return process.returncode, "".join(lines)


def docker_with_buildkit() -> str:
    """The first docker on PATH that can build with BuildKit: version 20 has it inside, later ones need buildx."""
    found = [Path(folder, "docker") for folder in os.get_exec_path() if Path(folder, "docker").is_file()]
    if not found:
        raise NoEngineError("docker is not installed")
    for docker in found:
        version = subprocess.run([docker, "--version"], capture_output=True, text=True).stdout.split()
        buildx = subprocess.run([docker, "buildx", "version"], capture_output=True).returncode == 0
        if buildx or (len(version) > 2 and 18 < int(version[2].split(".")[0]) < 23):
            return str(docker)
    raise NoEngineError("docker is installed without buildx, so it cannot build with BuildKit")


@contextmanager
def an_engine() -> Iterator[Engine]:
    """The engine that runs here, or one of our own with its data in a temporary folder. Raises NoEngineError."""
    docker = docker_with_buildkit()
    running = Engine(docker, {})
    if subprocess.run([docker, "info"], capture_output=True, env=running.environment).returncode == 0:
        print(f"\nusing the engine that runs on this machine, with {docker}")
        yield running
        return
    if os.getuid() != 0 or not shutil.which("dockerd"):
        why = "dockerd is not installed" if os.getuid() == 0 else "only root can start one"
        raise NoEngineError(f"no engine runs here, and {why}")
    folder = Path(tempfile.mkdtemp(prefix="test-image-engine-"))
    address = f"unix://{folder}/socket"
    command = ["dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    command += ["--host", address, "--iptables=false", "--bridge=none", "--storage-driver=overlay2"]
    print(f"\n$ {' '.join(map(str, command))}", flush=True)
    with open(folder / "log", "w") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        engine = Engine(docker, {"DOCKER_HOST": address})
        deadline = time.monotonic() + HANGS_S
        while subprocess.run([docker, "info"], capture_output=True, env=engine.environment).returncode:
            if daemon.poll() is not None or time.monotonic() > deadline:
                last = (folder / "log").read_text().strip().splitlines()[-1:]
                raise NoEngineError(f"dockerd does not start here: {' '.join(last)}")
            time.sleep(0.5)
        yield engine
    finally:
        daemon.terminate()
        daemon.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
