"""Identity of the program that measured: its commit, or the installed version."""

import subprocess

from profiler_job.jobs.contract import program


def test_the_commit_is_that_of_its_own_checkout_alone(tmp_path):
    """Installed into an environment within somebody's project, it took the commit of that project for its own."""
    run = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*run, "init", "--quiet"], check=True)
    subprocess.run([*run, "commit", "--quiet", "--allow-empty", "-m", "theirs"], check=True)
    installed = tmp_path / "lib"
    installed.mkdir()
    assert len(program.read_commit(tmp_path)) == 12
    assert program.read_commit(installed) == ""


def test_a_checkout_with_other_code_than_its_commit_has_another_name(tmp_path):
    """A sweep that was stopped, and went on after an edit, kept what the code before the edit had measured."""
    run = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for name in ("jobs", "site"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("before\n")
    subprocess.run([*run, "init", "--quiet"], check=True)
    subprocess.run([*run, "add", "."], check=True)
    subprocess.run([*run, "commit", "--quiet", "-m", "one"], check=True)
    clean = program.read_commit(tmp_path)
    (tmp_path / "site" / "file").write_text("after\n")
    assert program.read_commit(tmp_path) == clean, "what is measured does not depend on it"
    names = [clean]
    for text in ("after\n", "later\n"):
        (tmp_path / "jobs" / "file").write_text(text)
        names.append(program.read_commit(tmp_path))
    assert len({*names}) == 3 and all(name.startswith(f"{clean}+") for name in names[1:])


def test_what_was_installed_is_named_by_its_version(tmp_path):
    package = tmp_path / "profiler_job"
    package.mkdir()
    assert program.read_version(package) == ""
    (tmp_path / "profiler_job-7.1.dist-info").mkdir()
    (tmp_path / "profiler_job-7.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: profiler-job\nVersion: 7.1\n"
    )
    assert (before := program.read_version(package)).startswith("version 7.1+")
    (package / "jobs").mkdir()
    (package / "jobs" / "worker.py").write_text("steps = 3\n")
    assert program.read_version(package) != before, "two builds of one version are two programs"


def test_a_checkout_is_named_by_its_commit(monkeypatch):
    monkeypatch.delenv("PROFILER_COMMIT", raising=False)
    assert program.find_commit() == program.read_commit(program.PROGRAM)
