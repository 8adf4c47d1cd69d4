"""Secrets and names in the environment of `jobs run` reach neither the results nor the recording, although nsys stores
the environment of what it profiles in every report."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from profiler_job.jobs.contract.privacy import find_name
from tests.jobs.conftest import FAKE_NSYS, ROOT, jobs

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-wJalrXUtnFEMI",
    "HF_TOKEN": "hf_plantedQwErTy",
    "WANDB_API_KEY": "planted-wandb-0123456789",
}
NAMES = {"USER": "planted-user", "LOGNAME": "planted-user", "HOSTNAME": "planted-host", "HOME": "/home/planted-user"}

# As the real one, this fake stores the environment it is called with, the host and the user.
LEAKY_NSYS = """
import importlib.machinery, importlib.util, json, os, sqlite3, sys
sys.dont_write_bytecode = True
from pathlib import Path

loader = importlib.machinery.SourceFileLoader("fake_nsys", FAKE_NSYS)
fake_nsys = importlib.util.module_from_spec(importlib.util.spec_from_loader("fake_nsys", loader))
loader.exec_module(fake_nsys)
command, *arguments = sys.argv[1:]
seen = dict(os.environ)
if command == "launch":
    Path(os.environ["HOME"], "launched").write_text(json.dumps(seen))
if command == "stop":
    report = Path(Path(fake_nsys.session_file(arguments)).read_text())
code = fake_nsys.main(command, *arguments)
if command == "stop":
    print("Generated:", chr(9), "/home/planted-user/reports/" + report.name)
    report.write_text(Path(os.environ["HOME"], "launched").read_text() + chr(10) + json.dumps(seen))
if command == "export":
    database = fake_nsys.option(arguments, "output")
    stored = [item for line in Path(arguments[-1]).read_text().splitlines() for item in json.loads(line).items()]
    stored += [*seen.items(), ("HostName", "planted-host"), ("User", "planted-user")]
    with sqlite3.connect(database) as connection:
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"):
            connection.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", stored)
        last = connection.execute("SELECT max(id) FROM StringIds").fetchone()[0]
        strings = [(last + 1 + i, f"{name}={value}") for i, (name, value) in enumerate(stored)]
        connection.executemany("INSERT INTO StringIds (id, value) VALUES (?, ?)", strings)
sys.exit(code)
"""


@pytest.fixture
def leaky_nsys(tmp_path, monkeypatch):
    path = tmp_path / "leaky" / "nsys"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nFAKE_NSYS = {str(FAKE_NSYS / 'nsys')!r}\n{LEAKY_NSYS}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path.parent


def occurrences(folder: Path, words) -> list[str]:
    """`file: word` for every word in every byte of every file below a folder, names included."""
    found = []
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = str(path.relative_to(folder)).encode() + path.read_bytes()
        found += [f"{path}: {word}" for word in words if word.encode() in content]
    return found


@pytest.mark.long
@pytest.mark.parametrize("how", ["ok", "failed"])
def test_no_secret_and_no_name_reaches_results_or_recording(fake_worker, tiny, tmp_path, leaky_nsys, how):
    if how == "failed":
        fake_worker.fail({"tiny-ctx8-fp32-naive-train_step/nsys": ("measured", "segfault")})
    results, recording = tmp_path / "results", tmp_path / "recording"
    environment = os.environ | SECRETS | NAMES | {"PATH": f"{leaky_nsys}{os.pathsep}{os.environ['PATH']}"}
    sweep = ["--sweep", tiny(context_length=[8]), "--results", results]
    done = jobs("run", "--device", "cpu", "--log-format", "json", *sweep, env=environment)
    assert done.returncode == (how == "failed"), done.stdout + done.stderr

    words = {*SECRETS, *SECRETS.values(), "planted"}
    names = words | ({socket.gethostname()} if len(socket.gethostname()) > 4 else set())  # short ones are everywhere
    assert occurrences(results / "tiny", names) == []
    # The raw report is never published and holds what nsys found on the machine, but no secret was there to be found.
    assert occurrences(results / "raw", words) == []
    assert not [word for word in words if word in done.stdout + done.stderr]

    ingest = [sys.executable, "-m", "profiler_job", "ingest", results / "tiny", "--out", recording]
    ingested = subprocess.run(ingest, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ingested.returncode == 0, ingested.stderr
    assert occurrences(recording, names | {str(results)}) == []
    hashed = json.loads((recording / "manifest.json").read_text())["hashed_names"]  # so that publishing finds them
    assert all(find_name(f"on {NAMES[name]}.", hashed) == NAMES[name] for name in ("USER", "HOSTNAME"))


def test_the_leaky_fake_nsys_leaks_what_it_is_given(fake_worker, tiny, tmp_path, leaky_nsys, monkeypatch):
    """Guard of the test above: without the allow-list and the scrubbing everything would be found."""
    from profiler_job.jobs.executor import nsys_cli, worker_process
    from tests.jobs.conftest import Session

    monkeypatch.setenv("PATH", f"{leaky_nsys}{os.pathsep}{os.environ['PATH']}")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker_process, "ENVIRONMENT", (*worker_process.ENVIRONMENT, *SECRETS))
    monkeypatch.setattr(nsys_cli, "scrub", lambda database: None)
    Session(tmp_path / "results", tiny(context_length=[8], mode=["forward"])).run()
    found = occurrences(tmp_path / "results", SECRETS.values())
    assert {Path(line.rpartition(": ")[0]).name for line in found} >= {"profile.sqlite"}
    assert len(found) == 6
