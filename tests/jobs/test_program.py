"""What names the program that measured: its commit, or the version that was installed."""

import subprocess

from jobs.contract import program


def test_the_commit_is_that_of_its_own_checkout_alone(tmp_path):
    """Installed into an environment within somebody's project, it took the commit of that project for its own."""
    run = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*run, "init", "--quiet"], check=True)
    subprocess.run([*run, "commit", "--quiet", "--allow-empty", "-m", "theirs"], check=True)
    installed = tmp_path / "lib"
    installed.mkdir()
    assert len(program.commit_of(tmp_path)) == 12
    assert program.commit_of(installed) == ""


def test_what_was_installed_is_named_by_its_version(tmp_path):
    assert program.version_in(tmp_path) == ""
    (tmp_path / "profiler_job-7.1.dist-info").mkdir()
    (tmp_path / "profiler_job-7.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: profiler-job\nVersion: 7.1\n"
    )
    assert program.version_in(tmp_path) == "version 7.1"


def test_a_checkout_is_named_by_its_commit(monkeypatch):
    monkeypatch.delenv("PROFILER_COMMIT", raising=False)
    assert program.commit() == program.commit_of(program.PROGRAM)
