"""The name of a change is registered once, in the contract; what else there is of it is in the modules of that name."""

import ast
from pathlib import Path

import pytest

from profiler_job.analysis.changes import join_code, load_change
from profiler_job.jobs.contract.axes import AXES
from profiler_job.jobs.contract.changes import CHANGES, TRIABLE, add_change, find_conflict

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    str(file.relative_to(ROOT)): file for side in ("jobs", "analysis") for file in sorted((ROOT / side).rglob("*.py"))
}
REGISTRY = "jobs/contract/changes.py"
AXES_AND_VALUES = {"tf32", "bf16", "compile", "foreach", "checkpointing"}
"""Names of changes that are an axis of runs, or a value of one, too."""
OTHER_THINGS = {
    "casts",  # a finding, and a count
    "copies",  # a part of the time of GPUs, and a cause
    "padding",  # the room around a chart
}


def find_names(file):
    """Return the names of changes among the strings of a file."""
    strings = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
    return {name for name in CHANGES if name in strings}


def test_the_name_of_a_change_is_written_once():
    elsewhere = {path: find_names(file) - AXES_AND_VALUES - OTHER_THINGS for path, file in FILES.items()}
    assert {path: names for path, names in elsewhere.items() if names} == {
        REGISTRY: set(CHANGES) - AXES_AND_VALUES - OTHER_THINGS,
        "jobs/contract/ranges.py": {"fused_attention"},  # a range of the reference Transformer
    }


def test_a_file_that_knows_changes_takes_their_names_from_the_registry():
    for path, file in FILES.items():
        if "contract.changes" in file.read_text():
            assert find_names(file) <= AXES_AND_VALUES, path


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_has_a_module_with_its_code(name):
    assert load_change(name).CODE
    assert join_code((name, name)) == "; ".join([load_change(name).CODE] * 2)


def test_what_a_change_sets_is_an_axis_and_a_value_of_it():
    for record in CHANGES.values():
        assert not record.axis or record.value in AXES[record.axis].names


def test_changes_of_one_axis_are_one_choice():
    assert find_conflict(["bf16", "fused_adamw", "compile", "padding"]) == ()
    assert find_conflict(["fused_adamw", "bf16", "tf32"]) == ("tf32", "bf16")
    assert find_conflict(iter(["cuda_graphs", "compile"])) == ("compile", "cuda_graphs")


def test_a_change_takes_the_place_of_those_with_which_it_is_one_choice():
    assert add_change((), "bf16") == ("bf16",)
    assert add_change(("bf16", "compile", "fused_adamw"), "cuda_graphs") == ("bf16", "fused_adamw", "cuda_graphs")
    assert add_change(("compile",), "compile_blocks") == ("compile_blocks",)


def test_each_change_that_can_be_tried_is_applied_by_a_module():
    applied = {file.stem for file in (ROOT / "jobs" / "follow" / "changes").glob("[!_]*.py")}
    assert applied == set(TRIABLE)
