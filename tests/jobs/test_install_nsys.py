"""nsys is found where NVIDIA's packages put it, and installed from a signed repository without root."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from profiler_job.jobs.contract import find_nsys
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.executor import install_nsys
from tests.image.package_repository import package_repository


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A user without nsys, with the system's programs on PATH."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path


def make_program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho found $0\n")
    path.chmod(0o755)
    return path


def install(folder, arguments, **changed):
    given = {
        "package": arguments["NSYS_PACKAGE"],
        "repository": arguments["NSYS_REPOSITORY"],
        "key": arguments["NSYS_KEY"],
    }
    return install_nsys.install_nsys(folder, **given | changed, say=lambda line: None)


@pytest.mark.parametrize("place", ["data/profiler-job/nsys/bin", "bin"])
def test_nsys_of_the_user_and_of_path_are_found(home, monkeypatch, place):
    program = make_program(home / place / "nsys")
    if place == "bin":
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin")
    assert find_nsys.find_nsys(home / "root") == program


@pytest.mark.parametrize(
    "place",
    [
        "opt/nvidia/nsight-systems/2025.3.1/bin",
        "usr/local/cuda-13.0/bin",
        "opt/nvidia/nsight-compute/2025.3.0/host/target-linux-x64",
    ],
)
def test_nsys_of_nvidias_packages_is_found(home, place):
    program = make_program(home / place / "nsys")
    assert find_nsys.find_nsys(home) == program


def test_the_newest_version_is_taken(home):
    for version in ("2025.9.1", "2025.10.1", "2024.12.3"):
        make_program(home / "opt" / "nvidia" / "nsight-systems" / version / "bin" / "nsys")
    assert "2025.10.1" in str(find_nsys.find_nsys(home))


def test_without_nsys_nothing_is_found_and_path_stays(home):
    assert find_nsys.find_nsys(home) is None
    find_nsys.add_nsys_to_path()
    assert os.environ["PATH"] == "/usr/bin:/bin"


def test_the_own_installation_comes_before_a_broken_one_on_path(home, monkeypatch):
    make_program(home / "bin" / "nsys")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    own = make_program(find_nsys.own_folder() / "bin" / "nsys")
    assert find_nsys.find_nsys(home / "root") == own
    find_nsys.add_nsys_to_path()
    assert shutil.which("nsys") == str(own)


def test_the_importer_of_nsight_compute_goes_on_path_with_its_nsys(home, monkeypatch):
    host = home / "opt" / "nvidia" / "nsight-compute" / "2025.3.0" / "host"
    program = make_program(host / "target-linux-x64" / "nsys")
    make_program(host / "linux-desktop-glibc_2_11_3-x64" / "QdstrmImporter")
    monkeypatch.setattr(find_nsys, "find_nsys", lambda: program)
    find_nsys.add_nsys_to_path()
    assert os.environ["PATH"].split(":")[-2:] == [str(program.parent), str(host / "linux-desktop-glibc_2_11_3-x64")]


def test_it_is_installed_from_a_signed_repository_and_found_afterwards(home, tmp_path):
    with package_repository(tmp_path / "served", importer=True) as arguments:
        program = install(find_nsys.own_folder(), arguments)
        assert install(find_nsys.own_folder(), arguments) == program, "again, in its place"
    assert "0.0.0 (fake)" in subprocess.check_output([program, "--version"], text=True)
    assert find_nsys.find_nsys(home) == program
    assert [path.name for path in find_nsys.own_folder().parent.iterdir()] == ["nsys"], "no draft is left"


def test_another_key_another_package_and_a_changed_one_are_refused_and_nothing_is_replaced(home, tmp_path):
    kept = make_program(find_nsys.own_folder() / "bin" / "nsys")
    with package_repository(tmp_path / "served", importer=True) as arguments:
        with pytest.raises(install_nsys.InstallError, match=r"is signed by \w{40}, not by AE09"):
            install(find_nsys.own_folder(), arguments, key=install_nsys.KEY)
        with pytest.raises(install_nsys.InstallError, match=r"no package nsight-systems-cli-1.*0\.0\.0"):
            install(find_nsys.own_folder(), arguments, package="nsight-systems-cli-1")
        (package,) = (tmp_path / "served" / "repository").rglob("nsys.deb")
        package.write_bytes(package.read_bytes() + b"more")
        with pytest.raises(install_nsys.InstallError, match="not what the signed index names"):
            install(find_nsys.own_folder(), arguments)
        (index,) = (tmp_path / "served" / "repository").rglob("InRelease")
        index.write_text(index.read_text().replace("Date: Thu", "Date: Fri"))
        with pytest.raises(install_nsys.InstallError, match="is signed by no valid key"):
            install(find_nsys.own_folder(), arguments)
    assert subprocess.check_output([kept], text=True).startswith("found")


def test_a_package_without_the_importer_is_refused(home, tmp_path):
    served = package_repository(tmp_path / "served", importer=False)
    with served as arguments, pytest.raises(install_nsys.InstallError, match="no QdstrmImporter"):
        install(find_nsys.own_folder(), arguments)
    assert not find_nsys.own_folder().exists()


def test_without_a_network_it_names_what_it_could_not_read(home):
    with pytest.raises(install_nsys.InstallError, match=r"http://127\.0\.0\.1:9/\w+/\w+/nvidia\.pub cannot be read"):
        install_nsys.install_nsys(home / "to", repository="http://127.0.0.1:9", say=lambda line: None)


def test_the_file_alone_installs_for_the_image(home, tmp_path):
    with package_repository(tmp_path / "served", importer=True) as arguments:
        options = ["--repository", arguments["NSYS_REPOSITORY"], "--package", arguments["NSYS_PACKAGE"]]
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                install_nsys.__file__,
                "--to",
                tmp_path / "nsys",
                *options,
                "--key",
                arguments["NSYS_KEY"],
            ],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "nsys" / "bin" / "nsys")


def test_the_command_installs_once_and_says_where_nsys_is(home, tmp_path):
    with package_repository(tmp_path / "served", importer=True) as arguments:
        options = ["--repository", arguments["NSYS_REPOSITORY"], "--package", arguments["NSYS_PACKAGE"]]
        command = [sys.executable, "-m", "profiler_job", "install-nsys", *options, "--key", arguments["NSYS_KEY"]]
        lines = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
        refused = subprocess.run([*command, "--force", "--key", install_nsys.KEY], capture_output=True, text=True)
    program = find_nsys.own_folder() / "bin" / "nsys"
    assert lines[0] == f"installed: {program}\n"
    assert lines[1].startswith(f"nsys is already here: {program} ")
    assert refused.returncode == 69 and "is signed by" in refused.stderr and "Traceback" not in refused.stderr


def test_commands_find_an_nsys_that_is_not_on_path(home):
    broken = make_program(find_nsys.own_folder() / "bin" / "nsys")
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    command = [sys.executable, "-m", "profiler_job", "doctor", "--device", "cpu", "--results", str(home / "results")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "out of order" in done.stdout + done.stderr


def run_command(*options, **environment):
    command = [sys.executable, "-m", "profiler_job", "install-nsys", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_downloaded(home):
    done = run_command("--to", "/proc/nsys", "--repository", "http://127.0.0.1:9")
    assert done.returncode == ExitCode.CANNOT_WRITE and "--to" in done.stderr
    assert "index" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_failed_download_leaves_no_folder_that_was_made_for_it(home):
    done = run_command("--to", home / "new" / "nsys", "--repository", "http://127.0.0.1:9")
    assert done.returncode == ExitCode.MISSING and not (home / "new").exists()


def test_a_full_disk_is_no_problem_of_the_network(home, monkeypatch, tmp_path):
    def fill_disk(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(install_nsys.shutil, "copyfileobj", fill_disk)
    page = tmp_path / "page"
    page.touch()
    with pytest.raises(install_nsys.FolderError, match=r"No space left.*TMPDIR"):
        install_nsys.download(page.as_uri(), tmp_path / "copy")


def test_a_full_disk_while_a_package_is_unpacked_is_one_too(home):
    program = make_program(home / "bin" / "dpkg-deb")
    program.write_text("#!/bin/sh\necho 'dpkg-deb: error: x: No space left on device' >&2\necho more >&2\nexit 2\n")
    with pytest.raises(install_nsys.FolderError, match="No space left on device"):
        install_nsys.run(str(program))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_temporary_folder(home, number):
    temporary = home / "temporary"
    temporary.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and answers nothing
        command = [sys.executable, "-m", "profiler_job", "install-nsys", "--to", home / "new" / "nsys"]
        command += ["--repository", f"http://127.0.0.1:{server.getsockname()[1]}"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(temporary)})
        connection, _ = server.accept()
        assert list(temporary.glob("profiler-job-nsys-*"))
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        connection.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert not list(temporary.iterdir()) and not (home / "new").exists()
