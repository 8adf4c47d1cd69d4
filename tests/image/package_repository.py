"""A signed package repository with a fake of NVIDIA's nsys package, to run the step of the Dockerfile that
installs it."""

import gzip
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PACKAGE = "nsight-systems-cli-0.0.0"
NSYS = "#!/bin/sh\necho 'NVIDIA Nsight Systems version 0.0.0 (fake)'\n"
CONTROL = f"""Package: {PACKAGE}
Version: 0.0.0
Architecture: all
Maintainer: Nobody <nobody@example.org>
Description: fake nsys, which measures nothing
"""


@contextmanager
def package_repository(folder: Path, importer: bool, distribution: str = "") -> Iterator[dict[str, str]]:
    """Serve a repository whose only package has nsys, and its importer if asked; gives the build arguments that install
    it. distribution: whose packages, as NVIDIA names it; by default this system's."""
    missing = [tool for tool in ("dpkg-deb", "gpg") if not shutil.which(tool)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed, so no package repository can be made")
    release = platform.freedesktop_os_release()
    distribution = distribution or release["ID"] + release["VERSION_ID"].replace(".", "")
    architecture = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    repository = folder / "repository" / distribution / architecture
    repository.mkdir(parents=True)
    write_package(folder / "package", repository / "nsys.deb", importer)
    fingerprint = write_index(repository)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder / "repository"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        yield {"NSYS_PACKAGE": PACKAGE, "NSYS_REPOSITORY": address, "NSYS_KEY": fingerprint}
        server.shutdown()


def write_package(tree: Path, package: Path, importer: bool) -> None:
    home = tree / "opt" / "nvidia" / "nsight-systems-cli" / "0.0.0"
    files = {tree / "usr" / "local" / "bin" / "nsys": NSYS}
    if importer:
        files[home / "host-linux-x64" / "QdstrmImporter"] = "#!/bin/sh\n"
    home.mkdir(parents=True)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN" / "control").write_text(CONTROL)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, package], check=True)


def write_index(repository: Path) -> str:
    """Packages, Release, its signature and the key, as in NVIDIA's repository. Returns the key's fingerprint."""
    package = (repository / "nsys.deb").read_bytes()
    entry = f"{CONTROL}Filename: ./nsys.deb\nSize: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n"
    (repository / "Packages").write_text(entry)
    (repository / "Packages.gz").write_bytes(gzip.compress(entry.encode()))
    sums = "".join(
        f" {hashlib.sha256(file.read_bytes()).hexdigest()} {file.stat().st_size} {file.name}\n"
        for file in (repository / "Packages", repository / "Packages.gz")
    )
    (repository / "Release").write_text(f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{sums}")
    with tempfile.TemporaryDirectory() as home:
        gpg = partial(subprocess.run, check=True, env=os.environ | {"GNUPGHOME": home})
        gpg(["gpg", "--batch", "--quick-gen-key", "--passphrase", "", "test <test@example.org>", "rsa2048", "sign"])
        gpg(["gpg", "--batch", "--armor", "--output", repository / "nvidia.pub", "--export"])
        gpg(["gpg", "--batch", "--clearsign", "--output", repository / "InRelease", repository / "Release"])
        listed = gpg(["gpg", "--batch", "--with-colons", "--fingerprint"], capture_output=True, text=True).stdout
        subprocess.run(["gpgconf", "--kill", "all"], env=os.environ | {"GNUPGHOME": home})
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
