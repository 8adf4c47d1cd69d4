"""Structures of scripts, each followed without an option. On the CPU, without nsys."""

import re

import pytest

from profiler_job.jobs.executor import script
from tests.jobs.conftest import IN_NEW_PYTHON, ROOT
from tests.jobs.structures import HEAD, STRUCTURES
from tests.without_compiler import WITHOUT_COMPILER

MODES = {"backward pass": "forward_backward"}
CHEAP = ("policy gradients", "LBFGS", "an update by hand", "pipeline stages", "a GAN", "the loop runs on a thread")


def choose_marks(structure) -> list[pytest.MarkDecorator]:
    return [] if structure.name.startswith(CHEAP) else [pytest.mark.long]


@pytest.mark.long
@pytest.mark.parametrize(
    "structure", [pytest.param(each, marks=choose_marks(each), id=each.name) for each in STRUCTURES]
)
def test_the_structure_is_followed(followed, structure):
    compiler, command = ("", IN_NEW_PYTHON) if structure.compiles else (WITHOUT_COMPILER, ())
    printed, code, noted = followed(compiler + HEAD + structure.source, *command, events=True)
    assert code == 0 and noted.get("stage") == "done", printed
    run = script.build_run(noted)
    assert run["mode"] == MODES.get(structure.step, "train_step")
    assert (run["size"], run["batch_size"]) == (structure.model, structure.batch)
    assert {row["phase"] for row in noted["phases"]} >= set(structure.phases)
    assert len(noted["steps"]) == 3 and len(noted["captured_ns"]) == 3


def test_the_guide_names_each_structure():
    page = (ROOT / "site" / "guide" / "profile.md").read_text()
    section = page.partition("## What is followed, and what is not")[2].partition("Not followed")[0]
    items = "; ".join(re.findall(r"^- \*\*\w+\*\*: (.+)$", section, re.MULTILINE)).split("; ")
    named = [re.fullmatch(r"(.+?)(?: \(a step ends with the (.+)\))?( \(batch not known\))?", item) for item in items]
    assert sorted((each[1], each[2] or "update of the optimizer", not each[3]) for each in named) == sorted(
        (each.name, each.step, bool(each.batch)) for each in STRUCTURES
    )
