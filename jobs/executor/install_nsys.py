"""Install nsys from NVIDIA's package repository into one folder, without root and without a package manager.

The files of the repository are trusted by its signature alone: its index must be signed by the key with the given
fingerprint, and each package must have the SHA-256 that the index names. Needs the standard library, `gpgv` and
`dpkg-deb`, which Debian and Ubuntu have, and nothing of this program: the image runs this file before the program is
there (`python3 install_nsys.py --to FOLDER`).
"""

import argparse
import base64
import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

PACKAGE = "nsight-systems-cli-2025.3.1"
REPOSITORY = "https://developer.download.nvidia.com/devtools/repos"
KEY = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"
"""The fingerprint of the only key that may sign that repository: cudatools <cudatools@nvidia.com>."""

LIBRARIES = {"libdw.so.1": "libdw1", "libelf.so.1": "libelf1"}
"""Libraries that nsys's importer needs and that small images lack, with the system's packages that hold them."""
CONTROL = "control"
"""The file of the folder that says which package was installed: the package's own fields, as dpkg prints them."""
TIMEOUT_S = 60
"""Timeout of a connection to the repository that sends nothing."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
FREE_SPACE = "free some space, or set TMPDIR to a folder that has some"


START = '#!/bin/sh\nhere=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
"""First lines of bin/nsys in the folder of an installation."""
FOLDERS = {"bin", "etc", "lib", "libraries", "opt", "usr", "var"}
"""Folders in the folder of an installation: the package's, and two that are added."""


class InstallError(Exception):
    """Error when nsys was not installed, with what to do, in one line."""


class FolderError(InstallError):
    """Error when a folder cannot be written: that of the installation, or the temporary one."""


def install_nsys(
    folder: Path,
    package: str = PACKAGE,
    repository: str = REPOSITORY,
    key: str = KEY,
    say: Callable[[str], None] = print,
) -> Path:
    """Install a package of nsys into `folder`, in place of all that is there, and return the path of nsys.

    repository: its address, below which each distribution and architecture has a folder. say: is given a line before
    each long step. Raises InstallError; `folder` is then as it was.
    """
    check_tools()
    url = f"{repository.rstrip('/')}/{name_distribution()}/{name_architecture()}"
    with (
        make_draft(folder) as draft,
        tempfile.TemporaryDirectory(prefix="profiler-job-nsys-", ignore_cleanup_errors=True) as temporary,
    ):
        work = Path(temporary)
        say(f"reading the index of {url}")
        entry = find_package(read_index(url, key, work), package, url)
        say(f"downloading {package} ({int(entry['Size']) / 1e6:.0f} MB)")
        archive = download(f"{url}/{entry['Filename'].removeprefix('./')}", work / "package.deb")
        check_sum(archive, entry["SHA256"])
        run("dpkg-deb", "--extract", str(archive), str(draft))
        (draft / CONTROL).write_text(run("dpkg-deb", "--field", str(archive)))
        link_program(draft, work, say)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    return folder / "bin" / "nsys"


