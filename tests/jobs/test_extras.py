"""Installed extras, and the message about a missing one."""

import json
import shlex
import sys

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import COMMANDS, NEED_SITE, app
from profiler_job.jobs.cli import measure_script
from profiler_job.jobs.contract import extras
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.extras import MissingExtraError, check_extra, find_missing, install_command

MISSING = "no_such_module"


@pytest.fixture
def without_site(monkeypatch):
    monkeypatch.setitem(extras.MODULES, "site", ("json", MISSING))


def test_a_module_that_is_missing_is_named_with_the_command_that_installs_the_extra(without_site):
    assert find_missing("site") == [MISSING]
    with pytest.raises(MissingExtraError) as raised:
        check_extra("site")
    assert MISSING in str(raised.value) and install_command("site") in str(raised.value)


def test_a_folder_of_that_name_is_no_module(monkeypatch, tmp_path):
    (tmp_path / MISSING).mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(extras.MODULES, "site", (MISSING,))
    assert find_missing("site") == [MISSING]
    (tmp_path / MISSING / "__init__.py").touch()
    assert find_missing("site") == []


@pytest.mark.parametrize("name", sorted(NEED_SITE))
def test_a_command_that_needs_an_extra_ends_before_it_begins(without_site, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    arguments = {"publish-data": ["results", "name"], "check-public": ["site"]}.get(name, [])
    done = CliRunner().invoke(app, [name, *arguments])
    assert done.exit_code == ExitCode.MISSING
    assert MISSING in done.output and not list(tmp_path.iterdir())
    assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
    assert name in COMMANDS


def test_a_page_of_history_needs_the_extra(without_site, tmp_path):
    done = CliRunner().invoke(app, ["history", str(tmp_path), "--html", str(tmp_path / "page.html")])
    assert done.exit_code == ExitCode.MISSING and MISSING in done.output


def test_profile_names_it_before_it_measures(without_site, tmp_path, monkeypatch):
    class Begun(SystemExit):
        pass

    def begin(*_):
        raise Begun(99)

    monkeypatch.setattr(measure_script, "attempt", begin)
    done = CliRunner().invoke(app, ["profile", "--results", str(tmp_path), "--", "python", "train.py"])
    assert done.exit_code == 99
    assert install_command("site") in done.output.replace("\n", "")


def test_a_sweep_without_torch_measures_nothing_and_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_missing", lambda extra: [extra])
    words = ["run", "--device", "cpu", "--sweep", "tiny", "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == ExitCode.MISSING
    assert install_command("gpu") in done.output.replace("\n", "")
    assert not (tmp_path / "results").exists()


ORIGINS = {
    "wheel": ({"url": "file:///x/profiler_job-1-py3-none-any.whl", "archive_info": {}}, "file:///x/"),
    "git": (
        {"url": "https://example.org/p", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        "git+https://example.org/p@abc",
    ),
    "index": (None, "profiler-job[site]"),
}


@pytest.mark.parametrize("tool", [False, True], ids=["pip", "uv tool"])
@pytest.mark.parametrize(("origin", "wanted"), ORIGINS.values(), ids=ORIGINS)
def test_the_command_installs_from_where_the_program_came_from(tmp_path, monkeypatch, origin, wanted, tool):
    information = tmp_path / "profiler_job-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: profiler-job\nVersion: 1\n")
    if origin:
        (information / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(extras, "PROGRAM", tmp_path / "profiler_job")
    if tool:
        (tmp_path / "uv-receipt.toml").touch()
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        monkeypatch.setattr(extras, "find_missing", lambda extra: [extra])
    command = shlex.split(install_command("site"))
    of_tool = ["uv", "tool", "install", "--python", f"{sys.version_info.major}.{sys.version_info.minor}"]
    assert command[:-1] == (of_tool if tool else [sys.executable, "-m", "pip", "install"])
    assert wanted in command[-1] and "[site]" in command[-1]


def test_a_tool_keeps_the_extras_that_it_has(tmp_path, monkeypatch):
    """`uv tool install` makes it anew."""
    (tmp_path / "uv-receipt.toml").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(extras, "find_missing", lambda extra: [] if extra == "site" else [extra])
    assert install_command("gpu").endswith("[site,gpu]'")


def test_a_checkout_is_installed_as_it_is():
    assert install_command("site", "gpu").endswith("[site,gpu]'")
    assert "--editable" in install_command("site")