@contextmanager
def make_draft(folder: Path) -> Iterator[Path]:
    """Make an empty folder next to `folder`, before anything is downloaded, and remove it at the end, with the parents
    that were made for it, unless they hold something by then. Raises FolderError."""
    draft = folder.with_name(f".{folder.name}.draft")
    made = [parent for parent in draft.parents if not parent.exists()]
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
    except OSError as error:
        fix = FREE_SPACE if error.errno in DISK_FULL else "give another folder with --to"
        raise FolderError(f"{error.filename or folder} cannot be written ({error.strerror or error}): {fix}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


def is_installed(folder: Path) -> bool:
    """Whether a folder holds an nsys that was installed by this program, and nothing else."""
    start = folder / "bin" / "nsys"
    is_ours = start.is_file() and start.read_bytes().startswith(START.encode())
    return is_ours and {path.name for path in folder.iterdir()} <= FOLDERS | {CONTROL}


def check_tools() -> None:
    """Check that the two programs that verify and unpack a package exist. Raises InstallError."""
    missing = [tool for tool in ("gpgv", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise InstallError(
            f"{' and '.join(missing)} not found: this works on Debian and Ubuntu; elsewhere download Nsight Systems"
            " from NVIDIA's site and put its nsys on PATH"
        )


def name_distribution() -> str:
    """Return the name of this system in the repository, such as `ubuntu2404`. Raises InstallError."""
    try:
        release = platform.freedesktop_os_release()
    except OSError as error:
        raise InstallError("this system does not say what it is (no /etc/os-release)") from error
    return release["ID"] + release.get("VERSION_ID", "").replace(".", "")


def name_architecture() -> str:
    """Return the name of this machine's processor in the repository, such as `amd64`."""
    return run("dpkg", "--print-architecture").strip()


def read_index(url: str, key: str, work: Path) -> str:
    """Return the text of the repository's `Packages`, after checking its signature. Raises InstallError."""
    key_file, release = (
        download(f"{url}/nvidia.pub", work / "key.asc"),
        download(f"{url}/InRelease", work / "InRelease"),
    )
    sums = read_signed(release, key_file, key, url, work)
    packages = download(f"{url}/Packages", work / "Packages")
    digest = re.search(r"^ ([0-9a-f]{64}) +\d+ (?:\./)?Packages$", sums, re.MULTILINE)
    if digest is None:
        raise InstallError(f"the signed index of {url} names no SHA-256 of its Packages")
    check_sum(packages, digest[1])
    return packages.read_text(encoding="utf-8")


def read_signed(release: Path, key_file: Path, key: str, url: str, work: Path) -> str:
    """Return what is signed in `release`. Raises InstallError unless the key with the fingerprint `key` signed it."""
    ring, text = work / "ring.gpg", work / "signed.txt"
    ring.write_bytes(dearmor(key_file.read_text(encoding="ascii", errors="replace"), url))
    checked = subprocess.run(
        ["gpgv", "--status-fd", "1", "--keyring", str(ring), "--output", str(text), str(release)],
        capture_output=True,
        text=True,
    )
    signers = re.findall(r"^\[GNUPG:\] VALIDSIG (\w+) (?:\S+ ){8}(\w+)$", checked.stdout, re.MULTILINE)
    if checked.returncode or not any(key in signer for signer in signers):
        names = ", ".join(signer[-1] for signer in signers) or "no valid key"
        raise InstallError(
            f"{url} is signed by {names}, not by {key}; if NVIDIA has a new one, give its fingerprint with --key"
        )
    return text.read_text(encoding="utf-8")


def dearmor(armored: str, url: str) -> bytes:
    """Return the bytes of an ASCII-armored key. Raises InstallError."""
    encoded = re.search(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n(?:.*: .*\n)*\n?([\w+/=\s]+?)\n(?:=.{4}\n)?-----END", armored
    )
    if encoded is None:
        raise InstallError(f"{url}/nvidia.pub holds no key")
    return base64.b64decode("".join(encoded[1].split()))


def find_package(index: str, package: str, url: str) -> dict[str, str]:
    """Return the fields of a package in the text of `Packages`. Raises InstallError, which names the newest ones."""
    entries = [dict(re.findall(r"^([\w-]+): (.*)$", block, re.MULTILINE)) for block in index.split("\n\n")]
    for entry in entries:
        if entry.get("Package") == package and {"Filename", "Size", "SHA256"} <= entry.keys():
            return entry
    others = sorted(
        {entry["Package"] for entry in entries if entry.get("Package", "").startswith("nsight-systems-cli")}
    )
    raise InstallError(f"{url} has no package {package}; it has {', '.join(others[-5:]) or 'none of nsys'}")


def link_program(draft: Path, work: Path, say: Callable[[str], None]) -> None:
    """Write bin/nsys below `draft`, which starts the nsys that was unpacked there, with the libraries that its importer
    lacks on this machine. Raises InstallError when nsys or its importer is missing or cannot start."""
    importer = next((path for path in sorted(draft.rglob("QdstrmImporter")) if path.is_file()), None)
    programs = [path for path in sorted(draft.rglob("nsys")) if path.is_file() and os.access(path, os.X_OK)]
    program = min(programs, key=lambda path: (path.parent.name != "bin", len(path.parts)), default=None)
    if program is None or importer is None:
        what = "nsys" if program is None else "QdstrmImporter, which makes its reports"
        raise InstallError(f"the package has no {what}: choose one such as {PACKAGE}")
    if missing := find_missing_libraries(importer):
        fetch_libraries(missing, draft, work, say)
    start = draft / "bin" / "nsys"
    start.parent.mkdir(exist_ok=True)
    libraries = sorted({path.parent for path in (draft / "libraries").rglob("*.so*")})
    lines = []
    if libraries:
        paths = ":".join(f"$here/{path.relative_to(draft)}" for path in libraries)
        lines += [f'export LD_LIBRARY_PATH="{paths}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"']
    start.write_text(START + "\n".join([*lines, f'exec "$here/{program.relative_to(draft)}" "$@"', ""]))
    start.chmod(0o755)
    if still := find_missing_libraries(importer, libraries):
        packages = " ".join(sorted(LIBRARIES.get(name, name) for name in still))
        raise InstallError(f"nsys's importer lacks {', '.join(still)}: apt-get install {packages}, then start again")
    say(run(str(start), "--version").strip())


def find_missing_libraries(program: Path, folders: list[Path] | None = None) -> list[str]:
    """Return the shared libraries that the system's loader does not find for `program`, also looking in `folders`."""
    paths = os.pathsep.join([*map(str, folders or ()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    listed = subprocess.run(
        ["ldd", str(program)], capture_output=True, text=True, env=os.environ | {"LD_LIBRARY_PATH": paths}
    )
    return re.findall(r"^\s*(\S+) => not found", listed.stdout, re.MULTILINE)


def fetch_libraries(missing: list[str], draft: Path, work: Path, say: Callable[[str], None]) -> None:
    """Unpack the system's packages of missing libraries below `draft`, by apt, which needs no root to download. What
    cannot be had is left to the check that follows."""
    packages = sorted({LIBRARIES[name] for name in missing if name in LIBRARIES} | set(LIBRARIES.values()))
    say(f"downloading {' and '.join(packages)}, which nsys needs")
    lists = work / "lists"
    (lists / "partial").mkdir(parents=True)
    options = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={work}", "-o", "Debug::NoLocking=true"]
    for arguments in (["update"], ["download", *packages]):
        subprocess.run(["apt-get", "-qq", *options, *arguments], cwd=work, capture_output=True)
    for archive in work.glob("lib*.deb"):
        run("dpkg-deb", "--extract", str(archive), str(draft / "libraries"))


def download(url: str, path: Path) -> Path:
    """Write what an address holds to `path`. Raises InstallError, and FolderError if the disk is full."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, open(path, "wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise FolderError(f"{path} cannot be written ({error.strerror}): {FREE_SPACE}") from error
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise InstallError(
            f"{url} cannot be read ({reason}): is there a network, and a repository for this system?"
        ) from error
    return path


def check_sum(path: Path, sha256: str) -> None:
    """Check that a file has the SHA-256 that its index names. Raises InstallError."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise InstallError(f"{path.name} is not what the signed index names: it was changed on its way; try again")


def run(*command: str) -> str:
    """Return what a command prints. Raises InstallError with its last line, and FolderError if the disk is full."""
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines() or ["no reason given"]
        if full := next((line for line in lines if os.strerror(errno.ENOSPC) in line), ""):
            raise FolderError(f"{Path(command[0]).name} failed ({full.strip()}): {FREE_SPACE}") from error
        raise InstallError(f"{Path(command[0]).name} failed: {lines[-1]}") from error


def main() -> None:
    """Install as the command line says; exit with one line when that fails."""
    parser = argparse.ArgumentParser(description="Install NVIDIA Nsight Systems' command line into a folder.")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--package", default=PACKAGE)
    parser.add_argument("--repository", default=REPOSITORY)
    parser.add_argument("--key", default=KEY)
    options = parser.parse_args()
    try:
        print(install_nsys(options.to, options.package, options.repository, options.key))
    except InstallError as error:
        sys.exit(f"install-nsys: {error}")


if __name__ == "__main__":
    main()
